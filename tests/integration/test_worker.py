"""`sickbay work` on a real broker says what the driver says that needs none, whatever is killed, paused or divided anew."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import facts_of as f
import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from live_feed import answers, begin, everybody, feed, state_of
from live_processes import Process, answers_and_ends, eventually, produce, read_topic, run

from sickbay.cli.refolding import read_state, rebuild_snapshots, verify_snapshots
from sickbay.cloudevents import OUTCOME, Message, header, unpack
from sickbay.errors import ServiceError, VerifyError
from sickbay.facts import PodGone
from sickbay.kafka import client_arguments, topic_identity
from sickbay.policy import Policy
from streams.pieces import load_snapshot
from streams.testing import Driver, Written

POLICY = Policy()
T0 = f.T0
READY = "the worker takes records"


class Recorded(Driver):
    """What a real broker holds, read as the driver's own log."""

    def __init__(self, settings):
        super().__init__(settings.partitions)
        for name in ("facts", "decisions"):
            topic = getattr(settings.topics, name)
            for number, records in read_topic(settings, topic).items():
                self.log[getattr(self.topics, name), number] = [
                    Written(record.key, record.value, tuple(record.headers)) for record in records
                ]
        for number, records in read_topic(settings, settings.topics.state).items():
            for record in records:
                key = record.key.decode()
                if record.value is None:
                    self.pieces[number].pop(key, None)
                else:
                    self.pieces[number][key] = record.value


def history(count, nodes=12):
    """Facts of some nodes in order: words on devices that change, Pods that end, ticks between them."""
    draw = random.Random(7)  # noqa: S311 - a fixed history
    facts = []
    for index in range(count):
        at_ms = T0 + 1_000 + index * 500
        node = f"n{draw.randrange(nodes)}"
        word = f.word(
            f.plugin(draw.randrange(3)),
            draw.choice(["Healthy", "Healthy", "Unhealthy", "Unknown"]),
            at_ms,
            10 + index,
            pod=f"pod-{node}",
        )
        facts.append(msgspec.structs.replace(word, node=node))
        if draw.random() < 0.05:
            facts.append(
                PodGone(
                    node=node,
                    observed_at_ms=at_ms,
                    rv=10 + index,
                    pod_uid=f"uid-pod-{node}",
                    namespace="ml",
                    pod=f"pod-{node}",
                )
            )
    return facts


class Feed:
    """Facts for the broker and for the driver at once."""

    def __init__(self, settings):
        self._settings = settings
        self.driver = Driver(settings.partitions)
        self._sent = dict.fromkeys(range(settings.partitions), 0)

    def send(self):
        """Send what the driver was given since the last time."""
        topic = self._settings.topics.facts
        records = []
        for number in range(self._settings.partitions):
            log = self.driver.log[self.driver.topics.facts, number]
            records += [(number, Message(w.key, w.value, list(w.headers))) for w in log[self._sent[number] :]]
            self._sent[number] = len(log)
        produce(self._settings, topic, records)


def is_level(settings):
    answered, ends = answers_and_ends(settings)
    return all(answered[number] >= end for number, end in ends.items())


async def group(settings):
    """Return the state of the workers' consumer group and how many are in it."""
    admin = AIOKafkaAdminClient(**client_arguments(settings, "test"))
    try:
        await admin.start()
        (response,) = await admin.describe_consumer_groups([settings.topics.work_id])
    finally:
        await admin.close()
    (described,) = response.groups
    return described[2], len(described[5])


class Oracle(Driver):
    """One calm worker over the facts topic as it came to be. What it would forward stands there already."""

    def __init__(self, found):
        super().__init__(found.total)
        self.forwarded = set()
        for number in range(found.total):
            self.log[self.topics.facts, number] = list(found.log[found.topics.facts, number])

    async def send(self, topic, partition, message):
        if topic == self.topics.facts:
            self.forwarded |= {
                (partition, o.envelope.event_id) for o in unpack(message.value, message.headers)
            }
            topic = "forwarded"
        return await super().send(topic, partition, message)


def compare(settings, fed, *, with_state=True):
    """Every fact that was sent is there; every decision once and the same bytes; and the last snapshot is the same state."""
    found = Recorded(settings)
    oracle = Oracle(found)
    oracle.source = asyncio.run(topic_identity(settings, settings.topics.facts))
    oracle.start()

    async def all_of():
        await oracle.work()
        await oracle.worker.snapshot()

    asyncio.run(all_of())
    written = {
        (number, opened.envelope.event_id)
        for number in range(settings.partitions)
        for record in found.log[found.topics.facts, number]
        if record.value and record.value[:1] in b"{["
        for opened in unpack(record.value, record.headers)
    }
    sent = {
        (number, opened.envelope.event_id)
        for number in range(settings.partitions)
        for record in fed.driver.log[fed.driver.topics.facts, number]
        for opened in unpack(record.value, record.headers)
    }
    assert written == sent | oracle.forwarded
    for number in range(settings.partitions):
        ours, theirs = answers(oracle, number), answers(found, number)
        said = [data for _, (_, datas) in sorted(theirs.items()) for data in datas]
        assert said == [data for _, (_, datas) in sorted(ours.items()) for data in datas]
        if with_state:
            state, _ = load_snapshot(found.pieces[number], number)
            assert state.position == len(found.log[found.topics.facts, number])
            assert state_of(state) == state_of(load_snapshot(oracle.pieces[number], number)[0])


@pytest.fixture
def installed(kafka_settings):
    """Topics that are made, and the policy and a first tick in each partition."""
    run(kafka_settings, "topics", "apply")
    feed_ = Feed(kafka_settings)
    begin(feed_.driver, POLICY, T0)
    everybody(feed_.driver, T0 + 1_000)
    feed_.send()
    return feed_


@pytest.mark.timeout(240)
def test_workers_that_are_killed_paused_and_joined_say_what_one_calm_worker_says(
    kafka_settings, installed, tmp_path
):
    facts = history(600)
    draw = random.Random(3)  # noqa: S311 - a fixed order
    workers = [
        Process(kafka_settings, tmp_path, f"work-{n}", "work", "--log-format", "text") for n in range(2)
    ]
    try:
        workers[0].start()
        for turn in range(6):
            feed(installed.driver, facts[turn * 100 : (turn + 1) * 100])
            everybody(installed.driver, T0 + 2_000 + (turn + 1) * 50_000)
            installed.send()
            time.sleep(draw.uniform(0.5, 2.0))
            victim = draw.choice(workers)
            if turn == 1:
                workers[1].start()
            elif turn == 3:
                # longer than the session: the other one takes over, and this one wakes as a zombie
                workers[0].signal(signal.SIGSTOP)
                time.sleep(14)
                workers[0].signal(signal.SIGCONT)
            elif victim.is_running:
                victim.kill()
            for worker in workers[: 1 if turn == 0 else 2]:
                if not worker.is_running:
                    worker.start()
        begun_again = [worker.log.count(READY) for worker in workers]
        for worker in workers:
            worker.kill()
            worker.start()
        eventually(
            lambda: all(w.log.count(READY) > n for w, n in zip(workers, begun_again, strict=True)),
            "both at work",
            processes=workers,
        )
        # what was answered before the kill says nothing of those who were started after it
        everybody(installed.driver, T0 + 400_000)
        installed.send()
        eventually(lambda: is_level(kafka_settings), "an answer to every record", 120, processes=workers)
        assert workers[0].stop() == 0
        # a worker that is stopped while partitions move holds none of them, and writes no snapshot of what it does not hold
        eventually(
            lambda: asyncio.run(group(kafka_settings)) == ("Stable", 1),
            "the other one has every partition",
            processes=workers[1:],
        )
        everybody(installed.driver, T0 + 410_000)
        installed.send()
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=workers[1:])
        assert workers[1].stop() == 0
    finally:
        for worker in workers:
            worker.signal(signal.SIGCONT)
            worker.kill()
    compare(kafka_settings, installed)


@pytest.mark.timeout(180)
def test_a_clean_stop_leaves_nothing_to_fold_again(kafka_settings, installed, tmp_path):
    feed(installed.driver, history(60))
    installed.send()
    with Process(kafka_settings, tmp_path, "work", "work", "--log-format", "text") as worker:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        assert worker.stop() == 0
        answered = sum(len(r) for r in read_topic(kafka_settings, kafka_settings.topics.decisions).values())
        worker.start()
        everybody(installed.driver, T0 + 90_000)
        installed.send()
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        assert worker.stop() == 0
    after = read_topic(kafka_settings, kafka_settings.topics.decisions)
    fresh = [r for records in after.values() for r in records][answered:]
    assert len(fresh) <= 4 * kafka_settings.partitions
    compare(kafka_settings, installed)


@pytest.mark.timeout(120)
def test_garbage_is_parked_before_the_offset_moves_and_the_rest_goes_on(kafka_settings, installed, tmp_path):
    produce(
        kafka_settings,
        kafka_settings.topics.facts,
        [(0, Message(b"k", b"\xff garbage", [])), (1, Message(b"k", b"", []))],
    )
    with Process(kafka_settings, tmp_path, "work", "work", "--log-format", "text") as worker:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        assert worker.stop() == 0
    letters = read_topic(kafka_settings, kafka_settings.topics.parked, partitions=1)[0]
    assert {letter.key.decode().rpartition("/")[2] for letter in letters} == {"0@2", "1@2"}
    outcomes = [
        header(record.headers, OUTCOME)
        for records in read_topic(kafka_settings, kafka_settings.topics.decisions).values()
        for record in records
    ]
    assert outcomes.count("parked") == 2


@pytest.mark.timeout(120)
def test_a_worker_that_keeps_its_table_on_disk_says_the_same(kafka_settings, installed, tmp_path):
    feed(installed.driver, history(100))
    everybody(installed.driver, T0 + 90_000)
    installed.send()
    arguments = ("work", "--log-format", "text", "--store", "rocksdb", "--data-dir", str(tmp_path / "data"))
    with Process(kafka_settings, tmp_path, "work", *arguments) as worker:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        worker.kill()
        worker.start()
        everybody(installed.driver, T0 + 120_000)
        installed.send()
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        assert worker.stop() == 0
    compare(kafka_settings, installed, with_state=False)


@pytest.mark.timeout(180)
def test_snapshots_are_proved_against_the_log_and_built_anew_from_it(kafka_settings, installed, tmp_path):
    feed(installed.driver, history(200))
    everybody(installed.driver, T0 + 120_000)
    installed.send()
    with Process(kafka_settings, tmp_path, "work", "work", "--log-format", "text") as worker:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        with pytest.raises(ServiceError, match=r"workers of .* run"):
            asyncio.run(rebuild_snapshots(kafka_settings))
        assert worker.stop() == 0
        counts = asyncio.run(verify_snapshots(kafka_settings))
        assert counts["snapshots"] == kafka_settings.partitions
        assert counts["snapshot_nodes"] >= 12
        # a piece that somebody spoiled is found
        number, pieces = next(iter(asyncio.run(read_state(kafka_settings)).items()))
        pieces_by_node = {key.split("/", 3)[3]: key for key in pieces if "/node/" in key}
        (one, key), (_, other) = sorted(pieces_by_node.items())[:2]
        produce(
            kafka_settings, kafka_settings.topics.state, [(number, Message(key.encode(), pieces[other], []))]
        )
        with pytest.raises(VerifyError, match=f"partition {number} node {one!r}"):
            asyncio.run(verify_snapshots(kafka_settings))
        worker.start_with("--rebuild")
        eventually(lambda: READY in worker.log, "a worker", processes=[worker])
        everybody(installed.driver, T0 + 180_000)
        installed.send()
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[worker])
        assert worker.stop() == 0
    assert asyncio.run(verify_snapshots(kafka_settings))["snapshots"] == kafka_settings.partitions
    compare(kafka_settings, installed)


def test_a_worker_without_topics_ends_with_what_to_do(kafka_settings, tmp_path):
    done = run(kafka_settings, "work", check=False)
    assert done.returncode == 7
    assert "sickbay topics apply" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_recovery_that_lost_what_it_read_reads_it_again(kafka_settings, installed, tmp_path):
    """Without that it waits until the limit of a recovery ends the process."""
    feed(installed.driver, history(200))
    installed.send()
    arguments = ("work", "--snapshot-every-ms", "500", "--log-format", "text")
    with Process(kafka_settings, tmp_path, "first", *arguments) as first:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[first])
        assert first.stop() == 0
    everybody(installed.driver, T0 + 400_000)
    installed.send()
    program = (sys.executable, Path(__file__).parents[1] / "support" / "lossy_work.py")
    with Process(kafka_settings, tmp_path, "lossy", *arguments, program=program) as lossy:
        eventually(lambda: is_level(kafka_settings), "an answer to every record", processes=[lossy])
        assert "stands still" in lossy.log
        assert lossy.stop() == 0
