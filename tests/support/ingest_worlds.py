"""Small clusters that change as the API server lets them: what lists and watches of them would carry.

A world keeps the newest object of everything and hands out watch events in the order of its writes. Writes are legal ones: a
claim is taken back only when no Pod that runs names it, a DRA word is spoken only of a claim that holds something.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from ingest.diff import Mirror
from ingest.frames import RESOURCES, Frame, FrameType
from sickbay.facts import Fact
from sickbay.policy import ReadingPolicy

NODES: Final = ("n1", "n2")
DEVICES: Final = ("d0", "d1", "d2")
PODS: Final = ("p0", "p1", "p2")
CLAIMS: Final = ("c0", "c1")
#: ``(what, which, how)``: numbers choose among what the world allows at that time.
Step = tuple[str, int, int]
WRITES: Final = (
    "pod", "bind", "speak", "speak", "speak", "finish", "delete_pod", "claim", "allocate", "allocate", "deallocate",
    "delete_claim", "generation", "generation", "slice", "delete_slices", "node", "delete_node", "renew", "renew", "touch",
)  # fmt: skip
#: What a running mirror goes through besides.
WATCHED: Final = (*WRITES, "tick", "tick", "hold", "release", "bookmark")
#: A cluster at work, for histories that begin with one.
_AT_WORK: Final[tuple[tuple[Step, ...], ...]] = (
    (("node", 0, 0), ("node", 1, 1), ("renew", 0, 0), ("renew", 1, 0)),
    (("generation", 0, 2), ("generation", 1, 1), ("generation", 1, 2)),
    (("pod", 0, 4), ("claim", 0, 0), ("allocate", 0, 1), ("speak", 0, 1)),
    (("claim", 1, 0), ("allocate", 1, 8), ("pod", 1, 1), ("speak", 1, 2)),
    (("pod", 0, 7), ("claim", 2, 0), ("allocate", 2, 4), ("speak", 0, 4)),
    (("pod", 2, 4), ("speak", 2, 7)),
)


def steps(kinds: tuple[str, ...], max_size: int) -> st.SearchStrategy[list[Step]]:
    """Return a history of a world."""
    return st.lists(
        st.tuples(st.sampled_from(kinds), st.integers(0, 3), st.integers(0, 11)), max_size=max_size
    )


def lives(max_size: int) -> st.SearchStrategy[list[Step]]:
    """Return what a mirror has watched since the world began."""
    begun = st.lists(st.sampled_from(_AT_WORK), max_size=len(_AT_WORK)).map(
        lambda parts: [step for part in parts for step in part]
    )
    return st.tuples(begun, steps(WATCHED, max_size)).map(lambda both: both[0] + both[1])


class World:
    """The newest object of everything, the version of the last write, and the events that no watch has carried yet."""

    def __init__(self) -> None:
        self.rv = 1
        self.made = 0
        self.objects: dict[str, dict[str, dict[str, Any]]] = {resource: {} for resource in RESOURCES}
        self.events: list[tuple[str, FrameType, dict[str, Any]]] = []

    def listing(self, resource: str) -> dict[str, Any]:
        """Return the LIST of a resource as it is now."""
        items = [copy.deepcopy(obj) for obj in self.objects[resource].values()]
        return {"metadata": {"resourceVersion": str(self.rv)}, "items": items}

    def write(self, step: Step) -> None:
        """Change the world; a step that nothing allows now changes nothing."""
        what, which, how = step
        getattr(self, f"_{what}")(which, how)

    def _put(self, resource: str, name: str, body: dict[str, Any]) -> None:
        self.rv += 1
        before = self.objects[resource].get(name)
        if before is None:
            self.made += 1
        uid = before["metadata"]["uid"] if before else f"{name}-{self.made}"
        metadata = {"name": name, "namespace": _NAMESPACE[resource], "uid": uid}
        metadata |= (before or {}).get("metadata", {}) | body.pop("metadata", {})
        obj = {"metadata": {**metadata, "resourceVersion": str(self.rv)}, **copy.deepcopy(body)}
        self.objects[resource][name] = obj
        self.events.append((resource, "MODIFIED" if before else "ADDED", copy.deepcopy(obj)))

    def _delete(self, resource: str, name: str) -> None:
        obj = self.objects[resource].pop(name, None)
        if obj is not None:
            self.rv += 1
            obj["metadata"]["resourceVersion"] = str(self.rv)
            self.events.append((resource, "DELETED", obj))

    def _again(self, resource: str, name: str, **changes: Any) -> None:
        obj = copy.deepcopy(self.objects[resource][name])
        del obj["metadata"]
        self._put(resource, name, obj | changes)

    # --- Pods --------------------------------------------------------------------------------------------------------

    def _pod(self, which: int, how: int) -> None:
        name = PODS[which % 3]
        if name in self.objects["pods"]:
            return
        template = how % 4 == 3
        claim = {"name": "gpu"} if template else {"name": "gpu", "resourceClaimName": CLAIMS[how % 2]}
        node = ("", *NODES)[how % 3]
        spec = {"nodeName": node, "containers": [{"name": "a"}, {"name": "b"}], "resourceClaims": [claim]}
        self._put("pods", name, {"spec": spec, "status": {"phase": "Pending"}})

    def _bind(self, which: int, how: int) -> None:
        pod = self.objects["pods"].get(PODS[which % 3])
        if pod is not None and not pod["spec"]["nodeName"]:
            spec = pod["spec"] | {"nodeName": NODES[how % 2]}
            self._again("pods", PODS[which % 3], spec=spec)

    def _speak(self, which: int, how: int) -> None:
        name = PODS[which % 3]
        pod = self.objects["pods"].get(name)
        if pod is None or not pod["spec"]["nodeName"] or _is_over(pod):
            return
        health = ("Healthy", "Unhealthy", None, "odd")[how % 4]
        reports = [("a", "nvidia.com/gpu", "GPU-1", health)] if how % 3 else []
        held = self._held(pod)
        for index, device in enumerate(held[: 1 + how % 2] if how < 10 else ()):
            resource_id = (f"drv/n1/{device}", f"v.example/gpu={device}", "common")[how % 3]
            reports.append(("ab"[index % 2], "claim:gpu/r" if how % 5 else "claim:gpu", resource_id, health))
        statuses = [
            {
                "name": container,
                "allocatedResourcesStatus": [
                    {"name": name, "resources": [{"resourceID": resource_id, "health": word}]}
                    for of, name, resource_id, word in reports
                    if of == container
                ],
            }
            for container in "ab"
        ]
        self._again("pods", name, status={"phase": "Running", "containerStatuses": statuses})

    def _held(self, pod: dict[str, Any]) -> list[str]:
        claim = self.objects["resourceclaims"].get(_claim_of(pod))
        allocation = claim["status"].get("allocation") if claim else None
        return [result["device"] for result in allocation["devices"]["results"]] if allocation else []

    def _finish(self, which: int, how: int) -> None:
        pod = self.objects["pods"].get(PODS[which % 3])
        if pod is not None and pod["spec"]["nodeName"]:
            phase = ("Failed", "Succeeded")[how % 2]
            if not _is_over(pod):
                self._again("pods", PODS[which % 3], status=pod["status"] | {"phase": phase})

    def _delete_pod(self, which: int, how: int) -> None:
        name = PODS[which % 3]
        pod = self.objects["pods"].get(name)
        if pod is None:
            return
        if how % 3 == 0 and "deletionTimestamp" not in pod["metadata"]:
            obj = copy.deepcopy(pod)
            obj["metadata"] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            self._put("pods", name, obj)
            return
        self._delete("pods", name)

    # --- claims ------------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [*CLAIMS, *(f"t-{name}" for name in PODS)]

    def _claim(self, which: int, how: int) -> None:
        del how
        name = self._names()[which]
        pod = self.objects["pods"].get(name.removeprefix("t-"))
        if name in self.objects["resourceclaims"] or (name not in CLAIMS and pod is None):
            return
        body: dict[str, Any] = {"spec": {"devices": {"requests": [{"name": "r"}]}}, "status": {}}
        if pod is not None and name not in CLAIMS:
            body["metadata"] = {
                "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
                "ownerReferences": [
                    {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "controller": True}
                ],
            }  # fmt: skip
        self._put("resourceclaims", name, body)

    def _allocate(self, which: int, how: int) -> None:
        name = self._names()[which]
        claim = self.objects["resourceclaims"].get(name)
        if claim is None:
            return
        status = copy.deepcopy(claim["status"])
        if "allocation" not in status:
            pool = ("n1", "n1", "shared")[how % 3]
            devices = DEVICES[how % 2 : 1 + how % 3] or ("d0",)
            if pool == "shared":
                devices = self._published(1)
                if not devices:
                    return
            results = [
                {"request": "r", "driver": "drv", "pool": pool, "device": device} for device in devices
            ]
            status["allocation"] = {"devices": {"results": results}}
            if name == CLAIMS[0] and pool == "n1":
                term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODES[0]]}]}
                status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
        users = [pod for pod in self.objects["pods"].values() if _claim_of(pod) == name and not _is_over(pod)]
        status["reservedFor"] = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            for pod in users[: 1 + how % 2]
        ]
        self._again("resourceclaims", name, status=status)

    def _in_use(self, name: str) -> bool:
        return any(_claim_of(pod) == name and not _is_over(pod) for pod in self.objects["pods"].values())

    def _deallocate(self, which: int, how: int) -> None:
        del how
        name = self._names()[which]
        if name in self.objects["resourceclaims"] and not self._in_use(name):
            self._again("resourceclaims", name, status={})

    def _delete_claim(self, which: int, how: int) -> None:
        del how
        if not self._in_use(self._names()[which]):
            self._delete("resourceclaims", self._names()[which])

    # --- slices ------------------------------------------------------------------------------------------------------

    def _pool(self, which: int) -> list[str]:
        pool = ("n1", "shared")[which % 2]
        slices = self.objects["resourceslices"]
        return sorted(name for name, obj in slices.items() if obj["spec"]["pool"]["name"] == pool)

    def _published(self, which: int) -> tuple[str, ...]:
        """Return the devices of a pool's newest generation, none while it is incomplete."""
        specs = [self.objects["resourceslices"][name]["spec"] for name in self._pool(which)]
        newest = max((spec["pool"]["generation"] for spec in specs), default=0)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if not current or len(current) < current[0]["pool"]["resourceSliceCount"]:
            return ()
        return tuple(sorted({device["name"] for spec in current for device in spec["devices"]}))

    def _generation(self, which: int, how: int) -> None:
        """Begin a new generation, or go on with the newest; old slices go when it is complete."""
        pool = ("n1", "shared")[which % 2]
        there = [self.objects["resourceslices"][name]["spec"]["pool"] for name in self._pool(which)]
        newest = max((spec["generation"] for spec in there), default=0)
        current = [spec for spec in there if spec["generation"] == newest]
        count = current[0]["resourceSliceCount"] if current else 0
        generation, present = newest, len(current)
        if present >= count:
            generation, present, count = newest + 1, 0, 1 + how % 2
        devices = [{"name": device} for device in DEVICES[present : present + 1 + how % 3]]
        self._slice_of(pool, f"s-{pool}-{generation}-{present}", generation, count, devices, how)
        if present + 1 == count and how % 4:
            for name in self._pool(which):
                if self.objects["resourceslices"][name]["spec"]["pool"]["generation"] < generation:
                    self._delete("resourceslices", name)

    def _slice_of(
        self, pool: str, name: str, generation: int, count: int, devices: list[dict[str, Any]], how: int
    ) -> None:
        spec: dict[str, Any] = {
            "driver": "drv", "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        }  # fmt: skip
        if pool == "n1":
            spec["nodeName"] = "n1"
        else:
            spec["perDeviceNodeSelection"] = True
            for index, device in enumerate(devices):
                device["nodeName"] = NODES[(index + how) % 2]
        for index, device in enumerate(devices):
            device["attributes"] = {"uuid": {"string": f"U-{device['name']}"}}
            if index and how % 2:
                device["attributes"]["parentUUID"] = {"string": "U-d0"}
        if how % 3 == 1:
            counter = {"name": "set", "counters": {"memory": {"value": f"{1 + how % 2}Gi"}}}
            spec["sharedCounters"] = [counter]
        self._put("resourceslices", name, {"spec": spec | {"devices": devices}})

    def _slice(self, which: int, how: int) -> None:
        """Change a taint in place."""
        names = self._pool(which)
        if names:
            name = names[how % len(names)]
            spec = copy.deepcopy(self.objects["resourceslices"][name]["spec"])
            for device in spec["devices"]:
                device["taints"] = [{"key": "drv/xid", "value": str(how % 3), "effect": "NoSchedule"}]
            self._again("resourceslices", name, spec=spec)

    def _delete_slices(self, which: int, how: int) -> None:
        names = self._pool(which)
        for name in names if how % 2 else names[:1]:
            self._delete("resourceslices", name)

    # --- Nodes and Leases --------------------------------------------------------------------------------------------

    def _node(self, which: int, how: int) -> None:
        status = {"conditions": [{"type": "Ready", "status": ("True", "False")[how % 2]}]}
        self._put("nodes", NODES[which % 2], {"spec": {"unschedulable": how % 3 == 0}, "status": status})

    def _delete_node(self, which: int, how: int) -> None:
        self._delete("nodes", NODES[which % 2])
        if how % 3 == 0:
            self._node(which, how)

    def _renew(self, which: int, how: int) -> None:
        at = f"2026-01-01T00:00:{how:02}Z"
        self._put("leases", NODES[which % 2], {"spec": {"leaseDurationSeconds": 20, "renewTime": at}})

    def _delete_lease(self, which: int, how: int) -> None:
        del how
        self._delete("leases", NODES[which % 2])

    def _touch(self, which: int, how: int) -> None:
        """Write what nobody reads."""
        resource = RESOURCES[how % 4]
        names = sorted(self.objects[resource])
        if names:
            obj = copy.deepcopy(self.objects[resource][names[which % len(names)]])
            obj["metadata"] = {"generateName": str(self.rv)}
            self._put(resource, names[which % len(names)], obj)


_NAMESPACE: Final = {
    "pods": "ml", "resourceclaims": "ml", "resourceslices": "", "nodes": "", "leases": "kube-node-lease",
}  # fmt: skip


def _is_over(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in {"Failed", "Succeeded"}


def _claim_of(pod: dict[str, Any]) -> str:
    named = pod["spec"]["resourceClaims"][0].get("resourceClaimName")
    return named or f"t-{pod['metadata']['name']}"


class Watcher:
    """A mirror that follows a world, and all that it told."""

    def __init__(self, partitions: int = 2) -> None:
        self.mirror = Mirror(ReadingPolicy(), partitions)
        self.told: list[Fact] = []
        self.at_ms = 0
        self._held: dict[str, list[tuple[FrameType, dict[str, Any]]]] = {}

    def frame(
        self, kind: FrameType, resource: str = "", obj: dict[str, Any] | None = None, *, after_ms: int = 2_000
    ) -> list[Fact]:
        """Apply one frame, two seconds after the last one unless told otherwise."""
        self.at_ms += after_ms
        facts = self.mirror.apply(
            Frame(
                at_ms=self.at_ms,
                resource=resource,
                type=kind,
                object=copy.deepcopy(obj),
                place=f"world:{self.at_ms}",
            )
        )
        self.told += facts
        return facts

    def read(self, world: World, order: list[str]) -> list[Fact]:
        """LIST everything, in this order of resources, and tick: who watches Leases ticks."""
        facts = [fact for resource in order for fact in self.frame("LIST", resource, world.listing(resource))]
        return facts + self.frame("TICK")

    def lose(self) -> None:
        """Hear from every watch that its version is too old, and of what was under way no more."""
        self._held = {}
        for resource in RESOURCES:
            self.frame("ERROR", resource, {"code": 410, "reason": "Expired"}, after_ms=0)

    def follow(self, world: World, history: list[Step]) -> None:
        """Let the world change, and watch it; a watch that is held carries its events later."""
        for step in history:
            what, which, _ = step
            if what == "tick":
                self.frame("TICK")
            elif what == "hold":
                self._held.setdefault(RESOURCES[which], [])
            elif what == "release":
                self.release(RESOURCES[which])
            elif what == "bookmark":
                if not self._held.get(RESOURCES[which]):
                    self.frame("BOOKMARK", RESOURCES[which], {"metadata": {"resourceVersion": str(world.rv)}})
            else:
                if what in {"deallocate", "delete_claim"}:
                    # what was said of a claim is heard before the claim is taken back
                    self.release("pods")
                if what == "allocate":
                    # a claim of devices that may be on two nodes is seen after both, or it would wait with half its nodes
                    self.release("resourceslices")
                world.write(step)
                self.carry(world)

    def carry(self, world: World) -> None:
        """Apply the events of the world that no watch has carried yet."""
        events, world.events = world.events, []
        for resource, kind, obj in events:
            if resource in self._held:
                self._held[resource].append((kind, obj))
            else:
                self.frame(kind, resource, obj)

    def release(self, resource: str) -> None:
        """Let a watch carry what it held."""
        for kind, obj in self._held.pop(resource, ()):
            self.frame(kind, resource, obj)

    def catch_up(self) -> None:
        """Let every watch carry what it held."""
        for resource in RESOURCES:
            self.release(resource)


def key_of(fact: Fact) -> tuple[str, ...]:
    """Return the node and what the fact is about there."""
    broadcast = (fact.KIND, str(getattr(fact, "partition", ""))) if fact.resource == "clock" else ()
    return (fact.node, fact.resource, fact.subject, getattr(fact, "pod_uid", ""), *broadcast)


def newest(facts: list[Fact]) -> Iterator[Fact]:
    """Yield the newest fact of each subject on each node, of equal versions the last."""
    found: dict[tuple[str, ...], Fact] = {}
    for fact in facts:
        key = key_of(fact)
        before = found.get(key)
        if before is None or (fact.epoch, fact.rv) >= (before.epoch, before.rv):
            found[key] = fact
    yield from found.values()
