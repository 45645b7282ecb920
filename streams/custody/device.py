"""The rules for one device at one moment of event time.

``judge`` looks at the level (verdict, incident, phase) and moves the device where it belongs; ``due_ms`` says when time alone
will change that, and ``fire`` carries it out. Order of arrival is not this module's business: ``timeline`` calls it in order of
event time.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sickbay.decisions import (
    DeviceCleared,
    DeviceRestricted,
    DeviceSuspected,
    Episode,
    QuarantineExtended,
    QuarantineReviewDue,
)
from streams.custody.context import Context
from streams.custody.episode import (
    begin_return,
    fail_step,
    hold_ms,
    new_fault,
    observation_ms,
    open_episode,
    refault,
    renew,
)
from streams.custody.evidence import covering, fresh, open_causes, own_evidence, silence_counts
from streams.custody.state import HEALTHY, NEVER, NONE, RUNS_LIMIT, UNHEALTHY, UNKNOWN, Incident, Unit

#: Toggles between known and unknown inside one run that make it a flapping one.
_FLAPPING_TOGGLES: Final = 6


def judge(context: Context, unit: Unit, at_ms: int, *, fault: bool = False) -> None:
    """Move the device where its verdict, its incident and its phase say it belongs.

    ``fault`` says that a fault began at this moment; without it a standing one opens an episode only if none was.
    """
    if unit.episode is not None:
        _judge_episode(context, unit, at_ms, fault=fault)
    else:
        _judge_free(context, unit, at_ms)
    unit.due_ms = due_ms(context, unit)


def _judge_episode(context: Context, unit: Unit, at_ms: int, *, fault: bool) -> None:
    episode = unit.episode
    assert episode is not None
    if unit.verdict == UNHEALTHY and (own_evidence(unit) or covering(context, unit) is None):
        if unit.phase != "quarantined":
            refault(context, unit, at_ms, "a fault on the way back")
            return
        if fault or episode.cause == "hold":
            if unit.recovered or episode.cause == "hold":
                refault(context, unit, at_ms, "a further fault")
            else:
                renew(context, unit, at_ms)
            return
    causes = open_causes(unit, at_ms)
    if causes != episode.open_causes:
        unit.episode = msgspec.structs.replace(
            episode,
            open_causes=causes,
            expires_at_ms=max(episode.expires_at_ms, at_ms + context.policy.quarantine.lease_ms)
            if len(causes) > len(episode.open_causes)
            else episode.expires_at_ms,
        )
        context.transition(
            QuarantineExtended,
            unit,
            at_ms,
            clause="quarantine.lease_ms",
            reason=f"open causes: {', '.join(causes) or 'none, waiting for fresh health and the hold'}",
        )


def _judge_free(context: Context, unit: Unit, at_ms: int) -> None:
    incident = covering(context, unit)
    if unit.verdict == UNHEALTHY and (incident is None or own_evidence(unit)):
        new_fault(context, unit, at_ms)
        cause = "driver_taint" if own_evidence(unit) else "unhealthy"
        open_episode(
            context,
            unit,
            at_ms,
            cause=cause,
            reason="the driver's slice marks the device faulty"
            if cause == "driver_taint"
            else "reported Unhealthy",
            actor="sickbay",
            evidence=unit.fault_id,
            hold=hold_ms(context, len(unit.onsets_ms), 0),
        )
    elif incident is not None and (
        unit.verdict == UNHEALTHY
        or incident.cause == "node_lost"
        or (unit.verdict == UNKNOWN and incident.cause == "plugin_down")
    ):
        _explain(context, unit, at_ms, incident)
    elif unit.verdict == UNKNOWN:
        _run(context, unit, at_ms, incident.incident_id if incident else "")
    else:
        _calm(context, unit, at_ms)


def _explain(context: Context, unit: Unit, at_ms: int, incident: Incident) -> None:
    """The node incident explains the device's state: no episode, no run of its own."""
    unit.known_at_ms = None
    faulty = unit.verdict == UNHEALTHY
    explained = unit.cause == "node_incident" and unit.incident_id == incident.incident_id
    if explained and (unit.phase == "restricted" or not faulty):
        return
    unit.run_since_ms = unit.window_ms = None
    unit.toggles = 0
    blocked = faulty or unit.phase == "restricted"
    unit.cause, unit.incident_id = "node_incident", incident.incident_id
    context.transition(
        DeviceRestricted if blocked else DeviceSuspected,
        unit,
        at_ms,
        phase="restricted" if blocked else "suspect",
        clause="node_incident.burst_ms",
        reason=f"explained by node incident {incident.cause} {incident.incident_id}",
        evidence=(unit.fault_id,) if faulty else (),
    )


def _run(context: Context, unit: Unit, at_ms: int, incident_id: str) -> None:
    """The device's health is not known: begin a run, or go on with it. ``incident_id`` is the mass turn it is part of."""
    unknown = context.policy.unknown
    if unit.run_since_ms is None:
        unit.ended_runs_ms = [e for e in unit.ended_runs_ms if e > at_ms - unknown.backoff_memory_ms]
        steps = min(len(unit.ended_runs_ms), 64)
        unit.run_since_ms = at_ms
        unit.window_ms = min(unknown.window_ms * unknown.backoff_factor**steps, unknown.window_max_ms)
        unit.toggles = 0
    elif unit.known_at_ms is not None:
        unit.toggles += 1
        if unit.toggles == _FLAPPING_TOGGLES:
            context.raise_alert(
                "flapping",
                unit.unit_id,
                at_ms,
                reason="health comes and goes inside one Unknown run",
                clause="unknown.hold_down_ms",
            )
    unit.known_at_ms = None
    if unit.phase == "in_service" or unit.cause == "node_incident" or unit.incident_id != incident_id:
        withdrawn = unit.withdrawn and not any(w.verdict == UNKNOWN for w in unit.words.values())
        unit.cause = (
            "withdrawn"
            if withdrawn
            else "unmonitored"
            if unit.unmonitored and not _said_unknown(unit)
            else "unknown"
        )
        unit.incident_id = incident_id
        context.transition(
            DeviceSuspected if unit.phase != "restricted" else DeviceRestricted,
            unit,
            at_ms,
            phase="suspect" if unit.phase != "restricted" else "restricted",
            clause="unknown.window_ms",
            reason=f"health is not known ({unit.cause}); window {unit.window_ms} ms",
        )


def _said_unknown(unit: Unit) -> bool:
    return any(word.verdict == UNKNOWN for word in unit.words.values())


def _calm(context: Context, unit: Unit, at_ms: int) -> None:
    """Nothing adverse is said now; time must show that it lasts."""
    if unit.phase == "in_service":
        return
    explained = bool(unit.incident_id) and unit.run_since_ms is None
    # of a device that nobody monitors nothing was known but that it is published, and it is again
    is_back = unit.verdict == NONE and unit.cause == "withdrawn" and not unit.withdrawn
    if unit.verdict == HEALTHY or explained or is_back:
        if unit.known_at_ms is None:
            unit.known_at_ms = at_ms
        if explained and unit.phase == "suspect":
            clear(context, unit, at_ms, "node_incident.settle_ms", "the node-level cause is gone")
    else:
        unit.known_at_ms = None


def clear(context: Context, unit: Unit, at_ms: int, clause: str, reason: str) -> None:
    """Put a suspect or restricted device back in service."""
    if unit.run_since_ms is not None:
        unit.ended_runs_ms = [*unit.ended_runs_ms, at_ms][-RUNS_LIMIT:]
    context.clear_alert("flapping", unit.unit_id, at_ms, reason="the Unknown run is over")
    unit.run_since_ms = unit.window_ms = unit.known_at_ms = None
    unit.toggles = 0
    unit.cause = unit.incident_id = ""
    context.transition(DeviceCleared, unit, at_ms, phase="in_service", clause=clause, reason=reason)


def due_ms(context: Context, unit: Unit) -> int:
    """Return when time alone will move the device, NEVER if it will not."""
    if unit.episode is not None:
        return _episode_due_ms(context, unit, unit.episode)
    due = NEVER
    if unit.phase in ("suspect", "restricted") and unit.known_at_ms is not None:
        wait = (
            context.policy.unknown.hold_down_ms
            if unit.phase == "suspect"
            else context.policy.unknown.settle_ms
        )
        due = context.sighted(unit.known_at_ms + wait)
    if may_restrict(context, unit) and not context.breaker_open(unit.scope):
        assert unit.run_since_ms is not None
        assert unit.window_ms is not None
        due = min(due, context.sighted(unit.run_since_ms + unit.window_ms))
    return due


def may_restrict(context: Context, unit: Unit) -> bool:
    """Whether the end of its Unknown window restricts the device, unless a breaker is open."""
    return (
        unit.phase == "suspect"
        and unit.run_since_ms is not None
        and unit.window_ms is not None
        and unit.verdict != NONE
        and (unit.cause != "unmonitored" or context.policy.unknown.restrict_unmonitored)
        and silence_counts(context, unit)
    )


def _episode_due_ms(context: Context, unit: Unit, episode: Episode) -> int:
    due = episode.expires_at_ms
    if unit.phase == "probing":
        assert episode.return_at_ms is not None
        return min(due, episode.return_at_ms + context.policy.staged_return.probe_timeout_ms)
    if unit.phase == "canary":
        assert episode.canary_at_ms is not None
        return min(due, episode.canary_at_ms + context.policy.staged_return.canary_timeout_ms)
    if covering(context, unit) is not None:
        return due
    if unit.phase == "observing":
        if fresh(unit):
            assert episode.observing_at_ms is not None
            since = max(episode.observing_at_ms, unit.verdict_since_ms)
            due = min(due, context.sighted(since + observation_ms(context, episode)))
        return due
    if unit.release_requested:
        return min(due, unit.since_ms)
    if unit.person_until_ms >= 0 and "hold" in episode.open_causes:
        due = min(due, unit.person_until_ms)
    wait = max(episode.hold_until_ms, unit.person_until_ms, unit.verdict_since_ms)
    if episode.cause == "hold" and unit.verdict != UNHEALTHY:
        return min(due, unit.person_until_ms)
    if fresh(unit):
        due = min(due, context.sighted(wait))
    return due


def fire(context: Context, unit: Unit, at_ms: int) -> None:
    """Carry out the deadline of ``unit`` that fell due at ``at_ms``."""
    episode = unit.episode
    if episode is None:
        _fire_free(context, unit, at_ms)
    elif at_ms >= episode.expires_at_ms:
        unit.episode = msgspec.structs.replace(
            episode,
            extensions=episode.extensions + 1,
            expires_at_ms=at_ms + context.policy.quarantine.lease_ms,
        )
        context.transition(
            QuarantineReviewDue,
            unit,
            at_ms,
            clause="quarantine.lease_ms",
            reason="the lease ran out without new evidence: extended, never released",
        )
    elif unit.phase == "probing":
        fail_step(context, unit, at_ms, "staged_return.probe_timeout_ms", "the probe said nothing in time")
    elif unit.phase == "canary":
        fail_step(context, unit, at_ms, "staged_return.canary_timeout_ms", "the canary said nothing in time")
    elif unit.phase == "observing":
        context.close_episode(
            unit,
            at_ms,
            "returned",
            phase="in_service",
            clause="staged_return.observation_ms"
            if episode.verification == "prober"
            else "staged_return.observation_after_restart_ms"
            if episode.after_restart
            else "staged_return.observation_only_ms",
            reason=f"healthy through the whole observation; verification: {episode.verification}",
        )
    elif episode.cause == "hold" and not unit.release_requested:
        context.close_episode(
            unit,
            at_ms,
            "hold_ended",
            phase="in_service",
            clause="hold_requested.until_ms",
            reason=f"the hold of {episode.actor} ended",
        )
        _judge_free(context, unit, at_ms)
    elif unit.person_until_ms >= 0 and at_ms >= unit.person_until_ms and "hold" in episode.open_causes:
        unit.person_until_ms = -1
        _judge_episode(context, unit, at_ms, fault=False)
    else:
        begin_return(context, unit, at_ms)
    unit.due_ms = due_ms(context, unit)


def _fire_free(context: Context, unit: Unit, at_ms: int) -> None:
    window_over = (
        unit.phase == "suspect"
        and unit.run_since_ms is not None
        and unit.window_ms is not None
        and at_ms >= unit.run_since_ms + unit.window_ms
    )
    if unit.known_at_ms is not None:
        policy = context.policy.unknown
        wait = policy.hold_down_ms if unit.phase == "suspect" else policy.settle_ms
        if at_ms >= unit.known_at_ms + wait:
            clause = "unknown.hold_down_ms" if unit.phase == "suspect" else "unknown.settle_ms"
            clear(context, unit, at_ms, clause, "known again, and it lasted")
            return
    assert window_over, "a deadline fired that nothing explains"
    context.transition(
        DeviceRestricted,
        unit,
        at_ms,
        phase="restricted",
        clause="unknown.window_ms",
        reason=f"health not known for longer than {unit.window_ms} ms while the node is alive",
    )
