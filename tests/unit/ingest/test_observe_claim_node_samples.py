"""Every ResourceClaim, Node and Lease sample decodes as the catalogue of samples says."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ingest.observe import ClaimObservation, observe_claim, observe_lease, observe_node
from sickbay.facts import NodeObserved, Taint, Together
from sickbay.quantity import parse

SAMPLES = Path(__file__).parents[2] / "samples"


def load(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def claim(name: str) -> ClaimObservation:
    return observe_claim(load(f"claims/{name}"))


def devices(name: str) -> list[str]:
    return [result.device_id for result in claim(name).fact.results]


def node(name: str) -> NodeObserved:
    return observe_node(load(f"nodes/{name}")).fact


CHECKS: dict[str, Callable[[], None]] = {}


def sample(check: Callable[[], None]) -> Callable[[], None]:
    CHECKS[check.__name__.replace("_", "-")] = check
    return check


@sample
def template_owned_simple() -> None:
    seen = claim("template-owned-simple")
    pod = "00000000-9ead-4000-8000-000000000001"
    assert ["dra:gpu.nvidia.com/node-g1/gpu-0"] == devices("template-owned-simple")
    assert ("node-g1", pod, "gpu", f"Pod/{pod}") == (
        seen.selector_node, seen.owner_pod, seen.pod_claim_name, seen.fact.owner,
    )  # fmt: skip
    assert frozenset({pod}) == seen.consumer_pods


@sample
def shared_by_two_pods() -> None:
    assert (1, 2) == (len(devices("shared-by-two-pods")), len(claim("shared-by-two-pods").consumer_pods))


@sample
def two_shares_same_device() -> None:
    results = claim("two-shares-same-device").fact.results
    assert {"dra:cpu.example.com/node-e1/numa-0"} == {result.device_id for result in results}
    assert 2 == len({result.share_id for result in results})
    assert [{"cpu.example.com/cpu": "1"}] * 2 == [result.consumed for result in results]


@sample
def consumed_capacity_odd_units() -> None:
    consumed = claim("consumed-capacity-odd-units").fact.results[0].consumed or {}
    exact = {key: parse(text).units for key, text in consumed.items()}
    assert {
        "net.example.com/vfs": 1, "net.example.com/ingressBandwidth": 10000000000,
        "net.example.com/egressBandwidth": 5000000000,
    } == exact  # fmt: skip


@sample
def consumed_capacity_unrequested_full() -> None:
    consumed = claim("consumed-capacity-unrequested-full").fact.results[0].consumed or {}
    assert (2, 274877906944) == tuple(
        parse(consumed[f"dra.example.com/{key}"]).units for key in ("cores", "memory")
    )


@sample
def share_id_without_consumed_capacity() -> None:
    (result,) = claim("share-id-without-consumed-capacity").fact.results
    assert ("00000000-5a4e-4000-8000-000000000005", None) == (result.share_id, result.consumed)
    assert "" == claim("share-id-without-consumed-capacity").selector_node


@sample
def admin_access_all() -> None:
    assert [True] * 8 == [result.admin_access for result in claim("admin-access-all").fact.results]


@sample
def extended_resource_claim() -> None:
    seen = claim("extended-resource-claim")
    assert (True, None, "container-0-request-0") == (
        seen.fact.extended_resource, seen.pod_claim_name, seen.fact.results[0].request,
    )  # fmt: skip


@sample
def v1beta1_flat_request() -> None:
    seen = claim("v1beta1-flat-request").fact
    assert (["dra:gpu.nvidia.com/node-g1/gpu-0"], None, "gpu") == (
        devices("v1beta1-flat-request"), seen.allocated_at, seen.results[0].request,
    )  # fmt: skip


@sample
def v1beta2_exactly() -> None:
    assert ["dra:gpu.nvidia.com/node-g1/gpu-1"] == devices("v1beta2-exactly")
    assert "2026-07-01T00:00:01Z" == claim("v1beta2-exactly").fact.allocated_at


@sample
def prioritized_list() -> None:
    (result,) = claim("prioritized-list").fact.results
    assert ("req-0", "large") == (result.request, result.subrequest)


@sample
def tolerations_in_result() -> None:
    (result,) = claim("tolerations-in-result").fact.results
    assert (
        {"key": "gpu.nvidia.com/xid", "operator": "Exists", "effect": "NoSchedule"},
    ) == result.tolerations


@sample
def binding_conditions_pending() -> None:
    fact = claim("binding-conditions-pending").fact
    assert ("FabricDeviceReady",) == fact.results[0].binding_conditions
    assert (
        "gpu.nvidia.com/nvidia-a100-fabric1/nvidia-a100-0/FabricDeviceFailed=True:AttachError",
    ) == fact.device_conditions
    assert "node-y1" == claim("binding-conditions-pending").selector_node


@sample
def device_status_data() -> None:
    fact = claim("device-status-data").fact
    assert (
        1000000000 == parse((fact.results[0].consumed or {})["resource-driver.example.com/bandwidth"]).units
    )
    assert (
        "resource-driver.example.com/nic-worker-a/eth0/Ready=True:NetworkReady",
    ) == fact.device_conditions
    assert "192.0.2.49" not in repr(fact)


@sample
def deleting_but_held() -> None:
    fact = claim("deleting-but-held").fact
    assert (1782871200000, 1) == (fact.deletion_requested_at_ms, len(fact.results))


@sample
def reserved_for_podgroup() -> None:
    seen = claim("reserved-for-podgroup")
    assert frozenset() == seen.consumer_pods
    assert ("podgroups", "scheduling.k8s.io") == (
        seen.fact.consumers[0].resource,
        seen.fact.consumers[0].api_group,
    )


@sample
def allocated_unreserved() -> None:
    assert (["dra:gpu.nvidia.com/node-g1/gpu-5"], ()) == (
        devices("allocated-unreserved"), claim("allocated-unreserved").fact.consumers,
    )  # fmt: skip


@sample
def multi_driver() -> None:
    assert ["dra:dra.net/rig-a/pci-0000-10-1b-0", "dra:gpu.intel.com/rig-a/0000-04-00-0-0xe211"] == devices(
        "multi-driver"
    )
    assert (Together(attribute="resource.kubernetes.io/numaNode", requests=("gpu", "nic")),) == claim(
        "multi-driver"
    ).fact.together


@sample
def partition_in_use() -> None:
    assert ["dra:gpu.nvidia.com/node-g5/gpu-0-mig-3g20gb-9-0"] == devices("partition-in-use")


@sample
def network_device_no_node_selector() -> None:
    assert "" == claim("network-device-no-node-selector").selector_node
    assert ["dra:fabric.example.com/rack-7.example.com/leaf-a/link-0"] == devices(
        "network-device-no-node-selector"
    )


@sample
def unallocated() -> None:
    assert ([], None) == (devices("unallocated"), claim("unallocated").fact.allocated_at)


@sample
def status_null() -> None:
    assert ([], ()) == (devices("status-null"), claim("status-null").fact.refused)


@sample
def dangling_device() -> None:
    (result,) = claim("dangling-device").fact.results
    assert ("memory-x7k2qp", 2147483648) == (
        result.device, parse((result.consumed or {})["dra.memory/size"]).units,
    )  # fmt: skip


def gpus(name: str) -> tuple[str, str]:
    fact = node(name)
    return fact.capacity["nvidia.com/gpu"], fact.allocatable["nvidia.com/gpu"]


@sample
def gpu_node_one_unhealthy() -> None:
    assert ("8", "7") == gpus("gpu-node-one-unhealthy")
    assert ("True", "KubeletReady") == (
        node("gpu-node-one-unhealthy").ready,
        node("gpu-node-one-unhealthy").ready_reason,
    )


@sample
def gpu_node_plugin_gone() -> None:
    assert ("8", "0") == gpus("gpu-node-plugin-gone")


@sample
def gpu_node_plugin_forgotten() -> None:
    assert ("0", "0") == gpus("gpu-node-plugin-forgotten")


@sample
def quantities_milli_memory() -> None:
    allocatable = node("quantities-milli-memory").allocatable
    assert Fraction(3899543830528, 10) == parse(allocatable["memory"]).units
    assert Fraction(6377, 100) == parse(allocatable["cpu"]).units


@sample
def quantities_all_forms() -> None:
    fact = node("quantities-all-forms")
    exact = {key.removeprefix("example.com/"): parse(text).units for key, text in fact.allocatable.items()}
    assert {
        "cpu": Fraction(3, 2), "memory": 129000000, "ephemeral-storage": 47093746742, "hugepages-2Mi": 1073741824,
        "hugepages-1Gi": 2147483648, "a": 1000, "b": 5000, "c": 2 * 10**18, "d": 3, "e": Fraction(1, 2), "f": 0,
        "g": Fraction(1, 10**7),
    } == exact  # fmt: skip
    assert () == fact.refused


@sample
def quantities_illegal() -> None:
    fact = node("quantities-illegal")
    assert {"cpu": "2"} == fact.allocatable
    assert [f"status.allocatable[example.com/{letter}]" for letter in "abcdefg"] == [
        line.split(": ")[0] for line in fact.refused
    ]


@sample
def not_ready_unreachable() -> None:
    fact = node("not-ready-unreachable")
    assert ("Unknown", "NodeStatusUnknown") == (fact.ready, fact.ready_reason)
    assert (
        Taint(key="node.kubernetes.io/unreachable", effect="NoExecute", time_added="2026-07-01T00:01:00Z"),
    ) == fact.taints


@sample
def recreated_same_name() -> None:
    assert ("node-g1", "00000000-0de0-4000-8000-000000000002") == (
        node("recreated-same-name").node, node("recreated-same-name").node_uid,
    )  # fmt: skip


def lease(name: str) -> tuple[str, int, int | None]:
    seen = observe_lease(load(f"nodes/{name}"))
    assert seen is not None
    return seen.identity.name, seen.lease_ms, seen.renewed_at_ms


@sample
def lease_normal() -> None:
    assert ("node-g1", 40_000, 1782864010123) == lease("lease-normal")


@sample
def lease_clock_behind() -> None:
    assert ("node-g1", 40_000, 1782864010123 - 3_600_000) == lease("lease-clock-behind")


@sample
def lease_clock_ahead() -> None:
    assert ("node-g1", 40_000, 1782864010123 + 86_400_000) == lease("lease-clock-ahead")


@sample
def lease_no_renewtime() -> None:
    assert ("node-g9", 40_000, None) == lease("lease-no-renewtime")


@sample
def lease_non_node() -> None:
    assert observe_lease(load("nodes/lease-non-node")) is None


NAMES = sorted(path.stem for folder in ("claims", "nodes") for path in (SAMPLES / folder).glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_sample_decodes_as_catalogued(name: str) -> None:
    """Each sample gives what its line in the catalogue says; a sample without a check fails."""
    CHECKS[name]()


def test_no_check_is_without_sample() -> None:
    """The table holds no check that never runs."""
    assert set(NAMES) == set(CHECKS)
