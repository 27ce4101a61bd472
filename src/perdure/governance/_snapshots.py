"""Snapshots of sandboxes that journals name, and what becomes of them when journals are pruned.

Theory: a collection is begun (what is there is listed), then every journal of the tenant is read,
then what none of them names goes; see `perdure.sandbox`. A journal that can't be read ends it
before anything is removed: nobody knows what it names.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from types import MappingProxyType

from perdure.codec import decode_record, is_erased, split_frame
from perdure.engine import Runtime
from perdure.governance._erase_scope import runs_of
from perdure.governance._verify import frames_of
from perdure.ids import TenantId
from perdure.model import FrameRow, RunRow
from perdure.model import records as rec
from perdure.sandbox import (
    Collection,
    ExportCollection,
    ExportsCollected,
    Kept,
    LayersCollected,
    Taker,
    folder_name,
)
from perdure.store.api import Store

FrameId = tuple[str, int]
"""(run, first seq) of a frame."""


def snapshot_in(record: rec.Record) -> str | None:
    """Return the snapshot that a record names; None: none."""
    found = getattr(record, "snapshot", None)
    return found if isinstance(found, str) else None


def snapshots_in(frame: FrameRow) -> Iterable[str]:
    """Yield the snapshots that a frame names, which has not been erased.

    Raises:
        DecodeFailed: a record can't be read.
    """
    for encoded in split_frame(frame.body):
        found = snapshot_in(decode_record(encoded))
        if found is not None:
            yield found


class Named:
    """What the journals of a tenant name, and whose they are."""

    def __init__(self) -> None:
        """Name nothing yet."""
        self.snapshots: set[str] = set()
        self.takers: dict[str, Taker] = {}

    @property
    def threads(self) -> set[str]:
        """The folders of all threads."""
        return {*self.takers}

    @classmethod
    async def read(
        cls,
        store: Store,
        tenant: TenantId,
        *,
        is_left_out: Callable[[RunRow], bool] = lambda _row: False,
        gone: AbstractSet[FrameId] = frozenset(),
    ) -> "Named":
        """Read all journals of a tenant.

        Args:
            store: an open one.
            tenant: whose.
            is_left_out: says of a run that what it names does not count.
            gone: frames of which it does not count either.

        Raises:
            StoreCorrupt, DecodeFailed: one can't be read.
        """
        named = cls()
        held: dict[str, dict[int, int]] = {}
        async for row in runs_of(store, tenant):
            name = folder_name(row.thread)
            if name not in held:
                held[name] = {}
                thread = await store.read_thread(tenant, row.thread)
                erased = 0 if thread is None else thread.erased
                named.takers[name] = Taker(erased=erased, held=held[name])
            # Before the journal: whoever has lost the run by now adds nothing to it any more.
            if not row.status.is_final:
                held[name][row.ordinal] = row.token
            if not is_left_out(row):
                await named._run(store, row, gone)
        return named

    async def _run(self, store: Store, row: RunRow, gone: AbstractSet[FrameId]) -> None:
        async for frame in frames_of(store, row.run_id, 1):
            if not is_erased(frame.body) and (row.run_id, frame.first_seq) not in gone:
                self.snapshots.update(snapshots_in(frame))


async def collect_exported(
    collection: ExportCollection | None,
    named: Named,
    *,
    through: Mapping[str, int] = MappingProxyType({}),
    is_dry: bool,
) -> ExportsCollected | None:
    """Remove what of a tenant's exports nothing needs; None: nothing is exported.

    Args:
        collection: that was begun before the journals were read.
        named: what they name.
        through: threads that are being erased, with the newest run of each that is.
        is_dry: count only.
    """
    if collection is None:
        return None
    takers = dict(named.takers)
    for thread, ordinal in through.items():
        name = folder_name(thread)
        held = takers[name].held if name in takers else {}
        takers[name] = Taker(erased=ordinal, held=held)
    about = frozenset(map(folder_name, through))
    return await asyncio.to_thread(
        lambda: collection.finish(named.snapshots, takers, about=about, is_dry=is_dry)
    )


@asynccontextmanager
async def begun(sandbox: Kept, tenant: TenantId) -> AsyncIterator[Collection]:
    """Begin a collection in an OS thread, and end it in one."""
    collection = sandbox.collection(tenant)
    opened = await asyncio.to_thread(collection.__enter__)
    try:
        yield opened
    finally:
        await asyncio.to_thread(collection.__exit__, None, None, None)


async def collect_snapshots(
    runtime: Runtime,
    sandbox: Kept,
    *,
    tenant: str | None = None,
    dry_run: bool = False,
    gone: AbstractSet[FrameId] = frozenset(),
) -> LayersCollected:
    """Remove the snapshots of a tenant that no journal names, and what only those had.

    Live files of threads that were erased, without this folder, go too; and where the sandboxes
    export to a place, what is there and nothing needs.

    Runs may be started and executed meanwhile, on the same folder too. May be stopped at any time,
    and started again.

    Args:
        runtime: an open one; no worker or graph is needed.
        sandbox: whose snapshots: `IsolatedSandboxes(folder)`, `DirectorySandboxes(folder)`.
        tenant: only this tenant's; None: everybody's who has runs in the store.
        dry_run: count them only.
        gone: frames of journals that are treated as erased, for a dry run.

    Raises:
        StoreCorrupt, DecodeFailed: a journal or a layer can't be read; nothing was removed.
        StoreLocked: somebody else collects of this tenant; nothing was removed.
        StoreError: the disk, or the place of exports, cannot serve.

    Durability: what is removed is gone when this returns. Idempotent: yes.
    """
    done = LayersCollected(is_dry=dry_run)
    tenants = {TenantId(tenant)} if tenant is not None else set()
    if tenant is None:
        tenants = {row.tenant async for row in runs_of(runtime.engine.store, None)}
    for owner in sorted(tenants):
        exported = await sandbox.export_collection(owner)
        if await asyncio.to_thread(sandbox.has_tenant, owner):
            done.add(await _collect(runtime, sandbox, owner, is_dry=dry_run, gone=gone))
        if exported is not None:
            named = await Named.read(runtime.engine.store, owner, gone=gone)
            done.add_exported(await collect_exported(exported, named, is_dry=dry_run))
    return done


async def _collect(
    runtime: Runtime,
    sandbox: Kept,
    tenant: TenantId,
    *,
    is_dry: bool,
    gone: AbstractSet[FrameId],
) -> LayersCollected:
    if not is_dry:
        await _forget_erased(runtime, sandbox, tenant)
    probe = runtime.engine.services.probe
    async with begun(sandbox, tenant) as collection:
        # crash-point: prune.layers.begun
        probe("prune.layers.begun")
        named = await Named.read(runtime.engine.store, tenant, gone=gone)
        done = await asyncio.to_thread(
            lambda: collection.finish(named.snapshots, named.threads, is_dry=is_dry)
        )
    # crash-point: prune.layers.collected
    probe("prune.layers.collected")
    return done


async def _forget_erased(runtime: Runtime, sandbox: Kept, tenant: TenantId) -> None:
    """Remove the live files of threads that were erased whole."""
    store = runtime.engine.store
    there = await asyncio.to_thread(sandbox.threads, tenant)
    async for row in runs_of(store, tenant):
        name = folder_name(row.thread)
        if name not in there:
            continue
        there.discard(name)
        thread = await store.read_thread(tenant, row.thread)
        if thread is not None and thread.erased == thread.last_ordinal:
            await asyncio.to_thread(sandbox.forget, tenant, row.thread, thread.erased)
