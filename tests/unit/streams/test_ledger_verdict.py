"""Why new claims wait: every reason with its beginning and its end, the gate, and the way back after a driver's restart."""

from __future__ import annotations

import ledger_facts as f
import pytest
from ledger_run import Run

from sickbay.decisions import ledger_version
from sickbay.policy import LedgerPolicy, Policy

AT = 1_000_000
LEDGER = LedgerPolicy()
POOL = f"{f.CPU}/{f.NODE}"
GPUS = f"{f.GPU}/{f.NODE}"
EACH = {"cpu": {"allocationMultiplier": "2"}}
SAID = f.entry("c", {"cpu": "2"})


def start(*facts, policy=None):
    """A node with one device that a claim of a running Pod holds: nothing speaks against new claims."""
    run = Run(policy or Policy())
    run.step(
        f.node(AT, 1, cpu="24"), f.pool(AT, 2, f.GPU), f.published(AT, 2, f.GPU, "g", shape="1.36", node_allocatable=EACH),
        f.claim(AT, 3, "c", f.result(f.GPU, "g"), pods=("a",)), f.pod(AT, 4, "a", claims=("c",), node_allocatable=(SAID,)),
        *facts,
    )  # fmt: skip
    return run


def span(run, reason, scope, *, until_ms):
    """When a reason began and ended, as the verdicts of the log tell; the time passes until then, second by second."""
    while run.state.now_ms < until_ms:
        run.until(run.state.now_ms + f.SECOND)
    begun = ended = None
    for verdict in run.of("verdict_changed"):
        there = (reason, scope) in {(h.reason, h.scope) for h in verdict.holds}
        if there and begun is None:
            begun = verdict.at_ms
        if begun is not None and not there and ended is None:
            ended = verdict.at_ms
    return begun, ended


def test_a_node_on_which_all_is_well_is_open():
    run = start()

    assert ("open", set()) == (run.state.announced.verdict.verdict, run.holds())


def test_a_hold_names_every_reason_at_once():
    run = start(f.lapsed(AT, 5), f.gate(AT, closed=True))
    (verdict,) = run.of("verdict_changed")

    assert "hold" == verdict.verdict
    assert [("claims_gate_closed", "node"), ("slice_stale", "")] == [
        (h.reason, h.scope) for h in verdict.holds
    ]


LATER = AT + 100_000
WINDOWS = {
    "pool_incomplete": (
        [f.pool(LATER, 9, f.GPU, newest=2, complete=False)],
        [f.pool(LATER + 5_000, 10, f.GPU, effective=2, newest=2)],
        GPUS, 0, 5_000,
    ),
    "pool_incomplete, invalid": (
        [f.pool(LATER, 9, f.GPU, invalid="device g twice")], [f.pool(LATER + 5_000, 10, f.GPU, effective=2, newest=2)],
        GPUS, 0, 5_000,
    ),
    "slice_stale": (
        [f.pool(LATER, 9, f.GPU, newest=2, complete=False), f.pool(LATER + 9_000, 10, f.GPU, newest=3, complete=False)],
        [f.pool(LATER + 90_000, 11, f.GPU, effective=3, newest=3)],
        GPUS, LEDGER.slice_stale_ms, 90_000,
    ),
    "slice_stale, lease": ([f.lapsed(LATER, 9)], [f.resumed(LATER + 5_000, 10)], "", 0, 5_000),
    "slice_missing": (
        [f.withdrawn(LATER, 9, f.GPU, "g")],
        [f.published(LATER + 5_000, 10, f.GPU, "g", shape="1.36", node_allocatable=EACH)],
        "ml/c", 0, 5_000,
    ),
    "generation_back": (
        [f.pool(LATER - 1_000, 8, f.GPU, effective=5, newest=5), f.pool(LATER, 9, f.GPU, effective=4, newest=4)], [],
        GPUS, 0, LEDGER.rebuild_settle_ms,
    ),
    "driver_rebuilding, gone": (
        [f.pool(LATER, 9, f.GPU, effective=None, newest=None, complete=False)], [], GPUS, 0, LEDGER.slice_stale_ms,
    ),
    "driver_rebuilding, back": (
        [f.pool(LATER, 9, f.GPU, effective=None, newest=None, complete=False)],
        [f.pool(LATER + 20_000, 10, f.GPU)], GPUS, 0, 20_000 + LEDGER.rebuild_settle_ms,
    ),
    "mapping_missing": (
        [f.published(LATER, 9, f.GPU, "g")],
        [f.published(LATER + 5_000, 10, f.GPU, "g", shape="1.36", node_allocatable=EACH)],
        "ml/c", 0, 5_000,
    ),
    "shape_unknown, device": (
        [f.published(LATER, 9, f.GPU, "h", shape="unknown")], [f.published(LATER + 5_000, 10, f.GPU, "h")],
        f.device_id(f.GPU, "h"), 0, 5_000,
    ),
    "shape_unknown, pod": (
        [f.pod(LATER, 9, "b", node_allocatable=(f.entry("x", shape="unknown", unknown_fields=("status.x",)),))],
        [f.pod_gone(LATER + 5_000, 10, "b")], "ml/b", 0, 5_000,
    ),
    "shape_unknown, claim": (
        [f.claim(LATER, 9, "d", f.result(f.CPU, "d0", share="s"))], [f.claim_gone(LATER + 5_000, 10, "d")], "ml/d", 0, 5_000,
    ),
    "watch_gap": ([f.gap(LATER, watched="resourceslices")], [], "resourceslices", 0, LEDGER.recheck_ms),
    "claims_gate_closed": (
        [f.gate(LATER, closed=True)], [f.gate(LATER + 5_000, closed=False, request="g2")], "node", 0, 5_000,
    ),
    "drift": (
        [f.pod(LATER, 9, "a", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "7"}),))],
        [f.pod(LATER + 90_000, 10, "a", claims=("c",), node_allocatable=(SAID,))],
        "ml/c", LEDGER.drift_grace_ms, 90_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "window"), WINDOWS.items(), ids=WINDOWS)
def test_each_reason_begins_and_ends_at_its_time(reason, window):
    """Seconds after the first trouble, by the default policy."""
    beginning, ending, scope, from_ms, to_ms = window
    run = start()
    for fact in sorted([*beginning, *ending], key=lambda x: x.observed_at_ms):
        run.step(fact)

    assert (LATER + from_ms, LATER + to_ms) == span(
        run, reason.split(",", 1)[0], scope, until_ms=LATER + 200_000
    )


def test_reasons_that_time_ends_are_due():
    run = start(f.gap(AT))

    assert AT + LEDGER.recheck_ms == run.state.due_ms
    assert [] == list(run.until(AT + LEDGER.recheck_ms - 1))
    assert ["open"] == [d.verdict for d in run.until(AT + LEDGER.recheck_ms)]


def test_a_claim_that_only_lists_devices_of_another_place_misses_nothing_here():
    run = start(f.claim(AT, 5, "d", f.result("net.example.com", "nic", pool="fabric"), pods=("a",)))

    assert "slice_missing" not in run.reasons()


def test_a_device_that_is_withdrawn_keeps_its_last_mapping_and_stays_in_use():
    run = start()
    run.step(f.withdrawn(LATER, 9, f.GPU, "g"))

    assert {"cpu": 2} == run.requested("derived")
    assert {f"{GPUS}:devices": 1} == run.sums("devices", "claims")
    assert {} == run.sums("devices", "supply")


def test_a_share_whose_amounts_are_not_known_holds_the_node_and_adds_nothing():
    """Reading it as nothing would hide what is used (kubernetes/kubernetes#140433)."""
    key = f"{f.CPU}/cores"
    run = start(
        f.published(
            AT,
            6,
            f.CPU,
            "d",
            shape="1.36",
            allow_multiple=True,
            node_allocatable={"cpu": {"capacityKey": key}},
        ),
        f.claim(AT, 7, "s", f.result(f.CPU, "d", share="s"), pods=("a",)),
    )

    assert ("shape_unknown", "ml/s") in run.holds()


def test_a_capacity_that_counts_on_a_device_of_one_claim_has_no_known_amount_either():
    """The 1.36 scheduler fails such a Pod; an amount that cannot be known is not zero."""
    run = start(
        f.published(
            AT, 6, f.CPU, "d", shape="1.36", node_allocatable={"cpu": {"capacityKey": f"{f.CPU}/cores"}}
        ),
        f.claim(AT, 7, "s", f.result(f.CPU, "d"), pods=("a",)),
    )

    assert ("shape_unknown", "ml/s") in run.holds()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, "stable"),
        ({"sickbay.dev/rollout": "canary"}, "canary"),
        ({"sickbay.dev/rollout": "no"}, "stable"),
    ],
)
def test_the_label_of_a_node_says_its_class(labels, expected):
    run = Run().each([f.node(AT, 1, labels=labels, cpu="1"), f.pool(AT, 2, f.GPU)])

    assert (expected, (f.GPU,)) == (
        run.state.announced.verdict.node_class,
        run.state.announced.verdict.drivers,
    )


# -- the gate


@pytest.mark.parametrize("scope", ["node", "cluster", f"driver:{f.GPU}"])
def test_a_gate_holds_its_scope_until_it_is_opened(scope):
    run = start(f.gate(AT + 1, closed=True, scope=scope))
    assert {("claims_gate_closed", scope)} == run.holds()

    run.step(f.gate(AT + 2, closed=False, scope=scope, request="g2"))

    assert set() == run.holds()


def test_the_gate_of_a_driver_that_is_not_here_holds_nothing():
    run = start(f.gate(AT + 1, closed=True, scope="driver:other.example.com"))

    assert set() == run.holds()


def test_the_newest_request_of_a_scope_decides_whatever_order_they_come_in():
    opened, closed = f.gate(AT + 2, closed=False, request="g2"), f.gate(AT + 1, closed=True, request="g1")

    assert set() == start(opened, closed).holds() == start(closed, opened).holds()


def test_opening_may_name_the_ledger_that_was_checked():
    run = start(f.gate(AT + 1, closed=True))
    version = ledger_version(run.entries.values())
    run.step(f.pod(AT + 2, 9, "b", f.container("main", {"cpu": "1"})))

    run.step(f.gate(AT + 3, closed=False, request="g2", version=version))
    assert {("claims_gate_closed", "node")} == run.holds()

    run.step(f.gate(AT + 4, closed=False, request="g3", version=ledger_version(run.entries.values())))
    assert set() == run.holds()


def test_the_version_of_a_ledger_is_that_of_its_standing_entries_without_their_times():
    late = Run().each([f.pod(AT, 1, "a", f.container("main", {"cpu": "1"})), f.node(AT + 9_000, 2, cpu="8")])
    soon = Run().each([f.node(AT, 1, cpu="8"), f.pod(AT, 2, "a", f.container("main", {"cpu": "1"}))])

    assert ledger_version(late.entries.values()) == ledger_version(soon.entries.values())
    soon.step(f.pod_gone(AT, 3, "a"))
    assert ledger_version(late.entries.values()) != ledger_version(soon.entries.values())


# -- after a driver's restart


def test_new_claims_wait_for_pool_device_mapping_and_generation_in_this_order_after_a_restart():
    """And until all of it held for ``rebuild_settle_ms``, however long ago the pool itself was complete."""
    run, at_ms = start(), LATER
    walk = [
        ([f.withdrawn(at_ms, 20, f.GPU, "g", reason="slice_deleted"),
          f.pool(at_ms, 20, f.GPU, effective=None, newest=None, complete=False)],
         {"driver_rebuilding", "slice_missing"}),
        ([f.pool(at_ms + 10_000, 21, f.GPU, effective=None, newest=1, complete=False)],
         {"driver_rebuilding", "slice_missing", "pool_incomplete"}),
        ([f.pool(at_ms + 20_000, 22, f.GPU)], {"driver_rebuilding", "slice_missing"}),
        ([f.published(at_ms + 60_000, 23, f.GPU, "g")], {"driver_rebuilding", "mapping_missing"}),
        ([f.published(at_ms + 100_000, 24, f.GPU, "g", shape="1.36", node_allocatable=EACH)], {"driver_rebuilding"}),
        ([f.tick(at_ms + 100_000 + LEDGER.rebuild_settle_ms - 1)], {"driver_rebuilding"}),
        ([f.tick(at_ms + 100_000 + LEDGER.rebuild_settle_ms)], set()),
    ]  # fmt: skip
    for facts, expected in walk:
        run.step(*facts)

        assert expected == run.reasons(), facts


@pytest.mark.parametrize("recorded", [True, False])
def test_a_device_without_any_mapping_keeps_a_rebuilding_open_only_if_it_was_counted(recorded):
    """The scheduler wrote down an amount, so the driver that is back has yet to say where it comes from."""
    told = (f.entry("d", {"cpu": "1"}),) if recorded else None
    run = start(
        f.published(AT, 5, f.GPU, "h"),
        f.claim(AT, 6, "d", f.result(f.GPU, "h"), uid="u-d", pods=("b",)),
        f.pod(AT, 7, "b", claims=("d",), node_allocatable=told),
    )
    run.step(
        f.pool(LATER, 20, f.GPU, effective=None, newest=None, complete=False), f.pool(LATER + 1, 21, f.GPU)
    )
    run.until(LATER + 1 + LEDGER.rebuild_settle_ms)

    assert recorded == ("driver_rebuilding" in run.reasons())


def test_a_claim_misses_nothing_of_a_pool_that_ended_before_the_horizon():
    """It may be forgotten by then, so a claim that comes finds the same as if it were."""
    run = start(f.pool(AT, 20, f.CPU), f.pool(AT + 1, 21, f.CPU, effective=None, newest=None, complete=False))
    run.until(AT + f.DAY)
    run.step(f.claim(AT + f.DAY, 30, "d", f.result(f.CPU, "d0"), uid="u-d", pods=("a",)))

    assert set() == run.reasons()
    assert run.dump() == run.reopened().dump()


def test_a_pool_that_is_incomplete_again_starts_the_wait_anew():
    run = start(f.pool(LATER, 20, f.GPU, effective=None, newest=None, complete=False))
    run.step(f.pool(LATER + 1_000, 21, f.GPU))
    run.step(f.pool(LATER + 2_000, 22, f.GPU, newest=2, complete=False))
    run.step(f.pool(LATER + 20_000, 23, f.GPU, effective=2, newest=2))
    run.until(LATER + 20_000 + LEDGER.rebuild_settle_ms - 1)
    assert {"driver_rebuilding"} == run.reasons()

    run.until(LATER + 20_000 + LEDGER.rebuild_settle_ms)

    assert set() == run.reasons()


@pytest.mark.parametrize("last", [None, 9])
def test_a_driver_may_begin_at_a_low_generation_after_its_slices_were_gone(last):
    """Whether the last generation is still told of the pool that is gone, or not."""
    run = start(f.pool(AT + 1, 5, f.GPU, effective=9, newest=9))
    run.step(f.pool(AT + 2, 6, f.GPU, effective=last, newest=None, complete=False), f.pool(AT + 3, 7, f.GPU))

    assert "generation_back" not in run.reasons()


# -- what comes too late


def test_a_fact_that_is_later_than_the_horizon_is_told_of_and_not_acted_on():
    run = start()
    run.until(AT + f.DAY)
    before = dict(run.entries)
    decided = run.step(f.claim(AT, 9, "late", f.result(f.GPU, "h")))

    assert ["alert_raised"] == [d.KIND for d in decided]
    assert before == run.entries
    assert () == run.step(f.claim(AT, 9, "late", f.result(f.GPU, "h")))


def test_a_replaced_machine_has_what_the_new_one_has():
    run = start(f.node(LATER, 9, uid="node-uid-2", cpu="8"))

    assert ["node/node-uid-2"] == [key for key in run.keys("common") if key.startswith("node/")]
    assert {"cpu": 6} == run.free("recorded")


# -- what must not depend on repeats, arrival or what else happened on the node


def test_a_refused_opening_stays_refused_when_it_is_repeated():
    """The ledger is again what the request named; the same request is still the one that was refused."""
    run = start(f.gate(AT + 1, closed=True))
    version = ledger_version(run.entries.values())
    run.step(f.pod(AT + 2, 9, "b", f.container("main", {"cpu": "1"})))
    opening = f.gate(AT + 3, closed=False, request="g2", version=version)
    run.step(opening)
    run.step(f.pod_gone(AT + 4, 10, "b"))
    assert version == ledger_version(run.entries.values())

    run.step(opening)

    assert {("claims_gate_closed", "node")} == run.holds()


def test_the_lapsed_lease_of_a_machine_that_was_replaced_holds_no_new_one():
    run = start(f.lapsed(AT + 1, 5))
    assert ("slice_stale", "") in run.holds()

    run.step(f.node_gone(AT + 2, 6), f.node(AT + 3, 7, uid="another-machine", cpu="8"))

    assert set() == run.holds()


def test_a_long_quiet_history_is_forgotten_version_by_version():
    """A driver that republishes all day keeps no more than the lateness horizon holds."""
    run = Run()
    horizon_ms = run.policy.lateness_horizon_ms
    for number in range(200):
        run.step(f.published(AT + number * horizon_ms // 10, number + 1, f.GPU, "g"))

    assert len(run.state.books.objects.items("device", f.device_id(f.GPU, "g"))) < 20


def test_what_a_device_was_long_ago_does_not_depend_on_what_else_was_forgotten():
    """A claim for a device that has been gone for longer than the horizon, on a quiet node and on a busy one."""

    def ledger(others):
        run = Run().each([f.node(AT, 1, cpu="64"), f.pool(AT, 2, f.GPU)])
        run.step(f.published(AT, 3, f.GPU, "g", shape="1.36", node_allocatable=EACH))
        run.step(f.withdrawn(AT + 1, 4, f.GPU, "g"))
        later = AT + 3 * run.policy.lateness_horizon_ms
        for number in range(others):
            run.step(f.pod(later - 10, 100 + number, f"p{number}"))
            run.step(f.pod_gone(later - 9, 1000 + number, f"p{number}"))
        run.step(f.tick(later))
        run.step(
            f.claim(later, 5000, "c", f.result(f.GPU, "g"), pods=("a",)),
            f.pod(later, 5001, "a", claims=("c",)),
        )
        return run.requested("derived"), run.holds()

    assert ledger(0) == ledger(300)


def test_a_late_fact_that_is_repeated_is_told_of_once():
    run = Run()
    late = f.claim(AT, 5, "old")
    run.step(f.tick(AT + 2 * run.policy.lateness_horizon_ms))
    for number in range(300):
        run.step(f.claim_gone(AT + 2 * run.policy.lateness_horizon_ms, 10 + number, f"c{number}"))

    assert 1 == len([d for _ in range(3) for d in run.step(late) if d.KIND == "alert_raised"])


@pytest.mark.parametrize(
    "refused",
    [
        "spec.containers: expected a JSON list, found an object",
        "spec.containers[0].resources: expected a JSON object",
    ],
)
def test_a_part_of_a_pod_that_could_not_be_read_holds_the_node(refused):
    run = start(f.pod(AT + 1, 9, "b", refused=(refused,)))

    assert ("shape_unknown", "ml/b") in run.holds()


def test_a_declaration_that_could_not_be_read_holds_nobody():
    run = start(f.pod(AT + 1, 9, "b", refused=("metadata sickbay.dev/ability: 'x' is none of checkpoint",)))

    assert set() == run.holds()


@pytest.mark.parametrize("members", [{"perPod": "9Pi"}, {"perPod": "-1"}])
def test_overhead_out_of_range_holds_the_node(members):
    run = start(
        f.published(AT + 1, 9, f.GPU, "h", shape="1.37", node_allocatable={"memory": members}),
        f.claim(AT + 1, 10, "s", f.result(f.GPU, "h"), pods=("b",)),
        f.pod(AT + 1, 11, "b", claims=("s",)),
    )

    assert ("shape_unknown", "ml/s") in run.holds()


def test_a_device_that_lost_its_mapping_before_the_claim_was_allocated_misses_none():
    run = start(
        f.published(AT + 1, 9, f.GPU, "h", shape="1.36", node_allocatable=EACH),
        f.published(AT + 2, 10, f.GPU, "h"),
        f.claim(AT + 3, 11, "s", f.result(f.GPU, "h"), pods=("b",)),
        f.pod(AT + 3, 12, "b", claims=("s",)),
    )

    assert "mapping_missing" not in run.reasons()
