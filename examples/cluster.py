"""A small cluster whose every change is one watch frame, and a script that makes changes happen at set times.

It keeps the API server's promises: each resource type counts its own resourceVersions, a LIST names the newest one, a kubelet
renews its Lease every ten seconds and posts its Node every five minutes. What a test of the watch needs broken (a late frame, a
lost deletion) is written on purpose by name.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import count
from typing import Final

import objects
from objects import Object

from ingest.frames import FrameType
from ingest.recording import RecordingWriter

#: 2026-07-01T08:00:00Z, when every example begins.
START_MS: Final = 1_782_892_800_000
SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

#: Resource type to the apiVersion and kind of its objects.
KINDS: Final = {
    "nodes": ("v1", "Node"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "pods": ("v1", "Pod"),
}
#: The first resourceVersion of each type, far apart because they are separate clocks.
_FIRST_VERSIONS: Final = {
    "nodes": 41_000,
    "leases": 905_000,
    "resourceslices": 2_300,
    "resourceclaims": 7_700,
    "pods": 88_000,
}


def key_of(target: Object) -> str:
    """Name an object inside its resource type."""
    return f"{target['metadata'].get('namespace', '')}/{target['metadata']['name']}"


class Cluster:
    """Current objects by resource type, their version clocks, and the recording that every change goes to."""

    def __init__(self, writer: RecordingWriter) -> None:
        self._writer = writer
        self._newest_ms = START_MS
        self._versions = dict(_FIRST_VERSIONS)
        self.objects: dict[str, dict[str, Object]] = {resource: {} for resource in KINDS}
        #: Nodes whose kubelet is not heard of.
        self.silent: set[str] = set()

    def put(self, resource: str, target: Object) -> None:
        """Let an object exist without a frame: before the first LIST, or while the watch is blind."""
        self._versions[resource] += 1
        target["metadata"]["resourceVersion"] = str(self._versions[resource])
        self.objects[resource][key_of(target)] = target

    def drop(self, resource: str, target: Object) -> None:
        """Let an object vanish without a frame: a deletion that the watch missed."""
        self._versions[resource] += 1
        del self.objects[resource][key_of(target)]

    def added(self, at_ms: int, resource: str, target: Object) -> None:
        """Create an object."""
        self.put(resource, target)
        self._write(at_ms, resource, "ADDED", target)

    def modified(self, at_ms: int, resource: str, target: Object) -> None:
        """Show a change that the caller has made to an object."""
        self.put(resource, target)
        self._write(at_ms, resource, "MODIFIED", target)

    def deleted(self, at_ms: int, resource: str, target: Object) -> None:
        """Delete an object; the frame carries its last state under the version of the deletion."""
        self.drop(resource, target)
        target["metadata"]["resourceVersion"] = str(self._versions[resource])
        self._write(at_ms, resource, "DELETED", target)

    def held_back(self, resource: str, target: Object) -> Object:
        """Version a change that the caller has made and keep its frame; ``late`` writes it."""
        self.put(resource, target)
        return deepcopy(target)

    def late(self, at_ms: int, resource: str, target: Object) -> None:
        """Write a frame that was held back, under the version it got then."""
        self._write(at_ms, resource, "MODIFIED", target)

    def repeat_added(self, at_ms: int, resource: str) -> None:
        """Send every known object again as ADDED, unchanged, as a reconnected watch does."""
        for target in self.objects[resource].values():
            self._write(at_ms, resource, "ADDED", target)

    def expire(self, at_ms: int, resource: str) -> None:
        """Answer the watch with 410: the version it wants to go on from is no longer kept."""
        newest = self._versions[resource]
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": f"too old resource version: {newest - 40} ({newest})",
            "reason": "Expired",
            "code": 410,
        }
        self._write(at_ms, resource, "ERROR", status)

    def list_all(self, at_ms: int, resources: Iterable[str] = tuple(KINDS)) -> None:
        """Write a LIST of each resource type."""
        for resource in resources:
            api_version, kind = KINDS[resource]
            items = list(self.objects[resource].values())
            answer = objects.listing(api_version, kind, self._versions[resource], items)
            self._write(at_ms, resource, "LIST", answer)

    def bookmarks(self, at_ms: int) -> None:
        """Write a BOOKMARK of each resource type."""
        for resource, (api_version, kind) in KINDS.items():
            mark = {
                "kind": kind,
                "apiVersion": api_version,
                "metadata": {"resourceVersion": str(self._versions[resource])},
            }
            self._write(at_ms, resource, "BOOKMARK", mark)

    def tick(self, at_ms: int) -> None:
        """Let time pass."""
        self._write(at_ms, "", "TICK", None)

    def renew_lease(self, at_ms: int, name: str) -> None:
        """Let a kubelet that is heard of renew its Lease."""
        if name not in self.silent:
            target = self.objects["leases"][f"kube-node-lease/{name}"]
            target["spec"]["renewTime"] = objects.micro_time(at_ms, 137)
            self.modified(at_ms, "leases", target)

    def post_node(self, at_ms: int, name: str) -> None:
        """Let a kubelet that is heard of post its unchanged Node with a new heartbeat."""
        if name not in self.silent:
            target = self.objects["nodes"][f"/{name}"]
            target["status"]["conditions"][0]["lastHeartbeatTime"] = objects.rfc3339(at_ms)
            self.modified(at_ms, "nodes", target)

    def _write(self, at_ms: int, resource: str, frame_type: FrameType, target: Object | None) -> None:
        if at_ms < self._newest_ms:
            raise ValueError(
                f"{frame_type} {resource} at {at_ms} ms comes after a frame of {self._newest_ms} ms"
            )
        self._newest_ms = at_ms
        self._writer.write(at_ms, resource, frame_type, target)


class Script:
    """Actions at times after ``START_MS``; those of one moment run in the order in which they were written down."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = count()

    def at(self, offset_ms: int, action: Callable[[int], None]) -> None:
        """Do ``action`` once; it is called with the time in ms since the Unix epoch."""
        self.then(START_MS + offset_ms, action)

    def then(self, at_ms: int, action: Callable[[int], None]) -> None:
        """Do ``action`` at a time since the Unix epoch: how an action goes on later."""
        heapq.heappush(self._steps, (at_ms, next(self._order), action))

    def every(self, period_ms: int, action: Callable[[int], None], *, first_ms: int, end_ms: int) -> None:
        """Do ``action`` from ``first_ms`` on, before ``end_ms``."""
        for offset_ms in range(first_ms, end_ms, period_ms):
            self.at(offset_ms, action)

    def background(self, cluster: Cluster, *, end_ms: int, busy_ms: int) -> None:
        """Let kubelets, bookmarks and time go on until ``end_ms``; ticks come every 10 s, and every minute after ``busy_ms``."""
        for index, key in enumerate(cluster.objects["nodes"]):
            name = key.removeprefix("/")
            phase_ms = 2 * SECOND * index + 250

            def renew(at_ms: int, name: str = name) -> None:
                cluster.renew_lease(at_ms, name)

            def post(at_ms: int, name: str = name) -> None:
                cluster.post_node(at_ms, name)

            self.every(10 * SECOND, renew, first_ms=phase_ms + 2 * SECOND, end_ms=end_ms)
            self.every(5 * MINUTE, post, first_ms=phase_ms + MINUTE, end_ms=end_ms)
        self.every(MINUTE, cluster.bookmarks, first_ms=50 * SECOND, end_ms=end_ms)
        self.every(10 * SECOND, cluster.tick, first_ms=10 * SECOND, end_ms=busy_ms)
        self.every(MINUTE, cluster.tick, first_ms=busy_ms, end_ms=end_ms + 1)

    def run(self) -> None:
        """Do everything, in order of time."""
        while self._steps:
            at_ms, _, action = heapq.heappop(self._steps)
            action(at_ms)
