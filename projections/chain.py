"""The hash chain that makes the event log tamper-evident: pure, so that anybody can verify a log offline.

``h_0 = SHA-256(constant || partition number)`` and ``h_n = SHA-256(h_(n-1) || data_n)`` over the exact stored bytes, in offset
order, one chain for each partition. A deleted, inserted, changed or swapped event breaks the chain where it stands; a cut
tail is seen only against a head kept elsewhere (the checkpoint, or a head that was printed, signed or sent away). The chain
proves nothing against somebody who may rewrite the log *and* every copy of the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from sickbay.errors import VerifyError

_GENESIS: Final = b"sickbay.event_log/partition/"


def first_head(partition: int) -> bytes:
    """Return ``h_0`` of a partition: 32 bytes that depend on nothing but its number."""
    return sha256(_GENESIS + str(partition).encode()).digest()


def next_hash(head: bytes, data: bytes) -> bytes:
    """Return the head after ``data``, the canonical bytes of the next event."""
    return sha256(head + data).digest()


def verify_links(
    partition: int, links: Iterable[tuple[int, bytes, bytes]], *, head: bytes, position: int | None = None
) -> int:
    """Recompute the chain of a whole partition and return the number of events.

    ``links`` yields ``(offset, data, stored chain)`` from the first event on; ``head`` is the head it must end with, and
    ``position`` the next offset that was recorded with that head. Raises VerifyError at the first place that disagrees.
    """
    current, last, count = first_head(partition), -1, 0
    for offset, data, stored in links:
        if offset <= last:
            raise VerifyError(
                f"partition {partition}: offset {offset} follows {last}; the log is not in order, restore it"
            )
        current, last, count = next_hash(current, data), offset, count + 1
        if stored != current:
            raise VerifyError(
                f"partition {partition} offset {offset}: the hash chain breaks here; an event at or before this place was"
                " changed, removed or inserted: restore the log from a copy whose head is known"
            )
    if current != head:
        raise VerifyError(
            f"partition {partition}: the chain ends after offset {last} with {current.hex()}, but its head was recorded as"
            f" {head.hex()}: the tail was cut or added to; restore the log from a copy"
        )
    if position is not None and last >= position:
        raise VerifyError(
            f"partition {partition}: offset {last} stands at or after the recorded position {position};"
            " restore the log and its checkpoint together"
        )
    return count
