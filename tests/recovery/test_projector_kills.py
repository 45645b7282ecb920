"""A projector may die, sleep or be replaced between any two effects: the store comes to what the topics hold, once."""

from __future__ import annotations

import asyncio
import random
import signal
import threading

import pytest
from cli import run
from databases import places
from kafka_server import KafkaServer
from postgresql import Cluster, plain
from projecting import (
    expected_digests,
    parked_rows,
    projector,
    sources_of,
    until,
    until_projected,
    variables,
)
from tiny_worker import GARBAGE, facts_records, letters, publish, work

from projections import schema
from projections.engine import Store
from sickbay.operations.topics import apply_topics
from sickbay.settings import KafkaSettings

pytestmark = pytest.mark.timeout(300)

#: Places of the projector's own code, between two effects.
POINTS = ("projector.taken_over", "projector.merged", "projector.written", "projector.committed")
#: On each database; six and the named points are more than ten in all.
KILLS = 6


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """A fresh place for a store, on each database."""
    with places(request.param, tmp_path) as place:
        yield place("live")


@pytest.fixture
def topics(kafka_settings):
    """An installation whose topics are there, and empty."""
    asyncio.run(apply_topics(kafka_settings))
    return kafka_settings


class Meanwhile(threading.Thread):
    """What happens in a cluster meanwhile: facts come, a worker answers, slowly enough to be met in the middle."""

    def __init__(self, settings, records, pause_s):
        super().__init__()
        self._settings, self._records, self._pause_s = settings, records, pause_s
        self.start()

    def ends(self):
        """Let the rest come at once, and wait for it."""
        self._pause_s = 0.0
        self.join(60)
        assert not self.is_alive()

    def run(self):
        async def both():
            await asyncio.gather(
                publish(self._settings, self._records, pause_s=lambda: self._pause_s),
                work(self._settings, self._records, pause_s=lambda: self._pause_s / 2),
            )

        asyncio.run(both())


def garbage(records):
    return sum(message is GARBAGE for messages in records.values() for message in messages)


def require_equal(settings, place, records, folder):
    """Log, read models, dead letters and topics agree, and with the fold alone."""
    with Store.open(place, read_only=True) as store:
        digests, parked = store.digests(), parked_rows(store)
    assert expected_digests(settings, records, folder) == digests
    assert sorted((item.place, item.reason, item.raw) for item in letters(settings, records)) == parked
    done = run("verify", "--db", place, "--live", env=variables(settings))
    assert 0 == done.code, done.err


def test_killed_at_random_it_comes_to_the_same(topics, place, tmp_path):
    """SIGKILL at moments that are drawn, while facts and answers come: 0 lost, 0 twice."""
    records, rng = facts_records(4, nodes=10, rounds=20), random.Random(4)  # noqa: S311 - any moments do
    cluster = Meanwhile(topics, records, 2.0)
    for _ in range(KILLS):
        with projector(topics, place, tmp_path, name="projector-0") as process:
            process.until_told("projecting the partitions")
            threading.Event().wait(rng.uniform(0, 0.8))
            assert process.runs, process.told
            process.end(signal.SIGKILL)
    assert cluster.is_alive(), "the kills came too late to meet anything"
    cluster.ends()
    with projector(topics, place, tmp_path, name="projector-0") as process:
        process.until_told("projecting the partitions")
        until_projected(place, records, parked=garbage(records), process=process)
        assert 0 == process.end(), process.told
    require_equal(topics, place, records, tmp_path)


def test_killed_at_every_named_point_it_comes_to_the_same(topics, place, tmp_path):
    """Before and after each of its effects, at the first time and at a later one."""
    records = facts_records(4, rounds=20)
    cluster, killed = Meanwhile(topics, records, 2.0), 0
    for nth in (1, 2):
        for point in POINTS:
            if (point, nth) == (POINTS[0], 2):
                continue  # it takes over once
            fail = f"{point}:{nth}:kill9"
            with projector(topics, place, tmp_path, name="projector-0", failpoint=fail) as process:
                until(lambda p=process: not p.runs or not cluster.is_alive(), f"{fail} in {process.log}")
                killed += not process.runs
                process.end(signal.SIGKILL)
    assert killed == 2 * len(POINTS) - 1
    cluster.ends()
    with projector(topics, place, tmp_path, name="projector-0") as process:
        until_projected(place, records, parked=garbage(records), process=process)
    require_equal(topics, place, records, tmp_path)


def test_one_that_slept_while_another_took_over_writes_nothing(topics, place, tmp_path):
    """Stopped just before it writes, it wakes when its partitions are another's: its batch is refused, and nothing is doubled (S4)."""
    records = facts_records(4, rounds=20)
    asyncio.run(publish(topics, records))
    asyncio.run(work(topics, {number: messages[:10] for number, messages in records.items()}))
    with projector(topics, place, tmp_path, failpoint="projector.merged:1:stop") as sleeper:
        sleeper.until_stopped()
        assert {0} == {offset for (topic, _), offset in sources_of(place).items() if topic == "facts"}
        with projector(topics, place, tmp_path) as successor:
            until(lambda: min_facts(place) == 10, "the successor to write")
            asyncio.run(work(topics, records))
            until_projected(place, records, process=successor)
            sleeper.send(signal.SIGCONT)
            sleeper.until_told("this one was replaced, and wrote nothing")
            # it goes on as a member like any other
            until(
                lambda: sleeper.told.count("projecting the partitions") >= 2,
                "the sleeper to be given its share",
            )
            assert sleeper.runs
            assert 0 == successor.end(), successor.told
        assert 0 == sleeper.end(), sleeper.told
    require_equal(topics, place, records, tmp_path)


def min_facts(place):
    return min((offset for (topic, _), offset in sources_of(place).items() if topic == "facts"), default=0)


def test_two_share_the_partitions_and_one_inherits(topics, place, tmp_path):
    """Each partition of facts goes with its decisions; when one leaves, the other has all of them."""
    records = facts_records(4)
    cluster = Meanwhile(topics, records, 0.3)
    with projector(topics, place, tmp_path) as one:
        one.until_told("projecting the partitions [0, 1, 2, 3]")
        with projector(topics, place, tmp_path) as two:
            until(lambda: "partitions [0, 1]" in one.told + two.told, "the partitions to be shared")
            until(lambda: "partitions [2, 3]" in one.told + two.told, "the partitions to be shared")
            assert 0 == two.end(), two.told
        until(lambda: one.told.count("projecting the partitions [0, 1, 2, 3]") == 2, "one to have all again")
        cluster.ends()
        until_projected(place, records, parked=garbage(records), process=one)
    require_equal(topics, place, records, tmp_path)


def test_a_database_that_crashes_is_waited_for(topics, tmp_path):
    """PostgreSQL stops at once, twice, under a projector that goes on when it is back: rows and positions moved together (S9)."""
    records = facts_records(4, rounds=20)
    database = Cluster()
    try:
        place = plain(database.url())
        schema.upgrade(place)
        with projector(topics, place, tmp_path) as process:
            process.until_told("projecting the partitions")
            cluster = Meanwhile(topics, records, 0.3)
            for count in (1, 2):
                until(lambda c=count: min_facts(place) >= 2 * c, "something to be written")
                database.stop(signal.SIGQUIT)
                until(lambda c=count: process.told.count("waiting:") >= c, "it to notice")
                assert process.runs, process.told
                database.start()
            cluster.ends()
            until_projected(place, records, parked=garbage(records), process=process)
        require_equal(topics, place, records, tmp_path)
    finally:
        database.remove()


def test_a_broker_that_restarts_is_waited_for(tmp_path):
    """Kafka goes away and comes back, in order and by a crash: the projector goes on where it was."""
    records = facts_records(4, rounds=20)
    place = tmp_path / "live.db"
    with KafkaServer() as broker:
        settings = KafkaSettings(
            bootstrap=broker.bootstrap, security="plaintext", partitions=4, replication=1
        )
        asyncio.run(apply_topics(settings))
        first = {number: messages[:10] for number, messages in records.items()}
        asyncio.run(publish(settings, first))
        asyncio.run(work(settings, first))
        with projector(settings, place, tmp_path) as process:
            until(lambda: min_facts(place) == 10, "the first half")
            broker.restart()
            asyncio.run(publish(settings, records, begin=10))
            broker.kill()
            broker.start()
            asyncio.run(work(settings, records))
            until_projected(place, records, parked=garbage(records), process=process)
            assert 0 == process.end(), process.told
        require_equal(settings, place, records, tmp_path)


def test_a_rebuild_goes_on_beside_a_projector(topics, place, tmp_path):
    """Read models are built anew and switched while facts and answers come: readers never see half of it (S18)."""
    records = facts_records(4, rounds=20)
    cluster = Meanwhile(topics, records, 0.3)
    rebuilds = 0
    with projector(topics, place, tmp_path) as process:
        until(lambda: min_facts(place) >= 2, "something to be written")
        while cluster.is_alive() or rebuilds < 2:
            done = run("rebuild", "--db", place)
            assert 0 == done.code, done.err
            rebuilds += 1
        until_projected(place, records, parked=garbage(records), process=process)
        assert 0 == process.end(), process.told
    require_equal(topics, place, records, tmp_path)
