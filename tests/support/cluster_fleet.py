"""A fleet on a real control plane: many nodes with DRA devices that Pods hold, written by many hands at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster_objects import make_namespace
from control_plane import ControlPlane
from kubelets import STRATEGIC, now

CLAIMS = "/apis/resource.k8s.io/v1"
DRIVER = "fleet.example.com"
NAMESPACE = "fleet"
HANDS = 8


class Fleet:
    """``nodes`` nodes with ``devices`` devices each, all held by one Pod of the node. No Leases: nobody says that a node is lost."""

    def __init__(self, plane: ControlPlane, nodes: int, devices: int) -> None:
        self.api, self.devices = plane.admin, devices
        self.names = [f"fleet-{n:04d}" for n in range(nodes)]
        self.pods = make_namespace(self.api, NAMESPACE)
        self._each(self._make)

    def _each(self, do: Callable[[str], Any], names: Iterable[str] | None = None) -> None:
        with ThreadPoolExecutor(HANDS) as hands:
            list(hands.map(do, self.names if names is None else names))

    def _make(self, name: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        room = {"cpu": "32", "memory": "64Gi", "pods": "110"}
        node = self.api.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": name},
                "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
            },
        )
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        self.api.create(
            f"{CLAIMS}/resourceslices",
            {
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": {
                    "driver": DRIVER,
                    "nodeName": name,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": f"gpu-{n}"} for n in range(self.devices)],
                },
            },
        )
        request = {"name": "r", "exactly": {"deviceClassName": "none", "count": self.devices}}
        path = f"{CLAIMS}/namespaces/{NAMESPACE}/resourceclaims"
        claim = self.api.create(
            path, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        )
        pod = self.api.create(
            self.pods,
            {
                "metadata": {"name": name},
                "spec": {
                    "nodeName": name,
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                    "containers": [
                        {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
                    ],
                    "terminationGracePeriodSeconds": 0,
                },
            },
        )
        results = [
            {"request": "r", "driver": DRIVER, "pool": name, "device": f"gpu-{n}"}
            for n in range(self.devices)
        ]
        user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
        self.api.put(f"{path}/{name}/status", claim)
        self._say(name, ["Healthy"] * self.devices)

    def _say(self, name: str, healths: list[str]) -> None:
        words = [
            {"resourceID": f"{DRIVER}/{name}/gpu-{n}", "health": health} for n, health in enumerate(healths)
        ]
        status = {
            "name": "main", "ready": True, "started": True, "restartCount": 0, "image": "none", "imageID": "none",
            "state": {"running": {"startedAt": now()[:19] + "Z"}},
            "allocatedResourcesStatus": [{"name": "claim:gpu", "resources": words}],
        }  # fmt: skip
        self.api.patch(
            f"{self.pods}/{name}/status",
            {"status": {"phase": "Running", "containerStatuses": [status]}},
            STRATEGIC,
        )

    @property
    def driver(self) -> str:
        return DRIVER

    def pods_there(self) -> set[str]:
        """Return the uids of the Pods that nobody has asked to go."""
        return {
            each["metadata"]["uid"]
            for each in self.api.items(self.pods)
            if "deletionTimestamp" not in each["metadata"]
        }

    def say(self, health: str, but: str = "") -> None:
        """Let every kubelet but one write one word of all its devices."""
        self._each(lambda name: self._say(name, [health] * self.devices), (n for n in self.names if n != but))

    def one_is_faulty(self, name: str, health: str) -> str:
        """Let one kubelet write that its first device is Unhealthy, and one word of the others; return the device's id."""
        self._say(name, ["Unhealthy"] + [health] * (self.devices - 1))
        return f"dra:{DRIVER}/{name}/gpu-0"
