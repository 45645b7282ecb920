"""Facts: what was seen, or asked for. Past tense, immutable, the public contract of ``sickbay.facts``.

A fact says what a source said and never what it means: health words, taints and quantities are kept as they came.
Absent is ``None``, and ``None`` is never healthy and never zero. Times are milliseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

from typing import TypeAlias

from sickbay.facts.base import Fact, Health, Resource, Scalar
from sickbay.facts.broadcasts import (
    BreakerStateChanged,
    EpochChanged,
    PolicyChanged,
    ResyncCompleted,
    Tick,
    WatchGapFound,
)
from sickbay.facts.devices import (
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    NumaAffinity,
    PoolObserved,
    Taint,
)
from sickbay.facts.nodes import NodeGone, NodeLeaseLapsed, NodeLeaseResumed, NodeObserved
from sickbay.facts.requests import (
    BreakerResetRequested,
    CanaryReported,
    ClaimsGateRequested,
    ExclusionReported,
    HoldRequested,
    MoveReported,
    MoveStepReported,
    ProbeReported,
    ReleaseRequested,
    Request,
)
from sickbay.facts.workloads import (
    AllocationResult,
    ClaimGone,
    ClaimObserved,
    ClaimReference,
    Consumer,
    Container,
    NodeAllocatableEntry,
    PodClaim,
    PodGone,
    PodObserved,
    Selected,
    Together,
)

__all__ = [
    "FACTS",
    "AllocationResult",
    "BreakerResetRequested",
    "BreakerStateChanged",
    "Broadcast",
    "CanaryReported",
    "ClaimGone",
    "ClaimObserved",
    "ClaimReference",
    "ClaimsGateRequested",
    "Consumer",
    "Container",
    "DeviceFact",
    "DeviceHealthObserved",
    "DevicePublished",
    "DeviceWithdrawn",
    "EpochChanged",
    "ExclusionReported",
    "Fact",
    "Health",
    "HoldRequested",
    "MoveReported",
    "MoveStepReported",
    "NodeAllocatableEntry",
    "NodeGone",
    "NodeLeaseLapsed",
    "NodeLeaseResumed",
    "NodeObserved",
    "NumaAffinity",
    "PodClaim",
    "PodGone",
    "PodObserved",
    "PolicyChanged",
    "PoolObserved",
    "ProbeReported",
    "ReleaseRequested",
    "Request",
    "Resource",
    "ResyncCompleted",
    "Scalar",
    "Selected",
    "Taint",
    "Tick",
    "Together",
    "WatchGapFound",
]

DeviceFact: TypeAlias = DeviceHealthObserved | DevicePublished | DeviceWithdrawn
Broadcast: TypeAlias = (
    Tick | EpochChanged | WatchGapFound | ResyncCompleted | BreakerStateChanged | PolicyChanged
)
FACTS: tuple[type[Fact], ...] = (
    DeviceHealthObserved, DevicePublished, DeviceWithdrawn, PoolObserved, PodObserved, PodGone, ClaimObserved, ClaimGone,
    NodeObserved, NodeGone, NodeLeaseLapsed, NodeLeaseResumed, Tick, EpochChanged, WatchGapFound, ResyncCompleted,
    BreakerStateChanged, PolicyChanged, HoldRequested, ReleaseRequested, ProbeReported, CanaryReported, MoveReported,
    ClaimsGateRequested, MoveStepReported, ExclusionReported, BreakerResetRequested,
)  # fmt: skip
