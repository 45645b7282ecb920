"""The time axis: where a moment stands between the left edge and the right, and which moments get a label.

Positions are per cent of the width, so that one page fits a phone and a wall. They are computed in whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A position is counted in thousandths of a per cent.
WHOLE: Final = 100_000
#: Label steps, one of which gives at most ``_LABELS_MAX`` labels.
_STEPS_MS: Final = tuple(
    size * count
    for size, counts in (
        (1, (1, 10, 100)),
        (1_000, (1, 5, 15, 30)),
        (60_000, (1, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 364_000)),
    )
    for count in counts
)
_LABELS_MAX: Final = 9
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Axis:
    """The shown time, ``from_ms`` before ``until_ms``."""

    from_ms: int
    until_ms: int

    def place(self, at_ms: int) -> int:
        """Return where a moment stands, in thousandths of a per cent; what lies outside stands on the edge."""
        inside = min(max(at_ms, self.from_ms), self.until_ms)
        return (inside - self.from_ms) * WHOLE // (self.until_ms - self.from_ms)

    def at(self, at_ms: int) -> str:
        """Return where a moment stands, as an attribute."""
        return percent(self.place(at_ms))

    def span(self, from_ms: int, to_ms: int | None) -> tuple[int, int]:
        """Return place and width of a stretch; one that has not ended goes on to the edge."""
        begin = self.place(from_ms)
        return begin, self.place(self.until_ms if to_ms is None else to_ms) - begin

    def meets(self, from_ms: int, to_ms: int | None) -> bool:
        """Whether a stretch has a part inside."""
        return from_ms <= self.until_ms and (to_ms is None or to_ms >= self.from_ms)

    def step_ms(self) -> int:
        """Return the distance between two labels."""
        span = self.until_ms - self.from_ms
        return next((step for step in _STEPS_MS if span // step < _LABELS_MAX), _STEPS_MS[-1])

    def ticks(self) -> list[int]:
        """Return the moments that get a label: round ones in UTC."""
        step = self.step_ms()
        first = -(-self.from_ms // step) * step
        return list(range(first, self.until_ms + 1, step))

    @property
    def has_days(self) -> bool:
        """Whether labels must name the day and not the hour."""
        return self.step_ms() >= _DAY_MS


def percent(place: int) -> str:
    """Return a position as an attribute: ``12.5%``."""
    whole, part = divmod(place, 1_000)
    return f"{whole}.{part:03d}".rstrip("0").rstrip(".") + "%"
