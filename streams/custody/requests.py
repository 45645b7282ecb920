"""Requests by people and executors: each may be refused, and one for another episode or a fenced lease does nothing.

A refused request stands in the log as it came; nothing more is owed to it.
"""

from __future__ import annotations

import msgspec

from sickbay.codec import fact_id
from sickbay.decisions import QuarantineExtended
from sickbay.facts import CanaryReported, HoldRequested, MoveReported, ProbeReported, ReleaseRequested
from streams.custody import moves
from streams.custody.context import Context
from streams.custody.device import due_ms
from streams.custody.episode import begin_return, fail_step, hold, step_passed
from streams.custody.evidence import covering, open_causes, verdict_of
from streams.custody.state import EVIDENCE_LIMIT, UNHEALTHY


def hold_requested(context: Context, fact: HoldRequested, at_ms: int) -> None:
    """A person wants the device out until a time."""
    unit = context.node.units.get(fact.device_id)
    if unit is None or fact.until_ms <= at_ms:
        return
    hold(
        context,
        unit,
        at_ms,
        until_ms=fact.until_ms,
        actor=fact.actor,
        reason=fact.reason,
        evidence=fact_id(fact),
    )
    unit.due_ms = due_ms(context, unit)


def release_requested(context: Context, fact: ReleaseRequested, at_ms: int) -> None:
    """A person wants the way back to begin; standing bad words are acknowledged until they change."""
    unit = context.node.units.get(fact.device_id)
    if unit is None or unit.episode is None or unit.episode.episode_id != fact.episode_id:
        return
    if unit.phase != "quarantined":
        return
    for word in unit.words.values():
        word.muted = word.verdict == UNHEALTHY
    unit.slice_muted = unit.slice_fault
    unit.onsets_ms = []
    unit.person_until_ms = -1
    unit.release_requested = True
    parent = context.node.units.get(unit.parent) if unit.parent else None
    unit.verdict = verdict_of(unit, parent is not None and parent.verdict == UNHEALTHY)
    unit.verdict_since_ms = at_ms
    # after a person's word the counters start anew, else the next fault is held against what was before it (leptonai/gpud#1072)
    unit.episode = msgspec.structs.replace(
        unit.episode,
        release_actor=fact.actor,
        open_causes=open_causes(unit, at_ms),
        flap_count=0,
        failures=0,
        evidence=(*unit.episode.evidence, fact_id(fact))[-EVIDENCE_LIMIT:],
    )
    if covering(context, unit) is None:
        begin_return(context, unit, at_ms)
    else:
        context.transition(
            QuarantineExtended,
            unit,
            at_ms,
            clause="staged_return.prober",
            reason=f"release requested by {fact.actor}; the way back begins when the node incident is over",
            evidence=(fact_id(fact),),
        )
    unit.due_ms = due_ms(context, unit)


def step_reported(context: Context, fact: ProbeReported | CanaryReported, at_ms: int) -> None:
    """A prober or a canary spoke."""
    unit = context.node.units.get(fact.device_id)
    step = "probing" if isinstance(fact, ProbeReported) else "canary"
    episode = unit.episode if unit else None
    if (
        unit is None
        or episode is None
        or (unit.phase, episode.episode_id, episode.attempt) != (step, fact.episode_id, fact.attempt)
    ):
        return
    if fact.passed:
        step_passed(context, unit, at_ms, fact_id(fact))
    else:
        name = "probe" if step == "probing" else "canary"
        fail_step(
            context,
            unit,
            at_ms,
            f"staged_return.{name}_timeout_ms",
            f"the {name} failed: {fact.detail}",
            fact_id(fact),
        )
    unit.due_ms = due_ms(context, unit)


def move_reported(context: Context, fact: MoveReported, at_ms: int) -> None:
    """A mover spoke."""
    moves.reported(context, fact.move_id, fact.token, fact.outcome, fact.detail, at_ms)
