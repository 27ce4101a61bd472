-- What is kept of the past: where whole copies of states are, names of checkpoints, how much room tenants
-- may take, and which collections of pages are under way.
CREATE TABLE @.copies (
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    made_at bigint NOT NULL,
    ordinal bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (tenant, thread, made_at)
);
ALTER TABLE @.threads ADD COLUMN pruned_at_us bigint NOT NULL DEFAULT 0;
CREATE TABLE @.tags (
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    checkpoint bigint NOT NULL,
    by text NOT NULL,
    at_us bigint NOT NULL,
    PRIMARY KEY (tenant, thread, name)
);
CREATE TABLE @.quotas (
    tenant text COLLATE "C" PRIMARY KEY,
    bytes_max bigint NOT NULL,
    set_at_us bigint NOT NULL
);
CREATE TABLE @.collections (
    tenant text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    is_under_way boolean NOT NULL
);
CREATE TABLE @.marked (
    tenant text COLLATE "C" NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant, hash)
);
DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['copies', 'tags', 'quotas', 'collections', 'marked'] LOOP
        EXECUTE format('ALTER TABLE @.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY of_tenant ON @.%I USING (@.may_see(tenant)) WITH CHECK (@.may_see(tenant))',
            name);
        EXECUTE format(
            'CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.%I '
            'FOR EACH STATEMENT WHEN (current_setting(''perdure.guard'', true) = ''on'') '
            'EXECUTE FUNCTION @.refuse()', name);
    END LOOP;
END
$do$;

-- Held shared by whoever puts pages of a tenant, until its commit; held alone by what a collection does.
CREATE FUNCTION @.pages_lock(of_tenant text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('perdure.pages.@.' || of_tenant, 0::bigint)
$$;

-- The lock comes first: what is read after it is as whoever held it alone has left it.
CREATE OR REPLACE FUNCTION @.put_pages(of_tenant text, pages jsonb, blob bytea, at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@.pages_lock(of_tenant));
    IF EXISTS (SELECT FROM @.collections AS c WHERE c.tenant = of_tenant AND c.is_under_way) THEN
        INSERT INTO @.marked (tenant, hash)
            SELECT of_tenant, @.cut(blob, p->0) FROM jsonb_array_elements(pages) AS p
        ON CONFLICT (tenant, hash) DO NOTHING;
    END IF;
    INSERT INTO @.pages (tenant, hash, body, at_us)
        SELECT of_tenant, @.cut(blob, p->0), @.cut(blob, p->1), at FROM jsonb_array_elements(pages) AS p
    ON CONFLICT (tenant, hash) DO NOTHING;
END
$$;

-- Starts with the pages that their first records refer to, in one transaction: no collection comes
-- between. paged: [[tenant, pages as of put_pages], ...]
CREATE FUNCTION @.start_paged(runs jsonb, blob bytea, paged jsonb, at bigint)
RETURNS TABLE (outcome text, cancelled text[], run @.runs) LANGUAGE plpgsql AS $$
DECLARE
    each jsonb;
BEGIN
    RETURN QUERY SELECT * FROM @.start(runs, blob);
    -- After the threads, as in an append.
    FOR each IN SELECT * FROM jsonb_array_elements(paged) LOOP
        PERFORM @.put_pages(each->>0, each->1, blob, at);
    END LOOP;
END
$$;

-- Who waits for a lock alone keeps others from coming after: not for longer than it takes a server to
-- look for deadlocks.
CREATE FUNCTION @.lock_pages(of_tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '300ms', true);
    PERFORM pg_advisory_xact_lock(@.pages_lock(of_tenant));
END
$$;

CREATE FUNCTION @.end_collection(of_tenant text) RETURNS void LANGUAGE sql AS $$
    UPDATE @.collections SET is_under_way = false WHERE tenant = of_tenant AND is_under_way;
    DELETE FROM @.marked WHERE tenant = of_tenant;
$$;

-- When it returns, whoever put pages before has committed, and whoever puts any from now on marks them.
CREATE FUNCTION @.begin_collection(of_tenant text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    begun bigint;
BEGIN
    PERFORM @.lock_pages(of_tenant);
    PERFORM @.end_collection(of_tenant);
    INSERT INTO @.collections AS c (tenant, number, is_under_way) VALUES (of_tenant, 1, true)
        ON CONFLICT (tenant) DO UPDATE SET number = c.number + 1, is_under_way = true
        RETURNING c.number INTO begun;
    RETURN begun;
END
$$;

-- Gives how many pages it removed; null: the collection is over.
CREATE FUNCTION @.drop_pages(of_tenant text, of_number bigint, names bytea[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint;
BEGIN
    PERFORM @.lock_pages(of_tenant);
    PERFORM FROM @.collections AS c
        WHERE c.tenant = of_tenant AND c.number = of_number AND c.is_under_way FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM @.pages AS p WHERE p.tenant = of_tenant AND p.hash = ANY (names)
        AND NOT EXISTS (SELECT FROM @.marked AS m WHERE m.tenant = of_tenant AND m.hash = p.hash);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    RETURN dropped;
END
$$;

-- frames: [[first_seq, [offset, length] of hash, of body], ...]; effects: [[id, of request, of result or
-- null], ...]; seen: [[name, checkpoint], ...]; noted: [[made_at, ordinal, seq], ...]. Gives how many frames it erased, or why none.
CREATE FUNCTION @.erase(
    of_tenant text, of_thread text, of_run text, at bigint, frames jsonb, effects jsonb, seen jsonb,
    noted jsonb, blob bytea, OUT count bigint, OUT reason text
) LANGUAGE plpgsql AS $$
DECLARE
    r @.runs;
BEGIN
    -- Before the tags are looked at: who sets one holds it too.
    PERFORM FROM @.threads AS t WHERE t.tenant = of_tenant AND t.thread = of_thread FOR UPDATE;
    SELECT * INTO r FROM @.runs AS x WHERE x.tenant = of_tenant AND x.run_id = of_run;
    IF NOT FOUND THEN
        reason := 'there is no such run';
    ELSIF r.status NOT IN ('succeeded', 'failed', 'cancelled') THEN
        reason := 'the run has not ended';
    ELSIF (SELECT coalesce(jsonb_agg(jsonb_build_array(t.name, t.checkpoint) ORDER BY t.name), '[]')
            FROM @.tags AS t WHERE t.tenant = of_tenant AND t.thread = of_thread) <> seen THEN
        reason := 'the thread''s tags have changed';
    ELSIF EXISTS (SELECT FROM jsonb_array_elements(frames) AS e LEFT JOIN @.frames AS f
            ON f.tenant = of_tenant AND f.run_id = of_run AND f.first_seq = (e->>0)::bigint
                AND f.hash = @.cut(blob, e->1) WHERE f.run_id IS NULL) THEN
        reason := 'the journal is not what was read';
    END IF;
    IF reason IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE @.frames AS f SET body = @.cut(blob, e->2) FROM jsonb_array_elements(frames) AS e
        WHERE f.tenant = of_tenant AND f.run_id = of_run AND f.first_seq = (e->>0)::bigint
            AND f.body <> @.cut(blob, e->2);
    GET DIAGNOSTICS count = ROW_COUNT;
    INSERT INTO @.copies (tenant, thread, made_at, ordinal, seq)
        SELECT of_tenant, of_thread, (e->>0)::bigint, (e->>1)::bigint, (e->>2)::bigint
        FROM jsonb_array_elements(noted) AS e
    ON CONFLICT (tenant, thread, made_at) DO NOTHING;
    DELETE FROM @.copies AS c USING jsonb_array_elements(frames) AS e, @.frames AS f
        WHERE c.tenant = of_tenant AND c.thread = of_thread AND c.ordinal = r.ordinal
            AND f.tenant = of_tenant AND f.run_id = of_run AND f.first_seq = (e->>0)::bigint
            AND c.seq >= f.first_seq AND c.seq < f.first_seq + f.count;
    UPDATE @.effects AS x SET request_wire = @.cut(blob, e->1), result_wire = @.cut(blob, e->2)
        FROM jsonb_array_elements(effects) AS e
        WHERE x.tenant = of_tenant AND x.run_id = of_run AND x.effect_id = e->>0;
    PERFORM @.end_collection(of_tenant);
    UPDATE @.threads SET pruned_at_us = at WHERE tenant = of_tenant AND thread = of_thread;
END
$$;

CREATE FUNCTION @.put_tag(of_tenant text, of_thread text, tag text, to_checkpoint bigint, who text, at bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @.threads AS t WHERE t.tenant = of_tenant AND t.thread = of_thread FOR UPDATE;
    INSERT INTO @.tags (tenant, thread, name, checkpoint, by, at_us)
        VALUES (of_tenant, of_thread, tag, to_checkpoint, who, at)
    ON CONFLICT (tenant, thread, name) DO UPDATE
        SET checkpoint = excluded.checkpoint, by = excluded.by, at_us = excluded.at_us;
END
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
        IF (c->>'made_at')::bigint > 0 THEN
            INSERT INTO @.copies (tenant, thread, made_at, ordinal, seq)
                VALUES (r.tenant, r.thread, (c->>'made_at')::bigint, r.ordinal, (c->>'seq')::bigint)
            ON CONFLICT (tenant, thread, made_at) DO UPDATE
                SET ordinal = excluded.ordinal, seq = excluded.seq;
        END IF;
    WHEN 'pages' THEN PERFORM @.put_pages(r.tenant, c->'pages', blob, at);
    END CASE;
END
$$;
