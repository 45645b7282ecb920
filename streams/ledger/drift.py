"""Where the recorded and the derived book differ for one claim, and why.

The causes are tried in the order of ``docs/ledger.md``; the first that fits is named. A cause is a finding about numbers: it
must give the recorded amount, or show that no amount could be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from sickbay.decisions import Drift, DriftCause
from sickbay.facts import AllocationResult, ClaimObserved, DevicePublished
from streams.ledger.amounts import Exact, Nanos, texts, whole_nano
from streams.ledger.findings import TimedDrift
from streams.ledger.mapping import Rules, UnknownAmountError, mapped, members_of, overhead
from streams.ledger.objects import Objects, Pod, containers_of

#: Chooses the publication of a device by which a result is read.
Choice: TypeAlias = Callable[[AllocationResult], DevicePublished | None]

#: Moments of the past whose mappings are tried.
_PAST_LIMIT: Final = 32


class Recorded(NamedTuple):
    """What the status of the Pods says of a claim."""

    #: What is entered for the mapping; ``None`` when no Pod has an entry.
    mapping: Nanos | None
    #: Pod uid to its overhead.
    overhead: dict[str, Nanos]
    #: Whether any of it was not understood whole.
    unclear: bool


class View(NamedTuple):
    """A claim as the comparison looks at it."""

    objects: Objects
    claim: ClaimObserved
    #: The Pods that count and that it belongs to.
    pods: list[Pod]
    #: Those whose status speaks of it.
    speakers: list[Pod]
    rules: Rules
    #: Those of them, by uid, for which the rules count it.
    counting: frozenset[str]
    recorded: Recorded


def compare(view: View, grace_ms: int) -> list[TimedDrift]:
    """Return the differences of a claim: its mapping, and the overhead of each of its Pods."""
    claim = view.claim
    about = f"{claim.namespace}/{claim.claim}"
    current = _current(view)
    found: list[Drift] = []
    derived = _mapping(view, view.rules, current) if view.counting else {}
    is_exact = view.rules == "exact"
    exact = derived if is_exact else _mapping(view, "exact", current) if view.pods else {}
    drift = _drift(view, about, None, view.recorded.mapping, derived, exact)
    if drift is not None:
        found.append(drift)
    bearer = {pod.uid: pod for pod in view.pods}
    for uid in sorted({*bearer, *view.recorded.overhead}):
        pod = bearer.get(uid)
        counted = _overhead(view, view.rules, current, pod) if pod and uid in view.counting else {}
        here = counted if is_exact else _overhead(view, "exact", current, pod) if pod else {}
        drift = _drift(view, f"{about}@{uid}", pod, view.recorded.overhead.get(uid), counted, here)
        if drift is not None:
            found.append(drift)
    if not found:
        return []
    since_ms = max(
        [claim.observed_at_ms, *(pod.at_ms for pod in (*view.pods, *view.speakers))]
        + [i[-1].at_ms for r in claim.results if (i := view.objects.items("device", r.device_id))]
    )
    return [TimedDrift(drift, since_ms + grace_ms) for drift in found]


def _drift(
    view: View, about: str, pod: Pod | None, recorded: Nanos | None, derived: Nanos, exact: Nanos
) -> Drift | None:
    said = {r: n for r, n in (recorded or {}).items() if n}
    predicted = said == derived
    if predicted and said == exact:
        return None
    target = exact if predicted else derived
    speaker = pod or next(iter(view.pods), None)
    return Drift(
        about=about,
        cause=_cause(view, pod, None if recorded is None else said, target),
        namespace=view.claim.namespace,
        claim=view.claim.claim,
        claim_uid=view.claim.claim_uid,
        pod=speaker.fact.pod if speaker else "",
        pod_uid=speaker.uid if speaker else "",
        recorded=texts(said),
        derived=texts(derived),
        exact=texts(exact),
        predicted=predicted,
    )


def _cause(view: View, pod: Pod | None, said: Nanos | None, target: Nanos) -> DriftCause:
    objects, claim = view.objects, view.claim
    used = _used(claim)
    devices = [objects.publication(result.device_id) for result in used]
    unread = any(device is not None and device.node_allocatable_shape == "unknown" for device in devices)
    if view.recorded.unclear or unread or _unknown_amounts(view):
        return "shape_unknown"
    if not said and target and view.pods:
        return _uncounted(view, [pod] if pod else view.pods, devices)
    if any(_taken(view, result) for result in used):
        return "device_conflict"
    here = [r for r in used if objects.belongs_here(r.driver, r.pool) or objects.publication(r.device_id)]
    if len(here) < len(used) or any(objects.published(result.device_id) is None for result in here):
        return "slice_missing"
    if any(device is not None and device.node_allocatable_shape is None for device in devices) and said:
        return "mapping_missing"
    amount: Callable[[Rules, Choice], Nanos]
    if pod is None:
        amount = lambda rules, choice: _mapping(view, rules, choice)  # noqa: E731 - one of two readings
    else:
        amount = lambda rules, choice: _overhead(view, rules, choice, pod)  # noqa: E731
    said = said or {}
    if any(amount(view.rules, choice) == said for choice in _past(view)):
        return "mapping_changed"
    if any(amount("exact", choice) == said for choice in _namesakes(view)):
        return "driver_ignored"
    if amount("1.36", _current(view)) == said:
        return "key_spelling"
    return "unexplained"


def _uncounted(view: View, pods: list[Pod], devices: list[DevicePublished | None]) -> DriftCause:
    """Return why nothing was recorded although something is used."""
    counted = {pod.uid for pod in view.objects.not_skipped(view.claim, view.pods)}
    if any(pod.uid not in counted for pod in pods):
        return "allocated_before_counting"
    old = any(device is not None and device.node_allocatable_shape == "1.36" for device in devices)
    if old and not _mapping(view, "1.36", _current(view)):
        return "key_spelling"
    return "allocated_before_counting" if any(p.fact.node_allocatable for p in pods) else "not_counted"


def _used(claim: ClaimObserved) -> list[AllocationResult]:
    """Return the results that count, a share that is listed twice once."""
    used = {(r.device_id, r.share_id): r for r in reversed(claim.results) if not r.admin_access}
    return list(reversed(used.values()))


def _taken(view: View, result: AllocationResult) -> bool:
    holders = view.objects.holders.get(result.device_id, {view.claim.claim_uid})
    return view.objects.exclusive(result.device_id, result.share_id) and min(holders) != view.claim.claim_uid


def _unknown_amounts(view: View) -> bool:
    try:
        for result in _used(view.claim):
            device = view.objects.publication(result.device_id)
            if device is not None:
                mapped(members_of(device, "exact"), result, "exact")
    except UnknownAmountError:
        return True
    return False


# --- amounts by one reading or another ---


def _mapping(view: View, rules: Rules, choice: Choice) -> Nanos:
    total: dict[str, Exact] = {}
    for result in _used(view.claim):
        device = choice(result)
        if device is None or _taken(view, result):
            continue
        try:
            amounts = mapped(members_of(device, rules), result, rules)
        except UnknownAmountError:
            continue
        _add(total, amounts)
    return {resource: whole_nano(nano) for resource, nano in total.items() if nano}


def _overhead(view: View, rules: Rules, choice: Choice, pod: Pod) -> Nanos:
    total: dict[str, Exact] = {}
    for result in _used(view.claim):
        device = choice(result)
        if device is not None and not _taken(view, result):
            _add(total, overhead(members_of(device, rules), containers_of(view.claim, pod), rules))
    return {resource: whole_nano(nano) for resource, nano in total.items() if nano}


def _add(total: dict[str, Exact], amounts: Mapping[str, Exact]) -> None:
    for resource, nano in amounts.items():
        total[resource] = total.get(resource, 0) + nano


def _current(view: View) -> Choice:
    return lambda result: view.objects.publication(result.device_id)


def _past(view: View) -> Iterator[Choice]:
    """Yield the readings of earlier moments, newest first."""
    histories = {r.device_id: view.objects.items("device", r.device_id) for r in _used(view.claim)}
    moments = sorted({item.at_ms for items in histories.values() for item in items}, reverse=True)
    for moment in moments[:_PAST_LIMIT]:

        def choice(result: AllocationResult, moment: int = moment) -> DevicePublished | None:
            found = None
            for item in histories[result.device_id]:
                if item.at_ms <= moment and isinstance(item.fact, DevicePublished):
                    found = item.fact
            return found

        yield choice


def _namesakes(view: View) -> Iterator[Choice]:
    """Yield readings by devices of the same pool and name that other drivers publish: one result at a time."""
    objects = view.objects
    for wanted in _used(view.claim):
        for device_id in sorted(objects.namesakes.get((wanted.pool, wanted.device), ())):
            if device_id == wanted.device_id:
                continue
            other = objects.publication(device_id)

            def choice(
                result: AllocationResult,
                wanted: AllocationResult = wanted,
                other: DevicePublished | None = other,
            ) -> DevicePublished | None:
                return other if result is wanted else objects.publication(result.device_id)

            yield choice
