"""Laws of what a Pod asks for, and a slow reading of Kubernetes' rules that must agree with it."""

from math import ceil

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.facts import Container, NodeAllocatableEntry, PodObserved
from streams.ledger.amounts import ceiling
from streams.ledger.requests import pod_amounts, pod_requests, total_nano

#: No deadline: a slow machine is no fault of a law.
laws = settings(deadline=None, max_examples=150)

RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi")
REPLACED = ("cpu", "memory", "hugepages-2Mi")
NANO = 10**9

texts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 5_000).map("{}m".format), max_size=3)
words = st.none() | texts


@st.composite
def containers(draw):
    """Init containers, some of them sidecars, then regular ones."""
    kinds = draw(st.lists(st.sampled_from(["init", "sidecar"]), max_size=4))
    kinds += ["regular"] * draw(st.integers(1, 3))
    return tuple(
        Container(
            name=f"c{n}",
            init=kind != "regular",
            restartable=kind == "sidecar",
            requests=draw(texts),
            actuated=draw(words),
            allocated=draw(words),
        )
        for n, kind in enumerate(kinds)
    )


entries = st.builds(
    NodeAllocatableEntry,
    claim=st.just("claim"),
    shape=st.sampled_from(["1.36", "1.37"]),
    containers=st.sets(st.sampled_from(["c0", "c1", "c2"])).map(lambda names: tuple(sorted(names))),
    mapping=texts,
    per_pod=texts,
    per_container=texts,
)

pods = st.builds(
    PodObserved,
    node=st.just("n1"),
    observed_at_ms=st.just(0),
    epoch=st.just(0),
    rv=st.just("1"),
    pod_uid=st.just("u1"),
    namespace=st.just("ml"),
    pod=st.just("p1"),
    phase=st.just("Running"),
    containers=containers(),
    overhead=texts,
    pod_level_requests=words,
    node_allocatable=st.none() | st.lists(entries, max_size=2).map(tuple),
    resize=st.sampled_from(["", "Deferred", "Infeasible"]),
)


def milli(amounts, resource):
    """An amount of the strategies above, in thousandths; nothing for what is not named."""
    return int((amounts or {}).get(resource, "0m").removesuffix("m"))


def naive_peak(found, amounts):
    """Play the start of a Pod: init containers one after the other, sidecars staying, then all that stays."""
    running, highest = 0, 0
    for container, amount in zip(found, amounts, strict=True):
        if container.init:
            highest = max(highest, running + amount)
            running += amount if container.restartable else 0
    running += sum(amount for container, amount in zip(found, amounts, strict=True) if not container.init)
    return max(highest, running)


def naive_requests(pod, resource):
    """The sum for one resource in nano-units, from the rules of component-helpers, in thousandths until the end."""
    infeasible = pod.resize == "Infeasible"
    recorded = pod.node_allocatable or ()
    dra = sum(
        milli(entry.mapping, resource)
        + milli(entry.per_pod, resource)
        + milli(entry.per_container, resource) * len(entry.containers)
        for entry in recorded
    )
    asked = [milli(container.requests, resource) for container in pod.containers]
    if any(entry.shape == "1.37" for entry in recorded):
        fallback = [0] * len(asked) if infeasible else asked
        allocated = [
            other if container.allocated is None else milli(container.allocated, resource)
            for container, other in zip(pod.containers, fallback, strict=True)
        ]
        actuated = [
            other if container.actuated is None else milli(container.actuated, resource)
            for container, other in zip(pod.containers, allocated, strict=True)
        ]
        of_asked = 0 if infeasible else naive_peak(pod.containers, asked) + dra
        reqs = max(
            of_asked, naive_peak(pod.containers, allocated) + dra, naive_peak(pod.containers, actuated)
        )
    else:
        effective = [
            amount
            if container.actuated is None or (container.init and not container.restartable)
            else max(
                milli(container.actuated, resource),
                milli(container.allocated, resource),
                0 if infeasible else amount,
            )
            for container, amount in zip(pod.containers, asked, strict=True)
        ]
        reqs = naive_peak(pod.containers, effective) + dra
    if resource in REPLACED and resource in (pod.pod_level_requests or {}):
        reqs = milli(pod.pod_level_requests, resource)
    reqs += milli(pod.overhead, resource)
    return reqs * NANO // 1000 if resource == "cpu" else ceil(reqs / 1000) * NANO


@laws
@given(pods)
def test_the_sum_is_that_of_the_rules_read_slowly(pod):
    found = pod_requests(pod)

    for resource in RESOURCES:
        assert naive_requests(pod, resource) == found.get(resource, 0)


@laws
@given(pods, st.data())
def test_asking_for_more_never_counts_for_less(pod, data):
    """One request of one container, the overhead or an entry grows; no resource falls."""
    resource = data.draw(st.sampled_from(RESOURCES))
    extra = data.draw(st.integers(1, 5_000))

    def grown(amounts):
        return {**amounts, resource: f"{milli(amounts, resource) + extra}m"}

    place = data.draw(st.sampled_from(["container", "overhead", "entry"]))
    if place == "container":
        at = data.draw(st.integers(0, len(pod.containers) - 1))
        chosen = pod.containers[at]
        chosen = msgspec.structs.replace(chosen, requests=grown(chosen.requests))
        more = msgspec.structs.replace(
            pod, containers=(*pod.containers[:at], chosen, *pod.containers[at + 1 :])
        )
    elif place == "overhead":
        more = msgspec.structs.replace(pod, overhead=grown(pod.overhead))
    else:
        first, *others = pod.node_allocatable or (NodeAllocatableEntry(claim="claim", shape="1.36"),)
        first = msgspec.structs.replace(first, mapping=grown(first.mapping))
        more = msgspec.structs.replace(pod, node_allocatable=(first, *others))

    before, after = pod_requests(pod), pod_requests(more)
    assert all(amount <= after[name] for name, amount in before.items())


@laws
@given(pods, st.data())
def test_the_order_of_regular_containers_means_nothing(pod, data):
    """Nor does their place among the init containers, whose own order does."""
    init = [container for container in pod.containers if container.init]
    order = data.draw(st.permutations([container for container in pod.containers if not container.init]))
    at = data.draw(st.integers(0, len(init)))
    moved = msgspec.structs.replace(pod, containers=(*init[:at], *order, *init[at:]))

    assert pod_amounts(pod) == pod_amounts(moved)


@laws
@given(pods, st.data())
def test_equal_spellings_are_equal_amounts(pod, data):
    """Thousandths, millionths, an exponent: whatever it is written with."""
    spell = data.draw(st.sampled_from(["{}000u", "{}000000n", "{}e-3", "+{}.0m"]))

    def respelt(amounts):
        return amounts and {name: spell.format(text.removesuffix("m")) for name, text in amounts.items()}

    other = msgspec.structs.replace(
        pod,
        containers=tuple(
            msgspec.structs.replace(
                container,
                requests=respelt(container.requests),
                actuated=respelt(container.actuated),
                allocated=respelt(container.allocated),
            )
            for container in pod.containers
        ),
        overhead=respelt(pod.overhead),
        pod_level_requests=respelt(pod.pod_level_requests),
        node_allocatable=pod.node_allocatable
        and tuple(
            msgspec.structs.replace(
                entry,
                mapping=respelt(entry.mapping),
                per_pod=respelt(entry.per_pod),
                per_container=respelt(entry.per_container),
            )
            for entry in pod.node_allocatable
        ),
    )

    assert (pod_amounts(pod), pod_requests(pod)) == (pod_amounts(other), pod_requests(other))


@laws
@given(pods, st.sampled_from(RESOURCES), st.fractions(min_value=0, max_value=10**12))
def test_what_claims_add_is_added_exactly_unless_it_is_covered(pod, resource, dra):
    amounts = pod_amounts(pod)
    own, overhead = amounts.own.get(resource, 0), amounts.overhead.get(resource, 0)
    if resource in amounts.covered:
        expected = own + overhead
    else:
        expected = max(own + dra, amounts.floor.get(resource, 0)) + overhead

    assert ceiling(resource, expected) == total_nano(amounts, resource, dra)
