"""From start to exit of a long-running process: signals ask it to stop, a deadline makes it, and the exit code says how it went.

Errors of ours are one line in the log; anything else is a fault of the program and logged once with its traceback. It must be
called on the main thread, after ``setup_logging``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from sickbay.errors import SickbayError
from sickbay.operations import failpoints

#: From the first signal until the work is cancelled. Kubernetes kills after 30 s by default.
GRACE_S: Final = 20.0
#: From then until the process ends without waiting for anything.
CANCEL_S: Final = 5.0
#: Exit code after Ctrl-C (README, "Exit codes").
INTERRUPTED: Final = 130

_log: Final = logging.getLogger(__name__)
Main = Callable[["Stop"], Coroutine[Any, Any, None]]


class Stop:
    """What the work looks at to know that it is to end: finish what was taken, take nothing new, return."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._signals: list[signal.Signals] = []

    @property
    def requested(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        """The signals that came, in their order."""
        return tuple(self._signals)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the request, or for so long; return whether it came."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def request(self, by: signal.Signals | None = None) -> None:
        """Ask for the end."""
        if by is not None:
            self._signals.append(by)
        self._event.set()


def run_process(
    main: Main,
    *,
    environment: Mapping[str, str] = os.environ,
    grace_s: float = GRACE_S,
    cancel_s: float = CANCEL_S,
) -> int:
    """Run ``main(stop)`` to its end and return the exit code.

    SIGTERM and SIGINT ask for the end; a second signal, or ``grace_s`` seconds, cancel the work; ``cancel_s`` later the process
    exits with 1 whatever it does. 0 after SIGTERM, 130 after SIGINT, the error's own code for a SickbayError (of a group: of the
    first), 1 for anything else. Failpoints are armed here. Raises InputError for a SICKBAY_FAILPOINT that is none.
    """
    failpoints.arm(environment)
    end = _HardEnd()
    try:
        with asyncio.Runner() as runner:
            return runner.run(_supervised(main, end, grace_s, cancel_s))
    finally:
        end.call_off()


class _HardEnd:
    """Ends the process from a thread of its own: the event loop, or the end of its threads, may be what does not come."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def within(self, seconds: float) -> None:
        """Begin to count, unless that has begun."""
        if self._timer is None:
            self._timer = threading.Timer(seconds, self._now)
            self._timer.daemon = True
            self._timer.start()

    def call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    @staticmethod
    def _now() -> None:
        _log.critical("the process does not come to its end, and ends without waiting")
        os._exit(1)


async def _supervised(main: Main, end: _HardEnd, grace_s: float, cancel_s: float) -> int:
    loop, stop = asyncio.get_running_loop(), Stop()
    work = loop.create_task(main(stop), name="main")

    def on_signal(received: signal.Signals) -> None:
        if stop.requested:
            work.cancel()
        else:
            _log.info("stopping", extra={"signal": received.name})
            end.within(grace_s + cancel_s)
            loop.call_later(grace_s, work.cancel)
        stop.request(received)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await asyncio.wait({work})
    finally:
        # what is left, tasks and threads, gets as long; the runner cancels and waits
        end.within(cancel_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return _exit_code(work, stop)


def _exit_code(work: asyncio.Task[None], stop: Stop) -> int:
    if work.cancelled():
        _log.error("the work was cancelled: it did not end by itself in time")
        return INTERRUPTED if signal.SIGINT in stop.signals else 1
    error = work.exception()
    if error is None:
        return INTERRUPTED if signal.SIGINT in stop.signals else 0
    leaves = _leaves(error)
    ours = [leaf for leaf in leaves if isinstance(leaf, SickbayError)]
    for leaf in ours:
        _log.error("%s", leaf, exc_info=leaf if _log.isEnabledFor(logging.DEBUG) else None)
    if len(ours) == len(leaves):
        return ours[0].exit_code
    _log.critical("uncaught error; please report it with this log", exc_info=error)
    return 1


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
