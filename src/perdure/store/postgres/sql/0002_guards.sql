-- Row-level security by tenant, and a guard around the statements of `transaction` effects.
DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['runs', 'threads', 'frames', 'mail', 'posts', 'effects', 'asks',
        'schedules']
    LOOP
        EXECUTE format('ALTER TABLE @.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY of_tenant ON @.%I USING (@.may_see(tenant)) WITH CHECK (@.may_see(tenant))',
            name);
    END LOOP;
END
$do$;

-- What concerns all tenants is the owner's alone: no policy lets anybody else in.
ALTER TABLE @.tenant_roles ENABLE ROW LEVEL SECURITY;
ALTER TABLE @.limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE @.buckets ENABLE ROW LEVEL SECURITY;
ALTER TABLE @.workers ENABLE ROW LEVEL SECURITY;
ALTER TABLE @.claim_turn ENABLE ROW LEVEL SECURITY;

-- While a user's statement runs, `perdure.guard` is on, and nothing but reads reaches these tables:
-- by whatever path (functions, triggers, search_path). It keeps mistakes out, not enemies: who is
-- connected as the owner may do anything.
CREATE FUNCTION @.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a transaction effect may not write to Perdure''s own table %', TG_TABLE_NAME
        USING ERRCODE = 'PD001';
END
$$;
DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY
        ARRAY['runs', 'threads', 'frames', 'mail', 'posts', 'effects', 'asks', 'workers', 'limits',
            'buckets', 'schedules', 'tenant_roles']
    LOOP
        EXECUTE format(
            'CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.%I '
            'FOR EACH STATEMENT WHEN (current_setting(''perdure.guard'', true) = ''on'') '
            'EXECUTE FUNCTION @.refuse()', name);
    END LOOP;
END
$do$;
