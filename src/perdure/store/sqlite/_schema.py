"""The tables, their versions, and the checks before a file is touched.

Layout: rowid tables with integer surrogates, so that the frames of all runs of one commit are
appended to the same pages, index entries stay small, and a commit writes few WAL bytes. Every table
is called `perdure_...`: user tables of `transaction` effects may live in the same file.

A new file gets its schema, `application_id` and `user_version` in one transaction in rollback mode,
and is switched to WAL afterwards: whoever sees a non-empty file sees whose it is.
"""

from pathlib import Path

import apsw

from perdure.errors import StoreForeign, StoreSchemaNewer, StoreUnavailable

APPLICATION_ID = 0x50457264
"""`PErd` in the header of every Perdure database."""

_VERSION_1 = """
CREATE TABLE perdure_runs (
    run_no INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    graph TEXT NOT NULL,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT,
    ready_at_us INTEGER,
    waits BLOB,
    priority INTEGER NOT NULL,
    claims INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    base_checkpoint INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL,
    start_key TEXT,
    input_digest TEXT NOT NULL,
    parent TEXT,
    parent_call TEXT,
    failure BLOB,
    created_at_us INTEGER NOT NULL,
    ended_at_us INTEGER
);
CREATE UNIQUE INDEX perdure_runs_id ON perdure_runs (run_id);
CREATE UNIQUE INDEX perdure_runs_thread ON perdure_runs (tenant, thread, ordinal);
CREATE UNIQUE INDEX perdure_runs_key ON perdure_runs (tenant, start_key)
    WHERE start_key IS NOT NULL;
CREATE INDEX perdure_runs_ready ON perdure_runs (ready_at_us) WHERE ready_at_us IS NOT NULL;
CREATE INDEX perdure_runs_turn ON perdure_runs (priority DESC, tenant, ready_at_us)
    WHERE ready_at_us IS NOT NULL;
CREATE INDEX perdure_runs_holder ON perdure_runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX perdure_runs_parent ON perdure_runs (parent, run_id) WHERE parent IS NOT NULL;
CREATE TABLE perdure_threads (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    last_ordinal INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL DEFAULT 0,
    base_ordinal INTEGER NOT NULL DEFAULT 0,
    base_seq INTEGER NOT NULL DEFAULT 0,
    graph TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, thread)
) WITHOUT ROWID;
CREATE TABLE perdure_frames (
    frame_no INTEGER PRIMARY KEY,
    run_no INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    token INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    body BLOB NOT NULL,
    prev_hash BLOB NOT NULL,
    hash BLOB NOT NULL
);
CREATE UNIQUE INDEX perdure_frames_seq ON perdure_frames (run_no, first_seq);
-- AUTOINCREMENT: a mail id is never given again, or `RunReleased.mail_seen` would miss a message.
CREATE TABLE perdure_mail (
    mail_id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_no INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    body_wire BLOB NOT NULL,
    sender TEXT NOT NULL,
    at_us INTEGER NOT NULL
);
CREATE INDEX perdure_mail_run ON perdure_mail (run_no, mail_id);
CREATE TABLE perdure_effects (
    effect_no INTEGER PRIMARY KEY,
    effect_id TEXT NOT NULL,
    run_no INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    node TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    key TEXT NOT NULL,
    business_key TEXT,
    args_digest TEXT NOT NULL,
    request_wire BLOB NOT NULL,
    result_wire BLOB,
    attempt INTEGER NOT NULL,
    failure BLOB,
    intended_at_us INTEGER NOT NULL,
    changed_at_us INTEGER NOT NULL,
    decision TEXT,
    decided_by TEXT
);
CREATE UNIQUE INDEX perdure_effects_id ON perdure_effects (effect_id);
CREATE UNIQUE INDEX perdure_effects_key ON perdure_effects (tenant, business_key)
    WHERE business_key IS NOT NULL;
CREATE INDEX perdure_effects_run ON perdure_effects (run_no);
CREATE INDEX perdure_effects_uncertain ON perdure_effects (changed_at_us)
    WHERE state = 'uncertain';
CREATE TABLE perdure_asks (
    ask_no INTEGER PRIMARY KEY,
    ask_id TEXT NOT NULL,
    run_no INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    node TEXT NOT NULL,
    question TEXT NOT NULL,
    schema BLOB,
    state TEXT NOT NULL,
    asked_at_us INTEGER NOT NULL,
    expires_at_us INTEGER,
    value_wire BLOB,
    answered_by TEXT,
    answered_at_us INTEGER
);
CREATE UNIQUE INDEX perdure_asks_id ON perdure_asks (ask_id);
CREATE INDEX perdure_asks_run ON perdure_asks (run_no);
CREATE INDEX perdure_asks_open ON perdure_asks (asked_at_us) WHERE state = 'open';
CREATE TABLE perdure_workers (
    worker_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    graphs BLOB NOT NULL,
    started_at_us INTEGER NOT NULL,
    seen_at_us INTEGER NOT NULL,
    liveness TEXT NOT NULL,
    is_draining INTEGER NOT NULL
) WITHOUT ROWID;
"""

# Postings are remembered also of runs that have ended: a cancel may come again, its answer lost.
_REPEATED_POSTS = """
ALTER TABLE perdure_mail ADD COLUMN post_id TEXT NOT NULL DEFAULT '';
CREATE INDEX perdure_mail_post ON perdure_mail (run_no, post_id) WHERE post_id != '';
CREATE TABLE perdure_posts (
    run_no INTEGER NOT NULL,
    post_id TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (run_no, post_id)
) WITHOUT ROWID;
CREATE INDEX perdure_posts_age ON perdure_posts (at_us);
"""

_ORDERS = """
ALTER TABLE perdure_runs ADD COLUMN doubted_until_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_workers ADD COLUMN concurrency INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_workers ADD COLUMN shapes BLOB;
CREATE TABLE perdure_limits (
    tenant TEXT NOT NULL,
    graph TEXT NOT NULL,
    concurrency INTEGER,
    rate INTEGER,
    period_us INTEGER NOT NULL,
    set_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, graph)
) WITHOUT ROWID;
CREATE TABLE perdure_buckets (
    tenant TEXT NOT NULL,
    graph TEXT NOT NULL,
    full_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, graph)
) WITHOUT ROWID;
CREATE TABLE perdure_schedules (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    graph TEXT NOT NULL,
    version INTEGER NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    input_wire BLOB NOT NULL,
    input_digest TEXT NOT NULL,
    thread TEXT,
    priority INTEGER NOT NULL,
    on_busy TEXT NOT NULL,
    missed TEXT NOT NULL,
    next_at_us INTEGER,
    is_paused INTEGER NOT NULL,
    created_at_us INTEGER NOT NULL,
    fired_at_us INTEGER,
    fired_run TEXT,
    problem TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX perdure_runs_parked ON perdure_runs (run_id) WHERE status = 'needs_decision';
CREATE INDEX perdure_schedules_next ON perdure_schedules (next_at_us)
    WHERE next_at_us IS NOT NULL;
"""
# What is stored for all runs to come (limits, schedules), and what a worker says of itself.

# Parts of large values, named by their hash.
_PAGES = """
CREATE TABLE perdure_pages (
    page_no INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL,
    at_us INTEGER NOT NULL
);
CREATE UNIQUE INDEX perdure_pages_hash ON perdure_pages (tenant, hash);
"""

# Data keys of encryption, each wrapped by a key that is kept elsewhere.
_KEYS = """
CREATE TABLE perdure_keys (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    number INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    wrapped BLOB NOT NULL,
    wrapped_by TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, number)
) WITHOUT ROWID;
"""

# Where whole copies of states are, names of checkpoints, how much room tenants may take, and which
# collections of pages are under way. The trigger marks every page that is put while its tenant's
# are collected, also where it is there already, and whoever puts it: an older process too.
_KEPT = """
CREATE TABLE perdure_copies (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, thread, made_at)
) WITHOUT ROWID;
ALTER TABLE perdure_threads ADD COLUMN pruned_at_us INTEGER NOT NULL DEFAULT 0;
CREATE TABLE perdure_tags (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    name TEXT NOT NULL,
    checkpoint INTEGER NOT NULL,
    by TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, thread, name)
) WITHOUT ROWID;
CREATE TABLE perdure_quotas (
    tenant TEXT PRIMARY KEY,
    bytes_max INTEGER NOT NULL,
    set_at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE perdure_collections (
    tenant TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    is_under_way INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE perdure_marked (
    tenant TEXT NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;
CREATE TRIGGER perdure_pages_put BEFORE INSERT ON perdure_pages
WHEN EXISTS (SELECT 1 FROM perdure_collections WHERE tenant = NEW.tenant AND is_under_way) BEGIN
    INSERT INTO perdure_marked (tenant, hash) SELECT NEW.tenant, NEW.hash
    WHERE NOT EXISTS (SELECT 1 FROM perdure_marked WHERE tenant = NEW.tenant AND hash = NEW.hash);
END;
"""

# Whom threads are about, what was erased of them, and what was exported.
_ERASURE = """
ALTER TABLE perdure_threads ADD COLUMN erased INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_threads ADD COLUMN subject TEXT;
CREATE INDEX perdure_threads_subject ON perdure_threads (tenant, subject, thread)
    WHERE subject IS NOT NULL;
CREATE TABLE perdure_erasures (
    erasure_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    threads BLOB NOT NULL,
    subject TEXT NOT NULL,
    by_whom TEXT NOT NULL,
    begun_at_us INTEGER NOT NULL,
    ended_at_us INTEGER
) WITHOUT ROWID;
CREATE TABLE perdure_exports (
    export_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    run_id TEXT NOT NULL,
    made_at_us INTEGER NOT NULL,
    signed_by TEXT NOT NULL
) WITHOUT ROWID;
"""

MIGRATIONS: tuple[tuple[int, str], ...] = (
    (1, _VERSION_1),
    (2, _REPEATED_POSTS),
    (3, _ORDERS),
    (4, _PAGES),
    (5, _KEYS),
    (6, _KEPT),
    (7, _ERASURE),
)
"""Schema version and the SQL that makes it from the one before, oldest first."""

SCHEMA_VERSION = MIGRATIONS[-1][0]


def check_owner(db: apsw.Connection, path: Path) -> None:
    """Refuse a file of somebody else or of a newer Perdure; reads only.

    Raises:
        StoreForeign: another application's database.
        StoreSchemaNewer: a schema that this version does not know.
    """
    application_id, version, tables = _marks(db)
    is_empty = tables == 0 and version == 0
    if application_id != APPLICATION_ID and not (application_id == 0 and is_empty):
        msg = (
            f"{path} is the database of another application (application_id {application_id}); "
            "it was left untouched. Name another file in the store URL"
        )
        raise StoreForeign(msg, path=str(path), application_id=application_id)
    if version > SCHEMA_VERSION:
        msg = (
            f"{path} has schema version {version}, this Perdure knows up to {SCHEMA_VERSION}; "
            "it was left untouched. Run: pip install --upgrade perdure"
        )
        raise StoreSchemaNewer(msg, path=str(path), version=version, known=SCHEMA_VERSION)


def _marks(db: apsw.Connection) -> tuple[int, int, int]:
    """Return application id, schema version and number of tables, all as of one moment.

    Read one by one they could be of before and after another opener's commit, and look foreign.
    """
    is_own = not db.in_transaction
    if is_own:
        db.execute("BEGIN")
    try:
        tables = db.execute("SELECT count(*) FROM sqlite_master").get
        return db.pragma("application_id"), db.pragma("user_version"), tables
    finally:
        if is_own:
            db.execute("ROLLBACK")


def migrate(db: apsw.Connection, path: Path) -> None:
    """Bring the schema to the newest version, in one transaction; safe with many openers."""
    if db.pragma("user_version") == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        check_owner(db, path)  # again: another opener may have been first
        version = db.pragma("user_version")
        for target, sql in MIGRATIONS:
            if target > version:
                db.execute(sql)
                db.execute(f"PRAGMA user_version = {target:d}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def switch_to_wal(db: apsw.Connection, path: Path) -> None:
    """Make the database a WAL one that is durable at every commit.

    Raises:
        StoreUnavailable: the file system cannot do it (for example a network file system).
    """
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        msg = (
            f"{path}: its file system cannot do write-ahead logging (got {mode!r}); "
            "put it on a local disk"
        )
        raise StoreUnavailable(msg, path=str(path), journal_mode=str(mode))
    db.pragma("synchronous", "FULL")
