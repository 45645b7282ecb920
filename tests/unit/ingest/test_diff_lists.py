"""The mirror's bookkeeping: versions, lists, gaps, epochs, name reuse, and what cannot be used."""

import json
from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.codec import fact_id
from sickbay.facts import (
    DeviceHealthObserved,
    EpochChanged,
    Fact,
    NodeGone,
    NodeObserved,
    PodGone,
    PodObserved,
    ResyncCompleted,
    WatchGapFound,
)
from sickbay.policy import ReadingPolicy

PLUGIN = "nvidia.com/gpu"


def pod(uid: str, rv: int, health: str | None = "Healthy", **changes: Any) -> dict[str, Any]:
    """A Pod that runs on n1 and reports one device, GPU-<uid>."""
    resources = [] if health is None else [{"resourceID": f"GPU-{uid}", "health": health}]
    return {
        "metadata": {
            "name": changes.get("name", f"pod-{uid}"), "namespace": "ml", "uid": uid, "resourceVersion": str(rv),
            **changes.get("metadata", {}),
        },
        "spec": {"nodeName": changes.get("node", "n1"), "containers": [{"name": "main"}]},
        "status": {
            "phase": changes.get("phase", "Running"),
            "containerStatuses": [
                {"name": "main", "allocatedResourcesStatus": [{"name": PLUGIN, "resources": resources}]}
            ],
        },
    }  # fmt: skip


def node(uid: str, rv: int, name: str = "n1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": str(rv)},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}], **status},
    }


def listing(rv: str, *items: Any, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": rv, **metadata}, "items": list(items)}


class Feed:
    """A mirror with a clock of its own: one second between frames unless told otherwise."""

    def __init__(self, partitions: int = 1) -> None:
        self.mirror = Mirror(ReadingPolicy(), partitions)
        self.at_ms = 0

    def __call__(
        self, kind: FrameType, obj: Any = None, resource: str = "pods", *, at_ms: int | None = None
    ) -> list[Fact]:
        self.at_ms = self.at_ms + 1_000 if at_ms is None else at_ms
        return self.mirror.apply(
            Frame(at_ms=self.at_ms, resource=resource, type=kind, object=obj, place=f"test:{self.at_ms}")
        )


def kinds(facts: list[Fact]) -> list[str]:
    return [fact.KIND for fact in facts]


@pytest.fixture
def feed() -> Feed:
    return Feed()


def test_unchanged_relist_emits_only_its_completion(feed: Feed) -> None:
    """A LIST of what is known says so and nothing else."""
    feed("LIST", listing("10", pod("a", 5), pod("b", 6)))
    facts = feed("LIST", listing("20", pod("b", 16), pod("a", 5)))
    assert ["resync_completed"] == kinds(facts)
    assert facts[0] == ResyncCompleted(
        node="", observed_at_ms=2_000, rv=20, watched="pods", objects=2, added=0, changed=0, removed=0
    )


def test_every_partition_hears_of_a_resync() -> None:
    """Partitions fold alone, so each hears the completion."""
    facts = Feed(partitions=3)("LIST", listing("10"))
    assert [0, 1, 2] == [fact.partition for fact in facts if isinstance(fact, ResyncCompleted)]
    assert 3 == len({fact_id(fact) for fact in facts})


def test_at_least_one_partition_is_needed() -> None:
    """Nobody would hear of a gap otherwise."""
    with pytest.raises(ValueError, match="at least 1"):
        Mirror(ReadingPolicy(), 0)


def test_missing_object_is_a_tombstone_before_any_addition(feed: Feed) -> None:
    """What a LIST lacks was deleted between the last word of the resource and the LIST; its devices' words end."""
    feed("LIST", listing("10", pod("a", 5)))
    facts = feed("LIST", listing("20", pod("b", 15)))
    assert [
        "device_health_observed", "pod_gone", "pod_observed", "device_health_observed", "resync_completed",
    ] == kinds(facts)  # fmt: skip
    frozen, gone = facts[:2]
    assert isinstance(frozen, DeviceHealthObserved)
    assert ("Healthy", False, 20) == (frozen.health, frozen.live, frozen.rv)
    assert gone == PodGone(
        node="n1", observed_at_ms=2_000, rv=20, pod_uid="a", namespace="ml", pod="pod-a", final_state_known=False,
        gone_after_ms=1_000,
    )  # fmt: skip


def test_words_that_one_list_ends_keep_different_ids(feed: Feed) -> None:
    """Two Pods that shared a device and are both gone end two words of one device at one version."""
    first, second = pod("a", 5), pod("b", 6)
    for item in (first, second):
        item["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0][
            "resourceID"
        ] = "GPU"
    feed("LIST", listing("10", first, second))
    ended = [fact for fact in feed("LIST", listing("20")) if isinstance(fact, DeviceHealthObserved)]
    assert [("plugin:nvidia.com/gpu/GPU", 20)] * 2 == [(fact.device_id, fact.rv) for fact in ended]
    assert 2 == len({fact_id(fact) for fact in ended})


def test_resource_version_alone_changes_nothing(feed: Feed) -> None:
    """An update of what is not kept moves the version and emits nothing."""
    feed("ADDED", pod("a", 5))
    assert [] == feed("MODIFIED", pod("a", 6, metadata={"annotations": {"other.example/x": "1"}}))


def test_equal_version_is_a_repeat(feed: Feed) -> None:
    """The same uid and version under another API version is the same object."""
    feed("ADDED", pod("a", 5))
    assert [] == feed("ADDED", {"apiVersion": "v1beta1", **pod("a", 5, "Unhealthy")})


def test_older_version_is_late_evidence_and_changes_no_state(feed: Feed) -> None:
    """A late Unhealthy is told with its own version; the known set keeps the newer word."""
    feed("ADDED", pod("a", 12))
    facts = feed("MODIFIED", pod("a", 11, "Unhealthy"))
    assert [("pod_observed", 11), ("device_health_observed", 11)] == [(fact.KIND, fact.rv) for fact in facts]
    assert [] == feed("MODIFIED", pod("a", 11, "Unhealthy"))
    assert [] == feed("MODIFIED", pod("a", 13))


def test_versions_compare_as_numbers(feed: Feed) -> None:
    """Version 10 is newer than version 9."""
    feed("ADDED", pod("a", 9, "Unhealthy"))
    (fact,) = feed("MODIFIED", pod("a", 10))
    assert isinstance(fact, DeviceHealthObserved)
    assert ("Healthy", 10) == (fact.health, fact.rv)


def test_replayed_stretch_of_a_watch_emits_nothing(feed: Feed) -> None:
    """Versions that were seen are told from late evidence, before and after the object is gone."""
    frames: list[tuple[FrameType, dict[str, Any]]] = [
        ("ADDED", pod("a", 5)), ("MODIFIED", pod("a", 6, "Unhealthy")), ("MODIFIED", pod("a", 7)),
        ("DELETED", pod("a", 8)),
    ]  # fmt: skip
    for kind, obj in frames[:3]:
        feed(kind, obj)
    assert [[], [], []] == [feed(kind, obj) for kind, obj in frames[:3]]
    assert ["device_health_observed", "pod_gone"] == kinds(feed(*frames[3]))
    assert [[], [], [], []] == [feed(kind, obj) for kind, obj in frames]


def test_late_version_of_a_gone_pod_is_told_and_stays_gone(feed: Feed) -> None:
    """A version between those seen, read after the deletion, is evidence that is over."""
    feed("ADDED", pod("a", 5))
    feed("DELETED", pod("a", 9))
    facts = feed("MODIFIED", pod("a", 7, "Unhealthy"))
    assert [
        ("pod_observed", 7),
        ("device_health_observed", 7),
        ("device_health_observed", 9),
        ("pod_gone", 9),
    ] == [(fact.KIND, fact.rv) for fact in facts]
    assert ["resync_completed"] == kinds(feed("LIST", listing("20")))


def test_new_uid_under_an_old_name_ends_the_old_one_first(feed: Feed) -> None:
    """A recreated Pod is another Pod; the old one's contributions end (W17)."""
    feed("ADDED", pod("a", 5, name="web-0"))
    facts = feed("MODIFIED", pod("b", 9, name="web-0"))
    assert ["device_health_observed", "pod_gone", "pod_observed", "device_health_observed"] == kinds(facts)
    assert isinstance(facts[1], PodGone)
    assert ("a", False, 9) == (facts[1].pod_uid, facts[1].final_state_known, facts[1].rv)
    assert 4 == len({fact_id(fact) for fact in facts})


def test_earlier_incarnation_that_comes_late_does_not_replace_the_newer(feed: Feed) -> None:
    """A late frame of the former Pod of a name is evidence, then gone; the present Pod stays."""
    feed("ADDED", pod("b", 9, name="web-0"))
    facts = feed("ADDED", pod("a", 5, "Unhealthy", name="web-0"))
    assert ("pod_observed", "pod_gone") == (facts[0].KIND, facts[-1].KIND)
    assert [] == feed("MODIFIED", pod("b", 10, name="web-0"))
    assert [] == feed("ADDED", pod("a", 5, "Unhealthy", name="web-0"))


def test_binding_ends_the_pod_on_no_node(feed: Feed) -> None:
    """A Pod moves from node "" to its node once, and leaves nothing behind."""
    assert [("pod_observed", "")] == [(f.KIND, f.node) for f in feed("ADDED", pod("a", 5, None, node=""))]
    facts = feed("MODIFIED", pod("a", 6, None))
    assert [("pod_gone", ""), ("pod_observed", "n1")] == [(fact.KIND, fact.node) for fact in facts]


def test_late_version_from_before_the_binding_leaves_nothing_on_no_node(feed: Feed) -> None:
    """A Pod that was first seen bound does not stay on node "" because of an older version."""
    feed("ADDED", pod("a", 6, None))
    facts = feed("MODIFIED", pod("a", 5, None, node=""))
    assert [("pod_observed", "", 5), ("pod_gone", "", 6)] == [
        (fact.KIND, fact.node, fact.rv) for fact in facts
    ]


def test_recreated_node_is_another_machine(feed: Feed) -> None:
    """A new uid under a node's name: the old node is gone, then the new one is there."""
    feed("ADDED", node("u1", 5), "nodes")
    gone, fresh = feed("MODIFIED", node("u2", 9), "nodes")
    assert isinstance(gone, NodeGone)
    assert isinstance(fresh, NodeObserved)
    assert ("u1", "u2", "n1", "n1") == (gone.node_uid, fresh.node_uid, gone.node, fresh.node)
    assert ["node_gone"] == kinds(feed("DELETED", node("u2", 10), "nodes"))


def test_heartbeats_of_a_node_say_nothing(feed: Feed) -> None:
    """Only what is kept makes a fact; lastHeartbeatTime is not."""
    feed("ADDED", node("u1", 5), "nodes")
    beat = node("u1", 6)
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-07-01T00:00:10Z"
    assert [] == feed("MODIFIED", beat, "nodes")
    assert ["node_observed"] == kinds(feed("MODIFIED", node("u1", 7, allocatable={"cpu": "1"}), "nodes"))


def test_labels_that_are_kept_and_that_are_ours(feed: Feed) -> None:
    """An operator's sickbay.dev label is kept, one that sickbay itself manages and foreign ones are not."""
    raw = node("u1", 5)
    raw["metadata"]["labels"] = {
        "kubernetes.io/hostname": "n1", "foreign.example/x": "1", "sickbay.dev/canary": "true", "sickbay.dev/own": "1",
    }  # fmt: skip
    raw["metadata"]["managedFields"] = [
        {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {"f:sickbay.dev/canary": {}}}}},
        {"manager": "sickbay", "fieldsV1": {"f:metadata": {"f:labels": {"f:sickbay.dev/own": {}}}}},
    ]
    (fact,) = feed("ADDED", raw, "nodes")
    assert isinstance(fact, NodeObserved)
    assert {"kubernetes.io/hostname": "n1", "sickbay.dev/canary": "true"} == fact.labels


def test_expired_watch_is_a_gap_until_the_next_list() -> None:
    """410 starts a gap at the last word of the resource; the LIST ends it, before its own changes."""
    feed = Feed(partitions=2)
    feed("LIST", listing("9000", pod("a", 5)))
    assert [] == feed("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    facts = feed("LIST", listing("20000"))
    assert ["watch_gap_found"] * 2 == kinds(facts)[:2]
    assert facts[0] == WatchGapFound(
        node="", observed_at_ms=3_000, watched="pods", from_ms=1_000, to_ms=3_000, from_rv=9000, to_rv=20000
    )
    assert "watch_gap_found" not in kinds(feed("LIST", listing("20001")))


@pytest.mark.parametrize(
    "status", [{"code": 500}, {"code": 504, "reason": "Timeout"}, {"reason": ["Expired"]}, {}]
)
def test_other_errors_are_no_gap(feed: Feed, status: dict[str, Any]) -> None:
    """Only 410 means that the server forgot."""
    feed("LIST", listing("9000"))
    feed("ERROR", status)
    assert ["resync_completed"] == kinds(feed("LIST", listing("9001")))


def test_list_that_goes_back_is_a_new_epoch() -> None:
    """After an etcd restore lower versions are newer (W3); what is unchanged stays silent, what is gone is gone."""
    feed = Feed(partitions=2)
    feed("LIST", listing("100", pod("a", 50), pod("b", 60)))
    facts = feed("LIST", listing("40", pod("a", 30, "Unhealthy")))
    assert ["epoch_changed"] * 2 == kinds(facts)[:2]
    assert facts[0] == EpochChanged(
        node="", observed_at_ms=2_000, epoch=1, watched="pods", last_rv=100, list_rv=40
    )
    word = next(fact for fact in facts if isinstance(fact, DeviceHealthObserved) and fact.pod_uid == "a")
    assert ("Unhealthy", 1, 30) == (word.health, word.epoch, word.rv)
    assert {"b"} == {fact.pod_uid for fact in facts if isinstance(fact, PodGone)}
    (later,) = feed("MODIFIED", pod("a", 41))
    assert (1, 41) == (later.epoch, later.rv)


def test_an_object_that_goes_back_in_a_list_that_does_not_is_a_new_epoch(feed: Feed) -> None:
    """The restored cluster has outgrown what was seen, and only its objects show it (W3)."""
    feed("LIST", listing("100", pod("a", 50), pod("b", 60)))
    facts = feed("LIST", listing("120", pod("a", 40, "Unhealthy"), pod("b", 110)))
    assert facts[0] == EpochChanged(
        node="", observed_at_ms=2_000, epoch=1, watched="pods", last_rv=100, list_rv=120
    )
    assert ("Unhealthy", 1) in {(f.health, f.epoch) for f in facts if isinstance(f, DeviceHealthObserved)}


def test_an_object_that_is_back_from_the_dead_is_a_new_epoch(feed: Feed) -> None:
    """A uid never comes again in one history."""
    feed("LIST", listing("100", pod("a", 50)))
    feed("DELETED", pod("a", 101))
    facts = feed("LIST", listing("120", pod("a", 50)))
    assert "epoch_changed" == facts[0].KIND
    assert {"a"} == {fact.pod_uid for fact in facts if isinstance(fact, PodObserved)}


def test_what_cannot_be_read_after_a_restore_raises_no_epoch_again(feed: Feed) -> None:
    """Neither does a version that is none."""
    feed("LIST", listing("100", pod("a", 50), pod("b", 60)))
    unreadable = pod("a", 30) | {"spec": 7}
    assert "epoch_changed" == feed("LIST", listing("40", unreadable))[0].KIND
    assert ["resync_completed"] == kinds(feed("LIST", listing("41", unreadable)))
    nameless = pod("a", 30, metadata={"resourceVersion": "x"})
    assert ["resync_completed"] == kinds(feed("LIST", listing("42", nameless)))


def test_epochs_of_resources_are_separate(feed: Feed) -> None:
    """Nodes have a clock of their own."""
    feed("LIST", listing("100"))
    feed("LIST", listing("40"))
    (fact,) = feed("ADDED", node("u1", 5), "nodes")
    assert 0 == fact.epoch


def test_kubectl_list_without_version_takes_its_newest_item(feed: Feed) -> None:
    """The wrapper's empty version is read as that of its newest item, and never as a restore by itself."""
    feed("LIST", listing("", pod("a", 5), pod("b", 9)))
    assert ["device_health_observed", "pod_gone", "resync_completed"] == kinds(
        feed("LIST", listing("", pod("a", 5)))
    )
    facts = feed("LIST", listing("", pod("a", 3, "Unhealthy")))
    assert "epoch_changed" == facts[0].KIND


def test_one_page_of_a_list_ends_nobody(feed: Feed) -> None:
    """A page with a continue token is not the whole; it is applied, and parked as incomplete."""
    feed("LIST", listing("10", pod("a", 5)))
    facts = feed("LIST", {"metadata": {"resourceVersion": "20", "continue": "abc"}, "items": [pod("b", 15)]})
    assert ["pod_observed", "device_health_observed"] == kinds(facts)
    assert ["one page" in parked.reason for parked in feed.mirror.drain_parked()] == [True]


def test_bookmark_moves_only_the_position(feed: Feed) -> None:
    """A bookmark holds no object and is none, but a LIST below it is a restore."""
    assert [] == feed(
        "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "50"}, "spec": {"containers": None}}
    )
    assert "epoch_changed" == feed("LIST", listing("49"))[0].KIND
    assert [] == feed.mirror.drain_parked()


def test_bad_item_is_parked_with_its_place_and_ends_nobody(feed: Feed) -> None:
    """One item without a version does not stop the others, and is not read as a deletion."""
    feed("LIST", listing("10", pod("a", 5), pod("b", 6)))
    broken, nameless = pod("a", 5), pod("b", 7)
    del broken["metadata"]["resourceVersion"]
    del nameless["metadata"]["uid"]
    facts = feed("LIST", listing("20", broken, 7, nameless, pod("c", 11)))
    assert ["pod_observed", "device_health_observed", "resync_completed"] == kinds(facts)
    parked = feed.mirror.drain_parked()
    assert [f"test:2000 items[{index}]" for index in range(3)] == [item.place for item in parked]
    assert "unversioned" in parked[0].reason
    assert [] == feed.mirror.drain_parked()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("metadata",), None, "metadata"),
        (("metadata", "uid"), "", "metadata.uid"),
        (("metadata", "name"), 7, "metadata.name"),
        (("metadata", "namespace"), None, "metadata.namespace"),
        (("metadata", "resourceVersion"), "007", "leading zeros"),
        (("metadata", "resourceVersion"), "0", "leading zeros"),
        (("metadata", "resourceVersion"), 7, "decimal"),
        (("metadata", "resourceVersion"), "\u0661", "decimal"),
        (("metadata", "resourceVersion"), "9" * 19, "2^63-1"),
        (("metadata", "resourceVersion"), "", "unversioned"),
        (("spec",), [], "spec"),
        (("status",), "x", "status"),
        (("status", "phase"), "\ud800", "Unicode"),
    ],
)
def test_object_without_identity_is_parked(feed: Feed, path: tuple[str, ...], value: Any, said: str) -> None:
    """What cannot be told is kept aside with the reason; nothing else of it is believed, and no content is kept."""
    raw = pod("a", 5)
    target = raw
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    assert [] == feed("ADDED", raw)
    (parked,) = feed.mirror.drain_parked()
    assert said in parked.reason
    assert {"apiVersion", "kind", "metadata"} == set(json.loads(parked.raw))


def test_what_cannot_be_read_is_parked_once_for_each_of_its_versions(feed: Feed) -> None:
    """Every list holds it again, and dead letters are kept for ever."""
    bad = [pod("a", rv) | {"spec": 7} for rv in (5, 6)]
    for rv, item in enumerate((bad[0], bad[0], bad[1], bad[1]), start=10):
        feed("LIST", listing(str(rv), item))
    assert 2 == len(feed.mirror.drain_parked())


def test_overlong_device_id_is_parked_alone(feed: Feed) -> None:
    """One impossible id does not take the Pod or its other devices along."""
    raw = pod("a", 5)
    resources = raw["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"]
    resources += [{"resourceID": "é" * 513, "health": "Unhealthy"}, {"health": "Unhealthy"}]
    assert ["pod_observed", "device_health_observed"] == kinds(feed("ADDED", raw))
    reasons = [parked.reason for parked in feed.mirror.drain_parked()]
    assert [True, True] == ["1026 bytes" in reasons[0], "0 bytes" in reasons[1]]


def test_unknown_resource_is_counted_and_passed_over(feed: Feed) -> None:
    """Frames of other resources are no error."""
    assert [] == feed("ADDED", {"metadata": {}}, "devicetaintrules")
    assert ({"devicetaintrules": 1}, []) == (dict(feed.mirror.unknown_resources), feed.mirror.drain_parked())


@pytest.mark.parametrize("kind", ["LIST", "ADDED", "BOOKMARK", "ERROR", "DELETED"])
def test_frame_without_object_is_parked(feed: Feed, kind: FrameType) -> None:
    """A frame must hold a JSON object."""
    assert [] == feed(kind, None)
    assert 1 == len(feed.mirror.drain_parked())


@pytest.mark.parametrize("items", [{"a": 1}, "x", 7])
def test_list_that_is_no_list_ends_nobody(feed: Feed, items: Any) -> None:
    """A malformed LIST is parked whole."""
    feed("ADDED", pod("a", 5))
    assert [] == feed("LIST", {"metadata": {"resourceVersion": "9"}, "items": items})
    assert 1 == len(feed.mirror.drain_parked())


def test_tick_says_nothing_by_itself(feed: Feed) -> None:
    """Time passes; facts come only of what it means."""
    assert [] == feed("TICK", None, "")


def test_pod_deleted_before_it_was_known_is_gone(feed: Feed) -> None:
    """The log may know a Pod that this mirror does not."""
    facts = feed("DELETED", pod("a", 9, "Unhealthy"))
    assert [("device_health_observed", 9), ("pod_gone", 9)] == [(fact.KIND, fact.rv) for fact in facts]
    assert isinstance(facts[0], DeviceHealthObserved)
    assert not facts[0].live


def test_changed_request_is_a_pod_fact_and_no_word(feed: Feed) -> None:
    """The ledger's part and the health part change apart."""
    feed("ADDED", pod("a", 5))
    raw = pod("a", 6)
    raw["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "0.5", "memory": "1K"}}
    (fact,) = feed("MODIFIED", raw)
    assert isinstance(fact, PodObserved)
    assert {"cpu": "500m"} == fact.containers[0].requests
    assert ["spec.containers[0].resources.requests[memory]"] == [line.split(": ")[0] for line in fact.refused]


def test_a_label_that_the_policy_names_is_told_when_it_changes() -> None:
    """A Node that changes its rollout class is told, whatever label holds it; another label is nobody's business."""
    mirror = Mirror(ReadingPolicy(node_labels=("example.com/tier",)), 1)

    def told(rv: int, **labels: str) -> list[dict[str, str]]:
        raw = node("u-1", rv)
        raw["metadata"]["labels"] = {f"example.com/{key}": value for key, value in labels.items()}
        frame = Frame(at_ms=rv * 1_000, resource="nodes", type="MODIFIED", object=raw, place="test")
        return [fact.labels for fact in mirror.apply(frame) if isinstance(fact, NodeObserved)]

    assert [{"example.com/tier": "early"}] == told(1, tier="early", owner="ann")
    assert [] == told(2, tier="early", owner="bob")
    assert [{"example.com/tier": "late"}] == told(3, tier="late", owner="bob")
