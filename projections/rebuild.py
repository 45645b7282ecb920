"""Read models built again beside the live ones, compared, and switched in one transaction.

The new generation is filled from the event log in small transactions that carry their own position, so a rebuild that is killed
goes on where it was, and readers never see half of it. Decisions are replayed and never made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, select, update

from projections.database import writing
from projections.digest import digests
from projections.engine import Projection, Store
from projections.log import load_positions
from projections.records import LogRecord, projected
from projections.rows import upsert
from projections.tables import event_log, read_model, rebuild_checkpoint
from sickbay.codec import decode_envelope
from sickbay.errors import StoreError, VerifyError

#: Events projected in one transaction: the live writer waits for a tenth of a second at most.
_BATCH_EVENTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to."""

    generation: int
    #: Table -> (digest of the live rows, digest of the rebuilt ones).
    digests: dict[str, tuple[str, str]]

    @property
    def differing(self) -> list[str]:
        """Tables whose rows are not what the log says."""
        return [table for table, (live, built) in self.digests.items() if live != built]


def rebuild(
    store: Store,
    projection: Projection,
    *,
    accept_difference: bool = False,
    batch_events: int = _BATCH_EVENTS,
) -> Rebuilt:
    """Build the next generation of a projection from the log and switch to it.

    May be killed at any point and called again; may run beside a live writer. Raises VerifyError, leaving both generations in
    place, when the rebuilt rows differ from the live ones and ``accept_difference`` is not set: somebody changed rows by hand,
    or the projection itself is newer than the rows.
    """
    generation = _begin(store, projection)
    while _advance(store, projection, generation, batch_events):
        pass
    result = _switch(store, projection, generation, accept_difference, batch_events)
    _drop_others(store, projection)
    return result


def _begin(store: Store, projection: Projection) -> int:
    _drop_others(store, projection)
    with writing(store.engine, store.place) as connection:
        live, building = _generations(connection, projection)
        if building is None:
            building = live + 1
            connection.execute(
                update(read_model)
                .where(read_model.c.name == projection.name)
                .values(building_generation=building)
            )
        return building


def _generations(connection: Connection, projection: Projection) -> tuple[int, int | None]:
    row = connection.execute(
        select(read_model.c.live_generation, read_model.c.building_generation).where(
            read_model.c.name == projection.name
        )
    ).first()
    if row is None:
        raise StoreError(
            f"the read models {projection.name!r} are not in this database; open it once for writing"
        )
    return row.live_generation, row.building_generation


def _advance(store: Store, projection: Projection, generation: int, batch_events: int) -> bool:
    """Project one batch of one partition; return whether there was anything to do."""
    with writing(store.engine, store.place) as connection:
        if _generations(connection, projection)[1] != generation:
            return False
        return next(_catch_up(connection, projection, generation, batch_events), None) is not None


def _catch_up(
    connection: Connection, projection: Projection, generation: int, batch_events: int
) -> Iterator[int]:
    """Project batch after batch inside one transaction, yielding each batch's partition, until nothing is left."""
    columns = rebuild_checkpoint.c
    reached = {
        row.partition_number: row.next_offset
        for row in connection.execute(
            select(columns.partition_number, columns.next_offset).where(
                columns.name == projection.name, columns.generation == generation
            )
        )
    }
    for partition, position in sorted(load_positions(connection).items()):
        offset = reached.get(partition, 0)
        while offset < position.next_offset:
            records = _wanted(connection, projection, partition, offset, batch_events)
            if records:
                projection.apply(connection, generation, records)
            offset = records[-1].offset + 1 if len(records) == batch_events else position.next_offset
            place = {"name": projection.name, "generation": generation, "partition_number": partition}
            upsert(connection, rebuild_checkpoint, [place | {"next_offset": offset}])
            yield partition


def _wanted(
    connection: Connection, projection: Projection, partition: int, from_offset: int, limit: int
) -> Sequence[LogRecord]:
    columns = event_log.c
    rows = connection.execute(
        select(columns.log_offset, columns.data, columns.chain)
        .where(
            columns.partition_number == partition,
            columns.log_offset >= from_offset,
            columns.kind.in_(sorted(projection.wanted)),
        )
        .order_by(columns.log_offset)
        .limit(limit)
    )
    records = [
        LogRecord(partition, offset, decode_envelope(data), data, chain) for offset, data, chain in rows
    ]
    return [record._replace(event=projected(record)) for record in records]


def _switch(
    store: Store, projection: Projection, generation: int, accept_difference: bool, batch_events: int
) -> Rebuilt:
    with writing(store.engine, store.place) as connection:
        live, building = _generations(connection, projection)
        if building != generation:
            raise StoreError(
                f"{store.place}: another process switched {projection.name!r} to generation {live}; run the rebuild again"
            )
        # The live writer waits now, so that both generations stand at the same positions.
        for _ in _catch_up(connection, projection, generation, batch_events):
            pass
        before = digests(connection, projection.tables, live)
        after = digests(connection, projection.tables, generation)
        result = Rebuilt(generation, {name: (digest, after[name]) for name, digest in before.items()})
        if result.differing and not accept_difference:
            raise VerifyError(
                f"{store.place}: rebuilt rows of {', '.join(result.differing)} differ from the live ones; somebody changed rows"
                " by hand, or this build projects otherwise: run the rebuild again and accept the difference to switch"
            )
        connection.execute(
            update(read_model)
            .where(read_model.c.name == projection.name)
            .values(live_generation=generation, building_generation=None)
        )
        connection.execute(delete(rebuild_checkpoint).where(rebuild_checkpoint.c.name == projection.name))
    return result


def _drop_others(store: Store, projection: Projection) -> None:
    """Delete the rows of generations that neither answer nor are being built, one table in each transaction."""
    for table in projection.tables:
        with writing(store.engine, store.place) as connection:
            keep = [
                generation for generation in _generations(connection, projection) if generation is not None
            ]
            connection.execute(delete(table).where(table.c.generation.not_in(keep)))
