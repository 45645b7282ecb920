"""What every fact carries."""

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
