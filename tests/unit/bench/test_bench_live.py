"""The live benchmark runs where there is no server, on the smallest sizes, and its own arithmetic is right. Figures are nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench"


def run(*arguments):
    return subprocess.run(
        [sys.executable, BENCH / "run_live.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_what_needs_no_server_is_measured_and_reported():
    """The fold alone decides the same whatever shares a record, and a list that comes again unchanged says nothing."""
    done = run(
        "--quick",
        "--no-kafka",
        "--words=200",
        "--sizes=1,10",
        "--cold-nodes=4",
        "--quiet",
        "--output=json",
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert [(line["row"], line["size"]) for line in report["consumption"]] == [("fold", 1), ("fold", 10)]
    single, packed = report["consumption"]
    assert single["decisions"] == packed["decisions"] > 0
    assert single["records"] > packed["records"]
    first, again = report["cold_start"]["cold"]["listed"]
    assert first["facts"] > 0
    assert again["facts"] == 0
    assert [goal["met"] for goal in report["goals"]] == [True]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("--words=0", "--words must be at least 1"),
        ("--sizes=1,x", "--sizes takes whole numbers"),
        ("--rates=0", "--rates takes whole numbers"),
        ("--parts=latency,lunch", "there is no 'lunch'"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(wrong, told):
    done = run(wrong)
    assert done.returncode == 2
    assert told in done.stderr


SCRIPT = """
import json
from collections import Counter
from live.history import log_of
from live.latency import percentile
from sickbay.cloudevents import unpack

def words(log):
    return Counter(
        opened.envelope.event_id for _, message in log.records for opened in unpack(message.value, message.headers)
        if opened.envelope.kind == "device_health_observed"
    )

logs = {size: log_of(5, 40, 4, size) for size in (1, 4)}
parts = words(log_of(5, 20, 4, 4)) + words(log_of(5, 20, 4, 4, begin=20))
print(json.dumps({
    "same": words(logs[1]) == words(logs[4]) == parts,
    "counted": [log.facts == sum(len(unpack(m.value, m.headers)) for _, m in log.records) for log in logs.values()],
    "percentiles": [percentile(list(range(1, 101)), 50), percentile(list(range(1, 101)), 99), percentile([7], 99), percentile([], 50)],
}))
"""


def test_a_history_has_the_same_words_however_it_is_packed_or_continued():
    """And a percentile is a value that was measured."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])},
    )
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["counted"] == [True, True]
    assert found["percentiles"] == [50, 99, 7, 0]
