"""A store of the revision before the ledger, on each database: it is brought to the newest with its log, and says what it lacks."""

from __future__ import annotations

import pytest
from alembic import command
from click.testing import CliRunner
from databases import DATABASES
from log_scenarios import every_kind, storm
from postgresql import server

from projections import custody, ledger, schema
from projections.audit import AUDIT_VIEWS
from projections.database import migrating, open_engine
from projections.engine import Store
from projections.log import initialise
from projections.places import place_of
from projections.records import log_row
from projections.rows import insert_tuples, upsert
from projections.tables import checkpoint, event_log
from projections.verify import verify_log
from sickbay.cli.keeping import migrate

BEFORE = "0001"
LACKS = "its log was written before there was a ledger, so the ledger stays empty; replay the recordings into a new store"


@pytest.fixture(params=DATABASES)
def older(request, tmp_path):
    """Return a function that makes a store of revision 0001 with the given records in it, and names its place."""
    made = []

    def make(records):
        if request.param == "postgresql":
            made.append(server().empty())
            place = place_of(made[-1])
        else:
            place = place_of(tmp_path / "older.db")
        engine = open_engine(place, create=True)
        with migrating(engine, place) as connection:
            if request.param == "postgresql":
                connection.exec_driver_sql("CREATE SCHEMA sickbay")
            configuration = schema.alembic_configuration()
            configuration.attributes["connection"] = connection
            command.upgrade(configuration, BEFORE)
            initialise(connection, "embedded", 4, [custody.NAME])
            insert_tuples(connection, event_log, [log_row(record, record.chain) for record in records])
            custody.apply(connection, 1, [r for r in records if r.envelope.kind in custody.WANTED])
            positions = {
                record.partition: {
                    "partition_number": record.partition,
                    "next_offset": record.offset + 1,
                    "chain_head": record.chain,
                    "newest_ms": max(r.envelope.at_ms for r in records if r.partition == record.partition),
                }
                for record in records
            }
            upsert(connection, checkpoint, list(positions.values()))
        engine.dispose()
        return place

    yield make
    for url in made:
        server().drop(url)


@pytest.fixture
def records():
    """A log as a build without a ledger wrote it: no decision of the ledger's."""
    log = storm(nodes=3, devices=2, rounds=4, partitions=4).records
    assert set() == {record.envelope.kind for record in log} & ledger.WANTED
    return log


def test_a_store_with_events_keeps_them_and_says_that_it_has_no_ledger(older, records, tmp_path):
    """The log and custody's rows are those of a new store; the ledger's are empty, and one line says how to have them."""
    place = older(records)
    done = CliRunner().invoke(migrate, ["--db", place.opens])
    assert 0 == done.exit_code, done.output
    told = done.output.splitlines()
    assert f"{place}: schema {BEFORE} -> {schema.HEAD}" == told[0]
    assert [line for line in told[1:] if line.startswith(f"{place}: {LACKS}")] == told[1:]
    assert 2 == len(told)
    with (
        Store.open(place) as store,
        Store.open(tmp_path / "new.db", create=True, partitions=4) as new,
        store.reading() as connection,
    ):
        new.write(records)
        assert new.digests() == store.digests()
        assert len(records) == sum(verify_log(connection).values())
        for name in ("ledger-balances", "ledger-verdicts", "ledger-promotion"):
            assert [] == list(AUDIT_VIEWS[name].rows(connection))


def test_it_is_said_once(older, records):
    """A store that is current has nothing to be told, roles or not."""
    place, notes = older(records), []
    assert BEFORE == schema.upgrade(place, on_note=notes.append)
    assert 1 == len(notes)
    assert schema.HEAD == schema.upgrade(place, with_roles=place.is_postgresql, on_note=notes.append)
    assert 1 == len(notes)


def test_a_store_without_events_lacks_nothing(older):
    """Whatever is replayed into it has its ledger."""
    place, notes = older([]), []
    assert BEFORE == schema.upgrade(place, on_note=notes.append)
    assert [] == notes
    with Store.open(place) as store:
        store.write(every_kind().records)
        with store.reading() as connection:
            assert {"node-d", "node-e"} == {row[0] for row in AUDIT_VIEWS["ledger-verdicts"].rows(connection)}


def test_a_new_store_lacks_nothing(tmp_path):
    """It holds no events."""
    notes = []
    assert None is schema.upgrade(tmp_path / "new.db", on_note=notes.append)
    assert [] == notes
