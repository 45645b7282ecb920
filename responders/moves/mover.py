"""The mover: one task for each lease that runs, each doing what the plan says next until its lease is over.

Nothing is remembered that matters: a process that takes over finds the record of the move, the Pods as they are, and the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from responders.moves import owners
from responders.moves.cluster import Cluster
from responders.moves.declared import Hook
from responders.moves.limits import Evictions, Leased, admitted, leased
from responders.moves.plan import margin_ms, next_step, still_moving
from responders.moves.pods import Pod
from responders.moves.replacing import Member
from responders.moves.reports import end_fact, step_fact
from responders.moves.sight import Sight
from responders.moves.staying import StayingOwners
from responders.moves.steps import (
    Begin,
    CallHook,
    End,
    Evict,
    Progress,
    ReportStep,
    Resume,
    Seen,
    Step,
    Stop,
    TellFailure,
    TellStopped,
    Wait,
)
from responders.reporting import Reports
from responders.view import Move, Node, View
from sickbay.clock import Times
from sickbay.decisions import Decision, MoveFinished
from sickbay.envelope import Envelope
from sickbay.errors import ServiceError
from sickbay.operations.failpoints import reach
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.policy import Policy

_log: Final = logging.getLogger(__name__)

#: Between two looks at what a move waits for; after an eviction that was refused; after an error.
_LOOK_S: Final = 1.0
_REFUSED_S: Final = 5.0
_ERROR_S: Final = 2.0
#: Steps of one lease: more than a large group takes, with a look every second of a long lease.
_STEPS_MAX: Final = 100_000


class Hooks(Protocol):
    """Who calls hooks."""

    async def call(
        self, *, hook: Hook, ip: str, namespace: str, pod: str, key: str, timeout_ms: int
    ) -> tuple[bool, str]:
        """Call a hook of a Pod, and return whether it went well and what it told. Never raises for what a hook does."""
        ...


class Mover:
    """``act`` is what ``responders.keeping.keep`` calls; ``heard`` listens to decisions."""

    def __init__(
        self,
        cluster: Cluster,
        hooks: Hooks,
        reports: Reports,
        view: View,
        policy: Policy,
        *,
        times: Times,
        metrics: RespondMetrics,
        identity: str,
        require_lead: Callable[[], None],
    ) -> None:
        self._cluster, self._hooks, self._reports = cluster, hooks, reports
        self._view, self._policy, self._times = view, policy, times
        self._metrics, self._identity, self._require_lead = metrics, identity, require_lead
        self._progress: dict[tuple[str, int], Progress] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._sight = Sight(cluster, view, policy)
        self._evictions = Evictions()
        self._stays = StayingOwners(cluster, view, times=times, metrics=metrics, identity=identity)
        self._problem = ""

    def heard(self, _: Envelope, decision: Decision) -> None:
        """Count the moves that ended: what was evicted before this process began counts in the hour.

        Of the moves that this process carries out itself, it knows who was evicted.
        """
        if (
            isinstance(decision, MoveFinished)
            and decision.outcome in ("done", "failed", "timed_out")
            and not any(move_id == decision.move_id for move_id, _ in self._progress)
        ):
            self._evictions.note(decision.pod_uid, decision.at_ms)

    async def act(self) -> float | None:
        """Begin what is leased, tell owners of what stays, and return when to look again, in seconds. Raises ServiceError."""
        if not self._policy.moves.enabled:
            return None
        running = {each.key: each for each in leased(self._view, self._times.now_ms())}
        for key in [key for key in self._progress if key not in running and key not in self._tasks]:
            del self._progress[key]
        for key, each in running.items():
            if key not in self._progress:
                self._progress[key] = Progress()
                self._tasks[key] = asyncio.create_task(self._drive(each), name=f"move {each.move.move_id}")
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        self._metrics.stands("moves", len(self._tasks))
        await self._stays.tell()
        if self._problem:
            problem, self._problem = self._problem, ""
            raise ServiceError(problem)
        return _LOOK_S if self._tasks else None

    async def close(self) -> None:
        """Let go of every move; whoever has the lease next goes on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # --- one lease ---

    async def _drive(self, lease: Leased) -> None:
        try:
            await self._steps(lease)
        finally:
            for uid in self._progress[lease.key].reserved:
                self._evictions.forget(uid)

    async def _steps(self, lease: Leased) -> None:
        for _ in range(_STEPS_MAX):
            pause_s = 0.0
            try:
                step = await self._next(lease)
                if isinstance(step, Stop):
                    return
                pause_s = await self._do(lease, step)
                if isinstance(step, End):
                    return
            except ServiceError as error:
                _log.warning("the move %s waits: %s", lease.move.move_id, error)
                self._problem = str(error)
                pause_s = _ERROR_S
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _next(self, lease: Leased) -> Step:
        done = self._progress[lease.key]
        move = lease.move
        stands = self._stands(lease)
        if self._times.now_ms() >= move.expires_at_ms or (stands is not None and stands.token != move.token):
            return Stop()
        if stands is None and done.recalled and done.begun is None:
            return Stop()
        if not done.recalled:
            # a process before this one may have begun, and been killed after the eviction
            kept = await self._cluster.event(move.namespace, owners.begun_name(move))
            begun_before = None if kept is None else owners.read_begun(kept)
            if begun_before is not None and move.pod_uid in {member.uid for member in begun_before.members}:
                done.begun, done.inherited = begun_before, True
                self._reserve(done, {member.uid for member in begun_before.members})
            failed_before = await self._cluster.event(move.namespace, owners.failed_name(move))
            if failed_before is not None:
                done.failure, done.failure_told = owners.read_failed(failed_before), True
            done.recalled = True
        pods = await self._cluster.pods(move.namespace)
        if done.begun is not None and done.evicted_at_ms is None:
            here = [pods[m.uid] for m in still_moving(done.begun, move, pods) if m.uid in pods]
            if all(pod.deleting or pod.ended for pod in here):
                done.evicted_at_ms = self._times.now_ms()
                done.reserved.clear()  # they count for an hour
        now_ms = self._times.now_ms()
        limits = self._policy.moves
        everybody = list(leased(self._view, now_ms))
        begun = [key for key, progress in self._progress.items() if progress.begun is not None]
        seen = Seen(
            lease=move,
            stands=self._stands(lease),
            halted=self._halted(lease),
            admitted=lease.key in admitted(everybody, begun, limits.cluster, limits.tenant_priority),
            evictions_left=limits.cluster_per_hour - self._evictions.in_last_hour(now_ms),
            evictions_max=limits.cluster_per_hour,
            waits_for_other=self._are_moved_by_another(lease, {move.pod_uid}),
            pods=pods,
            shared_with=await self._sight.shared_with(lease, pods) if done.begun is None else {},
            replacement=await self._sight.replacement(lease, done, pods, self._stand_in(lease), now_ms),
            now_ms=now_ms,
        )
        if seen.replacement.complete:
            done.replaced_by = set(seen.replacement.uids)
        step = next_step(seen, done, limits)
        if isinstance(step, Begin | Evict) and not await self._sight.is_excluded(lease, now_ms):
            return Wait("the device is not excluded yet: a replacement could be given it again")
        return step

    def _stands(self, lease: Leased) -> Move | None:
        return self._view.nodes.get(lease.node, Node()).moves.get(lease.move.move_id)

    def _halted(self, lease: Leased) -> str:
        device = self._view.nodes.get(lease.node, Node()).devices.get(lease.move.device_id)
        episode = None if device is None else device.record.episode
        if device is None or episode is None or device.record.phase != "quarantined":
            return "the device is on its way back"
        if self._view.breaker_open(device.driver):
            return "a breaker is open"
        return "the episode is held" if episode.held else ""

    def _are_moved_by_another(self, lease: Leased, uids: set[str]) -> bool:
        """Whether another lease that this process acts on moves one of these Pods."""
        return any(
            key != lease.key and key in self._tasks and not progress.ended and uids & progress.moves
            for key, progress in self._progress.items()
        )

    def _stand_in(self, lease: Leased) -> set[str]:
        """Return the Pods that stand in for those of other moves."""
        others = (progress for key, progress in self._progress.items() if key != lease.key)
        return {uid for progress in others for uid in progress.replaced_by}

    def _reserve(self, done: Progress, uids: set[str]) -> None:
        """Give Pods that are about to be evicted their place in the hour, and keep other moves off them."""
        done.moves, done.reserved = set(uids), set(uids)
        for uid in uids:
            self._evictions.note(uid, self._times.now_ms())

    # --- doing ---

    async def _do(self, lease: Leased, step: Step) -> float:
        """Carry a step out and return how long to wait, in seconds."""
        done, move = self._progress[lease.key], lease.move
        match step:
            case Wait():
                return _LOOK_S
            case Begin(members, group):
                return await self._begin(lease, done, members, group)
            case CallHook(kind, pod, hook, timeout_ms):
                done.asked.add(pod.uid)
                ok, told = await self._call(lease, kind, pod, hook, timeout_ms)
                if ok:
                    done.called.add((kind, pod.uid))
                else:
                    done.failure = f"the {kind} hook of {pod.place} failed: {told}"
            case Resume(pods, timeout_ms):
                said = await asyncio.gather(
                    *(self._call(lease, "resume", pod, hook, timeout_ms) for pod, hook in pods),
                    return_exceptions=True,
                )
                for (pod, _), answer in zip(pods, said, strict=True):
                    if isinstance(answer, BaseException):
                        raise answer
                    done.resumed[pod.uid] = "" if answer[0] else answer[1] or "it did not say why"
            case Evict(pod):
                return await self._evict(lease, done, pod)
            case TellFailure(detail):
                done.failure = detail
                await self._cluster.tell(
                    owners.failed_event(
                        move, owners.pod_of(move), detail, self._times.now_ms(), self._identity
                    )
                )
                done.failure_told = True
            case TellStopped(detail):
                await self._cluster.tell(
                    owners.stopped_event(
                        move, owners.pod_of(move), detail, self._times.now_ms(), self._identity
                    )
                )
                done.stopped_told = True
            case ReportStep(name, detail):
                await self._reports.report(step_fact(lease, name, detail, self._times.now_ms()))
                reach(f"move.{name}")
                done.reported.add(name)
            case End(outcome, detail):
                await self._end(lease, done, outcome, detail)
        return 0.0

    async def _call(
        self,
        lease: Leased,
        kind: Literal["stop", "checkpoint", "resume"],
        pod: Pod,
        hook: Hook,
        timeout_ms: int,
    ) -> tuple[bool, str]:
        """Call a hook and return whether it went well, and what it said."""
        self._require_lead()
        reach("move.hook")
        ok, told = await self._hooks.call(
            hook=hook,
            ip=pod.ip,
            namespace=pod.namespace,
            pod=pod.name,
            key=f"{lease.move.move_id}-{lease.move.token}",
            timeout_ms=timeout_ms,
        )
        reach("move.hooked")
        self._metrics.done(f"{kind}_hook", "done" if ok else "failed")
        return ok, told

    async def _begin(self, lease: Leased, done: Progress, members: tuple[Member, ...], group: str) -> float:
        move, uids = lease.move, {member.uid for member in members}
        pods = await self._cluster.pods(move.namespace)
        pod = pods.get(move.pod_uid)
        left = self._policy.moves.cluster_per_hour - self._evictions.in_last_hour(self._times.now_ms())
        # other moves went on since the plan was made; from here to the reservation none does
        if pod is None or len(uids) > left or self._are_moved_by_another(lease, uids):
            return _LOOK_S
        self._reserve(done, uids)
        try:
            await self._record(lease, done, members, group, pods)
        except ServiceError:
            for uid in done.reserved:
                self._evictions.forget(uid)
            done.moves, done.reserved = set(), set()
            raise
        return 0.0

    async def _record(
        self,
        lease: Leased,
        done: Progress,
        members: tuple[Member, ...],
        group: str,
        pods: Mapping[str, Pod],
    ) -> None:
        move, pod = lease.move, pods[lease.move.pod_uid]
        owners_of = {member.owner.uid for member in members}
        known = {p.uid for p in pods.values() if p.owner is not None and p.owner.uid in owners_of}
        reach("move.beginning")
        kept = await self._cluster.tell(
            owners.begun_event(move, pod, members, group, self._times.now_ms(), self._identity)
        )
        reach("move.begun")
        begun = owners.read_begun(kept)
        if begun is None or move.pod_uid not in {member.uid for member in begun.members}:
            done.failure = (
                f"the Event {owners.begun_name(move)} is somebody else's, and the move cannot be recorded"
            )
            return
        # of a move that another process began, what is there now may be the replacement
        done.known = known if begun.members == members else set()
        done.moves = {member.uid for member in begun.members}
        done.begun = begun

    async def _evict(self, lease: Leased, done: Progress, pod: Pod) -> float:
        reach("move.evicting")
        found = await self._cluster.evict(pod)
        reach("move.evicted_pod")
        self._metrics.done("evict", found.outcome)
        if found.outcome == "done":
            done.reserved.discard(pod.uid)
            self._evictions.forget(pod.uid)
            self._evictions.note(pod.uid, self._times.now_ms())
            _log.info(
                "evicted %s off %s", pod.place, lease.move.device_id, extra={"move": lease.move.move_id}
            )
            return 0
        if found.outcome == "refused":
            done.refused = found.told
            # short leases must not run out while it waits
            return min(_REFUSED_S, margin_ms(self._policy.moves) / 4_000)
        return 0.1  # it changed meanwhile: read it again

    async def _end(
        self, lease: Leased, done: Progress, outcome: Literal["done", "failed", "deferred"], detail: str
    ) -> None:
        reach("move.ending")
        await self._reports.report(end_fact(lease, outcome, detail, self._times.now_ms()))
        reach("move.ended")
        done.ended = True
        self._metrics.done("move", outcome)
