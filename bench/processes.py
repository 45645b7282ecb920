"""What a process and those that it started have used, as the Linux kernel counts it: peak memory and processor time.

Workers are looked at again and again from outside, because not all of them are children whose use is handed on at their end. Peaks
are added up, although they need not come at one time: the sum is never too low. It must not measure time that passes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_NANOSECONDS_PER_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: Fields of /proc/PID/stat after the name, which may hold anything: the state is the first of them.
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12


def peak_bytes(process_id: int | str = "self") -> int:
    """Return the high-water mark of resident memory; 0 for a process that is gone.

    Raises OSError where there is no /proc.
    """
    for line in _read(process_id, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def worked_ns(process_id: int) -> int:
    """Return the processor time of a process so far, in ticks of the kernel; 0 for a process that is gone."""
    fields = _read(process_id, "stat").rpartition(")")[2].split()
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) * _NANOSECONDS_PER_TICK if fields else 0


def _read(process_id: int | str, name: str) -> str:
    try:
        return (_PROC / str(process_id) / name).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if not (_PROC / "self" / "status").exists():
            raise
        return ""


def descendants(process_id: int) -> list[int]:
    """Return the processes that a process started, and theirs in turn."""
    found: list[int] = []
    waiting = [process_id]
    while waiting:
        for task in (_PROC / str(waiting.pop()) / "task").glob("*/children"):
            try:
                numbers = [int(word) for word in task.read_text(encoding="ascii").split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += numbers
            waiting += numbers
    return found


class Workers:
    """What the processes that one process starts use, by repeated looking."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._peaks: dict[int, int] = {}
        self._worked: dict[int, int] = {}

    def look(self) -> None:
        """Look once."""
        for worker in descendants(self._process_id):
            self._peaks[worker] = max(self._peaks.get(worker, 0), peak_bytes(worker))
            self._worked[worker] = max(self._worked.get(worker, 0), worked_ns(worker))

    @property
    def peak_bytes(self) -> int:
        """The sum of the peaks seen."""
        return sum(self._peaks.values())

    @property
    def worked_ns(self) -> int:
        """The sum of the processor time seen."""
        return sum(self._worked.values())
