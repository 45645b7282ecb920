"""The measures of custody and of what was done on its word, each a query for any moment (docs/audit-views.md defines them).

All times are event time. What is counted up to "now" is counted to the instant asked for, else to the newest event of the
partition: the store knows no clock.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    cast,
    distinct,
    func,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
)

from projections.tables import (
    NUMBER,
    device_inventory,
    episode,
    episode_evidence,
    event_log,
    exclusion,
    move,
    transition,
)
from projections.temporal import Moment, cited, happened, intervals, known_in_log, newest_ms, standing
from sickbay.decisions import MoveOutcome, QuarantineOpened
from sickbay.facts import DeviceHealthObserved, DevicePublished

#: Kinds of facts that are a word on a device.
_WORDS: Final = (DeviceHealthObserved.KIND, DevicePublished.KIND)
_PER_MILLION: Final = 1_000_000
_HOLD: Final = "hold"


def _named(source: FromClause, *names: str) -> list[ColumnElement[Any]]:
    return [source.c[name] for name in names]


def _after(until: ColumnElement[Any], since: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the time from one moment to another, 0 where the second is before the first."""
    return case((until > since, until - since), else_=0)


def status_age(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """The newest word on each device that custody speaks of or a slice names; a device that was withdrawn is left out."""
    custody = intervals(moment)
    inventory = standing(device_inventory, ("node", "device_id"), moment)
    here = and_(inventory.c.node == custody.c.node, inventory.c.device_id == custody.c.device_id)
    names = ("partition_number", "node", "device_id", "driver")
    is_published = inventory.c.withdrawn_at_ms.is_(None)
    devices = union_all(
        select(*_named(custody, *names))
        .select_from(custody.outerjoin(inventory, here))
        .where(custody.c.valid_to_ms.is_(None), or_(inventory.c.device_id.is_(None), is_published)),
        select(*_named(inventory, *names))
        .select_from(
            inventory.outerjoin(custody, and_(here, custody.c.valid_to_ms.is_(None))),
        )
        .where(is_published, custody.c.device_id.is_(None)),
    ).subquery("named")
    log, word = event_log.c, event_log.alias("word")
    # the log's own index leads to a device's events by offset, so the newest is found without reading those before
    newest_word = (
        select(log.log_offset)
        .where(
            log.device_id == devices.c.device_id,
            log.partition_number == devices.c.partition_number,
            log.stream_id == devices.c.node,
            log.kind.in_(_WORDS),
            known_in_log(moment),
            log.at_ms <= literal(moment.as_of_ms, NUMBER) if moment.as_of_ms is not None else true(),
        )
        .order_by(log.log_offset.desc())
        .limit(1)
        .correlate(devices)
        .scalar_subquery()
    )
    found = select(*_named(devices, *names), newest_word.label("word_offset")).subquery("found")
    age_ms = _after(newest_ms(found.c.partition_number, moment), word.c.at_ms)
    return select(
        *_named(found, "node", "device_id", "driver"),
        word.c.kind.label("word"),
        word.c.at_ms.label("word_at_ms"),
        case((word.c.at_ms.is_not(None), age_ms), else_=null()).label("age_ms"),
        *_named(found, "partition_number", "word_offset"),
    ).select_from(
        found.outerjoin(
            word,
            and_(
                word.c.partition_number == found.c.partition_number, word.c.log_offset == found.c.word_offset
            ),
        )
    )


def time_to_quarantine(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """From the first fault of each episode to the decision, and to the taint rule; episodes that a person opened are left out."""
    found = standing(episode, ("episode_id",), moment)
    opened = (
        select(
            transition.c.episode_id,
            func.min(transition.c.log_offset).label("log_offset"),
            func.min(case((transition.c.cause_at_ms > transition.c.at_ms, transition.c.cause_at_ms),
                          else_=transition.c.at_ms)).label("decided_at_ms"),
        )
        .where(happened(transition, moment), transition.c.kind == QuarantineOpened.KIND)
        .group_by(transition.c.episode_id)
        .subquery("opened")
    )  # fmt: skip
    fault = (
        select(episode_evidence.c.episode_id, func.min(event_log.c.at_ms).label("fault_at_ms"))
        .select_from(
            episode_evidence.join(opened, opened.c.episode_id == episode_evidence.c.episode_id).join(
                event_log,
                and_(
                    event_log.c.partition_number == episode_evidence.c.partition_number,
                    event_log.c.event_id == episode_evidence.c.event_id,
                ),
            )
        )
        .where(cited(episode_evidence, moment), episode_evidence.c.log_offset <= opened.c.log_offset)
        .group_by(episode_evidence.c.episode_id)
        .subquery("fault")
    )
    told = exclusion.c
    excluded = (
        select(
            told.episode_id,
            *(
                func.min(case((told.state == state, told.at_ms))).label(f"{state}_at_ms")
                for state in ("applied", "confirmed")
            ),
        )
        .where(happened(exclusion, moment), told.episode_id != "")
        .group_by(told.episode_id)
        .subquery("excluded")
    )
    fault_at_ms = func.coalesce(fault.c.fault_at_ms, found.c.opened_at_ms)
    steps = {
        "decision": opened.c.decided_at_ms,
        "applied": excluded.c.applied_at_ms,
        "confirmed": excluded.c.confirmed_at_ms,
    }
    return (
        select(
            *_named(found, "episode_id", "node", "device_id", "driver", "cause"),
            fault_at_ms.label("fault_at_ms"),
            opened.c.decided_at_ms,
            *_named(excluded, "applied_at_ms", "confirmed_at_ms"),
            *(
                case((at_ms.is_not(None), _after(at_ms, fault_at_ms)), else_=null()).label(f"to_{name}_ms")
                for name, at_ms in steps.items()
            ),
        )
        .select_from(
            found.join(opened, opened.c.episode_id == found.c.episode_id)
            .outerjoin(fault, fault.c.episode_id == found.c.episode_id)
            .outerjoin(excluded, excluded.c.episode_id == found.c.episode_id)
        )
        .where(found.c.cause != _HOLD)
    )


def move_success(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """Moves of each driver's devices by how they ended, and how many of those that were tried were done.

    Done, failed and timed out were tried; what ended the others says nothing of the mover.
    """
    found, whose = standing(move, ("move_id",), moment), standing(episode, ("episode_id",), moment)
    driver = func.coalesce(whose.c.driver, "").label("driver")
    counted = (
        select(
            driver,
            func.count().label("moves"),
            _count(found.c.outcome == "").label("unfinished"),
            *(_count(found.c.outcome == outcome).label(outcome) for outcome in get_args(MoveOutcome)),
        )
        .select_from(found.outerjoin(whose, whose.c.episode_id == found.c.episode_id))
        .group_by(driver)
        .subquery("counted")
    )
    tried = counted.c.done + counted.c.failed + counted.c.timed_out
    return select(
        counted, case((tried > 0, counted.c.done * _PER_MILLION // tried)).label("success_per_million")
    )


def idle_time(moment: Moment, _columns: tuple[str, ...]) -> Select[Any]:
    """How long the devices of each driver were in each phase but in service, added up over devices."""
    found = intervals(moment)
    until = func.coalesce(found.c.valid_to_ms, newest_ms(found.c.partition_number, moment))
    lasted = (
        select(
            *_named(found, "node", "device_id", "driver", "phase"),
            case((found.c.valid_to_ms.is_(None), 1), else_=0).label("is_so"),
            _after(until, found.c.valid_from_ms).label("idle_ms"),
        )
        .where(found.c.phase != "in_service")
        .subquery("lasted")
    )
    return select(
        *_named(lasted, "driver", "phase"),
        func.count(distinct(lasted.c.node + "/" + lasted.c.device_id)).label("devices"),
        cast(func.sum(lasted.c.is_so), NUMBER).label("devices_now"),
        cast(func.sum(lasted.c.idle_ms), NUMBER).label("idle_ms"),
    ).group_by(lasted.c.driver, lasted.c.phase)


def _count(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return cast(func.sum(case((condition, 1), else_=0)), NUMBER)
