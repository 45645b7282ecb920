"""What a report page shows, read from one snapshot of a store and handed on as plain values (``sickbay.report``).

Rows are those of the audit views, as they stood at the end of the shown time; decisions come from the log itself
(``projections.report_marks``). Nothing is reconstructed or guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, select

from projections.audit import AUDIT_VIEWS
from projections.ledger import WANTED as LEDGER_WANTED
from projections.log import Position as LogPosition
from projections.log import load_positions
from projections.records import LogRecord, projected
from projections.report_devices import DeviceKey, Picture
from projections.report_ledger import ledger_nodes
from projections.report_marks import marks
from projections.report_rows import REMEDY, Where, answers, newest
from projections.tables import event_log, store_meta, transition
from projections.temporal import Moment, live
from sickbay.codec import decode_envelope
from sickbay.errors import InputError, NotFoundError
from sickbay.facts import PolicyChanged
from sickbay.report import (
    Alert,
    Episode,
    Parked,
    Policy,
    Position,
    Report,
)
from sickbay.timestamps import format_time_ms
from sickbay.topics import broadcast_stream

#: Events at the head of each partition among which the first time is looked for.
_FIRST_EVENTS: Final = 100
_PARKED_MAX: Final = 200
#: What the devices are that a page counts: a device plugin publishes none, so of its devices only those of which custody spoke.
DEVICES_COUNTED: Final = "devices published or spoken of by custody"


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a store is asked for: no nodes or devices for all of them, no times for the whole log."""

    from_ms: int | None = None
    until_ms: int | None = None
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def report(connection: Connection, scope: Scope, title: str | None = None) -> Report:
    """Return the page of a store, or of the part in ``scope``.

    Raises NotFoundError for a node or a device that the store does not know, InputError for a time that does not run forward.
    """
    positions = load_positions(connection)
    from_ms, until_ms = _bounds(connection, scope, positions)
    moment = Moment(scope.until_ms)
    asked = Where(moment, from_ms, until_ms, scope.nodes or None, scope.devices or None)
    known = {(row["node"], row["device_id"]): row for row in answers(connection, "devices", asked)}
    _require_known(connection, scope, known)
    if scope.devices:
        asked = Where(moment, from_ms, until_ms, tuple(sorted({node for node, _ in known})), scope.devices)
    notes: list[str] = []
    shown, total = marks(connection, asked)
    found = [mark for mark in shown if mark.kind not in LEDGER_WANTED]
    if len(shown) < total:
        notes.append(
            f"Showing {len(shown)} of {total} decisions and requests, the most telling kinds and of those the newest; {REMEDY}."
        )
    picture = Picture(connection, asked, known, found, notes)
    meta = connection.execute(select(store_meta.c.source_id, store_meta.c.created_by)).one()
    nodes = picture.nodes()
    episodes = picture.episodes
    alerts = newest(connection, "alerts", asked, notes, begins="raised_at_ms", ends="cleared_at_ms")
    ledger = ledger_nodes(connection, asked, notes, (mark for mark in shown if mark.kind in LEDGER_WANTED))
    parked = _parked(connection, asked)
    counts = {
        "events in the log": sum(position.next_offset for position in positions.values()),
        "nodes": _nodes_in_log(connection, asked),
        DEVICES_COUNTED: sum(len(node.devices) + len(node.quiet) for node in nodes),
        "devices with events": sum(len(node.devices) for node in nodes),
        "decisions and requests": total,
        "episodes": len(episodes),
        "of them open": sum(episode["closed_at_ms"] is None for episode in episodes),
        "node incidents": len(picture.incidents),
        "moves": len(picture.moves),
        "watch gaps": len(picture.gaps),
        "parked": parked[1],
    }
    for noun, ends in (
        ("differences between the books", [drift.cleared_at_ms for node in ledger for drift in node.drifts]),
        ("refused duplicates", [refused.withdrawn_at_ms for node in ledger for refused in node.refused]),
    ):
        if ledger:
            counts[f"{noun} ({sum(end is None for end in ends)} standing)"] = len(ends)
    return Report(
        title=title or f"Sickbay report, {format_time_ms(from_ms)[:10]}",
        from_ms=from_ms,
        until_ms=until_ms,
        source=str(meta.source_id),
        created_by=str(meta.created_by),
        policies=_policies(connection, asked, positions),
        positions=tuple(
            Position(partition, place.next_offset, place.newest_ms, bytes(place.chain_head).hex())
            for partition, place in sorted(positions.items())
        ),
        nodes=nodes,
        breakers=picture.breakers(),
        marks=tuple(mark for mark in found if not mark.node),
        gaps=picture.gaps,
        episodes=tuple(
            Episode(**{name: row[name] for name in Episode.__dataclass_fields__}) for row in episodes
        ),
        alerts=tuple(Alert(**{name: row[name] for name in Alert.__dataclass_fields__}) for row in alerts),
        parked=parked[0],
        ledger=ledger,
        counts=tuple(counts.items()),
        narrowed_to=", ".join((*scope.nodes, *scope.devices)),
        notes=tuple(notes),
    )


def _bounds(connection: Connection, scope: Scope, positions: Mapping[int, LogPosition]) -> tuple[int, int]:
    last_ms = max((place.newest_ms for place in positions.values()), default=0)
    until_ms = last_ms if scope.until_ms is None else scope.until_ms
    from_ms = _first_ms(connection, positions) if scope.from_ms is None else scope.from_ms
    if scope.from_ms is None:
        from_ms = min(from_ms, until_ms)
    if from_ms == until_ms and None in {scope.from_ms, scope.until_ms}:
        until_ms += 1_000  # a log of one instant is still drawn
    if from_ms >= until_ms:
        raise InputError(
            f"nothing lies between {format_time_ms(from_ms)} and {format_time_ms(until_ms)}: give --from a time before --until"
            f" and before the last event of the store, {format_time_ms(last_ms)}"
        )
    return from_ms, until_ms


def _nodes_in_log(connection: Connection, asked: Where) -> int:
    """Return of how many nodes the log says anything up to the end of the shown time, with devices or without."""
    columns = event_log.c
    streams = select(func.count(columns.stream_id.distinct())).where(
        columns.stream_id != "",
        columns.stream_id.not_in([broadcast_stream(number) for number in load_positions(connection)]),
        columns.at_ms <= asked.until_ms,
    )
    if asked.nodes is not None:
        streams = streams.where(columns.stream_id.in_(asked.nodes))
    return int(connection.execute(streams).scalar_one())


def _first_ms(connection: Connection, positions: Mapping[int, LogPosition]) -> int:
    columns = event_log.c
    times = []
    for partition in positions:
        head = select(columns.at_ms).where(columns.partition_number == partition)
        first = head.order_by(columns.log_offset).limit(_FIRST_EVENTS).subquery("first")
        times.append(connection.execute(select(func.min(first.c.at_ms))).scalar_one())
    decided = connection.execute(select(func.min(transition.c.at_ms)).where(live(transition))).scalar()
    return min([at_ms for at_ms in (*times, decided) if at_ms is not None], default=0)


def _require_known(connection: Connection, scope: Scope, known: Iterable[DeviceKey]) -> None:
    nodes, devices = {node for node, _ in known}, {device for _, device in known}
    for name, column, wanted, there in (
        ("node", event_log.c.stream_id, scope.nodes, nodes),
        ("device", event_log.c.device_id, scope.devices, devices),
    ):
        for value in wanted:
            if (
                value not in there
                and connection.execute(select(column).where(column == value).limit(1)).first() is None
            ):
                raise NotFoundError(
                    f"the store knows no {name} {value!r}; `sickbay audit devices` lists nodes and devices"
                )


def _policies(
    connection: Connection, asked: Where, positions: Mapping[int, LogPosition]
) -> tuple[Policy, ...]:
    """Return the policies that held in the shown time; every partition hears of each, so one is asked."""
    if not positions:
        return ()
    partition = min(positions)
    columns = event_log.c
    rows = connection.execute(
        select(columns.log_offset, columns.data)
        .where(
            columns.partition_number == partition,
            columns.kind == PolicyChanged.KIND,
            columns.at_ms <= asked.until_ms,
        )
        .order_by(columns.log_offset)
    )
    found: list[Policy] = []
    for offset, data in rows:
        event = projected(LogRecord(partition, offset, decode_envelope(data), data))
        assert isinstance(event, PolicyChanged), "the kind says which event it is"
        if not found or found[-1].policy_hash != event.policy_hash:
            found.append(Policy(event.policy_hash, event.policy_version, event.observed_at_ms))
    earlier = [policy for policy in found if policy.from_ms <= asked.from_ms]
    return (*earlier[-1:], *found[len(earlier) :])


def _parked(connection: Connection, asked: Where) -> tuple[tuple[Parked, ...], int]:
    view = AUDIT_VIEWS["parked"]
    found = view.query(asked.moment, view.columns).subquery(view.sql_name)
    total = int(connection.execute(select(func.count()).select_from(found)).scalar_one())
    columns = (found.c.place, found.c.reason, found.c.raw_bytes)
    rows = connection.execute(select(*columns).order_by(found.c.seq).limit(_PARKED_MAX))
    return tuple(Parked(*row) for row in rows), total
