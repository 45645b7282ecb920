"""The event log, its checkpoints, the read models of custody and the audit views.

Frozen: it names every column itself. A column is written ``name``, ``name?`` when it may be NULL, after the letter of its type:
``t`` TEXT, ``n`` 64-bit integer, ``b`` bytes. The views stand in ``migrations/sql/0001_audit_views.sql``; on PostgreSQL they check
the rights of who asks, so that row security holds through them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op

from sickbay.errors import StoreError

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_VIEWS = Path(__file__).parent.parent / "sql" / "0001_audit_views.sql"

_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "t": sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    "n": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "b": sa.LargeBinary(),
}

_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER event_log_no_{verb.lower()} BEFORE {verb} ON event_log"
        f" BEGIN SELECT RAISE(ABORT, 'event_log is append-only: {verb} refused'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        (
            "CREATE FUNCTION event_log_refuse() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$"
            " BEGIN RAISE EXCEPTION 'event_log is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation'; END $$"
        ),
        (
            "CREATE TRIGGER event_log_no_change BEFORE UPDATE OR DELETE ON event_log"
            " FOR EACH ROW EXECUTE FUNCTION event_log_refuse()"
        ),
        (
            "CREATE TRIGGER event_log_no_truncate BEFORE TRUNCATE ON event_log"
            " FOR EACH STATEMENT EXECUTE FUNCTION event_log_refuse()"
        ),
        # ALWAYS: session_replication_role = replica would pass a trigger that is only enabled
        "ALTER TABLE event_log ENABLE ALWAYS TRIGGER event_log_no_change",
        "ALTER TABLE event_log ENABLE ALWAYS TRIGGER event_log_no_truncate",
    ],
}

_PLACE = "n generation partition_number log_offset"


def _columns(specification: str) -> list[sa.Column[Any]]:
    columns: list[sa.Column[Any]] = []
    for line in specification.split(";"):
        letter, *names = line.split()
        columns += [
            sa.Column(name.rstrip("?"), _TYPES[letter], nullable=name.endswith("?"), autoincrement=False)
            for name in names
        ]
    return columns


def _create(name: str, key: str, rest: str, *constraints: sa.Constraint) -> None:
    keys = _columns(key)
    op.create_table(
        name,
        *keys,
        *_columns(rest),
        sa.PrimaryKeyConstraint(*(column.name for column in keys), name=f"pk_{name}"),
        *constraints,
        sqlite_strict=True,
    )


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _versions(name: str, key: str, rest: str) -> None:
    _create(name, f"{_PLACE}; t {key}", f"n superseded_offset? at_ms; t event_id; {rest}")
    _index(name, "generation", "superseded_offset", *key.split())


def _log() -> None:
    _create(
        "event_log",
        "n partition_number log_offset",
        "t event_id kind stream_id event_key subject device_id?; n at_ms; t causation_id correlation_id actor policy;"
        " n schema_version; b data chain",
        sa.UniqueConstraint("partition_number", "event_id", name="uq_event_log_partition_number_event_id"),
        sa.CheckConstraint("length(chain) = 32", name=op.f("ck_event_log_chain_is_sha256")),
        sa.CheckConstraint("log_offset >= 0", name=op.f("ck_event_log_offset_counts")),
    )
    named = sa.text("device_id IS NOT NULL")
    op.create_index(
        "ix_event_log_device_id",
        "event_log",
        ["device_id", "partition_number", "log_offset"],
        sqlite_where=named,
        postgresql_where=named,
    )
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
    _create("checkpoint", "n partition_number", "n next_offset; b chain_head; n newest_ms")
    _create(
        "store_meta",
        "n meta_id",
        "t source_id; n partition_count source_ended; t created_by",
        sa.CheckConstraint("meta_id = 1", name=op.f("ck_store_meta_single_row")),
    )
    _create("parked", "t parked_id", "n seq; t place reason; b raw; n raw_bytes at_ms?")
    _create("read_model", "t name", "n live_generation building_generation?")
    _create(
        "rebuild_checkpoint",
        "t name; n generation partition_number",
        "n next_offset",
        sa.ForeignKeyConstraint(["name"], ["read_model.name"], name="fk_rebuild_checkpoint_name_read_model"),
    )


def _devices() -> None:
    _create(
        "device_current",
        "n generation; t node device_id",
        "n partition_number log_offset; t driver phase cause episode_id incident_id;"
        " n since_ms unknown_since_ms? window_ms? at_ms; t event_id",
    )
    _create(
        "device_history",
        "n generation; t node device_id; n known_from_offset valid_from_ms",
        "n partition_number known_to_offset? valid_to_ms?; t driver phase cause episode_id incident_id;"
        " n since_ms unknown_since_ms?",
        sa.CheckConstraint(
            "valid_to_ms IS NULL OR valid_to_ms > valid_from_ms",
            name=op.f("ck_device_history_valid_time_runs"),
        ),
        sa.CheckConstraint(
            "known_to_offset IS NULL OR known_to_offset > known_from_offset",
            name=op.f("ck_device_history_known_time_runs"),
        ),
    )
    _index("device_history", "generation", "known_to_offset", "node", "device_id")
    _create(
        "transition",
        _PLACE,
        "t event_id kind node device_id driver episode_id incident_id phase_before phase_after cause clause reason policy"
        " causation_id; n at_ms cause_at_ms? latency_ms?",
    )
    _index("transition", "generation", "node", "device_id", "log_offset")
    _index("transition", "generation", "episode_id", "log_offset")
    _versions(
        "device_inventory",
        "node device_id",
        "t driver pool device physical_id? numa_nodes node_uid status_epoch resource_version; n withdrawn_at_ms?;"
        " t withdrawn_reason",
    )


def _episodes() -> None:
    _versions(
        "episode",
        "episode_id",
        "t node device_id driver phase incident_id cause reason actor; n opened_at_ms expires_at_ms; t lease_holder;"
        " n extensions flap_count hold_until_ms failures attempt return_at_ms? canary_at_ms? observing_at_ms? closed_at_ms?;"
        " t outcome verification; n after_restart held; t release_actor open_causes evidence",
    )
    _index("episode", "generation", "episode_id", "log_offset")
    _create("episode_evidence", "n generation; t episode_id event_id", "n partition_number log_offset")
    _versions(
        "node_incident",
        "incident_id",
        "t node cause scope devices; n opened_at_ms closed_at_ms?; t outcome clause reason policy",
    )
    _versions(
        "move",
        "move_id",
        "t node device_id episode_id pod_uid namespace pod state ability topology; n planned_at_ms? token?"
        " lease_expires_at_ms? finished_at_ms?; t outcome clause reason policy",
    )
    _index("move", "generation", "episode_id")
    _versions(
        "alert",
        "alert_id",
        "t node alert about; n raised_at_ms? cleared_at_ms?; t clause reason policy causation_id",
    )
    _index("alert", "generation", "about")


def _happenings() -> None:
    _create(
        "breaker_history",
        _PLACE,
        "t event_id scope state; n at_ms opened_at_ms adverse? known? threshold?; t clause reason policy",
    )
    _create(
        "request",
        _PLACE,
        "t event_id kind request_id actor node device_id; n at_ms; t episode_id? move_id? scope? reason? detail?;"
        " n until_ms? attempt? passed? token?; t outcome?; n closed?",
    )
    _create(
        "late_fact",
        f"{_PLACE}; t fact_id",
        "t alert_id about node; n at_ms fact_at_ms? late_by_ms?; t reason",
    )
    _create("watch_gap", _PLACE, "t watched; n from_ms to_ms; t from_rv to_rv")


def upgrade() -> None:
    """Create everything."""
    _log()
    _devices()
    _episodes()
    _happenings()
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for statement in _VIEWS.read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            op.execute(
                re.sub(
                    r"^CREATE VIEW (\w+)",
                    r"CREATE VIEW \1 WITH (security_invoker = true)",
                    statement,
                    flags=re.MULTILINE,
                )
                if is_postgresql
                else statement
            )


def downgrade() -> None:
    """Refused: there is nothing before the audit log, and a downgrade never deletes evidence."""
    raise StoreError("revision 0001 holds the audit log and is never taken back; move the file away instead")
