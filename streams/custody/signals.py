"""Which facts custody listens to, whose clock their version belongs to, and in which order equal times are taken.

A *source* is one object that speaks of one thing: a Pod of a device, a slice of a device, the Node, its Lease. Versions are
compared only inside a source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sickbay.facts import (
    BreakerStateChanged,
    CanaryReported,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    HoldRequested,
    MoveReported,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PolicyChanged,
    ProbeReported,
    ReleaseRequested,
    WatchGapFound,
)

#: The leading digit puts what concerns the whole node before what concerns one device at one time.
Source: TypeAlias = tuple[str, ...]
Version: TypeAlias = tuple[int, ...]

_SOURCES: Final[dict[type[Fact], Callable[[Any], tuple[Source, Version]]]] = {
    PolicyChanged: lambda f: (("0policy",), (f.observed_at_ms,)),
    BreakerStateChanged: lambda f: (("1breaker", f.scope), (f.observed_at_ms, int(f.open))),
    WatchGapFound: lambda f: (("2gap", f.watched), (f.to_ms, -f.from_ms)),
    NodeObserved: lambda f: (("3node",), (f.epoch, f.rv, 0)),
    NodeGone: lambda f: (("3node",), (f.epoch, f.rv, 1)),
    NodeLeaseResumed: lambda f: (("3lease",), (f.epoch, f.rv, 0)),
    NodeLeaseLapsed: lambda f: (("3lease",), (f.epoch, f.rv, 1)),
    PodObserved: lambda f: (("4pod", f.pod_uid), (f.epoch, f.rv, 0)),
    PodGone: lambda f: (("4pod", f.pod_uid), (f.epoch, f.rv, 1)),
    DevicePublished: lambda f: (("5slice", f.device_id), (f.epoch, f.rv, 1)),
    DeviceWithdrawn: lambda f: (("5slice", f.device_id), (f.epoch, f.rv, 0)),
    DeviceHealthObserved: lambda f: (("6health", f.device_id, f.pod_uid), (f.epoch, f.rv)),
    HoldRequested: lambda f: (("7request", f.request_id), (0,)),
    ReleaseRequested: lambda f: (("7request", f.request_id), (0,)),
    ProbeReported: lambda f: (("7request", f.request_id), (0,)),
    CanaryReported: lambda f: (("7request", f.request_id), (0,)),
    MoveReported: lambda f: (("7request", f.request_id), (0,)),
}


def source_of(fact: Fact) -> tuple[Source, Version] | None:
    """Return whose word the fact is and which version of it, ``None`` for a fact that only moves time on."""
    find = _SOURCES.get(type(fact))
    return None if find is None else find(fact)


def event_time_ms(fact: Fact) -> int:
    """Return when a fact became true: a gap began before it was found."""
    if isinstance(fact, WatchGapFound):
        return min(fact.from_ms, fact.observed_at_ms)
    return fact.observed_at_ms


def ends_source(fact: Fact) -> bool:
    """Whether nothing more is to come from the source, so that it may be forgotten once the fact is old."""
    return (isinstance(fact, DeviceHealthObserved) and not fact.live) or isinstance(
        fact,
        PodGone
        | HoldRequested
        | ReleaseRequested
        | ProbeReported
        | CanaryReported
        | MoveReported
        | WatchGapFound,
    )
