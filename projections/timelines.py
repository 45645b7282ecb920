"""The history of each device as bitemporal intervals: when it was so, and when it was known to be so.

A custody decision says what holds from its event time on. So it ends the interval that contains this time and replaces every
interval known to begin later. The replaced rows stay, closed on the axis of knowledge: a decision that comes late corrects
what is known now, and never what was known then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, or_

from projections.rows import Row, insert_many, load_rows, update_column
from projections.tables import device_history

_KEY: Final = ("generation", "node", "device_id", "known_from_offset", "valid_from_ms")


class Timelines:
    """The intervals of the devices that a batch touches."""

    def __init__(self, connection: Connection, generation: int) -> None:
        self._connection = connection
        self._generation = generation
        self._known: dict[tuple[str, str], list[Row]] = {}
        self._stored: list[Row] = []
        self._new: list[Row] = []

    def load(self, devices: Iterable[tuple[str, str]], from_ms: int) -> None:
        """Read the intervals, as known now, of each ``(node, device id)`` that reach past ``from_ms``.

        ``from_ms`` is the earliest event time of the batch: nothing that ended before it can change.
        """
        columns = device_history.c
        for row in load_rows(
            self._connection,
            device_history,
            ("node", "device_id"),
            "node",
            self._generation,
            devices,
            columns.known_to_offset.is_(None),
            or_(columns.valid_to_ms.is_(None), columns.valid_to_ms > from_ms),
        ):
            self._known.setdefault((row["node"], row["device_id"]), []).append(dict(row))
        self._stored = [row for rows in self._known.values() for row in rows]

    def assert_from(self, row: Row, offset: int) -> None:
        """State that from ``row["valid_from_ms"]`` on the device stands as ``row`` says; known from ``offset`` on."""
        start = row["valid_from_ms"]
        device = (row["node"], row["device_id"])
        kept: list[Row] = []
        for interval in self._known.get(device, ()):
            until = interval["valid_to_ms"]
            if until is not None and until <= start:
                kept.append(interval)
                continue
            interval["known_to_offset"] = offset
            if interval["valid_from_ms"] < start:
                kept.append(self._add(interval | {"valid_to_ms": start}, offset))
        kept.append(self._add(row | {"valid_to_ms": None}, offset))
        self._known[device] = kept

    def _add(self, row: Row, offset: int) -> Row:
        row = row | {"generation": self._generation, "known_from_offset": offset, "known_to_offset": None}
        self._new.append(row)
        return row

    def flush(self) -> None:
        """Write what the batch learned."""
        closed = [row for row in self._stored if row["known_to_offset"] is not None]
        update_column(self._connection, device_history, _KEY, "known_to_offset", closed)
        insert_many(self._connection, device_history, self._new)
