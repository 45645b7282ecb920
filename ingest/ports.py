"""What an ingester needs from whatever keeps its facts: Kafka, or a store in the same process. Contracts only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sickbay.deadletters import DeadLetter
from sickbay.facts import Fact


class Memory(NamedTuple):
    """What was told before this ingester started."""

    #: At least the newest fact of every subject on every node, in any order; several of one subject may come.
    facts: Iterable[Fact]
    #: The highest ingest epoch that wrote anything, 0 when nobody did.
    ingest_epoch: int
    #: The newest ``observed_at_ms`` of all, ``None`` when there is nothing.
    last_ms: int | None


class FactLog(Protocol):
    """Where facts go, and where they are remembered from."""

    @property
    def partitions(self) -> int:
        """How many partitions hear what everybody hears."""
        ...

    async def recall(self) -> Memory:
        """Return what was told. Raises ServiceError or StoreError."""
        ...

    def lead(self, ingest_epoch: int) -> None:
        """Write under this epoch from here on; it is higher than every one before it."""
        ...

    async def publish(self, facts: Sequence[Fact]) -> None:
        """Take facts in their order; waits while too many wait, so that the reading stops. Raises what ``drain`` raises."""
        ...

    async def drain(self) -> None:
        """Wait until every fact that was taken is kept for good.

        Raises ServiceError or StoreError when that cannot be: nothing that was not acknowledged counts as told then.
        """
        ...

    async def park(self, letters: Sequence[DeadLetter]) -> None:
        """Keep what could not be used; the same letter again is the same letter. Raises what ``publish`` raises."""
        ...

    @property
    def waiting(self) -> int:
        """Facts taken and not kept yet."""
        ...

    async def close(self) -> None:
        """Let go of everything, waiting for what was taken as long as its own time limit."""
        ...
