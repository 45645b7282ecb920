"""What a responder tells of its work, filled by plain calls; ``sickbay_respond_…`` with the role in ``sickbay_build``.

Every method is cheap and never fails.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sickbay.operations.metrics import Bounded
from sickbay.operations.stage_metrics import LATENCY_BUCKETS_S


class RespondMetrics:
    """Of `sickbay respond`. Effects and outcomes are of closed lists that their role names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._effects = Counter(
            "sickbay_respond_effects",
            "What was done in the world, or tried, by what came of it.",
            ["effect", "outcome"],
            registry=registry,
        )
        self._latency = Histogram(
            "sickbay_respond_latency_seconds",
            "From the event time of a decision to the acknowledgement of what was done about it.",
            ["effect"],
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._standing = Gauge(
            "sickbay_respond_standing",
            "What stands now, by kind: taint rules, alerts, moves that run.",
            ["what"],
            registry=registry,
        )
        self._leader = Gauge("sickbay_respond_leader", "1 while this replica acts.", registry=registry)
        self._bounded = Bounded()

    def done(self, effect: str, outcome: str, seconds: float | None = None) -> None:
        """Count an effect; ``seconds`` since the decision that wanted it, where there is one."""
        self._effects.labels(self._bounded(effect), self._bounded(outcome)).inc()
        if seconds is not None:
            self._latency.labels(self._bounded(effect)).observe(max(0.0, seconds))

    def stands(self, what: str, number: int) -> None:
        """Note how many there are now."""
        self._standing.labels(self._bounded(what)).set(number)

    def leads(self, *, leading: bool) -> None:
        """Note whether this replica acts."""
        self._leader.set(leading)
