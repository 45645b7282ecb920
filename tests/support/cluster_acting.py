"""A node with a DRA driver on a real control plane, the Pods that ask for its devices, and a responder over made decisions."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from typing import Any

from cluster_objects import make_namespace, pod
from control_plane import ApiError, ControlPlane
from kubelets import Kubelet
from responding import KeptReports, metrics

from responders.exclusion.excluder import Excluder
from responders.view import View
from sickbay.cluster.client import ApiClient
from sickbay.operations.live_clock import LiveClock
from sickbay.policy import Policy

CLAIMS = "/apis/resource.k8s.io/v1"
DRIVER = "act.example.com"
WAIT_S = 30


def until(holds: Any, what: str, wait_s: float = WAIT_S) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it did not come: {what}")


class Rack:
    """One node with devices of one driver, and a device class for them."""

    def __init__(
        self, plane: ControlPlane, name: str, devices: int = 2, driver: str = DRIVER, **attributes: Any
    ) -> None:
        self.plane, self.api, self.name, self.driver = plane, plane.admin, name, driver
        self.namespace = "act"
        self.pods = make_namespace(self.api, self.namespace)
        self.kubelet = Kubelet(self.api, name).register()
        self.devices = [f"gpu-{n}" for n in range(devices)]
        self.publish(**attributes)
        with suppress(ApiError):  # of the test before
            self.api.create(
                f"{CLAIMS}/deviceclasses",
                {
                    "metadata": {"name": driver},
                    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
                },
            )

    def publish(self, **attributes: Any) -> None:
        """Publish the devices; each has a uuid of its own."""
        self.kubelet.publish(
            self.driver,
            [
                {"name": each, "attributes": {"uuid": {"string": f"{self.name}-{each}"}} | attributes}
                for each in self.devices
            ],
        )

    def device_id(self, device: str) -> str:
        return f"dra:{self.driver}/{self.name}/{device}"

    def ask(self, name: str, *, device: str = "", **more: Any) -> Any:
        """Make a Pod with a claim for one device of this node, or for this one and no other."""
        exactly: dict[str, Any] = {"deviceClassName": self.driver}
        if device:
            expression = f'device.attributes["{self.driver}"].uuid == "{self.name}-{device}"'
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        template = f"{self.name}-{device}" if device else self.driver
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        with suppress(ApiError):
            self.api.create(
                f"{CLAIMS}/namespaces/{self.namespace}/resourceclaimtemplates",
                {"metadata": {"name": template}, "spec": {"spec": spec}},
            )
        asked = pod(name)
        asked["metadata"] |= more.get("metadata", {})
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": self.name}
        asked["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
        asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        return self.api.create(self.pods, asked)

    def node_of(self, name: str) -> str:
        return self.api.get(f"{self.pods}/{name}")["spec"].get("nodeName", "")

    def bound(self, name: str) -> str:
        """Wait until a Pod is bound, and return the device that the scheduler gave it."""
        until(lambda: self.node_of(name), f"{name} bound")
        return self.device_of(name)

    def device_of(self, name: str) -> str:
        (status,) = self.api.get(f"{self.pods}/{name}")["status"]["resourceClaimStatuses"]
        claim = self.api.get(
            f"{CLAIMS}/namespaces/{self.namespace}/resourceclaims/{status['resourceClaimName']}"
        )
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return str(result["device"])

    def refused(self, name: str) -> str:
        """Wait until the scheduler says why it cannot place a Pod."""
        return until(lambda: self._reason(name), f"{name} refused")

    def _reason(self, name: str) -> str:
        conditions = self.api.get(f"{self.pods}/{name}")["status"].get("conditions") or ()
        return next(
            (c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
        )

    def until_kept_from(self, device: str, other: str) -> None:
        """Wait until the scheduler gives a device to nobody. It hears of rules by another watch than of Pods.

        That it gives the other one shows that it knows both: a refusal is then of the rule.
        """
        numbers = itertools.count()

        def tried(device: str) -> bool:
            name = f"witness-{next(numbers)}"
            self.ask(name, device=device)
            until(lambda: self.node_of(name) or self._reason(name), f"a word on {name}")
            bound = bool(self.node_of(name))
            self.api.delete(f"{self.pods}/{name}", gracePeriodSeconds=0)
            claims = f"{CLAIMS}/namespaces/{self.namespace}/resourceclaims"
            until(
                lambda: (
                    not [c for c in self.api.items(claims) if c["metadata"]["name"].startswith(f"{name}-")]
                ),
                f"no claim of {name}",
            )
            return bound

        until(lambda: tried(other), f"{other} given")
        until(lambda: not tried(device), f"{device} refused")

    def leave(self) -> None:
        for each in self.api.items(self.pods):
            with suppress(ApiError):
                self.kubelet.remove(each)
        self.kubelet.withdraw(self.driver)
        self.kubelet.leave()


class Acting:
    """An excluder with the real API server, looked at when a test says so. Writes are counted."""

    def __init__(
        self, plane: ControlPlane, policy: Policy, *, clock: Any = None, installation: str = "acting"
    ) -> None:
        self.view, self.reports, self.policy = View(), KeptReports(), policy
        self.clock = clock or LiveClock()
        self.writes: list[tuple[str, str]] = []
        self._installation = installation
        self._kubeconfig = str(plane.kubeconfig(plane.folder / f"acting-{id(self)}"))
        self._runner = asyncio.Runner()
        self._client = self._runner.run(ApiClient.connect(self._kubeconfig))
        self.start()

    def start(self) -> None:
        """Begin anew, as a process does that was killed."""
        self.excluder = Excluder(
            self, self.reports, self.view, self.policy,
            installation=self._installation, times=self.clock, metrics=metrics(), require_lead=lambda: None,
        )  # fmt: skip

    async def request_json(self, method, path, query=(), body=None):
        if method != "GET":
            self.writes.append((method, path))
        return await self._client.request_json(method, path, query, body)

    def look(self, *decisions: Any) -> None:
        for decision in decisions:
            self.view.fold(decision)
        self._runner.run(self.excluder.act())

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


def rules_path(plane: ControlPlane) -> str:
    version = "v1beta2" if plane.version == "1.36" else "v1"
    return f"/apis/resource.k8s.io/{version}/devicetaintrules"


def rules(plane: ControlPlane, node: str = "") -> list[dict[str, Any]]:
    """Return the taint rules that there are, or those for devices of one node: tests share planes."""
    return [
        rule
        for rule in plane.admin.items(rules_path(plane))
        if not node or (rule["metadata"].get("annotations") or {}).get("sickbay.dev/node") == node
    ]
