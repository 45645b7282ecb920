"""Facts on devices: what Pods say of them, what slices publish, and the state of a pool."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from sickbay.facts.base import Fact, Health, Resource, Scalar


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
