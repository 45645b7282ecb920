"""Plain arithmetic for the naive ledger: amounts, what a container list needs at once, what a device adds, whose word a fact is.

Everything is a ``Fraction`` of whole units and follows docs/ledger.md. It must not import ``streams.ledger``.
"""

from __future__ import annotations

from fractions import Fraction

from sickbay import facts as f
from sickbay.quantity import parse

UNKNOWN = "unknown"
LIMIT = Fraction(2**52)
TERMINAL = ("Succeeded", "Failed")


def number(text):
    """A quantity's amount in units, exact."""
    return Fraction(parse(text).nano, 10**9)


def kept(resource):
    """Whether the first three books hold a resource."""
    return resource in ("cpu", "memory", "ephemeral-storage") or resource.startswith("hugepages-")


def pod_level(resource):
    """Whether a Pod-level request replaces the containers'."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def up(resource, amount):
    """Round up to millicores or whole units, once for each Pod."""
    step = Fraction(1, 1000) if resource == "cpu" else Fraction(1)
    return -(-amount // step) * step


def nano(amount):
    """Round away from zero to what a quantity can say."""
    scaled = amount * 10**9
    return Fraction(-(-scaled // 1) if scaled > 0 else scaled // 1, 10**9)


def legal(amount):
    return 0 <= amount < LIMIT


def add(total, amounts):
    for key, amount in amounts.items():
        total[key] = total.get(key, Fraction(0)) + amount
    return total


def larger(total, amounts):
    for key, amount in amounts.items():
        total[key] = max(total.get(key, amount), amount)
    return total


def numa_of(device):
    """The bucket of a device: the one node it sits on, or the first that a list names."""
    if device is None:
        return UNKNOWN
    if device.numa.physical is not None:
        return str(device.numa.physical)
    return str(device.numa.nodes[0]) if len(device.numa.nodes) == 1 else UNKNOWN


def source_of(fact):
    """The object that a fact is a version of, or ``None`` when it is none of the ledger's business."""
    match fact:
        case f.NodeObserved() | f.NodeGone():
            return ("node",)
        case f.NodeLeaseLapsed() | f.NodeLeaseResumed():
            return ("lease",)
        case f.PodObserved() | f.PodGone():
            return ("pod", fact.pod_uid)
        case f.ClaimObserved() | f.ClaimGone():
            return ("claim", fact.claim_uid)
        case f.DevicePublished() | f.DeviceWithdrawn():
            return ("device", fact.device_id)
        case f.PoolObserved():
            return ("pool", fact.driver, fact.pool)
        case f.WatchGapFound():
            return ("gap", fact.watched)
        case f.ClaimsGateRequested():
            return ("gate", fact.scope)
        case f.PolicyChanged():
            return ("policy",)
        case _:
            return None


def version_of(fact):
    match fact:
        case f.ClaimsGateRequested():
            return (fact.observed_at_ms, fact.request_id)
        case f.WatchGapFound():
            return (fact.to_ms, -fact.from_ms)
        case f.PolicyChanged():
            return (fact.observed_at_ms, 0)
        case _:
            return (fact.epoch, fact.rv)


def allocation(claim):
    """What tells one allocation of a claim from the next."""
    return claim.allocated_at, [(r.device_id, r.share_id, r.request) for r in claim.results]


def footprint(containers, amounts_of):
    """The larger of what runs together and what an init container needs beside the sidecars before it."""
    running, sidecars, peak = {}, {}, {}
    for container in containers:
        need = amounts_of(container)
        if container.init and not container.restartable:
            larger(peak, add(dict(sidecars), need))
        else:
            add(running, need)
            add(sidecars, need if container.init else {})
    return larger(running, peak)


def members_of(device, rules):
    """Node resource to members, of the shapes that such a scheduler knows."""
    shape = None if device is None else device.node_allocatable_shape
    if shape is None or (rules in ("1.36", "1.37") and shape not in (rules, "unknown")):
        return {}
    return device.node_allocatable


def added(device, result, rules):
    """Node resource to units that one result adds; ``None`` where a capacity counts and what was consumed is not known."""
    found = {}
    for resource, members in members_of(device, rules).items():
        if not kept(resource) or (rules == "1.37" and resource == "ephemeral-storage"):
            continue
        factors = [
            members[m]
            for m in ("allocationMultiplier", "capacityMultiplier", "deviceMultiplier")
            if m in members
        ]
        key = members.get("capacityKey")
        if key is None and not factors and (members or device.node_allocatable_shape != "1.36"):
            continue
        amount = number(factors[0]) if factors else Fraction(1)
        if key is not None:
            if result.consumed is None:
                return None
            if key not in result.consumed or (rules == "1.36" and "capacityKeySpelling" in members):
                continue
            amount *= number(result.consumed[key])
        found[resource] = amount
    return found


def own_requests(pod):
    """``PodRequests`` without what claims add and without overhead, exact."""
    infeasible = pod.resize == "Infeasible"
    if not new_shape(pod):
        total = footprint(pod.containers, lambda c: largest(c, infeasible=infeasible))
    else:
        total = footprint(pod.containers, lambda c: allocated(c, infeasible=infeasible))
        if not infeasible:
            larger(total, footprint(pod.containers, lambda c: read(c.requests)))
    return {**total, **whole_requests(pod)}


def largest(container, *, infeasible):
    """What a container counts with where each is taken by itself (1.36)."""
    asked = read(container.requests)
    if container.actuated is None or (container.init and not container.restartable):
        return asked
    told = larger(read(container.actuated), read(container.allocated or {}))
    return told if infeasible else larger(told, asked)


def allocated(container, *, infeasible):
    """What a container was granted, where sums are compared (1.37)."""
    if container.allocated is not None:
        return read(container.allocated)
    return {} if infeasible else read(container.requests)


def actuated_floor(pod):
    """What is actuated: it has the DRA amounts already and is no more than a floor under the sum."""
    if not new_shape(pod):
        return {}
    infeasible = pod.resize == "Infeasible"
    total = footprint(
        pod.containers,
        lambda c: allocated(c, infeasible=infeasible) if c.actuated is None else read(c.actuated),
    )
    return {r: a for r, a in total.items() if r not in whole_requests(pod)}


def whole_requests(pod):
    """The requests that the Pod makes as a whole."""
    return {r: a for r, a in read(pod.pod_level_requests or {}).items() if pod_level(r)}


def new_shape(pod):
    return any(e.shape != "1.36" for e in pod.node_allocatable or ())


def read(texts):
    return {resource: number(text) for resource, text in texts.items() if kept(resource)}
