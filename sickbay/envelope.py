"""The outside of every event: who it is, whose it is, when it was true, what caused it.

It knows nothing of the kinds of event; ``sickbay.events`` does. It must never hold a time of writing, so that equal inputs
give equal bytes. Kafka's record timestamp and the SQL row carry that instead.
"""

from __future__ import annotations

from hashlib import sha1, sha256
from typing import Final

import msgspec

#: Namespace of every derived id (uuid5, RFC 9562). Changing it changes every id ever written.
NAMESPACE: Final = bytes.fromhex("6f6a3c0e5b1d5d0d9c3e1f2a7b8c9d01")

#: Stream of what concerns the whole cluster and not one node.
CLUSTER_STREAM: Final = ""


def derived_id(*parts: str) -> str:
    """Return the uuid5 of ``parts`` as lower-case text; equal parts give an equal id on every machine.

    Parts are joined by NUL, which no Kubernetes name can hold, so two different lists never meet.
    """
    digest = bytearray(sha1(NAMESPACE + "\0".join(parts).encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def partition_of(node: str, partitions: int) -> int:
    """Return the partition of a node: the first 8 bytes of SHA-256 of its UTF-8 name, big-endian, modulo ``partitions``.

    Every producer uses this one function, so that all facts of a node stay in order in one partition (design, section 3).
    """
    return int.from_bytes(sha256(node.encode()).digest()[:8], "big") % partitions


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One event as it is stored.

    Fields stand in alphabetical order: that is the canonical JSON order of the bytes that the hash chain covers.
    """

    #: Who asked or acted: ``sickbay``, a person, an executor.
    actor: str
    #: Event time in milliseconds since the Unix epoch.
    at_ms: int
    #: Id of the event that caused this one; empty for a fact.
    causation_id: str
    #: The episode, incident or move that this belongs to; empty where there is none.
    correlation_id: str
    #: Derived from node, subject, status version and kind.
    event_id: str
    #: ``node/subject/status_version``, the Kafka key.
    key: str
    #: Wire name, never a class path.
    kind: str
    #: Canonical JSON of the typed event.
    payload: msgspec.Raw
    #: Hash of the policy that decided; empty for a fact.
    policy: str
    #: Shape of ``payload``; see the upcasters in ``sickbay.codec``.
    schema_version: int
    #: The node's name, ``partition/N`` for what every partition hears, empty for the cluster.
    stream_id: str
