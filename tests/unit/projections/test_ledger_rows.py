"""What the decisions of the ledger become in rows: exact amounts, states, and the few things that are carried on."""

from __future__ import annotations

import msgspec
import pytest
from alembic import command
from ledger_scenarios import GPU, SIDE, at, side_entry, tell
from log_builder import History, amounts, entry, posted, reversed_at, verdict
from sqlalchemy import select

from projections import schema
from projections.audit import AUDIT_VIEWS
from projections.custody import TABLES as CUSTODY_TABLES
from projections.database import migrating, open_engine
from projections.engine import Store
from projections.ledger import TABLES, UNITS_MAX, WANTED, amount, driver_of
from projections.ledger_tables import (
    ledger_driver,
    ledger_entry,
    ledger_hold,
    ledger_line,
    ledger_refusal,
    ledger_verdict,
)
from projections.log import initialise
from projections.places import place_of
from sickbay.decisions import (
    DECISIONS,
    AlertCleared,
    DuplicateRefused,
    DuplicateWithdrawn,
    Hold,
    LedgerDecision,
)
from sickbay.quantity import parse


@pytest.mark.parametrize(
    ("book", "resource", "quantity", "expected"),
    [
        ("derived", "cpu", "1500500u", (1500, 500_000)),
        ("devices", "cpu", "1500500u", (1, 500_500_000)),
        ("recorded", "memory", "2Gi", (2**31, 0)),
        ("common", "memory", "1500m", (1, 500_000_000)),
        ("counters", "d/p:s/c", "1n", (0, 1)),
        ("common", "cpu", "0", (0, 0)),
    ],
)
def test_an_amount_is_whole_units_and_a_rest(book, resource, quantity, expected):
    """Millicores for cpu of a node's books, whole units for the rest; a reversal adds up with it to nothing."""
    unit = 10**6 if resource == "cpu" and book != "devices" else 10**9
    units, rest_nano = amount(book, resource, quantity, 1)
    assert expected == (units, rest_nano)
    assert parse(quantity).nano == units * unit + rest_nano
    back_units, back_rest_nano = amount(book, resource, quantity, -1)
    assert 0 <= back_rest_nano < unit
    assert 0 == (units + back_units) * unit + rest_nano + back_rest_nano


@pytest.mark.parametrize(("resource", "quantity"), [("memory", "8Ei"), ("memory", "1e30"), ("cpu", "1e17")])
def test_an_amount_that_no_row_holds_stands_as_the_largest(resource, quantity):
    """It is cut off the same way when it is taken back, and below nothing too."""
    assert (UNITS_MAX, 0) == amount("common", resource, quantity, 1)
    assert (-UNITS_MAX, 0) == amount("common", resource, quantity, -1)
    assert (-UNITS_MAX, 0) == amount("common", resource, f"-{quantity}", 1)
    assert UNITS_MAX < 2**63


@pytest.mark.parametrize(
    ("reason", "scope", "driver"),
    [
        ("driver_rebuilding", f"{GPU}/pool", GPU),
        ("pool_incomplete", f"{GPU}/pool", GPU),
        ("slice_stale", f"{GPU}/pool", GPU),
        ("slice_stale", "", ""),
        ("generation_back", f"{GPU}/pool", GPU),
        ("claims_gate_closed", f"driver:{GPU}", GPU),
        ("claims_gate_closed", "cluster", ""),
        ("claims_gate_closed", "node", ""),
        ("mapping_missing", "namespace/claim", ""),
        ("watch_gap", "pods", ""),
    ],
)
def test_a_hold_is_a_drivers_when_its_scope_says_so(reason, scope, driver):
    """A pool's is its driver's, a gate's that of the driver that it names, and a claim's nobody's."""
    assert driver == driver_of(Hold(reason=reason, scope=scope, since_ms=0))


def test_every_decision_of_the_ledger_is_wanted_and_nothing_else():
    """A kind that is added is projected or this fails; the two sets of read models share no table."""
    assert {kind.KIND for kind in DECISIONS if issubclass(kind, LedgerDecision)} == WANTED
    assert AlertCleared.KIND not in WANTED
    assert set() == set(TABLES) & set(CUSTODY_TABLES)


def rows(store, table, *names):
    with store.reading() as connection:
        query = select(*(table.c[name] for name in names)).order_by(table.c.log_offset)
        return [tuple(row) for row in connection.execute(query)]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a log into a new store, record by record, and gives the store."""
    stores = []

    def write(log):
        store = Store.open(tmp_path / "ledger.db", create=True, partitions=1)
        stores.append(store)
        for record in log.records:
            store.write([record])
        return store

    yield write
    for store in stores:
        store.close()


def test_an_entry_is_a_line_for_each_amount_and_a_reversal_takes_them_back(written):
    """Covered amounts are named and not added; what is taken back before it was there is taken back when it was."""
    log = History(1)
    made = entry(
        "derived",
        "claim/c",
        "claims",
        at(2),
        ("cpu", "500m", "1"),
        ("memory", "1Ki"),
        covered=amounts(("cpu", "2")),
    )
    tell(log, "n", at(2), posted("n", made))
    tell(log, "n", at(3), reversed_at("n", at(1), made))
    store = written(log)
    names = ("line_number", "direction", "resource", "numa", "amount_units", "at_ms")
    assert [
        (0, "posted", "cpu", "1", 500, at(2)),
        (1, "posted", "memory", "unknown", 1024, at(2)),
        (0, "reversed", "cpu", "1", -500, at(2)),
        (1, "reversed", "memory", "unknown", -1024, at(2)),
    ] == rows(store, ledger_line, *names)
    names = ("state", "posted_at_ms", "reversed_at_ms", "superseded_offset", "covered")
    covered = '[{"resource":"cpu","numa":"unknown","quantity":"2"}]'
    assert [("posted", at(2), None, 3, covered), ("reversed", at(2), at(2), None, covered)] == rows(
        store, ledger_entry, *names
    )


def test_a_verdict_that_says_nothing_new_of_a_hold_or_a_driver_adds_no_version_of_it(written):
    """Holds and drivers are versions of their own; one reason that is named twice is one hold, its earlier beginning."""
    log, gap = History(1), Hold(reason="watch_gap", scope="pods", since_ms=1)
    again = Hold(reason="watch_gap", scope="pods", since_ms=2)
    tell(log, "n", at(1), verdict("n", 1, gap, again, drivers=(GPU,)))
    tell(log, "n", at(2), verdict("n", 2, gap, again, drivers=(GPU,)))
    tell(log, "n", at(3), verdict("n", 3))
    store = written(log)
    assert [("hold",), ("hold",), ("open",)] == rows(store, ledger_verdict, "verdict")
    assert [(1, None), (1, 3)] == rows(store, ledger_hold, "held_since_ms", "held_until_ms")
    assert [(GPU, 1), (GPU, 0)] == rows(store, ledger_driver, "driver", "published")


def test_a_verdict_is_what_it_is_since_it_changed_and_its_reasons_since_they_did(written):
    """A second reason changes the reasons and not the verdict; a driver more, or other words of a reason, change neither."""
    log, gap = History(1), Hold(reason="watch_gap", scope="pods", since_ms=1)
    stale = Hold(reason="slice_stale", since_ms=3)
    for at_ms, holds, drivers in (
        (1, (gap,), ()),
        (2, (gap,), (GPU,)),
        (3, (gap, stale), (GPU,)),
        (4, (gap, msgspec.structs.replace(stale, detail="still")), (GPU,)),
        (5, (), (GPU,)),
        (6, (stale,), (GPU,)),
    ):
        tell(log, "n", at(at_ms), verdict("n", at_ms, *holds, drivers=drivers))
    assert [(1, 1), (1, 1), (1, 3), (1, 3), (5, 5), (6, 6)] == rows(
        written(log), ledger_verdict, "since_ms", "reasons_since_ms"
    )


def test_a_hold_never_ends_before_it_began(written):
    """A verdict that comes late ends it at its beginning."""
    log = History(1)
    tell(log, "n", at(1), verdict("n", at(1), Hold(reason="watch_gap", scope="pods", since_ms=at(1))))
    tell(log, "n", at(2), verdict("n", 5))
    assert [(None,), (at(1),)] == rows(written(log), ledger_hold, "held_until_ms")


def test_a_refusal_that_comes_back_is_another_run(written):
    """Told again it is the same; after it was withdrawn it is the next, and a withdrawal of nothing is one too."""
    log, refused = History(1), side_entry(0)
    kinds = (DuplicateRefused, DuplicateRefused, DuplicateWithdrawn, DuplicateRefused)
    for number, kind in enumerate(kinds, 1):
        tell(log, "n", at(number), kind(node="n", at_ms=number, entry=refused, contender="x"))
    tell(log, "n", at(5), DuplicateWithdrawn(node="n", at_ms=5, entry=refused, contender="y"))
    store = written(log)
    names = ("contender", "run", "refused_at_ms", "withdrawn_at_ms", "pod_uid")
    uid = SIDE["pod_uid"]
    assert [
        ("x", 1, 1, None, uid),
        ("x", 1, 1, None, uid),
        ("x", 1, 1, 3, uid),
        ("x", 2, 4, None, uid),
        ("y", 1, 5, 5, uid),
    ] == rows(store, ledger_refusal, *names)


def test_a_store_of_the_revision_before_answers_for_the_ledger_once_it_is_migrated(tmp_path):
    """It holds nothing of it, can be opened for reading only, and is found whole."""
    path = tmp_path / "before.db"
    engine = open_engine(place_of(path), create=True)
    with migrating(engine, "before") as connection:
        configuration = schema.alembic_configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "0001")
        initialise(connection, "embedded", 1, ["custody"])
    engine.dispose()
    assert "0001" == schema.upgrade(path)
    with Store.open(path, read_only=True) as store:
        assert {table.name for table in TABLES} <= store.digests().keys()
        with store.reading() as connection:
            assert [] == list(AUDIT_VIEWS["ledger-balances"].rows(connection))


def test_text_that_no_database_stores_is_shown(written):
    """U+0000 in a name stands as its picture in every column, the node's included."""
    log = History(1)
    tell(log, "n", at(1), posted("n", entry("common", "pod/\0", "pods", 1, ("cpu", "1"), pod="a\0b")))
    assert [("pod/\u2400", "a\u2400b")] == rows(written(log), ledger_entry, "entry_key", "pod")
