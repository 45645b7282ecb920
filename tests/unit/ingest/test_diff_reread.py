"""An API server of another version reads what is stored otherwise, and no resourceVersion moves (issue 5: 1.36 to 1.37)."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from sickbay.codec import fact_id
from sickbay.facts import DevicePublished, EpochChanged, Fact, NodeObserved, PodObserved
from sickbay.policy import ReadingPolicy

MAPPED = {"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "4"}}}
RECORDED = [{"resourceClaimName": "c", "containers": ["main"], "resources": {"cpu": "4"}}]
LOST = [{"resourceClaimName": "c", "containers": ["main"]}]


def pod(rv: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ml", "uid": "a", "resourceVersion": str(rv)},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "nodeAllocatableResourceClaimStatuses": entries},
    }


def node(rv: int, cpu: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "uid": "n", "resourceVersion": str(rv)},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": cpu}},
    }


def piece(rv: int, content: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "s", "uid": "s", "resourceVersion": str(rv)},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": pool,
            "devices": [{"name": "g", **content}],
        },
    }


#: Resource to how its object is made, what it held before and after, and the fact that tells.
CASES = {
    "pods": (pod, RECORDED, LOST, PodObserved),
    "nodes": (node, "8", "7", NodeObserved),
    "resourceslices": (piece, MAPPED, {}, DevicePublished),
}


class Feed:
    def __init__(self, resource: str) -> None:
        self.mirror, self.resource, self.at_ms = Mirror(ReadingPolicy(), 1), resource, 0
        self.told: list[Fact] = []

    def __call__(self, kind: FrameType, obj: Any, rv: int = 0) -> list[Fact]:
        self.at_ms += 1_000
        if kind == "LIST":
            obj = {"metadata": {"resourceVersion": str(rv)}, "items": [obj]}
        facts = self.mirror.apply(
            Frame(at_ms=self.at_ms, resource=self.resource, type=kind, object=obj, place="test")
        )
        self.told += facts
        return facts

    def restart(self) -> None:
        self.mirror = Mirror(ReadingPolicy(), 1)
        self.mirror.recall(self.told, self.at_ms)


def of(kind: type[Fact], facts: list[Fact]) -> list[int]:
    return [fact.rv for fact in facts if isinstance(fact, kind)]


@pytest.mark.parametrize("resource", CASES)
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_another_content_under_the_same_version_is_true_as_of_the_list_that_shows_it(
    resource: str, restarted: bool
) -> None:
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    if restarted:
        feed.restart()
    facts = feed("LIST", make(5, after), 20)
    assert of(kind, facts) == [20]
    assert not of(EpochChanged, feed.told)
    assert len({fact_id(fact) for fact in feed.told}) == len(feed.told)


@pytest.mark.parametrize("resource", CASES)
def test_it_is_told_once_and_what_is_written_later_is_newer(resource: str) -> None:
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    feed("LIST", make(5, after), 20)
    assert of(kind, feed("LIST", make(5, after), 30)) == []
    assert of(kind, feed("MODIFIED", make(31, before))) == [31]
    assert of(kind, feed("LIST", make(31, before), 40)) == []
    assert not of(EpochChanged, feed.told)


@pytest.mark.parametrize("resource", CASES)
def test_two_servers_of_two_versions_that_answer_in_turns_are_told_as_they_answer(resource: str) -> None:
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    told = [
        of(kind, feed("LIST", make(5, content), rv))
        for content, rv in ((after, 20), (before, 30), (after, 40))
    ]
    assert told == [[20], [30], [40]]
    assert not of(EpochChanged, feed.told)


@pytest.mark.parametrize("resource", CASES)
def test_two_servers_that_answer_at_one_version_are_told_once_and_the_next_newer_list_decides(
    resource: str,
) -> None:
    """A fact has the version of its list: of two contents at one version the second would be taken for a repeat."""
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    told = [
        of(kind, feed("LIST", make(5, content), rv))
        for content, rv in ((after, 20), (before, 20), (before, 30))
    ]
    assert told == [[20], [], [30]]
    assert len({fact_id(fact) for fact in feed.told}) == len(feed.told)


@pytest.mark.parametrize("resource", CASES)
def test_a_restart_after_it_is_no_restore(resource: str) -> None:
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    feed("LIST", make(5, after), 20)
    for rv in (30, 40):
        feed.restart()
        assert of(kind, feed("LIST", make(5, after), rv)) == []
    assert of(kind, feed("LIST", make(5, before), 50)) == [50]
    assert of(kind, feed("MODIFIED", make(51, after))) == [51]
    assert not of(EpochChanged, feed.told)


@pytest.mark.parametrize("resource", ["pods", "nodes"])
def test_a_restart_that_meets_an_older_version_with_another_content_is_a_restore(resource: str) -> None:
    make, before, after, _ = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    feed("LIST", make(5, after), 20)
    feed.restart()
    assert of(EpochChanged, feed("LIST", make(4, before), 30))


@pytest.mark.parametrize("resource", CASES)
def test_a_repeated_event_under_the_same_version_says_nothing(resource: str) -> None:
    """A watch repeats, and only a list is the state at a version of its own."""
    make, before, after, kind = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    assert of(kind, feed("MODIFIED", make(5, after))) == []


@pytest.mark.parametrize("resource", CASES)
def test_an_older_version_than_that_in_a_list_is_still_a_restore(resource: str) -> None:
    make, before, after, _ = CASES[resource]
    feed = Feed(resource)
    feed("LIST", make(5, before), 10)
    feed("LIST", make(5, after), 20)
    assert of(EpochChanged, feed("LIST", make(4, before), 30))
