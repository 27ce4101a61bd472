-- Data keys of encryption, each wrapped by a key that is kept elsewhere. The one of the store itself
-- (tenant '') may be read by all: it says that the store is encrypted, and seals nothing of anybody.
CREATE TABLE @.keys (
    tenant text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    key_id text COLLATE "C" NOT NULL,
    wrapped bytea NOT NULL,
    wrapped_by text COLLATE "C" NOT NULL,
    created_at_us bigint NOT NULL,
    PRIMARY KEY (tenant, scope, number)
);
ALTER TABLE @.keys ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON @.keys USING (tenant = '' OR @.may_see(tenant)) WITH CHECK (@.may_see(tenant));
CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.keys
    FOR EACH STATEMENT WHEN (current_setting('perdure.guard', true) = 'on') EXECUTE FUNCTION @.refuse();
