"""Moves of workloads off quarantined devices: planned, leased with a fencing token, rate limited, finished.

Custody decides who should move and who may act now; acting is the mover's business. One move per device, workload and status
version of the fault. A workload that declared neither ability keeps its place, and its owner is told.
"""

from __future__ import annotations

from typing import Final, Literal

from sickbay.decisions import Episode, MoveFinished, MoveLeaseGranted, MoveOutcome, MovePlanned
from sickbay.envelope import derived_id
from streams.custody.context import Context
from streams.custody.state import NEVER, Move, Unit, Word

#: Alert for a workload that stays on a quarantined device; it lasts as long as that.
_NOT_MOVABLE: Final = "workload_not_movable"


def review(context: Context, at_ms: int) -> None:
    """Plan, end and lease moves so that they fit the open episodes, the live workloads and the limits."""
    node = context.node
    if not context.policy.moves.enabled and not node.moves and not node.alerts:
        return
    for move in list(node.moves.values()):
        _end_if_moot(context, move, at_ms)
    stuck: set[str] = set()
    for unit_id in sorted(node.units) if context.policy.moves.enabled else ():
        unit = node.units[unit_id]
        episode = unit.episode
        if episode is None or episode.cause == "hold" or episode.held or unit.phase != "quarantined":
            continue
        for key in sorted(unit.words):
            _plan(context, unit, episode, unit.words[key], at_ms, stuck)
    for kind, about, _ in list(node.alerts.values()):
        if kind == _NOT_MOVABLE and about not in stuck:
            context.clear_alert(
                kind, about, at_ms, reason="it may be moved, it is gone, or the device is on its way back"
            )
    if context.policy.moves.enabled:
        _grant(context, at_ms)


def _end_if_moot(context: Context, move: Move, at_ms: int) -> None:
    unit = context.node.units.get(move.unit_id)
    episode = unit.episode if unit else None
    alive = _is_alive(context, move)
    # a mover that has a lease may have evicted it, and says itself how that ended
    if (
        episode is not None
        and episode.episode_id == move.episode_id
        and (alive or move.expires_at_ms != NEVER)
    ):
        return
    if not move.finished:
        _finish(context, move, at_ms, "workload_gone" if not alive else "episode_closed", "")
    del context.node.moves[move.move_id]


def _is_alive(context: Context, move: Move) -> bool:
    unit = context.node.units.get(move.unit_id)
    return unit is not None and any(word.pod_uid == move.pod_uid for word in unit.words.values())


def _plan(context: Context, unit: Unit, episode: Episode, word: Word, at_ms: int, stuck: set[str]) -> None:
    """Plan the move of one workload, or add it to ``stuck`` and tell its owner."""
    workload = context.node.workloads.get(word.pod_uid)
    if workload is None or workload.ability not in ("checkpoint", "restartable"):
        about = f"{unit.unit_id} {word.namespace}/{word.pod}"
        stuck.add(about)
        context.raise_alert(
            _NOT_MOVABLE,
            about,
            at_ms,
            reason="the workload declares neither checkpoint nor restartable; its owner decides",
            clause="moves.enabled",
        )
        return
    move_id = derived_id("move", episode.episode_id, word.pod_uid, unit.fault_version)
    if move_id in context.node.moves:
        return
    context.node.moves[move_id] = Move(
        move_id=move_id,
        unit_id=unit.unit_id,
        episode_id=episode.episode_id,
        pod_uid=word.pod_uid,
        namespace=word.namespace,
        pod=word.pod,
        planned_at_ms=at_ms,
    )
    context.out.append(
        MovePlanned(
            node=context.node.node,
            at_ms=at_ms,
            clause="moves.enabled",
            reason=f"the device is quarantined and the workload declares {workload.ability}",
            evidence=episode.evidence[-1:],
            device_id=unit.unit_id,
            move_id=move_id,
            episode_id=episode.episode_id,
            pod_uid=word.pod_uid,
            namespace=word.namespace,
            pod=word.pod,
            ability="checkpoint" if workload.ability == "checkpoint" else "restartable",
            topology="shardable" if workload.topology == "shardable" else "whole",
        )
    )


def _grant(context: Context, at_ms: int) -> None:
    policy = context.policy.moves
    moves = sorted(context.node.moves.values(), key=lambda move: _order(context, move))
    running = sum(1 for m in moves if m.expires_at_ms != NEVER)
    for move in moves:
        if running >= policy.per_node:
            return
        unit = context.node.units[move.unit_id]
        if move.finished or move.expires_at_ms != NEVER or move.deferred_until_ms != NEVER:
            continue
        if context.breaker_open(unit.scope):
            continue
        move.token += 1
        move.attempts += 1
        move.expires_at_ms = at_ms + policy.lease_ms
        running += 1
        context.out.append(
            MoveLeaseGranted(
                node=context.node.node,
                at_ms=at_ms,
                clause="moves.per_node",
                reason=f"attempt {move.attempts} of {policy.attempts}",
                device_id=move.unit_id,
                move_id=move.move_id,
                episode_id=move.episode_id,
                pod_uid=move.pod_uid,
                namespace=move.namespace,
                pod=move.pod,
                token=move.token,
                expires_at_ms=move.expires_at_ms,
            )
        )


def _order(context: Context, move: Move) -> tuple[int, int, int, str]:
    """Return who goes first: the tenant's priority, the Pod's, the time of the plan."""
    workload = context.node.workloads.get(move.pod_uid)
    return (
        -context.policy.moves.tenant_priority.get(move.namespace, 0),
        -workload.priority if workload else 0,
        move.planned_at_ms,
        move.move_id,
    )


def _finish(context: Context, move: Move, at_ms: int, outcome: MoveOutcome, detail: str) -> None:
    move.finished = True
    move.expires_at_ms = move.deferred_until_ms = NEVER
    context.out.append(
        MoveFinished(
            node=context.node.node,
            at_ms=at_ms,
            clause="moves.attempts",
            reason=detail or outcome,
            device_id=move.unit_id,
            move_id=move.move_id,
            episode_id=move.episode_id,
            pod_uid=move.pod_uid,
            namespace=move.namespace,
            pod=move.pod,
            token=move.token,
            outcome=outcome,
        )
    )


def reported(
    context: Context,
    move_id: str,
    token: int,
    outcome: Literal["done", "failed", "deferred"],
    detail: str,
    at_ms: int,
) -> None:
    """Take a mover's word if its lease is the running one; a fenced one does nothing."""
    move = context.node.moves.get(move_id)
    if move is None or move.finished or move.token != token or move.expires_at_ms == NEVER:
        return
    if outcome == "deferred":
        move.attempts -= 1
        move.expires_at_ms = NEVER
        move.deferred_until_ms = at_ms + context.policy.moves.defer_ms
    elif (
        outcome == "done"
        or move.attempts >= context.policy.moves.attempts
        # evicted, and not replaced: there is nothing left to try again
        or not _is_alive(context, move)
    ):
        _finish(context, move, at_ms, outcome, detail)
    else:
        move.expires_at_ms = NEVER
    review(context, at_ms)


def expire(context: Context, move: Move, at_ms: int) -> None:
    """End a lease whose mover said nothing, or the wait of one that was given back."""
    if move.expires_at_ms == NEVER:
        move.deferred_until_ms = NEVER
    elif move.attempts >= context.policy.moves.attempts:
        _finish(context, move, at_ms, "timed_out", f"{move.attempts} attempts without a word")
    else:
        move.expires_at_ms = NEVER
    review(context, at_ms)
