"""``sickbay ledger``: what a node can still give, and why new claims wait, in words and figures.

It reads one snapshot and changes nothing. The words explain what ``docs/ledger.md`` defines; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
import msgspec

from projections.places import Place
from sickbay.cli import output
from sickbay.cli.ledger_rows import AMOUNTS, Reading, Row, amounts_text, quantity
from sickbay.cli.options import as_of_option, db_option, known_at, known_at_option, open_store
from sickbay.decisions import LEDGER_ALERTS, ledger_version
from sickbay.errors import NotFoundError
from sickbay.ledger_words import DRIFT_WORDS, HOLD_WORDS, amounts_words, hold_words, reason_words, whose_words

_BOOKS: Final = ("recorded", "derived")
_BALANCE_COLUMNS = ("book", "resource", *AMOUNTS)
_LIST_COLUMNS = (
    "node", "node_class", "verdict", "holds", "free_cpu", "free_cpu_derived", "free_memory", "free_memory_derived", "drifts",
    "refused",
)  # fmt: skip
_ENTRY_COLUMNS = (
    "book", "account", "key", "amounts", "covered", "at_ms", "namespace", "pod", "claim", "device_id", "share_id",
    "mapping_version", "pod_uid", "claim_uid",
)  # fmt: skip
_JOURNAL_COLUMNS = (
    "at_ms", "direction", "book", "account", "entry_key", "resource", "numa", "amount", "partition_number", "log_offset",
    "event_id",
)  # fmt: skip
_TABLE_ENTRY_COLUMNS, _TABLE_JOURNAL_COLUMNS = _ENTRY_COLUMNS[:6], _JOURNAL_COLUMNS[:8]
#: Nodes that an error names.
_NAMED_NODES = 10


@click.command()
@click.argument("node", required=False)
@db_option
@as_of_option
@known_at_option
@click.option("--numa", is_flag=True, help="Balances by NUMA node as well.")
@click.option("--devices", is_flag=True, help="The book of device capacity as well.")
@click.option(
    "--counters", is_flag=True, help="The book of counters that partitionable devices share as well."
)
@click.option("--entries", is_flag=True, help="The entries that stand.")
@click.option("--journal", is_flag=True, help="Every posting and reversal, oldest first.")
@output.output_option
def ledger(
    node: str | None,
    db: Place,
    as_of_ms: int | None,
    known: dict[int, int] | int | None,
    numa: bool,
    devices: bool,
    counters: bool,
    entries: bool,
    journal: bool,
    form: str,
) -> None:
    """Show what NODE has, what is spoken for, and whether new claims may come; without NODE, a line for each node.

    Two books are shown: what the scheduler recorded in the status of Pods, and what is derived from slices and claims; where
    they differ, the cause is named. --known-at may be a bare offset of the node's partition here.

    \b
    Examples:
      sickbay ledger
      sickbay ledger gpu-a1 --numa
      sickbay ledger gpu-a1 --as-of 2026-07-01T08:26:00Z --known-at 120
      sickbay ledger gpu-a1 --journal --output csv
    """
    if node is None and (numa or devices or counters or entries or journal):
        raise click.UsageError("--numa, --devices, --counters, --entries and --journal go with a NODE")
    if form == "csv" and entries and journal:
        raise click.UsageError("CSV has one table: ask for --entries or for --journal")
    with open_store(db) as store, store.reading() as connection:
        reading = Reading(connection, as_of_ms, known_at(store, known, node))
        if node is None:
            output.print_rows(_LIST_COLUMNS, _list(reading), form, empty="the ledger has no node")
            return
        found = _Node(reading, node)
        if form == "json":
            output.print_json(found.document(entries=entries, journal=journal))
        elif form == "csv":
            if entries:
                output.print_rows(_ENTRY_COLUMNS, found.entry_rows(), form)
            elif journal:
                output.print_rows(_JOURNAL_COLUMNS, found.journal_rows(), form)
            else:
                rows = [*found.balances, *(found.numa if numa else ())]
                columns = (*_BALANCE_COLUMNS[:2], *(("numa",) if numa else ()), *AMOUNTS)
                output.print_rows(columns, _picked(rows, columns), form)
        else:
            _tell(found, numa=numa, devices=devices, counters=counters)
            if entries:
                _section("entries that stand")
                output.print_rows(_TABLE_ENTRY_COLUMNS, (row[:6] for row in found.entry_rows()), form)
            if journal:
                _section("journal")
                output.print_rows(_TABLE_JOURNAL_COLUMNS, (row[:8] for row in found.journal_rows()), form)
            if as_of_ms is None and found.past_holds:
                output.line("")
                output.line(
                    f"past holds: {found.past_holds}; `sickbay audit ledger-holds --where node={node}` lists them"
                )


def _picked(rows: Iterable[Row], columns: Sequence[str]) -> list[list[Any]]:
    return [[row.get(column, "") for column in columns] for row in rows]


def _list(reading: Reading) -> list[list[Any]]:
    """Return a line for each node: verdict, what is free by both books, and how much is wrong with it."""
    free: dict[str, Row] = {}
    for row in reading.balances():
        if row["book"] in _BOOKS and row["resource"] in ("cpu", "memory"):
            suffix = "_derived" if row["book"] == "derived" else ""
            free.setdefault(row["node"], {})[f"free_{row['resource']}{suffix}"] = row["free"]
    verdicts = {row["node"]: row for row in reading.verdicts()}
    counts: dict[str, dict[str, int]] = {"drifts": {}, "refused": {}}
    for name, view, end in (
        ("drifts", "ledger-drift", "ended_at_ms"),
        ("refused", "ledger-duplicates", "withdrawn_at_ms"),
    ):
        for row in reading.rows(view):
            if row[end] is None:
                counts[name][row["node"]] = counts[name].get(row["node"], 0) + 1
    found = []
    for node in sorted(verdicts.keys() | free.keys()):
        verdict = verdicts.get(node, {"holds": ()})
        told = {
            "node": node,
            "node_class": verdict.get("node_class", ""),
            "verdict": verdict.get("verdict", ""),
        }
        told["holds"] = "; ".join(map(reason_words, verdict["holds"]))
        found.append(told | free.get(node, {}) | {name: count.get(node, 0) for name, count in counts.items()})
    return _picked(found, _LIST_COLUMNS)


class _Node:
    """Everything that the ledger has of one node at one moment."""

    def __init__(self, reading: Reading, node: str) -> None:
        self._reading = reading
        self.node = node
        only = {"node": node}
        self.verdict = reading.verdict(node)
        self._entries = [entry for _, entry in reading.entries(only)]
        if self.verdict is None and not self._entries:
            raise _unknown(reading, node)
        self.version = ledger_version(self._entries)
        balances = list(reading.balances(where=only))
        self.balances = sorted(
            (row for row in balances if row["book"] in _BOOKS),
            key=lambda row: (row["resource"], row["book"] != "recorded"),
        )
        self.devices = [row for row in balances if row["book"] == "devices"]
        self.counters = [row for row in balances if row["book"] == "counters"]
        self.numa = [{"book": "derived"} | row for row in reading.balances("ledger-numa", only)]
        self.drifts = [
            row | {name: msgspec.json.decode(row[name]) for name in ("recorded", "derived", "exact")}
            for row in reading.rows("ledger-drift", only)
            if row["ended_at_ms"] is None
        ]
        self.refused = [
            row for row in reading.rows("ledger-duplicates", only) if row["withdrawn_at_ms"] is None
        ]
        self.past_holds = sum(row["held_until_ms"] is not None for row in reading.rows("ledger-holds", only))
        self.alerts = [
            row
            for row in reading.rows("alerts", only)
            if row["alert"] in LEDGER_ALERTS and row["cleared_at_ms"] is None
        ]

    @property
    def moment(self) -> str:
        """The moment that was asked for, in words that follow others."""
        reading = self._reading
        as_of = "" if reading.as_of_ms is None else f", as of {output.shown('at_ms', reading.as_of_ms)}"
        if reading.known_at is None:
            return as_of
        positions = ",".join(f"{number}:{offset}" for number, offset in sorted(reading.known_at.items()))
        return f"{as_of}, as known at {positions}"

    def entry_rows(self) -> list[list[Any]]:
        """Return the entries that stand."""
        return _picked(
            (
                msgspec.structs.asdict(entry)
                | {"amounts": amounts_text(entry.amounts), "covered": amounts_text(entry.covered)}
                for entry in self._entries
            ),
            _ENTRY_COLUMNS,
        )

    def journal_rows(self) -> Iterable[list[Any]]:
        """Yield the lines of the journal."""
        for row in self._reading.rows("ledger-journal", {"node": self.node}):
            amount = quantity(row | {"amount": row["amount_units"]}, "amount")
            yield [(row | {"amount": amount})[column] for column in _JOURNAL_COLUMNS]

    def document(self, *, entries: bool, journal: bool) -> dict[str, Any]:
        """Return all of it for a program."""
        verdict = self.verdict or {}
        found: dict[str, Any] = {
            "node": self.node,
            "as_of": output.shown("at_ms", self._reading.as_of_ms),
            "known_at": self._reading.known_at,
            "node_class": verdict.get("node_class"),
            "drivers": verdict.get("drivers", ()),
            "ledger_version": self.version,
            "verdict": verdict.get("verdict"),
            "since": output.shown("at_ms", verdict.get("since_ms")),
            "reasons_since": output.shown("at_ms", verdict.get("reasons_since_ms")),
            "policy": verdict.get("policy"),
            "holds": [
                _printed(msgspec.structs.asdict(hold) | {"meaning": HOLD_WORDS[hold.reason]})
                for hold in verdict.get("holds", ())
            ],
            "balances": [_without_node(row) for row in self.balances],
            "numa": [_without_node(row) for row in self.numa],
            "devices": [_without_node(row) for row in self.devices],
            "counters": [_without_node(row) for row in self.counters],
            "drifts": [
                _printed(_without_node(row) | {"meaning": DRIFT_WORDS[row["cause"]]}) for row in self.drifts
            ],
            "refused": [
                _printed(_without_node(row) | {"amounts": msgspec.json.decode(row["amounts"])})
                for row in self.refused
            ],
            "alerts": [_printed(_without_node(row)) for row in self.alerts],
        }
        if entries:
            found["entries"] = [_printed(msgspec.structs.asdict(entry)) for entry in self._entries]
        if journal:
            found["journal"] = [
                _printed(dict(zip(_JOURNAL_COLUMNS, row, strict=True))) for row in self.journal_rows()
            ]
        return found


def _unknown(reading: Reading, node: str) -> NotFoundError:
    nodes = reading.nodes()
    others = f" and {len(nodes) - _NAMED_NODES} more" if len(nodes) > _NAMED_NODES else ""
    there = f"it has {', '.join(nodes[:_NAMED_NODES])}{others}" if nodes else "it has none"
    when = "" if reading.as_of_ms is None and reading.known_at is None else " at that moment"
    return NotFoundError(f"the ledger has no node {node!r}{when}; {there} (`sickbay ledger` lists them)")


def _without_node(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "node"}


def _printed(row: Row) -> Row:
    return {output.name_of(name): output.shown(name, value) for name, value in row.items()}


# --- for people --------------------------------------------------------------------------------------------------------------


def _section(title: str) -> None:
    output.line("")
    output.line(title)


def _tell(found: _Node, *, numa: bool, devices: bool, counters: bool) -> None:
    verdict = found.verdict
    if verdict is None:
        output.line(f"node {found.node}: no verdict, for neither its Node object nor a pool on it is known")
    else:
        drivers = ", ".join(verdict["drivers"]) or "no driver"
        since, reasons_since = (output.shown("at_ms", verdict[n]) for n in ("since_ms", "reasons_since_ms"))
        reasons = f", its reasons since {reasons_since}" if reasons_since != since else ""
        output.line(
            f"node {found.node}: {verdict['verdict']} since {since}{reasons} ({verdict['node_class']}; {drivers}; policy"
            f" {verdict['policy']})"
        )
        if verdict["holds"]:
            output.line("new claims wait, and what is bound stays:")
        for hold in verdict["holds"]:
            since = output.shown("at_ms", hold.since_ms)
            output.line(f"  {reason_words(hold)}, since {since}")
            output.line(f"    {hold_words(hold)}")
    output.line(f"ledger version {found.version}{found.moment}")
    _section("balances: recorded is what the scheduler wrote, derived what follows from slices and claims")
    _print_balances(found.balances, ("resource", "book", *AMOUNTS))
    if numa:
        _section("derived, by NUMA node")
        _print_balances(found.numa, ("resource", "numa", *AMOUNTS[:-1]))
    for wanted, title, rows in (
        (devices, "devices: capacity published and allocated", found.devices),
        (counters, "counters of partitionable devices", found.counters),
    ):
        if wanted:
            _section(title)
            _print_balances(rows, ("resource", "supply", "claims", "free"))
    _tell_drifts(found.drifts)
    _tell_refused(found.refused)
    if found.alerts:
        _section(f"alerts: {len(found.alerts)}")
    for row in found.alerts:
        since = output.shown("at_ms", row["raised_at_ms"])
        output.line(f"  {row['alert']} {row['about']}, since {since}: {row['reason']}")


def _print_balances(rows: Iterable[Row], columns: Sequence[str]) -> None:
    output.print_rows(columns, _picked(rows, columns), "table", empty="  nothing")


def _tell_drifts(drifts: Sequence[Row]) -> None:
    _section(f"differences between the two books: {len(drifts) or 'none'}")
    for row in drifts:
        since = output.shown("at_ms", row["found_at_ms"])
        predicted = ", predicted" if row["predicted"] else ""
        output.line(f"  {row['about']}: {row['cause']}{predicted}, since {since}")
        told = [f"{name} {amounts_words(row[name])}" for name in _BOOKS]
        if row["exact"] != row["derived"]:
            told.append(f"truly used {amounts_words(row['exact'])}")
        output.line(f"    {', '.join(told)}")
        detail = f" ({row['detail']})" if row["detail"] else ""
        output.line(f"    {DRIFT_WORDS[row['cause']]}{detail}")


def _tell_refused(refused: Sequence[Row]) -> None:
    _section(f"refused duplicates: {len(refused) or 'none'}")
    for row in refused:
        since = output.shown("at_ms", row["refused_at_ms"])
        whose = whose_words(row["namespace"], row["claim"], row["pod"], row["entry_key"])
        output.line(f"  {whose}: {amounts_text(row['amounts'])}, since {since}")
        output.line(
            f"    {row['book']}/{row['entry_key']} counts already; a second contribution is never added"
        )
