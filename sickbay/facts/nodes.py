"""Facts on Nodes and their Leases."""

from __future__ import annotations

from typing import ClassVar, Literal

from sickbay.facts.base import Fact, Resource
from sickbay.facts.devices import Taint


class NodeObserved(Fact, frozen=True, kw_only=True):
    """A Node: identity, readiness, what it has and what it can still give of each resource (canonical text)."""

    KIND: ClassVar[str] = "node_observed"

    node_uid: str
    ready: Literal["True", "False", "Unknown"]
    ready_reason: str = ""
    boot_id: str = ""
    unschedulable: bool = False
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    labels: dict[str, str] = {}
    refused: tuple[str, ...] = ()

    @property
    def resource(self) -> Resource:
        return "nodes"

    @property
    def subject(self) -> str:
        return f"node:{self.node_uid}"


class NodeGone(Fact, frozen=True, kw_only=True):
    """A Node object that is deleted."""

    KIND: ClassVar[str] = "node_gone"

    node_uid: str
    final_state_known: bool = True
    gone_after_ms: int | None = None

    @property
    def resource(self) -> Resource:
        return "nodes"

    @property
    def subject(self) -> str:
        return f"node:{self.node_uid}"


class NodeLeaseLapsed(Fact, frozen=True, kw_only=True):
    """The node's Lease did not change for longer than it lasts, measured by arrival and not by ``renewTime``."""

    KIND: ClassVar[str] = "node_lease_lapsed"

    last_renewal_at_ms: int
    lease_ms: int

    @property
    def resource(self) -> Resource:
        return "leases"

    @property
    def subject(self) -> str:
        return "lease"


class NodeLeaseResumed(Fact, frozen=True, kw_only=True):
    """A lapsed Lease changed again. ``skew_ms`` is receipt time minus ``renewTime``, ``None`` without a renewTime."""

    KIND: ClassVar[str] = "node_lease_resumed"

    skew_ms: int | None = None

    @property
    def resource(self) -> Resource:
        return "leases"

    @property
    def subject(self) -> str:
        return "lease"
