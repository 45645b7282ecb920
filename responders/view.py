"""What stands, by the decisions so far: the level that every responder compares the world with.

A fold of ``sickbay.decisions``, node by node; of each device, incident, alert and move only what holds now is kept, so a view is as
large as what is wrong. Pure: no I/O, no clock. It decides nothing and knows nothing of the world: whoever acts asks the world itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    BreakerOpened,
    CustodyDecision,
    Decision,
    DeviceRecord,
    DeviceReleased,
    Episode,
    Hold,
    MoveFinished,
    MoveLeaseGranted,
    MovePlanned,
    NodeIncidentClosed,
    NodeIncidentOpened,
    Verdict,
    VerdictChanged,
)

#: Episodes and moves that ended and are remembered, of a node: whoever was away learns how they ended.
ENDED_MAX: Final = 64
#: Reasons of a hold whose scope begins with the driver.
_OF_A_POOL: Final = frozenset({"pool_incomplete", "slice_stale", "generation_back", "driver_rebuilding"})
#: Late facts that are remembered, of a node: nothing clears their alert, so without a limit they would stand for ever.
LATE_FACTS_MAX: Final = 16
LATE_FACT: Final = "late_fact"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is not in service."""

    device_id: str
    #: Driver or resource name.
    driver: str
    record: DeviceRecord
    #: Of the decision that brought it here: event time, clause and words.
    at_ms: int
    clause: str = ""
    reason: str = ""
    #: ``quarantine_review_due`` was the newest word on the episode.
    review_due: bool = False


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An open node incident."""

    incident_id: str
    cause: str
    #: Empty for the node, else a driver or resource name.
    scope: str
    devices: tuple[str, ...]
    opened_at_ms: int
    clause: str = ""
    reason: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that was raised and not cleared."""

    alert_id: str
    alert: str
    about: str
    raised_at_ms: int
    clause: str = ""
    reason: str = ""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A move that is planned and not finished."""

    move_id: str
    device_id: str
    episode_id: str
    pod_uid: str
    namespace: str
    pod: str
    ability: Literal["checkpoint", "restartable"]
    topology: Literal["whole", "shardable"]
    planned_at_ms: int
    #: Of the newest lease; 0 before the first.
    token: int = 0
    expires_at_ms: int = 0


class Node(msgspec.Struct, kw_only=True):
    """What stands of one node."""

    #: By device id: those that are not in service.
    devices: dict[str, Device] = {}
    incidents: dict[str, Incident] = {}
    alerts: dict[str, Alert] = {}
    moves: dict[str, Move] = {}
    #: Episodes that ended, the newest last, by id.
    ended: dict[str, Episode] = {}
    verdict: Verdict = "open"
    holds: tuple[Hold, ...] = ()
    node_class: Literal["canary", "stable"] = "stable"
    drivers: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost by forgetting the node."""
        return self == Node()


class OnNode(NamedTuple):
    """A device and where it is."""

    node: str
    device: Device


class View:
    """Every node and every breaker. ``nodes`` holds those of which anything stands."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: Open breakers: scope (``cluster``, ``driver:<name>``) to the decision that opened it.
        self.breakers: dict[str, BreakerOpened] = {}
        #: Alerts of the cluster's own stream.
        self.alerts: dict[str, Alert] = {}
        #: Newest event time of any decision.
        self.time_ms = 0

    def devices(self) -> Iterator[OnNode]:
        """Yield every device that is not in service, in the order of nodes and devices."""
        for name in sorted(self.nodes):
            for device_id in sorted(self.nodes[name].devices):
                yield OnNode(name, self.nodes[name].devices[device_id])

    def breaker_open(self, driver: str) -> bool:
        """Whether a breaker stops what is risky for a driver."""
        return "cluster" in self.breakers or f"driver:{driver}" in self.breakers

    def node_class(self, node: str) -> Literal["canary", "stable"]:
        """Return the class of a node, ``stable`` for one of which nothing is known."""
        known = self.nodes.get(node)
        return "stable" if known is None else known.node_class

    def fold(self, decision: Decision) -> None:
        """Take in the next decision of its partition."""
        self.time_ms = max(self.time_ms, decision.at_ms)
        match decision:
            case BreakerOpened():
                self.breakers[decision.scope] = decision
            case BreakerClosed():
                self.breakers.pop(decision.scope, None)
            case AlertRaised() | AlertCleared() if not decision.node:
                _alert(self.alerts, decision)
            case _:
                node = self.nodes.setdefault(decision.node, Node())
                _fold(node, decision)
                if node.is_empty:
                    del self.nodes[decision.node]


def _alert(alerts: dict[str, Alert], decision: AlertRaised | AlertCleared) -> None:
    if isinstance(decision, AlertCleared):
        alerts.pop(decision.alert_id, None)
        return
    alerts[decision.alert_id] = Alert(
        alert_id=decision.alert_id,
        alert=decision.alert,
        about=decision.about,
        raised_at_ms=decision.at_ms,
        clause=decision.clause,
        reason=decision.reason,
    )
    late = [alert_id for alert_id, alert in alerts.items() if alert.alert == LATE_FACT]
    for alert_id in late[:-LATE_FACTS_MAX]:
        del alerts[alert_id]


def _fold(node: Node, decision: Decision) -> None:
    match decision:
        case CustodyDecision():
            _device(node, decision)
        case NodeIncidentOpened():
            node.incidents[decision.incident_id] = Incident(
                incident_id=decision.incident_id,
                cause=decision.cause,
                scope=decision.scope,
                devices=decision.devices,
                opened_at_ms=decision.at_ms,
                clause=decision.clause,
                reason=decision.reason,
            )
        case NodeIncidentClosed():
            node.incidents.pop(decision.incident_id, None)
        case AlertRaised() | AlertCleared():
            _alert(node.alerts, decision)
        case MovePlanned():
            node.moves[decision.move_id] = Move(
                move_id=decision.move_id,
                device_id=decision.device_id,
                episode_id=decision.episode_id,
                pod_uid=decision.pod_uid,
                namespace=decision.namespace,
                pod=decision.pod,
                ability=decision.ability,
                topology=decision.topology,
                planned_at_ms=decision.at_ms,
            )
        case MoveLeaseGranted():
            move = node.moves.get(decision.move_id)
            if move is not None:
                node.moves[decision.move_id] = msgspec.structs.replace(
                    move, token=decision.token, expires_at_ms=decision.expires_at_ms
                )
        case MoveFinished():
            node.moves.pop(decision.move_id, None)
        case VerdictChanged():
            node.verdict, node.holds = decision.verdict, decision.holds
            node.node_class, node.drivers = decision.node_class, decision.drivers
        case _:
            pass


def _device(node: Node, decision: CustodyDecision) -> None:
    if isinstance(decision, DeviceReleased):
        node.ended[decision.closed.episode_id] = decision.closed
        while len(node.ended) > ENDED_MAX:
            del node.ended[next(iter(node.ended))]
    if decision.record.phase == "in_service":
        node.devices.pop(decision.device_id, None)
        return
    known = node.devices.get(decision.device_id)
    stays = known is not None and decision.KIND in ("quarantine_extended", "quarantine_review_due")
    node.devices[decision.device_id] = Device(
        device_id=decision.device_id,
        driver=decision.driver,
        record=decision.record,
        at_ms=decision.at_ms,
        clause=decision.clause,
        reason=known.reason if known is not None and stays else decision.reason,
        review_due=decision.KIND == "quarantine_review_due",
    )


def driver_of_hold(hold: Hold) -> str:
    """Return the driver whose fault a hold is, empty when it is the node's, a claim's, or a person's for all (docs/ledger.md)."""
    if hold.reason in _OF_A_POOL:
        return hold.scope.partition("/")[0]
    kind, _, name = hold.scope.partition(":")
    return name if hold.reason == "claims_gate_closed" and kind == "driver" else ""
