"""Events as Kafka records and back: one or several to a record, never another byte, and nothing taken that is not ours."""

from __future__ import annotations

import json

import pytest
from facts_of import MINUTE, T0, plugin, word

from sickbay.cloudevents import (
    BATCH,
    BATCH_EVENTS_MAX,
    FACTS_OFFSET,
    PART,
    READ_BYTES_MAX,
    SINGLE,
    OversizeError,
    batches,
    fits,
    header,
    single,
    unpack,
    whole_header,
)
from sickbay.codec import encode, wrap_fact
from sickbay.errors import CodecError
from sickbay.topics import RECORD_BYTES_MAX

DEEP = b"[" * 100_000 + b"]" * 100_000


def event(number=0, message=""):
    envelope = wrap_fact(word(plugin(0), "Unhealthy", T0 + number * MINUTE, 12 + number, message=message))
    return envelope, encode(envelope)


def event_of(size):
    """An event of exactly so many bytes."""
    bare = len(event(message="x")[1]) - 1
    made = event(message="x" * (size - bare))
    assert size == len(made[1])
    return made


def opened(message):
    return [tuple(each) for each in unpack(message.value, message.headers)]


def record_bytes(message):
    return len(message.key) + len(message.value) + sum(len(n) + len(v) for n, v in message.headers)


def with_payload(payload):
    return event()[1].replace(b'"payload":{', b'"payload":{"more":' + payload + b",")


# One event


def test_an_event_alone_is_a_cloudevent_in_binary_mode():
    envelope, data = event()
    message = single(envelope, data)
    assert data == message.value
    assert envelope.key.encode() == message.key
    assert {
        "ce_specversion": b"1.0",
        "ce_id": envelope.event_id.encode(),
        "ce_source": b"/sickbay",
        "ce_type": b"dev.sickbay.device_health_observed.v1",
        "ce_time": b"1970-01-02T03:46:40.000Z",
        "content-type": b"application/json",
    } == dict(message.headers)
    assert [(envelope, data)] == opened(message)


def test_an_event_is_encoded_where_its_bytes_are_not_given():
    envelope, data = event()
    assert data == single(envelope).value


def test_headers_of_ours_are_added_and_read_back():
    message = single(*event(), [(FACTS_OFFSET, b"17"), (PART, b"1/2")])
    assert 17 == whole_header(message.headers, FACTS_OFFSET)
    assert "1/2" == header(message.headers, PART)


def test_a_record_without_a_content_type_is_one_event():
    envelope, data = event()
    assert [(envelope, data)] == [tuple(each) for each in unpack(data, None)]
    assert [(envelope, data)] == [tuple(each) for each in unpack(data, [])]


# Several


def test_several_events_are_one_batch_of_structured_cloudevents():
    events = [event(n) for n in range(3)]
    (message,) = batches("node-a", events, [(FACTS_OFFSET, b"3")])
    assert b"node-a" == message.key
    assert [("content-type", BATCH), (FACTS_OFFSET, b"3")] == message.headers
    assert [
        {
            "specversion": "1.0",
            "id": envelope.event_id,
            "source": "/sickbay",
            "type": "dev.sickbay.device_health_observed.v1",
            "time": f"1970-01-02T03:{46 + n}:40.000Z",
            "datacontenttype": "application/json",
            "data": json.loads(data),
        }
        for n, (envelope, data) in enumerate(events)
    ] == json.loads(message.value)
    assert events == opened(message)


def test_no_events_make_no_record():
    assert [] == batches("node-a", [])


def test_one_event_is_no_batch():
    (message,) = batches("node-a", [event()], [(PART, b"1/1")])
    assert single(*event(), [(PART, b"1/1")]) == message


def test_a_batch_is_full_at_its_number_of_events():
    events = [event(n) for n in range(2 * BATCH_EVENTS_MAX + 1)]
    messages = batches("node-a", events)
    assert [BATCH_EVENTS_MAX, BATCH_EVENTS_MAX, 1] == [len(opened(message)) for message in messages]
    assert events == [each for message in messages for each in opened(message)]


def test_a_batch_is_full_at_the_size_of_a_record():
    events = [event_of(300_000) for _ in range(7)]
    messages = batches("node-a", events)
    assert [3, 3, 1] == [len(opened(message)) for message in messages]
    assert all(record_bytes(message) <= RECORD_BYTES_MAX for message in messages)


def test_a_large_event_stands_alone_between_small_ones():
    large = event_of(RECORD_BYTES_MAX - 1_024)
    events = [event(0), event(1), large, event(2)]
    messages = batches("node-a", events)
    assert [2, 1, 1] == [len(opened(message)) for message in messages]
    assert events == [each for message in messages for each in opened(message)]
    assert all(record_bytes(message) <= RECORD_BYTES_MAX for message in messages)


def test_an_event_above_a_record_is_refused_with_its_size():
    limit = RECORD_BYTES_MAX - 1_024
    assert fits(event_of(limit)[1])
    too_large = event_of(limit + 1)
    assert not fits(too_large[1])
    for write in (lambda: single(*too_large), lambda: batches("node-a", [event(), too_large])):
        with pytest.raises(OversizeError, match=f"{limit + 1} bytes, a record holds {limit}"):
            write()


# What is not ours


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (None, None),
        (b"", None),
        (b"\x00\x01\x02", None),
        (b"\xff\xfe", None),
        (b"null", None),
        (b"[]", None),
        (b'{"kind":"tick"}', None),
        (b'{"a":"\xff"}', None),
        (DEEP, None),
        (with_payload(DEEP), None),
        (event()[1][:-1], None),
        (event()[1], [("content-type", b"application/avro")]),
        (event()[1], [("content-type", b"\xff")]),
        (event()[1], [("content-type", None)]),
        (event()[1], [("content-type", BATCH)]),
        (b"\xff", [("content-type", BATCH)]),
        (b"[null]", [("content-type", BATCH)]),
        (b"[{}]", [("content-type", BATCH)]),
        (b'[{"data":7}]', [("content-type", BATCH)]),
        (b'[{"data":"\xff"}]', [("content-type", BATCH)]),
        (DEEP, [("content-type", BATCH)]),
        (b'[{"data":' + DEEP + b"}]", [("content-type", BATCH)]),
        (b'[{"data":' + with_payload(DEEP) + b"}]", [("content-type", BATCH)]),
        (b"[" + b" " * READ_BYTES_MAX + b"]", [("content-type", BATCH)]),
    ],
)
def test_what_is_no_record_of_ours_is_refused(value, headers):
    with pytest.raises(CodecError):
        unpack(value, headers)


def test_of_a_batch_with_one_wrong_event_nothing_is_used():
    good = event()[1]
    with pytest.raises(CodecError, match="not a Sickbay event"):
        unpack(b'[{"data":' + good + b'},{"data":{}}]', [("content-type", BATCH)])


def test_a_value_above_the_limit_is_refused_unread():
    with pytest.raises(CodecError, match=f"a record of {READ_BYTES_MAX + 1} bytes"):
        unpack(b"{" * (READ_BYTES_MAX + 1), None)


def test_attributes_that_are_not_read_are_passed_over():
    envelope, data = event()
    foreign = b'[{"id":7,"traceparent":["x"],"data":' + data + b',"subject":null}]'
    assert [(envelope, data)] == [tuple(e) for e in unpack(foreign, [("content-type", BATCH)])]


# Headers


def test_the_first_header_of_a_name_counts():
    assert "1" == header([("x", b"0"), (PART, b"1"), (PART, b"2")], PART)


def test_a_header_that_is_absent_is_none():
    assert header(None, PART) is None
    assert header([("content-type", SINGLE)], PART) is None
    assert whole_header([], FACTS_OFFSET) is None


@pytest.mark.parametrize("value", [b"\xff", None])
def test_a_header_that_is_no_text_is_refused(value):
    with pytest.raises(CodecError, match=f"header {PART}"):
        header([(PART, value)], PART)


@pytest.mark.parametrize("value", [b"", b"-1", b"1.0", b" 1", "٣".encode(), b"9" * 19, b"x" * 5_000])
def test_a_header_that_is_no_whole_number_is_refused(value):
    with pytest.raises(CodecError, match="not a whole number") as caught:
        whole_header([(FACTS_OFFSET, value)], FACTS_OFFSET)
    assert len(str(caught.value)) < 200
