"""The loop of a responder: look at what should be, make it so, wait until something changes or is due.

Level-triggered: ``act`` compares the whole level with the world each time, so a change that was missed, a process that was killed
halfway and an error that passes are all mended by the next look. One look at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from responders.reading import Decisions
from sickbay.errors import ServiceError
from sickbay.operations.health import Told
from sickbay.operations.running import Stop

#: Between two looks although nothing changed: what somebody else changed in the world is found by then.
RESYNC_S: Final = 30.0
#: How long one look may take, with all that it does: every request in it has a limit of its own.
ACT_S: Final = 120.0
#: Pause after a look that failed, doubled up to the longest.
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
#: Changes that come within so long are looked at together.
GATHER_S: Final = 0.02

_log: Final = logging.getLogger(__name__)

#: Makes it so, and returns after how many seconds it must look again at the latest, ``None`` for the ordinary time.
Act = Callable[[], Awaitable[float | None]]


async def keep(
    decisions: Decisions, act: Act, stop: Stop, ready: Told, *, resync_s: float = RESYNC_S
) -> None:
    """Act until the end is asked for, and only once everything was read that was decided before.

    A ServiceError of ``act``, or one that takes longer than ``ACT_S``, is told by ``ready`` and tried again, after pauses that grow; any other error is raised.
    """
    pause_s = PAUSE_S
    while not decisions.caught_up.is_set():
        if await stop.wait(GATHER_S):
            return
    while not stop.requested:
        decisions.changed.clear()
        wait_s: float | None
        try:
            async with asyncio.timeout(ACT_S):
                wait_s = await act()
            ready.ready()
            pause_s = PAUSE_S
        except (ServiceError, TimeoutError) as error:
            told = str(error) or f"it was not done after {ACT_S:.0f} s"
            _log.warning("it is tried again: %s", told)
            ready.failed(told)
            wait_s, pause_s = pause_s, min(2 * pause_s, PAUSE_MAX_S)
            await stop.wait(wait_s)  # a change does not mend it
            continue
        await _changed(decisions, stop, min(resync_s, resync_s if wait_s is None else max(wait_s, 0.0)))


async def _changed(decisions: Decisions, stop: Stop, most_s: float) -> None:
    changed = asyncio.ensure_future(decisions.changed.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({changed, stopping}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if changed.done() and not stop.requested:
            await asyncio.sleep(GATHER_S)
    finally:
        changed.cancel()
        stopping.cancel()
        await asyncio.gather(changed, stopping, return_exceptions=True)
