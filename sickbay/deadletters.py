"""Dead letters: what could not be used, as a record of ``sickbay.parked``, with enough to look at it and to try it again.

The key is the place, so the same letter parked twice is recognised. Bytes are kept as they came; an API object is kept by its
identity alone, because its content may hold secrets.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sickbay.cloudevents import READ_BYTES_MAX, Headers, Message
from sickbay.errors import CodecError

#: Bytes kept of one value: base64 of it, with the rest, stays below the largest record.
VALUE_BYTES_MAX: Final = 600_000
#: Header of a record that `sickbay parked retry` wrote again: the place of the letter that it comes from.
RETRIED: Final = "sickbay-retried"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that could not be used."""

    #: Where it was found: ``sickbay.facts/3@1200``, ``watch:pods``, ``file.jsonl:17``.
    place: str
    reason: str
    #: Event time, when one was readable.
    at_ms: int | None = None
    #: The record that it was, when it was one; empty and -1 otherwise.
    topic: str = ""
    partition: int = -1
    offset: int = -1
    key: bytes = b""
    headers: tuple[tuple[str, bytes], ...] = ()
    value: bytes = b""
    #: Bytes of the whole value: more than ``value`` has when it was cut.
    value_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it can be written again as it was."""
        return bool(self.topic) and len(self.value) == self.value_bytes


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(DeadLetter).decode


def of_record(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
    reason: str,
) -> DeadLetter:
    """Return the letter of a record that cannot be used."""
    value = value or b""
    return DeadLetter(
        place=f"{topic}/{partition}@{offset}",
        reason=reason,
        topic=topic,
        partition=partition,
        offset=offset,
        key=(key or b"")[:4096],
        headers=tuple((name[:256], content[:4096]) for name, content in (headers or ())[:32]),
        value=value[:VALUE_BYTES_MAX],
        value_bytes=len(value),
    )


def letter_message(letter: DeadLetter) -> Message:
    """Return the record of a letter."""
    return Message(
        letter.place.encode("utf-8", "backslashreplace"),
        _encode(letter),
        [("content-type", b"application/json")],
    )


def read_letter(value: bytes | None) -> DeadLetter:
    """Read a record of the dead-letter topic. Raises CodecError for anything else."""
    if not value or len(value) > READ_BYTES_MAX:
        raise CodecError("not a dead letter: a record without a value, or above the limit")
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(f"not a dead letter: {error}") from error
