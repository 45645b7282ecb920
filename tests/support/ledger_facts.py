"""Makers of facts for one node, with the fields that the ledger reads."""

from __future__ import annotations

from facts_of import DAY, HOUR, MINUTE, SECOND, tick

from sickbay.facts import (
    AllocationResult,
    ClaimGone,
    ClaimObserved,
    ClaimReference,
    ClaimsGateRequested,
    Consumer,
    Container,
    DevicePublished,
    DeviceWithdrawn,
    NodeAllocatableEntry,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    NumaAffinity,
    PodClaim,
    PodGone,
    PodObserved,
    PoolObserved,
    WatchGapFound,
)

NODE = "node-1"
NAMESPACE = "ml"
#: Two drivers whose pools have one name.
CPU, GPU = "cpu.example.com", "gpu.example.com"
CORES = f"{CPU}/cores"
__all__ = ["DAY", "HOUR", "MINUTE", "SECOND", "tick"]


def device_id(driver, device, pool=NODE):
    return f"dra:{driver}/{pool}/{device}"


def node(at_ms, rv, *, uid="node-uid-1", labels=None, **allocatable):
    return NodeObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        node_uid=uid,
        ready="True",
        allocatable={k.replace("_", "-"): v for k, v in (allocatable or {"cpu": "24"}).items()},
        labels=labels or {},
    )


def node_gone(at_ms, rv, *, uid="node-uid-1"):
    return NodeGone(node=NODE, observed_at_ms=at_ms, rv=rv, node_uid=uid)


def lapsed(at_ms, rv):
    return NodeLeaseLapsed(
        node=NODE, observed_at_ms=at_ms, rv=rv, last_renewal_at_ms=at_ms - 40_000, lease_ms=40_000
    )


def resumed(at_ms, rv):
    return NodeLeaseResumed(node=NODE, observed_at_ms=at_ms, rv=rv)


def container(name, requests=None, *claims, **more):
    """A container; ``claims`` are pod-local names."""
    return Container(
        name=name, requests=requests or {}, claims=tuple(ClaimReference(name=c) for c in claims), **more
    )


def entry(claim, mapping=None, *, shape="1.36", containers=("main",), **more):
    """A status entry of a Pod."""
    return NodeAllocatableEntry(
        claim=claim, shape=shape, containers=tuple(containers), mapping=mapping or {}, **more
    )


def pod(at_ms, rv, name="a", *containers, claims=(), phase="Running", node=NODE, **more):
    """A Pod; ``claims`` are names of claim objects, each under its own name."""
    return PodObserved(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        pod_uid=f"uid-{name}",
        namespace=NAMESPACE,
        pod=name,
        phase=phase,
        containers=containers or (container("main", None, *claims),),
        claims=tuple(PodClaim(name=c, claim=c) for c in claims),
        **more,
    )


def pod_gone(at_ms, rv, name="a", **more):
    return PodGone(
        node=NODE, observed_at_ms=at_ms, rv=rv, pod_uid=f"uid-{name}", namespace=NAMESPACE, pod=name, **more
    )


def result(driver, device, consumed=None, *, share="", request="r", pool=NODE, admin=False):
    return AllocationResult(
        request=request,
        driver=driver,
        pool=pool,
        device=device,
        share_id=share,
        consumed=consumed,
        admin_access=admin,
    )


def claim(at_ms, rv, name="c0", *results, uid=None, pods=(), group=None, **more):
    """A claim; ``pods`` are the names of its consumers."""
    consumers = tuple(Consumer(resource="pods", name=p, uid=f"uid-{p}") for p in pods)
    if group is not None:
        consumers += (
            Consumer(resource="podgroups", name=group, uid=f"uid-{group}", api_group="scheduling.k8s.io"),
        )
    return ClaimObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        claim_uid=uid or f"uid-{name}",
        namespace=NAMESPACE,
        claim=name,
        results=tuple(sorted(results, key=lambda r: (r.device_id, r.share_id, r.request))),
        consumers=consumers,
        allocated_at="2026-07-01T00:00:01Z" if results else None,
        **more,
    )


def claim_gone(at_ms, rv, name="c0", *, uid=None):
    return ClaimGone(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        claim_uid=uid or f"uid-{name}",
        namespace=NAMESPACE,
        claim=name,
    )


def published(at_ms, rv, driver, device, *, shape=None, numa=(), generation=1, **more):
    """A device; ``numa`` lists its nodes, the one it hangs on first."""
    return DevicePublished(
        node=NODE,
        device_id=device_id(driver, device),
        observed_at_ms=at_ms,
        rv=rv,
        driver=driver,
        pool=NODE,
        device=device,
        slice_uid="slice-1",
        pool_generation=generation,
        numa=NumaAffinity(nodes=tuple(sorted(numa)), physical=numa[0] if numa else None),
        node_allocatable_shape=shape,
        **more,
    )


def withdrawn(at_ms, rv, driver, device, *, reason="generation"):
    return DeviceWithdrawn(
        node=NODE,
        device_id=device_id(driver, device),
        observed_at_ms=at_ms,
        rv=rv,
        driver=driver,
        pool=NODE,
        device=device,
        reason=reason,
    )


def pool(at_ms, rv, driver=CPU, *, effective=1, newest=1, complete=True, invalid="", counters=(), name=NODE):
    """A pool; ``newest`` None is a pool that is gone."""
    return PoolObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        driver=driver,
        pool=name,
        effective_generation=effective,
        newest_generation=newest,
        slices_present=0 if newest is None else 1,
        slices_expected=0 if newest is None else 1 if complete else 2,
        complete=complete,
        invalid_reason=invalid,
        counters=tuple(counters),
    )


def gap(at_ms, *, watched="pods", lasted_ms=5_000):
    return WatchGapFound(
        node="",
        observed_at_ms=at_ms,
        watched=watched,
        from_ms=at_ms - lasted_ms,
        to_ms=at_ms,
        from_rv=1,
        to_rv=2,
    )


def gate(at_ms, *, closed, scope="node", request="g1", version=""):
    return ClaimsGateRequested(
        node=NODE if scope == "node" else "",
        partition=None if scope == "node" else 0,
        observed_at_ms=at_ms,
        request_id=request,
        device_id="",
        actor="ann",
        scope=scope,
        closed=closed,
        reason="maintenance",
        ledger_version=version,
    )
