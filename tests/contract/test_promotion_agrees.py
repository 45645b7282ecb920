"""The command ``promotion`` and the view ``ledger-promotion`` use the same words, so they say the same of the same log.

The log has one driver, so that what counts once for the class counts once for the driver; what must be told apart happens in it:
a driver that came back and one that did not, a gate that two nodes heard of, a hold that lasts, and a node that changed its class.
"""

from __future__ import annotations

import pytest
from ledger_scenarios import GPU, MINUTE, at, tell
from log_builder import History, drift, entry, posted, verdict

from projections.audit import AUDIT_VIEWS
from sickbay.cli.ledger_rows import Reading
from sickbay.cli.promoting import class_reports
from sickbay.decisions import DriftCleared, DriftFound, Hold
from sickbay.policy import LedgerPolicy

#: A gate that is closed for the cluster and one for a node, both at minute 4.
CLUSTER = Hold(reason="claims_gate_closed", scope="cluster", since_ms=at(4))
NODE = Hold(reason="claims_gate_closed", scope="node", since_ms=at(4))


def rebuilding(node, minute):
    return Hold(reason="driver_rebuilding", scope=f"{GPU}/{node}", since_ms=at(minute))


def say(log, node, minute, *holds, node_class="canary", drivers=(GPU,)):
    tell(log, node, at(minute), verdict(node, at(minute), *holds, node_class=node_class, drivers=drivers))


def went_through():
    """``back`` and ``gone`` are canaries whose driver goes at minute 1; ``moved`` is one since minute 8; ``plain`` never."""
    log = History(4)
    for node in ("back", "gone", "moved", "plain"):
        said = verdict(node, 0, node_class="canary" if node in {"back", "gone"} else "stable", drivers=(GPU,))
        supply = posted(node, entry("common", f"node/{node}", "supply", 0, ("cpu", "8")))
        tell(log, node, 0, supply, said)
    say(log, "back", 1, rebuilding("back", 1), drivers=())
    say(log, "back", 3)
    say(log, "gone", 1, rebuilding("gone", 1), drivers=())
    say(log, "gone", 2, drivers=())
    for node, holds in (("back", (CLUSTER, NODE)), ("gone", (CLUSTER,)), ("moved", (CLUSTER,))):
        node_class, drivers = "stable" if node == "moved" else "canary", () if node == "gone" else (GPU,)
        say(log, node, 4, *holds, node_class=node_class, drivers=drivers)
        say(log, node, 5, node_class=node_class, drivers=drivers)
    say(log, "moved", 6, rebuilding("moved", 6), node_class="stable", drivers=())
    say(log, "moved", 7, node_class="stable")
    say(log, "moved", 8)
    found = drift("team", "claim", "unexplained")
    tell(log, "moved", at(9), DriftFound(node="moved", at_ms=at(9), drift=found))
    tell(log, "moved", at(10), DriftCleared(node="moved", at_ms=at(10), drift=found))
    say(log, "back", 11, Hold(reason="watch_gap", scope="pods", since_ms=at(11)))
    return log.records


@pytest.mark.parametrize(
    ("minute", "canary", "stable"),
    [
        # class, nodes with the driver, drills: gates of the cluster and of back, and back's driver; longest hold in minutes
        (5, (1, 3, 2), (2, 1, 1)),
        # moved has brought its gate, which is that of the cluster, and its driver's restart with it
        (11, (2, 4, 2), (1, 0, None)),
    ],
)
def test_the_command_and_the_view_agree(open_store, minute, canary, stable):
    """On nodes of each driver, drills, holds that ended and how long they lasted, and the newest unexplained difference."""
    store, view = open_store(), AUDIT_VIEWS["ledger-promotion"]
    store.write(went_through())
    with store.reading() as connection:
        asked = view.rows(connection, as_of_ms=at(minute))
        rows = {row["node_class"]: row for row in (dict(zip(view.columns, r, strict=True)) for r in asked)}
        reading = Reading(connection, at(minute))
        reports = class_reports(reading, LedgerPolicy(), at(minute), ("canary", "stable"))
    for report, (nodes, drills, longest) in zip(reports, (canary, stable), strict=True):
        row = rows[report.node_class]
        longest_ms = None if longest is None else longest * MINUTE
        assert (nodes, drills, longest_ms) == (row["nodes"], row["drills_done"], row["holds_max_ms"])
        assert (nodes, drills) == (report.drivers[GPU], report.drills)
        assert (row["holds_ended"], row["holds_max_ms"] or 0) == (report.holds, report.hold_max_ms)
        assert (row["holds_p50_ms"] or 0, row["holds_p90_ms"] or 0) == (
            report.hold_p50_ms,
            report.hold_p90_ms,
        )
        assert (row["unexplained_ended_ms"] or 0) == report.clean_since_ms


def test_a_driver_that_went_away_for_good_was_not_rebuilt(open_store):
    """Its hold ended as that of the driver that came back did, and is no drill; what lasts is none yet."""
    store, view = open_store(), AUDIT_VIEWS["ledger-holds"]
    store.write(went_through())
    with store.reading() as connection:
        found = {
            (row["node"], row["reason"], row["duration_ms"], row["drill"])
            for row in (dict(zip(view.columns, r, strict=True)) for r in view.rows(connection))
        }
        assert found == {
            ("back", "driver_rebuilding", 2 * MINUTE, 1),
            ("gone", "driver_rebuilding", MINUTE, 0),
            ("back", "watch_gap", None, 0),
            ("moved", "driver_rebuilding", MINUTE, 1),
        } | {(node, "claims_gate_closed", MINUTE, 1) for node in ("back", "gone", "moved")}
        columns = ", ".join(view.columns)
        answered = connection.exec_driver_sql(f"SELECT {columns} FROM {view.sql_name}").all()
        assert sorted(map(repr, view.rows(connection))) == sorted(repr(tuple(row)) for row in answered)
