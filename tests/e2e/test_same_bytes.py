"""The log has the same bytes whatever the number of workers, the hash seed, and the time zone of the machine."""

from __future__ import annotations

import pytest
from cli import EXAMPLE_NAMES, example, ok, replay, rows, verified
from cli_recordings import generated

ZONES = ("UTC", "Europe/Rome", "Asia/Kathmandu")


def digests(recording, store, *arguments, **options):
    replay(recording, *arguments, db=store, **options)
    return verified(store)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("one-card", 2),
        ("node-level", 4),
        ("flapping", 2),
        *(
            pytest.param(name, workers, marks=pytest.mark.slow)
            for name, workers in (("one-card", 4), ("node-level", 2), ("flapping", 4))
        ),
    ],
)
def test_workers_change_no_byte_of_an_example(stores, tmp_path, name, workers):
    """Log, positions and read models of 1, 2 and 4 workers have equal digests."""
    assert verified(stores[name]) == digests(example(name), tmp_path / "workers.db", "--workers", workers)


def test_workers_change_no_byte_of_a_generated_recording(tmp_path):
    """A recording with many faults and late frames: episodes are opened, and the digests are equal."""
    recording = generated(tmp_path / "load.jsonl.zst", nodes=12, seconds=30, rate=100)
    one, four = tmp_path / "1.db", tmp_path / "4.db"
    expected = digests(recording, one, "--workers", 1)
    assert 1 < len(rows("episodes", db=one))
    assert expected == digests(recording, four, "--workers", 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_workers_change_no_byte_of_a_large_recording(tmp_path, seed):
    """More nodes than partitions, and a minute of load with a breaker that opens."""
    recording = generated(tmp_path / "load.jsonl.zst", nodes=40, seconds=60, rate=300, seed=seed)
    found = [digests(recording, tmp_path / f"{workers}.db", "--workers", workers) for workers in (1, 2, 4)]
    assert [found[0]] * 3 == found


@pytest.mark.parametrize(("seed", "zone"), [("0", ZONES[1]), ("12345", ZONES[2])])
def test_hash_seed_and_time_zone_change_no_byte(stores, tmp_path, seed, zone):
    """Neither the order of Python's sets nor the zone of the machine reaches the log."""
    environment = {"PYTHONHASHSEED": seed, "TZ": zone}
    assert verified(stores["flapping"]) == digests(
        example("flapping"), tmp_path / "other.db", env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("seed", ["0", "12345"])
@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_no_machine_changes_a_byte(stores, tmp_path, name, seed, zone):
    """Every example under every seed and zone, with workers of their own seed."""
    environment = {"PYTHONHASHSEED": seed, "TZ": zone}
    assert verified(stores[name]) == digests(
        example(name), tmp_path / "other.db", "--workers", 2, env=environment
    )


def test_time_zone_changes_no_answer(stores):
    """Times are printed in UTC wherever the reader is."""
    question = ("episodes", "--db", stores["one-card"], "-o", "csv")
    assert ok(*question).out == ok(*question, env={"TZ": "Asia/Kathmandu"}).out
