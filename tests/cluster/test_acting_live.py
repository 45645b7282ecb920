"""Everything at once: real API server, scheduler and controllers, real Kafka, and every process of Sickbay, killed and started."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest
from acting_stack import ActingStack, merged
from cluster_acting import Rack, rules, until
from cluster_fleet import Fleet
from cluster_life import Life
from cluster_life import policy as life_policy
from live_processes import eventually

from sickbay.facts import ExclusionReported

_NUMBERS = itertools.count(1)
ENFORCE = {"respond": {"exclusion": {"mode": "enforce", "confirm_after_ms": 1_000}}}
#: What a cold start leaves to be done is done: a snapshot of everything comes after ten seconds.
COLD_S = 12


@pytest.fixture
def stack(plane, kafka_settings, tmp_path):
    made = []

    def make(policy):
        made.append(ActingStack(plane, kafka_settings, tmp_path, policy).__enter__())
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


@pytest.fixture
def rack(plane):
    found = Rack(plane, f"live-{os.getpid()}-{next(_NUMBERS)}", driver=f"live{next(_NUMBERS)}.example.com")
    yield found
    found.leave()


def say(rack, name, health):
    """Let the kubelet write the health of the device that a Pod has."""
    bound = rack.api.get(f"{rack.pods}/{name}")
    device = rack.device_of(name)
    words = [
        {
            "name": "claim:gpu",
            "resources": [{"resourceID": f"{rack.driver}/{rack.name}/{device}", "health": health}],
        }
    ]
    return rack.kubelet.run(bound, words)


@pytest.mark.alone
def test_a_fault_that_a_kubelet_writes_is_blocked_in_the_scheduler_within_two_seconds(stack, rack):
    live = stack(ENFORCE)
    live.kubelets.append(rack.kubelet)
    rack.ask("a")
    rack.bound("a")
    say(rack, "a", "Healthy")
    live.respond("exclude")
    live.await_start()
    eventually(lambda: [1 for _ in live.decided("verdict_changed")], "a first decision", 60)
    time.sleep(COLD_S)
    begun = time.monotonic()
    say(rack, "a", "Unhealthy")
    until(lambda: rules(live.plane, rack.name), "a taint rule", 20)
    took_s = time.monotonic() - begun
    eventually(
        lambda: {f.state for f in live.told(ExclusionReported)} >= {"applied", "confirmed"}, "reports", 30
    )
    assert took_s < 2, took_s


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_thousand_nodes_going_unknown_at_once_cause_nothing_while_one_true_fault_is_blocked_within_two_seconds(
    own_plane, kafka_settings, tmp_path
):
    """0 evictions, 0 rules for what is Unknown, one alert for the driver; the bound holds on two cores that carry all of it."""
    fleet = Fleet(own_plane, nodes=1_000, devices=8)
    before = fleet.pods_there()
    policy = merged(ENFORCE, {"moves": {"enabled": True}, "respond": {"alerts": {"group_wait_ms": 5_000}}})
    with ActingStack(own_plane, kafka_settings, tmp_path, policy) as live:
        del live.processes["project"]  # it has no part in this
        live.respond("exclude")
        live.respond("move")
        live.respond("alert", "--topic")
        live.await_start()
        eventually(
            lambda: sum(1 for _ in live.decided("verdict_changed")) >= 1_000, "a fleet that is known", 120
        )
        time.sleep(COLD_S)
        faulty = fleet.names[500]
        storm = threading.Thread(target=fleet.say, args=("Unknown", faulty))
        storm.start()
        time.sleep(0.5)  # it is under way
        begun = time.monotonic()
        device = fleet.one_is_faulty(faulty, "Unknown")
        until(lambda: rules(own_plane), "a rule for the fault", 30)
        took_s = time.monotonic() - begun
        storm.join()
        eventually(lambda: list(live.decided("breaker_opened")), "a breaker", 60)
        eventually(lambda: sum(1 for _ in live.decided("device_suspected")) >= 7_992, "suspects", 60)

        def told():
            return [(alert["alertname"], alert["driver"]) for alert in live.alerts()]

        eventually(lambda: told() == [("SickbayBreaker", fleet.driver)], "one alert, of the breaker", 60)
        time.sleep(6)  # longer than what has one cause is gathered
        assert [("SickbayBreaker", fleet.driver)] == told()
        selected = [
            tuple(rule["spec"]["deviceSelector"][part] for part in ("driver", "pool", "device"))
            for rule in rules(own_plane)
        ]
        assert [device] == [f"dra:{'/'.join(parts)}" for parts in selected]
        assert before == fleet.pods_there()
        assert [] == list(live.decided("move_planned", "device_restricted"))
        assert took_s < 2, took_s


@pytest.fixture
def life(stack, plane, tmp_path):
    number = next(_NUMBERS)
    rack = Rack(plane, f"life-{number}", driver=f"life{number}.example.com")
    found = Life(stack(life_policy(rack.driver)), rack, tmp_path)
    yield found
    found.end()
    rack.leave()


@pytest.mark.timeout(300)
def test_a_bad_dra_device_receives_no_new_pod_and_gets_one_again_only_after_probe_canary_and_observation(
    life,
):
    life.begin()
    life.run()
    (episode,) = eventually(
        lambda: life.stack.audit("episodes", outcome="returned"), "the episode in the store", 60
    )
    words = (
        "quarantine_opened", "applied", "confirmed", "move_planned", "move_lease_granted", "evicted", "replaced", "move_finished",
        "probe_started", "canary_started", "observation_started", "device_released", "removed",
    )  # fmt: skip
    # reports come by a topic of their own, and may reach the store after the end of the episode
    end = time.monotonic() + 60
    while True:
        told = life.stack.sickbay("explain", episode["episode_id"])
        missing = [word for word in words if word not in told]
        if not missing or time.monotonic() > end:
            break
        time.sleep(0.1)
    assert [] == missing, told


#: Failpoints between the effects of each responder, in the order of this life.
POINTS = {
    "exclude": ("exclude.creating", "exclude.created", "exclude.written", "exclude.deleting", "exclude.deleted"),
    "move": ("move.beginning", "move.begun", "move.owner_told", "move.evicting", "move.evicted_pod", "move.evicted", "move.replaced",
             "move.ending", "move.ended"),
    "verify": ("verify.jobs_created", "verify.resourceclaims_created", "verify.reported", "verify.jobs_deleted"),
    "alert": ("alert.planned", "alert.kept"),
}  # fmt: skip


@pytest.mark.timeout(600)
def test_every_process_killed_at_every_step_changes_nothing_in_the_end(life):
    """Whoever has ended is started again, to be killed at its next step; ingest, worker and projector are killed now and then."""
    life.begin()
    left = {name: list(points) for name, points in POINTS.items()}
    others = ("ingest", "work", "project")
    victims = itertools.cycle(others)
    turns = itertools.count(1)
    died = []

    def disturb():
        """Return whether a responder was started to be killed again: what is waited for comes so much later."""
        doomed = False
        for name, points in left.items():
            process = life.stack.processes[name]
            if process.is_running:
                continue
            died.append(name)
            doomed |= bool(points)
            process.start(**({"SICKBAY_FAILPOINT": f"{points.pop(0)}:1:kill9"} if points else {}))
        if next(turns) % 40 == 0:
            life.stack.processes[next(victims)].kill()
        # a responder that has ended since it was looked at is counted the next time
        for name in others:
            if not life.stack.processes[name].is_running:
                life.stack.processes[name].start()
        return doomed

    for name in left:
        life.stack.processes[name].kill()
    life.run(disturb)
    # a process dies at a step that its part of this life has; each was killed when it was started first, too
    assert {name for name in left if died.count(name) > 2} == set(left), died
    life.stack.start()
    eventually(lambda: life.stack.audit("episodes", outcome="returned"), "one episode, in the store", 60)
    episodes = [row for row in life.stack.audit("episodes") if row["device_id"] == life.device_id]
    assert ["returned"] == [row["outcome"] for row in episodes]
    assert 1 == sum(1 for row in life.stack.audit("moves") if row["outcome"] == "done")
