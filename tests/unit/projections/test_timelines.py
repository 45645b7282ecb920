"""Bitemporal intervals, spelled out: what a late decision changes, and what it must leave."""

from __future__ import annotations

import pytest
from log_builder import History, custody, health
from sqlalchemy import select

from projections.audit import AUDIT_VIEWS
from projections.engine import Store
from projections.tables import device_history
from sickbay.decisions import DeviceCleared, DeviceRestricted, DeviceSuspected

NODE, DEVICE = "node-a", "dra:d/p/gpu"


def written(tmp_path, *decisions):
    """Return a store in which the decisions (kind, at_ms, before, after) came in this order, at offsets 1, 3, 5 …"""
    log = History(1)
    for number, (kind, at_ms, before, after) in enumerate(decisions):
        fact = log.fact(health(NODE, DEVICE, at_ms, "Unknown", rv=number))
        log.decide(fact, custody(kind, NODE, DEVICE, at_ms, before, after))
    store = Store.open(tmp_path / "timeline.db", create=True, partitions=1)
    store.write(log.records)
    return store


def intervals(store, **moment):
    view = AUDIT_VIEWS["device-timeline"]
    with store.reading() as connection:
        rows = [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection, **moment)]
    return [(row["phase"], row["valid_from_ms"], row["valid_to_ms"]) for row in rows]


@pytest.fixture
def in_order(tmp_path):
    with written(
        tmp_path,
        (DeviceSuspected, 100, "in_service", "suspect"),
        (DeviceRestricted, 300, "suspect", "restricted"),
        (DeviceCleared, 500, "restricted", "in_service"),
    ) as store:
        yield store


@pytest.fixture
def late(tmp_path):
    """The third decision, known last, is true from before the second."""
    with written(
        tmp_path,
        (DeviceSuspected, 100, "in_service", "suspect"),
        (DeviceRestricted, 300, "suspect", "restricted"),
        (DeviceCleared, 200, "restricted", "in_service"),
    ) as store:
        yield store


def test_decisions_in_order_give_intervals_end_to_end(in_order):
    """Each decision ends the interval before it; the last one is open."""
    expected = [("suspect", 100, 300), ("restricted", 300, 500), ("in_service", 500, None)]
    assert expected == intervals(in_order)


def test_as_of_a_time_nothing_later_has_happened(in_order):
    """The interval that holds the instant has not ended; an interval begins at its first millisecond and not before."""
    assert [] == intervals(in_order, as_of_ms=99)
    assert [("suspect", 100, None)] == intervals(in_order, as_of_ms=100)
    assert [("suspect", 100, None)] == intervals(in_order, as_of_ms=299)
    assert [("suspect", 100, 300), ("restricted", 300, None)] == intervals(in_order, as_of_ms=300)


def test_a_late_decision_replaces_what_was_known_to_follow(late):
    """From its time on it holds; the interval that contained this time ends there, later ones are gone from what is known now."""
    assert [("suspect", 100, 200), ("in_service", 200, None)] == intervals(late)
    assert [("suspect", 100, 200), ("in_service", 200, None)] == intervals(late, as_of_ms=350)


def test_what_was_known_before_a_late_decision_is_still_known_at_its_position(late):
    """At the position before it the later interval stands as it was believed."""
    believed = [("suspect", 100, 300), ("restricted", 300, None)]
    assert believed == intervals(late, known_at={0: 5})
    assert [("suspect", 100, 200), ("in_service", 200, None)] == intervals(late, known_at={0: 6})
    assert [("suspect", 100, 300), ("restricted", 300, None)] == intervals(
        late, known_at={0: 5}, as_of_ms=300
    )
    assert [("suspect", 100, None)] == intervals(late, known_at={0: 5}, as_of_ms=250)


def test_a_position_is_exclusive_and_an_unnamed_partition_was_not_known(late):
    """The event at offset 1 is known when the position is 2; without a position nothing is."""
    assert [] == intervals(late, known_at={0: 1})
    assert [("suspect", 100, None)] == intervals(late, known_at={0: 2})
    assert [] == intervals(late, known_at={})
    assert [] == intervals(late, known_at={7: 100})


def test_two_decisions_at_one_instant_leave_the_last_one(tmp_path):
    """The first of the two has no extent in time; it stays in what was known between them."""
    with written(
        tmp_path,
        (DeviceSuspected, 100, "in_service", "suspect"),
        (DeviceCleared, 100, "suspect", "in_service"),
    ) as store:
        assert [("in_service", 100, None)] == intervals(store)
        assert [("suspect", 100, None)] == intervals(store, known_at={0: 2})


def test_a_decision_before_everything_known_replaces_everything(tmp_path):
    """Nothing is cut, all is replaced, and what was believed remains."""
    with written(
        tmp_path,
        (DeviceSuspected, 100, "in_service", "suspect"),
        (DeviceRestricted, 300, "suspect", "restricted"),
        (DeviceCleared, 50, "restricted", "in_service"),
    ) as store:
        assert [("in_service", 50, None)] == intervals(store)
        with store.reading() as connection:
            rows = connection.execute(
                select(
                    device_history.c.phase,
                    device_history.c.valid_from_ms,
                    device_history.c.valid_to_ms,
                    device_history.c.known_from_offset,
                    device_history.c.known_to_offset,
                ).order_by(device_history.c.known_from_offset, device_history.c.valid_from_ms)
            ).all()
        assert [
            ("suspect", 100, None, 1, 3),
            ("suspect", 100, 300, 3, 5),
            ("restricted", 300, None, 3, 5),
            ("in_service", 50, None, 5, None),
        ] == [tuple(row) for row in rows]


def test_devices_of_one_id_on_two_nodes_do_not_meet(tmp_path):
    """A plugin's id is unique on its node only."""
    log = History(1)
    for node, at_ms in (("node-a", 100), ("node-b", 200)):
        fact = log.fact(health(node, "plugin:r/0", at_ms, "Unknown", rv=at_ms))
        log.decide(fact, custody(DeviceSuspected, node, "plugin:r/0", at_ms, "in_service", "suspect"))
    with Store.open(tmp_path / "nodes.db", create=True, partitions=1) as store:
        for record in log.records:
            store.write([record])
        assert [("suspect", 100, None), ("suspect", 200, None)] == intervals(store)
        assert [("suspect", 200, None)] == intervals(store, where={"node": "node-b"})
