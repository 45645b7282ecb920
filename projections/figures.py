"""What the read models count, for metrics: a handful of sums over one snapshot.

They are asked with the questions of the audit views, so that a dashboard and an audit agree. It must not be asked on an event
loop: it reads every device.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, FromClause, distinct, func, select

from projections import audit_queries as queries
from projections import ledger_queries
from projections.engine import Store
from projections.ledger_tables import ledger_verdict
from projections.measure_figures import measures
from projections.tables import breaker_history, checkpoint, episode, watch_gap
from projections.temporal import NOW, live, standing
from sickbay.operations.figures import Figures


class StoreFigures:
    """The figures of an open store; ``ReadModelFigures`` of the metrics."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Figures:
        """Count in one snapshot. Raises StoreError."""
        with self._store.reading() as connection:
            return figures(connection)


def figures(connection: Connection) -> Figures:
    """Count what stands now."""
    episodes = standing(episode, ("episode_id",), NOW)
    verdicts = standing(ledger_verdict, ("node",), NOW)
    drifts = ledger_queries.found_drifts(NOW)
    newest_ms = connection.execute(select(func.max(checkpoint.c.newest_ms))).scalar_one()
    return Figures(
        episodes_open=_by(connection, episodes, "phase", episodes.c.closed_at_ms.is_(None)),
        devices=_by(connection, queries.devices(NOW, ()).subquery("devices"), "phase"),
        nodes_on_hold=connection.execute(
            select(func.count()).select_from(verdicts).where(verdicts.c.verdict == "hold")
        ).scalar_one(),
        drifts_standing=_by(connection, drifts, "cause", drifts.c.ended_at_ms.is_(None)),
        watch_gaps=_gaps(connection),
        breakers_open=_breakers(connection),
        newest_ms=newest_ms,
        measures=measures(connection, newest_ms),
    )


def _by(connection: Connection, found: FromClause, column: str, *conditions: Any) -> dict[str, int]:
    counted = select(found.c[column], func.count()).where(*conditions).group_by(found.c[column])
    return {str(value): int(count) for value, count in connection.execute(counted)}


def _gaps(connection: Connection) -> dict[str, int]:
    # every partition hears of a gap, and has a row of it
    counted = (
        select(watch_gap.c.watched, func.count(distinct(watch_gap.c.from_ms)))
        .where(live(watch_gap))
        .group_by(watch_gap.c.watched)
    )
    return {str(watched): int(count) for watched, count in connection.execute(counted)}


def _breakers(connection: Connection) -> frozenset[str]:
    # all that is said of the breaker stands in its home partition, so offsets order it
    last = (
        select(breaker_history.c.scope, func.max(breaker_history.c.log_offset).label("log_offset"))
        .where(live(breaker_history))
        .group_by(breaker_history.c.scope)
        .subquery("last")
    )
    found = select(breaker_history.c.scope).where(
        live(breaker_history),
        breaker_history.c.scope == last.c.scope,
        breaker_history.c.log_offset == last.c.log_offset,
        breaker_history.c.state == "open",
    )
    return frozenset(connection.execute(found).scalars())
