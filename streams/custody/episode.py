"""The quarantine record from its opening to its end: holds, further faults, the staged return.

Every function here changes one unit that has, or gets, an open episode, and notes the transition. When to call which is
``device``'s business.
"""

from __future__ import annotations

import msgspec

from sickbay.decisions import (
    CanaryStarted,
    Episode,
    ObservationStarted,
    ProbeStarted,
    QuarantineExtended,
    QuarantineOpened,
    QuarantineReviewDue,
)
from sickbay.envelope import derived_id
from streams.custody.context import Context
from streams.custody.evidence import open_causes
from streams.custody.state import EVIDENCE_LIMIT, ONSETS_LIMIT, Unit


def hold_ms(context: Context, faults: int, failures: int) -> int:
    """Return the minimum hold after ``faults`` faults in the flap window and ``failures`` failed steps."""
    policy = context.policy.quarantine
    steps = min(max(faults - 1, 0) + failures, 64)
    doubled: int = policy.min_hold_ms * policy.hold_factor**steps
    return min(doubled, policy.hold_max_ms)


def new_fault(context: Context, unit: Unit, at_ms: int) -> int:
    """Note a fault onset and return the number of faults in the flap window, this one included."""
    since = at_ms - context.policy.quarantine.flap_window_ms
    unit.onsets_ms = [*(o for o in unit.onsets_ms if o > since), at_ms][-ONSETS_LIMIT:]
    unit.fault_at_ms = at_ms
    return len(unit.onsets_ms)


def open_episode(
    context: Context, unit: Unit, at_ms: int, *, cause: str, reason: str, actor: str, evidence: str, hold: int
) -> None:
    """Put the device in quarantine."""
    quarantine = context.policy.quarantine
    flaps = len(unit.onsets_ms)
    unit.run_since_ms = unit.window_ms = unit.known_at_ms = None
    unit.toggles = 0
    unit.cause = cause
    unit.incident_id = unit.healthy_id = ""
    unit.episode = Episode(
        episode_id=derived_id(
            "episode",
            context.node.node,
            unit.unit_id,
            context.node.node_uid,
            # a hold has no fault: its first version is the request, whatever fault the device had before
            evidence if cause == "hold" else unit.fault_version or evidence,
        ),
        opened_at_ms=at_ms,
        cause=cause,
        reason=reason,
        actor=actor,
        expires_at_ms=at_ms + quarantine.lease_ms,
        flap_count=max(flaps, 1),
        hold_until_ms=at_ms + hold,
        held=context.breaker_open(unit.scope),
        open_causes=open_causes(unit, at_ms) or (cause,),
        evidence=(evidence,) if evidence else (),
    )
    unit.recovered = False
    context.transition(
        QuarantineOpened,
        unit,
        at_ms,
        phase="quarantined",
        clause="quarantine.min_hold_ms",
        reason=reason,
        evidence=unit.episode.evidence,
    )
    review_flaps(context, unit, at_ms)


def renew(context: Context, unit: Unit, at_ms: int) -> None:
    """Note new evidence of a fault that never went away: the lease starts anew, nothing else changes."""
    episode = unit.episode
    assert episode is not None
    unit.episode = msgspec.structs.replace(
        episode,
        expires_at_ms=at_ms + context.policy.quarantine.lease_ms,
        open_causes=open_causes(unit, at_ms),
        evidence=(*episode.evidence, unit.fault_id)[-EVIDENCE_LIMIT:],
    )
    context.transition(
        QuarantineExtended,
        unit,
        at_ms,
        clause="quarantine.lease_ms",
        reason="still faulty, by new evidence",
        evidence=(unit.fault_id,),
    )


def hold(
    context: Context, unit: Unit, at_ms: int, *, until_ms: int, actor: str, reason: str, evidence: str
) -> None:
    """Keep the device out until ``until_ms`` because a person asked for it."""
    unit.person_until_ms = max(unit.person_until_ms, until_ms)
    if unit.episode is None:
        open_episode(
            context,
            unit,
            at_ms,
            cause="hold",
            reason=reason,
            actor=actor,
            evidence=evidence,
            hold=until_ms - at_ms,
        )
        return
    unit.release_requested = False
    unit.episode = msgspec.structs.replace(
        unit.episode,
        return_at_ms=None,
        canary_at_ms=None,
        observing_at_ms=None,
        verification="",
        release_actor="",
        expires_at_ms=max(unit.episode.expires_at_ms, until_ms),
        open_causes=open_causes(unit, at_ms),
        evidence=(*unit.episode.evidence, evidence)[-EVIDENCE_LIMIT:],
    )
    context.transition(
        QuarantineExtended,
        unit,
        at_ms,
        phase="quarantined",
        clause="hold_requested.until_ms",
        reason=f"held by {actor}: {reason}",
        evidence=(evidence,),
    )


def review_flaps(context: Context, unit: Unit, at_ms: int) -> None:
    """Ask for a person once the flap limit is reached."""
    episode, faults = unit.episode, len(unit.onsets_ms)
    if episode is not None and faults == context.policy.quarantine.flap_limit:
        context.transition(
            QuarantineReviewDue,
            unit,
            at_ms,
            clause="quarantine.flap_limit",
            reason=f"{faults} faults inside the flap window",
            evidence=episode.evidence[-1:],
        )


def refault(context: Context, unit: Unit, at_ms: int, reason: str) -> None:
    """Count a further fault of an open episode: back to quarantined, longer."""
    episode = unit.episode
    assert episode is not None
    faults = new_fault(context, unit, at_ms)
    unit.recovered = False
    failures = episode.failures + (1 if unit.phase != "quarantined" else 0)
    unit.release_requested = False
    if episode.cause == "hold":
        unit.cause = "unhealthy"
    unit.episode = msgspec.structs.replace(
        episode,
        cause="unhealthy" if episode.cause == "hold" else episode.cause,
        flap_count=episode.flap_count + 1,
        failures=failures,
        hold_until_ms=max(episode.hold_until_ms, at_ms + hold_ms(context, faults, failures)),
        expires_at_ms=at_ms + context.policy.quarantine.lease_ms,
        return_at_ms=None,
        canary_at_ms=None,
        observing_at_ms=None,
        after_restart=False,
        verification="",
        release_actor="",
        open_causes=open_causes(unit, at_ms),
        evidence=(*episode.evidence, unit.fault_id)[-EVIDENCE_LIMIT:],
    )
    context.transition(
        QuarantineExtended,
        unit,
        at_ms,
        phase="quarantined",
        clause="quarantine.hold_factor",
        reason=reason,
        evidence=(unit.fault_id,),
    )
    review_flaps(context, unit, at_ms)


def fail_step(context: Context, unit: Unit, at_ms: int, clause: str, reason: str, evidence: str = "") -> None:
    """Return a device whose probe or canary failed to quarantine with a longer hold."""
    episode = unit.episode
    assert episode is not None
    failures = episode.failures + 1
    faults = len([o for o in unit.onsets_ms if o > at_ms - context.policy.quarantine.flap_window_ms])
    unit.release_requested = False
    unit.episode = msgspec.structs.replace(
        episode,
        failures=failures,
        hold_until_ms=at_ms + hold_ms(context, faults, failures),
        return_at_ms=None,
        canary_at_ms=None,
        observing_at_ms=None,
        verification="",
        release_actor="",
        evidence=(*episode.evidence, *((evidence,) if evidence else ()))[-EVIDENCE_LIMIT:],
    )
    context.transition(
        QuarantineExtended,
        unit,
        at_ms,
        phase="quarantined",
        clause=clause,
        reason=reason,
        evidence=(evidence,) if evidence else (),
    )


def observation_ms(context: Context, episode: Episode) -> int:
    """Return how long the observation of this return lasts."""
    policy = context.policy.staged_return
    if episode.verification == "prober":
        return policy.observation_ms
    return policy.observation_after_restart_ms if episode.after_restart else policy.observation_only_ms


def begin_return(context: Context, unit: Unit, at_ms: int) -> None:
    """Start the way back: a probe if there is a prober, else a longer observation."""
    episode = unit.episode
    assert episode is not None
    policy = context.policy.staged_return
    if policy.prober == "job":
        unit.episode = msgspec.structs.replace(
            episode, attempt=episode.attempt + 1, return_at_ms=at_ms, verification="prober"
        )
        context.transition(
            ProbeStarted,
            unit,
            at_ms,
            phase="probing",
            clause="staged_return.prober",
            reason=_why_back(unit),
            evidence=_why_back_evidence(unit),
        )
        return
    grace = context.policy.node_incident.restart_grace_ms
    restarts = context.node.restarts_ms
    restart = max(restarts.get("", -1), restarts.get(unit.scope, -1))
    after_restart = restart > episode.opened_at_ms and abs(unit.verdict_since_ms - restart) <= grace
    unit.episode = msgspec.structs.replace(
        episode,
        return_at_ms=at_ms,
        observing_at_ms=at_ms,
        verification="observation_only",
        after_restart=after_restart,
    )
    context.transition(
        ObservationStarted,
        unit,
        at_ms,
        phase="observing",
        clause="staged_return.observation_after_restart_ms"
        if after_restart
        else "staged_return.observation_only_ms",
        reason=f"{_why_back(unit)}; verification: observation_only"
        + ("; healthy right after a restart, which proves nothing" if after_restart else ""),
        evidence=_why_back_evidence(unit),
    )


def _why_back(unit: Unit) -> str:
    if unit.release_requested:
        actor = unit.episode.release_actor if unit.episode else ""
        return f"release requested by {actor}"
    return "fresh Healthy, newer than the fault, after the minimum hold"


def _why_back_evidence(unit: Unit) -> tuple[str, ...]:
    """The word that the device is healthy; a person's request stands in the log as the cause."""
    return (unit.healthy_id,) if unit.healthy_id and not unit.release_requested else ()


def step_passed(context: Context, unit: Unit, at_ms: int, evidence: str) -> None:
    """Move a device whose probe or canary passed to the next step."""
    episode = unit.episode
    assert episode is not None
    evidence_ids = (*episode.evidence, evidence)[-EVIDENCE_LIMIT:]
    if unit.phase == "probing":
        unit.episode = msgspec.structs.replace(episode, canary_at_ms=at_ms, evidence=evidence_ids)
        context.transition(
            CanaryStarted,
            unit,
            at_ms,
            phase="canary",
            clause="staged_return.canary_timeout_ms",
            reason="the probe passed",
            evidence=(evidence,),
        )
    else:
        unit.episode = msgspec.structs.replace(episode, observing_at_ms=at_ms, evidence=evidence_ids)
        context.transition(
            ObservationStarted,
            unit,
            at_ms,
            phase="observing",
            clause="staged_return.observation_ms",
            reason="the canary passed; verification: prober",
            evidence=(evidence,),
        )
