"""What responders are tested with: a view made of decisions, an API server of a few objects, reports that are kept."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from prometheus_client import CollectorRegistry

from responders.view import View
from sickbay.decisions import (
    BreakerClosed,
    BreakerOpened,
    DeviceRecord,
    DeviceReleased,
    DeviceRestricted,
    Episode,
    QuarantineOpened,
    VerdictChanged,
)
from sickbay.envelope import derived_id
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.timestamps import format_time_ms

AT = 1_790_000_000_000
NODE = "n1"
DRIVER = "gpu.example.com"


class Killed(BaseException):
    """The process was killed here."""


class Clock:
    """A clock that a test sets."""

    def __init__(self, at_ms: int = AT) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms - AT + 1_000_000


class KeptReports:
    """Reports that are kept in a list; one that comes again is one."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.repeats = 0

    async def report(self, fact: Any) -> None:
        self.repeats += fact.request_id in self.facts
        self.facts.setdefault(fact.request_id, fact)

    def states(self, **where: Any) -> list[str]:
        return [
            fact.state
            for fact in self.facts.values()
            if all(getattr(fact, name) == value for name, value in where.items())
        ]


class FakeRules:
    """The API server's part about DeviceTaintRules: versions, preconditions, and a kill before or after any effect."""

    def __init__(self, clock: Clock, version: str = "v1") -> None:
        self.clock, self.version = clock, version
        self.items: dict[str, dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self._versions = itertools.count(100)
        #: Code to answer to the next writes instead of doing them.
        self.refuse: list[int] = []
        #: ``(number of the write, "before" or "after")`` at which the process is killed.
        self.kill: tuple[int, str] | None = None

    async def request_json(self, method, path, query=(), body=None):  # noqa: ARG002 - the one list is whole
        if path == f"/apis/resource.k8s.io/{self.version}":
            return 200, {}, {"resources": [{"name": "devicetaintrules"}]}
        base = f"/apis/resource.k8s.io/{self.version}/devicetaintrules"
        if not path.startswith(base):
            return 404, {}, {}
        name = path[len(base) + 1 :]
        if method == "GET":
            listed = copy.deepcopy(list(self.items.values()))
            for item in listed:  # as real ones do
                del item["apiVersion"], item["kind"]
            return 200, {}, {"items": listed}
        number = len(self.writes)
        self.writes.append((method, name or body["metadata"]["name"]))
        if self.kill == (number, "before"):
            raise Killed
        if self.refuse:
            return self.refuse.pop(0), {}, {"message": "no"}
        answer = self._write(method, name, copy.deepcopy(body))
        if self.kill == (number, "after"):
            raise Killed
        return answer

    def _write(self, method, name, body):
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.items:
                return 409, {}, {}
            self.put(body, generation=1)
            return 201, {}, copy.deepcopy(self.items[name])
        known = self.items.get(name)
        if known is None:
            return 404, {}, {}
        if method == "PUT" and "kind" not in body:
            return 400, {}, {"message": "the object says not what it is"}
        wanted = (body.get("preconditions") if method == "DELETE" else body["metadata"]) or {}
        if wanted.get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            return 409, {}, {}
        if method == "DELETE":
            del self.items[name]
            return 200, {}, {}
        same = body["spec"] == known["spec"]
        self.put(body, generation=known["metadata"]["generation"] + (not same))
        return 200, {}, copy.deepcopy(self.items[name])

    def put(self, body, generation):
        name = body["metadata"]["name"]
        before = self.items.get(name, {}).get("metadata", {})
        body["metadata"] |= {
            "uid": before.get("uid") or derived_id(name, str(next(self._versions))),
            "resourceVersion": str(next(self._versions)),
            "generation": generation,
            "creationTimestamp": before.get("creationTimestamp")
            or format_time_ms(self.clock.at_ms)[:19] + "Z",
        }
        self.items[name] = body

    def edit(self, name, **taint):
        """Somebody else edits a rule."""
        item = copy.deepcopy(self.items[name])
        item["spec"]["taint"] |= taint
        self.put(item, item["metadata"]["generation"] + 1)

    def annotate(self, name, **annotations):
        item = copy.deepcopy(self.items[name])
        item["metadata"]["annotations"] |= annotations
        item["metadata"]["managedFields"] = [{"manager": "kubectl-annotate", "time": "2099-01-01T00:00:00Z"}]
        self.put(item, item["metadata"]["generation"])


def device_id(index: int = 0, node: str = NODE, driver: str = DRIVER) -> str:
    return f"dra:{driver}/{node}/gpu-{index}"


def episode(device: str, at_ms: int = AT, **more: Any) -> Episode:
    return Episode(
        **{
            "episode_id": derived_id("episode", device, str(at_ms)),
            "opened_at_ms": at_ms,
            "cause": "unhealthy",
            "reason": "reported Unhealthy",
            "actor": "sickbay",
            "expires_at_ms": at_ms + 86_400_000,
            "hold_until_ms": at_ms + 600_000,
            "open_causes": ("unhealthy",),
        }
        | more
    )


def quarantined(
    device: str | None = None, node: str = NODE, at_ms: int = AT, phase: str = "quarantined", **more: Any
):
    device = device or device_id(node=node)
    return QuarantineOpened(
        node=node,
        at_ms=at_ms,
        device_id=device,
        driver=device.removeprefix("dra:").removeprefix("plugin:").split("/", 1)[0],
        phase_before="in_service",
        reason="reported Unhealthy",
        clause="quarantine.min_hold_ms",
        record=DeviceRecord(
            phase=phase, since_ms=at_ms, cause="unhealthy", episode=episode(device, at_ms, **more)
        ),
    )


def restricted(device: str | None = None, node: str = NODE, at_ms: int = AT):
    device = device or device_id(node=node)
    return DeviceRestricted(
        node=node,
        at_ms=at_ms,
        device_id=device,
        driver=device.removeprefix("dra:").split("/", 1)[0],
        phase_before="suspect",
        record=DeviceRecord(
            phase="restricted", since_ms=at_ms, cause="unknown", unknown_since_ms=at_ms - 300_000
        ),
    )


def released(device: str | None = None, node: str = NODE, at_ms: int = AT + 1, opened_at_ms: int = AT):
    device = device or device_id(node=node)
    return DeviceReleased(
        node=node,
        at_ms=at_ms,
        device_id=device,
        driver=device.removeprefix("dra:").split("/", 1)[0],
        phase_before="observing",
        record=DeviceRecord(phase="in_service", since_ms=at_ms),
        closed=episode(device, opened_at_ms, closed_at_ms=at_ms, outcome="returned"),
    )


def breaker_opened(scope: str = f"driver:{DRIVER}", at_ms: int = AT):
    return BreakerOpened(node="", at_ms=at_ms, scope=scope, adverse=900, known=1000, threshold=100)


def breaker_closed(scope: str = f"driver:{DRIVER}", at_ms: int = AT):
    return BreakerClosed(node="", at_ms=at_ms, scope=scope, opened_at_ms=at_ms)


def node_class(node: str, name: str):
    return VerdictChanged(node=node, at_ms=AT, verdict="open", node_class=name)


def view_of(*decisions: Any) -> View:
    view = View()
    for decision in decisions:
        view.fold(decision)
    return view


def metrics() -> RespondMetrics:
    return RespondMetrics(CollectorRegistry())
