"""The projector on a real Kafka: what it writes, where it stops, and what proves that nothing is missing."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from contextlib import closing

import kafka_topics as administrator
import pytest
from cli import run
from databases import DATABASES, places
from projecting import (
    expected_digests,
    parked_rows,
    projector,
    sources_of,
    until_projected,
    variables,
)
from tiny_worker import GARBAGE, TinyWorker, facts_records, letters, producing, progress, publish, send, work

from projections.consumer import Projector
from projections.engine import Store
from projections.sources import Source
from projections.tuning import Tuning
from projections.verify_live import verify_topics
from sickbay.cloudevents import FACTS_OFFSET, OUTCOME, PART, Message
from sickbay.errors import MergeError, ServiceError, StoreError, VerifyError
from sickbay.operations.topics import apply_topics

#: In one process, with no session to wait for.
QUICK = Tuning(outage_ms=1_000, session_ms=6_000)


@pytest.fixture(scope="module")
def records():
    return facts_records(4)


@pytest.fixture(params=DATABASES)
def place(request, tmp_path):
    """A fresh place for a store, on each database."""
    with places(request.param, tmp_path) as place:
        yield place("live")


@pytest.fixture
def filled(kafka_settings, records):
    """An installation whose topics hold facts and the answers to them."""
    fill(kafka_settings, records)
    return kafka_settings


def fill(settings, records):
    async def both():
        await apply_topics(settings)
        await publish(settings, records)
        await work(settings, records)

    asyncio.run(both())


def project(settings, place, *, until_written=None, tuning=QUICK, **options):
    """Run a projector in this process until the store holds what is named, or until it raises."""
    made = Projector(settings, place, tuning=tuning, **options)

    async def running():
        task = asyncio.create_task(made.run())
        if until_written is not None:
            async with asyncio.timeout(60):
                while not (task.done() or await asyncio.to_thread(until_written)):  # noqa: ASYNC110 - it asks a database
                    await asyncio.sleep(0.02)
            made.stop()
        async with asyncio.timeout(60):
            await task

    asyncio.run(running())
    return made


def holds(place, records):
    wanted = {("facts", number): len(messages) for number, messages in records.items()}
    wanted["parked", 0] = sum(message is GARBAGE for messages in records.values() for message in messages)

    def written():
        there = sources_of(place)
        return all(there.get(source, -1) >= offset for source, offset in wanted.items())

    return written


def test_what_the_topics_hold_is_in_the_store(filled, place, records, tmp_path):
    """Log, read models and dead letters are those of the fold alone; batches, parts, repeats and garbage are all among them."""
    made = project(filled, place, until_written=holds(place, records))
    with Store.open(place) as store:
        digests = store.digests()
        assert digests == expected_digests(filled, records, tmp_path)
        assert [
            (item.place, item.reason, item.raw) for item in sorted(letters(filled, records))
        ] == parked_rows(store)
        assert made.counters.events == sum(1 for p in range(4) for _ in store.read(p))
        assert 0 < made.counters.repeats
        assert {0} == {made._metrics.positions.lag_records(number) for number in range(4)}
    # another one finds nothing to do
    again = project(filled, place, until_written=lambda: True)
    assert 0 == again.counters.events


def test_the_proof_reads_the_topics_again(filled, place, records):
    """`verify --live` says how much is equal, as one line and in JSON, and makes the other proofs too."""
    project(filled, place, until_written=holds(place, records))
    done = run("verify", "--db", place, "--live", env=variables(filled))
    assert 0 == done.code, done.err
    with Store.open(place) as store:
        causes = [bool(r.envelope.causation_id) for p in range(4) for r in store.read(p)]
    line = f"live: {causes.count(False)} facts and {causes.count(True)} decisions of 4 partitions in Kafka equal those in the store"
    assert line == done.out.splitlines()[0]
    assert "replay equals live byte for byte" in done.out


def test_the_proof_says_of_how_much_nothing_is_proved_yet(filled, place, records):
    """A store that lags, or has another projector's half of the partitions, is equal as far as it goes, and that is said."""
    project(filled, place, until_written=holds(place, records))
    message = records[1][0]
    asyncio.run(publish(filled, {1: [message, message]}))
    done = run("verify", "--db", place, "--live", env=variables(filled))
    assert 0 == done.code, done.err
    assert "2 records behind in 1 partitions: of those nothing is proved yet" in done.out.splitlines()[0]


def test_a_difference_is_found_wherever_it_is(filled, tmp_path, records):
    """An event that is missing, one that is changed, one too many, a position too far: each is named by its place."""
    place = tmp_path / "live.db"
    project(filled, place, until_written=holds(place, records))

    def told(statement):
        path = tmp_path / "changed.db"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(place)) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
            for (trigger,) in copy.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall():
                copy.execute(f"DROP TRIGGER {trigger}")
            copy.execute(statement)
            copy.commit()
        with Store.open(path) as store, pytest.raises((VerifyError, ServiceError, StoreError)) as caught:
            asyncio.run(verify_topics(filled, store))
        return str(caught.value)

    at = "partition_number = 2 AND log_offset = 5"
    assert "partition 2 offset 5 has no event" in told(f"DELETE FROM event_log WHERE {at}")
    swapped = f"UPDATE event_log SET data = (SELECT data FROM event_log WHERE partition_number = 2 AND log_offset = 4) WHERE {at}"
    assert "the topics lead to other bytes there" in told(swapped)
    assert "the log was written up to" in told(
        "UPDATE checkpoint SET next_offset = next_offset + 1 WHERE partition_number = 2"
    )
    assert "ends at offset" in told(
        "UPDATE source_position SET next_offset = next_offset + 50 WHERE topic = 'facts' AND partition_number = 2"
    )
    assert "it was made again" in told(
        "UPDATE source_position SET topic_identity = 'x/y' WHERE topic = 'decisions'"
    )
    assert "and no topic of Kafka" in told("UPDATE store_meta SET source_id = 'embedded'")
    assert "it was made again" in told("UPDATE store_meta SET source_id = 'kafka:x/y'")


# --- where it stops ---


def test_facts_without_an_answer_are_not_written(kafka_settings, tmp_path, records):
    """What the workers have not come to yet waits, and comes later at the same place."""
    place, half = tmp_path / "live.db", {number: messages[:9] for number, messages in records.items()}

    async def begin():
        await apply_topics(kafka_settings)
        await publish(kafka_settings, records)
        await work(kafka_settings, half)

    asyncio.run(begin())
    project(
        kafka_settings,
        place,
        until_written=lambda: all(sources_of(place).get(("facts", number)) == 9 for number in range(4)),
    )
    with Store.open(place) as store:
        assert {9} == {offset for (topic, _), (_, offset) in store.sources().items() if topic == "facts"}
    asyncio.run(work(kafka_settings, records))
    project(kafka_settings, place, until_written=holds(place, records))
    with Store.open(place) as store:
        digests = store.digests()
    assert expected_digests(kafka_settings, records, tmp_path) == digests


def test_workers_that_answer_all_again_change_nothing(filled, tmp_path, records):
    """Every answer comes a second and a third time, before and after the projector came by."""
    place = tmp_path / "live.db"
    asyncio.run(work(filled, records))
    project(filled, place, until_written=holds(place, records))
    with Store.open(place) as store:
        digests, before = store.digests(), store.sources()[Source("decisions", 0)][1]
    asyncio.run(work(filled, records))
    asyncio.run(publish(filled, {0: records[0][:1]}))
    asyncio.run(send_one(filled, filled.topics.decisions, 0, progress(len(records[0]))))
    more = {("facts", 0): len(records[0]) + 1}
    project(filled, place, until_written=lambda: sources_of(place).items() >= more.items())
    with Store.open(place) as store:
        assert digests["event_log"] == store.digests()["event_log"]
        assert before < store.sources()[Source("decisions", 0)][1]


async def send_one(settings, topic, partition, message):
    async with producing(settings) as producer:
        await send(producer, topic, partition, [message])


def test_an_answer_that_does_not_fit_stops_it(filled, tmp_path, records):
    """Topics that do not belong together are named by the place, nothing is skipped, and the process exits with 4."""
    place = tmp_path / "live.db"
    project(filled, place, until_written=holds(place, records))
    worker = TinyWorker(2)
    answers = [a for n, m in enumerate(records[2]) for a in worker.answer(n, m.value, m.headers)]
    fault = next(message for message in answers if dict(message.headers)[OUTCOME] == b"taken")
    count = len(records[2])
    asyncio.run(publish(filled, {2: records[2][:1]}))
    headers = [
        (name, str(count).encode() if name == FACTS_OFFSET else value)
        for name, value in fault.headers
        if name != PART
    ]
    asyncio.run(send_one(filled, filled.topics.decisions, 2, Message(b"", fault.value, headers)))
    with pytest.raises(MergeError, match=rf"was caused by .* not in {filled.topics.facts}/2@{count}"):
        project(filled, place)
    assert count == sources_of(place)["facts", 2]
    with projector(filled, place, tmp_path) as process:
        assert 4 == process.wait()
        assert "the two topics do not belong together" in process.told


def test_records_that_were_deleted_before_they_were_projected_stop_it(filled, tmp_path):
    """A hole is told, not jumped over (T1): at the start, and again at the next start."""
    asyncio.run(administrator.delete_records(filled.bootstrap, filled.topics.facts, 1, 3))
    for _ in range(2):
        with pytest.raises(
            ServiceError, match=rf"{filled.topics.facts}/1 begins at offset 3 and is to be read"
        ):
            project(filled, tmp_path / "live.db")


def test_a_topic_that_lost_its_end_stops_it(filled, tmp_path, records):
    """A store that is ahead of Kafka says so (T12) and waits for nobody."""
    place = tmp_path / "live.db"
    project(filled, place, until_written=holds(place, records))
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("UPDATE source_position SET next_offset = 500 WHERE topic = 'facts'")
        connection.commit()
    with pytest.raises(ServiceError, match="and was read up to 500: Kafka lost records"):
        project(filled, place)


@pytest.mark.parametrize("role", ["facts", "decisions", "parked"])
def test_a_topic_that_was_made_again_is_refused(filled, tmp_path, records, role):
    """Under the same name, with more records than before: the store is pinned to the old one (T4)."""
    place = tmp_path / "live.db"
    project(filled, place, until_written=holds(place, records))
    name = getattr(filled.topics, role)
    asyncio.run(administrator.delete(filled.bootstrap, name))
    fill(filled, records)
    before = sources_of(place)
    with pytest.raises(StoreError, match="was made again, or this is another cluster"):
        project(filled, place)
    assert before == sources_of(place)
    done = run("verify", "--db", place, "--live", env=variables(filled))
    assert 6 == done.code
    assert "made again" in done.err


def test_a_topic_that_is_made_again_under_it_stops_it(filled, tmp_path, records):
    """It notices while it runs, by the partitions that went away and came back, and writes nothing of the new topic."""
    place = tmp_path / "live.db"
    with projector(filled, place, tmp_path) as process:
        until_projected(place, records, process=process)
        asyncio.run(administrator.delete(filled.bootstrap, filled.topics.facts))
        time.sleep(1)  # it learns of it when it next asks, and not when the topic is there again by then
        asyncio.run(apply_topics(filled))
        asyncio.run(publish(filled, records))
        asyncio.run(publish(filled, records))
        before = sources_of(place)
        code = process.wait(90)
        assert code in (5, 7), process.told
    assert before == sources_of(place)


def test_topics_that_are_not_as_they_must_be_stop_it(kafka_settings, tmp_path):
    """A missing topic is waited for as long as an outage, and then told with the command that makes it."""
    with pytest.raises(ServiceError, match="sickbay topics apply"):
        project(kafka_settings, tmp_path / "live.db")
    asyncio.run(apply_topics(kafka_settings))
    asyncio.run(administrator.add_partitions(kafka_settings.bootstrap, kafka_settings.topics.facts, 6))
    with pytest.raises(ServiceError, match="6"):
        project(kafka_settings, tmp_path / "live.db")


def test_a_store_of_recordings_is_refused(filled, tmp_path):
    """Its log is another one, and stays as it is."""
    place = tmp_path / "recorded.db"
    Store.open(place, create=True, partitions=4).close()
    with pytest.raises(StoreError, match="follows the log 'embedded' and not 'kafka:"):
        project(filled, place)


def test_requests_are_not_written_beside_the_topics(filled, tmp_path, records):
    """`hold` on such a store asks where Kafka is and writes nothing itself; questions are answered without a note."""
    place = tmp_path / "live.db"
    project(filled, place, until_written=holds(place, records))
    before = Store.open(place, read_only=True).positions()
    device = "dra:gpu.example.com/node-1/gpu-0"
    done = run(
        "hold", device, "--db", place, "--reason", "loud", "--until", "2030-01-01T00:00:00Z",
        env={"SICKBAY_KAFKA_BOOTSTRAP": ""},
    )  # fmt: skip
    assert 2 == done.code, done
    assert "SICKBAY_KAFKA_BOOTSTRAP" in done.err
    assert before == Store.open(place, read_only=True).positions()
    assert "" == run("episodes", "--db", place).err


def test_sigterm_finishes_and_leaves(filled, tmp_path, records):
    """It ends with 0 after the transaction under way, has told Kafka where it stands, and left the group."""
    place = tmp_path / "live.db"
    with projector(filled, place, tmp_path, options=["--http-port", "0"]) as process:
        until_projected(place, records, process=process)
        assert 0 == process.end(), process.told
    committed = asyncio.run(administrator.committed(filled.bootstrap, filled.topics.project_group))
    assert (
        committed.items()
        >= {(filled.topics.facts, number): len(messages) for number, messages in records.items()}.items()
    )
    # nobody waits for a member that is gone
    with projector(filled, place, tmp_path) as process:
        process.until_told("projecting the partitions [0, 1, 2, 3]")
        assert 0 == process.end(signal.SIGTERM)
