"""The marks of a report: decisions and requests in the shown time, decoded from the log, each with the facts that it cites.

However long a log is, what comes back is bounded: in number and in bytes. Of more, the most telling kinds are kept, the newest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    union_all,
)

from projections.ledger_tables import ledger_drift, ledger_refusal, ledger_verdict
from projections.records import LogRecord, projected
from projections.report_rows import Where
from projections.rows import KEYS_PER_QUERY, chunks
from projections.tables import (
    NUMBER,
    breaker_history,
    event_log,
    move,
    node_incident,
    request,
    transition,
)
from projections.temporal import happened, live
from sickbay.codec import decode_envelope
from sickbay.decisions import (
    BreakerClosed,
    BreakerOpened,
    CustodyDecision,
    Decision,
    LedgerDecision,
    MoveDecision,
    NodeIncidentClosed,
    NodeIncidentOpened,
    VerdictChanged,
)
from sickbay.errors import UnknownEventError
from sickbay.facts import ClaimsGateRequested, Fact, Request
from sickbay.ledger_words import about_words, decision_words
from sickbay.report.model import EVIDENCE_MAX, MARKS_MAX, Evidence, Mark
from sickbay.report.saying import said

#: Bytes of the texts of all marks, 16 MiB: what a browser shows without making anybody wait.
BYTES_MAX: Final = 16 * 1024 * 1024
#: What a mark needs on a page beside its texts, in bytes.
_MARK_BYTES: Final = 900
_FACT_BYTES: Final = 220

#: Kinds from the most telling to the least; of what is not named, the rank is the first.
_RANKS: Final = {
    "device_restricted": 1,
    "probe_started": 1,
    "canary_started": 1,
    "observation_started": 1,
    "quarantine_extended": 2,
    "device_suspected": 3,
    "device_cleared": 3,
}


def marks(connection: Connection, where: Where) -> tuple[list[Mark], int]:
    """Return marks in order of time, and how many there would be."""
    places = _places(where).subquery("places")
    total = int(connection.execute(select(func.count()).select_from(places)).scalar_one())
    rows = connection.execute(
        select(places.c.partition_number, places.c.log_offset)
        .order_by(places.c.rank, places.c.at_ms.desc(), places.c.partition_number, places.c.log_offset)
        .limit(MARKS_MAX)
    ).all()
    order = {(row.partition_number, row.log_offset): rank for rank, row in enumerate(rows)}
    records = sorted(_at(connection, order), key=lambda record: order[record.partition, record.offset])
    repeats = set(_repeats(records))
    records = [record for record in records if (record.partition, record.offset) not in repeats]
    total -= len(repeats)
    found = _within(map(_mark_of(_cited(connection, records)), records))
    return sorted(found, key=lambda mark: (mark.at_ms, mark.partition, mark.offset)), total


def _repeats(records: Iterable[LogRecord]) -> Iterator[tuple[int, int]]:
    """Yield the places of verdicts that only name another driver or class, at the instant of the verdict before."""
    before: dict[str, object] = {}
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        if isinstance(record.event, VerdictChanged):
            told = record.event.verdict, {(hold.reason, hold.scope) for hold in record.event.holds}
            if before.get(record.event.node) == told:
                yield record.partition, record.offset
            before[record.event.node] = told


def _places(where: Where) -> Any:
    """Return places of all decisions and requests in the shown time, with their rank."""

    def of(table: Table, condition: ColumnElement[bool], rank: ColumnElement[Any]) -> Select[Any]:
        return select(table.c.partition_number, table.c.log_offset, table.c.at_ms, rank.label("rank")).where(
            condition,
            table.c.at_ms >= where.from_ms,
            table.c.at_ms <= where.until_ms,
            *where.narrowed(table),
        )

    first, last = literal(0, NUMBER), literal(4, NUMBER)
    # a verdict that only names another driver or class is no other verdict
    judged = ledger_verdict.c.reasons_since_ms == ledger_verdict.c.at_ms
    # what a person asks of the whole cluster is heard by every partition
    heard = request.alias("heard")
    columns = ("generation", "kind", "request_id")
    same = and_(heard.c.node == "", *(heard.c[name] == request.c[name] for name in columns))
    heard_first = select(func.min(heard.c.partition_number)).where(same).scalar_subquery()
    once = or_(request.c.node != "", request.c.partition_number == heard_first)
    ranked = case(*((transition.c.kind == kind, rank) for kind, rank in _RANKS.items()), else_=0)
    return union_all(
        of(transition, happened(transition, where.moment), ranked),
        of(node_incident, live(node_incident), first),
        of(move, live(move), first),
        of(breaker_history, happened(breaker_history, where.moment), first),
        of(request, and_(happened(request, where.moment), once), first),
        of(ledger_verdict, and_(happened(ledger_verdict, where.moment), judged), last),
        of(ledger_drift, happened(ledger_drift, where.moment), last),
        of(ledger_refusal, happened(ledger_refusal, where.moment), last),
    )


def _records(connection: Connection, partition: int, condition: ColumnElement[bool]) -> Iterator[LogRecord]:
    columns = event_log.c
    for offset, data in connection.execute(
        select(columns.log_offset, columns.data).where(columns.partition_number == partition, condition)
    ):
        record = LogRecord(partition, offset, decode_envelope(data), data)
        try:
            yield record._replace(event=projected(record))
        except UnknownEventError:
            yield record


def _at(connection: Connection, places: Iterable[tuple[int, int]]) -> Iterator[LogRecord]:
    """Yield the records at places."""
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in places:
        by_partition[partition].append(offset)
    for partition, offsets in sorted(by_partition.items()):
        for chunk in chunks(sorted(offsets), KEYS_PER_QUERY):
            yield from _records(connection, partition, event_log.c.log_offset.in_(chunk))


def _cited(connection: Connection, records: Sequence[LogRecord]) -> dict[tuple[int, str], Evidence]:
    """Return what the records rest on, by partition and event id."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for record in records:
        if isinstance(record.event, Decision):
            wanted[record.partition] |= {
                record.envelope.causation_id,
                *record.event.evidence[:EVIDENCE_MAX],
            }
    found = {}
    for partition, ids in sorted(wanted.items()):
        for chunk in chunks(sorted(ids - {""}), KEYS_PER_QUERY):
            for record in _records(connection, partition, event_log.c.event_id.in_(chunk)):
                found[partition, record.envelope.event_id] = _evidence(record)
    return found


def _evidence(record: LogRecord) -> Evidence:
    envelope = record.envelope
    return Evidence(
        envelope.kind,
        envelope.at_ms,
        said(record.event),
        envelope.event_id,
        record.partition,
        record.offset,
    )


def _about(event: Fact | Decision | None) -> str:
    match event:
        case BreakerOpened() | BreakerClosed() | ClaimsGateRequested():
            return event.scope
        case NodeIncidentOpened() | NodeIncidentClosed():
            return f"{event.cause} {event.scope}".rstrip()
        case CustodyDecision() | MoveDecision() | Request():
            return event.device_id
        case LedgerDecision():
            return about_words(event)
        case _:
            return ""


def _reason(event: Fact | Decision | None) -> str:
    match event:
        case LedgerDecision():
            return decision_words(event)
        case Decision():
            return event.reason
        case _:
            return said(event)


def _mark_of(cited: dict[tuple[int, str], Evidence]) -> Any:
    def mark_of(record: LogRecord) -> Mark:
        envelope, event = record.envelope, record.event
        decision = event if isinstance(event, Decision) else None
        ids = decision.evidence if decision else ()
        told_by = (
            cited.get((record.partition, envelope.causation_id)) if envelope.causation_id not in ids else None
        )
        return Mark(
            at_ms=envelope.at_ms,
            kind=envelope.kind,
            node=event.node if event else "",
            about=_about(event),
            reason=_reason(event),
            event_id=envelope.event_id,
            partition=record.partition,
            offset=record.offset,
            clause=decision.clause if decision else "",
            policy=envelope.policy,
            before=event.phase_before if isinstance(event, CustodyDecision) else "",
            after=event.record.phase if isinstance(event, CustodyDecision) else "",
            told_by=told_by,
            evidence=tuple(
                cited.get((record.partition, event_id)) or Evidence("", 0, "", event_id, record.partition, 0)
                for event_id in ids[:EVIDENCE_MAX]
            ),
            evidence_left=max(len(ids) - EVIDENCE_MAX, 0),
        )

    return mark_of


def _within(found: Iterable[Mark]) -> Iterator[Mark]:
    """Yield marks as long as their texts fit the page."""
    left = BYTES_MAX
    for mark in found:
        facts = (*mark.evidence, *((mark.told_by,) if mark.told_by else ()))
        left -= _MARK_BYTES + len(mark.reason) + sum(_FACT_BYTES + len(fact.said) for fact in facts)
        if left < 0:
            return
        yield mark
