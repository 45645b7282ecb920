"""The clock of a live process: wall time that only goes on, and durations that no step of the wall clock touches (faults I9).

Event time comes from here, so a clock that NTP steps back, or a person sets, must not make yesterday follow today. The wall
clock is read once, at the start, and carried on by the monotonic clock; it is followed again only forward, after the machine
stood still for a while that the monotonic clock did not count. It must never be used to order what the cluster said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: The wall clock must be this far ahead ...
AHEAD_MS: Final = 5_000
#: ... for this long before it is believed: a step that is taken back soon was a mistake.
PATIENCE_MS: Final = 60_000

_MS_NS: Final = 1_000_000


def elapsed_ns() -> int:
    """Nanoseconds of a clock that nobody can set, and that counts a suspended machine's sleep where the system can tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)


class LiveClock:
    """A ``sickbay.clock.Clock`` whose time never goes back. One for each process; not safe for several threads."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, elapsed_ns: Callable[[], int] = elapsed_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns
        self._offset_ms = wall_ns() // _MS_NS - self.monotonic_ms()
        self._ahead_since_ms: int | None = None

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment before the process started: for durations."""
        return self._elapsed_ns() // _MS_NS

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC; never less than it was."""
        elapsed_ms = self.monotonic_ms()
        ahead_ms = self._wall_ns() // _MS_NS - elapsed_ms - self._offset_ms
        if ahead_ms <= AHEAD_MS:
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = elapsed_ms
        elif elapsed_ms - self._ahead_since_ms > PATIENCE_MS:
            self._offset_ms += ahead_ms
            self._ahead_since_ms = None
        return elapsed_ms + self._offset_ms

    def begin_after(self, told_ms: int) -> None:
        """Go on from the next millisecond at the earliest: an earlier process told that it was ``told_ms``."""
        self._offset_ms += max(0, told_ms + 1 - self.now_ms())
