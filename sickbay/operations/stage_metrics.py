"""What each stage tells of its work: one object for a process, filled by plain calls, so that no stage knows Prometheus.

Every method is cheap and never fails; any thread may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sickbay.clock import Clock
from sickbay.operations.metrics import Bounded, Level, Levels, Positions

#: Around the goal of 0.5 s, and up to where an operator was told long ago.
LATENCY_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
BATCH_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Ages(Levels):
    """Seconds since something last happened, by label value."""

    def __init__(self, registry: CollectorRegistry, name: str, told: str, label: str, clock: Clock) -> None:
        self._name, self._told, self._label, self._clock = name, told, label, clock
        self._at_ms: dict[str, int] = {}
        registry.register(self)

    def happened(self, value: str = "", at_ms: int | None = None) -> None:
        self._at_ms[value] = self._clock.now_ms() if at_ms is None else at_ms

    def forget(self, value: str) -> None:
        self._at_ms.pop(value, None)

    def levels(self) -> Iterator[Level]:
        now_ms = self._clock.now_ms()
        ages = {value: max(0, now_ms - at_ms) / 1000 for value, at_ms in dict(self._at_ms).items()}
        yield Level(self._name, self._told, self._label, ages)


class _Counts:
    """A counter with one label of bounded values."""

    def __init__(self, registry: CollectorRegistry, name: str, told: str, label: str) -> None:
        self._counter = Counter(name, told, [label], registry=registry)
        self._bounded = Bounded()

    def add(self, value: str, count: int = 1) -> None:
        self._counter.labels(self._bounded(value)).inc(count)


class IngestMetrics:
    """Of `sickbay ingest`. ``resource`` is what is watched (``pods``), never an object."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._frames = _Counts(
            registry, "sickbay_ingest_frames", "Frames read from lists and watches.", "resource"
        )
        self._facts = _Counts(registry, "sickbay_ingest_facts", "Facts acknowledged by the log.", "kind")
        self._relists = _Counts(
            registry, "sickbay_ingest_relists", "Lists that a watch had to begin again with.", "resource"
        )
        self._parked = Counter(
            "sickbay_ingest_parked", "What could not be read, and was parked.", registry=registry
        )
        self._ages = _Ages(
            registry,
            "sickbay_ingest_watch_age_seconds",
            "How long ago a watch last said anything: a frame, a bookmark, or the end of a list.",
            "resource",
            clock,
        )
        self._waiting = Gauge(
            "sickbay_ingest_waiting_facts", "Facts taken and not acknowledged yet.", registry=registry
        )
        self._leader = Gauge("sickbay_ingest_leader", "1 while this replica leads.", registry=registry)
        self._epoch = Gauge(
            "sickbay_ingest_epoch", "Ingest epoch under which this replica writes.", registry=registry
        )
        self._resources = Bounded()

    def read(self, resource: str, frames: int = 1) -> None:
        """Frames came from a list or a watch."""
        self._frames.add(resource, frames)
        self.heard(resource)

    def heard(self, resource: str) -> None:
        """A watch said something that is no frame: a bookmark, the end of a list."""
        self._ages.happened(self._resources(resource))

    def published(self, kind: str, facts: int = 1) -> None:
        """Facts of one kind were acknowledged."""
        self._facts.add(kind, facts)

    def parked(self, letters: int = 1) -> None:
        """Letters were acknowledged by the dead-letter topic."""
        self._parked.inc(letters)

    def relisted(self, resource: str) -> None:
        """A watch was lost for good and its list was read again."""
        self._relists.add(resource)

    def count_waiting(self, waiting: Callable[[], int]) -> None:
        """Ask ``waiting`` whenever the gauge is read: ``lambda: log.waiting``."""
        self._waiting.set_function(waiting)

    def leads(self, ingest_epoch: int | None) -> None:
        """Say that the replica leads under an epoch, or with ``None`` that it does no more."""
        self._leader.set(0 if ingest_epoch is None else 1)
        if ingest_epoch is not None:
            self._epoch.set(ingest_epoch)


class WorkMetrics:
    """Of `sickbay work`."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self.positions: Final = Positions(registry, "sickbay_work", clock)
        self._records = _Counts(
            registry, "sickbay_work_records", "Facts records answered, by what became of them.", "outcome"
        )
        self._facts = _Counts(registry, "sickbay_work_facts", "Facts folded.", "kind")
        self._decisions = _Counts(
            registry, "sickbay_work_decisions", "Decisions acknowledged by the log.", "kind"
        )
        self._parked = Counter(
            "sickbay_work_parked", "Records that could not be folded, and were parked.", registry=registry
        )
        self._latency = Histogram(
            "sickbay_work_decision_latency_seconds",
            "From the timestamp of a facts record to the acknowledgement of its decisions.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._snapshots = _Ages(
            registry,
            "sickbay_work_snapshot_age_seconds",
            "How long ago the oldest state of a partition that is not in a snapshot was snapshotted.",
            "partition",
            clock,
        )
        self._breakers = Gauge(
            "sickbay_work_breaker_open",
            "1 while the breaker of a scope is open, as this worker heard it.",
            ["scope"],
            registry=registry,
        )
        self._waiting = Gauge(
            "sickbay_work_breaker_waiting_devices",
            "Suspect devices of a scope that would be restricted if its breaker closed; more than the threshold keep it open.",
            ["scope"],
            registry=registry,
        )
        self._scopes = Bounded()
        self._clock = clock

    def answered(
        self, outcome: str, facts: Mapping[str, int], decisions: Mapping[str, int], records: int = 1
    ) -> None:
        """So many facts records were answered: kinds of their facts, and of the decisions on them, to how many."""
        self._records.add(outcome, records)
        for kind, count in facts.items():
            self._facts.add(kind, count)
        for kind, count in decisions.items():
            self._decisions.add(kind, count)

    def decided(self, record_ms: int) -> None:
        """The decisions on a facts record with this timestamp were acknowledged just now."""
        self._latency.observe(max(0, self._clock.now_ms() - record_ms) / 1000)

    def parked(self, letters: int = 1) -> None:
        """Letters were acknowledged by the dead-letter topic."""
        self._parked.inc(letters)

    def snapshotted(self, partition: int, at_ms: int | None = None) -> None:
        """The snapshot of a partition holds everything up to ``at_ms``, by default up to now."""
        self._snapshots.happened(str(partition), at_ms)

    def revoked(self, partition: int) -> None:
        """The snapshots of a partition are another worker's business from here on; ``positions.assigned`` is told besides."""
        self._snapshots.forget(str(partition))

    def breaker(self, scope: str, *, waiting: int | None) -> None:
        """The breaker of a scope is open and so many devices wait for it, or is closed (``None``)."""
        label = self._scopes(scope)
        self._breakers.labels(label).set(0 if waiting is None else 1)
        self._waiting.labels(label).set(waiting or 0)


class ProjectMetrics:
    """Of `sickbay project`. How stale the view is follows from the positions: ``positions.behind_ms``."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self.positions: Final = Positions(registry, "sickbay_project", clock)
        self._events = Counter(
            "sickbay_project_events", "Events written into the store, repeats not counted.", registry=registry
        )
        self._batches = Histogram(
            "sickbay_project_batch_seconds",
            "Duration of one transaction: log, read models, position.",
            buckets=BATCH_BUCKETS_S,
            registry=registry,
        )
        self._parked = Counter(
            "sickbay_project_parked",
            "Records that could not be projected, and were parked.",
            registry=registry,
        )
        self._written = _Ages(
            registry,
            "sickbay_project_write_age_seconds",
            "How long ago a transaction last committed; a quiet cluster writes seldom.",
            "",
            clock,
        )
        self._staleness = Gauge(
            "sickbay_view_staleness_seconds",
            "How long ago the read models last held everything that Kafka held, in the partition furthest behind.",
            registry=registry,
        )
        self._staleness.set_function(lambda: self.positions.behind_ms() / 1000)

    def wrote(self, events: int, seconds: float) -> None:
        """One transaction committed."""
        self._events.inc(events)
        self._batches.observe(seconds)
        self._written.happened()

    def parked(self, letters: int = 1) -> None:
        """Letters were acknowledged by the dead-letter topic, or written into the store."""
        self._parked.inc(letters)
