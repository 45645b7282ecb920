"""The ledger's views, with answers that follow from what ``ledger_scenarios`` says happened, and those that the document shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ledger_scenarios import GPU, MINUTE, add_ledger, at, claim_entry, tell
from log_builder import History, drift, entry, posted, verdict
from sqlalchemy import func, select

from projections.audit import AUDIT_VIEWS
from projections.engine import Store
from projections.ledger_tables import ledger_line
from projections.temporal import Moment, happened
from sickbay.decisions import DriftCleared, DriftFound, Hold

DOCUMENT = Path(__file__).parents[3] / "docs" / "audit-views.md"
EXAMPLE = re.compile(r"^```sql\n(.*?)^```\n\n((?:^\|[^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def ask(connection, name, *columns, **moment):
    view = AUDIT_VIEWS[name]
    rows = [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection, **moment)]
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes a log into a new store of one partition and reads it; the store is closed at the end."""
    stores = []

    def write(log):
        store = Store.open(tmp_path / f"{len(stores)}.db", create=True, partitions=1)
        stores.append(store)
        store.write(log.records)
        return store.reading()

    yield write
    for store in stores:
        store.close()


@pytest.fixture
def small_ledger(tmp_path):
    """One snapshot of a store that holds the scenario and nothing else."""
    log = History(4)
    add_ledger(log)
    with Store.open(tmp_path / "small.db", create=True, partitions=4) as store:
        store.write(log.records)
        with store.reading() as connection:
            yield connection


def shown(value):
    if value is None:
        return "NULL"
    return f"`{value}`" if isinstance(value, str) else str(value)


def test_the_document_shows_the_answers_of_the_small_ledger(small_ledger):
    """Each example of a view of the ledger is followed by what it answers, and every such view has one."""
    _, text = DOCUMENT.read_text(encoding="utf-8").split("## The ledger's views")
    examples = EXAMPLE.findall(text)
    assert text.count("```sql") == len(examples)
    answered = set()
    for query, table in examples:
        result = small_ledger.exec_driver_sql(query)
        head, _, *rows = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in table.splitlines())
        assert [f"`{name}`" for name in list(result.keys())] == head, query
        assert [[shown(value) for value in row] for row in result] == rows, query
        answered |= set(re.findall(r"\baudit_\w+", query))
    documented = {AUDIT_VIEWS[name].sql_name for name in re.findall(r"^## `([a-z-]+)`$", text, re.MULTILINE)}
    assert documented == answered
    assert 13 == len(documented)


def test_balances_as_of_an_instant_and_as_known_then(connection, history):
    """At minute 3 the Pod counts that had begun at minute 2, as was told after minute 8; nobody knew before."""
    where = {"node": "node-d", "book": "recorded", "resource": "cpu"}
    columns = ("supply", "pods", "claims", "used", "free")
    moment = {"as_of_ms": at(3), "where": where}
    assert [(8000, 750, 1501, 2251, 5749)] == ask(connection, "ledger-balances", *columns, **moment)
    corrected = next(r for r in history.records if r.envelope.kind == "drift_cleared")
    moment["known_at"] = {corrected.partition: corrected.offset}
    assert [(8000, 500, 1501, 2001, 5999)] == ask(connection, "ledger-balances", *columns, **moment)


def test_over_commitment_is_below_nothing_and_exact(opened):
    """Two and a half of one unit is free -1.5, which is -2 units and half a unit above."""
    log = History(1)
    supply = entry("counters", "counters/d/p", "supply", 0, ("d/p:set/slices", "1"))
    tell(log, "n", 0, posted("n", supply))
    tell(log, "n", at(1), posted("n", entry("counters", "use/x", "claims", 0, ("d/p:set/slices", "2500m"))))
    with opened(log) as connection:
        assert [(2, 500_000_000, -2, 500_000_000)] == ask(
            connection, "ledger-balances", "used", "used_rest_nano", "free", "free_rest_nano"
        )


def test_what_nobody_has_takes_the_view_from_nobody(opened):
    """Pods that ask for more than 64 bits can add up to, twenty of them, stand as 2^60, and what they took is given back exactly."""
    log, huge, pods = History(1), ("1000Pi", "9Ei"), []
    for number in range(20):
        pods.append(
            entry("common", f"pod/{number}", "pods", number, ("memory", huge[number % 2]), ("cpu", "8E"))
        )
        tell(log, "n", number * MINUTE, posted("n", pods[-1]))
    tell(log, "n", 20 * MINUTE, posted("n", entry("common", "pod/x", "pods", 20, ("memory", "5"))))
    with opened(log) as connection:
        where = {"book": "recorded"}
        assert [("cpu", 2**60, -(2**60)), ("memory", 2**60, -(2**60))] == ask(
            connection, "ledger-balances", "resource", "pods", "free", where=where
        )
        assert [(1000 * 2**50,)] == ask(
            connection, "ledger-balances", "pods", as_of_ms=0, where=where | {"resource": "memory"}
        )


def test_a_claim_holds_everywhere_when_one_node_is_on_hold(connection):
    """Before minute 7 both nodes of the claim were open; at minute 4 the other one was on hold."""
    columns = ("nodes", "nodes_on_hold", "held_by", "verdict")
    assert [(2, 0, None, "open")] == ask(connection, "ledger-claims", *columns, as_of_ms=at(6))
    assert [(2, 1, "node-d", "hold")] == ask(connection, "ledger-claims", *columns, as_of_ms=at(4))
    assert [(2, 1, "node-e", "hold")] == ask(connection, "ledger-claims", *columns)


def test_a_claim_on_a_node_without_a_verdict_is_unknown(opened):
    """What was never said is not open."""
    log = History(1)
    tell(log, "n", 0, posted("n", claim_entry("n", 0, "0")))
    tell(log, "m", 0, posted("m", claim_entry("m", 0, "0")), verdict("m", 0))
    with opened(log) as connection:
        columns = ("nodes", "nodes_on_hold", "held_by", "verdict")
        assert [(2, 0, None, "unknown")] == ask(connection, "ledger-claims", *columns)


def test_a_reason_that_comes_back_is_another_run(opened):
    """Held from 1 to 3 and since 5; that it began at 4 is learned at 6 and is the same run. As of 2 the first one lasts."""
    log = History(1)

    def held(since_ms):
        return Hold(reason="watch_gap", scope="pods", since_ms=since_ms)

    for at_ms, holds in ((1, [held(1)]), (3, []), (5, [held(5)]), (6, [held(4)])):
        tell(log, "n", at_ms * MINUTE, verdict("n", at_ms, *holds))
    columns = ("run", "held_since_ms", "held_until_ms", "duration_ms")
    with opened(log) as connection:
        assert [(1, 1, 3, 2), (2, 4, None, None)] == ask(connection, "ledger-holds", *columns)
        assert [(1, 1, 3, 2), (2, 5, None, None)] == ask(connection, "ledger-holds", *columns, as_of_ms=5)
        assert [(1, 1, None, None)] == ask(connection, "ledger-holds", *columns, as_of_ms=2)


def test_a_drift_ends_with_its_cause(opened):
    """Unexplained from 1, explained from 4, gone at 6, and back at 8."""
    log = History(1)
    about = [drift("a", "c", cause) for cause in ("unexplained", "not_counted")]
    for at_ms, kind, which in (
        (1, DriftFound, 0),
        (2, DriftFound, 0),
        (4, DriftFound, 1),
        (6, DriftCleared, 1),
        (8, DriftFound, 0),
    ):
        tell(log, "n", at_ms * MINUTE, kind(node="n", at_ms=at_ms, drift=about[which]))
    columns = ("run", "cause", "explained", "found_at_ms", "ended_at_ms")
    with opened(log) as connection:
        assert [
            (1, "unexplained", 0, 1, 4),
            (2, "not_counted", 1, 4, 6),
            (3, "unexplained", 0, 8, None),
        ] == ask(connection, "ledger-drift", *columns)
        assert [(1, "unexplained", 0, 1, None)] == ask(connection, "ledger-drift", *columns, as_of_ms=3)


def test_a_promotion_counts_by_class_and_driver(opened):
    """Ten drills of 1 to 10 ms have the nearest ranks 5 and 9; another driver's hold does not count, a claim's does."""
    log, nic, clock = History(1), "nic.example.com", iter(range(1, 1_000))
    fields = {"node_class": "canary", "drivers": (GPU, nic)}

    def say(at_ms, *holds):
        tell(log, "n", next(clock) * MINUTE, verdict("n", at_ms, *holds, **fields))

    for lasted_ms in range(1, 11):
        say(lasted_ms * 100, Hold(reason="driver_rebuilding", scope=f"{GPU}/pool", since_ms=lasted_ms * 100))
        say(lasted_ms * 100 + lasted_ms)
    say(2_000, Hold(reason="drift", scope="a/c", since_ms=2_000))
    say(2_100)
    say(2_200, Hold(reason="claims_gate_closed", scope=f"driver:{nic}", since_ms=2_200))
    say(2_207)
    tell(
        log,
        "n",
        next(clock) * MINUTE,
        DriftFound(node="n", at_ms=3_000, drift=drift("a", "c", "unexplained")),
    )
    tell(
        log,
        "n",
        next(clock) * MINUTE,
        DriftCleared(node="n", at_ms=3_500, drift=drift("a", "c", "unexplained")),
    )
    tell(
        log,
        "m",
        0,
        verdict("m", 0, Hold(reason="watch_gap", since_ms=0), node_class="canary", drivers=(GPU,)),
    )
    with opened(log) as connection:
        assert [
            ("canary", GPU, 2, 1, 10, 1, 0, 3_500, 11, 6, 10, 100),
            ("canary", nic, 1, 1, 1, 1, 0, 3_500, 2, 7, 100, 100),
        ] == list(AUDIT_VIEWS["ledger-promotion"].rows(connection))


def is_from_index_alone(connection, query, prefix):
    """Whether one step reads the lines, from the index alone; on SQLite, whether it seeks by the prefix too."""
    if connection.dialect.name == "sqlite":
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")
        (used,) = [step for *_, step in plan if re.match(r"(SCAN|SEARCH) (ledger_)?line\b", step)]
        return f"USING COVERING INDEX ix_ledger_line_balance ({prefix}" in used
    # a small table is read whole unless that is forbidden
    for setting in ("enable_seqscan", "enable_bitmapscan"):
        connection.exec_driver_sql(f"SET LOCAL {setting} = off")
    (used,) = [
        step for (step,) in connection.exec_driver_sql(f"EXPLAIN {query}") if " on ledger_line" in step
    ]
    return "Index Only Scan using ix_ledger_line_balance" in used


def spelled(connection, query):
    return query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})


@pytest.mark.parametrize("moment", [Moment(), Moment(180_000), Moment(180_000, {0: 9, 1: 20})])
def test_balances_of_a_node_come_from_the_index_alone(connection, moment):
    """A sum of one account, and the views of one node, now and at any moment, never touch the table."""
    line = ledger_line.c
    total = select(func.sum(line.amount_units), func.sum(line.amount_rest_nano)).where(
        happened(ledger_line, moment),
        line.node == "node-d",
        line.book == "common",
        line.resource == "cpu",
        line.numa == "unknown",
        line.account == "pods",
    )
    prefix = "generation=? AND node=? AND book=? AND resource=? AND numa=? AND account=?"
    assert is_from_index_alone(connection, spelled(connection, total), prefix)
    for name in ("ledger-balances", "ledger-numa"):
        view = AUDIT_VIEWS[name]
        found = view.query(moment, view.columns).subquery()
        query = spelled(connection, select(found).where(found.c.node == "node-d"))
        assert is_from_index_alone(connection, query, "generation=? AND node=? AND book=?")


@pytest.mark.parametrize("name", ["audit_ledger_balances", "audit_ledger_numa"])
def test_the_sql_views_of_a_node_come_from_the_index_alone(connection, name):
    """The same holds for what SQL users ask."""
    query = f"SELECT * FROM {name} WHERE node = 'node-d'"
    assert is_from_index_alone(connection, query, "generation=? AND node=? AND book=?")
