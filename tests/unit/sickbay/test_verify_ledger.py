"""``sickbay verify`` finds a ledger that does not follow from its objects, though every hash and every row is right."""

from __future__ import annotations

import pytest
from ledger_facts import container, node, pod
from log_builder import History
from msgspec.structs import replace

from projections.engine import Store
from sickbay.cli.verifying import verify_ledger
from sickbay.decisions import Amount, EntryPosted
from sickbay.errors import VerifyError
from sickbay.facts import PolicyChanged
from sickbay.policy import Policy
from streams.partition import Partition

HOUR_MS = 3_600_000


def stored(path, *facts, tamper=lambda decision: [decision]):
    """A store of one partition that holds facts and what they lead to, each decision as ``tamper`` leaves it."""
    history, partition = History(1), Partition(0)
    for fact in (PolicyChanged.to(Policy(), HOUR_MS), *facts):
        envelope = history.fact(fact)
        decisions = [told for decision in partition.step(fact) for told in tamper(decision)]
        history.decide(envelope, *decisions)
    store = Store.open(path / "log.db", create=True, partitions=1)
    store.write(history.records)
    return store


FACTS = (
    node(HOUR_MS, 1, cpu="8"),
    pod(HOUR_MS + 1, 2, "a", container("main", {"cpu": "2"})),
    pod(HOUR_MS + 2, 3, "b", container("main", {"cpu": "1"})),
)


def is_of(decision, pod_uid):
    return isinstance(decision, EntryPosted) and decision.entry.pod_uid == pod_uid


def test_a_ledger_that_follows_is_counted(tmp_path):
    """The node's supply and two Pods are three entries."""
    with stored(tmp_path, *FACTS) as store:
        assert {"ledgers": 1, "entries": 3} == verify_ledger(store)


def test_what_came_too_late_counts_in_neither(tmp_path):
    """A Pod that was bound before the lateness horizon is recorded and not acted on."""
    late = pod(HOUR_MS - Policy().lateness_horizon_ms - 1, 1, "c", container("main", {"cpu": "4"}))
    with stored(tmp_path, *FACTS, late) as store:
        assert {"ledgers": 1, "entries": 3} == verify_ledger(store)


def test_an_entry_that_was_left_out_is_named(tmp_path):
    """Without the posting of a Pod the log says less than its facts."""
    with (
        stored(tmp_path, *FACTS, tamper=lambda d: [] if is_of(d, "uid-a") else [d]) as store,
        pytest.raises(VerifyError, match="node node-1: the ledger's entry common/pod/uid-a is missing from"),
    ):
        verify_ledger(store)


def test_an_entry_that_does_not_follow_is_named(tmp_path):
    """A posting for a Pod that nobody saw."""

    def invent(decision):
        if not is_of(decision, "uid-b"):
            return [decision]
        return [
            decision, replace(decision, entry=replace(decision.entry, key="pod/uid-z", pod_uid="uid-z"))
        ]  # fmt: skip

    with (
        stored(tmp_path, *FACTS, tamper=invent) as store,
        pytest.raises(VerifyError, match="entry common/pod/uid-z stands in the log and does not follow"),
    ):
        verify_ledger(store)


def test_another_amount_is_named(tmp_path):
    """A Pod that is entered with half of what it asks for."""

    def halve(decision):
        if not is_of(decision, "uid-a"):
            return [decision]
        return [replace(decision, entry=replace(decision.entry, amounts=(Amount("cpu", "unknown", "1"),)))]

    with (
        stored(tmp_path, *FACTS, tamper=halve) as store,
        pytest.raises(VerifyError, match="entry common/pod/uid-a has other amounts in the log"),
    ):
        verify_ledger(store)
