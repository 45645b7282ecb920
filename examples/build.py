"""Build the shipped recordings: `python examples/build.py [--output FOLDER]`.

Three incidents on one cluster of four machines with eight cards each, and a fourth on machines of its own
(``double_count.py``). The same bytes come out at every run (before compression), and a test holds the shipped files to that.
What each recording must lead to stands in README.md beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import objects
from cluster import HOUR, MINUTE, SECOND, START_MS, Cluster, Script
from double_count import double_count
from objects import Object

from ingest.recording import RecordingWriter

#: Cards of DRA nodes, and the job whose Pods hold cards 0 to 5 of them; cards 6 and 7 are free.
DRA_NODES: Final = {"gpu-a1": "chat", "gpu-a2": "search"}
#: Device-plugin nodes, and the job whose four Pods hold two cards each.
PLUGIN_NODES: Final = {"gpu-b1": "render", "gpu-b2": "simulate"}
NAMESPACE: Final = "ml"

#: The workload on gpu-a1/gpu-3 can be moved: it writes checkpoints, and needs its card whole.
MOVABLE: Final = {"sickbay.dev/ability": "checkpoint", "sickbay.dev/topology": "whole"}


def _populate(cluster: Cluster) -> None:
    """Put four nodes and their workloads into the cluster; all of it is healthy."""
    for name in DRA_NODES:
        cluster.put("nodes", objects.node(name, START_MS))
        cluster.put("resourceslices", objects.resource_slice(name))
    for name in PLUGIN_NODES:
        cluster.put("nodes", objects.node(name, START_MS, plugin_cards=8))
    for name in (*DRA_NODES, *PLUGIN_NODES):
        cluster.put("leases", objects.lease(name, START_MS))
    for name, job in DRA_NODES.items():
        for index in range(6):
            movable = (name, index) == ("gpu-a1", 3)
            pod_name = "finetune-0" if movable else f"{job}-{index}"
            workload = objects.pod(
                pod_name, NAMESPACE, START_MS, claimed=True, annotations=MOVABLE if movable else None
            )
            claim = objects.claim(pod_name, NAMESPACE, START_MS)
            objects.allocate(claim, name, index, START_MS)
            objects.name_claim(workload, claim)
            objects.run_on(workload, name, START_MS)
            _report_claim(workload, claim, "Healthy")
            cluster.put("resourceclaims", claim)
            cluster.put("pods", workload)
    for name, job in PLUGIN_NODES.items():
        for index in range(4):
            workload = objects.pod(f"{job}-{index}", NAMESPACE, START_MS, plugin_cards=2)
            objects.run_on(workload, name, START_MS)
            _report_plugin(workload, name, index, "Healthy", "Healthy")
            cluster.put("pods", workload)


def _report_claim(workload: Object, claim: Object, word: str, message: str = "") -> None:
    """Report one card of a claim under the id that the driver's CDI file gives it."""
    device = claim["status"]["allocation"]["devices"]["results"][0]["device"]
    resource_id = f"k8s.{objects.DRIVER}/claim={claim['metadata']['uid']}-{device}"
    objects.report(workload, "claim:gpu", {resource_id: word}, message)


def _report_plugin(workload: Object, node_name: str, index: int, *words: str) -> None:
    """Report the two cards of the ``index``-th Pod of a device-plugin node."""
    ids = [objects.card_uuid(node_name, 2 * index + offset) for offset in range(2)]
    objects.report(workload, objects.PLUGIN_RESOURCE, dict(zip(ids, words, strict=True)))


class Stage:
    """One recording in the making: a populated cluster and the script of what happens to it."""

    def __init__(self, writer: RecordingWriter) -> None:
        self.cluster = Cluster(writer)
        self.script = Script()
        _populate(self.cluster)
        self.script.at(0, self.cluster.list_all)

    def pod(self, name: str) -> Object:
        """Find a Pod."""
        return self.cluster.objects["pods"][f"{NAMESPACE}/{name}"]

    def claim_of(self, name: str) -> Object:
        """Find the claim of a Pod."""
        claim_name = self.pod(name)["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return self.cluster.objects["resourceclaims"][f"{NAMESPACE}/{claim_name}"]

    def claim_word(self, offset_ms: int, name: str, word: str, message: str = "") -> None:
        """At ``offset_ms`` let the Pod ``name`` report ``word`` for its claimed card."""

        def act(at_ms: int) -> None:
            _report_claim(self.pod(name), self.claim_of(name), word, message)
            self.cluster.modified(at_ms, "pods", self.pod(name))

        self.script.at(offset_ms, act)

    def plugin_words(self, offset_ms: int, node_name: str, index: int, *words: str) -> None:
        """At ``offset_ms`` let the ``index``-th Pod of a device-plugin node report its two cards."""

        def act(at_ms: int) -> None:
            workload = self.pod(f"{PLUGIN_NODES[node_name]}-{index}")
            _report_plugin(workload, node_name, index, *words)
            self.cluster.modified(at_ms, "pods", workload)

        self.script.at(offset_ms, act)

    def taint(self, offset_ms: int, node_name: str, index: int, xid: str) -> None:
        """At ``offset_ms`` let the driver publish its slice with or without a taint for ``xid``."""

        def act(at_ms: int) -> None:
            pool = next(
                slice_object
                for slice_object in self.cluster.objects["resourceslices"].values()
                if slice_object["spec"]["nodeName"] == node_name
            )
            objects.set_taint(pool, index, xid=xid, at_ms=at_ms)
            self.cluster.modified(at_ms, "resourceslices", pool)

        self.script.at(offset_ms, act)

    def allocatable(self, offset_ms: int, node_name: str, amount: int) -> None:
        """At ``offset_ms`` let kubelet post how many plugin cards it can still give."""

        def act(at_ms: int) -> None:
            target = self.cluster.objects["nodes"][f"/{node_name}"]
            target["status"]["allocatable"][objects.PLUGIN_RESOURCE] = str(amount)
            self.cluster.modified(at_ms, "nodes", target)

        self.script.at(offset_ms, act)

    def readiness(self, offset_ms: int, node_name: str, *, ready: bool) -> None:
        """At ``offset_ms`` let the node controller write what it thinks of a device-plugin node, and of its Pods."""

        def judge_node(at_ms: int) -> None:
            target = self.cluster.objects["nodes"][f"/{node_name}"]
            objects.set_ready(target, at_ms, ready=ready)
            self.cluster.modified(at_ms, "nodes", target)

        def judge_pod(at_ms: int, name: str) -> None:
            objects.set_pod_ready(self.pod(name), at_ms, ready=ready)
            self.cluster.modified(at_ms, "pods", self.pod(name))

        self.script.at(offset_ms, judge_node)
        for index in range(4):
            name = f"{PLUGIN_NODES[node_name]}-{index}"
            self.script.at(offset_ms + 100 * (index + 1), partial(judge_pod, name=name))

    def end_pod(self, offset_ms: int, name: str) -> None:
        """From ``offset_ms`` on delete a Pod that holds a claim: asked, done 20 s later, gone 25 s later with its claim."""

        def ask(at_ms: int) -> None:
            metadata = self.pod(name)["metadata"]
            metadata.update(
                deletionTimestamp=objects.rfc3339(at_ms + 30 * SECOND), deletionGracePeriodSeconds=30
            )
            self.cluster.modified(at_ms, "pods", self.pod(name))

        def done(at_ms: int) -> None:
            objects.succeed(self.pod(name), at_ms)
            self.cluster.modified(at_ms, "pods", self.pod(name))

        def gone(at_ms: int) -> None:
            claim = self.claim_of(name)
            self.cluster.deleted(at_ms, "pods", self.pod(name))
            self.end_claim(at_ms + 200, claim)

        self.script.at(offset_ms, ask)
        self.script.at(offset_ms + 20 * SECOND, done)
        self.script.at(offset_ms + 25 * SECOND, gone)

    def end_claim(self, at_ms: int, claim: Object) -> None:
        """From ``at_ms`` on give back and delete a claim whose Pod is gone."""

        def deallocate(at_ms: int) -> None:
            claim["status"] = {}
            self.cluster.modified(at_ms, "resourceclaims", claim)

        self.script.then(at_ms, deallocate)
        self.script.then(at_ms + 200, lambda at_ms: self.cluster.deleted(at_ms, "resourceclaims", claim))

    def start_pod(self, offset_ms: int, name: str, node_name: str, index: int) -> None:
        """From ``offset_ms`` on start a Pod on a free card, step by step as the control plane and kubelet do; Healthy at +8 s."""
        workload = objects.pod(name, NAMESPACE, START_MS + offset_ms, claimed=True)
        claim = objects.claim(name, NAMESPACE, START_MS + offset_ms)

        def name_claim(at_ms: int) -> None:
            objects.name_claim(workload, claim)
            self.cluster.modified(at_ms, "pods", workload)

        def allocate(at_ms: int) -> None:
            objects.allocate(claim, node_name, index, at_ms)
            self.cluster.modified(at_ms, "resourceclaims", claim)

        def run(at_ms: int) -> None:
            objects.run_on(workload, node_name, at_ms)
            self.cluster.modified(at_ms, "pods", workload)

        self.script.at(offset_ms, lambda at_ms: self.cluster.added(at_ms, "pods", workload))
        self.script.at(offset_ms + 300, lambda at_ms: self.cluster.added(at_ms, "resourceclaims", claim))
        self.script.at(offset_ms + 400, name_claim)
        self.script.at(offset_ms + SECOND, allocate)
        self.script.at(offset_ms + 6 * SECOND, run)
        self.claim_word(offset_ms + 8 * SECOND, name, "Healthy")

    def run(self, *, end_ms: int, busy_ms: int) -> None:
        """Let it all happen."""
        self.script.background(self.cluster, end_ms=end_ms, busy_ms=busy_ms)
        self.script.run()


def one_card(stage: Stage) -> None:
    """One DRA card fails, is reset, and comes back by hold and observation; a neighbour falls silent for four minutes."""
    stage.claim_word(5 * MINUTE, "finetune-0", "Unhealthy", "XID 48: double bit ECC error, 1 since boot")
    stage.taint(5 * MINUTE + 2 * SECOND, "gpu-a1", 3, "48")
    stage.claim_word(
        5 * MINUTE + 30 * SECOND, "finetune-0", "Unhealthy", "XID 48: double bit ECC error, 2 since boot"
    )
    stage.end_pod(7 * MINUTE, "finetune-0")
    stage.taint(10 * MINUTE, "gpu-a1", 3, "")
    stage.start_pod(12 * MINUTE, "finetune-1", "gpu-a1", 3)
    stage.claim_word(190 * MINUTE, "search-4", "Unknown")
    stage.claim_word(194 * MINUTE, "search-4", "Healthy")
    stage.run(end_ms=4 * HOUR, busy_ms=20 * MINUTE)


def node_level(stage: Stage) -> None:
    """A device plugin restarts, later a machine is cut off for three and a half minutes; no card is at fault."""
    for offset_ms, amount, word in ((5 * MINUTE, 0, "Unhealthy"), (5 * MINUTE + 40 * SECOND, 8, "Healthy")):
        stage.allocatable(offset_ms, "gpu-b1", amount)
        for index in range(4):
            stage.plugin_words(offset_ms + SECOND + 600 * index, "gpu-b1", index, word, word)

    stage.script.at(15 * MINUTE, lambda _: stage.cluster.silent.add("gpu-b2"))
    stage.readiness(15 * MINUTE + 50 * SECOND, "gpu-b2", ready=False)
    stage.script.at(18 * MINUTE + 30 * SECOND, lambda _: stage.cluster.silent.discard("gpu-b2"))
    stage.readiness(18 * MINUTE + 45 * SECOND, "gpu-b2", ready=True)
    stage.run(end_ms=40 * MINUTE, busy_ms=40 * MINUTE)


def flapping(stage: Stage) -> None:
    """A card that fails three times, a card that two endpoints report in turns, and a watch that does what watches do."""
    for minute, word in ((5, "Unhealthy"), (6, "Healthy"), (12, "Unhealthy"), (13, "Healthy")):
        stage.plugin_words(minute * MINUTE, "gpu-b1", 0, word, "Healthy")
        stage.allocatable(minute * MINUTE + 3 * SECOND, "gpu-b1", 8 if word == "Healthy" else 7)

    late: list[Object] = []

    def hold_back(_: int) -> None:
        workload = stage.pod("render-0")
        _report_plugin(workload, "gpu-b1", 0, "Unhealthy", "Healthy")
        late.append(stage.cluster.held_back("pods", workload))

    stage.script.at(8 * MINUTE, hold_back)
    stage.plugin_words(9 * MINUTE + 30 * SECOND, "gpu-b1", 0, "Healthy", "Healthy")
    stage.script.at(9 * MINUTE + 31 * SECOND, lambda at_ms: stage.cluster.late(at_ms, "pods", late.pop()))

    for change in range(20):
        word = "Healthy" if change % 2 else "Unknown"
        stage.claim_word(20 * MINUTE + 500 * change, "chat-1", word)

    stage.script.at(25 * MINUTE, lambda at_ms: stage.cluster.repeat_added(at_ms, "pods"))

    def lose_deletion(at_ms: int) -> None:
        claim = stage.claim_of("search-5")
        stage.cluster.drop("pods", stage.pod("search-5"))
        stage.end_claim(at_ms + 200, claim)

    stage.script.at(29 * MINUTE + 30 * SECOND, lose_deletion)
    stage.script.at(30 * MINUTE, lambda at_ms: stage.cluster.expire(at_ms, "pods"))
    stage.script.at(30 * MINUTE + 2 * SECOND, lambda at_ms: stage.cluster.list_all(at_ms, ("pods",)))
    stage.run(end_ms=3 * HOUR, busy_ms=35 * MINUTE)


def _staged(incident: Callable[[Stage], None]) -> Callable[[RecordingWriter], None]:
    return lambda writer: incident(Stage(writer))


SCENARIOS: Final[dict[str, Callable[[RecordingWriter], None]]] = {
    "one-card": _staged(one_card),
    "node-level": _staged(node_level),
    "flapping": _staged(flapping),
    "double-count": double_count,
}


def build(folder: Path) -> list[Path]:
    """Write every recording into ``folder`` and return their paths."""
    paths = []
    for name, scenario in SCENARIOS.items():
        path = folder / f"{name}.jsonl.zst"
        with RecordingWriter(path) as writer:
            scenario(writer)
        paths.append(path)
    return paths


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Build the shipped recordings.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    for path in build(parser.parse_args().output):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
