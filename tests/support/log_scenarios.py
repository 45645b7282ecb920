"""Two logs for tests and benchmarks: one that meets every kind of decision once, and one as large as asked for.

The first is small enough to reason about; every number in it is chosen so that a query has an answer that can be said in advance.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from ledger_scenarios import add_ledger
from log_builder import History, custody, health, open_episode, published, released

from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    BreakerOpened,
    CanaryStarted,
    CensusTaken,
    DeviceCleared,
    DeviceRestricted,
    DeviceSuspected,
    MoveFinished,
    MoveLeaseGranted,
    MovePlanned,
    NodeIncidentClosed,
    NodeIncidentOpened,
    ObservationStarted,
    ProbeStarted,
    QuarantineExtended,
    QuarantineOpened,
    QuarantineReviewDue,
)
from sickbay.facts import (
    BreakerResetRequested,
    CanaryReported,
    ClaimsGateRequested,
    DeviceWithdrawn,
    ExclusionReported,
    Health,
    HoldRequested,
    MoveReported,
    MoveStepReported,
    ProbeReported,
    ReleaseRequested,
    Tick,
)

GPU: Final = "gpu.example.com"
ExclusionState: TypeAlias = Literal["applied", "confirmed", "removed"]
SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND


def gpu(node: str, number: int) -> str:
    """Return the id of a DRA device of a node."""
    return f"dra:{GPU}/{node}/gpu-{number}"


def every_kind(*, partitions: int = 4, chained: bool = True) -> History:
    """Return a log with every kind of decision and request; the ledger's are those of ``ledger_scenarios``, on nodes of their own.

    On ``node-a``, gpu-0 fails at minute 10, gets a taint rule two seconds later, and returns with a prober at minute 60; gpu-1 goes Unknown at minute 20, is
    restricted at minute 25 and cleared at minute 30, and nothing is seen of pods from minute 23 to 24; gpu-2 is withdrawn. On ``node-b``, gpu-0 fails at minute 10, is absorbed by
    a node incident at minute 12, and a fact that came late corrects minute 11. ``node-c`` has a hold that stays open.
    """
    log = History(partitions, chained)
    for node in ("node-a", "node-b", "node-c"):
        for number in range(3):
            log.fact(published(node, gpu(node, number), number, rv=1 + number, numa=number))
    _return_with_prober(log)
    _unknown_run(log)
    _absorbed(log)
    _hold(log)
    add_ledger(log)
    return log


def _return_with_prober(log: History) -> None:
    node, device = "node-a", gpu("node-a", 0)
    fault = log.fact(health(node, device, 10 * MINUTE, "Unhealthy", rv=100, message="XID 79\x00 'lost'"))
    opened = open_episode(device, 10 * MINUTE, evidence=(fault.event_id,))
    who: dict[str, Any] = {"node": node, "device_id": device}
    pod: dict[str, Any] = {"pod_uid": "uid-1", "namespace": "default", "pod": "trainer"}
    move: dict[str, Any] = who | pod | {"move_id": "move-1", "episode_id": opened.episode_id}
    log.decide(
        fault,
        custody(QuarantineOpened, node, device, 10 * MINUTE, "in_service", "quarantined", episode=opened),
        MovePlanned(at_ms=10 * MINUTE, ability="checkpoint", topology="whole", **move),
        AlertRaised(
            node=node, at_ms=10 * MINUTE, alert_id="alert-1", alert="quarantine", about=opened.episode_id
        ),
    )
    _exclude(log, device, 10 * MINUTE + 2 * SECOND, "applied", opened.episode_id)
    _exclude(log, device, 10 * MINUTE + 32 * SECOND, "confirmed", opened.episode_id)
    tick = log.fact(Tick(node="", partition=log.records[-1].partition, observed_at_ms=11 * MINUTE))
    log.decide(tick, MoveLeaseGranted(at_ms=11 * MINUTE, token=7, expires_at_ms=21 * MINUTE, **move))
    for number, step in enumerate(("checkpointed", "evicted")):
        log.fact(
            MoveStepReported(
                **who,
                observed_at_ms=11 * MINUTE + (10 + number) * SECOND,
                request_id=f"m/1/{step}",
                actor="mover",
                move_id="move-1",
                token=7,
                step=step,
            )
        )
    report = log.fact(
        MoveReported(
            **who,
            observed_at_ms=12 * MINUTE,
            request_id="m/1",
            actor="mover",
            move_id="move-1",
            token=7,
            outcome="done",
        )
    )
    log.decide(report, MoveFinished(at_ms=12 * MINUTE, token=7, outcome="done", **move))
    again = log.fact(health(node, device, 15 * MINUTE, "Unhealthy", rv=110))
    extended = msgspec.structs.replace(
        opened, extensions=1, flap_count=2, evidence=(fault.event_id, again.event_id)
    )
    log.decide(
        again,
        custody(
            QuarantineExtended, node, device, 15 * MINUTE, "quarantined", "quarantined", episode=extended
        ),
        custody(
            QuarantineReviewDue, node, device, 15 * MINUTE, "quarantined", "quarantined", episode=extended
        ),
    )
    well = log.fact(health(node, device, 40 * MINUTE, "Healthy", rv=120))
    probing = msgspec.structs.replace(
        extended, return_at_ms=40 * MINUTE, attempt=1, verification="prober", evidence=(well.event_id,)
    )
    log.decide(
        well, custody(ProbeStarted, node, device, 40 * MINUTE, "quarantined", "probing", episode=probing)
    )
    asked: dict[str, Any] = {**who, "episode_id": opened.episode_id}
    log.fact(
        ReleaseRequested(
            **asked,
            observed_at_ms=41 * MINUTE,
            request_id="r1",
            actor="ana",
            reason="'; DROP TABLE episode; --",
        )
    )
    probe = log.fact(
        ProbeReported(
            **asked, observed_at_ms=45 * MINUTE, request_id="p1", actor="prober", attempt=1, passed=True
        )
    )
    canary = msgspec.structs.replace(probing, canary_at_ms=45 * MINUTE)
    log.decide(probe, custody(CanaryStarted, node, device, 45 * MINUTE, "probing", "canary", episode=canary))
    passed = log.fact(
        CanaryReported(
            **asked, observed_at_ms=50 * MINUTE, request_id="c1", actor="canary", attempt=1, passed=True
        )
    )
    observing = msgspec.structs.replace(canary, observing_at_ms=50 * MINUTE)
    log.decide(
        passed,
        custody(ObservationStarted, node, device, 50 * MINUTE, "canary", "observing", episode=observing),
    )
    tick = log.fact(
        Tick(node="", partition=log.records[-1].partition, observed_at_ms=60 * MINUTE + 5 * SECOND)
    )
    closed = msgspec.structs.replace(observing, closed_at_ms=60 * MINUTE, outcome="returned")
    log.decide(
        tick,
        released(node, device, 60 * MINUTE, "observing", closed),
        AlertCleared(
            node=node, at_ms=60 * MINUTE, alert_id="alert-1", alert="quarantine", about=opened.episode_id
        ),
    )
    _exclude(log, device, 60 * MINUTE + 10 * SECOND, "removed", opened.episode_id)


def _exclude(log: History, device: str, at_ms: int, state: ExclusionState, episode_id: str) -> None:
    """Append what became of the taint rule of a device of ``node-a``."""
    log.fact(
        ExclusionReported(
            node="node-a",
            observed_at_ms=at_ms,
            request_id=f"x/{state}",
            device_id=device,
            actor="excluder",
            episode_id=episode_id,
            rule="sickbay-gpu-0",
            effect="" if state == "removed" else "NoSchedule",
            state=state,
        )
    )


def _unknown_run(log: History) -> None:
    node, device = "node-a", gpu("node-a", 1)
    silent = log.fact(health(node, device, 20 * MINUTE, "Unknown", rv=200))
    since: dict[str, Any] = {"unknown_since_ms": 20 * MINUTE}
    log.decide(silent, custody(DeviceSuspected, node, device, 20 * MINUTE, "in_service", "suspect", **since))
    partition = log.records[-1].partition
    log.gap("pods", 23 * MINUTE, 24 * MINUTE)
    tick = log.fact(Tick(node="", partition=partition, observed_at_ms=25 * MINUTE + 9 * SECOND))
    log.decide(tick, custody(DeviceRestricted, node, device, 25 * MINUTE, "suspect", "restricted", **since))
    heard = log.fact(health(node, device, 30 * MINUTE, "Healthy", rv=210))
    log.decide(heard, custody(DeviceCleared, node, device, 30 * MINUTE, "restricted", "in_service"))
    log.fact(
        DeviceWithdrawn(
            node=node,
            observed_at_ms=70 * MINUTE,
            rv=300,
            device_id=gpu(node, 2),
            driver=GPU,
            pool=node,
            device="gpu-2",
            reason="generation",
        )
    )


def _absorbed(log: History) -> None:
    node, device = "node-b", gpu("node-b", 0)
    fault = log.fact(health(node, device, 10 * MINUTE, "Unhealthy", rv=100))
    opened = open_episode(device, 10 * MINUTE, evidence=(fault.event_id,))
    log.decide(
        fault,
        custody(QuarantineOpened, node, device, 10 * MINUTE, "in_service", "quarantined", episode=opened),
    )
    second = log.fact(health(node, gpu(node, 1), 12 * MINUTE, "Unhealthy", rv=101))
    closed = msgspec.structs.replace(opened, closed_at_ms=12 * MINUTE, outcome="absorbed")
    log.decide(
        second,
        NodeIncidentOpened(
            node=node,
            at_ms=12 * MINUTE,
            incident_id="incident-1",
            cause="plugin_down",
            scope=GPU,
            devices=(device,),
        ),
        released(node, device, 12 * MINUTE, "quarantined", closed, incident_id="incident-1"),
        CensusTaken(node="", at_ms=12 * MINUTE, partition=log.records[-1].partition, known={GPU: 9}),
        BreakerOpened(node="", at_ms=12 * MINUTE, scope=f"driver:{GPU}", adverse=4, known=9, threshold=3),
    )
    late = log.fact(health(node, device, 11 * MINUTE, "Unknown", rv=99))
    log.decide(
        late,
        custody(
            DeviceSuspected, node, device, 11 * MINUTE, "in_service", "suspect", unknown_since_ms=11 * MINUTE
        ),
    )
    well = log.fact(health(node, device, 14 * MINUTE, "Healthy", rv=102))
    log.decide(
        well,
        custody(DeviceCleared, node, device, 14 * MINUTE, "suspect", "in_service"),
        NodeIncidentClosed(
            node=node,
            at_ms=14 * MINUTE,
            incident_id="incident-1",
            cause="plugin_down",
            scope=GPU,
            opened_at_ms=12 * MINUTE,
        ),
        BreakerClosed(node="", at_ms=14 * MINUTE, scope=f"driver:{GPU}", opened_at_ms=12 * MINUTE),
    )
    log.fact(
        BreakerResetRequested(
            node="",
            observed_at_ms=14 * MINUTE,
            request_id="b1",
            device_id="",
            actor="ana",
            scope=f"driver:{GPU}",
            reason="the switch was changed",
            partition=log.records[-1].partition,
        )
    )
    stale = log.fact(health(node, gpu(node, 2), MINUTE, "Unhealthy", rv=90))
    log.decide(
        stale,
        AlertRaised(
            node=node,
            at_ms=14 * MINUTE,
            evidence=(stale.event_id,),
            alert_id="alert-2",
            alert="late_fact",
            about=gpu(node, 2),
        ),
    )


def _hold(log: History) -> None:
    node, device = "node-c", gpu("node-c", 0)
    asked = log.fact(
        HoldRequested(
            node=node,
            observed_at_ms=5 * MINUTE,
            device_id=device,
            request_id="h1",
            actor="boris",
            reason="reseat the card",
            until_ms=500 * MINUTE,
        )
    )
    held = msgspec.structs.replace(open_episode(device, 5 * MINUTE, cause="hold"), held=True, actor="boris")
    log.decide(
        asked, custody(QuarantineOpened, node, device, 5 * MINUTE, "in_service", "quarantined", episode=held)
    )
    log.fact(
        ClaimsGateRequested(
            node=node,
            observed_at_ms=6 * MINUTE,
            device_id="",
            request_id="g1",
            actor="boris",
            scope="node",
            closed=True,
            reason="maintenance",
        )
    )


def storm(*, nodes: int, devices: int, rounds: int, partitions: int = 8, chained: bool = True) -> History:
    """Return a large log: each round every device of every node reports once, one in ten of them a change of custody."""
    log = History(partitions, chained)
    for number in range(rounds):
        at_ms = (number + 1) * MINUTE
        for place in range(nodes):
            node = f"node-{place:05}"
            for device_number in range(devices):
                device = gpu(node, device_number)
                turn = (number + place + device_number) % 10
                word: Health = "Unknown" if turn == 0 else "Healthy"
                fact = log.fact(health(node, device, at_ms, word, rv=number * 1_000 + device_number))
                if turn == 0:
                    log.decide(
                        fact,
                        custody(
                            DeviceSuspected,
                            node,
                            device,
                            at_ms,
                            "in_service",
                            "suspect",
                            unknown_since_ms=at_ms,
                        ),
                    )
                elif turn == 1 and number:
                    log.decide(fact, custody(DeviceCleared, node, device, at_ms, "suspect", "in_service"))
        for partition in range(partitions):
            log.fact(Tick(node="", partition=partition, observed_at_ms=at_ms + SECOND))
    return log
