"""What every contract test gets: stores on each database that Sickbay supports.

A further database is one more entry of ``PLACES``.
"""

from __future__ import annotations

import itertools
import shutil

import pytest

from projections import schema
from projections.engine import CUSTODY, Store


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """One SQLite file with the newest schema and nothing in it; copying it is ten times faster than migrating anew."""
    path = tmp_path_factory.mktemp("schema") / "migrated.db"
    schema.upgrade(path)
    return path


def sqlite_places(tmp_path, migrated):
    """Yield URLs of fresh databases."""
    for number in itertools.count():
        path = tmp_path / f"store-{number}.db"
        shutil.copy(migrated, path)
        yield f"sqlite:///{path}"


PLACES = {"sqlite": sqlite_places}


@pytest.fixture(params=sorted(PLACES))
def new_place(request, tmp_path, migrated):
    """Return a function that names a fresh database with the schema and no store in it."""
    places = PLACES[request.param](tmp_path, migrated)
    return lambda: next(places)


@pytest.fixture
def open_store(new_place):
    """Return a function that opens a store, by default a new one of four partitions; all are closed at the end."""
    opened: list[Store] = []

    def open_one(place=None, *, create=True, partitions=4, projections=(CUSTODY,), **options):
        store = Store.open(
            new_place() if place is None else place,
            create=create,
            partitions=partitions,
            projections=projections,
            **options,
        )
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
