"""Devices whose health is not known: suspicion, the window and its back-off, restriction, and the way out of both."""

from __future__ import annotations

import msgspec
import pytest
from custody_run import Run
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    UNMONITORED,
    breaker,
    dra,
    gap,
    lapsed,
    plugin,
    published,
    resumed,
    withdrawn,
    word,
)

from sickbay.policy import Policy

UNKNOWN = Policy().unknown
WINDOW_MS, SETTLE_MS, HOLD_DOWN_MS = UNKNOWN.window_ms, UNKNOWN.settle_ms, UNKNOWN.hold_down_ms
CARD = plugin(0)


def record(run, device_id=CARD):
    return run.state.announced.devices[device_id]


def unknown_run(run, at_ms, rv, *, length_ms=SECOND):
    """One Unknown run of ``length_ms``, ended by Healthy; return the window that it was given."""
    run.step(word(CARD, "Unknown", at_ms, rv))
    window_ms = record(run).window_ms
    run.step(word(CARD, "Healthy", at_ms + length_ms, rv + 1))
    run.until(at_ms + length_ms + HOLD_DOWN_MS)
    return window_ms


def test_a_device_that_is_healthy_needs_no_decision():
    """In service is the state of a device that nobody complains of."""
    run = Run().each([word(CARD, "Healthy", T0, 1)])

    assert ([], "in_service") == (run.decisions, run.phase(CARD))


def test_unknown_makes_a_device_suspect_and_takes_nothing_away():
    """Suspect is an alert: the record names the run, its window and its cause."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])

    assert ["device_suspected"] == run.kinds()
    assert ("suspect", "unknown", T0, WINDOW_MS) == (
        record(run).phase,
        record(run).cause,
        record(run).unknown_since_ms,
        record(run).window_ms,
    )


def test_a_suspect_that_is_known_again_is_cleared_after_the_hold_down():
    """Known again counts once it held."""
    run = Run().each([word(CARD, "Unknown", T0, 1), word(CARD, "Healthy", T0 + SECOND, 2)])
    run.until(T0 + SECOND + HOLD_DOWN_MS - 1)

    assert "suspect" == run.phase(CARD)

    run.until(T0 + SECOND + HOLD_DOWN_MS)

    assert ("in_service", "unknown.hold_down_ms") == (run.phase(CARD), run.decisions[-1].clause)


def test_unknown_for_the_whole_window_restricts_the_device():
    """New work is kept away from the window's end on, not a millisecond before."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + WINDOW_MS - 1)

    assert "suspect" == run.phase(CARD)

    run.until(T0 + WINDOW_MS)

    assert ("restricted", T0 + WINDOW_MS) == (run.phase(CARD), record(run).since_ms)


def test_unknown_never_quarantines_however_long_it_lasts():
    """Unknown is not Unhealthy."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + 300 * 24 * HOUR)

    assert ["in_service", "suspect", "restricted"] == run.phases(CARD)


def test_a_restricted_device_takes_work_again_after_healthy_held_for_the_settle_time():
    """One healthy word is not enough."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + WINDOW_MS)
    back = T0 + WINDOW_MS + MINUTE
    run.step(word(CARD, "Healthy", back, 2))
    run.until(back + SETTLE_MS - 1)

    assert "restricted" == run.phase(CARD)

    run.until(back + SETTLE_MS)

    assert ("in_service", "unknown.settle_ms") == (run.phase(CARD), run.decisions[-1].clause)


def test_a_doubt_inside_the_settle_time_starts_it_anew():
    """Settling must be one stretch."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + WINDOW_MS)
    back = T0 + WINDOW_MS + MINUTE
    run.each([
        word(CARD, "Healthy", back, 2),
        word(CARD, "Unknown", back + SETTLE_MS - 2, 3),
        word(CARD, "Healthy", back + SETTLE_MS - 1, 4),
    ])  # fmt: skip
    run.until(back + 2 * SETTLE_MS - 2)

    assert "restricted" == run.phase(CARD)

    run.until(back + 2 * SETTLE_MS - 1)

    assert "in_service" == run.phase(CARD)


def test_the_end_of_the_last_word_does_not_clear_a_restriction():
    """Nobody says anything any more: that is no healthy word."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + WINDOW_MS)
    run.step(word(CARD, "Unknown", T0 + HOUR, 2, live=False))
    run.until(T0 + 48 * HOUR)

    assert "restricted" == run.phase(CARD)


def test_a_report_that_vanished_is_unknown():
    """The field went away while the Pod runs: absent is not healthy."""
    run = Run().each([
        word(CARD, "Healthy", T0, 1),
        word(CARD, "Unknown", T0 + 1, 2, raw=None, absence="report_vanished"),
    ])  # fmt: skip

    assert ("suspect", "unknown") == (run.phase(CARD), record(run).cause)


def test_a_word_that_is_not_known_is_unknown_and_may_be_given_a_meaning():
    """Kubernetes announced PermanentlyUnhealthy; until the policy says what a word means it is Unknown."""
    fact = word(CARD, "Unknown", T0, 1, raw="PermanentlyUnhealthy")
    policy = msgspec.structs.replace(
        Policy(),
        quarantine=msgspec.structs.replace(
            Policy().quarantine, health_words={"PermanentlyUnhealthy": "Unhealthy"}
        ),
    )

    assert "suspect" == Run().each([fact]).phase(CARD)
    assert "quarantined" == Run(policy).each([fact]).phase(CARD)


def test_each_recent_run_doubles_the_window_up_to_the_cap():
    """300 s, 600 s, 1200 s, 2400 s, and never more than an hour."""
    run = Run()
    windows = [unknown_run(run, T0 + n * 10 * MINUTE, 10 * n + 1) for n in range(7)]

    assert [WINDOW_MS * f for f in (1, 2, 4, 8)] + [UNKNOWN.window_max_ms] * 3 == windows


def test_a_run_that_ended_before_the_memory_does_not_count():
    """A shift later the device starts with the first window again; a millisecond earlier it does not."""
    first_end = T0 + SECOND + HOLD_DOWN_MS
    late, early = Run(), Run()
    unknown_run(late, T0, 1)
    unknown_run(early, T0, 1)

    assert WINDOW_MS == unknown_run(late, first_end + UNKNOWN.backoff_memory_ms, 10)
    assert 2 * WINDOW_MS == unknown_run(early, first_end + UNKNOWN.backoff_memory_ms - 1, 10)


def test_a_longer_window_is_the_one_that_is_waited_for():
    """The second run is restricted after ten minutes, not after five."""
    run = Run()
    unknown_run(run, T0, 1)
    again = T0 + HOUR
    run.step(word(CARD, "Unknown", again, 10))
    run.until(again + 2 * WINDOW_MS - 1)

    assert "suspect" == run.phase(CARD)

    run.until(again + 2 * WINDOW_MS)

    assert "restricted" == run.phase(CARD)


def test_the_worst_of_the_live_pods_counts():
    """Two Pods share a device and disagree: the doubt of one is enough."""
    run = Run().each([word(CARD, "Healthy", T0, 1), word(CARD, "Unknown", T0 + 1, 2, pod="pod-b")])

    assert "suspect" == run.phase(CARD)

    run.step(word(CARD, "Unknown", T0 + 2, 3, pod="pod-b", live=False))
    run.until(T0 + 2 + HOLD_DOWN_MS)

    assert "in_service" == run.phase(CARD)


def test_a_lost_node_restricts_none_of_its_devices():
    """No device is condemned by a node's silence: the incident explains the doubt as long as it lasts."""
    run = Run().each([word(CARD, "Unknown", T0, 1), lapsed(T0 + MINUTE, 1, T0 + 20 * SECOND)])
    run.until(T0 + 24 * HOUR)

    assert ("suspect", "node_incident") == (run.phase(CARD), record(run).cause)


def test_a_doubt_that_outlasts_the_lost_node_gets_a_window_of_its_own():
    """After the node is back the device is judged alone, from then on."""
    run = Run().each([word(CARD, "Unknown", T0, 1), lapsed(T0 + MINUTE, 1, T0 + 20 * SECOND)])
    run.step(resumed(T0 + HOUR, 2))
    closed = T0 + HOUR + Policy().node_incident.settle_ms
    run.until(closed + WINDOW_MS - 1)

    assert ("suspect", "unknown", closed) == (
        run.phase(CARD),
        record(run).cause,
        record(run).unknown_since_ms,
    )

    run.until(closed + WINDOW_MS)

    assert "restricted" == run.phase(CARD)


@pytest.mark.parametrize("scope", ["cluster", f"driver:{DRIVER}"])
def test_an_open_breaker_holds_the_restriction_back_until_it_closes(scope):
    """Unknown-based restrictions stop; once the storm is over the window that passed counts."""
    run = Run().each([word(dra(0), "Unknown", T0, 1), breaker(T0 + MINUTE, scope, is_open=True)])
    run.until(T0 + 2 * WINDOW_MS)

    assert "suspect" == run.phase(dra(0))

    run.step(breaker(T0 + HOUR, scope, is_open=False))
    run.until(T0 + HOUR)

    assert "restricted" == run.phase(dra(0))


def test_the_breaker_of_another_driver_holds_nothing_back():
    """Scopes are kept apart."""
    run = Run().each([word(dra(0), "Unknown", T0, 1), breaker(T0 + 1, "driver:gpu.intel.com", is_open=True)])
    run.until(T0 + WINDOW_MS)

    assert "restricted" == run.phase(dra(0))


def test_an_open_breaker_lets_restricted_devices_go():
    """Releases continue."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + WINDOW_MS)
    run.step(breaker(T0 + WINDOW_MS + 1, "cluster", is_open=True))
    run.step(word(CARD, "Healthy", T0 + HOUR, 2))
    run.until(T0 + HOUR + SETTLE_MS)

    assert "in_service" == run.phase(CARD)


def test_a_blind_watch_puts_off_clearing_too():
    """The hold-down ran out while nothing was seen: a bad word may have been missed."""
    run = Run().each([word(CARD, "Unknown", T0, 1), word(CARD, "Healthy", T0 + SECOND, 2)])
    run.step(gap(T0 + 2 * SECOND, T0 + 5 * MINUTE))

    assert "suspect" == run.phase(CARD)

    run.until(T0 + 5 * MINUTE + HOLD_DOWN_MS)

    assert "in_service" == run.phase(CARD)


def test_a_device_of_unknown_health_that_was_withdrawn_is_well_once_it_is_published_again():
    """Its driver reports no health: that it is there is all that was ever known (a cpu driver that restarts)."""
    silent = word(dra(0), "Unknown", T0, 1, raw=None, absence="never_reported")
    run = Run().each([published(0, T0, 1), silent, withdrawn(0, T0 + MINUTE, 2)])
    assert ("suspect", "withdrawn") == (run.phase(dra(0)), record(run, dra(0)).cause)

    back_ms = T0 + 2 * MINUTE
    run.step(published(0, back_ms, 3))
    hold_down_ms = run.policy.unknown.hold_down_ms
    run.until(back_ms + hold_down_ms - 1)
    assert "suspect" == run.phase(dra(0))

    run.until(back_ms + hold_down_ms)
    assert "in_service" == run.phase(dra(0))


def test_a_withdrawn_device_in_use_is_suspect_and_says_why():
    """The pool no longer has it, a Pod still holds it: nobody vouches for it."""
    run = Run().each([published(0, T0, 1), word(dra(0), "Healthy", T0, 1), withdrawn(0, T0 + MINUTE, 2)])

    assert ("suspect", "withdrawn") == (run.phase(dra(0)), record(run, dra(0)).cause)


def test_a_withdrawn_device_that_nobody_uses_is_forgotten():
    """State is bounded by what is there."""
    run = Run().each([published(0, T0, 1), withdrawn(0, T0 + MINUTE, 2)])

    assert ([], {}) == (run.decisions, run.state.timeline.head.units)


def test_an_unmonitored_device_is_restricted_when_the_policy_wants_that():
    """Off by default, a choice of the operator."""
    strict = msgspec.structs.replace(
        Policy(), unknown=msgspec.structs.replace(UNKNOWN, restrict_unmonitored=True)
    )
    run = Run(strict).each([word(dra(0), "Healthy", T0, 1), published(0, T0, 2, taints=[UNMONITORED])])
    run.until(T0 + WINDOW_MS)

    assert "restricted" == run.phase(dra(0))


def test_six_turns_inside_one_run_are_flapping_and_five_are_not():
    """The alert is raised once and cleared with the run."""
    words = [word(CARD, ("Unknown", "Healthy")[n % 2], T0 + n, 1 + n) for n in range(14)]
    five = Run().each(words[:12])
    six = Run().each(words[:13])

    assert ([], ["flapping"]) == (five.alerts(), six.alerts())
    assert 1 == len(six.of("device_suspected"))

    six.step(words[13])
    six.until(T0 + 13 + HOLD_DOWN_MS)

    assert ([], ["alert_cleared"]) == (six.alerts(), [d.KIND for d in six.of("alert_cleared")])
