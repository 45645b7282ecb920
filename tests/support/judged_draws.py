"""What is drawn for a judged cluster: kinds of devices, and Pods with claims on them. The same seed draws the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from kubelets import mapping
from ledger_run import units


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


def draw_kinds(draw: Random, version: str) -> Iterator[Kind]:
    """Yield the kinds of devices of a cluster."""
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


def draw_pod(
    draw: Random, name: str, kinds: Mapping[str, Kind], standing: Mapping[str, Ask]
) -> tuple[Any, list[Ask]]:
    """Return the manifest of a Pod and its claims, of each driver one; ``standing`` are claims that are there, by name.

    The other claims are made from templates, which are the caller's to make: ``<Pod>-<claim>``.
    """
    containers = [_container(draw, f"c{n}") for n in range(draw.choice([1, 1, 2, 3]))]
    inits = []
    if draw.random() < 0.25:
        inits = [
            _container(draw, f"i{n}") | ({"restartPolicy": "Always"} if draw.random() < 0.5 else {})
            for n in range(draw.randint(1, 2))
        ]
    asked: list[Ask] = []
    for number in range(draw.choice([0, 0, 1, 1, 1, 2])):
        kind = kinds[draw.choice(sorted(kinds))]
        if any(kinds[each.kind].driver == kind.driver for each in asked):
            continue
        there = [ask for ask in standing.values() if ask.kind == kind.name]
        if there and draw.random() < 0.5:
            asked.append(there[0])
        else:
            amount = draw.choice([None, "1", "3", "5", "2500m"]) if kind.shared else None
            count = 1 if kind.shared else draw.choice([1, 1, 2])
            asked.append(Ask(f"claim{number}", kind.name, count, amount, capacity_name(kind)))
    spec: dict[str, Any] = {"containers": containers, "terminationGracePeriodSeconds": 0}
    if inits:
        spec["initContainers"] = inits
    for ask in asked:
        if ask.standing:
            claim = {"name": ask.name, "resourceClaimName": ask.standing}
        else:
            claim = {"name": ask.name, "resourceClaimTemplateName": f"{name}-{ask.name}"}
        spec.setdefault("resourceClaims", []).append(claim)
        users = draw.sample(containers, draw.randint(1, len(containers)))
        for container in users:
            container["resources"].setdefault("claims", []).append({"name": ask.name})
    if draw.random() < 0.15:
        spec["runtimeClassName"] = "sandboxed"
    if draw.random() < 0.15 and not any(ask.kind.startswith("part") for ask in asked):
        # enough for all that the Pod and its claims ask, and of hugepages what its containers do: less is refused on every node
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


def _container(draw: Random, name: str) -> dict[str, Any]:
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


def capacity_of(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one capacity of a device, whatever its name is spelled like."""
    (found,) = device["capacity"].values()
    return found


def capacity_name(kind: Kind) -> str:
    return next(iter(kind.devices[0].get("capacity", {})), "")


def consumed_of(device: Mapping[str, Any], amount: str | None) -> Fraction | None:
    """Return what a share takes of ``cores``, by the request policy; ``None`` where it may not be asked (kubernetes.md 3.5)."""
    capacity = capacity_of(device)
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


def claim_spec(ask: Ask) -> dict[str, Any]:
    request: dict[str, Any] = {"deviceClassName": ask.kind, "count": ask.count}
    if ask.amount is not None:
        request["capacity"] = {"requests": {ask.capacity: ask.amount}}
    return {"devices": {"requests": [{"name": "r", "exactly": request}]}}
