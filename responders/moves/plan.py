"""One move as a state machine: from what stands, what was done under this lease and what the cluster shows, the next step. Pure.

The order is fixed: stop hooks, checkpoint hooks, evictions, replacements. Nothing is begun that the lease does not cover, and
nothing at all is done once it ran out or passed on (fencing). Nothing is evicted whose hook failed, that nobody would replace, or
whose disruption budget forbids it. What was stopped and stays is resumed, after the failure was recorded: from then on nothing is
evicted under this lease. A step may be asked for again after a crash; whoever carries it out bears that: hooks by the key of the
lease, evictions by preconditions, reports and events by derived ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from responders.moves.declared import ExecHook, Hook
from responders.moves.pods import Pod
from responders.moves.replacing import Member
from responders.moves.steps import (
    Begin,
    Begun,
    CallHook,
    End,
    Evict,
    HookKind,
    Progress,
    ReportStep,
    Resume,
    Seen,
    Step,
    StepName,
    Stop,
    TellFailure,
    TellStopped,
    Wait,
)
from responders.view import Move
from sickbay.policy import MovePolicy

#: No step is begun in the last part of a lease: a request that is under way must end before another mover may act.
_MARGIN_MS: Final = 30_000
#: Pods that move together at most.
GROUP_MAX: Final = 256
#: Pods that are resumed at once: a group is many, and what is left of the lease may be little.
_RESUMED_AT_ONCE: Final = 16
_NOTHING_DONE: Final = "nothing was done"


def margin_ms(policy: MovePolicy) -> int:
    """Return how long before the end of a lease nothing more is begun: thirty seconds, or a tenth of a short lease."""
    return min(_MARGIN_MS, policy.lease_ms // 10)


def next_step(seen: Seen, done: Progress, policy: MovePolicy) -> Step:
    """Return what to do next for one lease."""
    lease, stands = seen.lease, seen.stands
    if done.ended or seen.now_ms >= lease.expires_at_ms:
        return Stop()
    if stands is None:
        return _taken_back(seen, done, policy)
    if stands.token != lease.token or seen.now_ms >= stands.expires_at_ms:
        return Stop()
    left_ms = lease.expires_at_ms - margin_ms(policy) - seen.now_ms
    if done.failure:
        return _failing(seen, done, policy)
    if done.begun is None:
        return _before(seen, left_ms)
    here = _here(seen, done.begun)
    if here:
        return _until_evicted(seen, done, policy, left_ms, here)
    return _after(seen, done, policy, left_ms)


def _here(seen: Seen, begun: Begun) -> list[Pod]:
    """Return the members that are there and not going, in their order.

    The record is an object that others may write, so it alone moves nobody: a Pod besides the one that custody named must say
    itself that it belongs to the group.
    """
    found = (seen.pods.get(member.uid) for member in still_moving(begun, seen.lease, seen.pods))
    return [pod for pod in found if pod is not None and not (pod.deleting or pod.ended)]


def still_moving(begun: Begun, lease: Move, pods: Mapping[str, Pod]) -> tuple[Member, ...]:
    """Return the members that move: all but those that are there and do not belong to the group any more."""

    def belongs(uid: str) -> bool:
        pod = pods.get(uid)
        if pod is None or pod.deleting or pod.ended or uid == lease.pod_uid:
            return True
        return bool(begun.group) and pod.declared.group == begun.group

    return tuple(member for member in begun.members if belongs(member.uid))


# --- before anything was done -------------------------------------------------------------------------------------------


def _before(seen: Seen, left_ms: int) -> Step:
    pod = seen.pods.get(seen.lease.pod_uid)
    if pod is None or pod.ended or pod.deleting:
        return End("deferred", "the Pod has ended or is going, and nobody moved it")
    if seen.halted:
        return End("deferred", f"{seen.halted}; {_NOTHING_DONE}")
    if left_ms <= 0:
        return End("deferred", f"the lease is nearly over; {_NOTHING_DONE}")
    if seen.waits_for_other:
        return Wait("another move of the same workload is under way")
    if not seen.admitted:
        return End("deferred", f"moves.cluster moves are under way; {_NOTHING_DONE}")
    moving = _moving(seen, pod)
    for each in moving:
        if why := _immovable(each, seen, moving):
            return TellFailure(why)
    if len(moving) > min(GROUP_MAX, seen.evictions_max):
        return TellFailure(
            f"the group has {len(moving)} Pods; together move at most {GROUP_MAX}, and no more than"
            f" moves.cluster_per_hour, which is {seen.evictions_max}",
        )
    if len(moving) > seen.evictions_left:
        return End(
            "deferred", f"moves.cluster_per_hour evictions were done in the last hour; {_NOTHING_DONE}"
        )
    return Begin(
        tuple(Member(each.uid, each.name, each.owner) for each in moving if each.owner is not None),
        pod.declared.group,
    )


def _moving(seen: Seen, pod: Pod) -> list[Pod]:
    """Return who moves, the Pod that custody named first."""
    if not pod.declared.group:
        return [pod]
    group = [
        each
        for each in seen.pods.values()
        if each.declared.group == pod.declared.group and not each.deleting and not each.ended
    ]
    return sorted(group, key=lambda each: (each.uid != pod.uid, each.name))


def _immovable(pod: Pod, seen: Seen, moving: list[Pod]) -> str:
    """Return why a Pod must not be moved, "" if it may."""
    declared = pod.declared
    if declared.errors:
        return f"{pod.place} declares what cannot be read: {'; '.join(declared.errors)}"
    if pod.owner is None:
        return f"{pod.place} has no controller: nobody would make another, so it is not evicted"
    if declared.ability not in ("checkpoint", "restartable"):
        return f"{pod.place} declares neither checkpoint nor restartable (sickbay.dev/ability)"
    if declared.ability == "checkpoint" and declared.checkpoint is None:
        return f"{pod.place} declares checkpoint and no sickbay.dev/checkpoint-hook"
    if why := _unreachable(pod):
        return why
    others = set(seen.shared_with.get(pod.uid, ())) - {each.uid for each in moving}
    if others:
        return f"{pod.place} shares a claim on the device with {len(others)} Pods that do not move, so another would get it again"
    return ""


def _unreachable(pod: Pod) -> str:
    """Return why a hook of a Pod must not be called, "" if all may."""
    declared = pod.declared
    hooks = (declared.stop, declared.checkpoint, declared.resume)
    return next((why for hook in hooks if hook is not None and (why := _uncallable(pod, hook))), "")


def _uncallable(pod: Pod, hook: Hook) -> str:
    if isinstance(hook, ExecHook) and hook.container not in pod.containers:
        return f"{pod.place} has no container {hook.container!a}, which a hook of it names"
    if not isinstance(hook, ExecHook) and pod.host_network:
        return (
            f"{pod.place} is on its node's network, where an http hook would reach the node; use an exec hook"
        )
    return ""


# --- until the eviction -------------------------------------------------------------------------------------------------


def _until_evicted(seen: Seen, done: Progress, policy: MovePolicy, left_ms: int, here: list[Pod]) -> Step:
    assert done.begun is not None
    if "owner_told" not in done.reported:
        return ReportStep("owner_told", "the move begins")
    if seen.halted and len(here) == len(still_moving(done.begun, seen.lease, seen.pods)):
        return TellFailure(f"{seen.halted}; not evicted")
    if left_ms <= 0:
        why = f"the API server did not allow the eviction: {done.refused}" if done.refused else "time ran out"
        return TellFailure(f"{why}; the lease ends and {', '.join(pod.name for pod in here)[:200]} stays")
    for why in (_immovable_now(pod) for pod in here):
        if why:
            return TellFailure(why)
    steps: tuple[tuple[HookKind, StepName, Callable[[Pod], Hook | None]], ...] = (
        ("stop", "stopped", lambda pod: pod.declared.stop),
        ("checkpoint", "checkpointed", lambda pod: pod.declared.checkpoint),
    )
    for kind, step, hook_of in steps:
        with_hook = [(pod, hook) for pod in here if (hook := hook_of(pod)) is not None]
        for pod, hook in with_hook:
            if (kind, pod.uid) not in done.called:
                return CallHook(kind, pod, hook, min(policy.hook_timeout_ms, left_ms))
        if with_hook and step not in done.reported:
            return ReportStep(step, _names(pod for pod, _ in with_hook))
    return Evict(here[0])


def _immovable_now(pod: Pod) -> str:
    """Return why a Pod whose move began must not go on: its owner changed what it declares."""
    declared = pod.declared
    if declared.errors or declared.ability not in ("checkpoint", "restartable"):
        return f"{pod.place} does not declare any more that it may be moved"
    if declared.ability == "checkpoint" and declared.checkpoint is None:
        return f"{pod.place} declares no sickbay.dev/checkpoint-hook any more"
    return _unreachable(pod)


# --- what stays ---------------------------------------------------------------------------------------------------------


def _staying(seen: Seen, done: Progress) -> list[Pod]:
    """Return the members that stay although a hook of theirs was called, or may have been.

    One of which it is known need not belong to the group any more: its owner may have taken the label away meanwhile.
    """
    if done.begun is None:
        return []
    inherited = {pod.uid for pod in _here(seen, done.begun)} if done.inherited else set()
    present = (seen.pods.get(member.uid) for member in done.begun.members)
    return [
        pod
        for pod in present
        if pod is not None
        and not (pod.deleting or pod.ended)
        and (pod.uid in done.asked or pod.uid in inherited)
    ]


def _resuming(seen: Seen, done: Progress, policy: MovePolicy) -> Resume | ReportStep | TellStopped | None:
    """Return the next step of letting what stays go on with its work, ``None`` when nothing more can be done.

    The lease covers this too: the next mover may stop the same Pod again.
    """
    staying = _staying(seen, done)
    until_ms = seen.lease.expires_at_ms - margin_ms(policy) // 3 - seen.now_ms
    waiting = tuple(
        (pod, hook)
        for pod in staying
        if (hook := pod.declared.resume) is not None
        and pod.uid not in done.resumed
        and not _uncallable(pod, hook)
    )
    if waiting and until_ms > 0:
        turns = -(-len(waiting) // _RESUMED_AT_ONCE)
        timeout_ms = min(policy.hook_timeout_ms, max(1, until_ms // turns))
        return Resume(waiting[:_RESUMED_AT_ONCE], timeout_ms)
    resumed = [pod for pod in staying if done.resumed.get(pod.uid) == ""]
    if resumed and "resumed" not in done.reported:
        return ReportStep("resumed", _names(iter(resumed)))
    still = _still_stopped(seen, done)
    return TellStopped(still) if still and not done.stopped_told else None


def _still_stopped(seen: Seen, done: Progress) -> str:
    """Return who stays and was not resumed, each with why, "" for nobody."""
    told = []
    for pod in _staying(seen, done):
        hook, said = pod.declared.resume, done.resumed.get(pod.uid)
        if said:
            told.append(f"{pod.name}: its resume hook failed: {said}")
        elif hook is None and pod.declared.stop is not None:
            told.append(f"{pod.name} declares no sickbay.dev/resume-hook")
        elif hook is not None and said is None:
            told.append(_uncallable(pod, hook) or f"{pod.name}: no time was left to call its resume hook")
    return "; ".join(told)[:500]


def _taken_back(seen: Seen, done: Progress, policy: MovePolicy) -> Step:
    """Custody ended the move: what was stopped for it goes on, and its owner is told."""
    if not _staying(seen, done):
        return Stop()
    return (
        _recovering(seen, done, policy, done.failure or "custody took the move back; not evicted") or Stop()
    )


def _recovering(seen: Seen, done: Progress, policy: MovePolicy, why: str) -> Step | None:
    """Tell the owner first, so that whoever reads of the failure finds that he knows; then let what stays go on.

    In the last part of the lease nobody evicts, recorded or not: what cannot be told by then does not keep anybody stopped.
    """
    is_last = seen.now_ms >= seen.lease.expires_at_ms - margin_ms(policy)
    tell = None if done.failure_told else TellFailure(why)
    if tell is not None and not is_last:
        return tell
    return _resuming(seen, done, policy) or tell


def _failing(seen: Seen, done: Progress, policy: MovePolicy) -> Step:
    if step := _recovering(seen, done, policy, done.failure):
        return step
    if "owner_told" not in done.reported:
        return ReportStep("owner_told", "the move failed")
    still = _still_stopped(seen, done)
    return End("failed", f"{done.failure[:450]}; still stopped: {still}" if still else done.failure[:1_000])


# --- after it -----------------------------------------------------------------------------------------------------------


def _after(seen: Seen, done: Progress, policy: MovePolicy, left_ms: int) -> Step:
    assert done.begun is not None
    if stays := _staying(seen, done):
        return TellFailure(f"{_names(iter(stays))} left the group after it was stopped, and stays")
    members = still_moving(done.begun, seen.lease, seen.pods)
    for step, detail in (
        ("owner_told", "the move begins"),
        ("evicted", ", ".join(member.name for member in members)[:300]),
    ):
        if step not in done.reported:
            return ReportStep(step, detail)  # type: ignore[arg-type]  # the names above
    going = [member.name for member in members if member.uid in seen.pods]
    found = seen.replacement
    if found.complete and not going:
        return End("done", found.told) if "replaced" in done.reported else ReportStep("replaced", found.told)
    waited_ms = 0 if done.evicted_at_ms is None else seen.now_ms - done.evicted_at_ms
    told = "; ".join([*(f"{name} is still ending" for name in going[:8]), found.told]).strip("; ")
    if waited_ms >= policy.replacement_timeout_ms or left_ms <= 0:
        return TellFailure(f"evicted, but not replaced after {waited_ms // 1000} s: {told}")
    return Wait(told)


def _names(pods: Iterator[Pod]) -> str:
    return ", ".join(pod.name for pod in pods)[:300]
