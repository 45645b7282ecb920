"""The benchmark runs from end to end on a tiny recording, and its own arithmetic is right. Its figures are nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench"
ROWS = [
    "floor", "decode", "read", "observe", "fold", "fold-disordered", "ledger-fold", "log", "project", "replay-1", "replay-2",
]  # fmt: skip
STORE_ROWS = [
    "bare", "ledger-project", "ledger-bare", "project-pg", "bare-pg", "ledger-project-pg", "ledger-bare-pg",
]  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCH / "run.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    done = run(
        "--events=120", "--nodes=3", "--cold-nodes=0", "--lines=4000", "--rounds=1", "--quiet", "--output=json"
    )  # fmt: skip
    assert ("", 0) == (done.stderr, done.returncode)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_every_row_is_measured_at_every_size(report: dict[str, Any]) -> None:
    """One line for each row and size, and each took time and memory."""
    expected = [(size, row) for size in ("once", "twice") for row in ROWS]
    expected += [("storm", row) for row in ROWS if row not in {"read", "ledger-fold"}]
    expected += [("storm", row) for row in STORE_ROWS]
    assert expected == [(line["size"], line["row"]) for line in report["lines"]]
    assert all(line["nanoseconds"] > 0 and line["peak_bytes"] > 1 << 20 for line in report["lines"])


@pytest.mark.slow
def test_twice_has_twice_the_events(report: dict[str, Any]) -> None:
    """Frames that only begin or pace a recording aside."""
    events = {line["size"]: line["events"] for line in report["lines"]}
    assert 120 <= events["once"] <= 150
    assert 120 <= events["twice"] - events["once"] <= 150


@pytest.mark.slow
def test_the_floor_is_what_ratios_are_taken_of(report: dict[str, Any]) -> None:
    """The floor's own ratio is one, however long it took."""
    ratios = [
        (line["ratio_milli"], line["processor_ratio_milli"], line["unit_ratio_milli"])
        for line in report["lines"]
        if line["row"] == "floor"
    ]
    assert [(1000, 1000, 1000)] * 3 == ratios


@pytest.mark.slow
def test_workers_count_with_the_memory_of_a_replay(report: dict[str, Any]) -> None:
    """Two workers and the process that reads need more than one process that does it all."""
    peaks = {line["row"]: line["peak_bytes"] for line in report["lines"]}
    assert peaks["replay-2"] > 2 * peaks["replay-1"]


@pytest.mark.slow
def test_every_goal_is_reported(report: dict[str, Any]) -> None:
    """Met or not met, with a figure; the cold start only where it is measured."""
    goals = [goal["goal"] for goal in report["goals"]]
    assert 19 == len(goals)
    assert all("x" in goal["reached"] and goal["met"] in {True, False} for goal in report["goals"])
    assert not any("devices in" in goal for goal in goals)


@pytest.mark.slow
def test_a_balance_is_measured_beside_a_read_by_primary_key(report: dict[str, Any]) -> None:
    """On either database, on as many lines as were asked for."""
    assert [("sqlite", 4000), ("postgresql", 4000)] == [(j["kind"], j["lines"]) for j in report["journals"]]
    assert all(j["balance_nanoseconds"] > 0 and j["key_read_nanoseconds"] > 0 for j in report["journals"])


@pytest.mark.parametrize("wrong", [["--events=0"], ["--rounds=0"], ["--cold-nodes=-1"], ["--lines=-1"]])
def test_what_cannot_be_measured_is_refused_by_name(wrong: list[str]) -> None:
    """The message names the option and its bound."""
    done = run(*wrong)
    assert 2 == done.returncode
    assert f"{wrong[0].split('=')[0]} must be at least" in done.stderr


SCRIPT = """
import sys
from inputs import disordered, share_late, LATE_ONE_IN
from report import milli, decimal, line_of, times_of
from clock import Result
from sickbay.facts import PodObserved
import json

slots = [
    (10_000 * (slot + 1), [
        PodObserved(node=f"n{node}", observed_at_ms=10_000 * slot + 10 * step + 1, epoch=0, rv=10 * slot + step + 1,
                    pod_uid=f"p{node}", namespace="a", pod="b", phase="Running")
        for step in range(10) for node in range(4)
    ])
    for slot in range(50)
]
mixed = disordered(slots)
name = lambda fact: (fact.node, fact.rv)
results = lambda *times: [Result(nanoseconds=t, processor_nanoseconds=t, units=10, peak_bytes=t) for t in times]
line = line_of("once", "fold", results(30, 60, 500), results(10, 30, 100))
print(json.dumps({
    "same": sorted(name(f) for _, fs in slots for f in fs) == sorted(name(f) for _, fs in mixed for f in fs),
    "again": [[name(f) for f in fs] for _, fs in mixed] == [[name(f) for f in fs] for _, fs in disordered(slots)],
    "early": sum(f.observed_at_ms > to_ms for to_ms, fs in mixed for f in fs),
    "ordered": share_late(slots), "late": share_late(mixed),
    "milli": [milli(1, 3), milli(2, 3), milli(1, 1)], "decimal": [decimal(1995), decimal(1994), decimal(5), decimal(12_000)],
    "line": [line.nanoseconds, line.ratio_milli, line.spread_percent, line.peak_bytes],
    "times": times_of(results(10, 20, 90), results(10, 10, 10)),
}))
"""


@pytest.fixture(scope="module")
def arithmetic() -> dict[str, Any]:
    """Run in a process of its own: the modules of the benchmark are scripts and have everyday names."""
    path = os.pathsep.join([str(BENCH), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_disorder_keeps_every_fact_and_is_the_same_every_time(arithmetic: dict[str, Any]) -> None:
    """No fact is lost, doubled, or arrives before it is true."""
    assert [True, True, 0] == [arithmetic[name] for name in ("same", "again", "early")]


def test_about_one_fact_in_five_arrives_late(arithmetic: dict[str, Any]) -> None:
    """Behind a later fact of its own node; none does in the order of event time."""
    assert [0, 2000] == arithmetic["ordered"]
    late, total = arithmetic["late"]
    assert total == 2000
    assert 300 <= late <= 420


def test_a_line_shows_medians_of_ratios_taken_inside_a_round(arithmetic: dict[str, Any]) -> None:
    """Rounds of 30/10, 60/30 and 500/100: the middle time is 60, the middle ratio 3."""
    assert [60, 3000, 783, 500] == arithmetic["line"]
    assert 2000 == arithmetic["times"]


def test_thousandths_are_rounded_half_up(arithmetic: dict[str, Any]) -> None:
    """Exact integers, shown with two places."""
    assert [333, 667, 1000] == arithmetic["milli"]
    assert ["2.00", "1.99", "0.01", "12.00"] == arithmetic["decimal"]
