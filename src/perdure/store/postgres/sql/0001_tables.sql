-- Schema version 1: the tables. `@` stands for the quoted name of the schema.
--
-- Every primary key leads with the tenant and then the thread or the run, so that all tables can be
-- distributed by tenant and joined where they lie. Ids are random, so that a lookup by id alone uses
-- a plain index; nothing needs uniqueness across tenants.
--
-- A running run's lease ends at lease_until_us. Its ready_at_us is indexed and only a lower bound of
-- that, moved on by whoever claims: so a heartbeat, and a step, change no indexed column (HOT).

CREATE TABLE @.runs (
    run_id text NOT NULL,
    tenant text NOT NULL,
    thread text NOT NULL,
    ordinal bigint NOT NULL,
    graph text NOT NULL,
    version bigint NOT NULL,
    status text NOT NULL,
    token bigint NOT NULL,
    holder text,
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
    start_key text,
    input_digest text NOT NULL,
    parent text,
    parent_call text,
    failure bytea,
    created_at_us bigint NOT NULL,
    ended_at_us bigint,
    run_no bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (tenant, run_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE INDEX runs_id ON @.runs (run_id);
CREATE UNIQUE INDEX runs_thread ON @.runs (tenant, thread, ordinal);
CREATE UNIQUE INDEX runs_key ON @.runs (tenant, start_key) WHERE start_key IS NOT NULL;
CREATE INDEX runs_ready ON @.runs (ready_at_us) WHERE ready_at_us IS NOT NULL AND status <> 'running';
CREATE INDEX runs_turn ON @.runs ((-priority), tenant, ready_at_us)
    WHERE ready_at_us IS NOT NULL AND status <> 'running';
CREATE INDEX runs_lease ON @.runs (ready_at_us) WHERE status = 'running';
CREATE INDEX runs_holder ON @.runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX runs_parent ON @.runs (parent, run_id) WHERE parent IS NOT NULL;

CREATE TABLE @.threads (
    tenant text NOT NULL,
    thread text NOT NULL,
    last_ordinal bigint NOT NULL,
    checkpoint bigint NOT NULL DEFAULT 0,
    base_ordinal bigint NOT NULL DEFAULT 0,
    base_seq bigint NOT NULL DEFAULT 0,
    graph text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, thread)
) WITH (fillfactor = 90);

CREATE TABLE @.frames (
    tenant text NOT NULL,
    run_id text NOT NULL,
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
    tenant text NOT NULL,
    run_id text NOT NULL,
    mail_id bigint NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    body_wire bytea NOT NULL,
    sender text NOT NULL,
    at_us bigint NOT NULL,
    post_id text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, run_id, mail_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- An id is taken while the run's row is locked, so that within a run ids rise in the order of
-- commits. Across runs they do not.
CREATE SEQUENCE @.mail_ids AS bigint;

-- Postings that may come again because their answer was lost; also of runs that have ended.
CREATE TABLE @.posts (
    tenant text NOT NULL,
    run_id text NOT NULL,
    post_id text NOT NULL,
    at_us bigint NOT NULL,
    PRIMARY KEY (tenant, run_id, post_id)
);
CREATE INDEX posts_age ON @.posts (at_us);

CREATE TABLE @.effects (
    effect_id text NOT NULL,
    run_id text NOT NULL,
    tenant text NOT NULL,
    thread text NOT NULL,
    node text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    key text NOT NULL,
    business_key text,
    args_digest text NOT NULL,
    request_wire bytea NOT NULL,
    result_wire bytea,
    attempt bigint NOT NULL,
    failure bytea,
    intended_at_us bigint NOT NULL,
    changed_at_us bigint NOT NULL,
    decision text,
    decided_by text,
    effect_no bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (tenant, run_id, effect_id)
) WITH (fillfactor = 80);
CREATE INDEX effects_id ON @.effects (effect_id);
CREATE UNIQUE INDEX effects_key ON @.effects (tenant, business_key) WHERE business_key IS NOT NULL;
CREATE INDEX effects_uncertain ON @.effects (changed_at_us) WHERE state = 'uncertain';

CREATE TABLE @.asks (
    ask_id text NOT NULL,
    run_id text NOT NULL,
    tenant text NOT NULL,
    thread text NOT NULL,
    node text NOT NULL,
    question text NOT NULL,
    schema bytea,
    state text NOT NULL,
    asked_at_us bigint NOT NULL,
    expires_at_us bigint,
    value_wire bytea,
    answered_by text,
    answered_at_us bigint,
    ask_no bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (tenant, run_id, ask_id)
);
CREATE INDEX asks_id ON @.asks (ask_id);
CREATE INDEX asks_open ON @.asks (asked_at_us) WHERE state = 'open';

CREATE TABLE @.workers (
    worker_id text PRIMARY KEY,
    host text NOT NULL,
    pid bigint NOT NULL,
    graphs bytea NOT NULL,
    started_at_us bigint NOT NULL,
    seen_at_us bigint NOT NULL,
    liveness text NOT NULL,
    is_draining boolean NOT NULL
);

-- Who may see a tenant's rows, beside the owner of the tables: roles by name. The policies hold for
-- every role but the owner (and superusers), however it got its rights on the tables.
CREATE TABLE @.tenant_roles (
    role_name name NOT NULL,
    tenant text NOT NULL,
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
