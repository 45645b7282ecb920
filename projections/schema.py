"""Which schema a store has, and the way to the newest: one transaction under the database's own lock.

A second process waits for the first and then finds nothing to do; a crash leaves the old schema whole. Downgrades of the audit
log are refused by the revisions themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, select, text

from projections import roles
from projections.database import migrating, open_engine, reading
from projections.places import place_of
from projections.postgresql import SCHEMA, is_postgresql
from projections.tables import event_log
from sickbay.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config

#: The revision that this build reads and writes.
HEAD: Final = "0004"
#: The revision before the ledger: whoever wrote such a log decided nothing about it.
_BEFORE_LEDGER: Final = "0001"


def revision_of(connection: Connection) -> str | None:
    """Return the schema revision of the database, ``None`` when it is empty.

    Raises StoreError when it holds tables that are not ours.
    """
    tables = inspect(connection).get_table_names(schema=SCHEMA if is_postgresql(connection) else None)
    if "alembic_version" in tables:
        # by its full name: a schema that the user may not look into is passed over on the search path, as if it were not there
        table = f"{SCHEMA}.alembic_version" if is_postgresql(connection) else "alembic_version"
        revision = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 - constants
        return None if revision is None else str(revision)
    if tables:
        raise StoreError(
            f"the database holds other tables ({', '.join(sorted(tables)[:3])}) and no Sickbay schema; give another path"
        )
    return None


def require_head(connection: Connection, place: str) -> None:
    """Raise StoreError with the way out unless the schema is this build's."""
    revision = revision_of(connection)
    if revision is None:
        raise StoreError(f"{place} has no schema yet; run `sickbay migrate`")
    if revision != HEAD:
        raise StoreError(
            f"{place} has schema revision {revision}, this build needs {HEAD}; run `sickbay migrate`, or use the build that"
            " wrote it if that is newer"
        )


def upgrade_within(connection: Connection, place: str) -> str | None:
    """Bring the schema to the newest inside the caller's ``migrating`` transaction; return the revision it had.

    On PostgreSQL everything is made by the owner of the schema, if there is one, and what is new is given to the roles.
    """
    # Alembic costs a tenth of a second to import, and most runs never migrate.
    from alembic import command
    from alembic.util import CommandError

    before = revision_of(connection)
    if before == HEAD:
        return before
    has_roles = is_postgresql(connection) and roles.prepare_schema(connection)
    configuration = alembic_configuration()
    configuration.attributes["connection"] = connection
    try:
        command.upgrade(configuration, "head")
    except CommandError as error:
        raise StoreError(
            f"{place} has schema revision {before}, which this build does not know ({error}); use the build that wrote it"
        ) from error
    if has_roles:
        roles.grant(connection)
    return before


def upgrade(
    place: str | os.PathLike[str],
    *,
    with_roles: bool = False,
    on_note: Callable[[str], None] = lambda _text: None,
) -> str | None:
    """Bring the store at a path or URL to the newest schema, creating the file of a SQLite store that is missing.

    ``with_roles`` makes the roles of a PostgreSQL store first, and gives each what it may do; done again, it changes nothing.
    ``on_note`` is told, once it is done, what the store does not have for want of events that an older build never wrote.
    Returns the revision it had, ``None`` for a new one. Raises StoreError.
    """
    place = place_of(place)
    if with_roles and not place.is_postgresql:
        raise StoreError(
            f"{place} is a file, and a file has no roles; its permissions decide who may read it"
        )
    engine = open_engine(place, create=True)
    try:
        with (
            migrating(engine, place) as connection,
            roles.created(connection) if with_roles else nullcontext(),
        ):
            before = upgrade_within(connection, place)
            lacks_ledger = before == _BEFORE_LEDGER and _holds_events(connection)
            if with_roles and before == HEAD:
                roles.grant(connection)
    finally:
        engine.dispose()
    if lacks_ledger:
        on_note(
            f"{place}: its log was written before there was a ledger, so the ledger stays empty; replay the recordings into a"
            " new store to have it"
        )
    return before


def check(place: str | os.PathLike[str]) -> None:
    """Return when the store can be reached and has this build's schema, with events in it or not. Raises StoreError."""
    place = place_of(place)
    engine = open_engine(place, read_only=True)
    try:
        with reading(engine, place) as connection:
            require_head(connection, place)
    finally:
        engine.dispose()


def _holds_events(connection: Connection) -> bool:
    return connection.execute(select(event_log.c.log_offset).limit(1)).first() is not None


def alembic_configuration() -> Config:
    """Return Alembic's configuration with the revisions that this build carries; no ini file is needed."""
    from alembic.config import Config

    configuration = Config()
    configuration.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return configuration
