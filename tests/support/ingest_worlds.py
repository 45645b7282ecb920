"""Small clusters that change as the API server lets them: what lists and watches of them would carry.

A world keeps the newest object of everything and hands out watch events in the order of its writes. Writes are legal ones: a
claim is taken back only when no Pod that runs names it, a DRA word is spoken only of a claim that holds something.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from hypothesis import strategies as st

from ingest.frames import RESOURCES, FrameType

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
