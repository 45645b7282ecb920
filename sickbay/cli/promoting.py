"""``sickbay promotion``: whether a rollout may go on from one class of nodes, by what the ledgers went through.

It reads one snapshot and hands the figures to ``sickbay.promotion``; whether to promote is a person's decision.
"""

from __future__ import annotations

from typing import Any, Final

import click

from projections.engine import Store
from projections.places import Place
from sickbay.cli import output
from sickbay.cli.ledger_rows import Reading
from sickbay.cli.options import as_of_option, db_option, open_store
from sickbay.codec import open_envelope
from sickbay.errors import NotFoundError
from sickbay.facts import PolicyChanged
from sickbay.policy import LedgerPolicy, policy_from_document
from sickbay.promotion import ClassReport, HoldRun, NodeStanding, Unexplained
from sickbay.promotion import promotion as report_on

_CLASSES: Final = ("canary", "stable")
_COLUMNS = ("node_class", "criterion", "met", "found", "wanted", "detail")
_NODES_SHOWN: Final = 20


@click.command()
@click.option("--class", "node_class", type=click.Choice(_CLASSES), help="Only this class of nodes.")
@as_of_option
@db_option
@output.output_option
def promotion(node_class: str | None, as_of_ms: int | None, db: Place, form: str) -> None:
    """Report whether the rollout may go on from a class of nodes: each criterion of the policy in force, with its figures.

    Nodes, drivers and on how many nodes each is, rebuilds gone through, the time since an unexplained difference, how long
    holds lasted, refused duplicates. The exit code is 0, ready or not: `verdict` in the JSON is for programs.

    \b
    Examples:
      sickbay promotion
      sickbay promotion --class canary --as-of 2026-07-01T08:50:00Z --output json
    """
    with open_store(db) as store:
        # Time that nobody observed proves nothing: a window that lasts after the log ended does not count as clean.
        now_ms = max((position.newest_ms for position in store.positions().values()), default=0)
        if as_of_ms is not None:
            now_ms = min(now_ms, as_of_ms)
        policy = _policy_in_force(store, now_ms)
        with store.reading() as connection:
            reading = Reading(connection, as_of_ms)
            reports = class_reports(reading, policy, now_ms, (node_class,) if node_class else _CLASSES)
    if form == "json":
        for report in reports:
            output.print_json(_document(report))
    elif form == "csv":
        rows = [
            (r.node_class, c.name, int(c.met), c.found, c.wanted, c.detail)
            for r in reports
            for c in r.criteria
        ]
        output.print_rows(_COLUMNS, rows, form)
    else:
        for number, report in enumerate(reports):
            if number:
                output.line("")
            _tell(report)


def _policy_in_force(store: Store, now_ms: int) -> LedgerPolicy:
    """Return the ledger's part of the newest policy in the log up to a time.

    Every partition hears of a policy, so the shortest one tells. Raises NotFoundError when there was none yet.
    """
    newest: PolicyChanged | None = None
    positions = store.positions()
    for partition in sorted(positions, key=lambda number: positions[number].next_offset)[:1]:
        for record in store.read(partition):
            if record.envelope.kind == PolicyChanged.KIND and record.envelope.at_ms <= now_ms:
                event = open_envelope(record.envelope)
                assert isinstance(event, PolicyChanged), "the kind says which event it is"
                if newest is None or event.observed_at_ms >= newest.observed_at_ms:
                    newest = event
    if newest is None:
        raise NotFoundError("the log holds no policy at that time; give a later --as-of, or leave it out")
    return policy_from_document(newest.document).ledger


def class_reports(
    reading: Reading, policy: LedgerPolicy, now_ms: int, classes: tuple[str, ...]
) -> list[ClassReport]:
    """Return the report on each class of nodes, from what one snapshot says of one moment."""
    standing = [
        NodeStanding(
            row["node"], row["node_class"], row["drivers"], _known_since_ms(reading, row["node"], now_ms)
        )
        for row in reading.verdicts()
    ]
    holds = [
        HoldRun(
            row["node"],
            row["reason"],
            row["scope"],
            row["held_since_ms"],
            row["held_until_ms"],
            row["drill"] == 1,
        )
        for row in reading.rows("ledger-holds")
    ]
    unexplained = [
        Unexplained(row["node"], row["ended_at_ms"]) for row in reading.rows("ledger-drift", {"explained": 0})
    ]
    refused = [row["node"] for row in reading.rows("ledger-duplicates") if row["withdrawn_at_ms"] is None]
    return [report_on(name, standing, holds, unexplained, refused, policy, now_ms) for name in classes]


def _known_since_ms(reading: Reading, node: str, now_ms: int) -> int:
    """Return since when the ledger of a node was kept: the time of the first line of its journal."""
    line = next(reading.rows("ledger-journal", {"node": node}, limit=1), None)
    return now_ms if line is None else int(line["at_ms"])


def _document(report: ClassReport) -> dict[str, Any]:
    found = report._asdict() | {"verdict": report.verdict}
    found["criteria"] = [criterion._asdict() for criterion in report.criteria]
    return {output.name_of(name): output.shown(name, value) for name, value in found.items()}


def _tell(report: ClassReport) -> None:
    output.line(f"class {report.node_class}: {report.verdict}")
    shown = ", ".join(report.nodes[:_NODES_SHOWN])
    more = f" and {len(report.nodes) - _NODES_SHOWN} more" if len(report.nodes) > _NODES_SHOWN else ""
    output.line(f"  {len(report.nodes)} nodes{f': {shown}{more}' if shown else ''}")
    for driver, nodes in report.drivers.items():
        output.line(f"  driver {driver} on {nodes} of them")
    lasted = (
        f": half within {report.hold_p50_ms} ms, nine in ten within {report.hold_p90_ms} ms, all within"
        f" {report.hold_max_ms} ms"
    )
    output.line(f"  {report.holds} holds ended{lasted if report.holds else ''}")
    if report.holds_overdue:
        output.line(f"  {report.holds_overdue} holds last longer than the goal already")
    output.line(f"  {report.refused_duplicates} refused duplicates")
    for criterion in report.criteria:
        met = "met    " if criterion.met else "not met"
        output.line(f"  {met}  {criterion.name}: {criterion.found} of {criterion.wanted}; {criterion.detail}")
