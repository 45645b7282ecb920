"""What a projector holds between two transactions: the merges of its partitions and the dead letters that wait.

It is made when the store has said where to read, and thrown away when the group takes the partitions back or the store refuses a
write: whoever comes next asks the store again. It fetches nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition

from projections.log import Position
from projections.merging import Limits, MergePosition, Merger
from projections.records import LogRecord, ParkedItem
from projections.sources import Follow, Source
from projections.topic_reading import letter_item
from sickbay.topics import Topics

#: Dead letters that wait to be written, at most: each may be a megabyte.
_LETTERS_MAX: Final = 50
_LETTERS: Final = Source("parked", 0)


class Batch(NamedTuple):
    """What one transaction writes."""

    records: list[LogRecord]
    letters: list[ParkedItem]
    follows: list[Follow]
    letters_next: int | None


class Holding:
    """The partitions that one claim of the group gave, from where the store said."""

    def __init__(
        self, topics: Topics, offsets: Mapping[Source, int], log: Mapping[int, Position], limits: Limits
    ) -> None:
        """``offsets`` are the next offsets of every partition of a topic that was given, ``log`` where the log of each ends."""
        self._topics: Final = topics
        self._mergers: Final[dict[int, Merger]] = {}
        self._written: Final[dict[int, MergePosition]] = {}
        self._newest_ms: Final = {number: position.newest_ms for number, position in log.items()}
        self._letters: list[ParkedItem] = []
        self._letters_next = self._letters_written = offsets.get(_LETTERS)
        #: Records that came since the last transaction.
        self.fed = 0
        for number in sorted(source.partition for source in offsets if source.topic == "facts"):
            position = MergePosition(
                offsets[Source("facts", number)],
                offsets[Source("decisions", number)],
                log[number].next_offset if number in log else 0,
            )
            self._written[number] = position
            self._mergers[number] = Merger(
                number, position, facts=topics.facts, decisions=topics.decisions, limits=limits
            )

    @property
    def partitions(self) -> list[int]:
        """The partitions whose log it writes."""
        return list(self._mergers)

    @property
    def is_due(self) -> bool:
        """Whether there is something to write."""
        return bool(self._letters) or any(merger.ready for merger in self._mergers.values())

    def wanted(self) -> list[TopicPartition]:
        """Return what to fetch from; nothing when everything that is here must be written first."""
        wanted = []
        for number, merger in self._mergers.items():
            if merger.wants_facts:
                wanted.append(TopicPartition(self._topics.facts, number))
            if merger.wants_answers:
                wanted.append(TopicPartition(self._topics.decisions, number))
        if self._letters_next is not None and len(self._letters) < _LETTERS_MAX:
            wanted.append(TopicPartition(self._topics.parked, 0))
        return wanted

    def feed(self, tp: TopicPartition, records: Sequence[Any]) -> None:
        """Take records of one partition as the client gives them. Raises MergeError."""
        merger = self._mergers.get(tp.partition)
        if tp.topic == self._topics.parked:
            for record in records:
                if self._letters_next is not None and record.offset >= self._letters_next:
                    self._letters.append(letter_item(tp, record))
                    self._letters_next = record.offset + 1
        elif merger is not None:
            take = merger.fact if tp.topic == self._topics.facts else merger.answer
            for record in records:
                take(record.offset, record.value, record.headers)
        self.fed += len(records)

    def batch(self, events_max: int, bytes_max: int) -> Batch:
        """Return what is to be written next, from every partition its share. Raises MergeError."""
        ready = {number: merger for number, merger in self._mergers.items() if merger.ready}
        share = max(1, len(ready))
        records: list[LogRecord] = []
        follows: list[Follow] = []
        for number, merger in ready.items():
            before = self._written[number]
            merged = merger.take(max(1, events_max // share), max(1, bytes_max // share))
            after = merged.position
            records += merged.records
            follows.append(Follow("facts", number, before.next_facts_offset, after.next_facts_offset))
            if after.next_decisions_offset != before.next_decisions_offset:
                follows.append(
                    Follow("decisions", number, before.next_decisions_offset, after.next_decisions_offset)
                )
        letters, self._letters = self._letters, []
        if letters and self._letters_written is not None and self._letters_next is not None:
            follows.append(Follow(*_LETTERS, self._letters_written, self._letters_next))
        return Batch(records, letters, follows, self._letters_next)

    def landed(self, batch: Batch) -> None:
        """Note that the store has a batch."""
        for number, merger in self._mergers.items():
            self._written[number] = merger.position
        for record in batch.records:
            newest_ms = self._newest_ms.get(record.partition, 0)
            self._newest_ms[record.partition] = max(newest_ms, record.envelope.at_ms)
        self._letters_written = batch.letters_next
        self.fed = 0

    def newest_ms(self, number: int) -> int:
        """Return the newest event time in the log of a partition, 0 when it is empty."""
        return self._newest_ms.get(number, 0)

    def written(self) -> dict[int, MergePosition]:
        """Return where the store stands."""
        return dict(self._written)

    def committable(self) -> dict[TopicPartition, int]:
        """Return where the store stands, in the terms of Kafka."""
        offsets: dict[TopicPartition, int] = {}
        for number, position in self._written.items():
            offsets[TopicPartition(self._topics.facts, number)] = position.next_facts_offset
            offsets[TopicPartition(self._topics.decisions, number)] = position.next_decisions_offset
        if self._letters_written is not None:
            offsets[TopicPartition(self._topics.parked, 0)] = self._letters_written
        return offsets
