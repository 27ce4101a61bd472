"""The SQLite store's calls that say what is kept: each hands a function of `_kept` to a thread."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

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
from perdure.store.sqlite import _kept
from perdure.store.sqlite._os_thread import ConnectionThread, Writer
from perdure.store.sqlite._url import SqliteOptions


class SqliteRetention:
    """The calls of `RetentionStore`, for a store that has the two threads."""

    _options: SqliteOptions

    def _open_threads(self) -> tuple[Writer, ConnectionThread]:
        raise NotImplementedError

    def _look(self, name: str, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        return self._open_threads()[1].call(name, lambda db: work(db, *args))

    def _change(self, name: str, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        return self._open_threads()[0].call(name, lambda db: work(db, *args))

    async def find_copies(
        self, tenant: TenantId, thread: ThreadId, *, upto: int | None = None, limit: int = 100_000
    ) -> list[CopyRow]:
        """Return the whole copies of a thread's state, newest first."""
        most = rules.limit_of(limit)
        found: list[CopyRow] = await self._look(
            "copies", _kept.find_copies, tenant, thread, upto, most
        )
        return found

    async def erase(self, erasure: Erasure) -> Erased | NotErased:
        """Replace the bodies of frames; see `RetentionStore.erase`."""
        outcome: Erased | NotErased = await self._change("erase", _kept.erase, erasure)
        return outcome

    async def put_tag(self, tag: TagRow) -> None:
        """Insert or replace a tag."""
        await self._change("tag", _kept.put_tag, tag)

    async def drop_tag(self, tenant: TenantId, thread: ThreadId, name: str) -> bool:
        """Remove a tag; return whether there was one."""
        return bool(await self._change("tag", _kept.drop_tag, tenant, thread, name))

    async def find_tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the thread's tags, by checkpoint, then name."""
        found: list[TagRow] = await self._look("tags", _kept.find_tags, tenant, thread)
        return found

    async def page_tenants(self) -> list[TenantId]:
        """Return the tenants that have pages, sorted."""
        found: list[TenantId] = await self._look("page_tenants", _kept.page_tenants)
        return found

    async def begin_collection(self, tenant: TenantId) -> Collection:
        """Begin to collect the tenant's pages; see `RetentionStore.begin_collection`."""
        begun: Collection = await self._change("collect", _kept.begin_collection, tenant)
        return begun

    async def find_pages(
        self, collection: Collection, *, after: bytes = b"", limit: int = 1000
    ) -> list[StoredPage]:
        """Return pages of the tenant that are not marked, by name."""
        most = rules.limit_of(limit)
        found: list[StoredPage] = await self._look(
            "find_pages", _kept.find_pages, collection, after, most
        )
        return found

    async def page_names(self, tenant: TenantId, hashes: Sequence[bytes]) -> list[bytes]:  # noqa: ARG002  # the protocol's
        """Return the hashes: pages are stored under them."""
        return list(hashes)

    async def drop_pages(self, collection: Collection, names: Sequence[bytes]) -> int | None:
        """Remove pages that are still not marked; see `RetentionStore.drop_pages`."""
        dropped: int | None = await self._change("drop_pages", _kept.drop_pages, collection, names)
        return dropped

    async def end_collection(self, collection: Collection) -> None:
        """Mark no more pages for this collection."""
        await self._change("collect", _kept.end_collection, collection)

    # -- room --------------------------------------------------------------------------------------

    async def compact(self, *, rewrite: bool | None = None) -> Compacted:
        """Rewrite the file without its free room, if wanted or quick, and empty its log."""
        size, room = _bytes_of(self._options.path), await self.free_bytes()
        # Outside of a transaction: neither statement may be part of one.
        done = await self._open_threads()[0].peek(lambda db: _kept.compact(db, size, room, rewrite))
        return replace(done, after=_bytes_of(self._options.path))

    async def usage(self, tenant: TenantId | None = None) -> Usage:
        """Return the bytes that a tenant takes; None: all of them."""
        found: Usage = await self._look("usage", _kept.usage, tenant)
        return found

    async def free_bytes(self) -> int | None:
        """Return how much room there is on the disk of the file, without the reserve."""
        try:
            free = shutil.disk_usage(self._options.path.parent).free
        except OSError:
            return None
        return free - int(self._options.reserve_mb * 1024 * 1024)

    async def set_quota(self, quota: QuotaRow) -> None:
        """Insert or replace a quota."""
        await self._change("quota", _kept.set_quota, quota)

    async def drop_quota(self, tenant: TenantId) -> bool:
        """Remove a quota; return whether there was one."""
        return bool(await self._change("quota", _kept.drop_quota, tenant))

    async def find_quotas(self) -> list[QuotaRow]:
        """Return the quotas, by tenant."""
        found: list[QuotaRow] = await self._look("quotas", _kept.find_quotas)
        return found


def _bytes_of(path: Path) -> int:
    """Return the bytes of a database file and its log."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(each.stat().st_size for each in files if each.exists())
