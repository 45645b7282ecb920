"""What a Prometheus server may ask of a process: one registry of its own, and labels that cannot grow.

No label ever holds a device, a node, a Pod or a claim (faults.md X5): the objects that stages fill take none. What comes from
outside all the same (driver, resource, kind) passes ``Bounded``. Units stand last in names, in Prometheus's base units; times of
arguments are milliseconds, as everywhere here.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sickbay.clock import Clock
from sickbay.operations.redaction import escaped

#: Values of one label that are shown; the rest count together.
LABEL_VALUES_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 100
#: Values of a partition label: as many as a topic of ours may have.
PARTITIONS_MAX: Final = 1_000
OTHER: Final = "other"


def new_registry(process: str) -> CollectorRegistry:
    """Return the registry of a process (``ingest``, ``work``, ``project``, ``run``) with what Python and Linux tell of it."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    Info("sickbay_build", "Version of this process.", registry=registry).info(
        {"version": version("sickbay"), "process": process}
    )
    return registry


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics as text and its content type, in the newest format that the ``Accept`` header takes."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class Bounded:
    """The values of one label: the first ``most`` that come are shown, all later ones are ``other``."""

    def __init__(self, most: int = LABEL_VALUES_MAX) -> None:
        self._most = most
        self._shown: dict[str, str] = {}

    def __call__(self, value: object) -> str:
        """Return what is shown for a value."""
        raw = str(value)
        shown = self._shown.get(raw)
        if shown is None:
            if len(self._shown) >= self._most:
                return OTHER
            shown = self._shown[raw] = escaped(raw[:LABEL_CHARACTERS_MAX])
        return shown


class Level(NamedTuple):
    """One gauge at the moment at which it is asked for."""

    name: str
    told: str
    #: The label's name, and its value to the gauge's; a gauge without label has "" for both, one of several has tuples.
    label: str | tuple[str, ...]
    values: Mapping[str | tuple[str, ...], float] | Mapping[str, float]


class Levels(Collector):
    """Gauges that are worked out when they are asked for, from plain numbers that a stage sets."""

    @abstractmethod
    def levels(self) -> Iterator[Level]:
        """Yield the gauges; their names never change, whatever they hold."""

    def collect(self) -> Iterator[Metric]:
        """Yield them as Prometheus wants them."""
        for name, told, label, values in self.levels():
            labels = [label] if isinstance(label, str) else label
            family = GaugeMetricFamily(name, told, labels=labels if label else [])
            for text, value in values.items():
                family.add_metric((text if isinstance(text, tuple) else [text]) if label else [], value)
            yield family


class Positions(Levels):
    """How far a consumer is in each of its partitions, and how far it could be.

    Lag 0 proves nothing by itself: it compares with the end that was seen last. So the age of that sight is told too, and
    ``behind_ms`` counts from the last moment at which a partition was known to be at its end, whatever the reason.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str, clock: Clock) -> None:
        self._prefix, self._clock = prefix, clock
        #: Consumers work in threads of their own, and a partition must not go while it is looked at.
        self._lock = threading.RLock()
        #: Partition to the next offset to be handled. Its keys are the partitions that are held.
        self._next: dict[int, int] = {}
        #: Partition to the newest event time that was handled.
        self._newest_ms: dict[int, int] = {}
        #: Partition to its end, and when that was seen.
        self._ends: dict[int, tuple[int, int]] = {}
        #: Partition to when it was last known to be at its end, and until then to when it was assigned.
        self._level_ms: dict[int, int] = {}
        registry.register(self)

    def assigned(self, starts: Mapping[int, int]) -> None:
        """Take exactly these partitions, each from its offset; what is held already goes on, what is not named is forgotten."""
        with self._lock:
            for gone in set(self._next) - set(starts):
                for table in (self._next, self._newest_ms, self._ends, self._level_ms):
                    table.pop(gone, None)
            for partition, start in starts.items():
                if partition not in self._next:
                    self._level_ms[partition] = self._clock.now_ms()
                    self._next[partition] = start

    def moved(self, partition: int, next_offset: int, newest_ms: int) -> None:
        """Everything before ``next_offset`` is done, up to this event time. A partition that is not held counts nothing."""
        with self._lock:
            if partition in self._next:
                self._next[partition] = next_offset
                self._newest_ms[partition] = max(newest_ms, self._newest_ms.get(partition, 0))
                self._compare(partition)

    def saw_end(self, partition: int, end_offset: int) -> None:
        """The broker said just now that the partition ends before ``end_offset``."""
        with self._lock:
            if partition in self._next:
                self._ends[partition] = (end_offset, self._clock.now_ms())
                self._compare(partition)

    def _compare(self, partition: int) -> None:
        end = self._ends.get(partition)
        if end is not None and self._next[partition] >= end[0]:
            self._level_ms[partition] = max(end[1], self._level_ms[partition])

    def lag_records(self, partition: int) -> int:
        """Records that are known to wait; 0 for a partition that is not held."""
        with self._lock:
            end = self._ends.get(partition)
            return max(0, end[0] - self._next[partition]) if end is not None else 0

    def behind_ms(self) -> int:
        """How long ago the partition that is furthest behind was known to be at its end; 0 without partitions."""
        with self._lock:
            return max((self._age_ms(level_ms) for level_ms in self._level_ms.values()), default=0)

    def _age_ms(self, at_ms: int) -> int:
        return max(0, self._clock.now_ms() - at_ms)

    def levels(self) -> Iterator[Level]:
        """Yield position, lag and ages of each partition."""
        with self._lock:
            found = list(self._levels())
        yield from found

    def _levels(self) -> Iterator[Level]:
        def each(name: str, told: str, values: Mapping[int, float]) -> Level:
            shown = {str(partition): values[partition] for partition in sorted(values)[:PARTITIONS_MAX]}
            return Level(f"{self._prefix}_{name}", told, "partition", shown)

        lags = {partition: self.lag_records(partition) for partition in self._next}
        yield each("position_offset", "Next offset to be handled.", self._next)
        yield each(
            "lag_records",
            "Records before the end that was seen last. 0 proves nothing while the age of that sight grows.",
            lags,
        )
        yield each(
            "event_time_lag_seconds",
            "Age of the newest handled event while records are known to wait, 0 otherwise.",
            {p: self._age_ms(at) / 1000 if lags[p] else 0.0 for p, at in self._newest_ms.items()},
        )
        yield each(
            "end_age_seconds",
            "How long ago the broker last told where the partition ends.",
            {p: self._age_ms(seen_ms) / 1000 for p, (_, seen_ms) in self._ends.items()},
        )
        yield each(
            "behind_seconds",
            "How long ago the partition was last known to be handled to its end.",
            {p: self._age_ms(level_ms) / 1000 for p, level_ms in self._level_ms.items()},
        )
