"""What the live benchmark came to: tables, a line for each goal, and the same as JSON. It must not measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from report import Goal, decimal

from .catchup import CatchUp
from .coldstart import ColdStart
from .consumption import Line
from .latency import Latency
from .recovery import Recovery


class LiveReport(msgspec.Struct, kw_only=True):
    """All of it; what was not measured is empty."""

    consumption: list[Line] = []
    latency: list[Latency] = []
    recovery: list[Recovery] = []
    catch_up: CatchUp | None = None
    cold_start: ColdStart | None = None
    goals: list[Goal] = []


_CONSUMPTION: Final[tuple[tuple[str, Callable[[Line], str]], ...]] = (
    ("row", lambda line: line.row),
    ("facts/record", lambda line: f"{line.size}"),
    ("facts", lambda line: f"{line.facts}"),
    ("records", lambda line: f"{line.records}"),
    ("facts/s", lambda line: f"{line.facts_per_second}"),
    ("spread", lambda line: f"{line.spread_percent}%"),
    ("x plain", lambda line: decimal(line.plain_milli) if line.plain_milli else "-"),
    ("x plain, CPU", lambda line: decimal(line.plain_processor_milli) if line.plain_processor_milli else "-"),
    ("CPU us/fact", lambda line: decimal(line.processor_nanoseconds_per_fact)),
    ("peak MiB", lambda line: f"{line.peak_bytes >> 20}"),
)
_LATENCY: Final[tuple[tuple[str, Callable[[Latency], str]], ...]] = (
    ("facts/s", lambda line: f"{line.rate}"),
    ("published/s", lambda line: f"{line.published_per_second}"),
    ("records", lambda line: f"{line.records}"),
    ("decided", lambda line: f"{line.decided}"),
    ("decision p50 ms", lambda line: f"{line.decision_p50}"),
    ("p99", lambda line: f"{line.decision_p99}"),
    ("max", lambda line: f"{line.decision_max}"),
    ("row p50 ms", lambda line: f"{line.row_p50}"),
    ("p99", lambda line: f"{line.row_p99}"),
    ("max", lambda line: f"{line.row_max}"),
)
_RECOVERY: Final[tuple[tuple[str, Callable[[Recovery], str]], ...]] = (
    ("log, facts", lambda line: f"{line.facts}"),
    ("tail", lambda line: f"{line.tail}"),
    ("state, written", lambda line: f"{line.state_offsets}"),
    ("state, left", lambda line: f"{line.state_records}"),
    ("starts, s", lambda line: " ".join(f"{time / 1000:.2f}" for time in line.milliseconds)),
)


def table(report: LiveReport) -> str:
    """Return the report as text."""
    blocks = []
    if report.consumption:
        blocks.append(_table(_CONSUMPTION, report.consumption))
    if report.latency:
        blocks.append(_table(_LATENCY, report.latency))
    if report.recovery:
        blocks.append(_table(_RECOVERY, report.recovery))
    if report.cold_start is not None:
        blocks.append(_shown(report.cold_start))
    blocks.append(
        "\n".join(
            f"{'met    ' if goal.met else 'NOT MET'}  {goal.goal}: {goal.reached}" for goal in report.goals
        )
    )
    return "\n\n".join(blocks)


def _table(columns: Sequence[tuple[str, Callable[..., str]]], lines: Sequence[object]) -> str:
    cells = [[name for name, _ in columns], *([show(line) for _, show in columns] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if index else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _shown(result: ColdStart) -> str:
    first, _ = result.cold.listed
    said = [
        (
            f"cold start of {result.devices:,} devices: {result.objects:,} objects are {first.facts:,} facts after"
            f" {first.nanoseconds / 1e9:.1f} s, {first.peak_bytes >> 20} MiB"
        )
    ]
    if result.restart is not None:
        said += [
            (
                f"published in {result.cold.kafka_nanoseconds / 1e9:.1f} s; the last is answered {result.folded_milliseconds / 1000:.1f} s"
                " after the listing process was started"
            ),
            f"{result.restart.kafka_facts:,} facts are recalled in {result.restart.kafka_nanoseconds / 1e9:.1f} s",
        ]
    return "\n".join(said)
