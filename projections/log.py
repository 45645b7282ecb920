"""The log side of the store, statement by statement: positions, pages, parked items, the first rows of a new store.

Every function works inside a transaction of its caller and commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from sqlalchemy import ARRAY, BigInteger, Connection, bindparam, func, insert, select

from projections.chain import first_head
from projections.postgresql import is_postgresql, lock_parking
from projections.records import PARKED_RAW_BYTES_MAX, LogRecord, ParkedItem, shown
from projections.rows import insert_new
from projections.tables import checkpoint, event_log, parked, read_model, store_meta
from sickbay.codec import decode_envelope
from sickbay.envelope import derived_id
from sickbay.errors import StoreError
from sickbay.events import KINDS


class Position(NamedTuple):
    """How far a partition is written."""

    next_offset: int
    chain_head: bytes
    #: The newest event time seen, in milliseconds; 0 before the first event.
    newest_ms: int


def load_positions(connection: Connection) -> dict[int, Position]:
    """Return the position of every partition that has events, as this transaction sees them."""
    columns = checkpoint.c
    rows = connection.execute(
        select(columns.partition_number, columns.next_offset, columns.chain_head, columns.newest_ms)
    )
    return {partition: Position(*position) for partition, *position in rows}


def lock_positions(connection: Connection, partitions: Iterable[int]) -> dict[int, Position]:
    """Return the positions of some partitions as they are now, and let nobody else move them before the transaction ends.

    On SQLite the transaction has the whole file already. On PostgreSQL the lock is on the rows of ``checkpoint``, taken in the
    order of the partitions; a partition without events gets a row that says so, which nobody else ever sees. Who waited for
    another writer sees what that one wrote.
    """
    if not is_postgresql(connection):
        return load_positions(connection)
    wanted = sorted(set(partitions))
    columns = checkpoint.c
    query = (
        select(columns.partition_number, columns.next_offset, columns.chain_head, columns.newest_ms)
        .where(columns.partition_number == func.any(bindparam("wanted", wanted, ARRAY(BigInteger))))
        .order_by(columns.partition_number)
        .with_for_update()
    )
    found = {partition: Position(*position) for partition, *position in connection.execute(query)}
    missing = [partition for partition in wanted if partition not in found]
    if missing:
        empty = [
            {"partition_number": partition} | Position(0, first_head(partition), 0)._asdict()
            for partition in missing
        ]
        insert_new(connection, checkpoint, empty)
        found = {partition: Position(*position) for partition, *position in connection.execute(query)}
    return found


def reached(connection: Connection, positions: Mapping[int, Position]) -> bool:
    """Return whether the log of each partition passes through the given position: at or behind it, with its head before it.

    So a batch whose commit was in doubt is there. What waits for the end of the transaction that wrote it is the lock.
    """
    now = lock_positions(connection, positions)
    for partition, position in positions.items():
        if partition not in now or now[partition].next_offset < position.next_offset:
            return False
        last = connection.execute(
            select(event_log.c.chain)
            .where(event_log.c.partition_number == partition, event_log.c.log_offset < position.next_offset)
            .order_by(event_log.c.log_offset.desc())
            .limit(1)
        ).scalar()
        if (first_head(partition) if last is None else last) != position.chain_head:
            return False
    return True


def live_generation(connection: Connection, name: str) -> int:
    """Return the generation that answers; read in every transaction, because another process may switch it."""
    generation = connection.execute(
        select(read_model.c.live_generation).where(read_model.c.name == name)
    ).scalar()
    if generation is None:
        raise StoreError(f"the read models {name!r} are not in this database; open it once for writing")
    return int(generation)


def read_page(connection: Connection, partition: int, from_offset: int, limit: int) -> list[LogRecord]:
    """Return up to ``limit`` events of a partition from an offset on, in order."""
    columns = event_log.c
    rows = connection.execute(
        select(columns.log_offset, columns.data, columns.chain)
        .where(columns.partition_number == partition, columns.log_offset >= from_offset)
        .order_by(columns.log_offset)
        .limit(limit)
    )
    return [LogRecord(partition, offset, decode_envelope(data), data, chain) for offset, data, chain in rows]


def park_items(connection: Connection, items: Iterable[ParkedItem]) -> None:
    """Insert parked items inside the caller's transaction; those that are there already stay as they are."""
    items = list(items)
    if not items:
        return
    if is_postgresql(connection):
        lock_parking(connection)
    rows = {}
    seq = connection.execute(select(func.coalesce(func.max(parked.c.seq), 0))).scalar_one()
    for number, item in enumerate(items, seq + 1):
        parked_id = derived_id("parked", item.place, item.reason, sha256(item.raw).hexdigest())
        rows[parked_id] = {
            "parked_id": parked_id,
            "seq": number,
            "place": shown(item.place),
            "reason": shown(item.reason),
            "raw": item.raw[:PARKED_RAW_BYTES_MAX],
            "raw_bytes": len(item.raw),
            "at_ms": item.at_ms,
        }
    insert_new(connection, parked, list(rows.values()))


def unknown_kinds(records: Sequence[LogRecord]) -> list[ParkedItem]:
    """Return what to park of the records: kinds that a newer build wrote, which stay in the log unread."""
    return [
        ParkedItem(
            f"partition {record.partition} offset {record.offset}",
            f"event kind {record.envelope.kind!r} is unknown to this build; it stays in the log, read it with a newer one",
            record.data,
            record.envelope.at_ms,
        )
        for record in records
        if record.envelope.kind not in KINDS
    ]


def _build() -> str:
    try:
        return version("sickbay")
    except PackageNotFoundError:  # run from a checkout that nobody installed
        return "checkout"


def initialise(connection: Connection, source_id: str, partitions: int, names: Iterable[str]) -> None:
    """Write the rows that a new store needs; those that another process wrote first stay."""
    if connection.execute(select(store_meta.c.meta_id)).first() is None:
        connection.execute(
            insert(store_meta),
            {
                "meta_id": 1,
                "source_id": source_id,
                "partition_count": partitions,
                "source_ended": 0,
                "created_by": f"sickbay {_build()}",
            },
        )
    insert_new(
        connection,
        read_model,
        [{"name": name, "live_generation": 1, "building_generation": None} for name in names],
    )
