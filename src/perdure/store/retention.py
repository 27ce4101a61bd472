"""The part of a store's protocol that says what is kept: copies, tags, erasure, pages, room.

Rules, beside those of `perdure.store.api`:

- **A page that a collection was not told of stays.** `begin_collection` returns after every write
  of pages that was under way is durable. From then on each put of a page (`PagesPut`, pages of a
  start, `put_pages`) marks it, also where it is there already, in the put's own transaction.
  `drop_pages` removes pages that are not marked only, and only for the newest collection of the
  tenant. So a page that anybody puts meanwhile stays. No clock has a part in it.
- **An erasure ends a collection.** What it saw may be what was erased: it has to begin again.
- **What is erased was over.** Frames of runs that have ended only; a frame's other columns stay, so
  that the hash chain verifies.
"""

from collections.abc import Sequence
from typing import Protocol

from perdure.ids import TenantId, ThreadId
from perdure.model.kept import (
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


class RetentionStore(Protocol):
    """What a store does about the past."""

    async def find_copies(
        self, tenant: TenantId, thread: ThreadId, *, upto: int | None = None, limit: int = 100_000
    ) -> list[CopyRow]:
        """Return the whole copies of a thread's state, newest first.

        Args:
            tenant: whose.
            thread: which.
            upto: only those that checkpoint `upto` can be read by; None: all.
            limit: at most this many rows, 1 to 100,000.
        """
        ...

    async def erase(self, erasure: Erasure) -> Erased | NotErased:
        """Replace the bodies of frames, and the requests and results of effects.

        Copies that are given are noted, those in erased frames are forgotten, the thread's
        `pruned_at_us` is set, and a collection of the tenant is ended. Refused as a whole where the
        run has not ended, a frame's hash is another one, or the thread's tags are not those given.
        Idempotent: yes; a frame whose body is as given already is not counted again.
        Durability: when it returns. Atomicity: all of it with the checks.
        """
        ...

    # -- tags --------------------------------------------------------------------------------------

    async def put_tag(self, tag: TagRow) -> None:
        """Insert the tag, or replace the one of the same (tenant, thread, name).

        Idempotent: yes. Durability: when it returns.
        """

    async def drop_tag(self, tenant: TenantId, thread: ThreadId, name: str) -> bool:
        """Remove a tag; return whether there was one. Durability: when it returns."""
        ...

    async def find_tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the thread's tags, by checkpoint, then name."""
        ...

    # -- pages -------------------------------------------------------------------------------------

    async def page_tenants(self) -> list[TenantId]:
        """Return the tenants that have pages, sorted."""
        ...

    async def begin_collection(self, tenant: TenantId) -> Collection:
        """Begin to collect the tenant's pages; whatever collection was under way is over.

        Idempotent: no; a second call begins another one.
        Durability: when it returns, and every write of pages that was under way before.
        """
        ...

    async def find_pages(
        self, collection: Collection, *, after: bytes = b"", limit: int = 1000
    ) -> list[StoredPage]:
        """Return pages of the tenant that are not marked, by stored name.

        Args:
            collection: which.
            after: only names above it (the next page).
            limit: at most this many rows, 1 to 100,000.
        """
        ...

    async def page_names(self, tenant: TenantId, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the names that pages are stored under, in order."""
        ...

    async def drop_pages(self, collection: Collection, names: Sequence[bytes]) -> int | None:
        """Remove those of the pages that are still not marked; return how many.

        None: the collection is over (another one began, or something was erased): nothing was
        removed. Idempotent: yes; what is gone is not counted again.
        Durability: when it returns. Atomicity: all of them, with the check.
        """
        ...

    async def end_collection(self, collection: Collection) -> None:
        """Mark no more pages for this collection. Idempotent."""

    # -- room --------------------------------------------------------------------------------------

    async def compact(self, *, rewrite: bool | None = None) -> Compacted:
        """Give room that is free in the store's files back to the system, where the store can.

        `rewrite`: whether files are rewritten, which keeps other writers out meanwhile; None: if
        that is quick.
        Durability: nothing that is stored changes.
        """
        ...

    async def usage(self, tenant: TenantId | None = None) -> Usage:
        """Return the bytes that a tenant takes; None: all of them. Reads every row's length."""
        ...

    async def free_bytes(self) -> int | None:
        """Return how much room is left for new runs; below 0: none; None: it can't tell."""
        ...

    async def set_quota(self, quota: QuotaRow) -> None:
        """Insert or replace the quota of the tenant. Idempotent. Durability: when it returns."""

    async def drop_quota(self, tenant: TenantId) -> bool:
        """Remove a quota; return whether there was one."""
        ...

    async def find_quotas(self) -> list[QuotaRow]:
        """Return the quotas, by tenant."""
        ...
