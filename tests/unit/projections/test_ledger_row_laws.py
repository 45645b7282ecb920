"""Laws of the ledger's read models, on each database: what holds for every log, however it was cut, and at every moment.

The other side of each comparison is a walk over the log in plain Python.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_scenarios import GPU, MINUTE, tell
from log_builder import History, drift, entry, posted, reversed_at, verdict
from postgresql import server

from projections.audit import AUDIT_VIEWS
from projections.engine import LEDGER, Store
from projections.rebuild import rebuild
from sickbay.decisions import (
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    EntryPosted,
    EntryReversed,
    Hold,
)
from sickbay.quantity import parse

NODES = ("node-a", "node-b", "node-c")
VIEWS = sorted(name for name in AUDIT_VIEWS if name.startswith("ledger-"))
BOOKS = ("common", "recorded", "derived", "devices", "counters")
ACCOUNTS = ("supply", "pods", "claims", "overhead", "adjustment")
#: Finer than a millicore, finer than a byte, beyond 64 bits in nano-units, and below nothing.
QUANTITIES = ("1500500u", "2Gi", "3500m", "7", "1n", "9Pi", "-250500u")
LAWS = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)

steps = st.lists(
    st.tuples(
        st.sampled_from(NODES),
        st.sampled_from(
            ["entry", "entry", "entry", "end", "refuse", "withdraw", "verdict", "drift", "clear"]
        ),
        st.integers(0, 9),
        st.integers(0, 20),
    ),
    max_size=25,
)


@pytest.fixture(params=["postgresql", "sqlite"])
def open_store(request, tmp_path):
    """Return a function that opens a new store of four partitions; all are closed at the end."""
    opened, made = [], []

    def open_one():
        if request.param == "sqlite":
            place = tmp_path / f"store-{next(numbers)}.db"
        else:
            place = server().migrated()
            made.append(place)
        opened.append(Store.open(place, create=True, partitions=4))
        return opened[-1]

    numbers = itertools.count()
    yield open_one
    for store in opened:
        store.close()
    for place in made:
        server().drop(place)


def log_of(found):
    """Turn steps into a log; an entry under a key that stands takes the place of the one before, as the ledger decides it."""
    log, standing = History(4), {}
    for number, (node, happening, minute, choice) in enumerate(found):
        at_ms = minute * MINUTE + number
        book, account = BOOKS[choice % 5], ACCOUNTS[choice % 4 + (choice > 16)]
        key = f"key/{choice % 3}"
        resource = ("cpu", "memory")[choice % 2] if book in BOOKS[:3] else f"{GPU}/{node}:devices"
        lines = [
            (resource, QUANTITIES[(choice + number) % 7], bucket) for bucket in ("0", "unknown")[choice % 2 :]
        ]
        made = entry(book, key, account, at_ms, *lines, namespace="team", claim_uid=f"uid-{choice % 2}")
        place = (node, book, key)
        difference = drift("team", f"claim-{choice % 2}", ("unexplained", "not_counted")[choice % 3 == 0])
        match happening:
            case "entry" | "end":
                decisions = []
                if place in standing:
                    decisions.append(reversed_at(node, at_ms, standing.pop(place)))
                if happening == "entry":
                    standing[place] = made
                    decisions.append(posted(node, made))
            case "refuse" | "withdraw":
                kind = DuplicateRefused if happening == "refuse" else DuplicateWithdrawn
                decisions = [kind(node=node, at_ms=at_ms, entry=made, contender=f"pod-{choice % 2}")]
            case "verdict":
                holds = [
                    Hold(reason="driver_rebuilding", scope=f"{GPU}/{node}", since_ms=at_ms - choice),
                    Hold(reason="watch_gap", scope="pods", since_ms=at_ms),
                    Hold(reason="watch_gap", scope="pods", since_ms=at_ms + 1),
                ][: choice % 4]
                decisions = [
                    verdict(
                        node,
                        at_ms,
                        *holds,
                        node_class=("canary", "stable")[choice % 2],
                        drivers=(GPU, "nic.example.com")[: choice % 3],
                    )
                ]
            case "drift":
                decisions = [DriftFound(node=node, at_ms=at_ms, drift=difference)]
            case _:
                decisions = [DriftCleared(node=node, at_ms=at_ms, drift=difference)]
        tell(log, node, number * MINUTE, *decisions)
    return log.records, standing


def moments(records, store):
    """Some instants, some positions, and both."""
    nexts = {partition: position.next_offset for partition, position in store.positions().items()}
    positions = [None, *(nexts | {record.partition: record.offset} for record in records[-8::3])]
    return [(as_of_ms, known_at) for as_of_ms in (None, 150_000, 400_000) for known_at in positions]


def naive_sums(records, as_of_ms, known_at, *, by_numa):
    """Add up nano-units by place and account, and leave out what is nothing."""
    sums = Counter()
    for record in records:
        event = record.event
        if not isinstance(event, EntryPosted | EntryReversed):
            continue
        at_ms, sign = event.entry.at_ms, 1
        if isinstance(event, EntryReversed):
            at_ms, sign = max(at_ms, event.at_ms), -1
        if known_at is not None and record.offset >= known_at.get(record.partition, 0):
            continue
        if as_of_ms is not None and at_ms > as_of_ms:
            continue
        book = event.entry.book
        for line in event.entry.amounts:
            for shown in ("recorded", "derived") if book == "common" else (book,):
                place = (event.node, shown, line.resource)
                place += (line.numa,) if by_numa else ()
                sums[place, event.entry.account] += sign * parse(line.quantity).nano
    return {place: nano for place, nano in sums.items() if nano}


def balances(connection, as_of_ms, known_at, name, keys):
    """Read the answer back into nano-units, and hold ``used`` and ``free`` against the accounts."""
    view, found = AUDIT_VIEWS[name], {}
    for cells in view.rows(connection, as_of_ms=as_of_ms, known_at=known_at):
        row = dict(zip(view.columns, cells, strict=True))
        nano_per_unit = 10**6 if row["unit"] == "millicores" else 10**9
        nano = {
            column: row[column] * nano_per_unit + row[f"{column}_rest_nano"]
            for column in (*ACCOUNTS, "used", "free")
            if column in row
        }
        assert all(0 <= row[f"{column}_rest_nano"] < nano_per_unit for column in nano)
        assert nano["used"] == sum(nano[account] for account in ACCOUNTS[1:])
        assert "free" not in nano or nano["free"] == nano["supply"] - nano["used"]
        place = tuple(row.get(key, "derived") for key in keys)
        assert any(nano[account] for account in ACCOUNTS)
        found |= {(place, account): nano[account] for account in ACCOUNTS if nano[account]}
    return found


@LAWS
@given(found=steps)
def test_balances_are_the_sum_of_what_was_true_and_known(open_store, found):
    """For every instant and position, exact to the nano-unit; the NUMA buckets add up to the derived book."""
    (records, _), store = log_of(found), open_store()
    store.write(records)
    with store.reading() as connection:
        for as_of_ms, known_at in moments(records, store):
            expected = naive_sums(records, as_of_ms, known_at, by_numa=False)
            keys = ("node", "book", "resource")
            assert expected == balances(connection, as_of_ms, known_at, "ledger-balances", keys)
            expected = {
                place: nano
                for place, nano in naive_sums(records, as_of_ms, known_at, by_numa=True).items()
                if place[0][1] == "derived"
            }
            keys = (*keys, "numa")
            assert expected == balances(connection, as_of_ms, known_at, "ledger-numa", keys)
    store.close()


@LAWS
@given(found=steps, data=st.data())
def test_cuts_redelivery_and_a_rebuild_do_not_show(open_store, found, data):
    """Any cut into batches leaves the rows of one write, and so does a rebuild from the log."""
    (records, _), clean, cut = log_of(found), open_store(), open_store()
    clean.write(records)
    written = 0
    while written < len(records):
        start = data.draw(st.integers(0, written), label="redelivered from")
        stop = data.draw(st.integers(written + 1, len(records)), label="up to")
        cut.write(records[start:stop])
        written = stop
    assert clean.digests() == cut.digests()
    assert [] == rebuild(clean, LEDGER, batch_events=3).differing
    assert clean.digests() == cut.digests()
    clean.close()
    cut.close()


@LAWS
@given(found=steps)
def test_what_was_known_at_a_position_is_what_a_shorter_log_says_now(open_store, found):
    """Each view, asked at a position, answers as a store that stopped there; and SQL answers as the register."""
    (records, _), whole, short = log_of(found), open_store(), open_store()
    whole.write(records)
    short.write(records[: len(records) // 2])
    known_at = {partition: position.next_offset for partition, position in short.positions().items()}
    with whole.reading() as ours, short.reading() as theirs:
        for name in VIEWS:
            view = AUDIT_VIEWS[name]
            expected = list(view.rows(theirs))
            assert expected == list(view.rows(ours, known_at=known_at)), name
            answered = theirs.exec_driver_sql(f"SELECT * FROM {view.sql_name}")
            assert sorted(map(repr, expected)) == sorted(repr(tuple(row)) for row in answered), name
    whole.close()
    short.close()


@LAWS
@given(found=steps)
def test_the_entries_that_stand_are_those_posted_and_not_reversed(open_store, found):
    """One row for each key of each node, with the newest content."""
    (records, standing), store = log_of(found), open_store()
    store.write(records)
    view = AUDIT_VIEWS["ledger-entries"]
    with store.reading() as connection:
        rows = [dict(zip(view.columns, row, strict=True)) for row in view.rows(connection)]
    assert {place: (made.account, made.at_ms) for place, made in standing.items()} == {
        (row["node"], row["book"], row["entry_key"]): (row["account"], row["posted_at_ms"]) for row in rows
    }
    store.close()
