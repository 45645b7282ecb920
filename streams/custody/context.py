"""What the rules work with: one node's state, the policy in force, and the transitions they produce.

A transition is a decision in the making: it is announced if the aggregate finds that it was not said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sickbay.decisions import (
    AlertCleared,
    AlertRaised,
    CustodyDecision,
    Decision,
    DeviceReleased,
    Episode,
    NodeIncidentClosed,
    Phase,
)
from sickbay.envelope import derived_id
from sickbay.policy import Policy
from streams.custody.state import NodeCustody, Unit

D = TypeVar("D", bound=CustodyDecision)


class Context:
    """One walk over a node's event time."""

    __slots__ = ("node", "out", "policies", "policy")

    def __init__(self, node: NodeCustody, policies: Mapping[str, Policy]) -> None:
        self.node = node
        self.policies = policies
        self.policy = policies[node.policy_hash]
        self.out: list[Decision] = []

    def transition(
        self,
        cls: type[D],
        unit: Unit,
        at_ms: int,
        *,
        phase: Phase | None = None,
        clause: str,
        reason: str,
        evidence: tuple[str, ...] = (),
        **extra: Any,
    ) -> None:
        """Move ``unit`` to ``phase`` (or leave it where it is) and note the transition."""
        before = unit.phase
        if phase is not None and phase != before:
            unit.phase = phase
            unit.since_ms = at_ms
        self.out.append(
            cls(
                node=self.node.node,
                at_ms=at_ms,
                clause=clause,
                reason=reason,
                evidence=evidence,
                device_id=unit.unit_id,
                driver=unit.scope,
                phase_before=before,
                record=unit.record(),
                **extra,
            )
        )

    def close_episode(
        self, unit: Unit, at_ms: int, outcome: Any, *, phase: Phase, clause: str, reason: str
    ) -> None:
        """End the open episode of ``unit`` and move it to ``phase``."""
        assert unit.episode is not None
        closed: Episode = msgspec.structs.replace(
            unit.episode, closed_at_ms=at_ms, outcome=outcome, open_causes=()
        )
        unit.episode = None
        unit.person_until_ms = -1
        unit.release_requested = False
        if phase == "in_service":
            unit.cause = ""
        self.transition(
            DeviceReleased,
            unit,
            at_ms,
            phase=phase,
            clause=clause,
            reason=reason,
            evidence=(unit.healthy_id,)
            if outcome == "returned" and unit.healthy_id
            else closed.evidence[-1:],
            closed=closed,
        )

    def raise_alert(self, kind: str, about: str, at_ms: int, *, reason: str, clause: str = "") -> None:
        """Raise an alert once while its cause lasts."""
        alert_id = derived_id("alert", self.node.node, kind, about)
        if alert_id in self.node.alerts:
            return
        self.node.alerts[alert_id] = (kind, about, at_ms)
        self.out.append(
            AlertRaised(
                node=self.node.node,
                at_ms=at_ms,
                clause=clause,
                reason=reason,
                alert_id=alert_id,
                alert=kind,
                about=about,
            )
        )

    def clear_alert(self, kind: str, about: str, at_ms: int, *, reason: str) -> None:
        """Clear an alert if it is raised."""
        alert_id = derived_id("alert", self.node.node, kind, about)
        if self.node.alerts.pop(alert_id, None) is None:
            return
        self.out.append(
            AlertCleared(
                node=self.node.node,
                at_ms=at_ms,
                reason=reason,
                alert_id=alert_id,
                alert=kind,
                about=about,
            )
        )

    def close_incident(self, incident_id: str, at_ms: int, outcome: Any, reason: str) -> None:
        """Take an incident off the node and note its end; the caller judges the devices it covered."""
        incident = self.node.incidents.pop(incident_id)
        self.out.append(
            NodeIncidentClosed(
                node=self.node.node,
                at_ms=at_ms,
                clause="node_incident.settle_ms",
                reason=reason,
                incident_id=incident_id,
                cause=incident.cause,
                scope=incident.scope,
                opened_at_ms=incident.opened_at_ms,
                outcome=outcome,
            )
        )

    def breaker_open(self, scope: str) -> bool:
        """Whether the cluster's breaker or that of the driver is open."""
        breakers = self.node.breakers
        return bool(breakers) and ("cluster" in breakers or f"driver:{scope}" in breakers)

    def sighted(self, due_ms: int) -> int:
        """Put a deadline that judges silence off until something could be seen again."""
        blind = self.node.blind_until_ms
        return due_ms if due_ms > blind else blind + self.policy.unknown.hold_down_ms
