"""What a Pod asks of its node: the sum that the scheduler makes, rule by rule, with Kubernetes' own figures."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from ingest.observe.pods import observe_pod
from sickbay.facts import Container, NodeAllocatableEntry, PodObserved
from streams.ledger.requests import pod_amounts, pod_requests, total_nano

SAMPLES = Path(__file__).parents[2] / "samples" / "pods"
UNIT = 10**9
MILLI = 10**6
KI, MI, GI = 2**10, 2**20, 2**30
HP = "hugepages-1Gi"
BOTH = pytest.mark.parametrize("shape", ["1.36", "1.37"])


def asks(name="c1", *, actuated=None, allocated=None, kind="regular", **requests):
    """A container; kinds are regular, init and sidecar."""
    return Container(
        name=name,
        init=kind != "regular",
        restartable=kind == "sidecar",
        requests=requests,
        actuated=actuated,
        allocated=allocated,
    )


def entry(shape="1.36", *, claim="claim", containers=("c1",), per_pod=None, per_container=None, **mapping):
    return NodeAllocatableEntry(
        claim=claim,
        shape=shape,
        containers=containers,
        mapping=mapping,
        per_pod=per_pod or {},
        per_container=per_container or {},
    )


def pod(*containers, entries=None, **members):
    return PodObserved(
        node="n1",
        observed_at_ms=0,
        epoch=0,
        rv="1",
        pod_uid="u1",
        namespace="ml",
        pod="p1",
        phase="Running",
        containers=containers,
        node_allocatable=None if entries is None else tuple(entries),
        **members,
    )


def requests_of(*containers, **members):
    """What the scheduler counts, in units."""
    return in_units(pod_requests(pod(*containers, **members)))


def in_units(nanos):
    return {resource: Fraction(nano, UNIT) for resource, nano in nanos.items()}


def cpu_of(*containers, **members):
    return requests_of(*containers, **members)["cpu"]


# --- Kubernetes' own figures -----------------------------------------------------------------------------------------

_TABLE = {
    "no claim": ([asks(cpu="100m", memory="1Gi")], [], {"cpu": Fraction("0.1"), "memory": GI}),
    "one claim on one container": (
        [asks(cpu="100m", memory="1Gi", **{HP: "2"})],
        [{"cpu": "50m", HP: "1"}],
        {"cpu": Fraction("0.15"), "memory": GI, HP: 3},
    ),
    "two claims on one container": (
        [asks(cpu="100m", memory="1Gi")],
        [{"cpu": "50m"}, {"cpu": "25m", "memory": "512Mi"}],
        {"cpu": Fraction("0.175"), "memory": GI + 512 * MI},
    ),
    "two containers share a claim": (
        [asks("c1", cpu="100m"), asks("c2", cpu="200m")],
        [{"cpu": "50m"}],
        {"cpu": Fraction("0.35")},
    ),
    "two containers and two claims": (
        [asks("c1", cpu="100m", **{HP: "1"}), asks("c2", cpu="200m", memory="1Gi", **{HP: "2"})],
        [{"cpu": "50m", HP: "1"}, {"cpu": "25m", "memory": "512Mi", HP: "2"}],
        {"cpu": Fraction("0.375"), "memory": GI + 512 * MI, HP: 6},
    ),
    "an init container uses the claim": (
        [asks("ic1", kind="init", cpu="100m"), asks("c1", cpu="50m")],
        [{"cpu": "25m"}],
        {"cpu": Fraction("0.125")},
    ),
}


@BOTH
@pytest.mark.parametrize("row", list(_TABLE))
def test_first_table_of_kubernetes_3_7_component_helpers(row, shape):
    """The rows of component-helpers' own test, under either shape of the entries."""
    containers, claims, expected = _TABLE[row]
    entries = [entry(shape, claim=f"claim-{n}", **mapping) for n, mapping in enumerate(claims)]

    assert expected == requests_of(*containers, entries=entries)


@BOTH
def test_first_table_of_kubernetes_3_7_with_the_gate_off(shape):
    """Without the gate the entry adds nothing: 100m stay 100m."""
    amounts = pod_amounts(pod(asks(cpu="100m"), entries=[entry(shape, cpu="50m")]))

    assert 100 * MILLI == total_nano(amounts, "cpu", 0)


@BOTH
def test_first_table_of_kubernetes_3_7_with_a_pod_level_request(shape):
    """It replaces the sum: 2 cpu though a container asks 1 and the claim 3; memory, which it does not name, is added up."""
    found = requests_of(
        asks(cpu="1", memory="1Gi"), pod_level_requests={"cpu": "2"}, entries=[entry(shape, cpu="3")]
    )

    assert {"cpu": 2, "memory": GI} == found


@BOTH
@pytest.mark.parametrize(
    ("containers", "claims", "expected"),
    [
        (
            [asks(cpu="100m", memory="100Mi")],
            [{"cpu": "4", "memory": "8Gi"}],
            {"cpu": Fraction("4.1"), "memory": 8 * GI + 100 * MI},
        ),
        (
            [asks("c1", cpu="100m", memory="1Gi"), asks("c2", cpu="200m", memory="2Gi")],
            [{"cpu": "10"}, {"cpu": "2", "memory": "4Gi"}],
            {"cpu": Fraction("12.3"), "memory": 7 * GI},
        ),
        ([asks(cpu="1")], [{"cpu": "4"}, {"cpu": "2"}, {"cpu": "2"}], {"cpu": 9}),
    ],
    ids=["spec and claim", "combined", "several claims"],
)
def test_figures_of_kep_5517(containers, claims, expected, shape):
    entries = [entry(shape, claim=f"claim-{n}", **mapping) for n, mapping in enumerate(claims)]

    assert expected == requests_of(*containers, entries=entries)


def test_overhead_of_kep_5517_counts_once_for_the_pod_and_for_each_container():
    """1Gi and 500Mi for each of two containers."""
    charged = entry(
        "1.37", containers=("c1", "c2"), per_pod={"memory": "1Gi"}, per_container={"memory": "500Mi"}
    )

    assert {"memory": GI + 1000 * MI} == requests_of(asks("c1"), asks("c2"), entries=[charged])


def test_a_container_named_twice_in_an_entry_counts_once():
    """The 1.36 scheduler writes a name once for each request of the claim; the 1.37 list is a set."""
    charged = entry("1.37", containers=("c1", "c1"), per_container={"memory": "500Mi"})

    assert {"memory": 500 * MI} == requests_of(asks(), entries=[charged])


SAMPLE_FIGURES = {
    "nar-status-136": {"cpu": 2},
    "nar-status-137-mapping": {"cpu": Fraction("4.1"), "memory": 8_694_792_192},
    "nar-status-137-overhead-two-containers": {"memory": 2_122_317_824},
    "nar-status-137-unreferenced-claim": {"memory": 1_073_741_824},
    "nar-status-cleared": {},
    "nar-status-placeholder-claim": {"cpu": 1},
    "nar-status-138-renamed": {"cpu": 10},
    "nar-pod-level-resources": {"cpu": Fraction("11.25"), "memory": 10_863_247_360},
}


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("nar-*.json")), ids=lambda path: path.stem)
def test_samples_ask_for_what_the_catalogue_of_samples_says(path):
    observed = observe_pod(json.loads(path.read_text())).fact

    assert SAMPLE_FIGURES[path.stem] == in_units(pod_requests(observed))


def test_every_figure_has_its_sample():
    assert set(SAMPLE_FIGURES) == {path.stem for path in SAMPLES.glob("nar-*.json")}


# --- init peak -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("init 4, regular 2", 4),
        ("init 1, regular 2, regular 3", 5),
        ("init 4, init 3, regular 2", 4),
        ("sidecar 1, init 4, regular 2", 5),  # the init container runs beside the sidecar
        ("init 4, sidecar 1, regular 2", 4),  # it is over when the sidecar starts
        ("init 3, sidecar 1, init 4, regular 2", 5),
        ("init 1, sidecar 1, regular 2", 3),
        ("sidecar 1, init 2, sidecar 3, regular 1", 5),  # all sidecars and containers; the peak was 4
        ("sidecar 1, sidecar 2, init 4, regular 2", 7),
        ("sidecar 2, sidecar 3, regular 0", 5),
        ("sidecar 1, init 5, sidecar 9, regular 1", 11),
    ],
)
@BOTH
def test_init_containers_count_by_their_peak_beside_the_sidecars_before_them(steps, expected, shape):
    containers = []
    for step in steps.split(", "):
        kind, cpu = step.split(" ")
        containers.append(asks(f"c{len(containers)}", kind=kind, cpu=cpu))

    assert expected == cpu_of(*containers, entries=[entry(shape, cpu="0")])


def test_the_peak_is_taken_resource_by_resource():
    """Cpu from the init container, memory from the others."""
    found = requests_of(asks("i", kind="init", cpu="4", memory="1Gi"), asks("c", cpu="1", memory="2Gi"))

    assert {"cpu": 4, "memory": 2 * GI} == found


# --- in-place resize -------------------------------------------------------------------------------------------------


def resizing(asked, allocated, actuated, *, kind="regular", name="c1"):
    return asks(name, kind=kind, cpu=asked, allocated={"cpu": allocated}, actuated={"cpu": actuated})


@pytest.mark.parametrize(
    ("words", "resize", "expected"),
    [
        (("3", "1", "1"), "", 3),  # up, asked for
        (("3", "1", "1"), "Deferred", 3),
        (("3", "1", "1"), "Infeasible", 1),  # never to be: what is asked takes no part
        (("3", "3", "1"), "", 3),  # up, allocated
        (("1", "3", "3"), "", 3),  # down, asked for
        (("1", "1", "3"), "", 3),  # down, allocated and not yet actuated
        (("1", "1", "3"), "Infeasible", 3),
        (("1", "2", "3"), "Deferred", 3),
        (("1", "3", "1"), "", 3),  # asked for up and down again, before it was actuated
        (("9", "2", "1"), "Infeasible", 2),
    ],
)
@pytest.mark.parametrize("kind", ["regular", "sidecar"])
@BOTH
def test_the_largest_of_asked_allocated_and_actuated_counts(words, resize, expected, kind, shape):
    found = cpu_of(resizing(*words, kind=kind), resize=resize, entries=[entry(shape, cpu="0")])

    assert expected == found


@pytest.mark.parametrize(("shape", "expected"), [("1.36", 4), ("1.37", 3)])
def test_a_resize_of_two_containers_at_once(shape, expected):
    """Asked 1 and 2, allocated 2 and 1: 1.36 adds the larger of each, 1.37 takes the larger sum (k/k#140046)."""
    containers = resizing("1", "2", "2", name="c1"), resizing("2", "1", "1", name="c2")

    assert expected == cpu_of(*containers, entries=[entry(shape, cpu="0")])


def test_a_pod_without_entries_counts_by_the_rule_that_counts_more():
    containers = resizing("1", "2", "2", name="c1"), resizing("2", "1", "1", name="c2")

    assert 4 == cpu_of(*containers)
    assert 4 == cpu_of(*containers, entries=[])


@pytest.mark.parametrize(("shape", "expected"), [("1.36", 1), ("1.37", 3)])
def test_status_of_an_init_container_that_is_no_sidecar(shape, expected):
    """1.36 takes its request alone; 1.37 makes no difference."""
    containers = resizing("1", "1", "3", kind="init", name="i"), asks("c")

    assert expected == cpu_of(*containers, entries=[entry(shape, cpu="0")])


@pytest.mark.parametrize(
    ("shape", "resize", "expected"),
    [("1.36", "", 1), ("1.36", "Infeasible", 1), ("1.37", "", 3), ("1.37", "Infeasible", 3)],
)
def test_a_container_whose_status_shows_no_resources(shape, resize, expected):
    """1.36 then takes what is asked, whatever is allocated; 1.37 takes what is allocated as actuated."""
    container = asks(cpu="1", allocated={"cpu": "3"})

    assert expected == cpu_of(container, resize=resize, entries=[entry(shape, cpu="0")])


@pytest.mark.parametrize(("shape", "expected"), [("1.36", 2), ("1.37", 0)])
def test_a_container_without_any_status_in_an_infeasible_resize(shape, expected):
    assert expected == cpu_of(asks(cpu="2"), resize="Infeasible", entries=[entry(shape, cpu="0")])


@pytest.mark.parametrize(
    ("words", "resize", "shape", "expected"),
    [
        (("1", "1", "5"), "", "1.36", 9),  # the 1.36 kubelet actuates no DRA amount: it comes on top
        (("1", "1", "5"), "", "1.37", 5),  # the 1.37 kubelet actuates it: 1 and 4
        (("1", "1", "7"), "", "1.37", 7),  # from 3 down to 1, not yet actuated
        (("1", "3", "5"), "", "1.37", 7),  # what is allocated has no DRA amount
        (("9", "1", "5"), "", "1.37", 13),
        (("9", "1", "5"), "Infeasible", "1.37", 5),
        (("9", "1", "6"), "Infeasible", "1.37", 6),
    ],
)
def test_what_is_actuated_has_the_dra_amounts_in_the_later_shape(words, resize, shape, expected):
    """A claim of 4 cpu."""
    assert expected == cpu_of(resizing(*words), resize=resize, entries=[entry(shape, cpu="4")])


def test_what_is_not_actuated_is_summed_as_allocated_in_the_later_shape():
    """Actuated 3 of allocated 1, and allocated 3 of which nothing is actuated yet: 6, though 4 are allocated in all."""
    containers = resizing("1", "1", "3"), asks("c2", cpu="1", allocated={"cpu": "3"})

    assert 6 == cpu_of(*containers, entries=[entry("1.37", cpu="0")])


def test_a_resource_that_is_actuated_alone_counts_until_it_is_given_back():
    """A request taken away altogether, in the later shape."""
    container = asks(memory="1Gi", allocated={"memory": "1Gi"}, actuated={"memory": "1Gi", "cpu": "2"})

    assert {"memory": GI, "cpu": 2} == requests_of(container, entries=[entry("1.37")])


def test_component_helpers_1_37_memory_resize_with_a_shared_claim():
    """c1 goes from 2Gi to 4Gi, c2 has 2Gi, each pays 1Gi overhead: 8Gi."""
    found = requests_of(
        asks("c1", memory="4Gi", allocated={"memory": "4Gi"}, actuated={"memory": "2Gi"}),
        asks("c2", memory="2Gi", allocated={"memory": "2Gi"}, actuated={"memory": "2Gi"}),
        entries=[entry("1.37", containers=("c1", "c2"), per_container={"memory": "1Gi"})],
    )

    assert {"memory": 8 * GI} == found


def test_a_shape_that_is_not_known_counts_as_a_later_one():
    """One such entry among others is enough."""
    entries = [entry("1.36", cpu="1"), entry("unknown", claim="other", cpu="3")]

    assert 5 == cpu_of(resizing("1", "1", "5"), entries=entries)


# --- Pod-level requests, overhead ------------------------------------------------------------------------------------


@BOTH
def test_a_pod_level_request_stands_for_cpu_memory_and_hugepages_only(shape):
    """Ephemeral storage is added up, whatever the Pod says of it."""
    level = {"cpu": "5", "memory": "1Gi", HP: "2Gi", "ephemeral-storage": "1"}
    asked = {"cpu": "1", "memory": "3Gi", HP: "1Gi", "ephemeral-storage": "4Gi"}
    found = pod(
        asks(**asked), pod_level_requests=level, entries=[entry(shape, **{"ephemeral-storage": "1Gi"})]
    )

    assert {"cpu", "memory", HP} == pod_amounts(found).covered
    assert {"cpu": 5, "memory": GI, HP: 2 * GI, "ephemeral-storage": 5 * GI} == in_units(pod_requests(found))


def test_a_pod_level_request_stands_for_what_is_actuated_too():
    """The containers' floor says nothing where the Pod-level request counts."""
    found = pod(resizing("1", "1", "9"), pod_level_requests={"cpu": "5"}, entries=[entry("1.37", cpu="4")])

    assert ({}, {"cpu": 5 * UNIT}) == (pod_amounts(found).floor, pod_requests(found))


@pytest.mark.parametrize("level", [None, {}])
def test_without_a_pod_level_request_nothing_is_covered(level):
    amounts = pod_amounts(pod(asks(cpu="1"), pod_level_requests=level))

    assert (frozenset(), UNIT) == (amounts.covered, amounts.own["cpu"])


@BOTH
def test_pod_overhead_comes_on_top_of_the_larger_of_all(shape):
    """It is not part of what is compared: max(1, 4) and a quarter."""
    containers = asks("i", kind="init", cpu="4"), asks("c", cpu="1")

    assert Fraction("4.25") == cpu_of(*containers, overhead={"cpu": "250m"}, entries=[entry(shape, cpu="0")])


def test_pod_overhead_alone_counts():
    assert {"memory": 120 * MI} == requests_of(asks(), overhead={"memory": "120Mi"})


@pytest.mark.case("C40")
def test_c40_overhead_counts_once_though_the_status_has_it_already():
    """The kubelet writes Pod-level status with the overhead inside: 11 and 250m, 10Gi and 120Mi."""
    raw = json.loads((SAMPLES / "nar-pod-level-resources.json").read_text())
    with_overhead = {"cpu": "11250m", "memory": "10360Mi"}
    raw["status"]["resources"] = {"requests": dict(with_overhead)}
    raw["status"]["allocatedResources"] = dict(with_overhead)

    found = pod_requests(observe_pod(raw).fact)

    assert {"cpu": Fraction("11.25"), "memory": 10 * GI + 120 * MI} == in_units(found)


@pytest.mark.parametrize(
    ("resize", "expected"),
    [("", 8), ("Deferred", 8), ("Infeasible", 6)],
)
def test_while_a_pod_level_resize_is_under_way_the_largest_word_counts(resize, expected):
    """Asked 8, actuated 4, allocated 6; an infeasible resize does not count as asked."""
    found = pod(
        asks(cpu="1"), pod_level_requests={"cpu": "8"}, pod_level_actuated={"cpu": "4"},
        pod_level_allocated={"cpu": "6"}, resize=resize,
    )  # fmt: skip

    assert {"cpu": expected * UNIT} == pod_requests(found)


def test_a_pod_level_resize_downwards_counts_what_is_still_actuated():
    """Asked 2, still actuated 8 and a quarter of overhead, which is counted once."""
    found = pod(
        asks(cpu="1"), pod_level_requests={"cpu": "2"}, pod_level_actuated={"cpu": "8250m"},
        pod_level_allocated={"cpu": "2250m"}, overhead={"cpu": "250m"},
    )  # fmt: skip

    assert {"cpu": 8 * UNIT + 250 * MILLI} == pod_requests(found)


# --- rounding, and what is not counted -------------------------------------------------------------------------------


def test_cpu_finer_than_a_millicore_is_rounded_up_once_for_the_pod():
    """100m times 0.0001 is a hundredth of a millicore; two such claims are one millicore together, not two."""
    amounts = pod_amounts(pod(asks(cpu="100m")))
    one = Fraction(100 * MILLI) * Fraction("0.0001")

    assert (101 * MILLI, 101 * MILLI) == (
        total_nano(amounts, "cpu", one), total_nano(amounts, "cpu", one + one),
    )  # fmt: skip
    entries = [entry("1.37", claim=claim, cpu="10u") for claim in ("one", "two")]
    assert Fraction("0.101") == cpu_of(asks(cpu="100m"), entries=entries)


def test_amounts_finer_than_a_nano_unit_are_not_lost():
    """Three thirds of a millicore make one; a little more makes two."""
    amounts = pod_amounts(pod(asks()))
    third = Fraction(MILLI, 3)

    assert (MILLI, 2 * MILLI) == (
        total_nano(amounts, "cpu", 3 * third), total_nano(amounts, "cpu", 3 * third + Fraction(1, 10**6)),
    )  # fmt: skip


def test_thousandths_of_a_byte_are_rounded_up_once_for_the_pod():
    """Two containers of a byte and a half ask for three bytes, and a tenth of a byte of overhead makes it four."""
    containers = asks("c1", memory="1500m"), asks("c2", memory="1500m")

    assert ({"memory": 3}, {"memory": 4}) == (
        requests_of(*containers), requests_of(*containers, overhead={"memory": "100m"}),
    )  # fmt: skip


def test_overhead_is_part_of_the_sum_that_is_rounded():
    """Half a millicore asked and half a millicore of overhead are one."""
    assert Fraction("0.001") == cpu_of(asks(cpu="500u"), overhead={"cpu": "500u"})


def test_other_resources_are_not_counted():
    """Devices and Pods have no place here, wherever they are written."""
    other = {"example.com/gpu": "1", "pods": "1", "storage": "1"}
    found = pod(
        asks(cpu="1", **other),
        overhead=dict(other),
        pod_level_requests=dict(other),
        entries=[entry("1.37", per_pod=dict(other), per_container=dict(other), **other)],
    )

    assert ({"cpu": UNIT}, frozenset()) == (pod_requests(found), pod_amounts(found).covered)


def test_a_negative_request_stays_negative_for_the_caller_to_refuse():
    assert -UNIT == pod_amounts(pod(asks(cpu="-1"))).own["cpu"]
