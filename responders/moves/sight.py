"""What a mover looks up for one move: who shares the device, what stands in for what went, whether the device is excluded."""

from __future__ import annotations

from collections.abc import Mapping

from responders.exclusion.plan import should
from responders.moves.cluster import Cluster
from responders.moves.limits import Leased
from responders.moves.plan import still_moving
from responders.moves.pods import Pod, claim_devices, claim_users
from responders.moves.replacing import Candidate, Replaced, candidates_of, replaced
from responders.moves.steps import Progress
from responders.view import View
from sickbay.policy import Policy


class Sight:
    """The cluster and the decisions, as moves need them. Everything that asks the API server raises ServiceError."""

    def __init__(self, cluster: Cluster, view: View, policy: Policy) -> None:
        self._cluster, self._view, self._policy = cluster, view, policy

    async def is_excluded(self, lease: Leased, now_ms: int) -> bool:
        """Whether the scheduler keeps off a device that the policy wants it to keep off."""
        wanted = should(self._view, self._policy, now_ms).rules.values()
        rule = next(
            (each for each in wanted if (each.node, each.device_id) == (lease.node, lease.move.device_id)),
            None,
        )
        if rule is None or rule.effect == "None":
            return True
        return await self._cluster.taint_effect(rule.name) in ("NoSchedule", "NoExecute")

    async def shared_with(self, lease: Leased, pods: Mapping[str, Pod]) -> dict[str, tuple[str, ...]]:
        """Return who else has the claim by which the Pod has the device."""
        pod = pods.get(lease.move.pod_uid)
        users: set[str] = set()
        for name in pod.claims if pod is not None else ():
            claim = await self._cluster.claim(lease.move.namespace, name)
            if claim is not None and lease.move.device_id in (claim_devices(claim) or ()):
                users |= set(claim_users(claim))
        return {lease.move.pod_uid: tuple(sorted(users))}

    async def replacement(
        self, lease: Leased, done: Progress, pods: Mapping[str, Pod], others: set[str], now_ms: int
    ) -> Replaced:
        """Return what stands in for the Pods that went; ``others`` stand in for those of other moves."""
        if done.begun is None or done.evicted_at_ms is None:
            return Replaced()
        members = still_moving(done.begun, lease.move, pods)
        candidates = [
            Candidate(pod, await self._devices(pod))
            for pod in candidates_of(members, pods.values(), done.begun.since, done.known | others)
        ]
        return replaced(members, candidates, self._view, self._policy.staged_return, now_ms)

    async def _devices(self, pod: Pod) -> tuple[str, ...] | None:
        devices = list(pod.plugin_devices)
        if pod.claims_missing:
            return None
        for name in pod.claims:
            claim = await self._cluster.claim(pod.namespace, name)
            given = None if claim is None else claim_devices(claim)
            if given is None:
                return None
            devices += given
        return tuple(devices)
