"""Every ResourceSlice sample decodes as the catalogue of samples says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame
from ingest.observe import SliceObservation, observe_slice
from sickbay.errors import ObjectError
from sickbay.facts import DevicePublished, NumaAffinity, PoolObserved
from sickbay.policy import ReadingPolicy
from sickbay.quantity import parse

SAMPLES = Path(__file__).parents[2] / "samples" / "slices"
STANDARD = "resource.kubernetes.io/numaNode"


def load(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def observed(name: str) -> list[SliceObservation]:
    raw = load(name)
    return [observe_slice(item) for item in (raw["items"] if raw["kind"] == "List" else [raw])]


def published(name: str) -> dict[str, DevicePublished]:
    """Devices by name as one LIST of the sample publishes them."""
    return {fact.device: fact for fact in listed(name) if isinstance(fact, DevicePublished)}


def listed(name: str, *, backwards: bool = False) -> list[Any]:
    raw = load(name)
    items = raw["items"] if raw["kind"] == "List" else [raw]
    if backwards:
        items = items[::-1]
    mirror = Mirror(ReadingPolicy(), 1)
    frame = Frame(
        at_ms=1_000, resource="resourceslices", type="LIST", object={"items": items}, place="sample"
    )
    return mirror.apply(frame)


def pools(name: str, *, backwards: bool = False) -> list[PoolObserved]:
    return [fact for fact in listed(name, backwards=backwards) if isinstance(fact, PoolObserved)]


def amount(device: DevicePublished, key: str) -> int:
    return int(parse(device.capacity[key]).units)


def nodes(devices: dict[str, DevicePublished]) -> dict[str, tuple[int, ...]]:
    return {name: device.numa.nodes for name, device in devices.items()}


CHECKS: dict[str, Callable[[], None]] = {}


def sample(check: Callable[[], None]) -> Callable[[], None]:
    CHECKS[check.__name__.replace("_", "-")] = check
    return check


@sample
def nvidia_full_gpu_a100() -> None:
    devices = published("nvidia-full-gpu-a100")
    assert [f"dra:gpu.nvidia.com/node-g1/gpu-{n}" for n in range(3)] == [
        d.device_id for d in devices.values()
    ]
    assert {42949672960} == {amount(device, "gpu.nvidia.com/memory") for device in devices.values()}
    assert [NumaAffinity()] * 3 == [device.numa for device in devices.values()]
    assert all(key.count("/") == 1 for device in devices.values() for key in device.attributes)
    assert [()] * 3 == [device.taints for device in devices.values()]
    assert "8.0.0" == devices["gpu-0"].attributes["gpu.nvidia.com/cudaComputeCapability"]
    assert "a0000002-5a5a-4b4b-8c8c-000000000002" == devices["gpu-0"].node_uid


@sample
def nvidia_gb200_ip_node_no_numa() -> None:
    devices = published("nvidia-gb200-ip-node-no-numa")
    assert {"10.20.30.40"} == {device.pool for device in devices.values()}
    assert {"10.20.30.40"} == {device.node for device in devices.values()}
    assert [198674743296] * 2 == [amount(device, "gpu.nvidia.com/memory") for device in devices.values()]
    assert {"gpu-0": (), "gpu-1": ()} == nodes(devices)


@sample
def nvidia_mig_static() -> None:
    devices = published("nvidia-mig-static")
    assert {"card:gpu.nvidia.com/GPU-00000000-1111-2222-3333-000000000001"} == {
        device.physical_id for device in devices.values()
    }
    assert [5100273664, 5100273664, 20937965568] == [
        amount(device, "gpu.nvidia.com/memory") for device in devices.values()
    ]
    assert "0" == devices["gpu-0-mig-1g5gb-19-0"].capacity["gpu.nvidia.com/decoders"]


@sample
def nvidia_vfio_legacy_numa() -> None:
    device = published("nvidia-vfio-legacy-numa")["gpu-vfio-0"]
    assert NumaAffinity(nodes=(0,), physical=0, sources=("gpu.nvidia.com/numa",)) == device.numa
    assert 42949672960 == amount(device, "gpu.nvidia.com/addressableMemory")
    assert "gpu.nvidia.com/memory" not in device.capacity
    assert "0x20b0" == device.attributes["gpu.nvidia.com/deviceID"]


@sample
def nvidia_dynmig_combined_134() -> None:
    devices = published("nvidia-dynmig-combined-134")
    (pool,) = pools("nvidia-dynmig-combined-134")
    assert 4 == len(devices)
    assert ("gpu-0-counter-set", "memory-slice-0", "1") in pool.counters
    wanting = {
        name
        for name, device in devices.items()
        if any(counter == "memory-slice-0" for _, counter, _ in device.consumes_counters)
    }
    assert {"gpu-0", "gpu-0-mig-1g5gb-19-0", "gpu-0-mig-3g20gb-9-0"} == wanting


@sample
def nvidia_dynmig_split_135() -> None:
    (pool,) = pools("nvidia-dynmig-split-135")
    assert (3, 3, True, 3, "") == (
        pool.slices_present, pool.slices_expected, pool.complete, pool.effective_generation, pool.invalid_reason,
    )  # fmt: skip
    assert 8 == len(published("nvidia-dynmig-split-135"))
    assert [0, 4, 4] == [len(seen.devices) for seen in observed("nvidia-dynmig-split-135")]


@sample
def nvidia_numa_list_and_scalar() -> None:
    devices = published("nvidia-numa-list-and-scalar")
    assert NumaAffinity(nodes=(0,), physical=0, sources=(STANDARD,)) == devices["gpu-0"].numa
    assert NumaAffinity(nodes=(1,), physical=1, sources=(STANDARD,)) == devices["gpu-1"].numa


@sample
def nvidia_health_taints() -> None:
    devices = published("nvidia-health-taints")
    taints = {
        name: [
            (taint.key.removeprefix("gpu.nvidia.com/"), taint.value, taint.effect) for taint in device.taints
        ]
        for name, device in devices.items()
    }
    assert {
        "gpu-0": [("xid", "79", "NoSchedule")],
        "gpu-1": [("xid", "43", "None")],
        "gpu-2": [("unmonitored", "", "None")],
        "gpu-3": [("gpu-lost", "", "NoSchedule"), ("xid", "79", "NoSchedule")],
        "gpu-4": [],
    } == taints


@sample
def nvidia_consumable_shares() -> None:
    device = published("nvidia-consumable-shares")["gpu-0"]
    assert device.allow_multiple
    assert "0" == device.capacity_policy["gpu.nvidia.com/memory"]["default"]
    assert "1" == device.capacity_policy["gpu.nvidia.com/shares"]["default"]
    assert 85899345920 == amount(device, "gpu.nvidia.com/memory")


@sample
def nvidia_compute_domain() -> None:
    devices = published("nvidia-compute-domain")
    assert {"compute-domain.nvidia.com"} == {device.driver for device in devices.values()}
    assert "dra:compute-domain.nvidia.com/node-g1/channel-0" == devices["channel-0"].device_id
    assert [{}, {}] == [device.capacity for device in devices.values()]
    assert {"channel-0": (), "daemon-0": ()} == nodes(devices)


@sample
def intel_gpu() -> None:
    devices = published("intel-gpu")
    assert [0, 0] == [device.pool_generation for device in devices.values()]
    assert [1000, 1000] == [amount(device, "gpu.intel.com/millicores") for device in devices.values()]
    assert [0, 25669140480] == [amount(device, "gpu.intel.com/memory") for device in devices.values()]
    assert {"Healthy"} == {device.attributes["gpu.intel.com/health"] for device in devices.values()}
    assert {()} == set(nodes(devices).values())


@sample
def intel_gpu_unhealthy() -> None:
    devices = published("intel-gpu-unhealthy")
    bad, unbound = devices["0000-04-00-0-0xe211"], devices["0000-05-00-0-0xe211"]
    assert ["HealthIssues-coretemperature_memorytemperature"] == [taint.key for taint in bad.taints]
    assert "2026-07-01T03:04:05Z" == bad.taints[0].time_added
    assert ("UnboundUnmanaged", None) == (unbound.taints[0].key, unbound.taints[0].time_added)
    assert ("Unhealthy", "Healthy") == tuple(d.attributes["gpu.intel.com/health"] for d in (bad, unbound))
    assert "" == unbound.attributes["gpu.intel.com/driver"]


@sample
def intel_gaudi_unhealthy_bool() -> None:
    devices = published("intel-gaudi-unhealthy-bool")
    assert [False, True] == [device.attributes["gaudi.intel.com/healthy"] for device in devices.values()]
    assert [(), ()] == [device.taints for device in devices.values()]
    assert [None, None] == [device.physical_id for device in devices.values()]


@sample
def amd_mi300x_spx() -> None:
    device = published("amd-mi300x-spx")["gpu-0-128"]
    assert "900000000000000042" == device.attributes["gpu.amd.com/deviceID"]
    assert 206141652992 == amount(device, "gpu.amd.com/memory")
    assert () == device.numa.nodes
    assert device.physical_id is None


@sample
def amd_mi300x_cpx_partitions() -> None:
    devices = published("amd-mi300x-cpx-partitions")
    assert ["card:gpu.amd.com/900000000000000042"] * 3 == [device.physical_id for device in devices.values()]
    assert "cpx_nps4" == devices["gpu-0-128"].attributes["gpu.amd.com/partitionProfile"]


@sample
def dranet_aws_efa() -> None:
    devices = published("dranet-aws-efa")
    assert {NumaAffinity(nodes=(0,), physical=0, sources=("dra.net/numaNode",))} == _set(devices)
    assert "192.0.2.24/19" == devices["pci-0000-20-01-0"].attributes["dra.net/ipv4"]
    assert {"node-n1.ec2.internal"} == {device.node for device in devices.values()}


def _set(devices: dict[str, DevicePublished]) -> set[NumaAffinity]:
    return {device.numa for device in devices.values()}


@sample
def dranet_azure_missing_generation() -> None:
    with pytest.raises(ObjectError, match="unversioned"):
        observed("dranet-azure-missing-generation")
    raw = load("dranet-azure-missing-generation")
    raw["metadata"]["resourceVersion"] = "7"
    seen = observe_slice(raw)
    assert (0, (1,)) == (seen.generation, seen.devices[0].fact.numa.nodes)


@sample
def dranet_v1beta1_basic() -> None:
    device = published("dranet-v1beta1-basic")["gpu7rdma0"]
    assert NumaAffinity(nodes=(1,), physical=1, sources=(STANDARD, "dra.net/numaNode")) == device.numa
    assert 8896 == device.attributes["dra.net/mtu"]
    assert (1471803, ()) == (device.rv, device.unknown_fields)


@sample
def tpu_v1beta1_duplicate_uuid() -> None:
    devices = published("tpu-v1beta1-duplicate-uuid")
    assert ["dra:tpu.google.com/node-t1/accel0", "dra:tpu.google.com/node-t1/accel1"] == [
        device.device_id for device in devices.values()
    ]
    assert [None, None] == [device.physical_id for device in devices.values()]
    assert ["", ""] == [device.node_uid for device in devices.values()]


@sample
def sriov_vf_numa_minus_one() -> None:
    device = published("sriov-vf-numa-minus-one")["0000-08-00-2"]
    assert "dra:sriovnetwork.k8snetworkplumbingwg.io/node-n4/0000-08-00-2" == device.device_id
    assert NumaAffinity(sources=("dra.net/numaNode",)) == device.numa
    assert "" == device.attributes["resource.kubernetes.io/pcieRoot"]


@sample
def rbln_standard_numa_minus_one() -> None:
    device = published("rbln-standard-numa-minus-one")["npu-0"]
    assert NumaAffinity(sources=(STANDARD,)) == device.numa
    assert 16106127360 == amount(device, "npu.rebellions.ai/memory")


@sample
def cpu_grouped_numa() -> None:
    devices = published("cpu-grouped-numa")
    assert {"cpudevnuma000": (0,), "cpudevnuma001": (1,)} == nodes(devices)
    assert [64, 64] == [amount(device, "dra.cpu/cpu") for device in devices.values()]
    assert [None, None] == [device.node_allocatable_shape for device in devices.values()]
    assert (STANDARD, "dra.net/numaNode", "dra.cpu/numaNodeID") == devices["cpudevnuma000"].numa.sources
    assert ("pci0000:00", "pci0000:10") == devices["cpudevnuma000"].attributes[
        "resource.kubernetes.io/pcieRoot"
    ]


@sample
def cpu_individual_smt() -> None:
    devices = published("cpu-individual-smt")
    assert {"cpudev000": (0,), "cpudev001": (0,)} == nodes(devices)
    assert 33 == devices["cpudev001"].attributes["dra.cpu/cpuID"]


@sample
def cpu_grouped_nar_137() -> None:
    device = published("cpu-grouped-nar-137")["cpudevnuma000"]
    assert "1.37" == device.node_allocatable_shape
    assert {"cpu": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}} == device.node_allocatable


@sample
def cpu_individual_nar_137() -> None:
    device = published("cpu-individual-nar-137")["cpudev000"]
    assert ("1.37", {"cpu": {"deviceMultiplier": "1"}}) == (
        device.node_allocatable_shape,
        device.node_allocatable,
    )


@sample
def example_cpu_mapping_136() -> None:
    device = published("example-cpu-mapping-136")["numa-0"]
    assert ("1.36", {"cpu": {"capacityKey": "cpu.example.com/cpu"}}) == (
        device.node_allocatable_shape, device.node_allocatable,
    )  # fmt: skip
    assert ((0,), ("cpu.example.com/numaNodeID",)) == (device.numa.nodes, device.numa.sources)
    bare = ReadingPolicy(numa_attributes=(STANDARD,))
    assert NumaAffinity() == observe_slice(load("example-cpu-mapping-136"), bare).devices[0].fact.numa


@sample
def mapping_136_multipliers() -> None:
    devices = published("mapping-136-multipliers")
    assert {
        "cpu": {"capacityKey": "dra.example.com/cores", "allocationMultiplier": "2"},
        "memory": {"capacityKey": "dra.example.com/memory"},
    } == devices["socket0"].node_allocatable
    assert {
        "memory": {"allocationMultiplier": "2Gi"},
        "cpu": {"allocationMultiplier": "500m"},
        "hugepages-2Mi": {"allocationMultiplier": "512Mi"},
    } == devices["gpu0"].node_allocatable
    assert {"1.36"} == {device.node_allocatable_shape for device in devices.values()}


@sample
def overhead_137_accelerator() -> None:
    device = published("overhead-137-accelerator")["xpu-model-x-001"]
    assert {"memory": {"perPod": "1Gi", "perContainer": "500Mi"}} == device.node_allocatable


@sample
def mapping_and_overhead_137() -> None:
    device = published("mapping-and-overhead-137")["combined-device"]
    assert {
        "cpu": {"deviceMultiplier": "2", "perPod": "1", "perContainer": "500m"},
        "memory": {"deviceMultiplier": "4Gi"},
    } == device.node_allocatable


@sample
def kep_text_direct_shape_never_served() -> None:
    with pytest.raises(ObjectError, match=r"metadata\.uid"):
        observed("kep-text-direct-shape-never-served")
    raw = load("kep-text-direct-shape-never-served")
    raw["metadata"].update(uid="u", resourceVersion="1")
    device = observe_slice(raw).devices[0].fact
    assert ("unknown", {}, {}, {}) == (
        device.node_allocatable_shape, device.node_allocatable, device.capacity, device.attributes,
    )  # fmt: skip
    paths = " ".join(device.unknown_fields)
    for path in ("nodeAllocatableResourceMappings[cpu].direct", "capacity[dra.example.com/cpu]"):
        assert path in paths


@sample
def memory_driver_before_restart() -> None:
    devices = published("memory-driver-before-restart")
    sizes = {name: amount(device, "dra.memory/size") for name, device in devices.items()}
    assert {
        "memory-x7k2qp": 67420008448, "memory-b9d4zt": 67645734912, "hugepages-2m-h2p8vw": 4294967296,
    } == sizes  # fmt: skip
    assert {"memory-x7k2qp": (0,), "memory-b9d4zt": (1,), "hugepages-2m-h2p8vw": (0,)} == nodes(devices)


@sample
def memory_driver_after_restart() -> None:
    mirror = Mirror(ReadingPolicy(), 1)
    mirror.apply(_list(load("memory-driver-before-restart"), 1_000))
    facts = mirror.apply(_list(load("memory-driver-after-restart"), 2_000))
    named = {(fact.KIND, fact.device) for fact in facts if hasattr(fact, "device")}
    assert {
        ("device_withdrawn", "memory-x7k2qp"), ("device_withdrawn", "memory-b9d4zt"),
        ("device_withdrawn", "hugepages-2m-h2p8vw"), ("device_published", "memory-m3n5rr"),
        ("device_published", "memory-t6y8uu"), ("device_published", "hugepages-2m-q1w9ee"),
    } == named  # fmt: skip


def _list(raw: dict[str, Any], at_ms: int) -> Frame:
    return Frame(at_ms=at_ms, resource="resourceslices", type="LIST", object=raw, place="sample")


@sample
def tpu_per_device_node_selection() -> None:
    devices = published("tpu-per-device-node-selection")
    assert {"tpu-2x2-1": "node-1", "tpu-2x4-1": ""} == {name: device.node for name, device in devices.items()}
    shared = {counter for device in devices.values() for _, counter, _ in device.consumes_counters}
    assert {"tpus-node-1", "tpus-node-2"} == shared
    assert {"", "node-1"} == {pool.node for pool in pools("tpu-per-device-node-selection")}


@sample
def dangling_counter_set() -> None:
    (pool,) = pools("dangling-counter-set")
    assert (
        "device tpu-2x4-1 consumes counter set tpu-couner-set, which the pool does not have"
        == pool.invalid_reason
    )
    assert {} == published("dangling-counter-set")


@sample
def composable_fabric_binding_conditions() -> None:
    devices = published("composable-fabric-binding-conditions")
    device = devices["nvidia-a100-0"]
    assert ("nvidia-a100-fabric1", "", 7) == (device.pool, device.node, device.pool_generation)
    assert ("FabricDeviceReady",) == device.binding_conditions
    assert ("FabricDeviceFailed", "FabricDeviceReschedule") == device.binding_failure_conditions


@sample
def pool_with_slash_all_nodes() -> None:
    device = published("pool-with-slash-all-nodes")["link-0"]
    assert ("fabric.example.com", "rack-7.example.com/leaf-a", "link-0", "") == (
        device.driver, device.pool, device.device, device.node,
    )  # fmt: skip


@sample
def pool_incomplete() -> None:
    (pool,) = pools("pool-incomplete")
    assert (4, None, 1, 3, False, "") == (
        pool.newest_generation, pool.effective_generation, pool.slices_present, pool.slices_expected, pool.complete,
        pool.invalid_reason,
    )  # fmt: skip
    assert {} == published("pool-incomplete")


@sample
def pool_inconsistent_count() -> None:
    forwards, backwards = pools("pool-inconsistent-count"), pools("pool-inconsistent-count", backwards=True)
    assert forwards == backwards
    assert "slice-a says 1, slice-b says 2" in forwards[0].invalid_reason
    assert not forwards[0].complete
    assert {} == published("pool-inconsistent-count")


@sample
def pool_duplicate_device() -> None:
    forwards, backwards = pools("pool-duplicate-device"), pools("pool-duplicate-device", backwards=True)
    assert forwards == backwards
    assert "device device-2 is published more than once" == forwards[0].invalid_reason
    assert {} == published("pool-duplicate-device")


@sample
def net_consumable_bandwidth() -> None:
    device = published("net-consumable-bandwidth")["nic-0"]
    keys = [f"net.example.com/{name}" for name in ("vfs", "ingressBandwidth", "egressBandwidth")]
    assert [100, 100000000000, 100000000000] == [amount(device, key) for key in keys]
    defaults = [device.capacity_policy[key]["default"] for key in keys]
    assert [1, 1000000000, 1000000000] == [int(parse(str(value)).units) for value in defaults]
    assert ("1",) == device.capacity_policy[keys[0]]["validValues"]
    assert {"default": "1G", "min": "100M", "max": "100G", "step": "1M"} == device.capacity_policy[keys[1]]


@sample
def fields_newer_than_decoder() -> None:
    device = published("fields-newer-than-decoder")["gpu-0"]
    assert (
        "spec.devices[gpu-0].compatibilityGroups", "spec.partitionTypeAttribute", "spec.skipNodeOperations",
        "spec.someFutureField",
    ) == device.unknown_fields  # fmt: skip
    assert 85899345920 == amount(device, "gpu.example.com/memory")
    assert ("1.2.3", "1.2.4") == device.attributes["gpu.example.com/zones"]
    assert (True, False) == device.attributes["gpu.example.com/flags"]


@sample
def numa_name_zoo() -> None:
    devices = published("numa-name-zoo")
    unknown = {
        "dev-numa", "dev-numanode", "dev-numanodeid", "dev-dra-example-com-numaid", "dev-empty-list", "dev-valueless",
        "dev-none", "dev-minus",
    }  # fmt: skip
    assert unknown == {name for name, found in nodes(devices).items() if found == ()}
    assert (6, (4, 5, 6, 7)) == (devices["dev-list"].numa.physical, devices["dev-list"].numa.nodes)
    assert NumaAffinity(nodes=(0,), physical=0, sources=(STANDARD, "dra.net/numaNode"), conflict=True) == (
        devices["dev-conflict"].numa
    )
    assert ((0,), (1,), (0,), (1,)) == tuple(
        devices[name].numa.nodes
        for name in (
            "dev-dra-net-numanode", "dev-dra-cpu-numanodeid", "dev-dra-memory-numanode",
            "dev-resource-kubernetes-io-numanode",
        )
    )  # fmt: skip
    policy = ReadingPolicy(
        numa_attributes=("dra.example.com/numaID", "zoo.example.com/numa"), numa_from_text=True
    )
    by_name = {d.fact.device: d.fact.numa.nodes for d in observe_slice(load("numa-name-zoo"), policy).devices}
    assert ((0,), (0,), ()) == (
        by_name["dev-dra-example-com-numaid"], by_name["dev-numa"], by_name["dev-dra-net-numanode"],
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.json")))
def test_sample_decodes_as_catalogued(name: str) -> None:
    """Each slice sample gives what its line in the catalogue says; a sample without a check fails."""
    CHECKS[name]()


def test_no_check_is_without_sample() -> None:
    """The table holds no check that never runs."""
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(CHECKS)
