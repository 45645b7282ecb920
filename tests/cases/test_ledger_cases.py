"""Numbered cases of the catalogue, the ledger's side: objects through the observer, balances out."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
from ledger_feed import Cluster, claim, for_pod, new, node, objects, old, pod, result, sample, slice_of

GPU = "gpu.nvidia.com"
GI = 2**30


def twice(obj, uid, name):
    """Another object of the same content."""
    found = copy.deepcopy(obj)
    found["metadata"].update(uid=uid, name=name)
    return found


def gpus(count, node="node-g1"):
    return slice_of(GPU, node, *({"name": f"gpu-{i}"} for i in range(count)))


@pytest.mark.case("C35")
def test_c35_a_claim_that_two_pods_share_uses_its_device_once():
    """One device use with two consumers; the mapping counts once for the node, the overhead once for each Pod."""
    shared = sample("claims/shared-by-two-pods")
    users = [
        twice(pod(f"pod{i}", "node-g1", "shared"), f"00000000-9ead-4000-8000-00000000000{i + 1}", f"pod{i}")
        for i in (1, 2)
    ]
    device = {
        "name": "gpu-0",
        "nodeAllocatableResources": {
            "cpu": {"mapping": {"deviceMultiplier": "2"}},
            "memory": {"overhead": {"perPod": "1Gi", "perContainer": "500Mi"}},
        },
    }
    cluster = Cluster("node-g1").see("resourceslices", slice_of(GPU, "node-g1", device))
    cluster.see("resourceclaims", shared).see("pods", *users)
    run = cluster.run

    assert 2 == len(shared["status"]["reservedFor"])
    assert {f"{GPU}/node-g1:devices": 1} == run.sums("devices", "claims")
    assert {"cpu": 2} == run.sums("derived", "claims")
    assert {"memory": 2 * (GI + 500 * 2**20)} == run.sums("derived", "overhead")


@pytest.mark.case("C35")
def test_c35_a_second_pod_that_records_the_claim_is_refused_and_not_added():
    users = [pod(name, "node-g1", "c", status=[old("c", cpu="2")]) for name in ("a", "b")]
    cluster = Cluster("node-g1").see(
        "resourceclaims", claim("c", "node-g1", result(GPU, "node-g1", "gpu-0"), pods=("a", "b"))
    )
    cluster.see("pods", *users)

    assert {"cpu": 2} == cluster.run.sums("recorded", "claims")
    assert [("recorded", "claim/uid-c", "uid-b")] == cluster.run.refused()


@pytest.mark.case("C36")
def test_c36_a_shared_device_pays_its_counters_once_until_its_last_share_is_gone():
    """Counters used: 4 of 8, before and after a rebuild."""
    device = {
        "name": "d",
        "allowMultipleAllocations": True,
        "capacity": {"cores": {"value": "8"}},
        "consumesCounters": [{"counterSet": "set", "counters": {"slots": {"value": "4"}}}],
    }
    counters = [{"name": "set", "counters": {"slots": {"value": "8"}}}]
    cluster = Cluster("n1").see(
        "resourceslices",
        slice_of(GPU, "n1", counters=counters, count=2, name="counters"),
        slice_of(GPU, "n1", device, count=2, name="devices", rv=1001),
    )
    slots, cores = f"{GPU}/n1:set/slots", f"{GPU}/n1:{GPU}/cores"
    shares = [
        claim(f"c{i}", "n1", result(GPU, "n1", "d", shareID=f"s{i}", consumedCapacity={"cores": "1"}))
        for i in range(3)
    ]
    for number, share in enumerate(shares, 1):
        cluster.see("resourceclaims", share)
        assert {slots: 4} == cluster.run.sums("counters", "claims")
        assert {cores: number, f"{GPU}/n1:devices": 1} == cluster.run.sums("devices", "claims")
    assert {slots: 8} == cluster.run.sums("counters", "supply")

    cluster.run = cluster.run.reopened()
    for left, share in zip((2, 1, 0), shares, strict=True):
        assert {slots: 4} == cluster.run.sums("counters", "claims")
        cluster.see("resourceclaims", share, kind="DELETED")
        assert left == cluster.run.sums("devices", "claims").get(cores, 0)
    assert {} == cluster.run.sums("counters", "claims")
    assert {} == cluster.run.sums("devices", "claims")


@pytest.mark.case("C36")
def test_c36_two_shares_in_one_claim_are_two_shares_of_one_device():
    """The key is (driver, pool, device, share): consumed 2 on numa-0, one device in use."""
    cluster = Cluster("node-e1").slices("slices/example-cpu-mapping-136")
    cluster.see("resourceclaims", sample("claims/two-shares-same-device"))
    prefix = "cpu.example.com/node-e1:"

    assert {f"{prefix}cpu.example.com/cpu": 2, f"{prefix}devices": 1} == cluster.run.sums("devices", "claims")
    assert 3 == len([key for key in cluster.run.keys("devices") if key.startswith("use/")])


@pytest.mark.case("C36")
def test_c36_a_shared_gpu_never_shrinks_in_its_slice():
    """Two shares of the sample's GPU: what is allocated stands beside the capacity that is published, 80Gi and 10 shares."""
    cluster = Cluster("node-g8").slices("slices/nvidia-consumable-shares")
    for name in ("a", "b"):
        used = {"memory": "10Gi", "shares": "1"}
        share = result(GPU, "node-g8", "gpu-0", shareID=f"s-{name}", consumedCapacity=used)
        cluster.see("resourceclaims", claim(name, "node-g8", share))
    prefix = f"{GPU}/node-g8:"
    memory, shares = f"{prefix}{GPU}/memory", f"{prefix}{GPU}/shares"

    assert {memory: 80 * GI, shares: 10, f"{prefix}devices": 1} == cluster.run.sums("devices", "supply")
    assert {memory: 20 * GI, shares: 2, f"{prefix}devices": 1} == cluster.run.sums("devices", "claims")


@pytest.mark.case("C37")
def test_c37_counters_of_equal_names_belong_to_their_driver_and_pool():
    cluster = Cluster("n1")
    for driver, size, used in (("driver-a", "8", "3"), ("driver-b", "4", "1")):
        device = {
            "name": "d",
            "consumesCounters": [{"counterSet": "set", "counters": {"slots": {"value": used}}}],
        }
        counters = [{"name": "set", "counters": {"slots": {"value": size}}}]
        cluster.see(
            "resourceslices",
            slice_of(driver, "n1", counters=counters, count=2, name=f"{driver}-counters", pool="pool-1"),
            slice_of(driver, "n1", device, count=2, name=f"{driver}-devices", pool="pool-1", rv=1001),
        )
        cluster.see("resourceclaims", claim(f"c-{driver}", "n1", result(driver, "pool-1", "d")))
    a, b = "driver-a/pool-1:set/slots", "driver-b/pool-1:set/slots"

    assert {a: 8, b: 4} == cluster.run.sums("counters", "supply")
    assert {a: 3, b: 1} == cluster.run.sums("counters", "claims")


@pytest.mark.case("C37")
def test_c37_one_claim_of_two_drivers_has_a_device_in_two_pools_of_one_name():
    cluster = Cluster("rig-a").see("resourceclaims", sample("claims/multi-driver"))

    assert {"gpu.intel.com/rig-a:devices": 1, "dra.net/rig-a:devices": 1} == cluster.run.sums(
        "devices", "claims"
    )


@pytest.mark.case("C38")
def test_c38_admin_access_uses_nothing():
    """Eight uses, not sixteen, no conflict; the monitoring Pod is charged nothing."""
    device = {"nodeAllocatableResources": {"memory": {"mapping": {"deviceMultiplier": "1Gi"}}}}
    cluster = Cluster("node-g1")
    cluster.see(
        "resourceslices", slice_of(GPU, "node-g1", *({"name": f"gpu-{i}", **device} for i in range(8)))
    )
    monitor = pod("mon-0", "node-g1", "mon-0-gpus-abcde")
    monitor["metadata"].update(namespace="gpu-admin", uid="00000000-9ead-4000-8000-000000000008")
    cluster.see("pods", monitor).see("resourceclaims", sample("claims/admin-access-all"))
    assert {} == cluster.run.sums("devices", "claims") | cluster.run.requested("derived")

    for i in range(8):
        cluster.see("pods", pod(f"p{i}", "node-g1", f"c{i}"))
        cluster.see(
            "resourceclaims", claim(f"c{i}", "node-g1", result(GPU, "node-g1", f"gpu-{i}"), pods=(f"p{i}",))
        )

    assert {f"{GPU}/node-g1:devices": 8} == cluster.run.sums("devices", "claims")
    assert {"memory": 8 * GI} == cluster.run.requested("derived")
    assert [] == cluster.run.alerts()
    assert [] == cluster.run.refused()


@pytest.mark.case("C39")
def test_c39_a_device_that_two_claims_hold_counts_once_and_the_conflict_is_shown():
    cluster = Cluster("node-g1").see("resourceslices", gpus(1))
    both = [claim(name, "node-g1", result(GPU, "node-g1", "gpu-0"), pods=(name,)) for name in ("a", "b")]
    device = f"dra:{GPU}/node-g1/gpu-0"
    cluster.see("pods", pod("a", "node-g1", "a"), pod("b", "node-g1", "b")).see("resourceclaims", *both)

    assert {f"{GPU}/node-g1:devices": 1} == cluster.run.sums("devices", "claims")
    assert "uid-a" == cluster.run.entries["devices", f"use/{device}"].claim_uid
    assert [("device_conflict", device)] == cluster.run.alerts()
    assert [("devices", f"use/{device}", "uid-b")] == cluster.run.refused()

    cluster.see("resourceclaims", both[0], kind="DELETED")

    assert "uid-b" == cluster.run.entries["devices", f"use/{device}"].claim_uid
    assert [] == cluster.run.alerts() + cluster.run.refused()


@pytest.mark.case("C40")
def test_c40_overhead_is_added_once_to_a_pod_level_request_that_contains_the_claim():
    """cpu 11.25, memory 10863247360: DRA 10 is inside the 11, not on top."""
    cluster = Cluster("node-c3").see("nodes", node("node-c3", cpu="64", memory="256Gi"))
    cluster.see("pods", sample("pods/nar-pod-level-resources"))
    cluster.see(
        "resourceclaims", claim("cpu-claim", "node-c3", result("dra.cpu", "node-c3", "cpudevnuma000"))
    )
    (entry,) = [e for (book, _), e in cluster.run.entries.items() if book == "recorded"]

    assert {"cpu": Fraction("11.25"), "memory": 10863247360} == cluster.run.requested("recorded")
    assert {"cpu": Fraction("52.75"), "memory": 256 * GI - 10863247360} == cluster.run.free("recorded")
    assert [("cpu", "10")] == [(a.resource, a.quantity) for a in entry.covered]
    assert () == entry.amounts


@pytest.mark.case("C40")
def test_c40_overhead_is_added_to_the_largest_of_asked_allocated_and_actuated():
    """max(2, 3, 2.5) + 0.25, with a claim of 4 on top."""
    user = pod("p", "node-c3", "c", requests={"cpu": "2"}, status=[old("c", cpu="4")])
    user["spec"]["overhead"] = {"cpu": "250m"}
    user["status"]["containerStatuses"] = [
        {"name": "main", "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "2500m"}}}
    ]
    cluster = Cluster("node-c3").see("pods", user)

    assert {"cpu": Fraction("7.25")} == cluster.run.requested("recorded")


@pytest.mark.case("C41")
def test_c41_cpus_that_are_asked_for_twice_count_twice_and_are_flagged():
    """By the rules of the scheduler this is 8: spec plus DRA. The ledger does not silently subtract."""
    cluster = Cluster("node-c3").slices("slices/cpu-grouped-nar-137")
    share = result("dra.cpu", "node-c3", "cpudevnuma000", shareID="s", consumedCapacity={"dra.cpu/cpu": "4"})
    user = pod("p", "node-c3", "c", requests={"cpu": "4"}, status=[new("c", {"cpu": "4"})])
    cluster.see("resourceclaims", claim("c", "node-c3", share, pods=("p",))).see("pods", user)

    assert {"cpu": 8} == cluster.run.requested("recorded") == cluster.run.requested("derived")
    assert [("probable_duplicate", "ml/c@uid-p")] == cluster.run.alerts()


@pytest.mark.case("C42")
def test_c42_device_capacity_and_node_allocatable_are_two_books():
    """23 of 23 device CPUs; 24.5 of 24 node CPUs, which is a state and no error."""
    mapped = {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}}
    (grouped,) = objects("slices/cpu-grouped-numa")
    for device, size in zip(grouped["spec"]["devices"], ("12", "11"), strict=True):
        device["capacity"]["dra.cpu/cpu"]["value"] = size
        device["nodeAllocatableResources"] = mapped
    cluster = Cluster("node-c1").see("nodes", node("node-c1", cpu="24")).see("resourceslices", grouped)
    shares = [
        result(
            "dra.cpu", "node-c1", f"cpudevnuma00{i}", shareID=f"s{i}", consumedCapacity={"dra.cpu/cpu": size}
        )
        for i, size in enumerate(("12", "11"))
    ]
    cluster.see("resourceclaims", claim("c", "node-c1", *shares, pods=("p",)))
    cluster.see("pods", pod("p", "node-c1", "c", status=[new("c", {"cpu": "23"})]))
    cluster.see("pods", pod("q", "node-c1", requests={"cpu": "1500m"}))
    cpus = "dra.cpu/node-c1:dra.cpu/cpu"

    assert 23 == cluster.run.sums("devices", "supply")[cpus] == cluster.run.sums("devices", "claims")[cpus]
    assert {"cpu": Fraction("24.5")} == cluster.run.requested("recorded") == cluster.run.requested("derived")
    assert {"cpu": Fraction("-0.5")} == cluster.run.free("recorded")
    assert {"cpu": 12} == cluster.run.sums("derived", "claims", numa="0")
    assert {"cpu": 11} == cluster.run.sums("derived", "claims", numa="1")


@pytest.mark.case("C42")
def test_c42_a_grouped_slice_without_mapping_moves_no_node_resource():
    cluster = Cluster("node-c1").slices("slices/cpu-grouped-numa")
    share = result("dra.cpu", "node-c1", "cpudevnuma000", shareID="s", consumedCapacity={"dra.cpu/cpu": "23"})
    cluster.see("resourceclaims", claim("c", "node-c1", share, pods=("p",))).see(
        "pods", pod("p", "node-c1", "c")
    )

    assert {"dra.cpu/node-c1:dra.cpu/cpu": 23, "dra.cpu/node-c1:devices": 1} == cluster.run.sums(
        "devices", "claims"
    )
    assert {} == cluster.run.requested("derived")


@pytest.mark.case("C43")
@pytest.mark.parametrize(
    ("resource", "one", "other", "rounded"),
    [
        ("memory", "1.1Gi", "1181116006400m", Fraction(1181116007)),
        ("memory", "100m", "0.1", Fraction(1)),
        ("cpu", "0.1", "100m", Fraction(1, 10)),
    ],
)
def test_c43_equal_values_in_other_spelling_book_no_movement(resource, one, other, rounded):
    """Exact until the Pod's sum, which the scheduler rounds up to whole bytes and millicores."""
    cluster = Cluster("n1").see("pods", pod("p", "n1", requests={resource: one}))
    assert {resource: rounded} == cluster.run.requested("recorded")
    before = len(cluster.run.decisions)

    cluster.see("pods", pod("p", "n1", requests={resource: other}, rv=9001), kind="MODIFIED")

    assert before == len(cluster.run.decisions)


@pytest.mark.case("C43")
def test_c43_allocatable_is_kept_exact():
    """cpu 63.77, memory 389954383052.8."""
    cluster = Cluster("node-o1").see("nodes", sample("nodes/quantities-milli-memory"))

    assert {"cpu": Fraction("63.77"), "memory": Fraction("389954383052.8")} == cluster.run.sums(
        "common", "supply"
    )


@pytest.mark.case("C43")
def test_c43_every_legal_spelling_of_a_resource_that_counts_is_supply():
    cluster = Cluster("node-o2").see("nodes", sample("nodes/quantities-all-forms"))

    assert {
        "cpu": Fraction("1.5"), "memory": 129_000_000, "ephemeral-storage": 47093746742, "hugepages-2Mi": GI,
        "hugepages-1Gi": 2 * GI,
    } == cluster.run.sums("common", "supply")  # fmt: skip


@pytest.mark.case("C44")
def test_c44_an_illegal_amount_is_refused_alone_and_holds_the_node():
    """cpu 2 is still supply; a request that cannot be read is not read as zero in silence."""
    cluster = Cluster("node-o3").see("nodes", sample("nodes/quantities-illegal"))
    assert {"cpu": 2} == cluster.run.sums("common", "supply")

    cluster.see("pods", pod("p", "node-o3", requests={"cpu": "1", "memory": "6 GiB"}))

    assert {"cpu": 1} == cluster.run.requested("recorded")
    assert ("shape_unknown", "ml/p") in cluster.run.holds()


@pytest.mark.case("C45")
def test_c45_what_was_consumed_is_believed_and_what_is_missing_adds_nothing():
    """cpu 2 x 2 and all 256Gi of memory, which nobody asked for; without memory in the result, cpu alone."""
    found = sample("claims/consumed-capacity-unrequested-full")
    user = pod("half-0", "node-e2", "half-0")
    user["metadata"]["uid"] = "00000000-9ead-4000-8000-000000000006"
    cluster = Cluster("node-e2").slices("slices/mapping-136-multipliers")
    cluster.see("resourceclaims", found).see("pods", user)
    assert {"cpu": 4, "memory": 274877906944} == cluster.run.sums("derived", "claims")

    less = copy.deepcopy(found)
    less["metadata"]["resourceVersion"] = "7001"
    (used,) = less["status"]["allocation"]["devices"]["results"]
    del used["consumedCapacity"]["dra.example.com/memory"]
    cluster.see("resourceclaims", less, kind="MODIFIED")

    assert {"cpu": 4} == cluster.run.sums("derived", "claims")
    assert set() == {scope for reason, scope in cluster.run.holds() if reason == "shape_unknown"}


@pytest.mark.case("C46")
@pytest.mark.parametrize(
    "entry",
    [old("c", cpu="2"), new("c", {"cpu": "2"}), {"resourceClaimName": "c", "containers": ["main"], "mapping": [{"name": "cpu", "quantity": "2"}]}],
    ids=["1.36", "1.37", "1.37 without overhead"],
)  # fmt: skip
def test_c46_each_served_shape_of_a_status_gives_the_same_ledger(entry):
    cluster = Cluster("n1").see("resourceclaims", claim("c", "n1", result(GPU, "n1", "gpu-0"), pods=("p",)))
    cluster.see("pods", pod("p", "n1", "c", status=[entry]))

    assert {("recorded", "claim/uid-c"): (("cpu", "unknown", "2"),)} == {
        at: tuple((a.resource, a.numa, a.quantity) for a in e.amounts)
        for at, e in cluster.run.entries.items()
        if at[0] == "recorded"
    }
    assert "shape_unknown" not in cluster.run.reasons()


@pytest.mark.case("C46")
@pytest.mark.parametrize(
    "entry",
    [
        {**new("c", {"cpu": "2"}), "perDevice": "1Gi"},
        new("c", {"cpu": "2"}, [{"name": "memory", "perDevice": "1Gi"}]),
        {**old("c", cpu="2"), **new("c", {"cpu": "2"})},
    ],
    ids=["unknown member", "overhead of an unknown member only", "two shapes at once"],
)
def test_c46_what_is_not_understood_whole_holds_the_node_and_is_never_zero_in_silence(entry):
    cluster = Cluster("n1").see("nodes", node("n1", cpu="8"))
    cluster.see("resourceclaims", claim("c", "n1", result(GPU, "n1", "gpu-0"), pods=("p",)))
    cluster.see("pods", pod("p", "n1", "c", status=[entry]))

    assert ("shape_unknown", "ml/p") in cluster.run.holds()


@pytest.mark.case("C46")
def test_c46_amounts_that_an_upgrade_dropped_are_a_named_difference_and_never_zero_in_silence():
    """What 1.37 serves of an entry that 1.36 recorded (tests/cluster/test_recordings.py): it counts nothing for the claim."""
    cluster = Cluster("n1").see("nodes", node("n1", cpu="8"))
    device = {"name": "gpu-0", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "2"}}}}
    cluster.see("resourceslices", slice_of(GPU, "n1", device))
    cluster.see("resourceclaims", claim("c", "n1", result(GPU, "n1", "gpu-0"), pods=("p",)))
    entry = {"resourceClaimName": "c", "containers": ["main"]}
    cluster.see("pods", pod("p", "n1", "c", status=[entry])).later(120_000)

    assert {"ml/c": "not_counted"} == cluster.run.drifts()
    assert "shape_unknown" not in cluster.run.reasons()
    assert {"cpu": 2} == cluster.run.sums("derived", "claims")


@pytest.mark.case("C46")
def test_c46_an_explicit_empty_list_clears_former_charges():
    cleared = sample("pods/nar-status-cleared")
    charged = copy.deepcopy(cleared)
    charged["metadata"]["resourceVersion"] = "8999"
    charged["status"]["nodeAllocatableResourceClaimStatuses"] = [old("c", cpu="2")]
    cluster = Cluster("node-e1").see("pods", charged)
    assert {"cpu": 2} == cluster.run.requested("recorded")

    cluster.see("pods", cleared, kind="MODIFIED")

    assert {} == cluster.run.requested("recorded")


@pytest.mark.case("C46")
def test_c46_a_shape_of_a_later_release_is_read_as_far_as_it_goes_and_holds_the_node():
    cluster = Cluster("node-c3").see("nodes", node("node-c3", cpu="64"))
    cluster.see("pods", sample("pods/nar-status-138-renamed"))

    assert {"cpu": 10} == cluster.run.requested("recorded")
    assert ("shape_unknown", "ml/nar-138") in cluster.run.holds()


@pytest.mark.case("C46")
@pytest.mark.parametrize(
    ("old_shape", "new_shape"),
    [
        ({"cpu": {"allocationMultiplier": "2"}}, {"cpu": {"mapping": {"deviceMultiplier": "2"}}}),
        (
            {"cpu": {"capacityKey": "cores", "allocationMultiplier": "2"}},
            {"cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "2"}}},
        ),
    ],
    ids=["each device", "capacity"],
)
def test_c46_each_served_shape_of_a_device_gives_the_same_ledger(old_shape, new_shape):
    found = []
    for field, mapping in (
        ("nodeAllocatableResourceMappings", old_shape),
        ("nodeAllocatableResources", new_shape),
    ):
        device = {
            "name": "d",
            "allowMultipleAllocations": True,
            "capacity": {"cores": {"value": "8"}},
            field: mapping,
        }
        share = result(GPU, "n1", "d", shareID="s", consumedCapacity={"cores": "3"})
        cluster = Cluster("n1").see("resourceslices", slice_of(GPU, "n1", device))
        cluster.see("resourceclaims", claim("c", "n1", share, pods=("p",))).see("pods", pod("p", "n1", "c"))
        found.append(cluster.run.sums("derived", "claims"))

    assert found[0] == found[1] in ({"cpu": 2}, {"cpu": 6})


@pytest.mark.case("C46")
def test_c46_the_shape_of_the_design_text_is_no_mapping_of_zero_and_none_of_one():
    """It was never served: nothing is derived from it, and the node is on hold."""
    (text,) = objects("slices/kep-text-direct-shape-never-served")
    text["metadata"].update(uid="u", resourceVersion="1000")
    cluster = Cluster("my-node").see("resourceslices", text)
    share = result("dra.example.com", "node-pool", "numa-0", consumedCapacity={"dra.example.com/cpu": "4"})
    cluster.see("resourceclaims", claim("c", "my-node", share, pods=("p",))).see(
        "pods", pod("p", "my-node", "c")
    )

    assert {} == cluster.run.requested("derived")
    assert ("shape_unknown", "dra:dra.example.com/node-pool/numa-0") in cluster.run.holds()


@pytest.mark.case("C46")
def test_c46_status_samples_of_the_served_shapes_charge_what_they_say():
    """1.36: cpu 2; 1.37: cpu 4.1 and memory 8694792192 with the spec."""
    first, second = sample("pods/nar-status-136"), sample("pods/nar-status-137-mapping")
    shares = for_pod(sample("claims/two-shares-same-device"), first)
    cluster = Cluster("node-e1").slices("slices/example-cpu-mapping-136")
    cluster.see("resourceclaims", shares).see("pods", first)

    assert {"cpu": 2} == cluster.run.requested("recorded") == cluster.run.requested("derived")
    assert {"cpu": 2} == cluster.run.sums("derived", "claims", numa="0")
    assert {} == cluster.later(3_600_000).run.drifts()
    assert {"cpu": Fraction("4.1"), "memory": 8694792192} == Cluster("node-c3").see(
        "pods", second
    ).run.requested("recorded")


@pytest.mark.case("C47")
def test_c47_devices_without_a_numa_node_are_a_group_of_their_own():
    """Eight GPUs, four with NUMA node 0 or 1, four without: absent is unknown and not node 0."""
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {} if i > 3 else {"resource.kubernetes.io/numaNode": {"int": i % 2}},
            "nodeAllocatableResources": {"memory": {"mapping": {"deviceMultiplier": "1Gi"}}},
        }
        for i in range(8)
    ]
    cluster = Cluster("n1").see("resourceslices", slice_of(GPU, "n1", *devices))
    held = [result(GPU, "n1", f"gpu-{i}") for i in range(8)]
    cluster.see("resourceclaims", claim("c", "n1", *held, pods=("p",))).see("pods", pod("p", "n1", "c"))

    for numa, count in (("0", 2), ("1", 2), ("unknown", 4)):
        assert {f"{GPU}/n1:devices": count} == cluster.run.sums("devices", "claims", numa=numa)
        assert {"memory": count * GI} == cluster.run.sums("derived", "claims", numa=numa)
    assert {"memory": 8 * GI} == cluster.run.sums("derived", "claims")


@pytest.mark.case("C48")
@pytest.mark.parametrize(
    ("name", "node_name", "buckets"),
    [
        ("slices/sriov-vf-numa-minus-one", "node-n4", {"unknown": 1}),
        ("slices/rbln-standard-numa-minus-one", "node-r1", {"unknown": 1}),
        # of the fourteen: standard 1 and list 6; conflict keeps the standard 0; dra.net 0, dra.cpu 1, dra.memory 0
        ("slices/numa-name-zoo", "node-q1", {"0": 3, "1": 2, "6": 1, "unknown": 8}),
    ],
)  # fmt: skip
def test_c48_minus_one_empty_and_texts_are_unknown_under_every_name(name, node_name, buckets):
    (published,) = objects(name)
    cluster = Cluster(node_name).see("resourceslices", published)
    resource = f"{published['spec']['driver']}/{node_name}:devices"

    assert buckets == {numa: cluster.run.sums("devices", "supply", numa=numa)[resource] for numa in buckets}
    assert (
        sum(buckets.values())
        == cluster.run.sums("devices", "supply")[resource]
        == len(published["spec"]["devices"])
    )
