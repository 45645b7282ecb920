"""Events to canonical bytes and back, and the upcasters that read old shapes.

Bytes at rest are never rewritten: an old shape is lifted on reading, one version at a time. A newer shape, or a kind this
build does not know, is refused and never guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from sickbay.decisions import Decision
from sickbay.envelope import Envelope, derived_id
from sickbay.errors import CodecError, UnknownEventError, UnsupportedSchemaError
from sickbay.events import KINDS, Event
from sickbay.facts import Fact, Request

#: ``(kind, from version)`` to a pure function that returns the payload of the next version.
UPCASTERS: Final[dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    # version 2 added fields whose absence says what their defaults say
    ("census_taken", 1): lambda payload: payload,
    ("claim_observed", 1): lambda payload: payload,
    ("claims_gate_requested", 1): lambda payload: payload,
    ("move_reported", 1): lambda payload: payload,
    ("move_step_reported", 1): lambda payload: payload,
    ("pod_observed", 1): lambda payload: payload,
}

_encoder: Final = msgspec.json.Encoder(order="sorted")
_envelope_encoder: Final = msgspec.json.Encoder()
_envelope_decoder: Final = msgspec.json.Decoder(Envelope)
_decoders: Final = {kind: msgspec.json.Decoder(cls) for kind, cls in KINDS.items()}


def encode_payload(event: Event) -> bytes:
    """Return the canonical JSON of a typed event: sorted keys, no spaces."""
    return _encoder.encode(event)


def stream_of(fact: Fact) -> str:
    """Return the stream that a fact belongs to: its node, or the partition for what every partition hears."""
    partition = getattr(fact, "partition", None)
    return fact.node if partition is None else f"partition/{partition}"


def fact_id(fact: Fact) -> str:
    """Return the event id of a fact: derived, so a repeat has the same id everywhere."""
    return derived_id(fact.KIND, stream_of(fact), fact.subject, fact.status_version)


def wrap_fact(fact: Fact) -> Envelope:
    """Put a fact in its envelope."""
    stream, subject, version = stream_of(fact), fact.subject, fact.status_version
    return Envelope(
        actor=fact.actor if isinstance(fact, Request) else "sickbay",
        at_ms=fact.observed_at_ms,
        causation_id="",
        correlation_id="",
        event_id=derived_id(fact.KIND, stream, subject, version),
        key=f"{stream}/{subject}/{version}",
        kind=fact.KIND,
        payload=msgspec.Raw(_encoder.encode(fact)),
        policy="",
        schema_version=fact.SCHEMA_VERSION,
        stream_id=stream,
    )


def wrap_decision(decision: Decision, cause: Envelope, ordinal: int, policy: str) -> Envelope:
    """Put a decision in its envelope, as the ``ordinal``-th consequence of ``cause`` under the policy of that hash."""
    return Envelope(
        actor="sickbay",
        at_ms=decision.at_ms,
        causation_id=cause.event_id,
        correlation_id=decision.correlation_id,
        event_id=derived_id(decision.KIND, cause.event_id, decision.subject, str(ordinal)),
        key=f"{decision.node}/{decision.subject}/{cause.key.rsplit('/', 1)[-1]}",
        kind=decision.KIND,
        payload=msgspec.Raw(_encoder.encode(decision)),
        policy=policy,
        schema_version=decision.SCHEMA_VERSION,
        stream_id=decision.node,
    )


def encode(envelope: Envelope) -> bytes:
    """Return the canonical bytes of an event, as they are stored, sent and hashed."""
    return _envelope_encoder.encode(envelope)


def decode_envelope(data: bytes | str) -> Envelope:
    """Read the outside of an event.

    Raises CodecError when ``data`` is not an event.
    """
    try:
        return _envelope_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not a Sickbay event: {error}; expected one JSON envelope") from error


def open_envelope(envelope: Envelope) -> Event:
    """Read the inside of an event, lifting an old shape to today's.

    Raises UnknownEventError for a kind this build does not know, UnsupportedSchemaError for a newer shape, CodecError for a
    payload that does not fit its kind.
    """
    cls = KINDS.get(envelope.kind)
    if cls is None:
        raise UnknownEventError(
            f"event kind {envelope.kind!r} is unknown to this build; read it with a newer one"
        )
    version = envelope.schema_version
    if version > cls.SCHEMA_VERSION:
        raise UnsupportedSchemaError(
            f"{envelope.kind} has schema version {version}, this build reads up to {cls.SCHEMA_VERSION};"
            " read it with a newer build"
        )
    try:
        if version == cls.SCHEMA_VERSION:
            return _decoders[envelope.kind].decode(envelope.payload)
        payload = msgspec.json.decode(envelope.payload)
        while version < cls.SCHEMA_VERSION:
            payload = UPCASTERS[(envelope.kind, version)](payload)
            version += 1
        return msgspec.convert(payload, cls)
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise CodecError(f"{envelope.kind} {envelope.event_id}: {error}") from error
