"""What a node has: the Node object, its pools, and its devices with those who hold them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from sickbay.decisions import NUMA_UNKNOWN, Book, Entry
from sickbay.facts import AllocationResult, ClaimObserved, DevicePublished, PoolObserved
from sickbay.policy import Policy
from streams.ledger.amounts import Exact, counts, lines, nano_of, nowhere, within_limits
from streams.ledger.findings import OUT_OF_RANGE, Findings
from streams.ledger.mapping import bucket_of
from streams.ledger.objects import Objects
from streams.ledger.rebuilding import done_ms, fell, is_present, is_settled
from streams.ledger.versions import Item, used

_ONE: Final = 10**9


def find_node(objects: Objects) -> Findings:
    """Return what the Node object comes to."""
    found = Findings()
    fact = objects.newest("node")
    node = objects.node
    if node is None:
        if fact is not None:
            found.hold("slice_stale", "", fact.observed_at_ms, "the node is gone")
        return found
    supply = {r: nano_of(text) for r, text in node.allocatable.items() if counts(r)}
    legal = {r: nano for r, nano in supply.items() if within_limits(nano)}
    found.enter(
        Entry(
            book="common", key=f"node/{node.node_uid}", account="supply", amounts=nowhere(legal),
            at_ms=node.observed_at_ms,
        )
    )  # fmt: skip
    refused = [text for text in node.refused if "allocatable" in text]
    if refused or len(legal) != len(supply):
        detail = refused[0] if refused else "an allocatable amount out of range"
        found.hold("shape_unknown", "", node.observed_at_ms, detail)
    return found


# --- pools ---


def find_pool(
    objects: Objects, driver: str, pool: str, policy: Policy, counted: Callable[[str], bool]
) -> Findings:
    """Return what a pool comes to: the counters that its devices share, and whether its numbers can be relied on."""
    found = Findings()
    items = objects.items("pool", driver, pool)
    newest = items[-1]
    fact = newest.fact
    assert isinstance(fact, PoolObserved)
    scope, ledger = f"{driver}/{pool}", policy.ledger
    if fact.newest_generation is None:
        if any(_effective(item) is not None for item in items[:-1]):
            found.hold(
                "driver_rebuilding", scope, newest.at_ms, "its slices are gone",
                until_ms=newest.at_ms + ledger.slice_stale_ms,
            )  # fmt: skip
        return found
    found.enter(
        Entry(
            book="counters", key=f"counters/{scope}", account="supply", at_ms=newest.at_ms,
            amounts=lines(
                (f"{scope}:{group}/{counter}", NUMA_UNKNOWN, nano)
                for group, counter, text in fact.counters
                if within_limits(nano := nano_of(text))
            ),
        )
    )  # fmt: skip
    if not all(within_limits(nano_of(text)) for _, _, text in fact.counters):
        found.hold("shape_unknown", scope, newest.at_ms, OUT_OF_RANGE)
    if not is_settled(newest):
        since_ms = _since(items)
        detail = fact.invalid_reason or (
            f"generation {fact.newest_generation} has {fact.slices_present} of {fact.slices_expected} slices;"
            f" {'none' if fact.effective_generation is None else fact.effective_generation} counts"
        )
        found.hold("pool_incomplete", scope, since_ms, detail)
        found.hold("slice_stale", scope, since_ms + ledger.slice_stale_ms, detail)
    _fallen(found, items, scope, ledger.rebuild_settle_ms)
    backs = [n for n in range(1, len(items)) if is_present(items[n]) and not is_present(items[n - 1])]
    if backs:
        gone, since_back = items[backs[-1] - 1], items[backs[-1] :]
        found.hold(
            "driver_rebuilding", scope, gone.at_ms, "its slices were gone and are back", from_ms=since_back[0].at_ms,
            until_ms=done_ms(objects, (driver, pool), since_back, ledger.rebuild_settle_ms, counted),
        )  # fmt: skip
    return found


def _effective(item: Item) -> int | None:
    return item.fact.effective_generation if isinstance(item.fact, PoolObserved) else None


def _since(items: list[Item]) -> int:
    """Return since when the pool has been incomplete without a break."""
    since_ms = items[-1].at_ms
    for item in reversed(items):
        if is_settled(item) or not is_present(item):
            break
        since_ms = item.at_ms
    return since_ms


def _fallen(found: Findings, items: list[Item], scope: str, settle_ms: int) -> None:
    """Hold after the generation fell while there were slices of the pool."""
    for before, after in pairwise(items):
        generations = fell(before, after)
        if generations is not None:
            detail = f"from {generations[0]} to {generations[1]}"
            until_ms = after.at_ms + settle_ms
            found.hold("generation_back", scope, after.at_ms, detail, until_ms=until_ms)


# --- devices ---


def find_device(objects: Objects, device_id: str) -> Findings:
    """Return what a device comes to: its capacity, who holds how much of it, and the counters it pays."""
    found = Findings()
    published = objects.published(device_id)
    if published is not None:
        found.enter(
            Entry(
                book="devices", key=f"device/{device_id}", account="supply", device_id=device_id,
                at_ms=published.observed_at_ms,
                amounts=lines((r, bucket_of(published.numa), n) for r, n in _capacity(published).items()),
            )
        )  # fmt: skip
        amounts = [*published.capacity.values(), *(text for _, _, text in published.consumes_counters)]
        if not all(within_limits(nano_of(text)) for text in amounts):
            found.hold("shape_unknown", device_id, published.observed_at_ms, OUT_OF_RANGE)
        if published.node_allocatable_shape == "unknown":
            detail = next(iter(published.unknown_fields), "its node-allocatable data is not understood whole")
            found.hold("shape_unknown", device_id, published.observed_at_ms, detail)
    holders = objects.contenders(device_id)
    if holders:
        _use(found, objects, device_id, holders)
    return found


def _prefix(result: AllocationResult | DevicePublished) -> str:
    return f"{result.driver}/{result.pool}"


def _capacity(device: DevicePublished) -> dict[str, int]:
    prefix = _prefix(device)
    amounts = {
        f"{prefix}:{name}": nano
        for name, text in device.capacity.items()
        if within_limits(nano := nano_of(text))
    }
    return {f"{prefix}:devices": _ONE, **amounts}


def _use(found: Findings, objects: Objects, device_id: str, holders: list[ClaimObserved]) -> None:
    device = objects.publication(device_id)
    bucket = bucket_of(device.numa) if device is not None else NUMA_UNKNOWN
    results = [
        (claim, result) for claim in holders for result in used(claim) if result.device_id == device_id
    ]
    bearer, first = results[0]
    one = {f"{_prefix(first)}:devices": _ONE}
    alone = [(c, r) for c, r in results if objects.exclusive(device_id, r.share_id)]
    whole = _capacity(device) if device is not None and alone else one
    found.enter(_entry(bearer, "devices", f"use/{device_id}", device_id, bucket, whole))
    if device is not None:
        counters = {
            f"{_prefix(device)}:{group}/{counter}": nano
            for group, counter, text in device.consumes_counters
            if within_limits(nano := nano_of(text))
        }
        found.enter(_entry(bearer, "counters", f"use/{device_id}", device_id, bucket, counters))
    for claim, result in results:
        if objects.exclusive(device_id, result.share_id):
            if claim is not bearer:
                refused = _entry(claim, "devices", f"use/{device_id}", device_id, bucket, whole)
                found.refuse(refused, claim.claim_uid)
        else:
            consumed = {
                f"{_prefix(result)}:{name}": nano
                for name, text in (result.consumed or {}).items()
                if within_limits(nano := nano_of(text))
            }
            key = f"use/{device_id}/{claim.claim_uid}/{result.share_id}"
            found.enter(_entry(claim, "devices", key, device_id, bucket, consumed, result.share_id))
    if len({claim.claim_uid for claim, _ in alone}) > 1:
        names = ", ".join(sorted(f"{claim.namespace}/{claim.claim}" for claim, _ in alone))
        found.alerts["device_conflict", device_id] = f"{device_id} cannot be shared and is held by {names}"


def _entry(
    claim: ClaimObserved,
    book: Book,
    key: str,
    device_id: str,
    bucket: str,
    amounts: dict[str, int],
    share_id: str = "",
) -> Entry:
    exact: list[tuple[str, str, Exact]] = [(resource, bucket, nano) for resource, nano in amounts.items()]
    return Entry(
        book=book,
        key=key,
        account="claims",
        amounts=lines(exact),
        at_ms=claim.observed_at_ms,
        namespace=claim.namespace,
        claim=claim.claim,
        claim_uid=claim.claim_uid,
        device_id=device_id,
        share_id=share_id,
    )
