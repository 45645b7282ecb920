"""What the rounds came to: a table, a line for each goal, and the same as JSON.

Ratios are taken inside a round, so that what slows the whole machine down slows both sides of them. It must not measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import median
from typing import Final

import msgspec
from clock import Figures, Result

#: What a ratio is taken of, and rows that are measured beside it.
FLOOR: Final = "floor"
GIBIBYTE: Final = 1 << 30


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: medians over the rounds, as exact integers and thousandths."""

    size: str
    row: str
    rounds: int
    #: Events of the recording: what every row is divided by.
    events: int
    #: What the row itself went through, and what it calls that.
    units: int
    unit: str
    nanoseconds: int
    #: Distance of the slowest from the fastest round, of the median.
    spread_percent: int
    nanoseconds_per_event: int
    nanoseconds_per_unit: int
    #: Time, and processor time of all processes, for the events, over the floor's; thousandths.
    ratio_milli: int
    processor_ratio_milli: int
    #: Time for one unit over the floor's time for one event; thousandths.
    unit_ratio_milli: int
    #: Sum of the peaks of all processes, largest round.
    peak_bytes: int


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One goal and what was reached."""

    goal: str
    reached: str
    met: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    lines: list[Line]
    goals: list[Goal]
    journals: list[Figures] = []


#: Row to what it counts, when that is not frames.
UNITS: Final = {
    "fold": "facts",
    "fold-disordered": "facts",
    "ledger-fold": "facts",
    "log": "facts",
    "project": "records",
    "bare": "rows",
    "project-pg": "records",
    "bare-pg": "rows",
    "ledger-project": "records",
    "ledger-bare": "rows",
    "ledger-project-pg": "records",
    "ledger-bare-pg": "rows",
}


def milli(numerator: int, denominator: int) -> int:
    """Return a quotient in thousandths, rounded half up."""
    return (2000 * numerator + denominator) // (2 * denominator)


def _middle(values: Sequence[int]) -> int:
    return int(median(map(Fraction, values)))


def line_of(size: str, row: str, results: Sequence[Result], floors: Sequence[Result]) -> Line:
    """Return the medians of one row; ``floors`` are those of the same rounds."""
    events = floors[0].units
    units = max(1, results[0].units)
    times = [result.nanoseconds for result in results]
    middle = _middle(times)
    pairs = list(zip(results, floors, strict=True))
    return Line(
        size=size,
        row=row,
        rounds=len(results),
        events=events,
        units=units,
        unit=UNITS.get(row, "frames"),
        nanoseconds=middle,
        spread_percent=(max(times) - min(times)) * 100 // middle,
        nanoseconds_per_event=middle // events,
        nanoseconds_per_unit=middle // units,
        ratio_milli=_middle([milli(result.nanoseconds, floor.nanoseconds) for result, floor in pairs]),
        processor_ratio_milli=_middle(
            [milli(result.processor_nanoseconds, floor.processor_nanoseconds) for result, floor in pairs]
        ),
        unit_ratio_milli=_middle(
            [milli(result.nanoseconds * events, floor.nanoseconds * units) for result, floor in pairs]
        ),
        peak_bytes=max(result.peak_bytes for result in results),
    )


def times_of(numerators: Sequence[Result], denominators: Sequence[Result]) -> int:
    """Return how much longer one row takes than another, in thousandths: the median of the rounds."""
    pairs = zip(numerators, denominators, strict=True)
    return _middle([milli(one.nanoseconds, other.nanoseconds) for one, other in pairs])


def at_most(goal: str, limit_milli: int, reached_milli: int, note: str = "") -> Goal:
    """Return a goal on a ratio."""
    reached = f"{decimal(reached_milli)}x{note and f' ({note})'}"
    return Goal(goal=goal, reached=reached, met=reached_milli <= limit_milli)


def balance_goal(figures: Figures, limit_ms: int) -> Goal:
    """Return the goal on a balance as of an instant."""
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[figures.kind]
    ratio = decimal(milli(figures.balance_nanoseconds, figures.key_read_nanoseconds))
    return Goal(
        goal=f"a node's balance as of an instant on {figures.lines:,} journal lines, {name}, <= {limit_ms} ms",
        reached=f"{decimal(figures.balance_nanoseconds // 1_000)} ms, {ratio}x a read by primary key",
        met=figures.balance_nanoseconds <= limit_ms * 1_000_000,
    )


def decimal(thousandths: int) -> str:
    """Show thousandths with two places."""
    hundredths = (thousandths + 5) // 10
    return f"{hundredths // 100}.{hundredths % 100:02d}"


_COLUMNS: Final[tuple[tuple[str, Callable[[Line], str]], ...]] = (
    ("size", lambda line: line.size),
    ("row", lambda line: line.row),
    ("events", lambda line: f"{line.events}"),
    ("seconds", lambda line: decimal(line.nanoseconds // 1_000_000)),
    ("spread", lambda line: f"{line.spread_percent}%"),
    ("us/event", lambda line: decimal(line.nanoseconds_per_event)),
    ("x floor", lambda line: decimal(line.ratio_milli)),
    ("x floor, CPU", lambda line: decimal(line.processor_ratio_milli)),
    ("units", lambda line: f"{line.units} {line.unit}"),
    ("us/unit", lambda line: decimal(line.nanoseconds_per_unit)),
    ("unit x floor", lambda line: decimal(line.unit_ratio_milli)),
    ("peak MiB", lambda line: f"{line.peak_bytes >> 20}"),
)


def table(report: Report) -> str:
    """Return the report as text."""
    cells = [[name for name, _ in _COLUMNS], *([show(line) for _, show in _COLUMNS] for line in report.lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shown = [
        "  ".join(
            text.ljust(width) if index < 2 else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    goals = [f"{'met    ' if goal.met else 'NOT MET'}  {goal.goal}: {goal.reached}" for goal in report.goals]
    return "\n".join([*shown, "", *goals])
