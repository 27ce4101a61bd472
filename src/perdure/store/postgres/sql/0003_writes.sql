-- The writes, one function each: one call, one round trip, one transaction.
--
-- Every function takes its locks in one order, so that two of them can't wait for each other in a
-- circle: start keys, threads, runs, each sorted by name; then whatever hangs on a run. What must
-- break that order (a child on a thread that exists) may deadlock; the server ends one of the two,
-- which has then written nothing and is called again.
--
-- Byte strings come in one `blob`; `[offset, length]` in the JSON names a piece of it.
-- The rules are those of `store/_rules.py`; tests compare both.

CREATE FUNCTION @.cut(blob bytea, piece jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(piece) = 'array'
        THEN substring(blob FROM (piece->>0)::int + 1 FOR (piece->>1)::int) END
$$;

-- -- messages -------------------------------------------------------------------------------------

-- Whether a posting was stored before; one that is unread is known for as long as it is.
CREATE FUNCTION @.is_posted(target text, of_post text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT of_post <> '' AND (
        EXISTS (
            SELECT FROM @.runs AS r
            JOIN @.posts AS p ON p.tenant = r.tenant AND p.run_id = r.run_id AND p.post_id = of_post
            WHERE r.run_id = target)
        OR EXISTS (
            SELECT FROM @.runs AS r
            JOIN @.mail AS m ON m.tenant = r.tenant AND m.run_id = r.run_id AND m.post_id = of_post
            WHERE r.run_id = target))
$$;

-- Stores a message and wakes its run; NULL where there is no such run, else whether it was taken.
CREATE FUNCTION @.deliver(
    target text, m_kind text, m_subject text, m_body bytea, m_sender text, m_at bigint, m_post text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r @.runs%ROWTYPE;
BEGIN
    SELECT * INTO r FROM @.runs WHERE run_id = target FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF r.status IN ('succeeded', 'failed', 'cancelled') THEN
        RETURN false;
    END IF;
    IF m_post <> '' THEN
        IF @.is_posted(target, m_post) THEN
            RETURN true;
        END IF;
        INSERT INTO @.posts VALUES (r.tenant, r.run_id, m_post, m_at) ON CONFLICT DO NOTHING;
        -- A few old ones for each new one; some that others are at must not be waited for.
        DELETE FROM @.posts AS p USING (
            SELECT o.tenant, o.run_id, o.post_id FROM @.posts AS o
            WHERE o.at_us < m_at - 600000000 ORDER BY o.at_us LIMIT 20 FOR UPDATE SKIP LOCKED) AS o
            WHERE p.tenant = o.tenant AND p.run_id = o.run_id AND p.post_id = o.post_id;
    END IF;
    INSERT INTO @.mail (tenant, run_id, mail_id, kind, subject, body_wire, sender, at_us, post_id)
        VALUES (r.tenant, r.run_id, nextval('@.mail_ids'::regclass), m_kind, m_subject, m_body, m_sender, m_at,
                m_post);
    IF (r.status = 'waiting'
        OR r.status = 'needs_decision' AND m_kind IN ('decision', 'retry', 'cancel')
        OR r.status = 'pending' AND m_kind = 'cancel' AND NOT r.is_queued
    ) AND (r.ready_at_us IS NULL OR r.ready_at_us > m_at) THEN
        UPDATE @.runs SET ready_at_us = m_at WHERE tenant = r.tenant AND run_id = r.run_id;
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION @.deliver(mail jsonb, blob bytea) RETURNS boolean LANGUAGE sql AS $$
    SELECT @.deliver(mail->>'run_id', mail->>'kind', mail->>'subject', @.cut(blob, mail->'body_wire'),
        mail->>'sender', (mail->>'at_us')::bigint, coalesce(mail->>'post_id', ''))
$$;

-- Gives whether the posting was stored before, what became of it now, and the run's row.
CREATE FUNCTION @.post(mail jsonb, blob bytea)
RETURNS TABLE (is_repeat boolean, run @.runs) LANGUAGE plpgsql AS $$
BEGIN
    is_repeat := @.is_posted(mail->>'run_id', mail->>'post_id');
    PERFORM @.deliver(mail, blob);
    SELECT * INTO run FROM @.runs AS r WHERE r.run_id = mail->>'run_id';
    IF FOUND THEN
        RETURN NEXT;
    END IF;
END
$$;

CREATE FUNCTION @.answer(id text, value bytea, who text, at bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    a @.asks%ROWTYPE;
    whose text;
BEGIN
    SELECT run_id INTO whose FROM @.asks WHERE ask_id = id;
    PERFORM FROM @.runs WHERE run_id = whose FOR UPDATE;
    SELECT * INTO a FROM @.asks WHERE ask_id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF a.state <> 'open' OR a.expires_at_us <= at THEN
        -- The same answer once more: the first time its confirmation was lost.
        RETURN a.state = 'answered' AND a.value_wire = value AND a.answered_by = who
            AND a.answered_at_us = at;
    END IF;
    UPDATE @.asks SET state = 'answered', value_wire = value, answered_by = who, answered_at_us = at
        WHERE tenant = a.tenant AND run_id = a.run_id AND ask_id = id;
    PERFORM @.deliver(a.run_id, 'answer', id, value, who, at, '');
    RETURN true;
END
$$;

CREATE FUNCTION @.expire(id text, at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @.asks SET state = 'expired', answered_at_us = at WHERE ask_id = id AND state = 'open';
    RETURN FOUND;
END
$$;

CREATE FUNCTION @.decide(
    id text, what text, who text, at bigint, body bytea, post text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    e @.effects%ROWTYPE;
    whose text;
BEGIN
    SELECT run_id INTO whose FROM @.effects WHERE effect_id = id;
    PERFORM FROM @.runs WHERE run_id = whose FOR UPDATE;
    SELECT * INTO e FROM @.effects WHERE effect_id = id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF @.is_posted(whose, post) THEN
        RETURN true;  -- before all else: the effect may be uncertain once more
    END IF;
    IF e.state <> 'uncertain' OR e.decision IS NOT NULL THEN
        RETURN false;
    END IF;
    UPDATE @.effects SET decision = what, decided_by = who, changed_at_us = at
        WHERE tenant = e.tenant AND run_id = e.run_id AND effect_id = id;
    PERFORM @.deliver(e.run_id, 'decision', id, body, who, at, post);
    RETURN true;
END
$$;

-- -- starting -------------------------------------------------------------------------------------

-- Inserts a run as the newest of its thread, whose row is locked, with its first frame.
CREATE FUNCTION @.insert_run(run jsonb, blob bytea, is_busy boolean) RETURNS @.runs
LANGUAGE plpgsql AS $$
DECLARE
    t @.threads%ROWTYPE;
    r @.runs;
    created bigint := (run->>'created_at_us')::bigint;
    ready bigint := (run->>'ready_at_us')::bigint;
    is_due boolean := ready <= created;
    -- A run that a limit counts waits for a claim.
    is_taken boolean := NOT is_busy AND is_due AND run->>'take_for' IS NOT NULL AND NOT EXISTS (
        SELECT FROM @.limits AS l WHERE l.tenant IN ('', '*', run->>'tenant')
            AND l.graph IN ('', run->>'graph'));
BEGIN
    UPDATE @.threads SET last_ordinal = last_ordinal + 1
        WHERE tenant = run->>'tenant' AND thread = run->>'thread' RETURNING * INTO t;
    INSERT INTO @.runs (run_id, tenant, thread, ordinal, graph, version, status, token, holder,
            ready_at_us, lease_until_us, waits, is_queued, queued_until_us, priority, claims, last_seq,
            base_checkpoint, checkpoint, start_key, input_digest, parent, parent_call, created_at_us)
        VALUES (run->>'run_id', t.tenant, t.thread, t.last_ordinal, run->>'graph',
            (run->>'version')::bigint, CASE WHEN is_taken THEN 'running' ELSE 'pending' END,
            is_taken::int, CASE WHEN is_taken THEN run->>'take_for' END,
            CASE WHEN is_busy THEN NULL WHEN is_taken THEN (run->>'lease_until_us')::bigint
                ELSE greatest(ready, created) END,
            CASE WHEN is_taken THEN (run->>'lease_until_us')::bigint END,
            CASE WHEN is_busy THEN @.cut(blob, run->'queue_waits') END, is_busy,
            CASE WHEN is_busy AND NOT is_due THEN ready END, (run->>'priority')::bigint, is_taken::int,
            1, t.checkpoint, 0, run->>'start_key', run->>'input_digest', run->>'parent',
            run->>'parent_call', created)
        RETURNING * INTO r;
    INSERT INTO @.frames VALUES (t.tenant, r.run_id, 1, 1, 0, created, @.cut(blob, run->'first_body'),
        decode(repeat('00', 32), 'hex'), @.cut(blob, run->'first_hash'));
    RETURN r;
END
$$;

CREATE FUNCTION @.unfinished(of_tenant text, of_thread text) RETURNS SETOF @.runs
LANGUAGE sql STABLE ROWS 2 AS $$
    -- Runs of a thread end in the order of their ordinals, so the unfinished ones are the newest.
    SELECT r.* FROM @.runs AS r
    WHERE r.tenant = of_tenant AND r.thread = of_thread AND r.ordinal > coalesce((
        SELECT max(f.ordinal) FROM @.runs AS f WHERE f.tenant = of_tenant AND f.thread = of_thread
            AND f.status IN ('succeeded', 'failed', 'cancelled')), 0)
    ORDER BY r.ordinal
$$;

-- Asks every unfinished run of the thread to cancel.
CREATE FUNCTION @.cancel_all(run jsonb) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    other text;
BEGIN
    FOR other IN
        SELECT run_id FROM @.unfinished(run->>'tenant', run->>'thread') ORDER BY ordinal
    LOOP
        PERFORM @.deliver(other, 'cancel', '', decode('c0', 'hex'), '', (run->>'created_at_us')::bigint, '');
        RETURN NEXT other;
    END LOOP;
END
$$;

CREATE FUNCTION @.lock_threads(runs jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Nothing is updated where the row exists: the lock alone is wanted.
    INSERT INTO @.threads (tenant, thread, last_ordinal)
        SELECT DISTINCT e->>'tenant', e->>'thread', 0 FROM jsonb_array_elements(runs) AS e
        ORDER BY 1, 2
        ON CONFLICT (tenant, thread) DO NOTHING;
    PERFORM FROM @.threads AS t
        WHERE (t.tenant, t.thread) IN (
            SELECT e->>'tenant', e->>'thread' FROM jsonb_array_elements(runs) AS e)
        ORDER BY t.tenant, t.thread FOR UPDATE;
END
$$;

-- Whether nothing of these runs is known: no run, key or thread of theirs, also not among themselves.
CREATE FUNCTION @.are_fresh(runs jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT count(DISTINCT n.run_id) = count(*)
            AND count(DISTINCT (n.tenant, n.thread)) = count(*)
            AND count(DISTINCT (n.tenant, n.start_key)) FILTER (WHERE n.start_key IS NOT NULL)
                = count(n.start_key)
            AND bool_and(NOT EXISTS (SELECT FROM @.runs AS r WHERE r.run_id = n.run_id))
            AND bool_and(NOT EXISTS (
                SELECT FROM @.threads AS t WHERE t.tenant = n.tenant AND t.thread = n.thread))
            AND bool_and(n.start_key IS NULL OR NOT EXISTS (
                SELECT FROM @.runs AS r WHERE r.tenant = n.tenant AND r.start_key = n.start_key))
        FROM (
            SELECT e->>'run_id' AS run_id, e->>'tenant' AS tenant, e->>'thread' AS thread,
                e->>'start_key' AS start_key FROM jsonb_array_elements(runs) AS e) AS n);
END
$$;

-- Starts runs of which nothing is known, all with one statement: the rules are those of `insert_run`
-- on a thread without runs. Another start of the same thread at the same moment makes one of the two
-- fail by a unique index, and be called again.
CREATE FUNCTION @.start_fresh(runs jsonb, blob bytea) RETURNS SETOF @.runs LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH fresh AS MATERIALIZED (
            SELECT n.*, n.ready <= n.created AND n.take_for IS NOT NULL AND NOT EXISTS (
                SELECT FROM @.limits AS l WHERE l.tenant IN ('', '*', n.tenant)
                    AND l.graph IN ('', n.graph)) AS is_taken
            FROM (
                SELECT i, e, e->>'run_id' AS run_id, e->>'tenant' AS tenant, e->>'thread' AS thread,
                    e->>'graph' AS graph, e->>'take_for' AS take_for,
                    (e->>'created_at_us')::bigint AS created, (e->>'ready_at_us')::bigint AS ready,
                    (e->>'lease_until_us')::bigint AS until
                FROM jsonb_array_elements(runs) WITH ORDINALITY AS x(e, i)) AS n
        ), line AS (
            INSERT INTO @.threads (tenant, thread, last_ordinal)
                SELECT f.tenant, f.thread, 1 FROM fresh AS f ORDER BY 1, 2
        ), first AS (
            INSERT INTO @.frames
                SELECT f.tenant, f.run_id, 1, 1, 0, f.created, @.cut(blob, f.e->'first_body'),
                    decode(repeat('00', 32), 'hex'), @.cut(blob, f.e->'first_hash') FROM fresh AS f
        ), made AS (
            INSERT INTO @.runs AS r (run_id, tenant, thread, ordinal, graph, version, status, token,
                    holder, ready_at_us, lease_until_us, is_queued, priority, claims, last_seq,
                    base_checkpoint, checkpoint, start_key, input_digest, parent, parent_call,
                    created_at_us)
                SELECT f.run_id, f.tenant, f.thread, 1, f.graph, (f.e->>'version')::bigint,
                    CASE WHEN f.is_taken THEN 'running' ELSE 'pending' END, f.is_taken::int,
                    CASE WHEN f.is_taken THEN f.take_for END,
                    CASE WHEN f.is_taken THEN f.until ELSE greatest(f.ready, f.created) END,
                    CASE WHEN f.is_taken THEN f.until END, false, (f.e->>'priority')::bigint,
                    f.is_taken::int, 1, 0, 0, f.e->>'start_key', f.e->>'input_digest',
                    f.e->>'parent', f.e->>'parent_call', f.created
                FROM fresh AS f ORDER BY f.i
                RETURNING r.*
        )
        SELECT m.* FROM made AS m ORDER BY m.run_no;
END
$$;

-- Starts runs; gives for each, in order: what became of it, the cancelled, and a run's row (its own,
-- the first of its key, or the one that the thread is busy with).
CREATE FUNCTION @.start(runs jsonb, blob bytea)
RETURNS TABLE (outcome text, cancelled text[], run @.runs) LANGUAGE plpgsql AS $$
DECLARE
    n jsonb;
    busy @.runs;
BEGIN
    PERFORM pg_advisory_xact_lock(k) FROM (
        SELECT DISTINCT hashtextextended('@' || (e->>'tenant') || chr(1) || (e->>'start_key'), 0::bigint) AS k
        FROM jsonb_array_elements(runs) AS e WHERE e->>'start_key' IS NOT NULL ORDER BY 1) AS keys;
    IF @.are_fresh(runs) THEN
        RETURN QUERY SELECT 'created', ARRAY[]::text[], f FROM @.start_fresh(runs, blob) AS f;
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
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE FUNCTION @.spawn(run jsonb, blob bytea) RETURNS void LANGUAGE plpgsql AS $$
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
END
$$;

-- -- appends --------------------------------------------------------------------------------------

CREATE FUNCTION @.move_thread(of_tenant text, of_thread text, to_checkpoint bigint, by_graph text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF to_checkpoint > 0 THEN
        UPDATE @.threads SET checkpoint = to_checkpoint, graph = by_graph
            WHERE tenant = of_tenant AND thread = of_thread AND checkpoint <= to_checkpoint;
    END IF;
END
$$;

CREATE FUNCTION @.release(r @.runs, c jsonb, blob bytea, at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wakes boolean;
    reached bigint := (c->>'checkpoint')::bigint;
BEGIN
    wakes := EXISTS (
        SELECT FROM @.mail WHERE tenant = r.tenant AND run_id = r.run_id AND mail_id > (c->>'mail_seen')::bigint
            AND (c->>'status' <> 'needs_decision' OR kind IN ('decision', 'retry', 'cancel')));
    UPDATE @.runs SET status = c->>'status', waits = @.cut(blob, c->'waits'),
        is_queued = (c->>'is_queued')::boolean, queued_until_us = (c->>'queued_until_us')::bigint,
        ready_at_us = CASE WHEN wakes THEN at ELSE (c->>'ready_at_us')::bigint END,
        lease_until_us = NULL, failure = @.cut(blob, c->'failure'),
        checkpoint = greatest(checkpoint, reached), holder = NULL,
        claims = CASE WHEN (c->>'keep_claims')::boolean THEN claims ELSE 0 END,
        version = coalesce((c->>'version')::bigint, version)
        WHERE tenant = r.tenant AND run_id = r.run_id;
    PERFORM @.move_thread(r.tenant, r.thread, reached, r.graph);
END
$$;

CREATE FUNCTION @.finish(r @.runs, c jsonb, blob bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    at bigint := (c->>'at_us')::bigint;
    reached bigint := (c->>'checkpoint')::bigint;
    has_mail boolean;
    has_asks boolean;
    next_run text;
BEGIN
    UPDATE @.runs SET status = c->>'status', failure = @.cut(blob, c->'failure'),
        checkpoint = greatest(checkpoint, reached), ended_at_us = at, holder = NULL, waits = NULL,
        is_queued = false, queued_until_us = NULL, ready_at_us = NULL, lease_until_us = NULL
        WHERE tenant = r.tenant AND run_id = r.run_id;
    PERFORM @.move_thread(r.tenant, r.thread, reached, r.graph);
    -- Most runs leave nothing behind: one look is cheaper than three writes of no row.
    SELECT EXISTS (SELECT FROM @.mail WHERE tenant = r.tenant AND run_id = r.run_id),
        EXISTS (SELECT FROM @.asks WHERE tenant = r.tenant AND run_id = r.run_id AND state = 'open'),
        (SELECT q.run_id FROM @.runs AS q
         WHERE q.tenant = r.tenant AND q.thread = r.thread AND q.ordinal > r.ordinal
            AND q.status = 'pending' AND q.is_queued ORDER BY q.ordinal LIMIT 1)
        INTO has_mail, has_asks, next_run;
    IF has_mail THEN
        DELETE FROM @.mail WHERE tenant = r.tenant AND run_id = r.run_id;
    END IF;
    IF has_asks THEN
        UPDATE @.asks SET state = 'withdrawn', answered_at_us = at
            WHERE tenant = r.tenant AND run_id = r.run_id AND state = 'open';
    END IF;
    IF next_run IS NOT NULL THEN
        -- The thread's row is locked: no start can queue behind this run any more.
        UPDATE @.runs AS n SET waits = NULL, is_queued = false, queued_until_us = NULL,
            ready_at_us = greatest(at, n.queued_until_us), base_checkpoint = t.checkpoint
            FROM @.threads AS t
            WHERE t.tenant = r.tenant AND t.thread = r.thread
                AND n.tenant = r.tenant AND n.run_id = next_run;
    END IF;
    IF jsonb_typeof(c->'mail_to_parent') = 'object' AND EXISTS (
        SELECT FROM @.runs AS p WHERE p.tenant = r.tenant AND p.run_id = c->'mail_to_parent'->>'run_id'
    ) THEN
        PERFORM @.deliver(c->'mail_to_parent', blob);
    END IF;
END
$$;

-- Changes an effect that is known; gives whether it is.
CREATE FUNCTION @.change_effect(r @.runs, x jsonb, blob bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    reopens boolean := x->>'state' = 'intended' OR (x->>'reopens')::boolean;
BEGIN
    UPDATE @.effects AS e SET node = x->>'node', name = x->>'name', kind = x->>'kind',
        state = x->>'state', key = x->>'key', business_key = x->>'business_key',
        args_digest = x->>'args_digest', request_wire = @.cut(blob, x->'request_wire'),
        result_wire = @.cut(blob, x->'result_wire'), attempt = (x->>'attempt')::bigint,
        failure = @.cut(blob, x->'failure'), intended_at_us = (x->>'intended_at_us')::bigint,
        changed_at_us = (x->>'changed_at_us')::bigint,
        decision = CASE WHEN reopens THEN NULL ELSE e.decision END,
        decided_by = CASE WHEN reopens THEN NULL ELSE e.decided_by END
        WHERE e.tenant = r.tenant AND e.run_id = r.run_id AND e.effect_id = x->>'effect_id';
    RETURN FOUND;
END
$$;

-- The run's row is locked, so nobody else writes its effects: no ON CONFLICT, which would lock and
-- log each row once more.
CREATE FUNCTION @.put_effect(r @.runs, e jsonb, blob bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF e->>'state' <> 'intended' AND @.change_effect(r, e, blob) THEN
        RETURN;
    END IF;
    INSERT INTO @.effects (effect_id, run_id, tenant, thread, node, name, kind, state, key,
            business_key, args_digest, request_wire, result_wire, attempt, failure, intended_at_us,
            changed_at_us, decision, decided_by)
        SELECT e->>'effect_id', r.run_id, r.tenant, r.thread, e->>'node', e->>'name', e->>'kind',
            e->>'state', e->>'key', e->>'business_key', e->>'args_digest',
            @.cut(blob, e->'request_wire'), @.cut(blob, e->'result_wire'), (e->>'attempt')::bigint,
            @.cut(blob, e->'failure'), (e->>'intended_at_us')::bigint,
            (e->>'changed_at_us')::bigint, e->>'decision', e->>'decided_by'
        WHERE NOT EXISTS (
            SELECT FROM @.effects AS k WHERE k.tenant = r.tenant AND k.run_id = r.run_id
                AND k.effect_id = e->>'effect_id');
    IF NOT FOUND THEN
        PERFORM @.change_effect(r, e, blob);
    END IF;
END
$$;

CREATE FUNCTION @.put_ask(r @.runs, a jsonb, blob bytea) RETURNS void LANGUAGE sql AS $$
    INSERT INTO @.asks (ask_id, run_id, tenant, thread, node, question, schema, state, asked_at_us,
        expires_at_us, value_wire, answered_by, answered_at_us)
    VALUES (a->>'ask_id', r.run_id, r.tenant, r.thread, a->>'node', a->>'question',
        @.cut(blob, a->'schema'), a->>'state', (a->>'asked_at_us')::bigint,
        (a->>'expires_at_us')::bigint, @.cut(blob, a->'value_wire'), a->>'answered_by',
        (a->>'answered_at_us')::bigint)
    ON CONFLICT (tenant, run_id, ask_id) DO NOTHING
$$;

CREATE FUNCTION @.apply(r @.runs, c jsonb, blob bytea, at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CASE c->>'type'
    WHEN 'released' THEN PERFORM @.release(r, c, blob, at);
    WHEN 'ended' THEN PERFORM @.finish(r, c, blob);
    WHEN 'effect' THEN PERFORM @.put_effect(r, c, blob);
    WHEN 'ask' THEN PERFORM @.put_ask(r, c, blob);
    WHEN 'progressed' THEN
        UPDATE @.runs SET claims = 1, lease_until_us = (c->>'lease_until_us')::bigint,
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
    END CASE;
END
$$;

-- Writes the appends of different runs; gives a row for each that was refused (all others are
-- written): its index, the run's token, holder and last seq, or the effect that holds its business
-- key.
--
-- items: [[tenant, run_id, token, first_seq, count, at_us, lease_until_us or null,
--          [offset, length] of prev_hash + hash + body], ...]
-- locks: {"threads": [{tenant, thread}], "runs": [run_id]}: what the changes will touch, or null.
-- keys: [[index, tenant, business_key, effect_id], ...] or null.
-- changes: [[index, {change}], ...] or null, in order.
CREATE FUNCTION @.append(items jsonb, blob bytea, locks jsonb, keys jsonb, changes jsonb)
RETURNS TABLE (item int, token bigint, holder text, last_seq bigint, effect_id text, business_key text)
LANGUAGE plpgsql AS $$
DECLARE
    held int[];
    taken int[] := '{}';
    k record;
    i int;
    at int;
    of_run @.runs;  -- what never changes of it is used
BEGIN
    IF locks IS NOT NULL THEN
        PERFORM FROM @.threads AS t
            WHERE (t.tenant, t.thread) IN (
                SELECT e->>'tenant', e->>'thread' FROM jsonb_array_elements(locks->'threads') AS e)
            ORDER BY t.tenant, t.thread FOR UPDATE;
        PERFORM FROM @.runs AS r
            WHERE r.run_id IN (SELECT jsonb_array_elements_text(locks->'runs'))
            ORDER BY r.run_id FOR UPDATE;
    END IF;
    IF keys IS NOT NULL THEN
        SELECT coalesce(array_agg(x.i), '{}') INTO held FROM (
            SELECT n.i::int AS i
            FROM jsonb_array_elements(items) WITH ORDINALITY AS n(e, i)
            JOIN @.runs AS r ON r.tenant = n.e->>0 AND r.run_id = n.e->>1
            WHERE n.i BETWEEN 1 AND 1000000 AND r.token = (n.e->>2)::bigint
                AND r.last_seq = (n.e->>3)::bigint - 1 AND r.status IN ('running', '')
            ORDER BY r.run_id FOR UPDATE OF r) AS x;
        FOR k IN
            SELECT (e->>0)::int + 1 AS i, e->>1 AS tenant, e->>2 AS key, e->>3 AS own
            FROM jsonb_array_elements(keys) WITH ORDINALITY AS n(e, o) ORDER BY o
        LOOP
            CONTINUE WHEN k.i <> ALL (held);
            SELECT e.effect_id INTO effect_id FROM @.effects AS e
                WHERE e.tenant = k.tenant AND e.business_key = k.key;
            IF NOT FOUND THEN
                -- An earlier effect of this very append may take it.
                SELECT e->>3 INTO effect_id FROM jsonb_array_elements(keys) WITH ORDINALITY AS n(e, o)
                    WHERE e->>1 = k.tenant AND e->>2 = k.key AND (e->>0)::int + 1 = ANY (held)
                    ORDER BY o LIMIT 1;
            END IF;
            IF effect_id <> k.own THEN
                held := array_remove(held, k.i);
                taken := taken || k.i;
                item := k.i - 1;
                business_key := k.key;
                RETURN NEXT;
            END IF;
        END LOOP;
        effect_id := NULL;
        business_key := NULL;
    END IF;
    -- One statement: the fence is in the update, which locks the runs in the order of their ids.
    -- Each run must be looked up by its key. The planner, which counts on a hundred items and knows
    -- that few runs are running, would rather go through all of those, by the index of their leases:
    -- so it is told of fewer items (BETWEEN), and the status is asked for in a way that has no index.
    WITH wanted AS MATERIALIZED (
        SELECT n.i::int AS i, e->>0 AS tenant, e->>1 AS run_id, (e->>2)::bigint AS token,
            (e->>3)::bigint AS first_seq, (e->>4)::bigint AS count, (e->>5)::bigint AS at_us,
            (e->>6)::bigint AS lease_until_us, (e->7->>0)::int AS at, (e->7->>1)::int AS length
        FROM jsonb_array_elements(items) WITH ORDINALITY AS n(e, i)
        WHERE n.i BETWEEN 1 AND 1000000 AND (held IS NULL OR n.i = ANY (held))
        ORDER BY e->>1
    ), moved AS (
        UPDATE @.runs AS r SET last_seq = w.first_seq + w.count - 1,
            claims = CASE WHEN w.lease_until_us IS NULL THEN r.claims ELSE 1 END,
            lease_until_us = coalesce(w.lease_until_us, r.lease_until_us),
            ready_at_us = least(r.ready_at_us, w.lease_until_us)
        FROM wanted AS w
        WHERE r.tenant = w.tenant AND r.run_id = w.run_id AND r.token = w.token
            AND r.last_seq = w.first_seq - 1 AND r.status IN ('running', '')
        RETURNING w.*
    ), written AS (
        INSERT INTO @.frames
            SELECT w.tenant, w.run_id, w.first_seq, w.count, w.token, w.at_us,
                substring(blob FROM w.at + 65 FOR w.length - 64),
                substring(blob FROM w.at + 1 FOR 32), substring(blob FROM w.at + 33 FOR 32)
            FROM moved AS w
    )
    SELECT coalesce(array_agg(m.i), '{}') INTO held FROM moved AS m;
    FOR n IN 0 .. coalesce(jsonb_array_length(changes), 0) - 1 LOOP
        i := (changes->n->>0)::int;
        CONTINUE WHEN i + 1 <> ALL (held);
        IF i IS DISTINCT FROM at THEN
            SELECT r.* INTO of_run FROM @.runs AS r
                WHERE r.tenant = items->i->>0 AND r.run_id = items->i->>1;
            at := i;
        END IF;
        PERFORM @.apply(of_run, changes->n->1, blob, (items->i->>5)::bigint);
    END LOOP;
    IF cardinality(held || taken) < jsonb_array_length(items) THEN
        RETURN QUERY
            SELECT n.i::int - 1, coalesce(r.token, 0), r.holder, coalesce(r.last_seq, 0), NULL::text,
                NULL::text
            FROM jsonb_array_elements(items) WITH ORDINALITY AS n(e, i)
            LEFT JOIN @.runs AS r ON r.run_id = n.e->>1
            LEFT JOIN @.frames AS f ON f.tenant = r.tenant AND f.run_id = r.run_id
                AND f.first_seq = (n.e->>3)::bigint AND f.token = (n.e->>2)::bigint
                AND f.count = (n.e->>4)::bigint
                AND f.hash = substring(blob FROM (n.e->7->>0)::int + 33 FOR 32)
            WHERE n.i <> ALL (held || taken) AND f.run_id IS NULL;
    END IF;
END
$$;

-- -- workers --------------------------------------------------------------------------------------

CREATE FUNCTION @.renew(
    of_worker text, held jsonb, now_us bigint, until bigint
) RETURNS TABLE (run_id text, token bigint, is_renewed boolean) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @.workers SET seen_at_us = greatest(seen_at_us, now_us) WHERE worker_id = of_worker;
    -- A run whose row is locked is at work, in a transaction, or just being claimed by another:
    -- waiting for it would let the leases of all others end.
    UPDATE @.runs AS r SET lease_until_us = greatest(r.lease_until_us, until)
        FROM (
            SELECT x.tenant, x.run_id FROM jsonb_array_elements(held) AS e
            JOIN @.runs AS x ON x.run_id = e->>0 AND x.token = (e->>1)::bigint
            WHERE x.holder = of_worker AND x.status = 'running'
            ORDER BY x.run_id FOR UPDATE OF x SKIP LOCKED
        ) AS l
        WHERE r.tenant = l.tenant AND r.run_id = l.run_id;
    RETURN QUERY
        SELECT r.run_id, r.token, r.lease_until_us >= until FROM jsonb_array_elements(held) AS e
        JOIN @.runs AS r ON r.run_id = e->>0 AND r.token = (e->>1)::bigint
        WHERE r.holder = of_worker AND r.status = 'running';
END
$$;

-- Makes the runs of these workers claimable at once and forgets the workers; gives those that were
-- known: of several that see a death, one reports it.
-- Whose death is only believed keeps the end of its lease: until then it may still send.
CREATE FUNCTION @.drop_workers(ids text[], now_us bigint, is_proven boolean) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @.runs AS r WHERE r.holder = ANY (ids) AND r.status = 'running'
        ORDER BY r.run_id FOR UPDATE;
    UPDATE @.runs SET doubted_until_us = CASE WHEN is_proven THEN doubted_until_us
            ELSE greatest(doubted_until_us, lease_until_us) END,
        lease_until_us = least(lease_until_us, now_us),
        ready_at_us = least(ready_at_us, now_us)
        WHERE holder = ANY (ids) AND status = 'running';
    RETURN QUERY DELETE FROM @.workers WHERE worker_id = ANY (ids) RETURNING worker_id;
END
$$;

-- -- claiming -------------------------------------------------------------------------------------

-- closed: [[tenant or '', graph or '', only first], ...] or null: what no claim may take now.
CREATE FUNCTION @.is_closed(closed jsonb, of_tenant text, of_graph text, of_token bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT closed IS NOT NULL AND EXISTS (
        SELECT FROM jsonb_array_elements(closed) AS c
        WHERE c->>0 IN ('', of_tenant) AND c->>1 IN ('', of_graph)
            AND (of_token = 0 OR NOT (c->>2)::boolean))
$$;

-- The heads of each tenant's line, by priority: what a claim looks at under a backlog, so that its
-- cost follows the number of tenants and not of runs.
CREATE FUNCTION @.heads(graphs jsonb, now_us bigint, most int, closed jsonb)
RETURNS TABLE (
    tenant text, run_id text, graph text, token bigint, priority bigint, ready_at_us bigint,
    run_no bigint
) LANGUAGE plpgsql AS $$
DECLARE
    level bigint;
    tenants text[];
    found_here int;
    depth int;
    total int := 0;
BEGIN
    SELECT min(-r.priority) INTO level FROM @.runs AS r
        WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running';
    WHILE level IS NOT NULL AND total < most LOOP
        WITH RECURSIVE line AS (
            (SELECT r.tenant FROM @.runs AS r
             WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running' AND (-r.priority) = level
             ORDER BY r.tenant LIMIT 1)
            UNION ALL
            SELECT n.tenant FROM line AS l CROSS JOIN LATERAL (
                SELECT r.tenant FROM @.runs AS r
                WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running' AND (-r.priority) = level
                    AND r.tenant > l.tenant
                ORDER BY r.tenant LIMIT 1) AS n
        )
        -- A line of which nothing may be taken is not looked at: it may be long.
        SELECT coalesce(array_agg(l.tenant), '{}') INTO tenants FROM line AS l
            WHERE EXISTS (
                SELECT FROM jsonb_array_elements(graphs) AS g
                WHERE NOT @.is_closed(closed, l.tenant, g->>0, 1));
        depth := greatest(1, (2 * most) / greatest(cardinality(tenants), 1));
        LOOP
            RETURN QUERY
                SELECT h.tenant, h.run_id, h.graph, h.token, -level, h.ready_at_us, h.run_no
                FROM unnest(tenants) AS t(name) CROSS JOIN LATERAL (
                    SELECT r.tenant, r.run_id, r.graph, r.token, r.ready_at_us, r.run_no
                    FROM @.runs AS r
                    WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running'
                        AND (-r.priority) = level AND r.tenant = t.name AND r.ready_at_us <= now_us
                        AND (r.graph, r.version) IN (
                            SELECT g->>0, (g->>1)::bigint FROM jsonb_array_elements(graphs) AS g)
                        AND NOT @.is_closed(closed, r.tenant, r.graph, r.token)
                    ORDER BY r.ready_at_us LIMIT depth) AS h;
            GET DIAGNOSTICS found_here = ROW_COUNT;
            EXIT WHEN found_here >= most OR depth >= most OR found_here < cardinality(tenants);
            -- Some lines are long, others were not: look deeper once. What comes twice does no harm.
            depth := most;
        END LOOP;
        total := total + found_here;
        SELECT min(-r.priority) INTO level FROM @.runs AS r
            WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running' AND (-r.priority) > level;
    END LOOP;
END
$$;

-- Due runs in the order of a claim: priority, tenants in turn, age. Those whose lease has ended
-- (lost), those that are not running (free), or both.
CREATE FUNCTION @.due(
    graphs jsonb, now_us bigint, most int, wide int, lost boolean, free boolean, closed jsonb
) RETURNS TABLE (tenant text, run_id text, graph text, token bigint, place bigint)
LANGUAGE plpgsql AS $$
DECLARE
    backlog boolean := false;
BEGIN
    IF free THEN
        SELECT count(*) >= wide INTO backlog FROM (
            SELECT FROM @.runs AS r WHERE r.ready_at_us <= now_us AND r.ready_at_us IS NOT NULL
                AND r.status <> 'running' LIMIT wide) AS x;
    END IF;
    RETURN QUERY
        WITH served AS MATERIALIZED (
            SELECT g->>0 AS graph, (g->>1)::bigint AS version FROM jsonb_array_elements(graphs) AS g
        ), each_due AS (
            SELECT r.tenant, r.run_id, r.graph, r.token, r.priority, r.ready_at_us, r.run_no
            FROM @.runs AS r
            WHERE free AND NOT backlog AND r.ready_at_us IS NOT NULL AND r.status <> 'running'
                AND r.ready_at_us <= now_us
                AND (r.graph, r.version) IN (SELECT s.graph, s.version FROM served AS s)
                AND NOT @.is_closed(closed, r.tenant, r.graph, r.token)
            UNION
            SELECT h.tenant, h.run_id, h.graph, h.token, h.priority, h.ready_at_us, h.run_no
            FROM @.heads(graphs, now_us, most, closed) AS h WHERE backlog
            UNION
            (SELECT r.tenant, r.run_id, r.graph, r.token, r.priority, r.lease_until_us, r.run_no
             FROM @.runs AS r
             WHERE lost AND r.status = 'running' AND r.ready_at_us <= now_us
                AND r.lease_until_us <= now_us
                AND (r.graph, r.version) IN (SELECT s.graph, s.version FROM served AS s)
             ORDER BY r.ready_at_us LIMIT wide)
        ), turns AS (
            SELECT d.*, row_number() OVER (
                    PARTITION BY d.priority, d.tenant ORDER BY d.ready_at_us, d.run_no) AS turn
            FROM each_due AS d
        )
        SELECT t.tenant, t.run_id, t.graph, t.token,
            row_number() OVER (ORDER BY t.priority DESC, t.turn, t.ready_at_us, t.run_no)
        FROM turns AS t ORDER BY 5 LIMIT most;
END
$$;

-- Leases that were renewed since they were looked at last: due when they really end.
CREATE FUNCTION @.look_at_leases(now_us bigint, wide int) RETURNS void LANGUAGE sql AS $$
    UPDATE @.runs AS r SET ready_at_us = r.lease_until_us
    FROM (SELECT x.tenant, x.run_id FROM @.runs AS x
          WHERE x.status = 'running' AND x.ready_at_us <= now_us AND x.lease_until_us > now_us
          ORDER BY x.run_id LIMIT wide FOR UPDATE SKIP LOCKED) AS s
    WHERE r.tenant = s.tenant AND r.run_id = s.run_id
$$;

-- Claims those of the chosen runs ([[tenant, run_id], ...], in order) that are free to be taken.
CREATE FUNCTION @.claim_chosen(
    by_worker text, chosen jsonb, now_us bigint, until bigint, most int
) RETURNS SETOF @.runs LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH locked AS (
            SELECT r.tenant, r.run_id, c.place
            FROM jsonb_array_elements(chosen) WITH ORDINALITY AS c(e, place)
            JOIN @.runs AS r ON r.tenant = c.e->>0 AND r.run_id = c.e->>1
            WHERE r.ready_at_us <= now_us AND (r.status <> 'running' OR r.lease_until_us <= now_us)
            ORDER BY c.place LIMIT most FOR UPDATE OF r SKIP LOCKED
        ), taken AS (
            UPDATE @.runs AS r SET status = 'running', token = r.token + 1, claims = r.claims + 1,
                holder = by_worker, ready_at_us = until, lease_until_us = until, waits = NULL,
                is_queued = false, queued_until_us = NULL
            FROM locked AS l WHERE r.tenant = l.tenant AND r.run_id = l.run_id
            RETURNING r.*
        )
        SELECT t.* FROM taken AS t
        JOIN locked AS l ON l.tenant = t.tenant AND l.run_id = t.run_id ORDER BY l.place;
END
$$;

-- Claims without limits; a row of nulls: there are limits, claim by them.
CREATE FUNCTION @.claim(
    by_worker text, graphs jsonb, now_us bigint, until bigint, most int, wide int
) RETURNS SETOF @.runs LANGUAGE plpgsql AS $$
DECLARE
    chosen jsonb;
BEGIN
    IF EXISTS (SELECT FROM @.limits) THEN
        RETURN NEXT NULL::@.runs;
        RETURN;
    END IF;
    PERFORM @.look_at_leases(now_us, wide);
    -- More than wanted: others may be at the first of them.
    SELECT jsonb_agg(jsonb_build_array(d.tenant, d.run_id) ORDER BY d.place) INTO chosen
        FROM @.due(graphs, now_us, 2 * most + 64, wide, true, true, NULL) AS d;
    IF chosen IS NOT NULL THEN
        RETURN QUERY SELECT * FROM @.claim_chosen(by_worker, chosen, now_us, until, most);
    END IF;
END
$$;

-- Claims one run by name, of whatever graph.
CREATE FUNCTION @.take(
    target text, by_worker text, of_token bigint, now_us bigint, until bigint
) RETURNS SETOF @.runs LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        UPDATE @.runs AS r SET status = 'running', token = r.token + 1, claims = r.claims + 1,
            holder = by_worker, ready_at_us = until, lease_until_us = until, waits = NULL,
            is_queued = false, queued_until_us = NULL
        WHERE r.run_id = target AND r.token = of_token
            AND CASE r.status
                WHEN 'running' THEN r.lease_until_us <= now_us
                WHEN 'pending' THEN r.ready_at_us IS NOT NULL
                ELSE r.status IN ('waiting', 'needs_decision') END
        RETURNING r.*;
END
$$;

-- -- limits and schedules -------------------------------------------------------------------------

CREATE FUNCTION @.put_buckets(moved jsonb, now_us bigint) RETURNS void LANGUAGE sql AS $$
    DELETE FROM @.buckets WHERE full_at_us <= now_us;
    INSERT INTO @.buckets SELECT b->>0, b->>1, (b->>2)::bigint FROM jsonb_array_elements(moved) AS b
        ON CONFLICT (tenant, graph) DO UPDATE SET full_at_us = excluded.full_at_us
$$;
