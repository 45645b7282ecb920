"""The pure part of the election: what to do with a Lease that looks like this since then."""

import pytest

from sickbay.cluster.lease import Seen, looked, made, next_step, renewed, taken, transitions_of


def lease(holder="a", renew="t1", transitions=3, seconds=15):
    return {
        "metadata": {"name": "sickbay-ingest", "resourceVersion": "7", "labels": {"team": "ml"}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "leaseTransitions": transitions,
            "renewTime": renew,
        },
    }


@pytest.mark.parametrize(
    ("seen", "renewed_ms", "step"),
    [
        (Seen(None, 0), None, "make"),
        (Seen(None, -15_000), None, "make"),
        (Seen(lease("b"), -14_999), None, "wait"),
        (Seen(lease("b"), -15_000), None, "acquire"),
        (Seen(lease("b", seconds=60), -59_999), None, "wait"),
        (Seen(lease("b", seconds=60), -60_000), None, "acquire"),
        (Seen(lease("b", seconds=10**9), -15_000), None, "acquire"),
        (Seen(lease("b", seconds="15"), -15_000), None, "acquire"),
        (Seen(lease(""), 0), None, "acquire"),
        (Seen(lease("a"), 0), None, "wait"),
        (Seen(lease("a"), 0), -9_999, "renew"),
        (Seen(lease("a"), 0), -10_000, "lost"),
        (Seen(lease("b"), 0), 0, "lost"),
        (Seen(lease(""), 0), 0, "lost"),
        (Seen(None, 0), 0, "lost"),
    ],
    ids=[
        "none yet", "none for long", "held", "ran out", "held longer", "longer ran out", "nonsense", "no number", "given back",
        "ours of before", "ours", "ours but too old", "taken", "taken away", "deleted",
    ],
)  # fmt: skip
def test_what_is_to_be_done(seen, renewed_ms, step):
    assert next_step(seen, "a", 0, renewed_ms=renewed_ms) == step


def test_only_a_sign_of_life_begins_the_wait_anew():
    first = looked(None, lease(), 1_000)
    assert looked(first, lease(), 9_000).since_ms == 1_000
    assert looked(first, lease() | {"metadata": {"resourceVersion": "8"}}, 9_000).since_ms == 1_000
    for changed in (lease(renew="t2"), lease(holder="b"), lease(transitions=4), None):
        assert looked(first, changed, 9_000).since_ms == 9_000


def test_a_new_holder_counts_on_and_never_below_what_the_log_has():
    assert transitions_of(taken(lease(), "b", "t9", 1)) == 4
    assert transitions_of(taken(lease(), "b", "t9", 12)) == 12
    assert transitions_of(taken(lease(transitions="many"), "b", "t9", 1)) == 1


def test_what_a_holder_writes_names_the_version_that_it_read_and_keeps_what_is_not_its_own():
    written = taken(lease(), "b", "t9", 1)
    assert written["metadata"] == lease()["metadata"]
    assert written["spec"]["acquireTime"] == written["spec"]["renewTime"] == "t9"
    again = renewed(written, "b", "t10", 4)
    assert (again["spec"]["acquireTime"], again["spec"]["renewTime"], transitions_of(again)) == (
        "t9",
        "t10",
        4,
    )
    assert lease()["spec"]["holderIdentity"] == "a"


def test_a_lease_that_is_made_is_a_whole_object_and_counts_no_leadership():
    lease = made("sickbay-ingest", "b", "t9")
    assert lease == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "sickbay-ingest"},
        "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 0, "renewTime": "t9"},
    }
    assert next_step(Seen(lease, 0), "b", 14_999, renewed_ms=None) == "wait"
    assert transitions_of(taken(lease, "b", "t10", 1)) == 1
