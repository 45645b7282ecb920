"""The measures counted for metrics, with the questions of the audit views, over one snapshot.

It reads every device, and every interval that a device was out of service, so it must not be asked on an event loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from projections.audit import AUDIT_VIEWS
from sickbay.operations.measures import Labels, Measures
from sickbay.quantity import NANO_PER_UNIT, parse

#: Episodes whose fault lies this far before the newest event are what time to quarantine is of: a day.
WINDOW_MS: Final = 86_400_000
#: Per cent to what a quantile is called.
_QUANTILES: Final = {50: "0.5", 90: "0.9", 99: "0.99", 100: "1"}
_NOT_TRIED: Final = frozenset({"driver", "moves", "success_per_million"})
_WHY: Final = ("absorbed", "retracted", "unconfirmed")
_amounts: Final = msgspec.json.Decoder(dict[str, str])


def measures(connection: Connection, newest_ms: int | None) -> Measures:
    """Count what stands now; ``newest_ms`` is the newest event time of the store, ``None`` when it is empty."""
    if newest_ms is None:
        return Measures()
    closed = list(_rows(connection, "false-quarantine-rate"))
    unknown = [row for row in _rows(connection, "unknown-duration") if row["ended_ms"] is None]
    quarantined = [
        row for row in _rows(connection, "time-to-quarantine") if row["fault_at_ms"] >= newest_ms - WINDOW_MS
    ]
    refused = list(_rows(connection, "ledger-duplicates"))
    failures = list(_rows(connection, "placement-failures"))
    return Measures(
        status_age_ms=_quantiles((row["driver"], row["age_ms"]) for row in _rows(connection, "status-age")),
        unknown_duration_ms=_quantiles((row["driver"], row["duration_ms"]) for row in unknown),
        quarantines_closed={(row["driver"],): row["closed"] for row in closed},
        quarantines_false={(row["driver"], why): row[why] for row in closed for why in _WHY},
        time_to_quarantine_ms=_quantiles(
            (until, row[f"to_{until}_ms"])
            for row in quarantined
            for until in ("decision", "applied", "confirmed")
        ),
        moves={
            (row["driver"], outcome): count
            for row in _rows(connection, "move-success")
            for outcome, count in row.items()
            if outcome not in _NOT_TRIED and count
        },
        idle_ms={(row["driver"], row["phase"]): row["idle_ms"] for row in _rows(connection, "idle-time")},
        ledger_difference=_differences(_rows(connection, "ledger-drift")),
        mapping_age_ms=_quantiles((row["driver"], row["age_ms"]) for row in _rows(connection, "mapping-age")),
        holds_standing=_by(
            "reason", (row for row in _rows(connection, "ledger-holds") if row["held_until_ms"] is None)
        ),
        duplicates_refused=_by("book", refused),
        duplicates_standing=_by("book", (row for row in refused if row["withdrawn_at_ms"] is None)),
        numa_failures=_by("alert", failures),
        numa_failures_standing=_by("alert", (row for row in failures if row["cleared_at_ms"] is None)),
        exclusions=_by(
            "state", (row for row in _rows(connection, "exclusions") if row["state"] != "removed")
        ),
    )


def _rows(connection: Connection, name: str) -> Iterator[dict[str, Any]]:
    view = AUDIT_VIEWS[name]
    return (dict(zip(view.columns, row, strict=True)) for row in view.rows(connection))


def _by(column: str, rows: Iterable[Mapping[str, Any]]) -> dict[Labels, float]:
    return {(str(value),): count for value, count in Counter(row[column] for row in rows).items()}


def _quantiles(found: Iterable[tuple[str, int | None]]) -> dict[Labels, float]:
    """Return nearest-rank quantiles of the values of each name; ``None`` is no value."""
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for name, value in found:
        if value is not None:
            by_name[name].append(value)
    return {
        (name, quantile): sorted(values)[(len(values) * percent + 99) // 100 - 1]
        for name, values in by_name.items()
        for percent, quantile in _QUANTILES.items()
    }


def _differences(drifts: Iterable[Mapping[str, Any]]) -> dict[Labels, float]:
    """Return by how much the books differ in the drifts that stand, without sign, per resource and cause."""
    summed: defaultdict[Labels, Fraction] = defaultdict(Fraction)
    for row in drifts:
        if row["ended_at_ms"] is not None:
            continue
        recorded, derived = _amounts.decode(row["recorded"]), _amounts.decode(row["derived"])
        for resource in recorded.keys() | derived.keys():
            amounts = [parse(book.get(resource, "0")).nano for book in (recorded, derived)]
            summed[resource, row["cause"]] += Fraction(abs(amounts[0] - amounts[1]), NANO_PER_UNIT)
    return {labels: float(amount) for labels, amount in summed.items()}
