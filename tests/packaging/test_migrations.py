"""The migrations that the wheel carries: one line of revisions, from nothing to exactly the declared tables."""

from __future__ import annotations

import multiprocessing
import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from postgresql import server

from projections import schema
from projections.append_only import APPEND_ONLY_POSTGRESQL, APPEND_ONLY_TRIGGERS
from projections.audit import AUDIT_VIEWS
from projections.database import migrating, open_engine, reading, writing
from projections.places import place_of
from projections.sqlite import create_file, sqlite_engine
from projections.tables import metadata
from sickbay.errors import StoreError


def objects(path: Path, *, views: bool) -> dict[str, str]:
    """Return name -> SQL of everything in the file, with names unquoted and white space folded."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'alembic%' AND (type <> 'view' OR ?)",
            (views,),
        ).fetchall()
    connection.close()
    return {name: re.sub(r"[\s\"]+", " ", sql).strip() for name, sql in rows}


def migrated(tmp_path: Path) -> Path:
    path = tmp_path / "migrated.db"
    schema.upgrade(path)
    return path


@pytest.fixture
def empty():
    """A PostgreSQL database with nothing in it."""
    url = server().empty()
    yield url
    server().drop(url)


#: What stands in our schema of a PostgreSQL database, as the server spells it.
CATALOGUE = (
    (
        "SELECT relname, relkind::text, relpersistence::text, reloptions::text FROM pg_class"
        " WHERE relnamespace = 'sickbay'::regnamespace"
    ),
    (
        "SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull::text || coalesce(collname, '')"
        " FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid LEFT JOIN pg_collation ON attcollation = pg_collation.oid"
        " WHERE relnamespace = 'sickbay'::regnamespace AND relkind = 'r' AND attnum > 0"
    ),
    (
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), '' FROM pg_constraint"
        " WHERE connamespace = 'sickbay'::regnamespace"
    ),
    "SELECT tablename, indexname, indexdef, '' FROM pg_indexes WHERE schemaname = 'sickbay'",
    (
        "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger"
        " WHERE tgrelid::regclass::text ~ 'event_log' AND NOT tgisinternal"
    ),
    "SELECT proname, prosrc, proconfig::text, '' FROM pg_proc WHERE pronamespace = 'sickbay'::regnamespace",
    "SELECT viewname, definition, '', '' FROM pg_views WHERE schemaname = 'sickbay'",
)


def catalogue(url: str, *, views: bool = True) -> set[tuple]:
    """Return everything in our schema, an empty set when there is no schema."""
    database = sa.make_url(url).database
    if not server().execute("SELECT 1 FROM pg_namespace WHERE nspname = 'sickbay'", database=database):
        return set()
    rows = {
        row
        for query in CATALOGUE
        for row in server().execute("SET search_path = sickbay", query, database=database)
    }
    rows = {row for row in rows if "alembic_version" not in row[0]}
    return rows if views else {row for row in rows if not row[0].startswith("audit_")}


def test_there_is_one_head_and_the_code_names_it():
    """The revisions form one line that ends at ``schema.HEAD``."""
    scripts = ScriptDirectory.from_config(schema.alembic_configuration())
    assert [schema.HEAD] == scripts.get_heads()


def test_migrating_from_nothing_gives_the_declared_tables(tmp_path):
    """Alembic finds no difference between a migrated database and the metadata."""
    engine = sqlite_engine(migrated(tmp_path), read_only=True)
    with reading(engine, "migrated") as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert [] == compare_metadata(context, metadata)
    engine.dispose()


def test_migrating_postgresql_from_nothing_gives_the_declared_tables(empty):
    """Alembic finds no difference on the other database either."""
    assert None is schema.upgrade(empty)
    engine = open_engine(place_of(empty))
    with reading(engine, "migrated") as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert [] == compare_metadata(context, metadata)
    engine.dispose()


def test_collations_indexes_and_triggers_on_postgresql_are_the_declared_ones(empty):
    """What Alembic does not compare is compared as the server spells it: collations, CHECK, partial indexes, triggers."""
    schema.upgrade(empty)
    declared = server().empty()
    server().execute("CREATE SCHEMA sickbay", database=sa.make_url(declared).database)
    engine = open_engine(place_of(declared))
    with engine.begin() as connection:
        metadata.create_all(connection)
        for statement in APPEND_ONLY_POSTGRESQL:
            connection.execute(sa.text(statement))
    engine.dispose()
    assert catalogue(declared, views=False) == catalogue(empty, views=False)
    server().drop(declared)


def test_audit_views_of_postgresql_check_the_rights_of_who_asks(empty):
    """Each view has the columns of the register, and security_invoker."""
    schema.upgrade(empty)
    database = sa.make_url(empty).database
    options = server().execute(
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace AND relkind = 'v'",
        database=database,
    )
    assert {view.sql_name: ["security_invoker=true"] for view in AUDIT_VIEWS.values()} == dict(options)
    columns = server().execute(
        "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) FROM information_schema.columns"
        " WHERE table_name LIKE 'audit_%' GROUP BY table_name",
        database=database,
    )
    assert {view.sql_name: list(view.columns) for view in AUDIT_VIEWS.values()} == dict(columns)


def test_strictness_indexes_and_triggers_are_the_declared_ones(tmp_path):
    """What Alembic does not compare is compared as SQL: STRICT, CHECK, partial indexes, triggers."""
    declared = tmp_path / "declared.db"
    create_file(declared)
    engine = sqlite_engine(declared, read_only=False)
    with writing(engine, "declared") as connection:
        metadata.create_all(connection)
        for trigger in APPEND_ONLY_TRIGGERS.values():
            connection.exec_driver_sql(trigger)
    engine.dispose()
    expected = objects(declared, views=False)
    assert expected == objects(migrated(tmp_path), views=False)
    tables = [sql for sql in expected.values() if sql.startswith("CREATE TABLE")]
    assert len(metadata.tables) == len(tables)
    assert all(sql.endswith("STRICT") for sql in tables)


def test_every_audit_view_exists_in_sql_with_its_columns(tmp_path):
    """The register and the schema name the same views and columns, and no other."""
    with sqlite3.connect(migrated(tmp_path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
        columns = {
            name: tuple(row[0] for row in connection.execute(f"SELECT * FROM {name}").description)
            for (name,) in names
        }
    connection.close()
    assert {view.sql_name: view.columns for view in AUDIT_VIEWS.values()} == columns


def test_every_audit_view_is_documented_with_an_example():
    """docs/audit-views.md has a section and a SQL example for each view."""
    text = (Path(__file__).parents[2] / "docs" / "audit-views.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `([a-z-]+)`\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))
    assert set(AUDIT_VIEWS) == set(sections)
    for name, section in sections.items():
        assert AUDIT_VIEWS[name].sql_name in section
        assert f"sickbay audit {name}" in section


def test_the_documented_sql_examples_run(tmp_path):
    """Every SQL example of docs/audit-views.md is valid against the schema."""
    text = (Path(__file__).parents[2] / "docs" / "audit-views.md").read_text(encoding="utf-8")
    examples = re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    assert len(AUDIT_VIEWS) <= len(examples)
    with sqlite3.connect(migrated(tmp_path)) as connection:
        for example in examples:
            connection.execute(example).fetchall()
    connection.close()


def test_the_documented_sql_examples_run_on_postgresql(empty):
    """They are written for both."""
    schema.upgrade(empty)
    text = (Path(__file__).parents[2] / "docs" / "audit-views.md").read_text(encoding="utf-8")
    for example in re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL):
        server().execute("SET search_path = sickbay", example, database=sa.make_url(empty).database)


def test_a_second_upgrade_changes_nothing(tmp_path):
    """Upgrading a store that is current leaves every byte of its schema."""
    path = migrated(tmp_path)
    before = objects(path, views=True)
    assert schema.HEAD == schema.upgrade(path)
    assert before == objects(path, views=True)


def test_a_second_upgrade_of_postgresql_changes_nothing(empty):
    """Upgrading a database that is current leaves everything in it."""
    schema.upgrade(empty)
    before = catalogue(empty)
    assert schema.HEAD == schema.upgrade(empty)
    assert before == catalogue(empty)


def _upgrade_at_once(path, gate, results):
    gate.wait(30)
    results.put(schema.upgrade(path))


@pytest.mark.case("C56")
def test_c56_two_processes_that_migrate_at_once_migrate_once(tmp_path):
    """One process migrates under the lock; every other waits and then finds the schema current."""
    context = multiprocessing.get_context("fork")
    for attempt in range(2):
        path = tmp_path / f"{attempt}.db"
        gate, results = context.Barrier(3), context.Queue()
        workers = [context.Process(target=_upgrade_at_once, args=(path, gate, results)) for _ in range(3)]
        for worker in workers:
            worker.start()
        befores = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join(60)
        assert [0, 0, 0] == [worker.exitcode for worker in workers]
        assert [None, schema.HEAD, schema.HEAD] == sorted(befores, key=lambda before: before is not None)


@pytest.mark.case("C56")
@pytest.mark.parametrize("with_roles", [False, True])
def test_c56_two_processes_that_migrate_postgresql_at_once_migrate_once(empty, with_roles):
    """The lock is the database's own: one migrates, the others wait and find it done."""
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(3), context.Queue()

    def work():
        gate.wait(30)
        results.put(schema.upgrade(empty, with_roles=with_roles))

    workers = [context.Process(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    befores = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert [0, 0, 0] == [worker.exitcode for worker in workers]
    assert [None, schema.HEAD, schema.HEAD] == sorted(befores, key=lambda before: before is not None)


def test_a_migration_that_waits_too_long_for_a_reader_gives_up(empty, monkeypatch):
    """A change of the schema does not queue for minutes behind a long question, with everybody else behind it (M5)."""
    schema.upgrade(empty)
    monkeypatch.setattr("projections.postgresql._DDL_LOCK_TIMEOUT_MS", 100)
    engine = open_engine(place_of(empty))
    with reading(engine, "store") as reader:
        reader.exec_driver_sql("SELECT * FROM parked")
        with (
            pytest.raises(StoreError, match="is locked by another process"),
            migrating(engine, "store") as connection,
        ):
            connection.exec_driver_sql("ALTER TABLE parked ADD COLUMN note text")
    engine.dispose()


@pytest.mark.parametrize("crash_at", [3, 30, 60, -1])
def test_a_crash_in_a_migration_of_postgresql_leaves_nothing(empty, crash_at):
    """Killed between two statements, or before the commit, the database is as empty as before, and the next run migrates it."""
    engine = open_engine(place_of(empty))
    statements = 0

    def crash(*_args):
        nonlocal statements
        statements += 1
        if statements == crash_at:
            raise KeyboardInterrupt

    sa.event.listen(engine, "before_cursor_execute", crash)
    with pytest.raises(KeyboardInterrupt), migrating(engine, "crashing") as connection:  # noqa: PT012
        schema.upgrade_within(connection, "crashing")
        raise KeyboardInterrupt
    engine.dispose()
    assert statements == crash_at or (crash_at < 0 and statements > 60)
    assert set() == catalogue(empty)
    assert None is schema.upgrade(empty)


def test_a_crash_between_any_two_statements_of_a_migration_leaves_nothing(tmp_path):
    """The version row and every table stand in one transaction (measured trap: SQLite's driver commits DDL by itself)."""
    statements = 0
    for crash_at in range(1, 200):
        path = tmp_path / f"crash-{crash_at}.db"
        create_file(path)
        engine = sqlite_engine(path, read_only=False)
        statements = 0

        def crash(*_args, at=crash_at):
            nonlocal statements
            statements += 1
            if statements == at:
                raise KeyboardInterrupt

        sa.event.listen(engine, "before_cursor_execute", crash)
        try:
            with writing(engine, "crashing") as connection:
                schema.upgrade_within(connection, "crashing")
        except KeyboardInterrupt:
            assert {} == objects(path, views=True), f"half a schema after statement {crash_at}"
        else:
            break
        finally:
            engine.dispose()
    assert 50 < statements < 199


@pytest.mark.case("C57")
def test_c57_a_revision_can_rebuild_a_table_below_a_view(tmp_path):
    """A revision that drops a view, rebuilds its table and makes the view again keeps the data, up and down."""
    path = migrated(tmp_path)
    engine = sqlite_engine(path, read_only=False)
    views = objects(path, views=True)
    with writing(engine, "rebuilt") as connection:
        connection.exec_driver_sql("INSERT INTO parked VALUES ('a', 1, 'file:1', 'broken', x'00', 1, NULL)")
    with writing(engine, "rebuilt") as connection:
        context = MigrationContext.configure(connection, opts={"transactional_ddl": True})
        operations = Operations(context)
        operations.execute("DROP VIEW audit_parked")
        with operations.batch_alter_table("parked", table_kwargs={"sqlite_strict": True}) as batch:
            batch.drop_column("at_ms")
        operations.execute("CREATE VIEW audit_parked AS SELECT seq, place, reason FROM parked")
    with reading(engine, "rebuilt") as connection:
        rows = connection.exec_driver_sql("SELECT * FROM audit_parked").all()
        assert [(1, "file:1", "broken")] == [tuple(row) for row in rows]
    engine.dispose()
    assert views.keys() == objects(path, views=True).keys()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_requests_of_the_revision_before_stay(tmp_path, empty, kind):
    """They name no ledger version, and everything else of them is as it was."""
    place = place_of(tmp_path / "before.db" if kind == "sqlite" else empty)
    engine = open_engine(place, create=True)
    row = "1, 0, 7, 'e', 'hold_requested', 'r', 'ann', 'n', 'd', 5, NULL, NULL, NULL, 'loud', NULL, 9, NULL, NULL, NULL, NULL, NULL"
    with migrating(engine, place) as connection:
        if kind == "postgresql":
            connection.exec_driver_sql("CREATE SCHEMA sickbay")
        configuration = schema.alembic_configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "0001")
        connection.exec_driver_sql(f"INSERT INTO request VALUES ({row})")
        connection.exec_driver_sql("INSERT INTO read_model VALUES ('custody', 1, NULL)")
    assert "0001" == schema.upgrade(place)
    with reading(engine, place) as connection:
        columns = "at_ms, actor, node, device_id, reason, until_ms, ledger_version, log_offset"
        rows = connection.exec_driver_sql(f"SELECT {columns} FROM audit_requests").all()
    engine.dispose()
    assert [(5, "ann", "n", "d", "loud", 9, None, 7)] == [tuple(found) for found in rows]


def test_the_audit_log_is_never_taken_back(tmp_path):
    """A downgrade of revision 0001 is refused, and the log stays."""
    path = migrated(tmp_path)
    engine = sqlite_engine(path, read_only=False)
    before = objects(path, views=True)
    configuration = schema.alembic_configuration()
    with writing(engine, "refused") as connection:
        configuration.attributes["connection"] = connection
        with pytest.raises(StoreError, match="holds the audit log and is never taken back"):
            command.downgrade(configuration, "base")
    engine.dispose()
    assert before == objects(path, views=True)


def test_migrations_refuse_to_run_outside_the_lock():
    """Alembic's own command line, without a connection of ours, is told where to go."""
    with pytest.raises(StoreError, match="sickbay migrate"):
        command.upgrade(schema.alembic_configuration(), "head")


def test_revisions_and_views_are_found_as_package_resources():
    """``importlib.resources`` finds what the wheel must carry."""
    names = {entry.name for entry in files("migrations").iterdir()}
    assert {"env.py", "script.py.mako", "versions", "sql"} <= names
    sql = {entry.name for entry in (files("migrations") / "sql").iterdir()}
    assert {
        "0001_audit_views.sql",
        "0002_ledger_views.sql",
        "roles.sql",
        "schema.sql",
        "privileges.sql",
    } <= sql
