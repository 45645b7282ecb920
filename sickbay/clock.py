"""The only wall clock of the project.

Shells take a ``Clock``; the pure core never sees one, because time enters it as data (design, section 3).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell reads the time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        ...


class Times(Protocol):
    """The clock of a live process."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC; never goes back."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds for durations."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000
