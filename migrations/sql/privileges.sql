-- What each role may do with the tables and views that are there. Run as sickbay_owner after every migration and by
-- `sickbay migrate --roles`; everything is taken first and given anew, so what is not here is not allowed.
-- What tenants may read is the list TENANT_VIEWS in projections/roles.py.

REVOKE ALL ON SCHEMA sickbay FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA sickbay
    FROM PUBLIC, sickbay_migrator, sickbay_projector, sickbay_auditor, sickbay_tenant;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA sickbay FROM PUBLIC;
GRANT USAGE ON SCHEMA sickbay TO sickbay_migrator, sickbay_projector, sickbay_auditor, sickbay_tenant;

-- Which login role sees which namespace. Only the owner writes here.
CREATE TABLE IF NOT EXISTS tenant_namespace (
    role_name text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    CONSTRAINT pk_tenant_namespace PRIMARY KEY (role_name, namespace)
);
REVOKE ALL ON tenant_namespace FROM PUBLIC, sickbay_migrator, sickbay_projector, sickbay_auditor, sickbay_tenant;

-- The auditor reads everything; views check the rights of who asks, and a proof needs the bytes of the log.
GRANT SELECT ON ALL TABLES IN SCHEMA sickbay TO sickbay_auditor, sickbay_projector;
GRANT SELECT ON alembic_version TO sickbay_migrator;

-- The projector appends to the log and to what was parked, and changes positions and read models.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_class
        WHERE relnamespace = 'sickbay'::regnamespace AND relkind IN ('r', 'p')
          AND relname NOT IN ('alembic_version', 'tenant_namespace')
    LOOP
        IF name IN ('event_log', 'parked') THEN
            EXECUTE format('GRANT INSERT ON sickbay.%I TO sickbay_projector', name);
        ELSE
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON sickbay.%I TO sickbay_projector', name);
        END IF;
    END LOOP;
END
$$;

-- Row security for every table whose rows belong to a namespace. The policies ask who the current user is, and nothing that a
-- session can set; they hold for the owner of the table and through views of any owner too, because the user does not change
-- there. A superuser and a role with BYPASSRLS pass them.
DO $$
DECLARE
    name text;
    staff constant text :=
        '(SELECT pg_has_role(current_user, ''sickbay_owner'', ''USAGE'')'
        ' OR pg_has_role(current_user, ''sickbay_projector'', ''USAGE'')'
        ' OR pg_has_role(current_user, ''sickbay_auditor'', ''USAGE''))';
    tenant text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_class AS class
        WHERE relnamespace = 'sickbay'::regnamespace AND relkind IN ('r', 'p')
          AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = class.oid AND attname = 'namespace' AND NOT attisdropped)
    LOOP
        IF name = 'tenant_namespace' THEN
            tenant := 'role_name = current_user';
        ELSE
            tenant := 'namespace IN (SELECT own.namespace FROM sickbay.tenant_namespace AS own WHERE own.role_name = current_user)';
        END IF;
        EXECUTE format('ALTER TABLE sickbay.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE sickbay.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('DROP POLICY IF EXISTS staff ON sickbay.%I', name);
        EXECUTE format('CREATE POLICY staff ON sickbay.%I USING (%s) WITH CHECK (%s)', name, staff, staff);
        EXECUTE format('DROP POLICY IF EXISTS tenant ON sickbay.%I', name);
        EXECUTE format('CREATE POLICY tenant ON sickbay.%I FOR SELECT USING (%s)', name, tenant);
    END LOOP;
END
$$;
GRANT SELECT ON tenant_namespace TO sickbay_tenant;
