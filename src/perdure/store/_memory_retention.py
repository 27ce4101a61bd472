"""What is kept of the past, in a memory store: functions over a transaction of `Tables`."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from perdure.ids import TenantId, ThreadId
from perdure.model import (
    Collection,
    Compacted,
    CopyRow,
    EffectRow,
    Erased,
    Erasure,
    FrameRow,
    NotErased,
    QuotaRow,
    RunRow,
    StoredPage,
    TagRow,
    Usage,
)
from perdure.store import _rules as rules
from perdure.store._kept_rules import not_erased, tag_order
from perdure.store._memory_tables import Tables


class MemoryRetention:
    """The calls of `RetentionStore`, for a memory store."""

    _tables: Tables

    def _write(self, name: str) -> AbstractAsyncContextManager[Tables]:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    async def find_copies(
        self, tenant: TenantId, thread: ThreadId, *, upto: int | None = None, limit: int = 100_000
    ) -> list[CopyRow]:
        """Return the whole copies of a thread's state, newest first."""
        self._check_open()
        found = [
            row
            for (owner, line, made_at), row in self._tables.copies.items()
            if (owner, line) == (tenant, thread) and (upto is None or made_at <= upto)
        ]
        return sorted(found, key=_made_at, reverse=True)[: rules.limit_of(limit)]

    async def erase(self, erasure: Erasure) -> Erased | NotErased:
        """Replace the bodies of frames; see `RetentionStore.erase`."""
        async with self._write("erase") as tables:
            return _erase(tables, erasure)

    async def put_tag(self, tag: TagRow) -> None:
        """Insert or replace a tag."""
        async with self._write("tag") as tables:
            tables.put(tables.tags, (tag.tenant, tag.thread, tag.name), tag)

    async def drop_tag(self, tenant: TenantId, thread: ThreadId, name: str) -> bool:
        """Remove a tag; return whether there was one."""
        async with self._write("tag") as tables:
            was_there = (tenant, thread, name) in tables.tags
            tables.drop(tables.tags, (tenant, thread, name))
            return was_there

    async def find_tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the thread's tags, by checkpoint, then name."""
        self._check_open()
        with self._tables.lock:
            found = _tags_of(self._tables, tenant, thread)
        return sorted(found, key=tag_order)

    async def page_tenants(self) -> list[TenantId]:
        """Return the tenants that have pages, sorted."""
        self._check_open()
        with self._tables.lock:
            return sorted({tenant for tenant, _name in self._tables.pages})

    async def begin_collection(self, tenant: TenantId) -> Collection:
        """Begin to collect the tenant's pages; see `RetentionStore.begin_collection`."""
        async with self._write("collect") as tables:
            number = _end_collection(tables, tenant) + 1
            tables.put(tables.collections, tenant, (number, True))
            pages = sum(owner == tenant for owner, _name in tables.pages)
            return Collection(tenant=tenant, number=number, pages=pages)

    async def find_pages(
        self, collection: Collection, *, after: bytes = b"", limit: int = 1000
    ) -> list[StoredPage]:
        """Return pages that are not marked, by name."""
        self._check_open()
        tables = self._tables
        with tables.lock:
            found = [
                StoredPage(name, len(body))
                for (tenant, name), body in tables.pages.items()
                if tenant == collection.tenant
                and name > after
                and (tenant, name) not in tables.marked
            ]
        return sorted(found, key=lambda page: page.name)[: rules.limit_of(limit)]

    async def page_names(self, tenant: TenantId, hashes: Sequence[bytes]) -> list[bytes]:  # noqa: ARG002  # the protocol's
        """Return the hashes: pages are stored under them."""
        return list(hashes)

    async def drop_pages(self, collection: Collection, names: Sequence[bytes]) -> int | None:
        """Remove pages that are still not marked; see `RetentionStore.drop_pages`."""
        tenant = collection.tenant
        async with self._write("drop_pages") as tables:
            if tables.collections.get(tenant) != (collection.number, True):
                return None
            keys = {(tenant, name) for name in names}
            dropped = [key for key in keys if key in tables.pages and key not in tables.marked]
            for key in dropped:
                tables.drop(tables.pages, key)
            return len(dropped)

    async def end_collection(self, collection: Collection) -> None:
        """Mark no more pages for this collection."""
        async with self._write("collect") as tables:
            if tables.collections.get(collection.tenant) == (collection.number, True):
                _end_collection(tables, collection.tenant)

    async def compact(self, *, rewrite: bool | None = None) -> Compacted:  # noqa: ARG002  # the protocol's
        """Return nothing of interest: there is no file."""
        return Compacted()

    async def usage(self, tenant: TenantId | None = None) -> Usage:
        """Return the bytes that a tenant takes; None: all of them."""
        self._check_open()
        tables = self._tables
        with tables.lock:
            runs = [row for row in tables.runs.values() if tenant in {None, row.tenant}]
            effects = [row for row in tables.effects.values() if tenant in {None, row.tenant}]
            pages = [body for (owner, _), body in tables.pages.items() if tenant in {None, owner}]
        return Usage(
            frames=sum(len(f.body) for row in runs for f in tables.frames.get(row.run_id, ())),
            pages=sum(map(len, pages)),
            ledger=sum(map(_effect_bytes, effects)),
        )

    async def free_bytes(self) -> int | None:
        """Return None: nobody can tell."""
        return None

    async def set_quota(self, quota: QuotaRow) -> None:
        """Insert or replace a quota."""
        async with self._write("quota") as tables:
            tables.put(tables.quotas, quota.tenant, quota)

    async def drop_quota(self, tenant: TenantId) -> bool:
        """Remove a quota; return whether there was one."""
        async with self._write("quota") as tables:
            was_there = tenant in tables.quotas
            tables.drop(tables.quotas, tenant)
            return was_there

    async def find_quotas(self) -> list[QuotaRow]:
        """Return the quotas, by tenant."""
        self._check_open()
        with self._tables.lock:
            return [row for _tenant, row in sorted(self._tables.quotas.items())]


def _end_collection(tables: Tables, tenant: TenantId) -> int:
    """End whatever collection is under way; return the number of the newest one."""
    number, _is_under_way = tables.collections.get(tenant, (0, False))
    tables.put(tables.collections, tenant, (number, False))
    for key in [key for key in tables.marked if key[0] == tenant]:
        tables.drop(tables.marked, key)
    return number


def _made_at(row: CopyRow) -> int:
    return row.made_at


def _effect_bytes(row: EffectRow) -> int:
    return len(row.request_wire) + len(row.result_wire or b"")


def _tags_of(tables: Tables, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
    return [row for row in tables.tags.values() if (row.tenant, row.thread) == (tenant, thread)]


def _erase(tables: Tables, erasure: Erasure) -> Erased | NotErased:
    row = tables.runs.get(erasure.run_id)
    frames = {frame.first_seq: frame for frame in tables.frames.get(erasure.run_id, ())}
    tags = _tags_of(tables, erasure.tenant, erasure.thread)
    reason = not_erased(
        erasure,
        status=None if row is None else row.status,
        hashes={seq: frame.hash for seq, frame in frames.items()},
        tags={(tag.name, tag.checkpoint) for tag in tags},
    )
    if reason is not None or row is None:
        return NotErased(reason or "")
    for copy in erasure.copies:
        place = (row.tenant, row.thread, copy.made_at)
        if place not in tables.copies:
            tables.put(tables.copies, place, copy)
    count = _erase_frames(tables, row, frames, erasure)
    for effect in erasure.effects:
        known = tables.effects.get(effect.effect_id)
        if known is not None and known.run_id == row.run_id:
            left = {"request_wire": effect.request_wire, "result_wire": effect.result_wire}
            tables.put(tables.effects, effect.effect_id, replace(known, **left))
    _end_collection(tables, row.tenant)
    key = (row.tenant, row.thread)
    tables.put(tables.threads, key, replace(tables.threads[key], pruned_at_us=erasure.at_us))
    return Erased(count)


def _erase_frames(
    tables: Tables, row: RunRow, frames: dict[int, FrameRow], erasure: Erasure
) -> int:
    new = {each.first_seq: each.body for each in erasure.frames}
    count = sum(frames[seq].body != body for seq, body in new.items())
    left = tuple(
        replace(frame, body=new.get(seq, frame.body)) for seq, frame in sorted(frames.items())
    )
    tables.put(tables.frames, row.run_id, left)
    for key, copy in list(tables.copies.items()):
        if key[:2] == (row.tenant, row.thread) and copy.ordinal == row.ordinal:
            frame = _frame_of(left, copy.seq)
            if frame is not None and frame.first_seq in new:
                tables.drop(tables.copies, key)
    return count


def _frame_of(frames: Sequence[FrameRow], seq: int) -> FrameRow | None:
    return next((f for f in frames if f.first_seq <= seq < f.first_seq + f.count), None)


def note_copy(tables: Tables, row: RunRow, made_at: int, seq: int) -> None:
    """Remember where a whole copy is."""
    if made_at:
        copy = CopyRow(made_at=made_at, ordinal=row.ordinal, seq=seq)
        tables.put(tables.copies, (row.tenant, row.thread, made_at), copy)
