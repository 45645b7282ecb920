"""A Lease lapses only where somebody watches Leases."""

from __future__ import annotations

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame
from sickbay.policy import Policy


def _lease(rv, name="node-g1"):
    return {
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "uid": f"u-{name}",
            "resourceVersion": str(rv),
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": "2026-07-01T00:00:10.000000Z"},
    }


def _frame(at_ms, resource, kind, obj):
    return Frame(at_ms=at_ms, resource=resource, type=kind, object=obj, place="t:1")


def _later(mirror, kind):
    """Ten minutes of frames of another kind."""
    kinds = []
    for second in range(10, 600, 10):
        if kind == "TICK":
            frame = _frame(second * 1000, "", "TICK", None)
        else:
            resource = "leases" if kind == "lease bookmarks" else "nodes"
            frame = _frame(
                second * 1000, resource, "BOOKMARK", {"metadata": {"resourceVersion": str(second)}}
            )
        kinds += [fact.KIND for fact in mirror.apply(frame)]
    return kinds


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("other bookmarks", []), ("lease bookmarks", ["node_lease_lapsed"]), ("TICK", ["node_lease_lapsed"])],
)
def test_one_list_of_leases_in_a_recording_of_other_things_lapses_nobody(kind, expected):
    """Silence counts once a watch of Leases, or whoever writes ticks, gave a sign of life after the renewal."""
    mirror = Mirror(Policy().reading, 1)
    mirror.apply(_frame(0, "leases", "LIST", {"metadata": {"resourceVersion": "9"}, "items": [_lease(5)]}))

    assert expected == _later(mirror, kind)


def test_i8_a_watch_of_leases_that_was_cut_off_while_others_went_on_lapses_nobody():
    """The first renewal after it is a sign for all of them, and theirs are behind it."""
    mirror = Mirror(Policy().reading, 1)
    names = [f"n{number}" for number in range(5)]
    items = [_lease(5 + index, name) for index, name in enumerate(names)]
    mirror.apply(_frame(0, "leases", "LIST", {"metadata": {"resourceVersion": "20"}, "items": items}))
    # until they are silent for too long, ticks stand for them
    kinds = [fact for ms in (5_000, 10_000) for fact in mirror.apply(_frame(ms, "", "TICK", None))]
    for second in range(15, 600, 5):
        bookmark = {"metadata": {"resourceVersion": str(second)}}
        kinds += mirror.apply(_frame(second * 1000, "nodes", "BOOKMARK", bookmark))
        kinds += mirror.apply(_frame(second * 1000 + 1, "pods", "BOOKMARK", bookmark))
    for index, name in enumerate(names):
        kinds += mirror.apply(_frame(600_000 + index, "leases", "MODIFIED", _lease(30 + index, name)))
    assert kinds == []


def test_one_node_that_is_silent_among_others_lapses():
    mirror = Mirror(Policy().reading, 1)
    items = [_lease(5, "n1"), _lease(6, "n2")]
    mirror.apply(_frame(0, "leases", "LIST", {"metadata": {"resourceVersion": "20"}, "items": items}))
    told = []
    for second in range(10, 120, 10):
        told += mirror.apply(_frame(second * 1000, "leases", "MODIFIED", _lease(20 + second, "n1")))
    assert [(fact.KIND, fact.node, fact.observed_at_ms) for fact in told] == [
        ("node_lease_lapsed", "n2", 50_000)
    ]
