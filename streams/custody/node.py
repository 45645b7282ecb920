"""The rules for one node: what each kind of fact changes, and which deadlines fall due when time passes.

``apply`` and ``advance`` are called in order of event time by ``timeline``; they note transitions in the context and return
nothing. A fact that changes no level changes nothing here.
"""

from __future__ import annotations

from typing import Any, Final

from sickbay.codec import fact_id
from sickbay.facts import (
    BreakerStateChanged,
    CanaryReported,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    HoldRequested,
    MoveReported,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PolicyChanged,
    ProbeReported,
    ReleaseRequested,
    WatchGapFound,
)
from streams.custody import incidents, moves, requests, surroundings
from streams.custody.context import Context
from streams.custody.device import fire, judge
from streams.custody.drivers import hardware, opinion
from streams.custody.evidence import verdict_of
from streams.custody.state import (
    HEALTHY,
    NEVER,
    NONE,
    UNHEALTHY,
    UNKNOWN,
    VERDICT_OF,
    Incident,
    Move,
    Unit,
    Word,
    Workload,
)

#: Deadlines that one advance may carry out; a year of daily leases on a node of 128 devices stays far below.
_FIRINGS_LIMIT: Final = 1_000_000


def advance(context: Context, to_ms: int) -> None:
    """Carry out every deadline up to and including ``to_ms``, each at its own time, in order."""
    node = context.node
    firings = 0
    while node.due_ms <= to_ms:
        firings += 1
        assert firings <= _FIRINGS_LIMIT, f"deadlines of node {node.node} do not move on"
        due, _, target = min(_deadlines(context), key=lambda d: d[:2])
        at_ms = max(due, node.time_ms)
        node.time_ms = at_ms
        if isinstance(target, Unit):
            target.touched_ms = at_ms
            fire(context, target, at_ms)
        elif isinstance(target, Incident):
            incidents.close_incident(context, target, at_ms, "the devices had their time to follow")
        elif isinstance(target, Move):
            node.touched_ms = at_ms
            moves.expire(context, target, at_ms)
        else:
            name, shortfall = target
            node.touched_ms = at_ms
            shortfall.alerted = True
            context.raise_alert(
                "unattributed_unhealthy",
                name,
                at_ms,
                reason=f"allocatable {name} is {shortfall.allocatable} of {shortfall.capacity}; no known device explains it",
                clause="node_incident.settle_ms",
            )
        moves.review(context, at_ms)
        node.due_ms = _next_due_ms(context)
    node.time_ms = max(node.time_ms, to_ms)


def _deadlines(context: Context) -> list[tuple[int, str, Any]]:
    node = context.node
    found: list[tuple[int, str, Any]] = [
        (i.closing_at_ms, f"1{i.incident_id}", i) for i in node.incidents.values() if i.closing_at_ms != NEVER
    ]
    found += [(u.due_ms, f"2{u.unit_id}", u) for u in node.units.values() if u.due_ms != NEVER]
    found += [
        (due, f"3{m.move_id}", m)
        for m in node.moves.values()
        if (due := min(m.expires_at_ms, m.deferred_until_ms)) != NEVER
    ]
    wait = context.policy.node_incident.settle_ms
    found += [
        (s.since_ms + wait, f"4{n}", (n, s))
        for n, s in node.resources.items()
        if s.since_ms != NEVER and not s.alerted
    ]
    return found


def _next_due_ms(context: Context) -> int:
    """Return the earliest of ``_deadlines``; asked for every fact, so it builds nothing."""
    node = context.node
    due = NEVER
    for unit in node.units.values():
        due = min(due, unit.due_ms)
    for incident in node.incidents.values():
        due = min(due, incident.closing_at_ms)
    for move in node.moves.values():
        due = min(due, move.expires_at_ms, move.deferred_until_ms)
    for shortfall in node.resources.values():
        if shortfall.since_ms != NEVER and not shortfall.alerted:
            due = min(due, shortfall.since_ms + context.policy.node_incident.settle_ms)
    return due


def apply(context: Context, fact: Fact, at_ms: int) -> None:
    """Apply one fact at its event time; deadlines before it were carried out."""
    context.node.time_ms = max(context.node.time_ms, at_ms)
    _APPLY[type(fact)](context, fact, at_ms)
    moves.review(context, at_ms)
    unit = context.node.units.get(unit_of(fact)[0]) if isinstance(fact, DeviceHealthObserved) else None
    if unit is not None:
        unit.touched_ms = max(unit.touched_ms, at_ms)
    elif not isinstance(fact, PodObserved | PodGone):
        context.node.touched_ms = max(context.node.touched_ms, at_ms)
    context.node.due_ms = _next_due_ms(context)


def _unit(context: Context, unit_id: str, scope: str, at_ms: int) -> Unit:
    unit = context.node.units.get(unit_id)
    if unit is None:
        unit = Unit(unit_id=unit_id, scope=scope, since_ms=at_ms, first_seen_ms=at_ms)
        context.node.units[unit_id] = unit
    return unit


def unit_of(fact: DeviceHealthObserved) -> tuple[str, str]:
    """Return the unit and the scope that a Pod's word concerns: a replica id stands for its card."""
    device_id = fact.device_id
    if device_id.startswith("dra:"):
        return device_id, device_id[4:].split("/", 1)[0]
    return fact.physical_id or device_id, fact.reported_as


def revise(context: Context, unit: Unit, at_ms: int) -> None:
    """Bring the verdict of a unit up to date and judge it if that, or what keeps its episode open, changed."""
    node = context.node
    parent = node.units.get(unit.parent) if unit.parent else None
    old = unit.verdict
    new = verdict_of(unit, parent is not None and parent.verdict == UNHEALTHY)
    if new == old:
        if unit.episode is not None or unit.phase != "in_service" or new == UNHEALTHY:
            judge(context, unit, at_ms)
        incidents.watch_turns(context, unit.scope, at_ms)
        return
    unit.verdict = new
    unit.verdict_since_ms = at_ms
    if new >= UNKNOWN and new > old:
        unit.adverse_since_ms = at_ms
    if new == HEALTHY:
        unit.recovered = True
    if new == UNHEALTHY and parent is not None and parent.verdict == UNHEALTHY and not unit.slice_fault:
        unit.fault_id, unit.fault_version = parent.fault_id, parent.fault_version
    incidents.watch_turns(context, unit.scope, at_ms)
    judge(context, unit, at_ms, fault=new == UNHEALTHY)
    if UNHEALTHY in (old, new):
        for key in sorted(node.units):
            child = node.units[key]
            if child.parent == unit.unit_id:
                revise(context, child, at_ms)
    surroundings.explain_shortfall(context, unit.scope, at_ms)


def _health(context: Context, fact: DeviceHealthObserved, at_ms: int) -> None:
    if fact.device_id.startswith("unattributed:"):
        if fact.live and fact.health == "Unhealthy":
            context.raise_alert(
                "unattributed_unhealthy",
                fact.device_id,
                at_ms,
                reason=f"{fact.namespace}/{fact.pod} reports Unhealthy and no device can be named",
            )
        else:
            context.clear_alert("unattributed_unhealthy", fact.device_id, at_ms, reason="no longer reported")
        return
    unit_id, scope = unit_of(fact)
    unit = _unit(context, unit_id, scope, at_ms)
    key = f"{fact.device_id}|{fact.pod_uid}"
    word = unit.words.get(key)
    if not fact.live:
        if word is None:
            _forget(context, unit)
            return
        del unit.words[key]
    else:
        words = context.policy.quarantine.health_words
        health = words.get(fact.health_raw, fact.health) if words and fact.health_raw else fact.health
        verdict = NONE if fact.absence == "never_reported" else VERDICT_OF[health]
        muted = word is not None and word.muted and verdict == UNHEALTHY
        if verdict == UNHEALTHY and not muted and (word is None or word.verdict != UNHEALTHY):
            unit.fault_id = fact_id(fact)
            if unit.verdict != UNHEALTHY:
                unit.fault_version = f"{fact.status_version}:{fact.pod_uid}"
        if verdict == HEALTHY and unit.episode is not None:
            unit.healthy_id = fact_id(fact)
        unit.words[key] = Word(verdict, at_ms, fact.namespace, fact.pod, fact.pod_uid, muted)
    revise(context, unit, at_ms)
    _forget(context, unit)


def _forget(context: Context, unit: Unit) -> None:
    if unit.forgettable:
        context.node.units.pop(unit.unit_id, None)


def _published(context: Context, fact: DevicePublished, at_ms: int) -> None:
    unit = _unit(context, fact.device_id, fact.driver, at_ms)
    unit.card = fact.physical_id or ""
    if fact.physical_id and fact.physical_id.startswith("dra:") and fact.physical_id != fact.device_id:
        unit.parent = fact.physical_id
    unit.published = True
    if unit.withdrawn:
        unit.withdrawn = False
        context.node.restarts_ms[unit.scope] = at_ms
    identity = hardware(fact)
    replaced = bool(unit.hardware and identity and identity != unit.hardware)
    if replaced:
        _replaced(context, unit, at_ms, unit.hardware, identity)
    unit.hardware = identity or unit.hardware
    seen = opinion(context.policy, fact)
    if seen.faulty and not unit.slice_fault:
        unit.fault_id = fact_id(fact)
        if unit.verdict != UNHEALTHY or replaced:
            unit.fault_version = fact.status_version
        unit.slice_healthy_at_ms = -1
    elif unit.slice_fault and not seen.faulty:
        unit.slice_muted = False
        unit.slice_healthy_at_ms = at_ms
        unit.healthy_id = fact_id(fact)
    elif seen.healthy and unit.slice_healthy_at_ms < 0:
        unit.slice_healthy_at_ms = at_ms
    unit.slice_fault = seen.faulty
    unit.unmonitored = seen.unmonitored
    revise(context, unit, at_ms)
    if replaced:
        # the episode ended whatever the verdict did: the device stands where the rest of what is known puts it
        judge(context, unit, at_ms)


def _replaced(context: Context, unit: Unit, at_ms: int, old: str, new: str) -> None:
    """Another piece of hardware answers to the name: what was said of the old one does not carry over."""
    context.clear_alert("device_replaced", unit.unit_id, at_ms, reason="replaced once more")
    context.raise_alert(
        "device_replaced",
        unit.unit_id,
        at_ms,
        reason=f"the hardware under this name changed from {old} to {new}",
    )
    if unit.episode is not None:
        context.close_episode(
            unit,
            at_ms,
            "device_replaced",
            phase="in_service",
            clause="driver_health",
            reason=f"replaced: {new}",
        )
    for word in unit.words.values():
        word.muted = word.verdict == UNHEALTHY
    unit.onsets_ms, unit.ended_runs_ms = [], []
    unit.slice_fault = unit.slice_muted = unit.recovered = False
    unit.fault_at_ms = unit.slice_healthy_at_ms = -1


def _withdrawn(context: Context, fact: DeviceWithdrawn, at_ms: int) -> None:
    unit = context.node.units.get(fact.device_id)
    if unit is None:
        return
    unit.withdrawn, unit.published = True, False
    revise(context, unit, at_ms)
    _forget(context, unit)


def _pod(context: Context, fact: PodObserved, _at_ms: int) -> None:
    context.node.workloads[fact.pod_uid] = Workload(fact.ability, fact.topology, fact.priority)


def _pod_gone(context: Context, fact: PodGone, _at_ms: int) -> None:
    context.node.workloads.pop(fact.pod_uid, None)


_APPLY: Final[dict[type[Fact], Any]] = {
    DeviceHealthObserved: _health,
    DevicePublished: _published,
    DeviceWithdrawn: _withdrawn,
    NodeObserved: surroundings.node_observed,
    NodeGone: surroundings.node_gone,
    NodeLeaseLapsed: surroundings.lease_lapsed,
    NodeLeaseResumed: surroundings.lease_resumed,
    BreakerStateChanged: surroundings.breaker_changed,
    WatchGapFound: surroundings.gap_found,
    PolicyChanged: surroundings.policy_changed,
    HoldRequested: requests.hold_requested,
    ReleaseRequested: requests.release_requested,
    ProbeReported: requests.step_reported,
    CanaryReported: requests.step_reported,
    MoveReported: requests.move_reported,
    PodObserved: _pod,
    PodGone: _pod_gone,
}
