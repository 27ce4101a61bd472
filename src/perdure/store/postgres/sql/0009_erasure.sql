-- Whom threads are about, what was erased of them, and what was exported.
ALTER TABLE @.threads ADD COLUMN erased bigint NOT NULL DEFAULT 0,
    ADD COLUMN subject text COLLATE "C";
CREATE INDEX threads_subject ON @.threads (tenant, subject, thread) WHERE subject IS NOT NULL;

CREATE TABLE @.erasures (
    erasure_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    threads bytea NOT NULL,
    subject text COLLATE "C" NOT NULL,
    by_whom text COLLATE "C" NOT NULL,
    begun_at_us bigint NOT NULL,
    ended_at_us bigint,
    PRIMARY KEY (tenant, erasure_id)
);
CREATE UNIQUE INDEX erasures_id ON @.erasures (erasure_id);
CREATE TABLE @.exports (
    export_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    made_at_us bigint NOT NULL,
    signed_by text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, export_id)
);
CREATE UNIQUE INDEX exports_id ON @.exports (export_id);
ALTER TABLE @.erasures ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON @.erasures USING (@.may_see(tenant)) WITH CHECK (@.may_see(tenant));
ALTER TABLE @.exports ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON @.exports USING (@.may_see(tenant)) WITH CHECK (@.may_see(tenant));
CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.erasures
    FOR EACH STATEMENT WHEN (current_setting('perdure.guard', true) = 'on') EXECUTE FUNCTION @.refuse();
CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @.exports
    FOR EACH STATEMENT WHEN (current_setting('perdure.guard', true) = 'on') EXECUTE FUNCTION @.refuse();

-- Says whom the thread of a run is about, if nobody has said it.
CREATE FUNCTION @.name_subject(run jsonb, about text) RETURNS void LANGUAGE sql AS $$
    UPDATE @.threads SET subject = about
        WHERE about IS NOT NULL AND tenant = run->>'tenant' AND thread = run->>'thread'
            AND subject IS NULL
$$;

-- Why a start is refused that an erasure, or the thread's subject, speaks against; its thread's row
-- is locked. NULL: it is not.
CREATE FUNCTION @.refused_start(run jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    gone bigint;
    newest text;
    about text;
BEGIN
    IF run->>'origin' IS NOT NULL THEN
        SELECT t.erased INTO gone FROM @.threads AS t
            WHERE t.tenant = run->>'tenant' AND t.thread = run->>'origin' FOR SHARE;
        IF coalesce(gone, 0) <> (run->>'origin_erased')::bigint THEN
            RETURN 'origin';
        END IF;
    END IF;
    IF run->>'sealed_by' <> '' THEN
        SELECT k.key_id INTO newest FROM @.keys AS k
            WHERE k.tenant = run->>'tenant' AND k.scope = 'thread:' || (run->>'thread')
            ORDER BY k.number DESC LIMIT 1;
        IF newest IS DISTINCT FROM run->>'sealed_by' THEN
            RETURN 'key';
        END IF;
    END IF;
    IF run->>'subject' IS NOT NULL THEN
        SELECT t.subject INTO about FROM @.threads AS t
            WHERE t.tenant = run->>'tenant' AND t.thread = run->>'thread';
        IF about IS NOT NULL AND about <> run->>'subject' THEN
            RETURN 'subject:' || about;
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- Starts runs, as before; `outcome` may say why one is refused: 'origin', 'key', 'subject:...'.
CREATE OR REPLACE FUNCTION @.start(runs jsonb, blob bytea)
RETURNS TABLE (outcome text, cancelled text[], run @.runs) LANGUAGE plpgsql AS $$
DECLARE
    n jsonb;
    busy @.runs;
BEGIN
    PERFORM pg_advisory_xact_lock(k) FROM (
        SELECT DISTINCT hashtextextended('@' || (e->>'tenant') || chr(1) || (e->>'start_key'), 0::bigint) AS k
        FROM jsonb_array_elements(runs) AS e WHERE e->>'start_key' IS NOT NULL ORDER BY 1) AS keys;
    -- What is checked against an erasure waits for the thread's lock; a thread that is not there yet
    -- was never erased, so that its key need not be checked.
    IF @.are_fresh(runs) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(runs) AS e WHERE e->>'origin' IS NOT NULL)
    THEN
        RETURN QUERY SELECT 'created', ARRAY[]::text[], f FROM @.start_fresh(runs, blob) AS f;
        PERFORM @.name_subject(e, e->>'subject') FROM jsonb_array_elements(runs) AS e
            WHERE e->>'subject' IS NOT NULL;
        RETURN;
    END IF;
    PERFORM @.lock_threads(runs);
    FOR n IN SELECT e FROM jsonb_array_elements(runs) WITH ORDINALITY AS x(e, i) ORDER BY i LOOP
        cancelled := ARRAY[]::text[];
        SELECT * INTO run FROM @.runs AS k WHERE k.run_id = n->>'run_id';
        IF NOT FOUND AND n->>'start_key' IS NOT NULL THEN
            SELECT * INTO run FROM @.runs AS k
                WHERE k.tenant = n->>'tenant' AND k.start_key = n->>'start_key';
        END IF;
        IF FOUND THEN
            outcome := 'known';
            RETURN NEXT;
            CONTINUE;
        END IF;
        outcome := @.refused_start(n);
        IF outcome IS NOT NULL THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT * INTO busy FROM @.unfinished(n->>'tenant', n->>'thread') LIMIT 1;
        IF FOUND AND n->>'on_busy' = 'reject' THEN
            outcome := 'busy';
            run := busy;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF FOUND AND n->>'on_busy' = 'cancel' THEN
            SELECT coalesce(array_agg(c), '{}') INTO cancelled FROM @.cancel_all(n) AS c;
        END IF;
        outcome := 'created';
        run := @.insert_run(n, blob, busy.run_id IS NOT NULL);
        PERFORM @.name_subject(n, n->>'subject');
        RETURN NEXT;
    END LOOP;
END
$$;

-- A child's thread is about whom its parent's thread is about.
CREATE OR REPLACE FUNCTION @.spawn(run jsonb, blob bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_busy boolean;
BEGIN
    PERFORM FROM @.runs WHERE run_id = run->>'run_id';
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM @.lock_threads(jsonb_build_array(run));
    is_busy := EXISTS (SELECT FROM @.unfinished(run->>'tenant', run->>'thread'));
    IF is_busy AND run->>'on_busy' = 'cancel' THEN
        PERFORM @.cancel_all(run);
    END IF;
    PERFORM @.insert_run(run, blob, is_busy);
    PERFORM @.name_subject(run, coalesce(run->>'subject', (
        SELECT t.subject FROM @.runs AS p
        JOIN @.threads AS t ON t.tenant = p.tenant AND t.thread = p.thread
        WHERE p.run_id = run->>'parent')));
END
$$;

-- Locks the threads of an erasure, and gives the rows of those that are there.
CREATE FUNCTION @.lock_erased(of_tenant text, names text[]) RETURNS SETOF @.threads
LANGUAGE sql AS $$
    SELECT t.* FROM @.threads AS t WHERE t.tenant = of_tenant AND t.thread = ANY (names)
        ORDER BY t.thread FOR UPDATE
$$;

-- Erases frames (firsts, bodies) of a run, and at last the rest; gives its ordinal and up to which
-- one its thread is erased: nothing was done unless the first is at most the second.
CREATE FUNCTION @.erase_run(target text, firsts bigint[], bodies bytea[], is_last boolean)
RETURNS TABLE (ordinal bigint, erased bigint) LANGUAGE plpgsql AS $$
DECLARE
    r @.runs%ROWTYPE;
BEGIN
    SELECT * INTO r FROM @.runs WHERE run_id = target FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    ordinal := r.ordinal;
    SELECT t.erased INTO erased FROM @.threads AS t WHERE t.tenant = r.tenant AND t.thread = r.thread;
    RETURN NEXT;
    IF ordinal > erased THEN
        RETURN;
    END IF;
    UPDATE @.frames AS f SET body = n.body FROM unnest(firsts, bodies) AS n(first_seq, body)
        WHERE f.tenant = r.tenant AND f.run_id = r.run_id AND f.first_seq = n.first_seq;
    IF is_last THEN
        DELETE FROM @.mail WHERE tenant = r.tenant AND run_id = r.run_id;
        DELETE FROM @.posts WHERE tenant = r.tenant AND run_id = r.run_id;
        DELETE FROM @.effects WHERE tenant = r.tenant AND run_id = r.run_id;
        DELETE FROM @.asks WHERE tenant = r.tenant AND run_id = r.run_id;
        UPDATE @.runs SET start_key = NULL, input_digest = '', waits = NULL, failure = NULL
            WHERE tenant = r.tenant AND run_id = r.run_id;
    END IF;
END
$$;
