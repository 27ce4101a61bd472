"""The PostgreSQL store's calls that say what is kept: each one statement (`sql/0008_kept.sql`)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.ids import TenantId, ThreadId
from perdure.model import (
    Collection,
    Compacted,
    CopyRow,
    Erased,
    Erasure,
    NotErased,
    QuotaRow,
    StoredPage,
    TagRow,
    Usage,
)
from perdure.store import _rules as rules
from perdure.store._kept_rules import tag_order
from perdure.store.postgres._wire import Blob, as_json, text_in, text_out

FIND_COPIES = """
SELECT made_at, ordinal, seq FROM @.copies
WHERE tenant = %s AND thread = %s AND made_at <= coalesce(%s::bigint, made_at)
ORDER BY made_at DESC LIMIT %s
"""
ERASE = (
    "SELECT * FROM @.erase(%s::text, %s::text, %s::text, %s::bigint, %s::jsonb, %s::jsonb, "
    "%s::jsonb, %s::jsonb, %s::bytea)"
)
PUT_TAG = "SELECT @.put_tag(%s::text, %s::text, %s::text, %s::bigint, %s::text, %s::bigint)"
DROP_TAG = "DELETE FROM @.tags WHERE tenant = %s AND thread = %s AND name = %s RETURNING 1"
FIND_TAGS = "SELECT name, checkpoint, by, at_us FROM @.tags WHERE tenant = %s AND thread = %s"
# Jumps from tenant to tenant along the index: there are few tenants and many pages.
PAGE_TENANTS = """
WITH RECURSIVE each (tenant) AS (
    (SELECT tenant FROM @.pages ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT p.tenant FROM @.pages AS p WHERE p.tenant > each.tenant
            ORDER BY p.tenant LIMIT 1)
    FROM each WHERE each.tenant IS NOT NULL
)
SELECT tenant FROM each WHERE tenant IS NOT NULL
"""
BEGIN = "SELECT @.begin_collection(%s::text)"
COUNT_PAGES = "SELECT count(*) FROM @.pages WHERE tenant = %s"
FIND_PAGES = """
SELECT p.hash, octet_length(p.body) FROM @.pages AS p
WHERE p.tenant = %(tenant)s AND p.hash > %(after)s::bytea
    AND NOT EXISTS (SELECT FROM @.marked AS m WHERE m.tenant = p.tenant AND m.hash = p.hash)
ORDER BY p.hash LIMIT %(limit)s
"""
DROP_PAGES = "SELECT @.drop_pages(%s::text, %s::bigint, %s::bytea[])"
END = (
    "SELECT @.end_collection(c.tenant) FROM @.collections AS c "
    "WHERE c.tenant = %s AND c.number = %s AND c.is_under_way"
)
USAGE = """
SELECT
    (SELECT coalesce(sum(octet_length(body)), 0) FROM @.frames
        WHERE %(tenant)s::text IS NULL OR tenant = %(tenant)s)::bigint,
    (SELECT coalesce(sum(octet_length(body)), 0) FROM @.pages
        WHERE %(tenant)s::text IS NULL OR tenant = %(tenant)s)::bigint,
    (SELECT coalesce(sum(octet_length(request_wire) + coalesce(octet_length(result_wire), 0)), 0)
        FROM @.effects WHERE %(tenant)s::text IS NULL OR tenant = %(tenant)s)::bigint
"""
SET_QUOTA = """
INSERT INTO @.quotas (tenant, bytes_max, set_at_us) VALUES (%s, %s, %s)
ON CONFLICT (tenant) DO UPDATE
SET bytes_max = excluded.bytes_max, set_at_us = excluded.set_at_us
"""
DROP_QUOTA = "DELETE FROM @.quotas WHERE tenant = %s RETURNING 1"
FIND_QUOTAS = "SELECT tenant, bytes_max, set_at_us FROM @.quotas ORDER BY tenant"


class PostgresRetention:
    """The calls of `RetentionStore`, for a store that makes calls."""

    def _call(self, name: str, sql: str, params: Any = (), *, is_write: bool = False) -> Any:
        raise NotImplementedError

    async def find_copies(
        self, tenant: TenantId, thread: ThreadId, *, upto: int | None = None, limit: int = 100_000
    ) -> list[CopyRow]:
        """Return the whole copies of a thread's state, newest first."""
        params = (tenant, thread, upto, rules.limit_of(limit))
        return [
            CopyRow(made_at=made_at, ordinal=ordinal, seq=seq)
            for made_at, ordinal, seq in await self._call("copies", FIND_COPIES, params)
        ]

    async def erase(self, erasure: Erasure) -> Erased | NotErased:
        """Replace the bodies of frames; see `RetentionStore.erase`."""
        blob = Blob()
        frames = [
            (each.first_seq, blob.put(each.hash), blob.put(each.body)) for each in erasure.frames
        ]
        effects = [
            (row.effect_id, blob.put(row.request_wire), blob.maybe(row.result_wire))
            for row in erasure.effects
        ]
        seen = sorted(erasure.tags, key=_in_bytes)
        place = (erasure.tenant, erasure.thread, erasure.run_id, erasure.at_us)
        noted = [(copy.made_at, copy.ordinal, copy.seq) for copy in erasure.copies]
        lists = (as_json(each) for each in (frames, effects, seen, noted))
        params = (*place, *lists, blob.bytes())
        [(count, reason)] = await self._call("erase", ERASE, params, is_write=True)
        return Erased(count) if reason is None else NotErased(reason)

    async def put_tag(self, tag: TagRow) -> None:
        """Insert or replace a tag."""
        by = text_in(tag.by)
        params = (tag.tenant, tag.thread, tag.name, tag.checkpoint, by, tag.at_us)
        await self._call("tag", PUT_TAG, params, is_write=True)

    async def drop_tag(self, tenant: TenantId, thread: ThreadId, name: str) -> bool:
        """Remove a tag; return whether there was one."""
        return bool(await self._call("tag", DROP_TAG, (tenant, thread, name), is_write=True))

    async def find_tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the thread's tags, by checkpoint, then name."""
        found = [
            TagRow(
                tenant=tenant,
                thread=thread,
                name=name,
                checkpoint=checkpoint,
                by=text_out(by),
                at_us=at_us,
            )
            for name, checkpoint, by, at_us in await self._call("tags", FIND_TAGS, (tenant, thread))
        ]
        return sorted(found, key=tag_order)

    async def page_tenants(self) -> list[TenantId]:
        """Return the tenants that have pages, sorted."""
        return [TenantId(tenant) for (tenant,) in await self._call("page_tenants", PAGE_TENANTS)]

    async def begin_collection(self, tenant: TenantId) -> Collection:
        """Begin to collect the tenant's pages; see `RetentionStore.begin_collection`."""
        [(number,)] = await self._call("collect", BEGIN, (tenant,), is_write=True)
        [(pages,)] = await self._call("count_pages", COUNT_PAGES, (tenant,))
        return Collection(tenant=tenant, number=number, pages=pages)

    async def find_pages(
        self, collection: Collection, *, after: bytes = b"", limit: int = 1000
    ) -> list[StoredPage]:
        """Return pages of the tenant that are not marked, by name."""
        most = rules.limit_of(limit)
        params = {"tenant": collection.tenant, "after": after, "limit": most}
        found = await self._call("find_pages", FIND_PAGES, params)
        return [StoredPage(bytes(name), size) for name, size in found]

    async def page_names(self, tenant: TenantId, hashes: Sequence[bytes]) -> list[bytes]:  # noqa: ARG002  # the protocol's
        """Return the hashes: pages are stored under them."""
        return list(hashes)

    async def drop_pages(self, collection: Collection, names: Sequence[bytes]) -> int | None:
        """Remove pages that are still not marked; see `RetentionStore.drop_pages`."""
        params = (collection.tenant, collection.number, list(names))
        [(dropped,)] = await self._call("drop_pages", DROP_PAGES, params, is_write=True)
        return None if dropped is None else int(dropped)

    async def end_collection(self, collection: Collection) -> None:
        """Mark no more pages for this collection."""
        params = (collection.tenant, collection.number)
        await self._call("collect", END, params, is_write=True)

    # -- room --------------------------------------------------------------------------------------

    async def compact(self, *, rewrite: bool | None = None) -> Compacted:  # noqa: ARG002  # the protocol's
        """Return nothing of interest: the server's autovacuum makes room for what comes."""
        return Compacted()

    async def usage(self, tenant: TenantId | None = None) -> Usage:
        """Return the bytes that a tenant takes; None: all of them."""
        [(frames, pages, ledger)] = await self._call("usage", USAGE, {"tenant": tenant})
        return Usage(frames=frames, pages=pages, ledger=ledger)

    async def free_bytes(self) -> int | None:
        """Return None: a client can't tell how full the server's disk is."""
        return None

    async def set_quota(self, quota: QuotaRow) -> None:
        """Insert or replace a quota."""
        await self._call("quota", SET_QUOTA, msgspec.structs.astuple(quota), is_write=True)

    async def drop_quota(self, tenant: TenantId) -> bool:
        """Remove a quota; return whether there was one."""
        return bool(await self._call("quota", DROP_QUOTA, (tenant,), is_write=True))

    async def find_quotas(self) -> list[QuotaRow]:
        """Return the quotas, by tenant."""
        return [
            QuotaRow(tenant=TenantId(tenant), bytes_max=bytes_max, set_at_us=set_at_us)
            for tenant, bytes_max, set_at_us in await self._call("quotas", FIND_QUOTAS)
        ]


def _in_bytes(tag: tuple[str, int]) -> bytes:
    """Return what the server sorts a tag's name by."""
    return tag[0].encode()
