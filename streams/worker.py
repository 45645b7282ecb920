"""The worker between a broker and ``streams.live``: what is taken, answered, kept and acknowledged, and in which order.

Why it is not simply an agent with a table that is written for every event: a node's state is tens of kilobytes, so a write for
each event would cost more than the fold, and no table write is atomic with the offset. So a partition's state is written as a
snapshot now and then (``streams.snapshot``), and a record is acknowledged only once a snapshot holds it. Between two snapshots a
crash costs folding again: the same records give the same answers. The order is: answers acknowledged, pieces, manifest, old pieces
away, records acknowledged.

What cannot be folded is parked, and the partition goes on without it: nothing is raised for what a record holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from sickbay.cloudevents import Message
from sickbay.deadletters import letter_message
from sickbay.errors import CodecError, ServiceError
from sickbay.facts import Tick
from sickbay.operations.failpoints import reach
from sickbay.topics import Topics
from streams.answers import answer_messages, forwards, mark_message
from streams.breaker import waiting_for
from streams.live import Live, NoPolicyError, Record, read_message
from streams.outlet import Delivered, Figures, Outlet
from streams.pieces import end_key, load_snapshot, manifest_key, pack, piece_key, position_of
from streams.snapshot import dump_manifest, dump_node

log: Final = logging.getLogger(__name__)

#: Records between two snapshots of a partition, and the time between them: what a crash makes a worker fold again.
SNAPSHOT_RECORDS: Final = 20_000
SNAPSHOT_EVERY_MS: Final = 10_000
#: Records of one partition that may have failed in the fold since the start: more is no poison but a broken build.
FAILURES_MAX: Final = 100
#: Answers of one partition that wait for the broker; more make the worker wait.
WAITING_MAX: Final = 2_000
#: How often missing records are asked for again, and the pause between.
REWINDS_MAX: Final = 5
REWIND_EVERY_MS: Final = 2_000
#: Pause after which it is asked again for missing records although nothing came since.
SEEK_AGAIN_MS: Final = 6_000
#: How long the broker may take to acknowledge.
ACKNOWLEDGE_TIMEOUT_S: Final = 120.0
#: Pause after which a worker tells that it has nothing to say of the records since its last answer.
PROGRESS_EVERY_MS: Final = 200
#: Bytes of records that wait for a snapshot, for each partition.
_HELD_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(slots=True)
class _Held:
    """One partition that this worker has."""

    live: Live
    #: Position of the last snapshot, and the pieces that it consists of.
    cut: int = 0
    pieces: dict[str, int] = field(default_factory=dict)
    #: Records that are folded and in no snapshot yet, with what acknowledges them; kept whole, to fold them again after a failure.
    held: deque[Delivered] = field(default_factory=deque)
    held_bytes: int = 0
    waiting: deque[Awaitable[object]] = field(default_factory=deque)
    #: Position up to which the decisions topic tells.
    told: int = 0
    told_at_ms: int = 0
    snapshot_at_ms: int = 0
    #: How often, and when last, records were asked for again that are missing before those that come.
    rewinds: int = 0
    rewound_at_ms: int = 0
    sought_at_ms: int = 0
    #: Offsets that could not be folded.
    poison: set[int] = field(default_factory=set)


class Worker:
    """The partitions that this process has, whatever the broker is."""

    def __init__(
        self,
        outlet: Outlet,
        topics: Topics,
        total: int,
        figures: Figures,
        *,
        source: str = "",
        snapshot_every_ms: int = SNAPSHOT_EVERY_MS,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        self._outlet = outlet
        self._topics = topics
        self._total = total
        self._figures = figures
        self._source = source
        self._snapshot_every_ms = snapshot_every_ms
        self._snapshot_records = snapshot_records
        self._held: dict[int, _Held] = {}
        self._turn = asyncio.Lock()

    @property
    def positions(self) -> dict[int, int]:
        """Partition to the offset of its next facts record."""
        return {number: held.live.position for number, held in self._held.items()}

    def snapshotted(self, partition: int) -> int:
        """Return the position of a partition's last snapshot, 0 for one that this worker does not have."""
        held = self._held.get(partition)
        return 0 if held is None else held.cut

    def forget(self, partitions: Sequence[int]) -> None:
        """Let go of partitions that another worker may have now; what it has of them is loaded anew if they come back."""
        for number in partitions:
            self._held.pop(number, None)
        self._figures.held(self.positions)

    async def take(self, record: Delivered) -> None:
        """Fold a record, answer it, and write a snapshot when it is time.

        Raises ServiceError when the broker does not take what is said, or the topic has a hole: the process must end then, and
        nothing that was not acknowledged counts.
        """
        async with self._turn:
            held = self._held.get(record.partition)
            if held is None or (record.offset > held.live.position and not held.rewinds):
                held = self._load(record.partition)
            if record.offset < held.live.position:
                self._again(held, record)
                return
            if record.offset > held.live.position:
                await self._rewind(held, record)
                return
            held.rewinds = 0
            with self._whole(held):
                await self._fold(held, record)
                reach("worker.answered")
                now_ms = self._outlet.monotonic_ms()
                if (
                    len(held.held) >= self._snapshot_records
                    or held.held_bytes >= _HELD_BYTES_MAX
                    or now_ms - held.snapshot_at_ms >= self._snapshot_every_ms
                ):
                    await self._snapshot(held)

    @contextmanager
    def _whole(self, held: _Held) -> Iterator[None]:
        """Let go of a partition that is left halfway: nobody may tell of records that are not answered, or keep such a state."""
        try:
            yield
        except BaseException:
            self._held.pop(held.live.number, None)
            raise

    async def _rewind(self, held: _Held, record: Delivered) -> None:
        """Ask for what was left out: Faust loses records between a rebalance and the clearing of its queues."""
        now_ms = self._outlet.monotonic_ms()
        if held.rewinds and now_ms - held.rewound_at_ms < REWIND_EVERY_MS:
            return  # they are on their way
        if held.rewinds == REWINDS_MAX:
            raise ServiceError(
                f"{self._topics.facts}/{record.partition}: the state holds up to {held.live.position} and the next record is"
                f" {record.offset}: records between them are gone, and no state can be trusted without them; restore the topic from"
                " a copy"
            )
        held.rewinds, held.rewound_at_ms, held.sought_at_ms = held.rewinds + 1, now_ms, now_ms
        log.warning(
            "record %d of partition %d came where %d is due: reading again from there",
            record.offset,
            record.partition,
            held.live.position,
        )
        await self._outlet.rewind(record.partition, held.live.position)

    @staticmethod
    def _again(held: _Held, record: Delivered) -> None:
        """A record that was folded came once more, after a rebalance: its first delivery can acknowledge nothing any more."""
        if record.offset < held.cut:
            record.acknowledge()
            return
        index = record.offset - held.held[0].offset if held.held else -1
        if 0 <= index < len(held.held):
            held.held[index] = record

    # --- folding -----------------------------------------------------------------------------------------------------

    async def _fold(self, held: _Held, record: Delivered) -> None:
        held.held.append(record)
        held.held_bytes += len(record.value or b"")
        try:
            read = self._read(record)
        except CodecError as error:
            await self._park(held, record, str(error))
            return
        try:
            answer = held.live.take(record.offset, read)
            said, forwarded = answer_messages(record.partition, record.offset, answer), forwards(answer)
        except NoPolicyError as error:
            await self._park(held, record, str(error))
            return
        except Exception as error:
            log.exception("partition %d offset %d cannot be folded", record.partition, record.offset)
            self._undo(held, record)
            await self._park(held, record, f"the fold failed: {error!r}")
            return
        self._figures.answered(
            answer.outcome,
            Counter(event.KIND for _, event in read.events),
            Counter(opened.envelope.kind for opened in answer.decisions),
        )
        breaker = held.live.breaker
        if breaker is not None and any(isinstance(event, Tick) for _, event in read.events):
            self._figures.breaker({scope: waiting_for(breaker, scope) for scope in breaker.open})
        if answer.outcome == "superseded":
            await self._mark(held, record.offset, "superseded")
            return
        await self._answer(held, record, said, forwarded)

    def _read(self, record: Delivered) -> Record:
        return read_message(record.value, record.headers, record.partition, self._total)

    def _undo(self, held: _Held, poison: Delivered) -> None:
        """Put the state together again as it was before a record that broke it halfway."""
        held.poison.add(poison.offset)
        if len(held.poison) > FAILURES_MAX:
            raise ServiceError(
                f"{self._topics.facts}/{poison.partition}: more than {FAILURES_MAX} records broke the fold; it is the build that is"
                " broken: go back to the one before, and report it"
            )
        fresh = self._load(poison.partition)
        held.live, held.cut, held.pieces = fresh.live, fresh.cut, fresh.pieces
        self._held[poison.partition] = held
        for known in held.held:
            if held.live.position <= known.offset < poison.offset:
                with suppress(CodecError):
                    if known.offset not in held.poison:
                        held.live.take(known.offset, self._read(known))
                        continue
                held.live.skip(known.offset)

    async def _park(self, held: _Held, record: Delivered, reason: str) -> None:
        letter = record.letter(self._topics.facts, reason)
        log.warning("parked %s: %s", letter.place, reason, extra={"event_id": record.event_id})
        await self._send(held, self._topics.parked, 0, letter_message(letter))
        reach("worker.parked")
        held.live.skip(record.offset)
        self._figures.parked()
        self._figures.answered("parked", {}, {})
        await self._mark(held, record.offset, "parked")

    async def _answer(
        self,
        held: _Held,
        record: Delivered,
        messages: Sequence[Message],
        forwarded: Sequence[tuple[int, Message]],
    ) -> None:
        live, number = held.live, record.partition
        for partition, message in forwarded:
            reach("worker.forwarding")
            await self._send(held, self._topics.facts, partition, message)
        for message in messages:
            reach("worker.answering")
            sent = await self._send(held, self._topics.decisions, number, message)
            held.told, held.told_at_ms = live.position, self._outlet.monotonic_ms()
            if message is messages[-1] and isinstance(sent, asyncio.Future):
                sent.add_done_callback(lambda _: self._figures.decided(record.written_at_ms))
        self._figures.moved(number, live.position, live.time_ms)

    async def _mark(self, held: _Held, offset: int, outcome: str) -> None:
        message = mark_message(held.live.number, offset, outcome)
        await self._send(held, self._topics.decisions, held.live.number, message)
        held.told, held.told_at_ms = offset + 1, self._outlet.monotonic_ms()

    async def tell_progress(self) -> None:
        """Say of every partition that was silent for a while up to where it has folded."""
        async with self._turn:
            now_ms = self._outlet.monotonic_ms()
            for held in list(self._held.values()):
                if held.live.position > held.told and now_ms - held.told_at_ms >= PROGRESS_EVERY_MS:
                    await self._mark(held, held.live.position - 1, "progress")
                if held.rewinds and now_ms - held.sought_at_ms >= SEEK_AGAIN_MS:
                    # a seek that meets a rebalance is lost, and when nothing more comes nobody else would notice
                    held.sought_at_ms = now_ms
                    await self._outlet.rewind(held.live.number, held.live.position)

    async def _send(self, held: _Held, topic: str, partition: int, message: Message) -> Awaitable[object]:
        if len(held.waiting) >= WAITING_MAX:
            await self._settled(held)
        sent = await self._outlet.send(topic, partition, message)
        held.waiting.append(sent)
        return sent

    async def _settled(self, held: _Held) -> None:
        """Wait until the broker has everything that was said; what it did not take stays, so that nothing goes on behind it."""
        await self._acknowledged(held.waiting)
        held.waiting.clear()

    @staticmethod
    async def _acknowledged(waiting: Collection[Awaitable[object]]) -> None:
        if not waiting:
            return
        try:
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await asyncio.gather(*waiting)
        except Exception as error:
            raise ServiceError(
                f"the broker did not take what was decided within {ACKNOWLEDGE_TIMEOUT_S:.0f} s: {error!r}; nothing is lost, start"
                " the worker again once the broker is up"
            ) from error

    # --- snapshots ---------------------------------------------------------------------------------------------------

    async def snapshot(self) -> None:
        """Write a snapshot of every partition, as before a stop."""
        async with self._turn:
            for held in list(self._held.values()):
                with self._whole(held):
                    await self._snapshot(held)

    async def _snapshot(self, held: _Held) -> None:
        live = held.live
        number, position = live.number, live.position
        if position > held.told:  # nobody folds again, and tells of, what a snapshot holds
            await self._mark(held, position - 1, "progress")
        await self._settled(held)
        reach("worker.settled")
        touched, live.partition.touched = sorted(live.partition.touched), set()
        pieces = dict(held.pieces)
        writes: list[Awaitable[object]] = []
        for name in touched:
            pieces[name] = position
            packed = pack(dump_node(live, name))
            writes.append(self._outlet.put_state(number, piece_key(number, name, position), packed))
            # a node takes a millisecond: what the broker wants in between must not wait for all
            await asyncio.sleep(0)
        await self._acknowledged(writes)
        reach("worker.pieces")
        manifest = pack(dump_manifest(live, pieces))
        await self._acknowledged([self._outlet.put_state(number, manifest_key(number, position), manifest)])
        reach("worker.manifest")
        used = {piece_key(number, name, at) for name, at in pieces.items()}
        # what stands at or after the position may belong to a worker that is further on
        old = [
            key
            for key in self._outlet.state(number)
            if key not in used and 0 <= position_of(number, key) < position
        ]
        await self._acknowledged([self._outlet.put_state(number, key, None) for key in sorted(old)])
        # the last record of the partition must be none that compaction takes away, or a recovery waits for it (faust #176)
        await self._acknowledged([self._outlet.put_state(number, end_key(number), b"%d" % position)])
        reach("worker.ended")
        held.pieces, held.cut = pieces, position
        held.snapshot_at_ms = self._outlet.monotonic_ms()
        while held.held and held.held[0].offset < position:
            record = held.held.popleft()
            held.held_bytes -= len(record.value or b"")
            record.acknowledge()
        self._figures.snapshotted(number)

    def _load(self, number: int) -> _Held:
        """Put a partition's state together from the newest whole snapshot."""
        state = self._outlet.state(number)
        held = _Held(Live(number, self._total), snapshot_at_ms=self._outlet.monotonic_ms())
        held.live.source = self._source
        newest = load_snapshot(state, number)
        if newest is not None:
            held.live, held.pieces = newest
            self._require_same_log(held.live)
            if held.live.total != self._total:
                raise ServiceError(
                    f"the snapshot of partition {number} is one of {held.live.total}, and {self._topics.facts} has"
                    f" {self._total}; a change of partitions needs a new prefix (docs/live.md)"
                )
            held.cut = held.told = held.live.position
        self._held[number] = held
        self._figures.held(self.positions)
        return held

    def _require_same_log(self, live: Live) -> None:
        """Raise ServiceError when a snapshot is further than its topic: what comes would be taken for repeats (T4, T12)."""
        place, end = f"{self._topics.facts}/{live.number}", self._outlet.end(live.number)
        if live.source != self._source:
            raise ServiceError(
                f"the snapshot of {place} holds up to {live.position} of the topic {live.source}, and it is {self._source} now: it"
                " was made again; restore the old one, or give this installation a new prefix (docs/live.md)"
            )
        if end is not None and end < live.position:
            raise ServiceError(
                f"the snapshot of {place} holds up to {live.position}, and the topic ends at {end}: Kafka lost records; restore the"
                " topic from a copy"
            )
