"""Clusters drawn from a seed, whose Pods the real kube-scheduler places while Sickbay's ledger says beforehand what it will do.

For each Pod the ledger is asked, node by node, what would happen if it were bound there: which resources would be short, or
that no device is left. The scheduler is the judge: the Pod must be bound to a node that fits, or stay pending with exactly
those reasons; what the scheduler then wrote into its status must be what follows from slices and claims.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

from cluster_watch import Observer
from control_plane import ApiError, ControlPlane
from facts_of import tick
from judged_draws import Ask, Kind, capacity_name, claim_spec, draw_kinds, draw_pod
from judged_foresight import NAMESPACE, SHARED, Foresight
from kubelets import Kubelet, mapping

from sickbay.policy import LedgerPolicy, Policy

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
_SHARED = re.compile(
    r"node allocatable resource claim \S+ (is already used by another pod|has a mapped device and cannot be shared across pods)"
)
#: 1.36 looks a device up by pool and name and not by driver; where it finds the other one, it counts that.
DRIVER_IGNORED = "driver_ignored"
#: Where the causes that Sickbay names come from.
UPSTREAM = {
    DRIVER_IGNORED: "kubernetes/kubernetes#140460, mended in 1.37",
    "mapping_changed": "KEP-5517: the scheduler does not count again what is bound",
    "allocated_before_counting": "KEP-5517 in 1.36: a claim that has its allocation is skipped",
}
_SHORT = re.compile(r"^\d+/\d+ nodes are available: (.*)$")
_REASON = re.compile(r"(\d+) ([^,]+)")
#: Those that may explain a difference, by version.
UPSTREAM_OF = {"1.36": set(UPSTREAM), "1.37": {"mapping_changed"}}
WAIT_S = 20
#: A scheduler that was told of a device a moment ago may not know it yet, and looks again within its back-off.
SETTLE_S = 12
#: Decisions on one cluster.
PER_CLUSTER = 40


def policy_of(version: str) -> Policy:
    return Policy(version=version, ledger=LedgerPolicy(emulate=version))  # type: ignore[arg-type]


@dataclass
class Verdict:
    """One decision of the scheduler beside what Sickbay said before it."""

    seed: int
    step: int
    pod: str
    outcome: str
    agreed: bool
    #: Named causes of differences that are known.
    named: tuple[str, ...] = ()
    detail: str = ""


@dataclass
class Report:
    """All decisions of one version."""

    version: str
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def unexplained(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.agreed and not verdict.named]

    def counts(self) -> dict[str, Any]:
        """Return decisions, how many agreed, how many are explained by which name, how many are not explained."""
        named = Counter(name for verdict in self.verdicts if not verdict.agreed for name in verdict.named)
        return {
            "version": self.version,
            "decisions": len(self.verdicts),
            "outcomes": dict(Counter(verdict.outcome for verdict in self.verdicts)),
            "agreed": sum(verdict.agreed for verdict in self.verdicts),
            "explained": {
                name: {"decisions": count, "known as": UPSTREAM[name]} for name, count in named.items()
            },
            "unexplained": len(self.unexplained),
            "seeds": sorted({verdict.seed for verdict in self.verdicts}),
        }


class Scenario:
    """One cluster from one seed, and the steps of its history."""

    def __init__(self, plane: ControlPlane, observer: Observer, version: str, seed: int) -> None:
        self.plane, self.api, self.observer = plane, plane.admin, observer
        self.version, self.seed = version, seed
        self._random = Random(seed)  # noqa: S311 - drawn again from its seed
        self.nodes: dict[str, Kubelet] = {}
        self.kinds: dict[str, Kind] = {}
        self._pods: dict[str, Any] = {}
        #: Claims that stay: name to what is asked for, and to the object as it was seen last.
        self._asks: dict[str, Ask] = {}
        self._standing: dict[str, Any] = {}
        self._number = 0

    # --- the cluster ---

    def build(self) -> None:
        """Make nodes, classes and slices."""
        draw = self._random
        with suppress(ApiError):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            self.api.create(
                "/apis/node.k8s.io/v1/runtimeclasses",
                {
                    "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandboxed"},
                    "handler": "sandboxed", "overhead": {"podFixed": {"cpu": "150m", "memory": "96Mi"}},
                },
            )  # fmt: skip
        for number in range(draw.randint(1, 3)):
            name = f"node-{self.seed}-{number}"
            cpu = draw.choice(["7", "11500m", "16", "24"])
            kubelet = Kubelet(self.api, name).register(
                {
                    "cpu": cpu,
                    "memory": draw.choice(["8Gi", "12345678k", "32Gi"]),
                    "ephemeral-storage": draw.choice(["20Gi", "50G"]),
                    "hugepages-2Mi": draw.choice(["0", "64Mi", "1Gi"]),
                }
            )
            self.nodes[name] = kubelet
        for kind in draw_kinds(draw, self.version):
            self.kinds[kind.name] = kind
            self._ensure_class(kind)
        for kubelet in self.nodes.values():
            for driver in sorted({kind.driver for kind in self.kinds.values()}):
                if draw.random() < 0.85:
                    self._publish(kubelet, driver)
        for kind_name in draw.sample(sorted(self.kinds), 2):
            kind = self.kinds[kind_name]
            ask = Ask(
                f"standing-{kind_name}", kind_name, 1, "2" if kind.shared else None, capacity_name(kind),
                f"standing-{self.seed}-{kind_name}",
            )  # fmt: skip
            made = self.api.create(
                CLAIMS,
                {
                    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": ask.standing},
                    "spec": claim_spec(ask),
                },
            )  # fmt: skip
            self.observer.has_seen("resourceclaims", made)
            self._asks[ask.standing], self._standing[ask.standing] = ask, made
        self._settle()

    def _publish(self, kubelet: Kubelet, driver: str) -> None:
        kinds = [kind for kind in self.kinds.values() if kind.driver == driver]
        devices = [device for kind in kinds for device in kind.devices]
        counters = [counter for kind in kinds for counter in kind.counters]
        for published in kubelet.publish(driver, devices, counters=counters):
            self.observer.has_seen("resourceslices", published)

    def _ensure_class(self, kind: Kind) -> None:
        expression = (
            f'device.driver == "{kind.driver}" && device.attributes["{kind.driver}"].kind == "{kind.name}"'
        )
        with suppress(ApiError):
            self.api.create(
                f"{DRA}/deviceclasses",
                {
                    "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": kind.name},
                    "spec": {"selectors": [{"cel": {"expression": expression}}]},
                },
            )  # fmt: skip

    def _settle(self) -> None:
        for kubelet in self.nodes.values():
            self.observer.has_seen("nodes", self.api.get(kubelet.path))
        # the scheduler has caches of its own, for each resource
        time.sleep(0.15)

    def clear(self) -> None:
        """Take everything away."""
        for pod in list(self._pods.values()):
            self._remove(pod)
        for name in self._standing:
            with suppress(ApiError):
                self.api.delete(f"{CLAIMS}/{name}")
        for kubelet in self.nodes.values():
            for driver in {kind.driver for kind in self.kinds.values()}:
                kubelet.withdraw(driver)
            kubelet.leave()

    # --- steps ---

    def play(self, decisions: int) -> Iterator[Verdict]:
        """Make history until so many decisions are judged."""
        judged = 0
        step = 0
        while judged < decisions:
            step += 1
            roll = self._random.random()
            bound = list(self._pods.values())
            if bound and roll < 0.25:
                self._remove(self._random.choice(bound))
            elif bound and roll < 0.40:
                self._finish(self._random.choice(bound))
            elif roll < 0.44:
                self._republish()
            else:
                yield self._decide(step)
                judged += 1

    def _republish(self) -> None:
        """A driver publishes the same devices as a new generation, sometimes with another mapping."""
        kubelet, heard_s = self._random.choice(list(self.nodes.values())), 0.15
        driver = self._random.choice(sorted({kind.driver for kind in self.kinds.values()}))
        if driver == "gpu.example.com" and self._random.random() < 0.5:
            changed = mapping(self.version, per_device={"cpu": self._random.choice(["1", "2", "3"])})
            gpu = self.kinds["gpu"]
            gpu.devices = [device | changed for device in gpu.devices]
            # with the old mapping the scheduler would bind and count, and not come back to it
            heard_s = 1.0
            # the same everywhere, or the next Pod would find devices of one kind that differ
            for other in self.nodes.values():
                if other is not kubelet:
                    self._publish(other, driver)
        self._publish(kubelet, driver)
        time.sleep(heard_s)

    def _finish(self, pod: Any) -> None:
        kubelet, claims = self.nodes[pod["spec"]["nodeName"]], list(self._claims_of(pod))
        self.observer.has_seen("pods", kubelet.finish(pod, self._random.choice(["Succeeded", "Failed"])))
        self._await_claims_let_go(pod, claims)
        self._pods.pop(pod["metadata"]["uid"])
        self.api.delete(f"{PODS}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        self._await_gone(pod)

    def _remove(self, pod: Any) -> None:
        self._pods.pop(pod["metadata"]["uid"], None)
        claims = list(self._claims_of(pod))
        with suppress(ApiError):
            self.api.delete(f"{PODS}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        self._await_claims_let_go(pod, claims)
        self._await_gone(pod)

    def _await_gone(self, pod: Any) -> None:
        uid = pod["metadata"]["uid"]
        self.observer.until(lambda: uid in self.observer.deleted, f"{pod['metadata']['name']} is still heard")

    def _await_claims_let_go(self, pod: Any, claims: list[tuple[str, Any]]) -> None:
        """Wait until the claim controller has freed what the Pod had; what is freed the scheduler must have heard of too.

        The claims are as they were while the Pod held them: one that goes with it must be heard to be gone.
        """
        end = time.monotonic() + WAIT_S
        for name, claim in claims:
            while time.monotonic() < end:
                try:
                    found = self.api.get(f"{CLAIMS}/{name}")
                except ApiError:
                    if claim is not None:
                        uid = claim["metadata"]["uid"]
                        self.observer.until(
                            lambda uid=uid: uid in self.observer.deleted, f"{name} is still heard"
                        )
                    break
                consumers = found.get("status", {}).get("reservedFor", ())
                if not any(c["uid"] == pod["metadata"]["uid"] for c in consumers) and (
                    consumers or "allocation" not in found.get("status", {})
                ):
                    self.observer.has_seen("resourceclaims", found)
                    break
                time.sleep(0.01)
            else:
                raise AssertionError(f"{name} is still held by {pod['metadata']['name']}")

    def _claims_of(self, pod: Any) -> Iterator[tuple[str, Any]]:
        """Yield name and object of each claim of a Pod, ``None`` where it is gone."""
        statuses = {
            each["name"]: each.get("resourceClaimName")
            for each in pod.get("status", {}).get("resourceClaimStatuses", ())
        }
        for each in pod["spec"].get("resourceClaims", ()):
            name = each.get("resourceClaimName") or statuses.get(each["name"])
            if name:
                try:
                    yield name, self.api.get(f"{CLAIMS}/{name}")
                except ApiError:
                    yield name, None

    # --- one decision ---

    def _decide(self, step: int) -> Verdict:
        self._number += 1
        name = f"pod-{self.seed}-{self._number}"
        pod, asked = draw_pod(self._random, name, self.kinds, self._asks)
        for ask in asked:
            if ask.standing:
                # as it is before the scheduler hears of the Pod
                self._standing[ask.standing] = self.api.get(f"{CLAIMS}/{ask.standing}")
            else:
                self.api.create(
                    f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates",
                    {
                        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                        "metadata": {"name": f"{name}-{ask.name}"}, "spec": {"spec": claim_spec(ask)},
                    },
                )  # fmt: skip
        self.observer.catch_up()
        made = self.api.create(PODS, pod)
        foresight = Foresight(self.observer.world, self.kinds, self._standing)
        expected = {node: foresight.foresee(node, made, asked) for node in self.nodes}
        found, reasons = self._outcome(made, expected)
        node = found["spec"].get("nodeName", "")
        outcome = "bound" if node else "pending"
        foreseen = _is_that(node, reasons, list(expected.values()), expected.get(node))
        named = () if foreseen else self._ignored(foresight, made, asked, node, reasons)
        detail = "" if foreseen else f"{outcome} {node}{dict(reasons)}, expected {expected}"
        problems = ""
        if node:
            self._pods[found["metadata"]["uid"]] = found
            problems, causes = self._compare(found)
            if problems:
                # each of the two must have a name of its own
                named = (*named, *causes) if causes and (foreseen or named) else ()
        else:
            self._remove(found)
        agreed = foreseen and not problems
        detail = f"{detail} {problems}".strip()
        return Verdict(self.seed, step, name, outcome, agreed, named, detail)

    def _ignored(
        self, foresight: Foresight, pod: Any, asked: list[Ask], node: str, reasons: Counter[str]
    ) -> tuple[str, ...]:
        """Return the name of the 1.36 scheduler's mistake where it explains what it did."""
        if self.version != "1.36":
            return ()
        choices = {
            each: [foresight.foresee(each, pod, asked), *foresight.ignoring_drivers(each, pod, asked)]
            for each in self.nodes
        }
        explained = any(
            _is_that(node, reasons, list(chosen), dict(zip(choices, chosen, strict=True)).get(node))
            for chosen in product(*choices.values())
        )
        return (DRIVER_IGNORED,) if explained else ()

    def _outcome(self, made: Any, expected: Mapping[str, list[str]]) -> tuple[Any, Counter[str]]:
        """Return the Pod once the scheduler decided, and the reasons why not; a wrong one gets time to be put right."""
        path = f"{PODS}/{made['metadata']['name']}"
        begun = time.monotonic()
        wanted = Counter(reason for each in expected.values() for reason in each)
        reasons: Counter[str] = Counter()
        while time.monotonic() - begun < WAIT_S:
            found = self.api.get(path)
            if found["spec"].get("nodeName"):
                return found, Counter()
            reasons = _reasons(found)
            if reasons and all(expected.values()) and reasons == wanted:
                return found, reasons
            if reasons and time.monotonic() - begun > SETTLE_S:
                return found, reasons
            time.sleep(0.004)
        raise AssertionError(f"the scheduler said nothing of {path} in {WAIT_S} s: {found}")

    def _compare(self, pod: Any) -> tuple[str, tuple[str, ...]]:
        """Compare the two books once Sickbay has heard of a binding: what differs, and the causes that Sickbay names."""
        node = pod["spec"]["nodeName"]
        self.observer.has_seen("pods", pod)
        for _, claim in self._claims_of(pod):
            if claim is not None:
                self.observer.has_seen("resourceclaims", claim)
        world = self.observer.world
        run = world.run(node).reopened()
        run.step(tick(world.at_ms + world.policy.ledger.drift_grace_ms + 1_000))
        names = {f"{NAMESPACE}/{name}" for name, _ in self._claims_of(pod)}
        drifts = {about: cause for about, cause in run.drifts().items() if about.split("@")[0] in names}
        unexplained = [about for about, cause in run.drifts().items() if cause == "unexplained"]
        if drifts or unexplained:
            told = {about: run.state.announced.drifts[about] for about in drifts}
            return f"{told}, unexplained {unexplained}", () if unexplained else tuple(
                sorted({*drifts.values()})
            )
        return "", ()


def _is_that(node: str, reasons: Counter[str], expected: list[list[str]], of_node: list[str] | None) -> bool:
    """Whether what the scheduler did is what was expected: bound where nothing stood against it, or pending for these reasons."""
    if node:
        return not of_node
    return all(expected) and Counter(reason for each in expected for reason in each) == reasons


def _reasons(pod: Any) -> Counter[str]:
    """Return the reasons of the scheduler, each with the number of nodes that it is said of; none while it did not decide."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            found = _SHORT.match(condition.get("message", ""))
            if found:
                told = _SHARED.sub(SHARED, found.group(1).split(". ")[0].rstrip("."))
                return Counter({reason.strip(): int(count) for count, reason in _REASON.findall(told)})
    return Counter()


def judge(plane: ControlPlane, seed: int, decisions: int) -> Iterator[Verdict]:
    """Yield the verdicts of so many decisions, over clusters of forty each from one seed after the other."""
    left = decisions
    while left > 0:
        with Observer(plane, policy_of(plane.version)) as observer:
            scenario = Scenario(plane, observer, plane.version, seed)
            scenario.build()
            yield from scenario.play(min(left, PER_CLUSTER))
            scenario.clear()
        seed, left = seed + 1, left - PER_CLUSTER
