"""Numbered cases of the catalogue, as far as reading goes: what the mirror makes of what the cluster says."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from ingest.observe import observe_claim, observe_node, observe_pod, observe_slice
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    PodGone,
    PoolObserved,
    WatchGapFound,
)
from sickbay.policy import ReadingPolicy
from sickbay.quantity import parse

SAMPLES = Path(__file__).parents[1] / "samples"
DRIVER = "gpu.nvidia.com"


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


class Feed:
    """A mirror, one second between frames."""

    def __init__(self) -> None:
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.at_ms = 0

    def __call__(self, kind: FrameType, obj: Any, resource: str = "pods", step_ms: int = 1_000) -> list[Fact]:
        self.at_ms += step_ms
        return self.mirror.apply(
            Frame(at_ms=self.at_ms, resource=resource, type=kind, object=obj, place="case")
        )


@pytest.fixture
def feed() -> Feed:
    return Feed()


def words(facts: list[Fact]) -> list[tuple[str, str, int, bool]]:
    return [
        (fact.device_id, fact.absence or fact.health, fact.rv, fact.live)
        for fact in facts
        if isinstance(fact, DeviceHealthObserved)
    ]


def pod(rv: int, health: str | None, message: str | None = None, **more: Any) -> dict[str, Any]:
    """Pod ``p`` on n1, claim ``gpu`` -> ``c``; ``health`` None reports nothing."""
    resource = {"resourceID": more.get("id", "vendor/class=x"), "health": health}
    if message is not None:
        resource["message"] = message
    entry = {"name": "claim:gpu", "resources": [resource]}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ml",
            "uid": "p",
            "resourceVersion": str(rv),
            **more.get("meta", {}),
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main"}],
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"claims": [{"name": "gpu"}]}}
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        },
        "status": {
            "phase": more.get("phase", "Running"),
            more.get("place", "containerStatuses"): [
                {"name": "main", "allocatedResourcesStatus": [] if health is None else [entry]}
            ],
        },
    }


def claim(rv: int, *devices: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "ml", "uid": "u-c", "resourceVersion": str(rv)},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "r", "driver": DRIVER, "pool": "n1", "device": device}
                        for device in devices
                    ]
                },
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                    ]
                },
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        },
    }


def part(name: str, rv: int, *devices: str, generation: int | None = 1, count: int = 1) -> dict[str, Any]:
    pool: dict[str, Any] = {"name": "n1", "resourceSliceCount": count}
    if generation is not None:
        pool["generation"] = generation
    return {
        "metadata": {"name": name, "uid": f"u-{name}-{rv}", "resourceVersion": str(rv)},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n1", "devices": [{"name": d} for d in devices]},
    }


def inventory(facts: list[Fact]) -> list[tuple[str, str]]:
    return [
        (fact.device, "+" if isinstance(fact, DevicePublished) else fact.reason)
        for fact in facts
        if isinstance(fact, DevicePublished | DeviceWithdrawn)
    ]


def pool(facts: list[Fact]) -> PoolObserved:
    (found,) = (fact for fact in facts if isinstance(fact, PoolObserved))
    return found


GPU2 = f"dra:{DRIVER}/n1/gpu-2"


@pytest.mark.case("C01")
def test_c01_device_of_a_sidecar_is_unknown_until_its_status_says_more(feed: Feed) -> None:
    """gpu-2 is held and never reported: unknown, not healthy; an entry of the init container is read like any other."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    assert [(GPU2, "never_reported", 5, True)] == words(feed("ADDED", pod(5, None)))
    assert [] == words(feed("MODIFIED", pod(6, None, meta={"labels": {"x": "y"}})))
    for rv, place in ((7, "initContainerStatuses"), (8, "ephemeralContainerStatuses")):
        health = "Healthy" if rv == 7 else "Unhealthy"
        assert [(GPU2, health, rv, True)] == words(feed("MODIFIED", pod(rv, health, place=place)))


@pytest.mark.case("C02")
@pytest.mark.parametrize(
    ("resource_id", "devices", "told"),
    [
        ("k8s.gpu.nvidia.com/claim=u-c-gpu-2", ("gpu-2",), GPU2),
        ("dra.k8s.io/cpu=claim-u-c", ("gpu-2",), GPU2),
        ("intel.com/gpu=gpu-2", ("gpu-1", "gpu-2"), GPU2),
        (f"{DRIVER}/n1/gpu-2", ("gpu-1", "gpu-2"), GPU2),
        ("dra.k8s.io/cpu=claim-u-c", ("gpu-1", "gpu-2"), "unattributed:ml/c/dra.k8s.io/cpu=claim-u-c"),
    ],
)
def test_c02_id_only_selects_among_the_devices_of_the_request(
    feed: Feed, resource_id: str, devices: tuple[str, ...], told: str
) -> None:
    """One device is attributable whatever the id looks like; of several only a matching id names one."""
    feed("ADDED", claim(3, *devices), "resourceclaims")
    assert (told, "Healthy", 5, True) in words(feed("ADDED", pod(5, "Healthy", id=resource_id)))


@pytest.mark.case("C03")
def test_c03_dead_pod_says_nothing_from_the_moment_it_died(feed: Feed) -> None:
    """The frozen word is told once as frozen; relabelling and collecting the dead Pod tells nothing more."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    feed("ADDED", pod(5, "Unhealthy"))
    assert [(GPU2, "Unhealthy", 6, False)] == words(feed("MODIFIED", pod(6, "Unhealthy", phase="Failed")))
    for rv in range(7, 20):
        changed = pod(rv, "Unhealthy", phase="Failed", meta={"labels": {"rv": str(rv)}})
        assert [] == feed("MODIFIED", changed)
    relist = {"metadata": {"resourceVersion": "30"}, "items": [pod(19, "Unhealthy", phase="Failed")]}
    assert [] == words(feed("LIST", relist))


@pytest.mark.case("C03")
def test_c03_pod_first_seen_dead_is_frozen(feed: Feed) -> None:
    """A Pod that was terminal before we looked leaves history only."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    assert [(GPU2, "Healthy", 5, False)] == words(feed("ADDED", pod(5, "Healthy", phase="Succeeded")))


@pytest.mark.case("C04")
def test_c04_message_is_kept_with_its_version_and_absent_is_not_empty(feed: Feed) -> None:
    """Each new message is a new observation of one unchanged word; the text is kept whole."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    long = "e" * 1021 + "..."
    told = [
        fact
        for rv, text in ((5, "ECC 12"), (6, "ECC 13"), (7, long), (8, None), (9, ""))
        for fact in feed("MODIFIED", pod(rv, "Unhealthy", text))
        if isinstance(fact, DeviceHealthObserved)
    ]
    assert [(5, "ECC 12"), (6, "ECC 13"), (7, long), (8, None), (9, "")] == [
        (fact.rv, fact.message) for fact in told
    ]
    assert {"Unhealthy"} == {fact.health for fact in told}


@pytest.mark.case("C09")
def test_c09_device_taken_out_of_its_slice_is_withdrawn_and_its_claim_stays(feed: Feed) -> None:
    """A generation without gpu-1 withdraws it; use is untouched; its return is a publication, not a word of health."""
    feed("ADDED", part("s", 5, "gpu-0", "gpu-1", generation=1), "resourceslices")
    feed("ADDED", claim(3, "gpu-1"), "resourceclaims")
    assert [(f"dra:{DRIVER}/n1/gpu-1", "Unhealthy", 6, True)] == words(feed("ADDED", pod(6, "Unhealthy")))
    shrunk = feed("ADDED", part("s2", 7, "gpu-0", generation=2), "resourceslices")
    assert [("gpu-1", "generation")] == inventory(shrunk)
    assert [] == [
        fact for fact in shrunk if isinstance(fact, ClaimObserved | ClaimGone | DeviceHealthObserved)
    ]
    back = feed("ADDED", part("s3", 8, "gpu-0", "gpu-1", generation=3), "resourceslices")
    assert [("gpu-1", "+")] == inventory(back)
    assert [] == words(back)


@pytest.mark.case("C09")
def test_c09_dangling_device_stays_on_the_books(feed: Feed) -> None:
    """A claim whose device no slice has is charged where its allocation says."""
    feed("LIST", sample("slices/memory-driver-after-restart"), "resourceslices")
    (fact,) = feed("ADDED", sample("claims/dangling-device"), "resourceclaims")
    assert isinstance(fact, ClaimObserved)
    assert ("node-m1", "dra:dra.memory/node-m1/memory-x7k2qp") == (fact.node, fact.results[0].device_id)


@pytest.mark.case("C12")
def test_c12_silent_slice_is_no_word_of_health(feed: Feed) -> None:
    """Relists of an unchanged slice say nothing; the Unknown words of its devices do."""
    feed("ADDED", part("s", 5, "gpu-2"), "resourceslices")
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    feed("ADDED", pod(5, "Healthy"))
    listed = {"metadata": {"resourceVersion": "6"}, "items": [part("s", 5, "gpu-2")]}
    assert ["resync_completed"] == [fact.KIND for fact in feed("LIST", listed, "resourceslices")]
    assert [(GPU2, "Unknown", 8, True)] == words(feed("MODIFIED", pod(8, "Unknown")))


@pytest.mark.case("C17")
def test_c17_own_writes_move_only_versions(feed: Feed) -> None:
    """Our taint on a device, our annotation, label and taint on a node come back as MODIFIED and are no cause."""
    plain = part("s", 5, "gpu-0")
    marked = part("s", 5, "gpu-0")
    marked["metadata"]["resourceVersion"] = "6"
    marked["spec"]["devices"][0]["taints"] = [{"key": "sickbay.dev/quarantined", "effect": "NoSchedule"}]
    feed("ADDED", plain, "resourceslices")
    assert [] == feed("MODIFIED", marked, "resourceslices")
    node = sample("nodes/gpu-node-one-unhealthy")
    feed("ADDED", node, "nodes")
    node = sample("nodes/gpu-node-one-unhealthy")
    node["metadata"]["resourceVersion"] = "101"
    node["metadata"]["annotations"] = {"sickbay.dev/note": "x"}
    node["metadata"]["labels"]["sickbay.dev/state"] = "held"
    node["metadata"]["managedFields"] = [
        {"manager": "sickbay", "fieldsV1": {"f:metadata": {"f:labels": {"f:sickbay.dev/state": {}}}}}
    ]
    node["spec"]["taints"] = [{"key": "sickbay.dev/held", "effect": "NoSchedule"}]
    assert [] == feed("MODIFIED", node, "nodes")


@pytest.mark.case("C18")
def test_c18_expired_position_is_one_gap_with_all_differences(feed: Feed) -> None:
    """The LIST after a 410 gives the gap's bounds, then what is gone, changed and new."""
    one, two, three = pod(100, None), pod(101, None), pod(102, None)
    for item, uid in ((two, "q"), (three, "r")):
        item["metadata"].update(uid=uid, name=uid)
    feed("LIST", {"metadata": {"resourceVersion": "9000"}, "items": [one, two]})
    feed("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    changed = pod(15000, None)
    changed["spec"]["priority"] = 7
    facts = feed("LIST", {"metadata": {"resourceVersion": "20000"}, "items": [changed, three]})
    (gap,) = (fact for fact in facts if isinstance(fact, WatchGapFound))
    assert (9000, 20000, 1_000, 3_000) == (gap.from_rv, gap.to_rv, gap.from_ms, gap.to_ms)
    assert ["watch_gap_found", "pod_gone", "pod_observed", "pod_observed", "resync_completed"] == [
        fact.KIND for fact in facts
    ]


@pytest.mark.case("C23")
@pytest.mark.parametrize("number", ["13", "94", "109", "999"])
@pytest.mark.parametrize("word", ["Healthy", "Unhealthy"])
def test_c23_numbers_are_text_and_the_word_is_the_word(feed: Feed, number: str, word: str) -> None:
    """No number in a taint or a message is read as anything; the health word stands."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    assert [(GPU2, word, 5, True)] == words(feed("ADDED", pod(5, word, f"xid {number}")))
    tainted = part("s", 6, "gpu-2")
    tainted["spec"]["devices"][0]["taints"] = [
        {"key": "gpu.nvidia.com/xid", "value": number, "effect": "None"}
    ]
    (device,) = (f for f in feed("ADDED", tainted, "resourceslices") if isinstance(f, DevicePublished))
    assert (number, "None") == (device.taints[0].value, device.taints[0].effect)


@pytest.mark.case("C24")
def test_c24_older_version_is_evidence_and_no_state(feed: Feed) -> None:
    """rv 11 after rv 12 is told as rv 11; the next word is compared with rv 12. 9 is older than 10."""
    feed("ADDED", claim(3, "gpu-2"), "resourceclaims")
    feed("ADDED", pod(12, "Healthy"))
    assert [(GPU2, "Unhealthy", 11, True)] == words(feed("MODIFIED", pod(11, "Unhealthy")))
    assert [(GPU2, "Unhealthy", 9, True)] == words(feed("MODIFIED", pod(9, "Unhealthy")))
    assert [] == words(feed("MODIFIED", pod(13, "Healthy")))


@pytest.mark.case("C25")
def test_c25_objects_that_come_again_as_added_are_no_news(feed: Feed) -> None:
    """After a reconnect the same fifty Pods with the same versions give nothing."""
    pods = []
    for index in range(50):
        item = pod(100 + index, None)
        item["metadata"].update(uid=f"u{index}", name=f"p{index}")
        pods.append(item)
    assert 50 == sum(bool(feed("ADDED", item)) for item in pods)
    assert 0 == sum(bool(feed("ADDED", item)) for item in pods)


@pytest.mark.case("C27")
def test_c27_bookmark_with_empty_spec_is_no_object(feed: Feed) -> None:
    """Position moves; nothing is decoded."""
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9"}, "spec": {"containers": None}}
    assert ([], []) == (feed("BOOKMARK", bookmark), feed.mirror.drain_parked())


@pytest.mark.case("C30")
def test_c30_fields_of_newer_releases_are_read_or_counted(feed: Feed) -> None:
    """Raw JSON keeps what typed models drop; what nobody reads is counted by path."""
    device = observe_slice(sample("slices/mapping-and-overhead-137")).devices[0].fact
    assert "500m" == device.node_allocatable["cpu"]["perContainer"]
    feed("ADDED", sample("slices/fields-newer-than-decoder"), "resourceslices")
    assert {
        "spec.devices[gpu-0].compatibilityGroups", "spec.partitionTypeAttribute", "spec.skipNodeOperations",
        "spec.someFutureField",
    } == set(feed.mirror.unknown_fields)  # fmt: skip
    entries = observe_pod(sample("pods/nar-status-138-renamed")).fact.node_allocatable
    assert entries is not None
    assert "unknown" == entries[0].shape


@pytest.mark.case("C31")
def test_c31_deletion_between_watch_and_list_is_a_tombstone(feed: Feed) -> None:
    """b went between 100 and 150: its end is known only as that interval."""
    items = {uid: pod(50 + index, None) for index, uid in enumerate("abc")}
    for uid, item in items.items():
        item["metadata"].update(uid=uid, name=uid)
    feed("LIST", {"metadata": {"resourceVersion": "100"}, "items": list(items.values())})
    facts = feed("LIST", {"metadata": {"resourceVersion": "150"}, "items": [items["a"], items["c"]]})
    (gone,) = (fact for fact in facts if isinstance(fact, PodGone))
    assert ("b", 150, 1_000, 2_000, False) == (
        gone.pod_uid, gone.rv, gone.gone_after_ms, gone.observed_at_ms, gone.final_state_known,
    )  # fmt: skip


@pytest.mark.case("C32")
def test_c32_republished_pool_loses_nothing_while_it_is_incomplete(feed: Feed) -> None:
    """The newest generation decides once it is whole; until then the old devices stand."""
    feed("ADDED", part("a1", 5, "gpu-0", count=2), "resourceslices")
    feed("ADDED", part("a2", 6, "gpu-1", count=2), "resourceslices")
    half = feed("ADDED", part("b1", 7, "gpu-0", generation=2, count=2), "resourceslices")
    assert ([], 1, 2) == (inventory(half), pool(half).effective_generation, pool(half).newest_generation)
    assert [] == feed(
        "DELETED", part("a1", 6, "gpu-0", count=2) | {"metadata": _meta("a1", 5, 8)}, "resourceslices"
    )
    whole = feed("ADDED", part("b2", 9, "gpu-2", generation=2, count=2), "resourceslices")
    assert [("gpu-1", "generation"), ("gpu-2", "+")] == inventory(whole)
    assert [] == feed(
        "DELETED", part("a2", 6, "gpu-1", count=2) | {"metadata": _meta("a2", 6, 10)}, "resourceslices"
    )


def _meta(name: str, created_rv: int, rv: int) -> dict[str, str]:
    return {"name": name, "uid": f"u-{name}-{created_rv}", "resourceVersion": str(rv)}


@pytest.mark.case("C33")
def test_c33_wiped_and_republished_slices_are_the_same_devices(feed: Feed) -> None:
    """Other slice, generation back to 1, same names: withdrawn, then the same devices again."""
    before = feed("ADDED", part("x", 5, "gpu-0", generation=7), "resourceslices")
    wiped = feed(
        "DELETED", part("x", 5, "gpu-0", generation=7) | {"metadata": _meta("x", 5, 6)}, "resourceslices"
    )
    after = feed("ADDED", part("y", 9, "gpu-0", generation=1), "resourceslices", 30_000)
    assert [("gpu-0", "slice_deleted")] == inventory(wiped)
    ids = [fact.device_id for facts in (before, after) for fact in facts if isinstance(fact, DevicePublished)]
    assert [f"dra:{DRIVER}/n1/gpu-0"] * 2 == ids
    assert 1 == pool(after).effective_generation


@pytest.mark.case("C34")
def test_c34_absent_generation_is_zero(feed: Feed) -> None:
    """A missing generation and 0 are one; 1 is an increase. Without a version the object is parked."""
    absent = feed("ADDED", part("s", 5, "gpu-0", generation=None), "resourceslices")
    assert (0, True) == (pool(absent).effective_generation, pool(absent).complete)
    same = part("s", 5, "gpu-0", generation=0) | {"metadata": _meta("s", 5, 6)}
    assert [] == feed("MODIFIED", same, "resourceslices")
    risen = part("s", 5, "gpu-0", generation=1) | {"metadata": _meta("s", 5, 7)}
    assert 1 == pool(feed("MODIFIED", risen, "resourceslices")).effective_generation
    assert [] == feed("ADDED", sample("slices/dranet-azure-missing-generation"), "resourceslices")
    assert ["unversioned" in parked.reason for parked in feed.mirror.drain_parked()] == [True]


@pytest.mark.case("C43")
def test_c43_quantities_are_exact_in_every_spelling() -> None:
    """1.1Gi is 1181116006400m is 1181116006.4 bytes; 0.1 is 100m is a tenth."""
    raw = sample("pods/dp-single-healthy")
    amounts = {"a": "1.1Gi", "b": "1181116006400m", "c": "100m", "d": "0.1"}
    raw["spec"]["containers"][0]["resources"] = {"requests": amounts}
    fact = observe_pod(raw).fact
    exact = {key: parse(text).units for key, text in fact.containers[0].requests.items()}
    tenth = Fraction(1, 10)
    assert {"a": Fraction(11811160064, 10), "b": Fraction(11811160064, 10), "c": tenth, "d": tenth} == exact


@pytest.mark.case("C44")
def test_c44_each_illegal_amount_is_refused_alone_with_its_path() -> None:
    """One bad amount takes neither its object nor its neighbours along."""
    raw = sample("nodes/quantities-milli-memory")
    raw["status"]["allocatable"].update({"x": "1K", "y": "NaN", "z": "", "w": "6 GiB", "v": 0.5, "u": True})
    fact = observe_node(raw).fact
    assert {"cpu": "63770m", "memory": "389954383052800m", "pods": "250"} == fact.allocatable
    assert [f"status.allocatable[{key}]" for key in "uvwxyz"] == [
        line.split(": ")[0] for line in fact.refused
    ]
    held = sample("claims/consumed-capacity-odd-units")
    held["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["vfs"] = "one"
    result = observe_claim(held)
    assert ["status.allocation.devices.results[0].consumedCapacity[vfs]"] == [
        line.split(": ")[0] for line in result.fact.refused
    ]
    assert {"net.example.com/ingressBandwidth", "net.example.com/egressBandwidth"} == set(
        result.fact.results[0].consumed or {}
    )


@pytest.mark.case("C58")
def test_c58_asked_and_done_are_two_times(feed: Feed) -> None:
    """deletionTimestamp is when deletion was asked for; the fact's time is when it was seen done."""
    asked = sample("claims/deleting-but-held")
    (held,) = feed("ADDED", asked, "resourceclaims")
    assert isinstance(held, ClaimObserved)
    assert (1782871200000, 1) == (held.deletion_requested_at_ms, len(held.results))
    asked["metadata"]["resourceVersion"] = "7001"
    (done,) = feed("DELETED", asked, "resourceclaims")
    assert isinstance(done, ClaimGone)
    assert (1782871200000, 2_000, True) == (
        done.deletion_requested_at_ms,
        done.observed_at_ms,
        done.final_state_known,
    )
    feed("ADDED", pod(5, None))
    gone = feed("DELETED", pod(6, None))[-1]
    assert isinstance(gone, PodGone)
    assert gone.deletion_requested_at_ms is None


def lease(rv: int, name: str = "n1", renewed: str = "2026-07-01T00:00:10.123456Z") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "uid": f"l-{name}",
            "resourceVersion": str(rv),
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": renewed},
    }


@pytest.mark.case("C59")
def test_c59_clock_that_jumps_a_day_lapses_nobody(feed: Feed) -> None:
    """Neither our receipt clock nor a kubelet's own clock makes nodes look dead."""
    for index in range(20):
        feed("ADDED", lease(index + 1, f"n{index}"), "leases")
    assert [] == feed("TICK", None, "", 86_400_000)
    assert [] == feed("MODIFIED", sample("nodes/lease-clock-ahead"), "leases")
    assert [] == feed("MODIFIED", sample("nodes/lease-clock-behind"), "leases")
    silent = [fact.node for _ in range(12) for fact in feed("TICK", None, "", 5_000)]
    assert sorted([*(f"n{index}" for index in range(20)), "node-g1"]) == sorted(silent)


@pytest.mark.case("C60")
def test_c60_late_renewals_lapse_only_beyond_the_limit_and_once(feed: Feed) -> None:
    """Renewals at 10, 45, 52 and 95 s with a limit of 40 s: one lapse, ended by the last."""
    renewals = {10: 1, 45: 2, 52: 3, 95: 4}
    told = []
    for second in range(1, 121):
        kind: FrameType = "MODIFIED" if second in renewals else "TICK"
        obj = lease(renewals[second]) if second in renewals else None
        told += [(second, fact.KIND) for fact in feed(kind, obj, "leases" if obj else "")]
    assert [(93, "node_lease_lapsed"), (95, "node_lease_resumed")] == told
