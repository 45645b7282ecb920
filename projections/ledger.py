"""The read models of the ledger: the journal line by line, what stands, and what was held, refused or found to differ.

Like custody's, they copy and arrange and decide nothing: each amount and each time was written by a decision. An entry becomes one
journal line for each of its amounts; a balance is the sum of lines, so a posting that comes late with an earlier time corrects
every balance since. Equal logs give equal rows, however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from projections.ledger_tables import (
    LEDGER_TABLES,
    ledger_drift,
    ledger_driver,
    ledger_entry,
    ledger_hold,
    ledger_line,
    ledger_refusal,
    ledger_verdict,
)
from projections.records import LogRecord
from projections.rows import Key, Row, Versions, canonical, insert_tuples
from sickbay.decisions import (
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    EntryPosted,
    EntryReversed,
    Hold,
    VerdictChanged,
)
from sickbay.quantity import NANO_PER_MILLI, NANO_PER_UNIT, parse

NAME: Final = "ledger"
TABLES: Final = LEDGER_TABLES

WANTED: Final = frozenset(
    kind.KIND
    for kind in (
        EntryPosted, EntryReversed, DuplicateRefused, DuplicateWithdrawn, VerdictChanged, DriftFound, DriftCleared,
    )
)  # fmt: skip

#: Books that are kept in node resources, where cpu is counted in millicores.
NODE_BOOKS: Final = ("common", "recorded", "derived")
#: An amount beyond this many units stands as this many: no node has so much, and a row must hold whatever a Pod asks for.
UNITS_MAX: Final = 1 << 62

_DRIVER_REASONS: Final = frozenset({"pool_incomplete", "slice_stale", "generation_back", "driver_rebuilding"})
_sorted_encoder: Final = msgspec.json.Encoder(order="sorted")
_holds_decoder: Final = msgspec.json.Decoder(tuple[Hold, ...])
_names_decoder: Final = msgspec.json.Decoder(tuple[str, ...])


def apply(connection: Connection, generation: int, records: Sequence[LogRecord]) -> None:
    """Project decoded records, in log order, into the rows of ``generation``, inside the caller's transaction."""
    batch = _Batch(connection, generation)
    batch.load(records)
    for record in records:
        batch.add(record)
    batch.flush()


@lru_cache(maxsize=65_536)
def amount(book: str, resource: str, quantity: str, sign: int) -> tuple[int, int]:
    """Return a signed amount as ``(units, rest in nano-units)`` with ``0 <= rest < unit``.

    The unit is a millicore for cpu in the books of node resources, else a whole unit.
    """
    unit = NANO_PER_MILLI if resource == "cpu" and book in NODE_BOOKS else NANO_PER_UNIT
    nano = parse(quantity).nano
    if abs(nano) >= UNITS_MAX * unit:
        return (sign * UNITS_MAX if nano > 0 else -sign * UNITS_MAX), 0
    return divmod(sign * nano, unit)


def driver_of(hold: Hold) -> str:
    """Return the driver whose fault a hold is, empty when it is the node's, a claim's or a person's for all."""
    if hold.reason == "claims_gate_closed":
        kind, _, name = hold.scope.partition(":")
        return name if kind == "driver" else ""
    return hold.scope.partition("/")[0] if hold.reason in _DRIVER_REASONS else ""


class _Batch:
    """The rows that one batch touches."""

    def __init__(self, connection: Connection, generation: int) -> None:
        self._connection = connection
        self._generation = generation
        self._entries = Versions(connection, ledger_entry, ("entry_key", "book", "node"), generation)
        self._verdicts = Versions(connection, ledger_verdict, ("node",), generation)
        self._drivers = Versions(connection, ledger_driver, ("node", "driver"), generation)
        self._holds = Versions(connection, ledger_hold, ("node", "reason", "scope"), generation)
        self._drifts = Versions(connection, ledger_drift, ("about", "node"), generation)
        self._refusals = Versions(
            connection, ledger_refusal, ("entry_key", "book", "node", "contender"), generation
        )
        self._lines: list[tuple[Any, ...]] = []

    def load(self, records: Sequence[LogRecord]) -> None:
        """Read what the records will touch."""
        entries: set[Key] = set()
        verdicts: set[Key] = set()
        drivers: set[Key] = set()
        holds: set[Key] = set()
        drifts: set[Key] = set()
        refusals: set[Key] = set()
        for partition, _, _, _, _, event in records:
            match event:
                case EntryPosted() | EntryReversed():
                    entries.add((partition, event.entry.key, event.entry.book, event.node))
                case VerdictChanged():
                    verdicts.add((partition, event.node))
                    drivers |= _driver_keys(partition, event.node, event.drivers)
                    holds |= _hold_keys(partition, event.node, event.holds)
                case DriftFound() | DriftCleared():
                    drifts.add((partition, event.drift.about, event.node))
                case DuplicateRefused() | DuplicateWithdrawn():
                    entry = event.entry
                    refusals.add((partition, entry.key, entry.book, event.node, event.contender))
        self._verdicts.load(verdicts)
        for partition, node in verdicts:
            before = self._verdicts.latest(partition, node)
            if before is not None:
                drivers |= _driver_keys(partition, node, _names_decoder.decode(before["drivers"]))
                holds |= _hold_keys(partition, node, _holds_decoder.decode(before["holds"]))
        for versions, keys in (
            (self._entries, entries),
            (self._drivers, drivers),
            (self._holds, holds),
            (self._drifts, drifts),
            (self._refusals, refusals),
        ):
            versions.load(keys)

    def add(self, record: LogRecord) -> None:
        """Project one record."""
        match record.event:
            case EntryPosted() as event:
                self._entry(record, event, event.entry.at_ms, None)
            case EntryReversed() as event:
                # What was posted is never taken back before it was there: between the two it would count below nothing.
                at_ms = max(event.at_ms, event.entry.at_ms)
                self._entry(record, event, at_ms, at_ms)
            case VerdictChanged() as event:
                self._verdict(record, event)
            case DriftFound() | DriftCleared() as event:
                self._drift(record, event)
            case DuplicateRefused() | DuplicateWithdrawn() as event:
                self._refusal(record, event)

    def flush(self) -> None:
        """Write everything."""
        for versions in (
            self._entries, self._verdicts, self._drivers, self._holds, self._drifts, self._refusals,
        ):  # fmt: skip
            versions.flush()
        insert_tuples(self._connection, ledger_line, self._lines)

    def _entry(
        self, record: LogRecord, event: EntryPosted | EntryReversed, at_ms: int, reversed_at_ms: int | None
    ) -> None:
        entry, node, event_id = event.entry, event.node, record.envelope.event_id
        sign, state = (1, "posted") if reversed_at_ms is None else (-1, "reversed")
        whose = (entry.pod_uid, entry.claim_uid)
        for number, line in enumerate(entry.amounts):
            units, rest_nano = amount(entry.book, line.resource, line.quantity, sign)
            self._lines.append(
                (self._generation, record.partition, record.offset, number, event_id, state, node, entry.book, entry.key,
                 entry.account, line.resource, line.numa, units, rest_nano, at_ms, *whose)
            )  # fmt: skip
        self._entries.put(
            {
                "partition_number": record.partition,
                "log_offset": record.offset,
                "at_ms": at_ms,
                "event_id": event_id,
                "node": node,
                "book": entry.book,
                "entry_key": entry.key,
                "state": state,
                "account": entry.account,
                "namespace": entry.namespace,
                "pod": entry.pod,
                "pod_uid": entry.pod_uid,
                "claim": entry.claim,
                "claim_uid": entry.claim_uid,
                "device_id": entry.device_id,
                "share_id": entry.share_id,
                "mapping_version": entry.mapping_version,
                "amounts": canonical(entry.amounts),
                "covered": canonical(entry.covered),
                "posted_at_ms": entry.at_ms,
                "reversed_at_ms": reversed_at_ms,
            }
        )

    def _verdict(self, record: LogRecord, event: VerdictChanged) -> None:
        before = self._verdicts.latest(record.partition, event.node)
        drivers = set(_names_decoder.decode(before["drivers"])) if before else set()
        holds = (
            {(hold.reason, hold.scope) for hold in _holds_decoder.decode(before["holds"])}
            if before
            else set()
        )
        self._verdicts.put(
            _version(record, event.at_ms)
            | {"node": event.node, "verdict": event.verdict, "node_class": event.node_class}
            | {"holds": canonical(event.holds), "drivers": canonical(event.drivers)}
            | {"policy": record.envelope.policy}
            | _since(event, before, holds)
        )
        for driver in sorted(drivers.union(event.drivers)):
            self._put_changed(
                self._drivers,
                self._drivers.latest(record.partition, event.node, driver),
                _version(record, event.at_ms)
                | {"node": event.node, "driver": driver, "node_class": event.node_class}
                | {"published": int(driver in event.drivers)},
                ("node_class", "published"),
            )
        standing = {(hold.reason, hold.scope): hold for hold in reversed(event.holds)}
        for hold in standing.values():
            self._held(record, event, hold)
        for reason, scope in sorted(holds - standing.keys()):
            ended = self._holds.latest(record.partition, event.node, reason, scope)
            if ended is not None and ended["held_until_ms"] is None:
                until_ms = max(event.at_ms, ended["held_since_ms"])
                self._holds.put(_carried(ended, record, event.at_ms) | {"held_until_ms": until_ms})

    def _held(self, record: LogRecord, event: VerdictChanged, hold: Hold) -> None:
        before = self._holds.latest(record.partition, event.node, hold.reason, hold.scope)
        row = _version(record, event.at_ms) | {
            "node": event.node,
            "reason": hold.reason,
            "scope": hold.scope,
            "run": _run(before, "held_until_ms"),
            "driver": driver_of(hold),
            "node_class": event.node_class,
            "held_since_ms": hold.since_ms,
            "held_until_ms": None,
            "detail": hold.detail,
        }
        self._put_changed(self._holds, before, row, ("run", "node_class", "held_since_ms", "detail"))

    def _drift(self, record: LogRecord, event: DriftFound | DriftCleared) -> None:
        drift = event.drift
        before = self._drifts.latest(record.partition, drift.about, event.node)
        state: Row = {"run": _run(before, "cleared_at_ms"), "found_at_ms": event.at_ms, "cleared_at_ms": None}
        cause: Row = {"cause": drift.cause, "predicted": int(drift.predicted)}
        if before is not None and isinstance(event, DriftCleared):
            state |= {"run": before["run"], "found_at_ms": before["found_at_ms"]}
            cause = {name: before[name] for name in cause}
        elif before is not None and before["cleared_at_ms"] is None:
            if all(before[name] == value for name, value in cause.items()):
                state["found_at_ms"] = before["found_at_ms"]
            else:
                state["run"] += 1
        if isinstance(event, DriftCleared):
            state["cleared_at_ms"] = max(event.at_ms, state["found_at_ms"])
        self._drifts.put(
            _version(record, event.at_ms)
            | {"about": drift.about, "node": event.node, "explained": int(cause["cause"] != "unexplained")}
            | state
            | cause
            | _whose(drift)
            | {"recorded": _sorted(drift.recorded), "derived": _sorted(drift.derived)}
            | {"exact": _sorted(drift.exact), "detail": drift.detail}
        )

    def _refusal(self, record: LogRecord, event: DuplicateRefused | DuplicateWithdrawn) -> None:
        entry = event.entry
        before = self._refusals.latest(record.partition, entry.key, entry.book, event.node, event.contender)
        state: Row = {"run": _run(before, "withdrawn_at_ms"), "refused_at_ms": event.at_ms}
        if before is not None and (
            before["withdrawn_at_ms"] is None or isinstance(event, DuplicateWithdrawn)
        ):
            state = {"run": before["run"], "refused_at_ms": before["refused_at_ms"]}
        is_over = isinstance(event, DuplicateWithdrawn)
        self._refusals.put(
            _version(record, event.at_ms)
            | {"entry_key": entry.key, "book": entry.book, "node": event.node, "contender": event.contender}
            | state
            | {"withdrawn_at_ms": max(event.at_ms, state["refused_at_ms"]) if is_over else None}
            | {"amounts": canonical(entry.amounts)}
            | _whose(entry)
        )

    def _put_changed(self, versions: Versions, before: Row | None, row: Row, names: Iterable[str]) -> None:
        """Add a version unless it says what the one before says."""
        if before is None or any(before[name] != row[name] for name in names):
            versions.put(row)


def _driver_keys(partition: int, node: str, drivers: Iterable[str]) -> set[Key]:
    return {(partition, node, driver) for driver in drivers}


def _hold_keys(partition: int, node: str, holds: Iterable[Hold]) -> set[Key]:
    return {(partition, node, hold.reason, hold.scope) for hold in holds}


def _since(event: VerdictChanged, before: Row | None, holds: Iterable[tuple[str, str]]) -> Row:
    """Return since when the verdict is what it is, and since when its reasons are; ``holds`` are the reasons before."""
    if before is None or before["verdict"] != event.verdict:
        return {"since_ms": event.at_ms, "reasons_since_ms": event.at_ms}
    is_same = set(holds) == {(hold.reason, hold.scope) for hold in event.holds}
    return {
        "since_ms": before["since_ms"],
        "reasons_since_ms": before["reasons_since_ms"] if is_same else event.at_ms,
    }


def _run(before: Mapping[str, Any] | None, ended: str) -> int:
    """Return the number of the run that goes on, or of the next one."""
    if before is None:
        return 1
    return int(before["run"]) + (before[ended] is not None)


def _version(record: LogRecord, at_ms: int) -> Row:
    return {
        "partition_number": record.partition,
        "log_offset": record.offset,
        "at_ms": at_ms,
        "event_id": record.envelope.event_id,
    }


def _carried(before: Row, record: LogRecord, at_ms: int) -> Row:
    """Return a version like the one before, known from another place."""
    return {name: value for name, value in before.items() if name != "is_new"} | _version(record, at_ms)


def _whose(source: Any) -> Row:
    return {name: getattr(source, name) for name in ("namespace", "pod", "pod_uid", "claim", "claim_uid")}


def _sorted(amounts: Mapping[str, str]) -> str:
    return _sorted_encoder.encode(amounts).decode()
