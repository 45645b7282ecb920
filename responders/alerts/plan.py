"""Which alerts should stand now, by what stands: one for each cause, with what it explains as its members.

Pure: a view, the policy and the time in, alerts out. It knows nothing of what was told before; ``book`` compares.

What has a bigger cause is no alert of its own. While a driver's breaker is open, its suspects, restrictions, node incidents,
flapping devices and held episodes are members of the breaker's alert (fault A1, docs/alerts.md). A node incident has the devices
that name it. What may yet turn out to have a bigger cause ``waits``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from responders.alerts.words import (
    Alert,
    Members,
    Severity,
    because,
    driver_of,
    make_alert,
    members_of,
)
from responders.view import Alert as Raised
from responders.view import Device, Incident, Node, View, driver_of_hold
from sickbay.decisions import LEDGER_ALERTS, Episode, Hold
from sickbay.policy import AlertPolicy

#: ``late_fact`` is never cleared by custody, for a fact stays late; it is told for an hour, so that a person meets it.
LATE_FACT_MS: Final = 3_600_000
_ABOUT_A_DEVICE: Final = frozenset({"flapping", "device_replaced", "device_conflict"})
_ABOUT_A_CLAIM: Final = LEDGER_ALERTS - _ABOUT_A_DEVICE
_CLUSTER: Final = "cluster"


class Planned(NamedTuple):
    """An alert, and whether a bigger cause of it may be about to show."""

    alert: Alert
    waits: bool


class Plan(NamedTuple):
    """What should stand."""

    planned: list[Planned]
    #: Id of what would be an alert, to the id of the alert that explains it.
    part_of: dict[str, str]


def plan(view: View, policy: AlertPolicy, now_ms: int, *, runbooks: str = "docs/alerts.md") -> Plan:
    """Return the alerts that should stand now, in a fixed order."""
    planner = _Planner(view, policy, now_ms, runbooks)
    for name in sorted(view.nodes):
        planner.node(name, view.nodes[name])
    planner.cluster()
    return Plan(planner.planned, planner.part_of)


class _Planner:
    def __init__(self, view: View, policy: AlertPolicy, now_ms: int, runbooks: str) -> None:
        self._view, self._policy, self._now_ms, self._runbooks = view, policy, now_ms, runbooks
        drivers = {scope.removeprefix("driver:") for scope in view.breakers if scope != _CLUSTER}
        self._drivers = drivers
        #: The cluster's breaker says nothing more while a driver's is open.
        self._told = sorted(set(view.breakers) - {_CLUSTER}) or sorted(view.breakers)
        self.planned: list[Planned] = []
        self.part_of: dict[str, str] = {}
        #: Scope of a breaker to kind to names.
        self._members: dict[str, dict[str, list[str]]] = {scope: defaultdict(list) for scope in self._told}
        #: Reason and driver to the nodes that are held, each with the hold.
        self._held: dict[tuple[str, str], list[tuple[str, Hold]]] = defaultdict(list)
        self._late: list[tuple[str, Raised]] = []

    def node(self, name: str, node: Node) -> None:
        covered: dict[str, list[Device]] = defaultdict(list)
        groups: dict[tuple[str, str], list[Device]] = defaultdict(list)
        for device_id in sorted(node.devices):
            device = node.devices[device_id]
            record = device.record
            if record.episode is not None:
                self._quarantine(name, device, record.episode)
            elif record.incident_id in node.incidents:
                covered[record.incident_id].append(device)
            else:
                groups[record.phase, device.driver].append(device)
        for incident_id in sorted(node.incidents):
            self._incident(name, node.incidents[incident_id], covered[incident_id])
        for (phase, driver), devices in sorted(groups.items()):
            self._group(name, phase, driver, devices)
        for raised in sorted(node.alerts.values(), key=lambda alert: alert.alert_id):
            self._raised(name, raised)
        if node.verdict == "hold":
            for hold in node.holds:
                self._held[hold.reason, driver_of_hold(hold)].append((name, hold))

    def cluster(self) -> None:
        for raised in sorted(self._view.alerts.values(), key=lambda alert: alert.alert_id):
            self._raised("", raised)
        self._late_facts()
        for (reason, driver), nodes in sorted(self._held.items()):
            self._hold(reason, driver, nodes)
        for scope in self._told:
            self._breaker(scope)

    def _breaker_of(self, driver: str) -> str:
        """Return the scope of the breaker that explains what a driver's devices do, empty when none is open."""
        if driver in self._drivers:
            return f"driver:{driver}"
        return _CLUSTER if _CLUSTER in self._members else ""

    def _add(self, alert: Alert, *, waits: bool = False, explained_by: str = "", name: str = "") -> None:
        """Plan an alert, or make it a member of a breaker's under ``name``."""
        if explained_by:
            self.part_of[alert.alert_id] = f"breaker/{explained_by}"
            self._members[explained_by][alert.kind].append(name)
        else:
            self.planned.append(Planned(alert, waits))

    def _make(
        self,
        alert_id: str,
        kind: str,
        starts_at_ms: int,
        summary: str,
        why: str,
        *,
        members: Iterable[Members] = (),
        severity: Severity | None = None,
        labels: dict[str, str] | None = None,
    ) -> Alert:
        return make_alert(
            alert_id,
            kind,
            starts_at_ms,
            summary,
            why,
            labels=labels or {},
            members=tuple(members),
            severity=severity,
            runbooks=self._runbooks,
        )

    def _quarantine(self, node: str, device: Device, episode: Episode) -> None:
        severity: Severity = "info" if episode.cause == "hold" else "warning"
        state = "is quarantined" if device.record.phase == "quarantined" else "is on its way back"
        if device.review_due:
            severity, state = "critical", "needs a person: a review of its episode is due"
        why = f"{episode.cause}: {episode.reason}; phase {device.record.phase}"
        if device.reason != episode.reason:
            why += f": {device.reason}"
        alert = self._make(
            f"quarantine/{episode.episode_id}",
            "quarantine",
            episode.opened_at_ms,
            f"{device.device_id} on {node} {state}",
            because(why, device.clause),
            severity=severity,
            labels={
                "node": node,
                "driver": device.driver,
                "device": device.device_id,
                "episode": episode.episode_id,
            },
        )
        # one that is held although no breaker is known to be open: the word of the breaker is on its way
        self._add(
            alert,
            waits=episode.held,
            explained_by=self._breaker_of(device.driver) if episode.held else "",
            name=f"{node} {device.device_id}",
        )

    def _incident(self, node: str, incident: Incident, devices: list[Device]) -> None:
        names = [device.device_id for device in devices]
        what = f"{incident.cause} of {incident.scope}" if incident.scope else incident.cause
        alert = self._make(
            f"node_incident/{incident.incident_id}",
            "node_incident",
            incident.opened_at_ms,
            f"{what} on {node}",
            because(incident.reason, incident.clause),
            members=[members_of("device", names)] if names else (),
            labels={
                "node": node,
                "driver": incident.scope,
                "incident": incident.incident_id,
                "cause": incident.cause,
            },
        )
        self._add(alert, waits=True, explained_by=self._cause_of(incident, devices), name=f"{node} {what}")
        if alert.alert_id in self.part_of:
            scope = self.part_of[alert.alert_id].removeprefix("breaker/")
            for device in devices:
                self._members[scope][device.record.phase].append(f"{node} {device.device_id}")

    def _cause_of(self, incident: Incident, devices: list[Device]) -> str:
        """Return the breaker that explains an incident; one of the whole node may be explained by any of its drivers."""
        if incident.scope:
            return self._breaker_of(incident.scope)
        drivers = {device.driver for device in devices} | {driver_of(each) for each in incident.devices}
        explained = sorted(drivers & self._drivers)
        return f"driver:{explained[0]}" if explained else self._breaker_of("")

    def _group(self, node: str, phase: str, driver: str, devices: list[Device]) -> None:
        scope = self._breaker_of(driver)
        if phase == "suspect" and not scope and not self._policy.suspects:
            return
        names = [device.device_id for device in devices]
        first = min(devices, key=lambda device: (device.record.since_ms, device.device_id))
        what = f"device{'s' if len(names) > 1 else ''} of {driver} on {node}"
        alert = self._make(
            f"{phase}/{node}/{driver}",
            phase,
            first.record.since_ms,
            f"{len(names)} {what}: no new work"
            if phase == "restricted"
            else f"{len(names)} {what}: health not known",
            because(first.reason, first.clause),
            members=[members_of("device", names)],
            labels={"node": node, "driver": driver},
        )
        if scope:
            self.part_of[alert.alert_id] = f"breaker/{scope}"
            self._members[scope][phase] += [f"{node} {name}" for name in names]
        else:
            self._add(alert, waits=True)

    def _raised(self, node: str, raised: Raised) -> None:
        """An alert that custody or the ledger raised; a breaker's is the breaker itself."""
        kind = raised.alert
        if kind == "breaker":
            return
        if kind == "late_fact":
            self._late.append((node, raised))
            return
        labels = _labels_of(kind, raised.about)
        alert = self._make(
            f"{kind}/{raised.alert_id}",
            kind,
            raised.raised_at_ms,
            f"{kind.replace('_', ' ')}: {raised.about}" + (f" on {node}" if node else ""),
            because(raised.reason, raised.clause),
            labels={"node": node, **labels},
        )
        flaps = kind == "flapping"
        scope = self._breaker_of(labels.get("driver", "")) if flaps else ""
        self._add(alert, waits=flaps, explained_by=scope, name=f"{node} {raised.about}")

    def _late_facts(self) -> None:
        late = [
            (node, raised) for node, raised in self._late if self._now_ms - raised.raised_at_ms < LATE_FACT_MS
        ]
        if not late:
            return
        nodes = sorted({node for node, _ in late})
        newest = max(
            (raised for _, raised in late), key=lambda raised: (raised.raised_at_ms, raised.alert_id)
        )
        self.planned.append(
            Planned(
                self._make(
                    "late_fact",
                    "late_fact",
                    min(raised.raised_at_ms for _, raised in late),
                    f"facts of {len(nodes)} node{'s' if len(nodes) > 1 else ''} came too late to act on",
                    because(f"the newest is {newest.about}: {newest.reason}", "lateness_horizon_ms"),
                    members=[members_of("node", nodes)],
                ),
                waits=False,
            )
        )

    def _hold(self, reason: str, driver: str, held: list[tuple[str, Hold]]) -> None:
        nodes = sorted({name for name, _ in held})
        first = min((hold for _, hold in held), key=lambda hold: (hold.since_ms, hold.scope))
        why = f"{reason}{f' of {first.scope}' if first.scope else ''}{f': {first.detail}' if first.detail else ''}"
        alert = self._make(
            f"held/{reason}/{driver}",
            "held",
            first.since_ms,
            f"new claims wait on {len(nodes)} node{'s' if len(nodes) > 1 else ''}: {reason}"
            + (f" of {driver}" if driver else ""),
            why,
            members=[members_of("node", nodes)],
            severity="info" if reason == "claims_gate_closed" else None,
            labels={"driver": driver, "reason": reason},
        )
        self.planned.append(Planned(alert, waits=True))

    def _breaker(self, scope: str) -> None:
        opened = self._view.breakers[scope]
        members = [members_of(kind, names) for kind, names in sorted(self._members[scope].items())]
        self.planned.append(
            Planned(
                self._make(
                    f"breaker/{scope}",
                    "breaker",
                    opened.at_ms,
                    f"the breaker of {scope.removeprefix('driver:')} is open: {opened.adverse} of {opened.known} devices"
                    " turned adverse at once",
                    because(opened.reason, opened.clause),
                    members=members,
                    labels={
                        "driver": "" if scope == _CLUSTER else scope.removeprefix("driver:"),
                        "scope": scope,
                    },
                ),
                waits=False,
            )
        )


def _labels_of(kind: str, about: str) -> dict[str, str]:
    """Return what an alert of a decision is about, as labels (docs/custody.md, docs/ledger.md)."""
    if kind in _ABOUT_A_DEVICE:
        return {"device": about, "driver": driver_of(about)}
    if kind == "workload_not_movable":
        device, _, workload = about.rpartition(" ")
        namespace, _, pod = workload.partition("/")
        return {"device": device, "driver": driver_of(device), "namespace": namespace, "pod": pod}
    if kind in _ABOUT_A_CLAIM:
        namespace, _, claim = about.partition("/")
        return {"namespace": namespace, "claim": claim.partition("@")[0]}
    return {"about": about}
