"""The laws of design section 5 for the ledger, and its agreement with a naive oracle after every step.

The oracle (``ledger_oracle``, ``ledger_findings``) keeps nothing but the facts that it was given. Histories have a fixed number
of facts and hypothesis runs a fixed number of them, so the number of steps compared is sure; each test states and checks it.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ledger_arithmetic import add, up
from ledger_findings import Findings, by_resource
from ledger_histories import EXACT, NEW, OLD, end_of, histories, policies
from ledger_oracle import Oracle
from ledger_run import Run, units

from streams.ledger.aggregate import decide, standing

_settings = settings(max_examples=60, deadline=None)
_cases = st.tuples(policies, histories())
#: Facts of a history that is compared step by step, the beginning not counted.
LENGTH = 25


# -- what two sides say, in one form


def of_ledger(run):
    """What stands, in the oracle's words; a mapping version stands for its content, which the entry's device tells."""
    announced = run.state.announced
    entries = {}
    for (book, key), entry in announced.entries.items():
        assert (book, key) == (entry.book, entry.key)
        entries[book, _content_key(book, key, entry)] = (
            entry.account,
            _amounts(entry.amounts),
            _amounts(entry.covered),
        )
    verdict, holds = announced.verdict, None
    if verdict is not None:
        holds = {(h.reason, h.scope) for h in verdict.holds}
    return {
        "entries": entries,
        "refused": sorted(
            (book, _content_key(book, key, e), c.partition("#")[0])
            for (book, key, c), e in announced.refused.items()
        ),
        "drifts": {
            about: (d.cause, _texts(d.recorded), _texts(d.derived), _texts(d.exact), d.predicted)
            for about, d in announced.drifts.items()
        },
        "holds": holds,
        "verdict": verdict and verdict.verdict,
        "alerts": set(announced.alerts.values()),
        "class": verdict and (verdict.node_class, verdict.drivers),
    }


class Watched:
    """The oracle, asked after every fact. Only which differences were told already is remembered."""

    def __init__(self, policy):
        self.oracle, self.told = Oracle(policy), set()

    def give(self, fact):
        """Take a fact, and return everything that then stands."""
        now_ms = max(self.oracle.now_ms, fact.observed_at_ms)
        if self.oracle.given:  # what the time brought before the fact
            self.told = set(Findings(self.oracle, self.told, now_ms=now_ms).drifts())
        self.oracle.give(fact)
        found = Findings(self.oracle, self.told)
        self.told = set(found.drifts())
        return of_findings(found)


def of_findings(found):
    holds = found.holds() if found.known else None
    return {
        "entries": {at: line.shown for at, line in found.world.entries().items()},
        "refused": sorted(
            (book, key, c.partition("#")[0]) for book, key, c in sorted(set(found.world.refused))
        ),
        "drifts": {
            about: (d.cause, d.recorded, d.derived, d.exact, d.predicted)
            for about, d in found.drifts().items()
        },
        "holds": holds,
        "verdict": ("hold" if holds else "open") if found.known else None,
        "alerts": found.alerts(),
        "class": (found.node_class, found.drivers) if found.known else None,
    }


def _content_key(book, key, entry):
    return key.removesuffix(f"/{entry.mapping_version}") if book == "derived" and key[:6] == "claim/" else key


def _amounts(lines):
    return tuple(sorted((a.resource, a.numa, units(a.quantity)) for a in lines))


def _texts(amounts):
    return tuple(sorted((r, units(t)) for r, t in amounts.items() if units(t)))


def differences(expected, actual):
    """Only what differs, so that a failure can be read."""
    return {
        part: {
            k: (_at(expected[part], k), _at(actual[part], k))
            for k in sorted({*_keys(expected[part]), *_keys(actual[part])}, key=repr)
            if _at(expected[part], k) != _at(actual[part], k)
        }
        for part in expected
        if expected[part] != actual[part]
    }


def _keys(part):
    return part if isinstance(part, (dict, set, list)) else ["is"]


def _at(part, key):
    if isinstance(part, dict):
        return part.get(key)
    return key in part if isinstance(part, set) else part.count(key) if isinstance(part, list) else part


# -- the oracle


def agree_step_by_step(policy, examples, *, size=LENGTH):
    """Compare after every fact, in any order, with restarts; return the number of steps."""
    steps = 0

    @given(histories(size=size), st.data())
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )  # fmt: skip
    def compare(facts, data):
        nonlocal steps
        if data.draw(st.booleans(), label="shuffled"):
            facts = data.draw(st.permutations(facts))
        restarts = data.draw(st.sets(st.integers(0, len(facts)), max_size=3), label="restarts before")
        told = [*facts, end_of(facts)]
        run, oracle = Run(policy), Watched(policy)
        for index, fact in enumerate(told):
            if index in restarts:
                run = run.reopened()
            run.step(fact)
            found = differences(oracle.give(fact), of_ledger(run))

            assert not found, shortest(policy, told[: index + 1], found)
            steps += 1

    compare()
    return steps


def shortest(policy, facts, found):
    """Leave out facts while the same part differs, which hypothesis would take minutes to do; return both as text."""

    def differs(facts):
        run, oracle, expected = Run(policy).each(facts), Watched(policy), None
        for fact in facts:
            expected = oracle.give(fact)
        found = differences(expected, of_ledger(run))
        return found if part in found else None

    part = min(found)
    for index in reversed(range(len(facts))):
        fewer = facts[:index] + facts[index + 1 :]
        if fewer and (less := differs(fewer)):
            facts, found = fewer, less
    return "\n".join([f"expected and found: {found}", *map(str, facts)])


@pytest.mark.parametrize("policy", [EXACT, OLD, NEW], ids=lambda p: p.version)
def test_the_ledger_agrees_with_the_naive_oracle_after_every_step(policy):
    """Three policies, 140 histories of 25 facts and a tick each: 10,920 steps at least."""
    assert agree_step_by_step(policy, 140) >= 140 * (LENGTH + 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", [EXACT, OLD, NEW], ids=lambda p: p.version)
def test_the_ledger_agrees_with_the_naive_oracle_over_long_histories(policy):
    assert agree_step_by_step(policy, 150, size=60) >= 150 * 61


# -- the laws


def kept_of(run):
    """The snapshot without what depends on when it was known: times of postings, and since when and in what words a hold is."""
    content = msgspec.json.decode(run.dump())
    for entry in (*content["entries"], *(e for _, e in content["refused"])):
        del entry["at_ms"]
    for hold in (content["verdict"] or {}).get("holds", ()):
        del hold["since_ms"], hold["detail"]
    return content


@given(_cases, st.data())
@_settings
def test_a_repeated_fact_changes_neither_state_nor_decisions(case, data):
    """Law 1: repeats, at once or later, are absorbed."""
    policy, facts = case
    repeated = list(facts)
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, len(facts) - 1))
        repeated.insert(data.draw(st.integers(repeated.index(facts[index]) + 1, len(repeated))), facts[index])
    once, twice = Run(policy).each(facts), Run(policy).each(repeated)

    assert once.decisions == twice.decisions
    assert once.dump() == twice.dump()


@given(_cases, st.data())
@_settings
def test_any_order_gives_the_same_ledger(case, data):
    """Law 2: a permutation inside the horizon ends in the same entries, findings and snapshot, before and after the end."""
    policy, facts = case
    ordered, other = Run(policy).each(facts), Run(policy).each(data.draw(st.permutations(facts)))

    for part in ("entries", "refused", "alerts", "class"):
        assert of_ledger(ordered)[part] == of_ledger(other)[part]

    ordered.step(end_of(facts))
    other.step(end_of(facts))

    assert of_ledger(ordered) == of_ledger(other)
    assert standing(ordered.state) == standing(other.state)
    assert kept_of(ordered) == kept_of(other)


@given(_cases, st.data())
@_settings
def test_a_restart_from_a_snapshot_at_any_point_gives_the_same_decisions_and_state(case, data):
    """Law 3: a snapshot is a prefix; what follows it does not show the cut."""
    policy, facts = case
    facts = data.draw(st.permutations(facts))
    cut = data.draw(st.integers(0, len(facts)))
    whole, first = Run(policy).each(facts), Run(policy).each(facts[:cut])
    second = first.reopened().each(facts[cut:])

    assert whole.decisions == first.decisions + second.decisions
    assert whole.dump() == second.dump()


@given(_cases, st.data())
@_settings
def test_a_crash_between_absorbing_and_announcing_repeats_the_same_decisions(case, data):
    """Law 3: what was decided and not yet written is decided again, word for word."""
    policy, facts = case
    cut = data.draw(st.integers(0, len(facts) - 1))
    run = Run(policy).each(facts[:cut])
    again = run.reopened()

    assert run.step(facts[cut]) == again.step(facts[cut])


@given(_cases, st.data())
@_settings
def test_replay_of_facts_and_decisions_gives_the_live_state_without_deciding(case, data):
    """Law 4: folding the log is enough."""
    policy, facts = case
    live = Run(policy).each(data.draw(st.permutations(facts)))
    replayed = Run(policy).replay(live.log)

    assert live.dump() == replayed.dump()
    assert () == decide(replayed.state)


@given(_cases)
@_settings
def test_every_step_settles(case):
    """Law 5: nothing is left to say right after a decision is applied."""
    policy, facts = case
    run = Run(policy)
    for fact in facts:
        run.step(fact)

        assert () == decide(run.state)


@given(_cases, st.lists(st.integers(1, 60_000), min_size=1, max_size=6))
@_settings
def test_many_ticks_do_what_the_latest_does(case, pauses):
    """Ticks coalesce: how often time was told does not show in the state."""
    policy, facts = case
    end_ms = max(x.observed_at_ms for x in facts) + sum(pauses)
    often, once = Run(policy).each(facts), Run(policy).each(facts)
    at_ms = max(x.observed_at_ms for x in facts)
    for pause in pauses:
        at_ms += pause
        often.until(at_ms)
    once.until(end_ms)

    assert of_ledger(often) == of_ledger(once)
    assert often.dump() == once.dump()


@given(_cases)
@_settings
def test_a_batch_ends_where_one_by_one_ends(case):
    """Facts that wait together may be decided together; what was told on the way may differ, and not what stands at last."""
    policy, facts = case
    batch, single = Run(policy), Run(policy).each(facts)
    batch.step(*facts)

    assert of_ledger(batch)["entries"] == of_ledger(single)["entries"]
    assert of_ledger(batch)["refused"] == of_ledger(single)["refused"]

    batch.step(end_of(facts))
    single.step(end_of(facts))

    assert of_ledger(batch) == of_ledger(single)
    assert kept_of(batch) == kept_of(single)


@given(_cases)
@_settings
def test_nothing_happens_before_it_is_due(case):
    """``due_ms`` is the next time at which anything may change: a tick before it says nothing."""
    policy, facts = case
    run = Run(policy).each(facts)
    now_ms, due_ms = max(x.observed_at_ms for x in facts), run.state.due_ms

    assert now_ms < due_ms
    assert () == run.until(min(due_ms - 1, now_ms + 10_000_000))


# -- conservation


@given(_cases, st.data())
@_settings
def test_the_journal_adds_up_to_what_stands(case, data):
    """Entries are posted once, reversed as they were posted, and their sum is the ledger."""
    policy, facts = case
    run = Run(policy).each(data.draw(st.permutations(facts)))
    standing = {}
    for decision in run.of("entry_posted", "entry_reversed"):
        at = decision.entry.book, decision.entry.key
        if decision.KIND == "entry_posted":
            assert at not in standing
            standing[at] = decision.entry
        else:
            assert standing.pop(at) == decision.entry

    assert standing == run.entries


@given(_cases)
@_settings
def test_the_accounts_of_every_book_add_up_to_nothing(case):
    """Every entry moves its amounts between two accounts, bucket by bucket; only an adjustment may be negative."""
    policy, facts = case
    run = Run(policy).each(facts)
    balances = {}
    for decision in run.of("entry_posted", "entry_reversed"):
        entry, sign = decision.entry, 1 if decision.KIND == "entry_posted" else -1
        source, target = ("supply", "free") if entry.account == "supply" else ("free", entry.account)
        for amount in entry.amounts:
            moved = sign * units(amount.quantity)
            assert moved * sign > 0 or entry.account == "adjustment"
            for account, change in ((source, -moved), (target, moved)):
                add(balances, {(entry.book, amount.resource, amount.numa, account): change})

    totals, standing = {}, {}
    for (book, resource, numa, account), balance in balances.items():
        add(totals, {(book, resource, numa): balance})
        if account not in ("supply", "free"):
            add(standing, {(book, resource, account): balance})
    assert set() == {at for at, total in totals.items() if total}
    for (book, resource, account), balance in standing.items():
        assert balance == run.sums(book, account).get(resource, 0)


@given(_cases)
@_settings
def test_buckets_add_up_to_totals_and_a_claim_counts_once(case):
    """Over NUMA buckets, with what a Pod-level request covers, a claim adds what the oracle says, once for the node."""
    policy, facts = case
    run, world = Run(policy).each(facts), Oracle(policy).give(*facts).world()
    for book in ("recorded", "derived"):
        expected, found = {}, {}
        for line in world.lines:
            if line.book == book and line.account == "claims":
                add(expected.setdefault(line.claim_uid, {}), by_resource(line))
        for (at, _), entry in run.entries.items():
            if at == book and entry.account == "claims":
                for amount in (*entry.amounts, *entry.covered):
                    add(found.setdefault(entry.claim_uid, {}), {amount.resource: units(amount.quantity)})

        assert expected == found
        claims = [
            e.claim_uid
            for (b, _), e in run.entries.items()
            if b == book == "recorded" and e.account == "claims"
        ]
        assert len([c for c in claims if c]) == len({c for c in claims if c})


@given(_cases)
@_settings
def test_what_is_requested_is_a_sum_of_whole_millicores_and_units(case):
    """Rounding is once for each Pod, upwards, in each book."""
    policy, facts = case
    run = Run(policy).each(facts)
    for book in ("recorded", "derived"):
        for resource, amount in run.requested(book).items():
            assert amount == up(resource, amount)
            assert amount >= Fraction(0)


@given(_cases, st.data())
@_settings
def test_no_entry_counts_twice_at_any_instant_whatever_the_order(case, data):
    """As of every instant a key has one entry at most: each begins when the one before it is over, or later."""
    policy, facts = case
    run = Run(policy).each(data.draw(st.permutations(facts)))
    standing_since, over = {}, {}
    for decision in run.decisions:
        if decision.KIND == "entry_posted":
            key = decision.entry.book, decision.entry.key
            assert key not in standing_since
            assert over.get(key, 0) <= decision.entry.at_ms == decision.at_ms
            standing_since[key] = decision.entry.at_ms
        elif decision.KIND == "entry_reversed":
            key = decision.entry.book, decision.entry.key
            assert standing_since.pop(key) == decision.entry.at_ms <= decision.at_ms
            over[key] = decision.at_ms
