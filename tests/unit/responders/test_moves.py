"""Moves: hooks, one eviction, a replacement on a fit device, evidence; and nothing where it must not be."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from move_worlds import LEASE_MS, Hooks, moving
from responding import NODE, breaker_opened, device_id, quarantined

from responders.moves.plan import next_step
from responders.moves.steps import Progress, Seen, Stop
from responders.view import Move
from sickbay.decisions import AlertRaised
from sickbay.errors import ServiceError
from sickbay.policy import MovePolicy


def test_a_restartable_pod_is_evicted_once_and_the_move_is_done_when_another_is_ready_on_a_fit_device():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert (["work"], ["owner_told", "evicted", "replaced"]) == (bench.world.evicted, bench.steps)
    assert [("move-work", "done")] == bench.outcomes
    assert f"work-again on {NODE} is ready with dra:gpu.example.com/{NODE}/gpu-1" in bench.detail()
    assert ["DeviceQuarantined"] == bench.world.reasons()


def test_nobody_is_evicted_before_the_device_is_excluded():
    """The replacement could be given the bad device again."""

    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.effect = ""
        bench.lease("work")
        mover = bench.mover()
        for _ in range(30):
            await mover.act()
            await asyncio.sleep(1)
        assert ([], {}) == (bench.world.evicted, bench.world.events)
        bench.world.effect = "NoSchedule"
        await bench.run(mover)

    assert [("move-work", "done")] == moving(scene).outcomes


def test_it_stops_new_requests_then_checkpoints_then_evicts():
    async def scene(bench):
        hooks = {"stop-hook": "http:8080/stop", "checkpoint-hook": "http:8080/save"}
        bench.world.add("work", "gpu-0", ability="checkpoint", **hooks)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert [("work", "/stop", "move-work-1"), ("work", "/save", "move-work-1")] == bench.hooks.called
    assert ["owner_told", "stopped", "checkpointed", "evicted", "replaced"] == bench.steps


@pytest.mark.parametrize(
    ("declared", "owner", "why"),
    [
        ({"ability": "checkpoint"}, True, "no sickbay.dev/checkpoint-hook"),
        ({"ability": "restartable"}, False, "has no controller"),
        ({"ability": "restartable", "stop-hook": "http:80@evil/x"}, True, "is no port"),
        (
            {"ability": "restartable", "stop-hook": "http:8080/fails"},
            True,
            "the stop hook of ml/work failed: told",
        ),
        ({}, True, "neither checkpoint nor restartable"),
    ],
)
def test_what_must_not_be_evicted_stays_and_its_owner_is_told(declared, owner, why):
    async def scene(bench):
        bench.hooks = Hooks("/fails")
        bench.world.add("work", "gpu-0", owner=owner, **declared)
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert why in bench.detail()
    assert "MoveFailed" in bench.world.reasons()


def test_a_disruption_budget_is_asked_again_and_its_refusal_is_the_evidence():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.refuse = [429] * 3
        bench.lease("work")
        await bench.run()

    assert [("move-work", "done")] == moving(scene).outcomes

    async def never(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.refuse = [429] * 1_000
        bench.lease("work")
        await bench.run()

    bench = moving(never)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert "disruption budget" in bench.detail()


@pytest.mark.parametrize(
    ("code", "message"),
    [(500, "This pod has more than one PodDisruptionBudget"), (403, "admission webhook denied it")],
)
def test_an_eviction_that_is_refused_for_good_is_evidence_and_no_error(code, message):
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.refuse, bench.world.refusal = [code] * 1_000, message
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert message in bench.detail()


@pytest.mark.parametrize("unfit", ["gpu-0", "not ready"])
def test_a_replacement_that_is_not_ready_on_a_fit_device_is_a_failure_with_evidence(unfit):
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.next_device, bench.world.next_ready = (
            ("gpu-0", True) if unfit == "gpu-0" else ("gpu-1", False)
        )
        bench.lease("work")
        await bench.run()

    bench = moving(scene, replacement_timeout_ms=60_000)
    assert ([("move-work", "failed")], ["work"]) == (bench.outcomes, bench.world.evicted)
    assert ("out of service" if unfit == "gpu-0" else "not ready") in bench.detail()


def test_a_move_ends_with_its_outcome_before_its_lease_does_whatever_the_policy_allows():
    """A lease that ends first would leave a move of which nobody says what came of it."""

    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="checkpoint", **{"checkpoint-hook": "http:8080/save"})
        bench.world.next_ready = False
        bench.ends_ms = bench.times.now_ms() + LEASE_MS
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene, hook_timeout_ms=10 * LEASE_MS, replacement_timeout_ms=10 * LEASE_MS)
    (timeout_ms,) = bench.hooks.timeouts_ms
    assert 0 < timeout_ms < LEASE_MS
    (report,) = [fact for fact in bench.reports.facts.values() if fact.KIND == "move_reported"]
    assert ("failed", True) == (report.outcome, report.observed_at_ms < bench.ends_ms)
    assert "evicted, but not replaced" in report.detail


@pytest.mark.parametrize("change", ["breaker", "held", "returning"])
def test_under_an_open_breaker_a_held_episode_or_on_the_way_back_nothing_is_begun(change):
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        at_ms = bench.times.now_ms()
        bench.view.fold(
            {
                "breaker": breaker_opened(),
                "held": quarantined(at_ms=at_ms, held=True),
                "returning": quarantined(at_ms=at_ms, phase="probing"),
            }[change]
        )
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([], [("move-work", "deferred")], {}) == (bench.world.evicted, bench.outcomes, bench.world.events)


def test_a_lease_that_passed_on_is_acted_on_no_more():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.refuse = [429] * 1_000
        move_id = bench.lease("work")
        mover = bench.mover()
        for _ in range(20):
            await mover.act()
            await asyncio.sleep(1)
        bench.lease("work", token=2)
        bench.take_back(move_id)
        writes = bench.world.writes
        for _ in range(60):
            await mover.act()
            await asyncio.sleep(1)
        assert writes == bench.world.writes
        await mover.close()

    bench = moving(scene)
    assert [] == bench.outcomes


def test_a_group_that_is_whole_moves_together_and_a_shard_alone():
    async def whole(bench):
        for name in ("work", "mate"):
            bench.world.add(name, "gpu-0" if name == "work" else "gpu-2", ability="restartable", group="g")
        bench.lease("work")
        await bench.run()

    assert {"work", "mate"} == set(moving(whole).world.evicted)

    async def shard(bench):
        for name in ("work", "mate"):
            bench.world.add(name, "gpu-0", ability="restartable", group="g", topology="shardable")
        bench.lease("work", topology="shardable")
        await bench.run()

    assert ["work"] == moving(shard).world.evicted


def test_two_moves_of_one_group_are_not_made_at_once():
    """Two of its Pods are on bad devices: the group goes once, and each Pod of it is replaced once."""

    async def scene(bench):
        for name in ("work", "mate"):
            bench.world.add(name, "gpu-0", ability="restartable", group="g")
            bench.lease(name)
        await bench.run()

    bench = moving(scene)
    assert ["mate", "work"] == sorted(bench.world.evicted)
    assert {"done": 1, "deferred": 1} == _counted(bench)


def test_a_pod_that_its_owner_deletes_is_left_to_him():
    """Nobody can say whether another is to come."""

    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.pods["work"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([("move-work", "deferred")], {}) == (bench.outcomes, bench.world.events)


def test_the_limits_of_the_cluster_give_leases_back_and_a_restart_does_not_begin_the_hour_anew():
    async def scene(bench):
        for name in ("a", "b", "c"):
            bench.world.add(name, "gpu-0", ability="restartable")
            bench.lease(name)
        await bench.run()

    assert {"done": 2, "deferred": 1} == _counted(moving(scene, cluster=2))
    assert {"done": 1, "deferred": 2} == _counted(moving(scene, cluster_per_hour=1))


def test_a_move_that_failed_before_its_eviction_gives_its_place_in_the_hour_back():
    async def scene(bench):
        bench.hooks = Hooks("/fails")
        bench.world.add("a", "gpu-0", ability="restartable", **{"stop-hook": "http:80/fails"})
        bench.world.add("b", "gpu-0", ability="restartable")
        mover = bench.mover()
        bench.lease("a")
        await bench.run(mover)
        bench.lease("b")
        await bench.run(mover)

    bench = moving(scene, cluster_per_hour=1)
    assert ([("move-a", "failed"), ("move-b", "done")], ["b"]) == (bench.outcomes, bench.world.evicted)


def _counted(bench):
    outcomes = [outcome for _, outcome in bench.outcomes]
    return {outcome: outcomes.count(outcome) for outcome in set(outcomes)}


def test_two_movers_that_fight_over_one_workload_evict_once():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.lease("work")
        await bench.run(bench.mover(), bench.mover())

    bench = moving(scene)
    assert (["work"], [("move-work", "done")]) == (bench.world.evicted, bench.outcomes)


def test_a_pod_that_changes_while_it_is_evicted_is_read_again():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        write = bench.world._write
        touched = []

        def changed(path, body):
            if path.endswith("/eviction") and len(touched) < 3:
                touched.append(bench.world.touch("work"))
            return write(path, body)

        bench.world._write = changed
        bench.lease("work")
        await bench.run()

    assert (["work"], [("move-work", "done")]) == (moving(scene).world.evicted, moving(scene).outcomes)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_it_evicts_once_and_comes_to_the_same_end(when):
    def story(kill):
        async def scene(bench):
            bench.world.add("work", "gpu-0", ability="checkpoint", **{"checkpoint-hook": "http:8080/save"})
            bench.world.kill = kill
            bench.lease("work", ability="checkpoint")
            await bench.run()

        bench = moving(scene)
        return (
            bench.world.evicted,
            bench.outcomes,
            set(bench.steps),
            bench.world.reasons(),
            bench.world.writes,
        )

    *end, writes = story(None)
    assert writes >= 2
    for number in range(writes):
        assert end == list(story((number, when))[:4]), number


def test_nothing_is_written_by_who_lost_the_lease():
    async def scene(bench):
        def lost():
            raise ServiceError("the Lease is lost")

        bench.world.add("work", "gpu-0", ability="restartable")
        bench.lease("work")
        mover = bench.mover(lost)
        problems = 0
        for _ in range(20):
            try:
                await mover.act()
            except ServiceError:
                problems += 1
            await asyncio.sleep(1)
        assert problems
        await mover.close()

    assert 0 == moving(scene).world.writes


def test_the_owner_of_a_workload_that_declares_nothing_is_told_once():
    async def scene(bench):
        bench.world.add("plain", "gpu-0")
        about = f"{device_id()} ml/plain"
        bench.view.fold(
            AlertRaised(node=NODE, at_ms=1, alert_id="a", alert="workload_not_movable", about=about)
        )
        for mover in (bench.mover(), bench.mover()):
            await mover.act()
            await mover.act()

    bench = moving(scene)
    assert (["WorkloadNotMovable"], []) == (bench.world.reasons(), bench.world.evicted)


def test_a_namespace_that_takes_no_event_keeps_nobody_else_from_being_told():
    async def scene(bench):
        for name in ("plain", "other"):
            bench.world.add(name, "gpu-0")
            about = f"{device_id()} ml/{name}"
            bench.view.fold(
                AlertRaised(node=NODE, at_ms=1, alert_id=name, alert="workload_not_movable", about=about)
            )
        write = bench.world._write
        bench.world._write = lambda path, body: (
            (403, {}, {"message": "the namespace is being terminated"})
            if body["regarding"]["name"] == "plain"
            else write(path, body)
        )
        with pytest.raises(ServiceError, match="being terminated"):
            await bench.mover().act()

    assert ["WorkloadNotMovable"] == moving(scene).world.reasons()


def test_a_claim_that_others_share_is_not_moved_by_one_of_them():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.world.claims["c-work"]["status"]["reservedFor"].append(
            {"resource": "pods", "name": "x", "uid": "x"}
        )
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([], "shares a claim" in bench.detail()) == (bench.world.evicted, True)


def test_switched_off_it_does_nothing():
    async def scene(bench):
        bench.policy = msgspec.structs.replace(
            bench.policy, moves=msgspec.structs.replace(bench.policy.moves, enabled=False)
        )
        bench.world.add("work", "gpu-0", ability="restartable")
        bench.lease("work")
        assert await bench.mover().act() is None

    assert 0 == moving(scene).world.writes


@pytest.mark.parametrize(("token", "late_ms"), [(2, 0), (1, LEASE_MS)])
def test_a_lease_with_an_older_token_or_that_ran_out_is_fenced(token, late_ms):
    lease = Move(
        move_id="m", device_id=device_id(), episode_id="e", pod_uid="u", namespace="ml", pod="p", ability="restartable",
        topology="whole", planned_at_ms=0, token=1, expires_at_ms=LEASE_MS,
    )  # fmt: skip
    seen = Seen(
        lease=lease, stands=msgspec.structs.replace(lease, token=token), halted="", admitted=True, evictions_left=9,
        evictions_max=9, waits_for_other=False, pods={}, now_ms=late_ms,
    )  # fmt: skip
    assert Stop() == next_step(seen, Progress(), MovePolicy())
