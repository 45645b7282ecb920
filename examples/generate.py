"""Write a large recording for benchmarks: `python examples/generate.py OUT.jsonl.zst --nodes 100 --devices 8 …`.

The load is the one a watch of a busy cluster carries: nearly all frames are Pod updates in which nothing about a device changed,
some are Leases, slices and Nodes, and a few change a device's health. The same arguments give the same frames on every machine;
memory holds the current objects and nothing else, whatever the duration.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Final

import objects
from cluster import MINUTE, SECOND, START_MS, Cluster
from objects import Object

from ingest.recording import RecordingWriter

NAMESPACE: Final = "load"
#: One event in this many may be a Lease renewal, so that they never crowd out what is measured.
LEASE_SHARE: Final = 5
#: A kubelet renews every ten seconds; more than thirty would let a Lease of forty lapse.
RENEWAL_MS: Final = 10 * SECOND
RENEWAL_MAX_MS: Final = 30 * SECOND
#: A late frame comes at most this many events after its own time.
LATE_EVENTS_MAX: Final = 50
#: Objects of a type in the first LIST, so that its line stays far below what a reader takes (16 MiB); the rest come as ADDED.
LISTED_MAX: Final = 4000
#: One device in this many may be bad at a time; then the one that has been bad longest recovers first.
BAD_SHARE: Final = 20

_MASK: Final = (1 << 64) - 1


class Dice:
    """SplitMix64: the same throws for the same seed, on every machine and Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """Throw a number from 0 to ``limit - 1``."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % limit

    def happens(self, chance: Fraction) -> bool:
        """Say yes with the given chance."""
        return self.below(chance.denominator) < chance.numerator


class Workload:
    """A Pod and what it reports: resourceID to word, under one name."""

    def __init__(self, pod: Object, reported_as: str, words: dict[str, str]) -> None:
        self.pod = pod
        self.reported_as = reported_as
        self.words = words

    def report(self) -> None:
        """Write the words into the Pod's status."""
        bad = self.reported_as.startswith("claim:")
        objects.report(self.pod, self.reported_as, self.words, "XID 79: fallen off the bus" if bad else "")


class Load:
    """The cluster, its workloads, and one event after another; making one writes the first LISTs."""

    def __init__(self, writer: RecordingWriter, options: argparse.Namespace) -> None:
        self.cluster = Cluster(writer)
        self.dice = Dice(options.seed)
        self.fault_rate: Fraction = options.fault_rate
        self.out_of_order: Fraction = options.out_of_order
        self.node_names = [f"node-{index:05d}" for index in range(options.nodes)]
        self.slices: list[Object] = []
        self.workloads: list[Workload] = []
        #: Workloads that report at least one device.
        self.reporting: list[Workload] = []
        listed = max(1, LISTED_MAX // max(options.pods_per_node, options.devices))
        self._put: Callable[[str, Object], None] = self.cluster.put
        for index, name in enumerate(self.node_names):
            if index == listed:
                self.cluster.list_all(START_MS)
                self._put = partial(self.cluster.added, START_MS)
            self._populate(name, options, claimed=index % 2 == 0)
        if len(self.node_names) <= listed:
            self.cluster.list_all(START_MS)
        self.bad: deque[tuple[Workload, str]] = deque()
        self.bad_max = max(1, options.nodes * options.devices // BAD_SHARE)
        #: ``(event number, order, object)`` of frames that come late.
        self.held: list[tuple[int, int, Object]] = []
        #: Node number and time of the renewal that is next.
        self.renewals = deque((START_MS + RENEWAL_MS, name) for name in self.node_names)

    def _populate(self, name: str, options: argparse.Namespace, *, claimed: bool) -> None:
        """Put one node and its Pods into the cluster: the first Pods hold its devices, the others none."""
        cards: int = options.devices
        holders = min(options.pods_per_node, cards)
        self._put("nodes", objects.node(name, START_MS, plugin_cards=0 if claimed else cards))
        self._put("leases", objects.lease(name, START_MS))
        if claimed:
            self.slices.append(objects.resource_slice(name, cards=cards))
            self._put("resourceslices", self.slices[-1])
        for index in range(options.pods_per_node):
            pod_name = f"{name}-work-{index}"
            if index >= holders:
                workload = Workload(objects.pod(pod_name, NAMESPACE, START_MS), "", {})
            elif claimed:
                workload = self._claiming(pod_name, name, index)
            else:
                ids = [objects.card_uuid(name, card) for card in range(index, cards, holders)]
                pod = objects.pod(pod_name, NAMESPACE, START_MS, plugin_cards=len(ids))
                workload = Workload(pod, objects.PLUGIN_RESOURCE, dict.fromkeys(ids, "Healthy"))
            objects.run_on(workload.pod, name, START_MS)
            self.workloads.append(workload)
            if workload.words:
                workload.report()
                self.reporting.append(workload)
            self._put("pods", workload.pod)

    def _claiming(self, pod_name: str, node_name: str, index: int) -> Workload:
        """Make a Pod that holds one card of a DRA node."""
        pod = objects.pod(pod_name, NAMESPACE, START_MS, claimed=True)
        claim = objects.claim(pod_name, NAMESPACE, START_MS)
        objects.allocate(claim, node_name, index, START_MS)
        objects.name_claim(pod, claim)
        self._put("resourceclaims", claim)
        resource_id = f"k8s.{objects.DRIVER}/claim={claim['metadata']['uid']}-gpu-{index}"
        return Workload(pod, "claim:gpu", {resource_id: "Healthy"})

    def event(self, number: int, at_ms: int) -> None:
        """Write the frame of one event, after the late ones that are due."""
        while self.held and self.held[0][0] <= number:
            self.cluster.late(at_ms, "pods", heapq.heappop(self.held)[2])
        if number % LEASE_SHARE == 0 and self.renewals[0][0] <= at_ms:
            name = self.renewals.popleft()[1]
            self.renewals.append((at_ms + RENEWAL_MS, name))
            self.cluster.renew_lease(at_ms, name)
        elif self.reporting and self.dice.happens(self.fault_rate):
            self._turn(number, at_ms)
        else:
            self._churn(number, at_ms)

    def _turn(self, number: int, at_ms: int) -> None:
        """Let one device turn bad, or the one that has been bad longest recover."""
        workload = self.reporting[self.dice.below(len(self.reporting))]
        resource_id = list(workload.words)[self.dice.below(len(workload.words))]
        if len(self.bad) >= self.bad_max or workload.words[resource_id] != "Healthy":
            workload, resource_id = self.bad.popleft()
            workload.words[resource_id] = "Healthy"
        else:
            # A device plugin never says Unknown (kubelet's device manager); a DRA driver's silence does.
            claimed = workload.reported_as.startswith("claim:")
            silent = claimed and self.dice.below(3) == 0
            workload.words[resource_id] = "Unknown" if silent else "Unhealthy"
            self.bad.append((workload, resource_id))
        workload.report()
        self._show(number, at_ms, workload.pod)

    def _churn(self, number: int, at_ms: int) -> None:
        """Change something that says nothing about a device: a Pod mostly, else a Node or a slice."""
        throw = self.dice.below(100)
        if throw == 0 and self.slices:
            target = self.slices[self.dice.below(len(self.slices))]
            target["metadata"]["generation"] += 1
            self.cluster.modified(at_ms, "resourceslices", target)
        elif throw <= 3:
            self.cluster.post_node(at_ms, self.node_names[self.dice.below(len(self.node_names))])
        else:
            workload = self.workloads[self.dice.below(len(self.workloads))]
            status = workload.pod["status"]["containerStatuses"][0]
            status["restartCount"] += 1
            status["lastState"] = {
                "terminated": {"exitCode": 1, "reason": "Error", "finishedAt": objects.rfc3339(at_ms)}
            }
            objects.set_pod_ready(workload.pod, at_ms, ready=throw % 2 == 0)
            if len(workload.words) > 1 and throw % 4 == 0:
                # kubelet builds the list from a Go map: another order is no news.
                first = next(iter(workload.words))
                workload.words[first] = workload.words.pop(first)
                workload.report()
            self._show(number, at_ms, workload.pod)

    def _show(self, number: int, at_ms: int, pod: Object) -> None:
        """Write a changed Pod, now or late."""
        if self.dice.happens(self.out_of_order):
            due = number + 1 + self.dice.below(LATE_EVENTS_MAX)
            heapq.heappush(self.held, (due, number, self.cluster.held_back("pods", pod)))
        else:
            self.cluster.modified(at_ms, "pods", pod)

    def run(self, *, events_per_second: int, duration_s: int) -> None:
        """Write every event, with the ticks and bookmarks between them."""
        tick_ms = START_MS + 10 * SECOND
        for number in range(events_per_second * duration_s):
            at_ms = START_MS + (number + 1) * SECOND // events_per_second
            if tick_ms <= at_ms:
                self.cluster.tick(tick_ms)
                if (tick_ms - START_MS) % MINUTE == 0:
                    self.cluster.bookmarks(tick_ms)
                tick_ms += 10 * SECOND
            self.event(number, at_ms)
        end_ms = START_MS + duration_s * SECOND
        while self.held:
            self.cluster.late(end_ms, "pods", heapq.heappop(self.held)[2])


def _arguments() -> argparse.Namespace:
    """Read the command line; what cannot be simulated is refused with the bound that it breaks."""
    parser = argparse.ArgumentParser(description="Write a large recording for benchmarks.")
    parser.add_argument("output", type=Path, metavar="OUT.jsonl.zst")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--devices", type=int, default=8, help="devices on each node")
    parser.add_argument("--pods-per-node", type=int, default=8)
    parser.add_argument("--events-per-second", type=int, default=1000)
    parser.add_argument("--duration-s", type=int, default=60)
    parser.add_argument(
        "--fault-rate",
        type=Fraction,
        default=Fraction(1, 100),
        help="share of events that change a device's health",
    )
    parser.add_argument(
        "--out-of-order", type=Fraction, default=Fraction(0), help="share of Pod frames that come late"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("nodes", "devices", "pods_per_node", "events_per_second", "duration_s"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.devices > 64:
        parser.error("--devices must be at most 64, the limit of a ResourceSlice with taints")
    for name in ("fault_rate", "out_of_order"):
        if not 0 <= getattr(options, name) <= 1:
            parser.error(f"--{name.replace('_', '-')} is a share: 0 to 1, for example 0.01 or 1/100")
    if options.nodes * LEASE_SHARE * SECOND > RENEWAL_MAX_MS * options.events_per_second:
        least = -(-options.nodes * LEASE_SHARE * SECOND // RENEWAL_MAX_MS)
        parser.error(
            f"{options.nodes} nodes need --events-per-second {least} or more, else their Leases would lapse"
        )
    return options


def main() -> None:
    """Write the recording that the command line asks for."""
    options = _arguments()
    with RecordingWriter(options.output) as writer:
        Load(writer, options).run(events_per_second=options.events_per_second, duration_s=options.duration_s)
    print(f"{options.output}: {options.output.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
