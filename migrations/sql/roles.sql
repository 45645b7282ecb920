-- The roles of a Sickbay store on PostgreSQL. Run by `sickbay migrate --roles`, in one transaction with schema.sql, by a
-- superuser (or by the owner of the database with CREATEROLE). May be run again at any time.
-- None of them can log in: people and programs have their own login roles and are made members. See docs/databases.md.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'sickbay_owner', 'sickbay_migrator', 'sickbay_projector', 'sickbay_auditor', 'sickbay_tenant'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- another database of the same server was given its roles meanwhile
            END;
        END IF;
    END LOOP;
END
$$;

-- A migrator is nobody special until it becomes the owner, for the length of a migration.
ALTER ROLE sickbay_migrator NOINHERIT;
GRANT sickbay_owner TO sickbay_migrator;

-- PostgreSQL gives settings of a role to a session that logs in as it, and to no member: docs/databases.md says what to set
-- for each auditor that logs in.
ALTER ROLE sickbay_auditor SET statement_timeout = '30s';
ALTER ROLE sickbay_auditor SET idle_in_transaction_session_timeout = '60s';

-- The database is Sickbay's own: who is no member has no business in it.
DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format(
        'GRANT CONNECT ON DATABASE %I TO sickbay_owner, sickbay_migrator, sickbay_projector, sickbay_auditor, sickbay_tenant',
        current_database()
    );
END
$$;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
