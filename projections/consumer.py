"""The projector: facts and decisions out of Kafka, merged, into the store; the place where it reads on stands in the store.

A consumer group says who projects which partitions and nothing else: where to read is asked of the store, at every assignment,
and the store refuses whoever was replaced meanwhile (S4). What is committed to Kafka is for tools that show lag (S2, T6). Nothing
is ever skipped: a hole before the position, or a topic that ends before it, stops the projector (T1, T12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from projections.engine import Store, Written
from projections.holding import Batch, Holding
from projections.log import Position
from projections.merging import Limits
from projections.places import Place, place_of
from projections.sources import Role, Source, kafka_source_id
from projections.topic_reading import require_readable
from sickbay.clock import Clock, SystemClock
from sickbay.errors import FencedError, ServiceError, UnavailableError
from sickbay.kafka import client_arguments, topic_identity, translated
from sickbay.operations.failpoints import reach
from sickbay.settings import KafkaSettings

Result = TypeVar("Result")

#: How long one wait for records takes at most, and so how soon a stop is heard.
_POLL_MS: Final = 200
#: A fetch that covers quiet partitions holds up the next one for as long (reference stack, "fetch stall").
_FETCH_WAIT_MS: Final = 100
_COMMIT_EVERY_MS: Final = 2_000
_COMMIT_TIMEOUT_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 15.0
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 5_000
#: How often in a row it may be fenced: more often, and another one writes all the time that claims the same partitions.
_FENCED_MAX: Final = 5

_log: Final = logging.getLogger(__name__)


class Tuning(NamedTuple):
    """What a projector may take and for how long it may wait."""

    #: Events and bytes of one transaction, after which it takes no further facts record.
    events_max: int = 2_000
    bytes_max: int = 8 * 1024 * 1024
    #: How long the first event of a transaction may wait for others.
    linger_ms: int = 10
    #: How long the database, or Kafka at the start, may be away before the projector gives up.
    outage_ms: int = 60_000
    #: How long the group waits for a sign of life.
    session_ms: int = 10_000
    limits: Limits = Limits()


@dataclass
class Counters:
    """What a projector has done and how far it is behind, for metrics."""

    #: Events, transactions and dead letters that were written.
    events: int = 0
    batches: int = 0
    letters: int = 0
    #: Events that were in the log already under another offset.
    repeats: int = 0
    #: Times that another projector had taken over, and that the database was away.
    fenced: int = 0
    outages: int = 0
    #: Partition -> facts records that are not in the log yet.
    lag_offsets: dict[int, int] = field(default_factory=dict)
    #: Partition -> age of the newest event in the log, while there are others; else 0.
    lag_ms: dict[int, int] = field(default_factory=dict)
    #: Wall clock of the last transaction.
    last_write_ms: int | None = None
    #: Whether the partitions are known and the database takes what is written.
    ready: bool = False


class _Moves(ConsumerRebalanceListener):  # type: ignore[misc] # the client ships no types
    """What the group says, handed on."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:  # noqa: ARG002 - all are, always
        await self._projector.let_go()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._projector.given(assigned)


class Projector:
    """One member of the projectors' group. ``run`` it until it is stopped, or until an error says why it cannot go on."""

    def __init__(
        self,
        settings: KafkaSettings,
        place: Place | str,
        *,
        group_instance_id: str = "",
        tuning: Tuning = Tuning(),  # noqa: B008 - a tuple of numbers
        clock: Clock | None = None,
    ) -> None:
        """``group_instance_id`` keeps the partitions over a restart that is shorter than the session (KIP-345)."""
        self.counters: Final = Counters()
        self._settings: Final = settings
        self._topics: Final = settings.topics
        self._roles: Final[dict[str, Role]] = {
            self._topics.facts: "facts",
            self._topics.decisions: "decisions",
            self._topics.parked: "parked",
        }
        self._place: Final = place_of(place)
        self._group_instance_id: Final = group_instance_id
        self._tuning: Final = tuning
        self._clock: Final[Clock] = clock or SystemClock()
        self._stopping = False
        self._polling: asyncio.Task[None] | None = None
        #: What the group gave; ``_claim`` counts up whenever that changes.
        self._assigned: set[TopicPartition] | None = None
        self._claim = 0
        #: Held while a transaction is written: until then the partitions are not given back.
        self._writing: Final = asyncio.Lock()
        self._holding: Holding | None = None
        self._due_since: float | None = None
        self._fenced_in_a_row = 0
        self._committed_at = 0.0

    # --- from outside ---

    def stop(self) -> None:
        """Ask it to finish the transaction under way and leave; call it in the event loop."""
        self._stopping = True
        if self._polling is not None:
            self._polling.cancel()

    async def run(self) -> None:
        """Project until ``stop``.

        Raises ServiceError when Kafka cannot be reached or holds not what it must, StoreError when the database cannot be used,
        UnavailableError when it stays away, FencedError when another projector claims the same partitions all the time, and
        CodecError for an event that this build cannot read. What was not written is read again by the next run.
        """
        store = await self._patiently(self._open)
        if store is None:
            return
        try:
            await self._consume(store)
        finally:
            self.counters.ready = False
            await asyncio.to_thread(store.close)

    async def _open(self) -> Store:
        identity = await topic_identity(self._settings, self._topics.facts)
        return await asyncio.to_thread(
            Store.open,
            self._place,
            create=True,
            partitions=self._settings.partitions,
            source_id=kafka_source_id(identity),
        )

    async def _patiently(self, call: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return what the call gives, tried again for as long as an outage may take; ``None`` when a stop came first."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._tuning.outage_ms / 1000
        pause_ms = _PAUSE_MS
        while not self._stopping:
            try:
                return await call()
            except (UnavailableError, ServiceError) as error:
                self.counters.ready = False
                self.counters.outages += 1
                if loop.time() >= end:
                    raise
                _log.warning("waiting: %s", error)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
        return None

    async def _consume(self, store: Store) -> None:
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings, "sickbay-project"),
            group_id=self._topics.project_group,
            group_instance_id=self._group_instance_id or None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=self._tuning.session_ms,
            heartbeat_interval_ms=self._tuning.session_ms // 5,
            rebalance_timeout_ms=max(self._tuning.session_ms, 30_000),
            max_poll_interval_ms=max(2 * self._tuning.outage_ms, 300_000),
            fetch_max_wait_ms=_FETCH_WAIT_MS,
        )
        consumer.subscribe(list(self._roles), listener=_Moves(self))
        with translated(self._settings):
            try:
                await consumer.start()
                while not self._stopping:
                    if self._holding is None:
                        await self._take_over(store, consumer)
                    else:
                        await self._turn(store, consumer, self._holding)
            finally:
                await self._commit(consumer)
                with suppress(KafkaError, TimeoutError):
                    await asyncio.wait_for(consumer.stop(), _STOP_TIMEOUT_S)

    # --- what the group says ---

    async def let_go(self) -> None:
        """Give up the partitions, after the transaction that is under way."""
        self._claim += 1
        self._assigned = None
        async with self._writing:
            self._forget()

    def given(self, assigned: Iterable[TopicPartition]) -> None:
        """Note which partitions the group gave; the loop takes them over."""
        self._claim += 1
        self._assigned = set(assigned)
        self._forget()

    def _forget(self) -> None:
        self._holding = None
        self._due_since = None
        self.counters.lag_offsets.clear()
        self.counters.lag_ms.clear()

    async def _take_over(self, store: Store, consumer: AIOKafkaConsumer) -> None:
        """Ask the store where to read the partitions that the group gave, and go there."""
        self.counters.ready = False
        claim, assigned = self._claim, self._assigned
        if assigned is None:
            await asyncio.sleep(_PAUSE_MS / 1000)
            return
        sources = {Source(self._roles[tp.topic], tp.partition): tp for tp in assigned}
        facts, decisions = (
            sorted(source.partition for source in sources if source.topic == role)
            for role in ("facts", "decisions")
        )
        if facts != decisions:
            raise ServiceError(
                f"the group gave facts of the partitions {facts} and decisions of {decisions}: {self._topics.facts} and"
                f" {self._topics.decisions} must have the same partitions; see `sickbay topics check`"
            )

        async def positions() -> tuple[dict[Source, int], dict[int, Position]]:
            identities = {
                role: await topic_identity(self._settings, topic) for topic, role in self._roles.items()
            }
            offsets = await asyncio.to_thread(store.follow, identities, sources)
            return offsets, await asyncio.to_thread(store.positions)

        found = await self._patiently(positions)
        if found is None:
            return
        offsets, log = found
        await require_readable(consumer, {tp: offsets[source] for source, tp in sources.items()})
        if self._claim != claim:
            return
        for source, tp in sources.items():
            consumer.seek(tp, offsets[source])
        self._holding = Holding(self._topics, offsets, log, self._tuning.limits)
        self.counters.ready = True
        reach("projector.taken_over")
        _log.info("projecting the partitions %s", facts)

    # --- one turn ---

    async def _turn(self, store: Store, consumer: AIOKafkaConsumer, holding: Holding) -> None:
        """Fetch what there is and write what is due."""
        loop = asyncio.get_running_loop()
        wait_ms = _POLL_MS
        if self._due_since is not None:
            wait_ms = max(0, self._tuning.linger_ms - int((loop.time() - self._due_since) * 1000))
        fetched = await self._fetched(consumer, holding, wait_ms)
        if self._holding is not holding:
            return
        for tp, records in fetched.items():
            holding.feed(tp, records)
        self._measure(consumer, holding)
        if self._due_since is None and holding.is_due:
            self._due_since = loop.time()
        if self._due_since is not None and (
            loop.time() - self._due_since >= self._tuning.linger_ms / 1000
            or holding.fed >= self._tuning.events_max
        ):
            await self._write(store, holding)
        if loop.time() - self._committed_at > _COMMIT_EVERY_MS / 1000:
            self._committed_at = loop.time()
            await self._commit(consumer)

    async def _fetched(
        self, consumer: AIOKafkaConsumer, holding: Holding, wait_ms: int
    ) -> dict[TopicPartition, list[Any]]:
        wanted = holding.wanted()
        if holding.partitions and not wanted:
            return {}
        self._polling = asyncio.current_task()
        try:
            # awaited as it is, not as a task: between what it hands out and the merge nothing else may run, or records of an
            # old claim could be merged under a new one
            found: dict[TopicPartition, list[Any]] = await consumer.getmany(*wanted, timeout_ms=wait_ms)
        except asyncio.CancelledError:
            # `stop` ends a wait for the group; whoever else cancels means it
            if not self._stopping or self._polling is None:
                raise
            self._polling.uncancel()
            return {}
        except OffsetOutOfRangeError as error:
            raise ServiceError(
                f"Kafka has no records any more, or not yet, where the store reads on: {error}; restore the topic, or project"
                " what is left into a new database"
            ) from error
        finally:
            self._polling = None
        return found

    def _measure(self, consumer: AIOKafkaConsumer, holding: Holding) -> None:
        now_ms = self._clock.now_ms()
        for number, position in holding.written().items():
            end = consumer.highwater(TopicPartition(self._topics.facts, number))
            lag = max(0, (end or 0) - position.next_facts_offset)
            newest_ms = holding.newest_ms(number)
            self.counters.lag_offsets[number] = lag
            self.counters.lag_ms[number] = max(0, now_ms - newest_ms) if lag and newest_ms else 0

    # --- writing ---

    async def _write(self, store: Store, holding: Holding) -> None:
        """Write one transaction, unless the partitions were given back meanwhile."""
        async with self._writing:
            if self._holding is not holding:
                return
            batch = holding.batch(self._tuning.events_max, self._tuning.bytes_max)
            reach("projector.merged")
            written = await self._write_patiently(store, batch)
            if written is None:
                self._forget()
                return
            reach("projector.written")
            holding.landed(batch)
            self.counters.events += written.rows
            self.counters.repeats += written.repeats
            self.counters.letters += len(batch.letters)
            self.counters.batches += 1
            self.counters.last_write_ms = self._clock.now_ms()
            if not holding.is_due:
                self._due_since = None

    async def _write_patiently(self, store: Store, batch: Batch) -> Written | None:
        """Write, through an outage if there is one; return ``None`` when the batch is not this projector's to write any more."""
        loop = asyncio.get_running_loop()
        claim = self._claim
        end = loop.time() + self._tuning.outage_ms / 1000
        pause_ms = _PAUSE_MS
        while True:
            try:
                written = await asyncio.to_thread(
                    store.write, batch.records, park=batch.letters, follows=batch.follows
                )
            except FencedError as error:
                self.counters.fenced += 1
                self._fenced_in_a_row += 1
                if self._fenced_in_a_row > _FENCED_MAX:
                    raise
                _log.warning("%s; asking again where to read", error)
                # most likely the group has given them to another one, and will say so soon
                await asyncio.sleep(_PAUSE_MS * self._fenced_in_a_row / 1000)
                return None
            except UnavailableError as error:
                self.counters.ready = False
                self.counters.outages += 1
                if self._stopping or self._claim != claim:
                    return None
                if loop.time() >= end:
                    raise
                _log.warning("waiting for the database: %s", error)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
            else:
                self.counters.ready = True
                self._fenced_in_a_row = 0
                return written

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        """Tell Kafka where the store stands, for tools that show lag: nothing here ever asks for it, so it may fail."""
        offsets = self._holding.committable() if self._holding is not None else {}
        if offsets:
            with suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(consumer.commit(offsets), _COMMIT_TIMEOUT_S)
            reach("projector.committed")
