"""A store with every kind of decision in it, read by the questions of this package."""

from __future__ import annotations

import pytest
from log_scenarios import every_kind

from projections.engine import Store


@pytest.fixture(scope="session")
def history():
    """The small log that meets every kind of decision once."""
    return every_kind()


@pytest.fixture(scope="session")
def store(history, tmp_path_factory):
    """A store that holds it; tests only read."""
    with Store.open(tmp_path_factory.mktemp("store") / "every-kind.db", create=True, partitions=4) as opened:
        opened.write(history.records)
        yield opened


@pytest.fixture
def connection(store):
    """One snapshot of the store."""
    with store.reading() as opened:
        yield opened


@pytest.fixture
def own_store(history, tmp_path):
    """A store of the test's own, to be spoiled."""
    with Store.open(tmp_path / "own.db", create=True, partitions=4) as opened:
        opened.write(history.records)
        yield opened
