"""Every table of the store, declared once. Migrations must arrive at exactly this; a test compares them.

Portable by construction: ids and resourceVersions are TEXT compared byte by byte, times are 64-bit milliseconds, lists are
canonical JSON text that no query looks into, truth values are 0 and 1, and no order rests on a sequence or a rowid. Every row
of a read model carries its ``generation`` (``read_model`` says which one is live) and the place in the log that it comes from.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite's STRICT tables know no BIGINT; its INTEGER has 64 bits.
NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")
#: SQLite compares TEXT byte by byte unless told otherwise; PostgreSQL must be told.
TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
BYTES: Final = LargeBinary()


def _text(name: str, *, key: bool = False, optional: bool = False) -> Column[Any]:
    return Column(name, TEXT, primary_key=key, nullable=optional)


def _number(name: str, *, key: bool = False, optional: bool = False) -> Column[Any]:
    return Column(name, NUMBER, primary_key=key, nullable=optional, autoincrement=False)


def _texts(*names: str, optional: bool = False) -> tuple[Column[Any], ...]:
    return tuple(_text(name, optional=optional) for name in names)


def _numbers(*names: str, optional: bool = False) -> tuple[Column[Any], ...]:
    return tuple(_number(name, optional=optional) for name in names)


def _table(name: str, *columns: Any) -> Table:
    return Table(name, metadata, *columns, sqlite_strict=True)


def _place(*, key: bool = False) -> tuple[Column[Any], ...]:
    """Which generation of the read model, and the place in the log where it became known."""
    return (
        _number("generation", key=True),
        _number("partition_number", key=key),
        _number("log_offset", key=key),
    )


# --- the log ---------------------------------------------------------------------------------------------------------

#: The audit copy of every event, append-only: triggers refuse UPDATE and DELETE (and TRUNCATE, where there is one).
event_log: Final = _table(
    "event_log",
    _number("partition_number", key=True),
    _number("log_offset", key=True),
    *_texts("event_id", "kind", "stream_id", "event_key", "subject"),
    _text("device_id", optional=True),
    _number("at_ms"),
    *_texts("causation_id", "correlation_id", "actor", "policy"),
    _number("schema_version"),
    Column("data", BYTES, nullable=False),
    Column("chain", BYTES, nullable=False),
    UniqueConstraint("partition_number", "event_id"),
    CheckConstraint("length(chain) = 32", name="chain_is_sha256"),
    CheckConstraint("log_offset >= 0", name="offset_counts"),
)
Index(
    "ix_event_log_device_id",
    event_log.c.device_id,
    event_log.c.partition_number,
    event_log.c.log_offset,
    sqlite_where=event_log.c.device_id.is_not(None),
    postgresql_where=event_log.c.device_id.is_not(None),
)

#: How far each partition is written: the same transaction that writes the rows moves it.
checkpoint: Final = _table(
    "checkpoint",
    _number("partition_number", key=True),
    _number("next_offset"),
    Column("chain_head", BYTES, nullable=False),
    _number("newest_ms"),
)

#: How far each partition of each Kafka topic was read, for a store that follows one; moved with the rows that it led to.
source_position: Final = _table(
    "source_position",
    #: ``facts``, ``decisions`` or ``parked``, whatever the topic is called.
    _text("topic", key=True),
    _number("partition_number", key=True),
    #: ``<cluster id>/<topic id>``: of a topic that was made again the offsets mean nothing.
    _text("topic_identity"),
    _number("next_offset"),
    CheckConstraint("next_offset >= 0", name="offset_counts"),
)

#: One row that says whose store this is.
store_meta: Final = _table(
    "store_meta",
    _number("meta_id", key=True),
    _text("source_id"),
    _number("partition_count"),
    #: 1 once what the source holds was read to its end: nothing of it can come any more.
    _number("source_ended"),
    _text("created_by"),
    CheckConstraint("meta_id = 1", name="single_row"),
)

#: What could not be used, with the reason. The id is derived, so parking twice is parking once.
parked: Final = _table(
    "parked",
    _text("parked_id", key=True),
    _number("seq"),
    _text("place"),
    _text("reason"),
    Column("raw", BYTES, nullable=False),
    _number("raw_bytes"),
    _number("at_ms", optional=True),
)

#: Which generation of a set of read models answers, and which one is being built beside it.
read_model: Final = _table(
    "read_model",
    _text("name", key=True),
    _number("live_generation"),
    _number("building_generation", optional=True),
)

rebuild_checkpoint: Final = _table(
    "rebuild_checkpoint",
    Column("name", TEXT, ForeignKey("read_model.name"), primary_key=True),
    _number("generation", key=True),
    _number("partition_number", key=True),
    _number("next_offset"),
)

# --- custody: where devices stand ------------------------------------------------------------------------------------

_STANDING: Final = ("phase", "cause", "episode_id", "incident_id")

device_current: Final = _table(
    "device_current",
    _number("generation", key=True),
    _text("node", key=True),
    _text("device_id", key=True),
    _number("partition_number"),
    _number("log_offset"),
    _text("driver"),
    *_texts(*_STANDING),
    _number("since_ms"),
    _number("unknown_since_ms", optional=True),
    _number("window_ms", optional=True),
    _number("at_ms"),
    _text("event_id"),
)

#: Bitemporal: ``[valid_from_ms, valid_to_ms)`` is when it was so, ``[known_from_offset, known_to_offset)`` when it was known.
device_history: Final = _table(
    "device_history",
    _number("generation", key=True),
    _text("node", key=True),
    _text("device_id", key=True),
    _number("known_from_offset", key=True),
    _number("valid_from_ms", key=True),
    _number("partition_number"),
    _number("known_to_offset", optional=True),
    _number("valid_to_ms", optional=True),
    _text("driver"),
    *_texts(*_STANDING),
    _number("since_ms"),
    _number("unknown_since_ms", optional=True),
    Index(None, "generation", "known_to_offset", "node", "device_id"),
    CheckConstraint("valid_to_ms IS NULL OR valid_to_ms > valid_from_ms", name="valid_time_runs"),
    CheckConstraint("known_to_offset IS NULL OR known_to_offset > known_from_offset", name="known_time_runs"),
)

#: One row for each custody decision.
transition: Final = _table(
    "transition",
    *_place(key=True),
    *_texts(
        "event_id",
        "kind",
        "node",
        "device_id",
        "driver",
        "episode_id",
        "incident_id",
        "phase_before",
        "phase_after",
        "cause",
        "clause",
        "reason",
        "policy",
        "causation_id",
    ),
    _number("at_ms"),
    _number("cause_at_ms", optional=True),
    _number("latency_ms", optional=True),
    Index(None, "generation", "node", "device_id", "log_offset"),
    Index(None, "generation", "episode_id", "log_offset"),
)

# --- custody: versions. Each row holds from its place on until ``superseded_offset``; nothing known before is lost -----


def _versions(name: str, *key: str, columns: tuple[Any, ...]) -> Table:
    return _table(
        name,
        *_place(key=True),
        *(_text(part, key=True) for part in key),
        _number("superseded_offset", optional=True),
        _number("at_ms"),
        _text("event_id"),
        *columns,
        Index(None, "generation", "superseded_offset", *key),
    )


episode: Final = _versions(
    "episode",
    "episode_id",
    columns=(
        *_texts("node", "device_id", "driver", "phase", "incident_id", "cause", "reason", "actor"),
        _number("opened_at_ms"),
        _number("expires_at_ms"),
        _text("lease_holder"),
        *_numbers("extensions", "flap_count", "hold_until_ms", "failures", "attempt"),
        *_numbers("return_at_ms", "canary_at_ms", "observing_at_ms", "closed_at_ms", optional=True),
        _text("outcome"),
        _text("verification"),
        _number("after_restart"),
        _number("held"),
        *_texts("release_actor", "open_causes", "evidence"),
        Index(None, "generation", "episode_id", "log_offset"),
    ),
)

#: Every fact that an episode ever rested on; the episode itself names the newest sixteen.
episode_evidence: Final = _table(
    "episode_evidence",
    _number("generation", key=True),
    _text("episode_id", key=True),
    _text("event_id", key=True),
    _number("partition_number"),
    _number("log_offset"),
)

node_incident: Final = _versions(
    "node_incident",
    "incident_id",
    columns=(
        *_texts("node", "cause", "scope", "devices"),
        _number("opened_at_ms"),
        _number("closed_at_ms", optional=True),
        *_texts("outcome", "clause", "reason", "policy"),
    ),
)

move: Final = _versions(
    "move",
    "move_id",
    columns=(
        *_texts(
            "node", "device_id", "episode_id", "pod_uid", "namespace", "pod", "state", "ability", "topology"
        ),
        *_numbers("planned_at_ms", "token", "lease_expires_at_ms", "finished_at_ms", optional=True),
        *_texts("outcome", "clause", "reason", "policy"),
        Index(None, "generation", "episode_id"),
        Index(None, "generation", "move_id", "log_offset"),
    ),
)

alert: Final = _versions(
    "alert",
    "alert_id",
    columns=(
        *_texts("node", "alert", "about"),
        _number("raised_at_ms", optional=True),
        _number("cleared_at_ms", optional=True),
        *_texts("clause", "reason", "policy", "causation_id"),
        Index(None, "generation", "about"),
    ),
)

#: What stands of each taint rule, as whoever keeps the rules told. ``since_ms`` is when state and effect became what they are.
exclusion: Final = _versions(
    "exclusion",
    "node",
    "rule",
    columns=(
        *_texts("device_id", "episode_id", "effect", "state", "actor", "detail"),
        *_numbers("since_ms", "repairs"),
        Index(None, "generation", "episode_id"),
    ),
)

#: A version for each newer publication of a device and for its withdrawal; a repeat or an older one adds none.
device_inventory: Final = _versions(
    "device_inventory",
    "node",
    "device_id",
    columns=(
        *_texts("driver", "pool", "device"),
        _text("physical_id", optional=True),
        *_texts("numa_nodes", "node_uid", "status_epoch", "resource_version"),
        _number("withdrawn_at_ms", optional=True),
        _text("withdrawn_reason"),
    ),
)

# --- custody: what happened, one row each -----------------------------------------------------------------------------

breaker_history: Final = _table(
    "breaker_history",
    *_place(key=True),
    *_texts("event_id", "scope", "state"),
    _number("at_ms"),
    _number("opened_at_ms"),
    *_numbers("adverse", "known", "threshold", optional=True),
    *_texts("clause", "reason", "policy"),
)

#: Who asked for what: a column that the kind of request does not have is NULL.
request: Final = _table(
    "request",
    *_place(key=True),
    *_texts("event_id", "kind", "request_id", "actor", "node", "device_id"),
    _number("at_ms"),
    *_texts("episode_id", "move_id", "scope", "reason", "detail", optional=True),
    *_numbers("until_ms", "attempt", "passed", "token", optional=True),
    _text("outcome", optional=True),
    _number("closed", optional=True),
    _text("ledger_version", optional=True),
)

#: Each step of a move that a mover told.
move_step: Final = _table(
    "move_step",
    *_place(key=True),
    *_texts("event_id", "request_id", "actor", "node", "device_id", "move_id", "step", "detail"),
    *_numbers("at_ms", "token"),
    Index(None, "generation", "move_id"),
)

#: Facts that came later than the horizon: recorded, counted, alerted, not acted on.
late_fact: Final = _table(
    "late_fact",
    *_place(key=True),
    _text("fact_id", key=True),
    *_texts("alert_id", "about", "node"),
    _number("at_ms"),
    _number("fact_at_ms", optional=True),
    _number("late_by_ms", optional=True),
    _text("reason"),
)

#: When nothing was seen of a resource type: a row in each partition that heard of it.
watch_gap: Final = _table(
    "watch_gap",
    *_place(key=True),
    _text("watched"),
    *_numbers("from_ms", "to_ms"),
    *_texts("from_rv", "to_rv"),
)

#: The read models of custody, in the order in which they are dropped and digested.
CUSTODY_TABLES: Final = (
    device_current, device_history, transition, episode, episode_evidence, node_incident, move, alert, exclusion,
    device_inventory, breaker_history, request, move_step, late_fact, watch_gap,
)  # fmt: skip
