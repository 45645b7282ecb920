-- The schema of a Sickbay store on PostgreSQL, and its owner. Run by `sickbay migrate --roles` after roles.sql, by a superuser or
-- by a member of sickbay_owner: who is none is made one for the length of the transaction, because nobody else may give to it.

CREATE SCHEMA IF NOT EXISTS sickbay AUTHORIZATION sickbay_owner;

-- A schema that was made before the roles is handed over, with everything in it.
DO $$
DECLARE
    found record;
BEGIN
    ALTER SCHEMA sickbay OWNER TO sickbay_owner;
    FOR found IN
        SELECT relname, relkind FROM pg_class
        WHERE relnamespace = 'sickbay'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
          AND relowner <> 'sickbay_owner'::regrole
    LOOP
        EXECUTE format('ALTER TABLE sickbay.%I OWNER TO sickbay_owner', found.relname);
    END LOOP;
    FOR found IN
        SELECT oid::regprocedure AS signature FROM pg_proc
        WHERE pronamespace = 'sickbay'::regnamespace AND proowner <> 'sickbay_owner'::regrole
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO sickbay_owner', found.signature);
    END LOOP;
END
$$;
