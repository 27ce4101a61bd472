"""What is kept of the past, and how much room it takes: functions over an open transaction."""

from collections.abc import Sequence

import apsw

from perdure.ids import TenantId, ThreadId
from perdure.model import (
    Append,
    Collection,
    Compacted,
    CopyRow,
    Erased,
    Erasure,
    NotErased,
    QuotaRow,
    RunStatus,
    StoredPage,
    TagRow,
    ThreadBased,
    Usage,
)
from perdure.store._kept_rules import not_erased, tag_order
from perdure.store._rows import Row
from perdure.store.sqlite.limits import REWRITE_BYTES_MAX

# -- copies ----------------------------------------------------------------------------------------

_NOTE_COPY = """
INSERT INTO perdure_copies (tenant, thread, made_at, ordinal, seq)
VALUES (?, ?, ?, (SELECT ordinal FROM perdure_runs WHERE run_no = ?), ?)
ON CONFLICT (tenant, thread, made_at) DO UPDATE SET ordinal = excluded.ordinal, seq = excluded.seq
"""
_FIND_COPIES = """
SELECT made_at, ordinal, seq FROM perdure_copies
WHERE tenant = ? AND thread = ? AND made_at <= ? ORDER BY made_at DESC LIMIT ?
"""
_ANY = 1 << 62


def note_copy(db: apsw.Connection, run_no: int, item: Append, change: ThreadBased) -> None:
    """Remember where a whole copy is."""
    params = (item.tenant, item.thread, change.made_at, run_no, change.seq)
    db.execute(_NOTE_COPY, params)


def find_copies(
    db: apsw.Connection, tenant: TenantId, thread: ThreadId, upto: int | None, limit: int
) -> list[CopyRow]:
    """Return copies, newest first."""
    params = (tenant, thread, _ANY if upto is None else upto, limit)
    return [
        CopyRow(made_at=made_at, ordinal=ordinal, seq=seq)
        for made_at, ordinal, seq in db.execute(_FIND_COPIES, params)
    ]


# -- erasure ---------------------------------------------------------------------------------------

_RUN = "SELECT run_no, status, ordinal FROM perdure_runs WHERE run_id = ?"
_HASH = "SELECT hash FROM perdure_frames WHERE run_no = ? AND first_seq = ?"
_ERASE = "UPDATE perdure_frames SET body = ?1 WHERE run_no = ?2 AND first_seq = ?3 AND body != ?1"
_EMPTY = """
UPDATE perdure_effects SET request_wire = ?, result_wire = ? WHERE effect_id = ? AND run_no = ?
"""
_FORGET_COPIES = """
DELETE FROM perdure_copies WHERE tenant = ?1 AND thread = ?2 AND ordinal = ?3 AND seq >= ?4
    AND seq < ?4 + (SELECT count FROM perdure_frames WHERE run_no = ?5 AND first_seq = ?4)
"""


def erase(db: apsw.Connection, erasure: Erasure) -> Erased | NotErased:
    """Replace the bodies of frames; see `RetentionStore.erase`."""
    rows: list[Row] = db.execute(_RUN, (erasure.run_id,)).fetchall()
    run_no, status, ordinal = rows[0] if rows else (0, None, 0)
    seqs = [each.first_seq for each in erasure.frames]
    reason = not_erased(
        erasure,
        status=None if status is None else RunStatus(status),
        hashes={seq: db.execute(_HASH, (run_no, seq)).get for seq in seqs},
        tags={(t.name, t.checkpoint) for t in find_tags(db, erasure.tenant, erasure.thread)},
    )
    if reason is not None:
        return NotErased(reason)
    before = db.total_changes()
    db.executemany(_ERASE, [(each.body, run_no, each.first_seq) for each in erasure.frames])
    count = db.total_changes() - before
    place = (erasure.tenant, erasure.thread)
    noted = [(*place, copy.made_at, copy.ordinal, copy.seq) for copy in erasure.copies]
    db.executemany("INSERT OR IGNORE INTO perdure_copies VALUES (?, ?, ?, ?, ?)", noted)
    for seq in seqs:
        db.execute(_FORGET_COPIES, (*place, ordinal, seq, run_no))
    for effect in erasure.effects:
        left = (effect.request_wire, effect.result_wire)
        db.execute(_EMPTY, (*left, effect.effect_id, run_no))
    _end(db, erasure.tenant)
    sql = "UPDATE perdure_threads SET pruned_at_us = ? WHERE tenant = ? AND thread = ?"
    db.execute(sql, (erasure.at_us, *place))
    return Erased(count)


# -- tags ------------------------------------------------------------------------------------------

_PUT_TAG = """
INSERT INTO perdure_tags (tenant, thread, name, checkpoint, by, at_us) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, thread, name) DO UPDATE
SET checkpoint = excluded.checkpoint, by = excluded.by, at_us = excluded.at_us
"""


def put_tag(db: apsw.Connection, tag: TagRow) -> None:
    """Insert or replace a tag."""
    db.execute(_PUT_TAG, (tag.tenant, tag.thread, tag.name, tag.checkpoint, tag.by, tag.at_us))


def drop_tag(db: apsw.Connection, tenant: TenantId, thread: ThreadId, name: str) -> bool:
    """Remove a tag; return whether there was one."""
    sql = "DELETE FROM perdure_tags WHERE tenant = ? AND thread = ? AND name = ?"
    db.execute(sql, (tenant, thread, name))
    return db.changes() > 0


def find_tags(db: apsw.Connection, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
    """Return the thread's tags, by checkpoint, then name."""
    sql = "SELECT name, checkpoint, by, at_us FROM perdure_tags WHERE tenant = ? AND thread = ?"
    found = [
        TagRow(tenant=tenant, thread=thread, name=name, checkpoint=checkpoint, by=by, at_us=at_us)
        for name, checkpoint, by, at_us in db.execute(sql, (tenant, thread))
    ]
    return sorted(found, key=tag_order)


# -- pages -----------------------------------------------------------------------------------------

_BEGIN = """
INSERT INTO perdure_collections (tenant, number, is_under_way) VALUES (?, 1, 1)
ON CONFLICT (tenant) DO UPDATE SET number = number + 1, is_under_way = 1 RETURNING number
"""
_FIND_PAGES = """
SELECT p.hash, length(p.body) FROM perdure_pages AS p WHERE p.tenant = ?1 AND p.hash > ?2
    AND NOT EXISTS (SELECT 1 FROM perdure_marked AS m WHERE m.tenant = ?1 AND m.hash = p.hash)
ORDER BY p.hash LIMIT ?3
"""
_DROP_PAGE = """
DELETE FROM perdure_pages WHERE tenant = ?1 AND hash = ?2
    AND NOT EXISTS (SELECT 1 FROM perdure_marked WHERE tenant = ?1 AND hash = ?2)
"""
# Jumps from tenant to tenant along the index: there are few tenants and many pages.
_TENANTS = """
WITH RECURSIVE each (tenant) AS (
    SELECT min(tenant) FROM perdure_pages
    UNION ALL
    SELECT (SELECT min(p.tenant) FROM perdure_pages AS p WHERE p.tenant > each.tenant) FROM each
    WHERE each.tenant IS NOT NULL
)
SELECT tenant FROM each WHERE tenant IS NOT NULL
"""


def page_tenants(db: apsw.Connection) -> list[TenantId]:
    """Return the tenants that have pages, sorted."""
    return [TenantId(tenant) for (tenant,) in db.execute(_TENANTS)]


def begin_collection(db: apsw.Connection, tenant: TenantId) -> Collection:
    """Begin to collect the tenant's pages; whatever collection was under way is over."""
    _end(db, tenant)
    number = db.execute(_BEGIN, (tenant,)).get
    pages = db.execute("SELECT count(*) FROM perdure_pages WHERE tenant = ?", (tenant,)).get
    return Collection(tenant=tenant, number=number, pages=pages)


def find_pages(
    db: apsw.Connection, collection: Collection, after: bytes, limit: int
) -> list[StoredPage]:
    """Return pages that are not marked, by name."""
    params = (collection.tenant, after, limit)
    return [StoredPage(name, size) for name, size in db.execute(_FIND_PAGES, params)]


def _is_under_way(db: apsw.Connection, collection: Collection) -> bool:
    sql = "SELECT 1 FROM perdure_collections WHERE tenant = ? AND number = ? AND is_under_way"
    return db.execute(sql, (collection.tenant, collection.number)).get is not None


def drop_pages(db: apsw.Connection, collection: Collection, names: Sequence[bytes]) -> int | None:
    """Remove pages that are still not marked; None: the collection is over."""
    if not _is_under_way(db, collection):
        return None
    before = db.total_changes()
    db.executemany(_DROP_PAGE, [(collection.tenant, name) for name in names])
    return db.total_changes() - before


def end_collection(db: apsw.Connection, collection: Collection) -> None:
    """Mark no more pages for this collection."""
    if _is_under_way(db, collection):
        _end(db, collection.tenant)


def _end(db: apsw.Connection, tenant: TenantId) -> None:
    db.execute("UPDATE perdure_collections SET is_under_way = 0 WHERE tenant = ?", (tenant,))
    db.execute("DELETE FROM perdure_marked WHERE tenant = ?", (tenant,))


# -- room ------------------------------------------------------------------------------------------


def compact(db: apsw.Connection, size: int, room: int | None, rewrite: bool | None) -> Compacted:  # noqa: FBT001  # as the protocol has it
    """Rewrite the file without its free room, if wanted or quick, and empty the log.

    Outside of any transaction. `size`: bytes of the files; `room`: free on the disk.
    """
    page, free, count = (db.pragma(name) for name in ("page_size", "freelist_count", "page_count"))
    used = (count - free) * page
    if rewrite is None:
        rewrite = used <= REWRITE_BYTES_MAX and free > count // 4
    can = rewrite and free > 0 and (room is None or room > 2 * used)  # the log, then the file
    if can:
        db.execute("VACUUM")
        free = db.pragma("freelist_count")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Compacted(before=size, free=free * page, is_rewritten=can)


_FRAMES_OF_ALL = "SELECT coalesce(sum(length(body)), 0) FROM perdure_frames"
_FRAMES_OF = """
SELECT coalesce(sum(length(f.body)), 0) FROM perdure_runs AS r
JOIN perdure_frames AS f ON f.run_no = r.run_no WHERE r.tenant = ?
"""
_PAGES = "SELECT coalesce(sum(length(body)), 0) FROM perdure_pages"
_LEDGER = """
SELECT coalesce(sum(length(request_wire) + coalesce(length(result_wire), 0)), 0)
FROM perdure_effects
"""


def usage(db: apsw.Connection, tenant: TenantId | None) -> Usage:
    """Return the bytes that a tenant takes; None: all of them."""
    if tenant is None:
        found = [db.execute(sql).get for sql in (_FRAMES_OF_ALL, _PAGES, _LEDGER)]
    else:
        texts = (_FRAMES_OF, f"{_PAGES} WHERE tenant = ?", f"{_LEDGER} WHERE tenant = ?")
        found = [db.execute(sql, (tenant,)).get for sql in texts]
    frames, pages, ledger = found
    return Usage(frames=frames, pages=pages, ledger=ledger)


def set_quota(db: apsw.Connection, quota: QuotaRow) -> None:
    """Insert or replace a quota."""
    sql = "INSERT OR REPLACE INTO perdure_quotas (tenant, bytes_max, set_at_us) VALUES (?, ?, ?)"
    db.execute(sql, (quota.tenant, quota.bytes_max, quota.set_at_us))


def drop_quota(db: apsw.Connection, tenant: TenantId) -> bool:
    """Remove a quota; return whether there was one."""
    db.execute("DELETE FROM perdure_quotas WHERE tenant = ?", (tenant,))
    return db.changes() > 0


def find_quotas(db: apsw.Connection) -> list[QuotaRow]:
    """Return the quotas, by tenant."""
    sql = "SELECT tenant, bytes_max, set_at_us FROM perdure_quotas ORDER BY tenant"
    return [
        QuotaRow(tenant=TenantId(tenant), bytes_max=bytes_max, set_at_us=set_at_us)
        for tenant, bytes_max, set_at_us in db.execute(sql)
    ]
