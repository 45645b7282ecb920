"""Proof that a store is what it says: the chain holds, the columns say what the bytes say, a replay gives the same rows.

Reads only. What it cannot know is a history that was rewritten together with every head; keep heads elsewhere and pass them as
``anchors``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, select

from projections.chain import verify_links
from projections.engine import Store
from projections.log import Position, load_positions
from projections.records import LogRecord, log_row
from projections.tables import checkpoint, event_log
from sickbay.codec import decode_envelope
from sickbay.errors import CodecError, VerifyError

#: Rows fetched at a time, and written at a time by the replay.
_ROWS_PER_BATCH: Final = 2_000


def verify_log(connection: Connection, anchors: Mapping[int, Position] | None = None) -> dict[int, int]:
    """Walk the whole log; return partition -> number of events.

    ``anchors`` are positions that were kept elsewhere (``Store.positions`` of an earlier day): the log must pass through each of
    them. Raises VerifyError at the first place that disagrees.
    """
    positions = load_positions(connection)
    partitions = set(connection.execute(select(event_log.c.partition_number).distinct()).scalars())
    for partition in sorted(partitions - positions.keys()):
        raise VerifyError(
            f"partition {partition} has events and no checkpoint; restore the database from a copy"
        )
    for partition in sorted((anchors or {}).keys() - positions.keys()):
        raise VerifyError(
            f"partition {partition} is anchored and has no events; restore the database from a copy"
        )
    counts: dict[int, int] = {}
    for partition, position in sorted(positions.items()):
        anchor = (anchors or {}).get(partition)
        counts[partition] = verify_links(
            partition,
            _links(connection, partition, anchor),
            head=position.chain_head,
            position=position.next_offset,
        )
    return counts


def _links(
    connection: Connection, partition: int, anchor: Position | None
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the links of a partition, having compared each row with its bytes and the anchor with the row it names."""
    rows = connection.execution_options(yield_per=_ROWS_PER_BATCH).execute(
        select(event_log).where(event_log.c.partition_number == partition).order_by(event_log.c.log_offset)
    )
    last: bytes | None = None
    passed = anchor is None
    for row in rows:
        if anchor is not None and not passed and row.log_offset >= anchor.next_offset:
            _require_anchor(partition, anchor, last)
            passed = True
        _require_columns(tuple(row))
        last = row.chain
        yield row.log_offset, row.data, row.chain
    if anchor is not None and not passed:
        _require_anchor(partition, anchor, last)


def _require_anchor(partition: int, anchor: Position, head: bytes | None) -> None:
    if head != anchor.chain_head:
        raise VerifyError(
            f"partition {partition}: before offset {anchor.next_offset} the head is {head.hex() if head else 'missing'} and was"
            f" anchored as {anchor.chain_head.hex()}: history was rewritten; restore the database from a copy"
        )


def _require_columns(row: tuple[Any, ...]) -> None:
    partition, offset, *_, data, chain = row
    try:
        expected = log_row(LogRecord(partition, offset, decode_envelope(data), data), chain)
    except CodecError as error:
        raise VerifyError(
            f"partition {partition} offset {offset}: the bytes are not an event ({error}); restore the database from a copy"
        ) from error
    if expected != row:
        names = [column.name for column in event_log.columns]
        wrong = [name for name, left, right in zip(names, expected, row, strict=True) if left != right]
        raise VerifyError(
            f"partition {partition} offset {offset}: {', '.join(wrong)} do not say what the event says; restore the row"
        )


def verify_replay(store: Store, scratch: str | os.PathLike[str]) -> dict[str, str]:
    """Replay the log of a store into a new one at ``scratch`` and compare every digest; return them.

    Somebody may write meanwhile: the store is compared as it stood in one snapshot.
    Raises VerifyError naming the tables whose rows are not what the log says. The scratch store is the caller's to delete.
    """
    with Store.open(
        scratch,
        create=True,
        partitions=store.partitions,
        source_id=store.source_id,
        projections=store.projections,
    ) as replayed:
        ours, expected = store.digests_and_positions()
        for partition, position in sorted(expected.items()):
            batch: list[LogRecord] = []
            for record in store.read(partition):
                if record.offset >= position.next_offset:
                    break
                batch.append(record)
                if len(batch) == _ROWS_PER_BATCH:
                    replayed.write(batch)
                    batch = []
            replayed.write(batch)
        theirs = replayed.digests()
    # A position may stand behind repeats that left no row; the heads are compared with the rows of the log.
    differing = [
        table for table, digest in theirs.items() if table != checkpoint.name and ours[table] != digest
    ]
    if differing:
        raise VerifyError(
            f"{store.place}: {', '.join(differing)} differ from a replay of the log; rebuild the read models, and find out who"
            " wrote to the database"
        )
    return ours
