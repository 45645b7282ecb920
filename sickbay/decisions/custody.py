"""Decisions on devices: custody, node incidents, the breaker, moves of workloads, alerts.

A custody decision carries the whole record that holds after it, so a consumer needs no other event to know where the device
stands.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from sickbay.decisions.base import Decision

Phase: TypeAlias = Literal[
    "in_service", "suspect", "restricted", "quarantined", "probing", "canary", "observing"
]
Outcome: TypeAlias = Literal[
    "", "returned", "hold_ended", "absorbed", "retracted", "node_replaced", "device_replaced", "node_gone"
]
MoveOutcome: TypeAlias = Literal[
    "done", "failed", "timed_out", "workload_gone", "episode_closed", "retracted"
]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """The quarantine record. Its id is derived from device, node uid and the version of its first fault."""

    episode_id: str
    opened_at_ms: int
    #: ``unhealthy``, ``driver_taint``, ``hold``.
    cause: str
    reason: str
    actor: str
    #: The lease: at this time it is extended and put up for review unless something happened.
    expires_at_ms: int
    lease_holder: str = "sickbay"
    extensions: int = 0
    #: Faults of the episode, the first included; what was in the flap window before counts too, a release begins anew.
    flap_count: int = 1
    #: Not before this time does the return begin.
    hold_until_ms: int
    #: Failed steps of the return; each doubles the hold.
    failures: int = 0
    #: Attempt number of the probe or canary that runs.
    attempt: int = 0
    #: Start of the newest return path, and of each of its steps; ``None`` while not reached.
    return_at_ms: int | None = None
    canary_at_ms: int | None = None
    observing_at_ms: int | None = None
    closed_at_ms: int | None = None
    outcome: Outcome = ""
    #: ``prober`` or ``observation_only``; empty before the return begins.
    verification: Literal["", "prober", "observation_only"] = ""
    #: The recovery followed a plugin, kubelet or driver restart and is no proof of repair.
    after_restart: bool = False
    #: Opened while the breaker was open: visible and blocked, but no workload is moved.
    held: bool = False
    #: A person asked for the return to begin.
    release_actor: str = ""
    #: What keeps the episode open.
    open_causes: tuple[str, ...] = ()
    #: Event ids of the facts that opened and renewed it; the newest sixteen.
    evidence: tuple[str, ...] = ()


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where one device stands."""

    phase: Phase
    since_ms: int
    #: ``unknown``, ``unmonitored``, ``withdrawn``, ``node_incident``, or the episode's cause; empty in service.
    cause: str = ""
    #: Start of the Unknown run and the window it was given; ``None`` when there is no run.
    unknown_since_ms: int | None = None
    window_ms: int | None = None
    episode: Episode | None = None
    #: The node incident that explains the device's state.
    incident_id: str = ""


class CustodyDecision(Decision, frozen=True, kw_only=True):
    """A change of a device's custody. ``record`` is what holds after it; ``None`` when nothing is left to say."""

    device_id: str
    driver: str = ""
    phase_before: Phase
    record: DeviceRecord

    @property
    def subject(self) -> str:
        return self.device_id

    @property
    def correlation_id(self) -> str:
        return self.record.episode.episode_id if self.record.episode else ""


class DeviceSuspected(CustodyDecision, frozen=True, kw_only=True):
    """The device's health is not known, inside the tolerance window: alert only."""

    KIND: ClassVar[str] = "device_suspected"


class DeviceRestricted(CustodyDecision, frozen=True, kw_only=True):
    """Unknown longer than the window: no new work."""

    KIND: ClassVar[str] = "device_restricted"


class DeviceCleared(CustodyDecision, frozen=True, kw_only=True):
    """A suspect or restricted device is known healthy again, or its doubt was explained away."""

    KIND: ClassVar[str] = "device_cleared"


class QuarantineOpened(CustodyDecision, frozen=True, kw_only=True):
    """An episode began."""

    KIND: ClassVar[str] = "quarantine_opened"


class QuarantineExtended(CustodyDecision, frozen=True, kw_only=True):
    """An open episode goes on: a new fault, a failed step, a longer hold, a renewed lease. ``reason`` says which."""

    KIND: ClassVar[str] = "quarantine_extended"


class QuarantineReviewDue(CustodyDecision, frozen=True, kw_only=True):
    """An episode's lease ran out without new evidence, or it flapped too often: a person must look."""

    KIND: ClassVar[str] = "quarantine_review_due"


class ProbeStarted(CustodyDecision, frozen=True, kw_only=True):
    """The return path began with a probe."""

    KIND: ClassVar[str] = "probe_started"


class CanaryStarted(CustodyDecision, frozen=True, kw_only=True):
    """The probe passed; only canary work is let in."""

    KIND: ClassVar[str] = "canary_started"


class ObservationStarted(CustodyDecision, frozen=True, kw_only=True):
    """The device takes a ramp of work under observation."""

    KIND: ClassVar[str] = "observation_started"


class DeviceReleased(CustodyDecision, frozen=True, kw_only=True):
    """An episode ended; ``closed`` is its final state and says how (``outcome``)."""

    KIND: ClassVar[str] = "device_released"

    closed: Episode

    @property
    def correlation_id(self) -> str:
        return self.closed.episode_id


class NodeIncidentOpened(Decision, frozen=True, kw_only=True):
    """One cause on the node explains many devices. ``scope`` is empty for the node, else a driver or resource name."""

    KIND: ClassVar[str] = "node_incident_opened"

    incident_id: str
    cause: Literal["node_lost", "plugin_down", "mass_turn"]
    scope: str = ""
    devices: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return self.incident_id

    @property
    def correlation_id(self) -> str:
        return self.incident_id


class NodeIncidentClosed(Decision, frozen=True, kw_only=True):
    """The node-level cause is gone, or a late fact showed that it never was (``outcome`` retracted)."""

    KIND: ClassVar[str] = "node_incident_closed"

    incident_id: str
    cause: Literal["node_lost", "plugin_down", "mass_turn"]
    scope: str = ""
    opened_at_ms: int
    outcome: Literal["recovered", "retracted", "node_replaced", "node_gone"] = "recovered"

    @property
    def subject(self) -> str:
        return self.incident_id

    @property
    def correlation_id(self) -> str:
        return self.incident_id


class CensusTaken(Decision, frozen=True, kw_only=True):
    """What one partition tells the breaker: its known devices, which turned adverse since the last census, which wait for it."""

    KIND: ClassVar[str] = "census_taken"
    SCHEMA_VERSION: ClassVar[int] = 2

    partition: int
    #: Driver or resource name to the number of devices known.
    known: dict[str, int]
    #: ``(driver or resource name, node|device, at_ms, id of the node incident that explains it or "")``.
    adverse: tuple[tuple[str, str, int, str], ...] = ()
    #: While a breaker is open: driver or resource name to the devices that it alone keeps from being restricted, now or when
    #: their window ends, to the nodes that have such devices, and to the first of them.
    waiting: dict[str, tuple[int, int, str]] = {}

    @property
    def subject(self) -> str:
        return f"partition/{self.partition}"


class BreakerOpened(Decision, frozen=True, kw_only=True):
    """Too many devices turned adverse at once: moves and Unknown-based restrictions stop."""

    KIND: ClassVar[str] = "breaker_opened"

    scope: str
    adverse: int
    known: int
    threshold: int

    @property
    def subject(self) -> str:
        return self.scope

    @property
    def correlation_id(self) -> str:
        return f"breaker:{self.scope}"


class BreakerClosed(Decision, frozen=True, kw_only=True):
    """The storm passed."""

    KIND: ClassVar[str] = "breaker_closed"

    scope: str
    opened_at_ms: int

    @property
    def subject(self) -> str:
        return self.scope

    @property
    def correlation_id(self) -> str:
        return f"breaker:{self.scope}"


class MoveDecision(Decision, frozen=True, kw_only=True):
    """A workload's way off a device: one move per device, workload and status version of the fault."""

    device_id: str
    move_id: str
    episode_id: str
    pod_uid: str
    namespace: str
    pod: str

    @property
    def subject(self) -> str:
        return self.move_id

    @property
    def correlation_id(self) -> str:
        return self.episode_id


class MovePlanned(MoveDecision, frozen=True, kw_only=True):
    """The workload can be moved, by its own declaration."""

    KIND: ClassVar[str] = "move_planned"

    ability: Literal["checkpoint", "restartable"]
    topology: Literal["whole", "shardable"]


class MoveLeaseGranted(MoveDecision, frozen=True, kw_only=True):
    """One mover may act until the lease ends; ``token`` fences every earlier one."""

    KIND: ClassVar[str] = "move_lease_granted"

    token: int
    expires_at_ms: int


class MoveFinished(MoveDecision, frozen=True, kw_only=True):
    """The move ended."""

    KIND: ClassVar[str] = "move_finished"

    token: int
    outcome: MoveOutcome


class AlertRaised(Decision, frozen=True, kw_only=True):
    """Somebody should know. ``alert`` is the kind; the id is stable while the cause lasts."""

    KIND: ClassVar[str] = "alert_raised"

    alert_id: str
    alert: str
    about: str

    @property
    def subject(self) -> str:
        return self.alert_id

    @property
    def correlation_id(self) -> str:
        return self.alert_id


class AlertCleared(Decision, frozen=True, kw_only=True):
    """The cause of an alert is gone."""

    KIND: ClassVar[str] = "alert_cleared"

    alert_id: str
    alert: str
    about: str

    @property
    def subject(self) -> str:
        return self.alert_id

    @property
    def correlation_id(self) -> str:
        return self.alert_id
