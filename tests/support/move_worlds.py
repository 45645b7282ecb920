"""A cluster of a few Pods for the mover: a controller that replaces what is evicted, claims, Events, disruption budgets, kills."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from typing import Any

from responding import DRIVER, NODE, KeptReports, Killed, device_id, metrics, quarantined
from virtual_time import LoopTimes, run_virtually

from responders.moves.cluster import Cluster
from responders.moves.mover import Mover
from responders.view import View
from sickbay.decisions import MoveFinished, MoveLeaseGranted, MovePlanned
from sickbay.policy import ExclusionPolicy, MovePolicy, Policy, RespondPolicy
from sickbay.timestamps import format_time_ms

LEASE_MS = 600_000
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "work", "uid": "rs", "controller": True}


class World:
    """The API server and the controllers behind it. A Pod that is evicted is gone a second later, and another is ready then."""

    def __init__(self, times: LoopTimes) -> None:
        self.times = times
        self.pods: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.events: dict[str, dict[str, Any]] = {}
        self.evicted: list[str] = []
        #: Effect of every taint rule that is asked for, "" for none.
        self.effect = "NoSchedule"
        self.takes_no_events = False
        self.refuse: list[int] = []
        self.refusal = "it would violate the pod's disruption budget"
        self.writes = 0
        self.kill: tuple[int, str] | None = None
        #: Device that the next Pod of the controller gets, and whether it becomes ready.
        self.next_device, self.next_ready = "gpu-1", True
        self._versions = itertools.count(10)
        self._gone: list[tuple[int, str]] = []

    def add(self, name: str, device: str, *, owner: bool = True, ready: bool = True, **declared: str) -> str:
        """Make a Pod with a claim for a device and return its uid."""
        version = str(next(self._versions))
        uid = f"uid-{name}-{version}"
        labels = {
            f"sickbay.dev/{key}": value
            for key, value in declared.items()
            if key in ("ability", "topology", "group")
        }
        notes = {f"sickbay.dev/{key}": value for key, value in declared.items() if key.endswith("-hook")}
        self.pods[name] = {
            "metadata": {
                "name": name, "namespace": "ml", "uid": uid, "resourceVersion": version, "labels": labels, "annotations": notes,
                "creationTimestamp": format_time_ms(self.times.now_ms())[:19] + "Z",
                "ownerReferences": [OWNER] if owner else [],
            },
            "spec": {
                "nodeName": NODE, "containers": [{"name": "main"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": f"c-{name}"}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        }  # fmt: skip
        results = [{"request": "r", "driver": DRIVER, "pool": NODE, "device": device}]
        self.claims[f"c-{name}"] = {
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
            }
        }
        return uid

    def touch(self, name: str) -> None:
        """Somebody writes to a Pod."""
        self.pods[name]["metadata"]["resourceVersion"] = str(next(self._versions))

    def _settle(self) -> None:
        for at_ms, name in list(self._gone):
            if at_ms <= self.times.now_ms():
                self._gone.remove((at_ms, name))
                before = self.pods.pop(name)
                if before["metadata"]["ownerReferences"]:
                    declared = {
                        key.split("/")[1]: value for key, value in before["metadata"]["labels"].items()
                    }
                    self.add(f"{name}-again", self.next_device, ready=self.next_ready, **declared)

    async def request_json(self, method, path, query=(), body=None):  # noqa: ARG002 - every list is one page
        await asyncio.sleep(0.01)  # others go on meanwhile
        self._settle()
        if method == "GET":
            return self._get(path)
        number, self.writes = self.writes, self.writes + 1
        if self.kill == (number, "before"):
            raise Killed
        answer = self._write(path, copy.deepcopy(body))
        if self.kill == (number, "after"):
            raise Killed
        return answer

    def _get(self, path):
        name = path.rsplit("/", 1)[-1]
        if "/devicetaintrules/" in path:
            taint = {"key": "sickbay.dev/quarantine", "effect": self.effect}
            found = {"spec": {"taint": taint}} if self.effect and "/v1/" in path else None
        elif "/resourceclaims/" in path:
            found = self.claims.get(name)
        elif "/events/" in path:
            found = self.events.get(name)
        else:
            return 200, {}, {"items": copy.deepcopy(list(self.pods.values()))}
        return (404, {}, {}) if found is None else (200, {}, copy.deepcopy(found))

    def _write(self, path, body):
        name = body["metadata"]["name"]
        if path.endswith("/events") and (len(body["note"].encode()) > 1_024 or self.takes_no_events):
            return 422, {}, {"message": "note: can have at most 1024 characters"}
        if path.endswith("/events"):
            if name in self.events:
                return 409, {}, {}
            body["metadata"]["creationTimestamp"] = format_time_ms(self.times.now_ms())[:19] + "Z"
            self.events[name] = body
            return 201, {}, copy.deepcopy(body)
        assert path.endswith("/eviction")
        if self.refuse:
            return self.refuse.pop(0), {}, {"message": self.refusal}
        pod = self.pods.get(name)
        if pod is None:
            return 404, {}, {}
        wanted = body["deleteOptions"]["preconditions"]
        if (wanted["uid"], wanted["resourceVersion"]) != (
            pod["metadata"]["uid"],
            pod["metadata"]["resourceVersion"],
        ):
            return 409, {}, {}
        assert "deletionTimestamp" not in pod["metadata"], "evicted twice"
        pod["metadata"]["deletionTimestamp"] = format_time_ms(self.times.now_ms())
        self.touch(name)
        self.evicted.append(name)
        self._gone.append((self.times.now_ms() + 1_000, name))
        return 201, {}, {}

    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.events.values())


class Hooks:
    """Hooks that are counted; ``fails`` names those that do not go well, and ``then`` is what happens meanwhile, by the name."""

    def __init__(self, *fails: str) -> None:
        self.fails, self.called, self.timeouts_ms, self.told = fails, [], [], "told"
        self.then: Callable[[str], None] = lambda _: None

    async def call(self, *, hook, ip, namespace, pod, key, timeout_ms):  # noqa: ARG002 - the real ones need them
        self.timeouts_ms.append(timeout_ms)
        name = getattr(hook, "path", "") or hook.argv[0]
        self.called.append((pod, name, key))
        self.then(name)
        return (name not in self.fails), self.told


class Bench:
    """A view with leased moves, and movers over one world."""

    def __init__(self, **moves: Any) -> None:
        self.times = LoopTimes()
        self.world = World(self.times)
        self.view, self.reports, self.hooks = View(), KeptReports(), Hooks()
        enforced = RespondPolicy(exclusion=ExclusionPolicy(mode="enforce"))
        self.policy = Policy(
            moves=MovePolicy(**({"enabled": True, "lease_ms": LEASE_MS} | moves)), respond=enforced
        )
        self.view.fold(quarantined(at_ms=self.times.now_ms()))

    def lease(
        self, pod: str, *, token: int = 1, ability: str = "restartable", topology: str = "whole"
    ) -> str:
        """Lease the move of a Pod off the bad device, and return its id."""
        now_ms = self.times.now_ms()
        of = {
            "node": NODE, "at_ms": now_ms, "device_id": device_id(), "move_id": f"move-{pod}", "episode_id": "e",
            "pod_uid": self.world.pods[pod]["metadata"]["uid"], "namespace": "ml", "pod": pod,
        }  # fmt: skip
        self.view.fold(MovePlanned(**of, ability=ability, topology=topology))
        self.view.fold(MoveLeaseGranted(**of, token=token, expires_at_ms=now_ms + LEASE_MS))
        return of["move_id"]

    def take_back(self, move_id: str) -> None:
        move = self.view.nodes[NODE].moves[move_id]
        self.view.fold(
            MoveFinished(
                node=NODE, at_ms=self.times.now_ms(), device_id=move.device_id, move_id=move_id, episode_id="e",
                pod_uid=move.pod_uid, namespace="ml", pod=move.pod, token=move.token, outcome="episode_closed",
            )
        )  # fmt: skip

    def mover(self, require_lead=lambda: None) -> Mover:
        return Mover(
            Cluster(self.world, require_lead), self.hooks, self.reports, self.view, self.policy,
            times=self.times, metrics=metrics(), identity="test", require_lead=require_lead,
        )  # fmt: skip

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [
            (f.pod if hasattr(f, "pod") else f.move_id, f.outcome)
            for f in self.reports.facts.values()
            if f.KIND == "move_reported"
        ]

    def detail(self) -> str:
        (found,) = [f.detail for f in self.reports.facts.values() if f.KIND == "move_reported"]
        return found

    @property
    def steps(self) -> list[str]:
        return [f.step for f in self.reports.facts.values() if f.KIND == "move_step_reported"]

    async def run(self, *movers: Mover, looks: int = 2_000) -> None:
        """Let movers look until every lease has ended. One that is killed is followed by another."""
        running = list(movers or (self.mover(),))
        for _ in range(looks):
            for index, mover in enumerate(running):
                try:
                    await mover.act()
                except Killed:
                    await mover.close()
                    running[index] = self.mover()
            await asyncio.sleep(0.5)
            ended = {f.move_id for f in self.reports.facts.values() if f.KIND == "move_reported"}
            if set(self.view.nodes[NODE].moves) <= ended:
                break
        else:
            raise AssertionError(f"it does not end: {self.steps} {self.world.reasons()}")
        for mover in running:
            await mover.close()


def moving(scene, **policy) -> Bench:
    """Run a scene on virtual time over a bench, and return the bench."""

    async def run():
        bench = Bench(**policy)
        await scene(bench)
        return bench

    return run_virtually(run())
