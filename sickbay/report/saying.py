"""What an event says, in a few words for a person. Nothing is judged here: the words are those of the event."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sickbay.decisions import CustodyDecision, Decision
from sickbay.facts import DeviceHealthObserved, DevicePublished, Fact, WatchGapFound
from sickbay.report.markup import utc

#: Fields that tell something by themselves, in the order in which they are told.
_TOLD: Final = (
    "alert", "about", "cause", "scope", "state", "ready", "reason", "ready_reason", "phase", "passed", "outcome", "detail", "actor",
    "attempt", "until_ms", "token", "closed", "adverse", "known", "threshold", "last_renewal_at_ms", "effective_generation",
    "newest_generation", "invalid_reason", "episode_id",
)  # fmt: skip


def said(event: Fact | Decision | None) -> str:
    """Return what an event says; ``None`` is an event that this build does not know."""
    match event:
        case None:
            return "an event of a newer build"
        case CustodyDecision():
            before, after = event.phase_before, event.record.phase
            return f"{after if before == after else f'{before} → {after}'}: {event.reason}"
        case DeviceHealthObserved():
            word = event.health if event.health_raw is not None else f"{event.health} ({event.absence})"
            frozen = "" if event.live else " (frozen: the Pod ended)"
            message = f': "{event.message}"' if event.message else ""
            return f"{event.namespace}/{event.pod} says {word}{frozen}{message}"
        case DevicePublished():
            taints = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in event.taints)
            return f"generation {event.pool_generation}, {f'taints {taints}' if taints else 'no taint'}"
        case WatchGapFound():
            return f"nothing seen of {event.watched} from {utc(event.from_ms)} to {utc(event.to_ms)}"
        case _:
            fields = msgspec.structs.asdict(event)
            return ", ".join(
                _field(name, value)
                for name in _TOLD
                if (value := fields.get(name)) is not None and value != ""
            )


def _field(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms').replace('_', ' ')} {utc(value)}"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"{name.replace('_', ' ')} {value}"
