"""Node-level causes: a lost node, a plugin that is down, a whole resource that turned at once.

One cause on the node is one incident, not eight episodes (design, section 7). Opening one absorbs the episodes that it explains;
closing one leaves each device to be judged alone.
"""

from __future__ import annotations

from sickbay.decisions import NodeIncidentOpened
from sickbay.envelope import derived_id
from streams.custody.context import Context
from streams.custody.device import judge
from streams.custody.evidence import own_evidence
from streams.custody.state import NEVER, NONE, UNHEALTHY, UNKNOWN, Cause, Incident, Unit


def covered(context: Context, scope: str) -> list[Unit]:
    """Return the units that an incident of ``scope`` explains, in order of their ids."""
    units = context.node.units
    return [units[key] for key in sorted(units) if scope in ("", units[key].scope)]


def find(context: Context, cause: Cause, scope: str) -> Incident | None:
    """Return the open incident of that cause and scope."""
    for incident in context.node.incidents.values():
        if incident.cause == cause and incident.scope == scope:
            return incident
    return None


def open_incident(
    context: Context, cause: Cause, scope: str, at_ms: int, *, start_ms: int, lead_ms: int, reason: str
) -> None:
    """Open an incident that began at ``start_ms``; what began ``lead_ms`` before that is explained too."""
    node = context.node
    incident = Incident(
        incident_id=derived_id("incident", node.node, node.node_uid, cause, scope, str(start_ms), str(at_ms)),
        cause=cause,
        scope=scope,
        start_ms=start_ms,
        opened_at_ms=at_ms,
    )
    node.incidents[incident.incident_id] = incident
    node.touched_ms = at_ms
    units = covered(context, scope)
    context.out.append(
        NodeIncidentOpened(
            node=node.node,
            at_ms=at_ms,
            clause="node_incident.burst_ms",
            reason=reason,
            evidence=tuple(
                sorted({u.fault_id for u in units if u.fault_id and u.adverse_since_ms >= start_ms - lead_ms})
            )[:16],
            incident_id=incident.incident_id,
            cause=cause,
            scope=scope,
            devices=tuple(u.unit_id for u in units if u.present),
        )
    )
    for unit in units:
        episode = unit.episode
        if (
            episode is not None
            and episode.cause == "unhealthy"
            and episode.opened_at_ms >= start_ms - lead_ms
            and not own_evidence(unit)
            and unit.person_until_ms < at_ms
        ):
            faulty = unit.verdict == UNHEALTHY
            unit.cause, unit.incident_id = "node_incident", incident.incident_id
            context.close_episode(
                unit,
                at_ms,
                "absorbed",
                phase="restricted" if faulty else "suspect",
                clause="node_incident.burst_ms",
                reason=f"explained by node incident {cause} {incident.incident_id}",
            )
            unit.onsets_ms = [o for o in unit.onsets_ms if o < start_ms - lead_ms]
            # what is left of the same fault when the incident is over is another episode: a closed one never opens again
            unit.fault_version = f"{unit.fault_version}@{incident.incident_id}"
        judge(context, unit, at_ms)


def close_incident(context: Context, incident: Incident, at_ms: int, reason: str) -> None:
    """Close an incident and judge each device alone."""
    context.node.touched_ms = at_ms
    context.close_incident(incident.incident_id, at_ms, "recovered", reason)
    for unit in covered(context, incident.scope):
        judge(context, unit, at_ms)


def ease(context: Context, incident: Incident, at_ms: int) -> None:
    """The cause is gone: the devices get the settle time to follow."""
    if incident.closing_at_ms == NEVER:
        incident.closing_at_ms = at_ms + context.policy.node_incident.settle_ms
        context.node.restarts_ms[incident.scope] = at_ms


def watch_turns(context: Context, scope: str, at_ms: int) -> None:
    """Open, hold or ease the ``mass_turn`` incident of a resource after one of its devices changed."""
    policy = context.policy.node_incident
    # an idle device has nobody to speak of it, so it neither takes part nor stands against
    units = [u for u in context.node.units.values() if u.scope == scope and u.present and u.verdict != NONE]
    adverse = [u for u in units if u.verdict >= UNKNOWN]
    incident = find(context, "mass_turn", scope)
    if incident is not None:
        if not adverse or len(adverse) < len(units):
            ease(context, incident, at_ms)
        else:
            incident.closing_at_ms = NEVER
        return
    if len(adverse) < policy.min_devices or len(adverse) < len(units):
        return
    turned = [u for u in adverse if u.adverse_since_ms >= at_ms - policy.burst_ms]
    if (
        # partitions of one card are one piece of hardware
        len({u.card or u.unit_id for u in turned}) < policy.min_devices
        or find(context, "plugin_down", scope)
        or find(context, "node_lost", "")
    ):
        return
    start_ms = min(u.adverse_since_ms for u in turned)
    open_incident(
        context,
        "mass_turn",
        scope,
        at_ms,
        start_ms=start_ms,
        lead_ms=0,
        reason=f"all {len(units)} devices of {scope} adverse, {len(turned)} of them within {policy.burst_ms} ms",
    )


def watch_node(context: Context, at_ms: int, *, start_ms: int) -> None:
    """Open or ease ``node_lost`` after the node's Lease or Ready condition changed."""
    node = context.node
    lost = node.lease_lapsed or node.ready == "Unknown"
    incident = find(context, "node_lost", "")
    if lost and incident is None:
        open_incident(
            context,
            "node_lost",
            "",
            at_ms,
            start_ms=start_ms,
            # losing a node makes no device faulty: what its kubelet still said is evidence
            lead_ms=start_ms - at_ms,
            reason="the node's Lease lapsed"
            if node.lease_lapsed
            else "the node's Ready condition is Unknown",
        )
    elif lost and incident is not None:
        incident.closing_at_ms = NEVER
    elif incident is not None:
        ease(context, incident, at_ms)


def watch_resource(context: Context, name: str, capacity: int, allocatable: int, at_ms: int) -> None:
    """Open or ease ``plugin_down`` after what the node can give of a device-plugin resource changed.

    Allocatable 0 with capacity left is a plugin that went away; capacity 0 too is one that the kubelet forgot after five
    minutes (endpointStopGracePeriod), and the devices are unknown and not recovered.
    """
    incident = find(context, "plugin_down", name)
    if allocatable > 0:
        if incident is not None:
            ease(context, incident, at_ms)
        return
    if incident is not None:
        incident.closing_at_ms = NEVER
    elif capacity > 0 and not told_faulty(context, name, capacity):
        open_incident(
            context,
            "plugin_down",
            name,
            at_ms,
            start_ms=at_ms,
            lead_ms=context.policy.node_incident.lead_ms,
            reason=f"allocatable {name} fell to 0 with capacity {capacity}",
        )


def told_faulty(context: Context, name: str, capacity: int) -> bool:
    """Whether the few devices of a resource say themselves that they are faulty, so that no plugin need be down.

    On a node with one or two devices allocatable 0 is what their faults look like.
    """
    faulty = sum(1 for u in context.node.units.values() if u.scope == name and u.verdict == UNHEALTHY)
    return 0 < capacity <= faulty and capacity < context.policy.node_incident.min_devices


def reconsider_plugin(context: Context, name: str, capacity: int, at_ms: int) -> None:
    """Close a ``plugin_down`` incident that the devices' own words, which came after it, explain."""
    incident = find(context, "plugin_down", name)
    if incident is not None and told_faulty(context, name, capacity):
        close_incident(context, incident, at_ms, "the devices say themselves that they are faulty")
