"""A namespace for the verifier without a cluster: a store of objects behind ``request_json``, and decisions that bring steps.

``kill_after`` ends the process after so many effects, as a crash does: the effect has happened, and nobody was told.
"""

from __future__ import annotations

import re
from typing import Any

from responders.verification.namespace import Namespace
from responders.verification.steps import Step, standing
from responders.verification.templates import read_templates
from responders.verification.verifier import Verifier
from responders.view import View
from sickbay.codec import fact_id
from sickbay.decisions import CanaryStarted, DeviceRecord, Episode, ProbeStarted, QuarantineExtended
from sickbay.errors import ServiceError
from sickbay.policy import ReturnPolicy
from sickbay.timestamps import format_time_ms

POLICY = ReturnPolicy(prober="job", probe_timeout_ms=600_000, canary_timeout_ms=600_000)
NOW_MS = 1_790_000_000_000
EPISODE = "0f8e6f5a-7a57-5c1e-9d0c-0123456789ab"
DRA = "dra:gpu.example.com/node-a/gpu-1"
PLUGIN = "plugin:example.com/card/card-1"

TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata: {annotations: {sickbay.dev/device-class: gpu}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: none, resources: {claims: [{name: device}]}}
"""
PLAIN = """
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: none}]
"""
TEMPLATES = read_templates(
    {
        "probe.yaml": TEMPLATE,
        "canary.yaml": TEMPLATE,
        "probe.example.com_card.yaml": PLAIN,
        "canary.example.com_card.yaml": PLAIN,
    },
    "templates",
)


class KilledError(BaseException):
    """The process is gone."""


def slice_of(
    *devices: dict[str, Any], node: str = "node-a", generation: int = 1, **more: Any
) -> dict[str, Any]:
    """Return a slice of ``gpu.example.com`` on a node, with the pool of that name."""
    pool = {"name": "node-a", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": list(devices)} | more
    return {"metadata": {"name": f"{node}-slice", "uid": f"slice-{node}"}, "spec": spec}


def device(name: str, **attributes: Any) -> dict[str, Any]:
    """Return a device; a text, number or truth as the value of an attribute."""
    kinds = {str: "string", bool: "bool", int: "int"}
    return {
        "name": name,
        "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()},
    }


TWO = slice_of(device("gpu-0", uuid="u0", model="a"), device("gpu-1", uuid="u1", model="a"))


class Cluster:
    """The API server, the facts that were kept, and the clock. It outlives the processes that use it."""

    def __init__(self, *slices: dict[str, Any]) -> None:
        self.slices = list(slices)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        self.told: list[Any] = []
        self.now_ms = NOW_MS
        self.answers: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self.asked: list[tuple[str, str]] = []
        self.effects = 0
        self.kill_after = -1
        self.leads = True
        self._uids = 0

    def _effect(self) -> None:
        self.effects += 1
        if self.effects == self.kill_after:
            raise KilledError

    async def report(self, fact: Any) -> None:
        self.told.append(fact)
        self.facts.setdefault(fact_id(fact), fact)  # the log keeps the first of one id
        self._effect()

    async def request_json(self, method: str, path: str, query: Any = (), body: Any = None) -> Any:
        parts = path.strip("/").split("/")
        resource = next(part for part in reversed(parts) if part in _RESOURCES)
        self.asked.append((method, resource))
        if (method, resource) in self.answers:
            code, answer = self.answers[method, resource]
            return code, {}, answer
        if method == "GET":
            return 200, {}, {"items": self._list(resource, dict(query))}
        if method == "POST":
            return self._create(resource, body)
        found = self.objects.get((resource, parts[-1]))
        if found is None or body["preconditions"]["uid"] != found["metadata"]["uid"]:
            return 404, {}, {}
        self.delete(resource, parts[-1])
        self._effect()
        return 200, {}, {}

    def _list(self, resource: str, query: dict[str, str]) -> list[dict[str, Any]]:
        if resource == "resourceslices":
            wanted = dict(part.split("=") for part in query["fieldSelector"].split(","))
            return [
                each
                for each in self.slices
                if (each["spec"]["driver"], each["spec"].get("nodeName", ""))
                == (wanted["spec.driver"], wanted["spec.nodeName"])
            ]
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if "=" in part)
        return [
            each
            for (kind, _), each in self.objects.items()
            if kind == resource and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]

    def _create(self, resource: str, body: dict[str, Any]) -> Any:
        name = body["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
        if (resource, name) in self.objects:
            return 409, {}, {"reason": "AlreadyExists"}
        self.put(resource, body)
        self._effect()
        return 201, {}, body

    def put(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        """Store an object as the API server does."""
        self._uids += 1
        metadata = {"uid": f"uid-{self._uids}", "creationTimestamp": _time(self.now_ms)} | body["metadata"]
        self.objects[resource, metadata["name"]] = body | {"metadata": metadata}
        return self.objects[resource, metadata["name"]]

    def delete(self, resource: str, name: str) -> None:
        """Take an object away; the garbage collector takes what it owns."""
        gone = self.objects.pop((resource, name))["metadata"]["uid"]
        for key, each in list(self.objects.items()):
            if any(owner["uid"] == gone for owner in each["metadata"].get("ownerReferences", ())):
                del self.objects[key]

    def one(self, resource: str) -> dict[str, Any]:
        """Return the only object of a resource."""
        (found,) = self._list(resource, {})
        return found

    def allocate(self, *place: str) -> None:
        """Give the only claim a device; none takes it back."""
        results = [dict(zip(("driver", "pool", "device"), place, strict=True))] if place else []
        self.one("resourceclaims")["status"] = (
            {"allocation": {"devices": {"results": results}}} if place else {}
        )

    def finish(
        self, condition: str = "Complete", reason: str = "", *, exit_code: int = 0, message: str = ""
    ) -> None:
        """End the only Job and its Pod."""
        job = self.one("jobs")
        ended = {"type": condition, "status": "True", "reason": reason, "message": "said so"}
        job["status"] = {"conditions": [ended]}
        self.pod({"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": exit_code, "message": message}}}]})  # fmt: skip

    def pod(self, status: dict[str, Any]) -> None:
        """Say what the Pod of the only Job says."""
        name = self.one("jobs")["metadata"]["name"]
        owner = {"kind": "Job", "uid": self.one("jobs")["metadata"]["uid"]}
        labels = {"batch.kubernetes.io/job-name": name, "app.kubernetes.io/managed-by": "sickbay"}
        self.put("pods", {"metadata": {"name": f"{name}-x", "labels": labels, "ownerReferences": [owner]}, "status": status})  # fmt: skip

    def require_lead(self) -> None:
        """Raise as an elector that lost the Lease."""
        if not self.leads:
            raise ServiceError("another leads")


_RESOURCES = ("jobs", "pods", "resourceclaims", "resourceslices")


class Silent:
    """Metrics that nobody reads."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, str, float | None]] = []

    def done(self, effect: str, outcome: str, seconds: float | None = None) -> None:
        self.counted.append((effect, outcome, seconds))

    def stands(self, what: str, number: int) -> None:
        pass


def verifier(cluster: Cluster, view: View, **changes: Any) -> Verifier:
    """Return a process that knows nothing but what it is given."""
    given: dict[str, Any] = {
        "namespace": Namespace(cluster, "sickbay-verification", "sickbay"),
        "templates": TEMPLATES,
        "policy": POLICY,
        "view": view,
        "reports": cluster,
        "metrics": Silent(),
        "require_lead": cluster.require_lead,
        "now_ms": lambda: cluster.now_ms,
    }
    return Verifier(**(given | changes))


def episode(**changes: Any) -> Episode:
    given: dict[str, Any] = {
        "episode_id": EPISODE, "opened_at_ms": NOW_MS - 1, "cause": "unhealthy", "reason": "", "actor": "sickbay",
        "expires_at_ms": NOW_MS + 1, "hold_until_ms": NOW_MS, "attempt": 1, "return_at_ms": NOW_MS,
    }  # fmt: skip
    return Episode(**(given | changes))


def fold(view: View, phase: str, device_id: str = DRA, *, node: str = "node-a", **changes: Any) -> View:
    """Bring a device into a phase, as custody says it."""
    kinds = {"probing": ProbeStarted, "canary": CanaryStarted, "quarantined": QuarantineExtended}
    driver = device_id.split(":", 1)[1]
    driver = driver.split("/")[0] if device_id.startswith("dra:") else driver.rpartition("/")[0]
    if phase == "canary":
        changes = {"canary_at_ms": NOW_MS} | changes
    view.fold(
        kinds[phase](
            node=node,
            at_ms=NOW_MS,
            device_id=device_id,
            driver=driver,
            phase_before="quarantined",
            record=DeviceRecord(phase=phase, since_ms=NOW_MS, episode=episode(**changes)),
        )
    )
    return view


def step(device_id: str = DRA, phase: str = "probing", **changes: Any) -> Step:
    """Return the step of a device in a phase."""
    (found,) = standing(fold(View(), phase, device_id, **changes), POLICY)
    return found


def _time(at_ms: int) -> str:
    return format_time_ms(at_ms)
