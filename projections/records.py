"""What goes into the store and comes out of it: one event of the log with its place, and one thing that could not be used.

Values only: nothing here knows SQL.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from sickbay.codec import open_envelope
from sickbay.decisions import CustodyDecision, Decision, MoveDecision
from sickbay.envelope import Envelope
from sickbay.events import KINDS, Event
from sickbay.facts import DeviceHealthObserved, DevicePublished, DeviceWithdrawn, Fact, Request

#: Of a parked thing at most this much is kept, 64 KiB: enough to see what it was, and a flood cannot fill the disk.
PARKED_RAW_BYTES_MAX: Final = 65_536

#: How canonical JSON spells U+0000, which PostgreSQL stores in no text column.
_NUL_ESCAPED: Final = b"\\u0000"
#: What stands for U+0000 in columns and read models: the picture of it. ``data`` keeps the exact bytes.
_NUL_SHOWN: Final = "\u2400"

#: Kinds whose subject is a device.
_DEVICE_KINDS: Final = frozenset(
    kind
    for kind, cls in KINDS.items()
    if issubclass(cls, DeviceHealthObserved | DevicePublished | DeviceWithdrawn | Request | CustodyDecision)
)
#: Kinds whose columns in the log cannot be read from the outside: a request's id may hold the separator of the key, a move's
#: subject is not its device.
OPENED_KINDS: Final = frozenset(
    kind for kind, cls in KINDS.items() if issubclass(cls, Request | MoveDecision)
)


class LogRecord(NamedTuple):
    """One event at its place in the log.

    ``chain`` is the head after this event (see ``projections.chain``); empty lets the store compute it. ``event`` is the
    decoded inside when the caller has it, else ``None``.
    """

    partition: int
    offset: int
    envelope: Envelope
    #: The exact canonical bytes, as ``sickbay.codec.encode`` gives them.
    data: bytes
    chain: bytes = b""
    event: Fact | Decision | None = None


class ParkedItem(NamedTuple):
    """Something that could not be used, kept with the reason so that nothing is dropped in silence."""

    #: Where it came from: ``file.jsonl:17``, ``sickbay.facts/3@1200``.
    place: str
    reason: str
    raw: bytes
    #: Event time, when one was readable.
    at_ms: int | None = None


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value


def shown(text: str) -> str:
    """Return ``text`` with U+0000 replaced by its picture, so that every database stores the same text."""
    return text.replace("\0", _NUL_SHOWN) if "\0" in text else text


def projected(record: LogRecord) -> Event:
    """Return the decoded event as read models see it: without U+0000.

    Raises CodecError and its kin when the bytes cannot become an event of this build.
    """
    event = record.event if record.event is not None else open_envelope(record.envelope)
    if _NUL_ESCAPED not in record.data:
        return event
    return msgspec.convert(_shown(msgspec.to_builtins(event)), KINDS[event.KIND])


def _subject_and_device(record: LogRecord) -> tuple[str, str | None]:
    envelope = record.envelope
    if envelope.kind in OPENED_KINDS:
        event = record.event if record.event is not None else open_envelope(envelope)
        return event.subject, getattr(event, "device_id", "") or None
    subject = envelope.key[len(envelope.stream_id) + 1 :].rpartition("/")[0]
    return subject, subject if envelope.kind in _DEVICE_KINDS else None


def log_row(record: LogRecord, chain: bytes) -> tuple[Any, ...]:
    """Return the row of ``event_log``, in the order of its columns.

    The same bytes give the same row, whether the caller decoded the event or not. Raises CodecError for a request or a move
    that cannot be decoded.
    """
    envelope = record.envelope
    subject, device_id = _subject_and_device(record)
    row = (
        record.partition,
        record.offset,
        envelope.event_id,
        envelope.kind,
        envelope.stream_id,
        envelope.key,
        subject,
        device_id,
        envelope.at_ms,
        envelope.causation_id,
        envelope.correlation_id,
        envelope.actor,
        envelope.policy,
        envelope.schema_version,
        record.data,
        chain,
    )
    if _NUL_ESCAPED in record.data:
        return tuple(_shown(value) for value in row)
    return row
