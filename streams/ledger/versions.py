"""What the ledger keeps of each object: its newest version, and of some objects the versions of the lateness horizon.

A *source* is one object of one node. Its facts are kept by version, so the order in which they arrive does not matter; of those
older than the horizon only the ones stay that began something (``trim``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sickbay.facts import (
    AllocationResult,
    ClaimGone,
    ClaimObserved,
    ClaimsGateRequested,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PolicyChanged,
    PoolObserved,
    WatchGapFound,
)

#: ``(kind, …)``: the kind chooses the rules, the rest names the object.
Source: TypeAlias = tuple[str, ...]
Version: TypeAlias = tuple[Any, ...]

#: Versions older than the horizon that are kept of one object, beside the newest.
_OLD_LIMIT: Final = 64

_SOURCES: Final[dict[type[Fact], Callable[[Any], tuple[Source, Version]]]] = {
    PolicyChanged: lambda f: (("policy",), (f.observed_at_ms,)),
    WatchGapFound: lambda f: (("gap", f.watched), (f.to_ms, -f.from_ms)),
    NodeObserved: lambda f: (("node",), (f.epoch, f.rv, 0)),
    NodeGone: lambda f: (("node",), (f.epoch, f.rv, 1)),
    NodeLeaseResumed: lambda f: (("lease",), (f.epoch, f.rv, 0)),
    NodeLeaseLapsed: lambda f: (("lease",), (f.epoch, f.rv, 1)),
    PodObserved: lambda f: (("pod", f.pod_uid), (f.epoch, f.rv, 0)),
    PodGone: lambda f: (("pod", f.pod_uid), (f.epoch, f.rv, 1)),
    ClaimObserved: lambda f: (("claim", f.claim_uid), (f.epoch, f.rv, 0)),
    ClaimGone: lambda f: (("claim", f.claim_uid), (f.epoch, f.rv, 1)),
    DevicePublished: lambda f: (("device", f.device_id), (f.epoch, f.rv, 1)),
    DeviceWithdrawn: lambda f: (("device", f.device_id), (f.epoch, f.rv, 0)),
    PoolObserved: lambda f: (("pool", f.driver, f.pool), (f.epoch, f.rv)),
    ClaimsGateRequested: lambda f: (("gate", f.scope), (f.observed_at_ms, f.request_id)),
}
#: Kinds whose earlier versions say something that the newest does not.
_WITH_HISTORY: Final = frozenset({"node", "claim", "device", "pool"})
#: Kinds that nobody but the ledger listens to: it is the ledger that says when one of their facts comes too late.
_OWN_KINDS: Final = frozenset({"claim", "pool", "gate"})


def source_of(fact: Fact) -> tuple[Source, Version] | None:
    """Return whose word the fact is and which version of it; ``None`` for a fact that the ledger does not listen to."""
    find = _SOURCES.get(type(fact))
    return None if find is None else find(fact)


def reports_lateness(source: Source) -> bool:
    """Whether the ledger raises the alert for a late fact of this source; custody does for the others."""
    return source[0] in _OWN_KINDS


class Item:
    """One version of an object."""

    __slots__ = ("at_ms", "essence", "fact", "version")

    def __init__(self, fact: Fact, version: Version) -> None:
        self.fact = fact
        self.version = version
        self.at_ms = fact.observed_at_ms
        self.essence = _essence(fact)


def _essence(fact: Fact) -> object:
    """Return what a history is kept for; a version that only repeats it may be forgotten."""
    match fact:
        case ClaimObserved():
            return _allocation_of(fact)
        case NodeObserved():
            return fact.node_uid
        case DevicePublished():
            return fact.node_allocatable_shape, tuple(
                (resource, tuple(sorted(members.items())))
                for resource, members in sorted(fact.node_allocatable.items())
            )
        case PoolObserved():
            return fact.effective_generation, fact.newest_generation, fact.complete, fact.invalid_reason
        case _:
            return None


def _allocation_of(claim: ClaimObserved) -> object:
    """Return what tells one allocation of a claim from the next."""
    return claim.allocated_at, tuple(
        (result.device_id, result.share_id, result.request, result.subrequest) for result in claim.results
    )


def used(claim: ClaimObserved) -> list[AllocationResult]:
    """Return the results of a claim that use a device; admin access does not."""
    return [result for result in claim.results if not result.admin_access]


def pods_of(claim: ClaimObserved) -> frozenset[str]:
    """Return the uids of the Pods among the consumers of a claim."""
    return frozenset(c.uid for c in claim.consumers if c.resource == "pods" and not c.api_group)


class Kept:
    """The versions that are kept of one object, oldest first; never empty."""

    __slots__ = ("items",)

    def __init__(self, item: Item) -> None:
        self.items = [item]

    @property
    def newest(self) -> Item:
        """The version that counts."""
        return self.items[-1]

    @property
    def since(self) -> Item:
        """The version from which on the object says in essence what it says now, without a break."""
        newest = first = self.items[-1]
        for item in reversed(self.items):
            if type(item.fact) is not type(newest.fact) or item.essence != newest.essence:
                break
            first = item
        return first

    def take(self, item: Item, cut_ms: int, *, history: bool) -> bool:
        """Take a version in, and forget what ``trim`` forgets; return whether anything is different."""
        items = self.items
        if item.version > items[-1].version:
            if history:
                items.append(item)
                if len(items) > 2 and items[1].at_ms < cut_ms:
                    self.trim(cut_ms)
            else:
                items[-1] = item
            return True
        if not history:
            return False
        place = bisect_left(items, item.version, key=lambda i: i.version)
        if items[place].version == item.version:
            return False
        items.insert(place, item)
        return True

    def trim(self, cut_ms: int) -> None:
        """Forget versions older than ``cut_ms`` that only repeat the one before them, and all but the newest few others."""
        items = self.items
        if len(items) == 1 or items[0].at_ms >= cut_ms:
            return
        kept: list[Item] = []
        for item in items:
            repeats = kept and kept[-1].essence == item.essence and type(kept[-1].fact) is type(item.fact)
            if item is items[-1] or item.at_ms >= cut_ms or not repeats:
                kept.append(item)
        surplus = sum(i.at_ms < cut_ms for i in kept[:-1]) - _OLD_LIMIT
        self.items = kept[surplus:] if surplus > 0 else kept


def has_history(source: Source) -> bool:
    """Whether more than the newest version of the source is kept."""
    return source[0] in _WITH_HISTORY


def is_ended(fact: Fact) -> bool:
    """Whether nothing more is to come of the object that the fact is the newest word on, so that it may be forgotten.

    A Node that is gone is not forgotten: its absence is a reason to hold.
    """
    if isinstance(fact, PoolObserved):
        return fact.newest_generation is None
    return isinstance(fact, PodGone | ClaimGone | DeviceWithdrawn | WatchGapFound)
