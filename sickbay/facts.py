"""Facts: what was seen, or asked for. Past tense, immutable, the public contract of ``sickbay.facts``.

A fact says what a source said and never what it means: health words, taints and quantities are kept as they came.
Absent is ``None``, and ``None`` is never healthy and never zero. Times are milliseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

Health: TypeAlias = Literal["Healthy", "Unhealthy", "Unknown"]
Resource: TypeAlias = Literal[
    "pods", "resourceslices", "resourceclaims", "nodes", "leases", "requests", "clock"
]
Scalar: TypeAlias = str | int | bool


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What every fact carries.

    ``(epoch, rv)`` is the status version. It is compared only between facts of one ``resource``; ``epoch`` rises when the
    cluster's resourceVersions go backwards.
    """

    KIND: ClassVar[str] = ""
    SCHEMA_VERSION: ClassVar[int] = 1

    #: Node name, kept byte for byte; empty for what belongs to no node.
    node: str
    observed_at_ms: int
    epoch: int = 0
    rv: int = 0

    @property
    def resource(self) -> Resource:
        """The resource type whose clock ``(epoch, rv)`` belongs to."""
        return "clock"

    @property
    def subject(self) -> str:
        """What the fact is about: a device id, or ``pod:<uid>`` and the like; unique with the kind and the version."""
        return ""

    @property
    def status_version(self) -> str:
        """``resource:epoch:rv`` as text, the last part of the Kafka key."""
        return f"{self.resource}:{self.epoch}:{self.rv}"


# --- devices ---------------------------------------------------------------------------------------------------------


class DeviceHealthObserved(Fact, frozen=True, kw_only=True):
    """What one Pod says of one device (KEP-4680), or that it stopped saying anything.

    One fact per (Pod, device): a device that two containers report enters once, with the worst word. ``live`` is false from
    the moment the Pod is terminal or gone: the word is then frozen and is no evidence any more (kubernetes/kubernetes#132978).
    """

    KIND: ClassVar[str] = "device_health_observed"

    #: ``dra:<driver>/<pool>/<device>``, ``plugin:<resource>/<id>``, or ``unattributed:<namespace>/<claim>/<resourceID>``.
    device_id: str
    #: The card that a replica or a partition sits on, as a device id of the same form, when the source says so.
    physical_id: str | None = None
    health: Health
    #: The word as it came; ``None`` when there was none. A word that is not one of the three reads as Unknown.
    health_raw: str | None
    #: Free text for the audit; no part of identity and no part of any verdict. Absent is not "".
    message: str | None = None
    live: bool = True
    #: Why there is no word: ``never_reported``, ``report_vanished``; empty when there is one.
    absence: Literal["", "never_reported", "report_vanished"] = ""
    pod_uid: str
    namespace: str
    pod: str
    containers: tuple[str, ...] = ()
    #: ``allocatedResourcesStatus[].name`` as it came.
    reported_as: str = ""
    #: Devices that an unattributed word may mean; empty when ``device_id`` is a device.
    candidates: tuple[str, ...] = ()

    @property
    def resource(self) -> Resource:
        return "pods"

    @property
    def subject(self) -> str:
        return self.device_id

    @property
    def status_version(self) -> str:
        """``pods:epoch:rv``; the end of a word also names its Pod, because one LIST can end the words of several Pods."""
        version = f"pods:{self.epoch}:{self.rv}"
        return version if self.live else f"{version}:{self.pod_uid}"


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A device taint (KEP-5055). An effect other than None, NoSchedule, NoExecute is kept and means None."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NumaAffinity(msgspec.Struct, frozen=True, kw_only=True):
    """Where a device sits. ``nodes`` empty is *unknown*: absent, empty or -1, never node 0."""

    nodes: tuple[int, ...] = ()
    #: The first node of a list attribute: the one the device hangs on.
    physical: int | None = None
    #: Qualified attribute names that were read, best first.
    sources: tuple[str, ...] = ()
    #: Two names said different things; ``nodes`` then holds what the standard name said.
    conflict: bool = False


class DevicePublished(Fact, frozen=True, kw_only=True):
    """A device as a ResourceSlice publishes it (resource.k8s.io v1, v1beta2 or v1beta1), everything custody and ledger read."""

    KIND: ClassVar[str] = "device_published"

    device_id: str
    physical_id: str | None = None
    driver: str
    pool: str
    device: str
    slice_uid: str
    pool_generation: int
    #: Qualified name (``domain/id``; a bare id belongs to the driver) to value; lists are kept as tuples.
    attributes: dict[str, Scalar | tuple[Scalar, ...]] = {}
    #: Qualified name to the quantity as text in canonical form.
    capacity: dict[str, str] = {}
    #: Qualified name to its request policy, amounts as canonical text.
    capacity_policy: dict[str, dict[str, str | tuple[str, ...]]] = {}
    taints: tuple[Taint, ...] = ()
    numa: NumaAffinity = NumaAffinity()
    allow_multiple: bool = False
    #: ``(counter set, counter, amount)``.
    consumes_counters: tuple[tuple[str, str, str], ...] = ()
    #: ``1.36``, ``1.37`` or ``unknown``; ``None`` when the device maps nothing.
    node_allocatable_shape: Literal["1.36", "1.37", "unknown"] | None = None
    #: Node resource name to its mapping and overhead members, amounts as canonical text.
    node_allocatable: dict[str, dict[str, str]] = {}
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    #: ``metadata.uid`` of the node object that owns the slice, when it says so.
    node_uid: str = ""
    #: Paths of fields this build does not read.
    unknown_fields: tuple[str, ...] = ()

    @property
    def resource(self) -> Resource:
        return "resourceslices"

    @property
    def subject(self) -> str:
        return self.device_id


class DeviceWithdrawn(Fact, frozen=True, kw_only=True):
    """A device that the effective generation of its pool no longer has."""

    KIND: ClassVar[str] = "device_withdrawn"

    device_id: str
    driver: str
    pool: str
    device: str
    #: ``slice_deleted``: the pool has no slice left; ``generation``: a complete newer one lacks the device.
    reason: Literal["slice_deleted", "generation"]

    @property
    def resource(self) -> Resource:
        return "resourceslices"

    @property
    def subject(self) -> str:
        return self.device_id


class PoolObserved(Fact, frozen=True, kw_only=True):
    """The state of one pool on one node: which generation counts, and whether a newer one is still arriving."""

    KIND: ClassVar[str] = "pool_observed"

    driver: str
    pool: str
    #: Last complete and valid generation; ``None`` when there has been none.
    effective_generation: int | None
    #: Highest generation present now; ``None`` when no slice is left.
    newest_generation: int | None
    slices_present: int
    slices_expected: int
    complete: bool
    #: Empty when valid; else what is wrong and where.
    invalid_reason: str = ""
    #: ``(counter set, counter, amount)``.
    counters: tuple[tuple[str, str, str], ...] = ()

    @property
    def resource(self) -> Resource:
        return "resourceslices"

    @property
    def subject(self) -> str:
        return f"pool:{self.driver}/{self.pool}"


# --- pods and claims -------------------------------------------------------------------------------------------------


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


class ClaimObserved(Fact, frozen=True, kw_only=True):
    """A ResourceClaim, once for each node that it is charged to, with that node's results only."""

    KIND: ClassVar[str] = "claim_observed"

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


# --- nodes -----------------------------------------------------------------------------------------------------------


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


# --- what every partition hears: ``node`` is empty, ``partition`` says where ------------------------------------------


class Tick(Fact, frozen=True, kw_only=True):
    """Time passed. Written only by a working ingester, so nothing is decided on silence of our own making."""

    KIND: ClassVar[str] = "tick"

    partition: int = 0

    @property
    def subject(self) -> str:
        return "tick"

    @property
    def status_version(self) -> str:
        return f"clock:0:{self.observed_at_ms}"


class EpochChanged(Fact, frozen=True, kw_only=True):
    """The cluster's resourceVersions went backwards (an etcd restore): ``epoch`` is the new one."""

    KIND: ClassVar[str] = "epoch_changed"

    partition: int = 0
    watched: str
    last_rv: int
    list_rv: int

    @property
    def subject(self) -> str:
        return f"epoch:{self.watched}"

    @property
    def status_version(self) -> str:
        return f"clock:{self.epoch}:{self.observed_at_ms}"


class WatchGapFound(Fact, frozen=True, kw_only=True):
    """Nothing was seen of ``watched`` between two moments; durations that cross the gap are lower bounds."""

    KIND: ClassVar[str] = "watch_gap_found"

    partition: int = 0
    watched: str
    from_ms: int
    to_ms: int
    from_rv: int
    to_rv: int

    @property
    def subject(self) -> str:
        return f"gap:{self.watched}"

    @property
    def status_version(self) -> str:
        return f"clock:{self.epoch}:{self.from_ms}-{self.to_ms}"


class ResyncCompleted(Fact, frozen=True, kw_only=True):
    """A LIST of ``watched`` was compared with what was known; ``rv`` is its version."""

    KIND: ClassVar[str] = "resync_completed"

    partition: int = 0
    watched: str
    objects: int
    added: int
    changed: int
    removed: int

    @property
    def subject(self) -> str:
        return f"resync:{self.watched}"

    @property
    def status_version(self) -> str:
        return f"clock:{self.epoch}:{self.rv}:{self.observed_at_ms}"


class BreakerStateChanged(Fact, frozen=True, kw_only=True):
    """The breaker's decision as the partitions hear it. ``scope`` is ``cluster`` or ``driver:<name>``."""

    KIND: ClassVar[str] = "breaker_state_changed"

    partition: int = 0
    scope: str
    open: bool

    @property
    def subject(self) -> str:
        return f"breaker:{self.scope}"

    @property
    def status_version(self) -> str:
        return f"clock:0:{self.observed_at_ms}:{int(self.open)}"


class PolicyChanged(Fact, frozen=True, kw_only=True):
    """From here on this policy decides. ``document`` is its canonical JSON, so the log explains itself."""

    KIND: ClassVar[str] = "policy_changed"

    partition: int = 0
    policy_version: str
    policy_hash: str
    document: str
    actor: str = "sickbay"

    @property
    def subject(self) -> str:
        return f"policy:{self.policy_hash}"

    @property
    def status_version(self) -> str:
        return f"clock:0:{self.observed_at_ms}"


# --- requests by people and executors --------------------------------------------------------------------------------


class Request(Fact, frozen=True, kw_only=True):
    """A command that may be refused; it enters as a fact. ``request_id`` makes it idempotent."""

    request_id: str
    device_id: str
    actor: str

    @property
    def resource(self) -> Resource:
        return "requests"

    @property
    def subject(self) -> str:
        return self.device_id

    @property
    def status_version(self) -> str:
        return f"requests:0:{self.request_id}"


class HoldRequested(Request, frozen=True, kw_only=True):
    """A person wants the device out of use until ``until_ms``."""

    KIND: ClassVar[str] = "hold_requested"

    reason: str
    until_ms: int


class ReleaseRequested(Request, frozen=True, kw_only=True):
    """A person wants the device back: this starts the return path, it never releases by itself."""

    KIND: ClassVar[str] = "release_requested"

    episode_id: str
    reason: str


class ProbeReported(Request, frozen=True, kw_only=True):
    """A prober's word on attempt ``attempt`` of an episode."""

    KIND: ClassVar[str] = "probe_reported"

    episode_id: str
    attempt: int
    passed: bool
    detail: str = ""


class CanaryReported(Request, frozen=True, kw_only=True):
    """A canary's word on attempt ``attempt`` of an episode."""

    KIND: ClassVar[str] = "canary_reported"

    episode_id: str
    attempt: int
    passed: bool
    detail: str = ""


class MoveReported(Request, frozen=True, kw_only=True):
    """A mover's word on a move; a token that is not the current lease's is recorded and does nothing."""

    KIND: ClassVar[str] = "move_reported"

    move_id: str
    token: int
    outcome: Literal["done", "failed"]
    detail: str = ""


class ClaimsGateRequested(Request, frozen=True, kw_only=True):
    """A person opens or closes the claims gate; ``scope`` is ``cluster``, ``driver:<name>`` or ``node``."""

    KIND: ClassVar[str] = "claims_gate_requested"

    scope: str
    closed: bool
    reason: str


DeviceFact: TypeAlias = DeviceHealthObserved | DevicePublished | DeviceWithdrawn
Broadcast: TypeAlias = (
    Tick | EpochChanged | WatchGapFound | ResyncCompleted | BreakerStateChanged | PolicyChanged
)
FACTS: tuple[type[Fact], ...] = (
    DeviceHealthObserved, DevicePublished, DeviceWithdrawn, PoolObserved, PodObserved, PodGone, ClaimObserved, ClaimGone,
    NodeObserved, NodeGone, NodeLeaseLapsed, NodeLeaseResumed, Tick, EpochChanged, WatchGapFound, ResyncCompleted,
    BreakerStateChanged, PolicyChanged, HoldRequested, ReleaseRequested, ProbeReported, CanaryReported, MoveReported,
    ClaimsGateRequested,
)  # fmt: skip
