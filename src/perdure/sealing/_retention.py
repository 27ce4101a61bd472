"""The calls of a sealed store that say what is kept: names of tags and digests are sealed too."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from perdure.ids import TenantId, ThreadId
from perdure.model import Erased, Erasure, NotErased, TagRow
from perdure.sealing import _rows as rows
from perdure.sealing._seals import Seals
from perdure.store.api import Store

Where = tuple[TenantId, ThreadId]


class SealedRetention:
    """Those calls of `RetentionStore` that carry something of users; others are passed on."""

    inner: Store

    async def _seals(
        self, wheres: Iterable[Where], *, make: bool = False, shared_only: bool = False
    ) -> Callable[[Where], Seals]:
        raise NotImplementedError

    async def _tenant_seals(self, tenant: TenantId, *, make: bool = False) -> Seals:
        raise NotImplementedError

    async def _has_keys(self, tenant: TenantId) -> bool:
        raise NotImplementedError

    async def erase(self, erasure: Erasure) -> Erased | NotErased:
        """Replace the bodies of frames by sealed digests; see `RetentionStore.erase`.

        The same digests are sealed into the same bytes, as an erasure may come again.
        """
        where = (erasure.tenant, erasure.thread)
        seals = (await self._seals([where]))(where)
        return await self.inner.erase(
            replace(
                erasure,
                frames=tuple(
                    replace(
                        each,
                        body=seals.seal(
                            each.body, "journal frame", (erasure.run_id, each.first_seq), exact=True
                        ),
                    )
                    for each in erasure.frames
                ),
                effects=tuple(rows.sealed_effect(row, seals) for row in erasure.effects),
                tags=frozenset(
                    (_sealed_name(name, erasure.thread, seals), checkpoint)
                    for name, checkpoint in erasure.tags
                ),
            )
        )

    async def put_tag(self, tag: TagRow) -> None:
        """Insert or replace a tag."""
        where = (tag.tenant, tag.thread)
        await self.inner.put_tag(sealed_tag(tag, (await self._seals([where], make=True))(where)))

    async def drop_tag(self, tenant: TenantId, thread: ThreadId, name: str) -> bool:
        """Remove a tag; return whether there was one."""
        if not await self._has_keys(tenant):
            return False
        seals = await self._tenant_seals(tenant)
        return await self.inner.drop_tag(tenant, thread, _sealed_name(name, thread, seals))

    async def find_tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the thread's tags, by checkpoint, then name."""
        found = await self.inner.find_tags(tenant, thread)
        if not found:
            return found
        seals = (await self._seals([(tenant, thread)]))((tenant, thread))
        return sorted((_plain_tag(tag, seals) for tag in found), key=_order)

    async def page_names(self, tenant: TenantId, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the names that pages are stored under, in order."""
        if not hashes or not await self._has_keys(tenant):
            return list(hashes)
        seals = await self._tenant_seals(tenant)
        return [seals.page_name(named) for named in hashes]


def _order(tag: TagRow) -> tuple[int, str]:
    return tag.checkpoint, tag.name


def _sealed_name(name: str, thread: str, seals: Seals) -> str:
    return seals.seal_name(name, "tag", thread)


def sealed_tag(tag: TagRow, seals: Seals) -> TagRow:
    """Return a tag as it is stored."""
    return replace(
        tag,
        name=_sealed_name(tag.name, tag.thread, seals),
        by=seals.seal_text(tag.by, "tagged by", tag.name),
    )


def _plain_tag(tag: TagRow, seals: Seals) -> TagRow:
    name = seals.unseal_name(tag.name, "tag", tag.thread)
    return replace(tag, name=name, by=seals.unseal_text(tag.by, "tagged by", name))
