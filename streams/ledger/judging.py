"""Verdict and drift as they should be said: the part of the ledger that time alone may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from sickbay.decisions import (
    Decision,
    Drift,
    DriftCleared,
    DriftFound,
    Hold,
    Verdict,
    VerdictChanged,
)
from streams.ledger.books import Books


class Standing(msgspec.Struct, frozen=True):
    """The verdict as announced, or as it should be."""

    verdict: Verdict
    holds: tuple[Hold, ...] = ()
    node_class: Literal["canary", "stable"] = "stable"
    drivers: tuple[str, ...] = ()

    @property
    def essence(self) -> object:
        """What makes it another verdict; times and details alone do not."""
        return self.verdict, tuple((h.reason, h.scope) for h in self.holds), self.node_class, self.drivers


class Shown:
    """What is announced together with what waits in the outbox."""

    def __init__(
        self, verdict: Standing | None, drifts: Mapping[str, Drift], outbox: Iterable[Decision]
    ) -> None:
        self.verdict = verdict
        self.drifts = dict(drifts)
        for decision in outbox:
            match decision:
                case VerdictChanged():
                    self.verdict = standing_of(decision)
                case DriftFound():
                    self.drifts[decision.drift.about] = decision.drift
                case DriftCleared():
                    self.drifts.pop(decision.drift.about, None)
                case _:
                    pass


def standing_of(decision: VerdictChanged) -> Standing:
    """Return the verdict that a decision announces."""
    return Standing(decision.verdict, decision.holds, decision.node_class, decision.drivers)


def drifts(node: str, books: Books, shown: Shown, now_ms: int) -> list[Decision]:
    """Return what to say so that the differences that are shown are those that stand."""
    out: list[Decision] = []
    target = {about: timed.drift for about, timed in books.drifts(now_ms, shown.drifts).items()}
    out += [
        DriftCleared(node=node, at_ms=now_ms, drift=shown.drifts[about])
        for about in sorted(shown.drifts.keys() - target.keys())
    ]
    for about in sorted(target):
        if shown.drifts.get(about) != target[about]:
            clause = f"ledger.emulate={books.emulate}"
            reason = f"recorded and derived differ: {target[about].cause}"
            out.append(DriftFound(node=node, at_ms=now_ms, clause=clause, reason=reason, drift=target[about]))
    return out


def verdict(node: str, books: Books, shown: Shown, now_ms: int) -> list[Decision]:
    """Return what to say so that the verdict that is shown is the one that holds."""
    if not books.known:
        return []
    holds = books.holds(now_ms, books.drifts(now_ms, shown.drifts))
    target = Standing("hold" if holds else "open", holds, books.node_class, books.objects.drivers())
    if shown.verdict is not None and shown.verdict.essence == target.essence:
        return []
    reason = "; ".join(f"{h.reason} {h.scope}".strip() for h in holds) or "nothing speaks against new claims"
    return [
        VerdictChanged(
            node=node, at_ms=now_ms, clause="ledger", reason=reason, verdict=target.verdict, holds=holds,
            node_class=target.node_class, drivers=target.drivers,
        )
    ]  # fmt: skip
