"""The live path when its parts die: every process at named places and at random, Kafka, the database, and the network.

Afterwards the log says what the world is, every fact stands in the store once with what was decided of it, and the workers hold
the state that the log leads to, byte for byte (reference faults, C 1, 2, 5, 7, 9, 14 to 16, 19, 37 to 39, 45).
"""

from __future__ import annotations

import random
import signal
import time

import pytest
from kafka_server import KafkaServer
from live_processes import eventually
from live_stack import Stack, World
from postgresql import Cluster, Server

from sickbay.settings import KafkaSettings

PARTITIONS = 4
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


@pytest.fixture
def stack(broker, database, kafka_prefix, tmp_path):
    """A stack on a world of its own, that is running."""
    settings = KafkaSettings(
        bootstrap=broker.bootstrap,
        security="plaintext",
        prefix=kafka_prefix,
        partitions=PARTITIONS,
        replication=1,
    )
    world = World(tmp_path)
    made = Stack(settings, world, tmp_path, database.empty()).start()
    yield made
    made.close()
    world.close()


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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_fifty_kills_at_random_change_nothing_in_the_end(stack, seed):
    draw = random.Random(seed)  # noqa: S311 - a fixed order
    assert disturb(stack, 50, draw) == 50
    finish(stack)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("process", POINTS)
def test_a_kill_at_every_named_place_changes_nothing_in_the_end(stack, process):
    victims = {"ingest": stack.ingest, "work": stack.workers[0], "project": stack.project}
    victim = victims[process]
    reached = set()
    for point in POINTS[process]:
        for nth in (1,) if point == "projector.taken_over" else (1, 2, 3, 5, 8):
            victim.kill()
            victim.start(SICKBAY_FAILPOINT=f"{point}:{nth}:kill9")
            begun = time.monotonic()
            while victim.is_running and time.monotonic() - begun < 12:
                stack.world.step()
                time.sleep(0.1)
            if not victim.is_running:
                reached.add((point, nth))
    victim.kill()
    victim.start()
    assert {point for point, _ in reached} == set(POINTS[process])
    assert len(reached) >= 4 * len(POINTS[process]) - 3, sorted(reached)
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
