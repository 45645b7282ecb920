"""`sickbay parked` and the parking of letters against a real Kafka: nothing moves on before a letter is safe, and nothing is made up."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.consumer.fetcher import Fetcher
from cli import run

import sickbay.operations.parking
from sickbay.deadletters import VALUE_BYTES_MAX, DeadLetter, of_record, read_letter
from sickbay.errors import ServiceError
from sickbay.kafka import client_arguments
from sickbay.operations.failpoints import FailpointError, arm
from sickbay.operations.parking import park, read_parked

HOSTILE = b'{"message":"bad\n\x1b[2J \xe2\x80\xae"}'


def variables(settings):
    return {
        "SICKBAY_KAFKA_BOOTSTRAP": settings.bootstrap,
        "SICKBAY_KAFKA_PREFIX": settings.prefix,
        "SICKBAY_KAFKA_PARTITIONS": str(settings.partitions),
        "SICKBAY_KAFKA_REPLICATION": str(settings.replication),
    }


@asynccontextmanager
async def producing(settings):
    producer = AIOKafkaProducer(
        **client_arguments(settings, "test"), acks="all", enable_idempotence=True, max_request_size=4_000_000
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def put(settings, *letters):
    """Park letters, as a worker does."""

    async def main():
        async with producing(settings) as producer:
            return await park(producer, settings.topics, letters)

    return asyncio.run(main())


def records(settings, topic):
    """Every record of a topic, by partition and offset."""

    async def main():
        consumer = AIOKafkaConsumer(
            topic, **client_arguments(settings, "test"), group_id=None, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            held = sorted(consumer.assignment())
            ends = await consumer.end_offsets(held)
            found = []
            while len(found) < sum(ends.values()):
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += batch
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            await consumer.stop()

    return asyncio.run(main())


def letter(settings, partition=0, offset=7, value=HOSTILE, reason="not an event", **fields):
    found = of_record(
        settings.topics.facts,
        partition,
        offset,
        b"node-a",
        value,
        [("ce_id", b"e-1"), ("x", b"\xff")],
        reason,
    )
    return msgspec.structs.replace(found, **fields)


def parked(settings, *arguments):
    return run("parked", *arguments, env=variables(settings))


# --- parking ---


def test_letters_are_in_kafka_when_parking_returns(kafka_ready):
    letters = [letter(kafka_ready, offset=number) for number in range(250)]
    assert put(kafka_ready, *letters) == 250
    found = records(kafka_ready, kafka_ready.topics.parked)
    assert letters == [read_letter(record.value) for record in found]
    assert letters[3].place.encode() == found[3].key
    assert put(kafka_ready) == 0


def test_the_largest_letter_fits_its_record(kafka_ready):
    many = tuple((f"header-{number}", b"h" * 4_096) for number in range(40))
    large = of_record(
        kafka_ready.topics.facts, 0, 7, b"k" * 20_000, b"v" * (VALUE_BYTES_MAX + 1), many, "r" * 200_000
    )
    assert put(kafka_ready, large) == 1
    (record,) = records(kafka_ready, kafka_ready.topics.parked)
    found = read_letter(record.value)
    assert len(found.reason) < 5_000
    assert found.value == b"v" * VALUE_BYTES_MAX
    assert not found.is_whole


def test_what_cannot_be_parked_stops_the_one_who_parks(kafka_settings, monkeypatch):
    """The topics are not there: nobody may go on as if the letter were safe."""
    monkeypatch.setattr(sickbay.operations.parking, "LIMIT_S", 1.0)
    with pytest.raises(
        ServiceError, match=r"1 dead letters, the first of .*could not be written to"
    ) as caught:
        put(kafka_settings, letter(kafka_settings))
    assert caught.value.exit_code == 7


def test_a_crash_behind_the_acknowledgement_parks_the_same_letter_twice(kafka_ready):
    arm({"SICKBAY_FAILPOINT": "parking.acknowledged:1:raise"})
    try:
        with pytest.raises(FailpointError):
            put(kafka_ready, letter(kafka_ready))
    finally:
        arm({})
    put(kafka_ready, letter(kafka_ready))
    (row,) = parked(kafka_ready, "list", "--output", "json").json_lines()
    assert (letter(kafka_ready).place, 2) == (row["place"], row["times"])


# --- list ---


def test_nothing_is_parked(kafka_ready):
    done = parked(kafka_ready, "list")
    assert (0, "nothing is parked\n") == done[:2]


def test_nothing_is_missing_where_the_broker_is_slow_to_say_where_the_consumer_begins(
    kafka_ready, monkeypatch
):
    """A consumer asks that by itself while it starts, and the answer may come once we have begun to read."""
    put(kafka_ready, letter(kafka_ready))
    begin, ask, of_itself = (
        Fetcher._update_fetch_positions,
        Fetcher._proc_offset_request,
        ContextVar("of_itself", default=False),
    )

    async def beginning(*arguments):
        of_itself.set(True)
        return await begin(*arguments)

    async def slow(*arguments):
        answer = await ask(*arguments)
        await asyncio.sleep(0.5 if of_itself.get() else 0)
        return answer

    monkeypatch.setattr(Fetcher, "_update_fetch_positions", beginning)
    monkeypatch.setattr(Fetcher, "_proc_offset_request", slow)

    async def places():
        return [found.letter.place async for found in read_parked(kafka_ready)]

    assert [letter(kafka_ready).place] == asyncio.run(places())


def test_letters_are_listed_with_the_newest_last(kafka_ready):
    facts, decisions = kafka_ready.topics.facts, kafka_ready.topics.decisions
    put(
        kafka_ready,
        letter(kafka_ready, offset=1, reason="first \x1b[2J"),
        letter(kafka_ready, partition=2, offset=2),
        of_record(decisions, 1, 3, None, b"x", None, "third"),
        DeadLetter(place="watch:pods", reason="fourth", at_ms=0),
        letter(kafka_ready, offset=5, value=b"v", value_bytes=900),
    )
    rows = parked(kafka_ready, "list", "--output", "json").json_lines()
    places = [f"{facts}/0@1", f"{facts}/2@2", f"{decisions}/1@3", "watch:pods", f"{facts}/0@5"]
    assert places == [row["place"] for row in rows]
    assert ["possible", "possible", "possible", "impossible", "impossible"] == [row["retry"] for row in rows]
    assert ("1970-01-01T00:00:00.000Z", 900) == (rows[3]["at"], rows[4]["value_bytes"])

    def listed(*options):
        return [
            row["place"] for row in parked(kafka_ready, "list", *options, "--output", "json").json_lines()
        ]

    assert places[2:3] == listed("--topic", decisions)
    assert places[1:2] == listed("--topic", facts, "--partition", "2")
    assert [] == listed("--since", "2999-01-01T00:00:00Z")
    assert places == listed("--since", "2026-01-01T00:00:00Z")
    table = parked(kafka_ready, "list", "--limit", "4")
    assert "note: 1 older letters are not shown" in table.err
    assert [place in table.out for place in places] == [False, True, True, True, True]
    assert "\x1b" not in parked(kafka_ready, "list").out


def test_a_record_that_is_no_letter_is_listed_as_one_that_says_so(kafka_ready):
    async def main():
        async with producing(kafka_ready) as producer:
            await producer.send_and_wait(kafka_ready.topics.parked, b"\xff\xfe")

    asyncio.run(main())
    (row,) = parked(kafka_ready, "list", "--output", "json").json_lines()
    assert f"{kafka_ready.topics.parked}/0@0" == row["place"]
    assert row["reason"].startswith("not a dead letter")
    shown = parked(kafka_ready, "show", row["place"], "--output", "json").json_lines()[0]
    assert "hex:fffe" == shown["value"]


# --- show ---


def test_a_letter_is_shown_whole_with_nothing_that_paints(kafka_ready):
    put(kafka_ready, letter(kafka_ready))
    place = letter(kafka_ready).place
    for form in ("table", "json", "csv"):
        done = parked(kafka_ready, "show", place, "--output", form)
        assert done.code == 0
        assert all(line.isprintable() for line in done.out.splitlines())
    (told,) = parked(kafka_ready, "show", place, "--output", "json").json_lines()
    assert told["value"] == '{"message":"bad\\n\\x1b[2J \\u202e"}'
    assert told["headers"] == {"ce_id": "e-1", "x": "hex:ff"}
    assert (place, "node-a", "possible", len(HOSTILE)) == (
        told["place"], told["key"], told["retry"], told["value_bytes"],
    )  # fmt: skip
    assert "header ce_id" in parked(kafka_ready, "show", place).out


def test_what_is_not_parked_cannot_be_shown(kafka_ready):
    done = parked(kafka_ready, "show", "sickbay.facts/0@1")
    assert (2, "") == done[:2]
    assert "nothing of sickbay.facts/0@1 is parked" in done.err


# --- retry ---


def test_a_letter_is_written_again_as_it_was(kafka_ready):
    put(kafka_ready, letter(kafka_ready, partition=3))
    place, facts = letter(kafka_ready, partition=3).place, kafka_ready.topics.facts
    done = parked(kafka_ready, "retry", place, "--output", "json")
    assert (0, [{"place": place, "result": "written", "written_to": f"{facts}/3@0"}]) == (
        done.code,
        done.json_lines(),
    )
    (record,) = records(kafka_ready, facts)
    assert (3, b"node-a", HOSTILE) == (record.partition, record.key, record.value)
    assert (("ce_id", b"e-1"), ("x", b"\xff"), ("sickbay-retried", place.encode())) == record.headers


def test_a_letter_that_came_back_names_where_it_came_from(kafka_ready):
    first = letter(kafka_ready, offset=1)
    put(kafka_ready, first)
    facts = kafka_ready.topics.facts
    assert parked(kafka_ready, "retry", first.place).code == 0
    (record,) = records(kafka_ready, facts)
    again = of_record(
        facts, record.partition, record.offset, record.key, record.value, record.headers, "again"
    )
    put(kafka_ready, again)
    rows = parked(kafka_ready, "list", "--output", "json").json_lines()
    assert [("", first.place), (first.place, again.place)] == [
        (row["retried_from"], row["place"]) for row in rows
    ]
    done = parked(kafka_ready, "retry", "--all-of", facts, "--output", "json")
    assert [again.place] == [row["place"] for row in done.json_lines()]
    record = records(kafka_ready, facts)[-1]
    assert [again.place.encode()] == [value for name, value in record.headers if name == "sickbay-retried"]


def test_all_of_a_topic_are_written_when_that_is_confirmed(kafka_ready):
    facts = kafka_ready.topics.facts
    put(
        kafka_ready,
        *(letter(kafka_ready, partition=1, offset=number, value=b"%d" % number) for number in range(5)),
        letter(kafka_ready, partition=1, offset=0, value=b"0"),
        letter(kafka_ready, partition=2, offset=9, value=b"cut", value_bytes=9_999),
        of_record(kafka_ready.topics.decisions, 0, 0, b"k", b"v", None, "another topic"),
    )
    asked = parked(kafka_ready, "retry", "--all-of", facts)
    assert (2, "") == asked[:2]
    assert "6 letters" in asked.err
    assert "--yes" in asked.err
    assert [] == records(kafka_ready, facts)
    done = parked(kafka_ready, "retry", "--all-of", facts, "--yes", "--output", "json")
    assert done.code == 3
    results = {row["place"]: row["result"] for row in done.json_lines()}
    assert results.pop(f"{facts}/2@9") == "only 3 of its 9999 bytes were kept"
    assert {f"{facts}/1@{number}": "written" for number in range(5)} == results
    found = records(kafka_ready, facts)
    assert [b"0", b"1", b"2", b"3", b"4"] == sorted(record.value for record in found)
    assert {1} == {record.partition for record in found}
    assert [] == records(kafka_ready, kafka_ready.topics.decisions)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value_bytes": 10_000}, "of its 10000 bytes were kept"),
        ({"topic": ""}, "it is no record of a topic"),
        ({"topic": "somebody.elses"}, "somebody.elses takes no old record again"),
        ({"partition": 99}, "has no partition 99"),
    ],
)
def test_what_cannot_be_written_again_is_refused_with_the_reason(kafka_ready, fields, told):
    one = letter(kafka_ready, **fields)
    put(kafka_ready, one)
    done = parked(kafka_ready, "retry", one.place)
    assert (2, "") == done[:2]
    assert told in done.err
    assert [] == records(kafka_ready, kafka_ready.topics.facts)


def test_compacted_topics_take_no_old_record(kafka_ready):
    known = of_record(kafka_ready.topics.known, 0, 1, b"k", b"v", None, "x")
    put(kafka_ready, known)
    assert parked(kafka_ready, "retry", known.place).code == 2
    assert [] == records(kafka_ready, kafka_ready.topics.known)


@pytest.mark.parametrize(
    "arguments", [(), ("a/0@1", "--all-of", "a"), ("a/0@1", "--since", "2026-01-01T00:00:00Z")]
)
def test_wrong_questions_are_refused_before_kafka_is_asked(arguments):
    done = run("parked", "retry", *arguments, env={"SICKBAY_KAFKA_BOOTSTRAP": "127.0.0.1:1"})
    assert done.code == 2


def test_topics_that_are_not_there_are_told_and_not_made(kafka_settings):
    done = parked(kafka_settings, "list")
    assert (7, "") == done[:2]
    assert "sickbay topics apply" in done.err


def test_a_kafka_that_is_not_there_is_told_in_time():
    done = run("parked", "list", env={"SICKBAY_KAFKA_BOOTSTRAP": "127.0.0.1:1"})
    assert (7, "") == done[:2]
    assert "127.0.0.1:1" in done.err
