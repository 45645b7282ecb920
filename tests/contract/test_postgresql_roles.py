"""Who may do what in a PostgreSQL store, tried by real login roles: nobody gets past what their group was given."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from log_scenarios import every_kind
from postgresql import server

from projections import roles, schema
from projections.audit import AUDIT_VIEWS
from projections.engine import Store
from projections.rebuild import rebuild
from projections.tables import CUSTODY_TABLES, metadata
from sickbay.decisions import Amount, Drift, DriftFound, DuplicateRefused, Entry, EntryPosted, MovePlanned
from sickbay.errors import StoreError
from sickbay.facts import Tick

NAMESPACES = {"tenant_a": "team-a", "tenant_b": "team-b"}
LOGINS = {
    "deployer": roles.MIGRATOR,
    "writer": roles.PROJECTOR,
    "auditor": roles.AUDITOR,
    "tenant_a": roles.TENANT,
    "tenant_b": roles.TENANT,
    "nobody_known": None,
}


def login(name):
    """Login roles belong to the server: those of this run have names of their own."""
    return f"{name}_{os.getpid()}"


def entry(namespace, number):
    return Entry(
        book="recorded", key=f"claim/{namespace}-{number}", account="claims", at_ms=10**9, namespace=namespace,
        amounts=(Amount("cpu", "unknown", "1"),), claim=f"secret-{namespace}", claim_uid=f"{namespace}-{number}",
    )  # fmt: skip


def ledgers(namespace, number):
    """A decision for each ledger table that names a workload."""
    at = {"node": "", "at_ms": 10**9 + number}
    posted = entry(namespace, number)
    drift = Drift(
        about=f"{namespace}/claim-{number}", cause="unexplained", namespace=namespace, claim=f"claim-{number}"
    )
    return (
        EntryPosted(**at, entry=posted),
        DuplicateRefused(**at, entry=posted, contender=f"uid-{number}"),
        DriftFound(**at, drift=drift),
    )


def workloads(partitions=4):
    """A log in which workloads of two namespaces are moved and entered into the ledger, on the same nodes."""
    log = every_kind(partitions=partitions, chained=False)
    numbers = itertools.count()
    for namespace in (*NAMESPACES.values(), *NAMESPACES.values()):
        number = next(numbers)
        fact = log.fact(Tick(node="", partition=0, observed_at_ms=10**9 + number))
        log.decide(
            fact,
            *ledgers(namespace, number),
            MovePlanned(
                node="",
                at_ms=10**9 + number,
                move_id=f"move-{number}",
                device_id="dra:gpu/pool/gpu-0",
                episode_id="",
                pod_uid=f"uid-{number}",
                namespace=namespace,
                pod=f"secret-{namespace}-{number}",
                ability="restartable",
                topology="whole",
            ),
        )
    return log.records


@pytest.fixture(scope="module")
def place():
    """A store with roles, a login role for each group, and a log in it."""
    url = server().empty()
    schema.upgrade(url, with_roles=True)
    name = sa.make_url(url).database
    for role, group in LOGINS.items():
        server().execute(f"CREATE ROLE {login(role)} LOGIN PASSWORD 'pw'")
        server().execute(*([f"GRANT {group} TO {login(role)}"] if group else []), "SELECT 1", database=name)
    for role, namespace in NAMESPACES.items():
        server().execute(
            f"INSERT INTO sickbay.tenant_namespace VALUES ('{login(role)}', '{namespace}')", database=name
        )
    with Store.open(as_role(url, "writer"), create=True, partitions=4) as store:
        store.write(workloads())
    yield url
    server().drop(url)
    for role in LOGINS:
        server().execute(f"DROP ROLE {login(role)}")


def as_role(url, role):
    return sa.make_url(url).set(username=login(role), password="pw").render_as_string(hide_password=False)  # noqa: S106


def ask(place, role, *statements):
    """Run statements in one session of a login role; return the rows of the last."""
    with psycopg.connect(
        as_role(place, role), options="-c search_path=sickbay", autocommit=True
    ) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall()


def denied(place, role, *statements):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(place, role, *statements)


# --- tenants ---


def granted_to_tenants(place):
    """Every table and view of the schema that the group may read."""
    query = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace AND relkind IN ('r', 'v')"
        f" AND has_table_privilege('{roles.TENANT}', oid, 'SELECT')"
    )
    return {name for (name,) in server().execute(query, database=sa.make_url(place).database)}


def test_tenants_are_granted_the_listed_views_and_what_is_below_them(place):
    """Nothing else: not the log, no view of devices or nodes."""
    below = {table for tables in roles.TENANT_VIEWS.values() for table in tables}
    assert roles.TENANT_VIEWS.keys() | below | {"tenant_namespace"} == granted_to_tenants(place)


@pytest.mark.parametrize("tenant", sorted(NAMESPACES))
def test_a_tenant_sees_its_own_rows_and_no_others(place, tenant):
    """Through every granted view and every table below it, whatever the session says of itself."""
    for name in sorted(granted_to_tenants(place) - roles.PLAIN_TABLES):
        for setting in (
            "SELECT 1",
            f"SET role TO {login(tenant)}",
            "SELECT set_config('sickbay.tenant', 'team-b', false)",
            "SET search_path = public, sickbay",
            "SET row_security = on",
            "SET session_characteristics_unknown.x = 'y'",
        ):
            rows = ask(place, tenant, setting, f"SELECT DISTINCT namespace FROM sickbay.{name}")
            assert [(NAMESPACES[tenant],)] == rows, (name, setting)
    assert 2 == len(ask(place, tenant, "SELECT * FROM audit_moves"))


def test_a_tenant_without_a_namespace_sees_nothing(place):
    """Membership alone shows no row."""
    server().execute(f"GRANT {roles.TENANT} TO {login('nobody_known')}")
    try:
        assert [] == ask(place, "nobody_known", "SELECT * FROM audit_moves")
    finally:
        server().execute(f"REVOKE {roles.TENANT} FROM {login('nobody_known')}")


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE sickbay_owner",
        "SET ROLE sickbay_auditor",
        "SET SESSION AUTHORIZATION postgres",
        "SET row_security = off; SELECT * FROM audit_moves",
        "SET session_replication_role = replica",
        "SELECT * FROM event_log",
        "SELECT * FROM audit_devices",
        "SELECT * FROM audit_transitions",
        "SELECT * FROM audit_ledger_journal",
        "SELECT * FROM ledger_line",
        "SELECT * FROM parked",
        "INSERT INTO tenant_namespace VALUES (current_user, 'team-b')",
        "UPDATE move SET namespace = 'team-a'",
        "DELETE FROM move",
        "ALTER TABLE move DISABLE ROW LEVEL SECURITY",
        "CREATE VIEW all_moves AS SELECT * FROM move",
        "CREATE TEMP TABLE moves AS SELECT * FROM move",
        "COPY event_log TO STDOUT",
    ],
)
def test_a_tenant_may_do_nothing_else(place, statement):
    """No other role, no switch of row security, no write, no table of its own."""
    denied(place, "tenant_a", statement)


def test_a_careless_view_of_the_owner_shows_tenants_no_more(place):
    """A view that does not check the rights of who asks still meets row security with the name of who asks."""
    name = sa.make_url(place).database
    server().execute(
        "SET ROLE sickbay_owner; CREATE VIEW sickbay.careless AS SELECT * FROM sickbay.move;"
        " GRANT SELECT ON sickbay.careless TO sickbay_tenant",
        database=name,
    )
    try:
        for tenant, namespace in NAMESPACES.items():
            assert [(namespace,)] == ask(place, tenant, "SELECT DISTINCT namespace FROM careless")
    finally:
        server().execute("DROP VIEW sickbay.careless", database=name)


def test_a_condition_of_a_tenant_meets_no_hidden_row(place):
    """An expression that fails on another tenant's row never fails: it is not shown that row."""
    rows = ask(
        place,
        "tenant_a",
        "SELECT pod FROM move WHERE CASE WHEN namespace <> 'team-a' THEN 1 / (length(pod) - length(pod)) ELSE 1 END = 1",
    )
    assert {"secret-team-a-0", "secret-team-a-2"} == {pod for (pod,) in rows}


def test_every_table_with_a_namespace_is_secured(place):
    """Row security is on and forced wherever rows belong to a namespace, in tables that come later too."""
    name = sa.make_url(place).database
    server().execute(
        "SET ROLE sickbay_owner; CREATE TABLE sickbay.later (namespace text, note text);"
        " INSERT INTO sickbay.later VALUES ('team-a', 'a'), ('team-b', 'b')",
        database=name,
    )
    try:
        schema.upgrade(place, with_roles=True)
        server().execute(
            "SET ROLE sickbay_owner; GRANT SELECT ON sickbay.later TO sickbay_tenant", database=name
        )
        secured = server().execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace"
            " AND relrowsecurity AND relforcerowsecurity ORDER BY relname",
            database=name,
        )
        with_namespace = {table.name for table in metadata.tables.values() if "namespace" in table.c}
        assert with_namespace | {"later", "tenant_namespace"} == {relname for (relname,) in secured}
        assert [("b",)] == ask(place, "tenant_b", "SELECT note FROM later")
        assert [("a",), ("b",)] == ask(place, "auditor", "SELECT note FROM later ORDER BY note")
    finally:
        server().execute("DROP TABLE sickbay.later", database=name)


# --- staff ---


def test_the_projector_writes_and_rebuilds(place):
    """All that a running Sickbay does, it does as a projector, in tables with row security too; what it sees is everything."""
    with Store.open(as_role(place, "writer")) as store:
        for projection in store.projections:
            rebuilt = rebuild(store, projection, batch_events=7)
            assert [] == rebuilt.differing
            assert {table.name for table in projection.tables} == rebuilt.digests.keys()
        with Store.open(place) as superuser:
            assert superuser.digests() == store.digests()
        store.end_source()
    for view in ("audit_moves", "audit_ledger_entries", "audit_ledger_drift", "audit_ledger_duplicates"):
        assert (
            4 <= ask(place, "writer", f"SELECT count(*) FROM {view} WHERE namespace LIKE 'team-%'")[0][0]
        ), view


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE move",
        "TRUNCATE event_log",
        "DROP TABLE move",
        "ALTER TABLE event_log DISABLE TRIGGER ALL",
        "CREATE TABLE mine (id integer)",
        "UPDATE event_log SET actor = 'mallory'",
        "DELETE FROM event_log",
        "DELETE FROM parked",
        "UPDATE alembic_version SET version_num = '0000'",
        "INSERT INTO tenant_namespace VALUES ('x', 'y')",
        "SET ROLE sickbay_owner",
        "SET session_replication_role = replica",
    ],
)
def test_the_projector_may_not_change_the_past_or_the_schema(place, statement):
    """INSERT into the log and what was parked, changes of read models and positions, and nothing more."""
    denied(place, "writer", statement)


def test_the_auditor_reads_everything_and_writes_nothing(place):
    """Every audit view, the log itself, and the digests; no write even when it is asked for."""
    with Store.open(as_role(place, "auditor"), read_only=True) as store, Store.open(place) as superuser:
        assert superuser.digests() == store.digests()
        with store.reading() as connection, superuser.reading() as other:
            for view in AUDIT_VIEWS.values():
                found = connection.execute(sa.text(f"SELECT * FROM {view.sql_name}")).all()
                assert sorted(map(repr, view.rows(other))) == sorted(map(repr, map(tuple, found))), view.name
    with Store.open(as_role(place, "auditor")) as store, pytest.raises(StoreError, match="by this role"):
        store.end_source()
    with Store.open(as_role(place, "auditor")) as store, pytest.raises(StoreError, match="by this role"):
        store.write(workloads())
    for statement in ("DELETE FROM move", "INSERT INTO parked DEFAULT VALUES", "TRUNCATE checkpoint"):
        denied(place, "auditor", statement)


def test_a_stranger_may_not_even_connect(place):
    """PUBLIC has no business in the database."""
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        ask(place, "nobody_known", "SELECT 1")
    with pytest.raises(StoreError, match="may not be used in this way by this role"):
        Store.open(as_role(place, "nobody_known"))


def test_a_migrator_becomes_the_owner_and_is_nobody_else(place):
    """It migrates, what it makes belongs to the owner, and by itself it reads no table."""
    assert schema.HEAD == schema.upgrade(as_role(place, "deployer"))
    denied(place, "deployer", "SELECT * FROM move")
    denied(place, "deployer", "CREATE TABLE sickbay.mine (id integer)")


def test_a_migrator_makes_a_schema_that_belongs_to_the_owner(place):
    """From nothing: the owner's objects, with everybody's privileges."""
    url = server().empty()
    name = sa.make_url(url).database
    server().execute(
        f"GRANT CREATE, CONNECT ON DATABASE {name} TO {roles.OWNER}",
        f"CREATE SCHEMA sickbay AUTHORIZATION {roles.OWNER}",
        database=name,
    )
    assert None is schema.upgrade(as_role(url, "deployer"))
    owners = server().execute(
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace",
        database=name,
    )
    assert [(roles.OWNER,)] == owners
    with Store.open(as_role(url, "writer"), create=True, partitions=4) as store:
        store.write(every_kind().records)
        assert 4 == store.partitions
    server().drop(url)


def test_roles_can_be_given_again_and_to_a_store_that_was_there_before(place):
    """Doing it twice changes nothing; a store without roles is handed over with its rows."""
    url = server().migrated()
    with Store.open(url, create=True, partitions=4) as store:
        store.write(every_kind().records)
        before = store.digests()
    assert schema.HEAD == schema.upgrade(url, with_roles=True)
    privileges = "SELECT relname, relacl::text, relrowsecurity FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace ORDER BY 1"
    first = server().execute(privileges, database=sa.make_url(url).database)
    assert schema.HEAD == schema.upgrade(url, with_roles=True)
    assert first == server().execute(privileges, database=sa.make_url(url).database)
    with Store.open(as_role(url, "writer")) as store:
        assert before == store.digests()
        assert [] == [
            table for projection in store.projections for table in rebuild(store, projection).differing
        ]
    server().drop(url)


@pytest.fixture
def owned():
    """A database of its own for a login role with CREATEROLE, as its URL; neither is left."""
    url, owner = server().empty(), login("landlord")
    name = sa.make_url(url).database
    server().execute(
        f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'pw'", f"ALTER DATABASE {name} OWNER TO {owner}"
    )
    yield as_role(url, "landlord")
    server().drop(url)
    server().execute(f"DROP ROLE {owner}")


@pytest.mark.parametrize("first", [{}, {"with_roles": True}], ids=["there before", "from nothing"])
def test_the_owner_of_the_database_makes_the_roles_and_is_no_member_afterwards(owned, first):
    """CREATEROLE is enough, for a new schema, for its own from before, and again; what it needs meanwhile it gives back."""
    assert None is schema.upgrade(owned, **first)
    for _ in range(2):
        assert schema.HEAD == schema.upgrade(owned, with_roles=True)
    name, owner = sa.make_url(owned).database, login("landlord")
    members = "SELECT count(*) FROM pg_auth_members WHERE member = to_regrole(%s) AND roleid = to_regrole(%s)"
    with psycopg.connect(owned) as connection:
        assert (0,) == connection.execute(members, (owner, roles.OWNER)).fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM sickbay.event_log")
    owners = (
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace"
    )
    assert [(roles.OWNER,)] == server().execute(owners, database=name)
    server().execute(f"GRANT CONNECT ON DATABASE {name} TO {roles.PROJECTOR}", database=name)
    with Store.open(as_role(owned, "writer"), create=True, partitions=4) as store:
        store.write(workloads())


def test_a_role_that_may_not_make_roles_is_told_so(place):
    """What the server says of a script is said in our words, and nothing is left of it."""
    with pytest.raises(StoreError, match="may not be used in this way by this role"):
        schema.upgrade(as_role(place, "writer"), with_roles=True)


def test_roles_that_somebody_holds_are_locked_in_our_words(place, monkeypatch):
    """A script waits as long as a migration does, and says so."""
    monkeypatch.setattr("projections.postgresql._DDL_LOCK_TIMEOUT_MS", 100)
    with psycopg.connect(place, options="-c search_path=sickbay") as reader:
        reader.execute("SELECT * FROM move")
        with pytest.raises(StoreError, match="is locked by another process"):
            schema.upgrade(place, with_roles=True)


def test_a_file_has_no_roles(tmp_path):
    """Asking for roles of a SQLite store says what decides instead."""
    with pytest.raises(StoreError, match="its permissions decide who may read it"):
        schema.upgrade(tmp_path / "store.db", with_roles=True)
    assert not (tmp_path / "store.db").exists()


# --- the log is append-only, for everybody ---


@pytest.mark.parametrize("mode", ["origin", "replica"])
@pytest.mark.parametrize(
    "statement", ["UPDATE event_log SET actor = 'x'", "DELETE FROM event_log", "TRUNCATE event_log"]
)
def test_the_log_refuses_a_superuser_in_any_mode(place, mode, statement):
    """Triggers that fire ALWAYS are not passed by posing as a replica (M8)."""
    with (
        psycopg.connect(
            place, options=f"-c search_path=sickbay -c session_replication_role={mode}"
        ) as connection,
        pytest.raises(psycopg.errors.RestrictViolation, match="event_log is append-only"),
    ):
        connection.execute(statement)


def test_no_table_of_the_projection_is_forgotten():
    """What a tenant may read rests on tables that exist."""
    names = {table.name for table in metadata.tables.values()}
    assert {name for tables in roles.TENANT_VIEWS.values() for name in tables} <= names
    assert roles.TENANT_VIEWS.keys() <= {view.sql_name for view in AUDIT_VIEWS.values()}
    assert {table.name for table in CUSTODY_TABLES} <= names


def test_the_documented_statements_run(place):
    """Login roles, members and tenants as docs/databases.md makes them; undone at the end."""
    text = (Path(__file__).parents[2] / "docs" / "databases.md").read_text(encoding="utf-8")
    examples = re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 3
    with psycopg.connect(place) as connection:
        for example in examples:
            connection.execute(example)
        mapped = connection.execute(
            "SELECT namespace FROM sickbay.tenant_namespace WHERE role_name = 'team_a'"
        )
        assert {("training",), ("inference",)} == set(mapped.fetchall())
        creates = "SELECT has_function_privilege('team_a', name, 'EXECUTE') FROM unnest(%s::text[]) AS name"
        functions = ["lo_create(oid)", "lo_creat(integer)", "lo_from_bytea(oid, bytea)"]
        assert {(False,)} == set(connection.execute(creates, (functions,)).fetchall())
        connection.rollback()
