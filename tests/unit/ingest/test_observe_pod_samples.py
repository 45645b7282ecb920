"""Every Pod sample decodes as the catalogue of samples says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame
from ingest.observe import PodObservation, observe_pod
from sickbay.facts import DeviceHealthObserved, Fact, NodeAllocatableEntry, PodClaim
from sickbay.policy import ReadingPolicy
from sickbay.quantity import parse

SAMPLES = Path(__file__).parents[2] / "samples" / "pods"
GPU = "GPU-00000000-1111-2222-3333-00000000000"
CDI = "k8s.gpu.nvidia.com/claim=00000000-c1a1-4000-8000-000000000001-gpu-"


def load(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text())


def seen(name: str) -> PodObservation:
    return observe_pod(load(name))


def words(name: str) -> dict[str, str]:
    """Device id to health word, as one frame of the sample tells it."""
    return {f"{fact.node} {fact.device_id}": fact.health for fact in health(name)}


def health(name: str, *claims: dict[str, Any]) -> list[DeviceHealthObserved]:
    raw = load(name)
    mirror = Mirror(ReadingPolicy(), 1)
    facts: list[Fact] = []
    for claim in claims:
        facts += mirror.apply(
            Frame(at_ms=1, resource="resourceclaims", type="ADDED", object=claim, place="claim")
        )
    kind = "LIST" if raw["kind"] == "List" else "ADDED"
    facts += mirror.apply(Frame(at_ms=2, resource="pods", type=kind, object=raw, place=name))
    return [fact for fact in facts if isinstance(fact, DeviceHealthObserved)]


def claim(name: str, *results: tuple[str, str, str, str]) -> dict[str, Any]:
    """A claim that holds ``(request, driver, pool, device)``."""
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": "5"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": request, "driver": driver, "pool": pool, "device": device}
                        for request, driver, pool, device in results
                    ]
                }
            }
        },
    }


def raw_words(name: str) -> list[tuple[str, str, str | None]]:
    return [(report.name, report.resource_id, report.health_raw) for report in seen(name).reports]


CHECKS: dict[str, Callable[[], None]] = {}


def sample(check: Callable[[], None]) -> Callable[[], None]:
    CHECKS[check.__name__.replace("_", "-")] = check
    return check


@sample
def dp_single_healthy() -> None:
    assert {"node-g1 plugin:test.device/dpf/testdevice": "Healthy"} == words("dp-single-healthy")


@sample
def dp_single_unhealthy() -> None:
    assert {"node-g1 plugin:test.device/dpf/testdevice": "Unhealthy"} == words("dp-single-unhealthy")


@sample
def dp_imagepullbackoff_still_reports() -> None:
    (fact,) = health("dp-imagepullbackoff-still-reports")
    assert ("Unhealthy", True) == (fact.health, fact.live)
    assert "Pending" == seen("dp-imagepullbackoff-still-reports").fact.phase


@sample
def dp_eight_gpus_one_bad() -> None:
    expected = {
        f"node-g1 plugin:nvidia.com/gpu/{GPU}{n}": "Unhealthy" if n == 5 else "Healthy" for n in range(8)
    }
    assert expected == words("dp-eight-gpus-one-bad")


@sample
def dp_time_slicing_replicas() -> None:
    bad, good = health("dp-time-slicing-replicas")
    assert (f"plugin:nvidia.com/gpu.shared/{GPU}1::0", "Unhealthy", ("a",)) == (
        bad.device_id,
        bad.health,
        bad.containers,
    )
    assert (f"plugin:nvidia.com/gpu.shared/{GPU}1::3", "Healthy", ("b",)) == (
        good.device_id,
        good.health,
        good.containers,
    )
    assert {f"plugin:nvidia.com/gpu.shared/{GPU}1"} == {bad.physical_id, good.physical_id}


@sample
def dp_mig_ids() -> None:
    facts = health("dp-mig-ids")
    assert ["Healthy", "Unhealthy"] == [fact.health for fact in facts]
    assert "plugin:nvidia.com/mig-1g.5gb/MIG-00000000-aaaa-bbbb-cccc-000000000002" == facts[1].device_id
    assert [None, None] == [fact.physical_id for fact in facts]


@sample
def dp_gke_partition_path_ids() -> None:
    assert {
        "node-g1 plugin:nvidia.com/gpu/nvidia0/gi7": "Healthy", "node-g1 plugin:nvidia.com/gpu/nvidia0/gi8": "Unhealthy",
    } == words("dp-gke-partition-path-ids")  # fmt: skip


@sample
def dp_three_segment_id_lookalike() -> None:
    assert {"node-g1 plugin:vendor.example/dev/gpu.nvidia.com/node-g1/gpu-0": "Unhealthy"} == words(
        "dp-three-segment-id-lookalike"
    )


@sample
def dp_pci_ids_two_nodes() -> None:
    assert {
        "node-n4 plugin:example.com/sriov/0000:3b:02.1": "Unhealthy",
        "node-n5 plugin:example.com/sriov/0000:3b:02.1": "Healthy",
    } == words("dp-pci-ids-two-nodes")


@sample
def dp_resource_name_as_id() -> None:
    assert {"node-g1 plugin:github.com.example/kvm/github.com.example/kvm": "Healthy"} == words(
        "dp-resource-name-as-id"
    )


@sample
def dra_cdi_claim_scoped_id() -> None:
    assert [("claim:gpu", f"{CDI}0", "Healthy")] == raw_words("dra-cdi-claim-scoped-id")
    (fact,) = health(
        "dra-cdi-claim-scoped-id", claim("dra-0-gpu-abcde", ("gpu", "gpu.nvidia.com", "node-g1", "gpu-0"))
    )
    assert ("dra:gpu.nvidia.com/node-g1/gpu-0", "Healthy", "claim:gpu") == (
        fact.device_id,
        fact.health,
        fact.reported_as,
    )


@sample
def dra_documented_triple_id() -> None:
    held = [("gpu", "gpu.nvidia.com", "node-g1", f"gpu-{n}") for n in range(2)]
    (fact,) = health("dra-documented-triple-id", claim("dra-1-gpu-abcde", *held))
    assert ("dra:gpu.nvidia.com/node-g1/gpu-0", "Unhealthy") == (fact.device_id, fact.health)


@sample
def dra_triple_with_slashed_pool() -> None:
    held = [("gpu", "fabric.example.com", "rack-7.example.com/leaf-a", f"link-{n}") for n in range(2)]
    (fact,) = health("dra-triple-with-slashed-pool", claim("dra-2-gpu-abcde", *held))
    assert ("dra:fabric.example.com/rack-7.example.com/leaf-a/link-0", "Unhealthy") == (
        fact.device_id,
        fact.health,
    )


@sample
def dra_common_cdi_collapse() -> None:
    held = [("gpu", "gpu.example.com", "node-g1", f"gpu-{n}") for n in range(4)]
    (fact,) = health("dra-common-cdi-collapse", claim("dra-3-gpu-abcde", *held))
    assert "unattributed:ml/dra-3-gpu-abcde/k8s.gpu.example.com/gpu=common" == fact.device_id
    assert tuple(f"dra:gpu.example.com/node-g1/gpu-{n}" for n in range(4)) == fact.candidates


@sample
def dra_cpu_claim_id_many_devices() -> None:
    held = [("gpu", "dra.cpu", "node-g1", f"cpudev{n}") for n in range(3)]
    (fact,) = health("dra-cpu-claim-id-many-devices", claim("dra-4-gpu-abcde", *held))
    assert ("Unknown", "no update", 3) == (fact.health, fact.message, len(fact.candidates))
    assert fact.device_id.startswith("unattributed:ml/dra-4-gpu-abcde/dra.k8s.io/cpu=claim-")


@sample
def dra_request_scoped_names() -> None:
    assert (PodClaim(name="both", claim="pair"),) == seen("dra-request-scoped-names").fact.claims
    pair = claim(
        "pair",
        ("gpu", "gpu.intel.com", "node-g1", "0000-04-00-0-0xe211"),
        ("nic", "dra.net", "node-g1", "pci-0000-10-1b-0"),
    )
    facts = health("dra-request-scoped-names", pair)
    assert {
        "dra:gpu.intel.com/node-g1/0000-04-00-0-0xe211": "Healthy", "dra:dra.net/node-g1/pci-0000-10-1b-0": "Unhealthy",
    } == {fact.device_id: fact.health for fact in facts}  # fmt: skip


@sample
def dra_subrequest_name() -> None:
    (reference,) = seen("dra-subrequest-name").fact.containers[0].claims
    assert ("any", "req-0/large") == (reference.name, reference.request)
    held = [
        ("req-0/large", "gpu.nvidia.com", "node-g1", "gpu-1"),
        ("req-1", "gpu.nvidia.com", "node-g1", "gpu-2"),
    ]
    (fact,) = health("dra-subrequest-name", claim("dra-6-any-abcde", *held))
    assert ("dra:gpu.nvidia.com/node-g1/gpu-1", "Healthy") == (fact.device_id, fact.health)


@sample
def dra_extended_resource_entry() -> None:
    name = "ext-0-extended-resources-9k2lm"
    assert ((), name) == (
        seen("dra-extended-resource-entry").fact.claims,
        seen("dra-extended-resource-entry").fact.extended_claim,
    )
    held = ("container-0-request-0", "gpu.example.com", "node-e4", "gpu-3")
    (fact,) = health("dra-extended-resource-entry", claim(name, held))
    assert ("dra:gpu.example.com/node-e4/gpu-3", "Healthy") == (fact.device_id, fact.health)


@sample
def dra_message_present() -> None:
    (report,) = seen("dra-message-present").reports
    assert ("Unhealthy", "ECC error count exceeded threshold") == (report.health_raw, report.message)


@sample
def dra_message_on_healthy() -> None:
    (fact,) = health(
        "dra-message-on-healthy", claim("dra-8-gpu-abcde", ("gpu", "tpu.google.com", "node-g1", "accel0"))
    )
    assert ("Healthy", "TPU device file is present") == (fact.health, fact.message)


@sample
def dra_message_truncated() -> None:
    (fact,) = health(
        "dra-message-truncated", claim("dra-9-gpu-abcde", ("gpu", "gpu.nvidia.com", "node-g1", "gpu-3"))
    )
    raw = load("dra-message-truncated")["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]
    assert (raw["resources"][0]["message"], "Unhealthy") == (fact.message, fact.health)
    assert str(fact.message).endswith("...")


def _one_word(name: str, claim_name: str) -> tuple[str, str | None]:
    (fact,) = health(name, claim(claim_name, ("gpu", "gpu.nvidia.com", "node-g1", "gpu-4")))
    return fact.health, fact.health_raw


@sample
def health_field_absent() -> None:
    assert ("Unknown", None) == _one_word("health-field-absent", "dra-10-gpu-abcde")


@sample
def health_empty_string() -> None:
    assert ("Unknown", "") == _one_word("health-empty-string", "dra-11-gpu-abcde")


@sample
def health_future_value() -> None:
    assert ("Unknown", "PermanentlyUnhealthy") == _one_word("health-future-value", "dra-12-gpu-abcde")


@sample
def health_lowercase() -> None:
    assert ("Unknown", "healthy") == _one_word("health-lowercase", "dra-13-gpu-abcde")


@sample
def resources_null_and_empty() -> None:
    assert ((), ()) == (
        seen("resources-null-and-empty").reports,
        seen("resources-null-and-empty").fact.refused,
    )


@sample
def container_statuses_null() -> None:
    assert ((), ()) == (seen("container-statuses-null").reports, seen("container-statuses-null").fact.refused)


@sample
def sidecar_init_holds_device() -> None:
    observed = seen("sidecar-init-holds-device")
    assert () == observed.reports
    proxy = observed.fact.containers[0]
    assert ("proxy", True, True, {"nvidia.com/gpu": "1"}) == (
        proxy.name,
        proxy.init,
        proxy.restartable,
        proxy.requests,
    )


@sample
def sidecar_init_reported() -> None:
    assert {f"node-g1 plugin:nvidia.com/gpu/{GPU}9": "Unhealthy"} == words("sidecar-init-reported")


@sample
def same_device_two_containers() -> None:
    (fact,) = health(
        "same-device-two-containers", claim("shared", ("gpu", "gpu.nvidia.com", "node-g1", "gpu-0"))
    )
    assert (("a", "b"), "Unhealthy") == (fact.containers, fact.health)


@sample
def order_shuffled_no_change() -> None:
    first, second = (observe_pod(item) for item in load("order-shuffled-no-change")["items"])
    assert first.reports == second.reports
    held = [("gpu", "a.example.com", "node-g1", str(n)) for n in (1, 2)]
    facts = health("order-shuffled-no-change", claim("s", *held))
    assert [("dra:a.example.com/node-g1/1", 9100), ("dra:a.example.com/node-g1/2", 9100)] == [
        (fact.device_id, fact.rv) for fact in facts
    ]


@sample
def failed_pod_frozen_health() -> None:
    assert seen("failed-pod-frozen-health").terminal
    (fact,) = health(
        "failed-pod-frozen-health", claim("fail-0-gpu-abcde", ("gpu", "gpu.nvidia.com", "node-g1", "gpu-0"))
    )
    assert ("Healthy", False) == (fact.health, fact.live)


@sample
def mixed_dp_and_dra() -> None:
    facts = health(
        "mixed-dp-and-dra", claim("mix-0-nic-abcde", ("nic", "dra.net", "node-g1", "pci-0000-10-1b-0"))
    )
    assert {
        f"plugin:nvidia.com/gpu/{GPU}2": "Healthy", "dra:dra.net/node-g1/pci-0000-10-1b-0": "Unknown",
    } == {fact.device_id: fact.health for fact in facts}  # fmt: skip


@sample
def dra_claim_status_missing() -> None:
    assert (PodClaim(name="gpu", claim=None),) == seen("dra-claim-status-missing").fact.claims
    assert [] == health("dra-claim-status-missing")
    owned = claim("miss-0-gpu-zzzzz", ("gpu", "gpu.nvidia.com", "node-g1", "gpu-0"))
    owned["metadata"]["ownerReferences"] = [
        {
            "kind": "Pod",
            "name": "miss-0",
            "uid": seen("dra-claim-status-missing").fact.pod_uid,
            "controller": True,
        }
    ]
    (fact,) = health("dra-claim-status-missing", owned)
    assert ("dra:gpu.nvidia.com/node-g1/gpu-0", "Unhealthy") == (fact.device_id, fact.health)


def _entry(name: str) -> NodeAllocatableEntry:
    entries = seen(name).fact.node_allocatable
    assert entries is not None
    (entry,) = entries
    return entry


@sample
def nar_status_136() -> None:
    assert NodeAllocatableEntry(
        claim="nar-136-cpus-abcde", shape="1.36", containers=("ctr0",), mapping={"cpu": "2"}
    ) == _entry("nar-status-136")


@sample
def nar_status_137_mapping() -> None:
    assert NodeAllocatableEntry(
        claim="cpu-claim", shape="1.37", containers=("c1",), mapping={"cpu": "4", "memory": "8Gi"}
    ) == _entry("nar-status-137-mapping")
    requests = seen("nar-status-137-mapping").fact.containers[0].requests
    total = {
        key: parse(requests[key]).units + parse(_entry("nar-status-137-mapping").mapping[key]).units
        for key in requests
    }
    assert (41, 8694792192) == (int(total["cpu"] * 10), int(total["memory"]))


@sample
def nar_status_137_overhead_two_containers() -> None:
    entry = _entry("nar-status-137-overhead-two-containers")
    assert ({"memory": "1Gi"}, {"memory": "500Mi"}, ("app-c1", "app-c2")) == (
        entry.per_pod, entry.per_container, entry.containers,
    )  # fmt: skip


@sample
def nar_status_137_unreferenced_claim() -> None:
    entry = _entry("nar-status-137-unreferenced-claim")
    assert ((), {"memory": "1Gi"}, "1.37") == (entry.containers, entry.per_pod, entry.shape)


@sample
def nar_status_cleared() -> None:
    assert () == seen("nar-status-cleared").fact.node_allocatable
    assert seen("dp-single-healthy").fact.node_allocatable is None


@sample
def nar_status_placeholder_claim() -> None:
    assert ("<extended-resources>", {"cpu": "1"}) == (
        _entry("nar-status-placeholder-claim").claim, _entry("nar-status-placeholder-claim").mapping,
    )  # fmt: skip
    raw = load("nar-status-placeholder-claim")
    raw["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made-for-it"}
    entries = observe_pod(raw).fact.node_allocatable
    assert entries is not None
    assert "made-for-it" == entries[0].claim


@sample
def nar_status_138_renamed() -> None:
    entry = _entry("nar-status-138-renamed")
    assert ("cpu-claim", "unknown", {"cpu": "10"}) == (entry.claim, entry.shape, entry.mapping)
    assert (
        "status.additionalNodeAllocatableResources[0] (shape of 1.38 development)",
    ) == entry.unknown_fields


@sample
def nar_pod_level_resources() -> None:
    fact = seen("nar-pod-level-resources").fact
    assert ({"cpu": "11", "memory": "10Gi"}, {"cpu": "250m", "memory": "120Mi"}) == (
        fact.pod_level_requests, fact.overhead,
    )  # fmt: skip
    assert {"cpu": "10"} == _entry("nar-pod-level-resources").mapping


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.json")))
def test_sample_decodes_as_catalogued(name: str) -> None:
    """Each Pod sample gives what its line in the catalogue says; a sample without a check fails."""
    CHECKS[name]()


def test_no_check_is_without_sample() -> None:
    """The table holds no check that never runs."""
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(CHECKS)


def test_no_image_and_no_environment_is_kept() -> None:
    """What a Pod's containers run and with which secrets is in no fact."""
    raw = load("dp-single-healthy")
    raw["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "canary-secret"}]
    raw["metadata"]["annotations"] = {"other.example/secret": "canary-secret"}
    text = repr(observe_pod(raw))
    assert ("canary-secret" in text, "registry.example" in text) == (False, False)
