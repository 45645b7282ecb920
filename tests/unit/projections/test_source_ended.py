"""Nobody may write after a source before it was read to its end."""

from __future__ import annotations

import pytest
from facts_of import NODE, hold, plugin

from projections.engine import Store
from sickbay.cli.requesting import ask
from sickbay.errors import StoreError


def test_a_request_to_a_store_whose_replay_was_interrupted_is_refused(tmp_path):
    """It would take the offsets of events that are still to come; after the end it is written."""
    with Store.open(tmp_path / "store.db", create=True) as store:
        with pytest.raises(StoreError, match="run the replay again"):
            ask(store, NODE, hold(plugin(0), 1_000, 5_000))
        assert {} == store.positions()

        store.end_source()

        assert store.source_ended
