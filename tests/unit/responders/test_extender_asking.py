"""What a Pod asks for, as Kubernetes adds it up."""

from __future__ import annotations

import json

import pytest
from extender_worlds import GPU, pod

from responders.extender.asking import devices_of, is_extended, read_pod
from sickbay.errors import InputError
from sickbay.facts import Container

MIB = 1 << 20
NANO = 10**9


def asked(**spec):
    return read_pod(json.dumps({"metadata": {"name": "p", "namespace": "ml"}, "spec": spec}).encode())


def container(restart=None, **requests):
    requests = {name.replace("__", "/").replace("_", "."): text for name, text in requests.items()}
    return {"name": "c", "resources": {"requests": requests}} | (
        {"restartPolicy": restart} if restart else {}
    )


def test_containers_and_sidecars_add_up_and_an_init_container_counts_by_its_peak():
    found = asked(
        initContainers=[
            container("Always", cpu="1"),  # a sidecar: it runs on beside everything
            container(cpu="5"),  # with the sidecar before it: 6
            container("Always", cpu="2"),
            container(cpu="2"),  # with both: 5
        ],
        containers=[container(cpu="1500m"), container(cpu="1")],
    )
    assert found.own_nano == {"cpu": 6 * NANO}
    found = asked(
        initContainers=[container("Always", cpu="1"), container(cpu="1")], containers=[container(cpu="3")]
    )
    assert found.own_nano == {"cpu": 4 * NANO}


def test_devices_follow_the_same_rule_and_only_extended_resources_are_devices():
    found = asked(
        initContainers=[container(nvidia_com__gpu="4")],
        containers=[container(nvidia_com__gpu="1", cpu="1"), container(nvidia_com__gpu="2", memory="1Gi")],
    )
    assert found.extended == {GPU: 4}
    assert found.own_nano == {"cpu": NANO, "memory": 1024 * MIB * NANO}
    assert not found.has_claims


@pytest.mark.parametrize(
    ("resource", "extended"),
    [(GPU, True), ("cpu", False), ("hugepages-2Mi", False), ("kubernetes.io/batch", False), ("requests.example.com/x", False)],
)  # fmt: skip
def test_a_resource_is_extended_when_it_is_qualified_and_not_of_kubernetes(resource, extended):
    assert is_extended(resource) is extended


def test_a_pod_level_request_stands_for_its_resource_and_overhead_comes_on_top():
    found = asked(
        containers=[container(cpu="1", memory="1Gi", ephemeral_storage="1Gi")],
        resources={"requests": {"cpu": "4", "ephemeral-storage": "9Gi"}},
        overhead={"cpu": "250m", "memory": "64Mi"},
    )
    assert found.own_nano["cpu"] == 4_250_000_000
    assert found.own_nano["memory"] == (1024 + 64) * MIB * NANO


def test_amounts_are_rounded_up_once_to_what_the_scheduler_counts_in():
    found = asked(containers=[container(cpu="100u"), container(cpu="100u", memory="1500m")])
    assert found.own_nano == {"cpu": 10**6, "memory": 2 * NANO}


def test_claims_are_seen_and_nothing_is_asked_by_a_pod_without_requests():
    assert asked(containers=[{"name": "c"}], resourceClaims=[{"name": "gpu"}]).has_claims
    found = asked(containers=[{"name": "c", "resources": {}}], initContainers=None)
    assert (found.extended, found.own_nano, found.has_claims) == ({}, {}, False)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"metadata":{}}', b'{"metadata":{},"spec":{"containers":[{"resources":{"requests":{"cpu":"x"}}}]}}', b"\xff"])  # fmt: skip
def test_what_is_no_pod_is_refused_with_a_reason(body):
    with pytest.raises(InputError, match="not a Pod"):
        read_pod(body)


def test_a_fact_and_the_scheduler_s_pod_ask_for_the_same_devices():
    fact = pod("a", gpus=2)
    init = Container(name="i", init=True, requests={GPU: "3"})
    sidecar = Container(name="s", init=True, restartable=True, requests={GPU: "1"})
    assert devices_of(fact) == {GPU: 2}
    both = type(fact)(**{name: getattr(fact, name) for name in fact.__struct_fields__} | {"containers": (sidecar, init, *fact.containers)})  # fmt: skip
    assert devices_of(both) == asked(
        initContainers=[container("Always", nvidia_com__gpu="1"), container(nvidia_com__gpu="3")],
        containers=[container(nvidia_com__gpu="2")],
    ).extended  # fmt: skip
