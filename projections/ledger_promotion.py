"""The query behind the audit view ``ledger-promotion``: what each class of nodes went through, driver by driver.

A node is of the class that its last verdict says, all its history with it, as in ``sickbay.promotion``; it judges nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, Subquery, and_, case, func, or_, select

from projections.ledger_queries import GATE_CLOSED, counted, found_drifts, found_holds, named, total
from projections.ledger_tables import ledger_driver, ledger_verdict
from projections.temporal import Moment, standing


def promotion(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """What speaks for going from canary nodes to all, for each class of nodes and driver."""
    publishes = _publishes(moment)
    fleet, drifted = _fleet(publishes), _drifted(moment, publishes)
    held, drilled = _held(moment, publishes)
    group = ("node_class", "driver")

    def same(other: Subquery) -> ColumnElement[bool]:
        return and_(*(other.c[name] == fleet.c[name] for name in group))

    joined: FromClause = fleet
    for other in (held, drilled, drifted):
        joined = joined.outerjoin(other, same(other))
    counts = {
        name: func.coalesce(source.c[name], 0)
        for source, names in (
            (drilled, ("drills_done",)),
            (held, ("holds_ended",)),
            (drifted, ("unexplained_drifts", "unexplained_open")),
        )
        for name in names
    }
    others = {name: held.c[name] for name in ("holds_p50_ms", "holds_p90_ms", "holds_max_ms")}
    ended = {"unexplained_ended_ms": drifted.c.unexplained_ended_ms}
    return select(*named(fleet, columns, **counts, **others, **ended)).select_from(joined)


def _publishes(moment: Moment) -> Subquery:
    """Return every driver that a node has, or had (``published`` is 0), with the verdict on the node and the class that it names."""
    driver, verdict = (
        standing(ledger_driver, ("node", "driver"), moment),
        standing(ledger_verdict, ("node",), moment),
    )
    return (
        select(*named(driver, ("node", "driver", "published")), *named(verdict, ("node_class", "verdict")))
        .select_from(driver.join(verdict, verdict.c.node == driver.c.node))
        .subquery("publishes")
    )


def _fleet(publishes: Subquery) -> Subquery:
    """Return how many nodes of a class have the driver's devices, and how many of them are open."""
    is_open = and_(publishes.c.published == 1, publishes.c.verdict == "open")
    return (
        select(
            *named(publishes, ("node_class", "driver")),
            total(publishes.c.published).label("nodes"),
            counted(is_open).label("nodes_covered"),
        )
        .group_by(*named(publishes, ("node_class", "driver")))
        .subquery("fleet")
    )


def _held(moment: Moment, publishes: Subquery) -> tuple[Subquery, Subquery]:
    """Return of the holds that ended nearest-rank percentiles of how long they lasted, and how many drills were among them.

    A gate of the cluster or of a driver is one drill for all nodes that heard of it.
    """
    found = found_holds(moment)
    group = [publishes.c.node_class, publishes.c.driver]
    concerned = found.join(
        publishes,
        and_(
            publishes.c.node == found.c.node, or_(found.c.driver == "", found.c.driver == publishes.c.driver)
        ),
    )
    ranked = (
        select(
            *group,
            found.c.duration_ms,
            func.count().over(partition_by=group).label("total"),
            func.row_number().over(partition_by=group, order_by=found.c.duration_ms).label("place"),
        )
        .select_from(concerned)
        .where(found.c.held_until_ms.is_not(None))
        .subquery("ranked_holds")
    )

    def at(percent: int) -> ColumnElement[Any]:
        rank = (ranked.c.total * percent + 99) // 100
        return func.max(case((ranked.c.place == rank, ranked.c.duration_ms))).label(f"holds_p{percent}_ms")

    held = (
        select(
            ranked.c.node_class,
            ranked.c.driver,
            func.max(ranked.c.total).label("holds_ended"),
            at(50),
            at(90),
            func.max(ranked.c.duration_ms).label("holds_max_ms"),
        )
        .group_by(ranked.c.node_class, ranked.c.driver)
        .subquery("held")
    )
    is_common = and_(found.c.reason == GATE_CLOSED, found.c.scope != "node")
    drills = (
        select(
            *group,
            *named(found, ("reason", "scope", "held_since_ms")),
            case((is_common, ""), else_=found.c.node).label("node"),
        )
        .select_from(concerned)
        .where(found.c.drill == 1)
        .distinct()
        .subquery("drills")
    )
    drilled = (
        select(drills.c.node_class, drills.c.driver, func.count().label("drills_done"))
        .group_by(drills.c.node_class, drills.c.driver)
        .subquery("drilled")
    )
    return held, drilled


def _drifted(moment: Moment, publishes: Subquery) -> Subquery:
    """Return how many drifts nobody could explain, how many of them last, and when the newest of the others ended."""
    found = found_drifts(moment)
    return (
        select(
            *named(publishes, ("node_class", "driver")),
            func.count().label("unexplained_drifts"),
            counted(found.c.ended_at_ms.is_(None)).label("unexplained_open"),
            func.max(found.c.ended_at_ms).label("unexplained_ended_ms"),
        )
        .select_from(found.join(publishes, publishes.c.node == found.c.node))
        .where(found.c.explained == 0)
        .group_by(*named(publishes, ("node_class", "driver")))
        .subquery("drifted")
    )
