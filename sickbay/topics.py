"""Names and shapes of the event streams: data, not calls.

The embedded store and Kafka use the same partition count rule, so that a log moves between them unchanged.
"""

from __future__ import annotations

from typing import Final

FACTS: Final = "sickbay.facts"
DECISIONS: Final = "sickbay.decisions"

#: Partitions of a new store. Eight feeds four workers twice over and keeps the ticks, which go to every partition, few.
PARTITIONS_DEFAULT: Final = 8


def broadcast_stream(partition: int) -> str:
    """Return the stream id of events that every partition hears: ticks, gaps, breaker states, policies."""
    return f"partition/{partition}"
