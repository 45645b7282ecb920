"""A whole life on a real control plane: a card of a running workload fails, is excluded, the workload is moved, the card is proved
and comes back. Kubelets, the driver and the programs in the Pods are played; everything else is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from acting_stack import ActingStack
from cluster_acting import CLAIMS, Rack, rules
from cluster_objects import make_namespace, pod
from control_plane import ApiError

from sickbay.timestamps import parse_time_ms

WAIT_S = 120
VERIFICATION = "sickbay-verification"


def policy(driver: str) -> dict[str, Any]:
    """Everything switched on, with windows that a test can wait for; the driver publishes health."""
    return {
        "staged_return": {"prober": "job", "ramp_after_percent": 100},
        "moves": {
            "enabled": True,
            "lease_ms": 240_000,
            "defer_ms": 1_000,
            "hook_timeout_ms": 5_000,
            "replacement_timeout_ms": 45_000,
        },
        "driver_health": [{"driver": driver, "attribute": f"{driver}/healthy", "healthy_values": ["true"]}],
        "respond": {
            "exclusion": {"mode": "enforce", "confirm_after_ms": 1_000},
            "alerts": {"group_wait_ms": 1_000},
        },
    }


def template(driver: str) -> dict[str, Any]:
    """A Job that an operator might write."""
    container = {
        "name": "check",
        "image": "none",
        "command": ["check"],
        "resources": {"claims": [{"name": "device"}]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"annotations": {"sickbay.dev/device-class": driver}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


class Life:
    """One rack of two cards, a workload on one of them, and a Pod that waits for a card."""

    def __init__(self, stack: ActingStack, rack: Rack, folder: Path) -> None:
        self.stack, self.rack, self.api = stack, rack, rack.api
        self.health = dict.fromkeys(rack.devices, True)
        self._publish()
        make_namespace(self.api, VERIFICATION)
        templates = folder / "templates"
        templates.mkdir()
        for step in ("probe", "canary"):
            (templates / f"{step}.yaml").write_text(yaml.safe_dump(template(rack.driver)), encoding="utf-8")
        stack.respond("exclude")
        stack.respond("verify", "--templates", str(templates), "--namespace", VERIFICATION)
        stack.respond("move")
        stack.respond("alert", "--topic")
        stack.kubelets.append(rack.kubelet)
        self.bad = ""
        #: Uids of the Pods of the workload that were seen on the node.
        self.seen: set[str] = set()
        self._ended = threading.Event()
        self._playing = threading.Thread(target=self._play, name="kubelet", daemon=True)

    # --- what is played ---

    def _publish(self) -> None:
        self.rack.kubelet.publish(
            self.rack.driver,
            [
                {
                    "name": name,
                    "attributes": {
                        "uuid": {"string": f"{self.rack.name}-{name}"},
                        "healthy": {"bool": healthy},
                    },
                }
                for name, healthy in self.health.items()
            ],
        )

    def _play(self) -> None:
        while not self._ended.wait(0.1):
            with suppress(ApiError, OSError):
                for namespace in (self.rack.namespace, VERIFICATION):
                    for each in self.api.items(f"/api/v1/namespaces/{namespace}/pods"):
                        self._play_pod(each)

    def _play_pod(self, each: dict[str, Any]) -> None:
        if each["spec"].get("nodeName") != self.rack.name:
            return
        phase = each["status"].get("phase", "Pending")
        if each["metadata"]["name"].startswith("work-"):
            self.seen.add(each["metadata"]["uid"])
        if "deletionTimestamp" in each["metadata"]:
            self.rack.kubelet.remove(each)
        elif phase == "Pending":
            self._say(each)
        elif phase == "Running" and each["metadata"]["namespace"] == VERIFICATION:
            self.rack.kubelet.finish(each)

    def _say(self, each: dict[str, Any]) -> bool:
        """Say that a Pod runs, and how its device is; return False where its claim has none, for then it is about to go."""
        statuses = each["status"].get("resourceClaimStatuses")
        path = f"{CLAIMS}/namespaces/{each['metadata']['namespace']}/resourceclaims"
        given = [
            entry.get("resourceClaimName") or entry.get("resourceClaimTemplateName")
            for entry in each["spec"]["resourceClaims"]
        ]
        name = statuses[0]["resourceClaimName"] if statuses else given[0]
        allocation = self.api.get(f"{path}/{name}").get("status", {}).get("allocation")
        if allocation is None:
            return False
        (result,) = allocation["devices"]["results"]
        device = result["device"]
        health = "Healthy" if self.health[device] else "Unhealthy"
        words = [{"resourceID": f"{self.rack.driver}/{self.rack.name}/{device}", "health": health}]
        claim = each["spec"]["resourceClaims"][0]["name"]
        told = self.rack.kubelet.run(each, [{"name": f"claim:{claim}", "resources": words}])
        ready = {"type": "Ready", "status": "True"}
        self.api.patch(
            f"/api/v1/namespaces/{each['metadata']['namespace']}/pods/{each['metadata']['name']}/status",
            {"status": {"conditions": [*told["status"].get("conditions", ()), ready]}},
        )
        return True

    # --- the story ---

    def begin(self) -> None:
        """Let the workload run on a card, and everything of Sickbay be at work."""
        self._playing.start()
        self.rack.ask("template-only")
        self.rack.bound("template-only")
        self.api.delete(f"{self.rack.pods}/template-only", gracePeriodSeconds=0)
        asked = pod("unused")
        spec = asked["spec"]
        spec["nodeSelector"] = {"kubernetes.io/hostname": self.rack.name}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": self.rack.driver}]
        spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        labels = {"app": "work", "sickbay.dev/ability": "restartable"}
        self.api.create(
            f"/apis/apps/v1/namespaces/{self.rack.namespace}/replicasets",
            {
                "metadata": {"name": "work"},
                "spec": {
                    "replicas": 1,
                    "selector": {"matchLabels": {"app": "work"}},
                    # a ReplicaSet wants Pods that are restarted
                    "template": {"metadata": {"labels": labels}, "spec": spec | {"restartPolicy": "Always"}},
                },
            },
        )
        self.stack.await_start()
        self.until(self.workers, "the workload")
        self.until(lambda: self.workers()[0]["status"]["phase"] == "Running", "the workload at work")
        self.bad = self.rack.device_of(self.workers()[0]["metadata"]["name"])
        self.until(lambda: list(self.stack.decided("verdict_changed")), "a node that is known")

    def workers(self) -> list[dict[str, Any]]:
        return [
            each
            for each in self.api.items(self.rack.pods, labelSelector="app=work")
            if each["spec"].get("nodeName") and "deletionTimestamp" not in each["metadata"]
        ]

    def fail(self) -> None:
        """The card fails: the driver says so, and the kubelet."""
        self.health[self.bad] = False
        self._publish()
        (worker,) = self.workers()
        assert self._say(worker), "the workload has no device"

    def repair(self) -> None:
        """The card is well again: the driver says so."""
        self.health[self.bad] = True
        self._publish()

    @property
    def device_id(self) -> str:
        return self.rack.device_id(self.bad)

    def rules(self) -> list[dict[str, Any]]:
        """Return the taint rules of this rack."""
        return rules(self.stack.plane, self.rack.name)

    def kinds(self) -> list[str]:
        """Return the custody decisions on the bad card, in order, each once."""
        found = [d for d in self.stack.decided(*_CUSTODY) if d.device_id == self.device_id]
        return list(dict.fromkeys(d.KIND for d in sorted(found, key=lambda d: d.at_ms)))

    def until(self, holds: Callable[[], Any], what: str, disturb: Callable[[], object] | None = None) -> Any:
        """Wait until something holds; what ended meanwhile is started again by ``disturb``, and gets the whole time if that says so."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            with suppress(ApiError, IndexError):
                if found := holds():
                    return found
            if disturb is not None and disturb():
                end = time.monotonic() + WAIT_S
            time.sleep(0.1)
        logs = "\n".join(f"--- {p.name}\n{p.log[-2500:]}" for p in self.stack.processes.values())
        raise AssertionError(f"it did not come: {what}; so far {self.kinds()}\n{logs}")

    def run(self, disturb: Callable[[], object] | None = None) -> None:
        """From the fault to the end of the episode; the Pod that waits gets the card then, and not before."""
        self.fail()
        self.until(self.rules, "a taint rule", disturb)
        (finished,) = self.until(lambda: list(self.stack.decided("move_finished")), "a move", disturb)
        assert finished.outcome == "done", finished
        (worker,) = self.workers()
        assert self.rack.device_of(worker["metadata"]["name"]) != self.bad
        # the other card is taken now
        self.rack.ask("waiting")
        assert "cannot allocate all claims" in self.rack.refused("waiting")
        self.repair()
        for kind in ("probe_started", "canary_started", "observation_started", "device_released"):
            self.until(lambda k=kind: k in self.kinds(), kind, disturb)
        self.until(lambda: not self.rules(), "no taint rule", disturb)
        self.until(lambda: self.rack.node_of("waiting"), "the Pod that waited on the card", disturb)
        assert self.rack.device_of("waiting") == self.bad
        released_ms = max(
            d.at_ms for d in self.stack.decided("device_released") if d.device_id == self.device_id
        )
        conditions = self.api.get(f"{self.rack.pods}/waiting")["status"]["conditions"]
        (scheduled,) = [c["lastTransitionTime"] for c in conditions if c["type"] == "PodScheduled"]
        # the API server's times are whole seconds
        assert parse_time_ms(scheduled) >= released_ms // 1_000 * 1_000, "new work came before the release"
        assert len(self.seen) == 2, "the workload was moved once"

    def end(self) -> None:
        self._ended.set()
        self._playing.join(30)
        with suppress(ApiError):
            self.api.delete(f"/apis/apps/v1/namespaces/{self.rack.namespace}/replicasets/work")
        # the namespace is that of other tests too, and this one's verifier would make again what is taken away
        self.stack.processes["verify"].kill()
        pods = f"/api/v1/namespaces/{VERIFICATION}/pods"
        lists = (
            f"/apis/batch/v1/namespaces/{VERIFICATION}/jobs",
            f"{CLAIMS}/namespaces/{VERIFICATION}/resourceclaims",
        )
        for path in lists:
            for each in self.api.items(path):
                with suppress(ApiError):
                    self.api.delete(f"{path}/{each['metadata']['name']}", propagationPolicy="Background")
        end = time.monotonic() + 30
        while any(self.api.items(path) for path in (*lists, pods)) and time.monotonic() < end:
            for each in self.api.items(pods):
                self.rack.kubelet.remove(each)
            time.sleep(0.05)


_CUSTODY = (
    "quarantine_opened", "quarantine_extended", "probe_started", "canary_started", "observation_started", "device_released",
)  # fmt: skip
