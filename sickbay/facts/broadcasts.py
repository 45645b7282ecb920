"""What every partition hears: ``node`` is empty, ``partition`` says where."""

from __future__ import annotations

from typing import ClassVar

from sickbay.facts.base import Fact
from sickbay.policy import Policy


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

    @classmethod
    def to(cls, policy: Policy, at_ms: int, partition: int = 0) -> PolicyChanged:
        """Return the fact that puts a policy in force."""
        return cls(
            node="",
            observed_at_ms=at_ms,
            partition=partition,
            policy_version=policy.version,
            policy_hash=policy.hash(),
            document=policy.canonical(),
        )

    @property
    def subject(self) -> str:
        return f"policy:{self.policy_hash}"

    @property
    def status_version(self) -> str:
        return f"clock:0:{self.observed_at_ms}"
