"""What two policies make of one recording: the rows of the read models that appear, vanish or move between two stores.

It compares and never judges: which of two outcomes is the better one is for the reader.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from projections.engine import Store
from sickbay.cli import output
from sickbay.cli.ledger_rows import Reading, Row


class Difference(NamedTuple):
    """One thing that the other policy treats otherwise."""

    change: str
    node: str
    device_id: str
    what: str
    under_base: str
    under_other: str


#: Columns that are told even where they are equal, for they name the thing.
_NAMING: Final = ("reason", "scope", "about")
_AMOUNTS: Final = ("recorded", "derived", "exact")
#: What is compared: word, view, columns that tell one from another, columns that are held against each other.
_COMPARED: Final = (
    (
        "episode",
        "episodes",
        ("episode_id",),
        (
            "opened_at_ms",
            "return_at_ms",
            "observing_at_ms",
            "closed_at_ms",
            "outcome",
            "flap_count",
            "verification",
        ),
    ),
    (
        "unknown run",
        "unknown-duration",
        ("node", "device_id", "unknown_since_ms"),
        ("unknown_since_ms", "ended_ms", "restricted"),
    ),
    (
        "node incident",
        "node-incidents",
        ("incident_id",),
        ("cause", "scope", "opened_at_ms", "closed_at_ms", "outcome"),
    ),
    (
        "move",
        "moves",
        ("move_id",),
        ("namespace", "pod", "planned_at_ms", "state", "finished_at_ms", "outcome"),
    ),
    (
        "hold",
        "ledger-holds",
        ("node", "reason", "scope", "run"),
        ("reason", "scope", "held_since_ms", "held_until_ms"),
    ),
    (
        "difference of the ledger",
        "ledger-drift",
        ("node", "about", "run"),
        ("about", "cause", "recorded", "derived", "exact", "predicted", "found_at_ms", "ended_at_ms"),
    ),
)


def differences(base: Store, other: Store) -> list[Difference]:
    """Return what appears, vanishes or moves from ``base`` to ``other``, two stores of one recording."""
    found: list[Difference] = []
    for what, view, key, fields in _COMPARED:
        left, right = (_rows(store, view, key) for store in (base, other))
        for identity in sorted(left.keys() | right.keys(), key=str):
            one, two = left.get(identity), right.get(identity)
            row = one or two
            assert row is not None, "an identity comes from one of the two"
            told: tuple[str, ...] = fields
            if one is not None and two is not None:
                changed = {field for field in fields if one[field] != two[field]}
                if not changed:
                    continue
                named = _NAMING if what in ("hold", "difference of the ledger") else ()
                told = tuple(field for field in fields if field in changed or field in named)
            change = "moves" if one and two else "vanishes" if one else "appears"
            sides = (_told(side, told) if side else "" for side in (one, two))
            found.append(Difference(change, row["node"], row.get("device_id", ""), what, *sides))
    return sorted(found)


def _rows(store: Store, view: str, key: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    with store.reading() as connection:
        return {tuple(row[name] for name in key): row for row in Reading(connection).rows(view)}


def _told(row: Row, fields: tuple[str, ...]) -> str:
    parts = [f"{output.name_of(f)} {_shown(f, row[f])}" for f in fields if row[f] not in (None, "")]
    return ", ".join(parts)


def _shown(field: str, value: Any) -> Any:
    if field not in _AMOUNTS:
        return output.shown(field, value)
    amounts = msgspec.json.decode(value)
    return " ".join(f"{resource}={amount}" for resource, amount in sorted(amounts.items())) or "nothing"
