"""What a Pod declares about being moved: labels and annotations of its owner, read strictly. Pure.

A hook reaches the Pod that declares it and nothing else: an HTTP hook has a port and a path and no host, an exec hook names a
container of the same Pod. What cannot be read is an error with its key, never a guess: the move fails with it, and the owner is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from responders.labels import DOMAIN
from sickbay.cluster.wire import decode_json

GROUP_LABEL: Final = f"{DOMAIN}group"
#: In an argument of an exec hook it stands for the id of the move, as Kubernetes writes variables in ``args``.
KEY_VARIABLE: Final = "$(SICKBAY_IDEMPOTENCY_KEY)"

_HOOK_BYTES_MAX: Final = 4_096
_ARGUMENTS_MAX: Final = 64
#: What may stand in a path and a query (RFC 3986) without being written otherwise.
_PATH: Final = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@/?%]*", re.ASCII)
#: DNS label, as names of containers are.
_CONTAINER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
#: Value of a label.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9\-_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class HttpHook(msgspec.Struct, frozen=True):
    """POST to the Pod's own address."""

    port: int
    #: With its query, beginning with ``/``.
    path: str


class ExecHook(msgspec.Struct, frozen=True):
    """A command in a container of the Pod."""

    container: str
    argv: tuple[str, ...]


Hook: TypeAlias = HttpHook | ExecHook


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What one Pod declares."""

    ability: Literal["checkpoint", "restartable", "neither", ""] = ""
    topology: Literal["whole", "shardable"] = "whole"
    #: The Pods of one namespace that move together; "" for a Pod that moves alone.
    group: str = ""
    stop: Hook | None = None
    checkpoint: Hook | None = None
    resume: Hook | None = None
    #: ``key: what is wrong``.
    errors: tuple[str, ...] = ()


def read_declared(metadata: Mapping[str, Any]) -> Declared:
    """Read labels and annotations of a Pod's metadata."""
    errors: list[str] = []
    labels, annotations = _texts(metadata.get("labels")), _texts(metadata.get("annotations"))
    # as ingest.observe.pods reads them: a label counts before an annotation
    either = annotations | labels
    group = labels.get(GROUP_LABEL, "")
    if group and not _LABEL.fullmatch(group):
        errors.append(f"{GROUP_LABEL}: {group[:64]!a} is no value of a label")
        group = ""
    ability = _choice(either, f"{DOMAIN}ability", ("checkpoint", "restartable", "neither"), errors)
    topology = _choice(either, f"{DOMAIN}topology", ("whole", "shardable"), errors)
    return Declared(
        ability=ability,  # type: ignore[arg-type]  # one of those above
        topology="shardable" if topology == "shardable" else "whole",
        group="" if topology == "shardable" else group,
        stop=_hook(annotations, f"{DOMAIN}stop-hook", errors),
        checkpoint=_hook(annotations, f"{DOMAIN}checkpoint-hook", errors),
        resume=_hook(annotations, f"{DOMAIN}resume-hook", errors),
        errors=tuple(errors),
    )


def _texts(values: object) -> dict[str, str]:
    if not isinstance(values, dict):
        return {}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _choice(values: Mapping[str, str], key: str, allowed: tuple[str, ...], errors: list[str]) -> str:
    value = values.get(key, "")
    if not value or value in allowed:
        return value
    errors.append(f"{key}: {value[:64]!a} is none of {', '.join(allowed)}")
    return ""


def _hook(annotations: Mapping[str, str], key: str, errors: list[str]) -> Hook | None:
    if key not in annotations:
        return None
    try:
        return read_hook(annotations[key])
    except ValueError as error:
        errors.append(f"{key}: {error}")
        return None


def read_hook(text: str) -> Hook:
    """Read ``http:<port>/<path>`` or ``exec:<container>:<argv as a JSON list>``. Raises ValueError, saying what is wrong."""
    if len(text.encode()) > _HOOK_BYTES_MAX:
        raise ValueError(f"it has more than {_HOOK_BYTES_MAX} bytes")
    kind, _, rest = text.partition(":")
    if kind == "http":
        return _http(rest)
    if kind == "exec":
        return _exec(rest)
    raise ValueError(f"{text[:64]!a} begins neither with http: nor with exec:")


def _http(rest: str) -> HttpHook:
    port, slash, path = rest.partition("/")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65_535):
        raise ValueError(f"{port[:64]!a} is no port; write http:<port>/<path>, without a host")
    if not slash or not _PATH.fullmatch(slash + path):
        raise ValueError("its path must begin with / and hold only what a URL may hold unescaped, and no #")
    return HttpHook(int(port), slash + path)


def _exec(rest: str) -> ExecHook:
    container, _, listed = rest.partition(":")
    if not _CONTAINER.fullmatch(container):
        raise ValueError(f"{container[:64]!a} is no name of a container; write exec:<container>:<argv>")
    try:
        argv = decode_json(listed.encode())
    except ValueError as error:
        raise ValueError(f"its command is no JSON list: {error}") from error
    if not isinstance(argv, list) or not 0 < len(argv) <= _ARGUMENTS_MAX:
        raise ValueError(f"its command must be a JSON list of 1 to {_ARGUMENTS_MAX} texts")
    if not all(isinstance(each, str) and "\0" not in each for each in argv) or not argv[0]:
        raise ValueError("its command must hold texts only, without NUL, and begin with a program")
    return ExecHook(container, tuple(argv))
