"""The read models of custody, from decisions, the few facts that a person or a driver speaks through, and watch gaps.

A projection copies and arranges, it never decides: every phase, outcome and time in these rows was written by a decision. Equal
logs give equal rows, however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection

from projections.exclusions import next_exclusion
from projections.happenings import breaker_row, gap_row, place, request_row, step_row
from projections.inventory import next_publication
from projections.records import LogRecord
from projections.rows import Row, Versions, canonical, insert_many, insert_new, known_events, upsert
from projections.tables import (
    CUSTODY_TABLES,
    alert,
    breaker_history,
    device_current,
    device_inventory,
    episode,
    episode_evidence,
    event_log,
    exclusion,
    late_fact,
    move,
    move_step,
    node_incident,
    request,
    transition,
    watch_gap,
)
from projections.timelines import Timelines
from sickbay.decisions import (
    DECISIONS,
    AlertCleared,
    AlertRaised,
    BreakerClosed,
    BreakerOpened,
    CensusTaken,
    CustodyDecision,
    Decision,
    DeviceReleased,
    Episode,
    LedgerDecision,
    MoveDecision,
    MoveFinished,
    MoveLeaseGranted,
    MovePlanned,
    NodeIncidentClosed,
    NodeIncidentOpened,
)
from sickbay.events import KINDS
from sickbay.facts import (
    DevicePublished,
    DeviceWithdrawn,
    ExclusionReported,
    MoveStepReported,
    Request,
    WatchGapFound,
)

NAME: Final = "custody"
TABLES: Final = CUSTODY_TABLES

#: What these read models are made of; every other event is a row of the log and nothing more.
WANTED: Final = frozenset(
    kind.KIND for kind in DECISIONS if kind is not CensusTaken and not issubclass(kind, LedgerDecision)
) | {
    kind
    for kind, cls in KINDS.items()
    if issubclass(cls, Request | DevicePublished | DeviceWithdrawn | WatchGapFound)
}

#: The alert that marks facts behind the lateness horizon (design, section 5, law 2).
LATE_FACT: Final = "late_fact"


def apply(connection: Connection, generation: int, records: Sequence[LogRecord]) -> None:
    """Project decoded records, in log order, into the rows of ``generation``, inside the caller's transaction."""
    batch = _Batch(connection, generation)
    batch.load(records)
    for record in records:
        batch.add(record)
    batch.flush()


class _Batch:
    """The rows that one batch touches."""

    def __init__(self, connection: Connection, generation: int) -> None:
        self._connection = connection
        self._generation = generation
        self._episodes = Versions(connection, episode, ("episode_id",), generation)
        self._incidents = Versions(connection, node_incident, ("incident_id",), generation)
        self._moves = Versions(connection, move, ("move_id",), generation)
        self._alerts = Versions(connection, alert, ("alert_id",), generation)
        self._inventory = Versions(connection, device_inventory, ("node", "device_id"), generation)
        self._exclusions = Versions(connection, exclusion, ("node", "rule"), generation)
        self._timelines = Timelines(connection, generation)
        self._current: dict[tuple[str, str], Row] = {}
        self._evidence: dict[tuple[str, str], Row] = {}
        self._transitions: list[Row] = []
        self._breakers: list[Row] = []
        self._requests: list[Row] = []
        self._steps: list[Row] = []
        self._late: dict[tuple[int, int, str], Row] = {}
        self._gaps: list[Row] = []
        self._causes: dict[tuple[int, str], tuple[int, int]] = {}

    def load(self, records: Sequence[LogRecord]) -> None:
        """Read what the records will touch."""
        devices: set[tuple[str, str]] = set()
        episodes, incidents, moves, alerts, inventory, exclusions = (set() for _ in range(6))
        causes: dict[int, set[str]] = {}
        earliest: list[int] = []
        for partition, _, envelope, _, _, event in records:
            match event:
                case CustodyDecision():
                    devices.add((event.node, event.device_id))
                    earliest.append(event.at_ms)
                    causes.setdefault(partition, set()).add(envelope.causation_id)
                    episodes |= {(partition, found.episode_id) for found in _episodes_of(event)}
                case NodeIncidentOpened() | NodeIncidentClosed():
                    incidents.add((partition, event.incident_id))
                case MoveDecision():
                    moves.add((partition, event.move_id))
                case AlertRaised() | AlertCleared():
                    alerts.add((partition, event.alert_id))
                    if event.alert == LATE_FACT:
                        causes.setdefault(partition, set()).update(event.evidence, {envelope.causation_id})
                case DevicePublished() | DeviceWithdrawn():
                    inventory.add((partition, event.node, event.device_id))
                case ExclusionReported():
                    exclusions.add((partition, event.node, event.rule))
        self._timelines.load(devices, min(earliest, default=0))
        for versions, keys in (
            (self._episodes, episodes),
            (self._incidents, incidents),
            (self._moves, moves),
            (self._alerts, alerts),
            (self._inventory, inventory),
            (self._exclusions, exclusions),
        ):
            versions.load(keys)
        for partition, ids in causes.items():
            found = known_events(self._connection, event_log, partition, sorted(ids))
            self._causes |= {(partition, event_id): place for event_id, place in found.items()}

    def add(self, record: LogRecord) -> None:
        """Project one record."""
        match record.event:
            case CustodyDecision() as event:
                self._custody(record, event)
            case NodeIncidentOpened() | NodeIncidentClosed() as event:
                self._incident(record, event)
            case MoveDecision() as event:
                self._move(record, event)
            case AlertRaised() | AlertCleared() as event:
                self._alert(record, event)
            case BreakerOpened() | BreakerClosed() as event:
                self._breakers.append(breaker_row(self._generation, record, event))
            case DevicePublished() | DeviceWithdrawn() as event:
                self._published(record, event)
            case ExclusionReported() as event:
                before = self._exclusions.latest(record.partition, event.node, event.rule)
                self._exclusions.put(self._version(record) | next_exclusion(before, event))
            case MoveStepReported() as event:
                self._steps.append(step_row(self._generation, record, event))
            case Request() as event:
                self._requests.append(request_row(self._generation, record, event))
            case WatchGapFound() as event:
                self._gaps.append(gap_row(self._generation, record, event))

    def flush(self) -> None:
        """Write everything."""
        for versions in (
            self._episodes, self._incidents, self._moves, self._alerts, self._inventory, self._exclusions,
        ):  # fmt: skip
            versions.flush()
        self._timelines.flush()
        upsert(self._connection, device_current, list(self._current.values()))
        insert_new(self._connection, episode_evidence, list(self._evidence.values()))
        insert_many(self._connection, transition, self._transitions)
        insert_many(self._connection, breaker_history, self._breakers)
        insert_many(self._connection, request, self._requests)
        insert_many(self._connection, move_step, self._steps)
        insert_many(self._connection, late_fact, list(self._late.values()))
        insert_many(self._connection, watch_gap, self._gaps)

    def _place(self, record: LogRecord) -> Row:
        return place(self._generation, record)

    def _version(self, record: LogRecord) -> Row:
        return {
            "partition_number": record.partition,
            "log_offset": record.offset,
            "at_ms": record.envelope.at_ms,
            "event_id": record.envelope.event_id,
        }

    def _cause_ms(self, record: LogRecord, event_id: str) -> int | None:
        """Return the event time of an event that stands before the record in its partition."""
        offset, at_ms = self._causes.get((record.partition, event_id), (record.offset, 0))
        return at_ms if offset < record.offset else None

    def _custody(self, record: LogRecord, event: CustodyDecision) -> None:
        after, envelope = event.record, record.envelope
        standing = {
            "partition_number": record.partition,
            "node": event.node,
            "device_id": event.device_id,
            "driver": event.driver,
            "phase": after.phase,
            "cause": after.cause,
            "episode_id": after.episode.episode_id if after.episode else "",
            "incident_id": after.incident_id,
            "since_ms": after.since_ms,
            "unknown_since_ms": after.unknown_since_ms,
        }
        self._timelines.assert_from(standing | {"valid_from_ms": event.at_ms}, record.offset)
        self._current[event.node, event.device_id] = (
            self._place(record)
            | standing
            | {"window_ms": after.window_ms, "at_ms": event.at_ms, "event_id": envelope.event_id}
        )
        for found in _episodes_of(event):
            self._episode(record, event, found)
        cause_at_ms = self._cause_ms(record, envelope.causation_id)
        self._transitions.append(
            self._place(record)
            | {
                "event_id": envelope.event_id,
                "kind": envelope.kind,
                "node": event.node,
                "device_id": event.device_id,
                "driver": event.driver,
                "episode_id": event.correlation_id,
                "incident_id": after.incident_id,
                "phase_before": event.phase_before,
                "phase_after": after.phase,
                "cause": after.cause,
                "clause": event.clause,
                "reason": event.reason,
                "policy": envelope.policy,
                "causation_id": envelope.causation_id,
                "at_ms": event.at_ms,
                "cause_at_ms": cause_at_ms,
                "latency_ms": None if cause_at_ms is None else abs(event.at_ms - cause_at_ms),
            }
        )

    def _episode(self, record: LogRecord, event: CustodyDecision, found: Episode) -> None:
        row = msgspec.structs.asdict(found)
        for name in ("open_causes", "evidence"):
            row[name] = canonical(row[name])
        for name in ("after_restart", "held"):
            row[name] = int(row[name])
        self._episodes.put(
            self._version(record)
            | {"node": event.node, "device_id": event.device_id, "driver": event.driver}
            | {"phase": event.record.phase, "incident_id": event.record.incident_id}
            | row
        )
        for event_id in (*found.evidence, *event.evidence):
            self._evidence.setdefault(
                (found.episode_id, event_id),
                self._place(record) | {"episode_id": found.episode_id, "event_id": event_id},
            )

    def _incident(self, record: LogRecord, event: NodeIncidentOpened | NodeIncidentClosed) -> None:
        before = self._incidents.latest(record.partition, event.incident_id)
        if isinstance(event, NodeIncidentOpened):
            state: Row = {
                "devices": canonical(event.devices),
                "opened_at_ms": event.at_ms,
                "closed_at_ms": None,
                "outcome": "",
            }
        else:
            state = {
                "devices": before["devices"] if before else canonical(()),
                "opened_at_ms": event.opened_at_ms,
                "closed_at_ms": event.at_ms,
                "outcome": event.outcome,
            }
        self._incidents.put(
            self._version(record)
            | {
                "incident_id": event.incident_id,
                "node": event.node,
                "cause": event.cause,
                "scope": event.scope,
            }
            | state
            | _why(record, event)
        )

    def _move(self, record: LogRecord, event: MoveDecision) -> None:
        before = self._moves.latest(record.partition, event.move_id) or {}
        carried = (
            "ability",
            "topology",
            "planned_at_ms",
            "token",
            "lease_expires_at_ms",
            "finished_at_ms",
            "outcome",
        )
        state: Row = dict.fromkeys(carried) | {"ability": "", "topology": "", "outcome": ""}
        state |= {name: before[name] for name in carried if name in before}
        match event:
            case MovePlanned():
                state |= {"state": "planned", "ability": event.ability, "topology": event.topology}
                state |= {"planned_at_ms": event.at_ms}
            case MoveLeaseGranted():
                state |= {"state": "leased", "token": event.token, "lease_expires_at_ms": event.expires_at_ms}
            case MoveFinished():
                state |= {"state": "finished", "token": event.token, "outcome": event.outcome}
                state |= {"finished_at_ms": event.at_ms}
        names = ("move_id", "node", "device_id", "episode_id", "pod_uid", "namespace", "pod")
        self._moves.put(
            self._version(record)
            | {name: getattr(event, name) for name in names}
            | state
            | _why(record, event)
        )

    def _alert(self, record: LogRecord, event: AlertRaised | AlertCleared) -> None:
        before = self._alerts.latest(record.partition, event.alert_id)
        raised_at_ms = before["raised_at_ms"] if before else None
        cleared_at_ms: int | None = event.at_ms
        if isinstance(event, AlertRaised):
            if before is None or before["cleared_at_ms"] is not None:
                raised_at_ms = event.at_ms
            cleared_at_ms = None
            if event.alert == LATE_FACT:
                self._late_facts(record, event)
        self._alerts.put(
            self._version(record)
            | {"alert_id": event.alert_id, "alert": event.alert, "about": event.about, "node": event.node}
            | {"raised_at_ms": raised_at_ms, "cleared_at_ms": cleared_at_ms}
            | {"causation_id": record.envelope.causation_id}
            | _why(record, event)
        )

    def _late_facts(self, record: LogRecord, event: AlertRaised) -> None:
        for fact_id in event.evidence or (record.envelope.causation_id,):
            fact_at_ms = self._cause_ms(record, fact_id)
            self._late[record.partition, record.offset, fact_id] = self._place(record) | {
                "fact_id": fact_id,
                "alert_id": event.alert_id,
                "about": event.about,
                "node": event.node,
                "at_ms": event.at_ms,
                "fact_at_ms": fact_at_ms,
                "late_by_ms": None if fact_at_ms is None else event.at_ms - fact_at_ms,
                "reason": event.reason,
            }

    def _published(self, record: LogRecord, event: DevicePublished | DeviceWithdrawn) -> None:
        row = next_publication(self._inventory.latest(record.partition, event.node, event.device_id), event)
        if row is not None:
            self._inventory.put(self._version(record) | row)


def _episodes_of(event: CustodyDecision) -> tuple[Episode, ...]:
    """Return the episodes that a decision says something of: the one that ended first, then the one that holds."""
    ended = event.closed if isinstance(event, DeviceReleased) else None
    holds = event.record.episode
    if ended is not None and holds is not None and ended.episode_id == holds.episode_id:
        return (ended,)
    return tuple(found for found in (ended, holds) if found is not None)


def _why(record: LogRecord, event: Decision) -> Row:
    return {"clause": event.clause, "reason": event.reason, "policy": record.envelope.policy}
