"""What a projector may take and for how long it may wait, and what it has done: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from projections.merging import Limits


class Tuning(NamedTuple):
    """What a projector may take and for how long it may wait."""

    #: Events and bytes of one transaction, after which it takes no further facts record.
    events_max: int = 2_000
    bytes_max: int = 8 * 1024 * 1024
    #: How long the first event of a transaction may wait for others.
    linger_ms: int = 10
    #: How long the database, or Kafka at the start, may be away before the projector gives up.
    outage_ms: int = 60_000
    #: How long the group waits for a sign of life.
    session_ms: int = 10_000
    limits: Limits = Limits()


@dataclass
class Counters:
    """What a projector has done since it was made."""

    #: Events and transactions that were written, and events that were in the log already under another offset.
    events: int = 0
    batches: int = 0
    repeats: int = 0
    #: Dead letters that were written.
    letters: int = 0
    #: Times that another projector had taken over, and attempts that found the database or Kafka away.
    fenced: int = 0
    outages: int = 0
    #: Wall clock of the last transaction.
    last_write_ms: int | None = None
