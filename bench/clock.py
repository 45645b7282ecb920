"""What one run came to, and the clock that it is read from. It must not know what is measured."""

from __future__ import annotations

from time import perf_counter_ns, process_time_ns
from typing import Self

import msgspec
from processes import peak_bytes


class Result(msgspec.Struct, kw_only=True):
    """What one run of a row came to."""

    nanoseconds: int
    #: Processor time of this process, which a busy machine distorts less; ``run`` adds that of the workers.
    processor_nanoseconds: int
    #: What was gone through: frames of the recording, facts or log records.
    units: int
    #: Of this process; ``run`` adds the peaks of the workers.
    peak_bytes: int
    #: Of what came out, where rows must agree on it.
    digest: str = ""
    #: Facts that arrived behind a later one of their node.
    late: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a database came to with a long journal; medians."""

    #: ``sqlite`` or ``postgresql``.
    kind: str
    lines: int
    #: A node's balance as of an instant, and one line by its primary key.
    balance_nanoseconds: int
    key_read_nanoseconds: int
    load_nanoseconds: int


class Clock:
    """Time that passed and that was worked, while it ran."""

    def __init__(self) -> None:
        self._passed_ns = 0
        self._worked_ns = 0

    def __enter__(self) -> Self:
        self._passed_ns -= perf_counter_ns()
        self._worked_ns -= process_time_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        self._passed_ns += perf_counter_ns()
        self._worked_ns += process_time_ns()

    def result(self, units: int) -> Result:
        """Return what it shows, with the memory of this process."""
        return Result(
            nanoseconds=self._passed_ns,
            processor_nanoseconds=self._worked_ns,
            units=units,
            peak_bytes=peak_bytes(),
        )
