"""The Faust app of ``sickbay work``: at least once, one agent, one table.

Never ``exactly_once``: faust-streaming 0.15 commits offsets while changelog records still wait in its buffer, so a worker that is
killed loses table state, and a rebalance ends it (reference stack, 3). What is exact here is exact because answers are functions of
the log: see ``streams.worker`` for what is put around Faust and why, and ``streams.agents`` for what must never be raised.

Faust names the table's changelog itself; ``sickbay.topics`` declares it under that name, compacted only, and no topic is made here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import faust
from aiokafka.errors import KafkaError
from faust.types import TP

from sickbay.cloudevents import READ_BYTES_MAX, Message
from sickbay.errors import ServiceError, SickbayError
from sickbay.settings import KafkaSettings
from streams.agents import facts_agent
from streams.faust_parts import IdempotentProducer, bounded_consumer, sure_assignor
from streams.outlet import Figures
from streams.worker import PROGRESS_EVERY_MS, SNAPSHOT_EVERY_MS, Worker

log: Final = logging.getLogger(__name__)

#: How long a start may take without the table moving on: a recovery that waits for a record that compaction took away never ends
#: by itself (faust-streaming #176, #597, #651).
RECOVERY_TIMEOUT_S: Final = 300.0
#: How long a stop may take: snapshots of all partitions, a commit, leaving the group.
STOP_TIMEOUT_S: Final = 45.0
#: How long a partition that has more may stand still before it is read again.
STALLED_S: Final = 15.0
#: How long the broker may take to say where partitions end; it is asked again.
ENDS_TIMEOUT_S: Final = 5.0
#: A dead worker's partitions wait this long; Faust's own default is a minute.
SESSION_TIMEOUT_S: Final = 10.0
#: New objects between two looks for cycles, which the fold makes none of.
_GC_YOUNG: Final = 50_000


def credentials(arguments: Mapping[str, Any]) -> Any:
    """Return Faust's credentials for the arguments of an aiokafka client (``sickbay.kafka``), ``None`` for plain text."""
    if arguments["security_protocol"] == "PLAINTEXT":
        return None
    if arguments["security_protocol"] == "SSL":
        return faust.SSLCredentials(arguments["ssl_context"])
    return faust.SASLCredentials(
        username=arguments["sasl_plain_username"],
        password=arguments["sasl_plain_password"],
        mechanism=arguments["sasl_mechanism"],
        ssl_context=arguments["ssl_context"],
    )


class Stalls:
    """Which partitions have more and did not move for long: what Faust lost of them, no later record would show while none comes."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def found(self, spans: Mapping[int, tuple[int, int]], now_s: float) -> dict[int, int]:
        """Return partition to the position from which it is to be read again; ``spans`` are those of ``LiveWorker.spans``."""
        before, self._seen = self._seen, {}
        stalled = {}
        for partition, (position, end) in spans.items():
            if end <= position:
                continue
            known, since_s = before.get(partition, (-1, now_s))
            if known != position:
                since_s = now_s
            elif now_s - since_s >= STALLED_S:
                stalled[partition], since_s = position, now_s
            self._seen[partition] = position, since_s
        return stalled


class FaustOutlet:
    """What ``streams.worker`` needs, by Faust's producer and table."""

    def __init__(self, app: faust.App, table: Any, facts: str) -> None:
        self._app = app
        self._table = table
        self._facts = facts

    async def send(self, topic: str, partition: int, message: Message) -> Awaitable[object]:
        sent: Awaitable[object] = await self._app.producer.send(
            topic,
            key=message.key,
            value=message.value,
            partition=partition,
            timestamp=None,
            headers=message.headers,
        )
        return sent

    def put_state(self, partition: int, key: str, value: bytes | None) -> Awaitable[object]:
        name = key.encode()
        sent: Awaitable[object] = self._table.send_changelog(
            partition, name, value, key_serializer="raw", value_serializer="raw"
        )
        if value is None:
            self._table.data.pop(name, None)
        else:
            self._table.data[name] = value
        return sent

    def state(self, partition: int) -> Mapping[str, bytes]:
        prefix = b"%d/" % partition
        return {
            key.decode(): value
            for key, value in list(self._table.data.items())
            if key.startswith(prefix) and value
        }

    def end(self, partition: int) -> int | None:
        tp = TP(self._facts, partition)
        if tp not in self._app.consumer.assignment():
            return None
        end: int | None = self._app.consumer.highwater(tp)
        return end

    async def rewind(self, partition: int, offset: int) -> None:
        # seek_wait goes through the consumer's own thread; seek would change its tables under it
        await self._app.consumer.seek_wait({TP(self._facts, partition): offset})

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class LiveWorker:
    """One worker process: a Faust app and what it folds.

    ``source`` is the identity of the facts topic (``sickbay.kafka.topic_identity``). ``security`` is what Faust calls
    credentials, ``None`` for plain text. ``store`` is ``memory://`` or ``rocksdb://``.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        figures: Figures,
        *,
        source: str = "",
        security: Any = None,
        store: str = "memory://",
        data_dir: Path | None = None,
        snapshot_every_ms: int = SNAPSHOT_EVERY_MS,
    ) -> None:
        topics = settings.topics
        self.app = faust.App(
            topics.work_id,
            broker=[f"kafka://{host}" for host in settings.bootstrap.split(",")],
            broker_credentials=security,
            store=store,
            datadir=data_dir,
            autodiscover=False,
            PartitionAssignor=sure_assignor((topics.facts, topics.state), settings.partitions),
            web_enabled=False,
            cython_optimizations=True,
            topic_allow_declare=False,
            topic_disable_leader=True,
            topic_partitions=settings.partitions,
            processing_guarantee="at_least_once",
            consumer_auto_offset_reset="earliest",
            # one fetch covers idle partitions too, and a small one stalls the busy ones
            consumer_max_fetch_size=16 * 1024 * 1024,
            broker_session_timeout=SESSION_TIMEOUT_S,
            broker_heartbeat_interval=1.0,
            broker_rebalance_timeout=30.0,
            broker_commit_interval=1.0,
            producer_acks=-1,
            producer_max_request_size=READ_BYTES_MAX,
            producer_linger=0.002,
            table_standby_replicas=1,
            stream_wait_empty=False,
        )
        self._on_disk = not store.startswith("memory:")
        table = self.app.Table(
            "state",
            partitions=settings.partitions,
            key_type=bytes,
            value_type=bytes,
            default=bytes,
            options={"driver": "rocksdict"} if self._on_disk else None,
        )
        self._outlet = FaustOutlet(self.app, table, topics.facts)
        self.worker = Worker(
            self._outlet,
            topics,
            settings.partitions,
            figures,
            source=source,
            snapshot_every_ms=snapshot_every_ms,
        )
        cast("Any", self.app.transport).Producer = IdempotentProducer
        cast("Any", self.app.transport).Consumer = bounded_consumer(
            topics.facts, topics.state, self.worker.snapshotted
        )
        self._asked: asyncio.Future[Mapping[TP, int | None]] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # raw, and empty too: what Faust cannot decode it acknowledges and drops (faust-streaming, transport/conductor.py)
        facts = self.app.topic(topics.facts, key_serializer="raw", value_serializer="raw", allow_empty=True)
        self.app.agent(facts, name="facts", concurrency=1)(facts_agent(self.worker, self._fail))
        cast("Any", self.app.on_partitions_revoked).connect(self._revoked)
        self._topics = topics

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _revoked(self, _app: Any, revoked: set[TP], **_: Any) -> None:
        self.worker.forget([tp.partition for tp in revoked if tp.topic == self._topics.facts])

    @property
    def is_ready(self) -> bool:
        """Whether the table is recovered and records are taken."""
        return bool(self._recovery.completed.is_set()) and not self.app.rebalancing

    def trace(self) -> None:
        """Let Faust's own integration continue the traces that records carry; a tracer provider must be set before."""
        from faust.contrib.opentelemetry import setup_opentelemetry

        setup_opentelemetry(self.app)

    async def spans(self) -> dict[int, tuple[int, int]]:
        """Return partition to the offset of its next facts record and the end of its topic; empty while the broker does not answer.

        The end is asked for by itself: a consumer that is stuck goes on naming the one that its last fetch brought (aiokafka #1154).
        A partition of which nothing came since it was given has its next record where the group says.
        """
        consumer = cast("Any", self.app.consumer)
        assigned = [tp for tp in consumer.assignment() if tp.topic == self._topics.facts]
        if not assigned:
            return {}
        # a question that waits is never cancelled: the thread of the consumer would answer nobody
        asked = self._asked or asyncio.ensure_future(consumer.highwaters(*assigned))
        self._asked = asked
        done, _ = await asyncio.wait({asked}, timeout=ENDS_TIMEOUT_S)
        if not done:
            return {}
        self._asked = None
        if asked.cancelled() or asked.exception() is not None:
            return {}
        positions, still = self.worker.positions, consumer.assignment()
        found = {}
        for tp, end in asked.result().items():
            if end is not None and tp in still:
                begins = positions.get(tp.partition)
                found[tp.partition] = (consumer.begins(tp) if begins is None else begins, end)
        return found

    @property
    def _recovery(self) -> Any:
        return cast("Any", self.app.tables).recovery

    async def run(self, stop: Callable[[], Awaitable[object]]) -> None:
        """Work until ``stop()`` returns; raises ServiceError when it cannot go on.

        A stop writes a snapshot of every partition and commits, so the next start has nothing to fold again.
        """
        # a start waits for its recovery, which may stand still as any other
        tasks: list[asyncio.Future[Any]] = [asyncio.create_task(self._unstuck())]
        try:
            try:
                async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                    await self.app.start()
            except Exception as error:
                raise ServiceError(f"the worker cannot start: {error!r}; is Kafka up?") from error
            # the states are millions of objects that live on: looking through all of them again and again stops the heartbeats
            gc.set_threshold(_GC_YOUNG, 50, 1_000)
            tasks += [
                asyncio.ensure_future(stop()),
                asyncio.create_task(self._crashed()),
                asyncio.create_task(self._progress()),
                asyncio.create_task(self._recovered()),
            ]
            await asyncio.wait([*tasks, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for done in (*tasks, self._failed):
                if done.done():
                    done.result()
            await self._settle()
        except SickbayError:
            raise
        except Exception as error:
            raise ServiceError(
                f"the worker cannot go on: {error!r}; nothing is lost, start it again"
            ) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self.app.stop()

    async def _settle(self) -> None:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            if not self._on_disk:  # a table on disk is written only while a record is taken
                await self.worker.snapshot()
            await self.app.consumer.commit()

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_MS / 1000)
            await self.worker.tell_progress()

    async def _unstuck(self) -> None:
        """Read partitions again that have more and stand still, of facts and, in a recovery, of state."""
        stalls, recoveries = Stalls(), Stalls()
        while True:
            await asyncio.sleep(STALLED_S / 5)
            for partition, offset in recoveries.found(self._unrecovered(), time.monotonic()).items():
                log.warning("the state of partition %d stands still at %d and has more", partition, offset)
                with suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(STALLED_S):
                        tp = TP(self._topics.state, partition)
                        await self.app.consumer.seek_wait({tp: max(offset, 0)})
            stalled = stalls.found(await self.spans(), time.monotonic()) if self.is_ready else {}
            for partition, position in stalled.items():
                log.warning("partition %d stands still at %d and has more", partition, position)
                with suppress(KafkaError):  # the group may have taken it back
                    await self._outlet.rewind(partition, position)

    def _unrecovered(self) -> dict[int, tuple[int, int]]:
        """Return partition to the offset that its recovery is at and the one that it goes to; nothing once records are taken.

        What Faust fetched before it let the flow go on it drops, after the seek that a recovery begins with; then it waits for
        what it had.
        """
        if self.is_ready:
            return {}
        recovery = self._recovery
        found = {}
        for tp in recovery.active_tps:
            offset, end = recovery.active_offsets.get(tp), recovery.active_highwaters.get(tp)
            if end is not None:
                found[tp.partition] = (-1 if offset is None else offset, end)
        return found

    async def _crashed(self) -> None:
        """Raise what Faust itself died of."""
        await self.app.wait_until_stopped()
        raise ServiceError(
            f"Faust stopped: {self.app.crash_reason!r}; nothing is lost, start the worker again"
        )

    async def _recovered(self) -> None:
        """Watch recoveries: raise when one does not move for too long."""
        last, since = None, time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            recovery = self._recovery
            now = (self.is_ready, sum(offset or 0 for offset in recovery.active_offsets.values()))
            if self.is_ready or now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > RECOVERY_TIMEOUT_S:
                raise ServiceError(
                    f"the state in {self._topics.state} was not recovered within {RECOVERY_TIMEOUT_S:.0f} s:"
                    f" {recovery.active_stats()}; look at the broker, then start again or with `sickbay work --rebuild`"
                )
