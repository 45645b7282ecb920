"""The objects of one node as the ledger sees them: who holds what, and which parts must be looked at again after a fact.

It keeps facts and indexes over them and concludes nothing; ``claims``, ``pods`` and ``inventory`` do.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from sickbay.facts import (
    AllocationResult,
    ClaimGone,
    ClaimObserved,
    ClaimsGateRequested,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    NodeLeaseLapsed,
    NodeObserved,
    PodObserved,
    PoolObserved,
    WatchGapFound,
)
from streams.ledger.pod import Pod
from streams.ledger.versions import Item, Kept, Source, Version, has_history, is_ended, pods_of, used

#: What is looked at as one: ``("claim", uid)`` and the like.
Unit: TypeAlias = tuple[str, ...]

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_UNITS: Final = frozenset({"node", "pod", "claim", "device", "pool"})


class Objects:
    """Everything that is known of one node."""

    def __init__(self) -> None:
        self.kept: dict[Source, Kept] = {}
        self.pods: dict[str, Pod] = {}
        #: Claims that have an allocation here, by uid.
        self.claims: dict[str, ClaimObserved] = {}
        #: Of those claims, the uids of the Pods among their consumers.
        self.consumers: dict[str, frozenset[str]] = {}
        self.by_name: dict[tuple[str, str], set[str]] = {}
        self.by_pod: dict[str, set[str]] = {}
        self.naming: dict[tuple[str, str], set[str]] = {}
        #: Claim name to the time when one of that name went.
        self.left_ms: dict[tuple[str, str], int] = {}
        #: Device to the claims that hold it, without admin access.
        self.holders: dict[str, set[str]] = {}
        #: ``(driver, pool)`` to the claims that hold a device of it.
        self.by_pool: dict[tuple[str, str], set[str]] = {}
        #: ``(pool, device)`` to the devices of every driver that have these names.
        self.namesakes: dict[tuple[str, str], set[str]] = {}
        #: ``(driver, pool)`` of every pool that is or was here.
        self.pools: set[tuple[str, str]] = set()
        #: Newest request for the gate of each scope, and newest watch gap of each resource type.
        self.gates: dict[str, ClaimsGateRequested] = {}
        self.gaps: dict[str, WatchGapFound] = {}
        self.dirty: set[Unit] = set()
        #: Pools of which a claim got or gave back a device.
        self.touched_pools: set[tuple[str, str]] = set()
        #: Something changed that the verdict hangs on and no part.
        self.judged_anew = False

    # --- questions ---

    def newest(self, *source: str) -> Fact | None:
        """Return the newest fact of a source, ``None`` when there is none."""
        kept = self.kept.get(source)
        return kept.newest.fact if kept is not None else None

    def items(self, *source: str) -> list[Item]:
        """Return the versions that are kept of a source, oldest first."""
        kept = self.kept.get(source)
        return kept.items if kept is not None else []

    @property
    def node(self) -> NodeObserved | None:
        """The Node object, ``None`` when it is not known or gone."""
        fact = self.newest("node")
        return fact if isinstance(fact, NodeObserved) else None

    @property
    def lapsed(self) -> NodeLeaseLapsed | None:
        """The lapse of the node's Lease while it lasts; that of a machine that is no more concerns nobody."""
        fact = self.newest("lease")
        if not isinstance(fact, NodeLeaseLapsed):
            return None
        node = self.kept.get(("node",))
        is_newer = node is not None and self.node is not None and fact.observed_at_ms < node.since.at_ms
        return None if is_newer else fact

    def drivers(self) -> tuple[str, ...]:
        """Return the drivers that publish devices here now."""
        found = set()
        for driver, pool in self.pools:
            fact = self.newest("pool", driver, pool)
            if isinstance(fact, PoolObserved) and fact.newest_generation is not None:
                found.add(driver)
        return tuple(sorted(found))

    def published(self, device_id: str) -> DevicePublished | None:
        """Return a device as it is published now."""
        fact = self.newest("device", device_id)
        return fact if isinstance(fact, DevicePublished) else None

    def publication(self, device_id: str) -> DevicePublished | None:
        """Return a device as it was published last, whether it still is or not."""
        for item in reversed(self.items("device", device_id)):
            if isinstance(item.fact, DevicePublished):
                return item.fact
        return None

    def belongs_here(self, driver: str, pool: str) -> bool:
        """Whether the pool was ever published on this node; one of another place cannot be missed here."""
        return (driver, pool) in self.pools

    def exclusive(self, device_id: str, share_id: str) -> bool:
        """Whether one claim alone may hold the device."""
        device = self.publication(device_id)
        return not device.allow_multiple if device is not None else not share_id

    def is_contested(self, device_id: str) -> bool:
        """Whether several claims hold a device that cannot be shared, or that one of them holds as if it could not."""
        holders = self.holders.get(device_id, ())
        if len(holders) < 2:
            return False
        device = self.publication(device_id)
        if device is not None:
            return not device.allow_multiple
        results = (result for uid in holders for result in used(self.claims[uid]))
        return any(result.device_id == device_id and not result.share_id for result in results)

    def contenders(self, device_id: str) -> list[ClaimObserved]:
        """Return the claims that hold a device, by uid; of one that is contested, those that a Pod uses come first."""
        found = [self.claims[uid] for uid in sorted(self.holders.get(device_id, ()))]
        if self.is_contested(device_id):
            found.sort(key=lambda claim: not self.linked(claim))
        return found

    def is_taken(self, claim: ClaimObserved, result: AllocationResult) -> bool:
        """Whether another claim has the device, which cannot be shared."""
        if not self.exclusive(result.device_id, result.share_id) or not self.is_contested(result.device_id):
            return False
        return self.contenders(result.device_id)[0].claim_uid != claim.claim_uid

    def allocated(self, claim: ClaimObserved) -> Item:
        """Return the first version of a claim that has the allocation that it has now."""
        return self.kept["claim", claim.claim_uid].since

    def linked(self, claim: ClaimObserved) -> list[Pod]:
        """Return the Pods that count here and that a claim belongs to, by uid."""
        consumers = self.consumers[claim.claim_uid]
        uids = set(consumers)
        if claim.owner.startswith("Pod/"):
            uids.add(claim.owner[4:])
        if not consumers:
            uids |= self.naming.get((claim.namespace, claim.claim), set())
        return [self.pods[uid] for uid in sorted(uids) if uid in self.pods]

    def resolve(self, pod: Pod, name: str) -> ClaimObserved | None:
        """Return the claim that a Pod's status means by a name, ``None`` when it is not known.

        A Pod that names a claim in its spec means its own, even when that is gone and another has the name by now; one that
        does not can only mean the claim that is there.
        """
        found = [self.claims[uid] for uid in self.by_name.get((pod.fact.namespace, name), ())]
        if not found:
            return None
        consumers = self.consumers
        mine = [c for c in found if pod.uid in consumers[c.claim_uid] or c.owner == f"Pod/{pod.uid}"]
        free = [c for c in found if not consumers[c.claim_uid]]
        is_its_own = name in pod.references or name == pod.fact.extended_claim
        candidates = mine or free or ([] if is_its_own else found)
        return max(candidates, key=lambda c: (c.epoch, c.rv, c.claim_uid), default=None)

    def not_skipped(self, claim: ClaimObserved, pods: list[Pod]) -> list[Pod]:
        """Return the Pods for which the 1.36 scheduler counted a claim: consumers already when the allocation was made."""
        first = self.allocated(claim).fact
        assert isinstance(first, ClaimObserved)
        consumers = pods_of(first)
        if len(consumers) < len(first.consumers):  # held by a group of Pods, whose members are not named
            return pods
        return [pod for pod in pods if pod.uid in consumers]

    def speakers(self, claim: ClaimObserved, mine: list[Pod]) -> list[Pod]:
        """Return the Pods that count here and whose status speaks of a claim, those that it belongs to first."""
        others = sorted(self.naming.get((claim.namespace, claim.claim), set()) - {pod.uid for pod in mine})
        return [
            pod
            for pod in [*mine, *(self.pods[uid] for uid in others)]
            if any(
                entry.claim == claim.claim and self.resolve(pod, entry.claim) is claim
                for entry in pod.fact.node_allocatable or ()
            )
        ]

    def concerning(self, pod: Pod) -> list[str]:
        """Return the uids of the claims that may add to a Pod."""
        found = set(self.by_pod.get(pod.uid, ()))
        for name in pod.names:
            found |= self.by_name.get((pod.fact.namespace, name), set())
        return sorted(found)

    # --- taking facts in ---

    def take(self, fact: Fact, source: Source, version: Version, cut_ms: int = 0) -> bool:
        """Take a fact in; return whether it says anything new. Versions that are older than ``cut_ms`` may be forgotten."""
        kept = self.kept.get(source)
        item = Item(fact, version)
        if kept is None:
            self.kept[source] = Kept(item)
        elif not kept.take(item, cut_ms, history=has_history(source)):
            return False
        match source[0]:
            case "pod":
                self._pod(source[1])
            case "claim":
                if isinstance(fact, ClaimObserved):
                    self.drop_ended(fact, cut_ms)
                self._claim(source[1])
            case "device":
                self._device(source[1])
            case "pool":
                self.dirty.add(source)
                self.judged_anew = True
                self.pools.add((source[1], source[2]))
                if kept is None:  # from now on a device of the pool can be missed here
                    self.dirty |= {("claim", uid) for uid in self.claims}
            case "node":
                self.dirty.add(source)
                self.judged_anew = True
            case _:
                self.judged_anew = True
                newest = self.kept[source].newest.fact
                if isinstance(newest, ClaimsGateRequested):
                    self.gates[source[1]] = newest
                elif isinstance(newest, WatchGapFound):
                    self.gaps[source[1]] = newest
        return True

    def _pod(self, uid: str) -> None:
        before = self.pods.pop(uid, None)
        fact = self.newest("pod", uid)
        after: Pod | None = None
        if isinstance(fact, PodObserved) and fact.phase not in _TERMINAL and fact.node:
            has_claims = uid in self.by_pod or (before is not None and before.names)
            if before is not None and not has_claims and before.asks_the_same(fact):
                before.renew(fact)  # most changes of a Pod concern nothing that is counted
                self.pods[uid] = before
                return
            after = Pod(fact)
        self.dirty.add(("pod", uid))
        for pod, add in ((before, False), (after, True)):
            if pod is None:
                continue
            for name in pod.names:
                key = (pod.fact.namespace, name)
                _index(self.naming, key, uid, add=add)
                self.dirty |= {("claim", c) for c in self.by_name.get(key, ())}
        if after is not None:
            self.pods[uid] = after
        self.dirty |= {("claim", c) for c in self.by_pod.get(uid, ())}

    def _claim(self, uid: str) -> None:
        before = self.claims.pop(uid, None)
        fact = self.newest("claim", uid)
        after = fact if isinstance(fact, ClaimObserved) else None
        self.consumers.pop(uid, None)
        for item in self.items("claim", uid):
            if isinstance(item.fact, ClaimGone):
                name = (item.fact.namespace, item.fact.claim)
                self.left_ms[name] = max(self.left_ms.get(name, 0), item.at_ms)
                self.dirty |= {("pod", pod) for pod in self.naming.get(name, ())}
        self.dirty.add(("claim", uid))
        for claim, add in ((before, False), (after, True)):
            if claim is None:
                continue
            key = (claim.namespace, claim.claim)
            _index(self.by_name, key, uid, add=add)
            pods = pods_of(claim) | ({claim.owner[4:]} if claim.owner.startswith("Pod/") else set())
            for pod in pods:
                _index(self.by_pod, pod, uid, add=add)
            self.dirty |= {("pod", pod) for pod in pods | self.naming.get(key, set())}
            # who else is meant by the name, or holds the device, may be another now
            self.dirty |= {("claim", other) for other in self.by_name.get(key, ())}
            for result in claim.results:
                device_id = result.device_id
                if not result.admin_access:
                    _index(self.holders, device_id, uid, add=add)
                    _index(self.by_pool, (result.driver, result.pool), uid, add=add)
                    self.touched_pools.add((result.driver, result.pool))
                self.dirty.add(("device", device_id))
                if self.exclusive(device_id, result.share_id):
                    self.dirty |= {("claim", other) for other in self.holders.get(device_id, ())}
        if after is not None:
            self.claims[uid] = after
            self.consumers[uid] = pods_of(after)

    def _device(self, device_id: str) -> None:
        self.dirty.add(("device", device_id))
        names = _names(self.newest("device", device_id))
        for other in self.namesakes.setdefault(names, set()) | {device_id}:
            self.dirty |= {("claim", uid) for uid in self.holders.get(other, ())}
        self.namesakes[names].add(device_id)

    def drop_ended(self, claim: ClaimObserved, before_ms: int) -> None:
        """Forget devices and pools of a claim that ended before ``before_ms`` and that no other claim holds.

        They may have been forgotten already, if there was more to forget: that must not make a difference.
        """
        for result in claim.results:
            if not self.holders.get(result.device_id, set()) - {claim.claim_uid}:
                self._drop_ended(("device", result.device_id), before_ms)
            if not self.by_pool.get((result.driver, result.pool), set()) - {claim.claim_uid}:
                self._drop_ended(("pool", result.driver, result.pool), before_ms)

    def _drop_ended(self, source: Source, before_ms: int) -> None:
        kept = self.kept.get(source)
        if kept is None or kept.newest.at_ms >= before_ms or not is_ended(kept.newest.fact):
            return
        self._drop(source, kept.newest.fact)
        self.dirty.add(source)

    def contested(self, claims: set[str]) -> set[Unit]:
        """Return the contested devices that one of these claims holds, and every claim that holds one of those."""
        devices = {r.device_id for uid in claims & self.claims.keys() for r in used(self.claims[uid])}
        found: set[Unit] = set()
        for device_id in filter(self.is_contested, devices):
            found |= {("device", device_id), *(("claim", uid) for uid in self.holders[device_id])}
        return found

    def units(self) -> set[Unit]:
        """Return every part that there may be something to say of."""
        return {source for source in self.kept if source[0] in _UNITS}

    def forget(self, cut_ms: int) -> list[tuple[Source, Version, int]]:
        """Forget what ended before ``cut_ms`` and versions that say nothing more; return the sources that are gone
        with their last version and its time.
        """
        gone: list[tuple[Source, Version, int]] = []
        self.left_ms = {name: at_ms for name, at_ms in self.left_ms.items() if at_ms >= cut_ms}
        for source, kept in list(self.kept.items()):
            newest = kept.newest
            if len(kept.items) > 1:
                kept.trim(cut_ms)
            if newest.at_ms >= cut_ms or not is_ended(newest.fact) or self._is_held(source):
                continue
            if isinstance(newest.fact, WatchGapFound) and newest.fact.to_ms >= cut_ms:
                continue
            self._drop(source, newest.fact)
            gone.append((source, newest.version, newest.at_ms))
        return gone

    def _is_held(self, source: Source) -> bool:
        """Whether a claim holds the device, or a device of the pool."""
        match source:
            case ("device", device_id):
                return device_id in self.holders
            case ("pool", driver, pool):
                return (driver, pool) in self.by_pool
            case _:
                return False

    def _drop(self, source: Source, fact: Fact) -> None:
        """Forget a source and what is kept beside it; ``fact`` is its newest."""
        match source:
            case ("gap", watched):
                del self.gaps[watched]
            case ("pool", driver, pool):
                self.pools.discard((driver, pool))
            case ("device", device_id):
                _index(self.namesakes, _names(fact), device_id, add=False)
            case _:
                pass
        del self.kept[source]


def _names(fact: Fact | None) -> tuple[str, str]:
    """Return pool and device of a fact on a device."""
    assert isinstance(fact, DevicePublished | DeviceWithdrawn), (
        "a source of devices has only facts on devices"
    )
    return fact.pool, fact.device


def _index(index: dict[Any, set[str]], key: Any, value: str, *, add: bool) -> None:
    """Add to or take from an index, which holds no empty sets."""
    if add:
        index.setdefault(key, set()).add(value)
        return
    found = index.get(key)
    if found is not None:
        found.discard(value)
        if not found:
            del index[key]
