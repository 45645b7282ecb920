"""The fact log on Kafka: a bounded queue, one task that sends what waits in rounds, and the topic of known facts behind it.

A round is sent whole and acknowledged whole before the next begins, so rounds keep order, and the busier it is the more facts
share a record. The known records of a round go with the next one: they may lag, and say so themselves (``ingest.remembering``).
It must not decide what is a fact, and counts nothing as kept that no broker acknowledged (faults, I3).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ingest.kafka_delivery import Delivery, Outgoing
from ingest.kafka_recall import read_facts, recall_partitions
from ingest.known_writer import KnownWriter
from ingest.packing import SINGLE_FACTS_MAX, Packed, Refused, pack
from ingest.ports import Memory
from sickbay.cloudevents import INGEST_EPOCH
from sickbay.codec import decode_envelope, open_envelope
from sickbay.deadletters import DeadLetter, letter_message
from sickbay.errors import CodecError, ServiceError
from sickbay.facts import FACTS, Fact
from sickbay.operations.failpoints import reach
from sickbay.settings import KafkaSettings

QUEUE_FACTS: Final = 20_000
#: Facts of one round: it bounds what is in flight.
ROUND_FACTS: Final = 2_000
#: So many facts in one window make the sending wait a little before each round, so that batches fill: some 500 a second.
BUSY_FACTS: Final = 125
BUSY_WINDOW_S: Final = 0.25
LINGER_S: Final = 0.02
#: Known records that are written together when a leader begins.
_REPAIR_RECORDS: Final = 1_000

_FACTS: Final = tuple(FACTS)


class KafkaFactLog:
    """Keeps facts in Kafka: an ``ingest.ports.FactLog``.

    ``start``, ``recall``, ``lead``, and then ``publish`` and ``drain``. ``clock`` gives seconds that only rise; it measures how
    long facts wait.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        queue_facts: int = QUEUE_FACTS,
        single_max: int = SINGLE_FACTS_MAX,
        clock: Callable[[], float] = time.monotonic,
        delivery: Delivery | None = None,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._queue_facts = queue_facts
        self._single_max = single_max
        self._clock = clock
        self._delivery = delivery or Delivery(settings)
        self._queue: deque[tuple[Fact, float]] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._known: KnownWriter | None = None
        self._ingest_epoch = -1
        self._begun = False
        #: A round is on its way.
        self._sending = False
        self._sender: asyncio.Task[None] | None = None
        self._failure: ServiceError | None = None
        #: Facts that another leader wrote after the recall, and that count.
        self._unheard = 0
        #: When the oldest fact in flight was taken.
        self._in_flight_since_s: float | None = None
        #: Facts that ``publish`` took, and those of them that a broker acknowledged.
        self.facts_taken = 0
        self.facts_kept = 0
        #: Facts records, and those of them that are batches.
        self.records = 0
        self.batches = 0
        #: Facts that no record can hold, and letters of the ingester.
        self.parked = 0
        #: Records of the log that could not be read back.
        self.unreadable = 0
        self._refused = 0
        #: When the window began and what was taken until then, and how many facts came in the one before.
        self._window = (clock(), 0)
        self._came = 0

    @property
    def partitions(self) -> int:
        """How many partitions hear what everybody hears."""
        return self._settings.partitions

    @property
    def waiting(self) -> int:
        """Facts taken and not kept yet."""
        return self.facts_taken - self.facts_kept - self._refused

    @property
    def resends(self) -> int:
        """Records that were sent more than once."""
        return self._delivery.resends

    @property
    def oldest_waiting_s(self) -> float:
        """For how long the oldest waiting fact waits, in seconds; 0 when none does."""
        since = self._in_flight_since_s
        if since is None:
            since = self._queue[0][1] if self._queue else None
        return 0.0 if since is None else max(0.0, self._clock() - since)

    async def start(self) -> None:
        """Reach Kafka. Raises ServiceError."""
        await self._delivery.start()
        self._sender = asyncio.create_task(self._run(), name="sickbay-facts")

    async def recall(self) -> Memory:
        """Return what ingesters told: the newest fact of every subject, but for those that ended long ago.

        It is what a fold of the whole topic of facts would leave, whoever was killed when. Facts without an ingest epoch
        (requests that people made) are not an ingester's and not in it. Raises ServiceError.
        """
        await self._until(self._is_idle)
        self._raise_failure()
        self._ingest_epoch = -1
        memories = await recall_partitions(self._settings)
        self._known = KnownWriter(self._topics.known, memories)
        self._begun = False
        self.unreadable += sum(memory.unreadable for memory in memories.values())
        told = [entry.noted.data for memory in memories.values() for entry in memory.entries.values()]
        times = [memory.last_ms for memory in memories.values() if memory.last_ms is not None]
        return Memory(
            facts=_Opened(told, self._count_unreadable),
            ingest_epoch=max(memory.ingest_epoch for memory in memories.values()),
            last_ms=max(times, default=None),
        )

    def _count_unreadable(self) -> None:
        self.unreadable += 1

    def lead(self, ingest_epoch: int) -> None:
        """Write under this epoch from here on. Raises ValueError when it is not above all before it, or nothing was recalled."""
        if self._known is None or self._begun:
            raise ValueError("what was told is recalled before each leadership")
        if ingest_epoch <= self._known.ingest_epoch:
            raise ValueError(
                f"ingest epoch {ingest_epoch} is not above {self._known.ingest_epoch}, which wrote already"
            )
        self._ingest_epoch = ingest_epoch
        self._known.lead(ingest_epoch)
        self._tell()

    async def publish(self, facts: Sequence[Fact]) -> None:
        """Take facts in their order; waits while the queue is full. Raises what ``drain`` raises, ValueError before ``lead``."""
        if self._ingest_epoch < 0:
            raise ValueError("nobody leads yet: facts are written under an ingest epoch")
        self._raise_failure()
        taken = 0
        while taken < len(facts):
            await self._until(lambda: self.waiting < self._queue_facts)
            self._raise_failure()
            some = facts[taken : taken + self._queue_facts - self.waiting]
            self._queue.extend((fact, self._clock()) for fact in some)
            self.facts_taken += len(some)
            taken += len(some)
            self._tell()

    async def drain(self) -> None:
        """Wait until every fact that was taken is acknowledged, or parked as one that no record can hold.

        Raises ServiceError when a broker refuses for good, a delivery takes longer than its limit, or a paused leader wrote
        after the recall: what is known is not what was told then.
        """
        await self._until(lambda: not self.waiting)
        self._raise_failure()

    async def park(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters for good. Raises ServiceError."""
        self._raise_failure()
        await self._delivery.deliver([self._letter(letter) for letter in letters])
        self.parked += len(letters)

    async def close(self) -> None:
        """Let go of everything, once what was taken is kept, its known records are written, or the sending failed."""
        if self._sender is not None:
            await self._until(self._is_idle)
            self._sender.cancel()
            await asyncio.wait([self._sender])
        await self._delivery.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise ServiceError(str(self._failure)) from self._failure

    def _letter(self, letter: DeadLetter) -> Outgoing:
        return Outgoing(self._topics.parked, 0, letter_message(letter))

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready``, or until the sending failed."""
        while self._failure is None and not ready():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _tell(self) -> None:
        """Let everybody who waits look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the sender --------------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        if self._known is None or not self._known.leads:
            return True
        return not self.waiting and not self._sending and self._begun and self._known.is_idle

    async def _run(self) -> None:
        try:
            while True:
                await self._until(lambda: not self._is_idle())
                known = self._known
                assert known is not None
                self._sending = True
                if not self._begun:
                    await self._begin(known)
                if self._is_busy():
                    # a worker pays for records, not for facts: let some come together
                    await asyncio.sleep(LINGER_S)
                await self._round(known)
                self._sending = False
                self._tell()
        except ServiceError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - whoever publishes must hear of it, whatever it is
            self._failure = ServiceError(f"the sending of facts ended: {error!r}; start again, and report it")
            self._failure.__cause__ = error
        finally:
            self._tell()

    def _is_busy(self) -> bool:
        """Whether many facts came in the window before this one."""
        now_s, window_s = self._clock(), BUSY_WINDOW_S
        if now_s - self._window[0] >= window_s:
            self._came = self.facts_taken - self._window[1] if now_s - self._window[0] < 2 * window_s else 0
            self._window = (now_s, self.facts_taken)
        return self._came >= BUSY_FACTS

    async def _begin(self, known: KnownWriter) -> None:
        """Mark the beginning of this leadership in every partition, then write what the topic of known facts lacks."""
        for chunk in known.beginning(_REPAIR_RECORDS):
            known.acknowledged(chunk, *await self._deliver(chunk))
        known.begin()
        self._begun = True

    async def _round(self, known: KnownWriter) -> None:
        """Send the known records of the round before, and what waits."""
        facts: list[Fact] = []
        if self._queue:
            self._in_flight_since_s = self._queue[0][1]
        while self._queue and len(facts) < ROUND_FACTS:
            facts.append(self._queue.popleft()[0])
        headers = [(INGEST_EPOCH, str(self._ingest_epoch).encode())]
        # what waits counts, not what a round takes of it
        single_max = 0 if self._queue or self._came >= BUSY_FACTS else self._single_max
        packed, refused = pack(facts, self.partitions, headers, single_max=single_max)
        behind = known.take()
        records = [Outgoing(self._topics.facts, record.partition, record.message) for record in packed]
        letters = [self._letter(_letter_of(one)) for one in refused]
        reach("publisher.packed")
        offsets, resent = await self._deliver([*behind, *records, *letters])
        reach("publisher.acknowledged")
        known.acknowledged(behind, offsets[: len(behind)], resent)
        known.covers()
        await self._note(known, packed, offsets[len(behind) : len(behind) + len(records)])
        reach("publisher.noted")
        self.records += len(packed)
        self.batches += sum(len(record.events) > 1 for record in packed)
        self._refused += len(refused)
        self.parked += len(refused)
        self.facts_kept += len(facts) - len(refused)
        self._in_flight_since_s = None
        if self._unheard:
            # what differs from them may equal what was recalled, and would never be told
            raise ServiceError(
                f"another ingester wrote {self._unheard} facts to {self._topics.facts} after this one had read it back;"
                " start again, and let one write at a time"
            )

    async def _deliver(self, records: list[Outgoing]) -> tuple[list[int], bool]:
        """Return the offsets, and whether anything was sent more than once."""
        before = self._delivery.resends
        return await self._delivery.deliver(records), self._delivery.resends > before

    async def _note(self, known: KnownWriter, packed: Sequence[Packed], offsets: Sequence[int]) -> None:
        """Give the acknowledged facts to the topic of known facts, after what others wrote between recall and the first."""
        for partition, begin, end in known.unread(packed, offsets):
            for record in await read_facts(self._settings, partition, begin, end):
                self._unheard += known.foreign(partition, record.offset, record.value, record.headers)
        known.told(packed, offsets)


class _Opened:
    """Facts that are opened one by one; what this build cannot read is passed over and counted."""

    def __init__(self, told: list[bytes], unreadable: Callable[[], None]) -> None:
        self._told = told
        self._unreadable = unreadable

    def __iter__(self) -> Iterator[Fact]:
        for data in self._told:
            try:
                event: Any = open_envelope(decode_envelope(data))
            except CodecError:
                self._unreadable()
                continue
            assert isinstance(event, _FACTS)
            yield event


def _letter_of(refused: Refused) -> DeadLetter:
    return DeadLetter(
        place=f"fact:{refused.identity}",
        reason=refused.reason,
        at_ms=refused.at_ms,
        value=refused.data,
        value_bytes=refused.size,
    )
