"""The way back: probe, canary, observation; or a longer observation that says what it is."""

from __future__ import annotations

import msgspec
import pytest
from custody_run import Run
from facts_of import (
    HOUR,
    MINUTE,
    SECOND,
    T0,
    dra,
    lapsed,
    node,
    plugin,
    published,
    release,
    resumed,
    step_report,
    withdrawn,
    word,
)

from sickbay.codec import fact_id
from sickbay.policy import Policy

RETURN = Policy().staged_return
HOLD_MS, LEASE_MS = Policy().quarantine.min_hold_ms, Policy().quarantine.lease_ms
PROBED = msgspec.structs.replace(
    Policy(), version="probed", staged_return=msgspec.structs.replace(RETURN, prober="job")
)
CARD = plugin(0)
#: When the return begins in ``on_the_way``.
BACK = T0 + HOLD_MS


def on_the_way(policy=None):
    """A run whose device had a fault at T0, was healthy a minute later and is now past its hold."""
    run = Run(policy or Policy()).each(
        [word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + MINUTE, 2)]
    )
    run.until(BACK)
    return run


def report(run, at_ms, *, passed, request="s1", attempt=None, step=None):
    return run.step(
        step_report(step or run.phase(CARD), CARD, at_ms, run.episode(CARD), passed, request, attempt=attempt)
    )


def at_canary():
    run = on_the_way(PROBED)
    report(run, BACK + MINUTE, passed=True, request="probe")
    return run


def test_without_a_prober_the_return_is_an_observation_that_says_so():
    """Every decision of the return carries that nothing but the device's own word vouches for it."""
    run = on_the_way()
    run.until(BACK + RETURN.observation_only_ms)
    started, released = run.of("observation_started")[0], run.of("device_released")[0]

    assert ["in_service", "quarantined", "observing", "in_service"] == run.phases(CARD)
    assert "observation_only" == started.record.episode.verification == released.closed.verification
    assert "verification: observation_only" in started.reason
    assert "verification: observation_only" in released.reason


def test_an_observation_takes_its_whole_time():
    """Two hours without a prober, not a millisecond less; the closed episode says how it ended."""
    run = on_the_way()
    run.until(BACK + RETURN.observation_only_ms - 1)

    assert "observing" == run.phase(CARD)

    run.until(BACK + RETURN.observation_only_ms)
    closed = run.of("device_released")[0].closed

    assert ("returned", BACK + RETURN.observation_only_ms, ()) == (
        closed.outcome, closed.closed_at_ms, closed.open_causes,
    )  # fmt: skip


def test_a_release_rests_on_a_healthy_word():
    """No release without positive evidence: the decision names the fact that said healthy."""
    healthy = word(CARD, "Healthy", T0 + MINUTE, 2)
    run = on_the_way()
    run.until(BACK + RETURN.observation_only_ms)

    assert (fact_id(healthy),) == run.of("device_released")[0].evidence


def test_a_doubt_during_the_observation_starts_its_clock_anew():
    """Healthy must hold through the whole observation."""
    run = on_the_way()
    doubt = BACK + HOUR
    run.each([word(CARD, "Unknown", doubt, 3), word(CARD, "Healthy", doubt + MINUTE, 4)])
    run.until(BACK + RETURN.observation_only_ms)

    assert "observing" == run.phase(CARD)

    run.until(doubt + MINUTE + RETURN.observation_only_ms)

    assert "in_service" == run.phase(CARD)


@pytest.mark.parametrize("policy", [Policy(), PROBED])
def test_a_fault_on_the_way_back_returns_to_quarantine_with_a_doubled_hold(policy):
    """A second fault and a failed step: four times the first hold, under the same episode."""
    run = on_the_way(policy)
    first = run.episode(CARD).episode_id
    fault = BACK + 5 * MINUTE
    run.step(word(CARD, "Unhealthy", fault, 3))
    episode = run.episode(CARD)

    assert ("quarantined", first, 2, 1) == (
        run.phase(CARD), episode.episode_id, episode.flap_count, episode.failures,
    )  # fmt: skip
    assert (fault + 4 * HOLD_MS, None, "") == (
        episode.hold_until_ms, episode.return_at_ms, episode.verification,
    )  # fmt: skip


def test_with_a_prober_the_device_is_probed_then_tried_then_observed():
    """Each step begins when the one before it passed; the release says that a prober vouched for it."""
    run = at_canary()
    report(run, BACK + 2 * MINUTE, passed=True, request="canary")
    run.until(BACK + 2 * MINUTE + RETURN.observation_ms)

    assert ["in_service", "quarantined", "probing", "canary", "observing", "in_service"] == run.phases(CARD)
    assert ("prober", 1) == (
        run.of("device_released")[0].closed.verification, run.of("device_released")[0].closed.attempt,
    )  # fmt: skip


def test_with_a_prober_nothing_but_its_word_moves_the_device_on():
    """Healthy in Pod status for ever does not pass a probe."""
    run = on_the_way(PROBED)
    run.step(word(CARD, "Healthy", BACK + MINUTE, 3, pod="pod-b"))

    assert "probing" == run.phase(CARD)


@pytest.mark.parametrize("step", ["probing", "canary"])
def test_a_step_that_fails_returns_to_quarantine_with_a_doubled_hold(step):
    """A failed probe or canary counts like a failure of the card."""
    run = on_the_way(PROBED) if step == "probing" else at_canary()
    failed = BACK + 5 * MINUTE
    report(run, failed, passed=False, request="failed")

    assert ("quarantined", 1, failed + 2 * HOLD_MS) == (
        run.phase(CARD), run.episode(CARD).failures, run.episode(CARD).hold_until_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("step", "timeout_ms"), [("probing", RETURN.probe_timeout_ms), ("canary", RETURN.canary_timeout_ms)]
)
def test_a_step_that_says_nothing_in_time_has_failed(step, timeout_ms):
    """A prober that died passes nobody."""
    run = on_the_way(PROBED) if step == "probing" else at_canary()
    began = BACK if step == "probing" else BACK + MINUTE
    run.until(began + timeout_ms - 1)

    assert step == run.phase(CARD)

    run.until(began + timeout_ms)

    assert ("quarantined", 1) == (run.phase(CARD), run.episode(CARD).failures)


def test_each_attempt_has_a_number_and_an_old_one_does_nothing():
    """The report of the first attempt comes while the second runs: it is recorded, and passes nobody."""
    run = on_the_way(PROBED)
    report(run, BACK + MINUTE, passed=False, request="first")
    again = BACK + MINUTE + 2 * HOLD_MS
    run.until(again)

    assert ("probing", 2) == (run.phase(CARD), run.episode(CARD).attempt)
    assert () == report(run, again + 1, passed=True, request="late", attempt=1)
    assert "probing" == run.phase(CARD)


def test_a_report_on_another_or_a_closed_episode_does_nothing():
    """Every command names its episode."""
    run = on_the_way(PROBED)
    stranger = msgspec.structs.replace(run.episode(CARD), episode_id="another")
    old = run.episode(CARD)

    assert () == run.step(step_report("probing", CARD, BACK + 1, stranger, True, "s1"))

    report(run, BACK + 2, passed=True, request="p")
    report(run, BACK + 3, passed=True, request="c")
    run.until(BACK + 3 + RETURN.observation_ms)

    assert "in_service" == run.phase(CARD)
    assert () == run.step(step_report("probing", CARD, BACK + HOUR, old, False, "s2"))


def test_a_canarys_word_does_not_pass_a_probe_nor_a_probes_a_canary():
    """Each executor speaks for its own step."""
    probing, canary = on_the_way(PROBED), at_canary()

    assert () == report(probing, BACK + 1, passed=True, step="canary")
    assert () == report(canary, BACK + MINUTE + 1, passed=True, step="probing")


def test_the_canary_passes_and_the_device_must_still_be_healthy():
    """A device that nobody calls healthy any more stays under observation."""
    run = at_canary()
    report(run, BACK + 2 * MINUTE, passed=True, request="canary")
    run.step(word(CARD, "Healthy", BACK + 3 * MINUTE, 3, live=False))
    run.until(BACK + 12 * HOUR)

    assert "observing" == run.phase(CARD)


def test_the_lease_runs_during_the_return_and_asks_for_review():
    """Expiry during a probe extends and reviews; the probe is not touched."""
    short = msgspec.structs.replace(
        PROBED, quarantine=msgspec.structs.replace(PROBED.quarantine, lease_ms=HOLD_MS + MINUTE)
    )
    run = on_the_way(short)
    run.until(BACK + MINUTE)

    assert ("probing", 1) == (run.phase(CARD), len(run.of("quarantine_review_due")))


@pytest.mark.parametrize("cause", ["reboot", "plugin", "slice", "lease"])
def test_healthy_right_after_a_restart_is_observed_longer(cause):
    """Node, plugin, driver or kubelet came back and with it Healthy: the decision says that this proves nothing."""
    device = dra(0) if cause == "slice" else CARD
    run = Run().each([node(T0 - HOUR, 1), published(0, T0 - HOUR, 1), word(device, "Unhealthy", T0, 2)])
    restart = T0 + HOUR
    match cause:
        case "reboot":
            run.step(node(restart, 3, boot_id="boot-2"))
        case "plugin":
            run.each([node(restart - SECOND, 3, allocatable="0"), node(restart, 4)])
        case "slice":
            run.each([withdrawn(0, restart - SECOND, 3), published(0, restart, 4)])
        case "lease":
            run.each([lapsed(restart - SECOND, 3, restart - MINUTE), resumed(restart, 4)])
    run.step(word(device, "Healthy", restart + SECOND, 5))
    run.until(restart + 2 * MINUTE)
    started = run.of("observation_started")[0]

    assert ("observing", True) == (run.phase(device), run.episode(device).after_restart)
    assert "staged_return.observation_after_restart_ms" == started.clause
    assert "restart" in started.reason

    run.until(started.at_ms + RETURN.observation_after_restart_ms - 1)

    assert "observing" == run.phase(device)

    run.until(started.at_ms + RETURN.observation_after_restart_ms)

    assert "in_service" == run.phase(device)


def test_healthy_long_after_a_restart_is_observed_as_usual():
    """Past the grace time the word is the device's own."""
    run = Run().each(
        [node(T0 - HOUR, 1), word(CARD, "Unhealthy", T0, 2), node(T0 + HOUR, 3, boot_id="boot-2")]
    )
    run.step(word(CARD, "Healthy", T0 + HOUR + Policy().node_incident.restart_grace_ms + 1, 4))

    assert ("observing", False) == (run.phase(CARD), run.episode(CARD).after_restart)


def test_a_restart_before_the_fault_lengthens_nothing():
    """The fault came after the restart; the recovery has nothing to do with it."""
    run = Run().each([node(T0 - HOUR, 1), node(T0 - SECOND, 2, boot_id="boot-2")])
    run.each([word(CARD, "Unhealthy", T0, 3), word(CARD, "Healthy", T0 + SECOND, 4)])
    run.until(BACK)

    assert ("observing", False) == (run.phase(CARD), run.episode(CARD).after_restart)


def test_no_step_of_the_return_begins_while_the_node_is_lost():
    """What a lost node's Pods say is frozen: neither hold nor observation runs out on it."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + MINUTE, 2)])
    run.step(lapsed(T0 + 2 * MINUTE, 3, T0 + MINUTE))
    run.until(T0 + 5 * HOUR)

    assert "quarantined" == run.phase(CARD)

    run.step(resumed(T0 + 5 * HOUR, 4))
    run.until(T0 + 5 * HOUR + Policy().node_incident.settle_ms)

    assert "observing" == run.phase(CARD)


def test_a_release_request_goes_through_the_probe_too():
    """A person's word starts the path and passes no step of it."""
    run = Run(PROBED).each([word(CARD, "Unhealthy", T0, 1)])
    run.step(release(CARD, T0 + MINUTE, run.episode(CARD).episode_id))

    assert ("probing", "ann") == (run.phase(CARD), run.episode(CARD).release_actor)
