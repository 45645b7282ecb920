"""What is said of a device now, and what explains it: queries over the state, no changes."""

from __future__ import annotations

from streams.custody.context import Context
from streams.custody.state import HEALTHY, NONE, UNHEALTHY, UNKNOWN, Incident, Unit


def verdict_of(unit: Unit, parent_faulty: bool) -> int:
    """Return the worst fresh evidence: Pod words, the driver's own opinion, the card the device sits on."""
    worst = NONE
    for word in unit.words.values():
        if word.verdict > worst and not (word.muted and word.verdict == UNHEALTHY):
            worst = word.verdict
    if parent_faulty or (unit.slice_fault and not unit.slice_muted):
        return UNHEALTHY
    if worst == NONE and unit.slice_healthy_at_ms >= 0:
        worst = HEALTHY
    if worst == HEALTHY and unit.unmonitored:
        return UNKNOWN
    if unit.withdrawn and worst in (NONE, HEALTHY) and (unit.words or unit.episode):
        return UNKNOWN
    return worst


def healthy_at_ms(unit: Unit) -> int:
    """Return when somebody last said healthy, -1 for never: the freshness that a return asks for."""
    newest = unit.slice_healthy_at_ms
    for word in unit.words.values():
        if word.verdict == HEALTHY and word.at_ms > newest:
            newest = word.at_ms
    return newest


def covering(context: Context, unit: Unit) -> Incident | None:
    """Return the node incident that explains the device's state: a lost node, then a plugin that is down, then a mass turn."""
    found: Incident | None = None
    for incident in context.node.incidents.values():
        if incident.cause == "node_lost":
            return incident
        if incident.scope == unit.scope and (found is None or incident.cause == "plugin_down"):
            found = incident
    return found


def silence_counts(context: Context, unit: Unit) -> bool:
    """Whether a device that stays unknown may be restricted: its node lives, and no plugin is known to be down.

    A mass turn explains faults and not silence: a driver that died leaves every device unknown, and new work must not go there
    for ever (kubernetes/kubernetes#141912).
    """
    incident = covering(context, unit)
    return incident is None or incident.cause == "mass_turn"


def own_evidence(unit: Unit) -> bool:
    """Whether a fault of the device stands that no node-level cause explains away: the driver's own taint."""
    return unit.slice_fault and not unit.slice_muted


def open_causes(unit: Unit, at_ms: int) -> tuple[str, ...]:
    """Return what keeps an episode open now; each has an end of its own."""
    causes = []
    if any(w.verdict == UNHEALTHY and not w.muted for w in unit.words.values()):
        causes.append("unhealthy")
    if own_evidence(unit):
        causes.append("driver_taint")
    if unit.person_until_ms > at_ms:
        causes.append("hold")
    return tuple(causes)


def fresh(unit: Unit) -> bool:
    """Whether the device is healthy now by a word that is newer than its fault."""
    return unit.verdict == HEALTHY and healthy_at_ms(unit) > unit.fault_at_ms
