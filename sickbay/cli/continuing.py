"""Going on with a log that an earlier run began: only the same log may be gone on with.

The store skips what stands before its positions and does not ask whether it is the same; standard input has no name, and a
request may have come between a run that was stopped and the next. So whoever delivers again compares first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from projections.chain import first_head, next_hash
from projections.engine import Store
from projections.log import Position
from projections.records import LogRecord
from sickbay.errors import StoreError


def same_log(store: Store) -> Callable[[Sequence[LogRecord]], object]:
    """Return ``store.write`` with a comparison before it.

    The writer raises StoreError, and writes nothing, when the store holds another event where a record of the batch stands.
    An offset without an event is one where a repeat was dropped.
    """

    def write(records: Sequence[LogRecord]) -> object:
        known: dict[int, list[LogRecord]] = {}
        positions = store.positions()
        for record in records:
            if record.partition in positions and record.offset < positions[record.partition].next_offset:
                known.setdefault(record.partition, []).append(record)
        for partition, again in known.items():
            _compare(store, partition, again)
        return store.write(records)

    return write


def linked(records: Iterable[LogRecord], positions: Mapping[int, Position]) -> list[LogRecord]:
    """Link records to the log as it stood, so that they are refused, all of them, when it has moved on."""
    heads = {number: position.chain_head for number, position in positions.items()}
    out: list[LogRecord] = []
    for record in records:
        number = record.partition
        heads[number] = next_hash(heads.get(number, first_head(number)), record.data)
        out.append(record._replace(chain=heads[number]))
    return out


def _compare(store: Store, partition: int, again: list[LogRecord]) -> None:
    delivered = {record.offset: record for record in again}
    for stored in store.read(partition, again[0].offset, limit=len(again)):
        record = delivered.get(stored.offset)
        if record is not None and record.data != stored.data:
            raise StoreError(
                f"{store.place}: partition {partition} offset {stored.offset} holds {stored.envelope.kind} of"
                f" {stored.envelope.key!r}, and this replay comes to {record.envelope.kind} of {record.envelope.key!r}: another"
                " recording, a request in between, or another build wrote it; replay into a new database"
            )
