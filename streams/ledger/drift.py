"""Where the recorded and the derived book differ for one claim, and why.

The causes are tried in the order of ``docs/ledger.md``; the first that fits is named. A cause is a finding about numbers: it
must give the recorded amount, or show that no amount could be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice, product
from typing import Final, NamedTuple, TypeAlias

from sickbay.decisions import Drift, DriftCause
from sickbay.facts import AllocationResult, ClaimObserved, DevicePublished
from streams.ledger.amounts import Exact, Nanos, texts, whole_nano
from streams.ledger.findings import TimedDrift
from streams.ledger.mapping import SPELLING, Rules, UnknownAmountError, mapped, members_of, overhead
from streams.ledger.objects import Objects
from streams.ledger.pod import Pod, containers_of, is_unclear
from streams.ledger.rebuilding import had_mapping
from streams.ledger.versions import used

#: Chooses the publication of a device by which a result is read.
Choice: TypeAlias = Callable[[AllocationResult], DevicePublished | None]

#: Moments of the past whose mappings are tried.
_PAST_LIMIT: Final = 32
#: Mixtures of drivers that are tried: all of them for eight devices that have one namesake each.
_NAMESAKES_LIMIT: Final = 256
#: Drivers, the claim's own among them, by each of which all devices are read.
_DRIVERS_LIMIT: Final = 4


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
    #: Whether no other claim had any of the devices.
    alone: bool = False


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
    bearers = {pod.uid for pod in view.pods}
    for uid, pod in sorted({pod.uid: pod for pod in (*view.pods, *view.speakers)}.items()):
        counted = _overhead(view, view.rules, current, pod) if uid in view.counting else {}
        here = counted if is_exact else _overhead(view, "exact", current, pod) if uid in bearers else {}
        drift = _drift(view, f"{about}@{uid}", pod, view.recorded.overhead.get(uid), counted, here)
        if drift is not None:
            found.append(drift)
    if not found:
        return []
    since_ms = max(
        [claim.observed_at_ms, *(pod.at_ms for pod in (*view.pods, *view.speakers))]
        + [i[-1].at_ms for r in _used(claim) if (i := view.objects.items("device", r.device_id))]
    )
    return [TimedDrift(drift, since_ms + grace_ms) for drift in found]


def _drift(
    view: View, about: str, pod: Pod | None, recorded: Nanos | None, derived: Nanos, exact: Nanos
) -> Drift | None:
    said = {r: n for r, n in (recorded or {}).items() if n}
    predicted = said == derived
    if predicted and said == exact:
        return None
    speaker = pod or next(iter(view.pods), None)
    return Drift(
        about=about,
        cause=_cause(view, pod, said, derived),
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


def _cause(view: View, pod: Pod | None, said: Nanos, derived: Nanos) -> DriftCause:
    """Return why ``said`` is recorded, for the mapping or for the overhead of one Pod."""
    objects, used = view.objects, _used(view.claim)
    devices = [objects.publication(result.device_id) for result in used]
    unread = any(device is not None and device.node_allocatable_shape == "unknown" for device in devices)
    if view.recorded.unclear or unread or _unknown_amounts(view):
        return "shape_unknown"
    amount = _reading(view, pod)
    if _is_foreign(view, devices) and (said == derived or amount("exact", _current(view)) == said):
        return "not_emulated"
    if not said and view.pods:
        uncounted = _uncounted(view, [pod] if pod else view.pods, amount)
        if uncounted is not None:
            return uncounted
    is_taken = any(_taken(view, result) for result in used)
    if is_taken and _reading(view._replace(alone=True), pod)(view.rules, _current(view)) == said:
        return "device_conflict"
    here = [r for r in used if objects.belongs_here(r.driver, r.pool) or objects.publication(r.device_id)]
    if len(here) < len(used) or any(objects.published(result.device_id) is None for result in here):
        return "slice_missing"
    if said and _lost_mapping(view, devices):
        return "mapping_missing"
    predicted, current = said == derived, amount(view.rules, _current(view))
    if not predicted and current != said and any(amount(view.rules, c) == said for c in _past(view)):
        return "mapping_changed"
    if said and any(amount("exact", choice) == said for choice in _namesakes(view)):
        return "driver_ignored"
    if _is_misspelt(devices) and amount("1.36", _current(view)) == said:
        return "key_spelling"
    return "not_counted" if predicted else "unexplained"


def _reading(view: View, pod: Pod | None) -> Callable[[Rules, Choice], Nanos]:
    """Return how to read the mapping of a claim, or the overhead of one of its Pods."""
    if pod is None:
        return lambda rules, choice: _mapping(view, rules, choice)
    return lambda rules, choice: _overhead(view, rules, choice, pod)


def _uncounted(view: View, pods: list[Pod], amount: Callable[[Rules, Choice], Nanos]) -> DriftCause | None:
    """Return why nothing was recorded, ``None`` when that is not known."""
    counted = {pod.uid for pod in view.objects.not_skipped(view.claim, view.pods)}
    if all(pod.uid not in counted for pod in pods):
        return "allocated_before_counting"
    devices = [view.objects.publication(result.device_id) for result in _used(view.claim)]
    if _is_misspelt(devices) and not amount("1.36", _current(view)):
        return "key_spelling"
    return None if any(_has_amounts(pod) for pod in pods) else "not_counted"


def _has_amounts(pod: Pod) -> bool:
    """Whether the scheduler counted anything for the claims of a Pod. 1.37 reads the entries of 1.36 without their amounts."""
    entries = pod.fact.node_allocatable or ()
    return any(
        entry.mapping or entry.per_pod or entry.per_container or is_unclear(entry) for entry in entries
    )


def _lost_mapping(view: View, devices: list[DevicePublished | None]) -> bool:
    """Whether a device lost the mapping that it had, or none of them has one."""
    bare = [d for d in devices if d is not None and d.node_allocatable_shape is None]
    since_ms = view.objects.allocated(view.claim).at_ms
    had = any(had_mapping(view.objects.items("device", device.device_id), since_ms) for device in bare)
    return had or (bool(bare) and len(bare) == len(devices))


def _is_foreign(view: View, devices: list[DevicePublished | None]) -> bool:
    """Whether the emulated scheduler does not read the data of one of the devices."""
    known = {device.node_allocatable_shape for device in devices if device is not None} - {None, "unknown"}
    return view.rules != "exact" and bool(known - {view.rules})


def _is_misspelt(devices: list[DevicePublished | None]) -> bool:
    """Whether a device spells the key of its own capacity otherwise than the capacity."""
    return any(
        SPELLING in members
        for device in devices
        if device is not None
        for members in device.node_allocatable.values()
    )


def _used(claim: ClaimObserved) -> list[AllocationResult]:
    """Return the results that count, a share that is listed twice once."""
    found = {(r.device_id, r.share_id): r for r in reversed(used(claim))}
    return list(reversed(found.values()))


def _taken(view: View, result: AllocationResult) -> bool:
    return not view.alone and view.objects.is_taken(view.claim, result)


def _unknown_amounts(view: View) -> bool:
    try:
        for result in used(view.claim):
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
    """Yield readings where some of the devices, or all, are those of the same pool and name that other drivers publish.

    The 1.36 scheduler takes, for each result by itself, whichever it finds first.
    """
    used_here, known = _used(view.claim), view.objects.namesakes
    choices = [
        (result.device_id, *sorted(known.get((result.pool, result.device), set()) - {result.device_id}))
        for result in used_here
    ]
    own = tuple(ids[0] for ids in choices)
    single = (
        (*own[:place], other, *own[place + 1 :]) for place, ids in enumerate(choices) for other in ids[1:]
    )
    # of many devices not every mixture is tried: one, all by one driver, then what there is place for
    whole = (tuple(ids[min(number, len(ids) - 1)] for ids in choices) for number in range(1, _DRIVERS_LIMIT))
    for chosen in chain(single, whole, islice(product(*choices), 1, _NAMESAKES_LIMIT)):
        if chosen == own:
            continue
        found = {(r.device_id, r.share_id): device_id for r, device_id in zip(used_here, chosen, strict=True)}

        def choice(
            result: AllocationResult, found: Mapping[tuple[str, str], str] = found
        ) -> DevicePublished | None:
            return view.objects.publication(found[result.device_id, result.share_id])

        yield choice
