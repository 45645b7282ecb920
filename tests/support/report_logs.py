"""Logs for reports: a day of a cluster, as large as asked for, and one in which every word of the cluster is hostile."""

from __future__ import annotations

import msgspec
from log_builder import History, custody, health, open_episode, published, released
from log_scenarios import MINUTE, SECOND, gpu

from sickbay.decisions import (
    DeviceCleared,
    DeviceRestricted,
    DeviceSuspected,
    NodeIncidentClosed,
    NodeIncidentOpened,
    ObservationStarted,
    QuarantineExtended,
    QuarantineOpened,
)

HOUR = 60 * MINUTE
#: 2026-07-01T00:00:00Z.
START_MS = 1_782_864_000_000
#: What a driver may write: the end of a script, an image that runs, a turned text, an escape, and U+0000.
HOSTILE = '</script><img src=x onerror="alert(1)"><!--\u202egnp.exe\x1b[2J\x00&amp;\'"`'


def day(*, nodes: int, devices: int, busy_percent: int = 30) -> History:
    """Return a day in which some devices come and go and one in ten of those fails, an incident an hour, and one watch gap.

    Which device does what, and when, follows from its number: the same arguments give the same log.
    """
    log = History(partitions=8)
    names = [f"node-{number:03}" for number in range(nodes)]
    for name in names:
        for number in range(devices):
            log.fact(published(name, gpu(name, number), START_MS, rv=1 + number, numa=number // 4))
    for place, name in enumerate(names):
        for number in range(devices):
            turn = (place * devices + number) * 37
            if turn % 100 >= busy_percent:
                continue
            at_ms = START_MS + turn * 97 % (20 * 60) * MINUTE
            if turn % 10 == 0:
                _fails(log, name, gpu(name, number), at_ms)
            else:
                _comes_and_goes(log, name, gpu(name, number), at_ms)
    for hour, name in enumerate(names[:20]):
        _incident(log, name, START_MS + hour * HOUR + 7 * MINUTE)
    log.gap("pods", START_MS + 9 * HOUR, START_MS + 9 * HOUR + 20 * MINUTE)
    return log


def hostile() -> History:
    """Return a log of one failing device in which node, device, message and every reason are hostile."""
    log = History(partitions=2)
    _fails(log, f"node-{HOSTILE}", f"plugin:example.com/{HOSTILE}/{HOSTILE}", START_MS, said=HOSTILE)
    _fails(log, "node-b", f"dra:{HOSTILE}/pool/{HOSTILE}", START_MS + HOUR, said=HOSTILE)
    return log


def _fails(
    log: History, node: str, device: str, at_ms: int, said: str = "XID 79: fallen off the bus"
) -> None:
    fault = log.fact(health(node, device, at_ms, "Unhealthy", rv=at_ms, message=said))
    opened = open_episode(device, at_ms, evidence=(fault.event_id,))
    opened = msgspec.structs.replace(opened, reason=f"reported Unhealthy: {said}")

    def decide(cause, decision):
        log.decide(cause, msgspec.structs.replace(decision, reason=f"{decision.reason}: {said}"))

    rests_on = {"evidence": (fault.event_id,)}
    decide(
        fault,
        custody(
            QuarantineOpened, node, device, at_ms, "in_service", "quarantined", episode=opened, **rests_on
        ),
    )
    again_ms = at_ms + 4 * MINUTE
    again = log.fact(health(node, device, again_ms, "Unhealthy", rv=again_ms, message=said))
    extended = msgspec.structs.replace(opened, flap_count=2, evidence=(fault.event_id, again.event_id))
    decide(
        again,
        custody(
            QuarantineExtended,
            node,
            device,
            again_ms,
            "quarantined",
            "quarantined",
            episode=extended,
            evidence=(again.event_id,),
        ),
    )
    well_ms = at_ms + 70 * MINUTE
    well = log.fact(health(node, device, well_ms, "Healthy", rv=well_ms))
    watched = msgspec.structs.replace(extended, observing_at_ms=well_ms, verification="observation_only")
    decide(
        well,
        custody(
            ObservationStarted,
            node,
            device,
            well_ms,
            "quarantined",
            "observing",
            episode=watched,
            evidence=(well.event_id,),
        ),
    )
    end_ms = well_ms + 2 * HOUR
    end = log.fact(health(node, device, end_ms, "Healthy", rv=end_ms))
    closed = msgspec.structs.replace(watched, closed_at_ms=end_ms, outcome="returned", open_causes=())
    decide(end, released(node, device, end_ms, "observing", closed))


def _comes_and_goes(log: History, node: str, device: str, at_ms: int) -> None:
    gone = log.fact(health(node, device, at_ms, "Unknown", rv=at_ms))
    rests_on = {"evidence": (gone.event_id,)}
    log.decide(
        gone,
        custody(
            DeviceSuspected,
            node,
            device,
            at_ms,
            "in_service",
            "suspect",
            unknown_since_ms=at_ms,
            **rests_on,
        ),
    )
    late_ms = at_ms + 5 * MINUTE
    still = log.fact(health(node, device, late_ms, "Unknown", rv=late_ms))
    log.decide(
        still,
        custody(
            DeviceRestricted,
            node,
            device,
            late_ms,
            "suspect",
            "restricted",
            unknown_since_ms=at_ms,
            **rests_on,
        ),
    )
    back_ms = at_ms + 25 * MINUTE
    back = log.fact(health(node, device, back_ms, "Healthy", rv=back_ms))
    log.decide(back, custody(DeviceCleared, node, device, back_ms, "restricted", "in_service"))


def _incident(log: History, node: str, at_ms: int) -> None:
    seen = log.fact(health(node, gpu(node, 0), at_ms, "Healthy", rv=at_ms))
    name = f"incident-{node}"
    log.decide(
        seen,
        NodeIncidentOpened(
            node=node,
            at_ms=at_ms,
            incident_id=name,
            cause="plugin_down",
            scope="gpu.example.com",
            clause="node_incident.share_percent",
            reason="all devices of the plugin turned at once",
            evidence=(seen.event_id,),
        ),
    )
    after_ms = at_ms + 11 * MINUTE + 5 * SECOND
    over = log.fact(health(node, gpu(node, 0), after_ms, "Healthy", rv=after_ms))
    log.decide(
        over,
        NodeIncidentClosed(
            node=node,
            at_ms=after_ms,
            incident_id=name,
            cause="plugin_down",
            scope="gpu.example.com",
            opened_at_ms=at_ms,
            reason="the plugin is back",
        ),
    )
