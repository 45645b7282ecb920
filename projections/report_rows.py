"""Rows of the audit views as a report asks for them: at the end of the shown time, of some nodes and devices, and not too many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, or_, select

from projections.audit import AUDIT_VIEWS
from projections.temporal import Moment
from sickbay.report.model import ROWS_MAX

Row: TypeAlias = dict[str, Any]

#: What a note tells people to do who miss something.
REMEDY: Final = "ask for less with --node, --device, --from and --until"


@dataclass(frozen=True, slots=True)
class Where:
    """The part of a store that is shown. ``None`` for all nodes, and for all devices."""

    moment: Moment
    from_ms: int
    until_ms: int
    nodes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None

    def narrowed(self, table: Any) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions on the columns ``node`` and ``device_id``, as far as the table has them."""
        if self.nodes is not None and "node" in table.c:
            yield table.c.node.in_(self.nodes)
        if self.devices is not None and "device_id" in table.c:
            yield table.c.device_id.in_(self.devices)


def answers(
    connection: Connection,
    name: str,
    asked: Where,
    *,
    begins: str = "",
    ends: str = "",
    limit: int | None = None,
) -> list[Row]:
    """Return the rows of an audit view at the end of the shown time, narrowed to nodes and devices.

    ``begins`` and ``ends`` name the columns of a stretch that must meet the shown time. With a ``limit`` the newest are kept.
    """
    view = AUDIT_VIEWS[name]
    found = view.query(asked.moment, view.columns).subquery(view.sql_name)
    wanted: list[ColumnElement[bool]] = list(asked.narrowed(found))
    if begins:
        wanted.append(found.c[begins] <= asked.until_ms)
    if ends:
        wanted.append(or_(found.c[ends].is_(None), found.c[ends] >= asked.from_ms))
    query = (
        select(*(found.c[column] for column in view.columns))
        .where(*wanted)
        .order_by(*(found.c[column] for column in view.order))
    )
    if limit is not None:
        query = (
            query.order_by(None)
            .order_by(found.c[begins].desc(), *(found.c[c] for c in view.order))
            .limit(limit)
        )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return sorted(rows, key=lambda row: row[begins]) if limit is not None else rows


def newest(
    connection: Connection, name: str, asked: Where, notes: list[str], *, begins: str, ends: str
) -> list[Row]:
    """Return at most ``ROWS_MAX`` rows of a view, the newest; a note says when there are more."""
    rows = answers(connection, name, asked, begins=begins, ends=ends, limit=ROWS_MAX + 1)
    if len(rows) > ROWS_MAX:
        notes.append(f"Showing the newest {ROWS_MAX} {name.replace('-', ' ')} of more; {REMEDY}.")
    return rows[-ROWS_MAX:]
