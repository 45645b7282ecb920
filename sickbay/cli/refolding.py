"""The state of a partition from Kafka's own log: facts and recorded decisions, deciding nothing.

It is how snapshots are proved (``sickbay verify --live``), and how they are made anew when there are none that this build can read
(``sickbay work --rebuild``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from sickbay.cloudevents import (
    FACTS_OFFSET,
    OUTCOME,
    OUTCOMES,
    PART,
    READ_BYTES_MAX,
    header,
    unpack,
    whole_header,
)
from sickbay.codec import open_envelope
from sickbay.decisions import Decision
from sickbay.errors import CodecError, ServiceError, VerifyError
from sickbay.kafka import client_arguments, let_go, started_producer, topic_identity, translated
from sickbay.settings import KafkaSettings
from streams.live import Live, read_message
from streams.pieces import end_key, load_snapshot, manifest_key, pack, piece_key
from streams.snapshot import dump_manifest, dump_node

#: How long a broker may give nothing of a topic that has more.
_SILENCE_S: Final = 60.0
#: How long a broker may take to acknowledge the pieces of one partition.
_ACKNOWLEDGE_TIMEOUT_S: Final = 120.0
#: Records that may wait for the other topic; what is beyond waits in Kafka.
_WAITING_MAX: Final = 50_000


class _Answer(NamedTuple):
    outcome: str
    decisions: list[tuple[str, Decision]]


class _Answers:
    """The first complete answer to each facts record, as the decisions topic gives them; by the rules of ``projections.merging``."""

    def __init__(self) -> None:
        self.complete: dict[int, _Answer] = {}
        #: Every facts record below it was answered.
        self.answered_to = 0
        #: What has begun: the facts record, its outcome, how many parts it has, and those that came.
        self._partial: tuple[int, str, int, dict[int, Any]] | None = None

    def take(self, record: Any) -> None:
        """Take the next record. Raises CodecError for one that no worker wrote, ServiceError when an answer lost a part."""
        place = f"{record.topic}/{record.partition}@{record.offset}"
        offset, outcome = whole_header(record.headers, FACTS_OFFSET), header(record.headers, OUTCOME)
        if offset is None or outcome not in OUTCOMES:
            raise CodecError(f"{place} has no {FACTS_OFFSET} or no {OUTCOME}: no worker wrote it")
        number, _, count = (header(record.headers, PART) or "1/1").partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise CodecError(f"{place} has a {PART} that is none: no worker wrote it")
        if offset < self.answered_to:
            return
        partial = self._partial
        if partial is not None and offset > partial[0]:
            raise ServiceError(
                f"{place} answers {offset}, and the answer to {partial[0]} has {len(partial[3])} of {partial[2]} parts: decisions"
                " were lost in Kafka; restore the topic from a copy"
            )
        self.answered_to = offset
        if (
            partial is None
            or partial[1:3] != (outcome, int(count))
            or partial[3].get(int(number), record).value != record.value
        ):
            partial = (offset, outcome, int(count), {})
        partial[3].setdefault(int(number), record)
        if len(partial[3]) < partial[2]:
            self._partial = partial
            return
        self._partial, self.answered_to = None, offset + 1
        if outcome != "progress":
            self.complete[offset] = _Answer(outcome, _decisions(partial[3]))


def _decisions(parts: Mapping[int, Any]) -> list[tuple[str, Decision]]:
    decisions: list[tuple[str, Decision]] = []
    for _, part in sorted(parts.items()):
        for item in unpack(part.value, part.headers) if part.value else ():
            event = open_envelope(item.envelope)
            if not isinstance(event, Decision):
                raise CodecError(
                    f"{part.topic}/{part.partition}@{part.offset} holds a fact: no worker wrote it"
                )
            decisions.append((item.envelope.causation_id, event))
    return decisions


class _Reader:
    """Records of some partitions, up to where they ended when it began."""

    def __init__(self, consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer
        self._ends = ends
        self._heard_s = asyncio.get_running_loop().time()

    async def at_end(self, tp: TopicPartition) -> bool:
        return bool(await self._consumer.position(tp) >= self._ends[tp])

    async def fetch(self, *wanted: TopicPartition) -> dict[TopicPartition, list[Any]]:
        """Return what comes of partitions of which one has more. Raises ServiceError when nothing comes for too long."""
        got: dict[TopicPartition, list[Any]] = await self._consumer.getmany(
            *wanted, timeout_ms=1_000, max_records=2_000
        )
        now_s = asyncio.get_running_loop().time()
        if got:
            self._heard_s = now_s
        elif now_s - self._heard_s > _SILENCE_S:
            raise ServiceError(
                f"Kafka gave nothing of {', '.join(sorted({tp.topic for tp in wanted}))} for {_SILENCE_S:.0f} s, and there is more;"
                " look at the brokers, then run again"
            )
        return got


async def follow(settings: KafkaSettings, number: int, to_position: int | None = None) -> Live:
    """Return a partition as the log leads to it: up to a position, or as far as every record is answered.

    Raises ServiceError when Kafka cannot be read or its log has a hole, CodecError for records that this build cannot read.
    """
    topics = settings.topics
    facts, decisions = TopicPartition(topics.facts, number), TopicPartition(topics.decisions, number)
    live, answers, waiting = Live(number, settings.partitions), _Answers(), deque[Any]()
    live.source = await topic_identity(settings, topics.facts)
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "sickbay-follow"),
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=READ_BYTES_MAX,
    )
    with translated(settings):
        await consumer.start()
        try:
            consumer.assign([facts, decisions])
            starts = await consumer.beginning_offsets([facts, decisions])
            ends = await consumer.end_offsets([facts, decisions])
            for tp in (facts, decisions):
                if starts[tp]:
                    raise ServiceError(
                        f"{tp.topic}/{number} begins at {starts[tp]}: what came before was deleted, and a state cannot be built"
                        " without it; restore the topic from a copy"
                    )
                consumer.seek(tp, 0)
            reader, following = _Reader(consumer, ends), {facts: 0, decisions: 0}
            while True:
                _advance(live, answers, waiting, to_position)
                if to_position is not None and live.position >= to_position:
                    return live
                answered = await reader.at_end(decisions)
                if answered and (waiting or live.position >= answers.answered_to):
                    break  # nobody answered what comes
                if await reader.at_end(facts) and not waiting and live.position < answers.answered_to:
                    break
                wanted = [facts] if len(waiting) < _WAITING_MAX else []
                if not answered and len(answers.complete) < _WAITING_MAX:
                    wanted.append(decisions)
                for tp, records in (await reader.fetch(*wanted)).items():
                    for record in records:
                        _require_next(record, following[tp])
                        following[tp] += 1
                        waiting.append(record) if tp == facts else answers.take(record)
        finally:
            await let_go(consumer)
    if to_position is not None:
        raise VerifyError(
            f"partition {number}: a snapshot holds up to {to_position}, and the log in Kafka answers up to {live.position} only;"
            f" {topics.facts} or {topics.decisions} lost records, restore them from a copy"
        )
    if live.position < answers.answered_to:
        raise ServiceError(
            f"{topics.facts}/{number} ends at {live.position}, and {topics.decisions} answers up to {answers.answered_to}: facts were"
            " lost; restore the topic from a copy"
        )
    return live


def _require_next(record: Any, expected: int) -> None:
    if record.offset != expected:
        raise ServiceError(
            f"{record.topic}/{record.partition}@{record.offset} follows where offset {expected} is due: records are gone, and no"
            " state can be built without them; restore the topic from a copy"
        )


def _advance(live: Live, answers: _Answers, waiting: deque[Any], to_position: int | None) -> None:
    """Follow what is answered."""
    while waiting and live.position < min(answers.answered_to, to_position or answers.answered_to):
        record = waiting.popleft()
        answer = answers.complete.pop(record.offset, _Answer("taken", []))
        if answer.outcome != "taken":
            live.skip(record.offset)
            continue
        read = read_message(record.value, record.headers, live.number, live.total)
        live.follow(record.offset, read, answer.decisions)


async def read_state(settings: KafkaSettings) -> dict[int, dict[str, bytes]]:
    """Return partition to what the state topic holds now: key to piece."""
    topic = settings.topics.state
    tps = [TopicPartition(topic, number) for number in range(settings.partitions)]
    state: dict[int, dict[str, bytes]] = {number: {} for number in range(settings.partitions)}
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "sickbay-state"),
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=READ_BYTES_MAX,
    )
    with translated(settings):
        await consumer.start()
        try:
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            for tp, start in (await consumer.beginning_offsets(tps)).items():
                consumer.seek(tp, start)
            reader = _Reader(consumer, ends)
            while not all([await reader.at_end(tp) for tp in tps]):
                for tp, records in (await reader.fetch(*tps)).items():
                    for record in records:
                        key = record.key.decode()
                        if record.value is None:
                            state[tp.partition].pop(key, None)
                        else:
                            state[tp.partition][key] = record.value
        finally:
            await let_go(consumer)
    return state


def pieces_of(live: Live) -> tuple[dict[str, bytes], bytes]:
    """Return everything a partition holds, as bytes: its nodes, and a manifest that places every piece at 0."""
    nodes = {name: dump_node(live, name) for name in sorted(live.partition.nodes)}
    return nodes, dump_manifest(live, dict.fromkeys(nodes, 0))


async def verify_snapshots(settings: KafkaSettings) -> dict[str, int]:
    """Compare the newest snapshot of every partition with what the log leads to, byte for byte.

    Returns how many partitions and nodes were compared. Raises VerifyError naming the partition and the node that differ.
    """
    counts = {"snapshots": 0, "snapshot_nodes": 0}
    for number, state in (await read_state(settings)).items():
        found = load_snapshot(state, number)
        if found is None:
            continue
        snapshot, _ = found
        followed = await follow(settings, number, snapshot.position)
        (ours, header_), (theirs, other) = pieces_of(snapshot), pieces_of(followed)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise VerifyError(
                    f"partition {number} node {name!r}: the worker's snapshot at {snapshot.position} is not the state that the log"
                    " leads to; stop the workers and start one with `sickbay work --rebuild`"
                )
        if header_ != other:
            raise VerifyError(
                f"partition {number}: what the worker's snapshot at {snapshot.position} holds beside its nodes is not what the log"
                " leads to; stop the workers and start one with `sickbay work --rebuild`"
            )
        counts["snapshots"] += 1
        counts["snapshot_nodes"] += len(ours)
    return counts


async def rebuild_snapshots(settings: KafkaSettings) -> dict[int, int]:
    """Write a snapshot of every partition anew from the log; return partition to its position.

    Nothing is decided: what stands in the log was decided by whoever wrote it. Raises ServiceError while workers run.
    """
    await _require_no_workers(settings)
    state = await read_state(settings)
    positions: dict[int, int] = {}
    producer = await started_producer(settings, "sickbay-rebuild", max_request_size=READ_BYTES_MAX)
    with translated(settings):
        try:
            for number in range(settings.partitions):
                live = await follow(settings, number)
                if live.position:
                    await _write(producer, settings, live, state[number])
                positions[number] = live.position
        finally:
            await let_go(producer)
    await _commit(settings, positions)
    return positions


async def _write(
    producer: AIOKafkaProducer, settings: KafkaSettings, live: Live, old: Mapping[str, bytes]
) -> None:
    number, position = live.number, live.position
    names = sorted(live.partition.nodes)
    written = {piece_key(number, name, position): pack(dump_node(live, name)) for name in names}
    written[manifest_key(number, position)] = pack(dump_manifest(live, dict.fromkeys(names, position)))
    gone = sorted(old.keys() - written.keys() - {end_key(number)})
    for batch in (written.items(), [(key, None) for key in gone], [(end_key(number), b"%d" % position)]):
        # an idempotent producer tries again for ever
        async with asyncio.timeout(_ACKNOWLEDGE_TIMEOUT_S):
            sent = [
                await producer.send(settings.topics.state, value, key=key.encode(), partition=number)
                for key, value in batch
            ]
            await asyncio.gather(*sent)


async def _commit(settings: KafkaSettings, positions: Mapping[int, int]) -> None:
    """Let the workers begin where the snapshots end."""
    consumer = AIOKafkaConsumer(
        **client_arguments(settings, "sickbay-rebuild"),
        group_id=settings.topics.work_id,
        enable_auto_commit=False,
    )
    with translated(settings):
        await consumer.start()
        try:
            tps = {TopicPartition(settings.topics.facts, number): at for number, at in positions.items()}
            consumer.assign(list(tps))
            await consumer.commit({tp: OffsetAndMetadata(at, "") for tp, at in tps.items()})
        finally:
            await let_go(consumer)


async def _require_no_workers(settings: KafkaSettings) -> None:
    admin = AIOKafkaAdminClient(**client_arguments(settings, "sickbay-rebuild"))
    with translated(settings):
        try:
            await admin.start()
            groups = await admin.describe_consumer_groups([settings.topics.work_id])
        finally:
            await admin.close()
    for response in groups:
        for group in response.groups:
            members = group[5]
            if members:
                raise ServiceError(
                    f"{len(members)} workers of {settings.topics.work_id} run: their state cannot be built anew under them; stop"
                    " them first (one that was killed counts until its session ends, some 10 s)"
                )
