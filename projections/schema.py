"""Which schema a store has, and the way to the newest: one transaction under the database's own lock.

A second process waits for the first and then finds nothing to do; a crash leaves the old schema whole. Downgrades of the audit
log are refused by the revisions themselves.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from projections.database import create_file, sqlite_engine, store_path, writing
from sickbay.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config

#: The revision that this build reads and writes.
HEAD: Final = "0001"


def revision_of(connection: Connection) -> str | None:
    """Return the schema revision of the database, ``None`` when it is empty.

    Raises StoreError when it holds tables that are not ours.
    """
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
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
    """Bring the schema to the newest inside the caller's writing transaction; return the revision it had."""
    # Alembic costs a tenth of a second to import, and most runs never migrate.
    from alembic import command
    from alembic.util import CommandError

    before = revision_of(connection)
    if before == HEAD:
        return before
    configuration = alembic_configuration()
    configuration.attributes["connection"] = connection
    try:
        command.upgrade(configuration, "head")
    except CommandError as error:
        raise StoreError(
            f"{place} has schema revision {before}, which this build does not know ({error}); use the build that wrote it"
        ) from error
    return before


def upgrade(place: str | os.PathLike[str]) -> str | None:
    """Bring the store at a path or ``sqlite:///`` URL to the newest schema, creating the file if it is missing.

    Returns the revision it had, ``None`` for a new one. Raises StoreError.
    """
    path = store_path(place)
    create_file(path)
    engine = sqlite_engine(path, read_only=False)
    try:
        with writing(engine, str(path)) as connection:
            return upgrade_within(connection, str(path))
    finally:
        engine.dispose()


def alembic_configuration() -> Config:
    """Return Alembic's configuration with the revisions that this build carries; no ini file is needed."""
    from alembic.config import Config

    configuration = Config()
    configuration.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return configuration
