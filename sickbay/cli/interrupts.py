"""Ctrl-C reaches every process of a terminal; only the one that the user started may answer it.

A worker that answered too would print a traceback, or report a failure that is none. Workers end when their pipe closes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back: processes started meanwhile never hear of one, this one hears of it afterwards."""
    # it starts with the first process otherwise, and lets interrupts through again when it has started
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
