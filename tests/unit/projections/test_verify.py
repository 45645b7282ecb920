"""Verification of a store on disk: tampering by somebody who owns the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from projections.chain import first_head, next_hash
from projections.engine import Store
from projections.tables import checkpoint, device_current, event_log
from projections.verify import verify_log, verify_replay
from sickbay.errors import VerifyError

UNGUARDED = {
    "sqlite": (
        "DROP TRIGGER IF EXISTS event_log_no_update",
        "DROP TRIGGER IF EXISTS event_log_no_delete",
    ),
    "postgresql": ("ALTER TABLE event_log DISABLE TRIGGER ALL",),
}


def tamper(store, *statements):
    """Change the log as its owner can: without the triggers."""
    with store.engine.begin() as connection:
        for statement in UNGUARDED[connection.dialect.name]:
            connection.exec_driver_sql(statement)
        for statement in statements:
            connection.execute(statement)


def check(store, anchors=None):
    with store.reading() as connection:
        return verify_log(connection, anchors)


def busiest(history):
    return max(
        range(4), key=lambda partition: sum(record.partition == partition for record in history.records)
    )


def at(partition, offset):
    return sa.and_(event_log.c.partition_number == partition, event_log.c.log_offset == offset)


def test_an_untouched_store_verifies(own_store, history):
    """Every event is counted, with and without an anchor at every position it ever had."""
    counts = check(own_store)
    assert len(history.records) == sum(counts.values())
    assert counts == check(own_store, own_store.positions())


def test_tampering_at_any_place_is_found(own_store, history):
    """Delete, change and swap at every offset of a partition; each is undone by a rollback."""
    partition = busiest(history)
    count = check(own_store)[partition]
    tamper(own_store)
    for offset in range(count):
        row = own_store.read(partition, offset, 1)
        data = next(iter(row)).data
        forged = data.replace(b'"sickbay"', b'"mallory"', 1)
        changes = [
            [sa.delete(event_log).where(at(partition, offset))],
            [sa.update(event_log).where(at(partition, offset)).values(data=data[:-1] + b" }")],
            [sa.update(event_log).where(at(partition, offset)).values(data=forged, actor="mallory")],
        ]
        if offset + 1 < count:
            changes.append(
                [
                    sa.update(event_log).where(at(partition, offset)).values(log_offset=10_000),
                    sa.update(event_log).where(at(partition, offset + 1)).values(log_offset=offset),
                    sa.update(event_log).where(at(partition, 10_000)).values(log_offset=offset + 1),
                ]
            )
        for change in changes:
            with own_store.engine.connect() as connection, connection.begin() as transaction:
                for statement in change:
                    connection.execute(statement)
                if forged == data and change is changes[2]:
                    transaction.rollback()
                    continue
                with pytest.raises(VerifyError):
                    verify_log(connection)
                transaction.rollback()
    assert count == check(own_store)[partition]


def test_what_another_client_of_a_file_replaces_is_found(tmp_path, history):
    """A replacing INSERT passes the trigger where recursive triggers are off, as they are unless asked for; the chain shows it."""
    path = tmp_path / "replaced.db"
    with Store.open(path, create=True, partitions=4) as store:
        store.write(history.records)
    place = "SELECT * FROM event_log WHERE partition_number = ? AND log_offset = 1"
    names = [column.name for column in event_log.columns]
    with closing(sqlite3.connect(path)) as other, other:
        row = list(other.execute(place, (busiest(history),)).fetchone())
        row[names.index("data")] = row[names.index("data")][:-1] + b" }"
        other.execute(f"INSERT OR REPLACE INTO event_log VALUES ({', '.join('?' * len(row))})", row)
    with Store.open(path, read_only=True) as store, pytest.raises(VerifyError):
        check(store)


@pytest.mark.parametrize(
    ("column", "value"),
    [("kind", "tick"), ("at_ms", 1), ("device_id", "dra:x/y/z"), ("policy", "p"), ("causation_id", "c")],
)
def test_a_column_that_does_not_say_what_the_event_says_is_found(own_store, history, column, value):
    """The chain covers the bytes; the columns are compared with the bytes."""
    partition = busiest(history)
    tamper(own_store, sa.update(event_log).where(at(partition, 7)).values({column: value}))
    with pytest.raises(VerifyError, match=rf"partition {partition} offset 7: {column} do not say"):
        check(own_store)


def test_bytes_that_are_no_event_are_found(own_store, history):
    """A row that cannot be decoded is named."""
    partition = busiest(history)
    tamper(own_store, sa.update(event_log).where(at(partition, 3)).values(data=b"\xff\xfe"))
    with pytest.raises(VerifyError, match="offset 3: the bytes are not an event"):
        check(own_store)


def test_a_partition_without_a_checkpoint_is_found(own_store, history):
    """Events that no position covers."""
    tamper(own_store, sa.delete(checkpoint).where(checkpoint.c.partition_number == busiest(history)))
    with pytest.raises(VerifyError, match="has events and no checkpoint"):
        check(own_store)


def test_a_history_rewritten_with_its_checkpoint_is_found_by_an_anchor_only(own_store, history):
    """Whoever owns the file can chain anew; a head that was kept elsewhere shows it, whether the tail is cut or replaced."""
    partition = busiest(history)
    anchors = own_store.positions()
    kept = [record for record in own_store.read(partition) if record.offset < 5]
    head = first_head(partition)
    for record in kept:
        head = next_hash(head, record.data)
    tamper(
        own_store,
        sa.delete(event_log).where(event_log.c.partition_number == partition, event_log.c.log_offset >= 5),
        sa.update(checkpoint)
        .where(checkpoint.c.partition_number == partition)
        .values(next_offset=5, chain_head=head),
    )
    assert 5 == check(own_store)[partition]
    with pytest.raises(VerifyError, match="history was rewritten"):
        check(own_store, anchors)


def test_an_anchor_in_the_middle_is_passed_through(own_store, history):
    """An old position stays true while the log grows; a false one does not."""
    partition = busiest(history)
    records = list(own_store.read(partition))
    old = own_store.positions()[partition]._replace(next_offset=5, chain_head=records[4].chain)
    assert len(records) == check(own_store, {partition: old})[partition]
    with pytest.raises(VerifyError, match="before offset 5 the head is"):
        check(own_store, {partition: old._replace(chain_head=records[5].chain)})


def test_an_anchored_partition_that_is_gone_is_found(own_store, history):
    """Removing a partition whole, with its checkpoint, leaves nothing to disagree but the anchor."""
    partition, anchors = busiest(history), own_store.positions()
    tamper(
        own_store,
        sa.delete(event_log).where(event_log.c.partition_number == partition),
        sa.delete(checkpoint).where(checkpoint.c.partition_number == partition),
    )
    with pytest.raises(VerifyError, match=f"partition {partition} is anchored and has no events"):
        check(own_store, anchors)


def test_a_replay_of_the_log_gives_the_same_rows(own_store, tmp_path):
    """Every digest agrees with a store that was written from this log."""
    digests = verify_replay(own_store, tmp_path / "scratch.db")
    assert digests == own_store.digests()


def test_rows_that_were_changed_by_hand_are_named_by_the_replay(own_store, tmp_path):
    """The table, not only that something differs."""
    with own_store.engine.begin() as connection:
        connection.execute(sa.update(device_current).values(phase="in_service"))
    with pytest.raises(VerifyError, match="device_current differ from a replay of the log"):
        verify_replay(own_store, tmp_path / "scratch.db")


def test_repeats_at_the_end_do_not_look_like_a_difference(own_store, history, tmp_path):
    """A position behind a dropped repeat is still the position of the same rows."""
    partition = busiest(history)
    first = next(iter(own_store.read(partition, 0, 1)))
    position = own_store.positions()[partition].next_offset
    own_store.write([first._replace(offset=position, chain=b"")])
    assert verify_replay(own_store, tmp_path / "scratch.db") == own_store.digests()
