"""Read models as they stood: at an instant of event time, as it was known at a position of the log.

Two axes, never mixed. ``as_of_ms`` asks what was true at a time; ``known_at`` asks what was known when the partitions stood at
the given positions (``Store.positions``: events with smaller offsets were written). Without the first, the newest state is
meant; without the second, what is known now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    Subquery,
    Table,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
    true,
)

from projections import custody, ledger
from projections.tables import NUMBER, checkpoint, device_history, event_log, read_model, watch_gap


@dataclass(frozen=True, slots=True)
class Moment:
    """From where to look at the read models."""

    #: Instant of event time, in milliseconds; ``None`` for the newest.
    as_of_ms: int | None = None
    #: Partition to next offset; a partition that is not named was not known at all. ``None`` for what is known now.
    known_at: Mapping[int, int] | None = None


NOW: Final = Moment()

#: Table to the name of the read models that it belongs to: each is rebuilt and switched by itself.
_MODELS: Final = {
    table.name: name
    for name, tables in ((custody.NAME, custody.TABLES), (ledger.NAME, ledger.TABLES))
    for table in tables
}


def live(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row belongs to the generation that answers."""
    generation = select(read_model.c.live_generation).where(read_model.c.name == _MODELS[table.name])
    return table.c.generation == generation.scalar_subquery()


def _position(partition: ColumnElement[Any], moment: Moment) -> ColumnElement[Any]:
    """Return the position of a row's partition at the moment."""
    assert moment.known_at is not None, "asked for the position of a moment that has none"
    places = [
        (partition == number, literal(offset, NUMBER)) for number, offset in sorted(moment.known_at.items())
    ]
    return case(*places, else_=literal(0, NUMBER)) if places else literal(0, NUMBER)


def _was_known(table: Table, known_from: str, known_to: str | None, moment: Moment) -> ColumnElement[bool]:
    if moment.known_at is None:
        return table.c[known_to].is_(None) if known_to else true()
    position = _position(table.c.partition_number, moment)
    condition = table.c[known_from] < position
    if known_to is None:
        return condition
    return and_(condition, or_(table.c[known_to].is_(None), table.c[known_to] >= position))


def happened(table: Table, moment: Moment) -> ColumnElement[bool]:
    """Return the condition on rows of what happened once: it was true, and known, at the moment."""
    conditions = [live(table), _was_known(table, "log_offset", None, moment)]
    if moment.as_of_ms is not None:
        conditions.append(table.c.at_ms <= moment.as_of_ms)
    return and_(*conditions)


def cited(table: Table, moment: Moment) -> ColumnElement[bool]:
    """Return the condition on rows that have a place in the log and no time of their own."""
    return and_(live(table), _was_known(table, "log_offset", None, moment))


def known_in_log(moment: Moment) -> ColumnElement[bool]:
    """Return the condition on rows of the log that they were written at the moment; the time is the caller's."""
    return _was_known(event_log, "log_offset", None, moment)


def standing(table: Table, key: tuple[str, ...], moment: Moment) -> Subquery:
    """Return, of a table of versions, the one version of each key that stood at the moment."""
    if moment.as_of_ms is None:
        current = _was_known(table, "log_offset", "superseded_offset", moment)
        return select(table).where(live(table), current).subquery(table.name)
    return _last(table, key, moment)


def runs(table: Table, key: tuple[str, ...], moment: Moment) -> Subquery:
    """Return, of a table of versions with runs, every run of each key as it stood at the moment, those that ended too."""
    return _last(table, (*key, "run"), moment)


def _last(table: Table, key: tuple[str, ...], moment: Moment) -> Subquery:
    """Return, of the versions that were true and known at the moment, the one of each key that was written last."""
    ranked = (
        select(
            table,
            func.row_number()
            .over(
                partition_by=[table.c.partition_number, *(table.c[part] for part in key)],
                order_by=table.c.log_offset.desc(),
            )
            .label("place"),
        )
        .where(happened(table, moment))
        .subquery("ranked")
    )
    return select(ranked).where(ranked.c.place == 1).subquery(table.name)


def intervals(moment: Moment) -> Subquery:
    """Return the device intervals that had begun at the moment; the one that had not ended has no ``valid_to_ms``."""
    columns = device_history.c
    query: Select[Any] = select(device_history).where(
        live(device_history), _was_known(device_history, "known_from_offset", "known_to_offset", moment)
    )
    if moment.as_of_ms is None:
        return query.subquery("intervals")
    begun = query.where(columns.valid_from_ms <= moment.as_of_ms).subquery("begun")
    names = [column for column in begun.c if column.name != "valid_to_ms"]
    valid_to = case((begun.c.valid_to_ms > moment.as_of_ms, null()), else_=begun.c.valid_to_ms)
    return select(*names, valid_to.label("valid_to_ms")).subquery("intervals")


def gaps(moment: Moment) -> Subquery:
    """Return the watch gaps that had begun at the moment; the one that had not ended has no ``to_ms`` and no ``to_rv``."""
    columns = watch_gap.c
    query: Select[Any] = select(watch_gap).where(cited(watch_gap, moment))
    if moment.as_of_ms is None:
        return query.subquery("gaps")
    begun = query.where(columns.from_ms <= moment.as_of_ms).subquery("begun_gaps")
    ends = ("to_ms", "to_rv")
    lasted = begun.c.to_ms > moment.as_of_ms
    return select(
        *(column for column in begun.c if column.name not in ends),
        *(case((lasted, null()), else_=begun.c[name]).label(name) for name in ends),
    ).subquery("gaps")


def newest_ms(partition: ColumnElement[Any], moment: Moment) -> ColumnElement[Any]:
    """Return the event time up to which an open run of a partition is counted.

    The instant asked for; else the newest time of the partition; else, at a known position, the time of its last event.
    """
    if moment.as_of_ms is not None:
        return literal(moment.as_of_ms, NUMBER)
    if moment.known_at is None:
        return (
            select(checkpoint.c.newest_ms).where(checkpoint.c.partition_number == partition).scalar_subquery()
        )
    last = (
        select(event_log.c.at_ms)
        .where(
            event_log.c.partition_number == partition, event_log.c.log_offset < _position(partition, moment)
        )
        .order_by(event_log.c.log_offset.desc())
        .limit(1)
    )
    return last.scalar_subquery()
