"""The store: events in, rows and positions out, in one transaction.

``Store.write`` is the only way in. It writes the log, the read models and the checkpoint together, so a crash leaves all of a
batch or none of it, and a batch that is delivered again is skipped by its position. It decides nothing, and it keeps nothing
in memory between two calls: other processes may write the other partitions of the same database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from sqlalchemy import Connection, Engine, Table, select, update

from projections import custody, ledger, schema
from projections.admission import fresh_records, require_continued
from projections.chain import first_head, next_hash
from projections.database import migrating, open_engine, reading, transacted, writing
from projections.digest import digests, table_digest
from projections.log import (
    Position,
    initialise,
    live_generation,
    load_positions,
    lock_positions,
    park_items,
    reached,
    read_page,
    unknown_kinds,
)
from projections.places import Place, place_of
from projections.records import OPENED_KINDS, LogRecord, ParkedItem, log_row
from projections.rows import insert_tuples, known_events, upsert
from projections.sources import (
    Follow,
    Role,
    Source,
    follow_sources,
    follows_kafka,
    load_sources,
    move_sources,
    sources_reached,
)
from projections.tables import checkpoint, event_log, read_model, store_meta
from sickbay.errors import StoreError
from sickbay.topics import PARTITIONS_DEFAULT

#: Source of a store that follows no Kafka topic. One that does is named ``kafka:<cluster id>/<topic id>``.
EMBEDDED: Final = "embedded"

#: Events read at a time by ``Store.read``: a few megabytes.
_PAGE_EVENTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Projection:
    """A set of read models that live, are rebuilt and are switched together.

    ``apply`` takes decoded records of the ``wanted`` kinds in log order, writes rows of the given generation in the given
    transaction, and must give equal rows for equal logs, however they are cut into batches. Each of ``tables`` has a column
    ``generation``.
    """

    name: str
    tables: tuple[Table, ...]
    wanted: frozenset[str]
    apply: Callable[[Connection, int, Sequence[LogRecord]], None]


CUSTODY: Final = Projection(custody.NAME, custody.TABLES, custody.WANTED, custody.apply)
LEDGER: Final = Projection(ledger.NAME, ledger.TABLES, ledger.WANTED, ledger.apply)


class Written(NamedTuple):
    """What one batch came to; the three add up to its length."""

    rows: int
    #: At or before the checkpoint: delivered again.
    skipped: int
    #: Already in the partition under another offset: an event that was sent twice is one event.
    repeats: int


class Store:
    """An open store. Use as a context manager, or ``close`` it."""

    def __init__(
        self,
        engine: Engine,
        place: Place,
        source_id: str,
        partitions: int,
        projections: tuple[Projection, ...],
    ) -> None:
        self.engine: Final = engine
        #: As it may be shown; ``Store.open`` takes it again, in another process too.
        self.place: Final = place
        self.source_id: Final = source_id
        self.partitions: Final = partitions
        self.projections: Final = projections
        self._opened_kinds: Final = OPENED_KINDS.union(*(projection.wanted for projection in projections))

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        create: bool = False,
        read_only: bool = False,
        partitions: int | None = None,
        source_id: str | None = None,
        projections: tuple[Projection, ...] = (CUSTODY, LEDGER),
    ) -> Self:
        """Open the store at a path, a ``sqlite:///`` or a ``postgresql://`` URL.

        ``create`` makes the file (mode 0600), or the schema in a database that is there, when there is none, with ``partitions`` partitions (default 8)
        that follow ``source_id`` (default the embedded log). Both are pinned then: a later caller that names others is
        refused. Raises StoreError with the remedy: missing, not a database, unreachable, unwritable, locked, of another schema,
        another source or another partition count.
        """
        assert not (create and read_only), "a store that is created is written"
        place = place_of(place)
        engine = open_engine(place, create=create, read_only=read_only)
        try:
            return cls._opened(engine, place, create, read_only, partitions, source_id, projections)
        except BaseException:
            engine.dispose()
            raise

    @classmethod
    def _opened(
        cls,
        engine: Engine,
        place: Place,
        create: bool,
        read_only: bool,
        partitions: int | None,
        source_id: str | None,
        projections: tuple[Projection, ...],
    ) -> Self:
        with reading(engine, place) as connection:
            is_new = create and schema.revision_of(connection) is None
        if is_new:
            with migrating(engine, place) as connection:
                if schema.revision_of(connection) is None:
                    schema.upgrade_within(connection, place)
        with reading(engine, place) as connection:
            schema.require_head(connection, place)
            meta = connection.execute(select(store_meta.c.source_id, store_meta.c.partition_count)).first()
            known = set(connection.execute(select(read_model.c.name)).scalars())
        missing = [projection for projection in projections if projection.name not in known]
        if (meta is None or missing) and not read_only:
            with writing(engine, place) as connection:
                names = [projection.name for projection in projections]
                initialise(connection, source_id or EMBEDDED, partitions or PARTITIONS_DEFAULT, names)
            with reading(engine, place) as connection:
                meta = connection.execute(
                    select(store_meta.c.source_id, store_meta.c.partition_count)
                ).first()
        if meta is None:
            raise StoreError(
                f"{place} holds no events yet; `sickbay replay --db {place}`, or a projector that follows Kafka, writes some"
            )
        if source_id is not None and source_id != meta.source_id:
            why = (
                "the topic was made again, or this is another cluster; give the old cluster, or another database"
                if follows_kafka(source_id) and follows_kafka(meta.source_id)
                else "give another database"
            )
            raise StoreError(
                f"{place} follows the log {meta.source_id!r} and not {source_id!r}: its positions mean nothing there; {why}"
            )
        if partitions is not None and partitions != meta.partition_count:
            raise StoreError(
                f"{place} has {meta.partition_count} partitions and not {partitions}; use its own number, or replay into a new"
                " database"
            )
        return cls(engine, place, meta.source_id, meta.partition_count, projections)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reading ---

    def reading(self) -> AbstractContextManager[Connection]:
        """One snapshot, for the questions in ``projections.audit`` and ``projections.explain``."""
        return reading(self.engine, self.place)

    def positions(self) -> dict[int, Position]:
        """Return the position of every partition that has events."""
        with self.reading() as connection:
            return load_positions(connection)

    def sources(self) -> dict[Source, tuple[str, int]]:
        """Return identity and next offset of every partition of a topic that is followed."""
        with self.reading() as connection:
            return load_sources(connection)

    def read(self, partition: int, from_offset: int = 0, limit: int | None = None) -> Iterator[LogRecord]:
        """Yield the events of a partition from an offset on, in order, ``limit`` at most.

        Pages by (partition, offset), never by a sequence, so a reader that stops and comes back misses nothing.
        """
        left = limit
        while left is None or left > 0:
            with self.reading() as connection:
                page = read_page(
                    connection,
                    partition,
                    from_offset,
                    _PAGE_EVENTS if left is None else min(left, _PAGE_EVENTS),
                )
            yield from page
            if not page:
                return
            from_offset = page[-1].offset + 1
            left = None if left is None else left - len(page)

    def held(self, event_ids: Mapping[int, Sequence[str]]) -> set[str]:
        """Return those of some events, by partition, that the log holds already."""
        with self.reading() as connection:
            return {
                event_id
                for partition, ids in event_ids.items()
                for event_id in known_events(connection, event_log, partition, ids)
            }

    def digests(self) -> dict[str, str]:
        """Return table -> digest of the log, the positions and the live rows of every read model."""
        return self.digests_and_positions()[0]

    def digests_and_positions(self) -> tuple[dict[str, str], dict[int, Position]]:
        """Return the digests and the positions of one moment, so that a live store can be compared as it stood then (S20)."""
        with self.reading() as connection:
            result = {table.name: table_digest(connection, table) for table in (event_log, checkpoint)}
            for projection in self.projections:
                result |= digests(connection, projection.tables, live_generation(connection, projection.name))
            return result, load_positions(connection)

    # --- writing ---

    def follow(self, identities: Mapping[Role, str], sources: Iterable[Source]) -> dict[Source, int]:
        """Return where each partition of a topic is to be read from; ``identities`` are those of the topics now.

        Raises StoreError for a topic that is not the one followed before (T4).
        """
        sources = list(sources)
        return transacted(
            self.engine,
            self.place,
            lambda connection: follow_sources(connection, self.place, identities, sources),
            lambda _connection, _result: False,  # following again is following once
        )

    def write(
        self,
        records: Sequence[LogRecord],
        *,
        park: Sequence[ParkedItem] = (),
        follows: Sequence[Follow] = (),
    ) -> Written:
        """Write a batch, its read models and the positions in one transaction.

        Records of one partition must come in order of offset; gaps are allowed. What stands before the checkpoint is skipped.
        A record without ``chain`` is chained here, and a repeat of an event is then skipped too; a record with ``chain`` must
        fit the head, so a repeat or a second writer is refused. With ``follows``, all of it is refused with FencedError when a
        topic's position is not where they say, and it moves with the rows; there may be no rows. Raises StoreError, and
        CodecError for an event that read models need and this build cannot read; nothing is written then.
        """
        numbers = {record.partition for record in records if 0 <= record.partition < self.partitions}

        def work(connection: Connection) -> tuple[Written, dict[int, Position]]:
            move_sources(connection, self.place, follows)
            positions = lock_positions(connection, numbers)
            if follows:
                require_continued(self.place, records, positions)
            return self._write(connection, records, park, positions)

        def landed(connection: Connection, result: tuple[Written, dict[int, Position]]) -> bool:
            moved = result[1]
            if follows and not sources_reached(connection, follows):
                return False
            return bool(moved or follows) and (not moved or reached(connection, moved))

        written, _ = transacted(self.engine, self.place, work, landed)
        return written

    def _write(
        self,
        connection: Connection,
        records: Sequence[LogRecord],
        park: Sequence[ParkedItem],
        positions: dict[int, Position],
    ) -> tuple[Written, dict[int, Position]]:
        """Write a batch and return, beside what it came to, the positions that it moved."""
        fresh = fresh_records(self.place, self.partitions, self._opened_kinds, records, positions)
        skipped = len(records) - len(fresh)
        kept = self._link(connection, fresh, positions)
        insert_tuples(connection, event_log, [log_row(record, record.chain) for record in kept])
        self._project(connection, kept)
        moved = {
            partition: positions[partition] for partition in sorted({record.partition for record in fresh})
        }
        upsert(
            connection,
            checkpoint,
            [{"partition_number": partition} | position._asdict() for partition, position in moved.items()],
        )
        park_items(connection, [*park, *unknown_kinds(kept)])
        return Written(rows=len(kept), skipped=skipped, repeats=len(fresh) - len(kept)), moved

    def end_source(self) -> None:
        """Note that the source was read to its end, so that others may write after it."""
        with writing(self.engine, self.place) as connection:
            connection.execute(update(store_meta).values(source_ended=1))

    @property
    def source_ended(self) -> bool:
        """Whether the source was read to its end."""
        with self.reading() as connection:
            return bool(connection.execute(select(store_meta.c.source_ended)).scalar())

    def park(self, items: Sequence[ParkedItem]) -> None:
        """Keep what could not be used, with its place and the reason; the same thing twice is kept once."""
        if items:
            transacted(
                self.engine,
                self.place,
                lambda connection: park_items(connection, items),
                lambda _connection, _result: False,  # parking again is parking once
            )

    def _link(
        self, connection: Connection, fresh: Sequence[LogRecord], positions: dict[int, Position]
    ) -> list[LogRecord]:
        """Return the records that are new, each with its chain, and move the positions past all of them."""
        unchained: dict[int, list[str]] = {}
        for record in fresh:
            if not record.chain:
                unchained.setdefault(record.partition, []).append(record.envelope.event_id)
        known = {
            (partition, event_id)
            for partition, ids in unchained.items()
            for event_id in known_events(connection, event_log, partition, ids)
        }
        kept: list[LogRecord] = []
        for record in fresh:
            partition, offset, envelope, data, chain, event = record
            position = positions.get(partition) or Position(0, first_head(partition), 0)
            identity = (partition, envelope.event_id)
            is_repeat = identity in known
            head = position.chain_head if is_repeat else next_hash(position.chain_head, data)
            if chain and is_repeat:
                raise StoreError(
                    f"event {envelope.event_id} at partition {partition} offset {offset} is in the log already; leave the chain"
                    " to the store, and it drops repeats"
                )
            if chain and chain != head:
                raise StoreError(
                    f"event {envelope.event_id} at partition {partition} offset {offset} does not continue the log, whose head"
                    f" is {position.chain_head.hex()}; only one writer may own a partition, start it again from the positions of"
                    " the store"
                )
            if not is_repeat:
                known.add(identity)
                kept.append(record if chain else LogRecord(partition, offset, envelope, data, head, event))
            positions[partition] = Position(offset + 1, head, max(position.newest_ms, envelope.at_ms))
        return kept

    def _project(self, connection: Connection, records: Sequence[LogRecord]) -> None:
        for projection in self.projections:
            wanted = [record for record in records if record.envelope.kind in projection.wanted]
            if wanted:
                projection.apply(connection, live_generation(connection, projection.name), wanted)
