"""Where a store stands in the Kafka topics that it follows, statement by statement.

Positions move in the transaction that writes what they led to, and only from where the writer believes them: a projector that
was replaced while it slept moves nothing and writes nothing (S4). Every function works inside a transaction of its caller and
commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, and_, or_, select, update

from projections.postgresql import is_postgresql
from projections.rows import insert_new
from projections.tables import source_position
from sickbay.errors import FencedError, StoreError

#: What a topic is to a store, whatever it is called.
Role: TypeAlias = Literal["facts", "decisions", "parked"]

_KAFKA: Final = "kafka:"


class Source(NamedTuple):
    """One partition of one topic."""

    topic: Role
    partition: int


class Follow(NamedTuple):
    """That a batch was read from one partition of a topic, and how far that is then read."""

    topic: Role
    partition: int
    #: Next offset as the writer knows it; the write is refused when it is another one.
    before: int
    after: int


def kafka_source_id(facts_identity: str) -> str:
    """Return the source id of a store that follows a topic; ``facts_identity`` is that of ``sickbay.kafka.topic_identity``."""
    return f"{_KAFKA}{facts_identity}"


def follows_kafka(source_id: str) -> bool:
    """Return whether a store of this source follows a topic."""
    return source_id.startswith(_KAFKA)


def load_sources(connection: Connection) -> dict[Source, tuple[str, int]]:
    """Return the identity of the topic and the next offset of every partition that is followed."""
    columns = source_position.c
    rows = connection.execute(
        select(columns.topic, columns.partition_number, columns.topic_identity, columns.next_offset)
    )
    return {Source(topic, partition): (identity, offset) for topic, partition, identity, offset in rows}


def follow_sources(
    connection: Connection, place: str, identities: Mapping[Role, str], sources: Iterable[Source]
) -> dict[Source, int]:
    """Return the next offset of each source; one that is followed for the first time begins at 0.

    Raises StoreError when a topic is not the one that was followed before.
    """
    sources = sorted(sources)
    fresh = [
        {
            "topic": source.topic,
            "partition_number": source.partition,
            "topic_identity": identities[source.topic],
            "next_offset": 0,
        }
        for source in sources
    ]
    insert_new(connection, source_position, fresh)
    known = load_sources(connection)
    for source in sources:
        identity, offset = known[source]
        if identity != identities[source.topic]:
            raise StoreError(
                f"{place} stands at offset {offset} of the topic of {source.topic} {identity}, and Kafka has"
                f" {identities[source.topic]} under its name: the topic was made again, or this is another cluster, and the"
                " offset means nothing there; give the old cluster, or project into a new database"
            )
    return {source: known[source][1] for source in sources}


def move_sources(connection: Connection, place: str, follows: Sequence[Follow]) -> None:
    """Move positions from where the writer believes them, and let nobody else move them before the transaction ends.

    Raises FencedError when one stands elsewhere.
    """
    columns = source_position.c
    # in one order everywhere, so that two writers wait for each other and never both
    for topic, partition, before, after in sorted(follows):
        moved = connection.execute(
            update(source_position)
            .where(
                columns.topic == topic, columns.partition_number == partition, columns.next_offset == before
            )
            .values(next_offset=after)
        )
        if moved.rowcount != 1:
            raise FencedError(
                f"{place}: another projector moved {topic} {partition} from offset {before}; this one was replaced, and wrote"
                " nothing of its batch"
            )


def sources_reached(connection: Connection, follows: Sequence[Follow]) -> bool:
    """Return whether every position stands at or behind what a write moved it to: then the write is there (S3).

    What waits for the end of the transaction that wrote it is the lock.
    """
    columns = source_position.c
    wanted = [
        and_(columns.topic == follow.topic, columns.partition_number == follow.partition)
        for follow in follows
    ]
    query = (
        select(columns.topic, columns.partition_number, columns.next_offset)
        .where(or_(*wanted))
        .order_by(columns.topic, columns.partition_number)
    )
    if is_postgresql(connection):
        query = query.with_for_update()
    now = {Source(topic, partition): offset for topic, partition, offset in connection.execute(query)}
    return all(now[Source(topic, partition)] >= after for topic, partition, _, after in follows)
