"""What a log remembers: time, policies and versions, whatever the order in which its facts come."""

from itertools import permutations

import pytest

from ingest.diff.recalling import Told
from ingest.recollection import Recollection
from sickbay.facts import (
    EpochChanged,
    HoldRequested,
    NodeObserved,
    PolicyChanged,
    ResyncCompleted,
    Tick,
    WatchGapFound,
)
from sickbay.policy import Policy, policy_from_yaml

OTHER = policy_from_yaml("version: other\nunknown:\n  window_ms: 60000\n", place="other.yaml")


def node(at_ms, rv, epoch=0, name="n1"):
    return NodeObserved(
        node=name, node_uid=f"u-{name}", observed_at_ms=at_ms, epoch=epoch, rv=rv, ready="True"
    )


def hold(at_ms):
    return HoldRequested(
        node="n1", observed_at_ms=at_ms, request_id="r", device_id="d", actor="eve", reason="noise", until_ms=at_ms + 1
    )  # fmt: skip


def listed(at_ms, rv, epoch=0):
    return ResyncCompleted(
        node="", observed_at_ms=at_ms, epoch=epoch, rv=rv, watched="nodes", objects=1, added=0, changed=0, removed=0
    )  # fmt: skip


TOLD = (
    Tick(node="", observed_at_ms=500),
    Tick(node="", observed_at_ms=700, partition=1),
    PolicyChanged.to(OTHER, 300),
    PolicyChanged.to(Policy(), 600),
    node(650, 9),
    hold(10**12),
)


@pytest.mark.parametrize("facts", list(permutations(TOLD))[::60])
def test_time_and_policy_are_those_of_the_newest_and_people_move_neither(facts):
    told = Recollection(facts)
    assert (told.ticked_ms, told.seen_ms) == (700, 700)
    assert (told.policy_of(0), told.policy_of(1)) == (Policy().hash(), "")
    assert (told.after_everything(100), told.after_everything(900)) == (701, 900)


def test_an_empty_log_remembers_nothing():
    told = Recollection(())
    assert (told.ticked_ms, told.seen_ms, told.policy_of(0), told.versions) == (None, None, "", {})
    assert told.after_everything(5) == 5
    assert told.covers([])
    assert not told.covers([node(1, 1)])


def test_versions_are_those_of_the_newest_epoch_and_lists_count():
    assert Recollection([node(1, 50), listed(2, 80)]).versions == {"nodes": 80}
    assert Recollection([listed(2, 7, epoch=1), node(1, 50)]).versions == {"nodes": 7}


def test_a_fact_is_known_when_something_as_new_of_its_subject_is():
    told = Recollection([node(100, 9), node(50, 5, name="n2")])
    assert told.covers([node(100, 9), node(90, 8), node(50, 5, name="n2")])
    assert not told.covers([node(90, 8), node(51, 6, name="n2")])
    assert not told.covers([node(1, 1, name="n3")])


def test_a_watch_asks_for_all_that_the_mirror_recalls():
    """A stop in the middle of a list leaves its gap or epoch alone; whoever asked for less could be shown less."""
    gap = WatchGapFound(node="", observed_at_ms=3, watched="nodes", from_ms=1, to_ms=3, from_rv=50, to_rv=90)
    restored = EpochChanged(node="", observed_at_ms=4, epoch=1, watched="nodes", last_rv=90, list_rv=60)
    for facts in ([node(1, 50), listed(2, 80), gap], [node(1, 50), gap, restored]):
        assert Recollection(facts).versions == {"nodes": Told(facts).heard["nodes"].rv}
    assert Recollection([gap, restored]).versions == {"nodes": 60}


def test_a_live_watch_remembers_no_subjects():
    told = Recollection(TOLD, subjects=False)
    assert (told.ticked_ms, told.seen_ms, told.versions) == (700, 700, {"nodes": 9})
    assert not told.covers([node(650, 9)])
