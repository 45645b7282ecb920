"""PostgreSQL: errors in words that say where and what to do, on one line, and without a password."""

from __future__ import annotations

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from log_scenarios import storm
from postgresql import LOCKED_PASSWORD, LOCKED_USER, NoServerError, binaries, server
from sqlalchemy.exc import OperationalError

from projections import postgresql, schema
from projections.database import store_error
from projections.engine import Store
from sickbay.errors import StoreError


@pytest.fixture
def place():
    """A database with the schema and no store in it."""
    url = server().migrated()
    yield url
    server().give_back(url)


def test_a_machine_without_a_server_fails_with_what_to_do(tmp_path, monkeypatch):
    """A test that needs a server is never skipped; an older one does not count."""
    monkeypatch.setattr("postgresql.shutil.which", lambda _program: None)
    monkeypatch.setattr("postgresql.DEBIAN", tmp_path)
    with pytest.raises(NoServerError, match="`make postgresql` installs one"):
        binaries()
    old = tmp_path / "14" / "bin"
    old.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (old / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n")
        (old / name).chmod(0o755)
    with pytest.raises(NoServerError, match="`make postgresql` installs one"):
        binaries()


def _refused(url, **options):
    with pytest.raises(StoreError) as caught:
        Store.open(url, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_server_that_is_not_there_is_named(tmp_path):
    """No socket, no server."""
    told = _refused(f"postgresql://ana:s3cret@/sickbay?host={tmp_path}")
    assert told.startswith(
        f"postgresql://ana:***@/sickbay?host={str(tmp_path).replace('/', '%2F')} cannot be reached"
    )
    assert "check host, port and that the server runs" in told
    assert "s3cret" not in told


def test_a_host_that_is_not_there_is_named():
    """Nothing listens there."""
    assert "cannot be reached; check host, port" in _refused("postgresql://ana@127.0.0.1:1/sickbay")


def test_a_database_that_does_not_exist_is_named():
    """The remedy is to create it."""
    assert "create it with `createdb`, then run `sickbay migrate`" in _refused(server().url("nowhere"))


@pytest.mark.parametrize("create", [True, False])
def test_a_wrong_password_is_named_and_not_shown(place, create):
    """Neither the right one nor the wrong one stands in the error."""
    server().execute(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{LOCKED_USER}') THEN"
        f" CREATE ROLE {LOCKED_USER} LOGIN PASSWORD '{LOCKED_PASSWORD}'; END IF; END $$"
    )
    url = sa.make_url(place).set(username=LOCKED_USER, password="wr0ng")  # noqa: S106
    told = _refused(url.render_as_string(hide_password=False), create=create)
    assert "refuses this user; check the user, the password (PGPASSFILE, PGPASSWORD)" in told
    assert "wr0ng" not in told
    right = url.set(password=LOCKED_PASSWORD).render_as_string(hide_password=False)
    assert "may not be used in this way by this role; ask its owner for membership" in _refused(right)


def test_an_empty_database_says_migrate():
    """Nothing is made by a reader."""
    url = server().empty()
    assert "has no schema yet; run `sickbay migrate`" in _refused(url)
    with Store.open(url, create=True) as store:
        assert {} == store.positions()
    server().drop(url)


def test_a_database_of_another_encoding_is_refused():
    """Text is UTF-8 or it is not the same text."""
    url = server().empty("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    assert "has the encoding SQL_ASCII; create it with `createdb -E UTF8" in _refused(url, create=True)
    server().drop(url)


def test_another_schema_of_the_same_name_is_left_alone():
    """A schema sickbay that holds other tables is refused and keeps them."""
    url = server().empty()
    name = sa.make_url(url).database
    server().execute("CREATE SCHEMA sickbay CREATE TABLE accounts (id integer)", database=name)
    assert "holds other tables (accounts) and no Sickbay schema" in _refused(url, create=True)
    assert [(0,)] == server().execute("SELECT count(*) FROM sickbay.accounts", database=name)
    server().drop(url)


def test_another_revision_is_named(place):
    """A schema of another build says which one is needed."""
    name = sa.make_url(place).database
    server().execute("UPDATE sickbay.alembic_version SET version_num = '0000'", database=name)
    assert f"has schema revision 0000, this build needs {schema.HEAD}" in _refused(place)
    with pytest.raises(StoreError, match="which this build does not know"):
        schema.upgrade(place)
    server().execute(f"UPDATE sickbay.alembic_version SET version_num = '{schema.HEAD}'", database=name)


def test_a_value_that_no_index_holds_is_refused_whole(place):
    """An id of many kilobytes is an error that names the remedy, and nothing of the batch is written (S14)."""
    log = storm(nodes=1, devices=1, rounds=1, partitions=4).records
    with Store.open(place, create=True, partitions=4) as store:
        noise = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(4_000))
        envelope = msgspec.structs.replace(log[0].envelope, event_id=noise)
        with pytest.raises(StoreError, match="cannot hold a value this large; park the event instead"):
            store.write([log[0]._replace(envelope=envelope, chain=b"")])
        assert {} == store.positions()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("53100", "is full; free disk space on the server"),
        ("53200", "has not enough resources"),
        ("53300", "has no connection left"),
        ("57014", "took too long"),
        ("57P03", "run again when the server is up"),
        ("25P03", "stood idle"),
        ("3F000", "run `sickbay migrate`"),
        ("23505", "at another offset already"),
        ("23502", "two writers"),
        ("XX001", "is damaged"),
        ("XX002", "REINDEX"),
        ("58030", "check its disk"),
        ("08006", "cannot be reached"),
        ("XX000", "sickbay verify"),
    ],
)
def test_errors_that_cannot_be_caused_here_have_their_words(state, words):
    """Each error of the server is named with the place and a remedy, on one line."""
    cause = psycopg.DatabaseError("driver\n  text")
    cause.sqlstate = state
    told = str(store_error(OperationalError("SQL", {}, cause), "postgresql://db/x"))
    assert told.startswith("postgresql://db/x ")
    assert words in told
    assert "driver text" in told


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("FATAL:  sorry, too many clients already", "has no connection left"),
        ("FATAL:  the database system is starting up", "run again when the server is up"),
        ("FATAL:  permission denied for database x", "may not be used in this way"),
        ('FATAL:  no pg_hba.conf entry for host "::1"', "pg_hba.conf"),
        ("could not translate host name", "check host, port"),
    ],
)
def test_connections_that_did_not_come_about_have_their_words(message, words):
    """libpq gives no code for these; its words say what it was."""
    assert words in (postgresql.words(psycopg.OperationalError(message)) or "")
