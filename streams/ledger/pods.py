"""One Pod in the books: what it asks for by itself, and what rounding its whole sum adds in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from sickbay.decisions import Account, Amount, Book, Drift, Entry
from sickbay.policy import Policy
from streams.ledger.amounts import Exact, nowhere, texts, within_limits
from streams.ledger.claims import entry_overhead, readable, split
from streams.ledger.findings import OUT_OF_RANGE, Findings, TimedDrift
from streams.ledger.objects import Objects, Unit
from streams.ledger.pod import Pod, is_unclear
from streams.ledger.requests import PodAmounts, total_nano

#: Refused values of a Pod that no amount hangs on, by the beginning or the end of their path: what it declares of itself.
_HARMLESS: Final = ("metadata", "spec.priority")
_BOOKS: Final[tuple[Book, ...]] = ("recorded", "derived")
_PARTS: Final[tuple[tuple[Account, str], ...]] = (("claims", "claim"), ("overhead", "overhead"))


def find_pod(objects: Objects, uid: str, policy: Policy, claims: Mapping[Unit, Findings]) -> Findings:
    """Return what one Pod comes to, given the findings of the claims on the node."""
    found = Findings()
    pod = objects.pods.get(uid)
    if pod is None:
        return found
    fact, amounts = pod.fact, pod.amounts
    own = {r: amounts.own.get(r, 0) + amounts.overhead.get(r, 0) for r in {*amounts.own, *amounts.overhead}}
    legal = {resource: nano for resource, nano in own.items() if within_limits(nano)}
    found.enter(_entry(pod, "common", f"pod/{uid}", "pods", nowhere(legal)))
    unresolved = _unresolved(found, objects, pod, policy.ledger.drift_grace_ms)
    where = f"{fact.namespace}/{fact.pod}"
    refused = [text for text in fact.refused if not text.startswith(_HARMLESS)]
    if refused or len(legal) != len(own):
        found.hold(
            "shape_unknown", where, pod.at_ms, refused[0] if refused else "a request that is out of range"
        )
    elif any(is_unclear(entry) for entry in fact.node_allocatable or ()):
        found.hold(
            "shape_unknown", where, pod.at_ms, "a node-allocatable status that is not understood whole"
        )
    concerning = objects.concerning(pod) if pod.names or pod.uid in objects.by_pod else []
    if len(legal) != len(own):
        amounts = _without(amounts, own.keys() - legal.keys())
    if not (concerning or unresolved):
        _round(found, pod, amounts, legal)
        return found
    for book in _BOOKS:
        _adjust(
            found, concerning, pod, amounts, legal, book, unresolved if book == "recorded" else {}, claims
        )
    return found


def _entry(
    pod: Pod,
    book: Book,
    key: str,
    account: Account,
    amounts: tuple[Amount, ...],
    covered: tuple[Amount, ...] = (),
    claim: str = "",
) -> Entry:
    fact = pod.fact
    return Entry(
        book=book, key=key, account=account, amounts=amounts, covered=covered, at_ms=pod.at_ms, namespace=fact.namespace,
        pod=fact.pod, pod_uid=pod.uid, claim=claim,
    )  # fmt: skip


def _unresolved(found: Findings, objects: Objects, pod: Pod, grace_ms: int) -> dict[str, int]:
    """Enter what the Pod's status says of claims that are not known; return the sum, nano-units by resource."""
    total: dict[str, int] = {}
    fact, seen = pod.fact, set()
    for place, entry in enumerate(fact.node_allocatable or ()):
        if objects.resolve(pod, entry.claim) is not None:
            continue
        nanos, legal = readable(entry.mapping)
        extra, readily = entry_overhead(entry)
        if not (legal and readily):
            found.hold("shape_unknown", f"{fact.namespace}/{fact.pod}", pod.at_ms, OUT_OF_RANGE)
        base = f"?/{fact.namespace}/{entry.claim}/{pod.uid}"
        for account, part in _PARTS:
            amounts = nanos if account == "claims" else extra
            if not amounts:
                continue
            added, inside = split(nowhere(amounts), pod.amounts.covered)
            post = _entry(pod, "recorded", f"{part}/{base}", account, added, inside, entry.claim)
            if entry.claim in seen:
                found.refuse(post, f"{pod.uid}#{place + 1}")
                continue
            found.enter(post)
            for resource, nano in amounts.items():
                if resource not in pod.amounts.covered:
                    total[resource] = total.get(resource, 0) + nano
        if entry.claim not in seen and (nanos or extra):
            both = {r: nanos.get(r, 0) + extra.get(r, 0) for r in {*nanos, *extra}}
            drift = Drift(
                about=f"{fact.namespace}/{entry.claim}@{pod.uid}",
                cause="claim_unknown",
                namespace=fact.namespace,
                claim=entry.claim,
                pod=fact.pod,
                pod_uid=pod.uid,
                recorded=texts(both),
            )
            name = (fact.namespace, entry.claim)
            known = [objects.claims[uid].observed_at_ms for uid in objects.by_name.get(name, ())]
            since_ms = max(pod.at_ms, objects.left_ms.get(name, 0), *known)
            found.drifts.append(TimedDrift(drift, since_ms + grace_ms))
        seen.add(entry.claim)
    return total


def _without(amounts: PodAmounts, refused: AbstractSet[str]) -> PodAmounts:
    """Return what a Pod asks for but for resources whose amount was refused."""
    parts = (amounts.own, amounts.floor, amounts.overhead)
    own, floor, overhead = ({r: n for r, n in part.items() if r not in refused} for part in parts)
    return PodAmounts(own, floor, overhead, amounts.covered)


def _round(found: Findings, pod: Pod, amounts: PodAmounts, own: Mapping[str, int]) -> None:
    """Enter what rounding adds to a Pod without claims, the same in both books."""
    difference = {r: total_nano(amounts, r, 0) - own.get(r, 0) for r in {*own, *amounts.floor}}
    if any(difference.values()):
        for book in _BOOKS:
            found.enter(_entry(pod, book, f"adjustment/{pod.uid}", "adjustment", nowhere(difference)))


def _adjust(
    found: Findings,
    concerning: list[str],
    pod: Pod,
    amounts: PodAmounts,
    own: Mapping[str, int],
    book: Book,
    unresolved: Mapping[str, int],
    claims: Mapping[Unit, Findings],
) -> None:
    """Enter the difference between the Pod's sum as the scheduler rounds it, and its parts as they are entered."""
    exact: dict[str, Exact] = dict(unresolved)
    entered: dict[str, int] = {**own}
    for resource, nano in unresolved.items():
        entered[resource] = entered.get(resource, 0) + nano
    for uid in concerning:
        parts = claims.get(("claim", uid))
        borne = parts.borne.get((book, pod.uid)) if parts is not None else None
        if borne is None:
            continue
        for resource, share in borne[0].items():
            exact[resource] = exact.get(resource, 0) + share
        for resource, nano in borne[1].items():
            entered[resource] = entered.get(resource, 0) + nano
    difference: dict[str, Exact] = {}
    for resource in {*exact, *entered, *amounts.floor}:
        total = total_nano(amounts, resource, exact.get(resource, 0))
        if within_limits(total):
            difference[resource] = total - entered.get(resource, 0)
    found.enter(_entry(pod, book, f"adjustment/{pod.uid}", "adjustment", nowhere(difference)))
