"""Which device a word is about: replicas and partitions of a card, hardware that was swapped, machines that were replaced."""

from __future__ import annotations

import msgspec
from custody_run import Run
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    NODE,
    RESOURCE,
    T0,
    XID,
    dra,
    lapsed,
    node,
    node_gone,
    plugin,
    published,
    release,
    word,
)

from sickbay.facts import DeviceHealthObserved
from sickbay.policy import Policy
from streams.custody.state import NEVER

SETTLE_MS = Policy().node_incident.settle_ms
CARD = plugin(0)


def replica(number, health, at_ms, rv, *, pod="pod-a", live=True):
    """A word on one time-sliced replica of the first card."""
    return word(f"{CARD}::{number}", health, at_ms, rv, pod=pod, physical_id=CARD, live=live)


def partition(index, at_ms, rv, *, parent=None, **options):
    """A DRA partition of card gpu-0."""
    return published(index, at_ms, rv, physical_id=parent or dra(0), **options)


def unattributed(health, at_ms, rv, *, live=True):
    return DeviceHealthObserved(
        node=NODE,
        observed_at_ms=at_ms,
        rv=rv,
        device_id="unattributed:ml/claim-1/some-id",
        health=health,
        health_raw=health,
        live=live,
        pod_uid="uid-pod-a",
        namespace="ml",
        pod="pod-a",
        candidates=(dra(0), dra(1)),
    )


# --- replicas and partitions -----------------------------------------------------------------------------------------


def test_replicas_of_a_card_are_one_device_in_custody():
    """Two replicas disagree: the card is bad, once."""
    run = Run().each([replica(0, "Healthy", T0, 1), replica(1, "Unhealthy", T0 + 1, 2, pod="pod-b")])

    assert ({CARD}, ["quarantine_opened"]) == (set(run.state.timeline.head.units), run.kinds())
    assert "quarantined" == run.phase(CARD)


def test_one_replica_that_is_well_does_not_return_the_card():
    """The other replica's Unhealthy stands until its Pod says otherwise or ends."""
    run = Run().each([
        replica(1, "Unhealthy", T0, 1, pod="pod-b"),
        replica(0, "Healthy", T0 + MINUTE, 2),
    ])  # fmt: skip
    run.until(T0 + 5 * HOUR)

    assert "quarantined" == run.phase(CARD)

    run.step(replica(1, "Healthy", T0 + 5 * HOUR, 3, pod="pod-b"))

    assert "observing" == run.phase(CARD)


def test_one_pod_may_hold_several_replicas_of_a_card():
    """Words are kept by replica and Pod: the second does not overwrite the first."""
    run = Run().each([replica(0, "Unhealthy", T0, 1), replica(1, "Healthy", T0, 1)])

    assert ("quarantined", 2) == (run.phase(CARD), len(run.unit(CARD).words))


def test_a_fault_of_the_card_is_a_fault_of_its_partitions():
    """The card is marked by its driver: what is cut from it is quarantined with it."""
    run = Run().each([published(0, T0, 1), partition(1, T0, 1), partition(2, T0, 1), published(3, T0, 1)])
    run.step(published(0, T0 + 1, 2, taints=[XID]))

    assert ["quarantined"] * 3 + ["in_service"] == [run.phase(dra(n)) for n in range(4)]
    assert 3 == len(run.open_episodes())


def test_a_fault_of_a_partition_is_its_own():
    """The card and its other partitions take work as before."""
    run = Run().each([published(0, T0, 1), partition(1, T0, 1), partition(2, T0, 1)])
    run.step(word(dra(1), "Unhealthy", T0 + 1, 2))

    assert ["in_service", "quarantined", "in_service"] == [run.phase(dra(n)) for n in range(3)]


def test_a_partition_that_is_made_on_a_bad_card_is_quarantined_at_once():
    """The repartitioned card is the same card."""
    run = Run().each([published(0, T0, 1, taints=[XID]), partition(1, T0 + MINUTE, 2)])

    assert "quarantined" == run.phase(dra(1))


def test_a_partition_returns_by_its_own_healthy_word_after_the_card_recovered():
    """The card's fault is gone; for the partition that alone is no positive evidence."""
    run = Run().each([published(0, T0, 1, taints=[XID]), partition(1, T0, 1), published(0, T0 + HOUR, 2)])
    run.until(T0 + 5 * HOUR)

    assert "quarantined" == run.phase(dra(1))

    run.step(word(dra(1), "Healthy", T0 + 5 * HOUR, 3))

    assert "observing" == run.phase(dra(1))


# --- other hardware under a name -------------------------------------------------------------------------------------


def test_another_card_under_the_name_does_not_inherit_the_quarantine():
    """The driver says another uuid: the episode closes as device_replaced, loudly, and the new card starts clean."""
    run = Run().each([published(0, T0, 1), word(dra(0), "Unhealthy", T0 + 1, 1)])
    run.step(word(dra(0), "Unhealthy", T0 + 2, 2, live=False))
    run.step(published(0, T0 + HOUR, 3, attributes={f"{DRIVER}/uuid": "GPU-new"}))

    assert ("in_service", ["device_replaced"]) == (run.phase(dra(0)), run.alerts())
    assert ["device_replaced"] == [d.closed.outcome for d in run.of("device_released")]
    assert [] == run.unit(dra(0)).onsets_ms


def test_another_card_that_is_bad_too_gets_an_episode_of_its_own():
    """The taint stands on the new card: another episode, counted from one."""
    run = Run().each([published(0, T0, 1, taints=[XID])])
    first = run.episode(dra(0)).episode_id
    run.step(published(0, T0 + HOUR, 2, taints=[XID], attributes={f"{DRIVER}/uuid": "GPU-new"}))

    assert ("quarantined", 1) == (run.phase(dra(0)), run.episode(dra(0)).flap_count)
    assert first != run.episode(dra(0)).episode_id


def test_what_a_pod_said_of_the_old_card_is_not_held_against_the_new_one():
    """The Pod still runs and its word still stands; the word counts again once it changes."""
    run = Run().each([published(0, T0, 1), word(dra(0), "Unhealthy", T0 + 1, 1)])
    run.step(published(0, T0 + HOUR, 3, attributes={f"{DRIVER}/uuid": "GPU-new"}))
    run.until(T0 + 2 * HOUR)

    assert "in_service" == run.phase(dra(0))

    run.each([word(dra(0), "Healthy", T0 + 2 * HOUR, 4), word(dra(0), "Unhealthy", T0 + 2 * HOUR + 1, 5)])

    assert ("quarantined", 1) == (run.phase(dra(0)), run.episode(dra(0)).flap_count)


def test_a_second_swap_is_told_again():
    """Each swap is news of its own."""
    run = Run().each(published(0, T0 + n, 1 + n, attributes={f"{DRIVER}/uuid": f"GPU-{n}"}) for n in range(3))

    assert 2 == len([d for d in run.of("alert_raised") if d.alert == "device_replaced"])


def test_a_card_that_is_swapped_on_its_way_back_leaves_no_deadline_behind():
    """The old card was being probed; the timeout of that probe is nobody's any more."""
    probed = msgspec.structs.replace(
        Policy(), staged_return=msgspec.structs.replace(Policy().staged_return, prober="job")
    )
    run = Run(probed).each([published(0, T0, 1, taints=[XID])])
    run.step(release(dra(0), T0 + MINUTE, run.episode(dra(0)).episode_id))

    assert "probing" == run.phase(dra(0))

    run.step(published(0, T0 + 2 * MINUTE, 2, attributes={f"{DRIVER}/uuid": "GPU-new"}))
    run.until(T0 + HOUR)

    assert ("in_service", NEVER) == (run.phase(dra(0)), run.unit(dra(0)).due_ms)


def test_a_new_card_whose_health_is_unknown_is_suspect():
    """The old one's episode is closed; what is not known of the new one is not in service as if it were."""
    run = Run().each(
        [published(0, T0, 1), word(dra(0), "Unhealthy", T0 + 1, 2), word(dra(0), "Unknown", T0 + 2, 3)]
    )
    run.step(published(0, T0 + HOUR, 4, attributes={f"{DRIVER}/uuid": "GPU-new"}))

    assert "suspect" == run.phase(dra(0))


def test_an_attribute_that_names_no_hardware_may_change():
    """A driver version is not another card."""
    base = {f"{DRIVER}/uuid": "GPU-0"}
    run = Run().each([published(0, T0, 1, attributes=base), word(dra(0), "Unhealthy", T0 + 1, 1)])
    run.step(published(0, T0 + 2, 2, attributes=base | {f"{DRIVER}/driverVersion": "999.0"}))

    assert "quarantined" == run.phase(dra(0))


def test_a_driver_that_stops_naming_the_hardware_replaces_nothing():
    """Absent is not another value; the old name still counts when it comes back."""
    run = Run().each([published(0, T0, 1), word(dra(0), "Unhealthy", T0 + 1, 1)])
    run.each([published(0, T0 + 2, 2, attributes={"x/y": 1}), published(0, T0 + 3, 3)])

    assert ("quarantined", []) == (run.phase(dra(0)), run.alerts())


# --- another machine under a name ------------------------------------------------------------------------------------


def test_a_new_machine_under_an_old_name_starts_clean():
    """Another uid: episodes, incidents, alerts and doubts of the old machine are closed with that reason."""
    run = Run().each([
        node(T0, 1),
        word(CARD, "Unhealthy", T0 + 1, 2),
        word(plugin(1), "Unknown", T0 + 1, 2),
        unattributed("Unhealthy", T0 + 1, 2),
        lapsed(T0 + MINUTE, 3, T0 + MINUTE // 2),
        node(T0 + HOUR, 4, uid="node-uid-2"),
    ])  # fmt: skip

    assert ({}, {}, {}) == (
        run.state.announced.devices, run.state.announced.incidents, run.state.announced.alerts,
    )  # fmt: skip
    assert ["node_replaced"] == [d.closed.outcome for d in run.of("device_released")]
    assert ["node_replaced"] == [d.outcome for d in run.of("node_incident_closed")]
    assert {} == run.state.timeline.head.units


def test_a_fault_on_the_new_machine_is_another_episode():
    """The same device id and Pod version under another uid has another id."""
    run = Run().each([node(T0, 1), word(CARD, "Unhealthy", T0 + 1, 2)])
    old = run.episode(CARD)
    run.each([node(T0 + HOUR, 4, uid="node-uid-2"), word(CARD, "Unhealthy", T0 + HOUR + 1, 5)])

    assert ("quarantined", 1) == (run.phase(CARD), run.episode(CARD).flap_count)
    assert old.episode_id != run.episode(CARD).episode_id


def test_a_deleted_node_closes_everything():
    """What belonged to it is closed as node_gone and counts no more."""
    run = Run().each([node(T0, 1), word(CARD, "Unhealthy", T0 + 1, 2), node_gone(T0 + HOUR, 4)])

    assert (["node_gone"], set()) == (
        [d.closed.outcome for d in run.of("device_released")],
        run.open_episodes(),
    )


def test_the_deletion_of_the_machine_before_does_not_close_the_new_one():
    """The tombstone of the old uid comes after the new Node: it is about another object."""
    run = Run().each(
        [node(T0, 1, uid="node-uid-2"), word(CARD, "Unhealthy", T0 + 1, 2), node_gone(T0 + 2, 4)]
    )

    assert "quarantined" == run.phase(CARD)


# --- what cannot be named --------------------------------------------------------------------------------------------


def test_an_unattributed_fault_is_alerted_and_suspects_nobody_by_name():
    """Two devices it may mean, no proof for either."""
    run = Run().each([published(0, T0, 1), published(1, T0, 1), unattributed("Unhealthy", T0 + 1, 2)])
    run.until(T0 + HOUR)

    assert (["unattributed_unhealthy"], {}) == (run.alerts(), run.state.announced.devices)


def test_the_alert_on_an_unattributed_fault_ends_with_it():
    """Healthy again, or the Pod is gone."""
    for last in (unattributed("Healthy", T0 + 1, 3), unattributed("Unhealthy", T0 + 1, 3, live=False)):
        run = Run().each([unattributed("Unhealthy", T0, 2), last])

        assert [] == run.alerts()


def test_what_a_resource_cannot_give_and_nobody_explains_is_alerted():
    """Seven of eight, no known device is bad: some device is, after the settle time somebody should look."""
    run = Run().each([node(T0, 1), node(T0 + 1, 2, allocatable="7")])
    run.until(T0 + SETTLE_MS)

    assert [] == run.alerts()

    run.until(T0 + 1 + SETTLE_MS)

    assert ["unattributed_unhealthy"] == run.alerts()
    assert RESOURCE == run.of("alert_raised")[0].about


def test_a_shortfall_that_a_known_fault_explains_is_no_alert():
    """The bad device is known and quarantined."""
    run = Run().each([node(T0, 1), word(CARD, "Unhealthy", T0 + 1, 2), node(T0 + 2, 3, allocatable="7")])
    run.until(T0 + HOUR)

    assert [] == run.alerts()


def test_an_alerted_shortfall_is_cleared_when_it_is_explained_or_gone():
    """Either the device is named, or the resource gives all again."""
    for last in (word(CARD, "Unhealthy", T0 + HOUR, 5), node(T0 + HOUR, 5)):
        run = Run().each([node(T0, 1), node(T0 + 1, 2, allocatable="7")])
        run.until(T0 + HOUR)
        run.step(last)

        assert [] == run.alerts()


def test_a_unit_without_anything_to_say_is_forgotten():
    """A Pod came and went: the device is not kept."""
    run = Run().each([word(CARD, "Healthy", T0, 1), word(CARD, "Healthy", T0 + 1, 2, live=False)])

    assert {} == run.state.timeline.head.units


def test_records_are_equal_for_equal_devices():
    """The announced record is the unit's: nothing is said that is not kept."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1)])

    assert run.unit(CARD).record() == run.state.announced.devices[CARD]
    assert run.unit(CARD).record() == msgspec.structs.replace(run.of("quarantine_opened")[0].record)
