"""The merge of one partition: where decisions stand, what is left out, and what it refuses, naming the place."""

from __future__ import annotations

import re

import pytest
from topic_histories import PARKED, PARTITION, alert, answer, message, tick

from projections import merging
from projections.merging import MergePosition, Merger
from sickbay.cloudevents import FACTS_OFFSET, OUTCOME
from sickbay.codec import encode, wrap_decision
from sickbay.decisions import CensusTaken
from sickbay.errors import MergeError


def merged(merger):
    return [record.envelope for record in merger.take(1_000, 1_000_000).records]


def merger(*answers, facts=((0, 1),)):
    """Return a merger that was given facts records of the ticks with these numbers, and answers."""
    made = Merger(PARTITION, facts="sickbay.facts", decisions="sickbay.decisions")
    for offset, numbers in enumerate(facts):
        made.fact(offset, *message([tick(number) for number in numbers]))
    for offset, record in enumerate(answers):
        made.answer(offset, *record)
    return made


def test_each_decision_stands_behind_the_fact_that_caused_it():
    """A batch of facts is answered as a whole; in the log every fact has its own decisions behind it."""
    one, two = tick(0), tick(1)
    decisions = [alert(two, 0), alert(one, 0), alert(one, 1)]
    expected = [one, decisions[1], decisions[2], two, decisions[0]]
    assert expected == merged(merger(answer(0, "taken", decisions)))


def test_a_fact_that_comes_twice_in_a_record_has_its_decisions_once():
    """Both stand in the log, at their own offsets, and the decisions behind the first."""
    decision = alert(tick(0), 0)
    made = merger(answer(0, "taken", [decision]), facts=[(0, 0)])
    records = made.take(1_000, 1_000_000).records
    assert [(0, tick(0)), (1, decision), (2, tick(0))] == [(r.offset, r.envelope) for r in records]


def test_what_follows_from_a_decision_stands_behind_it():
    """An event that names a decision of the same answer as its cause stays with it."""
    first = alert(tick(0), 0)
    second = alert(first, 0)
    assert [tick(0), first, second, tick(1)] == merged(merger(answer(0, "taken", [first, second])))


def test_a_decision_among_the_facts_stands_where_it_came_and_has_followers():
    """A census of another partition enters the log as it is; what the breaker decides on it names it as its cause."""
    taken = CensusTaken(node="", at_ms=0, partition=0, known={}, adverse=())
    census = wrap_decision(taken, tick(9), 0, "policy")
    opened = alert(census, 0)
    made = Merger(PARTITION)
    made.fact(0, *message([tick(0), census, tick(1)]))
    made.answer(0, *answer(0, "taken", [opened]))
    assert [tick(0), census, opened, tick(1)] == merged(made)


@pytest.mark.parametrize("outcome", ["parked", "superseded"])
def test_facts_that_were_not_taken_are_not_in_the_log(outcome):
    """Whatever they hold, readable or not; those around them are."""
    made = Merger(PARTITION)
    made.fact(0, *message([tick(0)]))
    made.fact(1, PARKED, [])
    made.fact(2, *message([tick(2)]))
    made.answer(0, *answer(1, outcome))
    made.answer(1, *answer(2, "progress"))
    assert [tick(0), tick(2)] == merged(made)
    assert MergePosition(3, 2, 2) == made.position


def test_the_position_names_the_first_answer_that_is_still_of_use():
    """Answers to facts that are not merged yet are read again, a part of one too; what is used up is not."""
    decisions = [alert(tick(2), 0), alert(tick(2), 1)]
    made = merger(
        answer(0, "progress"),
        answer(1, "parked"),
        answer(2, "taken", decisions[:1], "1/2"),
        facts=[(0,)],
    )
    assert [tick(0)] == merged(made)
    assert MergePosition(1, 1, 1) == made.position
    made.fact(1, *message([tick(1)]))
    assert [] == merged(made)
    assert MergePosition(2, 2, 1) == made.position


def test_another_attempt_that_says_something_else_replaces_the_parts_of_the_first():
    """Parts of two attempts are never mixed: the one that is complete first counts."""
    old = [alert(tick(0), 0), alert(tick(0), 1)]
    new = [alert(tick(0), 7), alert(tick(0), 8)]
    made = merger(
        answer(0, "taken", old[:1], "1/2"),
        answer(0, "taken", new[:1], "1/2"),
        answer(0, "taken", new[1:], "2/2"),
        answer(0, "taken", old[1:], "2/2"),
        facts=[(0,)],
    )
    assert [tick(0), *new] == merged(made)


def test_a_piece_holds_whole_records_up_to_the_limits():
    """A limit of events or bytes ends a piece after the record that passes it, so a large record is not too large."""
    made = merger(answer(2, "progress"), facts=[(0, 1), (2,), (3,)])
    assert 2 == len(made.take(1, 1_000_000).records)
    assert 1 == len(made.take(1_000, 1).records)
    assert 1 == len(made.take(1_000, 1_000_000).records)
    assert not made.ready


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([(b"", [(OUTCOME, b"taken")])], "sickbay.decisions/3@0 has sickbay-facts-offset=None"),
        ([(b"", [(FACTS_OFFSET, b"0")])], "sickbay-outcome=None, which is no answer"),
        ([(b"", [(FACTS_OFFSET, b"0"), (OUTCOME, b"dreamed")])], "must be as new as they are"),
        ([(b"", [(FACTS_OFFSET, b"-1"), (OUTCOME, b"taken")])], "sickbay.decisions/3@0: header"),
        ([answer(0, "parked", part="2/1")], "sickbay.decisions/3@0 is part 2/1"),
        ([answer(0, "parked", part="0/1")], "is part 0/1"),
        ([answer(0, "parked", part="1/10001")], "1 to 10000 parts"),
        ([answer(0, "parked", part="a/b")], "'a/b' and not part/parts"),
        ([answer(0, "parked", part="7")], "'7' and not part/parts"),
        (
            [answer(0, "parked", part="1/2"), answer(1, "parked")],
            "sickbay.decisions/3@1 answers offset 1 of sickbay.facts, and the answer to 0 has 1 of 2 parts",
        ),
    ],
)
def test_an_answer_that_is_none_is_refused_with_its_place(records, problem):
    """Nothing is guessed at: decisions that were lost must not look like decisions that were never made."""
    with pytest.raises(MergeError, match=re.escape(problem)):
        merger(*records)


def test_decisions_on_other_facts_are_refused():
    """Topics that do not belong together are told apart by the first decision that knows a fact that is not there."""
    made = merger(answer(0, "taken", [alert(tick(5), 0)]))
    with pytest.raises(MergeError, match=rf"decisions/3@0: .*{tick(5).event_id}.* not in sickbay.facts/3@0"):
        merged(made)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff"])
def test_an_answer_that_cannot_be_read_is_refused(value):
    """An answer that says it has decisions has some."""
    with pytest.raises(MergeError, match=r"sickbay.decisions/3@0 was taken and is no event"):
        merged(merger(answer(0, "taken", value=value)))


def test_facts_that_were_taken_and_cannot_be_read_are_refused():
    """The workers park what they cannot read; a projector that cannot read what they could is too old, or the record changed."""
    made = Merger(PARTITION, facts="sickbay.facts")
    made.fact(0, PARKED, [])
    made.answer(0, *answer(0, "progress"))
    with pytest.raises(MergeError, match=r"sickbay.facts/3@0 was taken and is no event"):
        merged(made)


def test_a_hole_in_either_topic_is_refused():
    """Offsets that are missing were compacted away or lost: the log cannot be made, and nothing is skipped."""
    made = merger()
    with pytest.raises(MergeError, match=r"sickbay.facts/3@2 follows where offset 1 is due"):
        made.fact(2, *message([tick(2)]))
    with pytest.raises(MergeError, match=r"sickbay.decisions/3@1 follows where offset 0 is due"):
        made.answer(1, *answer(0, "parked"))


def test_records_that_were_given_already_are_passed_over():
    """A client that fetches again from before the position does no harm."""
    made = merger(answer(0, "progress"))
    made.fact(0, *message([tick(7)]))
    made.answer(0, *answer(0, "parked"))
    assert [tick(0), tick(1)] == merged(made)


def test_an_answer_without_end_is_refused(monkeypatch):
    """What is put together has a limit."""
    monkeypatch.setattr(merging, "ANSWER_BYTES_MAX", 2_000)
    decisions = [alert(tick(0), ordinal) for ordinal in range(4)]
    with pytest.raises(MergeError, match=r"the answer to 0 of sickbay.facts has more than 2000 bytes"):
        merger(*(answer(0, "taken", [d], f"{n}/4") for n, d in enumerate(decisions, 1)))


def test_the_log_has_the_bytes_that_were_sent():
    """What is hashed is what the workers folded."""
    decision = alert(tick(0), 0)
    records = merger(answer(0, "taken", [decision]), facts=[(0,)]).take(10, 10_000).records
    assert [encode(tick(0)), encode(decision)] == [record.data for record in records]
