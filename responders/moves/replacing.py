"""What came in the place of evicted Pods, and whether it sits on fit devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from responders.moves.pods import Owner, Pod
from responders.view import View
from responders.work import takes_work_from_ms
from sickbay.policy import ReturnPolicy


class Member(msgspec.Struct, frozen=True):
    """A Pod that moves: of a group all of them, else the one that is on the device."""

    uid: str
    name: str
    owner: Owner


class Candidate(msgspec.Struct, frozen=True):
    """A Pod that may be a replacement, and what is known of its devices."""

    pod: Pod
    #: Device ids that it has; ``None`` while a claim of it is not made or not allocated.
    devices: tuple[str, ...] | None


class Replaced(msgspec.Struct, frozen=True):
    """How far the replacement is."""

    #: Uids of the Pods that stand in for the members, once that are enough.
    uids: tuple[str, ...] = ()
    complete: bool = False
    #: What there is, or what is missing: evidence for a person.
    told: str = ""


def unfit_devices(view: View, candidate: Candidate, policy: ReturnPolicy, now_ms: int) -> tuple[str, ...]:
    """Return the devices of a Pod that take no new work now, or that the Pod reports as Unhealthy.

    An id of a device plugin is unique on its node only, that of a DRA device everywhere.
    """
    out = {
        on.device.device_id
        for on in view.devices()
        if takes_work_from_ms(on.device.record, policy) > now_ms
        and (on.device.device_id.startswith("dra:") or on.node == candidate.pod.node)
    }
    return tuple(sorted((out & set(candidate.devices or ())) | set(candidate.pod.unhealthy)))


def candidates_of(
    members: Iterable[Member], pods: Iterable[Pod], since: str, excluded: Iterable[str]
) -> tuple[Pod, ...]:
    """Return the Pods that the members' controllers made since then and that nobody else counts, oldest first.

    ``since`` is the server's time at which the move began, ``excluded`` holds uids that were there before the eviction or stand in
    for another move.
    """
    owners = {member.owner.uid for member in members}
    out = {member.uid for member in members} | set(excluded)
    found = [
        pod
        for pod in pods
        if pod.owner is not None
        and pod.owner.uid in owners
        and pod.uid not in out
        and pod.created_at >= since
        and not pod.deleting
        and not pod.ended
    ]
    return tuple(sorted(found, key=lambda pod: (pod.created_at, pod.name, pod.uid)))


def replaced(
    members: Iterable[Member],
    candidates: Iterable[Candidate],
    view: View,
    policy: ReturnPolicy,
    now_ms: int,
) -> Replaced:
    """Return whether every member has a Pod of its own controller in its place that is ready on fit devices."""
    wanted: dict[str, list[Member]] = {}
    for member in members:
        wanted.setdefault(member.owner.uid, []).append(member)
    uids: list[str] = []
    told: list[str] = []
    complete = True
    made: Mapping[str, list[Candidate]] = _by_owner(candidates)
    for uid, lost in wanted.items():
        judged = [(each, _why_not(each, view, policy, now_ms)) for each in made.get(uid, ())]
        fit = [each for each, why in judged if not why][: len(lost)]
        uids += [each.pod.uid for each in fit]
        told += [f"{each.pod.name} on {each.pod.node} is ready with {_devices(each)}" for each in fit]
        if len(fit) < len(lost):
            complete = False
            told += [f"{each.pod.name}: {why}" for each, why in judged if why]
            owner = lost[0].owner
            told.append(
                f"{owner.kind} {owner.name} has {len(fit)} of {len(lost)} replacements on fit devices"
            )
    return Replaced(tuple(uids), complete, "; ".join(told)[:800])


def _by_owner(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for each in candidates:
        if each.pod.owner is not None:
            found.setdefault(each.pod.owner.uid, []).append(each)
    return found


def _why_not(candidate: Candidate, view: View, policy: ReturnPolicy, now_ms: int) -> str:
    if not candidate.pod.ready:
        return f"not ready ({candidate.pod.waits_for or 'its kubelet has not reported'})"
    if candidate.devices is None:
        return "a claim of it is not allocated"
    bad = unfit_devices(view, candidate, policy, now_ms)
    return f"on {', '.join(bad[:4])}, which is out of service" if bad else ""


def _devices(candidate: Candidate) -> str:
    return ", ".join(candidate.devices[:4]) if candidate.devices else "no device that its status names"
