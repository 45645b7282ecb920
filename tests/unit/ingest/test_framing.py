"""Bytes of a watch become lines, and lines events."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from ingest.framing import Framer, Unusable, WatchEvent
from sickbay.cluster.wire import decode_json

TEXT = "é 漢 🂡 end"


def line(text=TEXT, **more):
    event = {"type": "MODIFIED", "object": {"metadata": {"name": text}, **more}}
    return json.dumps(event, ensure_ascii=False).encode() + b"\n"


def read(*pieces, limit=1 << 20):
    framer = Framer(limit)
    return [event for piece in pieces for event in framer.feed(piece)], framer


def names(events):
    return [event.object["metadata"]["name"] for event in events]


@pytest.mark.case("C29")
def test_c29_a_line_cut_at_any_byte_reads_as_the_uncut_one():
    data = line() + line("second")
    whole, _ = read(data)
    assert [TEXT, "second"] == names(whole)
    for at in range(len(data) + 1):
        events, framer = read(data[:at], data[at:])
        assert whole == events
        assert 0 == framer.pending


@pytest.mark.case("C29")
def test_c29_byte_by_byte_and_two_lines_in_one_piece_read_alike():
    data = line() + b"\n\r\n" + line("second")
    one_by_one, _ = read(*(data[at : at + 1] for at in range(len(data))))
    assert [TEXT, "second"] == names(one_by_one)


@pytest.mark.case("C29")
def test_c29_a_last_line_without_its_end_is_never_used():
    """W11: it decodes, and still the stream may have broken there."""
    events, framer = read(line() + line("cut")[:-1])
    assert [TEXT] == names(events)
    assert len(line("cut")) - 1 == framer.pending


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n', "UTF-8"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\xed\xa0\x80"}}}\n', "UTF-8"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\\ud800"}}}\n', "not JSON"),
        (b'{"type":"ADDED","object":{"n":NaN}}\n', "not JSON"),
        (b'{"type":"ADDED","object":{"n":Infinity}}\n', "not JSON"),
        (b'{"type":"ADDED","object":{"n":1e999}}\n', "not JSON"),
        (b'{"type":"ADDED","object":\n', "not JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"type":"ADDED"}\n', "no watch event"),
        (b'{"type":7,"object":{}}\n', "no watch event"),
        (b"[]\n", "no watch event"),
    ],
)
def test_w12_a_line_that_cannot_be_used_is_parked_by_its_digest_and_the_stream_goes_on(bad, reason):
    events, _ = read(line("before") + bad + line("after"))
    before, parked, after = events
    assert ["before", "after"] == names([before, after])
    assert isinstance(parked, Unusable)
    assert reason in parked.reason
    assert (len(bad) - 1, sha256(bad[:-1]).hexdigest()) == (parked.size, parked.sha256)
    assert f"{len(bad) - 1} bytes, sha256 {parked.sha256}" == parked.shown


def test_x1_nothing_of_what_cannot_be_used_is_kept():
    secret = b"hunter2-canary"
    spoiled = [
        b'{"type":"ADDED","object":{"env":"%s\xff"}}\n',
        b'{"type":"ADDED","object":{"env":"%s\n',
        b'{"type":"ADDED","%s":{}}\n',
        b'"%s"\n',
        b'{"type":"ADDED","object":{"env":"%s"' + b" " * 2_000 + b"}}\n",
    ]
    events, _ = read(*(text.replace(b"%s", secret) for text in spoiled), limit=1_000)
    assert [Unusable] * len(spoiled) == [type(event) for event in events]
    assert secret.decode() not in repr(events)


def test_w15_a_line_beyond_the_limit_is_parked_and_never_held():
    limit = 10_000
    framer = Framer(limit)
    long = b'{"type":"ADDED","object":{"x":"' + b"x" * 1_000_000 + b'"}}'
    events = list(framer.feed(long[:31]))
    for at in range(31, len(long), 1_000):
        events += framer.feed(long[at : at + 1_000])
        assert len(framer._line) <= limit
    events += framer.feed(b"\n" + line("after"))
    parked, after = events
    assert "1000034 bytes, more than the 10000" in parked.reason
    assert (len(long), sha256(long).hexdigest()) == (parked.size, parked.sha256)
    assert ["after"] == names([after])


def test_w15_a_line_of_exactly_the_limit_is_read():
    data = line("x" * 100)
    events, _ = read(data, limit=len(data) - 1)
    assert [WatchEvent] == [type(event) for event in events]
    events, _ = read(data, limit=len(data) - 2)
    assert [Unusable] == [type(event) for event in events]


def test_a_decoder_says_what_is_wrong():
    with pytest.raises(ValueError, match="malformed"):
        decode_json(b"{nope}")
    assert {"a": 2**70} == decode_json(b'{"a": %d}' % 2**70)
