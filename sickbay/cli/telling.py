"""Words for a person: what one event says, and the whole life of an episode in one order of time."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from projections.explain import Explanation, Step
from projections.records import LogRecord
from sickbay.cli import output
from sickbay.decisions import CustodyDecision, Decision, MoveDecision
from sickbay.facts import (
    CanaryReported,
    DeviceHealthObserved,
    DevicePublished,
    ExclusionReported,
    Fact,
    MoveReported,
    MoveStepReported,
    ProbeReported,
    Request,
)

LIFE_COLUMNS: Final = ("at_ms", "part", "kind", "what", "partition", "offset", "event_id")


def what_of(event: Fact | Decision | None) -> str:
    """Say in a few words what an event says."""
    match event:
        case CustodyDecision():
            change = (
                event.phase_before
                if event.phase_before == event.record.phase
                else f"{event.phase_before} -> {event.record.phase}"
            )
            return f"{change}: {event.reason}"
        case DeviceHealthObserved():
            said = event.health if event.health_raw is not None else f"{event.health} ({event.absence})"
            frozen = "" if event.live else " (frozen: the Pod ended)"
            message = f': "{event.message}"' if event.message else ""
            return f"{event.namespace}/{event.pod} says {said}{frozen}{message}"
        case DevicePublished():
            taints = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in event.taints)
            return f"generation {event.pool_generation}, {f'taints {taints}' if taints else 'no taint'}"
        case None:
            return "an event of a newer build"
        case _:
            fields = msgspec.structs.asdict(event)
            told = {k: v for k, v in fields.items() if k in _TOLD and v not in ("", None)}
            return ", ".join(f"{output.name_of(k)} {output.shown(k, v)}" for k, v in told.items())


_TOLD = frozenset(
    {"reason", "actor", "until_ms", "passed", "outcome", "detail", "token", "alert", "episode_id"}
    | {"rule", "effect", "state", "step"}
)


def part_of(record: LogRecord) -> str:
    """Return what part of a life an event is: exclusion, move, probe, canary, request, decision or fact."""
    match record.event:
        case ExclusionReported():
            return "exclusion"
        case MoveDecision() | MoveReported() | MoveStepReported():
            return "move"
        case ProbeReported():
            return "probe"
        case CanaryReported():
            return "canary"
        case Request():
            return "request"
        case Decision():
            return "decision"
        case _:
            return "fact"


def life_row(record: LogRecord) -> tuple[Any, ...]:
    """Return one event of a life, in the order of ``LIFE_COLUMNS``."""
    envelope = record.envelope
    return (
        envelope.at_ms,
        part_of(record),
        envelope.kind,
        what_of(record.event),
        record.partition,
        record.offset,
        envelope.event_id,
    )


def tell(found: Explanation, steps: list[Step], as_of_ms: int | None) -> None:
    """Print an episode: its steps with what each rested on, and between them, by time, what was done and reported for it."""
    episode = found.episode
    output.line(f"episode {episode['episode_id']} of {episode['device_id']} on {episode['node']}")
    state = (
        f"closed {output.shown('at_ms', episode['closed_at_ms'])}, outcome {episode['outcome']}"
        if episode["closed_at_ms"] is not None
        else f"open, {episode['phase']}, open causes: {episode['open_causes'] or 'none'}"
    )
    output.line(
        f"  {state}; {episode['flap_count']} fault(s), verification {episode['verification'] or 'not begun'}"
    )
    by_offset = {step.decision.offset: step for step in steps}
    #: What a step says it was told by, or rests on, is not told a second time.
    shown = {record.offset for step in steps for record in (*step.evidence, step.cause) if record is not None}
    is_apart = True
    for record in found.life:
        step = by_offset.get(record.offset)
        if step is not None:
            _tell_step(step)
            is_apart = True
        elif (
            (as_of_ms is None or record.envelope.at_ms <= as_of_ms)
            and record.offset not in shown
            and part_of(record) not in ("decision", "fact")
        ):
            if is_apart:
                output.line("")
            is_apart = False
            at = output.shown("at_ms", record.envelope.at_ms)
            output.line(
                f"  {part_of(record):<10}{at}  {record.envelope.kind}  {what_of(record.event)}".rstrip()
            )
    for title, rows in (("incident", found.incidents), ("move", found.moves), ("alert", found.alerts)):
        for row in rows:
            told = ", ".join(
                f"{output.name_of(k)} {output.shown(k, v)}" for k, v in row.items() if v not in (None, "")
            )
            output.line(f"  {title}: {told}")


def _tell_step(step: Step) -> None:
    at = output.shown("at_ms", step.decision.envelope.at_ms)
    output.line("")
    for record in step.evidence:
        seen = output.shown("at_ms", record.envelope.at_ms)
        output.line(f"  fact      {seen}  {record.envelope.kind}  {what_of(record.event)}")
    if step.cause is not None and step.cause not in step.evidence:
        seen = output.shown("at_ms", step.cause.envelope.at_ms)
        output.line(f"  told by   {seen}  {step.cause.envelope.kind}  {what_of(step.cause.event)}".rstrip())
    output.line(f"  decision  {at}  {step.decision.envelope.kind}: {step.reason}")
    output.line(f"            by policy {step.policy}, clause {step.clause or '(none)'}")
    before = step.before.phase if step.before else "in_service"
    output.line(f"  so        {before} -> {step.after.phase}")
