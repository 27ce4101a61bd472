-- Appends once more, with the effects of a commit written together: one statement instead of three for
-- each, which was a fifth of what the server did for a step with an effect. `append` stays, and calls it,
-- for workers that are of the version before while this one is rolled out.

-- Writes the appends of different runs; gives a row for each that was refused (all others are
-- written): its index, the run's token, holder and last seq, or the effect that holds its business
-- key.
--
-- items: [[tenant, run_id, token, first_seq, count, at_us, lease_until_us or null,
--          [offset, length] of prev_hash + hash + body], ...]
-- locks: {"threads": [{tenant, thread}], "runs": [run_id]}: what the changes will touch, or null.
-- keys: [[index, tenant, business_key, effect_id], ...] or null.
-- effects: [[index, thread, effect_id, ...], ...] or null, each effect once; see `_wire.py`.
-- changes: [[index, {change}], ...] or null, in order: all others.
CREATE FUNCTION @.commit_frames(
    items jsonb, blob bytea, locks jsonb, keys jsonb, effects jsonb, changes jsonb
)
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
            lease_until_us = greatest(r.lease_until_us, w.lease_until_us),
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
    IF effects IS NOT NULL THEN
        -- The runs' rows are locked, so nobody else writes their effects: no ON CONFLICT, which would
        -- lock and log each row once more.
        WITH each AS MATERIALIZED (
            SELECT e, items->((e->>0)::int)->>0 AS tenant, items->((e->>0)::int)->>1 AS run_id,
                e->>2 AS id
            FROM jsonb_array_elements(effects) AS e WHERE (e->>0)::int + 1 = ANY (held)
        ), changed AS (
            UPDATE @.effects AS x SET node = c.e->>3, name = c.e->>4, kind = c.e->>5, key = c.e->>7,
                business_key = c.e->>8, args_digest = c.e->>9,
                request_wire = @.cut(blob, c.e->10), intended_at_us = (c.e->>14)::bigint, state = c.e->>6,
                result_wire = @.cut(blob, c.e->11), attempt = (c.e->>12)::bigint,
                failure = @.cut(blob, c.e->13), changed_at_us = (c.e->>15)::bigint,
                decision = CASE WHEN NOT (c.e->>18)::boolean THEN x.decision END,
                decided_by = CASE WHEN NOT (c.e->>18)::boolean THEN x.decided_by END
            FROM each AS c
            WHERE x.tenant = c.tenant AND x.run_id = c.run_id AND x.effect_id = c.id
            RETURNING x.effect_id AS known
        )
        INSERT INTO @.effects (effect_id, run_id, tenant, thread, node, name, kind, key, business_key,
                args_digest, request_wire, intended_at_us, state, result_wire, attempt, failure,
                changed_at_us, decision, decided_by)
            SELECT c.id, c.run_id, c.tenant, c.e->>1, c.e->>3, c.e->>4, c.e->>5, c.e->>7, c.e->>8,
                c.e->>9, @.cut(blob, c.e->10), (c.e->>14)::bigint, c.e->>6, @.cut(blob, c.e->11),
                (c.e->>12)::bigint, @.cut(blob, c.e->13), (c.e->>15)::bigint, c.e->>16, c.e->>17
            FROM each AS c WHERE c.id NOT IN (SELECT d.known FROM changed AS d);
    END IF;
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

CREATE OR REPLACE FUNCTION @.append(items jsonb, blob bytea, locks jsonb, keys jsonb, changes jsonb)
RETURNS TABLE (item int, token bigint, holder text, last_seq bigint, effect_id text, business_key text)
LANGUAGE sql AS $$
    SELECT * FROM @.commit_frames(items, blob, locks, keys, NULL, changes)
$$;
