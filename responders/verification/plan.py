"""What is to be done now about the steps that stand, given what is in the namespace. Pure, and the same after any crash.

A step goes through: Job made, claim made, ended, reported, and taken away once it does not stand any more. Every one of these is seen
in the world and not remembered, so it does not matter which was the last that a process lived to do. A step passes on its own device
or not at all: either the claim was seen to have it, or what the driver publishes has not changed since the claim was made, and only
that device fits it. (The claim controller takes the allocation back as soon as the Pod has ended.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from responders.verification import jobs, words
from responders.verification.selecting import EXPRESSION_MAX, Published, expression_of, single_out
from responders.verification.steps import Step
from responders.verification.templates import DEVICE_CLASS, Template, Templates, special_file
from sickbay.facts import CanaryReported, ProbeReported
from sickbay.policy import ReturnPolicy
from sickbay.timestamps import parse_time_ms

#: Until the next look: while an allocation is to be seen, and while a Job runs.
SIGHT_S: Final = 1.0
RUNNING_S: Final = 5.0
#: After something was made.
SOON_S: Final = 0.1
#: Nothing younger is taken for garbage: another replica may have read further than this one.
GARBAGE_AFTER_MS: Final = 30_000
ACTOR: Final = "sickbay-respond-verify"

Resource: TypeAlias = Literal["jobs", "resourceclaims"]
Object: TypeAlias = Mapping[str, Any]


class World(msgspec.Struct, kw_only=True):
    """What is there: objects by name, and what this process alone knows, which it may forget."""

    jobs: dict[str, Object] = {}
    claims: dict[str, Object] = {}
    #: Name of the Job to its Pods.
    pods: dict[str, list[Object]] = {}
    #: ``(node, driver)`` to what is published, where it was asked for.
    published: dict[tuple[str, str], Published] = {}
    #: Names of the steps whose claim was seen to have the right device.
    seen: set[str] = set()
    #: Names of the steps whose report is kept.
    reported: set[str] = set()
    #: Name of the step to why the API server does not take its objects.
    refused: dict[str, str] = {}
    #: Name of the step to what its Pod last waited for.
    waited: dict[str, str] = {}


class Create(NamedTuple):
    """Make an object."""

    step: Step
    resource: Resource
    body: dict[str, Any]


class Report(NamedTuple):
    """Tell how a step ended."""

    step: Step
    fact: ProbeReported | CanaryReported


class Delete(NamedTuple):
    """Take this very object away."""

    resource: Resource
    name: str
    uid: str


Action: TypeAlias = Create | Report | Delete
#: What is to be done about one step, and when to look again at the latest.
_Found: TypeAlias = tuple[list[Action], float | None]


class Plan(NamedTuple):
    """What to do, and when to look again at the latest (seconds, ``None``: when something changes)."""

    actions: tuple[Action, ...]
    again_s: float | None


def wants_published(steps: Iterable[Step], world: World) -> Iterator[tuple[str, str]]:
    """Yield ``(node, driver)`` whose slices must be read for the plan."""
    for step in steps:
        place, name = step.place, step.name
        if place is None or name in world.reported:
            continue
        job = world.jobs.get(name)
        if name not in world.claims or (job and name not in world.seen and _finished(job)):
            yield step.node, place.driver


def plan(
    steps: Iterable[Step], world: World, templates: Templates, policy: ReturnPolicy, now_ms: int
) -> Plan:
    """Return what is to be done. ``now_ms`` is wall time as the facts have it."""
    actions: list[Action] = []
    waits: list[float] = []
    names = set()
    for step in steps:
        names.add(step.name)
        wanted, wait_s = _step(step, world, templates, policy, now_ms)
        actions += wanted
        waits += [] if wait_s is None else [wait_s]
    listed: tuple[tuple[Resource, dict[str, Object]], ...] = (
        ("jobs", world.jobs),
        ("resourceclaims", world.claims),
    )
    for resource, objects in listed:
        for name, found in objects.items():
            if name in names or _leaving(found):
                continue
            age_ms = now_ms - parse_time_ms(found["metadata"]["creationTimestamp"])
            if age_ms >= GARBAGE_AFTER_MS:
                actions.append(_delete(resource, found))
            else:
                waits.append(min(GARBAGE_AFTER_MS, GARBAGE_AFTER_MS - age_ms) / 1_000)
    return Plan(tuple(actions), min(waits, default=None))


def _step(step: Step, world: World, templates: Templates, policy: ReturnPolicy, now_ms: int) -> _Found:
    name = step.name
    job, claim = world.jobs.get(name), world.claims.get(name)
    wrong = claim is not None and jobs.allocated(claim, step) is False
    if name in world.reported:
        # it stays until custody has taken the report in, so that nobody begins it again; but not on somebody else's device
        away = [_delete("jobs", job)] if job and wrong and not _leaving(job) else []
        return list(away), None

    def ends(passed: bool, *detail: str) -> _Found:
        return [_report(step, now_ms, passed, *detail)], None

    template = templates.of(step)
    if template is None or _unfit(step, template):
        return ends(False, _no_template(step) if template is None else _unfit(step, template))
    if claim is not None and wrong:
        return ends(
            False, f"the claim was given {jobs.allocated_names(claim)} and not this device; nothing is proved"
        )
    finished = _finished(job) if job else None
    pods = world.pods.get(name, [])
    if finished is not None:
        condition, reason = finished
        if condition == "Failed":
            return ends(False, reason, words.ended_words(pods), _waited(world, name, reason))
        return _complete(step, world, ends, words.ended_words(pods))
    if name in world.refused:
        return ends(False, f"the API server refuses it: {world.refused[name]}; mend {template.file}")
    if now_ms >= step.deadline_ms:
        return ends(False, f"the {step.kind} did not end in time", _late(step, world, pods))
    if job is None or claim is None:
        return _make(step, world, template, policy, now_ms, ends)
    if _leaving(job) or _leaving(claim):
        return [], SIGHT_S
    if step.place is not None and jobs.owner_of(claim) != job["metadata"]["uid"]:
        return [_delete("resourceclaims", claim)], SOON_S
    return [], _until(step, now_ms, RUNNING_S if name in world.seen else SIGHT_S)


def _make(
    step: Step,
    world: World,
    template: Template,
    policy: ReturnPolicy,
    now_ms: int,
    ends: Callable[..., _Found],
) -> _Found:
    """Make the Job, then the claim that it owns."""
    job, claim, place = world.jobs.get(step.name), world.claims.get(step.name), step.place
    if job is not None and (place is None or _leaving(job)):
        return [], _until(step, now_ms, RUNNING_S if place is None else SIGHT_S)
    if claim is not None:
        # of a Job that somebody took away
        return ([] if _leaving(claim) else [_delete("resourceclaims", claim)]), SIGHT_S
    terms = None
    published = None if place is None else world.published.get((step.node, place.driver))
    if place is not None:
        if published is None or not published.has(place):
            return [], _until(step, now_ms, RUNNING_S)  # a driver that starts publishes in a moment
        terms = single_out(published, place)
        if terms is None or len(expression_of(place.driver, terms)) > EXPRESSION_MAX:
            return ends(
                False,
                "its attributes cannot single the device out among those of its driver on the node, so no claim can name it;"
                " a driver that publishes a uuid or a serial number can be verified",
            )
    if job is None:
        return [Create(step, "jobs", jobs.build_job(step, template, policy, now_ms))], SOON_S
    assert terms is not None
    assert published is not None
    body = jobs.build_claim(step, template, terms, published, str(job["metadata"]["uid"]))
    return [Create(step, "resourceclaims", body)], SIGHT_S


def _complete(step: Step, world: World, ends: Callable[..., _Found], told: str) -> _Found:
    """The Job succeeded; whether it ran on the device decides."""
    if step.place is None:
        return ends(True, words.WEAKER, told)
    claim, job = world.claims.get(step.name), world.jobs[step.name]
    if step.name in world.seen or (claim is not None and jobs.allocated(claim, step)):
        return ends(True, told, "its claim had this device")
    published = world.published.get((step.node, step.place.driver))
    if claim is None or jobs.owner_of(claim) != job["metadata"]["uid"]:
        done = ends(False, "it ended well, but its claim is gone, and nothing says on which device it ran")
    elif published is None:
        return [], SIGHT_S
    elif claim["metadata"].get("annotations", {}).get(jobs.PUBLISHED) == published.digest:
        done = ends(True, told, "no other device fits its claim")
    else:
        done = ends(
            False,
            "it ended well, but the driver published anew meanwhile and nobody saw which device the claim had",
        )
    return done


def _report(step: Step, now_ms: int, passed: bool, *detail: str) -> Report:
    weaker = words.WEAKER if step.place is None and words.WEAKER not in detail else ""
    kind = ProbeReported if step.kind == "probe" else CanaryReported
    fact = kind(
        node=step.node,
        # custody takes facts in order of event time, and the step must have begun
        observed_at_ms=max(now_ms, step.started_at_ms + 1),
        request_id=step.request_id,
        device_id=step.device_id,
        actor=ACTOR,
        episode_id=step.episode_id,
        attempt=step.attempt,
        passed=passed,
        detail=words.detail_of(weaker, *detail),
    )
    return Report(step, fact)


def _unfit(step: Step, template: Template) -> str:
    """Return why a template is not for this kind of device, "" when it is."""
    if step.place is not None and not template.device_class:
        return f"{template.file} makes no claim; name the DeviceClass of {step.driver} by the annotation {DEVICE_CLASS}"
    if step.place is None and template.device_class:
        return f"{template.file} makes a claim, and {step.driver} is no DRA driver; add {special_file(step)} without {DEVICE_CLASS}"
    return ""


def _no_template(step: Step) -> str:
    return f"there is no template for it; add {special_file(step)} or {step.kind}.yaml"


def _late(step: Step, world: World, pods: list[Object]) -> str:
    waiting = words.waiting_words(pods) or world.waited.get(step.name, "")
    if waiting:
        return f"it waited: {waiting}"
    place = step.place
    published = None if place is None else world.published.get((step.node, place.driver))
    if place is not None and published is not None and not published.has(place):
        return "its driver does not publish the device"
    if step.name in world.jobs and not pods:
        return "no Pod was made: the events of the Job say why (Pod Security, a quota)"
    return ""


def _waited(world: World, name: str, reason: str) -> str:
    waiting = world.waited.get(name, "")
    return f"it waited: {waiting}" if waiting and reason.startswith("DeadlineExceeded") else ""


def _finished(job: Object) -> tuple[Literal["Complete", "Failed"], str] | None:
    """Return how a Job ended and why, ``None`` while it runs.

    One that must fail has failed: its ``Failed`` waits until its Pods are gone, which a lost node never says.
    """
    for condition in (job.get("status") or {}).get("conditions") or ():
        kind = condition.get("type")
        if kind in ("Complete", "Failed", "FailureTarget") and condition.get("status") == "True":
            told = f"{condition.get('reason') or 'the Job failed'}: {condition.get('message') or kind}"
            return "Complete" if kind == "Complete" else "Failed", told
    return None


def _until(step: Step, now_ms: int, most_s: float) -> float:
    return max(0.0, min(most_s, (step.deadline_ms - now_ms) / 1_000))


def _leaving(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _delete(resource: Resource, found: Object) -> Delete:
    return Delete(resource, str(found["metadata"]["name"]), str(found["metadata"]["uid"]))
