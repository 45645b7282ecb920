"""Figures of the samples that no numbered case names, NUMA buckets, and the two findings on NUMA nodes."""

from __future__ import annotations

from fractions import Fraction

import ledger_facts as f
import pytest
from ledger_feed import Cluster, claim, for_pod, node, objects, pod, result, sample, slice_of
from ledger_run import Run

from sickbay.facts import Selected, Together

GI = 2**30
GPU = "gpu.nvidia.com"
STANDARD = "resource.kubernetes.io/numaNode"


def used_by(user, found):
    """A sample's claim and a Pod of that name which it belongs to."""
    made = pod(user, "any", found["metadata"]["name"])
    made["metadata"]["namespace"] = found["metadata"]["namespace"]
    return made, for_pod(found, made)


def derived(slices, node_name, *results, containers=1):
    """What a claim of one Pod adds on the node of a sample's slices."""
    cluster = Cluster(node_name).slices(*slices)
    made = [{"name": f"c{i}", "resources": {"claims": [{"name": "c"}]}} for i in range(containers)]
    cluster.see("resourceclaims", claim("c", node_name, *results, pods=("p",)))
    return cluster.see("pods", pod("p", node_name, "c", containers=made)).run


def share(driver, pool, device, number=0, **consumed):
    amounts = {k.replace("__", "/").replace("_", "."): v for k, v in consumed.items()}
    return result(driver, pool, device, shareID=f"s{number}", consumedCapacity=amounts)


# -- mapping and overhead


def test_example_cpu_an_absent_multiplier_is_one_and_the_node_is_the_configured_one():
    run = derived(
        ["slices/example-cpu-mapping-136"], "node-e1", share("cpu.example.com", "node-e1", "numa-0", cpu="2")
    )

    assert {"cpu": 2} == run.sums("derived", "claims", numa="0") == run.requested("derived")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([share("dra.example.com", "node-e2", "socket0", cores="8")], {"cpu": 16}),
        (
            [result("dra.example.com", "node-e2", "gpu0")],
            {"memory": 2147483648, "cpu": Fraction(1, 2), "hugepages-2Mi": 536870912},
        ),
    ],
    ids=["8 cores", "one gpu0"],
)
def test_mapping_136_multipliers(results, expected):
    assert expected == derived(["slices/mapping-136-multipliers"], "node-e2", *results).requested("derived")


def test_mapping_136_three_gpus_of_half_a_cpu_are_exactly_one_and_a_half():
    (found,) = objects("slices/mapping-136-multipliers")
    gpu = found["spec"]["devices"][1]
    found["spec"]["devices"] = [{**gpu, "name": f"gpu{i}"} for i in range(3)]
    held = [result("dra.example.com", "node-e2", f"gpu{i}") for i in range(3)]
    cluster = Cluster("node-e2").see("resourceslices", found)
    cluster.see("resourceclaims", claim("c", "node-e2", *held, pods=("p",))).see(
        "pods", pod("p", "node-e2", "c")
    )

    assert Fraction(3, 2) == cluster.run.requested("derived")["cpu"]


def test_overhead_137_two_containers_and_two_pods():
    """1073741824 + 2 x 524288000 = 2122317824 for a Pod; Pods that share the claim are charged separately."""
    gpu = result("xpu.example.com", "node-x1", "xpu-model-x-001")
    run = derived(["slices/overhead-137-accelerator"], "node-x1", gpu, containers=2)
    assert {"memory": 2122317824} == run.requested("derived")

    cluster = Cluster("node-x1").slices("slices/overhead-137-accelerator")
    cluster.see("resourceclaims", claim("c", "node-x1", gpu, pods=("p", "q")))
    cluster.see("pods", pod("p", "node-x1", "c"), pod("q", "node-x1", "c"))
    assert {"memory": 2 * (1073741824 + 524288000)} == cluster.run.requested("derived")


def test_overhead_137_status_and_slice_agree():
    user = sample("pods/nar-status-137-overhead-two-containers")
    held = for_pod(
        claim("tensor-claim", "node-x1", result("xpu.example.com", "node-x1", "xpu-model-x-001")), user
    )
    cluster = Cluster("node-x1").slices("slices/overhead-137-accelerator")
    cluster.see("resourceclaims", held).see("pods", user).later(3_600_000)

    assert {"memory": 2122317824} == cluster.run.requested("recorded") == cluster.run.requested("derived")
    assert {} == cluster.run.drifts()


def test_overhead_137_of_a_claim_that_no_container_refers_to():
    cluster = Cluster("node-x1").see("pods", sample("pods/nar-status-137-unreferenced-claim"))

    assert {"memory": 1073741824} == cluster.run.requested("recorded")


def test_mapping_and_overhead_137_on_one_resource():
    """cpu 2 + 1 + 0.5 = 3.5, memory 4294967296: overhead is never taken out of what is mapped."""
    run = derived(
        ["slices/mapping-and-overhead-137"],
        "node-x2",
        result("dra.example.com", "node-x2", "combined-device"),
    )

    assert {"cpu": Fraction("3.5"), "memory": 4294967296} == run.requested("derived")
    assert {"cpu": 2, "memory": 4294967296} == run.sums("derived", "claims")
    assert {"cpu": Fraction("1.5")} == run.sums("derived", "overhead")


def test_cpu_grouped_137_counts_what_was_consumed():
    run = derived(
        ["slices/cpu-grouped-nar-137"],
        "node-c3",
        share("dra.cpu", "node-c3", "cpudevnuma000", dra_cpu__cpu="7"),
    )

    assert {"cpu": 7} == run.requested("derived") == run.sums("derived", "claims", numa="0")


def test_cpu_individual_137_counts_results():
    run = derived(["slices/cpu-individual-nar-137"], "node-c4", result("dra.cpu", "node-c4", "cpudev000"))

    assert {"cpu": 1} == run.requested("derived")


def test_the_placeholder_claim_is_charged_to_its_pod_and_unresolved():
    cluster = Cluster("node-f1").see("nodes", node("node-f1", cpu="8"))
    cluster.see("pods", sample("pods/nar-status-placeholder-claim")).later(3_600_000)
    (key,) = cluster.run.keys("recorded")

    assert {"cpu": 1} == cluster.run.requested("recorded")
    assert key.startswith("claim/?/ml/<extended-resources>/")
    assert {"claim_unknown"} == set(cluster.run.drifts().values())


def test_the_claim_for_extended_resources_is_that_of_the_pod_whose_status_names_it():
    """Device use of Pod ext-0; its spec does not mention the claim."""
    user, held = sample("pods/dra-extended-resource-entry"), sample("claims/extended-resource-claim")
    user["metadata"]["uid"], user["spec"]["nodeName"] = "00000000-9ead-4000-8000-000000000009", "node-e4"
    device = {
        "name": "gpu-3",
        "nodeAllocatableResources": {"memory": {"mapping": {"deviceMultiplier": "1Gi"}}},
    }
    cluster = Cluster("node-e4").see("resourceslices", slice_of("gpu.example.com", "node-e4", device))
    cluster.see("resourceclaims", held).see("pods", user)
    (entry,) = [e for (book, _), e in cluster.run.entries.items() if book == "derived"]

    assert [] == user["spec"].get("resourceClaims", [])
    assert {"gpu.example.com/node-e4:devices": 1} == cluster.run.sums("devices", "claims")
    assert ("ext-0", {"memory": GI}) == (entry.pod, cluster.run.requested("derived"))


# -- device capacity and counters


def test_network_shares_consume_what_the_result_says():
    """ingress exactly 10000000000, egress exactly 5000000000, of 100 VFs and 100000000000 each way; no node resource."""
    user, held = used_by("net-0", sample("claims/consumed-capacity-odd-units"))
    cluster = Cluster("node-e3").slices("slices/net-consumable-bandwidth")
    cluster.see("resourceclaims", held).see("pods", user)
    prefix = "net.example.com/node-e3:"
    names = [f"{prefix}net.example.com/{name}" for name in ("vfs", "ingressBandwidth", "egressBandwidth")]

    assert [1, 10_000_000_000, 5_000_000_000] == [cluster.run.sums("devices", "claims")[n] for n in names]
    assert [100, 100_000_000_000, 100_000_000_000] == [
        cluster.run.sums("devices", "supply")[n] for n in names
    ]
    assert {} == cluster.run.requested("derived")


def test_a_partition_in_use_pays_the_counters_of_its_card():
    """Counters memory-slice-0..3 of gpu-0-counter-set: gpu-0 and both 1g partitions are no longer possible."""
    cluster = Cluster("node-g5").slices("slices/nvidia-dynmig-split-135")
    cluster.see("resourceclaims", sample("claims/partition-in-use"))
    prefix = f"{GPU}/node-g5:gpu-0-counter-set/"
    used, have = cluster.run.sums("counters", "claims"), cluster.run.sums("counters", "supply")

    assert {
        "memory": 19968 * 2**20, "multiprocessors": 42, "copy-engines": 3,
        **{f"memory-slice-{i}": 1 for i in range(4)},
    } == {name.removeprefix(prefix): amount for name, amount in used.items()}  # fmt: skip
    assert [0, 0, 0, 0, 1, 1, 1, 1] == [
        have[f"{prefix}memory-slice-{i}"] - used.get(f"{prefix}memory-slice-{i}", 0) for i in range(8)
    ]
    assert 40320 * 2**20 == have[f"{prefix}memory"]


def test_the_layout_of_one_slice_has_the_same_counters():
    """memory-slice-0 is wanted by three of the four devices; there is one."""
    cluster = Cluster("node-g4").slices("slices/nvidia-dynmig-combined-134")
    first = f"{GPU}/node-g4:gpu-0-counter-set/memory-slice-0"
    for number, device in enumerate(("gpu-0", "gpu-0-mig-1g5gb-19-0", "gpu-0-mig-3g20gb-9-0"), 1):
        cluster.see("resourceclaims", claim(f"c{number}", "node-g4", result(GPU, "node-g4", device)))
        assert number == cluster.run.sums("counters", "claims")[first]
    assert 1 == cluster.run.sums("counters", "supply")[first]


def test_a_share_without_consumed_amounts_uses_the_device_once_and_says_that_they_are_unknown():
    found = sample("claims/share-id-without-consumed-capacity")
    selector = claim("x", "n1")["status"]["allocation"]["nodeSelector"]
    found["status"]["allocation"]["nodeSelector"] = selector
    cluster = Cluster("n1").see("nodes", node("n1", cpu="8"))
    cluster.see("resourceclaims", found)

    assert {"driver-a/pool-1:devices": 1} == cluster.run.sums("devices", "claims")
    assert ("shape_unknown", "ml/share-nocap") in cluster.run.holds()


def test_a_dangling_device_stays_on_the_books():
    """2147483648 of a device that is in no slice any more, not dropped."""
    user, held = used_by("mm", sample("claims/dangling-device"))
    user["spec"]["nodeName"] = "node-m1"
    cluster = Cluster("node-m1").slices("slices/memory-driver-before-restart")
    cluster.see("resourceclaims", held).see("pods", user)
    assert "slice_missing" not in cluster.run.reasons()

    for number, found in enumerate(objects("slices/memory-driver-before-restart")):
        cluster.see("resourceslices", found, kind="DELETED")
        assert number + 1 <= 2
    cluster.slices("slices/memory-driver-after-restart")

    assert 2147483648 == cluster.run.sums("devices", "claims")["dra.memory/node-m1:dra.memory/size"]
    assert ("slice_missing", "ml/mem-old") in cluster.run.holds()


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("allocated-unreserved", "gpu-5"), ("deleting-but-held", "gpu-2"), ("reserved-for-podgroup", "gpu-4"),
        ("template-owned-simple", "gpu-0"), ("v1beta1-flat-request", None), ("unallocated", None), ("status-null", None),
    ],
)  # fmt: skip
def test_a_claim_holds_its_device_whether_anybody_uses_it_or_not(name, device):
    found = sample(f"claims/{name}")
    results = ((found.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
    cluster = Cluster("node-g1").see("resourceclaims", found)
    if device is not None:
        assert [device] == [r["device"] for r in results]

    assert len(results) == sum(amount for r, amount in cluster.run.sums("devices", "claims").items())
    assert {} == cluster.run.requested("derived")


@pytest.mark.parametrize(
    "name", ["pool-incomplete", "pool-inconsistent-count", "pool-duplicate-device", "dangling-counter-set"]
)
def test_a_pool_that_cannot_be_relied_on_holds_its_node(name):
    found = objects(f"slices/{name}")
    for place, part in enumerate(found):
        part["metadata"]["resourceVersion"] = str(1000 + place)
        part["spec"].pop("allNodes", None)
        part["spec"]["nodeName"] = "n1"
    driver, pool_name = found[0]["spec"]["driver"], found[0]["spec"]["pool"]["name"]
    cluster = Cluster("n1").see("resourceslices", *found)

    assert {("pool_incomplete", f"{driver}/{pool_name}")} == cluster.run.holds()
    # where a device was published before the trouble was seen, it is taken back or stays as it was: never counted twice
    assert cluster.run.sums("devices", "supply").get(f"{driver}/{pool_name}:devices", 0) <= 1


# -- NUMA


@pytest.mark.parametrize(
    ("name", "node_name", "expected"),
    [
        ("nvidia-numa-list-and-scalar", "node-g6", {"0": 1, "1": 1}),
        ("nvidia-vfio-legacy-numa", "node-g3", {"0": 1}),
        ("nvidia-full-gpu-a100", "node-g1", {"unknown": 3}),
        ("nvidia-gb200-ip-node-no-numa", "10.20.30.40", None),
        ("dranet-aws-efa", None, {"0": 2}),
        ("cpu-individual-smt", None, {"0": 2}),
    ],
)
def test_devices_stand_in_the_bucket_of_their_node(name, node_name, expected):
    (first, *_) = objects(f"slices/{name}")
    node_name = node_name or first["spec"]["nodeName"]
    expected = expected or {"unknown": len(first["spec"]["devices"])}
    cluster = Cluster(node_name).slices(f"slices/{name}")
    resource = f"{first['spec']['driver']}/{first['spec']['pool']['name']}:devices"

    assert expected == {
        numa: amounts[resource]
        for numa in ("0", "1", "6", "unknown")
        if (amounts := cluster.run.sums("devices", "supply", numa=numa))
    }


def test_a_list_attribute_is_the_node_that_the_device_hangs_on():
    run = Run().each([f.published(1, 1, f.GPU, "g", numa=(6, 4, 5, 7))])

    assert {f"{f.GPU}/{f.NODE}:devices": 1} == run.sums("devices", "supply", numa="6")


def placed(*devices, together=None, selected=None):
    """The alerts of a claim whose devices ``(name, nodes)`` asked for a NUMA node."""
    run = Run()
    for number, (name, numa) in enumerate(devices, 1):
        run.step(f.published(1, number, f.GPU, name, numa=numa))
    held = [f.result(f.GPU, name, request=f"r{i}") for i, (name, _) in enumerate(devices)]
    run.step(f.claim(1, 20, "c", *held, together=together or (), selected=selected or ()))
    return [kind for kind, _ in run.alerts()]


TOGETHER = (Together(attribute=STANDARD),)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((("g", (0,)), ("h", (0,))), []),
        ((("g", (0,)), ("h", (1,))), ["numa_spanned"]),
        ((("g", (0,)), ("h", ())), ["numa_missed"]),
        ((("g", (0,)), ("h", (0, 1))), []),
    ],
    ids=["one node", "two nodes", "one unknown", "a list that begins with the node"],
)
def test_devices_that_were_to_be_on_one_node(devices, expected):
    assert expected == placed(*devices, together=TOGETHER)


@pytest.mark.parametrize(
    ("numa", "expected"), [((0,), []), ((1,), ["numa_missed"]), ((), ["numa_missed"]), ((0, 1), [])]
)
def test_a_device_that_was_to_be_on_a_certain_node(numa, expected):
    assert expected == placed(("g", numa), selected=(Selected(request="r0", attribute=STANDARD, value=0),))


def test_requests_that_are_not_named_and_attributes_of_other_things_ask_for_nothing():
    apart = (("g", (0,)), ("h", (1,)))

    assert [] == placed(*apart, together=(Together(attribute=STANDARD, requests=("r0",)),))
    assert [] == placed(*apart, together=(Together(attribute=f"{f.GPU}/model"),))
    assert [] == placed(*apart, selected=(Selected(request="r0", attribute=f"{f.GPU}/slot", value=7),))


def test_a_claim_that_is_better_placed_later_is_not_shown_any_more():
    run = Run().each([f.published(1, 1, f.GPU, "g", numa=(0,)), f.published(1, 2, f.GPU, "h", numa=(1,))])
    held = (f.result(f.GPU, "g"), f.result(f.GPU, "h"))
    run.step(f.claim(1, 3, "c", *held, together=TOGETHER))
    assert [("numa_spanned", "ml/c")] == run.alerts()

    run.step(f.published(2, 4, f.GPU, "h", numa=(0,)))

    assert [] == run.alerts()


def test_admin_access_to_devices_of_every_node_is_no_placement():
    run = Run().each([f.published(1, 1, f.GPU, "g", numa=(0,)), f.published(1, 2, f.GPU, "h", numa=(1,))])
    run.step(f.claim(1, 3, "c", *(f.result(f.GPU, d, admin=True) for d in "gh"), together=TOGETHER))

    assert [] == run.alerts()
