"""The log of each example is the one that was reviewed and committed: a change of what is decided is seen (faults M10)."""

from __future__ import annotations

import gzip
import json
from itertools import zip_longest

import pytest
from cli import EXAMPLE_NAMES, RECORDED_NAMES, ROOT, log_of, ok

LOGS = ROOT / "tests" / "golden" / "logs"
REMEDY = "run `python tests/golden/make.py` if this is wanted, and commit tests/golden/logs with the change"


@pytest.mark.parametrize("name", [*EXAMPLE_NAMES, *RECORDED_NAMES])
def test_this_build_writes_the_golden_log_byte_for_byte(stores, name):
    """Every fact and every decision, with its id, cause, policy and payload, in its place."""
    golden = gzip.decompress((LOGS / f"{name}.jsonl.gz").read_bytes()).splitlines()
    for number, (expected, actual) in enumerate(zip_longest(golden, log_of(stores[name])), start=1):
        assert expected == actual, f"{name}: event {number} differs; {REMEDY}"


@pytest.mark.parametrize("name", [*EXAMPLE_NAMES, *RECORDED_NAMES])
def test_a_golden_log_stands_for_its_example(name):
    """It holds facts and decisions, each in canonical form, and every cause is in it."""
    events = [
        json.loads(line) for line in gzip.decompress((LOGS / f"{name}.jsonl.gz").read_bytes()).splitlines()
    ]
    ids = {event["event_id"] for event in events}
    decisions = [event for event in events if event["causation_id"]]
    assert 0 < len(decisions) < len(events)
    assert set() == {event["causation_id"] for event in decisions} - ids
    assert all(list(event) == sorted(event) for event in events)


def test_the_read_models_of_a_golden_log_are_those_of_its_example(stores, tmp_path):
    """The log is all there is: read models that are built anew from it equal those that a replay wrote."""
    (result,) = ok("verify", "--db", stores["one-card"], "-o", "json").json_lines()
    golden = gzip.decompress((LOGS / "one-card.jsonl.gz").read_bytes()).splitlines()
    assert len(golden) == result["events"]
