"""Dead letters: what could not be used, as a record of ``sickbay.parked``, with enough to look at it and to try it again.

The key is the place, so the same letter parked twice is recognised. Bytes are kept as they came; an API object is kept by its
identity alone, because its content may hold secrets.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sickbay.cloudevents import READ_BYTES_MAX, Headers, Message
from sickbay.errors import CodecError

#: Bytes kept of one value: base64 of it, with all of the rest at its limit, stays below the largest record.
VALUE_BYTES_MAX: Final = 600_000
_KEY_BYTES_MAX: Final = 4_096
_HEADERS_MAX: Final = 32
_HEADER_NAME_MAX: Final = 256
_HEADER_BYTES_MAX: Final = 1_024
_TEXT_MAX: Final = 2_000
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
    #: Whether key or headers are not all that there was.
    outside_cut: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it can be written again as it was."""
        return bool(self.topic) and len(self.value) == self.value_bytes and not self.outside_cut


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
    key, value, headers = key or b"", value or b"", headers or ()
    kept = tuple(
        (name[:_HEADER_NAME_MAX], (content or b"")[:_HEADER_BYTES_MAX])
        for name, content in headers[:_HEADERS_MAX]
    )
    return DeadLetter(
        place=f"{topic}/{partition}@{offset}",
        reason=reason,
        topic=topic,
        partition=partition,
        offset=offset,
        key=key[:_KEY_BYTES_MAX],
        headers=kept,
        value=value[:VALUE_BYTES_MAX],
        value_bytes=len(value),
        outside_cut=len(key) > _KEY_BYTES_MAX or list(kept) != list(headers),
    )


def letter_message(letter: DeadLetter) -> Message:
    """Return the record of a letter. It fits its topic whatever was parked: texts are cut, and made such that UTF-8 has them."""
    letter = msgspec.structs.replace(letter, place=_text(letter.place), reason=_text(letter.reason))
    return Message(
        letter.place.encode(),
        _encode(letter),
        [("content-type", b"application/json")],
    )


def _text(text: str) -> str:
    # half a surrogate pair, which JSON may hold and UTF-8 may not
    return text[:_TEXT_MAX].encode("utf-8", "backslashreplace").decode()


def read_letter(value: bytes | None) -> DeadLetter:
    """Read a record of the dead-letter topic. Raises CodecError for anything else."""
    if not value or len(value) > READ_BYTES_MAX:
        raise CodecError("not a dead letter: a record without a value, or above the limit")
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not a dead letter: {error}") from error
