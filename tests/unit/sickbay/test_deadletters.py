"""Dead letters: what could not be used is kept, always fits, and says whether it can be written again."""

from __future__ import annotations

import msgspec
import pytest

from sickbay.cloudevents import READ_BYTES_MAX
from sickbay.deadletters import VALUE_BYTES_MAX, DeadLetter, letter_message, of_record, read_letter
from sickbay.errors import CodecError
from sickbay.topics import RECORD_BYTES_MAX

DEEP = b"[" * 100_000 + b"]" * 100_000


def letter(**changes):
    given = {
        "topic": "sickbay.facts",
        "partition": 3,
        "offset": 1200,
        "key": b"node-a",
        "value": b"\x00\xff garbage",
        "headers": [("content-type", b"application/json"), ("x", b"\xff")],
        "reason": "not a Sickbay event",
    }
    return of_record(**given | changes)


def again(one):
    return read_letter(letter_message(one).value)


def test_a_record_is_kept_with_its_place_and_every_byte():
    one = letter()
    assert "sickbay.facts/3@1200" == one.place
    assert (b"node-a", b"\x00\xff garbage", 10) == (one.key, one.value, one.value_bytes)
    assert (("content-type", b"application/json"), ("x", b"\xff")) == one.headers
    assert one.is_whole
    assert one == again(one)


def test_the_key_is_the_place_so_that_a_repeat_is_recognised():
    assert b"sickbay.facts/3@1200" == letter_message(letter()).key
    assert letter_message(letter()) == letter_message(letter())


def test_what_was_no_record_has_a_place_and_no_bytes():
    one = DeadLetter(place="watch:pods", reason="no uid", at_ms=17)
    assert not one.is_whole
    assert one == again(one)


@pytest.mark.parametrize(("key", "value", "headers"), [(None, None, None), (b"", b"", [])])
def test_a_record_without_anything_in_it_is_kept(key, value, headers):
    one = letter(key=key, value=value, headers=headers)
    assert (b"", b"", ()) == (one.key, one.value, one.headers)
    assert one.is_whole
    assert one == again(one)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({"value": b"v" * (VALUE_BYTES_MAX + 1)}, {"value_bytes": VALUE_BYTES_MAX + 1}),
        ({"key": b"k" * 4_097}, {"key": b"k" * 4_096}),
        ({"headers": [("h", b"x" * 1_025)]}, {"headers": (("h", b"x" * 1_024),)}),
        ({"headers": [("h" * 257, b"")]}, {"headers": (("h" * 256, b""),)}),
        ({"headers": [("h", b"")] * 33}, {"headers": (("h", b""),) * 32}),
        ({"headers": [("h", None)]}, {"headers": (("h", b""),)}),
    ],
)
def test_what_was_cut_cannot_be_written_again(more, kept):
    one = letter(**more)
    assert not one.is_whole
    assert kept == {name: getattr(one, name) for name in kept}
    assert not again(one).is_whole


@pytest.mark.parametrize(
    "full",
    [
        {"value": b"v" * VALUE_BYTES_MAX},
        {"key": b"k" * 4_096},
        {"headers": [("h" * 256, b"x" * 1_024)] * 32},
    ],
)
def test_what_is_just_not_cut_is_whole(full):
    assert letter(**full).is_whole


def test_the_worst_letter_fits_a_record():
    """One that does not would stop the partition for ever."""
    message = letter_message(
        letter(
            topic="t" * 249,
            key=b"\xff" * 10_000,
            value=b"\xff" * 2_000_000,
            headers=[("\x00" * 1_000, b"\xff" * 10_000)] * 100,
            reason="\ud800" * 1_000_000,
        )
    )
    size = len(message.key) + len(message.value) + sum(len(n) + len(v) for n, v in message.headers)
    assert size <= RECORD_BYTES_MAX


def test_half_a_surrogate_pair_is_written_as_its_escape():
    """JSON of the API server may hold one, and UTF-8 may not."""
    one = again(DeadLetter(place="watch:\ud800", reason="name \udfff"))
    assert (r"watch:\ud800", r"name \udfff") == (one.place, one.reason)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"place":"x"}',
        b'{"place":1,"reason":"r"}',
        b'{"place":"x","reason":"r","value":"no base64"}',
        b'{"place":"\xff","reason":"r"}',
        DEEP,
        b'{"more":' + DEEP + b"}",
        b" " * (READ_BYTES_MAX + 1),
    ],
)
def test_what_is_no_letter_is_refused(value):
    with pytest.raises(CodecError, match="not a dead letter"):
        read_letter(value)


def test_a_letter_of_a_newer_build_is_read_as_far_as_it_is_known():
    more = msgspec.json.decode(letter_message(letter()).value) | {"added": [1]}
    assert letter() == read_letter(msgspec.json.encode(more))
