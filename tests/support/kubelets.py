"""Kubelets and drivers for a control plane without machines: they write what real ones write, where and when a test says so.

What a kubelet writes follows its source (kubernetes.md 1.4, 1.5, 8): conditions and Lease of its Node, the status of its Pods
with ``allocatedResourcesStatus``, and at the end the deletion without grace. Drivers publish ResourceSlices with their Node as
owner. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from control_plane import Api, ApiError

from sickbay.clock import SystemClock
from sickbay.timestamps import format_time_ms

STRATEGIC = "application/strategic-merge-patch+json"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
#: What a kubelet of 1.37 declares: without it the API server takes no slice with node resources of devices on its node.
FEATURES = ("DRANodeAllocatableResources",)
#: What every node has besides what a test is about.
CAPACITY = {"cpu": "32", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def now() -> str:
    """Return the time as a MicroTime, which has six digits."""
    return format_time_ms(SystemClock().now_ms())[:-1] + "000Z"


class Kubelet:
    """The kubelet of one node, and the drivers on it."""

    def __init__(
        self,
        api: Api,
        name: str,
        labels: Mapping[str, str] | None = None,
        *,
        features: Sequence[str] = FEATURES,
    ) -> None:
        self.api, self.name, self._features = api, name, list(features)
        self._labels = dict(labels or {})
        self.uid = ""
        self._generations: dict[tuple[str, str], int] = {}

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    def register(
        self, capacity: Mapping[str, str] | None = None, allocatable: Mapping[str, str] | None = None
    ) -> Kubelet:
        """Make the Node, ready, and its Lease."""
        made = self.api.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": self.name,
                    "labels": {"kubernetes.io/hostname": self.name} | self._labels,
                },
                # a kubelet registers with its status; the admission of the API server adds not-ready to every new node
                "status": self._node_status(CAPACITY | dict(capacity or {}), allocatable, "True"),
            },
        )
        self.uid = made["metadata"]["uid"]
        if made["spec"].get("taints"):
            self.api.patch(self.path, {"spec": {"taints": None}})
        self.renew()
        return self

    def report(
        self,
        capacity: Mapping[str, str],
        allocatable: Mapping[str, str] | None = None,
        *,
        ready: str = "True",
    ) -> Any:
        """Write the status of the Node."""
        status = self._node_status(capacity, allocatable, ready)
        return self.api.patch(f"{self.path}/status", {"status": status}, STRATEGIC)

    def _node_status(
        self, capacity: Mapping[str, str], allocatable: Mapping[str, str] | None, ready: str
    ) -> dict[str, Any]:
        at = now()[:19] + "Z"
        condition = {
            "type": "Ready", "status": ready, "reason": "KubeletReady", "message": "played",
            "lastHeartbeatTime": at, "lastTransitionTime": at,
        }  # fmt: skip
        return {
            "capacity": dict(capacity),
            "allocatable": dict(capacity) | dict(allocatable or {}),
            "conditions": [condition],
            "declaredFeatures": self._features,
        }

    def renew(self) -> Any:
        """Renew the Lease, or make it."""
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now()}
        try:
            return self.api.patch(f"{LEASES}/{self.name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}
            return self.api.create(
                LEASES,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "ownerReferences": [owner]},
                    "spec": spec,
                },
            )

    def leave(self) -> None:
        """Take the Node away; the garbage collector takes its slices and its Lease."""
        self.api.delete(self.path)

    # --- Pods ---

    def run(self, pod: Any, health: Sequence[Mapping[str, Any]] = (), *, container: str = "") -> Any:
        """Say that a Pod runs. ``health`` is the ``allocatedResourcesStatus`` of its container, of the first unless named."""
        names = [each["name"] for each in pod["spec"]["containers"]]
        statuses = [
            {
                "name": name, "ready": True, "started": True, "restartCount": 0, "image": "none", "imageID": "none",
                "state": {"running": {"startedAt": now()[:19] + "Z"}},
            } | ({"allocatedResourcesStatus": list(health)} if health and name == (container or names[0]) else {})
            for name in names
        ]  # fmt: skip
        return self._status(pod, {"phase": "Running", "containerStatuses": statuses})

    def finish(self, pod: Any, phase: str = "Succeeded") -> Any:
        """Say that a Pod has ended; what was said of its devices stays as it was (kubernetes.md 1.6)."""
        return self._status(pod, {"phase": phase})

    def remove(self, pod: Any) -> None:
        """End a Pod that is to be deleted, or delete it at once."""
        with suppress(ApiError):
            self.api.delete(_path(pod), gracePeriodSeconds=0)

    def _status(self, pod: Any, status: Mapping[str, Any]) -> Any:
        return self.api.patch(f"{_path(pod)}/status", {"status": status})

    # --- drivers ---

    def publish(
        self,
        driver: str,
        devices: Sequence[Mapping[str, Any]],
        *,
        pool: str = "",
        counters: Sequence[Mapping[str, Any]] = (),
        same_generation: bool = False,
        per_slice: int = 64,
    ) -> list[Any]:
        """Publish the devices of a driver here, as a generation of its own; a slice that is not needed any more is taken away.

        ``counters`` are shared counters, in a slice of their own, as the API asks.
        """
        pool = pool or self.name
        generation = self._generations.get((driver, pool), 0) + (not same_generation)
        self._generations[driver, pool] = generation
        bodies: list[dict[str, Any]] = [
            {"devices": list(devices[start : start + per_slice])}
            for start in range(0, len(devices), per_slice)
        ]
        bodies += [{"sharedCounters": list(counters)}] if counters else []
        published = []
        for number, body in enumerate(bodies):
            name = f"{self.name}-{driver.replace('.', '-')}-{pool.replace('/', '-')}-{number}"
            spec = {
                "driver": driver,
                "nodeName": self.name,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": len(bodies)},
            } | body
            published.append(self._put_slice(name, spec))
        for number in range(len(bodies), len(bodies) + 4):
            with suppress(ApiError):
                self.api.delete(
                    f"{SLICES}/{self.name}-{driver.replace('.', '-')}-{pool.replace('/', '-')}-{number}"
                )
        return published

    def _put_slice(self, name: str, spec: Mapping[str, Any]) -> Any:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": dict(spec),
        }
        try:
            current = self.api.get(f"{SLICES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return self.api.create(SLICES, body)
        body["metadata"] |= {"resourceVersion": current["metadata"]["resourceVersion"]}
        return self.api.put(f"{SLICES}/{name}", body)

    def withdraw(self, driver: str) -> None:
        """Take away what a driver published here, as the kubelet does 30 s after its plugin has gone."""
        for found in self.api.items(SLICES, fieldSelector=f"spec.nodeName={self.name},spec.driver={driver}"):
            self.api.delete(f"{SLICES}/{found['metadata']['name']}")
        for key in [key for key in self._generations if key[0] == driver]:
            del self._generations[key]


def _path(pod: Any) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


# --- what a driver may publish about its devices ---


def mapping(version: str, *, per_device: Mapping[str, str] | None = None, by_capacity: Mapping[str, tuple[str, str]] | None = None,
            overhead: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Any]:  # fmt: skip
    """Return what a device takes of its node, in the shape of a version (kubernetes.md 3.1).

    ``per_device`` is resource to amount; ``by_capacity`` resource to (capacity, multiplier); ``overhead``, which 1.36 has not,
    resource to ``{perPod, perContainer}``.
    """
    if version == "1.36":
        found = {name: {"allocationMultiplier": amount} for name, amount in (per_device or {}).items()}
        found |= {
            name: {"capacityKey": key, "allocationMultiplier": multiplier}
            for name, (key, multiplier) in (by_capacity or {}).items()
        }
        return {"nodeAllocatableResourceMappings": found} if found else {}
    entries: dict[str, dict[str, Any]] = {}
    for name, amount in (per_device or {}).items():
        entries.setdefault(name, {})["mapping"] = {"deviceMultiplier": amount}
    for name, (key, multiplier) in (by_capacity or {}).items():
        entries.setdefault(name, {})["mapping"] = {"capacityKey": key, "capacityMultiplier": multiplier}
    for name, amounts in (overhead or {}).items():
        entries.setdefault(name, {})["overhead"] = dict(amounts)
    return {"nodeAllocatableResources": entries} if entries else {}
