"""Taint rules: one for each device that takes no new work, for exactly that device, whoever interferes and whenever it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from responding import (
    AT,
    DRIVER,
    NODE,
    Clock,
    FakeRules,
    KeptReports,
    Killed,
    breaker_opened,
    device_id,
    metrics,
    node_class,
    quarantined,
    released,
    restricted,
    view_of,
)

from responders.exclusion.excluder import Excluder
from responders.exclusion.plan import should
from responders.exclusion.rules import OVERRIDE, build, rule_name, selector_of
from sickbay.errors import ServiceError
from sickbay.policy import ExclusionPolicy, ExclusionRule, Policy, RespondPolicy, ReturnPolicy

MINUTE_MS = 60_000


def policy(mode="enforce", staged_return=None, **more):
    respond = RespondPolicy(exclusion=ExclusionPolicy(mode=mode, **more))
    return Policy(respond=respond, staged_return=staged_return or ReturnPolicy())


class Bench:
    """An excluder that can be killed and started again over one API server."""

    def __init__(self, view, **more):
        self.clock = Clock()
        self.view, self.policy = view, policy(**more)
        self.api, self.reports = FakeRules(self.clock), KeptReports()
        self.may_lead = True
        self.start()

    def start(self):
        def require_lead():
            if not self.may_lead:
                raise ServiceError("the Lease is lost")

        self.excluder = Excluder(
            self.api, self.reports, self.view, self.policy,
            installation="test", times=self.clock, metrics=metrics(), require_lead=require_lead,
        )  # fmt: skip

    def look(self, after_ms=0):
        self.clock.at_ms += after_ms
        return asyncio.run(self.excluder.act())

    def settle(self):
        """Look until nothing is written any more."""
        for _ in range(10):
            before = len(self.api.writes)
            self.look(31_000)
            if len(self.api.writes) == before:
                return
        raise AssertionError("it does not come to rest")

    @property
    def rules(self):
        return [
            (item["spec"]["deviceSelector"]["device"], item["spec"]["taint"]["effect"])
            for item in self.api.items.values()
        ]


def effects(view, pol, now_ms=AT):
    return sorted((w.device_id, w.effect) for w in should(view, pol, now_ms).rules.values())


def test_by_default_a_rule_has_no_effect() -> None:
    assert [(device_id(), "None")] == effects(view_of(quarantined()), Policy())


def test_enforced_a_rule_keeps_new_work_away_in_every_phase_that_takes_none() -> None:
    for phase in ("quarantined", "probing", "canary"):
        assert [(device_id(), "NoSchedule")] == effects(view_of(quarantined(phase=phase)), policy())
    assert [(device_id(), "NoSchedule")] == effects(view_of(restricted()), policy())


def test_the_ramp_ends_the_rule_before_the_observation_ends() -> None:
    view = view_of(quarantined(phase="observing", observing_at_ms=AT, verification="prober"))
    pol = policy(staged_return=ReturnPolicy(observation_ms=1000, ramp_after_percent=50))
    assert ([(device_id(), "NoSchedule")], []) == (effects(view, pol, AT + 499), effects(view, pol, AT + 500))
    assert AT + 500 == should(view, pol, AT).due_ms


def test_eviction_needs_a_fault_an_explicit_policy_and_closed_breakers() -> None:
    evict = policy("evict")
    assert [(device_id(), "NoExecute")] == effects(view_of(quarantined()), evict)
    cautious = [
        view_of(restricted()),
        view_of(quarantined(held=True)),
        view_of(quarantined(cause="hold")),
        view_of(quarantined(phase="canary")),
        view_of(quarantined(), breaker_opened()),
        view_of(quarantined(), breaker_opened("cluster")),
    ]
    assert [[(device_id(), "NoSchedule")]] * 6 == [effects(view, evict) for view in cautious]


def test_the_first_rule_of_the_policy_that_matches_driver_and_node_class_decides() -> None:
    view = view_of(quarantined(node="n1"), quarantined(node="n2"), node_class("n2", "canary"))
    rules = (ExclusionRule(node_class="canary", mode="enforce"), ExclusionRule(driver="other", mode="evict"))
    assert [(device_id(node="n1"), "None"), (device_id(node="n2"), "NoSchedule")] == effects(
        view, policy("observe", rules=rules)
    )
    assert [] == effects(view, policy("evict", rules=(ExclusionRule(driver=DRIVER, mode="off"),)))


@given(st.text(max_size=30))
def test_a_rule_names_one_device_or_is_none(text) -> None:
    for raw in (text, f"dra:{text}", f"dra:{DRIVER}/{text}", f"plugin:{text}/x"):
        selector = selector_of(raw)
        assert selector is None or (all(selector) and f"dra:{'/'.join(selector)}" == raw)


def test_a_pool_may_have_slashes() -> None:
    assert ("d", "a/b", "c") == selector_of("dra:d/a/b/c")


def test_no_rule_is_made_for_a_device_of_a_device_plugin() -> None:
    assert [] == effects(view_of(quarantined("plugin:nvidia.com/gpu/GPU-1")), policy())


def test_every_rule_selects_driver_pool_and_device_under_our_key() -> None:
    (wanted,) = should(view_of(quarantined()), policy(), AT).rules.values()
    rule = build(wanted, "resource.k8s.io/v1", "test", "hash")
    assert {"driver": DRIVER, "pool": NODE, "device": "gpu-0"} == rule["spec"]["deviceSelector"]
    assert "sickbay.dev/quarantine" == rule["spec"]["taint"]["key"]
    assert rule["metadata"]["name"] == rule_name(NODE, device_id(), wanted.episode_id)


def test_a_rule_is_made_once_confirmed_by_reading_back_and_removed_with_its_episode() -> None:
    bench = Bench(view_of(quarantined()))
    bench.look()
    assert [("gpu-0", "NoSchedule")] == bench.rules
    assert ["applied"] == bench.reports.states()
    bench.look(9_000)
    assert ["applied"] == bench.reports.states()
    bench.settle()
    assert ["applied", "confirmed"] == bench.reports.states()
    bench.view.fold(released())
    bench.settle()
    assert ([], ["applied", "confirmed", "removed"]) == (bench.rules, bench.reports.states())
    assert ["POST", "DELETE"] == [method for method, _ in bench.api.writes]


def test_a_restricted_device_that_turns_faulty_is_never_without_a_rule() -> None:
    bench = Bench(view_of(restricted()))
    bench.look()
    bench.view.fold(quarantined())
    bench.look()
    assert ["POST", "POST", "DELETE"] == [method for method, _ in bench.api.writes]
    assert [("gpu-0", "NoSchedule")] == bench.rules


def test_a_change_of_effect_is_written_over_the_version_that_was_read() -> None:
    bench = Bench(view_of(quarantined()), mode="evict")
    bench.look()
    bench.view.fold(breaker_opened())
    (name,) = bench.api.items
    bench.api.annotate(name, note="somebody wrote meanwhile")
    bench.settle()
    assert [("gpu-0", "NoSchedule")] == bench.rules
    assert "somebody wrote meanwhile" == bench.api.items[name]["metadata"]["annotations"]["note"]


def test_what_somebody_changed_is_repaired_three_times_an_hour_and_then_left() -> None:
    bench = Bench(view_of(quarantined()))
    bench.look()
    (name,) = bench.api.items
    for _ in range(5):
        bench.api.edit(name, effect="None")
        bench.settle()
    assert [("gpu-0", "None")] == bench.rules
    assert {"applied": 1, "confirmed": 3, "repaired": 3, "given_up": 1} == Counter(bench.reports.states())
    bench.look(60 * MINUTE_MS)
    assert [("gpu-0", "NoSchedule")] == bench.rules


def test_a_write_that_another_one_overtakes_is_tried_again_after_a_second_and_is_no_repair() -> None:
    """The eviction controller writes the status of a rule right after it was made or changed."""
    bench = Bench(view_of(quarantined()))
    bench.look()
    (name,) = bench.api.items
    for _ in range(3):
        bench.api.edit(name, effect="None")
        bench.api.refuse = [409]
        assert 1.0 == bench.look(31_000)
        assert [("gpu-0", "None")] == bench.rules
        bench.look(1_000)
        assert [("gpu-0", "NoSchedule")] == bench.rules
    assert (3, 0) == tuple(bench.reports.states().count(state) for state in ("repaired", "given_up"))


def test_what_somebody_deleted_is_made_again_by_the_same_budget() -> None:
    bench = Bench(view_of(quarantined()))
    bench.look()
    for _ in range(5):
        bench.api.items.clear()
        bench.settle()
    assert [] == bench.rules
    assert 3 == bench.reports.states().count("repaired")
    assert 1 == bench.reports.states().count("given_up")


def test_a_person_who_takes_charge_is_respected_and_recorded() -> None:
    bench = Bench(view_of(quarantined()))
    bench.look()
    (name,) = bench.api.items
    bench.api.annotate(name, **{OVERRIDE: "ann: ticket 4711"})
    bench.api.edit(name, effect="None")
    bench.settle()
    assert [("gpu-0", "None")] == bench.rules
    (told,) = [fact for fact in bench.reports.facts.values() if fact.state == "overridden"]
    assert "by kubectl-annotate: ann: ticket 4711" == told.detail
    bench.view.fold(released())
    bench.settle()
    assert [name] == list(bench.api.items)
    del bench.api.items[name]["metadata"]["annotations"][OVERRIDE]
    bench.settle()
    assert ([], "override_ended") == (bench.rules, bench.reports.states()[-2])


def test_rules_of_others_are_left_alone() -> None:
    bench = Bench(view_of())
    (wanted,) = should(view_of(quarantined()), policy(), AT).rules.values()
    bench.api.put(build(wanted, "resource.k8s.io/v1", "other-installation", ""), 1)
    stranger = build(wanted, "resource.k8s.io/v1", "test", "")
    stranger["metadata"]["name"] = "by-hand"
    bench.api.put(stranger, 1)
    bench.settle()
    assert [] == bench.api.writes


def test_there_are_never_more_rules_than_the_cap_and_faults_come_before_doubts() -> None:
    faulty = [quarantined(device_id(n), at_ms=AT + n) for n in range(5)]
    doubtful = [restricted(device_id(n)) for n in range(5, 9)]
    bench = Bench(view_of(*doubtful, *faulty), rules_max=6)
    bench.settle()
    assert 6 == len(bench.rules)
    assert {f"gpu-{n}" for n in range(5)} <= {device for device, _ in bench.rules}
    assert 3 == bench.reports.states().count("capped")


def test_new_rules_of_one_minute_are_limited_also_over_a_restart() -> None:
    bench = Bench(view_of(*(quarantined(device_id(n)) for n in range(30))), per_minute=10)
    bench.look()
    bench.start()
    bench.look(1_000)
    assert 10 == len(bench.rules)
    bench.look(60_000)
    assert 20 == len(bench.rules)


def test_nothing_is_written_by_who_lost_the_lease() -> None:
    bench = Bench(view_of(quarantined()))
    bench.may_lead = False
    with pytest.raises(ServiceError, match="Lease"):
        bench.look()
    assert [] == bench.api.writes


@pytest.mark.parametrize("code", [403, 422, 500])
def test_a_refusal_is_told_and_stops_no_other_rule(code) -> None:
    bench = Bench(view_of(*(quarantined(device_id(n)) for n in range(3))))
    bench.api.refuse = [code]
    if code == 500:
        with pytest.raises(ServiceError, match="500"):
            bench.look()
    else:
        bench.look()
    assert (2, 1) == (len(bench.rules), bench.reports.states().count("refused"))
    bench.settle()
    assert 3 == len(bench.rules)


def test_an_acknowledgement_that_says_something_else_is_none() -> None:
    bench = Bench(view_of(quarantined()))
    write = bench.api._write

    def mutated(method, name, body):
        body["spec"]["taint"]["effect"] = "None"
        return write(method, name, body)

    bench.api._write = mutated
    with pytest.raises(ServiceError, match="something else than what was sent"):
        bench.look()
    assert ["refused"] == bench.reports.states()


def test_a_cluster_without_taint_rules_is_named_with_the_remedy() -> None:
    bench = Bench(view_of(quarantined()))
    bench.api.version = "v9"
    with pytest.raises(ServiceError, match="DRADeviceTaintRules"):
        bench.look()


def test_1_36_has_the_rules_in_v1beta2() -> None:
    bench = Bench(view_of(quarantined()))
    bench.api.version = "v1beta2"
    bench.look()
    (rule,) = bench.api.items.values()
    assert "resource.k8s.io/v1beta2" == rule["apiVersion"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_it_comes_to_the_same_end_and_says_the_same(when) -> None:
    def story(kill_at):
        bench = Bench(view_of(quarantined(), restricted(device_id(1))), mode="evict")
        bench.api.kill = kill_at
        for change in (breaker_opened(), quarantined(device_id(1)), released(), None):
            for _ in range(3):
                try:
                    bench.settle()
                except Killed:
                    bench.start()
            if change is not None:
                bench.view.fold(change)
        told = {(f.rule, f.state, f.effect) for f in bench.reports.facts.values() if f.state != "confirmed"}
        return sorted(bench.rules), told, len(bench.api.writes)

    rules, told, writes = story(None)
    assert (4, [("gpu-1", "NoSchedule")]) <= (writes, rules)
    for number in range(writes):
        assert (rules, told) == story((number, when))[:2], number


def test_a_device_that_flaps_once_a_second_for_an_hour_costs_one_write() -> None:
    bench = Bench(view_of(quarantined()))
    opened = quarantined()
    for second in range(3_600):
        episode = msgspec.structs.replace(opened.record.episode, flap_count=second + 2)
        record = msgspec.structs.replace(opened.record, episode=episode)
        bench.view.fold(msgspec.structs.replace(opened, at_ms=AT + second * 1000, record=record))
        bench.look(1_000)
    assert 1 == len(bench.api.writes)
