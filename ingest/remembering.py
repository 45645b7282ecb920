"""What the topic of known facts holds and how it is read: the newest fact of each subject, so that a start needs no whole log.

One leader writes at a time, and a paused one may wake (faults, I1); compaction keeps order but forgets what was replaced. So
every record says up to where the facts are covered, a leader marks its beginning before its first record, and what stands
behind the mark of a newer leader is not believed: the partition is then read from the facts alone. No I/O here.

Keys are JSON arrays: ``[group, stream, subject]``, for a word on a device ``["word", stream, device, pod uid]``. A group joins
a kind with what ends it. ``["epoch", slot]`` is the mark of a leader, ``["distrust"]`` says that somebody else wrote.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from sickbay.cloudevents import (
    FACTS_OFFSET,
    INGEST_EPOCH,
    SINGLE,
    Headers,
    Message,
    header,
    unpack,
    whole_header,
)
from sickbay.codec import decode_envelope
from sickbay.envelope import Envelope
from sickbay.errors import CodecError
from sickbay.facts import FACTS

#: Of a known record: ``offset/epoch``: the facts before this offset stand in the topic, and the newest leader among them is this.
COVERED: Final = "sickbay-known-covered"
#: Event time for which the end of a subject is kept: late facts of it are then as old as any that are taken into account.
ENDED_KEPT_MS: Final = 3_600_000
#: Ends that are kept; beyond it the oldest go at once.
ENDED_MAX: Final = 50_000
#: Leaders whose marks are kept: one that slept through more does not exist.
_MARKS: Final = 64

_GROUPS: Final = {
    "pod_observed": "pod",
    "pod_gone": "pod",
    "claim_observed": "claim",
    "claim_gone": "claim",
    "node_observed": "node",
    "node_gone": "node",
    "device_published": "device",
    "device_withdrawn": "device",
    "node_lease_lapsed": "lease",
    "node_lease_resumed": "lease",
    "device_health_observed": "word",
}
_ENDS: Final = frozenset({"pod_gone", "claim_gone", "node_gone", "device_withdrawn"})
_KINDS: Final = frozenset(fact.KIND for fact in FACTS)
_encode: Final = msgspec.json.Encoder().encode

DISTRUST: Final = _encode(["distrust"])
_MARK_PREFIX: Final = b'["epoch",'


class _Inside(msgspec.Struct):
    """The part of a fact that says which version of what it is."""

    epoch: int = 0
    rv: int = 0
    pod_uid: str = ""
    live: bool = True
    #: Of a pool: no slice is left.
    newest_generation: int | None = 0


_inside: Final = msgspec.json.Decoder(_Inside).decode


class Noted(NamedTuple):
    """One fact as it is remembered."""

    key: bytes
    version: tuple[int, int]
    at_ms: int
    #: Nothing more will be said of the subject, as a rule.
    ended: bool
    #: Keys of what ends with it, or goes on with it, and has no word of its own for that.
    with_it: tuple[bytes, ...]
    data: bytes


def note(envelope: Envelope, data: bytes) -> Noted:
    """Return how a fact is remembered.

    Raises CodecError for what is no fact of this build, and for a payload that cannot be read.
    """
    kind = envelope.kind
    if kind not in _KINDS:
        raise CodecError(f"{kind[:80]!r} is no kind of fact")
    try:
        inside = _inside(envelope.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"{kind} {envelope.event_id}: {error}") from error
    stream = envelope.stream_id
    # neither a stream nor a version holds a slash of its own at the place of the cut
    subject = envelope.key[len(stream) + 1 :].rpartition("/")[0]
    parts = [_GROUPS.get(kind, kind), stream, subject]
    ended = kind in _ENDS
    if kind == "device_health_observed":
        parts.append(inside.pod_uid)
        ended = not inside.live
    elif kind == "pool_observed":
        ended = inside.newest_generation is None
    with_it = (_encode(["lease", stream, "lease"]),) if parts[0] == "node" else ()
    return Noted(_encode(parts), (inside.epoch, inside.rv), envelope.at_ms, ended, with_it, data)


class Covered(NamedTuple):
    """How far the facts of a partition are covered."""

    #: The first offset that is not.
    until: int
    #: The newest leader among the facts before it, -1 for none.
    epoch: int

    def headers(self, ingest_epoch: int) -> list[tuple[str, bytes]]:
        """Return the headers of a known record that a leader writes now."""
        return [(INGEST_EPOCH, str(ingest_epoch).encode()), (COVERED, f"{self.until}/{self.epoch}".encode())]


def known_message(noted: Noted, offset: int, covered: Covered, ingest_epoch: int) -> Message:
    """Return the known record of a fact that stands at ``offset``."""
    headers = [*covered.headers(ingest_epoch), (FACTS_OFFSET, str(offset).encode()), ("content-type", SINGLE)]
    return Message(noted.key, noted.data, headers)


def bare_message(key: bytes, value: bytes | None, covered: Covered, ingest_epoch: int) -> Message:
    """Return a known record that is no fact: a tombstone when ``value`` is ``None``."""
    # the client's type says bytes, and a tombstone has none
    return Message(key, value, covered.headers(ingest_epoch))  # type: ignore[arg-type]


def mark_key(ingest_epoch: int) -> bytes:
    """Return the key of the mark with which a leader begins."""
    return _encode(["epoch", ingest_epoch % _MARKS])


def _covered(headers: Headers | None) -> Covered:
    """Raises CodecError."""
    until, slash, epoch = (header(headers, COVERED) or "").partition("/")
    try:
        if slash and len(until) < 19 and len(epoch) < 19:
            return Covered(int(until), int(epoch))
    except ValueError:
        pass
    raise CodecError(f"header {COVERED} is not offset/epoch")


class Entry(NamedTuple):
    """The newest fact of a key, and the offset of its facts record (-1: it was known)."""

    noted: Noted
    offset: int


class _Latest(NamedTuple):
    """The last known record of a key: its value, and whether a leader wrote it who had been replaced."""

    value: bytes | None
    stale: bool


class PartitionMemory:
    """One partition as it is read: the known records first, then the facts that they do not cover."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        #: The newest leader that wrote anything.
        self.ingest_epoch = 0
        self.last_ms: int | None = None
        #: Records that nobody can read.
        self.unreadable = 0
        #: Facts records that a replaced leader wrote.
        self.superseded = 0
        #: Whether the known records could be believed.
        self.trusted = True
        #: What the known records cover.
        self.base = Covered(0, -1)
        #: What they and the facts read so far cover.
        self.covered = self.base
        self._latest: dict[bytes, _Latest] = {}
        self._mark = -1

    def known(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> None:
        """Take the next known record."""
        try:
            epoch = whole_header(headers, INGEST_EPOCH) or 0
            covered = _covered(headers)
        except CodecError:
            # not one of ours: what it replaced is only in the facts
            self.unreadable += 1
            self._latest[key or b""] = _Latest(value, stale=True)
            return
        self.ingest_epoch = max(self.ingest_epoch, epoch)
        stale = epoch < self._mark
        key = key or b""
        if key.startswith(_MARK_PREFIX):
            if not stale:
                self._mark, self.base = epoch, covered
            return
        if not stale and epoch == self._mark:
            self.base = max(self.base, covered)
        self._latest[key] = _Latest(value, stale)

    def judge(self, end: int) -> int:
        """Judge what was known; return from where on the facts, which end before ``end``, are to be read."""
        entries: dict[bytes, Entry] = {}
        for key, (value, stale) in self._latest.items():
            if stale or (key == DISTRUST and value is not None):
                self.trusted = False
            elif value is not None:
                try:
                    noted = note(decode_envelope(value), value)
                except CodecError:
                    self.unreadable += 1
                    self.trusted = False
                    continue
                self.trusted &= noted.key == key
                entries[key] = Entry(noted, -1)
        if self._mark < 0 or self.base.until > end:
            # nobody wrote yet, or of another topic that had this name (C52)
            self.trusted = False
        if self.trusted:
            self.entries = entries
            for entry in entries.values():
                self._hear(entry.noted.at_ms)
        else:
            self.base = Covered(0, -1)
        self.covered = self.base
        return self.base.until

    def fact(self, offset: int, value: bytes | None, headers: Headers | None) -> None:
        """Take the next facts record; what has no epoch is not an ingester's, and is passed over."""
        for noted in self.open_fact(offset, value, headers):
            if newer(noted, self.entries.get(noted.key)):
                self.entries[noted.key] = Entry(noted, offset)
            self._hear(noted.at_ms)

    def open_fact(self, offset: int, value: bytes | None, headers: Headers | None) -> list[Noted]:
        """Return what counts of the next facts record."""
        self.covered = Covered(offset + 1, self.covered.epoch)
        try:
            epoch = whole_header(headers, INGEST_EPOCH)
            if epoch is None:
                return []
            self.ingest_epoch = max(self.ingest_epoch, epoch)
            if epoch < self.covered.epoch:
                self.superseded += 1
                return []
            self.covered = Covered(offset + 1, epoch)
            return [note(opened.envelope, opened.data) for opened in unpack(value, headers)]
        except CodecError:
            self.unreadable += 1
            return []

    def read_until(self, end: int) -> None:
        """Say that the facts were read to ``end``, whatever stood there."""
        self.covered = Covered(max(self.covered.until, end), self.covered.epoch)

    def forget(self) -> None:
        """Let go of what was read; how far it was stays."""
        self.entries, self._latest = {}, {}

    def repairs(self) -> Iterator[tuple[bytes, Entry | None]]:
        """Return what the topic of known facts lacks, oldest first: key and entry, ``None`` for a tombstone."""
        missing = [
            entry for key, entry in self.entries.items()
            if (latest := self._latest.get(key)) is None or latest.stale or latest.value != entry.noted.data
        ]  # fmt: skip
        for entry in sorted(missing, key=lambda entry: entry.offset):
            yield entry.noted.key, entry
        for key, latest in self._latest.items():
            if key not in self.entries and key != DISTRUST and (latest.stale or latest.value is not None):
                yield key, None
        # last, so that a repair that was cut short is made again
        if (distrust := self._latest.get(DISTRUST)) is not None and distrust.value is not None:
            yield DISTRUST, None

    def _hear(self, at_ms: int) -> None:
        self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)


def newer(noted: Noted, before: Entry | None) -> bool:
    """Whether a fact replaces the one that its key has: of two versions the higher, of one version the later."""
    return before is None or noted.version >= before.noted.version


class Ended:
    """Subjects that ended, until their keys are taken out of the topic."""

    def __init__(self) -> None:
        #: ``(partition, key)`` to when it ended, oldest first.
        self._ends: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._time_ms = 0

    def __len__(self) -> int:
        return len(self._ends)

    def hear(self, partition: int, noted: Noted) -> None:
        """Take a fact that replaced what its key had."""
        self._time_ms = max(self._time_ms, noted.at_ms)
        for key in (noted.key, *noted.with_it):
            self._ends.pop((partition, key), None)
            if noted.ended:
                self._ends[partition, key] = noted.at_ms

    def due(self) -> list[tuple[int, bytes]]:
        """Take out the keys whose time has come, and the oldest of too many."""
        out = []
        while self._ends:
            place, at_ms = next(iter(self._ends.items()))
            if len(self._ends) <= ENDED_MAX and self._time_ms - at_ms < ENDED_KEPT_MS:
                break
            del self._ends[place]
            out.append(place)
        return out
