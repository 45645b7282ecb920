"""What a mover reports, as facts whose ids follow from the lease: told again after a crash they are the same facts. Pure."""

from __future__ import annotations

from typing import Final, Literal

from responders.moves.limits import Leased
from responders.moves.steps import StepName
from sickbay.envelope import derived_id
from sickbay.facts import MoveReported, MoveStepReported

ACTOR: Final = "sickbay-respond-move"


def step_fact(lease: Leased, step: StepName, detail: str, now_ms: int) -> MoveStepReported:
    """Return the fact that a step was done."""
    move = lease.move
    return MoveStepReported(
        node=lease.node,
        observed_at_ms=now_ms,
        request_id=derived_id("move-step", move.move_id, str(move.token), step),
        device_id=move.device_id,
        actor=ACTOR,
        move_id=move.move_id,
        token=move.token,
        step=step,
        detail=detail,
    )


def end_fact(
    lease: Leased, outcome: Literal["done", "failed", "deferred"], detail: str, now_ms: int
) -> MoveReported:
    """Return the fact that a lease is over; there is one for each lease, whatever its outcome."""
    move = lease.move
    return MoveReported(
        node=lease.node,
        observed_at_ms=now_ms,
        request_id=derived_id("move-end", move.move_id, str(move.token)),
        device_id=move.device_id,
        actor=ACTOR,
        move_id=move.move_id,
        token=move.token,
        outcome=outcome,
        detail=detail,
    )
