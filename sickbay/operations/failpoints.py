"""Places where a test may kill, stop or delay a process: crash tests name them, and production never meets them.

``reach("publisher.acknowledged")`` stands between two effects. Nothing happens there unless ``SICKBAY_FAILPOINT`` named the place
when the process started, so a point costs one look at an empty table. Nothing but the environment arms a point: no file, no
request, no record.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from sickbay.errors import InputError

VARIABLE: Final = "SICKBAY_FAILPOINT"
#: The longest pause that can be asked for.
SLEEP_MS_MAX: Final = 600_000

_ENTRY: Final = re.compile(r"([a-z0-9_.-]{1,80}):([1-9][0-9]{0,8}):(kill9|stop|raise|sleep_ms=([0-9]{1,6}))")
_log: Final = logging.getLogger(__name__)


class FailpointError(RuntimeError):
    """What ``raise`` raises: an error that no handler expects."""


class _Trap(NamedTuple):
    nth: int
    action: str
    sleep_ms: int


_armed: Final[dict[str, list[_Trap]]] = {}
_reached: Final[dict[str, int]] = {}
_counting: Final = threading.Lock()


def arm(environment: Mapping[str, str]) -> None:
    """Take the points of ``SICKBAY_FAILPOINT``, and forget those of before.

    The variable is ``NAME:NTH:ACTION``, several with commas: the action happens the NTH time that the process reaches the point.
    Actions: ``kill9`` (SIGKILL), ``stop`` (SIGSTOP), ``raise`` (FailpointError), ``sleep_ms=250`` (the thread sleeps, and the
    event loop with it). Raises InputError for anything else.
    """
    traps: dict[str, list[_Trap]] = {}
    for entry in filter(None, environment.get(VARIABLE, "").split(",")):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None or int(match[4] or 0) > SLEEP_MS_MAX:
            raise InputError(
                f"{VARIABLE} has {entry[:120]!r}; write NAME:NTH:kill9, :stop, :raise or :sleep_ms=MS (at most {SLEEP_MS_MAX}),"
                " or leave it unset: it is for crash tests"
            )
        traps.setdefault(match[1], []).append(
            _Trap(int(match[2]), match[3].partition("=")[0], int(match[4] or 0))
        )
    with _counting:
        _armed.clear()
        _reached.clear()
        _armed.update(traps)
    if traps:
        _log.warning("%s is set: this process will fail on purpose at %s", VARIABLE, ", ".join(sorted(traps)))


def reach(name: str) -> None:
    """Pass a named place. Does nothing unless it was armed; any thread may call it."""
    if _armed:
        _spring(name)


def _spring(name: str) -> None:
    with _counting:
        count = _reached[name] = _reached.get(name, 0) + 1
        due = [trap for trap in _armed.get(name, ()) if trap.nth == count]
    for trap in due:
        _log.warning("failpoint %s reached for the %d. time: %s", name, count, trap.action)
        if trap.action == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        elif trap.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif trap.action == "sleep_ms":
            time.sleep(trap.sleep_ms / 1000)
        else:
            raise FailpointError(f"failpoint {name}, reached for the {count}. time")
