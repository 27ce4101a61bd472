-- Parts of large values, named by the SHA-256 of what they hold. Packed already, and often read whole:
-- no compression, and no row is ever changed.
CREATE TABLE @.pages (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    at_us bigint NOT NULL,
    PRIMARY KEY (tenant, hash)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
ALTER TABLE @.pages ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE @.pages ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON @.pages USING (@.may_see(tenant)) WITH CHECK (@.may_see(tenant));
CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.pages
    FOR EACH STATEMENT WHEN (current_setting('perdure.guard', true) = 'on') EXECUTE FUNCTION @.refuse();

-- pages: [[[offset, length] of the hash, of the body], ...], in the order of the hashes.
CREATE FUNCTION @.put_pages(of_tenant text, pages jsonb, blob bytea, at bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO @.pages (tenant, hash, body, at_us)
        SELECT of_tenant, @.cut(blob, p->0), @.cut(blob, p->1), at FROM jsonb_array_elements(pages) AS p
    ON CONFLICT (tenant, hash) DO NOTHING
$$;

CREATE OR REPLACE FUNCTION @.apply(r @.runs, c jsonb, blob bytea, at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CASE c->>'type'
    WHEN 'released' THEN PERFORM @.release(r, c, blob, at);
    WHEN 'ended' THEN PERFORM @.finish(r, c, blob);
    WHEN 'effect' THEN PERFORM @.put_effect(r, c, blob);
    WHEN 'ask' THEN PERFORM @.put_ask(r, c, blob);
    WHEN 'progressed' THEN
        UPDATE @.runs SET claims = 1,
            lease_until_us = greatest(lease_until_us, (c->>'lease_until_us')::bigint),
            ready_at_us = CASE WHEN status = 'running'
                THEN least(ready_at_us, (c->>'lease_until_us')::bigint)
                ELSE (c->>'lease_until_us')::bigint END
            WHERE tenant = r.tenant AND run_id = r.run_id;
    WHEN 'ask_closed' THEN
        UPDATE @.asks SET state = c->>'state', answered_at_us = (c->>'at_us')::bigint
            WHERE tenant = r.tenant AND run_id = r.run_id AND ask_id = c->>'ask_id'
                AND state = 'open';
    WHEN 'mail_taken' THEN
        DELETE FROM @.mail WHERE tenant = r.tenant AND run_id = r.run_id AND mail_id IN (SELECT m::bigint FROM jsonb_array_elements_text(c->'mail_ids') AS m);
    WHEN 'mail_posted' THEN PERFORM @.deliver(c->'mail', blob);
    WHEN 'spawned' THEN PERFORM @.spawn(c->'run', blob);
    WHEN 'based' THEN
        UPDATE @.threads SET base_seq = (c->>'seq')::bigint, base_ordinal = r.ordinal
            WHERE tenant = r.tenant AND thread = r.thread;
    WHEN 'pages' THEN PERFORM @.put_pages(r.tenant, c->'pages', blob, at);
    END CASE;
END
$$;
