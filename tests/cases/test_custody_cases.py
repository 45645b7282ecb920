"""Cases of the catalogue about words on health: whose they are, how fresh, and what they prove."""

from __future__ import annotations

import pytest
from custody_run import Run
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    UNMONITORED,
    XID,
    dra,
    node,
    plugin,
    published,
    taint,
    withdrawn,
    word,
    workload,
)

from sickbay.codec import fact_id
from sickbay.policy import Policy
from streams.custody.state import HEALTHY, NONE, UNKNOWN

POLICY = Policy()
HOLD_MS = POLICY.quarantine.min_hold_ms
OBSERVATION_MS = POLICY.staged_return.observation_only_ms
AFTER_RESTART_MS = POLICY.staged_return.observation_after_restart_ms


def quarantined(device_id=None, *, at_ms=T0):
    """A run with one device in quarantine since ``at_ms``, by the word of a live Pod."""
    device_id = device_id or plugin(0)
    return Run().each([word(device_id, "Healthy", at_ms - MINUTE, 1), word(device_id, "Unhealthy", at_ms, 2)])


@pytest.mark.case("C01")
def test_c01_a_device_that_was_never_reported_is_neither_healthy_nor_condemned():
    """A sidecar's device without an entry has no verdict; the first entry counts like any other."""
    run = Run().each([word(dra(2), "Unknown", T0, 1, raw=None, absence="never_reported")])
    run.until(T0 + HOUR)

    assert NONE == run.unit(dra(2)).verdict
    assert [] == run.decisions

    run.step(word(dra(2), "Unhealthy", T0 + HOUR, 2))

    assert "quarantined" == run.phase(dra(2))


@pytest.mark.case("C01")
def test_c01_a_device_that_was_never_reported_does_not_end_a_quarantine():
    """Silence of a Pod that holds the device is no word that the device is well."""
    run = quarantined(dra(2))
    run.each([
        word(dra(2), "Unhealthy", T0 + MINUTE, 3, live=False),
        word(dra(2), "Unknown", T0 + 2 * MINUTE, 4, pod="pod-b", raw=None, absence="never_reported"),
    ])  # fmt: skip
    run.until(T0 + 23 * HOUR)

    assert "quarantined" == run.phase(dra(2))


@pytest.mark.case("C03")
def test_c03_a_terminal_pod_opens_nothing():
    """A word that was frozen before custody heard it is history and no evidence."""
    run = Run().each([word(plugin(0), "Unhealthy", T0, 1, live=False)])
    run.until(T0 + HOUR)

    assert [] == run.decisions
    assert {} == run.state.timeline.head.units


@pytest.mark.case("C03")
def test_c03_a_terminal_pod_neither_renews_nor_clears():
    """The end of the Pod that reported the fault is no recovery, and its later versions are no evidence."""
    run = quarantined()
    opened = run.episode(plugin(0))
    run.step(word(plugin(0), "Unhealthy", T0 + MINUTE, 3, live=False))
    ended = run.episode(plugin(0))
    before = len(run.decisions)
    run.each(word(plugin(0), "Unhealthy", T0 + n * MINUTE, 3 + n, live=False) for n in range(2, 30))
    run.until(T0 + 20 * HOUR)

    assert ("quarantined", opened.episode_id) == (run.phase(plugin(0)), run.episode(plugin(0)).episode_id)
    assert opened.expires_at_ms == ended.expires_at_ms == run.episode(plugin(0)).expires_at_ms
    assert before == len(run.decisions)


@pytest.mark.case("C03")
def test_c03_another_pods_word_counts_while_the_dead_pod_is_modified_without_end():
    """The device returns by the word of the Pod that lives; the dead one cannot hold it back."""
    run = quarantined()
    run.each([
        word(plugin(0), "Unhealthy", T0 + MINUTE, 3, live=False),
        word(plugin(0), "Healthy", T0 + 2 * MINUTE, 4, pod="pod-b"),
    ])  # fmt: skip
    for n in range(3, 200):
        run.step(word(plugin(0), "Unhealthy", T0 + n * MINUTE, 4 + n, live=False))

    assert ["in_service", "quarantined", "observing", "in_service"] == run.phases(plugin(0))
    assert [T0 + HOLD_MS + OBSERVATION_MS] == [d.at_ms for d in run.of("device_released")]


@pytest.mark.case("C04")
def test_c04_a_changing_message_is_one_transition():
    """The message is kept with the fact and is part of neither its identity nor the verdict."""
    messages = ["ECC 12", "ECC 13", "x" * 1021 + "..."]
    facts = [word(dra(0), "Unhealthy", T0 + n, 2 + n, message=text) for n, text in enumerate(messages)]
    run = Run().each(facts)

    assert ["quarantine_opened"] == run.kinds()
    assert messages == [fact.message for fact in facts]


@pytest.mark.case("C04")
def test_c04_the_message_is_no_part_of_the_identity():
    """One version of one Pod is one event, whatever text came with it; an absent text is not an empty one."""
    absent, empty = word(dra(0), "Unhealthy", T0, 2), word(dra(0), "Unhealthy", T0, 2, message="")

    assert fact_id(absent) == fact_id(empty)
    assert (None, "") == (absent.message, empty.message)


@pytest.mark.case("C05")
def test_c05_healthy_right_after_a_plugin_restart_is_probation():
    """All devices vanish and return Healthy inside 20 s: the restart speaks, not the card; a second fault is a flap."""
    run = Run()
    run.step(node(T0 - HOUR, 1))
    run.each(word(plugin(n), "Healthy", T0 - HOUR, 2) for n in range(8))
    run.step(word(plugin(0), "Unhealthy", T0, 3))
    first = run.episode(plugin(0))
    restart = T0 + 30 * MINUTE
    run.step(node(restart, 4, allocatable="0"))
    run.step(word(plugin(0), "Healthy", restart + 15 * SECOND, 5))
    run.step(node(restart + 20 * SECOND, 6))
    run.until(restart + 5 * MINUTE)

    assert ("observing", True) == (run.phase(plugin(0)), run.episode(plugin(0)).after_restart)
    assert {"in_service"} == {run.phase(plugin(n)) for n in range(1, 8)}

    run.step(word(plugin(0), "Unhealthy", restart + HOUR, 7))

    again = run.episode(plugin(0))
    assert ("quarantined", first.episode_id, 2) == (run.phase(plugin(0)), again.episode_id, again.flap_count)
    assert 1 == len(run.of("quarantine_opened"))


@pytest.mark.case("C05")
def test_c05_the_probation_after_a_restart_is_the_longer_one():
    """A card that a restart made healthy is watched for four hours, not for two."""
    run = quarantined(dra(0))
    run.step(published(0, T0 - 30, 1))
    restart = T0 + 30 * MINUTE
    run.step(withdrawn(0, restart, 2, "slice_deleted"))
    run.step(published(0, restart + 20 * SECOND, 3))
    run.step(word(dra(0), "Healthy", restart + 20 * SECOND, 4))
    run.until(restart + 20 * SECOND + AFTER_RESTART_MS - 1)

    assert "observing" == run.phase(dra(0))

    run.until(restart + 20 * SECOND + AFTER_RESTART_MS)

    assert "in_service" == run.phase(dra(0))


@pytest.mark.case("C07")
def test_c07_healthy_by_a_source_that_does_not_monitor_is_unknown():
    """Days of Healthy from a driver that says it does not look: the device is suspect, and never restricted for it."""
    run = Run().each([word(dra(0), "Healthy", T0, 1), published(0, T0 + MINUTE, 2, taints=[UNMONITORED])])
    run.until(T0 + 24 * HOUR)

    assert UNKNOWN == run.unit(dra(0)).verdict
    assert ("suspect", "unmonitored") == (run.phase(dra(0)), run.state.announced.devices[dra(0)].cause)


@pytest.mark.case("C07")
def test_c07_healthy_by_a_source_that_does_not_monitor_never_ends_a_quarantine():
    """The word Healthy counts again only when the driver watches the device again."""
    run = quarantined(dra(0))
    run.each(
        [published(0, T0 + MINUTE, 3, taints=[UNMONITORED]), word(dra(0), "Healthy", T0 + 2 * MINUTE, 4)]
    )
    run.until(T0 + 20 * HOUR)

    assert "quarantined" == run.phase(dra(0))

    run.step(published(0, T0 + 20 * HOUR, 5))

    assert "observing" == run.phase(dra(0))


@pytest.mark.case("C09")
def test_c09_a_device_that_left_its_slice_stays_quarantined():
    """A withdrawn device keeps its episode, its health is unknown, and its return is not a recovery."""
    run = Run().each([published(0, T0 - 9, 1), published(1, T0 - 9, 1), word(dra(1), "Unhealthy", T0, 2)])
    episode = run.episode(dra(1))
    run.each([word(dra(1), "Unhealthy", T0 + 5, 3, live=False), withdrawn(1, T0 + MINUTE, 4)])
    run.until(T0 + HOUR)

    assert ("quarantined", episode.episode_id) == (run.phase(dra(1)), run.episode(dra(1)).episode_id)
    assert UNKNOWN == run.unit(dra(1)).verdict

    run.step(published(1, T0 + HOUR, 5, generation=3))
    run.until(T0 + 20 * HOUR)

    assert ("quarantined", episode.episode_id) == (run.phase(dra(1)), run.episode(dra(1)).episode_id)
    assert "in_service" == run.phase(dra(0))


@pytest.mark.case("C10")
def test_c10_a_drivers_taint_holds_the_device_as_long_as_it_is_there():
    """Healthy in Pod status does not outweigh the taint; the return begins when the driver takes it back."""
    run = Run().each([word(dra(0), "Healthy", T0 - 5, 1), published(0, T0, 2, taints=[XID])])
    for n in range(1, 20):
        run.step(word(dra(0), "Healthy", T0 + n * HOUR, 2 + n, pod=f"pod-{n}"))

    assert ("quarantined", "driver_taint") == (run.phase(dra(0)), run.state.announced.devices[dra(0)].cause)

    removed = T0 + 20 * HOUR
    run.step(published(0, removed, 30))

    assert "observing" == run.phase(dra(0))

    run.until(removed + OBSERVATION_MS)

    assert ["in_service", "quarantined", "observing", "in_service"] == run.phases(dra(0))


@pytest.mark.case("C11")
def test_c11_two_endpoints_that_report_in_turns_are_one_flapping_run():
    """Twenty words in ten seconds: one suspicion, one alert, no quarantine; what holds afterwards counts."""
    facts = [word(dra(0), ("Healthy", "Unknown")[n % 2], T0 + n * 500, 2 + n) for n in range(20)]
    run = Run().each(facts)

    assert ["device_suspected", "alert_raised"] == run.kinds()
    assert (["flapping"], "suspect") == (run.alerts(), run.phase(dra(0)))

    run.step(word(dra(0), "Healthy", T0 + 10 * SECOND, 30))
    run.until(T0 + 10 * SECOND + POLICY.unknown.hold_down_ms)

    assert ([], "in_service") == (run.alerts(), run.phase(dra(0)))
    assert ["in_service", "suspect", "in_service"] == run.phases(dra(0))


@pytest.mark.case("C12")
def test_c12_a_slice_that_stands_is_no_report_of_health():
    """The dead driver's slice is still there and says nothing; Unknown in Pod status wins over it."""
    run = Run().each([published(n, T0 - HOUR, 1) for n in range(2)])
    run.each(word(dra(n), "Healthy", T0 - HOUR, 2) for n in range(2))
    run.each(word(dra(n), "Unknown", T0, 3) for n in range(2))

    assert {UNKNOWN} == {run.unit(dra(n)).verdict for n in range(2)}

    run.until(T0 + POLICY.unknown.window_ms)

    assert ["restricted"] * 2 == [run.phase(dra(n)) for n in range(2)]


@pytest.mark.case("C12")
def test_c12_a_slice_that_is_published_is_no_evidence_for_a_return():
    """Publishing a device again and again does not end its quarantine."""
    run = quarantined(dra(0))
    run.step(word(dra(0), "Unhealthy", T0 + 5, 3, live=False))
    run.each(published(0, T0 + n * HOUR, 4 + n, generation=n) for n in range(1, 20))

    assert "quarantined" == run.phase(dra(0))
    assert HEALTHY > run.unit(dra(0)).verdict


@pytest.mark.case("C13")
def test_c13_an_administrators_taint_is_no_fault_of_the_devices():
    """A rule that taints every device shows as Pods that end; no device is condemned for it."""
    run = Run()
    for n in range(8):
        run.each([published(n, T0, 1), word(dra(n), "Healthy", T0, 2, pod=f"pod-{n}")])
    run.each(word(dra(n), "Healthy", T0 + MINUTE, 3, pod=f"pod-{n}", live=False) for n in range(8))
    run.until(T0 + 24 * HOUR)

    assert [] == run.decisions


@pytest.mark.case("C13")
def test_c13_a_taint_that_no_rule_of_the_driver_names_is_no_fault():
    """Only what the policy names as the driver's word on health is one."""
    stranger = taint("example.com/maintenance", "NoExecute")
    run = Run().each(published(n, T0, 1, taints=[stranger]) for n in range(8))

    assert [] == run.decisions


@pytest.mark.case("C14")
def test_c14_a_pod_that_tolerates_the_taint_is_no_violation():
    """The device stays quarantined for everybody else and nobody is alerted."""
    run = Run().each([published(0, T0, 1, taints=[XID])])
    run.each([workload(T0 + MINUTE, 2, ability="neither"), word(dra(0), "Healthy", T0 + MINUTE, 2)])
    run.until(T0 + 10 * HOUR)

    assert (["quarantine_opened"], "quarantined") == (run.kinds(), run.phase(dra(0)))


@pytest.mark.case("C16")
def test_c16_each_cause_ends_by_itself_and_the_open_ones_are_named():
    """Healthy by the Pod ends one cause; the driver's taint is named as the one that is left, until it goes."""
    run = Run().each([word(dra(0), "Unhealthy", T0, 1), published(0, T0 + 5, 2, taints=[XID])])

    assert ("unhealthy", "driver_taint") == run.episode(dra(0)).open_causes

    run.step(word(dra(0), "Healthy", T0 + MINUTE, 3))
    run.until(T0 + 10 * HOUR)

    assert (("driver_taint",), "quarantined") == (run.episode(dra(0)).open_causes, run.phase(dra(0)))

    run.step(published(0, T0 + 10 * HOUR, 4))

    assert "observing" == run.phase(dra(0))


@pytest.mark.case("C17")
def test_c17_our_own_taint_is_never_a_cause():
    """What we, or somebody for us, wrote comes back with a new version and changes nothing."""
    own = taint("sickbay.dev/quarantined", "NoExecute", "episode")
    run = Run().each([published(0, T0, 1), node(T0, 1)])
    run.each([published(0, T0 + 5, 2, taints=[own]), node(T0 + 5, 2)])
    run.until(T0 + HOUR)

    assert [] == run.decisions


@pytest.mark.case("C23")
@pytest.mark.parametrize("number", ["13", "31", "94", "109", "999", "", "not a number"])
def test_c23_the_effect_decides_and_never_the_number(number):
    """Vendors disagree on which XID is a fault; an informational taint and a text are none, an effective taint is one."""
    key = f"{DRIVER}/xid"
    run = Run().each([
        word(dra(0), "Healthy", T0, 1, message=f"XID {number}"),
        published(0, T0 + 1, 2, taints=[taint(key, "None", number)]),
    ])  # fmt: skip

    assert [] == run.decisions

    run.step(published(0, T0 + 2, 3, taints=[taint(key, "NoSchedule", number)]))
    run.until(T0 + 10 * HOUR)

    assert (["quarantine_opened"], "quarantined") == (run.kinds(), run.phase(dra(0)))
