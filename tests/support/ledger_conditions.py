"""What is wrong on the naive ledger's node at one moment: pools, devices that are missing, mappings that are, unknown shapes.

It follows the table of reasons in docs/ledger.md and must not import ``streams.ledger``.
"""

from __future__ import annotations

import itertools

from ledger_arithmetic import add, added, kept, legal, number, own_requests, read

from sickbay import facts as f


def conditions(world, policy, *, pool=None):
    """``(reason, scope)`` of what is wrong at the world's time; of one ``(driver, pool)`` only, if it is named."""
    found = set()
    for (driver, name), fact in world.pools.items():
        if pool in (None, (driver, name)):
            found |= pool_conditions(world, policy, driver, name, fact)
    for claim in world.claims.values():
        held = [r for r in world.holds(claim) if pool in (None, (r.driver, r.pool))]
        scope = f"{claim.namespace}/{claim.claim}"
        if not world.pods_of(claim):
            continue
        here = [r for r in held if (r.driver, r.pool) in world.pools or world.last(r.device_id) is not None]
        if any(r.device_id not in world.devices for r in here):
            found.add(("slice_missing", scope))
        counted = any(line.book == "recorded" and line.claim_uid == claim.claim_uid for line in world.lines)
        devices = [world.devices.get(r.device_id) for r in world.holds(claim)]
        bare = [d for d in devices if d is not None and d.node_allocatable_shape is None]
        since_ms = world.allocated_ms(claim)
        lost = [d for d in bare if had_mapping(world.told["device", d.device_id], since_ms)]
        if any(pool in (None, (d.driver, d.pool)) for d in lost):
            found.add(("mapping_missing", scope))
        if counted and held and len(bare) == len(devices):
            found.add(("mapping_missing", scope))
    return found if pool else found | unknown_shapes(world)


def had_mapping(log, since_ms):
    """Whether a device was published with a mapping at any time from ``since_ms`` on."""
    ends = [*(t for t, _ in log[1:]), float("inf")]
    return any(
        isinstance(x, f.DevicePublished) and x.node_allocatable_shape is not None and end > since_ms
        for (_, x), end in zip(log, ends, strict=True)
    )


def fell_at(log, at_ms):
    """Whether the generation of a pool fell at a time without its slices having been gone."""
    return any(
        t == at_ms
        and before.newest_generation is not None
        and after.newest_generation is not None
        and None not in (before.effective_generation, after.effective_generation)
        and after.effective_generation < before.effective_generation
        for (_, before), (t, after) in itertools.pairwise(log)
    )


def pool_conditions(world, policy, driver, name, fact):
    found, scope, windows = set(), f"{driver}/{name}", policy.ledger
    log = world.told[("pool", driver, name)]
    if ill(fact):
        found.add(("pool_incomplete", scope))
        since_ms = min(t for t, _ in itertools.takewhile(lambda item: ill(item[1]), reversed(log)))
        if world.now_ms >= since_ms + windows.slice_stale_ms:
            found.add(("slice_stale", scope))
    if fact.newest_generation is not None and any(
        fell_at(log, t) and world.now_ms < t + windows.rebuild_settle_ms for t, _ in log
    ):
        found.add(("generation_back", scope))
    return found


def ill(fact):
    """Whether a pool is there and its newest generation cannot be relied on."""
    return fact.newest_generation is not None and (
        bool(fact.invalid_reason) or not fact.complete or fact.effective_generation != fact.newest_generation
    )


def unknown_shapes(world):
    """``shape_unknown`` of everything that was not understood whole."""
    found = set()
    for device in world.devices.values():
        if device.node_allocatable_shape == "unknown":
            found.add(device.device_id)
    for pod in world.pods.values():
        entries = pod.node_allocatable or ()
        unread = any(e.shape == "unknown" or e.unknown_fields for e in entries)
        said = [t for e in entries for m in (e.mapping, e.per_pod, e.per_container) for t in m.items()]
        refused = any(kept(r) and not legal(number(t)) for r, t in said)
        own = add(own_requests(pod), read(pod.overhead))
        if unread or refused or not all(map(legal, own.values())):
            found.add(f"{pod.namespace}/{pod.pod}")
    for claim in world.claims.values():
        for result in world.holds(claim):
            device = world.last(result.device_id)
            shared = bool(result.share_id) if device is None else device.allow_multiple
            unknown = added(device, result, world.rules) is None
            if unknown or (shared and result.consumed is None):
                found.add(f"{claim.namespace}/{claim.claim}")
    node = world.node
    if isinstance(node, f.NodeObserved) and any(
        kept(r) and not legal(number(t)) for r, t in node.allocatable.items()
    ):
        found.add("")
    return {("shape_unknown", scope) for scope in found}
