"""The generator of large recordings: the same load for the same arguments, and the load that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

import ingest

GENERATE = Path(__file__).resolve().parents[3] / "examples" / "generate.py"
#: Where this process found the product, so that the script under test imports the same.
PRODUCT = Path(str(ingest.__file__)).resolve().parents[1]

SMALL = (
    "--nodes",
    "6",
    "--devices",
    "4",
    "--pods-per-node",
    "5",
    "--events-per-second",
    "50",
    "--duration-s",
    "120",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, GENERATE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PRODUCT)},
    )


def generate(path: Path, *arguments: str) -> bytes:
    done = run(str(path), *SMALL, *arguments)
    assert 0 == done.returncode, done.stderr
    with zstandard.open(path, "rb") as stream:
        return stream.read()


def frames(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def words(pod: dict[str, Any]) -> dict[str, str]:
    return {
        entry["resourceID"]: entry["health"]
        for status in pod["status"]["containerStatuses"]
        for source in status.get("allocatedResourcesStatus", [])
        for entry in source["resources"]
    }


def turns(content: bytes) -> int:
    """Count changes of a health word between two reports of one device."""
    last: dict[str, str] = {}
    changed = 0
    for frame in frames(content):
        if frame.get("resource") == "pods" and frame["type"] != "BOOKMARK":
            for pod in frame["object"].get("items", [frame["object"]]):
                for device, word in words(pod).items():
                    changed += last.get(device, word) != word
                    last[device] = word
    return changed


def versions(content: bytes, resource: str) -> list[int]:
    return [
        int(frame["object"]["metadata"]["resourceVersion"])
        for frame in frames(content)
        if frame.get("resource") == resource
    ]


def test_the_same_arguments_give_the_same_frames(tmp_path: Path) -> None:
    """A benchmark can be repeated elsewhere."""
    first = generate(tmp_path / "a.jsonl.zst", "--seed", "7")
    assert first == generate(tmp_path / "b.jsonl.zst", "--seed", "7")
    assert first != generate(tmp_path / "c.jsonl.zst", "--seed", "8")


def test_the_recording_holds_as_many_events_as_asked_for(tmp_path: Path) -> None:
    """50 events a second for 120 s, whether in order or not, beside LISTs, ticks and bookmarks."""
    content = generate(tmp_path / "out.jsonl.zst", "--out-of-order", "1/20")
    types = Counter(frame["type"] for frame in frames(content))
    assert {"LIST": 5, "MODIFIED": 6000, "TICK": 12, "BOOKMARK": 10} == types


@pytest.mark.parametrize("rate", ["0", "0.01", "1/10"])
def test_health_changes_at_the_asked_rate(tmp_path: Path, rate: str) -> None:
    """The share of events that change a device's health is within a third of what was asked for; 0 is none."""
    asked = 0 if rate == "0" else 60 if rate == "0.01" else 600
    assert (
        asked * 2 // 3 <= turns(generate(tmp_path / "out.jsonl.zst", "--fault-rate", rate)) <= asked * 4 // 3
    )


def test_devices_recover(tmp_path: Path) -> None:
    """No more than one device in twenty is bad at a time, however long the recording."""
    bad: dict[str, str] = {}
    most = 0
    for frame in frames(generate(tmp_path / "out.jsonl.zst", "--fault-rate", "1/10")):
        if frame.get("resource") == "pods" and frame["type"] == "MODIFIED":
            bad |= words(frame["object"])
            most = max(most, sum(word != "Healthy" for word in bad.values()))
    assert 1 == most


def test_frames_stand_in_order_unless_asked_otherwise(tmp_path: Path) -> None:
    """Without `--out-of-order` the resourceVersions of Pods only rise; with it some fall."""
    ordered = versions(generate(tmp_path / "a.jsonl.zst"), "pods")
    assert sorted(ordered) == ordered
    disordered = versions(generate(tmp_path / "b.jsonl.zst", "--out-of-order", "0.05"), "pods")
    assert sorted(disordered) != disordered


def test_no_lease_lapses(tmp_path: Path) -> None:
    """Every kubelet renews its Lease often enough: the load is about devices, not about lost nodes."""
    renewed: dict[str, list[str]] = {}
    for frame in frames(generate(tmp_path / "out.jsonl.zst")):
        if frame.get("resource") == "leases" and frame["type"] == "MODIFIED":
            renewed.setdefault(frame["object"]["metadata"]["name"], []).append(frame["at"])
    assert {f"node-{index:05d}" for index in range(6)} == renewed.keys()
    assert all(11 <= len(times) <= 12 for times in renewed.values())


def test_a_large_cluster_is_listed_in_bounded_lines(tmp_path: Path) -> None:
    """Objects that do not fit the first LIST come as ADDED; no line comes near the 16 MiB that a reader takes."""
    content = generate(
        tmp_path / "out.jsonl.zst",
        "--nodes",
        "800",
        "--pods-per-node",
        "6",
        "--events-per-second",
        "200",
        "--duration-s",
        "1",
    )
    assert max(map(len, content.splitlines())) < 16 * 1024 * 1024
    pods = [
        frame for frame in frames(content) if frame.get("resource") == "pods" and frame["type"] != "MODIFIED"
    ]
    assert 800 * 6 == len(pods[0]["object"]["items"]) + len(pods[1:])
    assert {"ADDED"} == {frame["type"] for frame in pods[1:]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--nodes", "0"), "--nodes must be at least 1"),
        (("--devices", "65"), "--devices must be at most 64"),
        (("--fault-rate", "1.5"), "--fault-rate is a share"),
        (("--out-of-order", "3/2"), "--out-of-order is a share"),
        (("--nodes", "1000", "--events-per-second", "100"), "need --events-per-second 167 or more"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    """The error names the argument and its bound, and nothing is written."""
    done = run(str(tmp_path / "out.jsonl.zst"), *arguments)
    assert 2 == done.returncode
    assert told in done.stderr
    assert [] == list(tmp_path.iterdir())
