"""Objects for a real API server, and what Sickbay should make of what is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from control_plane import Api, ApiError

from sickbay.facts import Fact, PodGone, PodObserved

LISTS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
    "resourceclaims": "/apis/resource.k8s.io/v1/resourceclaims",
}


def make_namespace(api: Api, name: str) -> str:
    """Make a namespace and return the path of its Pods."""
    try:
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    except ApiError as error:
        if error.status != 409:
            raise
    return f"/api/v1/namespaces/{name}/pods"


def pod(name: str, node: str = "", **requests: str) -> dict[str, Any]:
    """Return a Pod; one that names its node needs no scheduler."""
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": "none",
                # what is no native resource must have a limit
                "resources": {
                    "requests": requests or {"cpu": "100m"},
                    "limits": {name: amount for name, amount in requests.items() if "/" in name},
                },
            }
        ],
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def told_of(facts: Iterable[Fact]) -> dict[str, str]:
    """Return uid to name of the Pods that the facts leave standing."""
    found: dict[str, str] = {}
    for fact in facts:
        if isinstance(fact, PodObserved):
            found[fact.pod_uid] = fact.pod
        elif isinstance(fact, PodGone):
            found.pop(fact.pod_uid, None)
    return found


def pods_there(api: Api) -> dict[str, str]:
    """Return uid to name of the Pods on nodes that the API server has."""
    return {
        each["metadata"]["uid"]: each["metadata"]["name"]
        for each in api.items(LISTS["pods"])
        if each["spec"].get("nodeName")
    }
