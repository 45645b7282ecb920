"""What Sickbay's ledger says beforehand of a Pod on a node: which resources would be short, or that no device is left.

Everything is read from the books and from suppositions on them (``World.supposing``); the first fit over the devices of a node
and the sharing of claims are the only rules of the scheduler here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from typing import Any, Final

from cluster_watch import World
from judged_draws import Ask, Kind, capacity_name, capacity_of, consumed_of
from ledger_run import Run, units

NAMESPACE: Final = "judged"
#: The scheduler's words for what the ledger does not keep.
NO_DEVICE: Final = "cannot allocate all claims"
ELSEWHERE: Final = "resourceclaim not available on the node"
#: What both versions say, each in words of its own, of a second Pod for a claim that takes from its node (KEP-5517).
SHARED: Final = "claim is used by another Pod"


class Foresight:
    """The ledger of every node, asked; ``standing`` are the claims that are there, as they were seen last."""

    def __init__(self, world: World, kinds: Mapping[str, Kind], standing: Mapping[str, Any]) -> None:
        self._world, self._kinds, self._standing = world, kinds, standing

    def foresee(self, node: str, pod: Any, asked: list[Ask]) -> list[str]:
        """Return why the Pod would not fit on a node, as the ledger has it; nothing where it fits."""
        return self._look(node, pod, asked)[0]

    def ignoring_drivers(self, node: str, pod: Any, asked: list[Ask]) -> list[list[str]]:
        """Return what the reasons would be where some devices, or all, are taken for those of their names of another driver."""
        return self._look(node, pod, asked)[1:]

    def _look(self, node: str, pod: Any, asked: list[Ask]) -> list[list[str]]:
        world = self._world
        run = world.run(node)
        free = run.free("recorded")
        bound = _bound(pod, node)
        plain = _difference(run, world.supposing(node, ("pods", _without_claims(bound))), "recorded")
        short = [name for name, amount in plain.items() if amount > 0 and amount > free.get(name, 0)]
        if short:
            return [[f"Insufficient {name}" for name in short]]
        if not asked:
            return [[]]
        told = {ask.name: self._of_standing(node, ask) for ask in asked}
        if ELSEWHERE in told.values():
            # said last: first the scheduler looks for devices for the other claims
            rest = [ask for ask in asked if told[ask.name] != ELSEWHERE]
            return [(self._look(node, pod, rest)[0] if rest else []) or [ELSEWHERE]]
        if SHARED in told.values():
            return [[SHARED]]
        allocated = self._allocate(node, run, pod, asked)
        if allocated is None:
            return [[NO_DEVICE]]
        claims, bound = allocated
        supposed = world.supposing(node, *(("resourceclaims", claim) for claim in claims), ("pods", bound))
        demand = _difference(run, supposed, "derived")
        shifts = self._shifts(node, run, claims)
        # without any claim that adds something the scheduler does not look again
        own = _short(demand, free) if _adds(run, supposed) else []
        return [own, *(_short(demand + shift, free) for shift in shifts)]

    def _shifts(self, node: str, run: Run, claims: list[Any]) -> list[Amounts]:
        """Return by how much the demand is another where devices are taken for those of their names of another driver."""
        each: list[list[Amounts]] = []
        for claim in claims:
            for result in claim["status"]["allocation"]["devices"]["results"]:
                mine = self._takes(result["driver"], result["device"])
                others = [
                    self._takes(kind.driver, result["device"]) - mine
                    for kind in self._kinds.values()
                    if kind.driver != result["driver"]
                    and ("devices", f"device/dra:{kind.driver}/{node}/{result['device']}") in run.entries
                ]
                each.append([Amounts(), *others])
        return [sum(chosen, Amounts()) for chosen in product(*each)][1:]

    def _takes(self, driver: str, name: str) -> Amounts:
        """Return what a device takes by its mapping, in the shape of 1.36 and without capacities."""
        devices = [
            device for kind in self._kinds.values() if kind.driver == driver for device in kind.devices
        ]
        (found,) = [device for device in devices if device["name"] == name] or [{}]
        mappings = found.get("nodeAllocatableResourceMappings", {})
        return Amounts(
            {
                resource: units(said["allocationMultiplier"])
                for resource, said in mappings.items()
                if "capacityKey" not in said
            }
        )

    def _of_standing(self, node: str, ask: Ask) -> str:
        """Return why a claim that is allocated already cannot be used on a node, "" where it can."""
        if not ask.standing:
            return ""
        status = self._standing[ask.standing].get("status", {})
        if "allocation" not in status:
            return ""
        if all(result["pool"] != node for result in status["allocation"]["devices"]["results"]):
            return ELSEWHERE
        return SHARED if status.get("reservedFor") and _is_mapped(self._kinds[ask.kind]) else ""

    def _allocate(self, node: str, run: Run, pod: Any, asked: list[Ask]) -> tuple[list[Any], Any] | None:
        """Return the claims of the Pod as the first fit would allocate them, and the Pod with them; ``None`` where none fits."""
        taken: Counter[str] = Counter()
        used: set[str] = set()
        counters: Counter[str] = Counter()
        claims, statuses = [], []
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for ask in asked:
            kind = self._kinds[ask.kind]
            standing = self._standing[ask.standing] if ask.standing else None
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
            share = consumed_of(device, amount)
            limit = units(capacity_of(device)["value"])
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
                capacity_name(kind): str(share) if share.denominator == 1 else f"{int(share * 1000)}m"
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


class Amounts(dict[str, Fraction]):
    """Units by resource, which can be added and taken away."""

    def __add__(self, other: Mapping[str, Fraction]) -> Amounts:
        return Amounts({name: self.get(name, Fraction(0)) + other.get(name, 0) for name in {*self, *other}})

    def __sub__(self, other: Mapping[str, Fraction]) -> Amounts:
        return Amounts({name: self.get(name, Fraction(0)) - other.get(name, 0) for name in {*self, *other}})


def _difference(before: Run, after: Run, by: str) -> Amounts:
    return Amounts(after.requested(by)) - before.requested(by)


def _short(demand: Mapping[str, Fraction], free: Mapping[str, Fraction]) -> list[str]:
    return [f"Insufficient {name}" for name, amount in demand.items() if amount > free.get(name, 0)]


def _adds(before: Run, after: Run) -> bool:
    """Whether a claim added anything to the node: without that the scheduler does not look again."""
    return any(key not in before.entries for key in after.entries if key[0] == "derived")
