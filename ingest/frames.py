"""The watch frame: one thing that was seen at one time. What every source of input turns into before it is observed.

Frames come from recordings here and from the live watch later; ``ingest.diff`` does not know which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from sickbay.facts import Fact

FrameType: TypeAlias = Literal["LIST", "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "TICK"]

#: API resource names that are read; frames of any other resource are counted and passed over.
RESOURCES: tuple[str, ...] = ("pods", "resourceslices", "resourceclaims", "nodes", "leases")


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One watch frame. ``object`` is the raw JSON object; for a LIST it is the list object with its ``items``."""

    #: When the ingester received it, milliseconds since the Unix epoch, UTC.
    at_ms: int
    #: One of ``RESOURCES``; empty for a TICK.
    resource: str
    type: FrameType
    object: dict[str, Any] | None
    #: ``file:line``, for messages.
    place: str


class FactFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that was recorded as such (a dump of ``sickbay.facts``); it passes the observer by."""

    at_ms: int
    fact: Fact
    place: str


class Unread(NamedTuple):
    """A line that was glanced at: it is read in full only if the mirror does not know its content already."""

    at_ms: int
    resource: str
    uid: str
    rv: int
    #: Fingerprint of the raw parts that are read besides the identity.
    mark: bytes
    #: Turns the line, with its place, into the frames that it holds.
    reader: Callable[[bytes, str], tuple[Frame | FactFrame, ...]]
    line: bytes
    place: str

    def read(self) -> tuple[Frame | FactFrame, ...]:
        """Read the line in full."""
        return self.reader(self.line, self.place)


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """Input that could not be used: kept, counted and shown, never dropped in silence."""

    place: str
    reason: str
    #: The offending bytes of a recording, cut at 4 KiB, as text with everything unprintable escaped; of what an API server said
    #: only who or how long it was (faults X1).
    raw: str
    #: ``None`` when the input did not get as far as having a time.
    at_ms: int | None = None
