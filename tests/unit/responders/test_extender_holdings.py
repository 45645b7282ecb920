"""What the extender knows of a node: devices of plugins counted once, exact free amounts, holds, and when that changes."""

from __future__ import annotations

import itertools
import random

import pytest
from extender_worlds import (
    DRIVER,
    GPU,
    T0,
    Known,
    custody,
    entry,
    node,
    pod,
    policy_of,
    released,
    unit,
    verdict,
    word,
)

from responders.extender.freshness import Freshness
from responders.extender.holdings import Holdings
from sickbay.decisions import Drift, DriftCleared, DriftFound, EntryReversed
from sickbay.facts import NodeGone, PodGone
from sickbay.policy import ExtenderRule

NANO = 10**9


def short(known, name="n1", now_ms=T0):
    return known.holdings.standing(name, now_ms).short.get(GPU)


def gone(name, rv=30):
    return PodGone(node="n1", observed_at_ms=T0, rv=rv, pod_uid=f"uid-{name}", namespace="ml", pod=name)


def test_a_device_that_nobody_holds_and_takes_no_work_is_taken_off_what_is_free():
    known = Known().told(node(), pod("a", gpus=3), word(unit(7), "Healthy", "old", live=False))
    assert short(known) is None
    known.decided(custody(unit(7)))
    assert short(known).devices.free == 8 - 3 - 1
    assert short(known).devices.fit == 7
    assert short(known).words == "1 quarantined"


def test_a_device_that_a_pod_holds_is_counted_once_by_what_the_pod_asks():
    known = Known().told(node(), pod("a", gpus=3), word(unit(0), "Healthy", "a")).decided(custody(unit(0)))
    assert short(known).devices.free == 8 - 3
    assert short(known).devices.fit == 7
    # the Pod goes and leaves it free and unfit
    known.told(gone("a"))
    assert short(known).devices.free == 8 - 1


@pytest.mark.parametrize(
    ("allocatable", "health", "free"),
    [(8, "Healthy", 7), (7, "Unhealthy", 7), (7, "Healthy", 6), (8, "Unhealthy", 7), (0, "Unhealthy", 0)],
)
def test_what_the_plugin_withholds_already_is_not_taken_off_twice(allocatable, health, free):
    known = Known().told(node(allocatable=allocatable), word(unit(7), health, "old", live=False))
    assert short(known.decided(custody(unit(7)))).devices.free == free


def test_a_faulty_device_in_a_pod_explains_what_is_withheld_before_one_that_is_free():
    known = Known().told(
        node(allocatable=7),
        pod("a"),
        word(unit(0), "Unhealthy", "a"),
        word(unit(7), "Unhealthy", "old", live=False),
    )
    known.decided(custody(unit(0)), custody(unit(7)))
    assert short(known).devices.free == 7 - 1 - 1


def test_a_faulty_card_counts_with_each_of_its_replicas():
    known = Known().told(node(allocatable=16, capacity=16))
    for replica in range(4):
        known.told(word(f"{unit(0)}::{replica}", "Healthy", "old", live=False, physical_id=unit(0)))
    known.told(word(f"{unit(0)}::1", "Healthy", "a", rv=21, physical_id=unit(0)), pod("a"))
    known.decided(custody(unit(0)))
    assert short(known).devices.free == 16 - 1 - 3


@pytest.mark.parametrize("phase", ["restricted", "quarantined", "probing", "canary", "observing"])
def test_a_phase_without_new_work_counts_and_a_suspect_device_does_not(phase):
    known = (
        Known().told(node()).decided(custody(unit(1), phase, observing_at_ms=T0), custody(unit(2), "suspect"))
    )
    assert short(known).devices.free == 7
    assert short(known).words == f"1 {phase}"
    assert short(known.decided(released(unit(1)))) is None


def test_a_device_under_observation_takes_work_again_from_its_ramp_on_by_time_alone():
    policy = policy_of(staged={"observation_ms": 1_000, "ramp_after_percent": 40})
    known = Known(policy).told(node())
    known.decided(custody(unit(1), "observing", observing_at_ms=T0, verification="prober"))
    assert short(known, now_ms=T0 + 399).devices.free == 7
    assert short(known, now_ms=T0 + 400) is None


def test_a_pod_counts_until_it_is_terminal_or_gone_and_an_older_word_does_not_bring_it_back():
    known = Known().told(node()).decided(custody(unit(9)))
    known.told(pod("a", gpus=2), pod("b", gpus=2))
    assert short(known).devices.free == 8 - 1 - 4
    known.told(pod("a", gpus=2, rv=11, phase="Succeeded"), pod("a", gpus=2, rv=10))
    assert short(known).devices.free == 8 - 1 - 2
    known.told(gone("b"), pod("b", gpus=2, rv=12))
    assert short(known).devices.free == 8 - 1


def test_a_node_that_is_gone_or_lists_no_such_resource_has_nothing_to_count():
    known = Known().told(node()).decided(custody(unit(1)))
    known.told(NodeGone(node="n1", observed_at_ms=T0, rv=2, node_uid="uid-n1"))
    assert short(known) is None
    known.told(node(uid="other", rv=3), NodeGone(node="n1", observed_at_ms=T0, rv=4, node_uid="uid-n1"))
    assert short(known).devices.free == 7
    assert (
        Known().told(node(resource="other.com/x")).decided(custody(unit(1))).holdings.standing("n1", T0).short
        == {}
    )


def test_the_order_and_the_repetition_of_facts_change_nothing():
    facts = [
        node(rv=1), node(rv=5, allocatable=7), pod("a", gpus=2), pod("b", gpus=1), pod("b", gpus=1, rv=12, phase="Failed"),
        word(unit(0), "Healthy", "a"), word(unit(0), "Unhealthy", "a", rv=22), word(unit(1), "Healthy", "b"),
        word(unit(1), "Healthy", "b", rv=23, live=False), pod("c", gpus=3), gone("c"),
    ]  # fmt: skip
    draw = random.Random(7)  # noqa: S311 - a fixed one
    for _ in range(50):
        draw.shuffle(facts)
        known = Known().decided(custody(unit(0)), custody(unit(1))).told(*facts, *draw.sample(facts, 4))
        assert short(known).devices == (7 - 2 - 1, 8 - 2), [type(fact).__name__ for fact in facts]


def test_of_many_nodes_that_come_and_go_few_are_remembered():
    known = Known()
    for index in range(3_000):
        name = f"n-{index}"
        known.told(node(name), pod(f"p-{index}", name), word(unit(0), "Healthy", f"p-{index}", name))
        known.told(
            NodeGone(node=name, observed_at_ms=T0, rv=2, node_uid=f"uid-{name}"),
            pod(f"p-{index}", name, rv=11, phase="Failed"),
        )
        known.decided(entry("common", "node/u", "supply", on=name, cpu="1"))
        known.decided(entry("common", "node/u", "supply", on=name, kind=EntryReversed, cpu="1"))
    assert len(known.holdings._inventories) == 1_000
    assert known.holdings._balances == {}
    assert known.holdings._ready == {}


def books(known, name="n1"):
    return known.holdings.standing(name, T0).free_nano


def test_the_exact_free_amount_is_told_where_the_scheduler_does_not_count_everything():
    known = Known().decided(
        entry("common", "node/u", "supply", cpu="8", memory="16Gi"),
        entry("common", "pod/a", "pods", cpu="2"),
        entry("recorded", "claim/c", "claims", cpu="1"),
        entry("derived", "claim/c/d", "claims", cpu="3"),
    )
    assert books(known) == {"cpu": 3 * NANO}
    known.decided(entry("recorded", "overhead/c", "overhead", cpu="2"))
    assert books(known) == {}
    known.decided(entry("derived", "adjustment/a", "adjustment", cpu="1n"))
    assert books(known) == {"cpu": 3 * NANO - 1}


def test_a_posting_counts_once_and_its_reversal_takes_it_back():
    supply = entry("common", "node/u", "supply", cpu="8")
    claim = entry("derived", "claim/c/d", "claims", cpu="3")
    known = Known().decided(supply, claim, claim)
    assert books(known) == {"cpu": 5 * NANO}
    back = entry("derived", "claim/c/d", "claims", kind=EntryReversed, cpu="3")
    assert books(known.decided(back, back)) == {}
    known.decided(claim, entry("derived", "claim/c/d", "claims", cpu="4"))
    assert books(known) == {"cpu": 4 * NANO}


def test_where_the_derived_book_follows_a_scheduler_s_under_count_the_difference_is_added():
    drift = Drift(
        about="ml/c",
        cause="allocated_before_counting",
        namespace="ml",
        claim="c",
        exact={"cpu": "3"},
        predicted=True,
    )
    known = Known().decided(
        entry("common", "node/u", "supply", cpu="8"), DriftFound(node="n1", at_ms=T0, drift=drift)
    )
    assert books(known) == {"cpu": 5 * NANO}
    assert books(known.decided(DriftCleared(node="n1", at_ms=T0, drift=drift))) == {}


def test_capacity_of_devices_is_another_book_and_no_node_resource():
    known = Known().decided(
        entry("common", "node/u", "supply", cpu="8"), entry("devices", "use/d", "claims", cpu="3"), entry("counters", "use/d", "claims", cpu="3")
    )  # fmt: skip
    assert books(known) == {}


def test_a_hold_counts_as_strictly_as_the_driver_whose_fault_it_is():
    rules = (ExtenderRule(driver=DRIVER, mode="enforce"), ExtenderRule(driver="nic.example.com", mode="off"))
    known = Known(policy_of("observe", rules=rules))

    def standing(*holds):
        said = verdict(*holds, drivers=(DRIVER, "nic.example.com"))
        return known.decided(said).holdings.standing("n1", T0).holds

    assert standing(("pool_incomplete", f"{DRIVER}/p")) == {"enforce": ("pool_incomplete",)}
    assert standing(("pool_incomplete", "nic.example.com/p")) == {"off": ("pool_incomplete",)}
    assert standing(("claims_gate_closed", "driver:nic.example.com")) == {"off": ("claims_gate_closed",)}
    # nobody's in particular: the strictest of those on the node
    assert standing(("watch_gap", "pods"), ("drift", "ml/c")) == {"enforce": ("drift", "watch_gap")}
    assert standing() == {}


def test_the_first_rule_that_matches_says_the_mode():
    rules = (
        ExtenderRule(driver=GPU, node_class="canary", mode="enforce"),
        ExtenderRule(driver=GPU, mode="off"),
        ExtenderRule(node_class="canary", mode="observe"),
    )
    holdings = Holdings(Known().view, policy_of("enforce", rules=rules))
    found = [holdings.mode(d, c) for d, c in itertools.product((GPU, "other"), ("canary", "stable"))]
    assert found == ["enforce", "off", "observe", "enforce"]


def test_nothing_is_kept_of_nodes_that_are_asked_for_and_not_known():
    known = Known()
    for index in range(1_000):
        known.holdings.standing(f"none-{index}", T0)
    assert not known.holdings._ready


def test_a_resource_is_ours_once_custody_knows_a_device_or_a_claim_served_it():
    known = Known(policy_of(rules=(ExtenderRule(driver="ruled.com/x", mode="enforce"),)))
    assert known.holdings.resources == {"ruled.com/x"}
    known.told(node(), pod("a"))
    assert GPU not in known.holdings.resources
    known.told(word(unit(1)))
    known.decided(custody("plugin:b.com/card/a/b/c"))
    known.told(pod("x", resource="dra.com/gpu", extended_claim="c"))
    assert known.holdings.resources == {"ruled.com/x", GPU, "b.com/card", "dra.com/gpu"}


def test_the_view_is_known_up_to_the_newest_tick_that_was_read_and_answered_everywhere():
    fresh = Freshness(2)
    assert fresh.known_ms({}) is None
    fresh.ticked(0, 10, T0)
    fresh.ticked(1, 7, T0)
    assert fresh.known_ms({0: 10}) is None
    assert fresh.known_ms({0: 10, 1: 7}) == T0
    fresh.ticked(0, 20, T0 + 5_000)
    fresh.ticked(1, 17, T0 + 5_000)
    # a worker that stands still holds the answer back, whatever was read
    assert fresh.known_ms({0: 25, 1: 16}) == T0
    assert fresh.known_ms({0: 25, 1: 17}) == T0 + 5_000


def test_of_too_many_ticks_that_nobody_answers_the_oldest_are_forgotten_and_the_view_counts_as_older():
    fresh = Freshness(1)
    for number in range(5_000):
        fresh.ticked(0, number, T0 + number)
    assert fresh.known_ms({0: 100}) is None
    assert fresh.known_ms({0: 4_500}) == T0 + 4_500
