"""Whether a rollout may go on: what the ledgers of one class of nodes went through, held against the policy.

Figures in, criteria out, no I/O. It judges what was recorded and never decides anything: promotion is a person's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sickbay.policy import LedgerPolicy

#: Reasons to hold that are a drill once they ended: all claims were checked before new ones came.
_DRILLS: Final = frozenset({"driver_rebuilding", "claims_gate_closed"})


class NodeStanding(NamedTuple):
    """A node as its last verdict has it."""

    node: str
    node_class: str
    #: Drivers that publish devices on it.
    drivers: tuple[str, ...]
    #: Event time from which its ledger was kept.
    known_since_ms: int


class HoldRun(NamedTuple):
    """One reason for which new claims waited; ``until_ms`` is ``None`` while they do."""

    node: str
    reason: str
    scope: str
    since_ms: int
    until_ms: int | None


class Unexplained(NamedTuple):
    """A difference between the books that nothing explains; ``until_ms`` is ``None`` while it lasts."""

    node: str
    until_ms: int | None


class Criterion(NamedTuple):
    """One condition of the promotion; durations in milliseconds."""

    name: str
    met: bool
    #: What there is, and what is wanted.
    found: int
    wanted: int
    detail: str


class ClassReport(NamedTuple):
    """What one class of nodes comes to."""

    node_class: str
    nodes: tuple[str, ...]
    #: Driver to the number of nodes of the class on which it publishes devices; 0 for one that only others have.
    drivers: dict[str, int]
    drills: int
    #: Since when the class is without an unexplained difference; ``None`` where nothing was ever said of it.
    clean_since_ms: int | None
    #: Of the holds that ended, and of those that last longer than the goal already: nearest-rank percentiles and maximum.
    holds: int
    hold_p50_ms: int
    hold_p90_ms: int
    hold_max_ms: int
    refused_duplicates: int
    criteria: tuple[Criterion, ...]

    @property
    def verdict(self) -> str:
        """``ready`` when every criterion is met, else ``not ready``."""
        return "ready" if all(criterion.met for criterion in self.criteria) else "not ready"


def promotion(
    node_class: str,
    standing: Iterable[NodeStanding],
    holds: Iterable[HoldRun],
    unexplained: Iterable[Unexplained],
    refused_on: Iterable[str],
    policy: LedgerPolicy,
    now_ms: int,
) -> ClassReport:
    """Return the report on a class from every node of the cluster and what was held, refused or found on it.

    A node is of the class that its last verdict says, all its history with it. ``refused_on`` names the node of each duplicate
    that is refused now.
    """
    everywhere = sorted(standing)
    members = [node for node in everywhere if node.node_class == node_class]
    nodes = frozenset(node.node for node in members)
    held = [hold for hold in holds if hold.node in nodes]
    lasted = sorted(_durations(held, policy.pending_goal_ms, now_ms))
    ends = [now_ms if d.until_ms is None else d.until_ms for d in unexplained if d.node in nodes]
    known_since = [node.known_since_ms for node in members]
    report = ClassReport(
        node_class=node_class,
        nodes=tuple(node.node for node in members),
        drivers={
            driver: sum(driver in node.drivers for node in members)
            for driver in sorted({driver for node in everywhere for driver in node.drivers})
        },
        drills=len(_drills(held)),
        clean_since_ms=max([min(known_since), *ends]) if known_since else None,
        holds=len(lasted),
        hold_p50_ms=_percentile(lasted, 50),
        hold_p90_ms=_percentile(lasted, 90),
        hold_max_ms=_percentile(lasted, 100),
        refused_duplicates=sum(node in nodes for node in refused_on),
        criteria=(),
    )
    return report._replace(criteria=_criteria(report, policy, now_ms))


def _criteria(report: ClassReport, policy: LedgerPolicy, now_ms: int) -> tuple[Criterion, ...]:
    missing = [driver for driver, count in report.drivers.items() if not count]
    covered = len(report.drivers) - len(missing)
    clean_ms = 0 if report.clean_since_ms is None else now_ms - report.clean_since_ms
    return (
        Criterion("nodes", bool(report.nodes), len(report.nodes), 1, "nodes of the class"),
        Criterion(
            "driver_coverage",
            bool(report.nodes) and not missing,
            covered,
            len(report.drivers),
            f"not on any node of the class: {', '.join(missing)}" if missing else "drivers of the cluster",
        ),
        Criterion(
            "drills",
            report.drills >= policy.promotion_drills,
            report.drills,
            policy.promotion_drills,
            "rebuilds of drivers and closed gates that ended",
        ),
        Criterion(
            "window_ms",
            report.clean_since_ms is not None and clean_ms >= policy.promotion_window_ms,
            clean_ms,
            policy.promotion_window_ms,
            "without an unexplained difference",
        ),
        Criterion(
            "pending_ms",
            report.hold_p90_ms <= policy.pending_goal_ms,
            report.hold_p90_ms,
            policy.pending_goal_ms,
            "nine holds in ten ended within this time",
        ),
    )


def _drills(holds: Iterable[HoldRun]) -> set[tuple[str, str, str, int]]:
    """Return what was gone through; a gate of the cluster or of a driver is one drill for all nodes that heard of it."""
    found: set[tuple[str, str, str, int]] = set()
    for hold in holds:
        if hold.reason in _DRILLS and hold.until_ms is not None:
            is_common = hold.reason == "claims_gate_closed" and hold.scope != "node"
            found.add((hold.reason, hold.scope, "" if is_common else hold.node, hold.since_ms))
    return found


def _durations(holds: Iterable[HoldRun], goal_ms: int, now_ms: int) -> list[int]:
    """Return how long claims waited each time.

    A hold that still lasts counts once it is longer than the goal: before that nobody knows what becomes of it.
    """
    ended = [(hold.until_ms is not None, (hold.until_ms or now_ms) - hold.since_ms) for hold in holds]
    return [lasted_ms for has_ended, lasted_ms in ended if has_ended or lasted_ms > goal_ms]


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile, 0 of nothing."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0
