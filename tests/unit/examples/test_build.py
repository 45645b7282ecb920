"""The shipped recordings are what their builder makes, and hold the incidents that their README tells of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

import ingest
from ingest.frames import Frame, Parked
from ingest.recording import open_recording
from sickbay.policy import Policy, policy_from_yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
#: Where this process found the product, so that the script under test imports the same.
PRODUCT = Path(str(ingest.__file__)).resolve().parents[1]
NAMES = ("one-card", "node-level", "flapping", "double-count")
SIZE_MAX_BYTES = 300_000
START_MS = 1_782_892_800_000
SECOND = 1000
MINUTE = 60 * SECOND


def content(path: Path) -> bytes:
    with zstandard.open(path, "rb") as stream:
        return stream.read()


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    subprocess.run(
        [sys.executable, EXAMPLES / "build.py", "--output", folder],
        check=True,
        capture_output=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(PRODUCT)},
    )
    return folder


@pytest.fixture
def frames(request: pytest.FixtureRequest) -> list[Frame]:
    """Read a shipped recording as replay does; nothing may be parked or passed over."""
    parked: list[Parked] = []
    with open_recording(EXAMPLES / f"{request.param}.jsonl.zst", on_parked=parked.append) as recording:
        found = list(recording)
        assert ([], {}) == (parked, dict(recording.ignored))
    assert all(isinstance(frame, Frame) for frame in found)
    return [frame for frame in found if isinstance(frame, Frame)]


def recorded(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("frames", [name], indirect=True, ids=[name])


def named(frames: list[Frame], resource: str, name: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Offset from the start, type and object of every frame of one object."""
    return [
        (frame.at_ms - START_MS, frame.type, frame.object)
        for frame in frames
        if frame.resource == resource and frame.object and frame.object["metadata"].get("name") == name
    ]


def words(pod: dict[str, Any]) -> list[str]:
    return [
        entry["health"]
        for status in pod["status"].get("containerStatuses", [])
        for source in status.get("allocatedResourcesStatus", [])
        for entry in source["resources"]
    ]


def changes(
    found: list[tuple[int, str, dict[str, Any]]], read: Callable[[dict[str, Any]], Any]
) -> list[tuple[int, Any]]:
    """Offset and value of each frame in which ``read`` gives another value than in the one before."""
    values: list[tuple[int, Any]] = []
    for offset_ms, _, item in found:
        if not values or values[-1][1] != read(item):
            values.append((offset_ms, read(item)))
    return values


def listed_names(frame: Frame) -> set[str]:
    assert frame.object is not None
    return {item["metadata"]["name"] for item in frame.object["items"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_recording_is_what_the_builder_makes(rebuilt: Path, name: str) -> None:
    """Whoever changes a scenario ships its recording with it; compression may differ, what is compressed may not."""
    assert content(rebuilt / f"{name}.jsonl.zst") == content(EXAMPLES / f"{name}.jsonl.zst")


def test_the_builder_makes_every_shipped_recording_and_no_other(rebuilt: Path) -> None:
    """A recording without a scenario could never be made again."""
    expected = {f"{name}.jsonl.zst" for name in NAMES}
    assert expected == {path.name for path in rebuilt.iterdir()}
    assert expected == {path.name for path in EXAMPLES.glob("*.zst")}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_recording_is_small(name: str) -> None:
    """A clone stays quick."""
    assert (EXAMPLES / f"{name}.jsonl.zst").stat().st_size < SIZE_MAX_BYTES


@pytest.mark.parametrize("frames", NAMES, indirect=True)
def test_a_recording_begins_with_lists_and_keeps_its_time(frames: list[Frame]) -> None:
    """Every resource is listed first, arrival never goes back, and ticks come at least every minute."""
    assert {"nodes", "leases", "resourceslices", "resourceclaims", "pods"} == {
        frame.resource for frame in frames[:5]
    }
    assert {"LIST"} == {frame.type for frame in frames[:5]}
    times = [frame.at_ms for frame in frames]
    assert sorted(times) == times
    ticks = [START_MS, *(frame.at_ms for frame in frames if frame.type == "TICK")]
    assert max(later - earlier for earlier, later in pairwise(ticks)) <= MINUTE
    assert times[-1] == ticks[-1]


@pytest.mark.parametrize(
    ("frames", "late"),
    [
        ("one-card", []),
        ("node-level", []),
        ("flapping", [(9 * MINUTE + 31 * SECOND, "render-0")]),
        ("double-count", []),
    ],
    indirect=["frames"],
    ids=NAMES,
)
def test_resource_versions_rise_within_a_resource_type(
    frames: list[Frame], late: list[tuple[int, str]]
) -> None:
    """Only the one frame that was made to come late changes an object under a version that is not the newest."""
    newest: dict[str, int] = {}
    found = []
    for frame in frames:
        if frame.object and frame.type in {"MODIFIED", "DELETED"}:
            version = int(frame.object["metadata"]["resourceVersion"])
            if version <= newest.get(frame.resource, 0):
                found.append((frame.at_ms - START_MS, frame.object["metadata"]["name"]))
            newest[frame.resource] = max(version, newest.get(frame.resource, 0))
    assert late == found


@recorded("one-card")
def test_one_card_fails_and_another_pod_proves_it_healthy(frames: list[Frame]) -> None:
    """Unhealthy at 5:00, its Pod gone at 7:25; a new Pod on the same card says Healthy at 12:08."""
    first = named(frames, "pods", "finetune-0")
    assert [(5 * MINUTE, ["Unhealthy"])] == changes(first, words)
    assert (7 * MINUTE + 25 * SECOND, "DELETED") == first[-1][:2]
    second = named(frames, "pods", "finetune-1")
    assert [(12 * MINUTE, []), (12 * MINUTE + 8 * SECOND, ["Healthy"])] == changes(second, words)
    assert "checkpoint" == first[0][2]["metadata"]["annotations"]["sickbay.dev/ability"]
    cards = {
        result["device"]
        for name in ("finetune-0", "finetune-1")
        for frame in frames
        if frame.object and frame.resource == "resourceclaims" and frame.type != "BOOKMARK"
        for claim in frame.object.get("items", [frame.object])
        if claim["metadata"]["ownerReferences"][0]["name"] == name
        for result in claim["status"].get("allocation", {"devices": {"results": []}})["devices"]["results"]
    }
    assert {"gpu-3"} == cards


@recorded("one-card")
def test_one_card_is_tainted_by_its_driver_for_five_minutes(frames: list[Frame]) -> None:
    """The taint of XID 48 comes two seconds after the fault and goes at 10:00; no other card ever has one."""
    slices = named(frames, "resourceslices", "00000-gpu.nvidia.com-gpu-a1-k7x2q")

    def tainted(item: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (device["name"], device["taints"][0]["value"])
            for device in item["spec"]["devices"]
            if "taints" in device
        ]

    assert [(5 * MINUTE + 2 * SECOND, [("gpu-3", "48")]), (10 * MINUTE, [])] == changes(slices, tainted)
    assert [] == named(frames, "resourceslices", "00000-gpu.nvidia.com-gpu-a2-k7x2q")


@recorded("one-card")
def test_a_neighbour_is_unknown_for_four_minutes(frames: list[Frame]) -> None:
    """Inside the default tolerance of five minutes, and beyond the two of the stricter policy."""
    expected = [(190 * MINUTE, ["Unknown"]), (194 * MINUTE, ["Healthy"])]
    assert expected == changes(named(frames, "pods", "search-4"), words)


@recorded("node-level")
def test_a_plugin_restart_turns_every_card_of_its_node(frames: list[Frame]) -> None:
    """Allocatable falls to 0 with capacity unchanged, all eight cards turn and return within seconds of each other."""
    node = named(frames, "nodes", "gpu-b1")
    amounts = changes(
        node, lambda item: tuple(item["status"][key]["nvidia.com/gpu"] for key in ("capacity", "allocatable"))
    )
    back_ms = 5 * MINUTE + 40 * SECOND
    assert [("8", "8"), ("8", "0"), ("8", "8")] == [amount for _, amount in amounts]
    assert [5 * MINUTE, back_ms] == [offset for offset, _ in amounts[1:]]
    for index in range(4):
        turned = changes(named(frames, "pods", f"render-{index}"), words)
        assert [["Unhealthy"] * 2, ["Healthy"] * 2] == [value for _, value in turned]
        assert all(
            0 < offset - since < 3 * SECOND
            for (offset, _), since in zip(turned, (5 * MINUTE, back_ms), strict=True)
        )


@recorded("node-level")
def test_a_lost_node_keeps_its_frozen_health(frames: list[Frame]) -> None:
    """The Lease stops for more than its 40 s, the Node is Unknown and tainted, and its Pods go on saying Healthy."""
    renewals = [offset for offset, _, _ in named(frames, "leases", "gpu-b2")]
    silences = [later - earlier for earlier, later in pairwise(renewals)]
    assert [3 * MINUTE + 40 * SECOND] == [silence for silence in silences if silence > 40 * SECOND]
    ready = changes(
        named(frames, "nodes", "gpu-b2"),
        lambda item: (item["status"]["conditions"][0]["status"], len(item["spec"].get("taints", []))),
    )
    assert [("True", 0), ("Unknown", 2), ("True", 0)] == [value for _, value in ready]
    for index in range(4):
        assert [["Healthy", "Healthy"]] == [
            value for _, value in changes(named(frames, "pods", f"simulate-{index}"), words)
        ]


@recorded("flapping")
def test_a_card_flaps_and_one_of_its_frames_comes_late(frames: list[Frame]) -> None:
    """Three faults; the second is older than what arrived a second before it."""
    reports = named(frames, "pods", "render-0")[:6]
    expected = ["Unhealthy", "Healthy", "Healthy", "Unhealthy", "Unhealthy", "Healthy"]
    assert expected == [words(pod)[0] for _, _, pod in reports]
    versions = [int(pod["metadata"]["resourceVersion"]) for _, _, pod in reports]
    assert versions[3] < versions[2]
    assert SECOND == reports[3][0] - reports[2][0]


@recorded("flapping")
def test_two_endpoints_report_one_card_in_turns(frames: list[Frame]) -> None:
    """Twenty changes between Unknown and Healthy in ten seconds, the last of them Healthy."""
    turns = [
        (offset, words(pod)[0]) for offset, kind, pod in named(frames, "pods", "chat-1") if kind == "MODIFIED"
    ]
    assert ["Unknown", "Healthy"] * 10 == [word for _, word in turns]
    assert 10 * SECOND > turns[-1][0] - turns[0][0]


@recorded("flapping")
def test_a_reconnected_watch_repeats_every_pod(frames: list[Frame]) -> None:
    """All twenty Pods come again as ADDED, at the newest version that each had."""
    newest: dict[str, int] = {}
    repeated: dict[str, int] = {}
    for frame in frames:
        if frame.resource == "pods" and frame.object and frame.type in {"LIST", "ADDED", "MODIFIED"}:
            for pod in frame.object.get("items", [frame.object]):
                name, version = pod["metadata"]["name"], int(pod["metadata"]["resourceVersion"])
                if frame.type == "ADDED":
                    assert 25 * MINUTE == frame.at_ms - START_MS
                    repeated[name] = version
                else:
                    newest[name] = max(version, newest.get(name, 0))
    assert 20 == len(repeated)
    assert newest == repeated


@recorded("flapping")
def test_a_relist_after_410_lacks_a_pod(frames: list[Frame]) -> None:
    """No DELETED frame tells of search-5: only the LIST two seconds after the error does."""
    before, after = [frame for frame in frames if frame.type == "LIST" and frame.resource == "pods"]
    assert {"search-5"} == listed_names(before) - listed_names(after)
    assert set() == listed_names(after) - listed_names(before)
    (error,) = [frame for frame in frames if frame.type == "ERROR"]
    assert error.object is not None
    assert (410, "Expired") == (error.object["code"], error.object["reason"])
    assert 2 * SECOND == after.at_ms - error.at_ms
    assert [] == [kind for _, kind, _ in named(frames, "pods", "search-5") if kind == "DELETED"]


def entries(pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Claim, without the generated end of its name, and CPUs of each node-allocatable entry."""
    return [
        (entry["resourceClaimName"].rpartition("-")[0], entry["resources"]["cpu"])
        for entry in pod["status"].get("nodeAllocatableResourceClaimStatuses", [])
    ]


def slices(frames: list[Frame], driver: str) -> list[tuple[int, str, int, int]]:
    """Offset, type, generation and announced slices of every frame of a driver's slices on mix-1."""
    return [
        (frame.at_ms - START_MS, frame.type, pool["generation"], pool["resourceSliceCount"])
        for frame in frames
        if frame.resource == "resourceslices" and frame.object and "spec" in frame.object
        for pool in [frame.object["spec"]["pool"]]
        if (driver, "mix-1") == (frame.object["spec"]["driver"], pool["name"])
    ]


@recorded("double-count")
def test_a_second_pod_of_an_allocated_claim_has_no_entry(frames: list[Frame]) -> None:
    """pair-b is bound after the claim was allocated; when pair-a succeeds no live Pod of the claim has an entry."""
    bound = [
        (offset, pod["spec"].get("nodeName"), entries(pod))
        for offset, _, pod in named(frames, "pods", "pair-b")
    ]
    assert [(3 * MINUTE, None, []), (3 * MINUTE + 1200, "mix-1", [])] == bound
    first = changes(named(frames, "pods", "pair-a"), lambda pod: pod["status"]["phase"])
    assert [(5 * MINUTE, "Succeeded")] == first
    users = changes(
        named(frames, "resourceclaims", "pair-cores"),
        lambda claim: [pod["name"] for pod in claim["status"]["reservedFor"]],
    )
    assert [(3 * MINUTE + SECOND, ["pair-a", "pair-b"]), (5 * MINUTE, ["pair-b"])] == users


@recorded("double-count")
def test_a_controller_writes_one_claim_twice_and_into_another_pod(frames: list[Frame]) -> None:
    """Both entries go again with its rollback."""
    own, other = ("sim-0-cores", "8"), ("sim-1-cores", "4")
    assert [(15 * MINUTE, [own, own]), (20 * MINUTE, [own])] == changes(
        named(frames, "pods", "sim-0"), entries
    )
    assert [(15 * MINUTE + 10 * SECOND, [own, other]), (20 * MINUTE, [other])] == changes(
        named(frames, "pods", "sim-1"), entries
    )


@recorded("double-count")
def test_a_cpu_driver_restarts_at_generation_1_with_another_mapping(frames: list[Frame]) -> None:
    """Its slice, of generation 3, is gone for 40 s; only the cores of NUMA node 1 take more CPUs than before."""
    back_ms = 25 * MINUTE + 40 * SECOND
    assert [(25 * MINUTE, "DELETED", 3, 1), (back_ms, "ADDED", 1, 1)] == slices(frames, "dra.cpu")
    taken = [
        [
            device["nodeAllocatableResourceMappings"]["cpu"]["allocationMultiplier"]
            for device in frame.object["spec"]["devices"]
        ]
        for frame in frames
        if frame.resource == "resourceslices" and frame.object and "spec" in frame.object
        if frame.object["spec"]["driver"] == "dra.cpu"
    ]
    assert [["1", "1"], ["1", "2"]] == taken


@recorded("double-count")
def test_a_gpu_driver_goes_back_and_then_forward_by_halves(frames: list[Frame]) -> None:
    """Generation 4 is there before 5 goes, and counts until both slices of 6 are there."""
    assert [
        (32 * MINUTE, "ADDED", 4, 1),
        (32 * MINUTE + 5 * SECOND, "DELETED", 5, 1),
        (40 * MINUTE, "ADDED", 6, 2),
        (41 * MINUTE + 30 * SECOND, "ADDED", 6, 2),
        (41 * MINUTE + 31 * SECOND, "DELETED", 4, 1),
    ] == slices(frames, "gpu.nvidia.com")


@recorded("double-count")
def test_a_claim_on_one_numa_node_gets_a_card_that_is_on_another(frames: list[Frame]) -> None:
    """The old cache has gpu-2 on NUMA node 0 when wide-0 asks; every other generation has it on 1."""
    where = [
        (
            frame.object["spec"]["pool"]["generation"],
            device["attributes"]["resource.kubernetes.io/numaNode"]["int"],
        )
        for frame in frames
        if frame.resource == "resourceslices" and frame.object and frame.type in {"ADDED", "DELETED"}
        for device in frame.object["spec"]["devices"]
        if device["name"] == "gpu-2"
    ]
    assert {(4, 0), (5, 1), (6, 1)} == set(where)
    (claim,) = {
        frame.object["metadata"]["name"]: frame.object
        for frame in frames
        if frame.resource == "resourceclaims" and frame.object and frame.type == "MODIFIED"
        if frame.object["metadata"]["name"].startswith("wide-0")
    }.values()
    assert ["gpu-1", "gpu-2"] == [r["device"] for r in claim["status"]["allocation"]["devices"]["results"]]
    (constraint,) = claim["spec"]["devices"]["constraints"]
    assert "resource.kubernetes.io/numaNode" == constraint["matchAttribute"]


@pytest.mark.parametrize("name", ["stricter", "laxer"])
def test_an_example_policy_is_valid_and_differs_from_the_default(name: str) -> None:
    """Each is read as a user's policy would be, under a version of its own."""
    path = EXAMPLES / "policies" / f"{name}.yaml"
    policy = policy_from_yaml(path.read_text(), place=path.name)
    assert f"{name}-1" == policy.version
    assert Policy().hash() != policy.hash()


def test_the_two_example_policies_lie_on_either_side_of_the_default() -> None:
    """Stricter holds and observes longer and tolerates less silence; laxer does the opposite."""
    stricter, laxer = (
        policy_from_yaml((EXAMPLES / "policies" / f"{name}.yaml").read_text(), place=name)
        for name in ("stricter", "laxer")
    )
    default = Policy()
    assert stricter.unknown.window_ms < default.unknown.window_ms < laxer.unknown.window_ms
    assert stricter.quarantine.min_hold_ms > default.quarantine.min_hold_ms > laxer.quarantine.min_hold_ms
    observed = [policy.staged_return.observation_only_ms for policy in (stricter, default, laxer)]
    assert sorted(observed, reverse=True) == observed
