"""Taint rules on a real API server, and what the real scheduler and the real eviction controller make of them."""

from __future__ import annotations

import itertools
import time

import pytest
from cluster_acting import Acting, Rack, rules, rules_path, until
from control_plane import ApiError
from custody_run import Run
from facts_of import tick
from responding import AT, Clock, quarantined, released

from sickbay.facts import DeviceHealthObserved
from sickbay.policy import ExclusionPolicy, Policy, RespondPolicy

_NUMBERS = itertools.count(1)


def policy(mode):
    return Policy(respond=RespondPolicy(exclusion=ExclusionPolicy(mode=mode, confirm_after_ms=0)))


@pytest.fixture
def rack(plane):
    found = Rack(plane, f"rack-{next(_NUMBERS)}")
    yield found
    found.leave()


@pytest.fixture
def acting(plane):
    made = []

    def make(mode, **more):
        made.append(Acting(plane, policy(mode), **more))
        return made[-1]

    yield make
    for each in made:
        for rule in rules(plane):
            plane.admin.delete(f"{rules_path(plane)}/{rule['metadata']['name']}")
        each.close()


def test_a_bad_device_receives_no_new_pod_from_the_real_scheduler_until_its_rule_is_gone(rack, acting):
    bad = quarantined(rack.device_id("gpu-0"), rack.name)
    exclusion = acting("enforce")
    exclusion.look(bad)
    rack.until_kept_from("gpu-0", other="gpu-1")
    rack.ask("a")
    assert "gpu-1" == rack.bound("a")
    rack.ask("b")
    assert "cannot allocate all claims" in rack.refused("b")
    exclusion.look(released(rack.device_id("gpu-0"), rack.name))

    # the eviction controller writes a rule's status, and a deletion that names an older version is refused
    def removed():
        exclusion.look()
        return not rules(rack.plane, rack.name)

    until(removed, "the rule removed")
    assert "gpu-0" == rack.bound("b")


def test_observed_only_a_rule_shows_what_it_would_do_and_does_nothing(rack, acting):
    exclusion = acting("observe")
    exclusion.look(*(quarantined(rack.device_id(each), rack.name) for each in rack.devices))
    assert {"None"} == {rule["spec"]["taint"]["effect"] for rule in rules(rack.plane, rack.name)}
    rack.ask("a")
    assert rack.bound("a") in rack.devices


def test_evicting_needs_the_policy_and_ends_the_pod_on_the_device_only(rack, acting):
    for name in ("a", "b"):
        rack.ask(name)
    where = {rack.bound(name): name for name in ("a", "b")}
    exclusion = acting("evict")
    exclusion.look(quarantined(rack.device_id("gpu-0"), rack.name))

    def going(name):
        return "deletionTimestamp" in rack.api.get(f"{rack.pods}/{name}")["metadata"]

    def gone(name):
        try:
            return going(name)
        except ApiError as error:
            return error.status == 404

    until(lambda: gone(where["gpu-0"]), "the Pod on the device evicted")
    assert not going(where["gpu-1"])


def test_a_rule_that_somebody_edits_or_deletes_is_put_right_and_one_with_an_override_is_left(rack, acting):
    exclusion = acting("enforce")
    exclusion.look(quarantined(rack.device_id("gpu-0"), rack.name))
    (rule,) = rules(rack.plane, rack.name)
    path = f"{rules_path(rack.plane)}/{rule['metadata']['name']}"

    def look_again():
        # the eviction controller may write the status of the rule in between, and then the next look writes
        exclusion.excluder._list_at_ms = 0
        exclusion.look()
        return [(each["spec"]["taint"]["effect"]) for each in rules(rack.plane, rack.name)]

    rack.api.patch(path, {"spec": {"taint": {"effect": "None"}}})
    until(lambda: look_again() == ["NoSchedule"], "the effect put right")
    rack.api.delete(path)
    until(lambda: look_again() == ["NoSchedule"], "the rule made again")
    mine = {"metadata": {"annotations": {"sickbay.dev/override": "ann: ticket 4711"}}}
    rack.api.patch(path, mine | {"spec": {"taint": {"effect": "None"}}})
    assert ["None"] == look_again()
    exclusion.look(released(rack.device_id("gpu-0"), rack.name))
    assert ["None"] == look_again()
    assert {"applied", "repaired", "overridden"} <= set(exclusion.reports.states())


def test_a_rule_that_was_made_by_a_process_that_was_killed_is_found_and_not_made_twice(rack, acting):
    exclusion = acting("enforce")
    exclusion.look(quarantined(rack.device_id("gpu-0"), rack.name))
    exclusion.start()
    time.sleep(1.1)  # the API server cuts the time of a creation to seconds
    exclusion.look()
    assert ["POST"] == [method for method, _ in exclusion.writes]
    assert ["applied", "confirmed"] == exclusion.reports.states()


def test_a_flap_of_one_hertz_for_an_hour_costs_at_most_three_api_writes(rack, acting):
    """Facts, custody and rules are the real ones; the hour passes in event time."""
    clock = Clock()
    exclusion, custody = acting("enforce", clock=clock), Run(Policy(), node=rack.name)
    device = rack.device_id("gpu-0")
    for second in range(3_600):
        clock.at_ms = AT + second * 1_000
        word = DeviceHealthObserved(
            node=rack.name, observed_at_ms=clock.at_ms, epoch=0, rv=second + 1, device_id=device,
            health="Unhealthy" if second % 2 else "Healthy", health_raw=None, pod_uid="u", namespace="act", pod="a",
        )  # fmt: skip
        exclusion.look(*custody.step(word), *custody.step(tick(clock.at_ms)))
    assert custody.phase(device) == "quarantined"
    assert 1 <= len(exclusion.writes) <= 3
