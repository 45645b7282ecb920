"""What surrounds the devices: the Node object, its Lease, the breaker, a blind watch, the policy.

Each function takes one fact at its event time. Devices are judged through ``incidents`` and ``device``; nothing here decides on
one device by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sickbay.decisions import QuarantineExtended
from sickbay.errors import QuantityError
from sickbay.facts import (
    BreakerStateChanged,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PolicyChanged,
    WatchGapFound,
)
from sickbay.quantity import parse
from streams.custody import incidents, moves
from streams.custody.context import Context
from streams.custody.device import clear, due_ms, may_restrict
from streams.custody.state import NEVER, UNHEALTHY, Shortfall


def node_observed(context: Context, fact: NodeObserved, at_ms: int) -> None:
    """Take what the Node object says: identity, readiness, what its plugins can give."""
    node = context.node
    if node.node_uid and fact.node_uid != node.node_uid:
        reset(context, at_ms, "node_replaced", f"another machine answers to the name: {fact.node_uid}")
    if node.boot_id and fact.boot_id and fact.boot_id != node.boot_id:
        node.restarts_ms[""] = at_ms
    node.node_uid = fact.node_uid
    node.boot_id = fact.boot_id or node.boot_id
    if fact.ready != node.ready:
        node.ready = fact.ready
        incidents.watch_node(context, at_ms, start_ms=at_ms)
    for name in sorted(n for n in fact.capacity.keys() & fact.allocatable.keys() if "/" in n):
        # a figure that is missing or was refused is unknown, and what was known stands
        try:
            capacity, allocatable = parse(fact.capacity[name]).value(), parse(fact.allocatable[name]).value()
        except QuantityError:
            continue
        if min(capacity, allocatable) < 0:
            continue
        known = node.resources.get(name)
        if known is not None and (known.capacity, known.allocatable) == (capacity, allocatable):
            continue
        node.resources[name] = Shortfall(
            capacity,
            allocatable,
            known.since_ms if known else NEVER,
            known.alerted if known else False,
        )
        incidents.watch_resource(context, name, capacity, allocatable, at_ms)
        explain_shortfall(context, name, at_ms)


def explain_shortfall(context: Context, name: str, at_ms: int) -> None:
    """Compare what a resource cannot give with the devices known to be faulty; the rest cannot be named."""
    shortfall = context.node.resources.get(name)
    if shortfall is None:
        return
    faulty = sum(1 for u in context.node.units.values() if u.scope == name and u.verdict == UNHEALTHY)
    unexplained = shortfall.capacity - shortfall.allocatable > faulty and shortfall.allocatable > 0
    if unexplained and shortfall.since_ms == NEVER:
        shortfall.since_ms = at_ms
    elif not unexplained and shortfall.since_ms != NEVER:
        shortfall.since_ms, shortfall.alerted = NEVER, False
        context.clear_alert("unattributed_unhealthy", name, at_ms, reason="explained, or gone")
    incidents.reconsider_plugin(context, name, shortfall.capacity, at_ms)


def reset(context: Context, at_ms: int, outcome: Any, reason: str) -> None:
    """Close everything that belonged to the machine that is no longer there."""
    node = context.node
    for incident_id in sorted(node.incidents):
        context.close_incident(incident_id, at_ms, outcome, reason)
    for unit_id in sorted(node.units):
        unit = node.units[unit_id]
        if unit.episode is not None:
            context.close_episode(unit, at_ms, outcome, phase="in_service", clause="", reason=reason)
        elif unit.phase != "in_service":
            clear(context, unit, at_ms, "", reason)
    node.units = {}
    moves.review(context, at_ms)
    for kind, about, _ in list(node.alerts.values()):
        context.clear_alert(kind, about, at_ms, reason=reason)
    node.resources, node.restarts_ms = {}, {}
    node.lease_lapsed, node.ready, node.boot_id = False, "", ""


def node_gone(context: Context, fact: NodeGone, at_ms: int) -> None:
    """The Node object is gone, and what belonged to it is closed."""
    if fact.node_uid == context.node.node_uid or not context.node.node_uid:
        reset(context, at_ms, "node_gone", "the Node object was deleted")
        context.node.node_uid = ""


def lease_lapsed(context: Context, fact: NodeLeaseLapsed, at_ms: int) -> None:
    """The kubelet fell silent."""
    context.node.lease_lapsed = True
    incidents.watch_node(context, at_ms, start_ms=fact.last_renewal_at_ms)


def lease_resumed(context: Context, _fact: NodeLeaseResumed, at_ms: int) -> None:
    """The kubelet is back."""
    context.node.lease_lapsed = False
    incidents.watch_node(context, at_ms, start_ms=at_ms)


def restrictable(context: Context) -> list[str]:
    """Return the driver of each device that the end of its Unknown window restricts unless a breaker is open."""
    return [unit.scope for unit in context.node.units.values() if may_restrict(context, unit)]


def breaker_changed(context: Context, fact: BreakerStateChanged, at_ms: int) -> None:
    """The breaker opened or closed: deadlines it holds back are set anew."""
    if fact.open:
        context.node.breakers.setdefault(fact.scope, at_ms)
    else:
        context.node.breakers.pop(fact.scope, None)
        _lift(context, at_ms)
    _redue(context)


def _lift(context: Context, at_ms: int) -> None:
    """Let moves begin for the episodes that were opened while the breaker was open."""
    for unit_id in sorted(context.node.units):
        unit = context.node.units[unit_id]
        if unit.episode is not None and unit.episode.held and not context.breaker_open(unit.scope):
            unit.episode = msgspec.structs.replace(unit.episode, held=False)
            context.transition(
                QuarantineExtended,
                unit,
                at_ms,
                clause="breaker.quiet_ms",
                reason="the breaker closed: the episode is held no longer",
            )


def _redue(context: Context) -> None:
    for unit in context.node.units.values():
        unit.due_ms = due_ms(context, unit)


def gap_found(context: Context, fact: WatchGapFound, _at_ms: int) -> None:
    """Nothing was seen for a while: deadlines that judge silence wait."""
    context.node.blind_until_ms = max(context.node.blind_until_ms, fact.to_ms)
    _redue(context)


def policy_changed(context: Context, fact: PolicyChanged, _at_ms: int) -> None:
    """Another policy decides from here on."""
    context.node.policy_hash = fact.policy_hash
    context.policy = context.policies[fact.policy_hash]
    _redue(context)
