"""Recalling after a restart, case by case: gaps, epochs, tombstones, and facts that a stop cut in two."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    EpochChanged,
    Fact,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PoolObserved,
    ResyncCompleted,
    WatchGapFound,
)
from sickbay.policy import ReadingPolicy

HEARD_MS = 50_000


def recalled(facts: Iterable[Fact], heard_ms: int | None = HEARD_MS) -> Mirror:
    mirror = Mirror(ReadingPolicy(), 1)
    mirror.recall(facts, heard_ms)
    return mirror


def listed(mirror: Mirror, resource: str, rv: int, *items: Any, **metadata: Any) -> list[Fact]:
    """LIST at 100 s and return what it emits but its completion."""
    facts = seen(
        mirror, "LIST", resource, {"metadata": {"resourceVersion": str(rv), **metadata}, "items": list(items)}
    )
    return [fact for fact in facts if not isinstance(fact, ResyncCompleted)]


def seen(
    mirror: Mirror, kind: FrameType, resource: str, obj: dict[str, Any], at_ms: int = 100_000
) -> list[Fact]:
    return mirror.apply(Frame(at_ms=at_ms, resource=resource, type=kind, object=obj, place="recall"))


def pod(rv: int, node: str = "n1", health: str = "Healthy") -> dict[str, Any]:
    resources = [{"resourceID": "GPU", "health": health}]
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": str(rv)},
        "spec": {"nodeName": node, "containers": [{"name": "a"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "a", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}
            ],
        },
    }  # fmt: skip


def lease(rv: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "namespace": "kube-node-lease", "uid": "l", "resourceVersion": str(rv)},
        "spec": {"leaseDurationSeconds": 40, "renewTime": "1970-01-01T00:01:00Z"},
    }


def piece(name: str, rv: int, generation: int, count: int, *devices: str) -> dict[str, Any]:
    """One slice of pool p of n1."""
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(rv)},
        "spec": {
            "driver": "drv", "nodeName": "n1", "devices": [{"name": device} for device in devices],
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": count},
        },
    }  # fmt: skip


def told(resource: str, *objects: dict[str, Any]) -> list[Fact]:
    """Return what a mirror says of these objects."""
    mirror = Mirror(ReadingPolicy(), 1)
    return [fact for obj in objects for fact in seen(mirror, "ADDED", resource, obj, 10_000)]


def test_recall_comes_before_the_first_frame() -> None:
    """What was told later than a frame would stand as older than it."""
    mirror = Mirror(ReadingPolicy(), 1)
    seen(mirror, "TICK", "", {})
    with pytest.raises(ValueError, match="before the first frame"):
        mirror.recall([], None)


def test_the_first_list_ends_the_gap_since_the_mirror_last_heard() -> None:
    """Only resources of which something was told have a gap: of the others nothing is known."""
    mirror = recalled(told("pods", pod(5)))
    (gap,) = listed(mirror, "pods", 9, pod(5))
    assert isinstance(gap, WatchGapFound)
    assert ("pods", HEARD_MS, 100_000, 5, 9) == (gap.watched, gap.from_ms, gap.to_ms, gap.from_rv, gap.to_rv)
    assert [] == listed(mirror, "nodes", 9)


def test_without_a_time_the_facts_tell_since_when_nothing_was_heard() -> None:
    """The newest fact of a resource shows that it was heard of then."""
    (gap, *_) = listed(recalled(told("pods", pod(5)), None), "pods", 9, pod(5))
    assert isinstance(gap, WatchGapFound)
    assert 10_000 == gap.from_ms


def test_a_list_that_goes_back_behind_what_was_told_raises_the_epoch() -> None:
    """The cluster was restored while nobody looked (W3); the same object under an older version is the same object."""
    facts = listed(recalled(told("pods", pod(50))), "pods", 20, pod(15))
    assert [EpochChanged, WatchGapFound] == [type(fact) for fact in facts]
    assert [1, 1] == [fact.epoch for fact in facts]


def test_epochs_go_on_where_they_were() -> None:
    """An epoch that was told is the floor of the next one, though no object was told in it."""
    changed = EpochChanged(node="", observed_at_ms=1, epoch=3, watched="pods", last_rv=90, list_rv=60)
    (epoch, gap) = listed(recalled([changed]), "pods", 40)
    assert isinstance(epoch, EpochChanged)
    assert (4, 60, 40) == (epoch.epoch, epoch.last_rv, epoch.list_rv)
    assert isinstance(gap, WatchGapFound)


def test_what_was_deleted_meanwhile_is_ended_once() -> None:
    """The word is frozen and the Pod is gone some time after the mirror last heard (D7)."""
    mirror = recalled(told("pods", pod(5)))
    _, frozen, gone = listed(mirror, "pods", 9)
    assert isinstance(frozen, DeviceHealthObserved)
    assert ("Healthy", False) == (frozen.health, frozen.live)
    assert isinstance(gone, PodGone)
    assert (False, HEARD_MS, 9) == (gone.final_state_known, gone.gone_after_ms, gone.rv)
    assert [] == listed(mirror, "pods", 10)


def test_the_same_version_is_read_once() -> None:
    """The mirror holds no reports of a recalled Pod, so it reads it in full though its version is known."""
    mirror = recalled(told("pods", pod(5)))
    mirror_of_less = recalled([fact for fact in told("pods", pod(5)) if isinstance(fact, PodObserved)])
    assert [WatchGapFound] == [type(fact) for fact in listed(mirror, "pods", 9, pod(5))]
    assert [WatchGapFound, DeviceHealthObserved] == [
        type(fact) for fact in listed(mirror_of_less, "pods", 9, pod(5))
    ]


def test_a_pod_whose_binding_was_told_by_half_is_told_whole() -> None:
    """The two halves go to different nodes, so either may be missing: the end on the old node, or the Pod on the new one."""
    unbound, bound = told("pods", pod(5, node="")), told("pods", pod(7))
    left = next(
        fact for fact in told("pods", pod(5, node=""), pod(7)) if isinstance(fact, PodGone) and not fact.node
    )
    without_end = listed(recalled([*unbound, *bound]), "pods", 9, pod(7))
    without_pod = listed(recalled([*unbound, left]), "pods", 9, pod(7))
    assert [(PodGone, "", 7)] == [(type(fact), fact.node, fact.rv) for fact in without_end[1:]]
    assert [(PodObserved, "n1"), (DeviceHealthObserved, "n1")] == [
        (type(fact), fact.node) for fact in without_pod[1:]
    ]


def test_a_pod_that_ended_after_half_a_binding_is_gone_from_both_nodes() -> None:
    """Neither node keeps it."""
    facts = listed(recalled([*told("pods", pod(5, node="")), *told("pods", pod(7))]), "pods", 9)
    assert {"", "n1"} == {fact.node for fact in facts if isinstance(fact, PodGone)}


def test_what_was_told_gone_stays_gone() -> None:
    """A late frame of it is told and ended, as by a mirror that ran on."""
    gone = PodGone(node="n1", observed_at_ms=10_000, rv=8, pod_uid="u", namespace="ml", pod="p")
    facts = seen(recalled([*told("pods", pod(5)), gone]), "MODIFIED", "pods", pod(6))
    assert [PodObserved, DeviceHealthObserved, DeviceHealthObserved, PodGone] == [
        type(fact) for fact in facts
    ]
    assert (8, 8) == (facts[2].rv, facts[3].rv)


def test_a_node_that_was_replaced_ends_under_its_uid() -> None:
    """The name lives on, the old object does not."""
    old = NodeObserved(node="n1", observed_at_ms=1, rv=5, node_uid="old", ready="Unknown")
    new = {"metadata": {"name": "n1", "uid": "new", "resourceVersion": "8"}, "status": {}}
    _, gone, observed = listed(recalled([old]), "nodes", 9, new)
    assert isinstance(gone, NodeGone)
    assert ("old", False) == (gone.node_uid, gone.final_state_known)
    assert isinstance(observed, NodeObserved)


def test_a_lapsed_lease_resumes_once_and_lapses_once() -> None:
    """Who is silent was told; only a newer version of the Lease is a sign of life."""
    lapsed = NodeLeaseLapsed(node="n1", observed_at_ms=1, rv=5, last_renewal_at_ms=1, lease_ms=40_000)
    mirror = recalled([lapsed])
    assert [WatchGapFound] == [type(fact) for fact in listed(mirror, "leases", 9, lease(5))]
    quiet = [fact for at_s in range(105, 300, 5) for fact in seen(mirror, "TICK", "", {}, at_ms=at_s * 1_000)]
    assert [] == quiet
    assert [NodeLeaseResumed] == [type(f) for f in seen(mirror, "MODIFIED", "leases", lease(12), 300_000)]
    assert [] == seen(mirror, "MODIFIED", "leases", lease(13), 301_000)


def test_a_lapsed_lease_that_is_deleted_is_forgotten() -> None:
    """The LIST supplies the uid that the fact of the lapse does not carry."""
    mirror = recalled(
        [NodeLeaseLapsed(node="n1", observed_at_ms=1, rv=5, last_renewal_at_ms=1, lease_ms=40_000)]
    )
    listed(mirror, "leases", 9, lease(5))
    seen(mirror, "DELETED", "leases", lease(10))
    assert [] == seen(mirror, "ADDED", "leases", lease(11))


def test_a_pool_without_slices_withdraws_its_devices_at_the_first_list() -> None:
    """Each node hears of the pool's end, each device ends once."""
    mirror = recalled(told("resourceslices", piece("s", 5, 1, 1, "d0", "d1")))
    facts = listed(mirror, "resourceslices", 9)[1:]
    assert [DeviceWithdrawn, DeviceWithdrawn, PoolObserved] == [type(fact) for fact in facts]
    assert {"slice_deleted"} == {fact.reason for fact in facts if isinstance(fact, DeviceWithdrawn)}
    assert [] == listed(mirror, "resourceslices", 10)


def test_an_incomplete_newer_generation_leaves_the_last_complete_one_effective() -> None:
    """Its slices are gone, its devices are not."""
    mirror = recalled(told("resourceslices", piece("s", 5, 1, 1, "d0")))
    (pool,) = listed(mirror, "resourceslices", 9, piece("t", 8, 2, 2, "d1"))[1:]
    assert isinstance(pool, PoolObserved)
    assert (1, 2, 1, 2) == (
        pool.effective_generation, pool.newest_generation, pool.slices_present, pool.slices_expected,
    )  # fmt: skip


def test_nothing_is_gone_from_a_pool_before_a_whole_list() -> None:
    """A watch event, or one page of several, shows only some of the slices."""
    both = (piece("s", 5, 1, 2, "d0"), piece("t", 6, 1, 2, "d1"))
    mirror = recalled(told("resourceslices", *both))
    older = piece("r", 4, 0, 1, "d9")
    assert [] == seen(mirror, "MODIFIED", "resourceslices", older)
    assert [WatchGapFound] == [
        type(fact) for fact in listed(mirror, "resourceslices", 9, older, **{"continue": "more"})
    ]
    assert [] == listed(mirror, "resourceslices", 10, *both)


def test_a_device_whose_move_was_told_by_half_ends_on_the_node_that_it_left() -> None:
    """The end and the new beginning go to different nodes."""
    before = DevicePublished(
        node="n0", observed_at_ms=1, rv=3, device_id="dra:drv/p/d0", driver="drv", pool="p", device="d0", slice_uid="s",
        pool_generation=1,
    )  # fmt: skip
    facts = told("resourceslices", piece("s", 5, 1, 1, "d0"))
    _, withdrawn = listed(recalled([before, *facts]), "resourceslices", 9, piece("s", 5, 1, 1, "d0"))
    assert isinstance(withdrawn, DeviceWithdrawn)
    assert ("n0", 9) == (withdrawn.node, withdrawn.rv)


def test_a_claim_ends_on_the_nodes_where_it_no_longer_is() -> None:
    """It was charged to two nodes; deallocated, it is on none."""

    def part(node: str, device: str) -> ClaimObserved:
        result = {"request": "r", "driver": "drv", "pool": "p", "device": device}
        (fact,) = told("resourceclaims", claim(5, {"devices": {"results": [result]}}))
        assert isinstance(fact, ClaimObserved)
        return msgspec.structs.replace(fact, node=node, spans_nodes=True)

    facts = listed(recalled([part("n1", "d0"), part("n2", "d1")]), "resourceclaims", 9, claim(8, None))[1:]
    assert [(ClaimGone, "n1"), (ClaimGone, "n2"), (ClaimObserved, "")] == [(type(f), f.node) for f in facts]


def claim(rv: int, allocation: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "ml", "uid": "c", "resourceVersion": str(rv)},
        "status": {"allocation": allocation},
    }
