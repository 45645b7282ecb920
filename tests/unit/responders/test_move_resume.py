"""Resume hooks: a workload that was stopped for a move and stays after all goes on, while the lease that stopped it runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from move_worlds import LEASE_MS, OWNER, Hooks, moving
from responding import NODE, Killed, breaker_closed, breaker_opened

from sickbay.errors import ServiceError

STOP, SAVE, GO_ON = "http:80/stop", "http:80/save", "http:80/go-on"
HOOKS = {"stop-hook": STOP, "checkpoint-hook": SAVE, "resume-hook": GO_ON}


def names(bench):
    return [(pod, name) for pod, name, _ in bench.hooks.called]


def never_evicted(bench):
    """Lease the move of a Pod with all hooks, whose disruption budget refuses; return its id."""
    bench.world.refuse = [429] * 1_000
    bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
    return bench.lease("work", ability="checkpoint")


def pair_that_parts(bench, meanwhile=None):
    """Add a group of two that the mate leaves with the first write, when ``meanwhile`` is decided too."""
    for name, device in (("work", "gpu-0"), ("mate", "gpu-2")):
        bench.world.add(name, device, ability="restartable", group="g")
    take = bench.world._write

    def write(path, body):
        bench.world.pods["mate"]["metadata"]["labels"].pop("sickbay.dev/group", None)
        if meanwhile is not None:
            bench.view.fold(meanwhile)
        return take(path, body)

    bench.world._write = write


def fails(path):
    raise ServiceError(f"{path}: 503")


async def looks(bench, mover, count):
    for _ in range(count):
        await mover.act()
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("obstacle", ["/stop", "/save", "budget"])
def test_what_was_stopped_and_is_not_evicted_goes_on(obstacle):
    """Whether a hook failed or the disruption budget refused until the lease was nearly over."""

    async def scene(bench):
        bench.hooks = Hooks(obstacle)
        never_evicted(bench)
        await bench.run()

    bench = moving(scene)
    assert ("work", "/go-on") == names(bench)[-1]
    assert 1 == names(bench).count(("work", "/go-on"))
    assert "resumed" == bench.steps[-1]
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert ["DeviceQuarantined", "MoveFailed"] == bench.world.reasons()


def test_a_hook_hears_another_key_in_the_next_attempt():
    """Else a workload that keeps to its key would take the second stop for one that it has done, and be evicted at work."""

    async def scene(bench):
        bench.hooks = Hooks("/save")
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()
        bench.reports.facts.clear()
        bench.hooks.fails = ()
        bench.lease("work", ability="checkpoint", token=2)
        await bench.run()

    bench = moving(scene)
    keys = {
        name: [key for _, each, key in bench.hooks.called if each == name] for name in ("/stop", "/go-on")
    }
    assert {"/stop": ["move-work-1", "move-work-2"], "/go-on": ["move-work-1"]} == keys
    assert (["work"], [("move-work", "done")]) == (bench.world.evicted, bench.outcomes)


def test_what_was_never_asked_to_stop_is_not_asked_to_go_on():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="checkpoint", owner=False, **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert ([], [("move-work", "failed")]) == (bench.hooks.called, bench.outcomes)

    async def halted(bench):
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        record = bench.world._write

        def write(path, body):
            bench.view.fold(breaker_opened())
            return record(path, body)

        bench.world._write = write
        await bench.run()

    bench = moving(halted)
    assert ([], [("move-work", "failed")]) == (bench.hooks.called, bench.outcomes)


def test_what_is_evicted_is_not_resumed():
    """Also when nobody replaces it."""

    async def scene(bench):
        bench.world.next_ready = False
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/save")] == names(bench)
    assert [("move-work", "failed")] == bench.outcomes


def test_of_a_group_those_that_stay_are_resumed():
    async def scene(bench):
        for name, device in (("work", "gpu-0"), ("mate", "gpu-2")):
            bench.world.add(name, device, ability="checkpoint", group="g", **HOOKS)
        take = bench.world._write

        def write(path, body):
            answer = take(path, body)
            if path.endswith("/eviction") and answer[0] == 201:
                bench.world.refuse = [429] * 1_000
            return answer

        bench.world._write = write
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert ["work"] == bench.world.evicted
    assert [("mate", "/go-on")] == [each for each in names(bench) if each[1] == "/go-on"]
    assert [("move-work", "failed")] == bench.outcomes


def test_a_resume_hook_that_fails_is_told_and_ends_the_move():
    async def scene(bench):
        bench.hooks = Hooks("/save", "/go-on")
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    why = "the checkpoint hook of ml/work failed: told; still stopped: work: its resume hook failed: told"
    assert why == bench.detail()
    assert 1 == names(bench).count(("work", "/go-on"))
    assert ["DeviceQuarantined", "MoveFailed", "WorkloadStopped"] == bench.world.reasons()
    assert "resumed" not in bench.steps


def test_what_declares_no_resume_hook_is_told_to_be_stopped():
    async def scene(bench):
        bench.hooks = Hooks("/save")
        hooks = {"stop-hook": STOP, "checkpoint-hook": SAVE}
        bench.world.add("work", "gpu-0", ability="checkpoint", **hooks)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert bench.detail().endswith("still stopped: work declares no sickbay.dev/resume-hook")
    assert ["DeviceQuarantined", "MoveFailed", "WorkloadStopped"] == bench.world.reasons()


def test_a_move_that_resumed_its_pod_goes_no_further_when_its_obstacle_is_gone():
    """The breaker opens after the stop hook, and is closed again by the time the Pod goes on."""

    async def scene(bench):
        def then(path):
            if path != "/save":
                bench.view.fold(breaker_opened() if path == "/stop" else breaker_closed())

        bench.hooks.then = then
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/go-on")] == names(bench)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert bench.detail().startswith("a breaker is open; not evicted")


def test_what_was_stopped_goes_on_when_custody_takes_the_move_back():
    """The episode is over: there is nothing to report an end of, and somebody was stopped."""

    async def scene(bench):
        move_id = never_evicted(bench)
        mover = bench.mover()
        await looks(bench, mover, 20)
        assert [("work", "/stop"), ("work", "/save")] == names(bench)
        bench.take_back(move_id)
        await looks(bench, mover, 60)
        await mover.close()

    bench = moving(scene)
    assert 1 == names(bench).count(("work", "/go-on"))
    assert ("resumed", []) == (bench.steps[-1], bench.outcomes)
    assert ["DeviceQuarantined", "MoveFailed"] == bench.world.reasons()


def test_a_move_that_was_taken_back_and_cannot_be_looked_at_is_let_go_of_with_its_lease():
    async def scene(bench):
        move_id = never_evicted(bench)
        mover = bench.mover()
        await looks(bench, mover, 20)
        bench.take_back(move_id)

        bench.world._get = fails
        bench.problems = 0
        for second in range(LEASE_MS // 1_000 + 60):
            try:
                await mover.act()
            except ServiceError:
                bench.problems = second
            await asyncio.sleep(1)
        assert {} == mover._tasks
        await mover.close()

    assert 500 < moving(scene).problems < LEASE_MS // 1_000 + 10


def test_who_lost_the_lease_to_a_newer_one_resumes_nothing():
    """The mover that has it may have stopped the same Pod again."""

    async def scene(bench):
        never_evicted(bench)
        mover = bench.mover()
        await looks(bench, mover, 20)
        move = next(iter(bench.view.nodes[NODE].moves.values()))
        bench.view.nodes[NODE].moves[move.move_id] = type(move)(
            **{name: getattr(move, name) for name in move.__struct_fields__}
            | {"token": 2, "expires_at_ms": 0}
        )
        await looks(bench, mover, 60)
        await mover.close()

    assert [("work", "/stop"), ("work", "/save")] == names(moving(scene))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_of_a_failing_move_it_resumes_and_never_evicts(when):
    """Also when the obstacle is gone by the time the next process looks: the failure is on record."""

    def story(kill):
        async def scene(bench):
            bench.hooks = Hooks("/save")
            bench.world.kill = kill
            bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
            bench.lease("work", ability="checkpoint")
            make = bench.mover

            def mover():
                if "MoveFailed" in bench.world.reasons():
                    bench.hooks.fails = ()
                return make()

            first, bench.mover = make(), mover
            await bench.run(first)

        return moving(scene)

    writes = story(None).world.writes
    assert writes >= 2
    for number in range(writes):
        bench = story((number, when))
        assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes), number
        assert ("work", "/go-on") in names(bench), number


def test_a_move_is_not_made_after_a_process_that_was_killed_let_its_pod_resume():
    """The breaker was open for a moment; the process died between the resume hook and its report."""

    async def scene(bench):
        def then(path):
            if path == "/stop":
                bench.view.fold(breaker_opened())
            elif path == "/go-on" and not bench.killed:
                bench.view.fold(breaker_closed())
                bench.killed = True
                raise Killed

        bench.killed, bench.hooks.then = False, then
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/go-on"), ("work", "/go-on")] == names(bench)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)


def test_what_an_earlier_process_stopped_goes_on_when_the_move_is_taken_back_before_anything_was_asked():
    async def scene(bench):
        move_id = never_evicted(bench)
        first = bench.mover()
        await looks(bench, first, 20)
        await first.close()
        second, answer = bench.mover(), bench.world._get

        bench.world._get = fails
        with suppress(ServiceError):
            await looks(bench, second, 20)
        bench.take_back(move_id)
        bench.world._get = answer
        for _ in range(60):
            with suppress(ServiceError):
                await second.act()
            await asyncio.sleep(0.2)
        await second.close()

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/save"), ("work", "/go-on")] == names(bench)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_mate_that_left_the_group_after_it_was_stopped_goes_on_and_is_not_evicted(comes_back):
    """Whatever its label says after that: under this lease somebody may be at work in it."""

    async def scene(bench):
        for name, device in (("work", "gpu-0"), ("mate", "gpu-2")):
            bench.world.add(name, device, ability="checkpoint", group="g", **HOOKS)

        def then(path):
            labels = bench.world.pods["mate"]["metadata"]["labels"]
            if path == "/save":
                labels.pop("sickbay.dev/group", None)
            elif path == "/go-on" and comes_back:
                labels["sickbay.dev/group"] = "g"

        bench.hooks.then = then
        bench.began_ms = bench.times.now_ms()
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert ["work"] == bench.world.evicted
    assert [("mate", "/go-on")] == [each for each in names(bench) if each[1] == "/go-on"]
    assert "mate left the group after it was stopped, and stays" == bench.detail()
    (report,) = [fact for fact in bench.reports.facts.values() if fact.KIND == "move_reported"]
    assert report.observed_at_ms - bench.began_ms < 60_000


def test_a_mate_that_left_the_group_before_anything_was_asked_of_it_is_no_part_of_the_move():
    async def scene(bench):
        pair_that_parts(bench)
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert (["work"], [("move-work", "done")]) == (bench.world.evicted, bench.outcomes)
    (evicted,) = [f.detail for f in bench.reports.facts.values() if getattr(f, "step", "") == "evicted"]
    assert "work" == evicted


def test_a_breaker_stops_a_move_of_which_a_mate_left_the_group():
    """Fewer members than began is no sign that somebody went already."""

    async def scene(bench):
        pair_that_parts(bench, meanwhile=breaker_opened())
        bench.lease("work")
        await bench.run()

    bench = moving(scene)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)
    assert "a breaker is open; not evicted" == bench.detail()


def test_a_failure_with_many_words_is_recorded_and_resumed_all_the_same():
    """An Event takes 1,024 bytes, and a hook may say its words in any script."""

    async def scene(bench):
        bench.hooks = Hooks("/save", "/go-on")
        bench.hooks.told = "\u5931\u8d25" * 150
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        await bench.run()

    bench = moving(scene)
    assert ("work", "/go-on") == names(bench)[-1]
    assert ["DeviceQuarantined", "MoveFailed", "WorkloadStopped"] == bench.world.reasons()
    assert [("move-work", "failed")] == bench.outcomes


@pytest.mark.parametrize("taken_back", [False, True])
def test_where_no_event_is_taken_any_more_what_was_stopped_goes_on_in_the_last_part_of_the_lease(taken_back):
    """No process evicts then, so nothing need be on record; without that a broken webhook would keep somebody stopped."""

    async def scene(bench):
        bench.hooks = Hooks("/save")
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.hooks.then = lambda _: setattr(bench.world, "takes_no_events", True)
        move_id = bench.lease("work", ability="checkpoint")
        mover = bench.mover()
        for second in range(LEASE_MS // 1_000 + 5):
            if taken_back and second == 60:
                bench.take_back(move_id)
            with suppress(ServiceError):
                await mover.act()
            await asyncio.sleep(1)
        await mover.close()

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/save"), ("work", "/go-on")] == names(bench)
    assert [] == bench.world.evicted


def test_a_failure_on_record_holds_also_when_the_record_of_the_beginning_is_gone():
    """The API server keeps Events for an hour, and that of the beginning is older: another attempt may have made it."""

    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="checkpoint", owner=False, **HOOKS)
        bench.lease("work", ability="checkpoint")
        bench.world.kill = (0, "after")
        mover = bench.mover()
        with suppress(Killed):
            for _ in range(20):
                await mover.act()
                await asyncio.sleep(0.2)
        await mover.close()
        assert ["MoveFailed"] == bench.world.reasons()
        bench.world.pods["work"]["metadata"]["ownerReferences"] = [OWNER]
        await bench.run()

    bench = moving(scene)
    assert ([], [], [("move-work", "failed")]) == (bench.world.evicted, bench.hooks.called, bench.outcomes)
    assert bench.detail().startswith("ml/work has no controller")


@pytest.mark.parametrize("number", [2, 3, 4])
def test_what_a_process_that_was_killed_had_stopped_goes_on(number):
    """It was killed at an eviction that was refused; the next one finds the breaker open."""

    async def scene(bench):
        bench.world.refuse = [429] * 1_000
        bench.world.kill = (number, "before")
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        make = bench.mover

        def mover():
            bench.view.fold(breaker_opened())
            return make()

        first, bench.mover = make(), mover
        await bench.run(first)

    bench = moving(scene)
    assert [("work", "/stop"), ("work", "/save"), ("work", "/go-on")] == names(bench)
    assert ([], [("move-work", "failed")]) == (bench.world.evicted, bench.outcomes)


def test_resuming_ends_before_the_lease_does_whatever_the_policy_allows():
    """A group that the disruption budget keeps until the lease is nearly over shares what is left of it."""

    async def scene(bench):
        bench.world.refuse = [429] * 1_000
        for name in ("work", "mate"):
            bench.world.add(name, "gpu-0", ability="checkpoint", group="g", **HOOKS)
        bench.ends_ms = bench.times.now_ms() + LEASE_MS
        bench.lease("work", ability="checkpoint")
        call = bench.hooks.call

        async def slow(**options):
            if options["hook"].path == "/go-on":
                await asyncio.sleep(options["timeout_ms"] / 1_000)
            return await call(**options)

        bench.hooks.call = slow
        await bench.run()

    bench = moving(scene, hook_timeout_ms=10 * LEASE_MS)
    assert 2 == sum(name == "/go-on" for _, name in names(bench))
    (report,) = [fact for fact in bench.reports.facts.values() if fact.KIND == "move_reported"]
    assert ("failed", True) == (report.outcome, report.observed_at_ms < bench.ends_ms)


def test_what_no_time_was_left_to_resume_is_told():
    async def scene(bench):
        bench.world.add("work", "gpu-0", ability="checkpoint", **HOOKS)
        bench.lease("work", ability="checkpoint")
        call = bench.hooks.call

        async def too_long(**options):
            await asyncio.sleep(LEASE_MS / 1_000 - 5)
            return (await call(**options))[0] and False, "timed out"

        bench.hooks.call = too_long
        await bench.run()

    bench = moving(scene)
    assert [("work", "/stop")] == names(bench)
    assert bench.detail().endswith("still stopped: work: no time was left to call its resume hook")


def test_a_hook_that_its_owner_turned_against_the_node_after_the_begin_is_not_called():
    """On the node's own network an http hook would reach the node."""

    async def scene(bench):
        bench.world.refuse = [429] * 1_000
        hooks = {"stop-hook": 'exec:main:["stop"]', "resume-hook": 'exec:main:["go-on"]'}
        bench.world.add("work", "gpu-0", ability="restartable", **hooks)
        bench.world.pods["work"]["spec"]["hostNetwork"] = True
        bench.lease("work")
        mover = bench.mover()
        await looks(bench, mover, 20)
        bench.world.pods["work"]["metadata"]["annotations"]["sickbay.dev/resume-hook"] = GO_ON
        await bench.run(mover)

    bench = moving(scene)
    assert [("work", "stop")] == names(bench)
    assert "an http hook would reach the node" in bench.detail()
