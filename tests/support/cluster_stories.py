"""Stories that are played on a real control plane while ``sickbay record`` writes them down.

The scheduler, the claim controller and the API server are the real ones; kubelets and drivers are played. ``tests/cluster``
judges what comes of them, and ``make recordings`` keeps them as examples.
"""

from __future__ import annotations

import http.client
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from cli import command, environment
from cluster_objects import make_namespace, pod
from control_plane import ApiError, ControlPlane
from kubelets import Kubelet, mapping

DRA = "/apis/resource.k8s.io/v1"
NAMESPACE = "ml"
GPU = "gpu.example.com"
CARD = "example.com/card"
NODES = ("gpu-a1", "gpu-a2")
WAIT_S = 30


@contextmanager
def recording(plane: ControlPlane, path: Path) -> Iterator[None]:
    """Record the cluster to a file while the block runs."""
    told = _log_of_recorder(plane)
    kubeconfig = plane.kubeconfig(plane.folder / "recorder")
    with told.open("wb") as log:
        process = subprocess.Popen(
            [*command(), "record", "--kubeconfig", kubeconfig, "--output-file", str(path)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        # it says whom it records, and asks at once; then every resource is watched
        until(lambda: b"recording https" in told.read_bytes(), "the recorder does not start")
        time.sleep(2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, told.read_text(encoding="utf-8")
    told.unlink()


def _log_of_recorder(plane: ControlPlane) -> Path:
    return plane.folder / "recorder.log"


def _is_recorded(plane: ControlPlane, resource: str) -> bool:
    """Whether the recorder has nothing amiss to say of a resource: it says why it waits, and within seconds that it goes on."""
    lines = _log_of_recorder(plane).read_text(encoding="utf-8").splitlines()
    told = [line for line in lines if line.startswith(f"{resource}: ")]
    return not told or told[-1].count(": ") == 1


class Story:
    """A small cluster: two nodes with four GPUs of a DRA driver and four cards of a device plugin each."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api = plane, plane.admin
        self.kubelets = {name: Kubelet(self.api, name) for name in NODES}
        self.pods = ""
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def begin(self) -> None:
        """Register the nodes, publish the devices and start the heartbeats."""
        for kubelet in self.kubelets.values():
            kubelet.register({CARD: "4"})
        self.pods = make_namespace(self.api, NAMESPACE)
        self.api.create(
            f"{DRA}/deviceclasses",
            {
                "metadata": {"name": "gpu"},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{GPU}"'}}]},
            },
        )
        self.publish()
        self._heart.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the heartbeats."""
        self._stopped.set()
        if self._heart.is_alive():
            self._heart.join(WAIT_S)

    def _beat(self) -> None:
        while not self._stopped.wait(5):
            for kubelet in self.kubelets.values():
                # the API server may be restarting
                with suppress(ApiError, OSError, http.client.HTTPException):
                    kubelet.renew()

    def publish(self, node: str = "", *, taints: Sequence[dict[str, Any]] = ()) -> None:
        """Publish the GPUs of a node, of all without it; ``taints`` are those of the second."""
        for name in [node] if node else NODES:
            devices = []
            for number in range(4):
                device: dict[str, Any] = {
                    "name": f"gpu-{number}",
                    "attributes": {"numaNode": {"int": number // 2}, "model": {"string": "H100"}},
                    "capacity": {"memory": {"value": "80Gi"}},
                } | mapping(self.plane.version, per_device={"cpu": "4", "memory": "16Gi"})
                if taints and number == 1:
                    device["taints"] = list(taints)
                devices.append(device)
            self.kubelets[name].publish(GPU, devices, same_generation=bool(taints))

    def with_gpu(self, name: str, node: str, count: int = 1) -> tuple[Any, list[str]]:
        """Return a Pod that the scheduler bound to the node, and the devices that it allocated."""
        requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}]
        self.api.create(
            f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates",
            {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}},
        )
        asked = pod(name, cpu="2", memory="4Gi")
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        asked["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
        asked["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        self.api.create(self.pods, asked)
        bound = until(lambda: _bound(self.api.get(f"{self.pods}/{name}")), f"{name} is not bound")
        claim = self.api.get(f"{DRA}/namespaces/{NAMESPACE}/resourceclaims/{_claim_of(bound)}")
        return bound, [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]

    def with_card(self, name: str, node: str) -> Any:
        """Return a Pod with a card of the device plugin, bound by the scheduler."""
        asked = pod(name, **{"cpu": "1", CARD: "1"})
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.api.create(self.pods, asked)
        return until(lambda: _bound(self.api.get(f"{self.pods}/{name}")), f"{name} is not bound")

    def say(self, bound: Any, node: str, **health: str) -> None:
        """Let the kubelet write the health of devices of a Pod; a GPU by its name, a card as ``card_N``."""
        gpus = {name.replace("_", "-"): word for name, word in health.items() if name.startswith("gpu")}
        cards = {f"CARD-{name[5:]}": word for name, word in health.items() if name.startswith("card")}
        told = []
        if gpus:
            words = [
                {"resourceID": f"{GPU}/{node}/{name}", "health": word, "message": f"played: {word}"}
                for name, word in gpus.items()
            ]
            told.append({"name": "claim:gpu", "resources": words})
        if cards:
            words = [{"resourceID": name, "health": word} for name, word in cards.items()]
            told.append({"name": CARD, "resources": words})
        self.kubelets[node].run(bound, told)

    def end_pod(self, bound: Any, node: str) -> None:
        self.kubelets[node].remove(bound)


def until(holds: Callable[[], Any], problem: str) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError(problem)


def _bound(found: Any) -> Any:
    return found if found["spec"].get("nodeName") else None


def _claim_of(bound: Any) -> str:
    (status,) = bound["status"]["resourceClaimStatuses"]
    return str(status["resourceClaimName"])


def incident(story: Story, pause: Callable[[float], None] = time.sleep) -> None:
    """A GPU fails and is repaired, one is not heard of, a card fails: a minute of a cluster."""
    story.begin()
    first, (one, two) = story.with_gpu("train", "gpu-a1", 2)
    other, (third,) = story.with_gpu("serve", "gpu-a2")
    card = story.with_card("render", "gpu-a2")
    names = {each: each.replace("-", "_") for each in (one, two, third)}
    story.say(first, "gpu-a1", **{names[one]: "Healthy", names[two]: "Healthy"})
    story.say(other, "gpu-a2", **{names[third]: "Healthy"})
    story.say(card, "gpu-a2", card_0="Healthy")
    pause(10)
    story.say(first, "gpu-a1", **{names[one]: "Healthy", names[two]: "Unhealthy"})
    pause(5)
    fault = {"key": f"{GPU}/ecc", "value": "double-bit", "effect": "NoSchedule"}
    story.publish("gpu-a1", taints=[fault])
    pause(5)
    story.say(other, "gpu-a2", **{names[third]: "Unknown"})
    story.say(card, "gpu-a2", card_0="Unhealthy")
    pause(10)
    story.end_pod(first, "gpu-a1")
    story.publish("gpu-a1")
    again, (device,) = story.with_gpu("train-again", "gpu-a1")
    story.say(again, "gpu-a1", **{device.replace("-", "_"): "Healthy"})
    story.say(other, "gpu-a2", **{names[third]: "Healthy"})
    pause(15)


def upgrade(story: Story, pause: Callable[[float], None] = time.sleep) -> None:
    """The control plane goes from 1.36 to 1.37: mappings are lost with it, and found again once drivers publish anew."""
    story.begin()
    first, devices = story.with_gpu("train", "gpu-a1", 2)
    story.say(first, "gpu-a1", **{each.replace("-", "_"): "Healthy" for each in devices})
    pause(8)
    story.plane.stop()
    story.plane.become("1.37")
    story.plane.start()
    # long enough that a difference is none of objects that follow one another
    pause(45)
    # what is published before the recorder watches again comes with its list, as one state and not as a change
    until(lambda: _is_recorded(story.plane, "resourceslices"), "the recorder does not watch again")
    story.publish()
    pause(40)
    second, more = story.with_gpu("serve", "gpu-a1")
    story.say(second, "gpu-a1", **{each.replace("-", "_"): "Healthy" for each in more})
    pause(40)
