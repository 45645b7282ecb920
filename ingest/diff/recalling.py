"""What was told before, sorted so that each collection can know it again: the newest fact of every subject.

An ingester that restarts rebuilds its known set from the facts that it told (reference faults, D7, W2). What facts do not
carry, the first reading of each object supplies: its mark, a claim's node selector, the slices of a pool. Told content is
compared with what is read then, so that nothing equal is told twice (I5).

What only the memory of a running mirror held is lost with it:

* *Versions that waited for a claim* (``ingest.diff.words``): a word that came and went while its claim was not seen is not
  told; the newest word waits anew, and a Pod that is gone ends without it.
* *Allocations that were taken back*: a word that comes for the first time after its claim was deallocated or deleted, all
  before the restart, is unattributed where no fact with the allocation is given. The devices that a Pod spoke of are known
  by its words, the other devices of that allocation are not.
* *Where a claim's devices were*: a claim that waits for some of its slices forgets the nodes of devices whose slices went or
  moved meanwhile; one that was charged by its node selector stays on that node if a later allocation of the same devices
  names none. A claim that is read before the first LIST of slices may be told on node "" first. So list slices first, and
  Pods before claims: a new claim that is joined to a Pod's old version tells of silence that is over. ``ingest.watching`` does
  so, for as long as it is answered.
* *Versions that told nothing*: a restore to a state that is no older than the newest told version of a resource raises its
  epoch only where an object is older than it was told; what changed in neither is the same in both. A replay of such versions
  is told as late, under ids that are repeats everywhere.
* *What is read otherwise under its old version* (``Collection.put``), with another API server or another build since the stop: it is
  told as of the first LIST for Pods, Nodes and devices; a word on a device, or a claim, is not.
* *That a Pod had ended*: it is read once more, so that a frozen word that waited is not lost; after a restore it may speak.
* *Leases that live*: silence is counted from the first LIST, and ``last_renewal_at_ms`` of a lapse is then the time of that
  LIST. A Lease that lapsed, was deleted and made again, all before the restart, is told to have resumed.
* *Slices and Leases themselves*: ``ResyncCompleted`` counts all as added and none as removed, and they do not show a restore by
  having gone back.

None of it tells of a fault that was none. The first two may leave one out: a fault that was over before it could be told, and
one that a Pod told of a device which it had no more, which stands as unattributed.

This module sorts and must not judge: what a fact means for a collection stands in that collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    EpochChanged,
    Fact,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PoolObserved,
    ResyncCompleted,
    WatchGapFound,
)

PodFact: TypeAlias = PodObserved | PodGone
ClaimFact: TypeAlias = ClaimObserved | ClaimGone
NodeFact: TypeAlias = NodeObserved | NodeGone
SliceFact: TypeAlias = DevicePublished | DeviceWithdrawn
LeaseFact: TypeAlias = NodeLeaseLapsed | NodeLeaseResumed

F = TypeVar("F", bound=Fact)
Key = TypeVar("Key")


class Heard(msgspec.Struct):
    """The newest version that the facts of one resource type carry, and the latest time."""

    epoch: int
    rv: int
    at_ms: int


class Told:
    """The newest fact of each subject, by ``(epoch, rv)``; of equal versions the last given counts."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        #: By resource type.
        self.heard: dict[str, Heard] = {}
        #: By uid, then by node.
        self.pods: dict[str, dict[str, PodFact]] = {}
        #: By Pod uid, then by device id.
        self.words: dict[str, dict[str, DeviceHealthObserved]] = {}
        #: By uid, then by node.
        self.claims: dict[str, dict[str, ClaimFact]] = {}
        #: The newest facts of each claim, by uid and node, that hold an allocation, though the claim may have none any more.
        self.allocated: dict[str, dict[str, ClaimObserved]] = {}
        #: By uid, then by node.
        self.nodes: dict[str, dict[str, NodeFact]] = {}
        #: By driver and pool, then by device and node.
        self.devices: dict[tuple[str, str], dict[tuple[str, str], SliceFact]] = {}
        #: By driver and pool, then by node.
        self.pools: dict[tuple[str, str], dict[str, PoolObserved]] = {}
        #: By node.
        self.leases: dict[str, LeaseFact] = {}
        for fact in facts:
            keep = self._KEEP.get(type(fact))
            if keep is not None:
                keep(self, fact)

    def _hear(self, resource: str, fact: Fact, rv: int | None = None) -> None:
        version = (fact.epoch, fact.rv if rv is None else rv)
        heard = self.heard.setdefault(resource, Heard(*version, fact.observed_at_ms))
        heard.epoch, heard.rv = max((heard.epoch, heard.rv), version)
        heard.at_ms = max(heard.at_ms, fact.observed_at_ms)

    def _pod(self, fact: PodFact) -> None:
        self._hear("pods", fact)
        _keep(self.pods.setdefault(fact.pod_uid, {}), fact.node, fact)

    def _word(self, fact: DeviceHealthObserved) -> None:
        self._hear("pods", fact)
        _keep(self.words.setdefault(fact.pod_uid, {}), fact.device_id, fact)

    def _claim(self, fact: ClaimFact) -> None:
        self._hear("resourceclaims", fact)
        _keep(self.claims.setdefault(fact.claim_uid, {}), fact.node, fact)
        if isinstance(fact, ClaimObserved) and fact.results:
            allocated = self.allocated.setdefault(fact.claim_uid, {})
            newest = newest_version(allocated)
            if version_of(fact) > newest:
                allocated.clear()
            if version_of(fact) >= newest:
                allocated[fact.node] = fact

    def _node(self, fact: NodeFact) -> None:
        self._hear("nodes", fact)
        _keep(self.nodes.setdefault(fact.node_uid, {}), fact.node, fact)

    def _device(self, fact: SliceFact) -> None:
        self._hear("resourceslices", fact)
        _keep(self.devices.setdefault((fact.driver, fact.pool), {}), (fact.device, fact.node), fact)

    def _pool(self, fact: PoolObserved) -> None:
        self._hear("resourceslices", fact)
        _keep(self.pools.setdefault((fact.driver, fact.pool), {}), fact.node, fact)

    def _lease(self, fact: LeaseFact) -> None:
        self._hear("leases", fact)
        _keep(self.leases, fact.node, fact)

    def _broadcast(self, fact: EpochChanged | ResyncCompleted | WatchGapFound) -> None:
        rv = fact.rv
        if isinstance(fact, EpochChanged):
            rv = fact.list_rv
        elif isinstance(fact, WatchGapFound):
            rv = fact.to_rv
        self._hear(fact.watched, fact, rv)

    #: What is done with a fact of each kind; requests, ticks and the like say nothing of the cluster.
    _KEEP: ClassVar[Mapping[type[Fact], Callable[[Told, Any], None]]] = {
        PodObserved: _pod, PodGone: _pod, DeviceHealthObserved: _word, ClaimObserved: _claim, ClaimGone: _claim,
        NodeObserved: _node, NodeGone: _node, DevicePublished: _device, DeviceWithdrawn: _device, PoolObserved: _pool,
        NodeLeaseLapsed: _lease, NodeLeaseResumed: _lease, EpochChanged: _broadcast, ResyncCompleted: _broadcast,
        WatchGapFound: _broadcast,
    }  # fmt: skip


def version_of(fact: Fact) -> tuple[int, int]:
    """Return ``(epoch, rv)``."""
    return (fact.epoch, fact.rv)


def newest_version(facts: Mapping[Any, Fact]) -> tuple[int, int]:
    """Return the newest version among the facts of one resource type, ``(0, 0)`` when there is none."""
    return max(map(version_of, facts.values()), default=(0, 0))


def by_age(told: Mapping[str, Mapping[str, F]]) -> list[tuple[str, Mapping[str, F]]]:
    """Return uids with their facts, those with the oldest newest version first: one order for any order of facts."""
    return sorted(told.items(), key=lambda item: (newest_version(item[1]), item[0]))


def of_type(facts: Mapping[Any, Fact], kind: type[F]) -> list[F]:
    """Return the facts of one kind, the newest first."""
    found = [(version_of(fact), fact.node, fact) for fact in facts.values() if isinstance(fact, kind)]
    return [fact for _, _, fact in sorted(found, key=lambda item: item[:2], reverse=True)]


def _keep(told: dict[Key, F], key: Key, fact: F) -> None:
    before = told.get(key)
    if before is None or version_of(fact) >= version_of(before):
        told[key] = fact
