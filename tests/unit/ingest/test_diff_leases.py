"""A Lease lapses only where somebody watches Leases."""

from __future__ import annotations

import pytest

from ingest.diff import Mirror
from ingest.frames import Frame
from sickbay.policy import Policy


def _lease(rv):
    return {
        "kind": "Lease",
        "metadata": {
            "name": "node-g1",
            "namespace": "kube-node-lease",
            "uid": "u1",
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
