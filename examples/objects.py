"""Kubernetes objects as the API server of 1.36 sends them, as plain JSON: nodes, leases, slices, claims and Pods.

Every field name is one that the API has. Makers return fresh objects and the setters change one in place; nothing here knows
of frames, files or resourceVersions (``cluster`` does), and nothing is random: one name always gives one uid.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import NAMESPACE_DNS, uuid5

Object: TypeAlias = dict[str, Any]

DRIVER: Final = "gpu.nvidia.com"
PLUGIN_RESOURCE: Final = "nvidia.com/gpu"
IMAGE: Final = "registry.example/work:1"
LEASE_SECONDS: Final = 40

#: PCI address, PCI root and NUMA node of the eight cards of one machine.
_PCI: Final = (
    ("0000:18:00.0", "pci0000:15", 0),
    ("0000:2a:00.0", "pci0000:26", 0),
    ("0000:3a:00.0", "pci0000:37", 0),
    ("0000:5d:00.0", "pci0000:59", 0),
    ("0000:9a:00.0", "pci0000:97", 1),
    ("0000:ab:00.0", "pci0000:a8", 1),
    ("0000:ba:00.0", "pci0000:b7", 1),
    ("0000:db:00.0", "pci0000:d7", 1),
)


def rfc3339(at_ms: int) -> str:
    """Write a time the way ``metav1.Time`` does: whole seconds, UTC."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(at_ms: int, microseconds: int) -> str:
    """Write a time the way ``metav1.MicroTime`` does: six digits of the second, UTC."""
    return f"{rfc3339(at_ms)[:-1]}.{at_ms % 1000 * 1000 + microseconds:06d}Z"


def uid_of(kind: str, name: str) -> str:
    """Derive the uid of an object from its kind and name."""
    return str(uuid5(NAMESPACE_DNS, f"{name}.{kind}.example"))


def card_uuid(node: str, index: int) -> str:
    """Derive the vendor's uuid of one card."""
    return f"GPU-{uid_of('card', f'{index}.{node}')}"


def listing(api_version: str, kind: str, resource_version: int, items: list[Object]) -> Object:
    """Wrap ``items`` the way a LIST answers: they do not repeat ``apiVersion`` and ``kind``."""
    return {
        "apiVersion": api_version,
        "kind": f"{kind}List",
        "metadata": {"resourceVersion": str(resource_version)},
        "items": [
            {key: value for key, value in item.items() if key not in {"apiVersion", "kind"}} for item in items
        ],
    }


# --- nodes ---------------------------------------------------------------------------------------------------------


def node(name: str, at_ms: int, *, plugin_cards: int = 0) -> Object:
    """Make a ready Node with ``plugin_cards`` devices of the device plugin."""
    amounts = {
        "cpu": "192",
        "ephemeral-storage": "3905110864Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "2113381964Ki",
        "pods": "110",
    }
    if plugin_cards:
        amounts[PLUGIN_RESOURCE] = str(plugin_cards)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid_of("node", name),
            "creationTimestamp": "2026-06-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name},
        },
        "spec": {},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastHeartbeatTime": rfc3339(at_ms),
                    "lastTransitionTime": "2026-06-01T00:00:00Z",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                }
            ],
            "nodeInfo": {"bootID": uid_of("boot", name), "kubeletVersion": "v1.36.2"},
        },
    }


def set_ready(target: Object, at_ms: int, *, ready: bool) -> None:
    """Let the node controller say that it hears of the node again, or no longer; taints follow."""
    target["status"]["conditions"][0].update(
        status="True" if ready else "Unknown",
        lastTransitionTime=rfc3339(at_ms),
        reason="KubeletReady" if ready else "NodeStatusUnknown",
        message="kubelet is posting ready status" if ready else "Kubelet stopped posting node status.",
    )
    taints = [
        {"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": rfc3339(at_ms)}
        for effect in ("NoSchedule", "NoExecute")
    ]
    target["spec"] = {} if ready else {"taints": taints}


def lease(name: str, at_ms: int) -> Object:
    """Make the Lease that a node's kubelet renews."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "uid": uid_of("lease", name)},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micro_time(at_ms, 137),
        },
    }


# --- slices and claims -----------------------------------------------------------------------------------------------


def resource_slice(node_name: str, *, cards: int = 8) -> Object:
    """Make the one slice of a DRA node's pool, with ``cards`` full GPUs."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"00000-{DRIVER}-{node_name}-k7x2q",
            "uid": uid_of("slice", node_name),
            "generation": 1,
            "creationTimestamp": "2026-06-01T00:01:00Z",
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "controller": True,
                    "name": node_name,
                    "uid": uid_of("node", node_name),
                }
            ],
        },
        "spec": {
            "driver": DRIVER,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node_name,
            "devices": [_card(node_name, index) for index in range(cards)],
        },
    }


def _card(node_name: str, index: int) -> Object:
    """Make one full GPU; a bare attribute name belongs to the driver."""
    bus_id, root, numa_node = _PCI[index % len(_PCI)]
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": card_uuid(node_name, index)},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.126.9"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "addressingMode": {"string": "HMM"},
            "resource.kubernetes.io/pciBusID": {"string": bus_id},
            "resource.kubernetes.io/pcieRoot": {"string": root},
            "resource.kubernetes.io/numaNode": {"int": numa_node},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def set_taint(target: Object, index: int, *, xid: str, at_ms: int) -> None:
    """Let the driver taint one card of a slice for an XID; an empty ``xid`` takes the taint away.

    The API server raises ``metadata.generation``; a change of taints alone needs no new pool generation.
    """
    device = target["spec"]["devices"][index]
    if xid:
        device["taints"] = [
            {"key": f"{DRIVER}/xid", "value": xid, "effect": "NoSchedule", "timeAdded": rfc3339(at_ms)}
        ]
    else:
        del device["taints"]
    target["metadata"]["generation"] += 1


def claim(pod_name: str, namespace: str, at_ms: int) -> Object:
    """Make the unallocated claim that a Pod's template asks for: one card."""
    name = f"{pod_name}-gpu-{uid_of('claim', f'{namespace}.{pod_name}')[:5]}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid_of("claim", f"{namespace}.{name}"),
            "creationTimestamp": rfc3339(at_ms),
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod_name,
                    "uid": uid_of("pod", f"{namespace}.{pod_name}"),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1},
                    }
                ]
            }
        },
        "status": {},
    }


def allocate(target: Object, node_name: str, index: int, at_ms: int) -> None:
    """Let the scheduler give a card to a claim and reserve it for the Pod that owns it."""
    owner = target["metadata"]["ownerReferences"][0]
    target["status"] = {
        "allocation": {
            "devices": {
                "results": [{"request": "gpu", "driver": DRIVER, "pool": node_name, "device": f"gpu-{index}"}]
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
                ]
            },
            "allocationTimestamp": rfc3339(at_ms),
        },
        "reservedFor": [{"resource": "pods", "name": owner["name"], "uid": owner["uid"]}],
    }


# --- pods ------------------------------------------------------------------------------------------------------------


def pod(
    name: str,
    namespace: str,
    at_ms: int,
    *,
    claimed: bool = False,
    plugin_cards: int = 0,
    annotations: dict[str, str] | None = None,
) -> Object:
    """Make a pending Pod that asks for one card by a claim, for cards of the device plugin, or for none."""
    resources: Object = {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"}}
    spec: Object = {"containers": [{"name": "main", "image": IMAGE, "resources": resources}]}
    if plugin_cards:
        resources["requests"][PLUGIN_RESOURCE] = resources["limits"][PLUGIN_RESOURCE] = str(plugin_cards)
    if claimed:
        resources["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "uid": uid_of("pod", f"{namespace}.{name}"),
        "creationTimestamp": rfc3339(at_ms),
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name.rpartition("-")[0],
                "uid": uid_of("job", f"{namespace}.{name.rpartition('-')[0]}"),
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def run_on(target: Object, node_name: str, at_ms: int) -> None:
    """Let kubelet start the Pod's container on ``node_name``; no device has been reported yet."""
    target["spec"]["nodeName"] = node_name
    target["status"].update(
        phase="Running",
        conditions=[
            {"type": kind, "status": "True", "lastTransitionTime": rfc3339(at_ms)}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        startTime=rfc3339(at_ms),
        containerStatuses=[
            {
                "name": "main",
                "ready": True,
                "restartCount": 0,
                "image": IMAGE,
                "imageID": "",
                "started": True,
                "state": {"running": {"startedAt": rfc3339(at_ms)}},
            }
        ],
    )


def name_claim(target: Object, claim_object: Object) -> None:
    """Let the claim controller write the name of the claim it made into the Pod's status."""
    target["status"]["resourceClaimStatuses"] = [
        {"name": "gpu", "resourceClaimName": claim_object["metadata"]["name"]}
    ]


def report(target: Object, reported_as: str, words: dict[str, str], message: str = "") -> None:
    """Let kubelet write the health words of one source, resourceID to word; ``message`` goes with each bad word."""
    target["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [
        {
            "name": reported_as,
            "resources": [
                {"resourceID": resource_id, "health": word}
                | ({"message": message} if message and word != "Healthy" else {})
                for resource_id, word in words.items()
            ],
        }
    ]


def set_pod_ready(target: Object, at_ms: int, *, ready: bool) -> None:
    """Let the node controller write the Pod's Ready condition when it loses the node or finds it again."""
    target["status"]["conditions"][3].update(
        status="True" if ready else "False", lastTransitionTime=rfc3339(at_ms)
    )


def succeed(target: Object, at_ms: int) -> None:
    """End the Pod: its container is done, its last health words stay where they are."""
    target["status"]["phase"] = "Succeeded"
    status = target["status"]["containerStatuses"][0]
    status.update(
        ready=False,
        started=False,
        state={
            "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "startedAt": status["state"]["running"]["startedAt"],
                "finishedAt": rfc3339(at_ms),
            }
        },
    )
