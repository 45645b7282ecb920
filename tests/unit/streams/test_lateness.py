"""Facts out of order, repeated, missed and too late: what was announced is put right, and nothing is said twice."""

from __future__ import annotations

import msgspec
import pytest
from custody_histories import SHORT
from custody_run import Run
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    XID,
    dra,
    gap,
    hold,
    lapsed,
    move_report,
    node,
    plugin,
    pod_gone,
    policy_changed,
    published,
    resumed,
    word,
    workload,
)

from sickbay.codec import fact_id
from sickbay.policy import Policy
from streams.custody import timeline
from streams.custody.aggregate import FOLD_VERSION, load

POLICY = Policy()
HORIZON_MS = POLICY.lateness_horizon_ms
MOVING = msgspec.structs.replace(POLICY, moves=msgspec.structs.replace(POLICY.moves, enabled=True))
CARD = plugin(0)
#: From a fault to the end of its way back under ``SHORT``, when the device is well before the hold is over.
RETURN_MS = SHORT.quarantine.min_hold_ms + SHORT.staged_return.observation_only_ms


# --- late inside the horizon ----------------------------------------------------------------------------------------


def test_a_transient_fault_that_arrives_late_still_opens_its_episode():
    """Healthy of version 12 came first; Unhealthy of version 11 happened all the same."""
    run = Run().each([word(CARD, "Healthy", T0 + SECOND, 12), word(CARD, "Unhealthy", T0, 11)])
    ordered = Run().each([word(CARD, "Unhealthy", T0, 11), word(CARD, "Healthy", T0 + SECOND, 12)])

    assert ("quarantined", T0) == (run.phase(CARD), run.episode(CARD).opened_at_ms)
    assert ordered.dump() == run.dump()


def test_what_in_order_facts_would_not_have_done_is_retracted_and_not_erased():
    """The run of Unknown was restricted; a late Healthy shows that it had ended before."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.until(T0 + 6 * MINUTE)

    assert "restricted" == run.phase(CARD)

    run.step(word(CARD, "Healthy", T0 + MINUTE, 2))

    assert ("in_service", "device_cleared") == (run.phase(CARD), run.decisions[-1].KIND)
    assert ["in_service", "suspect", "restricted", "in_service"] == run.phases(CARD)


def test_an_episode_that_never_was_is_closed_as_retracted():
    """A lapsed lease heard late explains the word: in order it would have opened nothing."""
    run = Run().each([word(CARD, "Unhealthy", T0 + MINUTE, 5)])
    opened = run.episode(CARD)
    run.step(lapsed(T0 + 30 * SECOND, 3, T0))
    released = run.of("device_released")[0]

    assert (opened.episode_id, "retracted") == (released.closed.episode_id, released.closed.outcome)
    assert ("restricted", set()) == (run.phase(CARD), run.open_episodes())


def test_an_incident_that_never_was_is_closed_as_retracted():
    """The lease had resumed before it lapsed, as the versions tell."""
    run = Run().each([lapsed(T0 + MINUTE, 3, T0), resumed(T0 + MINUTE + SECOND, 4)])
    late = Run().each([lapsed(T0 + MINUTE, 3, T0), lapsed(T0 + 30 * SECOND, 2, T0 - MINUTE)])

    assert [] == run.of("node_incident_closed")
    assert ["retracted"] == [d.outcome for d in late.of("node_incident_closed")]
    assert 1 == len(late.state.announced.incidents)


def test_an_alert_that_never_was_is_cleared():
    """The workload's declaration came after its word: it is movable."""
    run = Run(MOVING).each([word(CARD, "Unhealthy", T0 + SECOND, 5)])

    assert ["workload_not_movable"] == run.alerts()

    run.step(workload(T0, 4))

    assert ([], 1) == (run.alerts(), len(run.state.announced.moves))


def test_a_move_that_never_was_is_retracted():
    """The Pod was gone before the fault: there was nothing to move."""
    run = Run(MOVING).each([
        word(CARD, "Healthy", T0 - SECOND, 3),
        workload(T0 - SECOND, 3),
        word(CARD, "Unhealthy", T0 + MINUTE, 9, pod="pod-b"),
    ])  # fmt: skip

    assert ["uid-pod-a"] == [m.pod_uid for m in run.state.announced.moves.values()]

    run.step(word(CARD, "Healthy", T0, 4, live=False))

    assert {} == run.state.announced.moves
    assert ["retracted"] == [d.outcome for d in run.of("move_finished")]


def test_a_move_that_finished_in_a_past_learned_late_is_not_begun_again():
    """Lease and report are in the log; a fact of before them changes nothing about the move."""
    run = Run(MOVING).each([workload(T0, 1), word(CARD, "Unhealthy", T0 + MINUTE, 2)])
    lease = run.of("move_lease_granted")[0]
    run.step(move_report(lease, T0 + 2 * MINUTE, "m1"))
    before = len(run.of("move_planned", "move_lease_granted", "move_finished"))
    run.step(word(plugin(1), "Healthy", T0 + SECOND, 1))

    assert before == len(run.of("move_planned", "move_lease_granted", "move_finished"))


def test_after_a_late_fact_transitions_count_again():
    """A correction is over with its step: what happens next is told as it happens."""
    run = Run().each([word(CARD, "Healthy", T0 + MINUTE, 2), word(CARD, "Healthy", T0, 1)])
    run.step(word(CARD, "Unknown", T0 + 2 * MINUTE, 3), word(CARD, "Healthy", T0 + 2 * MINUTE + 1, 4))
    run.until(T0 + HOUR)

    assert ["device_suspected", "device_cleared"] == run.kinds()


def test_each_devices_first_transition_starts_from_the_announced_phase():
    """A story told anew hangs together with the one before it."""
    run = Run().each([word(CARD, "Unknown", T0 + MINUTE, 2), word(CARD, "Unhealthy", T0, 1)])

    walk = [(d.phase_before, d.record.phase) for d in run.decisions]
    assert [("in_service", "suspect"), ("suspect", "quarantined"), ("quarantined", "quarantined")] == walk


def test_an_older_version_that_comes_later_became_true_no_later():
    """Receipt order lies about one object: version 5 was true before version 6, whenever it was read."""
    run = Run().each([word(CARD, "Unhealthy", T0, 6), word(CARD, "Healthy", T0 + MINUTE, 5)])

    assert ("quarantined", ("unhealthy",)) == (run.phase(CARD), run.episode(CARD).open_causes)


def test_a_newer_epoch_is_newer_whatever_its_version():
    """After a restore of the cluster's store versions start low: (epoch, version) is compared."""
    restored = msgspec.structs.replace(word(CARD, "Unhealthy", T0 + MINUTE, 3), epoch=1)
    run = Run().each([word(CARD, "Healthy", T0, 900), restored])

    assert ("quarantined", ("unhealthy",)) == (run.phase(CARD), run.episode(CARD).open_causes)


def test_a_closing_is_said_once_when_what_followed_it_is_told_anew():
    """A swapped card, then a Node heard late: the new card's episode gets another id, the old one's end is not repeated."""

    def bad_card(at_ms, rv, uuid):
        return published(0, at_ms, rv, taints=[XID], attributes={f"{DRIVER}/uuid": uuid})

    run = Run().each([bad_card(T0, 1, "G1"), bad_card(T0 + MINUTE, 2, "G2"), node(T0 + MINUTE, 3)])
    closed = [(d.closed.outcome, d.record.phase) for d in run.of("device_released")]

    assert [("device_replaced", "in_service"), ("retracted", "in_service")] == closed
    assert {run.episode(dra(0)).episode_id} == run.open_episodes()
    assert 3 == len({d.record.episode.episode_id for d in run.of("quarantine_opened")})


def _with_one_late(policy, facts, late, until_ms):
    """The walk that hears ``late`` after everything else, and what it then says of the device."""
    run = Run(policy).each(facts)
    run.until(until_ms)
    return run, [d for d in run.step(late) if getattr(d, "device_id", "") == CARD and hasattr(d, "record")]


def test_an_episode_that_a_late_word_keeps_open_goes_on_under_its_id():
    """A second Pod had spoken before the first took its word back: what keeps the episode open never changed."""
    late = word(CARD, "Unhealthy", T0 + SECOND, 2, pod="pod-b")
    facts = [word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + 2 * SECOND, 3)]
    run, decided = _with_one_late(POLICY, facts, late, T0 + 2 * SECOND)
    ordered = Run().each([facts[0], late, facts[1]])

    assert [("quarantine_extended", ("unhealthy",))] == [
        (d.KIND, d.record.episode.open_causes) for d in decided
    ]
    assert {ordered.episode(CARD).episode_id} == run.open_episodes()
    assert ordered.state.announced == run.state.announced


@pytest.mark.parametrize(
    ("health", "over_ms", "kind", "phase"),
    [
        ("Unhealthy", RETURN_MS, "quarantine_extended", "quarantined"),
        ("Unknown", 2 * SECOND + SHORT.unknown.hold_down_ms, "device_suspected", "suspect"),
    ],
    ids=["an episode", "an Unknown run"],
)
def test_what_was_over_and_by_a_late_word_goes_on_is_told_by_a_kind_that_fits(health, over_ms, kind, phase):
    """A second Pod had said the same and never took it back: in order there is no transition, and now no clearing."""
    facts = [word(CARD, health, T0, 1), word(CARD, "Healthy", T0 + 2 * SECOND, 3)]
    late = word(CARD, health, T0 + SECOND, 2, pod="pod-b")
    run, decided = _with_one_late(SHORT, facts, late, T0 + over_ms)

    assert [(kind, "in_service", phase)] == [(d.KIND, d.phase_before, d.record.phase) for d in decided]
    assert {CARD} == run.state.announced.devices.keys()


def test_an_episode_that_never_was_makes_room_for_the_one_that_goes_on():
    """The device was not well when it was released, so the fault after that opened nothing."""
    run = Run(SHORT).each([word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + 2 * SECOND, 3)])
    first = run.episode(CARD).episode_id
    run.until(T0 + RETURN_MS)
    run.step(word(CARD, "Unhealthy", T0 + RETURN_MS + SECOND, 4))
    second = run.episode(CARD).episode_id
    run.step(word(CARD, "Unhealthy", T0 + SECOND, 2, pod="pod-b"))
    closed = [(d.closed.episode_id, d.closed.outcome) for d in run.of("device_released")]

    assert [(first, "returned"), (second, "retracted")] == closed
    assert {first} == run.open_episodes() == {run.episode(CARD).episode_id}


# --- later than the horizon ------------------------------------------------------------------------------------------


def test_a_fact_later_than_the_horizon_is_alerted_and_not_acted_on():
    """Recorded in the log, counted, alerted once; the state is what it was."""
    run = Run().each([word(CARD, "Healthy", T0 + HORIZON_MS + 1, 12)])
    before = run.state.timeline.head
    late = word(plugin(1), "Unhealthy", T0, 11)
    decided = run.step(late)

    assert [("late_fact", fact_id(late), (fact_id(late),))] == [
        (d.alert, d.about, d.evidence) for d in decided
    ]
    assert before == run.state.timeline.head
    assert ("in_service", []) == (run.phase(plugin(1)), run.alerts())


def test_a_fact_of_just_the_horizon_is_acted_on():
    """The limit is inclusive."""
    run = Run().each([word(CARD, "Healthy", T0 + HORIZON_MS, 12), word(plugin(1), "Unhealthy", T0, 11)])

    assert "quarantined" == run.phase(plugin(1))


def test_the_repeat_of_a_late_fact_is_silent():
    """At once or later."""
    late = word(plugin(1), "Unhealthy", T0, 11)
    run = Run().each([word(CARD, "Healthy", T0 + HOUR, 12), late])

    assert () == run.step(late)

    run.until(T0 + 2 * HOUR)

    assert (() == run.step(late), 1) == (True, len(run.decisions))


def test_two_late_facts_are_two_alerts():
    """Each is news of its own."""
    run = Run().each([word(CARD, "Healthy", T0 + HOUR, 12)])
    decided = run.step(word(plugin(1), "Unhealthy", T0, 11), word(plugin(2), "Unhealthy", T0, 11))

    assert 2 == len({d.alert_id for d in decided})


def test_a_frozen_word_of_a_pod_that_is_long_gone_is_late_and_no_news():
    """The end of the Pod is in the base; an older word of it that turns up again cannot open anything."""
    run = Run().each([
        word(CARD, "Unhealthy", T0, 5),
        word(CARD, "Unhealthy", T0 + SECOND, 6, live=False),
        pod_gone(T0 + SECOND, 7),
    ])  # fmt: skip
    run.until(T0 + HOUR)
    run.dump()
    before = run.episode(CARD)
    run.step(word(CARD, "Unhealthy", T0 + HOUR, 4))

    assert (before, 1) == (run.episode(CARD), len([d for d in run.decisions if d.KIND == "alert_raised"]))


# --- repeats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_ms", [0, SECOND, HORIZON_MS + 1, 5 * HORIZON_MS])
def test_a_repeat_changes_nothing_at_once_or_later(wait_ms):
    """Also after the fact moved into the base and a snapshot was taken."""
    facts = [word(CARD, "Unhealthy", T0, 1), word(plugin(1), "Unknown", T0, 1), node(T0, 1)]
    run = Run().each(facts)
    run.until(T0 + wait_ms)
    run.dump()
    state, count = run.dump(), len(run.decisions)
    run.each(facts)

    assert (state, count) == (run.dump(), len(run.decisions))


def test_the_memory_of_repeats_is_limited():
    """State is bounded: identities beyond the limit are forgotten, oldest first, and then told as late once more."""
    run = Run()
    for n in range(timeline.SEEN_LIMIT + 10):
        run.step(word(plugin(n), "Healthy", T0 + n, 1))
        run.step(word(plugin(n), "Healthy", T0 + n, 2, live=False))
    run.until(T0 + HOUR)
    run.dump()

    assert timeline.SEEN_LIMIT == len(run.state.timeline.seen)
    assert timeline.ENDED_LIMIT >= len(run.state.timeline.ended)
    assert {} == run.state.timeline.logs


# --- gaps ------------------------------------------------------------------------------------------------------------


def test_a_gap_longer_than_the_horizon_still_puts_off_what_it_hid():
    """An hour of blindness, found at its end: nothing of it counts as an hour of silence."""
    run = Run().each([word(CARD, "Unknown", T0, 1)])
    run.step(gap(T0 + SECOND, T0 + HOUR))
    run.until(T0 + HOUR + POLICY.unknown.hold_down_ms - 1)

    assert "suspect" == run.phase(CARD)


def test_what_was_missed_in_a_gap_decides_before_what_fell_due_in_it():
    """The word that the relist brings comes first; then time goes on."""
    run = Run().each(
        [word(CARD, "Unknown", T0, 1), gap(T0 + SECOND, T0 + HOUR), word(CARD, "Healthy", T0 + HOUR, 2)]
    )
    run.until(T0 + 2 * HOUR)

    assert ["in_service", "suspect", "in_service"] == run.phases(CARD)


def test_deadlines_outside_the_gap_are_not_moved():
    """A gap that is over before the window ends hides nothing of it."""
    run = Run().each([word(CARD, "Unknown", T0, 1), gap(T0 + SECOND, T0 + MINUTE)])
    run.until(T0 + POLICY.unknown.window_ms)

    assert "restricted" == run.phase(CARD)


# --- restart and policy ----------------------------------------------------------------------------------------------


def test_a_snapshot_of_another_fold_version_is_not_read():
    """It is built from the log instead."""
    run = Run().each([word(CARD, "Unhealthy", T0, 1)])
    other = msgspec.json.decode(run.dump()) | {"fold_version": FOLD_VERSION + 1}

    assert load(msgspec.json.encode(other), run.policies) is None
    assert load(run.dump(), run.policies) is not None


def test_a_restart_right_after_a_correction_does_not_show():
    """Whether the process was there when the head was rebuilt makes no difference to what it says next."""
    facts = [word(CARD, "Healthy", T0 + MINUTE, 2), word(CARD, "Healthy", T0, 1)]
    rest = [node(T0 + 2 * MINUTE, 2, allocatable="7"), word(CARD, "Unhealthy", T0 + HOUR, 9)]
    whole = Run().each([*facts, *rest])
    first = Run().each(facts)
    second = first.reopened().each(rest)

    assert whole.decisions == first.decisions + second.decisions
    assert ["alert_raised", "quarantine_opened", "alert_cleared"] == whole.kinds()


def test_another_policy_decides_from_its_time_on():
    """A longer window is in force before the shorter one ran out."""
    longer = msgspec.structs.replace(
        POLICY, version="longer", quarantine=msgspec.structs.replace(POLICY.quarantine, min_hold_ms=HOUR)
    )
    run = Run()
    run.policies[longer.hash()] = longer
    run.step(policy_changed(T0, longer))
    run.step(word(CARD, "Unhealthy", T0 + 1, 1))

    assert T0 + 1 + HOUR == run.episode(CARD).hold_until_ms


# --- deadlines and facts in one order --------------------------------------------------------------------------------


def test_deadlines_that_fell_due_together_are_carried_out_each_at_its_own_time():
    """One tick after a long pause: what was due first is said first, with its own time."""
    run = Run().each([word(plugin(9), "Healthy", T0, 1)])
    run.each(word(plugin(n), "Unknown", T0 + (3 - n) * SECOND, 2) for n in (2, 0, 1))
    run.until(T0 + HOUR)
    window_ms = POLICY.unknown.window_ms

    assert [(plugin(n), T0 + (3 - n) * SECOND + window_ms) for n in (2, 1, 0)] == [
        (d.device_id, d.at_ms) for d in run.of("device_restricted")
    ]


def test_what_falls_due_at_the_moment_of_a_fact_falls_due_before_it():
    """Whether a tick came between does not show."""
    facts = [word(CARD, "Unhealthy", T0, 1), word(CARD, "Healthy", T0 + SECOND, 2)]
    due_ms = T0 + POLICY.quarantine.min_hold_ms
    again = word(CARD, "Unhealthy", due_ms, 3)
    quiet, ticked = Run().each([*facts, again]), Run().each(facts)
    ticked.until(due_ms)
    ticked.step(again)

    assert ["in_service", "quarantined", "observing", "quarantined"] == quiet.phases(CARD)
    assert quiet.decisions == ticked.decisions


def test_of_two_facts_of_one_time_the_nodes_comes_first():
    """Whatever the order of arrival: the lapsed lease explains the word of the same millisecond."""
    facts = [lapsed(T0, 3, T0 - SECOND), word(CARD, "Unhealthy", T0, 5)]
    first, second = Run().each(facts), Run().each(reversed(facts))

    assert "restricted" == first.phase(CARD) == second.phase(CARD)
    assert first.dump() == second.dump()


@pytest.mark.parametrize(
    "facts",
    [
        [
            word(plugin(0), "Healthy", T0, 1),
            word(plugin(0), "Unhealthy", T0 + 1_000, 2),
            hold(plugin(0), T0 + 2_000, T0 + 3_600_000),
        ],
        [
            *(word(plugin(n), "Healthy", T0, 1) for n in range(3)),
            *(word(plugin(n), "Unhealthy", T0 + 1_000 * (n + 1), 2) for n in range(3)),
        ],
    ],
    ids=["a request came since", "its neighbours turned since"],
)
def test_a_late_word_is_not_applied_in_place_past_what_it_would_have_changed(facts):
    """The last fact but one comes last: what came since looks different in its light, so the head is built again."""
    late = [*facts[:-2], facts[-1], facts[-2]]

    assert Run().each(facts).dump() == Run().each(late).dump()
