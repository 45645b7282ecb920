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
from fractions import Fraction
from random import Random
from typing import Any

from cluster_watch import Observer
from control_plane import ApiError, ControlPlane
from facts_of import tick
from kubelets import Kubelet, mapping
from ledger_run import Run, units

from sickbay.policy import LedgerPolicy, Policy

NAMESPACE = "judged"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
#: The scheduler's words for what the ledger does not keep.
NO_DEVICE = "cannot allocate all claims"
ELSEWHERE = "resourceclaim not available on the node"
#: What both versions say, each in words of its own, of a second Pod for a claim that takes from its node (KEP-5517).
SHARED = "claim is used by another Pod"
_SHARED = re.compile(
    r"node allocatable resource claim \S+ (is already used by another pod|has a mapped device and cannot be shared across pods)"
)
#: 1.36 looks a device up by pool and name and not by driver (kubernetes.md 3.3); where it finds the other one, it counts that.
DRIVER_IGNORED = "driver_ignored"
_SHORT = re.compile(r"^\d+/\d+ nodes are available: (.*)$")
_REASON = re.compile(r"(\d+) ([^,]+)")
WAIT_S = 20
#: A scheduler that was told of a device a moment ago may not know it yet, and looks again within its back-off.
SETTLE_S = 4
#: Decisions on one cluster.
PER_CLUSTER = 40


def policy_of(version: str) -> Policy:
    return Policy(version=version, ledger=LedgerPolicy(emulate=version))  # type: ignore[arg-type]


@dataclass
class Kind:
    """A kind of device: its driver, how a request names it, and its devices as they are published."""

    name: str
    driver: str
    devices: list[dict[str, Any]]
    counters: list[dict[str, Any]] = field(default_factory=list)
    #: Whether requests name an amount of ``cores``.
    shared: bool = False


@dataclass
class Ask:
    """One claim of a Pod. A standing claim is there before the Pod and stays after it."""

    name: str
    kind: str
    count: int = 1
    #: Of the capacity of a kind that is shared.
    amount: str | None = None
    #: The capacity under the name that it is published by: the allocator knows it by no other.
    capacity: str = ""
    standing: str = ""


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
            "explained": dict(named),
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
        #: Name to what is asked for and the object as it was seen last.
        self._standing: dict[str, list[Any]] = {}
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
        for kind in self._kinds():
            self.kinds[kind.name] = kind
            self._ensure_class(kind)
        for kubelet in self.nodes.values():
            for driver in sorted({kind.driver for kind in self.kinds.values()}):
                if draw.random() < 0.85:
                    self._publish(kubelet, driver)
        for kind_name in draw.sample(sorted(self.kinds), 2):
            kind = self.kinds[kind_name]
            ask = Ask(
                f"standing-{kind_name}", kind_name, 1, "2" if kind.shared else None, _capacity_name(kind),
                f"standing-{self.seed}-{kind_name}",
            )  # fmt: skip
            made = self.api.create(
                CLAIMS,
                {
                    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": ask.standing},
                    "spec": _claim_spec(ask),
                },
            )  # fmt: skip
            self.observer.has_seen("resourceclaims", made)
            self._standing[ask.standing] = [ask, made]
        self._settle()

    def _publish(self, kubelet: Kubelet, driver: str) -> None:
        kinds = [kind for kind in self.kinds.values() if kind.driver == driver]
        devices = [device for kind in kinds for device in kind.devices]
        counters = [counter for kind in kinds for counter in kind.counters]
        for published in kubelet.publish(driver, devices, counters=counters):
            self.observer.has_seen("resourceslices", published)

    def _kinds(self) -> Iterator[Kind]:
        draw, version = self._random, self.version
        later = version != "1.36"
        cpu = draw.choice(["1", "2", "1500m"])
        memory = draw.choice(["1Gi", "512Mi"])
        overhead = (
            {"memory": {"perPod": "256Mi", "perContainer": "64Mi"}} if later and draw.random() < 0.6 else None
        )
        gpu = mapping(version, per_device={"cpu": cpu, "memory": memory}, overhead=overhead)
        yield Kind(
            "gpu", "gpu.example.com",
            [
                {"name": f"gpu-{n}", "attributes": {"kind": {"string": "gpu"}, "numaNode": {"int": n % 2}}} | gpu
                for n in range(draw.randint(1, 4))
            ],
        )  # fmt: skip
        if draw.random() < 0.3:
            # another driver, whose devices have the names of those above in a pool of the same name
            twin = mapping(version, per_device={"cpu": "250m"})
            yield Kind(
                "twin", "twin.example.com",
                [{"name": f"gpu-{n}", "attributes": {"kind": {"string": "twin"}}} | twin for n in range(2)],
            )  # fmt: skip
        multiplier = draw.choice(["1", "2", "500m"])
        spelled = draw.choice(["cores", "cores", "cpu.example.com/cores"])
        cores = mapping(version, by_capacity={"cpu": (spelled, multiplier)})
        step = draw.choice([None, "1", "4"])
        policy = {"requestPolicy": {"default": "1", "validRange": {"min": "1", "step": step}}} if step else {}
        yield Kind(
            "cores", "cpu.example.com",
            [
                {
                    "name": f"numa-{n}", "allowMultipleAllocations": True,
                    "attributes": {"kind": {"string": "cores"}, "numaNode": {"int": n}},
                    "capacity": {spelled: {"value": "16"} | policy},
                } | cores
                for n in range(draw.randint(1, 2))
            ],
            shared=True,
        )  # fmt: skip
        yield Kind(
            "nic", "nic.example.com",
            [{"name": f"nic-{n}", "attributes": {"kind": {"string": "nic"}}} for n in range(draw.randint(1, 3))],
        )  # fmt: skip
        part = mapping(version, per_device={"cpu": "500m", "hugepages-2Mi": "2Mi"})
        for size, amount, count in (("small", "10", 4), ("large", "40", 1)):
            yield Kind(
                f"part-{size}", "part.example.com",
                [
                    {
                        "name": f"{size}-{n}", "attributes": {"kind": {"string": f"part-{size}"}},
                        "consumesCounters": [{"counterSet": "card", "counters": {"slots": {"value": amount}}}],
                    } | part
                    for n in range(count)
                ],
                counters=[{"name": "card", "counters": {"slots": {"value": "40"}}}] if size == "small" else [],
            )  # fmt: skip

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
        kubelet = self._random.choice(list(self.nodes.values()))
        driver = self._random.choice(sorted({kind.driver for kind in self.kinds.values()}))
        if driver == "gpu.example.com" and self._random.random() < 0.5:
            changed = mapping(self.version, per_device={"cpu": self._random.choice(["1", "2", "3"])})
            gpu = self.kinds["gpu"]
            gpu.devices = [device | changed for device in gpu.devices]
            # the same everywhere, or the next Pod would find devices of one kind that differ
            for other in self.nodes.values():
                if other is not kubelet:
                    self._publish(other, driver)
        self._publish(kubelet, driver)
        time.sleep(0.15)

    def _finish(self, pod: Any) -> None:
        kubelet = self.nodes[pod["spec"]["nodeName"]]
        self.observer.has_seen("pods", kubelet.finish(pod, self._random.choice(["Succeeded", "Failed"])))
        self._await_claims_let_go(pod)
        self._pods.pop(pod["metadata"]["uid"])
        self.api.delete(f"{PODS}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        self._await_gone(pod)

    def _remove(self, pod: Any) -> None:
        self._pods.pop(pod["metadata"]["uid"], None)
        with suppress(ApiError):
            self.api.delete(f"{PODS}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        self._await_claims_let_go(pod)
        self._await_gone(pod)

    def _await_gone(self, pod: Any) -> None:
        uid = pod["metadata"]["uid"]
        self.observer.until(lambda: uid in self.observer.deleted, f"{pod['metadata']['name']} is still heard")

    def _await_claims_let_go(self, pod: Any) -> None:
        """Wait until the claim controller has freed what the Pod had; what is freed the scheduler must have heard of too."""
        end = time.monotonic() + WAIT_S
        for name, claim in self._claims_of(pod):
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
        pod, asked = self._pod(name)
        # as they are before the scheduler hears of the Pod
        for ask in asked:
            if ask.standing:
                self._standing[ask.standing][1] = self.api.get(f"{CLAIMS}/{ask.standing}")
        self.observer.catch_up()
        made = self.api.create(PODS, pod)
        expected = {node: self._foresee(node, made, asked) for node in self.nodes}
        found, reasons = self._outcome(made, expected)
        outcome = "bound" if found["spec"].get("nodeName") else "pending"
        detail = ""
        if outcome == "bound":
            agreed = not expected[found["spec"]["nodeName"]]
            detail = "" if agreed else f"bound to {found['spec']['nodeName']}, expected {expected}"
            problems, named = self._compare(found)
            self._pods[found["metadata"]["uid"]] = found
            if problems:
                agreed = False
                detail = f"{detail} {problems}".strip()
        else:
            wanted = Counter(reason for each in expected.values() for reason in each)
            named = ()
            agreed = all(expected.values()) and wanted == reasons
            detail = "" if agreed else f"pending for {dict(reasons)}, expected {expected}"
            self._remove(found)
        if not agreed and not named and self._may_ignore_drivers(asked):
            named = (DRIVER_IGNORED,)
        return Verdict(self.seed, step, name, outcome, agreed, named, detail)

    def _may_ignore_drivers(self, asked: list[Ask]) -> bool:
        """Whether 1.36 may count a device of the other driver for one of these claims: nobody can say which it finds."""
        names = {ask.kind for ask in asked}
        return self.version == "1.36" and "twin" in self.kinds and bool(names & {"twin", "gpu"})

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

    def _foresee(self, node: str, pod: Any, asked: list[Ask]) -> list[str]:
        """Return why the Pod would not fit on a node, as the ledger has it; nothing where it fits."""
        world = self.observer.world
        run = world.run(node)
        free = run.free("recorded")
        bound = _bound(pod, node)
        plain = _difference(run, world.supposing(node, ("pods", _without_claims(bound))), "recorded")
        short = [name for name, amount in plain.items() if amount > 0 and amount > free.get(name, 0)]
        if short:
            return [f"Insufficient {name}" for name in short]
        if not asked:
            return []
        for ask in asked:
            told = self._of_standing(node, ask)
            if told:
                return [told]
        allocated = self._allocate(node, run, pod, asked)
        if allocated is None:
            return [NO_DEVICE]
        claims, bound = allocated
        supposed = world.supposing(node, *(("resourceclaims", claim) for claim in claims), ("pods", bound))
        demand = _difference(run, supposed, "derived")
        if not _adds(run, supposed):
            return []
        return [f"Insufficient {name}" for name, amount in demand.items() if amount > free.get(name, 0)]

    def _of_standing(self, node: str, ask: Ask) -> str:
        """Return why a claim that is allocated already cannot be used on a node, "" where it can."""
        if not ask.standing:
            return ""
        status = self._standing[ask.standing][1].get("status", {})
        if "allocation" not in status:
            return ""
        if all(result["pool"] != node for result in status["allocation"]["devices"]["results"]):
            return ELSEWHERE
        return SHARED if status.get("reservedFor") and _is_mapped(self.kinds[ask.kind]) else ""

    def _allocate(self, node: str, run: Run, pod: Any, asked: list[Ask]) -> tuple[list[Any], Any] | None:
        """Return the claims of the Pod as the first fit would allocate them, and the Pod with them; ``None`` where none fits."""
        taken: Counter[str] = Counter()
        used: set[str] = set()
        counters: Counter[str] = Counter()
        claims, statuses = [], []
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for ask in asked:
            kind = self.kinds[ask.kind]
            standing = self._standing[ask.standing][1] if ask.standing else None
            if standing and "allocation" in standing.get("status", {}):
                claims.append(_reserved(standing, standing["status"]["allocation"], consumer))
                continue
            results: list[dict[str, Any]] = []
            for device in kind.devices:
                if len(results) == ask.count:
                    break
                found = self._result(node, run, kind, device, ask.amount, taken, used, counters)
                if found is not None:
                    results.append(found)
            if len(results) < ask.count:
                return None
            if standing:
                claims.append(_reserved(standing, {"devices": {"results": results}}, consumer))
                continue
            claim, kind_name = ask.name, ask.kind
            name = f"{pod['metadata']['name']}-{claim}-supposed"
            statuses.append({"name": claim, "resourceClaimName": name})
            claims.append(
                {
                    "metadata": {
                        "name": name, "namespace": NAMESPACE, "uid": f"supposed-{claim}", "resourceVersion": "9" * 15,
                        "annotations": {"resource.kubernetes.io/pod-claim-name": claim},
                        "ownerReferences": [
                            {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "controller": True,
                             "uid": pod["metadata"]["uid"]}
                        ],
                    },
                    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": kind_name}}]}},
                    "status": {
                        "allocation": {"devices": {"results": results}},
                        "reservedFor": [consumer],
                    },
                }
            )  # fmt: skip
        bound = _bound(pod, node)
        bound["status"] = bound.get("status", {}) | {"resourceClaimStatuses": statuses}
        return claims, bound

    def _result(
        self, node: str, run: Run, kind: Kind, device: Mapping[str, Any], amount: str | None,
        taken: Counter[str], used: set[str], counters: Counter[str],
    ) -> dict[str, Any] | None:  # fmt: skip
        """Return the result of allocating a device, from what the books of devices and counters say is left of it."""
        device_id = f"dra:{kind.driver}/{node}/{device['name']}"
        entries = run.entries
        if ("devices", f"device/{device_id}") not in entries:
            return None
        result = {"request": "r", "driver": kind.driver, "pool": node, "device": device["name"]}
        if kind.shared:
            share = _consumed(device, amount)
            limit = units(_capacity(device)["value"])
            spent = sum(
                (units(line.quantity) for (book, key), entry in entries.items()
                 if book == "devices" and key.startswith(f"use/{device_id}/") for line in entry.amounts
                 if line.resource.endswith("cores")),
                Fraction(0),
            )  # fmt: skip
            if share is None or spent + taken[device_id] + share > limit:
                return None
            taken[device_id] += share
            consumed = {
                _capacity_name(kind): str(share) if share.denominator == 1 else f"{int(share * 1000)}m"
            }
            return result | {"shareID": f"supposed-{len(taken)}", "consumedCapacity": consumed}
        if device_id in used or ("devices", f"use/{device_id}") in entries:
            return None
        for consumes in device.get("consumesCounters", ()):
            for name, value in consumes["counters"].items():
                resource = f"{kind.driver}/{node}:{consumes['counterSet']}/{name}"
                left = units(value["value"]) + counters[resource]
                if left > run.sums("counters", "supply").get(resource, 0) - run.sums(
                    "counters", "claims"
                ).get(resource, 0):
                    return None
                counters[resource] = left
        used.add(device_id)
        return result

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
            return f"{told}, unexplained {unexplained}", tuple(sorted({*drifts.values()} - {"unexplained"}))
        return "", ()

    # --- Pods ---

    def _pod(self, name: str) -> tuple[Any, list[Ask]]:
        """Draw a Pod: its manifest, and its claims."""
        draw = self._random
        containers = [self._container(f"c{n}") for n in range(draw.choice([1, 1, 2, 3]))]
        inits = []
        if draw.random() < 0.25:
            inits = [
                self._container(f"i{n}") | ({"restartPolicy": "Always"} if draw.random() < 0.5 else {})
                for n in range(draw.randint(1, 2))
            ]
        asked: list[Ask] = []
        for number in range(draw.choice([0, 0, 1, 1, 1, 2])):
            kind = self.kinds[draw.choice(sorted(self.kinds))]
            if any(self.kinds[each.kind].driver == kind.driver for each in asked):
                continue
            standing = [ask for ask, _ in self._standing.values() if ask.kind == kind.name]
            if standing and draw.random() < 0.5:
                asked.append(standing[0])
            else:
                amount = draw.choice([None, "1", "3", "5", "2500m"]) if kind.shared else None
                count = 1 if kind.shared else draw.choice([1, 1, 2])
                asked.append(Ask(f"claim{number}", kind.name, count, amount, _capacity_name(kind)))
        spec: dict[str, Any] = {"containers": containers, "terminationGracePeriodSeconds": 0}
        if inits:
            spec["initContainers"] = inits
        for ask in asked:
            if ask.standing:
                claim = {"name": ask.name, "resourceClaimName": ask.standing}
            else:
                template = f"{name}-{ask.name}"
                self.api.create(
                    f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates",
                    {
                        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": template},
                        "spec": {"spec": _claim_spec(ask)},
                    },
                )  # fmt: skip
                claim = {"name": ask.name, "resourceClaimTemplateName": template}
            spec.setdefault("resourceClaims", []).append(claim)
            users = draw.sample(containers, draw.randint(1, len(containers)))
            for container in users:
                container["resources"].setdefault("claims", []).append({"name": ask.name})
        if draw.random() < 0.15:
            spec["runtimeClassName"] = "sandboxed"
        if draw.random() < 0.15:
            # enough for all that the Pod and its claims ask: less is refused before any node is looked at
            total = {
                name: sum(units(each["resources"]["requests"].get(name, "0")) for each in containers + inits)
                for name in ("cpu", "memory")
            }
            spec["resources"] = {
                "requests": {
                    "cpu": str(-(-total["cpu"] // 1) + 17),
                    "memory": str(-(-total["memory"] // 1) + 3 * 2**30),
                }
            }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, asked

    def _container(self, name: str) -> dict[str, Any]:
        draw = self._random
        requests = {"cpu": draw.choice(["100m", "250m", "1", "1500m", "3"])}
        if draw.random() < 0.7:
            requests["memory"] = draw.choice(["64Mi", "1Gi", "1500M", "2Gi"])
        if draw.random() < 0.1:
            requests["ephemeral-storage"] = draw.choice(["1Gi", "15Gi"])
        limits = {}
        if draw.random() < 0.08:
            requests["hugepages-2Mi"] = limits["hugepages-2Mi"] = draw.choice(["2Mi", "32Mi"])
        resources: dict[str, Any] = {"requests": requests}
        if limits:
            resources["limits"] = limits
        return {"name": name, "image": "none", "resources": resources}


def _capacity(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one capacity of a device, whatever its name is spelled like."""
    (found,) = device["capacity"].values()
    return found


def _capacity_name(kind: Kind) -> str:
    return next(iter(kind.devices[0].get("capacity", {})), "")


def _consumed(device: Mapping[str, Any], amount: str | None) -> Fraction | None:
    """Return what a share takes of ``cores``, by the request policy; ``None`` where it may not be asked (kubernetes.md 3.5)."""
    capacity = _capacity(device)
    policy = capacity.get("requestPolicy")
    if amount is None:
        return units(policy["default"]) if policy else units(capacity["value"])
    if policy is None:
        return units(amount)
    whole = -(-units(amount) // 1)
    least, step = units(policy["validRange"]["min"]), units(policy["validRange"]["step"])
    if whole < least:
        return least
    return Fraction(least + -(-(whole - least) // step) * step)


def _claim_spec(ask: Ask) -> dict[str, Any]:
    request: dict[str, Any] = {"deviceClassName": ask.kind, "count": ask.count}
    if ask.amount is not None:
        request["capacity"] = {"requests": {ask.capacity: ask.amount}}
    return {"devices": {"requests": [{"name": "r", "exactly": request}]}}


def _reserved(claim: Any, allocation: Any, consumer: Mapping[str, str]) -> Any:
    """Return a claim as it would be with one consumer more."""
    status = claim.get("status", {})
    return claim | {
        "metadata": claim["metadata"] | {"resourceVersion": "9" * 15},
        "status": status
        | {"allocation": allocation, "reservedFor": [*status.get("reservedFor", ()), dict(consumer)]},
    }


def _is_mapped(kind: Kind) -> bool:
    """Whether a device of a kind takes something of its node by itself, and not as overhead only."""
    told = kind.devices[0]
    return bool(told.get("nodeAllocatableResourceMappings")) or any(
        "mapping" in each for each in told.get("nodeAllocatableResources", {}).values()
    )


def _bound(pod: Any, node: str) -> Any:
    return pod | {
        "metadata": pod["metadata"] | {"resourceVersion": "9" * 15},
        "spec": pod["spec"] | {"nodeName": node},
        "status": {"phase": "Pending"},
    }


def _without_claims(pod: Any) -> Any:
    """Return the Pod as the scheduler's fit looks at it: without what its claims add."""
    return pod | {"spec": {key: value for key, value in pod["spec"].items() if key != "resourceClaims"}}


def _difference(before: Run, after: Run, by: str) -> dict[str, Fraction]:
    asked, had = after.requested(by), before.requested(by)
    return {name: asked.get(name, Fraction(0)) - had.get(name, 0) for name in {*asked, *had}}


def _adds(before: Run, after: Run) -> bool:
    """Whether a claim added anything to the node: without that the scheduler does not look again."""
    return any(key not in before.entries for key in after.entries if key[0] == "derived")


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
