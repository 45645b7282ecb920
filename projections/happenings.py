"""Rows of what happened once: the breaker, requests, steps of moves, watch gaps. One event makes one row, and none rests on another.

Values only: nothing here knows what is in the database.
"""

from __future__ import annotations

from typing import Final

from projections.records import LogRecord
from projections.rows import Row
from projections.tables import request
from sickbay.decisions import BreakerClosed, BreakerOpened
from sickbay.facts import MoveStepReported, Request, WatchGapFound

_REQUEST_COLUMNS: Final = tuple(
    column.name
    for column in request.columns
    if column.name not in {"generation", "partition_number", "log_offset", "event_id", "kind", "at_ms"}
)


def place(generation: int, record: LogRecord) -> Row:
    """Return which generation a row is of, and where it became known."""
    return {"generation": generation, "partition_number": record.partition, "log_offset": record.offset}


def breaker_row(generation: int, record: LogRecord, event: BreakerOpened | BreakerClosed) -> Row:
    """Return an opening, with the counts that decided, or a closing."""
    return (
        place(generation, record)
        | {"event_id": record.envelope.event_id, "at_ms": event.at_ms, "scope": event.scope}
        | {
            "state": "open" if isinstance(event, BreakerOpened) else "closed",
            "opened_at_ms": event.at_ms if isinstance(event, BreakerOpened) else event.opened_at_ms,
        }
        | {name: getattr(event, name, None) for name in ("adverse", "known", "threshold")}
        | {"clause": event.clause, "reason": event.reason, "policy": record.envelope.policy}
    )


def request_row(generation: int, record: LogRecord, event: Request) -> Row:
    """Return who asked for what; a column that the kind of request does not have is ``None``."""
    asked: Row = {name: getattr(event, name, None) for name in _REQUEST_COLUMNS}
    asked |= {name: int(asked[name]) for name in ("passed", "closed") if asked[name] is not None}
    asked["ledger_version"] = asked["ledger_version"] or None
    return (
        place(generation, record)
        | {"event_id": record.envelope.event_id, "kind": event.KIND, "at_ms": event.observed_at_ms}
        | asked
    )


def step_row(generation: int, record: LogRecord, event: MoveStepReported) -> Row:
    """Return a step of a move."""
    told = ("request_id", "actor", "node", "device_id", "move_id", "step", "detail", "token")
    return (
        place(generation, record)
        | {"event_id": record.envelope.event_id, "at_ms": event.observed_at_ms}
        | {name: getattr(event, name) for name in told}
    )


def gap_row(generation: int, record: LogRecord, event: WatchGapFound) -> Row:
    """Return when nothing was seen of a resource type."""
    state = {"watched": event.watched, "from_ms": event.from_ms, "to_ms": event.to_ms}
    versions = {"from_rv": str(event.from_rv), "to_rv": str(event.to_rv)}
    return place(generation, record) | state | versions
