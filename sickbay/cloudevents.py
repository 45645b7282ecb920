"""Events to Kafka records and back: CloudEvents 1.0, one event to a record or several of one node as a batch.

A single event is in binary mode: its attributes are headers, its data is the envelope's canonical bytes. A batch is a JSON array
of structured events whose ``data`` are the same bytes, so that both carry what the log hashes. Whoever reads does not care which
it was. Records have a few headers of ours beside those of CloudEvents; they say where a record belongs, never what it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from sickbay.codec import decode_envelope, encode
from sickbay.envelope import Envelope
from sickbay.errors import CodecError
from sickbay.timestamps import format_time_ms
from sickbay.topics import RECORD_BYTES_MAX

SINGLE: Final = b"application/json"
BATCH: Final = b"application/cloudevents-batch+json"

#: Which ingester wrote a facts record: the number of its leadership. What an older one writes later is discarded.
INGEST_EPOCH: Final = "sickbay-ingest-epoch"
#: Of a decisions record: the offset of the facts record that it answers.
FACTS_OFFSET: Final = "sickbay-facts-offset"
#: Of a decisions record: ``part/parts`` when the answer to one facts record takes several.
PART: Final = "sickbay-part"
#: Of a decisions record: what became of the facts record, one of ``OUTCOMES``.
OUTCOME: Final = "sickbay-outcome"
#: ``taken``: folded, with these decisions. ``parked``: could not be folded and stands among the dead letters. ``superseded``:
#: written by an ingester that had been replaced. ``progress``: everything up to and including the offset was answered.
OUTCOMES: Final = ("taken", "parked", "superseded", "progress")

#: A record above this is refused unread: nothing of ours is larger, and decoding it costs memory.
READ_BYTES_MAX: Final = 8 * 1024 * 1024
#: Events of one batch: a batch is folded as a whole, so it must not keep others waiting.
BATCH_EVENTS_MAX: Final = 100

_SOURCE: Final = "/sickbay"
#: Bytes that key, headers and a batch's array add to its events, at most.
_FRAME_BYTES: Final = 1_024

#: What Kafka gives: the value of a header may be null, which only others write.
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class Message(NamedTuple):
    """A record to write, but for its topic and partition."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Opened(NamedTuple):
    """One event of a record: its outside, and the exact bytes that the log keeps."""

    envelope: Envelope
    data: bytes


class _Structured(msgspec.Struct):
    """A CloudEvent of a batch; attributes that are not read are passed over."""

    data: msgspec.Raw


class OversizeError(CodecError):
    """An event that no record can hold."""


_read_batch: Final = msgspec.json.Decoder(list[_Structured]).decode
_encode: Final = msgspec.json.Encoder().encode


def event_type(envelope: Envelope) -> str:
    """Return the CloudEvents type of an event: ``dev.sickbay.<kind>.v<schema version>``."""
    return f"dev.sickbay.{envelope.kind}.v{envelope.schema_version}"


def single(envelope: Envelope, data: bytes | None = None, extra: Iterable[tuple[str, bytes]] = ()) -> Message:
    """Return the record of one event; ``data`` spares encoding it again. Raises OversizeError."""
    data = encode(envelope) if data is None else data
    _require_size(envelope, data)
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", envelope.event_id.encode()),
        ("ce_source", _SOURCE.encode()),
        ("ce_type", event_type(envelope).encode()),
        ("ce_time", format_time_ms(envelope.at_ms).encode()),
        ("content-type", SINGLE),
        *extra,
    ]
    return Message(envelope.key.encode(), data, headers)


def batches(
    key: str, events: Sequence[tuple[Envelope, bytes]], extra: Iterable[tuple[str, bytes]] = ()
) -> list[Message]:
    """Return as few records as hold the events, in their order; one event alone is written as a single one.

    ``key`` is the node, or the stream of the partition. Raises OversizeError for an event that fits no record; take it out
    and ask again.
    """
    extra = list(extra)
    out: list[Message] = []
    waiting: list[tuple[Envelope, bytes]] = []
    size = 0
    for envelope, data in events:
        _require_size(envelope, data)
        added = len(data) + _FRAME_BYTES
        if waiting and (size + added > RECORD_BYTES_MAX or len(waiting) == BATCH_EVENTS_MAX):
            out.append(_batch(key, waiting, extra))
            waiting, size = [], 0
        waiting.append((envelope, data))
        size += added
    if waiting:
        out.append(_batch(key, waiting, extra))
    return out


def _batch(key: str, events: list[tuple[Envelope, bytes]], extra: list[tuple[str, bytes]]) -> Message:
    if len(events) == 1:
        return single(*events[0], extra)
    value = _encode(
        [
            {
                "specversion": "1.0",
                "id": envelope.event_id,
                "source": _SOURCE,
                "type": event_type(envelope),
                "time": format_time_ms(envelope.at_ms),
                "datacontenttype": "application/json",
                "data": msgspec.Raw(data),
            }
            for envelope, data in events
        ]
    )
    return Message(key.encode(), value, [("content-type", BATCH), *extra])


def fits(data: bytes) -> bool:
    """Whether an event of these bytes fits a record."""
    return len(data) + _FRAME_BYTES <= RECORD_BYTES_MAX


def _require_size(envelope: Envelope, data: bytes) -> None:
    if not fits(data):
        raise OversizeError(
            f"{envelope.kind} {envelope.event_id} of {envelope.stream_id!r} has {len(data)} bytes, a record holds"
            f" {RECORD_BYTES_MAX - _FRAME_BYTES}; it is parked with its beginning"
        )


def header(headers: Headers | None, name: str) -> str | None:
    """Return a header's value as text, ``None`` when it is absent. Raises CodecError for null and bytes that are no UTF-8."""
    for key, value in headers or ():
        if key == name:
            if value is None:
                raise CodecError(f"header {name} is null")
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise CodecError(f"header {name} is not UTF-8: {error}") from error
    return None


def whole_header(headers: Headers | None, name: str) -> int | None:
    """Return a header's value as a whole number, ``None`` when it is absent. Raises CodecError for anything else."""
    text = header(headers, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise CodecError(f"header {name} is {text[:40]!r} and not a whole number")
    return int(text)


def unpack(value: bytes | None, headers: Headers | None) -> list[Opened]:
    """Return the events of a record, in their order.

    Raises CodecError for a record that is none of ours: nothing of it is used then.
    """
    if not value:
        raise CodecError("a record without a value is no event")
    if len(value) > READ_BYTES_MAX:
        raise CodecError(f"a record of {len(value)} bytes is no event; the largest has {READ_BYTES_MAX}")
    kind = next((content for name, content in headers or () if name == "content-type"), SINGLE)
    if kind == SINGLE:
        return [Opened(decode_envelope(value), value)]
    if kind != BATCH:
        raise CodecError(f"content type {kind and kind[:80]!r} is none of ours")
    try:
        structured = _read_batch(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not a batch of events: {error}") from error
    return [Opened(decode_envelope(data), data) for data in (bytes(event.data) for event in structured)]
