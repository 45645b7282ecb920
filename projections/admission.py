"""Which records of a batch a store lets in, before anything is written: in order, in their own partition, and where the log ends.

Pure: it is given the positions, and answers or raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from projections.log import Position
from projections.records import LogRecord, projected
from sickbay.envelope import partition_of
from sickbay.errors import StoreError
from sickbay.topics import broadcast_stream


def fresh_records(
    place: str,
    partitions: int,
    opened_kinds: frozenset[str],
    records: Sequence[LogRecord],
    positions: Mapping[int, Position],
) -> list[LogRecord]:
    """Return the records at or after the checkpoints, checked for order, and decoded where ``opened_kinds`` ask for it.

    Raises StoreError for a record out of order or in a partition that is not its own, CodecError for one that cannot be decoded.
    """
    fresh: list[LogRecord] = []
    last: dict[int, int] = {}
    for record in records:
        partition, offset, envelope, *_ = record
        if not 0 <= partition < partitions:
            raise StoreError(
                f"event {envelope.event_id}: partition {partition} does not exist, {place} has"
                f" {partitions}; use the partition count of the store"
            )
        if offset <= last.get(partition, -1):
            raise StoreError(
                f"event {envelope.event_id}: offset {offset} of partition {partition} follows {last[partition]};"
                " give records in the order of the log"
            )
        last[partition] = offset
        if partition in positions and offset < positions[partition].next_offset:
            continue
        if envelope.kind in opened_kinds:
            _require_partition(record, partitions)
            event = projected(record)
            fresh.append(LogRecord(partition, offset, envelope, record.data, record.chain, event))
        else:
            fresh.append(record)
    return fresh


def _require_partition(record: LogRecord, partitions: int) -> None:
    """Refuse an event in a partition that is not its node's: two writers would meet in one row."""
    stream = record.envelope.stream_id
    if not stream or stream == broadcast_stream(record.partition):
        return
    right = partition_of(stream, partitions)
    if right != record.partition:
        raise StoreError(
            f"event {record.envelope.event_id} of {stream!r} stands in partition {record.partition} and belongs to {right}"
            f" of {partitions}; the log was written with another partition count, replay it into a new database"
        )


def require_continued(place: str, records: Sequence[LogRecord], positions: Mapping[int, Position]) -> None:
    """Raise StoreError unless the records of each partition begin where its log ends: whoever follows a topic writes alone."""
    for partition, offset in {record.partition: record.offset for record in reversed(records)}.items():
        end = positions[partition].next_offset if partition in positions else 0
        if offset != end:
            raise StoreError(
                f"{place}: the log of partition {partition} ends before offset {end}, and the topics lead to {offset}:"
                " something else wrote into it; project into a new database"
            )
