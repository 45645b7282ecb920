"""A recording in the place of the watch: its frames at their own times, with ticks on the grid between them.

So what the live path does can be shown, measured and tested without a cluster. It must not interpret a frame, and it gives
the same items for the same files, however often it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from ingest.frames import Parked, Unread
from ingest.recording import read_recordings
from ingest.ticker import Beat, Item, grid_between

#: Frames after which others get their turn when nothing has to be waited for.
_TURN_FRAMES: Final = 64


async def recorded_items(
    paths: Sequence[str],
    *,
    interval_ms: int,
    speed: float,
    paced_from_ms: int | None,
    monotonic_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Item, None]:
    """Yield what recordings hold, merged by time, with a beat at each grid time before the next frame, and one at the end.

    ``speed`` 1 takes as long as it took, 2 half as long, 0 waits for nothing; what was recorded up to ``paced_from_ms`` was
    told before and is not waited for. Raises RecordingError as ``read_recordings`` does.
    """
    parked: list[Parked] = []
    latest_ms: int | None = None
    began: tuple[int, int] | None = None
    for number, frame in enumerate(read_recordings(paths, on_parked=parked.append)):
        assert not isinstance(frame, Unread), "glances were not asked for"
        while parked:
            yield parked.pop(0)
        if latest_ms is not None:
            for at_ms in grid_between(latest_ms - 1, frame.at_ms, interval_ms):
                if speed and (paced_from_ms is None or at_ms > paced_from_ms):
                    began = began or (at_ms, monotonic_ms())
                    await _pace(at_ms, began, speed, monotonic_ms, sleep)
                yield Beat(at_ms)
        latest_ms = max(frame.at_ms, latest_ms or 0)
        if speed and (paced_from_ms is None or frame.at_ms > paced_from_ms):
            began = began or (frame.at_ms, monotonic_ms())
            await _pace(frame.at_ms, began, speed, monotonic_ms, sleep)
        elif number % _TURN_FRAMES == 0:
            await sleep(0)
        yield frame
    while parked:
        yield parked.pop(0)
    if latest_ms is not None:
        yield Beat(-(-latest_ms // interval_ms) * interval_ms)


async def _pace(
    at_ms: int,
    began: tuple[int, int],
    speed: float,
    monotonic_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Wait until a recorded time has come."""
    left_ms = (at_ms - began[0]) / speed - (monotonic_ms() - began[1])
    if left_ms > 0:
        await sleep(left_ms / 1000)
