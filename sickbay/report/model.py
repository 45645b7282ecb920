"""What a page shows, as plain values. ``projections.report`` fills them from a store; ``page`` writes them.

Times are milliseconds since the epoch, UTC; a ``to_ms`` of ``None`` has not ended. Amounts are canonical quantities as text. Texts
are as the log has them: escaping is the page's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Decisions on one page; of more, the most telling are kept, and the page says so.
MARKS_MAX: Final = 20_000
#: Facts that are shown of those that a decision rests on.
EVIDENCE_MAX: Final = 8
#: Stretches of phases on one page; of more, the longest are kept.
PHASES_MAX: Final = 20_000
#: Devices that have a row of their own.
DEVICES_MAX: Final = 4_000
#: Rows of any one table.
ROWS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact that a decision cites, and what it said."""

    kind: str
    at_ms: int
    said: str
    event_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A decision, or a person's request, at its place in time and in the log."""

    at_ms: int
    kind: str
    #: Empty for what concerns the cluster.
    node: str
    #: A device, an incident's scope, a breaker's scope.
    about: str
    reason: str
    event_id: str
    partition: int
    offset: int
    clause: str = ""
    policy: str = ""
    #: Phases of the device; empty where it is about no device.
    before: str = ""
    after: str = ""
    #: The event that caused it, where that is no evidence.
    told_by: Evidence | None = None
    evidence: tuple[Evidence, ...] = ()
    #: Facts beyond those shown.
    evidence_left: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which a device was in one phase."""

    phase: str
    cause: str
    from_ms: int
    to_ms: int | None
    episode_id: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """Any other stretch: an episode, an incident, a move, an open breaker, a gap, a hold."""

    label: str
    detail: str
    from_ms: int
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """A device to which something happened in the shown time."""

    device_id: str
    driver: str
    phases: tuple[Phase, ...] = ()
    episodes: tuple[Bar, ...] = ()
    moves: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A node, its busy devices, and the ids of those to which nothing happened."""

    name: str
    devices: tuple[Device, ...] = ()
    quiet: tuple[str, ...] = ()
    incidents: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happened on it."""
        return not (self.devices or self.incidents or self.marks)


@dataclass(frozen=True, slots=True)
class Episode:
    """A row of the table of episodes."""

    episode_id: str
    node: str
    device_id: str
    phase: str
    cause: str
    reason: str
    opened_at_ms: int
    closed_at_ms: int | None
    outcome: str
    flap_count: int
    verification: str
    open_causes: str
    decisions: int
    evidence_facts: int


@dataclass(frozen=True, slots=True)
class Alert:
    """A row of the table of alerts."""

    alert: str
    about: str
    node: str
    raised_at_ms: int | None
    cleared_at_ms: int | None
    #: Why it was raised.
    reason: str
    cleared_reason: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """Something that could not be used."""

    place: str
    reason: str
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that decided, from a time on."""

    policy_hash: str
    version: str
    from_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition of the log is written; ``chain_head`` is 64 hex digits."""

    partition: int
    next_offset: int
    newest_ms: int
    chain_head: str


@dataclass(frozen=True, slots=True)
class Balance:
    """One resource of one book of a node at the end of the shown time."""

    book: str
    resource: str
    supply: str
    pods: str
    claims: str
    overhead: str
    adjustment: str
    used: str
    free: str
    #: ``used`` of ``supply`` in a thousand; ``None`` where nothing is supplied.
    used_per_mille: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change of the verdict on new claims."""

    verdict: str
    holds: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference between the recorded and the derived book."""

    about: str
    cause: str
    predicted: bool
    recorded: str
    derived: str
    exact: str
    detail: str
    found_at_ms: int
    cleared_at_ms: int | None
    #: Claim and Pod by name.
    whose: str = ""
    #: What the cause means, in a sentence.
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A second contribution under one key, which was not added."""

    book: str
    entry_key: str
    contender: str
    amounts: str
    refused_at_ms: int
    withdrawn_at_ms: int | None
    #: Claim and Pod by name.
    whose: str = ""


@dataclass(frozen=True, slots=True)
class LedgerNode:
    """What the ledger says of a node."""

    name: str
    balances: tuple[Balance, ...] = ()
    holds: tuple[Bar, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    drifts: tuple[Drift, ...] = ()
    refused: tuple[Refused, ...] = ()
    #: What the ledger decided: verdicts, differences, refused duplicates.
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A page."""

    title: str
    from_ms: int
    until_ms: int
    #: The log that the store follows, and the build that made the store.
    source: str
    created_by: str
    policies: tuple[Policy, ...] = ()
    positions: tuple[Position, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: What concerns the whole cluster: open breakers, and marks of them.
    breakers: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    gaps: tuple[Bar, ...] = ()
    episodes: tuple[Episode, ...] = ()
    alerts: tuple[Alert, ...] = ()
    parked: tuple[Parked, ...] = ()
    ledger: tuple[LedgerNode, ...] = ()
    #: Words to counts, in the order of the header.
    counts: tuple[tuple[str, int], ...] = ()
    #: To what the page was narrowed, in words; empty for everything.
    narrowed_to: str = ""
    #: What is left out, and how to see it.
    notes: tuple[str, ...] = ()
