"""Requests by people and executors: commands that may be refused enter as facts."""

from __future__ import annotations

from typing import ClassVar, Literal

from sickbay.facts.base import Fact, Resource


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
    """A mover's word on a move; a token that is not the current lease's is recorded and does nothing.

    ``deferred`` gives the lease back because the cluster's limits are reached: no attempt is counted, and the move is leased
    again after ``moves.defer_ms``.
    """

    KIND: ClassVar[str] = "move_reported"
    SCHEMA_VERSION: ClassVar[int] = 2

    move_id: str
    token: int
    outcome: Literal["done", "failed", "deferred"]
    detail: str = ""


class MoveStepReported(Request, frozen=True, kw_only=True):
    """A step of a move was done: evidence for the audit, which decides nothing."""

    KIND: ClassVar[str] = "move_step_reported"
    SCHEMA_VERSION: ClassVar[int] = 2

    move_id: str
    token: int
    step: Literal["owner_told", "stopped", "checkpointed", "evicted", "replaced", "resumed"]
    detail: str = ""


class ExclusionReported(Request, frozen=True, kw_only=True):
    """What became of the taint rule of a device: evidence for the audit, which decides nothing.

    ``applied``: it was made, or its effect changed, and the API server has it. ``confirmed``: it was read back later and stood.
    ``repaired``: somebody else had changed or deleted it. ``given_up``: that happened too often. ``overridden`` and
    ``override_ended``: a person's annotation is respected. ``removed``: it is gone, as it should be. ``capped``: there are too many
    rules, or too many at once, to make it. ``refused``: the API server did not take it.
    """

    KIND: ClassVar[str] = "exclusion_reported"

    #: The episode, empty for a device that is restricted.
    episode_id: str = ""
    #: Name of the DeviceTaintRule.
    rule: str
    effect: Literal["None", "NoSchedule", "NoExecute", ""]
    state: Literal[
        "applied",
        "confirmed",
        "repaired",
        "given_up",
        "overridden",
        "override_ended",
        "removed",
        "capped",
        "refused",
    ]
    detail: str = ""


class BreakerResetRequested(Request, frozen=True, kw_only=True):
    """A person says that the storm is over. ``scope`` is ``cluster`` or ``driver:<name>``; ``device_id`` is empty.

    The breaker forgets what turned adverse so far, and opens again when as much turns adverse anew.
    """

    KIND: ClassVar[str] = "breaker_reset_requested"

    scope: str
    reason: str
    #: The home of the cluster's stream.
    partition: int

    @property
    def subject(self) -> str:
        return f"breaker:{self.scope}"


class ClaimsGateRequested(Request, frozen=True, kw_only=True):
    """A person opens or closes the claims gate.

    ``scope`` is ``node``, or ``cluster`` or ``driver:<name>``, which every partition hears (``partition``). ``device_id`` is empty.
    """

    KIND: ClassVar[str] = "claims_gate_requested"
    SCHEMA_VERSION: ClassVar[int] = 2

    scope: str
    closed: bool
    reason: str
    #: Opening a node's gate may name the ledger that was checked; the gate stays closed if the ledger is another by now.
    ledger_version: str = ""
    partition: int | None = None

    @property
    def subject(self) -> str:
        # version 1 was about a device, and keeps its identity
        return self.device_id or f"gate:{self.scope}"
