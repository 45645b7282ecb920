"""Known Nodes: what each has and can still give. Liveness is not here but in ``ingest.diff.leases``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from ingest.diff.known import Collection, Known, Moment, Version
from ingest.diff.recalling import Told, by_age, newest_version, of_type, version_of
from ingest.observe.fields import Identity, fingerprint
from ingest.observe.nodes import NodeObservation, node_fingerprint, observe_node
from sickbay.facts import Fact, NodeGone, NodeObserved
from sickbay.policy import ReadingPolicy

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(NodeObserved).decode


class KnownNode(Known):
    """A Node by the digest of what is kept of it."""

    __slots__ = ("body", "digest", "told")

    def __init__(self, identity: Identity, epoch: int, mark: bytes) -> None:
        super().__init__(identity, epoch, mark)
        self.digest = b""
        #: What was last told, without time and version.
        self.body = b""
        self.told: Version = (0, 0)


class NodeCollection(Collection[KnownNode, NodeObservation]):
    """The known Nodes."""

    kind: ClassVar[str] = "Node"
    namespaced: ClassVar[bool] = False

    def __init__(self, reading: ReadingPolicy) -> None:
        super().__init__()
        self._reading = reading

    def fingerprint(self, obj: dict[str, Any]) -> bytes:
        return node_fingerprint(obj, self._reading)

    def observe(self, obj: dict[str, Any], moment: Moment) -> NodeObservation:
        return observe_node(obj, self._reading, at_ms=moment.at_ms, epoch=moment.epoch)

    def insert(
        self, identity: Identity, mark: bytes, seen: NodeObservation, moment: Moment, out: list[Fact]
    ) -> KnownNode:
        known = KnownNode(identity, moment.epoch, mark)
        self._take(known, seen, out)
        return known

    def change(self, known: KnownNode, seen: NodeObservation, moment: Moment, out: list[Fact]) -> bool:
        del moment  # the fact holds it
        return self._take(known, seen, out)

    def says_as_told(self, known: KnownNode, seen: NodeObservation) -> bool | None:
        return _content(seen.fact)[0] == known.digest if known.told == known.version else None

    def recall(self, told: Told) -> None:
        for uid, facts in by_age(told.nodes):
            version = newest_version(facts)
            live = of_type(facts, NodeObserved)
            if not live:
                self._remember_gone(uid, version)
                continue
            known = KnownNode(Identity(uid, "", live[0].node, version[1]), version[0], b"")
            known.digest, known.body = _content(live[0])
            known.told = version_of(live[0])
            self._remember(known)

    @staticmethod
    def _take(known: KnownNode, seen: NodeObservation, out: list[Fact]) -> bool:
        digest, content = _content(seen.fact)
        if digest == known.digest:
            return False
        known.digest, known.body, known.told = digest, content, known.version
        out.append(seen.fact)
        return True

    def late(
        self,
        known: KnownNode | None,
        seen: NodeObservation,
        moment: Moment,
        superseded_by: Version,
        out: list[Fact],
    ) -> None:
        out.append(seen.fact)
        if known is not None and (seen.fact.epoch, seen.fact.rv) > known.told:
            # what equals the last content told is not told again: without this the late version would stand as the newest
            out.append(
                msgspec.structs.replace(
                    _decode(known.body), observed_at_ms=moment.at_ms, epoch=known.epoch, rv=known.rv
                )
            )
        if known is None:
            out.append(
                _gone(seen.fact.node, seen.fact.node_uid, superseded_by, moment.at_ms, after=moment.heard_ms)
            )

    def end(
        self,
        known: KnownNode | None,
        seen: NodeObservation | None,
        version: Version,
        moment: Moment,
        out: list[Fact],
        *,
        final: bool,
    ) -> None:
        name, uid = ("", "") if seen is None else (seen.fact.node, seen.fact.node_uid)
        if known is not None:
            name, uid = known.name, known.uid
        if uid:
            out.append(_gone(name, uid, version, moment.at_ms, after=None if final else moment.heard_ms))


def _content(fact: NodeObserved) -> tuple[bytes, bytes]:
    """Return what a Node says, without time and version, as a digest and in full."""
    content = _encode(msgspec.structs.replace(fact, observed_at_ms=0, epoch=0, rv=0))
    return fingerprint((msgspec.Raw(content),)), content


def _gone(name: str, uid: str, version: Version, at_ms: int, *, after: int | None) -> NodeGone:
    return NodeGone(
        node=name,
        observed_at_ms=at_ms,
        epoch=version[0],
        rv=version[1],
        node_uid=uid,
        final_state_known=after is None,
        gone_after_ms=after,
    )
