"""What every contract test gets: stores on each database that Sickbay supports.

A further database is one more entry of ``PLACES``.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
from postgresql import server

from projections import schema
from projections.engine import CUSTODY, LEDGER, Store


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """One SQLite file with the newest schema and nothing in it; copying it is ten times faster than migrating anew."""
    path = tmp_path_factory.mktemp("schema") / "migrated.db"
    schema.upgrade(path)
    return path


class SqlitePlaces:
    """Files."""

    def __init__(self, tmp_path, migrated):
        self._numbers, self._folder, self._migrated = itertools.count(), tmp_path, migrated

    def __call__(self):
        path = self._folder / f"store-{next(self._numbers)}.db"
        shutil.copy(self._migrated, path)
        return f"sqlite:///{path}"

    def give_back(self, _place):
        return

    def close(self):
        return


class PostgresqlPlaces:
    """Databases of the test server, emptied and used again: making one takes longer than most tests."""

    def __init__(self, _tmp_path, _migrated):
        self._taken = []

    def __call__(self):
        self._taken.append(server().migrated())
        return self._taken[-1]

    def give_back(self, place):
        self._taken.remove(place)
        server().give_back(place)

    def close(self):
        for place in list(self._taken):
            self.give_back(place)


PLACES = {"postgresql": PostgresqlPlaces, "sqlite": SqlitePlaces}


@pytest.fixture(params=sorted(PLACES))
def new_place(request, tmp_path, migrated):
    """Return a function that names a fresh database with the schema and no store in it."""
    places = PLACES[request.param](tmp_path, migrated)
    yield places
    places.close()


@pytest.fixture
def done(new_place):
    """Return a function that closes stores that ``open_store`` made and gives their databases away."""

    def close_all(*stores):
        for store in stores:
            store.close()
            new_place.give_back(store.place.opens)

    return close_all


@pytest.fixture
def open_store(new_place):
    """Return a function that opens a store, by default a new one of four partitions; all are closed at the end."""
    opened: list[Store] = []

    def open_one(place=None, *, create=True, partitions=4, projections=(CUSTODY, LEDGER), **options):
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
