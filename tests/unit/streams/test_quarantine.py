"""Quarantine: how an episode opens, is renewed, held, extended and counted."""

from __future__ import annotations

from custody_run import Run
from facts_of import (
    DAY,
    HOUR,
    MINUTE,
    NODE,
    T0,
    XID,
    breaker,
    dra,
    node,
    plugin,
    published,
    taint,
    word,
)

from sickbay.codec import fact_id
from sickbay.envelope import derived_id
from sickbay.policy import Policy

POLICY = Policy()
HOLD_MS, LEASE_MS = POLICY.quarantine.min_hold_ms, POLICY.quarantine.lease_ms
CARD = plugin(0)


def flap(run, at_ms, rv):
    """One fault that is over a millisecond later; return the hold that it was given."""
    run.step(word(CARD, "Unhealthy", at_ms, rv))
    hold_ms = run.episode(CARD).hold_until_ms - at_ms
    run.step(word(CARD, "Healthy", at_ms + 1, rv + 1))
    return hold_ms


def test_unhealthy_opens_an_episode_at_once():
    """The record says what, why, who, since when, until when, and on which evidence."""
    fault = word(CARD, "Unhealthy", T0, 7)
    run = Run().each([fault])
    episode = run.episode(CARD)

    assert ["quarantine_opened"] == run.kinds()
    assert ("quarantined", T0, "unhealthy", "sickbay", "sickbay") == (
        run.phase(CARD), episode.opened_at_ms, episode.cause, episode.actor, episode.lease_holder,
    )  # fmt: skip
    assert (T0 + HOLD_MS, T0 + LEASE_MS, 1, 0) == (
        episode.hold_until_ms, episode.expires_at_ms, episode.flap_count, episode.extensions,
    )  # fmt: skip
    assert ((fact_id(fault),), ("unhealthy",), False) == (episode.evidence, episode.open_causes, episode.held)
    assert (fact_id(fault),) == run.decisions[0].evidence


def test_the_episode_id_is_derived_from_device_node_uid_and_first_fault():
    """The same history has the same id everywhere, and another machine under the name another."""
    fault = word(CARD, "Unhealthy", T0, 7)
    version = f"{fault.status_version}:{fault.pod_uid}"
    first, other = (Run().each([node(T0 - 1, 1, uid=uid), fault]) for uid in ("node-uid-1", "node-uid-2"))

    assert derived_id("episode", NODE, CARD, "node-uid-1", version) == first.episode(CARD).episode_id
    assert derived_id("episode", NODE, CARD, "node-uid-2", version) == other.episode(CARD).episode_id


def test_an_episode_keeps_its_id_through_everything_that_follows():
    """Later words, flaps and reviews name the episode that the first fault opened."""
    run = Run()
    for n in range(5):
        flap(run, T0 + n * MINUTE, 10 * n + 1)
    run.until(T0 + HOUR)

    assert 1 == len({d.correlation_id for d in run.decisions})


def test_a_second_pods_unhealthy_is_the_same_trouble():
    """Worst-of over live Pods: no second episode, no flap."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Unhealthy", T0 + 1, 2, pod="pod-b")])

    assert (["quarantine_opened"], 1) == (run.kinds(), run.episode(CARD).flap_count)


def test_a_suspect_or_restricted_device_that_turns_bad_is_quarantined():
    """The run ends in the episode."""
    for wait_ms in (MINUTE, HOUR):
        run = Run().each([word(CARD, "Unknown", T0, 1)])
        run.until(T0 + wait_ms)
        run.step(word(CARD, "Unhealthy", T0 + wait_ms, 2))

        assert ("quarantined", None) == (
            run.phase(CARD),
            run.state.announced.devices[CARD].unknown_since_ms,
        )


def test_a_quarantined_device_that_turns_unknown_stays_quarantined():
    """Unhealthy, then Unknown for a day: not knowing does not open the door."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Unknown", T0 + 1, 2)])
    run.until(T0 + DAY)

    assert "quarantined" == run.phase(CARD)


def test_unhealthy_again_after_unknown_renews_the_lease_and_is_no_flap():
    """Nobody said healthy in between: the fault never went away."""
    run = Run().each([
        word(CARD, "Unhealthy", T0, 1),
        word(CARD, "Unknown", T0 + MINUTE, 2),
        word(CARD, "Unhealthy", T0 + HOUR, 3),
    ])  # fmt: skip

    assert (1, T0 + HOUR + LEASE_MS) == (run.episode(CARD).flap_count, run.episode(CARD).expires_at_ms)
    assert T0 + HOLD_MS == run.episode(CARD).hold_until_ms


def test_a_return_does_not_begin_before_the_minimum_hold():
    """Healthy a minute after the fault waits for the hold."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + MINUTE, 2)])
    run.until(T0 + HOLD_MS - 1)

    assert "quarantined" == run.phase(CARD)

    run.until(T0 + HOLD_MS)

    assert "observing" == run.phase(CARD)


def test_healthy_that_is_older_than_the_fault_starts_no_return():
    """Another Pod said Healthy before the fault and nothing since: that is no recovery."""
    run = Run().each([
        word(CARD, "Healthy", T0 - MINUTE, 1, pod="pod-b"),
        word(CARD, "Unhealthy", T0, 2),
        word(CARD, "Unhealthy", T0 + MINUTE, 3, live=False),
    ])  # fmt: skip
    run.until(T0 + 20 * HOUR)

    assert "quarantined" == run.phase(CARD)

    run.step(word(CARD, "Healthy", T0 + 20 * HOUR, 4, pod="pod-b", message="said again"))

    assert "observing" == run.phase(CARD)


def test_absence_of_every_signal_never_releases():
    """The eviction that a quarantine causes takes the signal away: that is no proof of anything."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Unhealthy", T0 + 1, 2, live=False)])
    run.until(T0 + 100 * DAY)

    assert ("quarantined", []) == (run.phase(CARD), run.of("device_released"))


def test_each_further_fault_doubles_the_hold_up_to_the_cap():
    """10, 20, 40 minutes ... and never more than a day."""
    run = Run()
    holds = [flap(run, T0 + n * MINUTE, 10 * n + 1) for n in range(10)]
    day = POLICY.quarantine.hold_max_ms

    assert [min(HOLD_MS * 2**n, day) for n in range(10)] == holds
    assert [day, day] == holds[-2:]
    assert 10 == run.episode(CARD).flap_count


def test_faults_outside_the_flap_window_do_not_lengthen_the_hold():
    """A further fault an hour after the others is held as if it were the first; a millisecond earlier it counts."""
    for wait_ms, hold_ms in (
        (POLICY.quarantine.flap_window_ms, HOLD_MS),
        (POLICY.quarantine.flap_window_ms - 1, 2 * HOLD_MS),
    ):
        run = Run()
        flap(run, T0, 1)
        run.step(word(CARD, "Unknown", T0 + 2, 3))

        assert hold_ms == flap(run, T0 + wait_ms, 100)


def test_a_further_fault_never_shortens_a_longer_hold():
    """The fourth fault gave eighty minutes; a first one of another window does not give the device back sooner."""
    run = Run()
    for n in range(4):
        flap(run, T0 + n, 10 * n + 1)
    until_ms = run.episode(CARD).hold_until_ms
    flap(run, T0 + 3 + POLICY.quarantine.flap_window_ms, 100)

    assert T0 + 3 + 8 * HOLD_MS == until_ms == run.episode(CARD).hold_until_ms


def test_the_third_fault_in_the_window_asks_for_a_person_once():
    """The review is due when the limit is reached, not again with each later flap."""
    run = Run()
    reviews = []
    for n in range(5):
        flap(run, T0 + n * MINUTE, 10 * n + 1)
        reviews.append(len(run.of("quarantine_review_due")))

    assert [0, 0, 1, 1, 1] == reviews
    assert "quarantine.flap_limit" == run.of("quarantine_review_due")[0].clause


def test_a_lease_that_runs_out_is_extended_and_reviewed_and_never_releases():
    """Loud each day, and the device stays out."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1)])
    run.until(T0 + 3 * LEASE_MS)

    assert [T0 + n * LEASE_MS for n in (1, 2, 3)] == [d.at_ms for d in run.of("quarantine_review_due")]
    assert ("quarantined", 3, T0 + 4 * LEASE_MS) == (
        run.phase(CARD), run.episode(CARD).extensions, run.episode(CARD).expires_at_ms,
    )  # fmt: skip


def test_a_return_that_is_stuck_is_reviewed_too():
    """Observing without anybody who says healthy goes on, and a person hears of it."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + HOUR, 2)])
    run.step(word(CARD, "Healthy", T0 + HOUR + 1, 3, live=False))
    run.until(T0 + LEASE_MS)

    assert ("observing", 1) == (run.phase(CARD), len(run.of("quarantine_review_due")))


def test_a_drivers_taint_opens_an_episode_without_any_pod():
    """A device that no Pod uses is watched by its driver."""
    run = Run().each([published(0, T0, 1, taints=[XID])])

    assert ("quarantined", "driver_taint", ("driver_taint",)) == (
        run.phase(dra(0)), run.episode(dra(0)).cause, run.episode(dra(0)).open_causes,
    )  # fmt: skip


def test_a_taint_that_keeps_nobody_away_is_information():
    """Effect None, absent, or one that this build does not know."""
    for effect in ("None", "", "PreferNoSchedule"):
        run = Run().each([published(0, T0, 1, taints=[taint(XID.key, effect)])])

        assert [] == run.decisions


def test_an_attribute_may_be_the_drivers_word():
    """Intel publishes health as an attribute: anything but the healthy text is a fault, and healthy is positive evidence."""

    def gpu(health, at_ms, rv):
        import msgspec

        return msgspec.structs.replace(
            published(0, at_ms, rv, attributes={"gpu.intel.com/health": health}),
            driver="gpu.intel.com",
            device_id="dra:gpu.intel.com/node-g1/gpu-0",
        )

    run = Run().each([gpu("Unhealthy", T0, 1)])
    device = "dra:gpu.intel.com/node-g1/gpu-0"

    assert "quarantined" == run.phase(device)

    run.step(gpu("Healthy", T0 + HOUR, 2))

    assert "observing" == run.phase(device)


def test_an_episode_under_an_open_breaker_is_marked_held():
    """Visible and blocked for new work, and nobody is moved for it."""
    run = Run().each([breaker(T0 - 1, "cluster", is_open=True), word(CARD, "Unhealthy", T0, 1)])

    assert ("quarantined", True) == (run.phase(CARD), run.episode(CARD).held)


def test_evidence_is_kept_to_the_newest_sixteen():
    """An episode that flaps for days does not grow."""
    run = Run()
    for n in range(20):
        flap(run, T0 + n * MINUTE, 10 * n + 1)
    newest = word(CARD, "Unhealthy", T0 + 19 * MINUTE, 191)

    assert 16 == len(run.episode(CARD).evidence)
    assert fact_id(newest) == run.episode(CARD).evidence[-1]
