"""How far behind the cluster an answer is, told from what stands in the topics and never from Kafka being quiet.

Ingest writes a tick into every partition while it hears the cluster, and a worker says of every facts record that it was answered,
with a decision or a mark (docs/live.md). So a partition is known up to the newest tick that was read and answered; when ingest is
blind, a worker stands still or this process lags, that tick grows old, whichever it is. The end of a topic would say less: nothing
is behind when nobody writes. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

#: Ticks of a partition that wait to be answered; of more the oldest are forgotten, and the view counts as older than it is.
WAITING_MAX: Final = 1_000


class Freshness:
    """Event time up to which every partition is known."""

    def __init__(self, partitions: int) -> None:
        self._waiting: dict[int, deque[tuple[int, int]]] = {
            number: deque(maxlen=WAITING_MAX) for number in range(partitions)
        }
        self._known_ms: dict[int, int] = {}

    def ticked(self, partition: int, offset: int, at_ms: int) -> None:
        """Take in the tick that stands at an offset of the facts."""
        self._waiting[partition].append((offset, at_ms))

    def known_ms(self, answered: Mapping[int, int]) -> int | None:
        """Return up to when everything is known, ``None`` while that cannot be told.

        ``answered`` is the newest facts offset that decisions were read for, by partition.
        """
        for number, waiting in self._waiting.items():
            until = answered.get(number, -1)
            while waiting and waiting[0][0] <= until:
                at_ms = waiting.popleft()[1]
                self._known_ms[number] = max(at_ms, self._known_ms.get(number, 0))
        if len(self._known_ms) < len(self._waiting):
            return None
        return min(self._known_ms.values())
