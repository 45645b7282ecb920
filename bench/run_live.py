"""Measure the live path and report it: ``make bench-live``, or ``.venv/bin/python bench/run_live.py --help``.

It starts a Kafka of its own, and a PostgreSQL, as the tests do, and stops them. How each part measures stands in its module under
``bench/live/``; what it means stands in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec
from live.catchup import catch_up
from live.coldstart import cold_start
from live.consumption import measure
from live.latency import goal_of, latency
from live.recovery import recovery
from live.services import Services, services
from live.tables import LiveReport, table

PARTS: Final = ("consumption", "latency", "recovery", "catchup", "coldstart")
#: Parts of which something is left without servers.
IN_PROCESS: Final = ("consumption", "coldstart")
#: Option to its usual value, its value with --quick, and what it is.
_SIZES: Final[dict[str, tuple[int, int, str]]] = {
    "nodes": (200, 20, "nodes with eight devices each"),
    "words": (40_000, 1_500, "words of the log that is consumed"),
    "rounds": (3, 1, "rounds of the consumption, and starts of the recovery"),
    "partitions": (8, 4, "partitions of every topic"),
    "seconds": (60, 3, "seconds at each rate"),
    "recovery_words": (20_000, 1_000, "words of the short log; the long one has ten times as many"),
    "tail": (2_000, 100, "words after the last snapshot"),
    "outage_facts": (180_000, 3_000, "words written while no worker runs; an hour at 500/s is 1800000"),
    "cold_nodes": (10_000, 50, "nodes of the cold start, with 14.5 objects each"),
}

#: The same for lists of numbers.
_LISTS: Final[dict[str, tuple[str, str, str]]] = {
    "sizes": ("1,10,100", "10", "facts of one node in a record that is consumed, with commas"),
    "rates": ("1000,2000", "2000", "facts a second, with commas; the goal is on the last"),
}


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the live path beside a plain loop and Quix Streams."
    )
    for name, (usual, _, what) in _SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{what} [{usual}]")
    for name, (usual, _, what) in _LISTS.items():
        parser.add_argument(f"--{name}", help=f"{what} [{usual}]")
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help=f"what to measure, with commas: {', '.join(PARTS)} [all]",
    )
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, unless said otherwise")
    parser.add_argument("--no-kafka", dest="kafka", action="store_false", help="only what needs no server")
    parser.add_argument(
        "--no-postgresql", dest="postgresql", action="store_false", help="leave out the rows in SQL"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="profile the consuming worker too, into this folder"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but the result")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--json-to", type=Path, help="write the result as JSON into this file too")
    options = parser.parse_args(words)
    for name, (usual, quick, _) in _SIZES.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else usual)
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    for name, (usual, quick, _) in _LISTS.items():
        words_of = getattr(options, name) or (quick if options.quick else usual)
        if not all(word.isdecimal() and 1 <= int(word) <= 1_000_000 for word in words_of.split(",")):
            parser.error(f"--{name} takes whole numbers of at least 1, with commas")
        setattr(options, name, [int(word) for word in words_of.split(",")])
    if options.profile is not None:
        options.profile = options.profile.absolute()
        options.profile.mkdir(parents=True, exist_ok=True)
    options.parts = options.parts.split(",")
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"--parts: there is no {part!r}; give some of {', '.join(PARTS)}")
    if not options.kafka:
        options.parts = [part for part in options.parts if part in IN_PROCESS]
    return options


def _measured(
    options: argparse.Namespace, running: Services | None, folder: Path, say: Callable[[str], None]
) -> LiveReport:
    report = LiveReport()
    for part in options.parts:
        say(part)
        place = folder / part
        place.mkdir()
        if part == "consumption":
            report.consumption, goals = measure(
                running,
                place,
                nodes=options.nodes,
                words=options.words,
                partitions=options.partitions,
                sizes=options.sizes,
                rounds=options.rounds,
                profiles=options.profile,
                say=say,
            )
            report.goals += goals
        elif part == "coldstart":
            report.cold_start, goals = cold_start(running, place, nodes=options.cold_nodes, say=say)
            report.goals += goals
        elif running is not None:
            _measure_served(report, part, options, running, place, say)
    return report


def _measure_served(
    report: LiveReport,
    part: str,
    options: argparse.Namespace,
    running: Services,
    place: Path,
    say: Callable[[str], None],
) -> None:
    sizes: dict[str, Any] = {"nodes": options.nodes, "say": say}
    if part == "latency":
        for rate in options.rates:
            found = latency(
                running, place, rate=rate, seconds=options.seconds, postgresql=options.postgresql, **sizes
            )
            report.latency.append(found)
        report.goals.append(goal_of(report.latency[-1]))
    elif part == "recovery":
        report.recovery, goal = recovery(
            running, place, words=options.recovery_words, tail=options.tail, rounds=options.rounds, **sizes
        )
        report.goals.append(goal)
    else:
        report.catch_up, goal = catch_up(
            running, place, facts=options.outage_facts, partitions=options.partitions, **sizes
        )
        report.goals.append(goal)


def main(words: list[str] | None = None) -> None:
    """Measure everything that was asked for and print the report."""
    options = _arguments(words)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    def say(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="sickbay-bench-live-") as folder:
        context = services(options.partitions) if options.kafka else nullcontext()
        with context as running:
            report = _measured(options, running, Path(folder), say)
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    if options.json_to is not None:
        options.json_to.write_bytes(encoded)
    if options.output == "json":
        sys.stdout.buffer.write(encoded)
    else:
        print(table(report))


if __name__ == "__main__":
    main()
