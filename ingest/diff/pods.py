"""Known Pods: the ledger's view of each, and the hand-over of its words on devices to ``ingest.diff.words``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from ingest.diff.claims import ClaimCollection
from ingest.diff.known import Collection, Moment, Version
from ingest.diff.recalling import Told, by_age, newest_version, of_type
from ingest.diff.words import KnownPod, Words, health
from ingest.observe.fields import Identity, fingerprint
from ingest.observe.pods import TERMINAL, PodObservation, observe_pod, pod_fingerprint
from sickbay.facts import Fact, PodGone, PodObserved

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class PodCollection(Collection[KnownPod, PodObservation]):
    """The known Pods."""

    kind: ClassVar[str] = "Pod"

    def __init__(self, claims: ClaimCollection) -> None:
        super().__init__()
        self._claims = claims
        self.words = Words(claims)
        self._by_claim: dict[tuple[str, str], set[str]] = {}
        #: Nodes that were never told that a recalled Pod left them, by its uid: the stop came between.
        self._left: dict[str, tuple[str, ...]] = {}

    def fingerprint(self, obj: dict[str, Any]) -> bytes:
        return pod_fingerprint(obj)

    def observe(self, obj: dict[str, Any], moment: Moment) -> PodObservation:
        return observe_pod(obj, at_ms=moment.at_ms, epoch=moment.epoch)

    def says_as_told(self, known: KnownPod, seen: PodObservation) -> bool | None:
        return _digest(seen.fact) == known.digest if known.told == known.version else None

    def recall(self, told: Told) -> None:
        for uid, facts in by_age(told.pods):
            live = of_type(facts, PodObserved)
            words = told.words.get(uid, {})
            if not live:
                self._remember_gone(uid, newest_version(facts))
                continue
            fact = live[0]
            epoch, rv = max(newest_version(facts), newest_version(words))
            known = KnownPod(Identity(uid, fact.namespace, fact.pod, rv), epoch, b"")
            known.node, known.digest, known.told = fact.node, _digest(fact), (fact.epoch, fact.rv)
            self._describe(known, fact)
            self.words.recall(known, words, terminal=fact.phase in TERMINAL)
            self._remember(known)
            if len(live) > 1:
                self._left[uid] = tuple(sorted(other.node for other in live[1:]))

    def insert(
        self, identity: Identity, mark: bytes, seen: PodObservation, moment: Moment, out: list[Fact]
    ) -> KnownPod:
        known = KnownPod(identity, moment.epoch, mark)
        known.node = seen.fact.node
        self._take(known, seen, moment, out)
        return known

    def change(self, known: KnownPod, seen: PodObservation, moment: Moment, out: list[Fact]) -> bool:
        before = len(out)
        self._leave(known, known.version, moment.at_ms, out)
        if known.node != seen.fact.node:
            # Bound now: the stream of the node it had, "" as a rule, must not keep it for ever.
            out.append(_gone(known, known.node, moment.at_ms, known.version, final=True))
            known.node, known.digest = seen.fact.node, b""
        self._take(known, seen, moment, out)
        return len(out) > before

    def _take(self, known: KnownPod, seen: PodObservation, moment: Moment, out: list[Fact]) -> None:
        fact = seen.fact
        digest = _digest(fact)
        if digest != known.digest:
            known.digest, known.told = digest, known.version
            out.append(fact)
        self._describe(known, fact)
        self.problems += seen.unusable
        self.words.hear(known, seen, moment.at_ms, out)

    def _describe(self, known: KnownPod, fact: PodObserved) -> None:
        known.deletion_ms = fact.deletion_requested_at_ms
        known.claims, known.extended_claim = fact.claims, fact.extended_claim
        self._register(known)

    def _leave(self, known: KnownPod, version: Version, at_ms: int, out: list[Fact]) -> None:
        """Tell the nodes that a recalled Pod left what the stop kept from them."""
        out.extend(
            _gone(known, node, at_ms, version, final=True)
            for node in (self._left.pop(known.uid, ()) if self._left else ())
        )

    def _register(self, known: KnownPod) -> None:
        """Let the Pod hear of the claims that it names."""
        names = {claim.claim for claim in known.claims if claim.claim}
        if known.extended_claim:
            names.add(known.extended_claim)
        named = tuple(sorted(names))
        if named != known.named:
            self._unregister(known)
            known.named = named
            for name in named:
                self._by_claim.setdefault((known.namespace, name), set()).add(known.uid)

    def _unregister(self, known: KnownPod) -> None:
        for name in known.named:
            pods = self._by_claim.get((known.namespace, name))
            if pods is not None:
                pods.discard(known.uid)
                if not pods:
                    del self._by_claim[known.namespace, name]
        known.named = ()

    def rejoin(self, at_ms: int, out: list[Fact]) -> None:
        """Look again at the Pods whose claims changed."""
        pods, names = self._claims.touched, self._claims.touched_names
        self._claims.touched, self._claims.touched_names = {}, {}
        for name in names:
            pods.update(dict.fromkeys(sorted(self._by_claim.get(name, ()))))
        for uid in pods:
            known = self.by_uid.get(uid)
            if known is not None:
                self.words.settle(known, at_ms, out)

    def give_up_waiting(self, at_ms: int, out: list[Fact]) -> None:
        """Tell the words whose claim did not come in time."""
        while (uid := self.words.overdue()) is not None:
            self.words.give_up(self.by_uid[uid], at_ms, out)

    def late(
        self,
        known: KnownPod | None,
        seen: PodObservation,
        moment: Moment,
        superseded_by: Version,
        out: list[Fact],
    ) -> None:
        fact = seen.fact
        pod = known or _stranger(seen, moment.epoch)
        # between two versions of equal content it would stand as the newest: the second was never told
        if known is None or (fact.epoch, fact.rv) < known.told or known.node != fact.node:
            out.append(fact)
        waits = known is not None and self.words.keep_late(known, seen)
        words, _ = self.words.read(pod, seen.reports, with_unresolved=not waits)
        out.extend(
            health(pod, device_id, word, (fact.epoch, fact.rv), moment.at_ms, live=not seen.terminal)
            for device_id, word in sorted(words.items())
        )
        if known is not None:
            self.words.restate(known, words, (fact.epoch, fact.rv), moment.at_ms, out)
        else:
            self.words.end(pod, seen, superseded_by, moment.at_ms, out)
        if known is None or known.node != fact.node:
            out.append(_gone(pod, fact.node, moment.at_ms, superseded_by, final=known is not None))

    def end(
        self,
        known: KnownPod | None,
        seen: PodObservation | None,
        version: Version,
        moment: Moment,
        out: list[Fact],
        *,
        final: bool,
    ) -> None:
        if known is None:
            if seen is None:
                return
            known = _stranger(seen, moment.epoch)
        if seen is not None:
            known.deletion_ms = seen.fact.deletion_requested_at_ms
        self._leave(known, version, moment.at_ms, out)
        self.words.end(known, seen, version, moment.at_ms, out)
        self._unregister(known)
        after = None if final else moment.heard_ms
        out.append(_gone(known, known.node, moment.at_ms, version, final=final, after=after))


def _digest(fact: PodObserved) -> bytes:
    content = msgspec.structs.replace(fact, observed_at_ms=0, epoch=0, rv=0)
    return fingerprint((msgspec.Raw(_encode(content)),))


def _stranger(seen: PodObservation, epoch: int) -> KnownPod:
    """Return a Pod that is not, or no longer, in the known set."""
    fact = seen.fact
    pod = KnownPod(Identity(fact.pod_uid, fact.namespace, fact.pod, fact.rv), epoch, b"")
    pod.node, pod.claims, pod.extended_claim = fact.node, fact.claims, fact.extended_claim
    pod.deletion_ms = fact.deletion_requested_at_ms
    return pod


def _gone(
    known: KnownPod, node: str, at_ms: int, version: Version, *, final: bool, after: int | None = None
) -> PodGone:
    return PodGone(
        node=node,
        observed_at_ms=at_ms,
        epoch=version[0],
        rv=version[1],
        pod_uid=known.uid,
        namespace=known.namespace,
        pod=known.name,
        deletion_requested_at_ms=known.deletion_ms,
        final_state_known=final,
        gone_after_ms=after,
    )
