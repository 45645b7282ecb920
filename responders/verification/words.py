"""What the Pods of a step say of its end, in one short line for the report. Pure.

A Pod's words come from an operator's command: they are cut, and secrets in them are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sickbay.operations.redaction import escaped, redacted

#: Of one report.
DETAIL_MAX: Final = 600
#: Of the last words of a container.
_TAIL_MAX: Final = 300
#: The kubelet keeps 4,096 bytes of a termination message.
_MESSAGE_MAX: Final = 8_192
WEAKER: Final = "node-pinned, weaker: the plugin chose the device"


def detail_of(*parts: str) -> str:
    """Return parts as one line, without secrets and not too long."""
    return _line("; ".join(part for part in parts if part))[:DETAIL_MAX]


def ended_words(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return how the containers of the Pods ended: those that failed, else those that ran."""
    failed: list[str] = []
    passed: list[str] = []
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("reason"):
            # evicted, or deleted for a taint
            failed.append(_line(f"Pod {status['reason']}: {status.get('message', '')}", _TAIL_MAX))
        for name, ended in _terminated(status):
            (failed if ended.get("exitCode") or ended.get("signal") else passed).append(_end(name, ended))
    return "; ".join(failed or passed)


def waiting_words(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return what Pods that have not ended wait for: the scheduler's words, else the kubelet's."""
    told: list[str] = []
    for pod in pods:
        status = pod.get("status") or {}
        told += (
            str(condition.get("message") or condition.get("reason"))
            for condition in status.get("conditions") or ()
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        )
        for each in _containers(status):
            waiting = (each.get("state") or {}).get("waiting")
            if waiting:
                told.append(f"{each.get('name')} waits: {waiting.get('reason')} {waiting.get('message', '')}")
    return "; ".join(_line(each, _TAIL_MAX) for each in told)


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _terminated(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for each in _containers(status):
        ended = (each.get("state") or {}).get("terminated")
        if ended:
            yield str(each.get("name")), ended


def _end(name: str, ended: Mapping[str, Any]) -> str:
    reason = ended.get("reason") or ""
    told = f"{name} ended with {ended.get('exitCode')}" + (f" ({reason})" if reason else "")
    message = _line(str(ended.get("message") or ""))
    tail = message if len(message) <= _TAIL_MAX else f"…{message[-_TAIL_MAX:]}"
    return f"{told}: {tail}" if tail else told


def _line(text: str, most: int = _MESSAGE_MAX) -> str:
    """Secrets first: half a secret is one that no rule knows."""
    return escaped(" ".join(redacted(text, _MESSAGE_MAX).split()))[:most]
