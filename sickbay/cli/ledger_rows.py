"""Rows of the ledger's views as values: amounts as canonical quantities, JSON columns decoded, all of one moment.

Shared by the commands that show, export and compare ledgers. It reads and reshapes; what a number means is the views' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec

from projections.audit import audit_view
from sickbay.decisions import Amount, Entry, Hold
from sickbay.ledger_export import NodeLedger, node_ledger
from sickbay.ledger_words import entry_words
from sickbay.quantity import NANO_PER_MILLI, NANO_PER_UNIT, Quantity

Row = dict[str, Any]

#: Accounts and sums of a balance, in the order in which they are shown.
AMOUNTS: Final = ("supply", "pods", "claims", "overhead", "adjustment", "used", "free")

_holds: Final = msgspec.json.Decoder(tuple[Hold, ...])
_names: Final = msgspec.json.Decoder(tuple[str, ...])
_amounts: Final = msgspec.json.Decoder(tuple[Amount, ...])


@dataclass(frozen=True, slots=True)
class Reading:
    """One snapshot of a store, looked at from one moment."""

    #: What ``Store.reading`` gives.
    connection: Any
    as_of_ms: int | None = None
    known_at: Mapping[int, int] | None = None

    def rows(
        self, view: str, where: Mapping[str, str | int] | None = None, *, limit: int | None = None
    ) -> Iterator[Row]:
        """Yield the rows of an audit view by column, narrowed to those whose columns equal ``where``."""
        found = audit_view(view)
        for row in found.rows(
            self.connection, as_of_ms=self.as_of_ms, known_at=self.known_at, where=where, limit=limit
        ):
            yield dict(zip(found.columns, row, strict=True))

    def verdict(self, node: str) -> Row | None:
        """Return the verdict on a node with holds and drivers decoded, ``None`` before there was one."""
        return next(self.verdicts({"node": node}), None)

    def verdicts(self, where: Mapping[str, str | int] | None = None) -> Iterator[Row]:
        """Yield the verdict on each node, with holds and drivers decoded."""
        for row in self.rows("ledger-verdicts", where):
            yield row | {"holds": _holds.decode(row["holds"]), "drivers": _names.decode(row["drivers"])}

    def entries(self, where: Mapping[str, str | int] | None = None) -> Iterator[tuple[str, Entry]]:
        """Yield ``(node, entry)`` of every entry that stands, node by node."""
        for row in self.rows("ledger-entries", where):
            fields = {name: row[name] for name in _ENTRY_FIELDS}
            yield (
                row["node"],
                Entry(
                    **fields,
                    key=row["entry_key"],
                    at_ms=row["posted_at_ms"],
                    amounts=_amounts.decode(row["amounts"]),
                    covered=_amounts.decode(row["covered"]),
                ),
            )

    def balances(
        self, view: str = "ledger-balances", where: Mapping[str, str | int] | None = None
    ) -> Iterator[Row]:
        """Yield balances, of a view of them, with every amount as a canonical quantity."""
        for row in self.rows(view, where):
            amounts = [name for name in AMOUNTS if name in row]
            words = ("node", "book", "resource", "numa")
            yield {name: row[name] for name in words if name in row} | {n: quantity(row, n) for n in amounts}

    def nodes(self) -> list[str]:
        """Return every node of which the ledger has anything."""
        found = {row["node"] for row in self.rows("ledger-verdicts")}
        return sorted(found | {row["node"] for row in self.rows("ledger-entries")})

    def ledgers(self, only: frozenset[str] = frozenset()) -> Iterator[NodeLedger]:
        """Yield the ledger of each node, of all of them or ``only`` of these, in no order."""
        for where in [{"node": node} for node in sorted(only)] or [{}]:
            verdicts = {row["node"]: row for row in self.verdicts(where)}
            for node, entries in groupby(self.entries(where), key=itemgetter(0)):
                yield _ledger(node, [entry for _, entry in entries], verdicts.pop(node, None))
            for node, verdict in verdicts.items():
                yield _ledger(node, [], verdict)


def _ledger(node: str, entries: list[Entry], verdict: Row | None) -> NodeLedger:
    if verdict is None:
        return node_ledger(node, entries)
    return node_ledger(
        node,
        entries,
        verdict=verdict["verdict"],
        node_class=verdict["node_class"],
        drivers=verdict["drivers"],
        holds=verdict["holds"],
    )


_ENTRY_FIELDS: Final = (
    "book", "account", "namespace", "pod", "pod_uid", "claim", "claim_uid", "device_id", "share_id", "mapping_version",
)  # fmt: skip


def quantity(row: Row, name: str) -> str:
    """Return an amount of a row, ``name`` units and ``name_rest_nano``, as a canonical quantity."""
    unit_nano = NANO_PER_MILLI if row["unit"] == "millicores" else NANO_PER_UNIT
    nano = row[name] * unit_nano + row[f"{name}_rest_nano"]
    return Quantity(nano, "BinarySI" if row["unit"] == "bytes" else "DecimalSI").canonical()


def amounts_text(amounts: tuple[Amount, ...] | str) -> str:
    """Return amounts, or the JSON text of them, in a few words; the NUMA node where one is known."""
    return entry_words(_amounts.decode(amounts) if isinstance(amounts, str) else amounts)
