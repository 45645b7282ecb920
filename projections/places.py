"""Where a store is: the path of a SQLite file or the URL of a PostgreSQL database, told apart from how it may be shown.

Error texts, logs and answers name the place of a store all the time, and a URL may hold a password. So a ``Place`` *is* the text
that may be shown, and carries beside it what opens the store.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Self

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from sickbay.errors import StoreError

_HIDDEN: Final = "***"
#: Parameters of a URL that are secrets, as libpq names them.
_SECRETS: Final = frozenset({"password", "sslpassword"})
#: Words for PostgreSQL that other programs use in URLs and SQLAlchemy does not know.
_ALIASES: Final = re.compile(r"^(postgres|postgresql\+psycopg)(?=://)")
_FORMS: Final = "give a path, sqlite:///path or postgresql://user@host/database"


class Place(str):
    """The place of a store, as it may be shown; ``opens`` is what opens it, password included, and is never printed."""

    __slots__ = ("opens",)
    opens: str

    def __new__(cls, shown: str, opens: str) -> Self:
        """Pair the two."""
        self = super().__new__(cls, shown)
        self.opens = opens
        return self

    def __reduce__(self) -> tuple[type[Place], tuple[str, str]]:
        """Let another process have it: a worker opens the store that its parent opened."""
        return Place, (str(self), self.opens)

    @property
    def path(self) -> Path | None:
        """The file, when it is SQLite."""
        return None if self.is_postgresql else Path(self.opens)

    @property
    def is_postgresql(self) -> bool:
        """Whether it is a PostgreSQL database."""
        return self.opens.startswith("postgresql://")


def place_of(place: str | os.PathLike[str]) -> Place:
    """Return the place that a path, a ``sqlite:///`` or a ``postgresql://`` URL names.

    Raises StoreError for a URL of another database, a URL without a database, and a database in memory, which no second
    process could read. No password is echoed.
    """
    if isinstance(place, Place):
        return place
    text = os.fspath(place)
    if "\0" not in text and "://" in text:
        url = _parsed(text)
        if url.get_backend_name() == "postgresql":
            return _postgresql_place(url)
        text = url.database or ""
    if text in {"", ":memory:"} or "\0" in text:
        raise StoreError(f"{text!r} is not a place for a store; {_FORMS}")
    # A relative path means the same file for as long as the process stays where it is, and reads as it was given.
    path = str(Path(text))
    return Place(path, path)


def _parsed(text: str) -> URL:
    shown = re.sub(r"://.*@", f"://{_HIDDEN}@", re.sub(r"\?.*", "", text))
    try:
        url = make_url(_ALIASES.sub("postgresql", text))
        backend, driver = url.get_backend_name(), url.get_driver_name()
    except (ArgumentError, ValueError) as error:
        # The driver's own words may quote what was given, so they are not passed on.
        raise StoreError(f"{shown!r} is not a database URL; {_FORMS}") from error
    if backend not in {"sqlite", "postgresql"} or (backend, driver) == ("postgresql", "asyncpg"):
        raise StoreError(f"{shown}: this build writes SQLite and PostgreSQL (by psycopg); {_FORMS}")
    return url


def _postgresql_place(url: URL) -> Place:
    opens = url.set(drivername="postgresql")
    secrets = {name: _HIDDEN for name in url.query if name in _SECRETS}
    shown = opens.update_query_dict(secrets).render_as_string(hide_password=True)
    if not opens.database:
        raise StoreError(f"{shown} names no database; {_FORMS}")
    return Place(shown, opens.render_as_string(hide_password=False))
