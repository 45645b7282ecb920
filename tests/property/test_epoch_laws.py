"""Laws of epochs: no ordinary history raises one, however frames repeat and servers lag; a restore that a LIST shows does (W3)."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.facts import DeviceHealthObserved, EpochChanged, Fact
from sickbay.policy import ReadingPolicy
from tests.support.ingest_watcher import newest

NAMES = ("a", "b", "c")


class Cluster:
    """The Pods of a cluster with all their versions."""

    def __init__(self) -> None:
        self.rv = 10
        #: ``(version, type, object)``; versions rise.
        self.log: list[tuple[int, FrameType, dict[str, Any]]] = []
        self._made = 0

    def write(self, name: str, health: str | None, step: int) -> None:
        """Write or, without a health, delete a Pod."""
        self.rv += step
        before = self.at(self.rv).get(name)
        if health is None:
            if before is not None:
                metadata = before["metadata"] | {"resourceVersion": str(self.rv)}
                self.log.append((self.rv, "DELETED", before | {"metadata": metadata}))
            return
        if before is None:
            self._made += 1
        uid = f"{name}-{self._made}" if before is None else before["metadata"]["uid"]
        metadata = {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": str(self.rv)}
        resources = [{"resourceID": f"GPU-{name}", "health": health}]
        statuses = [
            {
                "name": "main",
                "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}],
            }
        ]
        obj = {
            "metadata": metadata,
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": statuses},
        }
        self.log.append((self.rv, "ADDED" if before is None else "MODIFIED", obj))

    def at(self, rv: int) -> dict[str, dict[str, Any]]:
        """Return the Pods as they were at a version, by name."""
        pods: dict[str, dict[str, Any]] = {}
        for version, kind, obj in self.log:
            if version <= rv:
                pods[obj["metadata"]["name"]] = obj
                if kind == "DELETED":
                    del pods[obj["metadata"]["name"]]
        return pods


class Watcher:
    """A mirror that is fed as a reflector feeds it."""

    def __init__(self) -> None:
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.facts: list[Fact] = []
        self.at_ms = 0
        #: Up to here everything was delivered.
        self.rv = 0

    def hear(self, kind: FrameType, obj: dict[str, Any]) -> list[Fact]:
        self.at_ms += 1_000
        facts = self.mirror.apply(
            Frame(at_ms=self.at_ms, resource="pods", type=kind, object=obj, place="law")
        )
        self.facts += facts
        return facts

    def list(self, cluster: Cluster, rv: int) -> list[Fact]:
        """List a server that is at ``rv``."""
        items = list(cluster.at(rv).values())
        self.rv = rv
        return self.hear("LIST", {"metadata": {"resourceVersion": str(rv)}, "items": items})

    def watch(self, cluster: Cluster, count: int) -> None:
        """Hear of the next events of a cluster."""
        for version, kind, obj in [entry for entry in cluster.log if entry[0] > self.rv][:count]:
            self.hear(kind, obj)
            self.rv = version

    def restart(self) -> None:
        """Begin anew from the facts."""
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.mirror.recall(newest(self.facts), self.at_ms)


def write(data: st.DataObject, cluster: Cluster) -> None:
    health = data.draw(st.sampled_from(["Healthy", "Unhealthy", None]), "health")
    cluster.write(data.draw(st.sampled_from(NAMES), "pod"), health, data.draw(st.integers(1, 5), "step"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_ordinary_history_raises_an_epoch(data: st.DataObject) -> None:
    """Repeated and late frames, bookmarks, restarts, and lists of servers that lag as far behind as NotOlderThan lets them."""
    cluster, watcher = Cluster(), Watcher()
    watcher.list(cluster, cluster.rv)
    for _ in range(data.draw(st.integers(1, 25), "steps")):
        what = data.draw(
            st.sampled_from(["write", "write", "watch", "again", "list", "bookmark", "restart"]), "what"
        )
        if what == "write":
            write(data, cluster)
        elif what == "watch":
            watcher.watch(cluster, data.draw(st.integers(1, 4), "count"))
        elif what == "again":
            seen = [entry for entry in cluster.log if entry[0] <= watcher.rv]
            if seen:
                _, kind, obj = data.draw(st.sampled_from(seen), "frame")
                watcher.hear(kind, obj)
        elif what == "list":
            watcher.list(cluster, data.draw(st.integers(watcher.rv, cluster.rv), "version"))
        elif what == "bookmark":
            watcher.watch(cluster, len(cluster.log))
            watcher.rv = cluster.rv
            watcher.hear("BOOKMARK", {"metadata": {"resourceVersion": str(cluster.rv)}})
        else:
            watcher.restart()
    assert [] == [fact for fact in watcher.facts if isinstance(fact, EpochChanged)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_restore_that_outgrew_what_was_seen_is_found_by_what_went_back(data: st.DataObject) -> None:
    """The list is no older than what was seen; a Pod in it is, and then all of it counts."""
    cluster, watcher = Cluster(), Watcher()
    for name in NAMES:
        cluster.write(name, "Healthy", 1)
    watcher.list(cluster, cluster.rv)
    kept = cluster.rv
    cluster.write("a", "Unhealthy", 1)
    for _ in range(data.draw(st.integers(0, 5), "lost")):
        write(data, cluster)
    watcher.watch(cluster, len(cluster.log))
    if data.draw(st.booleans(), "restarted"):
        watcher.restart()
    # "a" is as it was before, if it was lost or not
    cluster.log = [entry for entry in cluster.log if entry[0] <= kept]
    cluster.rv = kept
    cluster.write("b", "Unhealthy", 1)
    cluster.rv = max(cluster.rv, watcher.rv) + data.draw(st.integers(0, 3), "outgrown")
    facts = watcher.list(cluster, cluster.rv)
    assert [1] == [fact.epoch for fact in facts if isinstance(fact, EpochChanged)]
    words = [fact for fact in newest(watcher.facts) if isinstance(fact, DeviceHealthObserved) and fact.live]
    assert [("GPU-a", "Healthy"), ("GPU-b", "Unhealthy"), ("GPU-c", "Healthy")] == sorted(
        (fact.device_id.rpartition("/")[2], fact.health) for fact in words
    )
    # and once is enough
    assert [] == [fact for fact in watcher.list(cluster, cluster.rv) if isinstance(fact, EpochChanged)]
