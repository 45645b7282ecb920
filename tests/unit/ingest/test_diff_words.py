"""What Pods say of devices: joins through claims, silence, and the end of words."""

from itertools import permutations
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.codec import fact_id
from sickbay.facts import DeviceHealthObserved, Fact
from sickbay.policy import ReadingPolicy

DRIVER = "gpu.nvidia.com"


def dra(device: str, pool: str = "n1") -> str:
    return f"dra:{DRIVER}/{pool}/{device}"


def pod(
    rv: int, *reports: tuple[str, str, str], uid: str = "p", phase: str = "Running", **more: Any
) -> dict[str, Any]:
    """A Pod with claim ``gpu`` -> object ``c`` and reports ``(name, resourceID, health)``."""
    return {
        "metadata": {"name": uid, "namespace": "ml", "uid": uid, "resourceVersion": str(rv)},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": more.get("claims", [{"name": "gpu", "resourceClaimName": "c"}]),
        },
        "status": {
            "phase": phase,
            more.get("place", "containerStatuses"): [
                {
                    "name": "main",
                    "allocatedResourcesStatus": [
                        {"name": name, "resources": [{"resourceID": rid, "health": health}]}
                        for name, rid, health in reports
                    ],
                }
            ],
        },
    }


def claim(
    rv: int, *devices: str, name: str = "c", pods: tuple[str, ...] = ("p",), **more: Any
) -> dict[str, Any]:
    """A claim on node n1 with one result per device, request ``gpu``."""
    results = [
        {
            "request": more.get("request", "gpu"),
            "driver": DRIVER,
            "pool": "n1",
            "device": device,
            **more.get("result", {}),
        }
        for device in devices
    ]
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    return {
        "metadata": {
            "name": name, "namespace": "ml", "uid": more.get("uid", f"u-{name}"), "resourceVersion": str(rv),
            **more.get("metadata", {}),
        },
        "status": {
            "allocation": {"devices": {"results": results}, "nodeSelector": selector} if devices else None,
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
        },
    }  # fmt: skip


class Feed:
    def __init__(self) -> None:
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.at_ms = 0

    def frame(self, kind: FrameType, obj: Any, resource: str, step_ms: int = 1_000) -> list[Fact]:
        self.at_ms += step_ms
        return self.mirror.apply(
            Frame(at_ms=self.at_ms, resource=resource, type=kind, object=obj, place="test")
        )

    def pod(self, obj: dict[str, Any], kind: FrameType = "MODIFIED") -> list[tuple[str, str, int, bool]]:
        return brief(self.frame(kind, obj, "pods"))

    def claim(self, obj: dict[str, Any], kind: FrameType = "MODIFIED") -> list[tuple[str, str, int, bool]]:
        return brief(self.frame(kind, obj, "resourceclaims"))

    def ticks(self, seconds: int) -> list[tuple[str, str, int, bool]]:
        facts: list[Fact] = []
        for _ in range(seconds // 5):
            facts += self.frame("TICK", None, "", 5_000)
        return brief(facts)


def words(facts: list[Fact]) -> list[DeviceHealthObserved]:
    return [fact for fact in facts if isinstance(fact, DeviceHealthObserved)]


def brief(facts: list[Fact]) -> list[tuple[str, str, int, bool]]:
    """Device, word (or the kind of silence), version, live."""
    return [(fact.device_id, fact.absence or fact.health, fact.rv, fact.live) for fact in words(facts)]


@pytest.fixture
def feed() -> Feed:
    return Feed()


CDI = "k8s.gpu.nvidia.com/claim=u-c-"


def test_word_waits_for_its_claim_and_keeps_its_version(feed: Feed) -> None:
    """The Pod is seen first; the word is told when the claim comes, as of the Pod's version and the claim's time."""
    assert [] == feed.pod(pod(5, ("claim:gpu", f"{CDI}gpu-0", "Unhealthy")))
    assert 1 == feed.mirror.waiting_pods
    (fact,) = words(feed.frame("ADDED", claim(3, "gpu-0"), "resourceclaims"))
    assert (dra("gpu-0"), "Unhealthy", 5, 2_000) == (
        fact.device_id,
        fact.health,
        fact.rv,
        fact.observed_at_ms,
    )
    assert 0 == feed.mirror.waiting_pods


def test_fault_that_came_and_went_while_waiting_is_told(feed: Feed) -> None:
    """Each version that waited is told as of its own version, so a transient fault is not lost to a slow watch."""
    for rv, health in ((5, "Healthy"), (6, "Unhealthy"), (7, "Healthy")):
        assert [] == feed.pod(pod(rv, ("claim:gpu", f"{CDI}gpu-0", health)))
    assert [
        (dra("gpu-0"), "Healthy", 5, True), (dra("gpu-0"), "Unhealthy", 6, True), (dra("gpu-0"), "Healthy", 7, True),
    ] == feed.claim(claim(3, "gpu-0"))  # fmt: skip


def test_fault_is_told_live_although_the_pod_failed_before_the_claim_came(feed: Feed) -> None:
    """What was said while the Pod lived is evidence; its frozen word is told after it."""
    feed.pod(pod(5, ("claim:gpu", f"{CDI}gpu-0", "Unhealthy")))
    feed.pod(pod(6, ("claim:gpu", f"{CDI}gpu-0", "Unhealthy"), phase="Failed"))
    assert [(dra("gpu-0"), "Unhealthy", 5, True), (dra("gpu-0"), "Unhealthy", 6, False)] == feed.claim(
        claim(3, "gpu-0")
    )


def test_word_without_claim_is_told_as_unattributed_after_a_minute(feed: Feed) -> None:
    """It suspects nothing by name, and is closed when the claim comes after all."""
    feed.pod(pod(5, ("claim:gpu", f"{CDI}gpu-0", "Unhealthy")))
    name = f"unattributed:ml/gpu/{CDI}gpu-0"
    assert [(name, "Unhealthy", 5, True)] == feed.ticks(70)
    assert [] == feed.ticks(70)
    facts = words(feed.frame("ADDED", claim(3, "gpu-0"), "resourceclaims"))
    assert [(dra("gpu-0"), "Unhealthy", 5, True), (name, "Unhealthy", 5, False)] == brief(facts)
    assert 2 == len({fact_id(fact) for fact in facts})


def test_wait_is_sighted_time(feed: Feed) -> None:
    """An hour without frames is our own silence and ends no wait."""
    feed.pod(pod(5, ("claim:gpu", "x", "Healthy")))
    feed.at_ms += 3_600_000
    assert [] == feed.ticks(5)


def test_wait_ends_with_the_pod(feed: Feed) -> None:
    """A word that was never attributed is told once, frozen, when its Pod goes."""
    feed.pod(pod(5, ("claim:gpu", "x", "Unhealthy")))
    assert [("unattributed:ml/gpu/x", "Unhealthy", 6, False)] == feed.pod(
        pod(6, ("claim:gpu", "x", "Unhealthy")), "DELETED"
    )
    assert 0 == feed.mirror.waiting_pods


def test_any_order_of_pod_and_claims_attributes_alike() -> None:
    """Pods and claims come over two watches; the join does not depend on which is first (W20)."""
    events = [
        ("pods", pod(5, ("claim:gpu", f"{CDI}gpu-1", "Unhealthy"))),
        ("pods", pod(9, ("claim:gpu", f"{CDI}gpu-1", "Unhealthy"), uid="q")),
        ("resourceclaims", claim(3, "gpu-0", "gpu-1", pods=("p", "q"))),
        ("resourceclaims", claim(4, "gpu-7", name="other", pods=("q",))),
    ]
    seen = set()
    for order in permutations(events):
        feed = Feed()
        told = [word for resource, obj in order for word in words(feed.frame("ADDED", obj, resource))]
        seen.add(frozenset((word.pod_uid, *brief([word])[0]) for word in told if word.absence == ""))
    assert {
        frozenset({("p", dra("gpu-1"), "Unhealthy", 5, True), ("q", dra("gpu-1"), "Unhealthy", 9, True)})
    } == seen  # fmt: skip


def test_deallocation_before_the_word_does_not_lose_the_join(feed: Feed) -> None:
    """What the claim held last still says which device a later word is about; so does a claim that is deleted."""
    feed.claim(claim(3, "gpu-0"))
    feed.claim(claim(4))
    assert [(dra("gpu-0"), "Unhealthy", 5, True)] == feed.pod(pod(5, ("claim:gpu", "x", "Unhealthy")))
    feed.claim(claim(6), "DELETED")
    assert [(dra("gpu-0"), "Healthy", 7, True)] == feed.pod(pod(7, ("claim:gpu", "x", "Healthy")))
    late = Feed()
    late.claim(claim(3, "gpu-0"))
    late.claim(claim(4, "gpu-0"), "DELETED")
    assert [(dra("gpu-0"), "Healthy", 5, True)] == late.pod(pod(5, ("claim:gpu", "x", "Healthy")))


def test_reallocation_to_others_does_not_move_a_word(feed: Feed) -> None:
    """A standalone claim that others hold now still held gpu-0 for this Pod."""
    feed.claim(claim(3, "gpu-0"))
    feed.pod(pod(5, ("claim:gpu", "x", "Healthy")))
    feed.claim(claim(6, "gpu-1", pods=("other",)))
    assert [(dra("gpu-0"), "Unhealthy", 7, True)] == feed.pod(pod(7, ("claim:gpu", "x", "Unhealthy")))


@pytest.mark.parametrize(
    ("resource_id", "device"),
    [
        (f"{DRIVER}/n1/gpu-1", "gpu-1"),
        ("intel.com/gpu=gpu-1", "gpu-1"),
        (f"{CDI}gpu-1", "gpu-1"),
        ("k8s.gpu.nvidia.com/claim=another-uid-gpu-1", "gpu-1"),
        (f"{CDI}big-gpu-1", "big-gpu-1"),
    ],
)
def test_id_selects_among_the_devices_of_the_request(feed: Feed, resource_id: str, device: str) -> None:
    """A triple, a CDI name that is the device's, and one that ends with it, name one of several."""
    held = claim(3, "gpu-0", "gpu-1", "big-gpu-1") if "big" in resource_id else claim(3, "gpu-0", "gpu-1")
    feed.claim(held)
    assert (dra(device), "Unhealthy", 5, True) in feed.pod(pod(5, ("claim:gpu", resource_id, "Unhealthy")))


@pytest.mark.parametrize(
    "resource_id", [f"{DRIVER}/n2/gpu-1", "k8s.gpu/x=common", "nonsense", "x=another-big-gpu-1"]
)
def test_id_that_names_none_or_several_is_unattributed(feed: Feed, resource_id: str) -> None:
    """It is kept with its candidates, and the candidates are not reported as silent either."""
    feed.claim(claim(3, "gpu-1", "big-gpu-1"))
    (fact,) = words(feed.frame("ADDED", pod(5, ("claim:gpu", resource_id, "Unhealthy")), "pods"))
    assert f"unattributed:ml/c/{resource_id}" == fact.device_id
    assert (dra("big-gpu-1"), dra("gpu-1")) == fact.candidates


def test_request_narrows_the_candidates(feed: Feed) -> None:
    """Two requests of one claim: the entry of one never speaks of the other's device."""
    both = claim(3, "gpu-0")
    both["status"]["allocation"]["devices"]["results"].append(
        {"request": "nic", "driver": "dra.net", "pool": "n1", "device": "eth1"}
    )
    feed.claim(both)
    told = feed.pod(pod(5, ("claim:gpu/gpu", "x", "Healthy"), ("claim:gpu/nic", "y", "Unhealthy")))
    assert [("dra:dra.net/n1/eth1", "Unhealthy", 5, True), (dra("gpu-0"), "Healthy", 5, True)] == told


def test_claims_without_a_record_are_told_apart_by_what_they_were_made_for(feed: Feed) -> None:
    """resourceClaimStatuses is missing: the claim's own annotation says which of the Pod's claims it is."""
    wanted = [
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "nic", "resourceClaimTemplateName": "t"},
    ]
    key = "resource.kubernetes.io/pod-claim-name"
    feed.claim(claim(3, "eth1", name="y", metadata={"annotations": {key: "nic"}}))
    assert [] == feed.pod(pod(5, ("claim:gpu", "x", "Unhealthy"), claims=wanted))
    told = feed.claim(claim(4, "gpu-0", name="z", metadata={"annotations": {key: "gpu"}}))
    assert (dra("gpu-0"), "Unhealthy", 5, True) in told


def test_worst_word_counts_when_a_device_is_reported_twice(feed: Feed) -> None:
    """One device in two entries is one fact with the worst word: Unhealthy, then Unknown, then Healthy."""
    feed.claim(claim(3, "gpu-0"))
    assert [(dra("gpu-0"), "Unknown", 4, True)] == feed.pod(
        pod(4, ("claim:gpu", "a", "Healthy"), ("claim:gpu", "c", "odd"))
    )
    assert [(dra("gpu-0"), "Unhealthy", 5, True)] == feed.pod(
        pod(5, ("claim:gpu", "a", "Healthy"), ("claim:gpu", "b", "Unhealthy"), ("claim:gpu", "c", "odd"))
    )


def test_held_device_that_is_never_reported_is_unknown_once(feed: Feed) -> None:
    """A running Pod that says nothing of a device reserved for it leaves the device unknown."""
    feed.claim(claim(3, "gpu-0"))
    assert [(dra("gpu-0"), "never_reported", 5, True)] == feed.pod(pod(5))
    assert [] == feed.claim(claim(4, "gpu-0", metadata={"labels": {"x": "y"}}))
    raw = pod(6)
    raw["status"]["containerStatuses"] = None
    assert [] == feed.pod(raw)


def test_starting_pod_is_not_silent(feed: Feed) -> None:
    """The first words come with the status that makes a Pod Running; before it nothing is missing."""
    feed.claim(claim(3, "gpu-0"))
    assert [] == feed.pod(pod(5, phase="Pending"))
    assert [(dra("gpu-0"), "Healthy", 6, True)] == feed.pod(pod(6, ("claim:gpu", "x", "Healthy")))


def test_watching_a_device_is_not_holding_it(feed: Feed) -> None:
    """A claim with admin access reserves nothing, so its silence is none."""
    feed.claim(claim(3, "gpu-0", result={"adminAccess": True}))
    assert [] == feed.pod(pod(5))


def test_vanished_report_is_unknown_and_comes_back(feed: Feed) -> None:
    """A report that is gone while the Pod lives is a word of its own, not a recovery."""
    feed.claim(claim(3, "gpu-0"))
    feed.pod(pod(5, ("claim:gpu", "x", "Unhealthy")))
    (fact,) = words(feed.frame("MODIFIED", pod(6), "pods"))
    assert ("Unknown", None, "report_vanished", ("main",)) == (
        fact.health, fact.health_raw, fact.absence, fact.containers,
    )  # fmt: skip
    assert [(dra("gpu-0"), "Healthy", 7, True)] == feed.pod(pod(7, ("claim:gpu", "x", "Healthy")))


def test_terminal_pod_freezes_its_words_once(feed: Feed) -> None:
    """From the moment a Pod is terminal its words are history; later changes of it say nothing."""
    feed.claim(claim(3, "gpu-0"))
    feed.pod(pod(5, ("claim:gpu", "x", "Healthy"), ("r", "d", "Healthy")))
    assert [(dra("gpu-0"), "Unhealthy", 6, False), ("plugin:r/d", "Healthy", 6, False)] == feed.pod(
        pod(6, ("claim:gpu", "x", "Unhealthy"), ("r", "d", "Healthy"), phase="Failed")
    )
    assert [] == feed.pod(pod(7, ("claim:gpu", "x", "Healthy"), phase="Failed"))
    assert [] == feed.pod(pod(8, ("r", "new", "Unhealthy"), phase="Failed"))
    assert [] == feed.pod(pod(9, ("r", "d", "Unhealthy"), phase="Running"))
    assert [] == feed.claim(claim(8, "gpu-1"))
    assert [] == feed.pod(pod(10, ("claim:gpu", "x", "Healthy"), phase="Failed"), "DELETED")


def test_deleted_pod_ends_with_its_final_words(feed: Feed) -> None:
    """The DELETED object is the last version and may say something new."""
    feed.pod(pod(5, ("r", "d", "Healthy"), ("r", "e", "Healthy")))
    assert [("plugin:r/d", "Unhealthy", 6, False), ("plugin:r/e", "Healthy", 6, False)] == feed.pod(
        pod(6, ("r", "d", "Unhealthy")), "DELETED"
    )


@pytest.mark.parametrize("place", ["initContainerStatuses", "ephemeralContainerStatuses"])
def test_words_of_every_kind_of_container_count(feed: Feed, place: str) -> None:
    """Init and ephemeral containers are read like regular ones."""
    assert [("plugin:r/d", "Unhealthy", 5, True)] == feed.pod(pod(5, ("r", "d", "Unhealthy"), place=place))


def test_replica_sits_on_its_card(feed: Feed) -> None:
    """Only a whole-number suffix makes a replica."""
    facts = words(
        feed.frame(
            "ADDED",
            pod(5, ("r", "A::3", "Healthy"), ("r", "B::x", "Healthy"), ("r", "::1", "Healthy")),
            "pods",
        )
    )
    assert {"plugin:r/A::3": "plugin:r/A", "plugin:r/B::x": None, "plugin:r/::1": None} == {
        fact.device_id: fact.physical_id for fact in facts
    }


def test_longest_wait_ends_first_when_too_many_wait(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set of waiting Pods is bounded."""
    monkeypatch.setattr("ingest.diff.words.WAITING_MAX", 1)
    feed.pod(pod(5, ("claim:gpu", "x", "Healthy")))
    assert [("unattributed:ml/gpu/x", "Healthy", 5, True)] == feed.pod(
        pod(6, ("claim:gpu", "y", "Healthy"), uid="q")
    )
    assert 1 == feed.mirror.waiting_pods
