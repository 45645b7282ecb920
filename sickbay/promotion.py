"""Whether a rollout may go on: what the ledgers of one class of nodes went through, held against the policy.

Figures in, criteria out, no I/O. It judges what was recorded and never decides anything: promotion is a person's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sickbay.policy import LedgerPolicy

#: The one reason to hold that many nodes may hear of at once.
_GATE_CLOSED: Final = "claims_gate_closed"


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
    #: Whether it ended as a drill: a gate that was opened again, or a driver that was back and published its devices when the
    #: hold ended. All claims were checked then before new ones came.
    drill: bool = False


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
    #: Holds that last, and longer than the goal already.
    holds_overdue: int
    #: Of the holds that ended: how many, nearest-rank percentiles and maximum of how long they lasted.
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
    lasted = sorted(hold.until_ms - hold.since_ms for hold in held if hold.until_ms is not None)
    overdue = sorted(_overdue(held, policy.pending_goal_ms, now_ms))
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
        holds_overdue=len(overdue),
        holds=len(lasted),
        hold_p50_ms=_percentile(lasted, 50),
        hold_p90_ms=_percentile(lasted, 90),
        hold_max_ms=_percentile(lasted, 100),
        refused_duplicates=sum(node in nodes for node in refused_on),
        criteria=(),
    )
    pending_ms = _percentile(sorted([*lasted, *overdue]), 90)
    return report._replace(criteria=_criteria(report, pending_ms, policy, now_ms))


def _criteria(
    report: ClassReport, pending_ms: int, policy: LedgerPolicy, now_ms: int
) -> tuple[Criterion, ...]:
    missing = [driver for driver, count in report.drivers.items() if not count]
    covered = len(report.drivers) - len(missing)
    clean_ms = 0 if report.clean_since_ms is None else now_ms - report.clean_since_ms
    return (
        Criterion("nodes", bool(report.nodes), len(report.nodes), 1, "nodes of the class"),
        Criterion(
            "driver_coverage",
            bool(report.nodes) and bool(report.drivers) and not missing,
            covered,
            len(report.drivers),
            f"not on any node of the class: {', '.join(missing)}" if missing else "drivers of the cluster",
        ),
        Criterion(
            "drills",
            report.drills >= policy.promotion_drills,
            report.drills,
            policy.promotion_drills,
            "drivers that came back and gates that were opened again",
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
            pending_ms <= policy.pending_goal_ms,
            pending_ms,
            policy.pending_goal_ms,
            "nine holds in ten within this time, those that last longer already among them",
        ),
    )


def _drills(holds: Iterable[HoldRun]) -> set[tuple[str, str, str, int]]:
    """Return what was gone through; a gate of the cluster or of a driver is one drill for all nodes that heard of it."""
    found: set[tuple[str, str, str, int]] = set()
    for hold in holds:
        if hold.drill:
            is_common = hold.reason == _GATE_CLOSED and hold.scope != "node"
            found.add((hold.reason, hold.scope, "" if is_common else hold.node, hold.since_ms))
    return found


def _overdue(holds: Iterable[HoldRun], goal_ms: int, now_ms: int) -> list[int]:
    """Return how long claims have waited where they still do and longer than the goal.

    Before that nobody knows what becomes of a hold.
    """
    waited = [now_ms - hold.since_ms for hold in holds if hold.until_ms is None]
    return [waited_ms for waited_ms in waited if waited_ms > goal_ms]


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile, 0 of nothing."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0
