"""One claim in both books: what the scheduler recorded for it, what its allocation adds, and where the two differ.

``docs/ledger.md`` states the rules; this module must not look at any other claim than through ``Objects``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sickbay.decisions import NUMA_UNKNOWN, Amount, Book, Entry
from sickbay.facts import AllocationResult, ClaimObserved, DevicePublished, NodeAllocatableEntry
from sickbay.policy import Policy
from streams.ledger import numa
from streams.ledger.amounts import Exact, Nanos, counts, lines, nano_of, nowhere, whole_nano, within_limits
from streams.ledger.drift import Recorded, View, compare
from streams.ledger.findings import OUT_OF_RANGE, Findings
from streams.ledger.mapping import (
    Members,
    Rules,
    UnknownAmountError,
    bucket_of,
    mapped,
    members_of,
    overhead,
    version_of,
)
from streams.ledger.objects import Objects
from streams.ledger.pod import Pod, containers_of, is_unclear, status_entries
from streams.ledger.rebuilding import had_mapping
from streams.ledger.versions import used


class Part(NamedTuple):
    """What one result of the allocation adds."""

    result: AllocationResult
    device: DevicePublished | None
    members: Members
    amounts: dict[str, Exact]
    #: Another claim holds the device, so this one adds nothing.
    refused: bool


def find_claim(objects: Objects, uid: str, policy: Policy) -> Findings:
    """Return what one claim comes to, by uid."""
    found = Findings()
    claim = objects.claims.get(uid)
    if claim is None:
        return found
    pods = objects.linked(claim)
    rules = policy.ledger.emulate
    speakers = objects.speakers(claim, pods)
    covered = frozenset[str]().union(*(pod.amounts.covered for pod in (*pods, *speakers)))
    recorded = _recorded(found, claim, speakers, covered)
    counting = pods if rules != "1.36" else objects.not_skipped(claim, pods)
    parts = _parts(found, objects, claim, rules)
    _derived(found, claim, parts, counting, rules, covered)
    _holds(found, objects, claim, pods, recorded)
    _probable_duplicates(found, claim, parts, counting)
    numa.find(found, objects, claim, policy.reading.numa_attributes)
    view = View(objects, claim, pods, speakers, rules, frozenset(pod.uid for pod in counting), recorded)
    found.drifts += compare(view, policy.ledger.drift_grace_ms)
    return found


def _entry(
    claim: ClaimObserved,
    book: Book,
    key: str,
    amounts: tuple[tuple[Amount, ...], tuple[Amount, ...]],
    pod: Pod,
    part: Part | None = None,
) -> Entry:
    """Return an entry of a claim; ``amounts`` are those added and those covered."""
    return Entry(
        book=book,
        key=key,
        account="overhead" if key.startswith("overhead/") else "claims",
        amounts=amounts[0],
        covered=amounts[1],
        at_ms=max(claim.observed_at_ms, pod.at_ms, part.device.observed_at_ms if part and part.device else 0),
        namespace=claim.namespace,
        claim=claim.claim,
        claim_uid=claim.claim_uid,
        pod=pod.fact.pod,
        pod_uid=pod.uid,
        device_id=part.result.device_id if part else "",
        share_id=part.result.share_id if part else "",
        mapping_version=version_of(part.members) if part else "",
    )


def split(
    amounts: tuple[Amount, ...], covered: frozenset[str]
) -> tuple[tuple[Amount, ...], tuple[Amount, ...]]:
    """Return the amounts that are added, and those that a Pod-level request contains."""
    if not covered:
        return amounts, ()
    return (
        tuple(a for a in amounts if a.resource not in covered),
        tuple(a for a in amounts if a.resource in covered),
    )


def readable(amounts: Mapping[str, str]) -> tuple[Nanos, bool]:
    """Return the amounts of the ledger's resources that may be entered, and whether there was none that may not."""
    nanos = {resource: nano_of(text) for resource, text in amounts.items() if counts(resource)}
    kept = {resource: nano for resource, nano in nanos.items() if within_limits(nano)}
    return kept, len(kept) == len(nanos)


# --- the recorded book ---


def _recorded(
    found: Findings, claim: ClaimObserved, speakers: list[Pod], covered: frozenset[str]
) -> Recorded:
    """Enter what was recorded and return it."""
    contenders = [
        (pod, place, entry)
        for pod in speakers
        for place, entry in enumerate(status_entries(pod, claim.claim))
    ]
    unclear = False
    mapping: Nanos | None = None
    bearer: Pod | None = None
    by_pod: dict[str, Nanos] = {}
    for pod, place, entry in contenders:
        nanos, legal = readable(entry.mapping)
        unclear = unclear or is_unclear(entry)
        contender = pod.uid if not place else f"{pod.uid}#{place + 1}"
        if entry.mapping:
            key = f"claim/{claim.claim_uid}"
            post = _entry(claim, "recorded", key, split(nowhere(nanos), covered), pod)
            if mapping is None:
                mapping, bearer = nanos, pod
                found.enter(post)
            else:
                found.refuse(post, contender)
        elif mapping is None and not place and not (entry.per_pod or entry.per_container):
            mapping = {}
        extra, readily = entry_overhead(entry)
        if not (legal and readily):
            unclear = True
            found.hold("shape_unknown", f"{pod.fact.namespace}/{pod.fact.pod}", pod.at_ms, OUT_OF_RANGE)
        if extra:
            key = f"overhead/{claim.claim_uid}/{pod.uid}"
            post = _entry(claim, "recorded", key, split(nowhere(extra), pod.amounts.covered), pod)
            if place:
                found.refuse(post, contender)
            else:
                by_pod[pod.uid] = extra
                found.enter(post)
    for pod, place, _ in contenders:
        if not place:
            borne: dict[str, Exact] = dict(mapping or {}) if pod is bearer else {}
            borne = {r: n for r, n in borne.items() if r not in covered}
            _add(borne, by_pod.get(pod.uid, {}), pod.amounts.covered)
            found.borne["recorded", pod.uid] = (borne, {r: whole_nano(n) for r, n in borne.items()})
    return Recorded(mapping, by_pod, unclear)


def entry_overhead(entry: NodeAllocatableEntry) -> tuple[Nanos, bool]:
    """Return the overhead of a status entry, once for the Pod and for each container that it names, and whether all of it may
    be entered.
    """
    extra, legal = readable(entry.per_pod)
    each, also_legal = readable(entry.per_container)
    containers = len(set(entry.containers))
    for resource, nano in each.items():
        extra[resource] = extra.get(resource, 0) + nano * containers
    kept = {resource: nano for resource, nano in extra.items() if nano and within_limits(nano)}
    return kept, legal and also_legal and all(map(within_limits, extra.values()))


def _add(total: dict[str, Exact], amounts: Mapping[str, Exact], covered: frozenset[str]) -> None:
    for resource, nano in amounts.items():
        if resource not in covered:
            total[resource] = total.get(resource, 0) + nano


# --- the derived book ---


def _parts(found: Findings, objects: Objects, claim: ClaimObserved, rules: Rules) -> list[Part]:
    parts, seen = [], set()
    for result in used(claim):
        device = objects.publication(result.device_id)
        members = members_of(device, rules) if device is not None else {}
        try:
            amounts = mapped(members, result, rules)
        except UnknownAmountError:
            amounts = {}
            detail = (
                f"{result.device_id} counts a capacity, and the claim does not say how much of it is its own"
            )
            found.hold("shape_unknown", _scope(claim), claim.observed_at_ms, detail)
        taken = objects.is_taken(claim, result)
        use = (result.device_id, result.share_id)
        parts.append(Part(result, device, members, amounts, taken or use in seen))
        seen.add(use)
    return parts


def _derived(
    found: Findings,
    claim: ClaimObserved,
    parts: list[Part],
    counting: list[Pod],
    rules: Rules,
    covered: frozenset[str],
) -> None:
    if not counting:
        return
    mapping: dict[str, Exact] = {}
    entered: Nanos = {}
    for part in parts:
        amounts = {r: n for r, n in part.amounts.items() if within_limits(n)}
        if len(amounts) != len(part.amounts):
            found.hold("shape_unknown", _scope(claim), claim.observed_at_ms, OUT_OF_RANGE)
        if not amounts:
            continue
        result = part.result
        key = f"claim/{claim.claim_uid}/{result.device_id}/{result.share_id}/{version_of(part.members)}"
        said = lines((r, _bucket(part), n) for r, n in amounts.items())
        post = _entry(claim, "derived", key, split(said, covered), counting[0], part)
        if part.refused:
            found.refuse(post, claim.claim_uid)
            continue
        found.enter(post)
        _add(mapping, amounts, covered)
        for resource, nano in amounts.items():
            if resource not in covered:
                entered[resource] = entered.get(resource, 0) + whole_nano(nano)
    for place, pod in enumerate(counting):
        borne, known = ({}, {}) if place else (mapping, entered)
        for (resource, _), nano in sorted(_overhead(found, claim, parts, pod, rules).items()):
            if resource not in pod.amounts.covered:
                borne[resource] = borne.get(resource, 0) + nano
                known[resource] = known.get(resource, 0) + nano
        found.borne["derived", pod.uid] = (borne, known)


def _bucket(part: Part) -> str:
    return bucket_of(part.device.numa) if part.device is not None else NUMA_UNKNOWN


def _overhead(
    found: Findings, claim: ClaimObserved, parts: list[Part], pod: Pod, rules: Rules
) -> dict[tuple[str, str], int]:
    """Enter what a claim adds for one Pod and its containers; return it by resource and NUMA bucket."""
    total: dict[tuple[str, str], int] = {}
    containers = containers_of(claim, pod)
    for part in parts:
        if part.refused:
            continue
        for resource, nano in overhead(part.members, containers, rules).items():
            if within_limits(nano):
                place = (resource, _bucket(part))
                total[place] = total.get(place, 0) + nano
            else:
                found.hold("shape_unknown", _scope(claim), claim.observed_at_ms, OUT_OF_RANGE)
    if not total:
        return total
    said = lines((resource, bucket, nano) for (resource, bucket), nano in total.items())
    key = f"overhead/{claim.claim_uid}/{pod.uid}"
    found.enter(_entry(claim, "derived", key, split(said, pod.amounts.covered), pod))
    return total


# --- what makes new claims wait, and what somebody should look at ---


def _scope(claim: ClaimObserved) -> str:
    return f"{claim.namespace}/{claim.claim}"


def _holds(
    found: Findings, objects: Objects, claim: ClaimObserved, pods: list[Pod], recorded: Recorded
) -> None:
    scope, at_ms = _scope(claim), claim.observed_at_ms
    results = used(claim)
    for result in results:
        device = objects.publication(result.device_id)
        if result.consumed is None and (device.allow_multiple if device else bool(result.share_id)):
            found.hold("shape_unknown", scope, at_ms, f"the share of {result.device_id} says no amounts")
            break
    if claim.refused:
        found.hold("shape_unknown", scope, at_ms, claim.refused[0])
    consumed = (text for result in results for text in (result.consumed or {}).values())
    if not all(within_limits(nano_of(text)) for text in consumed):
        found.hold("shape_unknown", scope, at_ms, OUT_OF_RANGE)
    if not pods:
        return
    missing = [
        result.device_id
        for result in results
        if objects.published(result.device_id) is None
        and (objects.belongs_here(result.driver, result.pool) or objects.publication(result.device_id))
    ]
    if missing:
        found.hold("slice_missing", scope, _since(objects, missing, at_ms), ", ".join(missing))
    unmapped = _unmapped(objects, results, recorded, objects.allocated(claim).at_ms)
    if unmapped:
        found.hold("mapping_missing", scope, _since(objects, unmapped, at_ms), ", ".join(unmapped))


def _since(objects: Objects, devices: list[str], at_ms: int) -> int:
    """Return when the last of the devices or the claim came to be as it is."""
    return max(
        [at_ms, *(objects.items("device", d)[-1].at_ms for d in devices if objects.items("device", d))]
    )


def _unmapped(
    objects: Objects, results: list[AllocationResult], recorded: Recorded, allocated_ms: int
) -> list[str]:
    """Return the published devices without a mapping that they had since the allocation, or that the scheduler counted."""
    bare = [
        (result.device_id, objects.items("device", result.device_id))
        for result in results
        if (device := objects.published(result.device_id)) is not None
        and device.node_allocatable_shape is None
    ]
    had = [device_id for device_id, items in bare if had_mapping(items, allocated_ms)]
    if had:
        return had
    counted = bool(recorded.mapping) or bool(recorded.overhead)
    return [device_id for device_id, _ in bare] if counted and len(bare) == len(results) else []


def _probable_duplicates(
    found: Findings, claim: ClaimObserved, parts: list[Part], counting: list[Pod]
) -> None:
    """Find containers that ask for exactly what their claim adds already (kubernetes-sigs/dra-driver-cpu#7, #266)."""
    total: dict[str, Exact] = {}
    for part in parts:
        if not part.refused:
            _add(total, part.amounts, frozenset())
    for pod in counting:
        users = set(pod.references.get(claim.claim, ()))
        twice = sorted(
            {
                resource
                for container in pod.fact.containers
                if container.name in users
                for resource, nano in total.items()
                if resource not in pod.amounts.covered
                and nano_of(container.requests.get(resource, "0")) == nano
            }
        )
        if twice:
            found.alerts["probable_duplicate", f"{_scope(claim)}@{pod.uid}"] = (
                f"{pod.fact.namespace}/{pod.fact.pod} asks for the {', '.join(twice)} that its claim {claim.claim} adds already;"
                " by the scheduler's rules both count"
            )
