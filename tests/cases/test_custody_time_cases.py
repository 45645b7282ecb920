"""Cases of the catalogue about many devices at once, about time and blindness, and about what is counted and repeated."""

from __future__ import annotations

import msgspec
import pytest
from custody_run import Run
from facts_of import (
    DAY,
    HOUR,
    MINUTE,
    RESOURCE,
    SECOND,
    T0,
    gap,
    lapsed,
    node,
    node_gone,
    plugin,
    release,
    resumed,
    word,
)

from sickbay.policy import Policy

POLICY = Policy()
HOLD_MS = POLICY.quarantine.min_hold_ms
SETTLE_MS = POLICY.node_incident.settle_ms
EIGHT = [plugin(n) for n in range(8)]


def healthy_node(at_ms=T0 - HOUR):
    """A node with eight devices in use, all well."""
    return Run().each([node(at_ms, 1), *(word(d, "Healthy", at_ms, 2) for d in EIGHT)])


@pytest.mark.case("C06")
def test_c06_a_burst_on_one_node_is_one_node_episode():
    """All eight devices turn bad within three seconds: one incident explains them, no quarantine stands."""
    run = healthy_node()
    run.each(word(d, "Unhealthy", T0 + n * 400, 10) for n, d in enumerate(EIGHT))

    assert 1 == len(run.of("node_incident_opened"))
    assert set() == run.open_episodes()
    assert {("restricted", "node_incident")} == {
        (r.phase, r.cause) for r in run.state.announced.devices.values()
    }
    assert {"absorbed"} == {d.closed.outcome for d in run.of("device_released")}


@pytest.mark.case("C06")
def test_c06_the_devices_recover_together_without_a_staged_return():
    """What the incident explained is over with it: the devices take work again at once."""
    run = healthy_node()
    run.each(word(d, "Unhealthy", T0 + n * 400, 10) for n, d in enumerate(EIGHT))
    run.each(word(d, "Healthy", T0 + MINUTE + n * 400, 11) for n, d in enumerate(EIGHT))
    run.until(T0 + 10 * MINUTE)

    assert ["recovered"] == [d.outcome for d in run.of("node_incident_closed")]
    assert {} == run.state.announced.devices
    assert [] == run.of("observation_started")


@pytest.mark.case("C06")
def test_c06_seven_of_eight_are_seven_faults():
    """One device that stayed well shows that the node is not the cause."""
    run = healthy_node()
    run.each(word(d, "Unhealthy", T0 + n * 400, 10) for n, d in enumerate(EIGHT[:7]))

    assert (7, 0) == (len(run.open_episodes()), len(run.of("node_incident_opened")))


@pytest.mark.case("C08")
def test_c08_a_node_restart_is_no_evidence_against_the_hardware():
    """Allocatable falls to 0 and comes back, words turn bad and good again: one incident, nothing stands after it."""
    run = healthy_node()
    run.step(node(T0, 10, allocatable="0", ready="False"))
    run.each(word(d, "Unhealthy", T0 + 10 * SECOND + n, 11) for n, d in enumerate(EIGHT[:5]))
    run.each(word(d, "Unhealthy", T0 + 20 * SECOND + n, 12, live=False) for n, d in enumerate(EIGHT))
    run.step(node(T0 + 2 * MINUTE, 13, boot_id="boot-2"))
    run.each(word(d, "Healthy", T0 + 2 * MINUTE + n, 14, pod="pod-b") for n, d in enumerate(EIGHT))
    run.until(T0 + HOUR)

    assert ["plugin_down"] == [d.cause for d in run.of("node_incident_opened")]
    assert 1 == len(run.of("node_incident_closed"))
    assert ({}, []) == (run.state.announced.devices, run.of("quarantine_opened"))


@pytest.mark.case("C08")
def test_c08_a_node_restart_is_no_evidence_for_the_hardware():
    """Unknown device reads as Healthy to the kubelet: a quarantined card is on probation after it, no more."""
    run = healthy_node()
    run.step(word(EIGHT[0], "Unhealthy", T0 - 30 * MINUTE, 5))
    run.step(node(T0, 10, allocatable="0", ready="False"))
    run.step(word(EIGHT[0], "Unhealthy", T0 + SECOND, 11, live=False))
    run.step(node(T0 + 2 * MINUTE, 13, boot_id="boot-2"))
    run.step(word(EIGHT[0], "Healthy", T0 + 2 * MINUTE, 14, pod="pod-b"))
    run.until(T0 + HOUR)

    assert ("observing", True) == (run.phase(EIGHT[0]), run.episode(EIGHT[0]).after_restart)


@pytest.mark.case("C08")
def test_c08_a_plugin_that_stays_away_recovers_nobody():
    """After five minutes the kubelet forgets the resource: capacity 0 is no recovery, and the incident goes on."""
    run = healthy_node()
    run.step(node(T0, 10, allocatable="0"))
    run.step(node(T0 + 5 * MINUTE, 11, allocatable="0", capacity="0"))
    run.until(T0 + 5 * HOUR)

    assert [] == run.of("node_incident_closed")
    assert [("plugin_down", RESOURCE)] == [(i.cause, i.scope) for i in run.state.announced.incidents.values()]


@pytest.mark.case("C15")
def test_c15_a_backlog_is_folded_before_anything_is_decided():
    """Fault and recovery of hours ago in one batch: the short episode is in the decisions, no action is left."""
    policy = msgspec.structs.replace(POLICY, moves=msgspec.structs.replace(POLICY.moves, enabled=True))
    run = Run(policy)
    decided = run.step(
        word(EIGHT[0], "Unhealthy", T0, 2),
        word(EIGHT[0], "Healthy", T0 + MINUTE, 3),
        node(T0 + 9 * HOUR, 4),
    )

    assert ["in_service", "quarantined", "observing", "in_service"] == run.phases(EIGHT[0])
    assert (set(), {}) == (run.open_episodes(), run.state.announced.devices)
    assert T0 == next(d for d in decided if d.KIND == "quarantine_opened").at_ms
    assert ([], {}) == (run.of("move_lease_granted"), run.state.announced.moves)


@pytest.mark.case("C18")
def test_c18_a_silence_of_our_own_restricts_nobody():
    """The window passes inside the gap: the device is judged only after something could be seen again."""
    run = Run().each([word(EIGHT[0], "Unknown", T0, 1)])
    back = T0 + 20 * MINUTE
    run.step(gap(T0 + MINUTE, back))

    assert "suspect" == run.phase(EIGHT[0])

    run.until(back + POLICY.unknown.hold_down_ms - 1)

    assert "suspect" == run.phase(EIGHT[0])

    run.until(back + POLICY.unknown.hold_down_ms)

    assert "restricted" == run.phase(EIGHT[0])


@pytest.mark.case("C18")
def test_c18_a_silence_of_our_own_returns_nobody():
    """Observation that ran out inside the gap proves nothing: what was missed is heard first."""
    run = Run().each([word(EIGHT[0], "Unhealthy", T0, 1), word(EIGHT[0], "Healthy", T0 + MINUTE, 2)])
    ends = T0 + HOLD_MS + POLICY.staged_return.observation_only_ms
    run.until(ends - MINUTE)
    run.step(gap(ends - MINUTE, ends + HOUR), word(EIGHT[0], "Unhealthy", ends + HOUR, 3))

    assert ("quarantined", 2) == (run.phase(EIGHT[0]), run.episode(EIGHT[0]).flap_count)
    assert [] == run.of("device_released")


@pytest.mark.case("C20")
def test_c20_the_count_of_open_episodes_is_that_of_the_log():
    """Cycles, releases by hand and a deleted node leave no remainder, and a rebuild from zero agrees."""
    run = healthy_node()
    for cycle in range(3):
        at_ms = T0 + cycle * DAY
        run.step(word(EIGHT[0], "Unhealthy", at_ms, 10 + 10 * cycle))
        run.step(word(EIGHT[1], "Unhealthy", at_ms + 1, 11 + 10 * cycle))
        run.step(release(EIGHT[1], at_ms + 2, run.episode(EIGHT[1]).episode_id, request=f"r{cycle}"))
        run.each(word(d, "Healthy", at_ms + MINUTE, 12 + 10 * cycle) for d in EIGHT[:2])
        run.until(at_ms + DAY - 1)

    assert set() == run.open_episodes()

    run.each(word(d, "Unhealthy", T0 + 5 * DAY + n, 90) for n, d in enumerate(EIGHT[:2]))

    assert 2 == len(run.open_episodes()) == sum(1 for r in run.state.announced.devices.values() if r.episode)

    run.step(node_gone(T0 + 5 * DAY + HOUR, 91))

    assert (set(), {}) == (run.open_episodes(), run.state.announced.devices)
    assert run.dump() == Run().replay(run.log).dump()


@pytest.mark.case("C21")
def test_c21_a_restart_decides_nothing_twice():
    """Every observation is in a final state: after a restart the whole log heard again says nothing new."""
    facts = [
        *(word(EIGHT[0], h, T0 + n * MINUTE, 10 + n) for n, h in enumerate(("Unhealthy", "Healthy"))),
        word(EIGHT[0], "Unhealthy", T0 + 3 * SECOND, 5, pod="pod-b"),
        word(EIGHT[0], "Healthy", T0 + 2 * MINUTE, 15, pod="pod-b"),
    ]
    run = healthy_node().each(facts)
    run.until(T0 + 5 * HOUR)
    again = run.reopened()
    again.each(facts)
    again.until(T0 + DAY)

    assert 1 == len(run.of("quarantine_opened"))
    assert ("in_service", []) == (run.phase(EIGHT[0]), again.of("quarantine_opened", "quarantine_extended"))
    assert [] == [d for d in again.decisions if d.KIND != "alert_raised"]


@pytest.mark.case("C22")
def test_c22_a_release_by_a_person_starts_the_flap_window_anew():
    """Three flaps ask for a person; after the person's word one flap is one, not four, and the hold starts small."""
    run = healthy_node()
    for n in range(3):
        run.each([
            word(EIGHT[0], "Unhealthy", T0 + n * MINUTE, 10 + 2 * n),
            word(EIGHT[0], "Healthy", T0 + n * MINUTE + 5, 11 + 2 * n),
        ])  # fmt: skip

    assert 3 == run.episode(EIGHT[0]).flap_count
    assert ["quarantine.flap_limit"] == [d.clause for d in run.of("quarantine_review_due")]

    run.step(release(EIGHT[0], T0 + 4 * MINUTE, run.episode(EIGHT[0]).episode_id))
    run.step(word(EIGHT[0], "Unhealthy", T0 + 5 * MINUTE, 20))

    assert 1 == run.episode(EIGHT[0]).flap_count
    assert 1 == len(run.of("quarantine_review_due"))


@pytest.mark.case("C22")
def test_c22_an_episode_after_the_released_one_counts_from_one():
    """Nothing of the flaps before the person's word is held against the device."""
    run = healthy_node()
    for n in range(3):
        run.each([
            word(EIGHT[0], "Unhealthy", T0 + n * MINUTE, 10 + 2 * n),
            word(EIGHT[0], "Healthy", T0 + n * MINUTE + 5, 11 + 2 * n),
        ])  # fmt: skip
    run.step(release(EIGHT[0], T0 + 4 * MINUTE, run.episode(EIGHT[0]).episode_id))
    run.until(T0 + 4 * MINUTE + POLICY.staged_return.observation_only_ms)

    assert "in_service" == run.phase(EIGHT[0])

    fault = T0 + 4 * MINUTE + POLICY.staged_return.observation_only_ms + 1
    run.step(word(EIGHT[0], "Unhealthy", fault, 20))

    assert (1, fault + HOLD_MS) == (run.episode(EIGHT[0]).flap_count, run.episode(EIGHT[0]).hold_until_ms)


@pytest.mark.case("C59")
def test_c59_a_renewal_with_a_strange_clock_is_a_renewal():
    """The skew is recorded with the fact; custody goes by receipt, and no device turns unknown."""
    run = healthy_node()
    ahead = msgspec.structs.replace(resumed(T0, 20), skew_ms=-DAY)
    run.step(ahead)
    run.until(T0 + HOUR)

    assert (-DAY, []) == (ahead.skew_ms, run.decisions)


@pytest.mark.case("C60")
def test_c60_late_renewals_are_one_incident_and_leave_the_verdicts_as_they_were():
    """Two lapses inside the settle time are one node-lost incident; each device is afterwards where it was before."""
    run = healthy_node()
    run.step(word(EIGHT[0], "Unhealthy", T0 - HOUR + MINUTE, 5))
    episode = run.episode(EIGHT[0])
    run.each([
        lapsed(T0 + 92 * SECOND, 20, T0 + 52 * SECOND),
        resumed(T0 + 95 * SECOND, 21),
        lapsed(T0 + 140 * SECOND, 22, T0 + 100 * SECOND),
        resumed(T0 + 150 * SECOND, 23),
    ])  # fmt: skip

    assert (1, 0) == (len(run.of("node_incident_opened")), len(run.of("node_incident_closed")))
    assert {"suspect"} == {run.phase(d) for d in EIGHT[1:]}

    run.until(T0 + 150 * SECOND + SETTLE_MS)

    assert ["recovered"] == [d.outcome for d in run.of("node_incident_closed")]
    assert (episode, "quarantined") == (run.episode(EIGHT[0]), run.phase(EIGHT[0]))
    assert {"in_service"} == {run.phase(d) for d in EIGHT[1:]}
