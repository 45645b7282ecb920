"""The count that ``sickbay verify`` makes from the objects alone is the ledger that was decided step by step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_facts import gate, node, pod
from ledger_histories import histories, policies
from ledger_run import Run
from msgspec.structs import replace

from streams.ledger.recount import Recount


def timeless(found):
    return {key: replace(entry, at_ms=0) for key, entry in found.items()}


def counted(facts, policy):
    recount = Recount()
    for fact in facts:
        recount.take(fact)
    return tuple(timeless(found) for found in recount.count(policy))


def decided(run):
    announced = run.state.announced
    return timeless(announced.entries), timeless(announced.refused)


@given(st.tuples(policies, histories()), st.data())
@settings(max_examples=150, deadline=None)
def test_counting_from_the_objects_is_deciding_step_by_step(case, data):
    """In whatever order the facts are taken, and however often: the walk decides in the order of time, the count does not."""
    policy, facts = case
    again = data.draw(st.permutations([*facts, *facts[:5]]))

    assert decided(Run(policy).each(facts)) == counted(again, policy)


def test_a_count_tells_apart_what_was_not_told():
    """A Pod that is left out, or an older version in its place, gives another count."""
    run = Run()
    facts = [node(1_000, 1), pod(2_000, 2, "a"), pod(3_000, 3, "b", phase="Succeeded")]
    told = decided(run.each(facts))

    assert told == counted([*facts, gate(4_000, closed=True)], run.policy)
    assert told == counted([replace(facts[2], rv=2, phase="Running"), *facts], run.policy)
    assert told != counted([replace(facts[0], rv=2, allocatable={"cpu": "8"}), *facts], run.policy)
