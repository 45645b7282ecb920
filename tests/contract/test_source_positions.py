"""What a store promises to whoever follows Kafka: positions move with the rows, once, by one writer, for one topic."""

from __future__ import annotations

import threading

import pytest
from log_builder import History
from log_scenarios import every_kind
from sqlalchemy import event

from projections.engine import Store, Written
from projections.records import ParkedItem
from projections.sources import Follow, Source, kafka_source_id
from sickbay.errors import FencedError, StoreError
from sickbay.facts import Tick

SOURCE = kafka_source_id("cluster/topic-1")
IDENTITIES = {"facts": "cluster/topic-1", "decisions": "cluster/topic-2", "parked": "cluster/topic-3"}
FACTS, DECISIONS, PARKED = Source("facts", 0), Source("decisions", 0), Source("parked", 0)


def ticks(count, start=0):
    log = History(4, chained=False)
    for number in range(start + count):
        log.fact(Tick(node="", partition=0, observed_at_ms=1_000 * number))
    return log.records[start:]


def offsets(store):
    return {source: offset for source, (_, offset) in store.sources().items()}


@pytest.fixture
def store(open_store):
    """A store that follows three topics, partition 0 of each."""
    store = open_store(source_id=SOURCE)
    store.follow(IDENTITIES, [FACTS, DECISIONS, PARKED])
    return store


def test_a_source_begins_at_the_beginning_and_is_known_afterwards(open_store):
    """Following says where to read; following again says the same, and another partition begins at 0."""
    store = open_store(source_id=SOURCE)
    assert {FACTS: 0} == store.follow(IDENTITIES, [FACTS])
    store.write(ticks(2), follows=[Follow("facts", 0, 0, 2)])
    other = Source("facts", 3)
    assert {FACTS: 2, other: 0} == store.follow(IDENTITIES, [other, FACTS])
    assert {FACTS: ("cluster/topic-1", 2), other: ("cluster/topic-1", 0)} == store.sources()
    assert {} == store.follow(IDENTITIES, [])


def test_rows_and_source_positions_move_together(store):
    """One transaction moves the log, the read models and every topic that was read."""
    follows = [Follow("facts", 0, 0, 2), Follow("decisions", 0, 0, 5)]
    assert Written(3, 0, 0) == store.write(ticks(3), follows=follows)
    assert {FACTS: 2, DECISIONS: 5, PARKED: 0} == offsets(store)
    assert 3 == store.positions()[0].next_offset


def test_a_batch_without_rows_moves_the_positions(store):
    """Facts that were parked or superseded leave no event, and are not read again; a partition without events stays without."""
    assert Written(0, 0, 0) == store.write(
        [], follows=[Follow("facts", 0, 0, 7), Follow("decisions", 0, 0, 7)]
    )
    assert {FACTS: 7, DECISIONS: 7, PARKED: 0} == offsets(store)
    assert {} == store.positions()


def test_dead_letters_have_a_position_of_their_own(store):
    """They are kept once, however often they come."""
    letter = ParkedItem("sickbay.facts/0@3", "not JSON", b"{")
    store.write([], park=[letter, letter], follows=[Follow("parked", 0, 0, 2)])
    store.write([], park=[letter], follows=[Follow("parked", 0, 2, 3)])
    assert 3 == offsets(store)[PARKED]
    with store.reading() as connection:
        assert 1 == len(connection.exec_driver_sql("SELECT seq FROM parked").all())


def test_digests_do_not_depend_on_what_is_followed(open_store, store):
    """A log has the same digests whether it came from Kafka or from a recording."""
    records = every_kind(chained=False).records
    embedded = open_store()
    embedded.write(records)
    store.write(records, follows=[Follow("facts", 0, 0, 9)])
    assert embedded.digests() == store.digests()


@pytest.mark.parametrize("before", [0, 1, 3, 9])
def test_a_writer_that_believes_another_position_writes_nothing(store, before):
    """Whoever was replaced meanwhile is told so; neither rows nor dead letters nor any position of its batch stay."""
    store.write(ticks(2), follows=[Follow("facts", 0, 0, 2)])
    known = store.digests(), offsets(store)
    with pytest.raises(FencedError, match=f"another projector moved facts 0 from offset {before}"):
        store.write(
            ticks(1, 2),
            park=[ParkedItem("x", "y", b"z")],
            follows=[Follow("decisions", 0, 0, 4), Follow("facts", 0, before, 10)],
        )
    assert known == (store.digests(), offsets(store))
    with store.reading() as connection:
        assert [] == connection.exec_driver_sql("SELECT seq FROM parked").all()


def test_a_source_that_nobody_followed_is_not_moved(store):
    """A writer asks first where to read."""
    with pytest.raises(FencedError):
        store.write([], follows=[Follow("facts", 2, 0, 1)])


def test_of_two_writers_that_meet_one_writes(store):
    """Two that begin at the same position at the same time: one wins, the other is refused, and nothing is doubled."""
    results = []
    ready = threading.Barrier(2)

    def write():
        with Store.open(store.place) as own:
            records = ticks(3)
            ready.wait(20)
            try:
                results.append(own.write(records, follows=[Follow("facts", 0, 0, 3)]))
            except FencedError:
                results.append("fenced")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [Written(3, 0, 0), "fenced"] == sorted(results, key=str)
    assert 3 == store.positions()[0].next_offset


def test_records_that_do_not_continue_the_log_are_refused(store):
    """Somebody wrote into the log beside the topics: its offsets are not theirs any more, and nothing is skipped in silence."""
    store.write(ticks(2))
    for records in (ticks(3), ticks(1, 3)):
        with pytest.raises(StoreError, match="ends before offset 2, and the topics lead to"):
            store.write(records, follows=[Follow("facts", 0, 0, 3)])
    assert 0 == offsets(store)[FACTS]


@pytest.mark.parametrize("role", ["facts", "decisions", "parked"])
def test_a_topic_that_was_made_again_is_refused(store, role):
    """Offsets mean nothing in a topic of another identity, whatever its name; the error says what to do."""
    store.write(ticks(1), follows=[Follow("facts", 0, 0, 1)])
    again = IDENTITIES | {role: "cluster/topic-9"}
    with pytest.raises(StoreError, match="cluster/topic-9 under its name: the topic was made again"):
        store.follow(again, [FACTS, DECISIONS, PARKED])
    assert {FACTS: 1, DECISIONS: 0, PARKED: 0} == store.follow(IDENTITIES, [FACTS, DECISIONS, PARKED])


def test_a_store_follows_one_topic(open_store, store):
    """Another cluster, a topic that was made again, and a store of recordings are each refused, with the way out."""
    with pytest.raises(StoreError, match="made again, or this is another cluster; give the old cluster"):
        open_store(store.place, source_id=kafka_source_id("cluster/topic-9"))
    embedded = open_store()
    with pytest.raises(
        StoreError, match=r"'embedded' and not 'kafka:cluster/topic-1'.*give another database"
    ):
        open_store(embedded.place, source_id=SOURCE)


def test_a_crash_before_any_statement_leaves_rows_and_positions_together(open_store, store):
    """Wherever the transaction ends, the next writer finds the positions of what is there."""

    class CrashError(BaseException):
        """What no code of ours catches."""

    follows = [Follow("facts", 0, 0, 3), Follow("decisions", 0, 0, 2)]
    for nth in range(1, 100):
        crashing = open_store(store.place)
        seen = 0

        def statement(*_args, at=nth):
            nonlocal seen
            seen += 1
            if seen == at:
                raise CrashError

        event.listen(crashing.engine, "before_cursor_execute", statement)
        event.listen(crashing.engine, "commit", statement)
        try:
            crashing.write(ticks(3), follows=follows)
        except CrashError:
            assert ({}, {FACTS: 0, DECISIONS: 0, PARKED: 0}) == (store.positions(), offsets(store))
        else:
            break
        crashing.close()
    assert 5 < nth < 99
    assert {FACTS: 3, DECISIONS: 2, PARKED: 0} == offsets(store)
