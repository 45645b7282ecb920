"""Whether a late fact may be applied where it belongs without running the facts after it again.

Most late facts are a Pod's word on a device that nothing happened to since, on a node where nothing happened at all. Applying
such a word at its own time gives what building the head again would give; ``tests/property`` holds the two against each other.
Whatever is not plainly so is answered with no: that only costs time.
"""

from __future__ import annotations

from sickbay.facts import DeviceHealthObserved, Fact, PodGone, PodObserved
from streams.custody.context import Context
from streams.custody.node import unit_of
from streams.custody.state import NodeCustody


def commutes(context: Context, fact: Fact, at_ms: int) -> bool:
    """Return whether ``fact``, which became true at ``at_ms``, commutes with everything that the node went through since."""
    node = context.node
    if isinstance(fact, PodObserved | PodGone):
        # what a workload declares matters to moves alone
        return not node.moves and not context.policy.moves.enabled
    if not isinstance(fact, DeviceHealthObserved) or fact.device_id.startswith("unattributed:"):
        return False
    unit_id, scope = unit_of(fact)
    unit = node.units.get(unit_id)
    return (
        unit is not None
        and unit.touched_ms < at_ms
        and node.touched_ms < at_ms
        and not node.incidents
        and not node.moves
        and not context.policy.moves.enabled
        and not unit.parent
        and _explained(node, scope)
        and _no_burst(context, unit_id, scope, at_ms)
        and not any(other.parent == unit_id for other in node.units.values())
    )


def _explained(node: NodeCustody, scope: str) -> bool:
    """Whether no shortfall of the resource depends on when its devices turned."""
    shortfall = node.resources.get(scope)
    return shortfall is None or shortfall.capacity == shortfall.allocatable


def _no_burst(context: Context, unit_id: str, scope: str, at_ms: int) -> bool:
    """Whether so few devices of the resource turned around then or since that one more makes no incident."""
    policy = context.policy.node_incident
    since_ms = at_ms - policy.burst_ms
    turned = sum(
        1
        for other in context.node.units.values()
        if other.scope == scope and other.adverse_since_ms >= since_ms and other.unit_id != unit_id
    )
    return turned + 1 < policy.min_devices
