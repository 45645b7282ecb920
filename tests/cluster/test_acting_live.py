"""Everything at once: real API server, scheduler and controllers, real Kafka, and every process of Sickbay, killed and started."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from acting_stack import ActingStack
from cluster_acting import Rack, rules, until
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
