"""The laws of design section 5 for custody, over generated histories with duplicates, permutations and restarts."""

from __future__ import annotations

from custody_histories import DAY_MS, PROBED, SHORT, histories, with_requests
from custody_run import Run
from facts_of import plugin, tick, word
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.custody.aggregate import decide, load

_settings = settings(max_examples=150, deadline=None)
_policies = st.sampled_from([SHORT, PROBED])


def _end(facts):
    return tick(max(x.observed_at_ms for x in facts) + 3 * DAY_MS)


@given(_policies.flatmap(lambda p: st.tuples(st.just(p), with_requests(p))), st.data())
@_settings
def test_any_order_gives_the_same_state_and_open_episodes(case, data):
    """Law 2: a permutation inside the horizon ends in the same state, before and after a tick past every deadline."""
    policy, facts = case
    shuffled = data.draw(st.permutations(facts))
    ordered, other = Run(policy).each(facts), Run(policy).each(shuffled)

    assert ordered.dump() == other.dump()

    ordered.step(_end(facts))
    other.step(_end(facts))

    assert ordered.state.announced == other.state.announced
    assert ordered.dump() == other.dump()


@given(histories(), st.data())
@_settings
def test_a_late_fact_keeps_the_open_episodes_of_the_log_in_step(facts, data):
    """Law 2: counting only decisions, the open episodes are those of the state, whatever the order."""
    run = Run(SHORT).each(data.draw(st.permutations(facts)))
    open_ids = set()
    for decision in run.decisions:
        record = getattr(decision, "record", None)
        if record is not None and record.episode is not None:
            open_ids.add(record.episode.episode_id)
        if decision.KIND == "device_released":
            open_ids.discard(decision.closed.episode_id)

    assert {
        r.episode.episode_id for r in run.state.announced.devices.values() if r.episode is not None
    } == open_ids


@given(_policies.flatmap(lambda p: st.tuples(st.just(p), with_requests(p))), st.data())
@_settings
def test_a_repeated_fact_changes_neither_state_nor_decisions(case, data):
    """Law 1: repeats, at once or later, are absorbed."""
    policy, facts = case
    repeated = list(facts)
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, len(facts) - 1))
        position = data.draw(st.integers(repeated.index(facts[index]) + 1, len(repeated)))
        repeated.insert(position, facts[index])
    once, twice = Run(policy).each(facts), Run(policy).each(repeated)

    assert once.decisions == twice.decisions
    assert once.dump() == twice.dump()


@given(_policies.flatmap(lambda p: st.tuples(st.just(p), with_requests(p))), st.data())
@_settings
def test_replay_of_facts_and_decisions_gives_the_live_state_without_deciding(case, data):
    """Law 4: folding the log is enough."""
    policy, facts = case
    live = Run(policy).each(data.draw(st.permutations(facts)))
    replayed = Run(policy).replay(live.log)

    assert live.dump() == replayed.dump()
    assert () == decide(replayed.state)


@given(_policies.flatmap(lambda p: st.tuples(st.just(p), with_requests(p))), st.data())
@_settings
def test_a_restart_from_a_snapshot_at_any_point_gives_the_same_log_and_state(case, data):
    """Law 3: a snapshot is a prefix; what follows it does not show the cut."""
    policy, facts = case
    facts = data.draw(st.permutations(facts))
    cut = data.draw(st.integers(0, len(facts)))
    whole, first = Run(policy).each(facts), Run(policy).each(facts[:cut])
    second = Run(policy, state=load(first.dump(), first.policies)).each(facts[cut:])

    assert whole.decisions == first.decisions + second.decisions
    assert whole.dump() == second.dump()


@given(histories(), st.data())
@_settings
def test_a_crash_between_absorbing_and_announcing_repeats_the_same_decisions(facts, data):
    """Law 3: what was decided and not yet written is decided again, word for word."""
    cut = data.draw(st.integers(0, len(facts) - 1))
    run = Run(SHORT).each(facts[:cut])
    snapshot = run.dump()
    lost = run.step(facts[cut])
    again = Run(SHORT, state=load(snapshot, run.policies)).step(facts[cut])

    assert lost == again


@given(histories(), st.lists(st.integers(1, 400_000), min_size=1, max_size=6))
@_settings
def test_many_ticks_do_what_the_latest_does(facts, pauses):
    """Ticks coalesce: how often time was told does not show in the state."""
    end_ms = _end(facts).observed_at_ms
    often, once = Run(SHORT).each(facts), Run(SHORT).each(facts)
    at_ms = max(x.observed_at_ms for x in facts)
    for pause in pauses:
        at_ms += pause
        often.until(at_ms)
    often.until(end_ms)
    once.until(end_ms)

    assert often.dump() == once.dump()


@given(histories())
@_settings
def test_a_batch_ends_where_one_by_one_ends(facts):
    """Facts that wait together may be decided together."""
    batch, single = Run(SHORT), Run(SHORT).each(facts)
    batch.step(*facts)

    assert batch.dump() == single.dump()


@given(histories())
@_settings
def test_every_step_settles(facts):
    """Law 5: nothing is left to say right after a decision is applied."""
    run = Run(SHORT)
    for fact in facts:
        run.step(fact)

        assert () == decide(run.state)
        assert {
            u: r for u, r in _levels(run).items() if r.phase != "in_service"
        } == run.state.announced.devices


def _levels(run):
    return {u: unit.record() for u, unit in run.state.timeline.head.units.items()}


@given(histories(max_size=40), st.integers(60_000, 200_000))
@_settings
def test_facts_older_than_the_horizon_are_moved_into_the_base_without_a_trace(facts, horizon_ms):
    """Trimming is invisible: a short horizon and a long one give the same decisions for facts in order."""
    import msgspec

    short = msgspec.structs.replace(SHORT, lateness_horizon_ms=horizon_ms, version="trimmed")
    long = Run(SHORT).each(facts)
    trimmed = Run(short)
    for fact in facts:
        trimmed.step(fact)
        trimmed.state.timeline.trim()

    assert [d for d in long.decisions if d.KIND != "alert_raised"] == [
        d for d in trimmed.decisions if d.KIND != "alert_raised"
    ]


def test_an_old_word_of_a_pod_that_is_long_gone_opens_nothing():
    """A source that ended keeps its last version: what it said before is late, however late it turns up."""
    run = Run()
    run.each([word(plugin(1), "Healthy", 1_000, 10), word(plugin(1), "Healthy", 5_000, 20, live=False)])
    run.until(DAY_MS)
    run.state.timeline.trim()
    decided = run.step(word(plugin(1), "Unhealthy", DAY_MS, 15))

    assert ["alert_raised"] == [d.KIND for d in decided]
    assert "in_service" == run.phase(plugin(1))
