"""What the ledger says in words: by the names of claim and Pod, with the meaning of every reason and cause."""

from __future__ import annotations

from typing import get_args

import pytest

from sickbay.decisions import (
    Amount,
    Drift,
    DriftCause,
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    Entry,
    EntryPosted,
    Hold,
    HoldReason,
    VerdictChanged,
)
from sickbay.ledger_words import (
    DRIFT_WORDS,
    HOLD_WORDS,
    about_words,
    decision_words,
    hold_words,
    reason_words,
    whose_words,
)

ON = {"node": "n", "at_ms": 1}
ENTRY = Entry(
    book="recorded", key="claim/u", account="claims", amounts=(Amount("cpu", "0", "6"),), at_ms=1,
    namespace="ml", pod="train", claim="gpus",
)  # fmt: skip
DRIFT = Drift(
    about="ml/gpus@uid",
    cause="unexplained",
    namespace="ml",
    claim="gpus",
    pod="train",
    derived={"cpu": "6"},
    exact={"cpu": "7"},
)


def test_every_reason_and_every_cause_has_words():
    """What may be decided can be explained."""
    assert set(get_args(HoldReason)) == set(HOLD_WORDS)
    assert set(get_args(DriftCause)) == set(DRIFT_WORDS)


def test_a_hold_is_told_with_its_scope_and_its_detail_where_there_are_some():
    assert "watch_gap pods" == reason_words(Hold(reason="watch_gap", scope="pods", since_ms=1))
    assert "slice_stale" == reason_words(Hold(reason="slice_stale", since_ms=1))
    closed = Hold(reason="claims_gate_closed", scope="node", since_ms=1, detail="ann: upgrade")
    assert "a person closed the claims gate (ann: upgrade)" == hold_words(closed)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("ml", "gpus", "train"), "ml/gpus for Pod ml/train"),
        (("ml", "gpus", ""), "ml/gpus"),
        (("ml", "", "train"), "pod/u for Pod ml/train"),
        (("", "", ""), "pod/u"),
    ],
)
def test_whose_something_is_is_told_by_names(names, words):
    """The key stands in for a claim that there is not."""
    assert words == whose_words(*names, "pod/u")


@pytest.mark.parametrize(
    ("decision", "about", "words"),
    [
        (VerdictChanged(**ON, verdict="open"), "", "open: new claims may come"),
        (
            VerdictChanged(
                **ON, verdict="hold", holds=(Hold(reason="drift", scope="ml/c", since_ms=1), Hold(reason="slice_stale", since_ms=1))
            ),
            "",
            "hold: drift ml/c: the two books differ; slice_stale: nobody vouches any more for what is published",
        ),
        (
            DriftFound(**ON, drift=DRIFT),
            "ml/gpus for Pod ml/train",
            ("unexplained: recorded nothing, derived cpu 6, truly used cpu 7; nothing that is known explains it: one of the two"
            " numbers is wrong"),
        ),
        (DriftCleared(**ON, drift=DRIFT), "ml/gpus for Pod ml/train", "the two books agree again; it was unexplained"),
        (
            DuplicateRefused(**ON, entry=ENTRY, contender="x"),
            "ml/gpus for Pod ml/train",
            "cpu 6 on NUMA node 0: recorded/claim/u counts already; a second contribution is never added",
        ),
        (
            DuplicateWithdrawn(**ON, entry=ENTRY, contender="x"),
            "ml/gpus for Pod ml/train",
            "cpu 6 on NUMA node 0: the second contribution to recorded/claim/u is claimed no longer",
        ),
        (EntryPosted(**ON, entry=ENTRY, reason="bound"), "", "bound"),
    ],
    ids=lambda value: getattr(value, "KIND", None),
)  # fmt: skip
def test_a_decision_says_what_it_is_about_and_what_it_means(decision, about, words):
    assert (about, words) == (about_words(decision), decision_words(decision))
