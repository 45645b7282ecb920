"""Single fields that no sample shows: declarations, resize, actuated amounts, odd shapes."""

from typing import Any

import pytest

from ingest.observe import observe_claim, observe_node, observe_pod, observe_slice, pod_fingerprint
from ingest.observe.numa import read_numa
from sickbay.errors import ObjectError
from sickbay.facts import NumaAffinity, PodObserved, Scalar
from sickbay.policy import ReadingPolicy

STANDARD = "resource.kubernetes.io/numaNode"


def pod(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "p", "resourceVersion": "5", **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}], **(spec or {})},
        "status": {"phase": "Running", **(status or {})},
    }


def fact(raw: dict[str, Any]) -> PodObserved:
    return observe_pod(raw, at_ms=7, epoch=2).fact


def test_time_and_epoch_are_the_callers() -> None:
    """An observation carries the moment it is given and the object's version."""
    seen = fact(pod())
    assert (7, 2, 5) == (seen.observed_at_ms, seen.epoch, seen.rv)


@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_workload_declares_itself_by_label_or_annotation(place: str) -> None:
    """What a mover may do is the workload's own word."""
    declared = {"sickbay.dev/ability": "checkpoint", "sickbay.dev/topology": "shardable"}
    seen = fact(pod(**{place: declared}))
    assert ("checkpoint", "shardable") == (seen.ability, seen.topology)


def test_unknown_declaration_is_refused_and_declares_nothing() -> None:
    """A misspelt class is no class."""
    seen = fact(
        pod(labels={"sickbay.dev/ability": "Checkpoint"}, annotations={"sickbay.dev/ability": "restartable"})
    )
    assert ("", 1) == (seen.ability, len(seen.refused))


def test_owner_is_the_controller() -> None:
    """Only the controlling reference counts."""
    owners = [{"kind": "Node", "name": "x"}, {"kind": "Job", "name": "train", "controller": True}]
    assert "Job/train" == fact(pod(ownerReferences=owners)).owner
    assert "" == fact(pod(ownerReferences=owners[:1])).owner


def test_waiting_resize_is_kept_with_its_reason() -> None:
    """Infeasible changes how the scheduler counts; the condition is 1.33 on, the field was before."""
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    assert "Infeasible" == fact(pod(status={"conditions": [{"type": "Ready"}, condition]})).resize
    assert "Deferred" == fact(pod(status={"resize": "Deferred"})).resize
    assert "" == fact(pod(status={"conditions": [{**condition, "status": "False"}]})).resize
    assert pod_fingerprint(pod()) != pod_fingerprint(pod(status={"conditions": [condition]}))


def test_actuated_and_allocated_amounts_stand_beside_the_wanted_ones() -> None:
    """Absent is None, present is what the status says."""
    spec = {
        "containers": [{"name": "b", "resources": {"requests": {"cpu": "1"}}}, {"name": "a"}],
        "priority": 9,
    }
    status = {
        "containerStatuses": [
            {"name": "b", "resources": {"requests": {"cpu": "1500m"}}, "allocatedResources": {"cpu": "2"}}
        ]
    }
    seen = fact(pod(spec, status))
    first, second = seen.containers
    assert ("a", None, None) == (first.name, first.actuated, first.allocated)
    assert ({"cpu": "1"}, {"cpu": "1500m"}, {"cpu": "2"}) == (
        second.requests,
        second.actuated,
        second.allocated,
    )
    assert 9 == seen.priority


def test_init_containers_keep_their_order() -> None:
    """The peak of init containers depends on it; the order of the others means nothing."""
    spec = {"initContainers": [{"name": "z"}, {"name": "a"}], "containers": [{"name": "y"}, {"name": "b"}]}
    assert ["z", "a", "b", "y"] == [container.name for container in fact(pod(spec)).containers]


@pytest.mark.parametrize(
    ("entry", "shape", "unread"),
    [
        ({"resources": {"cpu": "1"}, "mapping": []}, "unknown", ".resources (beside mapping or overhead)"),
        ({"mapping": [{"name": "cpu", "quantity": "1", "perDevice": "2"}]}, "1.37", ".mapping[0].perDevice"),
        ({"overhead": [{"name": "cpu", "perDevice": "2"}]}, "1.37", ".overhead[0].perDevice"),
        ({"resources": {"cpu": "1K"}}, "1.36", ".resources[cpu]"),
        ({"mapping": [{"quantity": "1"}]}, "1.37", ".mapping[0].name"),
        ({"mapping": [{"name": "cpu", "quantity": "1"}] * 2}, "1.37", ".mapping[1].quantity"),
        ({"resources": {"cpu": "1"}, "later": 1}, "1.36", ".later"),
    ],
)
def test_entry_that_is_not_understood_whole_says_so(entry: dict[str, Any], shape: str, unread: str) -> None:
    """A member that is not read, or an amount that cannot be, is named and never zero in silence."""
    status = {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c", **entry}]}
    (found,) = fact(pod(status=status)).node_allocatable or ()
    assert shape == found.shape
    assert [True] == [f"Statuses[0]{unread}" in line for line in found.unknown_fields]


def test_an_entry_that_lost_its_amounts_with_an_upgrade_is_understood() -> None:
    """A 1.37 API server reads so what the scheduler of 1.36 recorded."""
    status = {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c", "containers": ["main"]}]}
    (found,) = fact(pod(status=status)).node_allocatable or ()
    assert ("1.37", {}, ()) == (found.shape, found.mapping, found.unknown_fields)


@pytest.mark.parametrize(
    ("device", "shape"),
    [
        ({"nodeAllocatableResourceMappings": {"cpu": {}}}, "1.36"),
        ({"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "x"}}}, "unknown"),
        ({"nodeAllocatableResourceMappings": {"cpu": {"later": "1"}}}, "unknown"),
        ({"nodeAllocatableResources": {"cpu": {}}}, "unknown"),
        ({"nodeAllocatableResources": {"cpu": {"mapping": {"later": "1"}}}}, "unknown"),
        ({"nodeAllocatableResources": {"cpu": "1"}}, "unknown"),
        ({"nodeAllocatableResources": {}, "nodeAllocatableResourceMappings": {}}, "unknown"),
        ({"nodeAllocatableResources": None}, None),
    ],
)
def test_device_mapping_of_another_shape_is_unknown(device: dict[str, Any], shape: str | None) -> None:
    """Only what is read whole has a shape; an unknown member is never a mapping of one."""
    found = _slice(device).devices[0].fact
    assert shape == found.node_allocatable_shape
    assert ("later" in str(device)) == any("later" in path for path in found.unknown_fields)


@pytest.mark.parametrize(
    ("key", "capacity", "spelling"),
    [
        ("cores", "cores", None),
        ("drv/cores", "drv/cores", None),
        ("drv/cores", "cores", "drv/cores"),
        ("cores", "drv/cores", "cores"),
        ("cores", "other/cores", None),
        ("cores", "memory", None),
    ],
)
@pytest.mark.parametrize("shape", ["1.36", "1.37"])
def test_a_capacity_key_spelled_otherwise_than_its_capacity_says_so(
    key: str, capacity: str, spelling: str | None, shape: str
) -> None:
    """A bare name and the driver's own name are one capacity, and two texts to the scheduler of 1.36."""
    entry = (
        {"nodeAllocatableResourceMappings": {"cpu": {"capacityKey": key}}}
        if shape == "1.36"
        else {"nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": key}}}}
    )
    found = _slice({"capacity": {capacity: {"value": "4"}}, **entry}).devices[0].fact
    members = {"capacityKey": "drv/cores"} | ({"capacityKeySpelling": spelling} if spelling else {})
    assert (shape, {"cpu": members}) == (found.node_allocatable_shape, found.node_allocatable)


@pytest.mark.parametrize("capacity", [None, {}, [], "x"])
def test_a_capacity_key_of_a_device_without_capacity_is_only_not_there(capacity: Any) -> None:
    """Nothing is spelled otherwise where there is nothing."""
    mapping = {"nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "cores"}}}
    found = _slice({"capacity": capacity, **mapping}).devices[0].fact
    assert {"cpu": {"capacityKey": "drv/cores"}} == found.node_allocatable


def test_a_node_keeps_the_labels_that_the_policy_names() -> None:
    """Those under our own domain, which hold the rollout class, are kept without being named; others are not."""
    labels = {"sickbay.dev/rollout": "canary", "example.com/tier": "early", "example.com/owner": "ann"}
    raw = {**pod({}), "metadata": {**pod({})["metadata"], "labels": labels}}
    own = {"sickbay.dev/rollout": "canary"}
    assert own == observe_node(raw).fact.labels
    assert own == observe_node(raw, ReadingPolicy()).fact.labels
    named = ReadingPolicy(node_labels=("example.com/tier",))
    assert own | {"example.com/tier": "early"} == observe_node(raw, named).fact.labels


def _slice(device: dict[str, Any]) -> Any:
    return observe_slice(
        {
            "metadata": {"name": "s", "uid": "s", "resourceVersion": "5"},
            "spec": {"driver": "drv", "pool": {"name": "p"}, "devices": [{"name": "d", **device}]},
        }
    )


@pytest.mark.parametrize(
    ("attribute", "kept"),
    [
        ({"string": "x"}, "x"),
        ({"ints": [1, 2]}, (1, 2)),
        ({"int": 1, "string": "x"}, None),
        ({"int": True}, None),
        ({"int": 2**63}, None),
        ({"bool": 1}, None),
        ({"strings": ["x", 1]}, None),
        ({"quaternion": 1}, None),
        ({"string": None}, None),
        ("x", None),
    ],
)
def test_attribute_has_one_value_of_its_type(attribute: Any, kept: Any) -> None:
    """Anything else is left out, and named unless it is simply empty."""
    found = _slice({"attributes": {"k": attribute}}).devices[0].fact
    assert kept == found.attributes.get("drv/k")
    silent = kept is not None or attribute == {"string": None}
    assert silent == (found.unknown_fields == ())


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"alias": 1, STANDARD: 0},
            NumaAffinity(nodes=(0,), physical=0, sources=(STANDARD, "alias"), conflict=True),
        ),
        ({"alias": 1, STANDARD: (0, 1)}, NumaAffinity(nodes=(0, 1), physical=0, sources=(STANDARD, "alias"))),
        ({"alias": 1, STANDARD: -1}, NumaAffinity(nodes=(1,), physical=1, sources=(STANDARD, "alias"))),
        ({"alias": "1"}, NumaAffinity(sources=("alias",))),
        ({"alias": True}, NumaAffinity(sources=("alias",))),
        ({"alias": (0, -1)}, NumaAffinity(sources=("alias",))),
        ({"alias": 5000}, NumaAffinity(sources=("alias",))),
        ({"other": 1}, NumaAffinity()),
    ],
)
def test_standard_attribute_speaks_first(
    attributes: dict[str, Scalar | tuple[Scalar, ...]], expected: NumaAffinity
) -> None:
    """It wins whatever the policy's order, and even when the policy does not list it."""
    for names in (("alias",), ("alias", STANDARD)):
        assert expected == read_numa(attributes, ReadingPolicy(numa_attributes=names))


def test_decimal_text_names_a_node_only_by_rule() -> None:
    """Text is read where the policy says so, and only whole decimal numbers."""
    policy = ReadingPolicy(numa_from_text=True)
    assert (1,) == read_numa({STANDARD: "1"}, policy).nodes
    assert () == read_numa({STANDARD: ""}, policy).nodes
    assert () == read_numa({STANDARD: "-1"}, policy).nodes


@pytest.mark.parametrize("value", [None, [], {}])
def test_empty_parts_are_tolerated_everywhere(value: Any) -> None:
    """Null, empty and absent are one."""
    raw = pod(
        {"containers": value, "initContainers": value, "resourceClaims": value, "overhead": value or None}
    )
    raw["spec"] = {key: item for key, item in raw["spec"].items() if not isinstance(item, dict)}
    assert () == fact(raw).containers
    claim = {**raw, "status": {"allocation": None, "reservedFor": value, "devices": None}}
    assert () == observe_claim(claim).fact.results
    node = {"metadata": raw["metadata"], "spec": None, "status": None}
    assert ("Unknown", {}) == (observe_node(node).fact.ready, observe_node(node).fact.capacity)


def test_refusals_of_one_object_are_bounded() -> None:
    """A thousand bad amounts do not make a thousand lines."""
    requests = {f"r{index}": "bad" for index in range(1000)}
    seen = fact(pod({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
    assert 65 == len(seen.refused)


@pytest.mark.parametrize("missing", ["driver", "pool"])
def test_slice_without_a_pool_is_no_slice(missing: str) -> None:
    """Driver and pool are a slice's place; without them it belongs nowhere."""
    spec = {"driver": "drv", "pool": {"name": "p"}}
    del spec[missing]
    with pytest.raises(ObjectError, match=r"spec\.driver and spec\.pool\.name"):
        observe_slice({"metadata": {"name": "s", "uid": "s", "resourceVersion": "5"}, "spec": spec})
