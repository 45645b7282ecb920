"""The measures of the read models as metrics: what they hold, and how they are shown.

docs/audit-views.md defines each. Every label is bounded: by a closed list, or by ``Bounded``; values of a bounded label that are
shown together are added up, of quantiles the greatest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from sickbay.operations.metrics import Bounded, Level

#: One label's value, or the values of several.
Labels: TypeAlias = tuple[str, ...]
Counts: TypeAlias = Mapping[Labels, float]
_NONE: Final[Counts] = MappingProxyType({})


class Measures(NamedTuple):
    """The measures at one moment; keys are the values of the labels of the metric, durations are in milliseconds."""

    #: (driver, quantile).
    status_age_ms: Counts = _NONE
    #: (driver, quantile), of the runs that go on.
    unknown_duration_ms: Counts = _NONE
    #: (driver,).
    quarantines_closed: Counts = _NONE
    #: (driver, why).
    quarantines_false: Counts = _NONE
    #: (``decision``, ``applied`` or ``confirmed``; quantile), of the newest day.
    time_to_quarantine_ms: Counts = _NONE
    #: (driver, outcome), ``unfinished`` for one without.
    moves: Counts = _NONE
    #: (driver, phase), in device-milliseconds.
    idle_ms: Counts = _NONE
    #: (resource, cause), in cores, bytes or units.
    ledger_difference: Counts = _NONE
    #: (driver, quantile).
    mapping_age_ms: Counts = _NONE
    #: (reason,).
    holds_standing: Counts = _NONE
    #: (book,).
    duplicates_refused: Counts = _NONE
    duplicates_standing: Counts = _NONE
    #: (alert,).
    numa_failures: Counts = _NONE
    numa_failures_standing: Counts = _NONE
    #: (state,).
    exclusions: Counts = _NONE


class _Shown(NamedTuple):
    """How one measure is shown."""

    measure: str
    name: str
    told: str
    labels: Labels
    #: What a metric's unit is in the measure's.
    per_unit: int = 1
    #: How values that are shown together become one.
    together: Callable[[float, float], float] = float.__add__


_MS_PER_S: Final = 1_000
_SHOWN: Final = (
    _Shown(
        "status_age_ms",
        "sickbay_status_age_seconds",
        "Age of the newest word on each device.",
        ("driver", "quantile"),
        _MS_PER_S,
        max,
    ),
    _Shown(
        "unknown_duration_ms",
        "sickbay_unknown_duration_seconds",
        "How long the runs of Unknown that go on have lasted.",
        ("driver", "quantile"),
        _MS_PER_S,
        max,
    ),
    _Shown(
        "quarantines_closed",
        "sickbay_quarantines_closed",
        "Episodes that ended, ever, but people's holds.",
        ("driver",),
    ),
    _Shown(
        "quarantines_false",
        "sickbay_quarantines_false",
        "Of these, episodes that should not have been.",
        ("driver", "why"),
    ),
    _Shown(
        "time_to_quarantine_ms",
        "sickbay_time_to_quarantine_seconds",
        "Event time from a fault of the newest day to the decision, or to its taint rule.",
        ("until", "quantile"),
        _MS_PER_S,
        max,
    ),
    _Shown("moves", "sickbay_moves", "Moves by how they ended, ever.", ("driver", "outcome")),
    _Shown(
        "idle_ms",
        "sickbay_idle_device_seconds",
        "Device-seconds ever spent in a phase but in_service; a late fact may lower it.",
        ("driver", "phase"),
        _MS_PER_S,
    ),
    _Shown(
        "ledger_difference",
        "sickbay_ledger_difference",
        "Amounts by which the books differ in drifts that stand: cores, bytes or units.",
        ("resource", "cause"),
    ),
    _Shown(
        "mapping_age_ms",
        "sickbay_mapping_age_seconds",
        "Time since the mappings in use were first used on their devices.",
        ("driver", "quantile"),
        _MS_PER_S,
        max,
    ),
    _Shown(
        "holds_standing",
        "sickbay_holds_standing",
        "Reasons for which new claims wait, by node and scope.",
        ("reason",),
    ),
    _Shown("duplicates_refused", "sickbay_duplicates_refused", "Second contributions, ever.", ("book",)),
    _Shown(
        "duplicates_standing", "sickbay_duplicates_standing", "Second contributions claimed still.", ("book",)
    ),
    _Shown("numa_failures", "sickbay_numa_failures", "Claims placed against NUMA, ever.", ("alert",)),
    _Shown(
        "numa_failures_standing",
        "sickbay_numa_failures_standing",
        "Claims placed against NUMA that are there still.",
        ("alert",),
    ),
    _Shown("exclusions", "sickbay_exclusions", "Taint rules by what was told of them last.", ("state",)),
)


class MeasureLevels:
    """Shows measures, each label bounded over the life of the process."""

    def __init__(self) -> None:
        self._bounded: dict[str, Bounded] = {}

    def __call__(self, measures: Measures | None) -> Iterator[Level]:
        """Yield a gauge for each measure, without values before the first counting."""
        for shown in _SHOWN:
            values: dict[str | Labels, float] = {}
            found: Counts = getattr(measures, shown.measure) if measures is not None else _NONE
            for raw, value in found.items():
                labels = tuple(
                    self._bounded.setdefault(name, Bounded())(text)
                    for name, text in zip(shown.labels, raw, strict=True)
                )
                number = value / shown.per_unit
                values[labels] = shown.together(values[labels], number) if labels in values else number
            yield Level(shown.name, shown.told, shown.labels, values)
