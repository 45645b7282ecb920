"""Decisions of the ledger: what was entered or taken back, what was refused, whether new claims may come, where the books differ.

Amounts are canonical quantities as text, by node resource and NUMA bucket. Every entry moves its amounts between two accounts,
so the accounts of a book always add up to nothing (docs/ledger.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import ClassVar, Final, Literal, TypeAlias

import msgspec

from sickbay.decisions.base import Decision

Book: TypeAlias = Literal["common", "recorded", "derived", "devices", "counters"]
Account: TypeAlias = Literal["supply", "pods", "claims", "overhead", "adjustment"]
Verdict: TypeAlias = Literal["open", "hold"]
HoldReason: TypeAlias = Literal[
    "slice_stale", "slice_missing", "pool_incomplete", "generation_back", "mapping_missing", "shape_unknown",
    "driver_rebuilding", "claims_gate_closed", "watch_gap", "drift",
]  # fmt: skip
DriftCause: TypeAlias = Literal[
    "allocated_before_counting", "not_counted", "mapping_changed", "mapping_missing", "shape_unknown", "slice_missing",
    "driver_ignored", "key_spelling", "claim_unknown", "device_conflict",
    "not_emulated", "unexplained",
]  # fmt: skip

#: Bucket of what no NUMA node can be named for.
NUMA_UNKNOWN: Final = "unknown"

#: Alerts that the ledger raises; every other alert is custody's.
LEDGER_ALERTS: Final = frozenset({"device_conflict", "probable_duplicate", "numa_spanned", "numa_missed"})


class Amount(msgspec.Struct, frozen=True, order=True):
    """How much of one resource; ``numa`` is a node number as text, or ``unknown``."""

    resource: str
    numa: str
    #: Canonical quantity; negative only in an adjustment.
    quantity: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One contribution. ``(book, key)`` is stable: the same contribution has the same key for as long as it lasts."""

    book: Book
    key: str
    #: Where the amounts stand: ``supply`` moves them from there into what is free, the others out of it.
    account: Account
    amounts: tuple[Amount, ...] = ()
    #: What is not added because a pod-level request contains it already.
    covered: tuple[Amount, ...] = ()
    #: Event time from which the entry holds.
    at_ms: int
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    claim: str = ""
    claim_uid: str = ""
    device_id: str = ""
    share_id: str = ""
    #: Of a device's mapping: a hash of its content, empty where none was used.
    mapping_version: str = ""


class LedgerDecision(Decision, frozen=True, kw_only=True):
    """A decision of the ledger of one node."""


class EntryDecision(LedgerDecision, frozen=True, kw_only=True):
    """An entry that begins or ends."""

    entry: Entry

    @property
    def subject(self) -> str:
        return f"{self.entry.book}/{self.entry.key}"

    @property
    def correlation_id(self) -> str:
        return self.entry.claim_uid or self.entry.pod_uid


class EntryPosted(EntryDecision, frozen=True, kw_only=True):
    """A contribution began."""

    KIND: ClassVar[str] = "entry_posted"


class EntryReversed(EntryDecision, frozen=True, kw_only=True):
    """A contribution ended, or another amount takes its place; ``entry`` is what was posted."""

    KIND: ClassVar[str] = "entry_reversed"


class DuplicateRefused(LedgerDecision, frozen=True, kw_only=True):
    """A second contribution under one key: reported and never added. ``entry`` is what was refused."""

    KIND: ClassVar[str] = "duplicate_refused"

    entry: Entry
    #: What tells this contender from others under the key, a Pod uid for example.
    contender: str

    @property
    def subject(self) -> str:
        return f"{self.entry.book}/{self.entry.key}/{self.contender}"

    @property
    def correlation_id(self) -> str:
        return self.entry.claim_uid


class DuplicateWithdrawn(LedgerDecision, frozen=True, kw_only=True):
    """A refused contribution is claimed no longer."""

    KIND: ClassVar[str] = "duplicate_withdrawn"

    entry: Entry
    contender: str

    @property
    def subject(self) -> str:
        return f"{self.entry.book}/{self.entry.key}/{self.contender}"

    @property
    def correlation_id(self) -> str:
        return self.entry.claim_uid


class Hold(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One reason why new claims wait."""

    reason: HoldReason
    #: A driver, ``driver/pool``, a claim as ``namespace/name``, a watched resource type, or empty for the whole node.
    scope: str = ""
    since_ms: int
    detail: str = ""


class VerdictChanged(LedgerDecision, frozen=True, kw_only=True):
    """Whether new claims may come to the node: ``open``, or ``hold`` with every reason. Existing bindings stand either way."""

    KIND: ClassVar[str] = "verdict_changed"

    verdict: Verdict
    holds: tuple[Hold, ...] = ()
    #: ``canary`` or ``stable``, by the node's label.
    node_class: Literal["canary", "stable"] = "stable"
    #: Drivers that publish devices on the node.
    drivers: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return "verdict"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Where the recorded and the derived book differ for one claim."""

    #: ``namespace/claim``, with the Pod's uid where the difference is one Pod's overhead.
    about: str
    cause: DriftCause
    namespace: str
    claim: str
    claim_uid: str = ""
    pod: str = ""
    pod_uid: str = ""
    #: Node resource to canonical quantity.
    recorded: dict[str, str] = {}
    derived: dict[str, str] = {}
    #: What is truly used, whatever the rules that are emulated.
    exact: dict[str, str] = {}
    #: The emulated rules foresee it: the scheduler's own under-count, and no difference between the two books.
    predicted: bool = False
    detail: str = ""

    @property
    def explained(self) -> bool:
        """Whether the cause is known."""
        return self.cause != "unexplained"


class DriftFound(LedgerDecision, frozen=True, kw_only=True):
    """A difference outlasted the time that the objects need to follow one another, or its cause changed."""

    KIND: ClassVar[str] = "drift_found"

    drift: Drift

    @property
    def subject(self) -> str:
        return self.drift.about

    @property
    def correlation_id(self) -> str:
        return self.drift.claim_uid


class DriftCleared(LedgerDecision, frozen=True, kw_only=True):
    """The difference is gone."""

    KIND: ClassVar[str] = "drift_cleared"

    drift: Drift

    @property
    def subject(self) -> str:
        return self.drift.about

    @property
    def correlation_id(self) -> str:
        return self.drift.claim_uid


def ledger_version(entries: Iterable[Entry]) -> str:
    """Return the version of a node's ledger: 16 hex digits of the SHA-256 of its standing entries, without their times."""
    content = sorted((e.book, e.key, e.account, e.amounts, e.covered) for e in entries)
    return sha256(msgspec.json.encode(content)).hexdigest()[:16]
