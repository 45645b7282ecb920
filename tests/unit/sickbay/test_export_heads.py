"""The chain heads that an export names are those of the log at the positions that were asked for."""

from __future__ import annotations

import pytest
from facts_of import T0, tick
from log_builder import History

from projections.chain import first_head
from projections.engine import Store
from sickbay.cli.exporting import _head


@pytest.fixture
def store(tmp_path):
    """Three events at the offsets 0, 1 and 500: what lies between was dropped as repeats."""
    history = History(1)
    for number in range(3):
        history.fact(tick(T0 + number))
    first, second, third = (record._replace(chain=b"") for record in history.records)
    with Store.open(tmp_path / "log.db", create=True, partitions=1) as store:
        store.write([first, second, third._replace(offset=500)])
        yield store, [record.chain for record in history.records]


@pytest.mark.parametrize(
    ("offset", "index"), [(1, 0), (2, 1), (70, 1), (499, 1), (500, 1), (501, 2), (600, 2)]
)
def test_the_head_is_that_of_the_last_event_before_the_offset(store, offset, index):
    """However far back that is."""
    opened, heads = store
    assert heads[index] == _head(opened, 0, offset)


def test_before_the_first_event_stands_the_beginning_of_the_chain(store):
    opened, _ = store
    assert first_head(0) == _head(opened, 0, 0)
