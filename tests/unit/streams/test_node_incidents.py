"""One cause on the node: what opens an incident, what it explains, what it leaves alone, and what is left when it ends."""

from __future__ import annotations

import pytest
from custody_run import Run
from facts_of import (
    HOUR,
    MINUTE,
    NODE,
    RESOURCE,
    SECOND,
    T0,
    XID,
    dra,
    hold,
    lapsed,
    node,
    plugin,
    published,
    resumed,
    word,
)

from sickbay.codec import fact_id
from sickbay.policy import Policy

INCIDENT = Policy().node_incident
SETTLE_MS, BURST_MS, LEAD_MS = INCIDENT.settle_ms, INCIDENT.burst_ms, INCIDENT.lead_ms
FOUR = [plugin(n) for n in range(4)]


def in_use(devices=FOUR):
    """A node whose devices are all in use and well."""
    return Run().each([node(T0 - HOUR, 1), *(word(d, "Healthy", T0 - HOUR, 2) for d in devices)])


def turn(run, health, at_ms, rv, devices=FOUR, *, step_ms=100):
    return run.each(word(d, health, at_ms + n * step_ms, rv) for n, d in enumerate(devices))


# --- mass turn -------------------------------------------------------------------------------------------------------


def test_a_mass_turn_is_one_incident_that_names_its_devices_and_evidence():
    """Opened with the last device; the devices are restricted under it, their episodes absorbed."""
    run = turn(in_use(), "Unhealthy", T0, 5)
    opened = run.of("node_incident_opened")

    assert [("mass_turn", RESOURCE, tuple(FOUR), T0 + 300)] == [
        (d.cause, d.scope, d.devices, d.at_ms) for d in opened
    ]
    assert {fact_id(word(d, "Unhealthy", T0, 5)) for d in FOUR} == set(opened[0].evidence)
    assert {("restricted", opened[0].incident_id)} == {
        (r.phase, r.incident_id) for r in run.state.announced.devices.values()
    }


def test_a_mass_turn_to_unknown_makes_the_devices_suspect_under_one_incident():
    """The driver died: one incident, no episode; new work is kept away once the window passes."""
    run = turn(in_use(), "Unknown", T0, 5)
    (opened,) = run.of("node_incident_opened")

    assert {("suspect", opened.incident_id)} == {
        (r.phase, r.incident_id) for r in run.state.announced.devices.values()
    }

    run.until(T0 + Policy().unknown.window_ms + 1_000)

    assert {("restricted", opened.incident_id, None)} == {
        (r.phase, r.incident_id, r.episode) for r in run.state.announced.devices.values()
    }


def test_idle_devices_do_not_stand_against_a_mass_turn():
    """Nobody speaks of a device without a Pod: three of three that are spoken of turned together."""
    run = Run().each([published(n, T0 - HOUR, 1) for n in range(8)])
    run.each([word(dra(n), "Healthy", T0 - HOUR, 2 + n) for n in range(3)])
    run.each([word(dra(n), "Unhealthy", T0 + n, 12 + n) for n in range(3)])

    assert 1 == len(run.of("node_incident_opened"))
    assert set() == run.open_episodes()


def test_a_fault_on_a_node_with_one_device_is_no_plugin_that_is_down():
    """Allocatable 0 is what the fault looks like, whichever is seen first."""
    for first, second in ((word(FOUR[0], "Unhealthy", T0, 5), node(T0 + 5_000, 6, allocatable="0", capacity="1")),
                          (node(T0, 5, allocatable="0", capacity="1"), word(FOUR[0], "Unhealthy", T0 + 5_000, 6))):  # fmt: skip
        run = Run().each(
            [node(T0 - HOUR, 1, allocatable="1", capacity="1"), word(FOUR[0], "Healthy", T0 - HOUR, 2)]
        )
        run.step(first)
        run.step(second)

        assert "quarantined" == run.phase(FOUR[0])
        assert {} == run.state.announced.incidents


def test_a_fault_that_a_dying_node_still_reported_is_evidence():
    """Losing a node makes no device faulty: its kubelet was alive when it said so."""
    run = in_use()
    run.step(word(FOUR[0], "Unhealthy", T0, 5))
    run.step(lapsed(T0 + 40_000, 6, T0 - 1_000))

    assert "quarantined" == run.phase(FOUR[0])


@pytest.mark.parametrize(("last_ms", "incidents"), [(BURST_MS, 1), (BURST_MS + 1, 0)])
def test_devices_that_turn_within_a_minute_share_their_cause(last_ms, incidents):
    """Three devices: the first and the last a minute apart, or a millisecond more."""
    run = in_use(FOUR[:3])
    run.each([
        word(FOUR[0], "Unhealthy", T0, 5),
        word(FOUR[1], "Unhealthy", T0 + 1, 5),
        word(FOUR[2], "Unhealthy", T0 + last_ms, 6),
    ])  # fmt: skip

    assert incidents == len(run.of("node_incident_opened"))
    assert (0 if incidents else 3) == len(run.open_episodes())


def test_two_devices_are_a_coincidence_as_easily_as_a_cause():
    """Fewer than three devices of a resource make no incident."""
    run = turn(in_use(FOUR[:2]), "Unhealthy", T0, 5, FOUR[:2])

    assert (2, []) == (len(run.open_episodes()), run.of("node_incident_opened"))


def test_one_device_that_stays_well_shows_that_the_node_is_not_the_cause():
    """Every device must turn."""
    run = turn(in_use(), "Unhealthy", T0, 5, FOUR[:3])

    assert (3, []) == (len(run.open_episodes()), run.of("node_incident_opened"))


def test_devices_of_another_resource_do_not_count():
    """An incident is of one resource: its devices share a plugin."""
    run = turn(in_use(), "Unhealthy", T0, 5, [*FOUR[:2], dra(0), dra(1)])

    assert (4, []) == (len(run.open_episodes()), run.of("node_incident_opened"))


def test_an_incident_ends_when_the_devices_follow_and_they_are_back_at_once():
    """Absorbed episodes closed without the staged return: Healthy for the settle time of a restriction is enough."""
    run = turn(in_use(), "Unhealthy", T0, 5)
    turn(run, "Healthy", T0 + MINUTE, 6)
    run.until(T0 + MINUTE + 300 + Policy().unknown.settle_ms)

    assert ["recovered"] == [d.outcome for d in run.of("node_incident_closed")]
    assert ({}, []) == (run.state.announced.devices, run.of("observation_started"))


def test_a_device_that_is_still_bad_when_the_incident_ends_is_quarantined_alone():
    """Three followed, one did not: its fault is its own, in a new episode."""
    run = turn(in_use(), "Unhealthy", T0, 5)
    absorbed = {d.closed.episode_id for d in run.of("device_released")}
    turn(run, "Healthy", T0 + MINUTE, 6, FOUR[1:])
    run.until(T0 + MINUTE + SETTLE_MS - 1)

    assert "restricted" == run.phase(FOUR[0])

    run.until(T0 + MINUTE + SETTLE_MS)

    assert ("quarantined", ("unhealthy",)) == (run.phase(FOUR[0]), run.episode(FOUR[0]).open_causes)
    assert run.episode(FOUR[0]).episode_id not in absorbed

    run.until(T0 + MINUTE + 300 + Policy().unknown.settle_ms)

    assert {"in_service"} == {run.phase(d) for d in FOUR[1:]}


def test_a_cause_that_comes_back_inside_the_settle_time_is_the_same_incident():
    """One device looked well for a moment."""
    run = turn(in_use(), "Unhealthy", T0, 5)
    run.each([word(FOUR[0], "Healthy", T0 + MINUTE, 6), word(FOUR[0], "Unhealthy", T0 + MINUTE + 1, 7)])
    run.until(T0 + HOUR)

    assert (1, 0) == (len(run.of("node_incident_opened")), len(run.of("node_incident_closed")))


# --- what an incident does not explain ------------------------------------------------------------------------------


def test_a_fault_before_the_incident_is_the_devices_own():
    """Quarantined since yesterday: the incident does not absorb it, and its end does not release it."""
    run = in_use()
    run.step(word(FOUR[0], "Unhealthy", T0 - 30 * MINUTE, 3))
    before = run.episode(FOUR[0])
    run.step(node(T0, 5, allocatable="0"))

    assert ("quarantined", before.episode_id) == (run.phase(FOUR[0]), run.episode(FOUR[0]).episode_id)

    run.step(node(T0 + MINUTE, 6))
    run.until(T0 + 10 * HOUR)

    assert ("quarantined", before.episode_id) == (run.phase(FOUR[0]), run.episode(FOUR[0]).episode_id)


@pytest.mark.parametrize(("early_ms", "absorbed"), [(LEAD_MS, True), (LEAD_MS + 1, False)])
def test_a_plugins_end_shows_in_pods_a_little_before_it_shows_in_the_node(early_ms, absorbed):
    """An episode of the last fifteen seconds is explained, an older one is the device's own."""
    run = in_use()
    run.step(word(FOUR[0], "Unhealthy", T0 - early_ms, 3))
    run.step(node(T0, 5, allocatable="0"))

    assert ("restricted" if absorbed else "quarantined") == run.phase(FOUR[0])


@pytest.mark.parametrize("first", ["taint", "incident"])
def test_a_drivers_taint_is_evidence_that_no_incident_explains_away(first):
    """All devices turn, one of them carries its driver's own mark: that one is quarantined, before or during it."""
    devices = [dra(n) for n in range(4)]
    run = Run().each([
        *(published(n, T0 - HOUR, 1) for n in range(4)), *(word(d, "Healthy", T0 - HOUR, 2) for d in devices),
    ])  # fmt: skip
    taint = published(0, T0 + MINUTE if first == "incident" else T0 - 1, 3, taints=[XID])
    if first == "taint":
        run.step(taint)
    turn(run, "Unhealthy", T0, 5, devices)
    if first == "incident":
        run.step(taint)

    assert ("quarantined", 1) == (run.phase(devices[0]), len(run.of("node_incident_opened")))
    assert {"restricted"} == {run.phase(d) for d in devices[1:]}


def test_a_persons_hold_is_not_absorbed():
    """What a person asked for ends when the person said."""
    run = in_use()
    run.step(hold(FOUR[0], T0 - SECOND, T0 + 5 * HOUR))
    run.step(node(T0, 5, allocatable="0"))

    assert ("quarantined", ("hold",)) == (run.phase(FOUR[0]), run.episode(FOUR[0]).open_causes)


def test_a_fault_on_a_held_device_outlives_the_incident_and_the_hold():
    """Turned bad under the incident, still bad after it: the end of the hold is no release and the return is staged."""
    run = in_use()
    run.step(hold(FOUR[0], T0 - SECOND, T0 + 5 * MINUTE))
    run.step(node(T0, 5, allocatable="0"))
    run.step(word(FOUR[0], "Unhealthy", T0 + SECOND, 6))
    run.step(node(T0 + MINUTE, 7))
    run.until(T0 + HOUR)

    assert ("quarantined", "unhealthy") == (run.phase(FOUR[0]), run.episode(FOUR[0]).cause)

    run.step(word(FOUR[0], "Healthy", T0 + HOUR, 8))

    assert "observing" == run.phase(FOUR[0])


# --- plugin down -----------------------------------------------------------------------------------------------------


def test_allocatable_that_falls_to_zero_is_a_plugin_that_went_away():
    """Capacity is unchanged: one incident, and the words of its time are explained."""
    run = in_use()
    run.step(node(T0, 5, allocatable="0"))
    run.step(word(FOUR[0], "Unhealthy", T0 + SECOND, 6))

    assert [("plugin_down", RESOURCE)] == [(d.cause, d.scope) for d in run.of("node_incident_opened")]
    assert ("restricted", set()) == (run.phase(FOUR[0]), run.open_episodes())


def test_allocatable_that_falls_short_is_no_plugin_that_went_away():
    """One device less is one device."""
    run = in_use()
    run.step(node(T0, 5, allocatable="7"))

    assert [] == run.of("node_incident_opened")


def test_a_plugin_that_is_back_gets_its_devices_the_settle_time():
    """Allocatable is above 0 again: a minute later each device is judged alone."""
    run = in_use()
    run.step(node(T0, 5, allocatable="0"))
    run.step(word(FOUR[0], "Unhealthy", T0 + SECOND, 6))
    run.step(node(T0 + MINUTE, 7))
    run.until(T0 + MINUTE + SETTLE_MS - 1)

    assert "restricted" == run.phase(FOUR[0])

    run.until(T0 + MINUTE + SETTLE_MS)

    assert "quarantined" == run.phase(FOUR[0])


def test_a_resource_the_node_never_had_is_no_incident():
    """Allocatable 0 of capacity 0 at first sight: nothing was lost."""
    run = Run().each([node(T0, 1, allocatable="0", capacity="0")])

    assert [] == run.decisions


def test_a_quantity_that_cannot_be_read_is_passed_over():
    """One bad value of the node's status is no loss of its devices."""
    run = in_use()
    run.step(node(T0, 5, allocatable="eight"))

    assert [] == run.decisions


# --- node lost -------------------------------------------------------------------------------------------------------


def test_a_lapsed_lease_is_a_lost_node_and_every_device_is_in_doubt():
    """Frozen words are read as node-lost: healthy ones too are suspect until the node is back."""
    run = in_use()
    run.step(lapsed(T0, 3, T0 - 40 * SECOND))

    assert [("node_lost", "")] == [(d.cause, d.scope) for d in run.of("node_incident_opened")]
    assert {("suspect", "node_incident")} == {
        (r.phase, r.cause) for r in run.state.announced.devices.values()
    }
    assert 4 == len(run.state.announced.devices)


def test_a_ready_condition_that_turns_unknown_is_a_lost_node():
    """The control plane lost sight of it; Ready False is the kubelet speaking, and no loss."""
    lost, alive = in_use(), in_use()
    lost.step(node(T0, 3, ready="Unknown"))
    alive.step(node(T0, 3, ready="False"))

    assert (["node_lost"], []) == ([d.cause for d in lost.of("node_incident_opened")], alive.decisions)


def test_a_node_is_back_when_both_lease_and_ready_say_so():
    """The Lease resumes while Ready is still Unknown: the incident goes on."""
    run = in_use()
    run.each([lapsed(T0, 3, T0 - SECOND), node(T0 + 1, 4, ready="Unknown"), resumed(T0 + MINUTE, 5)])
    run.until(T0 + HOUR)

    assert [] == run.of("node_incident_closed")

    run.step(node(T0 + HOUR, 6))
    run.until(T0 + HOUR + SETTLE_MS)

    assert 1 == len(run.of("node_incident_closed"))
    assert {} == run.state.announced.devices


def test_no_word_of_a_lost_node_opens_an_episode():
    """Pod status on a lost node is frozen; a late write of it condemns nobody."""
    run = in_use()
    run.step(lapsed(T0, 3, T0 - SECOND))
    turn(run, "Unhealthy", T0 + SECOND, 6, FOUR[:1])

    assert (set(), "restricted") == (run.open_episodes(), run.phase(FOUR[0]))

    run.step(resumed(T0 + MINUTE, 7))
    run.until(T0 + MINUTE + SETTLE_MS)

    assert "quarantined" == run.phase(FOUR[0])


def test_incidents_of_two_causes_stand_side_by_side():
    """The node is lost while its plugin is down: each ends by itself, and the lost node is named first."""
    run = in_use()
    run.each([node(T0, 5, allocatable="0"), lapsed(T0 + 1, 3, T0 - SECOND)])
    causes = {i.cause: key for key, i in run.state.announced.incidents.items()}

    assert {"plugin_down", "node_lost"} == causes.keys()

    run.step(word(FOUR[0], "Unknown", T0 + 2, 6))

    assert causes["node_lost"] == run.state.announced.devices[FOUR[0]].incident_id


def test_an_incident_is_of_its_node():
    """Ids are derived: the same cause on another node or at another time is another incident."""
    first, second = in_use(), in_use()
    first.step(lapsed(T0, 3, T0 - SECOND))
    second.step(lapsed(T0 + 1, 3, T0 - SECOND))

    assert NODE == first.of("node_incident_opened")[0].node
    assert first.state.announced.incidents.keys().isdisjoint(second.state.announced.incidents.keys())


def test_a_fault_that_the_driver_confirmed_is_not_absorbed():
    """The Pod's word came first, the driver's mark second, then the others turned too: the mark stands."""
    devices = [dra(n) for n in range(4)]
    run = Run().each([
        *(published(n, T0 - HOUR, 1) for n in range(4)), *(word(d, "Healthy", T0 - HOUR, 2) for d in devices),
    ])  # fmt: skip
    run.each([word(devices[0], "Unhealthy", T0, 4), published(0, T0 + 1, 5, taints=[XID])])
    turn(run, "Unhealthy", T0 + 2, 6, devices[1:])

    assert (1, "quarantined") == (len(run.of("node_incident_opened")), run.phase(devices[0]))
    assert "unhealthy" == run.episode(devices[0]).cause
