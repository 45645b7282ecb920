"""Slices add up to pools; claims are charged where their devices are; Leases lapse by arrival."""

from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.codec import fact_id
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    PoolObserved,
    Selected,
    Together,
)
from sickbay.policy import ReadingPolicy

DRIVER = "gpu.example.com"


def part(
    name: str, rv: int, *devices: Any, generation: int = 1, count: int = 1, node: str = "n1", **spec: Any
) -> dict[str, Any]:
    """A slice of pool ``pool``; a device is a name or a whole device."""
    listed = [{"name": device} if isinstance(device, str) else device for device in devices]
    where = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": name, "uid": spec.pop("uid", f"u-{name}"), "resourceVersion": str(rv)},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": spec.pop("pool", "pool"), "generation": generation, "resourceSliceCount": count},
            "devices": listed,
            **where,
            **spec,
        },
    }


def tainted(name: str, key: str = "gpu.example.com/xid") -> dict[str, Any]:
    return {"name": name, "taints": [{"key": key, "effect": "NoSchedule"}]}


class Feed:
    def __init__(self) -> None:
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.at_ms = 0

    def __call__(
        self, kind: FrameType, obj: Any, resource: str = "resourceslices", step_ms: int = 1_000
    ) -> list[Fact]:
        self.at_ms += step_ms
        return self.mirror.apply(
            Frame(at_ms=self.at_ms, resource=resource, type=kind, object=obj, place="test")
        )


@pytest.fixture
def feed() -> Feed:
    return Feed()


def devices(facts: list[Fact]) -> list[tuple[str, str, int]]:
    """Published (+) or withdrawn (with the reason), and the version."""
    return [
        (fact.device, "+" if isinstance(fact, DevicePublished) else fact.reason, fact.rv)
        for fact in facts
        if isinstance(fact, DevicePublished | DeviceWithdrawn)
    ]


def pool(facts: list[Fact]) -> PoolObserved:
    (found,) = (fact for fact in facts if isinstance(fact, PoolObserved))
    return found


def test_unchanged_devices_of_a_new_generation_say_nothing(feed: Feed) -> None:
    """The pool carries the generation; a device is told again only when something else of it changed."""
    feed("ADDED", part("s", 5, "a", "b"))
    facts = feed("MODIFIED", part("s", 6, "a", tainted("b"), generation=2))
    assert [("b", "+", 6)] == devices(facts)
    assert (2, 2) == (pool(facts).effective_generation, pool(facts).newest_generation)


def test_last_complete_generation_stays_until_the_next_is_whole(feed: Feed) -> None:
    """Half a new generation declares nothing removed; its second half does."""
    feed("ADDED", part("s", 5, "a", "b"))
    facts = feed("ADDED", part("t", 6, "a", generation=2, count=2))
    assert [] == devices(facts)
    assert (1, 2, False, 1, 2) == (
        pool(facts).effective_generation, pool(facts).newest_generation, pool(facts).complete,
        pool(facts).slices_present, pool(facts).slices_expected,
    )  # fmt: skip
    facts = feed("ADDED", part("u", 7, "c", generation=2, count=2))
    assert [("b", "generation", 7), ("c", "+", 7)] == devices(facts)
    assert [] == feed("DELETED", part("s", 8, "a", "b"))


def test_surplus_slice_is_incomplete(feed: Feed) -> None:
    """Completeness is equality (structured pools, rule 3)."""
    feed("ADDED", part("s", 5, "a"))
    facts = feed("ADDED", part("t", 6, "b"))
    assert ([], False, 2, 1) == (
        devices(facts), pool(facts).complete, pool(facts).slices_present, pool(facts).slices_expected,
    )  # fmt: skip


def test_deleted_pool_withdraws_its_devices_and_may_restart_low(feed: Feed) -> None:
    """Generation 1 after 7 is accepted because the former slices are gone."""
    feed("ADDED", part("s", 5, "a", generation=7))
    facts = feed("DELETED", part("s", 6, "a", generation=7))
    assert [("a", "slice_deleted", 6)] == devices(facts)
    assert (None, None, 0) == (
        pool(facts).effective_generation, pool(facts).newest_generation, pool(facts).slices_present,
    )  # fmt: skip
    assert [("a", "+", 9)] == devices(feed("ADDED", part("t", 9, "a", generation=1)))


def test_device_that_returns_is_newer_than_its_withdrawal(feed: Feed) -> None:
    """A slice that was there all the time publishes again under the version that brought it back."""
    feed("ADDED", part("old", 5, "a"))
    feed("ADDED", part("new", 6, "b", generation=2))
    assert [("b", "generation", 9), ("a", "+", 9)] == devices(
        feed("DELETED", part("new", 9, "b", generation=2))
    )


def test_two_drivers_may_use_one_pool_name(feed: Feed) -> None:
    """A pool is known by driver and name."""
    feed("ADDED", part("s", 5, "a", generation=3))
    other = part("t", 6, "a")
    other["spec"]["driver"] = "other.example.com"
    facts = feed("ADDED", other)
    assert [("a", "+", 6)] == devices(facts)
    assert 1 == pool(facts).effective_generation


def test_invalid_pool_keeps_what_was_effective(feed: Feed) -> None:
    """A generation that names a device twice is complete, invalid and not used."""
    feed("ADDED", part("s", 5, "a"))
    feed("ADDED", part("t", 6, "b", generation=2, count=2))
    facts = feed("ADDED", part("u", 7, "b", generation=2, count=2))
    assert ([], 1, "device b is published more than once") == (
        devices(facts), pool(facts).effective_generation, pool(facts).invalid_reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counters", "wanted", "said"),
    [
        ("set", "memory", ""),
        ("set", "disk", "device a consumes counter disk of counter set set, which the pool does not have"),
        ("other", "memory", "device a consumes counter set set, which the pool does not have"),
    ],
)
def test_counters_must_be_in_the_pool(feed: Feed, counters: str, wanted: str, said: str) -> None:
    """A device that consumes what nobody shares makes the pool invalid, with both named."""
    consumer = {
        "name": "a",
        "consumesCounters": [{"counterSet": "set", "counters": {wanted: {"value": "1"}}}],
    }
    feed("ADDED", part("s", 5, consumer, count=2))
    shared = [{"name": counters, "counters": {"memory": {"value": "8Gi"}}}]
    assert said == pool(feed("ADDED", part("t", 6, count=2, sharedCounters=shared))).invalid_reason


def test_counter_set_may_be_shared_once(feed: Feed) -> None:
    """The same set in two slices is ambiguous."""
    shared = [{"name": "set", "counters": {}}]
    feed("ADDED", part("s", 5, count=2, sharedCounters=shared))
    facts = feed("ADDED", part("t", 6, count=2, sharedCounters=shared))
    assert "counter set set is published more than once" == pool(facts).invalid_reason


def test_partition_sits_on_the_card_of_its_pool(feed: Feed) -> None:
    """The parent is a device id where the pool has it, and follows when it appears later."""
    card = {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-1"}}}
    slot = {"name": "mig-0", "attributes": {"parentUUID": {"string": "GPU-1"}, "uuid": {"string": "MIG-1"}}}
    (alone,) = (fact for fact in feed("ADDED", part("s", 5, slot)) if isinstance(fact, DevicePublished))
    assert f"card:{DRIVER}/GPU-1" == alone.physical_id
    facts = feed("MODIFIED", part("s", 6, slot, card))
    assert {"gpu-0": None, "mig-0": f"dra:{DRIVER}/pool/gpu-0"} == {
        fact.device: fact.physical_id for fact in facts if isinstance(fact, DevicePublished)
    }


def test_card_named_by_two_devices_is_not_guessed(feed: Feed) -> None:
    """Drivers exist whose devices share one uuid; such a name leads to no device."""
    cards = [{"name": name, "attributes": {"uuid": {"string": "GPU-1"}}} for name in ("x", "y")]
    slot = {"name": "z", "attributes": {"parentUUID": {"string": "GPU-1"}}}
    facts = feed("ADDED", part("s", 5, slot, *cards))
    assert {f"card:{DRIVER}/GPU-1"} == {
        fact.physical_id for fact in facts if isinstance(fact, DevicePublished) and fact.device == "z"
    }


def test_late_taint_is_told_with_its_own_version(feed: Feed) -> None:
    """An older version of a slice changes nothing but is evidence."""
    feed("ADDED", part("s", 7, "a"))
    (fact,) = feed("MODIFIED", part("s", 6, tainted("a")))
    assert isinstance(fact, DevicePublished)
    assert (6, 1) == (fact.rv, len(fact.taints))
    assert [] == feed("MODIFIED", part("s", 8, "a"))


def test_late_slice_of_another_generation_is_not_told(feed: Feed) -> None:
    """What belongs to a generation that is over cannot be placed in the effective one."""
    feed("ADDED", part("s", 7, "a", generation=2))
    assert [] == feed("MODIFIED", part("s", 6, tainted("a"), generation=1))


def test_own_taints_are_not_read(feed: Feed) -> None:
    """What sickbay marks itself is no cause."""
    feed("ADDED", part("s", 5, "a"))
    assert [] == feed("MODIFIED", part("s", 6, tainted("a", "sickbay.dev/quarantine")))


@pytest.mark.parametrize(
    ("where", "node"),
    [
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n7"]}]}]}}, "n7"),
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n7", "n8"]}]}]}}, ""),
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["n7"]}]}]}}, ""),
        ({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": 7}]}}, ""),
        ({"allNodes": True}, ""),
    ],
)  # fmt: skip
def test_device_is_on_a_node_only_when_one_is_named(feed: Feed, where: dict[str, Any], node: str) -> None:
    """A selector places a device when it names exactly one node."""
    facts = feed("ADDED", part("s", 5, "a", node="", **where))
    assert {node} == {fact.node for fact in facts}


def test_member_order_and_list_order_mean_nothing(feed: Feed) -> None:
    """The same slice in another order is the same slice."""
    attributes = {"x": {"int": 1}, "y": {"string": "z"}}
    feed("ADDED", part("s", 5, {"name": "a", "attributes": attributes}, tainted("b")))
    turned = {"attributes": dict(reversed(attributes.items())), "name": "a"}
    assert [] == feed("MODIFIED", part("s", 6, tainted("b"), turned))


def test_ids_of_one_device_are_never_used_twice(feed: Feed) -> None:
    """Publishing, withdrawing and publishing again gives different event ids."""
    told: list[Fact] = []
    told += feed("ADDED", part("s", 5, "a"))
    told += feed("ADDED", part("t", 6, "b", generation=2))
    told += feed("DELETED", part("t", 7, "b", generation=2))
    told += feed("MODIFIED", part("s", 8, tainted("a")))
    assert len(told) == len({fact_id(fact) for fact in told})


# --- claims ----------------------------------------------------------------------------------------------------------


def claim(rv: int, *results: tuple[str, str], node: str = "", name: str = "c") -> dict[str, Any]:
    """A claim with ``(pool, device)`` results, and a selector for ``node`` if one is given."""
    allocation: dict[str, Any] = {
        "devices": {
            "results": [{"request": "r", "driver": DRIVER, "pool": p, "device": d} for p, d in results]
        }
    }
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [term]}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"u-{name}", "resourceVersion": str(rv)},
        "status": {"allocation": allocation if results else None},
    }


def charged(facts: list[Fact]) -> list[tuple[str, str, tuple[str, ...], bool]]:
    """Kind, node, devices and whether the claim spans nodes."""
    return [
        (
            fact.KIND,
            fact.node,
            tuple(result.device for result in getattr(fact, "results", ())),
            getattr(fact, "spans_nodes", False),
        )
        for fact in facts
        if isinstance(fact, ClaimObserved | ClaimGone)
    ]


def test_claim_is_charged_on_the_node_of_its_selector(feed: Feed) -> None:
    """The allocation names the node; deallocation ends the charge there."""
    assert [("claim_observed", "", (), False)] == charged(feed("ADDED", claim(5), "resourceclaims"))
    facts = feed("MODIFIED", claim(6, ("pool", "a"), node="n1"), "resourceclaims")
    assert [("claim_gone", "", (), False), ("claim_observed", "n1", ("a",), False)] == charged(facts)
    facts = feed("MODIFIED", claim(7), "resourceclaims")
    assert [("claim_gone", "n1", (), False), ("claim_observed", "", (), False)] == charged(facts)


def test_claim_without_selector_follows_its_slices(feed: Feed) -> None:
    """It waits on node "" and moves as a whole once every device has a node; then it stays."""
    feed("ADDED", part("s", 5, "a", node="n1", pool="p1"))
    facts = feed("ADDED", claim(6, ("p1", "a"), ("p2", "b")), "resourceclaims")
    assert [("claim_observed", "", ("a", "b"), False)] == charged(facts)
    facts = feed("ADDED", part("t", 7, "b", node="n2", pool="p2"))
    assert [
        ("claim_gone", "", (), False), ("claim_observed", "n1", ("a",), True), ("claim_observed", "n2", ("b",), True),
    ] == charged(facts)  # fmt: skip
    assert {6} == {fact.rv for fact in facts if isinstance(fact, ClaimObserved)}
    assert [] == charged(feed("DELETED", part("t", 8, "b", node="n2", pool="p2")))
    moved = claim(9, ("p1", "a"), ("p2", "b"))
    moved["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
    assert [("claim_observed", "n1", ("a",), True), ("claim_observed", "n2", ("b",), True)] == charged(
        feed("MODIFIED", moved, "resourceclaims")
    )


def test_what_a_claim_asked_for_is_told_on_each_of_its_nodes(feed: Feed) -> None:
    """The wishes are the claim's; only its results are split, now or when a slice comes later."""
    feed("ADDED", part("s1", 5, "a", pool="p1", node="n1"))
    wishes = {
        "requests": [{"name": "r", "selectors": [{"cel": {"expression": 'device.attributes["d"].n == 0'}}]}],
        "constraints": [{"matchAttribute": "d/n", "requests": ["r"]}],
    }
    asked = {**claim(6, ("p1", "a"), ("p2", "b")), "spec": {"devices": wishes}}
    facts = feed("ADDED", asked, "resourceclaims")
    facts += feed("ADDED", part("s2", 7, "b", pool="p2", node="n2"))
    told = [fact for fact in facts if isinstance(fact, ClaimObserved)]
    assert ["", "n1", "n2"] == [fact.node for fact in told]
    assert {(Together(attribute="d/n", requests=("r",)),)} == {fact.together for fact in told}
    assert {(Selected(request="r", attribute="d/n", value=0),)} == {fact.selected for fact in told}


def test_deleted_claim_ends_on_every_node(feed: Feed) -> None:
    """Each node that charges a claim hears its end; a LIST without it is a tombstone."""
    for pool_name, node in (("p1", "n1"), ("p2", "n2")):
        feed("ADDED", part(pool_name, 5, "a", node=node, pool=pool_name))
    feed("ADDED", claim(6, ("p1", "a"), ("p2", "a")), "resourceclaims")
    facts = feed("LIST", {"metadata": {"resourceVersion": "9"}, "items": []}, "resourceclaims")
    gone = [fact for fact in facts if isinstance(fact, ClaimGone)]
    assert [("n1", False, 9), ("n2", False, 9)] == [
        (fact.node, fact.final_state_known, fact.rv) for fact in gone
    ]


def test_late_allocation_on_another_node_is_told_and_ended(feed: Feed) -> None:
    """An older version that was charged elsewhere does not stay there."""
    feed("ADDED", claim(7, ("p", "a"), node="n2"), "resourceclaims")
    facts = feed("MODIFIED", claim(6, ("p", "a"), node="n1"), "resourceclaims")
    assert [("claim_observed", "n1", 6), ("claim_gone", "n1", 7)] == [(f.KIND, f.node, f.rv) for f in facts]


# --- leases ----------------------------------------------------------------------------------------------------------


def lease(name: str, rv: int, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "uid": f"u-{name}",
            "resourceVersion": str(rv),
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": "1970-01-01T00:00:01.000000Z", **spec},
    }


def ticks(feed: Feed, seconds: int) -> list[Fact]:
    return [fact for _ in range(seconds // 5) for fact in feed("TICK", None, "", 5_000)]


def test_silent_lease_lapses_once_and_resumes(feed: Feed) -> None:
    """More than its duration without a change is one lapse; the next change ends it."""
    feed("ADDED", lease("n1", 5), "leases")
    assert [] == ticks(feed, 40)
    (lapsed,) = ticks(feed, 60)
    assert lapsed == NodeLeaseLapsed(
        node="n1", observed_at_ms=46_000, rv=5, last_renewal_at_ms=1_000, lease_ms=40_000
    )
    (resumed,) = feed("MODIFIED", lease("n1", 6), "leases")
    assert resumed == NodeLeaseResumed(node="n1", observed_at_ms=102_000, rv=6, skew_ms=101_000)


def test_repeated_or_older_lease_is_no_renewal(feed: Feed) -> None:
    """Only a newer version is a sign of life."""
    feed("ADDED", lease("n1", 5), "leases")
    ticks(feed, 30)
    feed("MODIFIED", lease("n1", 5), "leases")
    feed("MODIFIED", lease("n1", 4), "leases")
    assert ["node_lease_lapsed"] == [fact.KIND for fact in ticks(feed, 15)]


def test_lease_without_renew_time_neither_lapses_nor_vouches(feed: Feed) -> None:
    """Liveness is unknown without a renewTime."""
    feed("ADDED", lease("n1", 5), "leases")
    ticks(feed, 50)
    assert [] == feed("MODIFIED", lease("n1", 6, renewTime=None), "leases")
    assert [] == ticks(feed, 100)
    feed("ADDED", lease("n2", 7, renewTime=None), "leases")
    assert [] == ticks(feed, 100)
    assert ["node_lease_resumed"] == [fact.KIND for fact in feed("MODIFIED", lease("n1", 8), "leases")]


@pytest.mark.parametrize("duration", [None, 0, -5, "40", 10**9])
def test_lease_without_usable_duration_lasts_forty_seconds(feed: Feed, duration: Any) -> None:
    """The kubelet's default stands in."""
    feed("ADDED", lease("n1", 5, leaseDurationSeconds=duration), "leases")
    (lapsed,) = ticks(feed, 60)
    assert isinstance(lapsed, NodeLeaseLapsed)
    assert 40_000 == lapsed.lease_ms


def test_leases_elsewhere_are_no_node(feed: Feed) -> None:
    """Leader election is not liveness."""
    other = lease("kube-scheduler", 5)
    other["metadata"]["namespace"] = "kube-system"
    feed("ADDED", other, "leases")
    assert [] == ticks(feed, 100)


def test_deleted_and_unlisted_leases_are_forgotten(feed: Feed) -> None:
    """A Lease that is gone says nothing, not even that its node is dead."""
    feed("LIST", {"metadata": {"resourceVersion": "7"}, "items": [lease("n1", 5), lease("n2", 6)]}, "leases")
    feed("DELETED", lease("n1", 8), "leases")
    (done,) = feed("LIST", {"metadata": {"resourceVersion": "9"}, "items": []}, "leases")
    assert 1 == getattr(done, "removed", None)
    assert [] == ticks(feed, 100)


def test_gap_of_the_lease_watch_lapses_nobody(feed: Feed) -> None:
    """While Leases cannot be seen, and for one full duration afterwards, silence is ours."""
    feed("LIST", {"metadata": {"resourceVersion": "7"}, "items": [lease("n1", 5)]}, "leases")
    feed("ERROR", {"code": 410}, "leases")
    assert [] == ticks(feed, 100)
    feed("LIST", {"metadata": {"resourceVersion": "8"}, "items": [lease("n1", 5)]}, "leases")
    assert [] == ticks(feed, 40)
    assert ["node_lease_lapsed"] == [fact.KIND for fact in ticks(feed, 10)]


def test_clock_that_steps_back_and_forth_lapses_nobody(feed: Feed) -> None:
    """Each jump counts as one gap at most."""
    feed("ADDED", lease("n1", 5), "leases")
    assert [] == feed("TICK", None, "", 86_400_000)
    assert [] == feed("TICK", None, "", -86_400_000)
    assert [] == feed("TICK", None, "", 1_000)
