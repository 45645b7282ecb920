"""Makers of facts for one node, with the fields that custody reads."""

from __future__ import annotations

from sickbay.facts import (
    BreakerResetRequested,
    BreakerStateChanged,
    CanaryReported,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    ExclusionReported,
    HoldRequested,
    MoveReported,
    MoveStepReported,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PolicyChanged,
    ProbeReported,
    ReleaseRequested,
    Taint,
    Tick,
    WatchGapFound,
)

#: Where histories begin: late enough that nothing is before the epoch.
T0 = 100_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NODE = "node-g1"
DRIVER = "gpu.nvidia.com"
RESOURCE = "nvidia.com/gpu"


def dra(index: int) -> str:
    return f"dra:{DRIVER}/{NODE}/gpu-{index}"


def plugin(index: int) -> str:
    return f"plugin:{RESOURCE}/GPU-{index}"


def word(
    device_id,
    health,
    at_ms,
    rv,
    *,
    pod="pod-a",
    live=True,
    raw=...,
    message=None,
    absence="",
    physical_id=None,
):
    return DeviceHealthObserved(
        node=NODE,
        device_id=device_id,
        physical_id=physical_id,
        observed_at_ms=at_ms,
        rv=rv,
        health=health,
        health_raw=health if raw is ... else raw,
        message=message,
        live=live,
        absence=absence,
        pod_uid=f"uid-{pod}",
        namespace="ml",
        pod=pod,
        reported_as=RESOURCE if device_id.startswith("plugin:") else "claim:gpu",
    )


def published(index, at_ms, rv, *, taints=(), attributes=None, generation=1, physical_id=None):
    return DevicePublished(
        node=NODE,
        device_id=dra(index),
        physical_id=physical_id,
        observed_at_ms=at_ms,
        rv=rv,
        driver=DRIVER,
        pool=NODE,
        device=f"gpu-{index}",
        slice_uid="slice-1",
        pool_generation=generation,
        attributes=attributes or {f"{DRIVER}/uuid": f"GPU-{index}"},
        taints=tuple(taints),
    )


def withdrawn(index, at_ms, rv, reason="generation"):
    return DeviceWithdrawn(
        node=NODE,
        device_id=dra(index),
        observed_at_ms=at_ms,
        rv=rv,
        driver=DRIVER,
        pool=NODE,
        device=f"gpu-{index}",
        reason=reason,
    )


def taint(key, effect="NoSchedule", value=""):
    return Taint(key=key, value=value, effect=effect)


XID = Taint(key=f"{DRIVER}/xid", value="79", effect="NoSchedule")
UNMONITORED = Taint(key=f"{DRIVER}/unmonitored", effect="None")


def node(at_ms, rv, *, allocatable="8", capacity="8", ready="True", uid="node-uid-1", boot_id="boot-1"):
    return NodeObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        node_uid=uid,
        ready=ready,
        boot_id=boot_id,
        capacity={"cpu": "24", RESOURCE: capacity},
        allocatable={"cpu": "24", RESOURCE: allocatable},
    )


def lapsed(at_ms, rv, last_renewal_at_ms):
    return NodeLeaseLapsed(
        node=NODE, observed_at_ms=at_ms, rv=rv, last_renewal_at_ms=last_renewal_at_ms, lease_ms=40_000
    )


def resumed(at_ms, rv):
    return NodeLeaseResumed(node=NODE, observed_at_ms=at_ms, rv=rv)


def node_gone(at_ms, rv, uid="node-uid-1"):
    return NodeGone(node=NODE, observed_at_ms=at_ms, rv=rv, node_uid=uid)


def policy_changed(at_ms, policy, partition=0):
    return PolicyChanged.to(policy, at_ms, partition)


def tick(at_ms):
    return Tick(node="", observed_at_ms=at_ms)


def breaker(at_ms, scope, is_open):
    return BreakerStateChanged(node="", observed_at_ms=at_ms, scope=scope, open=is_open)


def gap(from_ms, to_ms):
    return WatchGapFound(
        node="", observed_at_ms=to_ms, watched="pods", from_ms=from_ms, to_ms=to_ms, from_rv=1, to_rv=2
    )


def hold(device_id, at_ms, until_ms, request="h1", actor="ann", reason="looks odd"):
    return HoldRequested(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device_id,
        actor=actor,
        reason=reason,
        until_ms=until_ms,
    )


def release(device_id, at_ms, episode_id, request="r1", actor="ann", reason="card replaced"):
    return ReleaseRequested(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device_id,
        actor=actor,
        episode_id=episode_id,
        reason=reason,
    )


def workload(at_ms, rv, *, pod="pod-a", ability="checkpoint", topology="whole", phase="Running"):
    return PodObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        pod_uid=f"uid-{pod}",
        namespace="ml",
        pod=pod,
        phase=phase,
        ability=ability,
        topology=topology,
    )


def pod_gone(at_ms, rv, *, pod="pod-a"):
    return PodGone(node=NODE, observed_at_ms=at_ms, rv=rv, pod_uid=f"uid-{pod}", namespace="ml", pod=pod)


def step_report(phase, device_id, at_ms, episode, passed, request, *, attempt=None):
    kind = ProbeReported if phase == "probing" else CanaryReported
    return kind(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device_id,
        actor="prober",
        episode_id=episode.episode_id,
        attempt=episode.attempt if attempt is None else attempt,
        passed=passed,
    )


def move_report(move, at_ms, request, *, token=None, outcome="done"):
    return MoveReported(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=move.device_id,
        actor="mover",
        move_id=move.move_id,
        token=move.token if token is None else token,
        outcome=outcome,
    )


def move_step(move, at_ms, request, *, step="evicted"):
    return MoveStepReported(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=move.device_id,
        actor="mover",
        move_id=move.move_id,
        token=move.token,
        step=step,
    )


def excluded(device_id, at_ms, state, request, *, episode_id="", effect="NoSchedule"):
    return ExclusionReported(
        node=NODE,
        observed_at_ms=at_ms,
        request_id=request,
        device_id=device_id,
        actor="excluder",
        episode_id=episode_id,
        rule=f"sickbay-{device_id.rsplit('/', 1)[-1]}",
        effect=effect,
        state=state,
    )


def breaker_reset(at_ms, request, *, scope="cluster", partition=0):
    return BreakerResetRequested(
        node="",
        observed_at_ms=at_ms,
        request_id=request,
        device_id="",
        actor="ann",
        scope=scope,
        reason="the storm is over",
        partition=partition,
    )
