"""The benchmarks: ``make bench``, or ``python bench/run.py --help``.

Every row is measured in a process of its own, all rows of a round one after the other, and the rounds repeat, so that a change
of the machine's speed meets all rows alike. What the figures mean, and what the floor is, stands in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from clock import Figures, Result
from inputs import Size, generate
from processes import Workers
from report import (
    FLOOR,
    GIBIBYTE,
    Goal,
    Line,
    Report,
    at_most,
    balance_goal,
    decimal,
    line_of,
    table,
    times_of,
)

ROWS: Final = (
    FLOOR, "decode", "read", "observe", "fold", "fold-disordered", "ledger-fold", "log", "project", "replay-1", "replay-2",
)  # fmt: skip
#: Rows measured on the recording in which one event in five changes a device's health.
STORM_ROWS: Final = (
    FLOOR, "decode", "observe", "fold", "fold-disordered", "log", "project", "replay-1", "replay-2",
)  # fmt: skip
#: Rows measured on the storm, where much is written: each database, and the same rows with nothing around.
STORE_ROWS: Final = ("bare", "ledger-project", "ledger-bare")
POSTGRESQL_ROWS: Final = ("project-pg", "bare-pg", "ledger-project-pg", "ledger-bare-pg")
#: Rows measured on the first minutes of a large cluster; once, because they take long.
COLD_ROWS: Final = (FLOOR, "decode", "replay-2")
#: Rows whose results must be equal, in groups.
_ALIKE: Final = (("replay-1", "replay-2"), ("fold", "fold-disordered"))
#: Devices of each node, everywhere.
DEVICES: Final = 8
#: A row takes seconds; one that takes this long hangs.
_ROW_TIMEOUT_S: Final = 900
#: What a balance as of an instant may take.
_BALANCE_MS: Final = 50
#: How often the memory of worker processes is looked at.
_LOOK_S: Final = 0.05


class Bench:
    """One run: inputs in a folder, results by size and row."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._quiet = quiet
        self.results: dict[tuple[str, str], list[Result]] = {}

    def say(self, text: str) -> None:
        """Tell on standard error how far it is."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def make(self, size: str, shape: Size, *, prepared: bool = True) -> None:
        """Write the inputs of one size."""
        self.say(f"making input {size!r}: {shape.events} events on {shape.nodes} nodes")
        generate(self._folder / size, shape)
        if prepared:
            self._run(size, "make")

    def measure(self, size: str, row: str) -> None:
        """Measure one row once."""
        result = self._run(size, row)
        self.results.setdefault((size, row), []).append(result)
        self.say(f"  {size:8} {row:16} {decimal(result.nanoseconds // 1_000_000):>8} s")

    def journal(self, kind: str, lines: int) -> Figures:
        """Measure balances on a journal of so many lines."""
        self.say(f"loading {lines} journal lines: {kind}")
        command = [sys.executable, str(Path(__file__).with_name("journal.py")), kind, str(lines)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_ROW_TIMEOUT_S)  # noqa: S603 - this interpreter, a script of this tree
        return msgspec.json.decode(done.stdout, type=Figures)

    def _run(self, size: str, row: str) -> Result:
        command = [sys.executable, str(Path(__file__).with_name("rows.py")), row, str(self._folder / size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - this interpreter, a script of this tree
            workers = Workers(process.pid)
            try:
                output = _output(process, workers, row)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise SystemExit(
                f"row {row} of size {size} failed with exit code {process.returncode}, see above"
            )
        result = msgspec.json.decode(output, type=Result)
        result.peak_bytes += workers.peak_bytes
        result.processor_nanoseconds += workers.worked_ns
        return result

    def require_alike(self, size: str) -> None:
        """Refuse results that differ where they must not."""
        for rows in _ALIKE:
            digests = {result.digest for row in rows for result in self.results[size, row]}
            if len(digests) != 1 or "" in digests:
                raise SystemExit(f"{' and '.join(rows)} of size {size} do not come to one result: {digests}")

    def lines(self) -> list[Line]:
        """Return the table."""
        return [
            line_of(size, row, results, self.results[size, FLOOR])
            for (size, row), results in self.results.items()
        ]


def _output(process: subprocess.Popen[bytes], workers: Workers, row: str) -> bytes:
    """Wait for the end of a row, with an eye on its workers, and return what it printed."""
    for _ in range(int(_ROW_TIMEOUT_S / _LOOK_S)):
        try:
            return process.communicate(timeout=_LOOK_S)[0]
        except subprocess.TimeoutExpired:
            workers.look()
    raise SystemExit(f"row {row} took longer than {_ROW_TIMEOUT_S} s; run with --quick")


def _goals(bench: Bench, lines: dict[tuple[str, str], Line], cold_devices: int) -> list[Goal]:
    results = bench.results
    goals = []
    for size, where in (("once", "busy cluster"), ("storm", "storm")):
        fold, whole, alone = lines[size, "fold"], lines[size, "replay-2"], lines[size, "replay-1"]
        late = results[size, "fold-disordered"][0].late
        bare = times_of(results[size, "replay-2"], results[size, "decode"])
        goals += [
            at_most(
                f"{where}: whole replay, two workers, <= 4x the floor",
                4000,
                whole.ratio_milli,
                f"one worker {decimal(alone.ratio_milli)}x; two are {decimal(bare)}x of decoding alone",
            ),
            at_most(
                f"{where}: fold, for each event of the recording, <= 1x the floor",
                1000,
                fold.ratio_milli,
                f"{fold.units} facts come of {fold.events} events",
            ),
            at_most(f"{where}: fold, for each fact, <= 1x the floor", 1000, fold.unit_ratio_milli),
            at_most(
                f"{where}: fold with 20 % out of order <= 1.3x in order",
                1300,
                times_of(results[size, "fold-disordered"], results[size, "fold"]),
                f"{late} of {fold.units} facts arrive behind a later fact of their node",
            ),
        ]
    goals += [
        at_most(
            f"storm: {what} to {name} <= 2.5x a bare {means} of the same rows",
            2500,
            times_of(results["storm", row + end], results["storm", base + end]),
            f"{lines['storm', row + end].units} records become {lines['storm', base + end].units} rows",
        )
        for name, means, end in (("SQLite", "executemany", ""), ("PostgreSQL", "COPY", "-pg"))
        for what, row, base in (
            ("the recording", "project", "bare"),
            ("claims that come and go", "ledger-project", "ledger-bare"),
        )
        if ("storm", row + end) in results
    ]
    goals += [
        at_most(
            f"twice the events <= 2.1x the time: {row}",
            2100,
            times_of(results["twice", row], results["once", row]),
        )
        for row in ("observe", "fold", "project", "replay-1", "replay-2")
    ]
    cold = lines.get(("cold", "replay-2"))
    if cold is not None:
        goals.append(
            Goal(
                goal=f"{cold_devices:,} devices in <= 1 GiB, all processes",
                reached=f"{cold.peak_bytes >> 20} MiB in {decimal(cold.nanoseconds // 1_000_000)} s",
                met=cold.peak_bytes <= GIBIBYTE,
            )
        )
    return goals


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure observe, fold, project and replay against a floor.")
    parser.add_argument(
        "--events",
        type=int,
        help="events of the recording; measured at twice as many too, and a storm of half [100000]",
    )
    parser.add_argument("--nodes", type=int, help="nodes of the recording, 8 devices each [100]")
    parser.add_argument(
        "--cold-nodes", type=int, help="nodes of the cold start, 8 devices each; 0 leaves it out [10000]"
    )
    parser.add_argument(
        "--lines",
        type=int,
        help="lines of the journal that is asked for balances; 0 leaves it out [10000000]",
    )
    parser.add_argument("--rounds", type=int, help="repeats of every row [3]")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="6000 events, 500 cold nodes, 200000 lines, 2 rounds, unless said otherwise",
    )
    parser.add_argument(
        "--no-postgresql",
        dest="postgresql",
        action="store_false",
        help="leave out the rows that need a PostgreSQL server",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but the result")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args(words)
    usual = (6_000, 40, 500, 200_000, 2) if options.quick else (100_000, 100, 10_000, 10_000_000, 3)
    for name, value in zip(("events", "nodes", "cold_nodes", "lines", "rounds"), usual, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
        least = 0 if name in {"cold_nodes", "lines"} else 1
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    return options


def main(words: list[str] | None = None) -> None:
    """Measure everything and print the report."""
    options = _arguments(words)
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as folder:
        bench = Bench(Path(folder), quiet=options.quiet)
        for size, times in (("once", 1), ("twice", 2)):
            bench.make(size, Size(options.nodes, DEVICES, times * options.events, options.nodes))
        bench.make("storm", Size(options.nodes, DEVICES, options.events // 2, options.nodes, "1/5"))
        for number in range(options.rounds):
            bench.say(f"round {number + 1} of {options.rounds}")
            stores = (*STORE_ROWS, *(POSTGRESQL_ROWS if options.postgresql else ()))
            for size, rows in (("once", ROWS), ("twice", ROWS), ("storm", (*STORM_ROWS, *stores))):
                for row in rows:
                    bench.measure(size, row)
        for size in ("once", "twice", "storm"):
            bench.require_alike(size)
        if options.cold_nodes:
            # two seconds of as many events a second as there are nodes: the cold start and a little more
            bench.make(
                "cold",
                Size(options.cold_nodes, DEVICES, 2 * options.cold_nodes, options.cold_nodes),
                prepared=False,
            )
            for row in COLD_ROWS:
                bench.measure("cold", row)
        lines = bench.lines()
        by_row = {(line.size, line.row): line for line in lines}
        kinds = ("sqlite", "postgresql") if options.postgresql else ("sqlite",)
        journals = [bench.journal(kind, options.lines) for kind in kinds if options.lines]
        goals = _goals(bench, by_row, options.cold_nodes * DEVICES)
        goals += [balance_goal(figures, _BALANCE_MS) for figures in journals]
        report = Report(lines=lines, goals=goals, journals=journals)
    if options.output == "json":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    else:
        print(table(report))


if __name__ == "__main__":
    main()
