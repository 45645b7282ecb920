"""What the watch of a cluster is worth at the moment, for the ticker and for readiness.

A resource is seen from when its first list was taken by whoever reads the watch; a list that waits to be read shows nobody
anything. From there on it is as old as the last thing that the API server said of it. One that is refused, cut off or behind
what was told is not seen, however lately the server said so. It must not decide what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ingest.frames import Frame
from ingest.ticker import Heard, Item, is_honest
from ingest.watching import Status
from sickbay.clock import Times

#: What a cluster may not serve; the rest is in every one, and not to be found is then a fault on the way.
_OPTIONAL: Final = ("resourceslices", "resourceclaims")


class Sight:
    """How every resource is seen; ``status`` is that of an ``ingest.watching.Watch``. Implements ``operations.health.Check``."""

    name = "watch"

    def __init__(self, status: Callable[[], Mapping[str, Status]], times: Times, idle_ms: int) -> None:
        self._status = status
        self._times = times
        self._idle_ms = idle_ms
        self._listed: set[str] = set()

    def took(self, item: Item) -> None:
        """Hear that something of the watch was taken, with all that follows from it."""
        if isinstance(item, Frame) and item.type == "LIST":
            self._listed.add(item.resource)

    def heard(self) -> list[Heard]:
        """Return what each watch is worth now."""
        now_ms = self._times.monotonic_ms()
        out = []
        for resource, status in self._status().items():
            seen = resource in self._listed and status.state in ("watching", "listing")
            heard_ms = now_ms - status.age_ms if seen and status.age_ms is not None else None
            required = status.state != "unavailable" or resource not in _OPTIONAL
            out.append(Heard(resource, required, heard_ms, self._idle_ms))
        return out

    def problem(self) -> str | None:
        """Say what is not seen, ``None`` while the watch is honest."""
        now_ms = self._times.monotonic_ms()
        heard = self.heard()
        if is_honest(heard, now_ms):
            return None
        status = self._status()
        blind = [
            f"{watch.resource} ({status[watch.resource].reason or status[watch.resource].state})"
            for watch in heard
            if watch.required and not is_honest([watch], now_ms)
        ]
        return f"not seen: {', '.join(blind)}" if blind else "the cluster serves nothing that is watched"
