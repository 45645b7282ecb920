"""The tables of the ledger's read models: the journal line by line, and versions of what stands, holds, drifts and is refused.

They belong to the metadata of ``projections.tables`` and follow its rules; nothing but columns and indexes is here. An exact
amount is two integers, ``amount_units * unit + amount_rest_nano`` nano-units with ``0 <= amount_rest_nano < unit``, because an
amount may be finer than what the scheduler counts in and larger than 64 bits of nano-units (``projections.ledger``).
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, Index, Table

from projections.tables import NUMBER, TEXT, metadata


def _texts(*names: str, key: bool = False) -> list[Column[Any]]:
    return [Column(name, TEXT, primary_key=key, nullable=False) for name in names]


def _numbers(*names: str, key: bool = False, optional: bool = False) -> list[Column[Any]]:
    return [Column(name, NUMBER, primary_key=key, nullable=optional, autoincrement=False) for name in names]


def _place() -> list[Column[Any]]:
    return _numbers("generation", "partition_number", "log_offset", key=True)


def _versions(name: str, *key: str, columns: tuple[Any, ...]) -> Table:
    """Declare versions by ``key``; the newest of a key is found by the key's first column."""
    return Table(
        name,
        metadata,
        *_place(),
        *_texts(*key, key=True),
        *_numbers("superseded_offset", optional=True),
        *_numbers("at_ms"),
        *_texts("event_id"),
        *columns,
        Index(f"ix_{name}_newest", "generation", "superseded_offset", *key),
        sqlite_strict=True,
    )


#: The journal: a row for each amount of an entry that was posted or reversed, signed; a reversal takes back what was posted.
#: ``at_ms`` is the event time from which it counts. The index answers balances of a node at any moment without the table.
#: It names no namespace, so that it has no row security and goes by COPY; whose a line is, its entry says.
ledger_line: Final = Table(
    "ledger_line",
    metadata,
    *_place(),
    *_numbers("line_number", key=True),
    *_texts("event_id", "direction", "node", "book", "entry_key", "account", "resource", "numa"),
    *_numbers("amount_units", "amount_rest_nano", "at_ms"),
    *_texts("pod_uid", "claim_uid"),
    Index(
        "ix_ledger_line_balance",
        *("generation", "node", "book", "resource", "numa", "account", "at_ms", "log_offset"),
        *("partition_number", "amount_units", "amount_rest_nano"),
    ),
    CheckConstraint("amount_rest_nano >= 0", name="rest_is_above_units"),
    sqlite_strict=True,
)

_WHOSE: Final = ("namespace", "pod", "pod_uid", "claim", "claim_uid")

#: Every entry with whether it stands. A key is unique on its node; it comes first because most nodes keep few entries of many.
ledger_entry: Final = _versions(
    "ledger_entry",
    *("entry_key", "book", "node"),
    columns=(
        *_texts(
            "state", "account", *_WHOSE, "device_id", "share_id", "mapping_version", "amounts", "covered"
        ),
        *_numbers("posted_at_ms"),
        *_numbers("reversed_at_ms", optional=True),
        Index("ix_ledger_entry_node", "generation", "node", "state", "superseded_offset"),
        Index("ix_ledger_entry_claim_uid", "generation", "claim_uid", "superseded_offset"),
    ),
)

#: Whether new claims may come to a node, with every reason as JSON text.
#: ``since_ms`` is when the verdict became what it is, ``reasons_since_ms`` when its reasons did.
ledger_verdict: Final = _versions(
    "ledger_verdict",
    "node",
    columns=(
        *_texts("verdict", "holds", "node_class", "drivers", "policy"),
        *_numbers("since_ms", "reasons_since_ms"),
    ),
)

#: Which drivers publish devices on a node: ``published`` is 0 once a verdict does not name the driver any more.
ledger_driver: Final = _versions(
    "ledger_driver",
    *("node", "driver"),
    columns=(
        *_texts("node_class"),
        *_numbers("published"),
        Index("ix_ledger_driver_node", "generation", "node", "driver", "log_offset"),
    ),
)

#: Each reason for which new claims waited. ``run`` counts how often it came back; ``driver`` is empty where it is not one
#: driver's.
ledger_hold: Final = _versions(
    "ledger_hold",
    *("node", "reason", "scope"),
    columns=(
        *_numbers("run"),
        *_texts("driver", "node_class"),
        *_numbers("held_since_ms"),
        *_numbers("held_until_ms", optional=True),
        *_texts("detail"),
    ),
)

#: Where the two books of claims differ. Another cause, or a difference that comes back, is another ``run``.
ledger_drift: Final = _versions(
    "ledger_drift",
    *("about", "node"),
    columns=(
        *_numbers("run"),
        *_texts("cause"),
        *_numbers("explained", "predicted", "found_at_ms"),
        *_numbers("cleared_at_ms", optional=True),
        *_texts(*_WHOSE, "recorded", "derived", "exact", "detail"),
    ),
)

#: Second contributions under one key, never added.
ledger_refusal: Final = _versions(
    "ledger_refusal",
    *("entry_key", "book", "node", "contender"),
    columns=(
        *_numbers("run", "refused_at_ms"),
        *_numbers("withdrawn_at_ms", optional=True),
        *_texts("amounts", *_WHOSE),
    ),
)

#: The read models of the ledger, in the order in which they are dropped and digested.
LEDGER_TABLES: Final = (
    ledger_line, ledger_entry, ledger_verdict, ledger_driver, ledger_hold, ledger_drift, ledger_refusal,
)  # fmt: skip
