"""Tables of the references, through the ledger: what is derived, when a Pod counts, whose rules are followed."""

from __future__ import annotations

from fractions import Fraction

import ledger_facts as f
import pytest
from ledger_run import Run

from sickbay.policy import LedgerPolicy, Policy

AT = 1_000_000
GI = 2**30
KEY = "dra.example.com/cores"


def rules(emulate):
    return Policy(version=emulate, ledger=LedgerPolicy(emulate=emulate))


def derived(devices, results, *, emulate="exact", pods=("a",)):
    """The derived book of one claim on devices ``{name: (shape, mapping)}`` of one shareable kind."""
    run = Run(rules(emulate))
    for number, (name, (shape, mapping)) in enumerate(devices.items(), 10):
        run.step(
            f.published(AT, number, f.CPU, name, shape=shape, node_allocatable=mapping, allow_multiple=True)
        )
    run.step(f.claim(AT, 30, "c", *results, pods=pods))
    for number, name in enumerate(pods, 40):
        run.step(f.pod(AT, number, name, claims=("c",)))
    return run


def share(device, consumed=None, number=0):
    return f.result(f.CPU, device, consumed, share=f"s{number}")


# -- kubernetes.md 3.7, ``buildNodeAllocatableDRAInfo``, and the lines of KEP-5517

_CORES, _MEM = f"{f.CPU}/cores", f"{f.CPU}/mem"


def _each(amounts):
    return "1.36", {r: {"allocationMultiplier": q} for r, q in amounts.items()}


_TABLE = [
    ("one result", {"d": _each({"cpu": "1"})}, [share("d", {})], {"cpu": 1}),
    (
        "two keys",
        {"d": ("1.36", {"cpu": {"capacityKey": _CORES}, "memory": {"capacityKey": _MEM}})},
        [share("d", {_CORES: "4", _MEM: "8Gi"})],
        {"cpu": 4, "memory": 8 * GI},
    ),
    (
        "a multiplier",
        {"d": ("1.36", {"cpu": {"capacityKey": _CORES, "allocationMultiplier": "2"}})},
        [share("d", {_CORES: "4"})],
        {"cpu": 8},
    ),
    ("a wrong key", {"d": ("1.36", {"cpu": {"capacityKey": f"{f.CPU}/wrong"}})}, [share("d", {_CORES: "4"})], {}),
    ("fungible, the one without", {"a": (None, {}), "b": _each({"cpu": "30"})}, [share("a", {})], {}),
    ("fungible, the one with", {"a": (None, {}), "b": _each({"cpu": "30"})}, [share("b", {})], {"cpu": 30}),
    ("unknown device", {}, [share("nowhere", {})], {}),
    ("KEP: 4cpu/8Gi", {"d": _each({"cpu": "4", "memory": "8Gi"})}, [share("d", {})], {"cpu": 4, "memory": 8 * GI}),
    ("KEP: XPU B", {"b": _each({"cpu": "31", "memory": "1Gi"})}, [share("b", {})], {"cpu": 31, "memory": GI}),
    (
        "KEP: 2 cpu for each core device",
        {f"d{i}": _each({"cpu": "2"}) for i in range(4)},
        [share(f"d{i}", {}) for i in range(4)],
        {"cpu": 8},
    ),
    (
        "KEP: GPU memory 2Gi for each device",
        {f"d{i}": _each({"memory": "2Gi"}) for i in range(3)},
        [share(f"d{i}", {}) for i in range(3)],
        {"memory": 6 * GI},
    ),
    (
        "KEP: consumed 8 cores x 2",
        {"d": ("1.36", {"cpu": {"capacityKey": _CORES, "allocationMultiplier": "2"}})},
        [share("d", {_CORES: "8"})],
        {"cpu": 16},
    ),
    (
        "1.37: deviceMultiplier 8 x 2 devices",
        {f"d{i}": ("1.37", {"cpu": {"deviceMultiplier": "8"}}) for i in range(2)},
        [share(f"d{i}", {}) for i in range(2)],
        {"cpu": 16},
    ),
    (
        "exact decimal multiplier: 0.5 x 3 cores",
        {"d": ("1.37", {"cpu": {"capacityKey": _CORES, "capacityMultiplier": "500m"}})},
        [share("d", {_CORES: "3"})],
        {"cpu": Fraction(3, 2)},
    ),
    ("an absent multiplier is 1", {"d": ("1.36", {"cpu": {}})}, [share("d", {})], {"cpu": 1}),
    ("1.37: overhead alone maps nothing", {"d": ("1.37", {"cpu": {"perContainer": "0"}})}, [share("d", {})], {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "results", "expected"), [row[1:] for row in _TABLE], ids=[row[0] for row in _TABLE]
)
def test_a_claim_adds_what_the_scheduler_builds_for_it(devices, results, expected):
    run = derived(devices, results)

    assert expected == run.sums("derived", "claims")


def test_several_claims_of_a_pod_stand_side_by_side():
    """KEP: 100m + 200m by itself, a cpu claim of 10 and a GPU with {cpu 2, memory 4Gi}: 12.3 cpu, 3Gi of its own + 4Gi."""
    run = Run()
    run.step(
        f.published(
            AT,
            1,
            f.CPU,
            "cpus",
            shape="1.36",
            node_allocatable={"cpu": {"capacityKey": _CORES}},
            allow_multiple=True,
        )
    )
    gpu = {"cpu": {"allocationMultiplier": "2"}, "memory": {"allocationMultiplier": "4Gi"}}
    run.step(f.published(AT, 2, f.GPU, "gpu", shape="1.36", node_allocatable=gpu))
    run.step(f.claim(AT, 3, "cpus", share("cpus", {_CORES: "10"}), pods=("a",)))
    run.step(f.claim(AT, 4, "gpu", f.result(f.GPU, "gpu"), pods=("a",)))
    own = (
        f.container("c1", {"cpu": "100m", "memory": "1Gi"}, "cpus", "gpu"),
        f.container("c2", {"cpu": "200m", "memory": "2Gi"}),
    )
    said = (f.entry("cpus", {"cpu": "10"}), f.entry("gpu", {"cpu": "2", "memory": "4Gi"}))
    run.step(f.pod(AT, 5, "a", *own, claims=("cpus", "gpu"), node_allocatable=said))

    expected = {"cpu": Fraction("12.3"), "memory": 7 * GI}
    assert expected == run.requested("recorded") == run.requested("derived")


@pytest.mark.parametrize(
    ("pods", "references", "expected"),
    [(("a",), 2, GI + 2 * 500 * 2**20), (("a",), 0, GI), (("a", "b"), 1, 2 * (GI + 500 * 2**20))],
    ids=["two containers", "no container", "two Pods"],
)
def test_overhead_counts_for_each_pod_and_each_container_that_refers_to_the_claim(pods, references, expected):
    """1.37: perPod 1Gi + perContainer 500Mi."""
    run = Run()
    mapping = {"memory": {"perPod": "1Gi", "perContainer": "500Mi"}}
    run.step(f.published(AT, 1, f.GPU, "x", shape="1.37", node_allocatable=mapping))
    run.step(f.claim(AT, 2, "c", f.result(f.GPU, "x"), pods=pods))
    for number, name in enumerate(pods, 3):
        own = [f.container(f"c{i}", None, *(["c"] if i < references else [])) for i in range(2)]
        run.step(f.pod(AT, number, name, *own, claims=("c",)))

    assert {"memory": expected} == run.requested("derived")


def test_overhead_of_several_devices_adds_up():
    run = Run()
    for number, name in enumerate(("x", "y")):
        run.step(
            f.published(
                AT,
                number,
                f.GPU,
                name,
                shape="1.37",
                node_allocatable={"memory": {"perPod": "100", "perContainer": "50"}},
            )
        )
    run.step(f.claim(AT, 3, "c", f.result(f.GPU, "x"), f.result(f.GPU, "y"), pods=("a",)))
    run.step(f.pod(AT, 4, "a", f.container("c1", None, "c"), f.container("c2", None, "c"), claims=("c",)))

    assert {"memory": 2 * (100 + 2 * 50)} == run.requested("derived")


@pytest.mark.parametrize(
    ("number", "expected"), [(1, Fraction(1, 1000)), (10, Fraction(1, 1000)), (11, Fraction(2, 1000))]
)
def test_rounding_is_once_for_each_pod(number, expected):
    """100m x 0.001 is a tenth of a millicore: one share and ten shares are one millicore, eleven are two."""
    mapping = {"cpu": {"capacityKey": _CORES, "capacityMultiplier": "1m"}}
    run = derived({"d": ("1.37", mapping)}, [share("d", {_CORES: "100m"}, i) for i in range(number)])

    assert {"cpu": Fraction(number, 10_000)} == run.sums("derived", "claims")
    assert {"cpu": expected} == run.requested("derived")


def test_amounts_finer_than_a_quantity_can_say_are_summed_before_they_are_rounded():
    """Three times 0.4 nano-cores are 1.2 nano-cores and one millicore; each entry says one nano-core, the least it can."""
    mapping = {"cpu": {"capacityKey": _CORES, "capacityMultiplier": "400m"}}
    run = derived({"d": ("1.37", mapping)}, [share("d", {_CORES: "1n"}, i) for i in range(3)])

    assert {"cpu": Fraction(3, 10**9)} == run.sums("derived", "claims")
    assert {"cpu": Fraction(1, 1000)} == run.requested("derived")


@pytest.mark.parametrize(
    ("spec", "expected"), [({"cpu": "11"}, {"cpu": 11}), ({"memory": "1Gi"}, {"cpu": 10, "memory": GI})]
)
def test_a_pod_level_request_contains_what_its_claims_add(spec, expected):
    """kubernetes.md 3.7: Pod-level 11 cpu and a claim of 10; a resource that it does not name is added."""
    run = Run()
    run.step(f.claim(AT, 1, "c", pods=("a",)))
    run.step(
        f.pod(
            AT,
            2,
            "a",
            claims=("c",),
            pod_level_requests=spec,
            node_allocatable=(f.entry("c", {"cpu": "10"}),),
        )
    )
    entry = run.entries["recorded", "claim/uid-c"]

    assert expected == run.requested("recorded")
    assert {"cpu"} == {a.resource for a in (entry.covered if "cpu" in spec else entry.amounts)}


# -- when a Pod counts (fault A11)


@pytest.mark.parametrize("deletion", ["none", "asked", "gone", "forced"])
@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "Succeeded", "Failed"])
def test_a_pod_counts_until_it_is_terminal_or_gone(phase, deletion):
    """A deletion that was asked for frees nothing; a Pod that was never started counts."""
    run = Run()
    asked = AT if deletion != "none" else None
    run.step(
        f.claim(AT, 1, "c", f.result(f.GPU, "g"), pods=("a",)),
        f.pod(
            AT, 2, "a", f.container("main", {"cpu": "1"}, "c"), claims=("c",), phase=phase, deletion_requested_at_ms=asked,
            node_allocatable=(f.entry("c", {"cpu": "2"}),),
        ),
    )  # fmt: skip
    if deletion in ("gone", "forced"):
        run.step(f.pod_gone(AT + 1_000, 3, "a", final_state_known=deletion == "gone"))
    counts = phase in ("Pending", "Running", "Unknown") and deletion in ("none", "asked")

    assert ({"cpu": 3} if counts else {}) == run.requested("recorded")
    # the claim keeps its device until it is gone itself
    assert {f"{f.GPU}/{f.NODE}:devices": 1} == run.sums("devices", "claims")


def test_a_pod_without_a_node_does_not_count():
    run = Run()
    run.step(
        f.pod(
            AT,
            1,
            "a",
            f.container("main", {"cpu": "1"}),
            node="",
            node_allocatable=(f.entry("c", {"cpu": "2"}),),
        )
    )

    assert {} == run.requested("recorded")


def test_what_stood_is_reversed_as_it_was_posted_when_a_pod_ends():
    run = Run().each([f.pod(AT, 1, "a", f.container("main", {"cpu": "1"})), f.pod_gone(AT + 9_000, 2, "a")])
    posted, reversed_ = run.of("entry_posted", "entry_reversed")

    assert posted.entry == reversed_.entry
    assert (AT, AT + 9_000) == (posted.at_ms, reversed_.at_ms)


# -- whose rules: each row of the table of ``emulate``


def _per_rules(make):
    return {emulate: make(emulate) for emulate in ("1.36", "1.37", "exact")}


@pytest.mark.parametrize(("shape", "reads"), [("1.36", {"1.36", "exact"}), ("1.37", {"1.37", "exact"})])
def test_emulate_chooses_the_device_data_that_is_read(shape, reads):
    member = {"1.36": "allocationMultiplier", "1.37": "deviceMultiplier"}[shape]
    found = _per_rules(
        lambda e: derived({"d": (shape, {"cpu": {member: "2"}})}, [share("d", {})], emulate=e).requested(
            "derived"
        )
    )

    assert {e: {"cpu": 2} if e in reads else {} for e in found} == found


def test_emulate_1_36_skips_a_claim_that_was_allocated_before_the_pod_was_scheduled():
    def make(emulate):
        run = Run(rules(emulate))
        device = (
            {"cpu": {"allocationMultiplier": "2"}}
            if emulate != "1.37"
            else {"cpu": {"deviceMultiplier": "2"}}
        )
        run.step(
            f.published(
                AT, 1, f.GPU, "d", shape="1.37" if emulate == "1.37" else "1.36", node_allocatable=device
            )
        )
        run.step(f.claim(AT, 2, "c", f.result(f.GPU, "d")))
        run.step(f.claim(AT + 1_000, 3, "c", f.result(f.GPU, "d"), pods=("a",)))
        run.step(f.pod(AT + 1_000, 4, "a", claims=("c",)))
        return run.requested("derived")

    assert {"1.36": {}, "1.37": {"cpu": 2}, "exact": {"cpu": 2}} == _per_rules(make)


def test_emulate_1_36_counts_a_claim_that_is_allocated_again_for_its_pod():
    """Only versions with this allocation tell: the one before it was another allocation."""
    run = Run(rules("1.36"))
    for number, name in enumerate(("d", "e"), 1):
        run.step(
            f.published(
                AT, number, f.GPU, name, shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}}
            )
        )
    run.step(f.claim(AT, 3, "c", f.result(f.GPU, "d")))
    run.step(f.claim(AT + 1_000, 4, "c", f.result(f.GPU, "e"), pods=("a",)))
    run.step(f.pod(AT + 1_000, 5, "a", claims=("c",)))

    assert {"cpu": 2} == run.requested("derived")


def test_emulate_1_36_does_not_find_a_key_that_is_spelled_otherwise():
    def make(emulate):
        shape, multiplier = (
            ("1.37", "capacityMultiplier") if emulate == "1.37" else ("1.36", "allocationMultiplier")
        )
        mapping = {"cpu": {"capacityKey": _CORES, "capacityKeySpelling": "cores", multiplier: "2"}}
        return derived({"d": (shape, mapping)}, [share("d", {_CORES: "2"})], emulate=emulate).requested(
            "derived"
        )

    assert {"1.36": {}, "1.37": {"cpu": 4}, "exact": {"cpu": 4}} == _per_rules(make)


def test_emulate_1_36_has_no_overhead():
    """Whatever shape carries it: the member is newer than that scheduler."""
    for shape in ("1.37", "unknown"):
        mapping = {"memory": {"perPod": "1Gi"}}
        found = _per_rules(
            lambda e, s=shape, m=mapping: derived({"d": (s, m)}, [share("d", {})], emulate=e).requested(
                "derived"
            )
        )

        assert {"1.36": {}, "1.37": {"memory": GI}, "exact": {"memory": GI}} == found


def test_emulate_1_37_maps_no_ephemeral_storage():
    def make(emulate):
        shape, member = (
            ("1.37", "deviceMultiplier") if emulate == "1.37" else ("1.36", "allocationMultiplier")
        )
        mapping = {"ephemeral-storage": {member: "1Gi"}, "cpu": {member: "1"}}
        return derived({"d": (shape, mapping)}, [share("d", {})], emulate=emulate).requested("derived")

    both = {"cpu": 1, "ephemeral-storage": GI}
    assert {"1.36": both, "1.37": {"cpu": 1}, "exact": both} == _per_rules(make)


# -- whose claim it is


def test_a_name_that_is_used_again_is_another_claim():
    run = Run()
    run.step(
        f.published(AT, 1, f.GPU, "g", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}})
    )
    run.step(
        f.claim(AT, 2, "c", f.result(f.GPU, "g"), uid="u1", pods=("a",)), f.pod(AT, 3, "a", claims=("c",))
    )
    run.step(f.claim_gone(AT, 4, "c", uid="u1"))
    run.step(f.claim(AT, 5, "c", f.result(f.GPU, "g"), uid="u2", pods=("b",)))

    assert {} == run.requested("derived")
    assert "u2" == run.entries["devices", f"use/{f.device_id(f.GPU, 'g')}"].claim_uid


def test_what_two_pods_record_of_two_claims_of_one_name_is_no_duplicate():
    """The second is seen before the first is seen gone."""
    run = Run().each(
        [
            f.claim(AT, 1, "c", uid="u1", pods=("a",)),
            f.claim(AT, 2, "c", uid="u2", pods=("b",)),
            f.pod(AT, 3, "a", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "2"}),)),
            f.pod(AT, 4, "b", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "3"}),)),
        ]
    )

    assert {"claim/u1", "claim/u2"} == {key for book, key in run.entries if book == "recorded"}
    assert {"cpu": 5} == run.requested("recorded")
    assert [] == run.refused()


def test_a_device_that_two_claims_hold_maps_its_resources_once():
    """It cannot be shared: the claim with the smaller uid counts, the other is refused."""
    run = Run().each(
        [
            f.published(
                AT, 1, f.GPU, "g", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}}
            ),
            f.claim(AT, 2, "c", f.result(f.GPU, "g"), uid="u1", pods=("a",)),
            f.claim(AT, 3, "d", f.result(f.GPU, "g"), uid="u2", pods=("b",)),
            f.pod(AT, 4, "a", claims=("c",)),
            f.pod(AT, 5, "b", claims=("d",)),
        ]
    )

    assert {"cpu": 2} == run.requested("derived")
    assert ["u2"] == [contender for book, _, contender in run.refused() if book == "derived"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_every_book_gives_a_device_to_the_claim_that_a_pod_uses(order):
    """The other claim has the smaller uid and waits; in each book it is the one that is refused, and once its Pod is there too it is not."""
    facts = (
        f.published(AT, 1, f.GPU, "g", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}}),
        f.claim(AT, 2, "c", f.result(f.GPU, "g"), uid="u1", pods=("a",)),
        f.claim(AT, 3, "d", f.result(f.GPU, "g"), uid="u2", pods=("b",)),
        f.pod(AT, 4, "b", claims=("d",)),
    )
    run = Run().each([facts[place] for place in order])

    assert [("devices", "u1")] == [(book, contender) for book, _, contender in run.refused()]
    assert ["ml/d"] == holders_of(run, "g")
    assert {"cpu": 2} == run.requested("derived")

    run.step(f.pod(AT, 5, "a", claims=("c",)))

    assert {("devices", "u2"), ("derived", "u2")} == {(book, uid) for book, _, uid in run.refused()}
    assert ["ml/c"] == holders_of(run, "g")


def holders_of(run, device):
    """Whose a device is in the books of devices and counters."""
    return sorted(
        {
            f"{e.namespace}/{e.claim}"
            for (book, key), e in run.entries.items()
            if book in ("devices", "counters") and key.startswith("use/") and key.endswith(device)
        }
    )


def test_an_unknown_claim_stands_under_its_pod_and_never_under_the_name_alone():
    run = Run()
    for number, name in enumerate(("a", "b"), 1):
        run.step(
            f.pod(
                AT,
                number,
                name,
                node_allocatable=(f.entry("<extended-resources>", {"cpu": "1"}, shape="1.37"),),
            )
        )

    assert {"cpu": 2} == run.sums("recorded", "claims")
    assert [f"claim/?/ml/<extended-resources>/uid-{name}" for name in "ab"] == run.keys("recorded")
    assert [] == run.refused()


def test_the_claim_for_extended_resources_belongs_to_the_pod_whose_status_names_it():
    run = Run()
    run.step(
        f.published(AT, 1, f.GPU, "g", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}})
    )
    run.step(f.claim(AT, 2, "ext", f.result(f.GPU, "g"), extended_resource=True))
    run.step(f.pod(AT, 3, "a", extended_claim="ext"), f.pod(AT, 4, "b"))
    (entry,) = [e for (book, _), e in run.entries.items() if book == "derived"]

    assert "uid-a" == entry.pod_uid


def test_a_share_that_is_listed_twice_counts_once_in_the_book_and_in_the_comparison():
    run = derived({"d": _each({"cpu": "2"})}, [share("d", {}), share("d", {})])
    run.step(f.pod(AT, 50, "a", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "2"}),)))
    run.until(AT + f.MINUTE)

    assert {"cpu": 2} == run.sums("derived", "claims")
    assert {} == run.drifts()


@pytest.mark.parametrize("amount", ["-1", "2Ei"])
def test_an_amount_out_of_range_is_refused_wherever_it_stands_and_holds_the_node(amount):
    """Negative, or of 2^52 units or more; nothing unreadable is read as zero."""
    run = Run()
    run.step(f.node(AT, 1, memory="64Gi"), f.claim(AT, 2, "c", pods=("a",)))
    places = {
        "request": {"containers": (f.container("main", {"memory": amount}, "c"),)},
        "recorded": {"claims": ("c",), "node_allocatable": (f.entry("c", {"memory": amount}),)},
        "overhead": {
            "claims": ("c",),
            "node_allocatable": (f.entry("c", shape="1.37", per_pod={"memory": amount}),),
        },
    }
    for number, (place, made) in enumerate(places.items(), 3):
        run.step(f.pod(AT, number, "a", *made.pop("containers", ()), **made))

        assert {} == run.requested("recorded"), place
        assert ("shape_unknown", "ml/a") in run.holds(), place


def test_a_refused_request_does_not_come_back_by_the_rounding_of_its_pod():
    """-1 cpu is refused; the 4 of the claim count in full."""
    run = Run()
    run.step(f.claim(AT, 1, "c", pods=("a",)))
    own = f.container("main", {"cpu": "-1"}, "c")
    run.step(f.pod(AT, 2, "a", own, claims=("c",), node_allocatable=(f.entry("c", {"cpu": "4"}),)))

    assert {"cpu": 4} == run.requested("recorded")


def test_a_multiplier_that_could_not_be_read_is_not_one():
    """A shape that is not understood whole adds what it says, and where it says nothing, nothing."""
    run = derived(
        {"d": ("unknown", {"cpu": {}, "memory": {"allocationMultiplier": "1Gi"}})}, [share("d", {})]
    )

    assert {"memory": GI} == run.sums("derived", "claims")


# -- from when an entry counts


def spans(run):
    """Key to the intervals in which its entries stood, from the journal."""
    found = {}
    for decision in run.decisions:
        if decision.KIND == "entry_posted":
            found.setdefault((decision.entry.book, decision.entry.key), []).append(
                [decision.entry.at_ms, None]
            )
        elif decision.KIND == "entry_reversed":
            found[decision.entry.book, decision.entry.key][-1][1] = decision.at_ms
    return found


def test_a_claim_that_a_late_pod_takes_up_again_counts_once_at_every_instant():
    """Pod a ended at 200; that Pod b began at 150 is seen after that, and the claim is not borne twice in between."""
    run = Run().each(
        [
            f.claim(AT + 50, 1, "c", pods=("a", "b")),
            f.pod(AT + 100, 2, "a", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "2"}),)),
            f.pod_gone(AT + 200, 4, "a"),
            f.pod(AT + 150, 3, "b", claims=("c",), node_allocatable=(f.entry("c", {"cpu": "2"}),)),
        ]
    )

    assert [[AT + 100, AT + 200], [AT + 200, None]] == spans(run)["recorded", "claim/uid-c"]


def test_an_entry_does_not_begin_before_what_it_rests_on():
    """The claim of 100 is seen after the Pod of 300: its devices are held from 100, its Pod uses them from 300."""
    run = Run().each(
        [
            f.published(
                AT, 1, f.GPU, "g", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "2"}}
            ),
            f.pod(AT + 300, 3, "a", claims=("c",)),
            f.claim(AT + 100, 2, "c", f.result(f.GPU, "g"), pods=("a",)),
        ]
    )
    begun = {key: first for (book, key), [[first, _]] in spans(run).items() if book in ("derived", "devices")}

    assert AT + 100 == begun[f"use/{f.device_id(f.GPU, 'g')}"]
    assert [AT + 300] == [at_ms for key, at_ms in begun.items() if key.startswith("claim/")]
