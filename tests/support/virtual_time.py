"""Coroutines on virtual time: nothing waits, and a test of an hour takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0]._when)
        super()._run_once()


class LoopTimes:
    """The clock of one process on a virtual loop; its wall clock may be wrong."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def now_ms(self) -> int:
        return 1_790_000_000_000 + self.monotonic_ms() + self.skew_ms


def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
