"""The promotion report: what a class of nodes went through against what the policy wants, criterion by criterion."""

from __future__ import annotations

import pytest

from sickbay.policy import LedgerPolicy
from sickbay.promotion import HoldRun, NodeStanding, Unexplained, promotion

MINUTE, HOUR = 60_000, 3_600_000
POLICY = LedgerPolicy(promotion_window_ms=HOUR, promotion_drills=1, pending_goal_ms=2 * MINUTE)
REBUILD, GATE, MISSING = "driver_rebuilding", "claims_gate_closed", "slice_missing"


def standing(node="n1", cls="canary", drivers=("gpu",), since_ms=HOUR):
    return NodeStanding(node, cls, drivers, since_ms)


def held(reason, lasted_ms, scope="gpu/n1", node="n1", since_ms=2 * HOUR, *, went_well=True):
    until_ms = None if lasted_ms is None else since_ms + lasted_ms
    drill = until_ms is not None and reason in {REBUILD, GATE} and went_well
    return HoldRun(node, reason, scope, since_ms, until_ms, drill)


ONE, REBUILT = (standing(),), (held(REBUILD, MINUTE),)


def report(nodes=ONE, holds=REBUILT, *, unexplained=(), refused=(), now_ms=10 * HOUR, policy=POLICY):
    return promotion("canary", nodes, holds, unexplained, refused, policy, now_ms)


def criteria(found):
    return {c.name: (c.met, c.found, c.wanted) for c in found.criteria}


def test_a_class_that_went_through_all_of_it_is_ready():
    """One node, its driver on it, one rebuild of a minute, and nine hours without a difference."""
    found = report()
    assert ("ready", ("n1",), {"gpu": 1}) == (found.verdict, found.nodes, found.drivers)
    assert {
        "nodes": (True, 1, 1),
        "driver_coverage": (True, 1, 1),
        "drills": (True, 1, 1),
        "window_ms": (True, 9 * HOUR, HOUR),
        "pending_ms": (True, MINUTE, 2 * MINUTE),
    } == criteria(found)


def test_a_class_without_nodes_is_not_ready():
    """What nobody went through proves nothing."""
    found = report([standing(cls="stable")])
    assert ("not ready", (), None, 0) == (found.verdict, found.nodes, found.clean_since_ms, found.holds)
    assert [("nodes", 0), ("driver_coverage", 0), ("drills", 0), ("window_ms", 0)] == [
        (c.name, c.found) for c in found.criteria if not c.met
    ]


def test_a_driver_that_only_others_have_is_not_covered():
    """It is named."""
    found = report([*ONE, standing("n2", "stable", ("gpu", "nic"))])
    assert ("not ready", {"gpu": 1, "nic": 0}) == (found.verdict, found.drivers)
    (coverage,) = [c for c in found.criteria if not c.met]
    assert ("driver_coverage", 1, 2, "not on any node of the class: nic") == (
        coverage.name,
        coverage.found,
        coverage.wanted,
        coverage.detail,
    )


@pytest.mark.parametrize("nodes", [[], [standing(drivers=())]])
def test_where_there_is_no_driver_none_is_covered(nodes):
    """A class whose nodes publish nothing, and a cluster without nodes."""
    found = report(nodes, ())
    assert ({}, (False, 0, 0)) == (found.drivers, criteria(found)["driver_coverage"])


def test_a_driver_that_went_away_for_good_is_no_drill():
    """Its hold ended, and lasted as long as it did."""
    found = report(holds=[held(REBUILD, MINUTE, went_well=False)])
    assert ("not ready", 0, 1) == (found.verdict, found.drills, found.holds)
    assert ["drills"] == [c.name for c in found.criteria if not c.met]


def test_a_hold_that_lasts_is_no_drill_yet():
    """Neither a rebuild that goes on nor another reason counts."""
    assert 0 == report(holds=[held(REBUILD, None), held(MISSING, MINUTE)]).drills
    assert 1 == report(holds=[held(REBUILD, MINUTE), held(MISSING, None)]).drills


def test_a_gate_of_the_cluster_is_one_drill_and_one_of_a_node_is_its_own():
    """However many nodes heard of it; closed again later, it is another."""
    nodes = [standing(name) for name in ("n1", "n2")]
    both = [held(GATE, HOUR, scope, node) for node in ("n1", "n2") for scope in ("cluster", "node")]
    assert 3 == report(nodes, both).drills
    assert 4 == report(nodes, [*both, held(GATE, HOUR, "cluster", since_ms=5 * HOUR)]).drills


def test_what_happened_on_another_class_does_not_concern_this_one():
    """Neither its holds nor its differences nor its refused duplicates."""
    nodes = [*ONE, standing("n2", "stable", since_ms=0)]
    holds = [*REBUILT, held(GATE, HOUR, "node", "n2")]
    found = report(nodes, holds, unexplained=[Unexplained("n2", None)], refused=["n2", "n1", "n2"])
    assert ("ready", 1, 1, 1, HOUR) == (
        found.verdict,
        found.drills,
        found.holds,
        found.refused_duplicates,
        found.clean_since_ms,
    )


@pytest.mark.parametrize(
    ("until_ms", "met", "clean_ms"),
    [(9 * HOUR, True, HOUR), (9 * HOUR + 1, False, HOUR - 1), (None, False, 0)],
)
def test_the_window_begins_when_the_last_unexplained_difference_ended(until_ms, met, clean_ms):
    """One that still stands leaves nothing of it."""
    found = report(unexplained=[Unexplained("n1", until_ms), Unexplained("n1", 2 * HOUR)])
    assert (met, clean_ms, HOUR) == criteria(found)["window_ms"]


def test_nine_holds_in_ten_must_end_within_the_goal():
    """Ten holds of one to ten minutes: half end within 5, nine in ten within 9, the longest takes 10."""
    holds = [held(REBUILD, n * MINUTE, since_ms=n * HOUR // 2) for n in range(10, 0, -1)]
    found = report(holds=holds)
    assert (10, 5 * MINUTE, 9 * MINUTE, 10 * MINUTE) == (
        found.holds,
        found.hold_p50_ms,
        found.hold_p90_ms,
        found.hold_max_ms,
    )
    assert (False, 9 * MINUTE, 2 * MINUTE) == criteria(found)["pending_ms"]
    roomy = LedgerPolicy(pending_goal_ms=9 * MINUTE)
    assert criteria(report(holds=holds, policy=roomy))["pending_ms"][0]


@pytest.mark.parametrize(("lasted_ms", "overdue"), [(2 * MINUTE, 0), (2 * MINUTE + 1, 1)])
def test_a_hold_that_goes_on_stands_against_the_class_once_it_is_too_long(lasted_ms, overdue):
    """Until then nobody knows what becomes of it; among the holds that ended it is not."""
    found = report(holds=[held(MISSING, None)], now_ms=2 * HOUR + lasted_ms)
    assert (0, overdue, 0) == (found.holds, found.holds_overdue, found.hold_max_ms)
    assert (not overdue, overdue * lasted_ms, 2 * MINUTE) == criteria(found)["pending_ms"]
