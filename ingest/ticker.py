"""When a tick may be written: time passes for everybody only while this process really sees the cluster.

A tick lets deadlines fall due, and some of them rest on silence. So there is none while a watch that is needed is cut off,
refused or behind, and nothing is decided on a silence of our own making (design, section 3). A tick of time t comes after
every fact that was observed at or before t. Pure but for ``live_items``, which merges ticks into the frames of a watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ingest.frames import FactFrame, Frame, Parked
from sickbay.clock import Times
from sickbay.facts import Tick

#: Live: twice within the shortest time that anything waits for, and well inside a Lease.
INTERVAL_MS: Final = 5_000
#: A frame is stamped before it is handed on; for so long a tick waits for those that are on the way.
SETTLE_MS: Final = 250
#: Leases that said nothing for longer give the mirror no tick: it takes one for a sign of their watch, and every Lease would lapse
#: together while that hangs. A Node renews every ten seconds.
LEASES_SILENT_MS: Final = 15_000
#: A recording that is silent for longer than this gets few ticks until it speaks again: nothing that waits there hangs on the
#: grid any more, for a deadline falls due at its own time. Longer than the breaker looks back and is quiet by default; one that
#: waits for devices longer than that closes some minutes later for it.
DENSE_MS: Final = 3_600_000
#: How many times rarer they are then.
SPARSE_FACTOR: Final = 60


class Heard(NamedTuple):
    """What one watch is worth at the moment."""

    resource: str
    #: Whether the cluster serves it: what it does not serve cannot be missed.
    required: bool
    #: Monotonic milliseconds of its last sign of life; ``None`` when it was not listed yet, or is known to be cut off.
    heard_ms: int | None
    #: Silence for longer than this is a broken watch, milliseconds: bookmarks come every minute (faults W10).
    idle_ms: int


class Beat(NamedTuple):
    """A time that every partition may be told of."""

    at_ms: int


#: What an ingester goes through, one after the other.
Item: TypeAlias = Frame | FactFrame | Parked | Beat


def is_honest(watches: Sequence[Heard], now_ms: int) -> bool:
    """Whether everything that is needed was heard lately; ``now_ms`` is monotonic. Nothing needed is nothing seen."""
    required = [watch for watch in watches if watch.required]
    return bool(required) and all(
        watch.heard_ms is not None and now_ms - watch.heard_ms <= watch.idle_ms for watch in required
    )


def hears_leases(watches: Sequence[Heard], now_ms: int) -> bool:
    """Whether a tick may stand for a sign of the watch of Leases; ``now_ms`` is monotonic."""
    return all(
        watch.heard_ms is not None and now_ms - watch.heard_ms <= LEASES_SILENT_MS
        for watch in watches
        if watch.required and watch.resource == "leases"
    )


def ticks(at_ms: int, partitions: int) -> list[Tick]:
    """Return the tick of each partition."""
    return [Tick(node="", observed_at_ms=at_ms, partition=number) for number in range(partitions)]


def grid_between(after_ms: int, before_ms: int, interval_ms: int) -> Iterator[int]:
    """Yield the multiples of ``interval_ms`` after one time and before another; few of them once a silence gets long."""
    at_ms = (after_ms // interval_ms + 1) * interval_ms
    while at_ms < before_ms:
        yield at_ms
        if at_ms - after_ms < DENSE_MS:
            at_ms += interval_ms
        else:
            step_ms = interval_ms * SPARSE_FACTOR
            at_ms = min((at_ms // step_ms + 1) * step_ms, _last_before(before_ms, interval_ms, at_ms))


def _last_before(before_ms: int, interval_ms: int, after_ms: int) -> int:
    """Return the last multiple before a time, or that time when it is not after ``after_ms``."""
    last_ms = (before_ms - 1) // interval_ms * interval_ms
    return last_ms if last_ms > after_ms else before_ms


async def live_items(
    frames: AsyncIterator[Frame | Parked],
    *,
    times: Times,
    watches: Callable[[], Sequence[Heard]],
    interval_ms: int = INTERVAL_MS,
) -> AsyncGenerator[Item, None]:
    """Yield frames as they come, with a beat at each multiple of ``interval_ms`` at which the watch is honest and was it before.

    Before each beat the mirror hears of the time too (a TICK frame), unless Leases are silent. A frame that was received before a beat and comes after
    it is dated after it.
    """
    ticked_ms = times.now_ms()
    was_honest = True
    waiting: asyncio.Future[Frame | Parked] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(frames))
            due_ms = (ticked_ms // interval_ms + 1) * interval_ms
            left_ms = due_ms + SETTLE_MS - times.now_ms()
            done, _ = await asyncio.wait({waiting}, timeout=max(0, left_ms) / 1000)
            frame: Frame | Parked | None = None
            before_ms = times.now_ms() - SETTLE_MS
            if done:
                try:
                    frame = waiting.result()
                except StopAsyncIteration:
                    return
                waiting = None
                before_ms = frame.at_ms - 1 if isinstance(frame, Frame) else 0
            if before_ms >= due_ms:
                # one for several that were missed: time is a level too
                ticked_ms = before_ms // interval_ms * interval_ms
                heard, now_ms = watches(), times.monotonic_ms()
                honest = is_honest(heard, now_ms)
                # what a watch missed while it was cut off comes first when it is taken up again: not ticked before the next time
                seen, was_honest = honest and was_honest, honest
                if seen:
                    if hears_leases(heard, now_ms):
                        yield Frame(at_ms=ticked_ms, resource="", type="TICK", object=None, place="clock")
                    yield Beat(ticked_ms)
            if isinstance(frame, Frame) and frame.at_ms <= ticked_ms:
                frame = msgspec.structs.replace(frame, at_ms=ticked_ms + 1)
            if frame is not None:
                yield frame
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
