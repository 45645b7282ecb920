"""A partition's state as bytes, in pieces that are written when they change: one for each node, and a manifest.

Every piece carries the position up to which it holds. The manifest names the piece of every node, so a state is put together
exactly as it was written or not at all: pieces that a crash left without a manifest are passed over, and so are those of a
worker that lost the partition and did not know (reference faults, F1 to F4). A piece is a function of the records before its
position, so two workers that write the same one write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sickbay.errors import CodecError
from streams.breaker import BreakerState
from streams.custody import aggregate as custody
from streams.custody.aggregate import NodeState
from streams.ledger import aggregate as ledger
from streams.ledger.state import LedgerState
from streams.live import Live
from streams.partition import Header, Partition, read_policies

#: Raised when the shape of the pieces changes.
SNAPSHOT_VERSION: Final = 4
#: What makes a state of one build unreadable for another.
FOLD_VERSION: Final = f"{SNAPSHOT_VERSION}.{custody.FOLD_VERSION}.{ledger.FOLD_VERSION}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition's snapshot consists of."""

    fold_version: str
    #: Identity of the facts topic.
    source: str
    #: Offset of the next facts record: everything before it is in the snapshot.
    position: int
    partitions: int
    ingest_epoch: int
    time_ms: int
    header: Header
    #: Of the breaker's home, else ``None``.
    breaker: BreakerState | None
    censused: dict[int, int]
    #: Node to the position of its piece.
    nodes: dict[str, int]


class _Piece(msgspec.Struct, frozen=True):
    custody: msgspec.Raw
    #: ``null`` for what is on no node.
    ledger: msgspec.Raw


_NOTHING: Final = b"null"
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_read_manifest: Final = msgspec.json.Decoder(Manifest).decode
_read_piece: Final = msgspec.json.Decoder(_Piece).decode


def dump_node(live: Live, name: str) -> bytes:
    """Return the piece of a node as it stands."""
    books = live.partition.ledgers.get(name)
    return _encode(
        _Piece(
            msgspec.Raw(custody.dump(live.partition.nodes[name])),
            msgspec.Raw(_NOTHING if books is None else ledger.dump(books)),
        )
    )


def dump_manifest(live: Live, nodes: Mapping[str, int]) -> bytes:
    """Return the manifest that makes these pieces a snapshot of the partition as it stands."""
    manifest = Manifest(
        fold_version=FOLD_VERSION,
        source=live.source,
        position=live.position,
        partitions=live.total,
        ingest_epoch=live.ingest_epoch,
        time_ms=live.time_ms,
        header=live.partition.header(),
        breaker=live.breaker,
        censused=live.censused,
        nodes=dict(nodes),
    )
    return _encode(msgspec.to_builtins(manifest, str_keys=True))


def read_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises CodecError for one that another build wrote, or that is none."""
    try:
        version = msgspec.json.decode(data)["fold_version"]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise CodecError(f"not the manifest of a snapshot: {error!r}") from error
    if version != FOLD_VERSION:
        raise CodecError(
            f"the snapshot was written by fold version {version}, this build has {FOLD_VERSION}; stop the workers of the other"
            " build and start this one with `sickbay work --rebuild`"
        )
    try:
        return _read_manifest(data)
    except msgspec.MsgspecError as error:
        raise CodecError(f"not the manifest of a snapshot: {error}") from error


def restore(number: int, manifest: Manifest, pieces: Mapping[str, bytes]) -> Live:
    """Put a partition together. ``pieces`` holds the piece of every node that the manifest names.

    Raises CodecError when one is missing or cannot be read.
    """
    live = Live(number, manifest.partitions)
    policies = read_policies(manifest.header)
    nodes: dict[str, NodeState] = {}
    ledgers: dict[str, LedgerState] = {}
    for name in manifest.nodes:
        try:
            piece = _read_piece(pieces[name])
            state = custody.load(bytes(piece.custody), policies)
            kept = bytes(piece.ledger)
            books = None if kept == _NOTHING else ledger.load(kept, policies)
        except (msgspec.MsgspecError, KeyError) as error:
            raise CodecError(
                f"snapshot of partition {number}: the piece of node {name!r} is missing or cannot be read ({error!r}); start with"
                " `sickbay work --rebuild`"
            ) from error
        assert state is not None, "the manifest has the fold version of every piece"
        nodes[name] = state
        if books is not None:
            ledgers[name] = books
    live.partition = Partition.restored(number, manifest.header, nodes, ledgers)
    for state in nodes.values():
        state.timeline.policies = live.partition.policies
    for books in ledgers.values():
        books.policies = live.partition.policies
    live.source = manifest.source
    live.breaker, live.censused = manifest.breaker, dict(manifest.censused)
    live.position, live.ingest_epoch, live.time_ms = (
        manifest.position,
        manifest.ingest_epoch,
        manifest.time_ms,
    )
    return live
