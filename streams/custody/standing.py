"""How it is said where a device stands when no transition leads there.

A late fact may take back what led away from an earlier record and put nothing in its place: a device was announced as released,
and its episode goes on. No transition tells of that, so the record is told as it is, by the kind of decision that fits it.
Which record holds, and whether an episode is retracted, is the aggregate's business.
"""

from __future__ import annotations

from typing import Final

from sickbay.decisions import (
    CustodyDecision,
    DeviceCleared,
    DeviceRecord,
    DeviceRestricted,
    DeviceSuspected,
    Phase,
    QuarantineExtended,
)

#: Phases without an episode; a record of any other phase carries one.
_KIND_OF: Final[dict[Phase, type[CustodyDecision]]] = {
    "in_service": DeviceCleared,
    "suspect": DeviceSuspected,
    "restricted": DeviceRestricted,
}


def same_episode(one: DeviceRecord | None, other: DeviceRecord | None) -> bool:
    """Whether both records carry one episode, however it came to stand in each."""
    return (
        one is not None
        and other is not None
        and one.episode is not None
        and other.episode is not None
        and one.episode.episode_id == other.episode.episode_id
    )


def told(
    record: DeviceRecord, *, node: str, at_ms: int, unit_id: str, scope: str, before: Phase
) -> CustodyDecision:
    """Return the decision that a late fact left the device with ``record``; ``before`` is the phase announced so far."""
    return _KIND_OF.get(record.phase, QuarantineExtended)(
        node=node,
        at_ms=at_ms,
        clause="lateness_horizon_ms",
        reason="a late fact showed that it never was"
        if record.phase == "in_service"
        else "a late fact showed that it goes on",
        device_id=unit_id,
        driver=scope,
        phase_before=before,
        record=record,
    )
