"""Small facts of every sort that an ingester tells, for tests of how they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from ingest.remembering import Noted, note
from sickbay.cloudevents import INGEST_EPOCH, unpack, whole_header
from sickbay.codec import decode_envelope, encode, wrap_fact
from sickbay.facts import (
    BreakerStateChanged,
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DeviceWithdrawn,
    Fact,
    NodeGone,
    NodeLeaseLapsed,
    NodeLeaseResumed,
    NodeObserved,
    PodGone,
    PodObserved,
    PoolObserved,
    Tick,
)


def pod(node="a", rv=1, *, uid="p1", at_ms=0, phase="Running"):
    return PodObserved(
        node=node, observed_at_ms=at_ms, rv=rv, pod_uid=uid, namespace="ns", pod=uid, phase=phase
    )


def pod_gone(node="a", rv=1, *, uid="p1", at_ms=0):
    return PodGone(node=node, observed_at_ms=at_ms, rv=rv, pod_uid=uid, namespace="ns", pod=uid)


def word(node="a", rv=1, *, device="dra:d/p/g0", uid="p1", at_ms=0, live=True, message=None):
    return DeviceHealthObserved(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        device_id=device,
        health="Healthy",
        health_raw="Healthy",
        message=message,
        live=live,
        pod_uid=uid,
        namespace="ns",
        pod=uid,
    )


def claim(node="a", rv=1, *, uid="c1", at_ms=0):
    return ClaimObserved(node=node, observed_at_ms=at_ms, rv=rv, claim_uid=uid, namespace="ns", claim=uid)


def claim_gone(node="a", rv=1, *, uid="c1", at_ms=0):
    return ClaimGone(node=node, observed_at_ms=at_ms, rv=rv, claim_uid=uid, namespace="ns", claim=uid)


def withdrawn(node="a", rv=1, *, at_ms=0):
    return DeviceWithdrawn(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        device_id="dra:d/p/g0",
        driver="d",
        pool="p",
        device="g0",
        reason="generation",
    )


def pool(node="a", rv=1, *, at_ms=0, newest=1):
    return PoolObserved(
        node=node,
        observed_at_ms=at_ms,
        rv=rv,
        driver="d",
        pool="p",
        effective_generation=newest,
        newest_generation=newest,
        slices_present=1,
        slices_expected=1,
        complete=True,
    )


def node_seen(node="a", rv=1, *, at_ms=0):
    return NodeObserved(node=node, observed_at_ms=at_ms, rv=rv, node_uid="n1", ready="True")


def node_gone(node="a", rv=1, *, at_ms=0):
    return NodeGone(node=node, observed_at_ms=at_ms, rv=rv, node_uid="n1")


def lapsed(node="a", rv=1, *, at_ms=0):
    return NodeLeaseLapsed(node=node, observed_at_ms=at_ms, rv=rv, last_renewal_at_ms=at_ms, lease_ms=40_000)


def resumed(node="a", rv=1, *, at_ms=0):
    return NodeLeaseResumed(node=node, observed_at_ms=at_ms, rv=rv)


def tick(partition=0, at_ms=0):
    return Tick(node="", observed_at_ms=at_ms, partition=partition)


def breaker(partition=0, at_ms=0, *, opened=True):
    return BreakerStateChanged(
        node="", observed_at_ms=at_ms, partition=partition, scope="cluster", open=opened
    )


OF_NODE = (pod, pod_gone, word, claim, claim_gone, withdrawn, pool, node_seen, node_gone, lapsed, resumed)


@st.composite
def told(draw, *, nodes: Sequence[str] = ("a", "b", "c"), partitions: int = 3) -> Fact:
    """Draw one fact; versions and times are not in any order."""
    at_ms = draw(st.integers(0, 20)) * 600_000
    if draw(st.integers(0, 5)) == 0:
        make = draw(st.sampled_from((tick, breaker)))
        return make(draw(st.integers(0, partitions - 1)), at_ms)
    make = draw(st.sampled_from(OF_NODE))
    return make(draw(st.sampled_from(nodes)), draw(st.integers(1, 9)), at_ms=at_ms)


def noted(fact: Fact) -> Noted:
    """Return how a fact is remembered."""
    envelope = wrap_fact(fact)
    return note(envelope, encode(envelope))


def naive_fold(records: Iterable[tuple[bytes, Sequence[tuple[str, bytes]]]]) -> dict[bytes, Noted]:
    """Return what the facts records of one partition leave: by key the newest version, of one version the last told.

    A record of a leader that was replaced before it does not count, nor one that no leader wrote.
    """
    newest = -1
    out: dict[bytes, Noted] = {}
    for value, headers in records:
        epoch = whole_header(headers, INGEST_EPOCH)
        if epoch is None or epoch < newest:
            continue
        newest = epoch
        for opened in unpack(value, headers):
            fact = note(decode_envelope(opened.data), opened.data)
            before = out.get(fact.key)
            if before is None or fact.version >= before.version:
                out[fact.key] = fact
    return out
