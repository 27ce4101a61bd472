-- What the planner believes of a table before it has seen one. Plans are kept for the life of a
-- connection: made over an empty table of which nothing is known, they look up a run by its tenant
-- alone, and go through all runs of that tenant once there are some. So it is shown a few runs, all of
-- one tenant, each with an id of its own, and remembers that until it has looked at real ones.
INSERT INTO @.runs (run_id, tenant, thread, ordinal, graph, version, status, token, is_queued, priority,
        claims, last_seq, base_checkpoint, checkpoint, start_key, input_digest, created_at_us,
        ready_at_us, lease_until_us, holder)
    SELECT 'r_' || i, '', 't_' || i, 1, 'g', 1, 'running', 1, false, 0, 1, 1, 0, 0, 'k_' || i, '', i, i, i,
        'w_' || i % 2
    FROM generate_series(1, 300) AS i;
ANALYZE @.runs;
TRUNCATE @.runs RESTART IDENTITY;
