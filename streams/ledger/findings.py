"""What one part of the ledger comes to: entries, refusals, drift, alerts and reasons to hold, each with the time it applies.

A part (``Unit``) is looked at as a whole whenever a fact touches it; what changed is found by comparing two findings.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from sickbay.decisions import Book, Drift, Entry, Hold, HoldReason
from streams.ledger.amounts import Exact, Nanos

#: No deadline.
NEVER: Final = 1 << 62
#: Why an amount that was read was not entered.
OUT_OF_RANGE: Final = "an amount out of range"

EntryKey: TypeAlias = tuple[Book, str]
RefusalKey: TypeAlias = tuple[Book, str, str]


class TimedHold(NamedTuple):
    """A reason to hold from one time until another."""

    hold: Hold
    from_ms: int
    until_ms: int = NEVER


class TimedDrift(NamedTuple):
    """A difference, and the time from which it is more than the objects following one another."""

    drift: Drift
    from_ms: int


class Findings:
    """What one part comes to."""

    __slots__ = ("alerts", "borne", "drifts", "entries", "holds", "refused")

    def __init__(self) -> None:
        self.entries: dict[EntryKey, Entry] = {}
        self.refused: dict[RefusalKey, Entry] = {}
        #: ``(kind, about)`` to why.
        self.alerts: dict[tuple[str, str], str] = {}
        self.drifts: list[TimedDrift] = []
        self.holds: list[TimedHold] = []
        #: Of a claim: ``(book, Pod uid)`` to nano-units by resource that the claim adds to that Pod, and to those entered.
        self.borne: dict[tuple[Book, str], tuple[dict[str, Exact], Nanos]] = {}

    @property
    def says_nothing(self) -> bool:
        """Whether there is nothing in it."""
        return not any(getattr(self, name) for name in self.__slots__)

    def enter(self, entry: Entry) -> None:
        """Add an entry, unless it moves nothing and covers nothing."""
        if entry.amounts or entry.covered:
            self.entries[entry.book, entry.key] = entry

    def refuse(self, entry: Entry, contender: str) -> None:
        """Add what is refused under a key."""
        self.refused[entry.book, entry.key, contender] = entry

    def hold(
        self,
        reason: HoldReason,
        scope: str,
        since_ms: int,
        detail: str = "",
        *,
        from_ms: int | None = None,
        until_ms: int = NEVER,
    ) -> None:
        """Add a reason to hold, from ``from_ms`` (else ``since_ms``) until ``until_ms``."""
        hold = Hold(reason=reason, scope=scope, since_ms=since_ms, detail=detail)
        self.holds.append(TimedHold(hold, since_ms if from_ms is None else from_ms, until_ms))


#: The findings of a part that there is nothing to say of.
NOTHING: Final = Findings()
