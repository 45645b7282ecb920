"""What is kept of a live object says the same as the whole of it, and holds no secret."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame
from ingest.observe import (
    node_fingerprint,
    observe_slice,
    pod_fingerprint,
    slice_fingerprint,
)
from ingest.pruning import prune
from sickbay.policy import ReadingPolicy

SAMPLES = Path(__file__).parents[2] / "samples"
RESOURCES = {"pods": "pods", "slices": "resourceslices", "claims": "resourceclaims", "nodes": "nodes"}
SECRET = "hunter2"  # noqa: S105


def samples() -> list[tuple[str, str, Any]]:
    return [
        (f"{folder}/{path.stem}", resource, json.loads(path.read_text()))
        for folder, resource in RESOURCES.items()
        for path in sorted((SAMPLES / folder).glob("*.json"))
    ]


ALL = samples()


def told(resource: str, obj: Any) -> tuple[list[Any], list[str]]:
    """What a mirror makes of one object that appears, and of what is refused of it."""
    mirror = Mirror(ReadingPolicy(), 1)
    facts = []
    items = obj["items"] if isinstance(obj, dict) and isinstance(obj.get("items"), list) else [obj]
    for item in items:
        frame = Frame(at_ms=1_000, resource=resource, type="ADDED", object=item, place="here")
        facts += mirror.apply(frame)
    return facts, [parked.reason for parked in mirror.drain_parked()]


def pruned(resource: str, obj: Any) -> Any:
    if isinstance(obj, dict) and isinstance(obj.get("items"), list):
        return {**obj, "items": [prune(resource, item) for item in obj["items"]]}
    return prune(resource, obj)


def laden(obj: dict[str, Any]) -> dict[str, Any]:
    """A Pod with a secret wherever a user can put one."""
    obj = copy.deepcopy(obj)
    metadata = obj.setdefault("metadata", {})
    metadata.setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = SECRET
    metadata.setdefault("labels", {})["app"] = SECRET
    metadata["managedFields"] = [{"manager": SECRET, "fieldsV1": {SECRET: {}}}]
    metadata["generateName"] = SECRET
    metadata["finalizers"] = [SECRET]
    spec = obj.setdefault("spec", {})
    spec |= {
        "volumes": [{"name": SECRET}],
        "imagePullSecrets": [{"name": SECRET}],
        "serviceAccountName": SECRET,
        "hostAliases": [{"hostnames": [SECRET]}],
        "ephemeralContainers": [{"name": "debug", "command": [SECRET]}],
    }
    for name in ("containers", "initContainers"):
        for container in spec.get(name) or ():
            container |= {
                "env": [{"name": "PASSWORD", "value": SECRET}],
                "args": [SECRET],
                "command": [SECRET],
                "image": SECRET,
                "livenessProbe": {"httpGet": {"httpHeaders": [{"value": SECRET}]}},
                "volumeMounts": [{"mountPath": SECRET}],
            }
    status = obj.setdefault("status", {})
    status |= {"message": SECRET, "podIP": SECRET, "hostIP": SECRET}
    status.setdefault("conditions", []).append({"type": "Ready", "message": SECRET})
    for name in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(name) or ():
            container |= {
                "image": SECRET,
                "state": {"terminated": {"message": SECRET}},
                "lastState": {"terminated": {"message": SECRET}},
                "user": {"linux": SECRET},
            }
    return obj


def test_there_are_samples_of_every_kind() -> None:
    assert set(RESOURCES.values()) == {resource for _, resource, _ in ALL}


@pytest.mark.parametrize(("name", "resource", "obj"), ALL, ids=[name for name, _, _ in ALL])
def test_pruning_changes_no_fact_and_no_refusal(name: str, resource: str, obj: Any) -> None:
    before = copy.deepcopy(obj)
    assert told(resource, obj) == told(resource, pruned(resource, obj))
    assert before == obj


PODS = [(name, obj) for name, resource, obj in ALL if resource == "pods" and "items" not in obj]


@pytest.mark.parametrize(("name", "obj"), PODS, ids=[name for name, _ in PODS])
def test_no_secret_of_a_pod_is_kept(name: str, obj: Any) -> None:
    whole = laden(obj)
    kept = prune("pods", whole)
    assert SECRET in json.dumps(whole)
    assert SECRET not in json.dumps(kept)
    assert told("pods", whole) == told("pods", kept)
    assert pod_fingerprint(whole) == pod_fingerprint(kept)


@pytest.mark.parametrize("part", ["metadata", "spec", "status"])
@pytest.mark.parametrize("value", [SECRET, [SECRET], 7, None, True, {"containers": SECRET}])
def test_what_is_malformed_stays_malformed_without_its_content(part: str, value: Any) -> None:
    whole = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
        part: value,
    }
    kept = prune("pods", whole)
    assert SECRET not in json.dumps(kept)
    assert told("pods", whole) == told("pods", kept)


@pytest.mark.parametrize("value", [SECRET, [SECRET, 7, None], {"a": SECRET}, 1.5, False])
@pytest.mark.parametrize("place", ["spec.containers", "status.containerStatuses", "metadata.annotations"])
def test_a_malformed_list_is_refused_alike(place: str, value: Any) -> None:
    part, name = place.split(".")
    whole: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    }
    whole[part][name] = value
    kept = prune("pods", whole)
    assert SECRET not in json.dumps(kept)
    assert told("pods", whole) == told("pods", kept)


@pytest.mark.case("C30")
def test_c30_fields_that_nobody_knows_yet_are_kept_of_slices_and_of_what_is_charged() -> None:
    slice_ = json.loads((SAMPLES / "slices/fields-newer-than-decoder.json").read_text())
    kept = prune("resourceslices", slice_)
    assert slice_["spec"] == kept["spec"]
    assert observe_slice(slice_).unknown_fields == observe_slice(kept).unknown_fields != ()
    assert slice_fingerprint(slice_) == slice_fingerprint(kept)
    entry = {"resourceClaimName": "c", "mapping": [], "futureField": {"a": [1]}}
    pod = {"metadata": {}, "spec": {}, "status": {"nodeAllocatableResourceClaimStatuses": [entry]}}
    assert pod["status"] == prune("pods", pod)["status"]


def test_parameters_of_drivers_are_not_kept_of_claims() -> None:
    config = [{"opaque": {"driver": "gpu.example.com", "parameters": {"token": SECRET}}}]
    claim = {
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu", "note": SECRET},
        },
        "spec": {"devices": {"requests": [], "config": config}},
        "status": {
            "allocation": {"devices": {"results": [], "config": config}},
            "devices": [{"driver": "d", "pool": "p", "device": "x", "data": {"a": SECRET}, "conditions": []}],
        },
    }  # fmt: skip
    kept = prune("resourceclaims", claim)
    assert SECRET not in json.dumps(kept)
    assert told("resourceclaims", claim) == told("resourceclaims", kept)


def test_labels_of_our_own_making_stay_recognisable_on_nodes() -> None:
    node = {
        "metadata": {
            "name": "n", "uid": "u", "resourceVersion": "7",
            "labels": {"sickbay.dev/a": "1", "sickbay.dev/b": "2", "kubernetes.io/hostname": "n"},
            "annotations": {"secret": SECRET},
            "managedFields": [
                {"manager": "sickbay", "fieldsV1": {"f:metadata": {"f:labels": {"f:sickbay.dev/a": {}}}}},
                {"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {"f:sickbay.dev/b": {}}}}},
            ],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
    kept = prune("nodes", node)
    assert SECRET not in json.dumps(kept)
    assert 1 == len(kept["metadata"]["managedFields"])
    assert node_fingerprint(node) == node_fingerprint(kept)
    assert told("nodes", node) == told("nodes", kept)
