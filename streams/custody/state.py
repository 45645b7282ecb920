"""The state of one node's custody, as data: what the fold keeps and what a snapshot holds.

Every list here is bounded and every time is event time in milliseconds. Nothing in this module decides anything.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from sickbay.decisions import DeviceRecord, Episode, Phase

Cause: TypeAlias = Literal["node_lost", "plugin_down", "mass_turn"]

#: Later than every deadline.
NEVER: Final = 1 << 62

#: Verdicts, worst last. NONE is "nobody says anything", which is neither healthy nor unknown.
NONE, HEALTHY, UNKNOWN, UNHEALTHY = range(4)
VERDICT_OF: Final[dict[str, int]] = {"Healthy": HEALTHY, "Unknown": UNKNOWN, "Unhealthy": UNHEALTHY}

#: Fault onsets, ended Unknown runs and evidence ids that a unit remembers. Above the limit the oldest goes.
ONSETS_LIMIT: Final = 64
RUNS_LIMIT: Final = 16
EVIDENCE_LIMIT: Final = 16


class Word(msgspec.Struct):
    """What one live Pod says of one device."""

    verdict: int
    #: When the Pod last said it.
    at_ms: int
    namespace: str
    pod: str
    pod_uid: str
    #: An Unhealthy word that a person's release acknowledged; it counts again once the word changes.
    muted: bool = False


class Unit(msgspec.Struct):
    """One device in custody: a device, or the card that several replica ids stand for."""

    unit_id: str
    #: Driver or resource name: the group that shares a plugin.
    scope: str
    #: The card a DRA partition sits on, when that card is a device of its own.
    parent: str = ""
    #: What the source says the device sits on, a device or not; empty when it says nothing.
    card: str = ""
    #: ``device_id|pod uid`` to the word, live Pods only.
    words: dict[str, Word] = {}

    published: bool = False
    withdrawn: bool = False
    slice_fault: bool = False
    slice_muted: bool = False
    #: When the driver last said healthy by taking a fault back or by an attribute; -1 for never.
    slice_healthy_at_ms: int = -1
    unmonitored: bool = False
    first_seen_ms: int = 0
    #: What the slice says of the hardware itself; another value under the same name is another device.
    hardware: str = ""

    verdict: int = NONE
    verdict_since_ms: int = 0
    adverse_since_ms: int = 0
    #: Event id and status version of the newest fault, and when it began; -1 for never.
    fault_at_ms: int = -1
    fault_id: str = ""
    fault_version: str = ""
    #: Event id of the newest word that the device is healthy, heard while an episode was open.
    healthy_id: str = ""
    #: Healthy was heard since the newest fault, so that another one is a flap and not the same going on.
    recovered: bool = False

    phase: Phase = "in_service"
    since_ms: int = 0
    cause: str = ""
    incident_id: str = ""
    #: Start of the Unknown run, its window, and since when the device is known again inside it.
    run_since_ms: int | None = None
    window_ms: int | None = None
    known_at_ms: int | None = None
    toggles: int = 0
    ended_runs_ms: list[int] = []
    onsets_ms: list[int] = []
    episode: Episode | None = None
    #: End of a person's hold; -1 for none.
    person_until_ms: int = -1
    release_requested: bool = False
    #: Next deadline of this unit.
    due_ms: int = NEVER
    #: When a fact or a deadline last concerned it.
    touched_ms: int = -1

    def record(self) -> DeviceRecord:
        """What is announced of the unit."""
        return DeviceRecord(
            phase=self.phase,
            since_ms=self.since_ms,
            cause=self.cause,
            unknown_since_ms=self.run_since_ms,
            window_ms=self.window_ms,
            episode=self.episode,
            incident_id=self.incident_id,
        )

    @property
    def present(self) -> bool:
        """Whether the device counts among those that a node-level cause would reach."""
        return bool(self.words) or (self.published and not self.withdrawn)

    @property
    def forgettable(self) -> bool:
        """Whether nothing would be lost by forgetting the unit."""
        return not (
            self.words
            or self.published
            or self.episode
            or self.onsets_ms
            or self.ended_runs_ms
            or self.phase != "in_service"
        )


class Incident(msgspec.Struct):
    """An open node incident."""

    incident_id: str
    cause: Cause
    scope: str
    #: When the cause began; the incident was recognised at ``opened_at_ms``.
    start_ms: int
    opened_at_ms: int
    #: When it closes unless the cause returns; NEVER while the cause lasts.
    closing_at_ms: int = NEVER


class Move(msgspec.Struct):
    """A move of one workload off one unit."""

    move_id: str
    unit_id: str
    episode_id: str
    pod_uid: str
    namespace: str
    pod: str
    planned_at_ms: int
    #: Number of the running or last lease; 0 before the first.
    token: int = 0
    #: Leases that count: one that was given back because the cluster's limits were reached does not.
    attempts: int = 0
    #: End of the running lease; NEVER while there is none.
    expires_at_ms: int = NEVER
    #: A lease that was given back is granted again from here on; NEVER while nobody waits for that.
    deferred_until_ms: int = NEVER
    #: Reported done or failed for good, or timed out: kept so that it is not planned again.
    finished: bool = False


class Workload(msgspec.Struct):
    """What a Pod declares about being moved."""

    ability: str
    topology: str
    #: Of the Pod's priority class.
    priority: int = 0


class Shortfall(msgspec.Struct):
    """A device-plugin resource of the node: what it has, what it can still give, and since when that is unexplained."""

    capacity: int
    allocatable: int
    since_ms: int = NEVER
    alerted: bool = False


class NodeCustody(msgspec.Struct):
    """Everything custody knows of one node at one moment of event time."""

    node: str
    #: Hash of the policy in force.
    policy_hash: str
    time_ms: int = 0
    #: The earliest deadline of anything below.
    due_ms: int = NEVER
    #: When something last happened that concerns more than one unit.
    touched_ms: int = -1
    node_uid: str = ""
    boot_id: str = ""
    ready: str = ""
    lease_lapsed: bool = False
    #: Time until which nothing was seen; deadlines that judge silence wait for it.
    blind_until_ms: int = -1
    units: dict[str, Unit] = {}
    incidents: dict[str, Incident] = {}
    #: Scope ("" for the node) to the time when what it names last came back.
    restarts_ms: dict[str, int] = {}
    #: Open breakers by scope.
    breakers: dict[str, int] = {}
    resources: dict[str, Shortfall] = {}
    workloads: dict[str, Workload] = {}
    moves: dict[str, Move] = {}
    #: Alert id to (kind, about, raised at).
    alerts: dict[str, tuple[str, str, int]] = {}
