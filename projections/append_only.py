"""The triggers that make the event log append-only, as each database has them. Migrations must arrive at exactly these.

On PostgreSQL they hold against everybody who does not switch them off, which only the owner of the table and a superuser may. A
SQLite file has no owner: its triggers refuse UPDATE and DELETE to whoever opens it, and a replacing INSERT only where
``recursive_triggers`` is on, as it is in connections of ``projections.sqlite`` and in no other client's. What was changed all the
same, the hash chain shows (``projections.chain``).
"""

from __future__ import annotations

from typing import Final

#: Trigger -> statement, on SQLite. It has no TRUNCATE; a replacing INSERT fires the trigger of DELETE with recursive triggers.
APPEND_ONLY_TRIGGERS: Final = {
    f"event_log_no_{verb.lower()}": (
        f"CREATE TRIGGER event_log_no_{verb.lower()} BEFORE {verb} ON event_log"
        f" BEGIN SELECT RAISE(ABORT, 'event_log is append-only: {verb} refused'); END"
    )
    for verb in ("UPDATE", "DELETE")
}

#: The same on PostgreSQL, for TRUNCATE too, and ALWAYS: ``session_replication_role = replica`` does not pass them.
APPEND_ONLY_POSTGRESQL: Final = (
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
    "ALTER TABLE event_log ENABLE ALWAYS TRIGGER event_log_no_change",
    "ALTER TABLE event_log ENABLE ALWAYS TRIGGER event_log_no_truncate",
)
