"""A FactLog in memory: what was told, in order, and what goes wrong when a test says so."""

from __future__ import annotations

from ingest.ports import Memory
from sickbay.errors import ServiceError


class MemoryLog:
    """``kept`` is what survives; ``taken`` what waits for ``drain``. With ``eager`` everything is kept at once."""

    def __init__(self, kept=(), *, epoch=0, partitions=2, eager=True):
        self.kept = list(kept)
        self.taken = []
        self.letters = []
        self.epoch = epoch
        self.led = []
        self.partitions = partitions
        self.eager = eager
        self.calls = []
        #: Facts after which publishing fails.
        self.fails_after = None
        self.closed = False

    @property
    def waiting(self):
        return len(self.taken)

    async def recall(self):
        last_ms = max((fact.observed_at_ms for fact in self.kept), default=None)
        return Memory(list(self.kept), self.epoch, last_ms)

    def lead(self, ingest_epoch):
        self.led.append(ingest_epoch)

    async def publish(self, facts):
        self.calls.append(("publish", len(facts)))
        if self.fails_after is not None and len(self.kept) + len(self.taken) + len(facts) > self.fails_after:
            raise ServiceError("the log is gone")
        (self.kept if self.eager else self.taken).extend(facts)

    async def park(self, letters):
        self.letters += letters

    async def drain(self):
        self.calls.append(("drain", len(self.taken)))
        self.kept += self.taken
        self.taken = []

    async def close(self):
        self.closed = True
