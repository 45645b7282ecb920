"""Known ResourceClaims: on which nodes each is charged, and what it lets a Pod's word be joined to.

A claim whose allocation names one node is charged there. Otherwise it is charged on the nodes of its devices as soon as the
slices tell all of them, and on node "" until then: it moves as a whole, so that one node never hears two contents of one
version. A device that was placed once stays placed for that claim, even if its slice goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from ingest.diff.attribution import Allocation, Held
from ingest.diff.known import Collection, Known, Moment, Version
from ingest.diff.pool_state import PoolKey
from ingest.diff.pools import SliceCollection
from ingest.diff.recalling import Told, by_age, newest_version, of_type, version_of
from ingest.observe.claims import (
    ClaimObservation,
    claim_fingerprint,
    consuming_pods,
    observe_claim,
    result_order,
)
from ingest.observe.fields import Identity, fingerprint
from sickbay.facts import AllocationResult, ClaimGone, ClaimObserved, Fact

#: Deleted claims whose last allocation is still good for joining a word that comes after the deletion.
_DEPARTED_MAX: Final = 5_000

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(ClaimObserved).decode


class KnownClaim(Known):
    """A claim, compact: its content is kept as bytes for the day its slice arrives."""

    __slots__ = (
        "allocation", "body", "consumer_pods", "deletion_ms", "digest", "extended", "nodes", "owner_pod", "placed",
        "pod_claim_name", "selector_node", "told",
    )  # fmt: skip

    def __init__(self, identity: Identity, epoch: int, mark: bytes) -> None:
        super().__init__(identity, epoch, mark)
        self.digest = b""
        self.body = b""
        #: Version under which the content was last told.
        self.told: Version = (0, 0)
        #: The last allocation that was not empty: deallocation may be seen before the word that it explains.
        self.allocation: Allocation | None = None
        self.consumer_pods: frozenset[str] = frozenset()
        self.owner_pod = ""
        self.pod_claim_name: str | None = None
        self.extended = False
        self.selector_node = ""
        self.deletion_ms: int | None = None
        self.placed: dict[str, str] = {}
        self.nodes: tuple[str, ...] = ()


class ClaimCollection(Collection[KnownClaim, ClaimObservation]):
    """The known claims."""

    kind: ClassVar[str] = "ResourceClaim"

    def __init__(self, slices: SliceCollection) -> None:
        super().__init__()
        self._slices = slices
        #: Pod uid to the uids of claims that are reserved for it or owned by it.
        self.by_pod: dict[str, set[str]] = {}
        #: Pods, by uid, whose words may now be joined differently; the mirror empties it.
        self.touched: dict[str, None] = {}
        #: Claims, by namespace and name, that changed; Pods may name them. The mirror empties it.
        self.touched_names: dict[tuple[str, str], None] = {}
        self._unplaced: dict[PoolKey, set[str]] = {}
        self._departed: dict[tuple[str, str], KnownClaim] = {}
        #: Uid of a recalled claim to what each node was told of it, as digests; until it is read.
        self._told: dict[str, dict[str, bytes]] = {}

    def fingerprint(self, obj: dict[str, Any]) -> bytes:
        return claim_fingerprint(obj)

    def observe(self, obj: dict[str, Any], moment: Moment) -> ClaimObservation:
        return observe_claim(obj, at_ms=moment.at_ms, epoch=moment.epoch)

    def find(self, namespace: str, name: str) -> KnownClaim | None:
        """Return the claim of that name, or the one that had it last."""
        return self.by_name.get((namespace, name)) or self._departed.get((namespace, name))

    def of_pod(self, pod_uid: str) -> list[KnownClaim]:
        """Return the claims that are reserved for a Pod or owned by it, by uid."""
        return [self.by_uid[uid] for uid in sorted(self.by_pod.get(pod_uid, ()))]

    def held_by(self, pod_uid: str) -> list[str]:
        """Return the devices that are reserved for a Pod; those it only watches (admin access) are not among them."""
        return sorted(
            {
                held.device_id
                for claim in self.of_pod(pod_uid)
                if pod_uid in claim.consumer_pods and claim.allocation is not None
                for held in claim.allocation.devices
                if not held.admin
            }
        )

    def recall(self, told: Told) -> None:
        for uid, facts in by_age(told.claims):
            live = of_type(facts, ClaimObserved)
            allocated = of_type(told.allocated.get(uid, {}), ClaimObserved)
            version = newest_version(facts)
            if not live:
                self._remember_gone(uid, version)
            if not (live or allocated):
                continue
            known = _recalled(live or allocated[:1], version, allocated)
            if not live:
                self._depart(known)
                continue
            self._told[uid] = _digests(live)
            if "" in known.nodes:
                # it waits for slices, as it did
                self._groups(known, _decode(known.body))
            self._remember(known)
            self._link(known)

    def insert(
        self, identity: Identity, mark: bytes, seen: ClaimObservation, moment: Moment, out: list[Fact]
    ) -> KnownClaim:
        known = KnownClaim(identity, moment.epoch, mark)
        self._departed.pop((identity.namespace, identity.name), None)
        self._take(known, seen, moment, out)
        return known

    def change(self, known: KnownClaim, seen: ClaimObservation, moment: Moment, out: list[Fact]) -> bool:
        before = len(out)
        self._take(known, seen, moment, out)
        return len(out) > before

    def _take(self, known: KnownClaim, seen: ClaimObservation, moment: Moment, out: list[Fact]) -> None:
        fact = seen.fact
        content = _content(fact)
        digest = fingerprint((msgspec.Raw(content), seen.selector_node))
        told = self._told.pop(known.uid, None) if self._told else None
        known.selector_node, known.deletion_ms = seen.selector_node, fact.deletion_requested_at_ms
        known.extended, known.pod_claim_name = fact.extended_resource, seen.pod_claim_name
        before = (known.allocation, known.consumer_pods, known.owner_pod)
        self._unlink(known)
        known.consumer_pods, known.owner_pod = seen.consumer_pods, seen.owner_pod
        self._link(known)
        if fact.results:
            known.allocation = _allocation(fact)
        held = {result.device_id for result in fact.results}
        known.placed = {device_id: node for device_id, node in known.placed.items() if device_id in held}
        fresh = digest != known.digest if told is None else self._differs(known, fact, told)
        known.digest, known.body = digest, content
        if fresh:
            known.told = known.version
        self._charge(known, fact, moment.at_ms, out, fresh=fresh)
        # what a recalled claim was made for is known only now
        if told is not None or before != (known.allocation, known.consumer_pods, known.owner_pod):
            self.touched.update(dict.fromkeys(sorted({*before[1], before[2], *_pods(known)} - {""})))
            self.touched_names[known.namespace, known.name] = None

    def _charge(
        self, known: KnownClaim, fact: ClaimObserved, at_ms: int, out: list[Fact], *, fresh: bool
    ) -> None:
        """Emit the claim on the nodes it is charged to, and its end on those it has left."""
        parts = self._parts(known, fact)
        out.extend(_gone(known, node, at_ms, known.version) for node in known.nodes if node not in parts)
        out.extend(
            msgspec.structs.replace(part, observed_at_ms=at_ms, epoch=known.epoch, rv=known.rv)
            for node, part in parts.items()
            if fresh or node not in known.nodes
        )
        known.nodes = tuple(parts)
        if known.uid in self._told:
            self._told[known.uid] = _digests(parts.values())

    def _differs(self, known: KnownClaim, fact: ClaimObserved, told: dict[str, bytes]) -> bool:
        """Whether a node was told something else of a recalled claim than what its first reading says."""
        if known.selector_node and known.selector_node in told:
            known.placed = {}
        says = _digests(self._parts(known, fact).values())
        return any(says[node] != told[node] for node in says.keys() & told.keys())

    def _parts(self, known: KnownClaim, fact: ClaimObserved) -> dict[str, ClaimObserved]:
        """Return what each node is told, by node."""
        groups = self._groups(known, fact)
        return {
            node: msgspec.structs.replace(fact, node=node, results=groups[node], spans_nodes=len(groups) > 1)
            for node in sorted(groups)
        }

    def _groups(
        self, known: KnownClaim, fact: ClaimObserved, *, wait: bool = True
    ) -> dict[str, tuple[AllocationResult, ...]]:
        """Return the results by the node they are charged to; with ``wait`` the claim hears of slices that come later."""
        if known.selector_node:
            return {known.selector_node: fact.results}
        groups: dict[str, list[AllocationResult]] = {}
        whole = bool(fact.results)
        for result in fact.results:
            key = (result.driver, result.pool)
            node = known.placed.get(result.device_id) or self._slices.node_of(key, result.device)
            if node:
                known.placed[result.device_id] = node
                groups.setdefault(node, []).append(result)
            else:
                whole = False
                if wait:
                    self._unplaced.setdefault(key, set()).add(known.uid)
        return {node: tuple(results) for node, results in groups.items()} if whole else {"": fact.results}

    def place(self, pools: dict[PoolKey, None], at_ms: int, out: list[Fact]) -> None:
        """Look again at claims that waited for the slices of these pools."""
        for key in pools:
            waiting = self._unplaced.pop(key, None)
            for uid in sorted(waiting or ()):
                known = self.by_uid.get(uid)
                if known is not None:
                    self._charge(known, _decode(known.body), at_ms, out, fresh=False)

    def late(
        self,
        known: KnownClaim | None,
        seen: ClaimObservation,
        moment: Moment,
        superseded_by: Version,
        out: list[Fact],
    ) -> None:
        fact = seen.fact
        other = KnownClaim(Identity(fact.claim_uid, fact.namespace, fact.claim, fact.rv), moment.epoch, b"")
        other.selector_node, other.deletion_ms = seen.selector_node, fact.deletion_requested_at_ms
        current = () if known is None else known.nodes
        for node, results in sorted(self._groups(other, fact, wait=False).items()):
            out.append(msgspec.structs.replace(fact, node=node, results=results))
            if node not in current:
                out.append(_gone(other, node, moment.at_ms, superseded_by))
        if known is not None and (fact.epoch, fact.rv) > known.told:
            # what equals the last content told is not told again: without this the late version would stand as the newest
            self._charge(known, _decode(known.body), moment.at_ms, out, fresh=True)

    def end(
        self,
        known: KnownClaim | None,
        seen: ClaimObservation | None,
        version: Version,
        moment: Moment,
        out: list[Fact],
        *,
        final: bool,
    ) -> None:
        if known is None:
            if seen is None:
                return
            fact = seen.fact
            known = KnownClaim(
                Identity(fact.claim_uid, fact.namespace, fact.claim, fact.rv), moment.epoch, b""
            )
            known.selector_node, known.deletion_ms = seen.selector_node, fact.deletion_requested_at_ms
            known.nodes = tuple(sorted(self._groups(known, fact, wait=False)))
        elif seen is not None:
            known.deletion_ms = seen.fact.deletion_requested_at_ms
        after = None if final else moment.heard_ms
        out.extend(
            _gone(known, node, moment.at_ms, version, final=final, after=after) for node in known.nodes
        )
        self._unlink(known)
        self._told.pop(known.uid, None)
        for held in known.allocation.devices if known.allocation else ():
            waiting = self._unplaced.get((held.driver, held.pool))
            if waiting is not None:
                waiting.discard(known.uid)
                if not waiting:
                    del self._unplaced[held.driver, held.pool]
        self._depart(known)

    def _depart(self, known: KnownClaim) -> None:
        self._departed[known.namespace, known.name] = known
        if len(self._departed) > _DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]

    def _link(self, known: KnownClaim) -> None:
        for pod_uid in _pods(known):
            self.by_pod.setdefault(pod_uid, set()).add(known.uid)

    def _unlink(self, known: KnownClaim) -> None:
        for pod_uid in _pods(known):
            claims = self.by_pod.get(pod_uid)
            if claims is not None:
                claims.discard(known.uid)
                if not claims:
                    del self.by_pod[pod_uid]


def _recalled(told: list[ClaimObserved], version: Version, allocated: list[ClaimObserved]) -> KnownClaim:
    """Return a claim as it was ``told`` to the nodes that it is charged to; ``allocated`` is how it last held something."""
    fact = told[0]
    known = KnownClaim(Identity(fact.claim_uid, fact.namespace, fact.claim, version[1]), version[0], b"")
    known.body = _content(msgspec.structs.replace(fact, node="", spans_nodes=False, results=_results(told)))
    known.told = min(map(version_of, told))
    if allocated:
        known.allocation = _allocation(msgspec.structs.replace(fact, results=_results(allocated)))
    kind, _, owner_uid = fact.owner.partition("/")
    known.owner_pod = owner_uid if kind == "Pod" else ""
    known.consumer_pods = consuming_pods(fact.consumers)
    known.extended, known.deletion_ms = fact.extended_resource, fact.deletion_requested_at_ms
    known.placed = {result.device_id: part.node for part in told for result in part.results if part.node}
    known.nodes = tuple(sorted(part.node for part in told))
    return known


def _digests(parts: Iterable[ClaimObserved]) -> dict[str, bytes]:
    """Return what each node is told as a digest, without time and version."""
    return {part.node: fingerprint((msgspec.Raw(_content(part)),)) for part in parts}


def _results(parts: list[ClaimObserved]) -> tuple[AllocationResult, ...]:
    return tuple(sorted((result for part in parts for result in part.results), key=result_order))


def _pods(known: KnownClaim) -> set[str]:
    return {*known.consumer_pods, known.owner_pod} - {""}


def _content(fact: ClaimObserved) -> bytes:
    return _encode(msgspec.structs.replace(fact, observed_at_ms=0, epoch=0, rv=0))


def _allocation(fact: ClaimObserved) -> Allocation:
    devices = tuple(
        Held(
            device_id=result.device_id,
            driver=result.driver,
            pool=result.pool,
            device=result.device,
            request=result.request,
            subrequest=result.subrequest,
            admin=result.admin_access,
        )
        for result in fact.results
    )
    return Allocation(claim_uid=fact.claim_uid, namespace=fact.namespace, claim=fact.claim, devices=devices)


def _gone(
    known: KnownClaim,
    node: str,
    at_ms: int,
    version: Version,
    *,
    final: bool = True,
    after: int | None = None,
) -> ClaimGone:
    return ClaimGone(
        node=node,
        observed_at_ms=at_ms,
        epoch=version[0],
        rv=version[1],
        claim_uid=known.uid,
        namespace=known.namespace,
        claim=known.name,
        deletion_requested_at_ms=known.deletion_ms,
        final_state_known=final,
        gone_after_ms=after,
    )
