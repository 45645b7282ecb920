"""The laws of the breaker: it follows from a count, whoever counts it, in whatever batches, on whichever worker."""

from __future__ import annotations

import msgspec
from facts_of import tick
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.decisions import BreakerClosed, BreakerOpened, CensusTaken
from sickbay.facts import BreakerResetRequested, Tick
from streams.breaker import BREAKER, CLUSTER, BreakerState

_settings = settings(max_examples=120, deadline=None)
WINDOW_MS, QUIET_MS = BreakerState().policy.window_ms, BreakerState().policy.quiet_ms
DRIVERS = ("gpu", "nic")
SCOPES = (CLUSTER, *(f"driver:{name}" for name in DRIVERS))


def reset(at_ms, scope):
    return BreakerResetRequested(
        node="", observed_at_ms=at_ms, request_id=f"{at_ms}", device_id="", actor="ann", scope=scope, reason="over",
        partition=0,
    )  # fmt: skip


@st.composite
def histories(draw):
    """Censuses of two partitions, ticks, and a person's word now and then, in order of event time."""
    at_ms, events = 1_000_000, []
    for _ in range(draw(st.integers(1, 14))):
        at_ms += draw(st.sampled_from([0, 1_000, 60_000, 200_000, 400_000]))
        if draw(st.booleans()):
            events.append(
                tick(at_ms) if draw(st.integers(0, 3)) else reset(at_ms, draw(st.sampled_from(SCOPES)))
            )
            continue
        adverse = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(DRIVERS),
                    st.integers(1, 3),
                    st.integers(0, 7),
                    st.sampled_from(["", "", "i"]),
                ),
                max_size=8,
            )
        )
        events.append(
            CensusTaken(
                node="",
                at_ms=at_ms,
                partition=draw(st.integers(0, 1)),
                known={name: draw(st.integers(0, 60)) for name in DRIVERS},
                adverse=tuple((name, f"n{n}|{name}-{d}", at_ms, by) for name, n, d, by in adverse),
                waiting={
                    name: (
                        draw(st.sampled_from([0, 0, 2, 30])),
                        draw(st.integers(1, 2)),
                        draw(st.sampled_from(["n1", "n2"])),
                    )
                    for name in DRIVERS
                },
            )
        )
    return events


def walk(events):
    """Every event with what was decided on it."""
    state, log = BreakerState(), []
    for event in events:
        state, decided = BREAKER.step(state, (event,))
        log.append((event, decided))
    return state, log


def waiting_now(log, state, scope):
    """Count again, naively: the newest word of each partition on the devices that wait for this breaker and for no other."""
    newest = {event.partition: event.waiting for event, _ in log if isinstance(event, CensusTaken)}

    def kept(name):
        own = f"driver:{name}"
        if scope == own or own not in state.open or own in state.reset:
            return False
        return max(adverse_now(log, state.now_ms, own), waiting_now(log, state, own)) > threshold_now(
            state, own
        )

    counted = [
        told
        for counts in newest.values()
        for name, told in counts.items()
        if told[0] and scope in (CLUSTER, f"driver:{name}") and not kept(name)
    ]
    nodes = {(node, number) for _, count, node in counted for number in range(count)}
    return sum(devices for devices, _, _ in counted) if len(nodes) > 1 else 0


def threshold_now(state, scope):
    known = sum(
        count
        for counts in state.known.values()
        for name, count in counts.items()
        if scope in (CLUSTER, f"driver:{name}")
    )
    return max(3, -(-known // 10))


def adverse_now(log, at_ms, scope):
    """Count again, naively: the newest word on each device inside the window, and after the last word that it is over."""
    newest = {}
    over = [(e.scope, e.observed_at_ms) for e, _ in log if isinstance(e, BreakerResetRequested)]
    for event, _ in log:
        if isinstance(event, CensusTaken):
            for name, device, turned_ms, by in event.adverse:
                newest[device] = (name, turned_ms, by)
    counted = [
        (device, by)
        for device, (name, turned_ms, by) in newest.items()
        if turned_ms > at_ms - WINDOW_MS
        and scope in (CLUSTER, f"driver:{name}")
        and not any(turned_ms <= said_ms and said in (CLUSTER, f"driver:{name}") for said, said_ms in over)
    ]
    nodes = {device.split("|")[0] for device, by in counted if by}
    return sum(1 for _, by in counted if not by or len(nodes) > 1)


@given(histories())
@_settings
def test_a_breaker_opens_exactly_when_the_count_exceeds_the_threshold(events):
    """At every step, for every scope: open follows from a naive count over the history."""
    state, log = walk(events)
    for index, (event, decided) in enumerate(log):
        at_ms = event.at_ms if isinstance(event, CensusTaken) else event.observed_at_ms
        for opened in (d for d in decided if isinstance(d, BreakerOpened)):
            assert opened.adverse == adverse_now(log[: index + 1], at_ms, opened.scope)
            assert opened.adverse > opened.threshold >= 3
            assert opened.threshold * 10 >= opened.known
    for scope in SCOPES:
        if scope not in state.open:
            assert adverse_now(log, state.now_ms, scope) <= threshold_now(state, scope)


@given(histories())
@_settings
def test_every_step_settles_and_a_replay_gives_the_same_state(events):
    """Nothing is left to say after a step; folding facts and decisions is enough."""
    state, log = walk(events)
    replayed = BREAKER.fold(BreakerState(), [x for event, decided in log for x in (event, *decided)])

    assert () == BREAKER.decide(state)
    assert state == replayed


@given(histories(), st.data())
@_settings
def test_a_restart_at_any_point_decides_the_same(events, data):
    """The state is data: it survives being written and read."""
    cut = data.draw(st.integers(0, len(events)))
    state, log = walk(events[:cut])
    state = msgspec.json.decode(msgspec.json.encode(state), type=BreakerState)
    for event in events[cut:]:
        state, decided = BREAKER.step(state, (event,))
        log.append((event, decided))

    assert walk(events) == (state, log)


@given(histories())
@_settings
def test_opened_and_closed_take_turns_and_everything_closes_in_the_end(events):
    """A scope is opened once until it is closed, not before its quiet time unless a person says so; what is known again and quiet closes."""
    state, log = walk(events)
    for number, known in list(state.known.items()):
        told = CensusTaken(node="", at_ms=state.now_ms, partition=number, known=known)
        state, decided = BREAKER.step(state, (told,))
        log.append((told, decided))
    end_ms = state.now_ms + WINDOW_MS
    for at_ms in (end_ms, end_ms + QUIET_MS):
        state, decided = BREAKER.step(state, (tick(at_ms),))
        log.append((tick(at_ms), decided))
    opened = {}
    for _, decided in log:
        for decision in decided:
            if isinstance(decision, BreakerOpened):
                assert decision.scope not in opened
                opened[decision.scope] = decision.at_ms
            elif isinstance(decision, BreakerClosed):
                assert opened.pop(decision.scope) == decision.opened_at_ms
                by_hand = decision.clause == "breaker_reset_requested"
                assert by_hand or decision.at_ms - decision.opened_at_ms >= QUIET_MS

    assert ({}, {}, {}) == (opened, state.open, state.adverse)


@given(histories())
@_settings
def test_time_alone_closes_a_breaker_only_after_a_quiet_time_and_while_no_more_than_the_threshold_wait(
    events,
):
    """At each tick of a whole quiet time, and at the end of it; a person may close it at any time."""
    state, log = walk(events)
    calm_ms = dict.fromkeys(SCOPES)
    at, seen = BreakerState(), []
    for event, decided in log:
        at = BREAKER.fold(at, [event])
        seen.append((event, decided))
        excess = {scope: waiting_now(seen, at, scope) > threshold_now(at, scope) for scope in SCOPES}
        if isinstance(event, Tick):
            for scope in SCOPES:
                calm_ms[scope] = None if excess[scope] else calm_ms[scope] or at.now_ms
        for closed in (d for d in decided if isinstance(d, BreakerClosed) and d.clause == "breaker.quiet_ms"):
            assert not excess[closed.scope]
            assert closed.at_ms - calm_ms[closed.scope] >= QUIET_MS
        at = BREAKER.fold(at, decided)
    assert state == at


@given(histories(), st.data())
@_settings
def test_a_census_that_is_heard_twice_changes_nothing(events, data):
    """Delivered again at once, or after the next event: the same devices, counted once."""
    repeated = list(events)
    index = data.draw(st.integers(0, len(events) - 1))
    repeated.insert(index + 1, events[index])

    assert walk(events)[0] == walk(repeated)[0]
    assert [d for _, ds in walk(events)[1] for d in ds] == [d for _, ds in walk(repeated)[1] for d in ds]
