"""What the plan of a move works with: what was done, what is seen, and the steps that there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from responders.moves.declared import Hook
from responders.moves.pods import Pod
from responders.moves.replacing import Member, Replaced
from responders.view import Move

HookKind: TypeAlias = Literal["stop", "checkpoint"]
StepName: TypeAlias = Literal["owner_told", "stopped", "checkpointed", "evicted", "replaced", "resumed"]


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a move, kept in the cluster before anything is done: who moves, and since when."""

    members: tuple[Member, ...]
    group: str = ""
    #: The server's time, RFC 3339.
    since: str


class Progress(msgspec.Struct, kw_only=True):
    """What was done under one lease, as one process remembers it; a new process does it again."""

    begun: Begun | None = None
    #: Whether the record of an earlier process was asked for.
    recalled: bool = False
    #: (hook, Pod uid).
    called: set[tuple[HookKind, str]] = set()
    #: Pods of which a hook was called, however it went.
    asked: set[str] = set()
    #: Whether hooks may have been called before: by an earlier process, or under an earlier lease.
    inherited: bool = False
    #: Pod uid to what its resume hook said when it failed, "" when it went well.
    resumed: dict[str, str] = {}
    stopped_told: bool = False
    reported: set[StepName] = set()
    #: What went wrong. The owner is told before anything else is done about it, which is also its record.
    failure: str = ""
    failure_told: bool = False
    #: The API server's newest refusal to evict.
    refused: str = ""
    #: When all members were first seen to go.
    evicted_at_ms: int | None = None
    #: Pods of the same controllers that were there before.
    known: set[str] = set()
    #: Pods that this lease moves, so that no other does; and those of them that were not evicted yet, but have their place in the
    #: hour.
    moves: set[str] = set()
    reserved: set[str] = set()
    #: Pods that stand in for the members.
    replaced_by: set[str] = set()
    ended: bool = False


class Seen(msgspec.Struct, kw_only=True):
    """Everything that the next step depends on."""

    #: The lease that is acted on, and what the view has under its id now: ``None`` when it is finished.
    lease: Move
    stands: Move | None
    #: Why nothing may be begun: the breaker, a hold, a device on its way back. Empty when it may.
    halted: str
    admitted: bool
    #: Evictions that the cluster may still do in this hour, and in any hour.
    evictions_left: int
    evictions_max: int
    #: Whether another move of the same workload is under way.
    waits_for_other: bool
    #: Pods by uid: the one that moves, those of its group, and the members that are still there.
    pods: Mapping[str, Pod]
    #: ResourceClaims of those Pods with their users (uids), of Pods that hold the device by it.
    shared_with: Mapping[str, tuple[str, ...]] = {}
    replacement: Replaced = Replaced()
    now_ms: int


class Begin(msgspec.Struct, frozen=True):
    """Write the record of the move, which also tells the owner."""

    members: tuple[Member, ...]
    group: str


class CallHook(msgspec.Struct, frozen=True):
    """Call a hook of a Pod."""

    kind: HookKind
    pod: Pod
    hook: Hook
    timeout_ms: int


class Resume(msgspec.Struct, frozen=True):
    """Call the resume hooks of Pods that stay: the move has failed, or was taken back."""

    pods: tuple[tuple[Pod, Hook], ...]
    timeout_ms: int


class Evict(msgspec.Struct, frozen=True):
    """Evict a Pod as it was seen."""

    pod: Pod


class TellFailure(msgspec.Struct, frozen=True):
    """Tell the owner that the move failed, and why."""

    detail: str


class TellStopped(msgspec.Struct, frozen=True):
    """Tell the owner what was stopped for a move and was not resumed."""

    detail: str


class ReportStep(msgspec.Struct, frozen=True):
    """Report a step as a fact."""

    step: StepName
    detail: str


class End(msgspec.Struct, frozen=True):
    """Report the end of the lease as a fact."""

    outcome: Literal["done", "failed", "deferred"]
    detail: str


class Wait(msgspec.Struct, frozen=True):
    """Look again later."""

    reason: str


class Stop(msgspec.Struct, frozen=True):
    """Do nothing more: the lease is not ours any more."""


Step: TypeAlias = (
    Begin | CallHook | Resume | Evict | TellFailure | TellStopped | ReportStep | End | Wait | Stop
)
