"""What a report shows of the ledger: each node's balances at the end of the shown time, and what waited, differed or was refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
from sqlalchemy import Connection, case, select

from projections.audit import AUDIT_VIEWS
from projections.ledger import NODE_BOOKS
from projections.ledger_tables import ledger_verdict
from projections.report_rows import REMEDY, Row, Where, newest
from projections.temporal import happened
from sickbay.decisions import Amount, Hold
from sickbay.ledger_words import DRIFT_WORDS, reason_words, whose_words
from sickbay.quantity import NANO_PER_MILLI, NANO_PER_UNIT, Format, Quantity
from sickbay.report import Balance, Bar, Drift, LedgerNode, Mark, Refused, Verdict
from sickbay.report.model import ROWS_MAX

Shown = TypeVar("Shown")

#: Rows of balances on one page; nodes of which there is something to tell come first.
_BALANCES_MAX: Final = 4_000
_ACCOUNTS: Final = ("supply", "pods", "claims", "overhead", "adjustment", "used", "free")
#: From here on whole multiples are written with a binary suffix where the resource does not say that it is counted in bytes.
_MEBI: Final = 1 << 20
_holds_decoder: Final = msgspec.json.Decoder(tuple[Hold, ...])
_amounts_decoder: Final = msgspec.json.Decoder(tuple[Amount, ...])
_quantities_decoder: Final = msgspec.json.Decoder(dict[str, str])


def ledger_nodes(
    connection: Connection, asked: Where, notes: list[str], marks: Iterable[Mark]
) -> tuple[LedgerNode, ...]:
    """Return the nodes of which the ledger says anything, by name, each with its ``marks``; none where there is no ledger."""
    decided: dict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        decided[mark.node].append(mark)
    holds = _by_node(
        (
            row,
            Bar(
                row["reason"],
                ", ".join(filter(None, (row["scope"], row["detail"]))),
                row["held_since_ms"],
                row["held_until_ms"],
            ),
        )
        for row in newest(
            connection, "ledger-holds", asked, notes, begins="held_since_ms", ends="held_until_ms"
        )
    )
    drifts = _by_node(
        (row, _drift(row))
        for row in newest(connection, "ledger-drift", asked, notes, begins="found_at_ms", ends="ended_at_ms")
    )
    refused = _by_node(
        (row, _refused(row))
        for row in newest(
            connection, "ledger-duplicates", asked, notes, begins="refused_at_ms", ends="withdrawn_at_ms"
        )
    )
    verdicts = _by_node(_verdicts(connection, asked, notes))
    balances = _by_node(_balances(connection, asked, notes, {*holds, *drifts, *refused}))
    return tuple(
        LedgerNode(
            name,
            tuple(balances.get(name, ())),
            tuple(holds.get(name, ())),
            tuple(verdicts.get(name, ())),
            tuple(drifts.get(name, ())),
            tuple(refused.get(name, ())),
            tuple(decided.get(name, ())),
        )
        for name in sorted({*balances, *holds, *verdicts, *drifts, *refused, *decided})
    )


def _by_node(found: Iterable[tuple[Row, Shown]]) -> dict[str, list[Shown]]:
    result: dict[str, list[Shown]] = defaultdict(list)
    for row, shown in found:
        result[row["node"]].append(shown)
    return result


def _quantities(text: str) -> str:
    return ", ".join(
        f"{name} {quantity}" for name, quantity in sorted(_quantities_decoder.decode(text).items())
    )


def _drift(row: Row) -> Drift:
    return Drift(
        about=row["about"],
        cause=row["cause"],
        predicted=bool(row["predicted"]),
        recorded=_quantities(row["recorded"]),
        derived=_quantities(row["derived"]),
        exact=_quantities(row["exact"]),
        detail=row["detail"],
        found_at_ms=row["found_at_ms"],
        cleared_at_ms=row["ended_at_ms"],
        whose=whose_words(row["namespace"], row["claim"], row["pod"], row["about"]),
        meaning=DRIFT_WORDS.get(row["cause"], ""),
    )


def _refused(row: Row) -> Refused:
    amounts = _amounts_decoder.decode(row["amounts"])
    return Refused(
        book=row["book"],
        entry_key=row["entry_key"],
        contender=row["contender"],
        amounts=", ".join(f"{amount.resource} {amount.quantity}" for amount in amounts),
        refused_at_ms=row["refused_at_ms"],
        withdrawn_at_ms=row["withdrawn_at_ms"],
        whose=whose_words(row["namespace"], row["claim"], row["pod"], row["entry_key"]),
    )


def _verdicts(connection: Connection, asked: Where, notes: list[str]) -> Iterator[tuple[Row, Verdict]]:
    """Yield every change of a verdict in the shown time, and the first that is said in it."""
    columns = ledger_verdict.c
    rows = [
        dict(row)
        for row in connection.execute(
            select(columns.node, columns.verdict, columns.holds, columns.at_ms)
            .where(
                happened(ledger_verdict, asked.moment),
                columns.at_ms >= asked.from_ms,
                columns.at_ms <= asked.until_ms,
                *asked.narrowed(ledger_verdict),
            )
            .order_by(columns.at_ms.desc(), columns.node, columns.log_offset.desc())
            .limit(ROWS_MAX + 1)
        ).mappings()
    ]
    if len(rows) > ROWS_MAX:
        notes.append(f"Showing the newest {ROWS_MAX} ledger verdicts of more; {REMEDY}.")
    before: dict[str, tuple[str, str]] = {}
    for row in reversed(rows[:ROWS_MAX]):
        told = "; ".join(map(reason_words, _holds_decoder.decode(row["holds"])))
        # another driver or class is another version, and no other verdict
        if before.get(row["node"]) != (row["verdict"], told):
            before[row["node"]] = row["verdict"], told
            yield row, Verdict(row["verdict"], told, row["at_ms"])


def _balances(
    connection: Connection, asked: Where, notes: list[str], told: set[str]
) -> Iterator[tuple[Row, Balance]]:
    view = AUDIT_VIEWS["ledger-balances"]
    found = view.query(asked.moment, view.columns).subquery(view.sql_name)
    rows = [
        dict(row)
        for row in connection.execute(
            select(found)
            .where(*asked.narrowed(found))
            .order_by(
                case((found.c.node.in_(sorted(told)), 0), else_=1),
                *(found.c[column] for column in view.order),
            )
            .limit(_BALANCES_MAX + 1)
        ).mappings()
    ]
    if len(rows) > _BALANCES_MAX:
        notes.append(
            f"Showing {_BALANCES_MAX} balances of more, nodes with holds and differences first; {REMEDY}."
        )
    for row in sorted(rows[:_BALANCES_MAX], key=_beside):
        texts = {name: _amount(row, name) for name in _ACCOUNTS}
        supply, used = row["supply"], row["used"]
        yield (
            row,
            Balance(
                row["book"],
                row["resource"],
                **texts,
                used_per_mille=used * 1_000 // supply if supply > 0 else None,
            ),
        )


def _amount(row: Row, account: str) -> str:
    """Return an amount as a canonical quantity."""
    nano_per_unit = NANO_PER_MILLI if row["unit"] == "millicores" else NANO_PER_UNIT
    units, rest_nano = int(row[account]), int(row[f"{account}_rest_nano"])
    is_bytes = row["unit"] == "bytes" or (row["book"] not in NODE_BOOKS and units and units % _MEBI == 0)
    family: Format = "BinarySI" if is_bytes else "DecimalSI"
    return Quantity(units * nano_per_unit + rest_nano, family).canonical()


def _beside(row: Row) -> tuple[str, bool, str, str]:
    """Order balances so that the two books of a resource stand one below the other."""
    return row["node"], row["book"] not in NODE_BOOKS, row["resource"], row["book"]
