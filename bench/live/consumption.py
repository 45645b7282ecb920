"""Consumption of a prepared log: the fold alone, a plain loop, the worker and Quix Streams, one after the other in every round.

Every row is one process, gets a log of its own, written before it starts, and is measured from the first record to the last
answer that the broker has. Ratios are taken inside a round.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import msgspec
from report import Goal, decimal, milli

from .history import Log, log_of
from .logs import fill, save
from .measured import Measured
from .services import ROOT, Services, environment

#: Row to whether it comes from Kafka.
ROWS: Final = ("fold", "plain", "worker", "quix-whole", "quix-least")
IN_PROCESS: Final = ("fold",)
QUIX: Final = ROOT / ".cache" / "bench-quix" / "bin" / "python"
#: A row of Quix that is not through by then is stopped: its rate does not change with the length of the log.
QUIX_LIMIT_S: Final = 20
_ROW_TIMEOUT_S: Final = 300
#: What the worker must reach of the plain loop when records are batches, in thousandths.
_LEAST_MILLI: Final = 600


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: medians over the rounds."""

    row: str
    #: Facts in a record of words.
    size: int
    rounds: int
    facts: int
    records: int
    facts_per_second: int
    #: Distance of the slowest round from the fastest, of the median.
    spread_percent: int
    #: Rate over that of the plain loop on the same records, in thousandths; 0 without a plain loop.
    plain_milli: int
    #: The same of facts for each second of processor time, all threads together.
    plain_processor_milli: int
    processor_nanoseconds_per_fact: int
    peak_bytes: int
    decisions: int


Results: TypeAlias = dict[tuple[str, int], list[Measured]]


def measure(
    services: Services | None,
    folder: Path,
    *,
    nodes: int,
    words: int,
    partitions: int,
    sizes: Sequence[int],
    rounds: int,
    profiles: Path | None,
    say: Callable[[str], None],
) -> tuple[list[Line], list[Goal]]:
    """Measure every row with so many facts of one node to a record; without services only those that need none.

    With ``profiles`` the worker runs once more for each size under cProfile, and what that found is written there.
    Raises SystemExit when rows do not agree.
    """
    logs = {size: log_of(nodes, words, partitions, size) for size in sizes}
    for size, log in logs.items():
        save(folder / f"{size}.log", log)
    rows = [row for row in ROWS if services is not None or row in IN_PROCESS]
    if services is not None and not QUIX.exists():
        say("Quix Streams is not installed: its rows are left out")
        rows = [row for row in rows if not row.startswith("quix")]
    results: Results = defaultdict(list)
    for number in range(rounds):
        for size, log in logs.items():
            for row in rows:
                measured = _run(row, size, log, folder, services, partitions)
                results[row, size].append(measured)
                say(f"  round {number + 1} {row:10} {size:>3}: {_rate(measured):>7} facts/s")
    _require_alike(results)
    if profiles is not None and services is not None:
        for size, log in logs.items():
            _run("worker", size, log, folder, services, partitions, profiles)
    lines = [_line(row, size, logs[size], results) for (row, size) in results]
    return lines, _goals(results) if services is not None else []


def _run(
    row: str,
    size: int,
    log: Log,
    folder: Path,
    services: Services | None,
    partitions: int,
    profiles: Path | None = None,
) -> Measured:
    path = folder / f"{size}.log"
    where = {"SICKBAY_KAFKA_PARTITIONS": f"{partitions}"}
    if services is not None and row not in IN_PROCESS:
        settings = services.installation()
        asyncio.run(fill(settings, log.records))
        where = environment(settings)
    command = [sys.executable, "-m", "live.row", row, str(path), str(log.facts)]
    if profiles is not None:
        command += ["--profile", str(profiles / f"worker-{size}.prof")]
    if row.startswith("quix"):
        state = row.partition("-")[2]
        command = [str(QUIX), "-m", "live.quix_row", state, str(log.facts), f"{QUIX_LIMIT_S}"]
    done = subprocess.run(  # noqa: S603 - an interpreter of this tree, a module of this tree
        command, cwd=ROOT / "bench", env=where, capture_output=True, check=False, timeout=_ROW_TIMEOUT_S
    )
    if done.returncode:
        told = done.stderr.decode(errors="replace")[-4_000:]
        raise SystemExit(f"row {row} with {size} to a record failed: {told}")
    return msgspec.json.decode(done.stdout, type=Measured)


def _require_alike(results: Results) -> None:
    for size in {size for _, size in results}:
        found = {
            msgspec.json.encode(m.decisions)
            for (_, of), several in results.items()
            for m in several
            if of == size and m.whole
        }
        if len(found) > 1:
            raise SystemExit(f"rows with {size} to a record do not decide the same: {sorted(found)}")


def _rate(measured: Measured) -> int:
    return measured.facts * 1_000_000_000 // measured.nanoseconds


def _processor_rate(measured: Measured) -> int:
    return measured.facts * 1_000_000_000 // measured.processor_nanoseconds


def _middle(values: Sequence[int]) -> int:
    return int(median(map(Fraction, values)))


def _ratio(results: Results, row: str, other: str, size: int, rate: Callable[[Measured], int]) -> int:
    """Return the rate of one row over that of another, in thousandths; 0 when one was not measured."""
    pairs = zip(results.get((row, size), ()), results.get((other, size), ()), strict=False)
    ratios = [milli(rate(one), rate(two)) for one, two in pairs]
    return _middle(ratios) if ratios else 0


def _line(row: str, size: int, log: Log, results: Results) -> Line:
    several = results[row, size]
    rates = [_rate(measured) for measured in several]
    middle = _middle(rates)
    return Line(
        row=row,
        size=size,
        rounds=len(several),
        facts=several[0].facts,
        records=len(log.records),
        facts_per_second=middle,
        spread_percent=(max(rates) - min(rates)) * 100 // middle,
        plain_milli=_ratio(results, row, "plain", size, _rate),
        plain_processor_milli=_ratio(results, row, "plain", size, _processor_rate),
        processor_nanoseconds_per_fact=_middle([m.processor_nanoseconds // m.facts for m in several]),
        peak_bytes=max(m.peak_bytes for m in several),
        decisions=sum(several[0].decisions.values()),
    )


def _goals(results: Results) -> list[Goal]:
    goals = []
    for size in sorted({size for _, size in results}):
        what = "single records" if size == 1 else f"records of {size} facts"
        if size > 1:
            reached = _ratio(results, "worker", "plain", size, _rate)
            goals.append(
                Goal(
                    goal=f"the worker, {what}, >= 0.6x the plain loop on the same records",
                    reached=_both(results, "plain", size),
                    met=reached >= _LEAST_MILLI,
                )
            )
        ahead = _ratio(results, "worker", "quix-whole", size, _rate)
        least = _both(results, "quix-least", size)
        goals.append(
            Goal(
                goal=f"the worker, {what}, ahead of Quix Streams with the same fold and its state",
                reached=f"{_both(results, 'quix-whole', size)}; of Quix that could not recover {least}"
                if ahead
                else "Quix Streams could not be installed",
                met=ahead > 1000,
            )
        )
    return goals


def _both(results: Results, other: str, size: int) -> str:
    passed = decimal(_ratio(results, "worker", other, size, _rate))
    return (
        f"{passed}x ({decimal(_ratio(results, 'worker', other, size, _processor_rate))}x by processor time)"
    )
