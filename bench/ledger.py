"""Ledger input for the benchmark: Pods with claims that come and go on machines whose devices take node resources.

Every node has one shared device of cores for each of two NUMA nodes, and eight cards. A Pod takes a card and two cores, runs
beside seven others of its node, and ends when the eighth comes after it. Equal numbers give equal facts. It must not measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sickbay.facts import (
    AllocationResult,
    ClaimGone,
    ClaimObserved,
    Consumer,
    Container,
    DevicePublished,
    Fact,
    NodeAllocatableEntry,
    NodeObserved,
    NumaAffinity,
    PodClaim,
    PodGone,
    PodObserved,
    PoolObserved,
)

_START_MS: Final = 1_782_892_800_000
_CARDS: Final = 8
_GPU: Final = "gpu.example.com"
_CPU: Final = "cpu.example.com"
_NAMESPACE: Final = "ml"
#: Time between two Pods of the cluster.
_STEP_MS: Final = 200


def ledger_facts(nodes: int, pods: int) -> Iterator[Fact]:
    """Yield the facts of ``pods`` Pods that start one after the other, in order of event time."""
    for index in range(nodes):
        yield from _machine(f"node-{index}")
    rv = 100
    for number in range(pods):
        at_ms, node, place = _START_MS + number * _STEP_MS, f"node-{number % nodes}", number // nodes
        if place >= _CARDS:
            yield from _ended(number - nodes * _CARDS, node, place % _CARDS, at_ms, rv)
        yield from _started(number, node, place % _CARDS, at_ms, rv + 10)
        rv += 20


def _machine(node: str) -> Iterator[Fact]:
    yield NodeObserved(
        node=node,
        observed_at_ms=_START_MS,
        epoch=0,
        rv=1,
        node_uid=f"uid-{node}",
        ready="True",
        allocatable={"cpu": "192", "memory": "1Ti"},
        capacity={"cpu": "192", "memory": "1Ti"},
    )
    for driver, names in (
        (_CPU, [f"numa-{numa}" for numa in range(2)]),
        (_GPU, [f"gpu-{n}" for n in range(_CARDS)]),
    ):
        for index, name in enumerate(names):
            yield _device(node, driver, name, index)
        yield PoolObserved(
            node=node,
            observed_at_ms=_START_MS,
            epoch=0,
            rv=2,
            driver=driver,
            pool=node,
            effective_generation=1,
            newest_generation=1,
            slices_present=1,
            slices_expected=1,
            complete=True,
        )


def _device(node: str, driver: str, name: str, index: int) -> DevicePublished:
    shared = driver == _CPU
    return DevicePublished(
        node=node,
        observed_at_ms=_START_MS,
        epoch=0,
        rv=2,
        device_id=f"dra:{driver}/{node}/{name}",
        driver=driver,
        pool=node,
        device=name,
        slice_uid=f"slice-{driver}-{node}",
        pool_generation=1,
        capacity={f"{_CPU}/cores": "96"} if shared else {f"{_GPU}/memory": "80Gi"},
        allow_multiple=shared,
        numa=NumaAffinity(
            nodes=(index % 2,), physical=index % 2, sources=("resource.kubernetes.io/numaNode",)
        ),
        node_allocatable_shape="1.36",
        node_allocatable={"cpu": {"capacityKey": f"{_CPU}/cores"}}
        if shared
        else {"cpu": {"allocationMultiplier": "500m"}, "memory": {"allocationMultiplier": "4Gi"}},
    )


def _claims(
    number: int, node: str, place: int, at_ms: int, rv: int, *, held: bool
) -> Iterator[ClaimObserved]:
    for what, driver, device in (("card", _GPU, f"gpu-{place}"), ("cores", _CPU, f"numa-{place % 2}")):
        result = AllocationResult(
            request=what,
            driver=driver,
            pool=node,
            device=device,
            share_id=f"share-{number}" if driver == _CPU else "",
            consumed={f"{_CPU}/cores": "2"} if driver == _CPU else None,
        )
        yield ClaimObserved(
            node=node,
            observed_at_ms=at_ms,
            epoch=0,
            rv=rv,
            claim_uid=f"claim-{number}-{what}",
            namespace=_NAMESPACE,
            claim=f"work-{number}-{what}",
            results=(result,) if held else (),
            consumers=(Consumer(resource="pods", name=f"work-{number}", uid=f"pod-{number}"),)
            if held
            else (),
            owner=f"Pod/pod-{number}",
        )


def _pod(number: int, node: str, at_ms: int, rv: int, phase: str) -> PodObserved:
    claims = {"card": {"cpu": "500m", "memory": "4Gi"}, "cores": {"cpu": "2"}}
    return PodObserved(
        node=node,
        observed_at_ms=at_ms,
        epoch=0,
        rv=rv,
        pod_uid=f"pod-{number}",
        namespace=_NAMESPACE,
        pod=f"work-{number}",
        phase=phase,
        containers=(Container(name="main", requests={"cpu": "1", "memory": "8Gi"}),),
        claims=tuple(PodClaim(name=what, claim=f"work-{number}-{what}") for what in claims),
        node_allocatable=tuple(
            NodeAllocatableEntry(
                claim=f"work-{number}-{what}", shape="1.36", containers=("main",), mapping=amounts
            )
            for what, amounts in claims.items()
        ),
    )


def _started(number: int, node: str, place: int, at_ms: int, rv: int) -> Iterator[Fact]:
    yield from _claims(number, node, place, at_ms, rv, held=True)
    yield _pod(number, node, at_ms, rv + 1, "Pending")
    yield _pod(number, node, at_ms, rv + 2, "Running")


def _ended(number: int, node: str, place: int, at_ms: int, rv: int) -> Iterator[Fact]:
    yield _pod(number, node, at_ms, rv, "Succeeded")
    yield from _claims(number, node, place, at_ms, rv + 1, held=False)
    name = {"namespace": _NAMESPACE, "node": node, "observed_at_ms": at_ms, "epoch": 0, "rv": rv + 2}
    yield PodGone(pod_uid=f"pod-{number}", pod=f"work-{number}", **name)  # type: ignore[arg-type]
    for what in ("card", "cores"):
        yield ClaimGone(claim_uid=f"claim-{number}-{what}", claim=f"work-{number}-{what}", **name)  # type: ignore[arg-type]
