"""The live path when its parts die: every process at named places and at random, Kafka, the database, and the network.

Afterwards the log says what the world is, every fact stands in the store once with what was decided of it, and the workers hold
the state that the log leads to, byte for byte (reference faults, C 1, 2, 5, 7, 9, 14 to 16, 19, 37 to 39, 45).
"""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka_server import KafkaCluster, KafkaServer
from live_processes import eventually, run
from live_stack import Stack, World
from postgresql import Cluster, Server

from sickbay.settings import KafkaSettings

PARTITIONS = 4
ONE_CARD = Path(__file__).resolve().parents[2] / "examples" / "one-card.jsonl.zst"
#: Where a process may be killed, by the process: every place between two effects.
POINTS = {
    "ingest": [
        "ingester.publish",
        "ingester.published",
        "publisher.packed",
        "publisher.acknowledged",
        "publisher.noted",
    ],
    "work": [
        "worker.answering",
        "worker.answered",
        "worker.settled",
        "worker.pieces",
        "worker.manifest",
        "worker.ended",
    ],
    "project": [
        "projector.taken_over",
        "projector.merged",
        "projector.written",
        "projector.committed",
    ],
}


@pytest.fixture(scope="module")
def broker():
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="module")
def database():
    cluster = Cluster("fsync=off")
    yield Server(cluster)
    cluster.remove()


def settings_of(bootstrap, prefix, replication=1):
    return KafkaSettings(
        bootstrap=bootstrap,
        security="plaintext",
        prefix=prefix,
        partitions=PARTITIONS,
        replication=replication,
    )


@contextmanager
def stacked(settings, database, folder, workers=2):
    """A stack on a world of its own, that is running."""
    world = World(folder)
    made = Stack(settings, world, folder, database.empty(), workers=workers).start()
    try:
        yield made
    finally:
        made.close()
        world.close()


@pytest.fixture
def stack(request, broker, database, kafka_prefix, tmp_path):
    """A stack with two workers, or as many as a test asks for."""
    settings, workers = settings_of(broker.bootstrap, kafka_prefix), getattr(request, "param", 2)
    with stacked(settings, database, tmp_path, workers) as made:
        yield made


def disturb(stack, kills, draw, pause_s=(0.2, 0.8)):
    """Change the world and kill or pause processes at random until so many were killed; return how many were."""
    killed = 0
    paused = None
    while killed < kills:
        for _ in range(draw.randrange(1, 4)):
            stack.world.step()
        time.sleep(draw.uniform(*pause_s))
        if paused is not None:
            paused.signal(signal.SIGCONT)
            paused = None
        victim = draw.choice(stack.processes)
        if victim.is_running:
            if draw.random() < 0.1:
                victim.signal(signal.SIGSTOP)
                paused = victim
            else:
                victim.kill()
                killed += 1
        if draw.random() < 0.7:
            stack.revive()
    if paused is not None:
        paused.signal(signal.SIGCONT)
    return killed


def finish(stack):
    stack.settle()
    stack.stop()
    return stack.agree()


@pytest.mark.timeout(300)
def test_one_of_each_is_killed_in_turn_and_verify_says_equal(stack):
    for victim in stack.processes:
        for _ in range(3):
            stack.world.step()
        eventually(stack.told, "a fact")
        time.sleep(1.0)
        victim.kill()
        stack.world.step()
        stack.revive()
    finish(stack)


@pytest.mark.timeout(300)
def test_a_recording_comes_through_kills_of_every_process_with_the_episodes_of_a_replay(
    broker, database, kafka_prefix, tmp_path
):
    settings = settings_of(broker.bootstrap, kafka_prefix)
    stack = Stack(settings, None, tmp_path, database.empty(), recording=ONE_CARD)
    try:
        stack.start()
        begun = time.monotonic()
        for victim in stack.processes:
            time.sleep(4.0)
            victim.kill()
            stack.revive()
        assert time.monotonic() - begun < 60
        eventually(lambda: stack.ingest.process.poll() == 0, "the end of the recording", 90)
        stack.become_level()
        stack.stop()
        stack.agree()
        replayed = tmp_path / "replayed.db"
        run(settings, "replay", str(ONE_CARD), "--db", str(replayed))
        views = [
            json.loads(run(settings, "episodes", "--db", str(db), "--output", "json").stdout)
            for db in (stack.db, replayed)
        ]
        assert _lasting(views[0]) == _lasting(views[1])
    finally:
        stack.close()


def _lasting(episode):
    """What of an episode does not hang on when a tick came."""
    return {key: episode[key] for key in ("episode_id", "node", "device_id", "opened_at", "outcome", "cause")}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "stack"), [(0, 1), (1, 2), (2, 4), (3, 2)], indirect=["stack"])
def test_fifty_kills_at_random_change_nothing_in_the_end(stack, seed):
    draw = random.Random(seed)  # noqa: S311 - a fixed order
    assert disturb(stack, 50, draw) == 50
    finish(stack)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("process", "points"),
    [(name, points[at : at + 3]) for name, points in POINTS.items() for at in range(0, len(points), 3)],
)
def test_a_kill_at_every_named_place_changes_nothing_in_the_end(stack, process, points):
    victims = {"ingest": stack.ingest, "work": stack.workers[0], "project": stack.project}
    victim = victims[process]
    for point in points:
        asked = (1,) if point == "projector.taken_over" else (1, 2, 3, 5, 8)
        missed, spare = 0, 1 if len(asked) > 1 else 0
        for nth in asked:
            victim.kill()
            victim.start(SICKBAY_FAILPOINT=f"{point}:{nth}:kill9")
            begun = time.monotonic()
            # a session is waited for in ten; one place may be missed, and any other has time on a slow machine, too
            limit_s = 20 if missed < spare else 60
            while victim.is_running and time.monotonic() - begun < limit_s:
                stack.world.step()
                time.sleep(0.1)
            missed += victim.is_running
        assert missed <= spare, point
    victim.kill()
    victim.start()
    finish(stack)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broker_and_database_are_killed_paused_and_started_again_under_load(stack, broker, database):
    draw = random.Random(5)  # noqa: S311 - a fixed order
    for turn in range(6):
        for _ in range(5):
            stack.world.step()
        time.sleep(draw.uniform(0.5, 2.0))
        if turn % 3 == 0:
            broker.kill()
            stack.world.step()
            broker.start()
        elif turn % 3 == 1:
            broker.pause()
            stack.world.step()
            time.sleep(3)
            broker.resume()
        else:
            database.cluster.stop(signal.SIGQUIT)  # at once, as a power cut
            stack.world.step()
            database.cluster.start()
        stack.revive()
    finish(stack)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_of_three_brokers_at_a_time_may_die(database, kafka_prefix, tmp_path):
    with (
        KafkaCluster(brokers=3) as brokers,
        stacked(settings_of(brokers.bootstrap, kafka_prefix, 3), database, tmp_path) as stack,
    ):
        for server in brokers.servers:
            for _ in range(5):
                stack.world.step()
                time.sleep(0.3)
            server.kill()
            for _ in range(5):
                stack.world.step()
                time.sleep(0.3)
            stack.revive()
            server.start()
        finish(stack)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_network_that_cuts_delays_and_swallows_loses_nothing(database, proxied_kafka, tmp_path):
    proxy, settings, direct = proxied_kafka.proxy, proxied_kafka.settings, proxied_kafka.direct
    with stacked(settings, database, tmp_path) as stack:
        stack.settings = direct
        for disturb_ in (
            proxy.cut,
            lambda: proxy.delay(0.3),
            lambda: proxy.cut_after(5_000, "requests"),
            lambda: proxy.cut_after(5_000, "replies"),
            proxy.swallow_replies,
            proxy.swallow,
        ):
            for _ in range(5):
                stack.world.step()
            time.sleep(1.5)
            disturb_()
            for _ in range(5):
                stack.world.step()
            time.sleep(5.0)
            proxy.heal()
            stack.revive()
        finish(stack)
