"""What an event says, in a few words for a person. Nothing is judged here: the words are those of the event."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sickbay.decisions import CustodyDecision, Decision, LedgerDecision
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    PodGone,
    PodObserved,
    PoolObserved,
    WatchGapFound,
)
from sickbay.ledger_words import decision_words
from sickbay.report.markup import counted, utc

#: Fields that tell something by themselves, in the order in which they are told.
_TOLD: Final = (
    "alert", "about", "cause", "scope", "state", "ready", "reason", "ready_reason", "phase", "passed", "outcome", "detail", "actor",
    "attempt", "until_ms", "token", "closed", "adverse", "known", "threshold", "last_renewal_at_ms", "effective_generation",
    "newest_generation", "invalid_reason", "policy_version", "episode_id",
)  # fmt: skip


def said(event: Fact | Decision | None) -> str:
    """Return what an event says; ``None`` is an event that this build does not know."""
    match event:
        case None:
            return "an event of a newer build"
        case CustodyDecision():
            before, after = event.phase_before, event.record.phase
            return f"{after if before == after else f'{before} → {after}'}: {event.reason}"
        case LedgerDecision():
            return decision_words(event)
        case DeviceHealthObserved():
            word = event.health if event.health_raw is not None else f"{event.health} ({event.absence})"
            frozen = "" if event.live else " (frozen: the Pod ended)"
            message = f': "{event.message}"' if event.message else ""
            return f"{event.namespace}/{event.pod} says {word}{frozen}{message}"
        case DevicePublished():
            taints = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in event.taints)
            return f"{event.device}: generation {event.pool_generation}, {f'taints {taints}' if taints else 'no taint'}"
        case WatchGapFound():
            return f"nothing seen of {event.watched} from {utc(event.from_ms)} to {utc(event.to_ms)}"
        case _:
            fields = msgspec.structs.asdict(event)
            told = ", ".join(
                _field(name, value)
                for name in _TOLD
                if (value := fields.get(name)) is not None and value != ""
            )
            return ": ".join(filter(None, (_name(event), told)))


def _name(event: Fact | Decision) -> str:
    """Return which object an event is of, where its fields alone would not tell."""
    match event:
        case PodObserved():
            return f"{event.namespace}/{event.pod}"
        case PodGone():
            return f"{event.namespace}/{event.pod} is gone"
        case ClaimObserved():
            devices, consumers = (
                counted(len(event.results), "device"),
                counted(len(event.consumers), "consumer"),
            )
            return f"{event.namespace}/{event.claim}, {devices}, {consumers}"
        case ClaimGone():
            return f"{event.namespace}/{event.claim} is gone"
        case PoolObserved():
            return f"{event.driver}/{event.pool}"
        case DeviceWithdrawn():
            return event.device
        case _:
            return ""


def _field(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms').replace('_', ' ')} {utc(value)}"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"{name.replace('_', ' ')} {value}"
