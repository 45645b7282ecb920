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
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from projections.engine import Store, Written
from projections.holding import Batch, Holding
from projections.log import Position
from projections.places import Place, place_of
from projections.sources import Role, Source, kafka_source_id
from projections.topic_reading import require_readable
from projections.tuning import Counters, Tuning
from sickbay.clock import Clock, SystemClock
from sickbay.errors import FencedError, ServiceError, SickbayError, UnavailableError
from sickbay.kafka import client_arguments, topic_identity, translated
from sickbay.operations.failpoints import reach
from sickbay.operations.health import Progress, Told
from sickbay.operations.metrics import new_registry
from sickbay.operations.stage_metrics import ProjectMetrics
from sickbay.operations.topics import check_topics
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
        metrics: ProjectMetrics | None = None,
    ) -> None:
        """``group_instance_id`` keeps the partitions over a restart that is shorter than the session (KIP-345)."""
        self.counters: Final = Counters()
        #: Whether the partitions are known and the store takes what is written, and whether what is due is written.
        self.ready: Final = Told("projector")
        self.progress: Final = Progress("projector")
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
        self._metrics: Final = metrics or ProjectMetrics(new_registry("project"), self._clock)
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
        #: Partition -> when Kafka last told of its end.
        self._said_ms: dict[int, int] = {}

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
            self.ready.failed("it has ended")
            await asyncio.to_thread(store.close)

    async def _open(self) -> Store:
        await check_topics(self._settings)
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
                self._outage(error)
                if loop.time() >= end:
                    raise
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
        return None

    def _outage(self, error: SickbayError) -> None:
        self.counters.outages += 1
        self.ready.failed(str(error))
        self.progress.failed()
        _log.warning("waiting: %s", error)

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

    def _forget(self) -> None:
        self._holding = None
        self._due_since = None
        self._metrics.positions.assigned({})
        self.ready.failed("it waits for its partitions")

    async def _take_over(self, store: Store, consumer: AIOKafkaConsumer) -> None:
        """Ask the store where to read the partitions that the group gave, and go there."""
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
        await require_readable(
            consumer, {tp: (offsets[source], offsets[source]) for source, tp in sources.items()}
        )
        if self._claim != claim:
            return
        for source, tp in sources.items():
            consumer.seek(tp, offsets[source])
        self._holding = Holding(self._topics, offsets, log, self._tuning.limits)
        self._metrics.positions.assigned(
            {number: position.next_facts_offset for number, position in self._holding.written().items()}
        )
        self.ready.ready()
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
        """Note what Kafka said of the ends of the facts; what it said before is no news."""
        if holding.is_due:
            self.progress.waits()
        for number in holding.partitions:
            tp = TopicPartition(self._topics.facts, number)
            said_ms = consumer.last_poll_timestamp(tp)
            if said_ms and said_ms != self._said_ms.get(number):
                self._said_ms[number] = said_ms
                self._metrics.positions.saw_end(number, consumer.highwater(tp))

    # --- writing ---

    async def _write(self, store: Store, holding: Holding) -> None:
        """Write one transaction, unless the partitions were given back meanwhile."""
        async with self._writing:
            if self._holding is not holding:
                return
            batch = holding.batch(self._tuning.events_max, self._tuning.bytes_max)
            reach("projector.merged")
            began = asyncio.get_running_loop().time()
            written = await self._write_patiently(store, batch)
            if written is None:
                self._forget()
                return
            reach("projector.written")
            holding.landed(batch)
            self._count(holding, batch, written, asyncio.get_running_loop().time() - began)
            if not holding.is_due:
                self._due_since = None

    def _count(self, holding: Holding, batch: Batch, written: Written, seconds: float) -> None:
        counters = self.counters
        counters.events += written.rows
        counters.repeats += written.repeats
        counters.letters += len(batch.letters)
        counters.batches += 1
        counters.last_write_ms = self._clock.now_ms()
        self.ready.ready()
        self.progress.moved()
        self._metrics.wrote(written.rows, seconds)
        for number, position in holding.written().items():
            self._metrics.positions.moved(number, position.next_facts_offset, holding.newest_ms(number))

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
                self._outage(error)
                if self._stopping or self._claim != claim:
                    return None
                if loop.time() >= end:
                    raise
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
            else:
                self._fenced_in_a_row = 0
                return written

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        """Tell Kafka where the store stands, for tools that show lag: nothing here ever asks for it, so it may fail."""
        offsets = self._holding.committable() if self._holding is not None else {}
        if offsets:
            with suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(consumer.commit(offsets), _COMMIT_TIMEOUT_S)
            reach("projector.committed")
