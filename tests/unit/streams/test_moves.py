"""Moves of workloads: who may move, one lease at a time, fenced, limited in attempts, and ended when they are moot."""

from __future__ import annotations

import msgspec
from custody_run import Run
from facts_of import (
    DRIVER,
    HOUR,
    MINUTE,
    NODE,
    SECOND,
    T0,
    breaker,
    dra,
    hold,
    move_report,
    node_gone,
    plugin,
    pod_gone,
    policy_changed,
    word,
    workload,
)

from sickbay.policy import Policy

MOVES = msgspec.structs.replace(Policy().moves, enabled=True)
MOVING = msgspec.structs.replace(Policy(), version="moving", moves=MOVES)
CARD, OTHER = plugin(0), plugin(1)


def start(ability="checkpoint", *, policy=MOVING, topology="whole"):
    """A run with one movable workload on a device that turned bad at T0."""
    return Run(policy).each([
        workload(T0 - SECOND, 1, ability=ability, topology=topology),
        word(CARD, "Healthy", T0 - SECOND, 1),
        word(CARD, "Unhealthy", T0, 2),
    ])  # fmt: skip


def two_pods():
    """Two movable workloads on one bad device."""
    return Run(MOVING).each([
        workload(T0 - SECOND, 1),
        workload(T0 - SECOND, 1, pod="pod-b"),
        word(CARD, "Healthy", T0 - SECOND, 1, pod="pod-b"),
        word(CARD, "Unhealthy", T0, 2),
    ])  # fmt: skip


def leases(run):
    return [(d.pod, d.token, d.at_ms) for d in run.of("move_lease_granted")]


def test_moves_are_off_unless_the_operator_wants_them():
    """The default policy moves nobody and alerts nobody about it."""
    run = start(policy=Policy())

    assert (["quarantine_opened"], {}) == (run.kinds(), run.state.announced.moves)


def test_a_workload_that_declares_its_ability_is_planned_and_leased():
    """The plan says what it may count on; the lease says until when and with which token."""
    run = start("restartable", topology="shardable")
    planned, lease = run.of("move_planned")[0], run.of("move_lease_granted")[0]

    assert ("restartable", "shardable", "uid-pod-a", CARD, NODE) == (
        planned.ability, planned.topology, planned.pod_uid, planned.device_id, planned.node,
    )  # fmt: skip
    assert (planned.move_id, 1, T0 + MOVES.lease_ms) == (lease.move_id, lease.token, lease.expires_at_ms)
    assert run.episode(CARD).episode_id == planned.episode_id == planned.correlation_id


def test_a_workload_that_declares_nothing_keeps_its_place_and_its_owner_is_told():
    """Neither class: an alert instead of a move."""
    for ability in ("neither", ""):
        run = start(ability)

        assert (["workload_not_movable"], []) == (run.alerts(), run.of("move_planned"))
        assert f"{CARD} ml/pod-a" == run.of("alert_raised")[0].about


def test_the_alert_on_a_workload_that_stays_ends_with_its_reason():
    """Declared movable, gone, or the device on its way back: nobody needs to look any more."""
    ends = (
        workload(T0 + MINUTE, 3),
        word(CARD, "Unhealthy", T0 + MINUTE, 3, live=False),
        policy_changed(T0 + MINUTE, Policy()),
    )
    for end in ends:
        run = start("neither")
        run.policies[Policy().hash()] = Policy()
        run.step(end)

        assert [] == run.alerts()

    run = start("neither")
    run.step(word(CARD, "Healthy", T0 + HOUR, 3))

    assert ("observing", []) == (run.phase(CARD), run.alerts())


def test_a_healthy_device_and_a_persons_hold_move_nobody():
    """Only a fault is worth a move."""
    run = Run(MOVING).each([workload(T0, 1), word(CARD, "Healthy", T0, 1), hold(CARD, T0 + 1, T0 + HOUR)])

    assert ["quarantine_opened"] == run.kinds()


def test_moves_of_a_node_are_leased_one_at_a_time():
    """The second waits for the first to end."""
    run = two_pods()

    assert 2 == len(run.of("move_planned"))
    assert 1 == len(leases(run))

    first = run.of("move_lease_granted")[0]
    run.step(move_report(first, T0 + MINUTE, "m1"))
    second = run.of("move_lease_granted")[1]

    assert (T0 + MINUTE, 1) == (second.at_ms, second.token)
    assert first.move_id != second.move_id


def test_the_policy_says_how_many_moves_run_at_once():
    """Two at a time when the operator says so."""
    run = two_pods()
    both = msgspec.structs.replace(MOVING, moves=msgspec.structs.replace(MOVES, per_node=2))
    wide = Run(both).each([x for x in run.log if hasattr(x, "observed_at_ms")])

    assert 2 == len(leases(wide))


def test_a_move_that_is_done_is_finished_and_not_planned_again():
    """The Pod is still there for a while; its move is over."""
    run = start()
    run.step(move_report(run.of("move_lease_granted")[0], T0 + MINUTE, "m1"))
    run.step(word(CARD, "Unhealthy", T0 + 2 * MINUTE, 3))
    run.until(T0 + 5 * HOUR)

    assert ["done"] == [d.outcome for d in run.of("move_finished")]
    assert (1, 1, {}) == (len(run.of("move_planned")), len(leases(run)), run.state.announced.moves)


def test_a_new_fault_plans_a_new_move():
    """One move per device, workload and status version of the fault."""
    run = start()
    run.step(move_report(run.of("move_lease_granted")[0], T0 + MINUTE, "m1"))
    run.each([word(CARD, "Healthy", T0 + 2 * MINUTE, 3), word(CARD, "Unhealthy", T0 + 3 * MINUTE, 4)])

    assert 2 == len({d.move_id for d in run.of("move_planned")}) == len(run.of("move_planned"))


def test_an_attempt_that_failed_is_leased_again_with_the_next_token():
    """Three attempts, then a person is asked."""
    run = start()
    for n in range(3):
        run.step(move_report(run.of("move_lease_granted")[-1], T0 + n * MINUTE, f"m{n}", outcome="failed"))

    assert [1, 2, 3] == [token for _, token, _ in leases(run)]
    assert [("failed", 3)] == [(d.outcome, d.token) for d in run.of("move_finished")]


def test_a_lease_that_nobody_answers_expires_and_is_granted_again():
    """A mover that died does not hold the move for ever."""
    run = start()
    run.until(T0 + 3 * MOVES.lease_ms)

    assert [T0 + n * MOVES.lease_ms for n in range(3)] == [at_ms for _, _, at_ms in leases(run)]
    assert [("timed_out", 3, T0 + 3 * MOVES.lease_ms)] == [
        (d.outcome, d.token, d.at_ms) for d in run.of("move_finished")
    ]


def test_a_lease_runs_its_whole_time():
    """A millisecond before its end it is still the mover's."""
    run = start()
    run.until(T0 + MOVES.lease_ms - 1)

    assert 1 == len(leases(run))

    run.step(move_report(run.of("move_lease_granted")[0], T0 + MOVES.lease_ms - 1, "m1"))

    assert ["done"] == [d.outcome for d in run.of("move_finished")]


def test_a_report_with_an_older_token_does_nothing():
    """The first mover wakes up after its lease passed on: it is fenced."""
    run = start()
    first = run.of("move_lease_granted")[0]
    run.until(T0 + MOVES.lease_ms)

    assert () == run.step(move_report(first, T0 + MOVES.lease_ms + 1, "m1"))
    assert [2] == [m.token for m in run.state.announced.moves.values()]

    run.step(move_report(run.of("move_lease_granted")[1], T0 + MOVES.lease_ms + 2, "m2"))

    assert [("done", 2)] == [(d.outcome, d.token) for d in run.of("move_finished")]


def test_a_report_on_a_move_that_is_over_or_unknown_does_nothing():
    """The second word of a mover comes too late."""
    run = start()
    lease = run.of("move_lease_granted")[0]
    run.step(move_report(lease, T0 + 1, "m1"))

    assert () == run.step(move_report(lease, T0 + 2, "m2", outcome="failed"))
    assert () == run.step(move_report(msgspec.structs.replace(lease, move_id="another"), T0 + 3, "m3"))


def gone(run, at_ms=T0 + 1):
    run.each([word(CARD, "Unhealthy", at_ms, 3, live=False), pod_gone(at_ms, 4)])


def test_a_workload_that_is_gone_under_a_lease_is_the_movers_to_tell_of():
    """It evicts first, and sees afterwards whether another stands in its place."""
    for outcome in ("done", "failed"):
        run = start()
        lease = run.of("move_lease_granted")[0]
        gone(run)
        assert [] == run.of("move_finished")
        run.step(move_report(lease, T0 + 2, "m1", outcome=outcome))
        assert [outcome] == [d.outcome for d in run.of("move_finished")]


def test_a_workload_that_is_gone_without_a_lease_ends_its_move():
    """Finished or deleted: there is nothing left to move."""
    run = start()
    gone(run)
    run.step(move_report(run.of("move_lease_granted")[0], T0 + 2, "m1", outcome="deferred"))

    assert (["workload_gone"], {}) == (
        [d.outcome for d in run.of("move_finished")],
        run.state.announced.moves,
    )


def test_a_dead_movers_lease_of_a_workload_that_is_gone_runs_out():
    run = start()
    lease = run.of("move_lease_granted")[0]
    gone(run)
    run.until(lease.expires_at_ms)

    assert ["workload_gone"] == [d.outcome for d in run.of("move_finished")]


def test_a_lease_that_is_given_back_is_granted_again_and_no_attempt_counts():
    run = start()
    for number in range(1, 6):
        lease = run.of("move_lease_granted")[-1]
        assert (number, "attempt 1 of 3") == (lease.token, lease.reason)
        run.step(move_report(lease, lease.at_ms + 1, f"m{number}", outcome="deferred"))
        run.until(lease.at_ms + 1 + MOVES.defer_ms - 1)
        assert number == len(run.of("move_lease_granted"))
        run.until(lease.at_ms + 1 + MOVES.defer_ms)
    assert [] == run.of("move_finished")


def test_an_episode_that_is_closed_ends_its_moves():
    """The device is not quarantined any more."""
    run = start()
    run.step(node_gone(T0 + 1, 5, uid=""))

    assert ({}, {}) == (run.state.announced.moves, run.state.timeline.head.moves)
    assert 1 == len(run.of("move_finished"))


def test_the_slot_of_a_lease_that_is_given_back_goes_to_the_next():
    run = two_pods()
    run.step(move_report(run.of("move_lease_granted")[0], T0 + MINUTE, "m1", outcome="deferred"))

    assert [T0, T0 + MINUTE] == [at_ms for _, _, at_ms in leases(run)]


def test_an_open_breaker_stops_leases_and_its_end_resumes_them():
    """Planned before the storm, leased after it."""
    run = two_pods()
    run.step(breaker(T0 + SECOND, "cluster", is_open=True))
    run.step(move_report(run.of("move_lease_granted")[0], T0 + MINUTE, "m1"))

    assert 1 == len(leases(run))

    run.step(breaker(T0 + HOUR, "cluster", is_open=False))

    assert [T0, T0 + HOUR] == [at_ms for _, _, at_ms in leases(run)]


def test_a_fault_during_the_storm_moves_nobody():
    """Held: visible, blocked, not acted on."""
    run = Run(MOVING).each([
        breaker(T0 - MINUTE, f"driver:{DRIVER}", is_open=True),
        workload(T0 - SECOND, 1),
        word(dra(0), "Unhealthy", T0, 2),
    ])  # fmt: skip

    assert (True, [], []) == (run.episode(dra(0)).held, run.of("move_planned"), run.alerts())


def test_moves_of_two_devices_are_told_apart():
    """One Pod on two bad devices has two moves, each under its episode."""
    run = start().each([word(OTHER, "Unhealthy", T0 + 1, 3)])

    assert {CARD, OTHER} == {d.device_id for d in run.of("move_planned")}
    assert 2 == len({d.move_id for d in run.of("move_planned")})
