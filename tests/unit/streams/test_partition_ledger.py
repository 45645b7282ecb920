"""One partition with ledgers: what every node hears, deadlines of the ledger, and a replay after which nothing is left to decide."""

from __future__ import annotations

import ledger_facts as f
import msgspec
from facts_of import T0, gap, policy_changed, tick

from sickbay.policy import Policy
from streams.ledger.aggregate import dump
from streams.partition import Partition

POLICY = Policy()
MINUTE_MS = 60_000


def partition():
    made = Partition(0)
    made.step(policy_changed(T0, POLICY, partition=0))
    return made


def on(node, *facts):
    return [msgspec.structs.replace(fact, node=node) for fact in facts]


def reasons(made, node):
    return {hold.reason for hold in made.ledgers[node].announced.verdict.holds}


def walk(made, facts):
    log = []
    for fact in facts:
        log += [fact, *made.step(fact)]
    return log


def history():
    """Two nodes whose Pods come and go, one with a difference that is told after its grace."""
    for number in range(20):
        for node in ("a", "b"):
            yield from on(
                node,
                f.node(T0 + number, 1 + number, cpu="8"),
                f.pod(T0 + number, 100 + number, f"p{number}", f.container("main", {"cpu": "1"})),
            )
    yield from on("a", f.claim(T0 + 30, 200, "c", pods=("x",)))
    yield from on(
        "a", f.pod(T0 + 30, 201, "x", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "2"}),))
    )
    yield from on("b", *(f.pod_gone(T0 + 40, 300 + n, f"p{n}") for n in range(20)))
    yield tick(T0 + MINUTE_MS)


def test_a_gap_holds_a_node_that_appears_after_it_too():
    """Its objects were not seen either while nobody looked."""
    made = partition()
    made.step(gap(T0, T0 + MINUTE_MS))
    (fact,) = on("late", f.node(T0 + MINUTE_MS + 1, 1, cpu="8"))
    made.step(fact)

    assert {"watch_gap"} == reasons(made, "late")


def test_a_closed_gate_holds_a_node_that_appears_after_it():
    made = partition()
    made.step(f.gate(T0, closed=True, scope="cluster"))
    (fact,) = on("late", f.node(T0 + 1, 1, cpu="8"))
    made.step(fact)

    assert {"claims_gate_closed"} == reasons(made, "late")


def test_a_deadline_that_does_not_change_is_noted_once():
    """However many facts come under it."""
    made = partition()
    for fact in list(history())[:-1]:
        made.step(fact)
    for number in range(500):
        (fact,) = on("a", f.pod(T0 + 50, 1000 + number, f"q{number}"))
        made.step(fact)

    assert len(made._deadlines) < 20


def test_the_ledgers_deadlines_are_the_partitions():
    made = partition()
    for fact in list(history())[:-1]:
        made.step(fact)
    assert T0 + 30 + POLICY.ledger.drift_grace_ms == made.due_ms

    decided = made.step(tick(T0 + MINUTE_MS))

    assert [("drift_found", T0 + 30 + POLICY.ledger.drift_grace_ms)] == [
        (d.KIND, d.at_ms) for d in decided if d.KIND == "drift_found"
    ]


def test_a_replay_leaves_nothing_to_decide_and_decides_the_next_fact_as_live_does():
    live, replayed = partition(), partition()
    for event in walk(live, history()):
        replayed.replay(event)
    assert replayed.is_settled
    assert {n: dump(s) for n, s in live.ledgers.items()} == {n: dump(s) for n, s in replayed.ledgers.items()}

    (late,) = on("b", f.pod(T0 + 20, 400, "late", f.container("main", {"cpu": "1"})))

    assert live.step(late) == replayed.step(late)


def test_a_log_that_another_fold_decided_is_not_settled():
    """It has facts and no ledger decisions."""
    live, replayed = partition(), partition()
    for event in walk(live, history()):
        if not event.KIND.startswith(("entry", "verdict", "drift")):
            replayed.replay(event)

    assert not replayed.is_settled
