"""Proof that a store that follows Kafka holds what the topics hold: nothing lost, nothing beside it, byte for byte.

Both topics are read from their beginning up to where the store stands, merged as the projector merges them, and compared with the
log. A projector may go on meanwhile: what it writes is behind that place. Reads only; joins no group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from projections.engine import Store
from projections.log import Position, load_positions
from projections.merging import Merger
from projections.records import LogRecord
from projections.rows import known_events
from projections.sources import Role, Source, follows_kafka, kafka_source_id, load_sources
from projections.tables import event_log
from projections.topic_reading import require_readable
from sickbay.errors import ServiceError, StoreError, VerifyError
from sickbay.kafka import client_arguments, topic_identity, translated
from sickbay.settings import KafkaSettings

#: Events compared at a time.
_EVENTS_MAX: Final = 2_000
_BYTES_MAX: Final = 8 * 1024 * 1024
_POLL_MS: Final = 500
#: For how long Kafka may hand out nothing although there is something.
_PATIENCE_S: Final = 60.0


class Live(NamedTuple):
    """What was compared."""

    facts: int
    decisions: int
    partitions: int
    #: Records of the facts topic that the store does not have yet, and in how many partitions they are: of them nothing is proved.
    behind: int
    partitions_behind: int


class _Snapshot(NamedTuple):
    """Where a store stands."""

    sources: dict[Source, tuple[str, int]]
    log: dict[int, Position]

    def offset(self, topic: Role, partition: int) -> int:
        return self.sources.get(Source(topic, partition), ("", 0))[1]


async def verify_topics(settings: KafkaSettings, store: Store) -> Live:
    """Compare the log of a store with the topics it follows; return how much was compared.

    Raises StoreError for a store that follows no topic, VerifyError naming the place of the first difference, ServiceError when
    Kafka cannot be read or lost what the store has, MergeError for topics that do not belong together.
    """
    if not follows_kafka(store.source_id):
        raise StoreError(
            f"{store.place} follows {store.source_id!r} and no topic of Kafka; verify it without --live"
        )
    snapshot = await asyncio.to_thread(_snapshot, store)
    await _require_identities(settings, store, snapshot)
    facts = decisions = 0
    behind: list[int] = []
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "sickbay-verify"),
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
    )
    with translated(settings):
        try:
            await consumer.start()
            for partition in range(store.partitions):
                comparison = _Comparison(store, partition)
                behind.append(await _compare(settings, consumer, snapshot, comparison))
                facts += comparison.facts
                decisions += comparison.decisions
        finally:
            await consumer.stop()
    return Live(facts, decisions, store.partitions, sum(behind), sum(count > 0 for count in behind))


def _snapshot(store: Store) -> _Snapshot:
    with store.reading() as connection:
        return _Snapshot(load_sources(connection), load_positions(connection))


async def _require_identities(settings: KafkaSettings, store: Store, snapshot: _Snapshot) -> None:
    """Raise VerifyError unless the topics are those that the positions belong to."""
    topics = settings.topics
    names: dict[Role, str] = {"facts": topics.facts, "decisions": topics.decisions, "parked": topics.parked}
    identities = {role: await topic_identity(settings, name) for role, name in names.items()}
    pinned = {source.topic: identity for source, (identity, _) in snapshot.sources.items()}
    for role, identity in identities.items():
        if pinned.get(role, identity) != identity:
            raise VerifyError(
                f"{store.place} follows the topic {pinned[role]}, and {names[role]} is {identity} now: it was made again, or this"
                " is another cluster"
            )
    if store.source_id != kafka_source_id(identities["facts"]):
        raise VerifyError(
            f"{store.place} follows {store.source_id!r}, and {topics.facts} is {identities['facts']} now: it was made again, or"
            " this is another cluster"
        )


class _Comparison:
    """The stored log of one partition, walked beside the merged one. Blocks."""

    def __init__(self, store: Store, partition: int) -> None:
        self.partition: Final = partition
        self.facts = 0
        self.decisions = 0
        self._store: Final = store
        self._rows: Final = store.read(partition)
        self._next: LogRecord | None = None
        self._begun = False

    def take(self, records: Sequence[LogRecord]) -> None:
        """Compare the next records. Raises VerifyError."""
        without_row: list[LogRecord] = []
        for record in records:
            stored = self._peek()
            if stored is None or stored.offset > record.offset:
                without_row.append(record)
                continue
            if stored.data != record.data:
                raise VerifyError(
                    f"{self._place(record)} holds {stored.envelope.kind} {stored.envelope.event_id}, and the topics lead to other"
                    f" bytes there: {record.envelope.kind} {record.envelope.event_id}"
                )
            self._next = next(self._rows, None)
            if record.envelope.causation_id:
                self.decisions += 1
            else:
                self.facts += 1
        self._require_repeats(without_row)

    def finish(self, next_log_offset: int, position: Position | None) -> None:
        """Compare where both end; what stands behind was written since the snapshot. Raises VerifyError."""
        end = position.next_offset if position is not None else 0
        if next_log_offset != end:
            raise VerifyError(
                f"partition {self.partition}: the topics lead to {next_log_offset} events, and the log was written up to {end}"
            )

    def _peek(self) -> LogRecord | None:
        if not self._begun:
            self._begun, self._next = True, next(self._rows, None)
        return self._next

    def _require_repeats(self, records: Sequence[LogRecord]) -> None:
        """Raise VerifyError unless each of these events has its row at an earlier offset: sent twice, it is kept once."""
        if not records:
            return
        with self._store.reading() as connection:
            ids = {record.envelope.event_id for record in records}
            known = known_events(connection, event_log, self.partition, ids)
        for record in records:
            offset, _ = known.get(record.envelope.event_id, (record.offset, 0))
            if offset >= record.offset:
                raise VerifyError(
                    f"{self._place(record)} has no event, and the topics lead to {record.envelope.kind}"
                    f" {record.envelope.event_id} there: it was lost"
                )

    def _place(self, record: LogRecord) -> str:
        return f"partition {self.partition} offset {record.offset}"


async def _compare(
    settings: KafkaSettings, consumer: AIOKafkaConsumer, snapshot: _Snapshot, comparison: _Comparison
) -> int:
    """Compare one partition; return how many records of facts the store does not have yet."""
    partition, topics = comparison.partition, settings.topics
    facts, decisions = (TopicPartition(topic, partition) for topic in (topics.facts, topics.decisions))
    facts_end = snapshot.offset("facts", partition)
    consumer.assign([facts, decisions])
    await require_readable(
        consumer, {facts: (0, facts_end), decisions: (0, snapshot.offset("decisions", partition))}
    )
    ends = await consumer.end_offsets([facts, decisions])
    answers_end = ends[decisions]
    consumer.seek(facts, 0)
    consumer.seek(decisions, 0)
    merger = Merger(partition, facts=topics.facts, decisions=topics.decisions)
    loop = asyncio.get_running_loop()
    heard = loop.time()
    while merger.position.next_facts_offset < facts_end:
        wanted = []
        if merger.next_facts_fetch < facts_end and merger.wants_facts:
            wanted.append(facts)
        if merger.next_answers_fetch < answers_end and merger.wants_answers:
            wanted.append(decisions)
        fetched: dict[TopicPartition, list[Any]] = {}
        if wanted:
            fetched = await consumer.getmany(*wanted, timeout_ms=_POLL_MS)
        elif not merger.ready:
            raise VerifyError(
                f"{decisions.topic}/{partition} has no answer to offset {merger.position.next_facts_offset} of {facts.topic}, which"
                " the store holds"
            )
        for tp, records in fetched.items():
            heard = loop.time()
            for record in records:
                if tp == decisions:
                    merger.answer(record.offset, record.value, record.headers)
                elif record.offset < facts_end:
                    merger.fact(record.offset, record.value, record.headers)
        while merger.ready:
            merged = merger.take(_EVENTS_MAX, _BYTES_MAX)
            await asyncio.to_thread(comparison.take, merged.records)
        if loop.time() - heard > _PATIENCE_S:
            raise ServiceError(f"Kafka at {settings.bootstrap} hands out nothing of partition {partition}")
    await asyncio.to_thread(comparison.finish, merger.position.next_log_offset, snapshot.log.get(partition))
    return int(ends[facts]) - facts_end
