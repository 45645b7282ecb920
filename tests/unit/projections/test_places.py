"""Places of stores: what can be one, what opens it, and what may be shown of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from projections.places import place_of
from sickbay.errors import StoreError


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("a/b.db", "a/b.db"),
        (Path("a") / "b.db", "a/b.db"),
        ("sqlite:///a/b.db", "a/b.db"),
        ("sqlite:////srv/b.db", "/srv/b.db"),
        ("sqlite+pysqlite:///b.db", "b.db"),
    ],
)
def test_a_file_is_shown_as_its_path(given, path):
    """Paths and URLs of SQLite name the same file, and read as it."""
    place = place_of(given)
    assert (path, path, Path(path), False) == (str(place), place.opens, place.path, place.is_postgresql)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_server_is_opened_with_its_password_and_shown_without(scheme):
    """Every word for PostgreSQL opens the same database."""
    place = place_of(f"{scheme}://ana:s3cret@db.example:5433/sickbay?sslmode=require")
    assert "postgresql://ana:***@db.example:5433/sickbay?sslmode=require" == str(place)
    assert "postgresql://ana:s3cret@db.example:5433/sickbay?sslmode=require" == place.opens
    assert (None, True) == (place.path, place.is_postgresql)


def test_secrets_among_the_parameters_are_hidden_too():
    """libpq takes passwords as parameters of a URL."""
    place = place_of("postgresql:///sickbay?host=/run/pg&user=ana&password=s3cret&sslpassword=t0p")
    assert not {"s3cret", "t0p"} & set(str(place).replace("=", "&").split("&"))
    assert {"s3cret", "t0p"} < set(place.opens.replace("=", "&").split("&"))


def test_no_way_of_printing_a_place_shows_its_password():
    """Formatting, joining and repr all give the shown text."""
    place = place_of("postgresql://ana:s3cret@db/sickbay")
    for shown in (f"{place}", f"{place!r}", "%s" % place, place + "", repr([place])):  # noqa: UP031
        assert "ana:***@db/sickbay" in shown
        assert "s3cret" not in shown


def test_another_process_can_open_what_it_is_handed():
    """A worker gets the place by pickle, password included."""
    place = pickle.loads(pickle.dumps(place_of("postgresql://ana:s3cret@db/sickbay")))  # noqa: S301
    assert ("postgresql://ana:***@db/sickbay", "postgresql://ana:s3cret@db/sickbay") == (place, place.opens)
    assert place is place_of(place)


@pytest.mark.parametrize(
    "given",
    [
        "",
        ":memory:",
        "sqlite://",
        "sqlite:///:memory:",
        "a\0b",
        "no such://x",
        "mysql://ana:s3cret@db/sickbay",
        "postgresql+asyncpg://ana:s3cret@db/sickbay",
        "postgresql://ana:s3cret@db:port/sickbay",
        "postgresql://ana:s3@cret@db:port/sickbay",
        "postgresql://ana:s3cret@db",
        "postgresql://ana@db/?password=s3cret",
        "oracle+x://ana:s3cret@db/sickbay?password=s3cret",
    ],
)
def test_what_cannot_be_a_store_is_refused_without_its_password(given):
    """Memory, other databases and broken URLs are refused before anything is opened, and say what to give."""
    with pytest.raises(StoreError, match="give a path") as caught:
        place_of(given)
    assert not {"s3cret", "s3", "cret"} & set(str(caught.value).replace("@", " ").replace(":", " ").split())
    assert "s3cret" not in str(caught.value)
