"""Why: an episode as the chain fact -> decision -> consequence, and everything that the log says of a device.

Read from the log itself, decoded, with the read models only as an index to it. Nothing is reconstructed or guessed: what a
decision rested on is what it cited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, or_, select

from projections.audit import AUDIT_VIEWS
from projections.audit_queries import found_alerts
from projections.audit_view import Cell
from projections.records import LogRecord
from projections.rows import KEYS_PER_QUERY, chunks
from projections.tables import (
    episode,
    episode_evidence,
    event_log,
    exclusion,
    move,
    move_step,
    request,
    transition,
)
from projections.temporal import NOW, Moment, known_in_log, live
from sickbay.codec import decode_envelope, open_envelope
from sickbay.decisions import CustodyDecision, DeviceRecord
from sickbay.errors import NotFoundError, UnknownEventError

_LOG_COLUMNS: Final = (
    event_log.c.partition_number,
    event_log.c.log_offset,
    event_log.c.data,
    event_log.c.chain,
)

#: Rows fetched at a time by ``timeline``.
_ROWS_PER_FETCH: Final = 500


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of an episode: what caused it, what it rested on, and what it changed."""

    decision: LogRecord
    #: The event that caused it; ``None`` when that stands in another partition.
    cause: LogRecord | None
    #: The facts it cited, in log order.
    evidence: tuple[LogRecord, ...]
    #: Where the device stood; ``None`` when custody had said nothing of it yet.
    before: DeviceRecord | None
    after: DeviceRecord
    clause: str
    reason: str
    #: Hash of the policy that decided.
    policy: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An episode and why. Rows are column -> value, as the audit views of the same names give them."""

    episode: dict[str, Cell]
    #: Every fact that caused a decision or was cited by one, in log order.
    facts: tuple[LogRecord, ...]
    steps: tuple[Step, ...]
    moves: tuple[dict[str, Cell], ...]
    alerts: tuple[dict[str, Cell], ...]
    #: Node incidents that the device's record named while the episode lasted; the one that absorbed it is among them.
    incidents: tuple[dict[str, Cell], ...]
    #: The facts and decisions of the whole life, in order of event time: what is above, and what people, movers, probers and the
    #: keeper of taint rules said for the episode.
    life: tuple[LogRecord, ...]


def explain(connection: Connection, episode_id: str) -> Explanation:
    """Return the whole chain of an episode. Raises NotFoundError when there is none of that id."""
    view = AUDIT_VIEWS["episodes"]
    row = next(view.rows(connection, where={"episode_id": episode_id}), None)
    if row is None:
        raise NotFoundError(f"there is no episode {episode_id!r}; `sickbay episodes` lists them")
    found = dict(zip(view.columns, row, strict=True))
    decisions = _decisions_of(connection, episode_id)
    partition = decisions[0].partition
    previous = _previous(connection, found, partition, decisions)
    cited: dict[str, LogRecord] = _by_id(
        connection,
        partition,
        {record.envelope.causation_id for record in decisions}
        | {event_id for record in decisions for event_id in _custody(record).evidence}
        | set(_evidence_of(connection, episode_id)),
    )
    steps = tuple(_step(record, cited, previous.get(record.offset)) for record in decisions)
    incident_ids = {
        record.incident_id for step in steps for record in (step.before, step.after) if record is not None
    }
    moves = _rows(connection, "moves", {"episode_id": episode_id})
    told = _told_for(connection, partition, episode_id, moves)
    life = {record.offset: record for record in (*cited.values(), *decisions, *told)}
    return Explanation(
        episode=found,
        facts=tuple(sorted(cited.values(), key=lambda record: record.offset)),
        steps=steps,
        moves=moves,
        alerts=_alerts(connection, found),
        incidents=tuple(
            row
            for incident_id in sorted(incident_ids - {""})
            for row in _rows(connection, "node-incidents", {"incident_id": incident_id})
        ),
        life=tuple(sorted(life.values(), key=lambda record: (record.envelope.at_ms, record.offset))),
    )


def timeline(
    connection: Connection,
    device_id: str,
    node: str | None = None,
    *,
    as_of_ms: int | None = None,
    known_at: Mapping[int, int] | None = None,
) -> Iterator[LogRecord]:
    """Yield every fact, request and decision that names a device, decoded, in log order.

    An event of a kind that this build does not know has no ``event``. Consume the rows inside the connection's transaction.
    Raises NotFoundError when the log never names the device.
    """
    log = event_log.c
    named = select(*_LOG_COLUMNS).where(log.device_id == device_id)
    if node is not None:
        named = named.where(log.stream_id == node)
    if connection.execute(named.limit(1)).first() is None:
        place = f" of node {node!r}" if node else ""
        raise NotFoundError(
            f"the log never names the device {device_id!r}{place}; `sickbay audit devices` lists them"
        )
    query = named.where(known_in_log(Moment(as_of_ms, known_at)))
    if as_of_ms is not None:
        query = query.where(log.at_ms <= as_of_ms)
    rows = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(
        query.order_by(log.partition_number, log.log_offset)
    )
    return (_record(row) for row in rows)


def _record(row: Sequence[Any]) -> LogRecord:
    partition, offset, data, chain = row
    envelope = decode_envelope(data)
    try:
        event = open_envelope(envelope)
    except UnknownEventError:
        event = None
    return LogRecord(partition, offset, envelope, data, chain, event)


def _custody(record: LogRecord) -> CustodyDecision:
    assert isinstance(record.event, CustodyDecision), (
        "transitions and episodes come from custody decisions only"
    )
    return record.event


def _read(connection: Connection, partition: int, offsets: Iterable[int]) -> dict[int, LogRecord]:
    found: dict[int, LogRecord] = {}
    for chunk in chunks(sorted(set(offsets)), KEYS_PER_QUERY):
        rows = connection.execute(
            select(*_LOG_COLUMNS).where(
                event_log.c.partition_number == partition, event_log.c.log_offset.in_(chunk)
            )
        )
        found |= {row.log_offset: _record(row) for row in rows}
    return found


def _by_id(connection: Connection, partition: int, event_ids: Iterable[str]) -> dict[str, LogRecord]:
    found: dict[str, LogRecord] = {}
    for chunk in chunks(sorted(set(event_ids)), KEYS_PER_QUERY):
        rows = connection.execute(
            select(*_LOG_COLUMNS).where(
                event_log.c.partition_number == partition, event_log.c.event_id.in_(chunk)
            )
        )
        found |= {record.envelope.event_id: record for record in map(_record, rows)}
    return found


def _decisions_of(connection: Connection, episode_id: str) -> list[LogRecord]:
    """Return the decisions that said something of the episode, in log order."""
    places = connection.execute(
        select(episode.c.partition_number, episode.c.log_offset).where(
            live(episode), episode.c.episode_id == episode_id
        )
    ).all()
    offsets = [offset for _, offset in places]
    found = _read(connection, places[0].partition_number, offsets)
    return [found[offset] for offset in sorted(offsets)]


def _previous(
    connection: Connection, found: Mapping[str, Cell], partition: int, decisions: Sequence[LogRecord]
) -> dict[int, DeviceRecord]:
    """Return, for each decision's offset, where the device stood before it."""
    columns = transition.c
    offsets = (
        connection.execute(
            select(columns.log_offset)
            .where(
                live(transition),
                columns.node == found["node"],
                columns.device_id == found["device_id"],
                columns.log_offset <= decisions[-1].offset,
            )
            .order_by(columns.log_offset)
        )
        .scalars()
        .all()
    )
    before = dict(zip(offsets[1:], offsets, strict=False))
    wanted = {record.offset: before[record.offset] for record in decisions if record.offset in before}
    records = _read(connection, partition, wanted.values())
    return {offset: _custody(records[earlier]).record for offset, earlier in wanted.items()}


def _evidence_of(connection: Connection, episode_id: str) -> Sequence[str]:
    return (
        connection.execute(
            select(episode_evidence.c.event_id).where(
                live(episode_evidence), episode_evidence.c.episode_id == episode_id
            )
        )
        .scalars()
        .all()
    )


def _told_for(
    connection: Connection, partition: int, episode_id: str, moves: Sequence[Mapping[str, Cell]]
) -> list[LogRecord]:
    """Return what was asked and reported for the episode: requests, taint rules, its moves with their steps and reports."""
    move_ids = sorted(str(row["move_id"]) for row in moves)
    conditions = {
        exclusion: exclusion.c.episode_id == episode_id,
        request: or_(request.c.episode_id == episode_id, request.c.move_id.in_(move_ids)),
        move: move.c.episode_id == episode_id,
        move_step: move_step.c.move_id.in_(move_ids),
    }
    offsets = {
        offset
        for table, condition in conditions.items()
        for offset in connection.execute(
            select(table.c.log_offset).where(live(table), table.c.partition_number == partition, condition)
        ).scalars()
    }
    return list(_read(connection, partition, offsets).values())


def _step(record: LogRecord, cited: Mapping[str, LogRecord], before: DeviceRecord | None) -> Step:
    event = _custody(record)
    evidence = [cited[event_id] for event_id in dict.fromkeys(event.evidence) if event_id in cited]
    return Step(
        decision=record,
        cause=cited.get(record.envelope.causation_id),
        evidence=tuple(sorted(evidence, key=lambda fact: fact.offset)),
        before=before,
        after=event.record,
        clause=event.clause,
        reason=event.reason,
        policy=record.envelope.policy,
    )


def _rows(connection: Connection, name: str, where: Mapping[str, str]) -> tuple[dict[str, Cell], ...]:
    view = AUDIT_VIEWS[name]
    return tuple(dict(zip(view.columns, row, strict=True)) for row in view.rows(connection, where=where))


def _alerts(connection: Connection, found: Mapping[str, Cell]) -> tuple[dict[str, Cell], ...]:
    """Return the alerts about the episode, and those about its device that were raised while it lasted."""
    current = found_alerts(NOW)
    node, device_id = found["node"], found["device_id"]
    during = [current.c.raised_at_ms >= found["opened_at_ms"], current.c.node == node]
    if found["closed_at_ms"] is not None:
        during.append(current.c.raised_at_ms <= found["closed_at_ms"])
    columns = AUDIT_VIEWS["alerts"].columns
    rows = connection.execute(
        select(*(current.c[name] for name in columns))
        .where(
            or_(
                current.c.about == found["episode_id"],
                and_(current.c.about.in_([device_id, f"{node}/{device_id}"]), *during),
            )
        )
        .order_by(current.c.raised_at_ms, current.c.alert_id)
    )
    return tuple(dict(zip(columns, row, strict=True)) for row in rows)
