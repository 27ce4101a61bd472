-- Schema version 1: the tables. `@` stands for the quoted name of the schema.
--
-- Text is compared by its bytes, whatever the database says: ids are listed in the order of their time,
-- and two servers agree on it.
--
-- Every primary key leads with the tenant and then the thread or the run, so that all tables can be
-- distributed by tenant and joined where they lie. Ids are unique over all tenants, as they are looked
-- up alone: no tenant's role can put a row in the way of another's. (Distributed, that index would go.)
--
-- A running run's lease ends at lease_until_us. Its ready_at_us is indexed and only a lower bound of
-- that, moved on by whoever claims: so a heartbeat, and a step, change no indexed column (HOT).

CREATE TABLE @.runs (
    run_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    ordinal bigint NOT NULL,
    graph text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    holder text COLLATE "C",
    ready_at_us bigint,
    lease_until_us bigint,
    waits bytea,
    is_queued boolean NOT NULL,
    queued_until_us bigint,
    priority bigint NOT NULL,
    claims bigint NOT NULL,
    last_seq bigint NOT NULL,
    base_checkpoint bigint NOT NULL,
    checkpoint bigint NOT NULL,
    start_key text COLLATE "C",
    input_digest text COLLATE "C" NOT NULL,
    parent text COLLATE "C",
    parent_call text COLLATE "C",
    failure bytea,
    created_at_us bigint NOT NULL,
    ended_at_us bigint,
    doubted_until_us bigint NOT NULL DEFAULT 0,
    run_no bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (tenant, run_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX runs_id ON @.runs (run_id);
CREATE UNIQUE INDEX runs_thread ON @.runs (tenant, thread, ordinal);
CREATE UNIQUE INDEX runs_key ON @.runs (tenant, start_key) WHERE start_key IS NOT NULL;
CREATE INDEX runs_ready ON @.runs (ready_at_us) WHERE ready_at_us IS NOT NULL AND status <> 'running';
CREATE INDEX runs_turn ON @.runs ((-priority), tenant, ready_at_us)
    WHERE ready_at_us IS NOT NULL AND status <> 'running';
CREATE INDEX runs_lease ON @.runs (ready_at_us) WHERE status = 'running';
CREATE INDEX runs_holder ON @.runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX runs_parked ON @.runs (run_id) WHERE status = 'needs_decision';
CREATE INDEX runs_parent ON @.runs (parent, run_id) WHERE parent IS NOT NULL;

CREATE TABLE @.threads (
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    last_ordinal bigint NOT NULL,
    checkpoint bigint NOT NULL DEFAULT 0,
    base_ordinal bigint NOT NULL DEFAULT 0,
    base_seq bigint NOT NULL DEFAULT 0,
    graph text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, thread)
) WITH (fillfactor = 90);

CREATE TABLE @.frames (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    first_seq bigint NOT NULL,
    count bigint NOT NULL,
    token bigint NOT NULL,
    at_us bigint NOT NULL,
    body bytea NOT NULL,
    prev_hash bytea NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, first_seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
-- Bodies are compact already; the server's compression would cost time in the middle of a commit.
ALTER TABLE @.frames ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE @.mail (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    mail_id bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    body_wire bytea NOT NULL,
    sender text COLLATE "C" NOT NULL,
    at_us bigint NOT NULL,
    post_id text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, run_id, mail_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- An id is taken while the run's row is locked, so that within a run ids rise in the order of
-- commits. Across runs they do not.
CREATE SEQUENCE @.mail_ids AS bigint;

-- Postings that may come again because their answer was lost; also of runs that have ended.
CREATE TABLE @.posts (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    post_id text COLLATE "C" NOT NULL,
    at_us bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, post_id)
);
CREATE INDEX posts_age ON @.posts (at_us);

-- What changes comes last: an update then writes to the log what is behind the first change only.
-- No index names a column that an update changes, so that a confirmation touches none (HOT): the
-- uncertain ones are found by a time that all others do not have.
CREATE TABLE @.effects (
    effect_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    business_key text COLLATE "C",
    args_digest text COLLATE "C" NOT NULL,
    request_wire bytea NOT NULL,
    intended_at_us bigint NOT NULL,
    effect_no bigint GENERATED ALWAYS AS IDENTITY,
    state text COLLATE "C" NOT NULL,
    result_wire bytea,
    attempt bigint NOT NULL,
    failure bytea,
    changed_at_us bigint NOT NULL,
    decision text COLLATE "C",
    decided_by text COLLATE "C",
    uncertain_at_us bigint GENERATED ALWAYS AS (CASE WHEN state = 'uncertain' THEN changed_at_us END) STORED,
    PRIMARY KEY (tenant, run_id, effect_id)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX effects_id ON @.effects (effect_id);
CREATE UNIQUE INDEX effects_key ON @.effects (tenant, business_key) WHERE business_key IS NOT NULL;
CREATE INDEX effects_uncertain ON @.effects (uncertain_at_us) WHERE uncertain_at_us IS NOT NULL;

CREATE TABLE @.asks (
    ask_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread text COLLATE "C" NOT NULL,
    node text COLLATE "C" NOT NULL,
    question text COLLATE "C" NOT NULL,
    schema bytea,
    state text COLLATE "C" NOT NULL,
    asked_at_us bigint NOT NULL,
    expires_at_us bigint,
    value_wire bytea,
    answered_by text COLLATE "C",
    answered_at_us bigint,
    ask_no bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (tenant, run_id, ask_id)
);
CREATE UNIQUE INDEX asks_id ON @.asks (ask_id);
CREATE INDEX asks_open ON @.asks (asked_at_us) WHERE state = 'open';

CREATE TABLE @.workers (
    worker_id text COLLATE "C" PRIMARY KEY,
    host text COLLATE "C" NOT NULL,
    pid bigint NOT NULL,
    graphs bytea NOT NULL,
    started_at_us bigint NOT NULL,
    seen_at_us bigint NOT NULL,
    liveness text COLLATE "C" NOT NULL,
    is_draining boolean NOT NULL,
    concurrency bigint NOT NULL,
    shapes bytea
);

-- What is stored for all runs to come.
CREATE TABLE @.limits (
    tenant text COLLATE "C" NOT NULL,
    graph text COLLATE "C" NOT NULL,
    concurrency bigint,
    rate bigint,
    period_us bigint NOT NULL,
    set_at_us bigint NOT NULL,
    PRIMARY KEY (tenant, graph)
);
-- Claims under limits go one at a time: whoever has this row.
CREATE TABLE @.claim_turn (only_one boolean PRIMARY KEY);
INSERT INTO @.claim_turn VALUES (true);
CREATE TABLE @.buckets (
    tenant text COLLATE "C" NOT NULL,
    graph text COLLATE "C" NOT NULL,
    full_at_us bigint NOT NULL,
    PRIMARY KEY (tenant, graph)
);
CREATE TABLE @.schedules (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    graph text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    cron text COLLATE "C" NOT NULL,
    timezone text COLLATE "C" NOT NULL,
    input_wire bytea NOT NULL,
    input_digest text COLLATE "C" NOT NULL,
    thread text COLLATE "C",
    priority bigint NOT NULL,
    on_busy text COLLATE "C" NOT NULL,
    missed text COLLATE "C" NOT NULL,
    next_at_us bigint,
    is_paused boolean NOT NULL,
    created_at_us bigint NOT NULL,
    fired_at_us bigint,
    fired_run text COLLATE "C",
    problem text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX schedules_next ON @.schedules (next_at_us) WHERE next_at_us IS NOT NULL;

-- Who may see a tenant's rows, beside the owner of the tables: roles by name. The policies hold for
-- every role but the owner (and superusers), however it got its rights on the tables.
CREATE TABLE @.tenant_roles (
    role_name name NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (role_name, tenant)
);
CREATE FUNCTION @.may_see(whose text) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM @.tenant_roles AS t WHERE t.tenant = whose AND t.role_name = session_user
    )
$$;
