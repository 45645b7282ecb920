"""What the ledger's reasons, causes and refusals mean, in words for a person: one wording for the command line and the report.

The words explain what ``docs/ledger.md`` defines; nothing is decided here, and what the cluster wrote is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sickbay.decisions import (
    Amount,
    Drift,
    DriftCause,
    DriftCleared,
    DriftFound,
    DuplicateRefused,
    DuplicateWithdrawn,
    Hold,
    HoldReason,
    LedgerDecision,
    VerdictChanged,
)

#: What each reason to hold means, in words that follow "new claims wait: ".
HOLD_WORDS: Final[dict[HoldReason, str]] = {
    "pool_incomplete": "a newer generation of the pool is not complete, or the pool is invalid; the one before it counts",
    "slice_stale": "nobody vouches any more for what is published",
    "slice_missing": "a bound claim holds a device that is not published",
    "generation_back": "the pool fell back to an older generation without having been gone",
    "driver_rebuilding": "the driver's slices are gone, or were and are back, and have not settled yet",
    "mapping_missing": "a bound claim holds a device without the mapping that was counted",
    "shape_unknown": "something has a shape that this build does not read whole",
    "watch_gap": "nothing was seen of this resource type for a while, and not all of it is seen again",
    "claims_gate_closed": "a person closed the claims gate",
    "drift": "the two books differ",
}
#: What each cause of a difference means, in one sentence.
DRIFT_WORDS: Final[dict[DriftCause, str]] = {
    "claim_unknown": "the Pod's status names a claim that is not known",
    "shape_unknown": "the status or the device has a shape that this build does not read whole",
    "allocated_before_counting": (
        "the claim was allocated before the Pod was scheduled, and the 1.36 scheduler skips such a claim: it is used and not"
        " counted"
    ),
    "not_counted": "the Pod has no such status at all: it was bound while the feature gate was off, or without the scheduler",
    "device_conflict": "another claim holds the device, so this one adds nothing to the derived book",
    "slice_missing": "the device is published no longer, or not on this node",
    "mapping_missing": "the device is published without the mapping that it had",
    "mapping_changed": "the device's mapping changed since the scheduler counted: the earlier one gives the recorded amount",
    "driver_ignored": "the 1.36 scheduler does not compare drivers: another driver's device of that name gives the recorded amount",
    "key_spelling": "the 1.36 scheduler did not find the capacity, whose name is spelled otherwise in the mapping",
    "not_emulated": "the emulated scheduler does not read the data of a device, which is of another version",
    "unexplained": "nothing that is known explains it: one of the two numbers is wrong",
}


def reason_words(hold: Hold) -> str:
    """Return a reason to hold in a few words: ``driver_rebuilding dra.cpu/mix-1``."""
    return f"{hold.reason} {hold.scope}".rstrip()


def hold_words(hold: Hold) -> str:
    """Return what a reason to hold means, with its detail."""
    return f"{HOLD_WORDS[hold.reason]}{f' ({hold.detail})' if hold.detail else ''}"


def whose_words(namespace: str, claim: str, pod: str, key: str = "") -> str:
    """Return whose something is by the names of claim and Pod; ``key`` where there is no claim."""
    about = f"{namespace}/{claim}" if claim else key
    return f"{about} for Pod {namespace}/{pod}" if pod else about


def amounts_words(amounts: Mapping[str, str]) -> str:
    """Return amounts by resource in words: ``cpu 6, memory 1Gi``, or ``nothing``."""
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(amounts.items())) or "nothing"


def entry_words(amounts: Iterable[Amount]) -> str:
    """Return the amounts of an entry in words; the NUMA node where one is known."""
    return ", ".join(
        f"{a.resource} {a.quantity}" + ("" if a.numa == "unknown" else f" on NUMA node {a.numa}")
        for a in amounts
    )


def books_words(drift: Drift) -> str:
    """Return what the two books have, and what is truly used where that is something else."""
    told = [f"recorded {amounts_words(drift.recorded)}", f"derived {amounts_words(drift.derived)}"]
    if drift.exact != drift.derived:
        told.append(f"truly used {amounts_words(drift.exact)}")
    return ", ".join(told)


def about_words(decision: LedgerDecision) -> str:
    """Return what a decision of the ledger is about, by the names of claim and Pod; empty for what concerns the whole node."""
    match decision:
        case DriftFound(drift=drift) | DriftCleared(drift=drift):
            return whose_words(drift.namespace, drift.claim, drift.pod, drift.about)
        case DuplicateRefused(entry=entry) | DuplicateWithdrawn(entry=entry):
            return whose_words(entry.namespace, entry.claim, entry.pod, entry.key)
        case _:
            return ""


def decision_words(decision: LedgerDecision) -> str:
    """Return what a decision of the ledger says and what that means, in words for a person."""
    match decision:
        case VerdictChanged(verdict="hold", holds=holds):
            return "hold: " + "; ".join(f"{reason_words(hold)}: {hold_words(hold)}" for hold in holds)
        case VerdictChanged():
            return "open: new claims may come"
        case DriftFound(drift=drift):
            detail = f" ({drift.detail})" if drift.detail else ""
            predicted = ", predicted" if drift.predicted else ""
            return f"{drift.cause}{predicted}: {books_words(drift)}; {DRIFT_WORDS[drift.cause]}{detail}"
        case DriftCleared(drift=drift):
            return f"the two books agree again; it was {drift.cause}"
        case DuplicateRefused(entry=entry):
            return f"{entry_words(entry.amounts)}: {entry.book}/{entry.key} counts already; a second contribution is never added"
        case DuplicateWithdrawn(entry=entry):
            return f"{entry_words(entry.amounts)}: the second contribution to {entry.book}/{entry.key} is claimed no longer"
        case _:
            return decision.reason
