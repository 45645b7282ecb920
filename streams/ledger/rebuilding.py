"""When a driver that restarted is done: since when everything that its claims rest on has been well without a break.

After a restart the pool is read again, every bound claim's device must be there with its mapping, and no generation may go back,
all for a while, before new claims come (design, section 8). Histories of pools and devices tell what was well when; the claims
are those that are bound now.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from sickbay.facts import AllocationResult, ClaimObserved, DevicePublished, PoolObserved
from streams.ledger.findings import NEVER
from streams.ledger.objects import Objects
from streams.ledger.versions import Item, used

#: Moments that are looked at; a pool that changes more often stays on hold.
_MOMENTS_LIMIT: Final = 2_000


def is_settled(item: Item) -> bool:
    """Whether the newest generation of the pool counts."""
    fact = item.fact
    assert isinstance(fact, PoolObserved)
    return fact.complete and not fact.invalid_reason and fact.effective_generation == fact.newest_generation


def is_present(item: Item) -> bool:
    """Whether the pool has a slice."""
    return isinstance(item.fact, PoolObserved) and item.fact.newest_generation is not None


def fell(before: Item, after: Item) -> tuple[int, int] | None:
    """Return the generations of a fall that no absence explains, ``None`` when there is none."""
    if not (is_present(before) and is_present(after)):
        return None
    assert isinstance(before.fact, PoolObserved)
    assert isinstance(after.fact, PoolObserved)
    old, new = before.fact.effective_generation, after.fact.effective_generation
    return (old, new) if old is not None and new is not None and new < old else None


def done_ms(
    objects: Objects,
    pool: tuple[str, str],
    items: list[Item],
    settle_ms: int,
    counted: Callable[[str], bool],
) -> int:
    """Return when the rebuilding that began with the first of ``items`` is over, NEVER while it cannot be known.

    ``items`` are the versions of the pool since it was back; ``counted`` tells whether the scheduler counted a claim.
    """
    look = _Look(objects, pool, items, counted)
    well_ms: int | None = None
    for at_ms in look.moments(items[0].at_ms):
        if well_ms is not None and at_ms >= well_ms + settle_ms:
            break
        if not look.is_well(at_ms):
            well_ms = None
        elif well_ms is None or look.fell_at(at_ms):
            well_ms = at_ms
    return NEVER if well_ms is None else well_ms + settle_ms


class _Look:
    """One pool, with the claims that have devices of it."""

    def __init__(
        self, objects: Objects, pool: tuple[str, str], items: list[Item], counted: Callable[[str], bool]
    ) -> None:
        self._objects = objects
        self._pool = pool
        self._items = items
        self._counted = counted
        self._claims = [
            claim
            for uid in sorted(objects.by_pool.get(pool, ()))
            if objects.linked(claim := objects.claims[uid])
        ]

    def _of_pool(self, result: AllocationResult) -> bool:
        return (result.driver, result.pool) == self._pool

    def moments(self, from_ms: int) -> list[int]:
        """Return the times from ``from_ms`` on at which something may have changed."""
        found = {item.at_ms for item in self._items}
        devices = {result.device_id for claim in self._claims for result in used(claim)}
        found |= {item.at_ms for device in devices for item in self._objects.items("device", device)}
        return sorted(at_ms for at_ms in found if at_ms >= from_ms)[:_MOMENTS_LIMIT]

    def fell_at(self, at_ms: int) -> bool:
        """Whether the generation fell at this time."""
        pairs = pairwise(self._items)
        return any(after.at_ms == at_ms and fell(before, after) for before, after in pairs)

    def is_well(self, at_ms: int) -> bool:
        """Whether the pool was complete, and every claim's device there with its mapping."""
        pool = _newest(self._items, at_ms)
        if pool is None or not is_settled(pool):
            return False
        return not any(self._is_wrong(claim, at_ms) for claim in self._claims)

    def _is_wrong(self, claim: ClaimObserved, at_ms: int) -> bool:
        results = used(claim)
        bare = 0
        for result in results:
            items = [i for i in self._objects.items("device", result.device_id) if i.at_ms <= at_ms]
            device = items[-1].fact if items else None
            if not isinstance(device, DevicePublished):
                if self._of_pool(result):
                    return True
            elif device.node_allocatable_shape is None:
                bare += 1
                if self._of_pool(result) and had_mapping(items, self._objects.allocated(claim).at_ms):
                    return True
        return (
            bool(results)
            and bare == len(results)
            and self._counted(claim.claim_uid)
            and any(map(self._of_pool, results))
        )


def had_mapping(items: list[Item], since_ms: int) -> bool:
    """Whether a device was published with a mapping at any time from ``since_ms`` on."""
    ends = [*(item.at_ms for item in items[1:]), NEVER]
    return any(
        isinstance(item.fact, DevicePublished)
        and item.fact.node_allocatable_shape is not None
        and end_ms > since_ms
        for item, end_ms in zip(items, ends, strict=True)
    )


def _newest(items: list[Item], at_ms: int) -> Item | None:
    found = None
    for item in items:
        if item.at_ms <= at_ms:
            found = item
    return found
