"""What is written to the topic of known facts, and when; the other half of ``ingest.remembering``, which says how it is read.

It sends nothing itself: it returns records and is told their offsets. It must never say that facts are covered whose known
records are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ingest.kafka_delivery import Outgoing
from ingest.packing import Packed
from ingest.remembering import (
    DISTRUST,
    Covered,
    Ended,
    Entry,
    Noted,
    PartitionMemory,
    bare_message,
    known_message,
    mark_key,
    note,
)
from sickbay.cloudevents import Headers

_EMPTY: Final = b"{}"
_NEVER: Final = (-1, -1)


class KnownWriter:
    """The known records of one leadership."""

    def __init__(self, topic: str, memories: dict[int, PartitionMemory]) -> None:
        self._topic = topic
        self._memories = memories
        self._epoch = -1
        #: The newest leader that wrote before.
        self.ingest_epoch = max(memory.ingest_epoch for memory in memories.values())
        #: What the acknowledged known records cover.
        self._covered = {number: memory.base for number, memory in memories.items()}
        #: What they cover once those that were taken last, or wait to be, are acknowledged too.
        self._taken: dict[int, Covered] = {}
        self._waiting_covers: dict[int, Covered] = {}
        #: Newest entry of each key that waits, in the order of offsets; ``None`` is a tombstone.
        self._waiting: dict[int, dict[bytes, Entry | None]] = {number: {} for number in memories}
        #: Version of the newest fact of each key that is known.
        self._versions: dict[bytes, tuple[int, int]] = {}
        self._ended = Ended()
        #: Where the next known record of a partition must stand if nobody else writes.
        self._next: dict[int, int] = {}
        #: Partitions of which no fact of this leadership was acknowledged.
        self._unjoined = set(memories)
        #: Partitions in which somebody else wrote known records, and those of them where that is not said yet.
        self._distrusted: set[int] = set()
        self._distrust_waits: set[int] = set()
        #: Times that such writes were found.
        self.foreign_writes = 0
        entries = [
            (number, entry.noted) for number, memory in memories.items() for entry in memory.entries.values()
        ]
        for number, noted in sorted(entries, key=lambda item: (item[1].at_ms, not item[1].ended)):
            self._versions[noted.key] = noted.version
            self._ended.hear(number, noted)

    @property
    def leads(self) -> bool:
        """Whether an epoch to write under is given."""
        return self._epoch >= 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._distrust_waits and not any(self._waiting.values())

    def lead(self, ingest_epoch: int) -> None:
        """Write under this epoch from here on."""
        self._epoch = ingest_epoch

    def beginning(self, most: int) -> Iterator[list[Outgoing]]:
        """Return what a leader writes before its first fact, ``most`` records at a time: its marks, then the repairs.

        The marks come first: whatever an older leader writes behind them is not believed.
        """
        mark = mark_key(self._epoch)
        yield [self._bare(number, mark, _EMPTY) for number in self._memories]
        chunk: list[Outgoing] = []
        for number, memory in self._memories.items():
            for key, entry in memory.repairs():
                chunk.append(self._record(number, key, entry))
                if len(chunk) == most:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk

    def begin(self) -> None:
        """Everything of ``beginning`` is acknowledged: what was recalled is covered."""
        for number, memory in self._memories.items():
            self._covered[number] = memory.covered
            memory.forget()

    def unread(self, packed: Sequence[Packed], offsets: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """Return the stretches of facts between the recall and the first own record: partition, begin, end.

        An older leader may have written there, and it counts.
        """
        for record, offset in zip(packed, offsets, strict=True):
            number = record.partition
            if number in self._unjoined and offset >= 0:
                self._unjoined.discard(number)
                begin = self._memories[number].covered.until
                if begin < offset:
                    yield number, begin, offset

    def foreign(self, partition: int, offset: int, value: bytes | None, headers: Headers | None) -> int:
        """Take a facts record that another leader wrote after the recall and before the first own one.

        Return how many facts of it count.
        """
        facts = self._memories[partition].open_fact(offset, value, headers)
        for noted in facts:
            self._hear(partition, noted, offset)
        return len(facts)

    def told(self, packed: Sequence[Packed], offsets: Sequence[int]) -> None:
        """Take facts that are acknowledged."""
        for record, offset in zip(packed, offsets, strict=True):
            for event in record.events:
                self._hear(record.partition, note(*event), offset)
            if offset >= 0 and record.partition not in self._unjoined:
                self._waiting_covers[record.partition] = Covered(offset + 1, self._epoch)
        for number, key in self._ended.due():
            if self._versions.pop(key, None) is not None:
                self._wait(number, key, None)

    def _hear(self, number: int, noted: Noted, offset: int) -> None:
        if noted.version >= self._versions.get(noted.key, _NEVER):
            self._versions[noted.key] = noted.version
            self._ended.hear(number, noted)
            self._wait(number, noted.key, Entry(noted, offset))

    def _wait(self, number: int, key: bytes, entry: Entry | None) -> None:
        waiting = self._waiting[number]
        waiting.pop(key, None)
        waiting[key] = entry

    def take(self) -> list[Outgoing]:
        """Return the records that wait, in order; ``covers`` follows when they are acknowledged."""
        out = []
        for number, waiting in self._waiting.items():
            out += [self._record(number, key, entry) for key, entry in waiting.items()]
            waiting.clear()
            if number in self._distrust_waits:
                out.append(self._bare(number, DISTRUST, _EMPTY))
        self._distrust_waits.clear()
        self._taken, self._waiting_covers = self._waiting_covers, {}
        return out

    def covers(self) -> None:
        """What was taken last is acknowledged."""
        self._covered |= self._taken
        self._taken = {}

    def acknowledged(self, records: Sequence[Outgoing], offsets: Sequence[int], resent: bool) -> None:
        """Look at the offsets of known records: a gap between them is somebody else's write.

        It may have replaced what is known now, or taken it out, and compaction hides that in time. So the next recall is told to
        believe the facts alone. Records that were sent again leave gaps of their own.
        """
        for record, offset in zip(records, offsets, strict=True):
            number = record.partition
            expected = self._next.pop(number, -1)
            if offset < 0:
                continue
            self._next[number] = offset + 1
            if 0 <= expected < offset and not resent:
                self.foreign_writes += 1
                if number not in self._distrusted:
                    self._distrusted.add(number)
                    self._distrust_waits.add(number)

    def _record(self, number: int, key: bytes, entry: Entry | None) -> Outgoing:
        if entry is None:
            return self._bare(number, key, None)
        message = known_message(entry.noted, entry.offset, self._covered[number], self._epoch)
        return Outgoing(self._topic, number, message)

    def _bare(self, number: int, key: bytes, value: bytes | None) -> Outgoing:
        message = bare_message(key, value, self._covered[number], self._epoch)
        return Outgoing(self._topic, number, message)
