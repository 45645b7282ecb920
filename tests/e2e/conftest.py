"""Stores of the examples, replayed once. A test that writes takes a copy."""

from __future__ import annotations

import sqlite3

import pytest
from cli import EXAMPLE_NAMES, RECORDED_NAMES, example, replay


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Path of a store for each example, and for each recording of a real control plane."""
    folder = tmp_path_factory.mktemp("stores")
    found = {name: folder / f"{name.replace('/', '-')}.db" for name in (*EXAMPLE_NAMES, *RECORDED_NAMES)}
    for name, db in found.items():
        replay(example(name), db=db)
    return found


@pytest.fixture
def copy_of(stores, tmp_path):
    """A function that copies the store of an example."""

    def copy(name):
        target = tmp_path / f"{name}.db"
        source, copied = sqlite3.connect(stores[name]), sqlite3.connect(target)
        source.backup(copied)
        source.close()
        copied.close()
        return target

    return copy
