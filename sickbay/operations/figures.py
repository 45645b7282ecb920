"""What the read model counts, for whoever shows it. A contract only: the question is asked in ``projections``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sickbay.operations.measures import Measures


class Figures(NamedTuple):
    """The read model at one moment. Keys are of closed lists, but for resource names and breaker scopes."""

    #: Custody's phase to quarantine episodes that have not ended.
    episodes_open: Mapping[str, int]
    #: Custody's phase to devices; ``in_service`` counts published devices that never faulted too.
    devices: Mapping[str, int]
    #: Nodes to which no new claim may come.
    nodes_on_hold: int
    #: Cause to differences between the two books that stand.
    drifts_standing: Mapping[str, int]
    #: Watched resource to watch gaps ever.
    watch_gaps: Mapping[str, int]
    #: Scopes whose breaker is open: ``cluster``, ``driver:<name>``.
    breakers_open: frozenset[str]
    #: Newest event time that was written, ``None`` for an empty log.
    newest_ms: int | None
    #: What docs/audit-views.md calls the measures.
    measures: Measures = Measures()


class ReadModelFigures(Protocol):
    """Whoever can count."""

    def read(self) -> Figures:
        """Count now; blocks, so never call it on an event loop. Raises StoreError."""
        ...
