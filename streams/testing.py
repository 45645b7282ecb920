"""A driver for tests: a worker on a broker in memory. Bytes in, bytes out; nothing waits and nothing is lost but by ``crash``.

Whoever writes agents of their own on the decisions can use it to see what a worker says of their facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Generator, Mapping
from typing import Any, Final, NamedTuple

from sickbay.cloudevents import Message
from sickbay.topics import Topics
from streams.outlet import Delivered
from streams.worker import SNAPSHOT_EVERY_MS, SNAPSHOT_RECORDS, Worker


class Written(NamedTuple):
    """One record of a topic."""

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class CrashedError(BaseException):
    """The process was killed between two effects, as ``Driver.crash_after`` asked."""


class Counts:
    """Figures that only count what became of records."""

    def __init__(self) -> None:
        self.outcomes: Final[list[str]] = []

    def answered(self, outcome: str, facts: Mapping[str, int], decisions: Mapping[str, int]) -> None:
        self.outcomes.append(outcome)

    def parked(self) -> None:
        return

    def decided(self, written_at_ms: int) -> None:
        return

    def moved(self, partition: int, position: int, time_ms: int) -> None:
        return

    def snapshotted(self, partition: int) -> None:
        return

    def held(self, positions: Mapping[int, int]) -> None:
        return

    def breaker(self, waiting: Mapping[str, int]) -> None:
        return


class Driver:
    """A broker in memory with one worker, that may be killed between any two effects and started again."""

    def __init__(
        self,
        total: int,
        *,
        snapshot_records: int = SNAPSHOT_RECORDS,
        snapshot_every_ms: int = SNAPSHOT_EVERY_MS,
    ) -> None:
        self.topics: Final = Topics()
        self.total: Final = total
        #: Identity of the facts topic; another one is a topic that was made again.
        self.source = "cluster/facts"
        #: (topic, partition) to its records.
        self.log: Final[defaultdict[tuple[str, int], list[Written]]] = defaultdict(list)
        #: Partition to state key to piece: what compaction would leave.
        self.pieces: Final[defaultdict[int, dict[str, bytes]]] = defaultdict(dict)
        #: Partition to the offset of the facts topic from which a new worker reads.
        self.committed: Final[dict[int, int]] = dict.fromkeys(range(total), 0)
        self.counts: Final = Counts()
        #: Effects until the worker is killed; ``None`` lets it live.
        self.crash_after: int | None = None
        self.now_ms = 0
        #: Partition to the first offset that the facts topic still has, where that is not 0.
        self.first: Final[dict[int, int]] = {}
        self._snapshot_records = snapshot_records
        self._snapshot_every_ms = snapshot_every_ms
        self.start()

    def start(self) -> None:
        """Begin a new worker, as after a kill; it knows what was written and nothing else."""
        self.crash_after = None
        self._read = dict(self.committed)
        self.worker = Worker(
            self,
            self.topics,
            self.total,
            self.counts,
            source=self.source,
            snapshot_every_ms=self._snapshot_every_ms,
            snapshot_records=self._snapshot_records,
        )

    def write(self, partition: int, message: Message) -> None:
        """Append a record to the facts topic, as an ingester does."""
        self.log[self.topics.facts, partition].append(
            Written(message.key, message.value, tuple(message.headers))
        )

    async def work(self, *, limit: int | None = None) -> int:
        """Deliver what waits in the facts topic, partition by partition in turn; return how many records were.

        Raises CrashedError when ``crash_after`` ran out.
        """
        done = 0
        while limit is None or done < limit:
            waiting = [n for n in range(self.total) if self._read[n] < len(self.log[self.topics.facts, n])]
            if not waiting:
                break
            for number in waiting:
                await self._deliver(number)
                done += 1
        await self.worker.tell_progress()
        return done

    async def _deliver(self, number: int) -> None:
        offset = self._read[number]
        record = self.log[self.topics.facts, number][offset]
        self._read[number] = offset + 1
        acknowledge = _Acknowledge(self, number, offset)
        await self.worker.take(
            Delivered(number, offset, record.key, record.value, record.headers, self.now_ms, acknowledge)
        )

    def acknowledged(self, number: int, offset: int) -> None:
        """Move the committed offset; records are acknowledged in order."""
        self._effect()
        self.committed[number] = max(self.committed[number], offset + 1)

    # --- what a worker needs of a broker ---

    async def send(self, topic: str, partition: int, message: Message) -> Awaitable[object]:
        self._effect()
        self.log[topic, partition].append(Written(message.key, message.value, tuple(message.headers)))
        return _Done()

    def put_state(self, partition: int, key: str, value: bytes | None) -> Awaitable[object]:
        self._effect()
        if value is None:
            self.pieces[partition].pop(key, None)
        else:
            self.pieces[partition][key] = value
        return _Done()

    def state(self, partition: int) -> Mapping[str, bytes]:
        return self.pieces[partition]

    def end(self, partition: int) -> int | None:
        return len(self.log[self.topics.facts, partition])

    async def rewind(self, partition: int, offset: int) -> None:
        self._read[partition] = max(offset, self.first.get(partition, 0))

    def monotonic_ms(self) -> int:
        return self.now_ms

    def _effect(self) -> None:
        if self.crash_after is None:
            return
        if self.crash_after == 0:
            raise CrashedError
        self.crash_after -= 1


class _Acknowledge:
    def __init__(self, driver: Driver, number: int, offset: int) -> None:
        self._driver, self._number, self._offset = driver, number, offset

    def __call__(self) -> None:
        self._driver.acknowledged(self._number, self._offset)


class _Done(Awaitable[object]):
    """Done already, in whatever loop it is awaited."""

    def __await__(self) -> Generator[Any, None, object]:
        yield from ()
        return None
