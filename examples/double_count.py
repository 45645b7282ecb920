"""The fourth recording: what a node's resources are spoken for, and everything that makes the count go wrong.

Two machines, each with two NUMA nodes; one of them has all the trouble. What must come of the story stands in README.md.
"""

from __future__ import annotations

from typing import Final

import allocatable
import objects
from allocatable import CARD_TAKES, CPU_DRIVER, GPU_DRIVER, NAMESPACE, NUMA
from cluster import MINUTE, SECOND, START_MS, Cluster, Script
from objects import Object

from ingest.recording import RecordingWriter

NODES: Final = ("mix-1", "mix-2")


class Story:
    """The two machines and what happens on the first of them; the second stays well."""

    def __init__(self, writer: RecordingWriter) -> None:
        self.cluster = Cluster(writer)
        self.script = Script()
        self.slices: dict[tuple[str, str], Object] = {}
        self.claims: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        for name in NODES:
            self._publish_node(name)
        self._run_workloads()
        self.script.at(0, self.cluster.list_all)

    def _publish_node(self, name: str) -> None:
        self.cluster.put("nodes", allocatable.node(name))
        self.cluster.put("leases", objects.lease(name, START_MS))
        cpu = allocatable.resource_slice(
            CPU_DRIVER, name, "p4w8z", 3, 1, [allocatable.cores(numa_node) for numa_node in (0, 1)]
        )
        gpu = allocatable.resource_slice(
            GPU_DRIVER, name, "k7x2q", 5, 1, [allocatable.card(name, index) for index in range(4)]
        )
        for driver, made in ((CPU_DRIVER, cpu), (GPU_DRIVER, gpu)):
            self.slices[driver, name] = made
            self.cluster.put("resourceslices", made)

    def _run_workloads(self) -> None:
        self._start_now("web-0", "mix-1", "4", "16Gi")
        for name, node_name, card in (
            ("train-0", "mix-1", 0),
            ("train-1", "mix-1", 3),
            ("train-2", "mix-2", 0),
        ):
            claim = allocatable.claim(name, "gpu", START_MS, [allocatable.ask("gpu", GPU_DRIVER)], [])
            self._start_now(
                name,
                node_name,
                "1",
                "8Gi",
                "gpu",
                claim,
                [allocatable.got_card("gpu", node_name, card)],
                CARD_TAKES,
            )
            allocatable.report(self.pods[name], card)
        for name, numa_node, cores in (("sim-0", 0, "8"), ("sim-1", 1, "4")):
            claim = allocatable.claim(name, "cores", START_MS, [allocatable.ask_cores(cores, numa_node)], [])
            got = [allocatable.got_cores(claim, "mix-1", numa_node, cores)]
            self._start_now(name, "mix-1", "500m", "2Gi", "cores", claim, got, {"cpu": cores})
        shared = allocatable.claim("pair", "cores", START_MS, [allocatable.ask_cores("6", 0)], [])
        shared["metadata"].update(name="pair-cores", uid=objects.uid_of("claim", f"{NAMESPACE}.pair-cores"))
        del shared["metadata"]["annotations"], shared["metadata"]["ownerReferences"]
        got = [allocatable.got_cores(shared, "mix-1", 0, "6")]
        self._start_now("pair-a", "mix-1", "250m", "1Gi", "cores", shared, got, {"cpu": "6"})

    def _start_now(
        self, name: str, node_name: str, cpu: str, memory: str, local: str = "", claim: Object | None = None,
        got: list[Object] | None = None, takes: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Let a Pod run before the recording begins, its claim allocated for it and counted."""
        owned = claim is not None and "ownerReferences" in claim["metadata"]
        named = claim["metadata"]["name"] if claim is not None and not owned else ""
        pod = allocatable.pod(name, START_MS, cpu, memory, local=local, claim=named)
        if claim is not None:
            allocatable.allocate(claim, node_name, START_MS, got or [], pod)
            allocatable.count(pod, (claim, takes or {}))
            allocatable.name_claim(pod, claim)
            self.claims[claim["metadata"]["name"].rpartition("-")[0] if owned else named] = claim
            self.cluster.put("resourceclaims", claim)
        objects.run_on(pod, node_name, START_MS)
        self.pods[name] = pod
        self.cluster.put("pods", pod)

    def change_pod(self, at_ms: int, name: str) -> None:
        """Show a change of a Pod."""
        self.cluster.modified(at_ms, "pods", self.pods[name])

    def change_claim(self, at_ms: int, name: str) -> None:
        """Show a change of a claim."""
        self.cluster.modified(at_ms, "resourceclaims", self.claims[name])

    # --- what happens, in order ---

    def second_pod(self, offset_ms: int) -> None:
        """A second Pod uses a claim that is allocated already: the 1.36 scheduler binds it and writes no entry."""
        pod = allocatable.pod(
            "pair-b", START_MS + offset_ms, "250m", "1Gi", local="cores", claim="pair-cores"
        )
        self.pods["pair-b"] = pod

        def reserve(at_ms: int) -> None:
            allocatable.reserve(self.claims["pair-cores"], self.pods["pair-a"], pod)
            self.change_claim(at_ms, "pair-cores")

        def bind(at_ms: int) -> None:
            allocatable.name_claim(pod, self.claims["pair-cores"])
            objects.run_on(pod, "mix-1", at_ms)
            self.change_pod(at_ms, "pair-b")

        self.script.at(offset_ms, lambda at_ms: self.cluster.added(at_ms, "pods", pod))
        self.script.at(offset_ms + SECOND, reserve)
        self.script.at(offset_ms + SECOND + 200, bind)

    def first_pod_ends(self, offset_ms: int) -> None:
        """The Pod whose status had the entry succeeds; the claim goes on for the other one."""

        def end(at_ms: int) -> None:
            objects.succeed(self.pods["pair-a"], at_ms)
            self.change_pod(at_ms, "pair-a")
            allocatable.reserve(self.claims["pair-cores"], self.pods["pair-b"])
            self.change_claim(at_ms, "pair-cores")

        self.script.at(offset_ms, end)

    def careless_controller(self, offset_ms: int, until_ms: int) -> None:
        """A controller patches Pod status: one claim twice in its own Pod, then once more in a Pod that does not use it."""
        first, second = self.claims["sim-0-cores"], self.claims["sim-1-cores"]

        def twice(at_ms: int) -> None:
            allocatable.count(self.pods["sim-0"], (first, {"cpu": "8"}), (first, {"cpu": "8"}))
            self.change_pod(at_ms, "sim-0")

        def elsewhere(at_ms: int) -> None:
            allocatable.count(self.pods["sim-1"], (first, {"cpu": "8"}), (second, {"cpu": "4"}))
            self.change_pod(at_ms, "sim-1")

        def repair(at_ms: int) -> None:
            allocatable.count(self.pods["sim-0"], (first, {"cpu": "8"}))
            allocatable.count(self.pods["sim-1"], (second, {"cpu": "4"}))
            self.change_pod(at_ms, "sim-0")
            self.change_pod(at_ms, "sim-1")

        self.script.at(offset_ms, twice)
        self.script.at(offset_ms + 10 * SECOND, elsewhere)
        self.script.at(until_ms, repair)

    def cpu_driver_restarts(self, offset_ms: int) -> None:
        """The kubelet wipes the slices of a driver that is away; 40 s later a newer driver begins at generation 1.

        For the cores of NUMA node 1 the new one counts both hardware threads.
        """

        def wipe(at_ms: int) -> None:
            self.cluster.deleted(at_ms, "resourceslices", self.slices[CPU_DRIVER, "mix-1"])

        def back(at_ms: int) -> None:
            devices = [allocatable.cores(0), allocatable.cores(1, per_core="2")]
            made = allocatable.resource_slice(CPU_DRIVER, "mix-1", "t9c3m", 1, 1, devices)
            self.slices[CPU_DRIVER, "mix-1"] = made
            self.cluster.added(at_ms, "resourceslices", made)

        self.script.at(offset_ms, wipe)
        self.script.at(offset_ms + 40 * SECOND, back)

    def gpu_cache_is_restored(self, offset_ms: int) -> None:
        """The GPU driver reads an old cache: generation 4 beside generation 5, which it deletes as unknown.

        By that cache card 2 is on NUMA node 0.
        """
        newer = self.slices[GPU_DRIVER, "mix-1"]
        cards = [allocatable.card("mix-1", index, numa_node=0 if index == 2 else None) for index in range(4)]
        older = allocatable.resource_slice(GPU_DRIVER, "mix-1", "b2n5d", 4, 1, cards)
        self.slices[GPU_DRIVER, "mix-1"] = older
        self.script.at(offset_ms, lambda at_ms: self.cluster.added(at_ms, "resourceslices", older))
        self.script.at(
            offset_ms + 5 * SECOND, lambda at_ms: self.cluster.deleted(at_ms, "resourceslices", newer)
        )

    def wide_claim(self, offset_ms: int) -> None:
        """A Pod asks for two cards on one NUMA node; by what is published it gets them."""
        both = {"cpu": "4", "memory": "8Gi"}
        pod = allocatable.pod("wide-0", START_MS + offset_ms, "1", "4Gi", local="gpu")
        requests = [allocatable.ask("left", GPU_DRIVER), allocatable.ask("right", GPU_DRIVER)]
        together = [{"matchAttribute": NUMA, "requests": ["left", "right"]}]
        claim = allocatable.claim("wide-0", "gpu", START_MS + offset_ms, requests, together)
        self.pods["wide-0"], self.claims["wide-0-gpu"] = pod, claim

        def name_claim(at_ms: int) -> None:
            allocatable.name_claim(pod, claim)
            self.change_pod(at_ms, "wide-0")

        def allocate(at_ms: int) -> None:
            results = [allocatable.got_card("left", "mix-1", 1), allocatable.got_card("right", "mix-1", 2)]
            allocatable.allocate(claim, "mix-1", at_ms, results, pod)
            self.change_claim(at_ms, "wide-0-gpu")

        def count(at_ms: int) -> None:
            allocatable.count(pod, (claim, both))
            self.change_pod(at_ms, "wide-0")

        def bind(at_ms: int) -> None:
            objects.run_on(pod, "mix-1", at_ms)
            allocatable.report(pod, 1, 2)
            self.change_pod(at_ms, "wide-0")

        self.script.at(offset_ms, lambda at_ms: self.cluster.added(at_ms, "pods", pod))
        self.script.at(offset_ms + 300, lambda at_ms: self.cluster.added(at_ms, "resourceclaims", claim))
        self.script.at(offset_ms + 400, name_claim)
        self.script.at(offset_ms + SECOND, allocate)
        self.script.at(offset_ms + SECOND + 200, count)
        self.script.at(offset_ms + SECOND + 400, bind)

    def gpu_driver_corrects_itself(self, offset_ms: int) -> None:
        """Generation 6 comes in two slices, the second one and a half minutes late: card 2 is on NUMA node 1 after all."""
        older = self.slices[GPU_DRIVER, "mix-1"]
        cards = [allocatable.card("mix-1", index) for index in range(4)]
        halves = [
            allocatable.resource_slice(GPU_DRIVER, "mix-1", "g6s0a", 6, 2, cards[:2]), allocatable.resource_slice(GPU_DRIVER, "mix-1", "g6s1h", 6, 2, cards[2:]),
        ]  # fmt: skip
        late_ms = offset_ms + 90 * SECOND
        self.script.at(offset_ms, lambda at_ms: self.cluster.added(at_ms, "resourceslices", halves[0]))
        self.script.at(late_ms, lambda at_ms: self.cluster.added(at_ms, "resourceslices", halves[1]))
        self.script.at(late_ms + SECOND, lambda at_ms: self.cluster.deleted(at_ms, "resourceslices", older))


def double_count(writer: RecordingWriter) -> None:
    """A claim that the scheduler skips, one that is written twice, and two drivers that lose their place."""
    story = Story(writer)
    story.second_pod(3 * MINUTE)
    story.first_pod_ends(5 * MINUTE)
    story.careless_controller(15 * MINUTE, 20 * MINUTE)
    story.cpu_driver_restarts(25 * MINUTE)
    story.gpu_cache_is_restored(32 * MINUTE)
    story.wide_claim(36 * MINUTE)
    story.gpu_driver_corrects_itself(40 * MINUTE)
    story.script.background(story.cluster, end_ms=50 * MINUTE, busy_ms=50 * MINUTE)
    story.script.run()
