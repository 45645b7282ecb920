"""What a claim asks of its devices' attributes: only a form that cannot be misread names a number."""

from typing import Any

import pytest

from ingest.observe import claim_fingerprint, observe_claim
from ingest.observe.requests import attribute_numbers
from sickbay.facts import ClaimObserved, Selected, Together

NUMA = "resource.kubernetes.io/numaNode"
ZERO = 'device.attributes["resource.kubernetes.io"].numaNode == 0'


def claim(
    requests: Any = None, constraints: Any = None, results: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "ml", "uid": "u-c", "resourceVersion": "5"},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }


def observed(*parts: Any, **named: Any) -> ClaimObserved:
    return observe_claim(claim(*parts, **named)).fact


def result(request: str) -> dict[str, Any]:
    return {"request": request, "driver": "drv", "pool": "n1", "device": "d0"}


def selectors(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (ZERO, ((NUMA, 0),)),
        ('device.attributes["dra.cpu"]["numaNodeID"] == 1', (("dra.cpu/numaNodeID", 1),)),
        ("device.attributes['dra.cpu']['numaNodeID'] == 1", (("dra.cpu/numaNodeID", 1),)),
        ('1 == device.attributes["dra.cpu"].numaNodeID', (("dra.cpu/numaNodeID", 1),)),
        ('\n device . attributes [ "a.b" ] . c\t==\n-1 ', (("a.b/c", -1),)),
        ('device.attributes["a"].b==0&&1==device.attributes["c"]["d"]', (("a/b", 0), ("c/d", 1))),
        ('device.attributes["a"].b == 9223372036854775807', (("a/b", 2**63 - 1),)),
        ('device.attributes["a"].b == 9223372036854775808', ()),
        ('device.attributes["a"].b == 0 || true', ()),
        ('device.attributes["a"].b == 0 && device.driver == "x"', ()),
        ('device.attributes["a"].b == 0 &&', ()),
        ('&& device.attributes["a"].b == 0', ()),
        ('(device.attributes["a"].b == 0)', ()),
        ('!(device.attributes["a"].b == 0)', ()),
        ('device.attributes["a"].b == 0 ? true : false', ()),
        ('device.attributes["a"].b == 0u', ()),
        ('device.attributes["a"].b == 0.5', ()),
        ('device.attributes["a"].b == 0x1', ()),
        ('device.attributes["a"].b == "0"', ()),
        ('device.attributes["a"].b >= 0', ()),
        ('device.attributes["a"].b != 0', ()),
        ('device.attributes["a"].b in [0]', ()),
        ('device.attributes["a"].b == 0 // but not 1', ()),
        ('device.attributes["a"].?b == 0', ()),
        ('device.attributes["a\\"].b == 0', ()),
        ('device.capacity["a"].b == 0', ()),
        ('mydevice.attributes["a"].b == 0', ()),
        ("0 == 0", ()),
        ("", ()),
    ],
)
def test_only_plain_comparisons_with_a_number_name_something(
    expression: str, found: tuple[tuple[str, int], ...]
) -> None:
    """All of an expression has the form, or nothing is taken from it."""
    assert found == attribute_numbers(expression)


@pytest.mark.parametrize(
    "expression",
    [
        " " * 300_000,
        'device.attributes["' + "a" * 300_000,
        'device.attributes["a"].' + "b" * 150_000 + " " * 150_000 + "!",
        'device.attributes["a"].b == 0 && ' * 10_000,
        "0" * 300_000,
    ],
    ids=["blanks", "domain", "name", "terms", "digits"],
)
def test_a_long_expression_is_given_up_in_one_pass(expression: str) -> None:
    """A text that is looked at again from each of its places would take hours here."""
    assert () == attribute_numbers(expression)


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "cores", "exactly": {"deviceClassName": "cpu", "selectors": selectors(ZERO)}},
        {"name": "cores", "deviceClassName": "cpu", "selectors": selectors(ZERO)},
    ],
    ids=["v1 and v1beta2", "v1beta1"],
)
def test_a_selector_is_read_where_each_version_keeps_it(request_: dict[str, Any]) -> None:
    """The request is named as the claim names it, allocated or not."""
    expected = (Selected(request="cores", attribute=NUMA, value=0),)
    assert expected == observed([request_]).selected
    assert expected == observed([request_], results=[result("cores")]).selected


def test_several_selectors_of_a_request_all_count_once() -> None:
    """They are joined like the terms of one expression; requests keep theirs apart, in one order."""
    both = {"exactly": {"selectors": selectors(ZERO, "false", f'device.attributes["a"].b == 2 && {ZERO}')}}
    fact = observed([{"name": "r2", **both}, {"name": "r1", "exactly": {"selectors": selectors(ZERO)}}])
    assert (
        Selected(request="r1", attribute=NUMA, value=0),
        Selected(request="r2", attribute="a/b", value=2),
        Selected(request="r2", attribute=NUMA, value=0),
    ) == fact.selected


@pytest.mark.parametrize(
    ("allocated", "selected"),
    [
        ("gpu/large", (Selected(request="gpu/large", attribute=NUMA, value=0),)),
        ("gpu/small", (Selected(request="gpu/small", attribute=NUMA, value=1),)),
        ("gpu/other", ()),
        ("nic", ()),
    ],
)
def test_of_alternatives_only_the_allocated_one_asked_for_anything(
    allocated: str, selected: tuple[Selected, ...]
) -> None:
    """What another alternative would have asked for does not concern the devices that were given."""
    alternatives = [
        {"name": "large", "selectors": selectors(ZERO)},
        {"name": "small", "selectors": selectors(ZERO.replace("0", "1"))},
    ]
    request = {"name": "gpu", "firstAvailable": alternatives}
    assert selected == observed([request], results=[result(allocated)]).selected
    assert () == observed([request]).selected


def test_a_match_attribute_is_kept_with_its_requests() -> None:
    """No request means all of them; the order of constraints and requests means nothing."""
    constraints = [
        {"matchAttribute": NUMA, "requests": ["nic", "gpu/large"]},
        {"matchAttribute": "dra.cpu/numaNodeID"},
        {"matchAttribute": NUMA, "requests": ["gpu/large", "nic"]},
    ]
    expected = (
        Together(attribute="dra.cpu/numaNodeID"),
        Together(attribute=NUMA, requests=("gpu/large", "nic")),
    )
    assert expected == observed(constraints=constraints).together
    assert expected == observed(constraints=constraints[::-1]).together


def test_another_kind_of_constraint_is_no_match() -> None:
    """``distinctAttribute`` asks for the opposite."""
    assert () == observed(constraints=[{"distinctAttribute": NUMA}]).together


@pytest.mark.parametrize("attribute", ["numaNode", "/numaNode", "resource.kubernetes.io/", 7])
def test_a_match_attribute_without_a_domain_is_refused(attribute: Any) -> None:
    """It is fully qualified in the API: a bare name belongs to no driver here."""
    fact = observed(constraints=[{"matchAttribute": attribute}])
    assert () == fact.together
    assert ["spec.devices.constraints[0].matchAttribute"] == [line.split(": ")[0] for line in fact.refused]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("x", "spec"),
        ({"devices": "x"}, "spec.devices"),
        ({"devices": {"requests": "x"}}, "spec.devices.requests"),
        (
            {"devices": {"requests": [{"name": "r", "exactly": "x"}]}},
            "spec.devices.requests[0].exactly",
        ),
        (
            {"devices": {"requests": [{"name": "r", "firstAvailable": "x"}]}},
            "spec.devices.requests[0].firstAvailable",
        ),
        (
            {"devices": {"requests": [{"name": "r", "selectors": [{"cel": "x"}]}]}},
            "spec.devices.requests[0].selectors[0].cel",
        ),
        (
            {"devices": {"requests": [{"name": "r", "selectors": [{"cel": {"expression": 1}}]}]}},
            "spec.devices.requests[0].selectors[0].cel.expression",
        ),
    ],
)
def test_a_part_of_another_type_is_refused_alone(spec: Any, path: str) -> None:
    """The claim is read all the same: what it holds is in its status."""
    fact = observe_claim({**claim(results=[result("r")]), "spec": spec}).fact
    assert (1, (), ()) == (len(fact.results), fact.together, fact.selected)
    assert [path] == [line.split(": ")[0] for line in fact.refused]


@pytest.mark.parametrize(
    "changed",
    [
        claim([{"name": "r", "exactly": {"selectors": selectors(ZERO)}}]),
        claim([{"name": "r"}], constraints=[{"matchAttribute": NUMA}]),
        {**claim(), "spec": "x"},
        {**claim(), "spec": {"devices": "x"}},
    ],
)
def test_another_wish_has_another_fingerprint(changed: dict[str, Any]) -> None:
    """What is read is looked at again when it changes."""
    assert claim_fingerprint(claim([{"name": "r"}])) != claim_fingerprint(changed)
