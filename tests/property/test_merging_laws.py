"""Facts and answers merge into one log, which depends on the two topics and on nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from topic_histories import PARTITION, answer, topics

from projections.merging import Limits, MergePosition, Merger

TINY = Limits(records=2, bytes=1_000_000)
LARGE = Limits()


def bytes_of(records):
    return [(record.offset, record.data) for record in records]


def expected(made, events=None):
    return list(enumerate(made.log[:events]))


def give(merger, made, facts_to, answers_to):
    """Give every record up to two places, in the order that needs no waiting room."""
    for offset in range(merger.next_facts_fetch, facts_to):
        merger.fact(offset, *made.facts[offset])
    for offset in range(merger.next_answers_fetch, answers_to):
        merger.answer(offset, *made.answers[offset])


def drained(merger, events_max=1_000_000):
    out = []
    while merger.ready:
        out += merger.take(events_max, 1_000_000_000).records
    return out


@given(topics(), st.data())
def test_any_interleaving_any_cut_and_any_restart_give_one_log(made, data):
    """Records come in any order of the topics and are taken in pieces of any size; at any time a new merge goes on instead."""
    limits = data.draw(st.sampled_from([TINY, LARGE]))
    merger, out = Merger(PARTITION, limits=limits), []
    while merger.position.next_facts_offset < len(made.facts):
        facts_left = merger.wants_facts and merger.next_facts_fetch < len(made.facts)
        answers_left = merger.wants_answers and merger.next_answers_fetch < len(made.answers)
        steps = []
        if facts_left:
            steps += ["fact"] * 6
        if answers_left:
            steps += ["answer"] * 6
        if merger.ready:
            steps += ["take"] * 4
        assert steps, "nothing is wanted and nothing is ready: it would wait for ever"
        match data.draw(st.sampled_from(steps)):
            case "fact":
                merger.fact(merger.next_facts_fetch, *made.facts[merger.next_facts_fetch])
            case "answer":
                merger.answer(merger.next_answers_fetch, *made.answers[merger.next_answers_fetch])
            case _:
                merged = merger.take(data.draw(st.integers(1, 8)), 1_000_000)
                assert merged.position == merger.position
                out += merged.records
        if data.draw(st.integers(0, 20)) == 20:
            merger = Merger(PARTITION, merger.position, limits=limits)
    assert expected(made) == bytes_of(out)
    assert len(made.log) == merger.position.next_log_offset
    assert all(record.partition == PARTITION for record in out)


@given(topics(), st.data())
def test_an_answer_that_is_missing_holds_back_what_comes_behind_it(made, data):
    """With the answers cut off anywhere, the log ends before the first facts record that is not answered to its end."""
    cut = data.draw(st.integers(0, len(made.answers)))
    merger = Merger(PARTITION)
    give(merger, made, len(made.facts), cut)
    answered = max((made.answered.get(index, 0) for index in range(cut)), default=0)
    out = drained(merger)
    assert expected(made, made.log_before[answered]) == bytes_of(out)
    assert answered == merger.position.next_facts_offset
    give(merger, made, len(made.facts), len(made.answers))
    assert expected(made)[len(out) :] == bytes_of(drained(merger))


@given(topics(), st.data())
def test_answers_are_read_again_from_the_position_and_from_any_place_before_it(made, data):
    """After any part of the merge the rest follows from the position; reading the answers from further back changes nothing."""
    merger = Merger(PARTITION)
    give(
        merger, made, data.draw(st.integers(0, len(made.facts))), data.draw(st.integers(0, len(made.answers)))
    )
    done = []
    if merger.ready:
        done = merger.take(data.draw(st.integers(1, 20)), 1_000_000).records
    position = merger.position
    earlier = data.draw(st.integers(0, position.next_decisions_offset))
    for offset in (position.next_decisions_offset, earlier):
        again = Merger(PARTITION, position._replace(next_decisions_offset=offset))
        give(again, made, len(made.facts), len(made.answers))
        assert expected(made) == bytes_of(done) + bytes_of(drained(again))


@given(topics(), st.data())
def test_a_second_worker_that_repeats_old_answers_changes_nothing(made, data):
    """Whole answers of one that was replaced, written late among those of its successor, are passed over."""
    merger, out = Merger(PARTITION), []
    for offset, fact in enumerate(made.facts):
        merger.fact(offset, *fact)
    place = 0
    for number, record in enumerate(made.answers):
        merger.answer(place, *record)
        place += 1
        if data.draw(st.booleans()):
            late = data.draw(st.integers(0, number))
            old = made.answers[late]
            if made.answered.get(late, 0) <= merger.position.next_facts_offset:
                merger.answer(place, *old)
                place += 1
        out += drained(merger, 5)
    assert expected(made) == bytes_of(out)


@given(topics())
def test_what_waits_is_bounded(made):
    """Neither topic fills memory while the other is silent: what is wanted stops at the limit."""
    merger = Merger(PARTITION, limits=TINY)
    while merger.wants_facts and merger.next_facts_fetch < len(made.facts):
        merger.fact(merger.next_facts_fetch, *made.facts[merger.next_facts_fetch])
    assert merger.waiting <= TINY.records
    merger = Merger(PARTITION, limits=TINY)
    for number in range(50):
        if not merger.wants_answers:
            break
        merger.answer(number, *answer(number, "parked"))
    assert merger.next_answers_fetch <= TINY.records


def test_progress_alone_takes_no_room():
    """Idle workers tell of their progress for ever; only the newest of such records in a row is kept."""
    merger = Merger(PARTITION, limits=TINY)
    for number in range(50):
        assert merger.wants_answers
        merger.answer(number, *answer(number, "progress"))
    assert merger.position == MergePosition()
