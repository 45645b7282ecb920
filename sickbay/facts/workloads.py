"""Facts on Pods and ResourceClaims: the allow-listed part of each."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from sickbay.facts.base import Fact, Resource


class ClaimReference(msgspec.Struct, frozen=True, kw_only=True):
    """One ``resources.claims[]`` entry of a container: the pod-local name, and the request if one is named."""

    name: str
    request: str = ""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger needs of a container; amounts are canonical text. No image, no environment."""

    name: str
    init: bool = False
    restartable: bool = False
    requests: dict[str, str] = {}
    #: ``status…resources.requests`` (actuated), ``None`` when not reported.
    actuated: dict[str, str] | None = None
    #: ``status…allocatedResources``, ``None`` when not reported.
    allocated: dict[str, str] | None = None
    claims: tuple[ClaimReference, ...] = ()


class PodClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a Pod: the pod-local name and the ResourceClaim object's name, ``None`` while it is not known."""

    name: str
    claim: str | None = None


class NodeAllocatableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the Pod's node-allocatable status (KEP-5517), in whichever shape it was served."""

    claim: str
    shape: Literal["1.36", "1.37", "unknown"]
    containers: tuple[str, ...] = ()
    #: Node resource name to amount, once per claim.
    mapping: dict[str, str] = {}
    per_pod: dict[str, str] = {}
    per_container: dict[str, str] = {}
    #: Members this build does not read: the entry is then not fully understood.
    unknown_fields: tuple[str, ...] = ()


class PodObserved(Fact, frozen=True, kw_only=True):
    """The allow-listed part of a Pod. A Pod without a node belongs to node ""."""

    KIND: ClassVar[str] = "pod_observed"
    SCHEMA_VERSION: ClassVar[int] = 2

    pod_uid: str
    namespace: str
    pod: str
    phase: str
    #: When deletion was asked for; ``None`` when it was not.
    deletion_requested_at_ms: int | None = None
    containers: tuple[Container, ...] = ()
    claims: tuple[PodClaim, ...] = ()
    #: The claim that the scheduler made for extended resources (KEP-5004).
    extended_claim: str | None = None
    overhead: dict[str, str] = {}
    pod_level_requests: dict[str, str] | None = None
    #: ``status.resources.requests`` and ``status.allocatedResources`` of the Pod, overhead included; ``None`` when not reported.
    pod_level_actuated: dict[str, str] | None = None
    pod_level_allocated: dict[str, str] | None = None
    #: ``None`` when the key is absent (nothing known); ``()`` when it is an explicit empty list (cleared).
    node_allocatable: tuple[NodeAllocatableEntry, ...] | None = None
    #: ``status.resize`` conditions: ``Infeasible`` and the like; empty when none.
    resize: str = ""
    #: Workload declarations, from ``sickbay.dev/…`` labels and annotations.
    ability: Literal["checkpoint", "restartable", "neither", ""] = ""
    topology: Literal["whole", "shardable", ""] = ""
    #: ``Kind/name`` of the controlling owner.
    owner: str = ""
    priority: int = 0
    #: ``path: reason`` of every value that was refused alone.
    refused: tuple[str, ...] = ()

    @property
    def resource(self) -> Resource:
        return "pods"

    @property
    def subject(self) -> str:
        return f"pod:{self.pod_uid}"


class PodGone(Fact, frozen=True, kw_only=True):
    """A Pod that is deleted. ``rv`` is the version of the deletion, or of the LIST that no longer had it."""

    KIND: ClassVar[str] = "pod_gone"

    pod_uid: str
    namespace: str
    pod: str
    deletion_requested_at_ms: int | None = None
    #: False for a tombstone: it vanished between ``gone_after_ms`` and ``observed_at_ms``, and its last state is not known.
    final_state_known: bool = True
    gone_after_ms: int | None = None

    @property
    def resource(self) -> Resource:
        return "pods"

    @property
    def subject(self) -> str:
        return f"pod:{self.pod_uid}"


class AllocationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a claim's allocation."""

    request: str
    subrequest: str = ""
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str = ""
    #: ``None`` when absent (amounts unknown), else qualified name to amount as canonical text.
    consumed: dict[str, str] | None = None
    tolerations: tuple[dict[str, str], ...] = ()
    binding_conditions: tuple[str, ...] = ()

    @property
    def device_id(self) -> str:
        """``dra:<driver>/<pool>/<device>``."""
        return f"dra:{self.driver}/{self.pool}/{self.device}"


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """One ``status.reservedFor`` entry; a consumer need not be a Pod."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """A ``matchAttribute`` constraint: the devices of these requests must have one value of the attribute."""

    #: Qualified name.
    attribute: str
    #: Empty means every request.
    requests: tuple[str, ...] = ()


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """A CEL selector of the plain form ``attribute == number``, the one form that names a NUMA node."""

    request: str
    #: Qualified name.
    attribute: str
    value: int


class ClaimObserved(Fact, frozen=True, kw_only=True):
    """A ResourceClaim, once for each node that it is charged to, with that node's results only."""

    KIND: ClassVar[str] = "claim_observed"
    SCHEMA_VERSION: ClassVar[int] = 2

    claim_uid: str
    namespace: str
    claim: str
    results: tuple[AllocationResult, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    #: Kind and uid of the controlling owner, ``Pod/<uid>``.
    owner: str = ""
    extended_resource: bool = False
    deletion_requested_at_ms: int | None = None
    allocated_at: str | None = None
    #: ``driver/pool/device/type=status:reason`` of ``status.devices[].conditions``.
    device_conditions: tuple[str, ...] = ()
    #: The claim has results on other nodes too.
    spans_nodes: bool = False
    #: What the claim asked of the attributes of its devices, as far as it can name a NUMA node.
    together: tuple[Together, ...] = ()
    selected: tuple[Selected, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def resource(self) -> Resource:
        return "resourceclaims"

    @property
    def subject(self) -> str:
        return f"claim:{self.claim_uid}"


class ClaimGone(Fact, frozen=True, kw_only=True):
    """A ResourceClaim that is deleted, or no longer concerns this node."""

    KIND: ClassVar[str] = "claim_gone"

    claim_uid: str
    namespace: str
    claim: str
    deletion_requested_at_ms: int | None = None
    final_state_known: bool = True
    gone_after_ms: int | None = None

    @property
    def resource(self) -> Resource:
        return "resourceclaims"

    @property
    def subject(self) -> str:
        return f"claim:{self.claim_uid}"
