"""A store with every kind of decision in it, on each database, read by the questions of this package."""

from __future__ import annotations

import pytest
from databases import DATABASES, places
from log_scenarios import every_kind

from projections.engine import Store


@pytest.fixture(scope="session")
def history():
    """The small log that meets every kind of decision once."""
    return every_kind()


@pytest.fixture(scope="session", params=DATABASES)
def store(request, history, tmp_path_factory):
    """A store that holds it; tests only read."""
    with (
        places(request.param, tmp_path_factory.mktemp("store")) as place,
        Store.open(place("every-kind"), create=True, partitions=4) as opened,
    ):
        opened.write(history.records)
        if request.param == "postgresql":  # as autovacuum leaves a store, whenever it comes; plans hang on it
            with opened.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM (ANALYZE)")
        yield opened


@pytest.fixture
def connection(store):
    """One snapshot of the store."""
    with store.reading() as opened:
        yield opened


@pytest.fixture(params=DATABASES)
def own_store(request, history, tmp_path):
    """A store of the test's own, to be spoiled."""
    with (
        places(request.param, tmp_path) as place,
        Store.open(place("own"), create=True, partitions=4) as opened,
    ):
        opened.write(history.records)
        yield opened
