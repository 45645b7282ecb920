"""The query behind each audit view, for any moment. Names, words and columns stand in ``projections.audit``.

The SQL views of the migrations answer the same for the moment "now"; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    Table,
    and_,
    case,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from projections.tables import (
    NUMBER,
    alert,
    breaker_history,
    device_inventory,
    episode,
    episode_evidence,
    event_log,
    exclusion,
    late_fact,
    move,
    move_step,
    node_incident,
    parked,
    request,
    transition,
)
from projections.temporal import Moment, cited, gaps, happened, intervals, newest_ms, standing

_PER_MILLION: Final = 1_000_000
_PERCENTILES: Final = (50, 90, 99)
#: What tells whether the health of a device is known: its Pods' words, its slice, its node.
_HEALTH_SEEN_THROUGH: Final = ("pods", "resourceslices", "nodes")


def _same(source: FromClause, names: tuple[str, ...]) -> list[ColumnElement[Any]]:
    return [source.c[name] for name in names]


def device_timeline(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Intervals."""
    return select(*_same(intervals(moment), columns))


def devices(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Custody's word where there is one, else what is published and never faulted."""
    custody = intervals(moment)
    inventory = standing(device_inventory, ("node", "device_id"), moment)
    here = and_(inventory.c.node == custody.c.node, inventory.c.device_id == custody.c.device_id)
    current = custody.c.valid_to_ms.is_(None)
    published = inventory.c.withdrawn_at_ms.is_(None)
    names = ("node", "device_id", "driver", "phase", "since_ms", "cause", "episode_id", "incident_id")
    judged = (
        select(
            *_same(custody, names),
            case((and_(inventory.c.device_id.is_not(None), published), 1), else_=0).label("published"),
        )
        .select_from(custody.outerjoin(inventory, here))
        .where(current)
    )
    plain = select(
        *_same(inventory, ("node", "device_id", "driver")),
        literal("in_service").label("phase"),
        null().label("since_ms"),
        *(literal("").label(name) for name in ("cause", "episode_id", "incident_id")),
        literal(1).label("published"),
    ).where(published, ~exists(select(literal(1)).select_from(custody).where(here, current)))
    return select(union_all(judged, plain).subquery("devices"))


def _count(table: Table, condition: ColumnElement[bool], found: FromClause) -> ColumnElement[Any]:
    query = select(func.count()).select_from(table).where(condition, table.c.episode_id == found.c.episode_id)
    return query.scalar_subquery()


def episodes(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The version of each episode that stood."""
    found = standing(episode, ("episode_id",), moment)
    counted = {
        "decisions": _count(transition, happened(transition, moment), found),
        "evidence_facts": _count(episode_evidence, cited(episode_evidence, moment), found),
    }
    return select(*(counted[name].label(name) if name in counted else found.c[name] for name in columns))


def open_episodes(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Those that have not ended."""
    found = standing(episode, ("episode_id",), moment)
    return select(*_same(found, columns)).where(found.c.closed_at_ms.is_(None))


def evidence(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Each fact that an episode rested on."""
    log = event_log.c
    return (
        select(
            episode_evidence.c.episode_id,
            episode_evidence.c.event_id,
            log.kind,
            log.at_ms,
            log.stream_id.label("node"),
            log.device_id,
            episode_evidence.c.partition_number,
            log.log_offset.label("fact_offset"),
            episode_evidence.c.log_offset.label("cited_at_offset"),
        )
        .select_from(
            episode_evidence.outerjoin(
                event_log,
                and_(
                    log.partition_number == episode_evidence.c.partition_number,
                    log.event_id == episode_evidence.c.event_id,
                ),
            )
        )
        .where(
            cited(episode_evidence, moment),
            log.at_ms <= moment.as_of_ms if moment.as_of_ms is not None else literal(1) == 1,
        )
    )


def transitions(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Every custody decision."""
    return select(*_same(transition, columns)).where(happened(transition, moment))


def false_quarantine_rate(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Closed episodes of each driver, and how many of them should not have been."""
    found = standing(episode, ("episode_id",), moment)
    unconfirmed = and_(
        found.c.outcome == "returned",
        found.c.verification == "prober",
        found.c.flap_count == 1,
        found.c.failures == 0,
    )

    def total(condition: ColumnElement[bool]) -> ColumnElement[Any]:
        return func.sum(case((condition, 1), else_=0))

    counted = (
        select(
            found.c.driver,
            func.count().label("closed"),
            total(found.c.outcome == "absorbed").label("absorbed"),
            total(found.c.outcome == "retracted").label("retracted"),
            total(unconfirmed).label("unconfirmed"),
        )
        .where(found.c.closed_at_ms.is_not(None), found.c.cause != "hold")
        .group_by(found.c.driver)
        .subquery("counted")
    )
    false_total = counted.c.absorbed + counted.c.retracted + counted.c.unconfirmed
    return select(
        counted,
        false_total.label("false_total"),
        (false_total * _PER_MILLION // counted.c.closed).label("false_per_million"),
    )


def unknown_duration(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Each run in which a device's health was not known."""
    found = intervals(moment)
    run = (
        select(
            found.c.node,
            found.c.device_id,
            func.max(found.c.driver).label("driver"),
            found.c.unknown_since_ms,
            found.c.partition_number,
            func.max(found.c.valid_to_ms).label("ended_ms"),
            func.max(case((found.c.valid_to_ms.is_(None), 1), else_=0)).label("still_open"),
            func.max(case((found.c.phase == "restricted", 1), else_=0)).label("restricted"),
        )
        .where(found.c.unknown_since_ms.is_not(None))
        .group_by(found.c.node, found.c.device_id, found.c.unknown_since_ms, found.c.partition_number)
        .subquery("run")
    )
    is_open = run.c.still_open == 1
    gap = gaps(moment)
    # A run that begins with the gap's end was found by the list that ended it, and may have begun before.
    crossed = exists(
        select(literal(1))
        .select_from(gap)
        .where(
            gap.c.partition_number == run.c.partition_number,
            gap.c.watched.in_(_HEALTH_SEEN_THROUGH),
            or_(gap.c.to_ms.is_(None), gap.c.to_ms >= run.c.unknown_since_ms),
            or_(is_open, gap.c.from_ms < run.c.ended_ms),
        )
    )
    until = case((is_open, newest_ms(run.c.partition_number, moment)), else_=run.c.ended_ms)
    return select(
        *_same(run, ("node", "device_id", "driver", "unknown_since_ms")),
        case((is_open, null()), else_=run.c.ended_ms).label("ended_ms"),
        (until - run.c.unknown_since_ms).label("duration_ms"),
        run.c.restricted,
        case((crossed, 1), else_=0).label("lower_bound"),
    )


def decision_latency(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Nearest-rank percentiles: the value at place ceil(p * n / 100) of the sorted list, which is a value that occurred."""
    latency = transition.c.latency_ms
    ranked = (
        select(
            transition.c.kind,
            latency,
            func.count().over(partition_by=transition.c.kind).label("total"),
            func.row_number().over(partition_by=transition.c.kind, order_by=latency).label("place"),
        )
        .where(happened(transition, moment), latency.is_not(None))
        .subquery("ranked")
    )

    def at(percent: int) -> ColumnElement[Any]:
        rank = (ranked.c.total * percent + 99) // 100
        return func.max(case((ranked.c.place == rank, ranked.c.latency_ms))).label(f"p{percent}_ms")

    return select(
        ranked.c.kind,
        func.max(ranked.c.total).label("decisions"),
        *(at(percent) for percent in _PERCENTILES),
        func.max(ranked.c.latency_ms).label("max_ms"),
    ).group_by(ranked.c.kind)


def node_incidents(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The version of each incident that stood."""
    return select(*_same(standing(node_incident, ("incident_id",), moment), columns))


def breaker(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Openings and closings."""
    return select(*_same(breaker_history, columns)).where(happened(breaker_history, moment))


def moves(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The version of each move that stood, and how often it had been leased by then."""
    found, each = standing(move, ("move_id",), moment), move.alias("each")
    leased = (
        select(func.count())
        .select_from(each)
        .where(
            each.c.state == "leased",
            each.c.log_offset <= found.c.log_offset,
            *(each.c[name] == found.c[name] for name in ("generation", "partition_number", "move_id")),
        )
        .scalar_subquery()
    )
    return select(*(leased.label(name) if name == "leases" else found.c[name] for name in columns))


def move_steps(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Steps that movers told."""
    return select(*_same(move_step, columns)).where(happened(move_step, moment))


def exclusions(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """What was told last of each taint rule."""
    found = standing(exclusion, ("node", "rule"), moment)
    return select(*(found.c.at_ms.label(name) if name == "told_at_ms" else found.c[name] for name in columns))


def found_alerts(moment: Moment) -> Subquery:
    """Return the version of each alert that stood, with why it was raised; one that was cleared says why apart."""
    found, raised = standing(alert, ("alert_id",), moment), alert.alias("raised")
    is_cleared = found.c.cleared_at_ms.is_not(None)
    # what a clearing took the place of is the newest raising
    is_before = and_(
        is_cleared,
        raised.c.cleared_at_ms.is_(None),
        raised.c.superseded_offset == found.c.log_offset,
        *(raised.c[name] == found.c[name] for name in ("generation", "partition_number", "alert_id")),
    )
    why = ("clause", "reason", "policy", "causation_id")
    return (
        select(
            *(column for column in found.c if column.name not in why),
            *(
                case((is_cleared, func.coalesce(raised.c[name], "")), else_=found.c[name]).label(name)
                for name in why
            ),
            case((is_cleared, found.c.reason), else_="").label("cleared_reason"),
        )
        .select_from(found.outerjoin(raised, is_before))
        .subquery("alerts")
    )


def alerts(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The version of each alert that stood."""
    return select(*_same(found_alerts(moment), columns))


def requests(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Who asked for what."""
    return select(*_same(request, columns)).where(happened(request, moment))


def inventory(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """The version of each device's publication that stood."""
    found = standing(device_inventory, ("node", "device_id"), moment)
    return select(
        *(found.c.at_ms.label(name) if name == "published_at_ms" else found.c[name] for name in columns)
    )


def late_facts(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """Facts behind the horizon."""
    return select(
        *(late_fact.c.at_ms.label(name) if name == "found_at_ms" else late_fact.c[name] for name in columns)
    ).where(happened(late_fact, moment))


def watch_gaps(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """When nothing was seen."""
    return select(*_same(gaps(moment), columns))


def parked_items(moment: Moment, columns: tuple[str, ...]) -> Select[Any]:
    """What could not be used; it has no place in the log, so a known position does not narrow it."""
    query = select(*_same(parked, columns))
    if moment.as_of_ms is None:
        return query
    return query.where(or_(parked.c.at_ms.is_(None), parked.c.at_ms <= literal(moment.as_of_ms, NUMBER)))
