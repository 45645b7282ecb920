"""What the reflector and its shell say to one another: how long things may take, what to do next, what was heard.

Data only; the rules are in ``ingest.reflector``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from ingest.frames import FrameType
from ingest.framing import LINE_BYTES_MAX, Unusable

Query: TypeAlias = tuple[tuple[str, str], ...]
#: Draws a whole number between two, both included.
Draw: TypeAlias = Callable[[int, int], int]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long everything may take. The defaults are for a cluster; tests are shorter."""

    #: Silence after which a watch is taken for dead: bookmarks come every minute, so three were missed (W10).
    idle_ms: int = 200_000
    #: How often a consistent LIST of one object asks whether the watch is still of this cluster's history (W3).
    probe_ms: int = 60_000
    #: How often everything is listed again to find what the watch lost (W22).
    resync_ms: int = 600_000
    #: First and longest wait after errors; each wait is drawn from its upper half.
    backoff_ms: int = 500
    backoff_max_ms: int = 30_000
    #: Wait after a refusal that only a person can mend.
    refused_ms: int = 60_000
    #: Wait after the API was not there.
    unavailable_ms: int = 180_000
    #: How long initial events may take before the server is taken for one that does not know them.
    initial_ms: int = 120_000
    #: A watch that lived this long was no failure, even if nothing happened.
    settled_ms: int = 10_000
    #: The watch's own time limit is drawn from these, so that not all end at once.
    watch_seconds: tuple[int, int] = (300, 600)
    #: How long the first list of a resource waits for that of another that should come before it.
    turn_ms: int = 30_000
    page_limit: int = 500
    line_bytes_max: int = LINE_BYTES_MAX


class State(msgspec.Struct, frozen=True):
    """Where a reflector stands; ``waiting``, ``stale`` and ``unavailable`` stay until a request succeeds."""

    name: Literal["listing", "watching", "waiting", "stale", "unavailable"]
    reason: str = ""


class FetchPage(msgspec.Struct, frozen=True):
    """GET the resource, read the whole body: then ``page``, ``page_too_large`` or ``request_failed``."""

    query: Query


class OpenWatch(msgspec.Struct, frozen=True):
    """GET the resource as a stream: then ``opened``, ``refused`` or ``request_failed``."""

    query: Query


class Wait(msgspec.Struct, frozen=True):
    """Do nothing for a while, then what is asked: read the credentials anew, find the API's version anew."""

    ms: int
    reload: bool = False
    discover: bool = False


class Heard(msgspec.Struct, frozen=True):
    """A frame to deliver; ``version`` is that of the object or list, of the watch for an ERROR."""

    type: FrameType
    object: dict[str, Any]
    version: int
    #: Bytes that it came in, about.
    size: int


Step: TypeAlias = FetchPage | OpenWatch | Wait
Output: TypeAlias = Heard | Unusable
