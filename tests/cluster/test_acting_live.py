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
from live_processes import eventually

from sickbay.facts import ExclusionReported

_NUMBERS = itertools.count(1)
ENFORCE = {"respond": {"exclusion": {"mode": "enforce", "confirm_after_ms": 1_000}}}


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


def test_a_fault_that_a_kubelet_writes_is_blocked_in_the_scheduler_within_two_seconds(stack, rack):
    live = stack(ENFORCE)
    live.kubelets.append(rack.kubelet)
    rack.ask("a")
    rack.bound("a")
    say(rack, "a", "Healthy")
    live.respond("exclude")
    live.await_start()
    eventually(lambda: [1 for _ in live.decided("verdict_changed")], "a first decision", 60)
    begun = time.monotonic()
    say(rack, "a", "Unhealthy")
    until(lambda: rules(live.plane), "a taint rule", 20)
    took_s = time.monotonic() - begun
    eventually(
        lambda: {f.state for f in live.told(ExclusionReported)} >= {"applied", "confirmed"}, "reports", 30
    )
    assert took_s < 2, took_s


def test_a_thousand_nodes_going_unknown_at_once_cause_nothing_while_one_true_fault_is_blocked_within_two_seconds(
    own_plane, kafka_settings, tmp_path
):
    fleet = Fleet(own_plane, nodes=1_000, devices=8)
    with ActingStack(
        own_plane, kafka_settings, tmp_path, merged(ENFORCE, {"moves": {"enabled": True}})
    ) as live:
        del live.processes["project"]  # it has no part in this, and two cores carry the whole cluster here
        live.respond("exclude")
        live.await_start()
        eventually(
            lambda: sum(1 for _ in live.decided("verdict_changed")) >= 1_000, "a fleet that is known", 120
        )
        faulty = fleet.names[500]
        storm = threading.Thread(target=fleet.say, args=("Unknown", faulty))
        storm.start()
        time.sleep(1.0)  # the storm is under way
        begun = time.monotonic()
        device = fleet.one_is_faulty(faulty, "Unknown")
        until(lambda: rules(own_plane), "a rule for the fault", 30)
        took_s = time.monotonic() - begun
        storm.join()
        eventually(lambda: [1 for _ in live.decided("breaker_opened")], "a breaker", 60)
        eventually(lambda: sum(1 for _ in live.decided("device_suspected")) >= 7_000, "suspects", 60)
        selected = {f"dra:{'/'.join(rule['spec']['deviceSelector'].values())}" for rule in rules(own_plane)}
        print("took", took_s, len(rules(own_plane)))
        assert took_s < 2
