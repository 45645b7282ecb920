"""What the watch of a cluster is worth at the moment, for the ticker and for readiness.

A resource was seen when its watch was opened once, for then its list was handed over whole; from there on it is as old as the
last thing that the API server said of it. One that is refused or behind what was told is not seen, however lately the server
said so. It must not decide what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingest.ticker import Heard, Times, is_honest
from ingest.watching import Status


class Sight:
    """How every resource is seen; ``status`` is that of an ``ingest.watching.Watch``. Implements ``operations.health.Check``."""

    name = "watch"

    def __init__(self, status: Callable[[], Mapping[str, Status]], times: Times, idle_ms: int) -> None:
        self._status = status
        self._times = times
        self._idle_ms = idle_ms
        self._listed: set[str] = set()

    def heard(self) -> list[Heard]:
        """Return what each watch is worth now."""
        now_ms = self._times.monotonic_ms()
        out = []
        for resource, status in self._status().items():
            if status.state == "watching":
                self._listed.add(resource)
            seen = resource in self._listed and status.state != "stale" and status.age_ms is not None
            heard_ms = now_ms - status.age_ms if seen and status.age_ms is not None else None
            out.append(Heard(resource, status.state != "unavailable", heard_ms, self._idle_ms))
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
