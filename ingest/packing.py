"""Which facts share a record: one to a record while few wait, those of one partition together while many do.

Faust pays for every record and hardly for what is in it, so a storm is sent as batches. The design (section 3) speaks of batches
of one node; two thousand facts a second of two hundred nodes then go out one by one (docs/benchmarks.md), so a batch takes what
waits for its partition, in its order. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from sickbay.cloudevents import BATCH_EVENTS_MAX, Message, batches, fits, single
from sickbay.codec import encode, wrap_fact
from sickbay.envelope import Envelope, partition_of
from sickbay.facts import Fact
from sickbay.topics import RECORD_BYTES_MAX, broadcast_stream

#: Facts that may wait and still get a record each.
SINGLE_FACTS_MAX: Final = 32
#: Longest key in bytes: with it the largest value is still below what a broker takes (faults, P8, S14).
KEY_BYTES_MAX: Final = 16_384
#: Beginning of a fact that is kept in its dead letter.
_KEPT_BYTES: Final = 4_096
#: Characters of a name in a refused fact's identity: more than Kubernetes gives any.
_NAMED_MAX: Final = 512
#: Bytes that a batch adds to one of its events, at most.
_FRAME_BYTES: Final = 2_048

Headers: TypeAlias = Sequence[tuple[str, bytes]]


class Wrapped(NamedTuple):
    """A fact in its envelope, and the bytes that the log keeps."""

    envelope: Envelope
    data: bytes


class Packed(NamedTuple):
    """One record to write."""

    partition: int
    message: Message
    #: What is in it, in its order.
    events: tuple[Wrapped, ...]


class Refused(NamedTuple):
    """A fact that no record can hold."""

    #: Kind, node and subject, as ASCII text.
    identity: str
    reason: str
    at_ms: int
    #: Its beginning, where it could be encoded at all.
    data: bytes
    #: Bytes of the whole.
    size: int


def partition_of_fact(fact: Fact, partitions: int) -> int:
    """Return the partition of a fact: its own for what every partition hears, else that of its node."""
    number: int | None = getattr(fact, "partition", None)
    return partition_of(fact.node, partitions) if number is None else number


def pack(
    facts: Sequence[Fact], partitions: int, headers: Headers = (), *, single_max: int = SINGLE_FACTS_MAX
) -> tuple[list[Packed], list[Refused]]:
    """Return the records of ``facts``, those of each partition in the order to send them, and what no record can hold.

    Up to ``single_max`` facts get a record each.
    """
    refused: list[Refused] = []
    by_partition: dict[int, list[Wrapped]] = {}
    for fact in facts:
        wrapped = _wrap(fact, partitions)
        if isinstance(wrapped, Refused):
            refused.append(wrapped)
        else:
            by_partition.setdefault(partition_of_fact(fact, partitions), []).append(wrapped)
    packed: list[Packed] = []
    for number, waiting in sorted(by_partition.items()):
        if len(facts) <= single_max:
            packed += [Packed(number, single(*event, headers), (event,)) for event in waiting]
        else:
            packed += _batches(number, waiting, headers)
    return packed, refused


def _batches(number: int, events: list[Wrapped], headers: Headers) -> Iterable[Packed]:
    for chunk in _chunks(events):
        streams = {event.envelope.stream_id for event in chunk}
        key = streams.pop() if len(streams) == 1 else broadcast_stream(number)
        # a chunk is cut more narrowly than a batch is, so it is one
        (message,) = batches(key, chunk, headers)
        yield Packed(number, message, tuple(chunk))


def _chunks(events: list[Wrapped]) -> Iterable[list[Wrapped]]:
    chunk: list[Wrapped] = []
    size = 0
    for event in events:
        added = len(event.data) + _FRAME_BYTES
        if chunk and (size + added > RECORD_BYTES_MAX or len(chunk) == BATCH_EVENTS_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(event)
        size += added
    if chunk:
        yield chunk


def _wrap(fact: Fact, partitions: int) -> Wrapped | Refused:
    """Put a fact in its envelope, or say why that cannot be."""
    try:
        envelope = wrap_fact(fact)
        data = encode(envelope)
        key_bytes = len(envelope.key.encode())
        partition = partition_of_fact(fact, partitions)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # a lone surrogate is no Unicode, a number beyond 64 bits is no JSON of ours
        return Refused(
            identity_of(fact), f"it cannot be encoded: {str(error)!a}", fact.observed_at_ms, b"", 0
        )
    if not fits(data):
        reason = f"it has {len(data)} bytes; a record holds {RECORD_BYTES_MAX}"
    elif key_bytes > KEY_BYTES_MAX:
        reason = f"its key has {key_bytes} bytes; a record's key holds {KEY_BYTES_MAX}"
    elif not 0 <= partition < partitions:
        reason = f"it is for partition {partition}; there are {partitions}"
    else:
        return Wrapped(envelope, data)
    return Refused(identity_of(fact), reason, fact.observed_at_ms, data[:_KEPT_BYTES], len(data))


def identity_of(fact: Fact) -> str:
    """Return kind, node and subject of a fact as ASCII text of limited length."""
    return f"{fact.KIND} of {ascii(fact.subject)[:_NAMED_MAX]} on {ascii(fact.node)[:_NAMED_MAX]}"
