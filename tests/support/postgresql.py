"""A PostgreSQL server for tests: a throw-away cluster, or the one that SICKBAY_POSTGRES names (a superuser's URL).

The cluster listens on a Unix socket in a directory of its own, runs as another user when the tests run as root, is started once
for all tests of a run, and ends with the run, even when that is killed. Databases are copies of a migrated one.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg
from sqlalchemy.engine import URL, make_url

from projections import schema
from projections.append_only import APPEND_ONLY_POSTGRESQL
from projections.tables import metadata

WAIT_S = 60
#: Where Debian puts the servers of each version.
DEBIAN = Path("/usr/lib/postgresql")
SERVER_MIN = 15
#: A user that must give a password; everybody else is trusted.
LOCKED_USER, LOCKED_PASSWORD = "locked", "open-sesame"

_PR_SET_PDEATHSIG = 1
_REMEDY = (
    "no PostgreSQL server for the tests: `make postgresql` installs one on Debian as root; elsewhere install PostgreSQL 15 or"
    " newer so that initdb is on the PATH, or give the URL of a superuser in SICKBAY_POSTGRES"
)


class NoServerError(Exception):
    """There is no server and no way to start one; a test without it fails, and is never skipped."""


def binaries() -> Path:
    """Return the directory that holds initdb and postgres: that on the PATH, else the newest that Debian put away."""
    found = shutil.which("initdb")
    directories = [Path(found).resolve().parent] if found else []
    debian = DEBIAN.glob("*/bin")
    directories += sorted(debian, key=lambda path: int(path.parent.name.split(".")[0]), reverse=True)
    for directory in directories:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            told = subprocess.run(
                [directory / "postgres", "--version"], capture_output=True, text=True, check=True
            )
            if int(told.stdout.split()[2].split(".")[0]) >= SERVER_MIN:
                return directory
    raise NoServerError(_REMEDY)


def _user() -> str | None:
    """Return the user that the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise NoServerError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _end_with_parent() -> None:
    """Make the kernel stop the server at once when the process that started it ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


class Cluster:
    """A cluster of our own."""

    def __init__(self, *settings: str) -> None:
        self._binaries = binaries()
        self._user = _user()
        self._settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="sickbay-pg-"))
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run(
            "initdb",
            "-D",
            self.folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        access = self.folder / "data" / "pg_hba.conf"
        access.write_text(
            f"local all {LOCKED_USER} scram-sha-256\n" + access.read_text(encoding="utf-8"), encoding="utf-8"
        )
        atexit.register(self.remove)
        self.start()

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._binaries / program, *map(str, arguments)],
            user=self._user, group=self._user and pwd.getpwnam(self._user).pw_gid, extra_groups=self._user and [],
            cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NoServerError(f"{program} failed: {done.stdout}{done.stderr}")

    def url(self, database: str = "postgres", user: str = "postgres", **query: str) -> URL:
        return URL.create("postgresql", user, database=database, query={"host": str(self.folder), **query})

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres", "-D", self.folder / "data", "-k", self.folder,
                    *(argument for setting in (
                        "listen_addresses=", "shared_buffers=64MB", "max_connections=60", "autovacuum_naptime=1h", *self._settings
                    ) for argument in ("-c", setting)),
                ],
                user=self._user, group=self._user and pwd.getpwnam(self._user).pw_gid, extra_groups=self._user and [],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it only asks the kernel for a signal
            )  # fmt: skip
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            with suppress(psycopg.OperationalError), psycopg.connect(plain(self.url())):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise NoServerError(
            "postgres did not start: " + (self.folder / "server.log").read_text(encoding="utf-8")[-2_000:]
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT as ``pg_ctl stop -m fast`` does, SIGQUIT as ``-m immediate`` does, as if it had crashed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(WAIT_S)
            self._process = None

    def remove(self) -> None:
        """Stop it and take everything away; a forked child that ends leaves it alone."""
        if os.getpid() == self._owner:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)


class _Named:
    """The server that SICKBAY_POSTGRES names; what is made there is taken away again."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._owner = os.getpid()

    def url(self, database: str = "", user: str = "", **query: str) -> URL:
        named = self._url.set(
            database=database or self._url.database or "postgres", username=user or self._url.username
        )
        return named.update_query_dict(query)


class Server:
    """What tests ask for: fresh databases."""

    def __init__(self, cluster: Cluster | _Named) -> None:
        self.cluster = cluster
        self._prefix = f"sickbay_test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._made: list[str] = []
        self._clean: list[str] = []
        self._owner = os.getpid()
        self._template = ""
        atexit.register(self._drop_all)

    def execute(self, *statements: str, database: str = "") -> list[tuple]:
        """Run statements as the superuser, each in a transaction of its own; return the rows of the last."""
        with psycopg.connect(
            plain(self.cluster.url(database)) if database else plain(self.cluster.url()), autocommit=True
        ) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def empty(self, options: str = "TEMPLATE template0") -> str:
        """Return the URL of a new database with nothing in it."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} {options}")
        self._made.append(name)
        return self.url(name)

    def migrated(self) -> str:
        """Return the URL of a database with the newest schema and no store in it."""
        if self._clean:
            return self._clean.pop()
        if not self._template:
            url = self.empty()
            schema.upgrade(url)
            self._template = make_url(url).database or ""
        return self.empty(f"TEMPLATE {self._template}")

    def url(self, database: str, user: str = "", **query: str) -> str:
        url = self.cluster.url(database, user, **query) if user else self.cluster.url(database, **query)
        return url.render_as_string(hide_password=False)

    def give_back(self, url: str) -> None:
        """Empty a migrated database that nobody uses any more, for the next who asks for one."""
        with psycopg.connect(url, options="-c lock_timeout=10s -c search_path=sickbay") as connection:
            tables = connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'sickbay'::regnamespace AND relkind = 'r'"
            )
            names = {name for (name,) in tables} - {"alembic_version"}
            ours = [table.name for table in reversed(metadata.sorted_tables)]
            statements = [f"DROP TABLE {name}" for name in sorted(names - set(ours))]
            statements += [
                "ALTER TABLE event_log DISABLE TRIGGER ALL",
                *(f"DELETE FROM {name}" for name in ours),
            ]
            statements += [APPEND_ONLY_POSTGRESQL[-2], APPEND_ONLY_POSTGRESQL[-1]]
            connection.execute("; ".join(statements))
        self._clean.append(url)

    def drop(self, url: str) -> None:
        name = make_url(url).database
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        with suppress(ValueError):
            self._made.remove(name)

    def _drop_all(self) -> None:
        if os.getpid() == self._owner and isinstance(self.cluster, _Named):
            for name in self._made:
                self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def plain(url: URL | str) -> str:
    """Return a URL as libpq reads it."""
    return make_url(url).render_as_string(hide_password=False)


@cache
def server() -> Server:
    """Return the server of this run, started at the first use."""
    named = os.environ.get("SICKBAY_POSTGRES")
    # nothing here claims to survive a power cut, so nothing waits for the disk; tests of crashes start a cluster of their own
    return Server(_Named(named) if named else Cluster("fsync=off", "full_page_writes=off"))
