"""Objects of machines whose resources are shared out by DRA: what drivers publish, what workloads ask for and what they get.

The CPU driver publishes one device for the cores of each NUMA node, shared by many claims; the GPU driver says what a card
takes of the machine besides (KEP-5517, as 1.36 serves it). A function that changes an object returns nothing.
"""

from __future__ import annotations

from typing import Final

import objects
from cluster import START_MS
from objects import Object

NAMESPACE: Final = "ml"
CPU_DRIVER: Final = "dra.cpu"
GPU_DRIVER: Final = objects.DRIVER
NUMA: Final = "resource.kubernetes.io/numaNode"
#: Cores of one NUMA node.
_CORES: Final = "24"
#: What a card takes of the machine: cores to feed it, and pinned memory.
CARD_TAKES: Final = {"cpu": "2", "memory": "4Gi"}
#: NUMA node of each card.
_CARD_NUMA: Final = (0, 0, 1, 1)


# --- what drivers publish ----------------------------------------------------------------------------------------------


def node(name: str) -> Object:
    target = objects.node(name, START_MS)
    amounts = {
        "cpu": "64",
        "ephemeral-storage": "1800Gi",
        "hugepages-2Mi": "0",
        "memory": "256Gi",
        "pods": "110",
    }
    target["status"].update(capacity=dict(amounts), allocatable=dict(amounts))
    if name == "mix-1":
        target["metadata"]["labels"]["sickbay.dev/rollout"] = "canary"
    return target


def resource_slice(
    driver: str, node_name: str, suffix: str, generation: int, count: int, devices: list[Object]
) -> Object:
    """Make one slice of the driver's pool on a node."""
    target = objects.resource_slice(node_name, cards=0)
    name = f"00000-{driver}-{node_name}-{suffix}"
    target["metadata"].update(name=name, uid=objects.uid_of("slice", name))
    target["spec"].update(
        driver=driver,
        pool={"name": node_name, "generation": generation, "resourceSliceCount": count},
        devices=devices,
    )
    return target


def cores(numa_node: int, *, per_core: str = "1") -> Object:
    """Make the device that stands for the cores of a NUMA node; ``per_core`` CPUs of the node go with each."""
    return {
        "name": f"cpudevnuma{numa_node:03}",
        "allowMultipleAllocations": True,
        "attributes": {
            "dra.cpu/numaNodeID": {"int": numa_node},
            "dra.cpu/smtEnabled": {"bool": True},
            NUMA: {"int": numa_node},
        },
        "capacity": {"dra.cpu/cpu": {"value": _CORES}},
        "nodeAllocatableResourceMappings": {
            "cpu": {"capacityKey": "dra.cpu/cpu", "allocationMultiplier": per_core}
        },
    }


def card(node_name: str, index: int, *, numa_node: int | None = None) -> Object:
    """Make a card; a driver that reads an old cache may publish it under another NUMA node."""
    card: Object = objects.resource_slice(node_name)["spec"]["devices"][index]
    card["attributes"][NUMA] = {"int": _CARD_NUMA[index] if numa_node is None else numa_node}
    card["nodeAllocatableResourceMappings"] = {
        resource: {"allocationMultiplier": amount} for resource, amount in CARD_TAKES.items()
    }
    return card


# --- what workloads ask for and get --------------------------------------------------------------------------------------


def pod(name: str, at_ms: int, cpu: str, memory: str, *, local: str = "", claim: str = "") -> Object:
    """Make a pending Pod with requests of its own, and a claim under the name ``local``: a made one, or one it names."""
    target = objects.pod(name, NAMESPACE, at_ms)
    container = target["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    if local:
        container["resources"]["claims"] = [{"name": local}]
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": f"{local}-template"}
        target["spec"]["resourceClaims"] = [{"name": local, **source}]
    return target


def claim(pod_name: str, local: str, at_ms: int, requests: list[Object], constraints: list[Object]) -> Object:
    """Make the claim that a Pod's template asks for."""
    target = objects.claim(pod_name, NAMESPACE, at_ms)
    name = f"{pod_name}-{local}-{objects.uid_of('claim', f'{NAMESPACE}.{pod_name}')[:5]}"
    target["metadata"].update(
        name=name,
        uid=objects.uid_of("claim", f"{NAMESPACE}.{name}"),
        annotations={"resource.kubernetes.io/pod-claim-name": local},
    )
    target["spec"]["devices"] = {"requests": requests}
    if constraints:
        target["spec"]["devices"]["constraints"] = constraints
    return target


def ask(name: str, device_class: str, **more: object) -> Object:
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1, **more},
    }


def ask_cores(cores: str, numa_node: int) -> Object:
    expression = f'device.attributes["dra.cpu"].numaNodeID == {numa_node}'
    return ask(
        "cores",
        CPU_DRIVER,
        selectors=[{"cel": {"expression": expression}}],
        capacity={"requests": {"dra.cpu/cpu": cores}},
    )


def got_card(request: str, node_name: str, index: int) -> Object:
    return {"request": request, "driver": GPU_DRIVER, "pool": node_name, "device": f"gpu-{index}"}


def got_cores(claim: Object, node_name: str, numa_node: int, cores: str) -> Object:
    return {
        "request": "cores",
        "driver": CPU_DRIVER,
        "pool": node_name,
        "device": f"cpudevnuma{numa_node:03}",
        "shareID": objects.uid_of("share", claim["metadata"]["uid"]),
        "consumedCapacity": {"dra.cpu/cpu": cores},
    }


def allocate(claim: Object, node_name: str, at_ms: int, results: list[Object], *pods: Object) -> None:
    """Let the scheduler allocate a claim on a node and reserve it."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    claim["status"] = {
        "allocation": {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [term]},
            "allocationTimestamp": objects.rfc3339(at_ms),
        }
    }
    reserve(claim, *pods)


def reserve(claim: Object, *pods: Object) -> None:
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods
    ]


def count(pod: Object, *entries: tuple[Object, dict[str, str]]) -> None:
    """Let the scheduler, or whoever may patch Pod status, write what claims take of the node."""
    pod["status"]["nodeAllocatableResourceClaimStatuses"] = [
        {"resourceClaimName": claim["metadata"]["name"], "containers": ["main"], "resources": dict(resources)}
        for claim, resources in entries
    ]


def name_claim(pod: Object, claim: Object) -> None:
    """Let the claim controller write the name of the claim it made into the Pod's status."""
    local = pod["spec"]["resourceClaims"][0]["name"]
    pod["status"]["resourceClaimStatuses"] = [{"name": local, "resourceClaimName": claim["metadata"]["name"]}]


def report(pod: Object, *cards: int) -> None:
    """Let the kubelet report the cards of a Pod Healthy, each under its own claim request."""
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [
        {
            "name": "claim:gpu",
            "resources": [
                {"resourceID": f"{GPU_DRIVER}/{pod['spec']['nodeName']}/gpu-{card}", "health": "Healthy"}
                for card in cards
            ],
        }
    ]
