"""Files of the sandboxes of threads that are erased: live ones, snapshots, and a search for them.

Order: pieces of the files are noted, then each thread's live files go and a fence is set that keeps
everybody out who held an erased run, then the snapshots that no other run needs. All of that before
journals are erased, which say what there was; each step can be repeated, and a collection later
finds what an interrupted one left.
"""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from perdure.engine import Runtime
from perdure.errors import (
    DecodeFailed,
    KeyMissing,
    PerdureError,
    SealBroken,
    SnapshotBroken,
    SnapshotNotDurable,
    StoreCorrupt,
)
from perdure.governance._erase_scope import ErasurePreview, Remaining
from perdure.governance._needles import Needles
from perdure.governance._snapshots import Named, begun, collect_exported
from perdure.ids import TenantId, ThreadId
from perdure.model import RunRow
from perdure.sandbox import (
    ExportCollection,
    ExportsCollected,
    Kept,
    LayersCollected,
    folder_name,
)


class SandboxErased(Struct, kw_only=True):
    """What became of the files of sandboxes.

    Attributes:
        folder: of the sandboxes.
        threads: whose live files were there.
        layers: snapshots (layers) that were removed; garbage of others among them.
        bytes: that this made free, with the live files.
        remaining: layers that the threads took and that others need, by id.
        unknown: layers that nobody needs and that stay, as it is not known who took them.
        searched: pieces of files and journals that were looked for in the folder.
        found: how many were found in what should be gone: 0.
        elsewhere: how many were found in others' files.
        searched_bytes: how much was read for that.
        exports: what became of what they exported; None: no place was named, or had nothing.
    """

    folder: str
    threads: int = 0
    layers: int = 0
    bytes: int = 0
    remaining: list[str] = []
    unknown: int = 0
    searched: int = 0
    found: int = 0
    elsewhere: int = 0
    searched_bytes: int = 0
    exports: ExportsCollected | None = None


class SandboxErasing:
    """Erases what sandboxes have of threads."""

    def __init__(
        self, runtime: Runtime, sandbox: Kept, tenant: TenantId, through: Mapping[str, int]
    ) -> None:
        """Have erased nothing yet.

        Args:
            runtime: an open one.
            sandbox: where the files are.
            tenant: whose.
            through: threads, with the ordinal of the newest run that is erased.
        """
        self.done = SandboxErased(folder=str(sandbox.root))
        self.left: list[str] = []
        self._engine = runtime.engine
        self._sandbox = sandbox
        self._tenant = tenant
        self._through = through
        self._needles = Needles([tenant, *through])
        self._used: set[str] = set()

    async def run(self) -> None:
        """Erase it, as far as it is there."""
        exported = await self._exported()
        is_here = await asyncio.to_thread(self._sandbox.has_tenant, self._tenant)
        if not is_here and exported is None:
            return
        probe = self._engine.services.probe
        if is_here:
            await self._forget()
        # crash-point: erase.sandbox.forgotten
        probe("erase.sandbox.forgotten")
        try:
            collected = await self._collected(exported)
        except (DecodeFailed, StoreCorrupt) as error:
            # What others need is not known: rather too much stays than what is somebody's.
            self.left.append(
                f"snapshots of sandboxes in {self._sandbox.root}: {error}; when that is mended: "
                f"perdure sandbox collect {self._sandbox.root}"
            )
            return
        except (SnapshotNotDurable, SnapshotBroken) as error:
            self._leave(error)
            return
        self.done.layers = collected.layers
        self.done.bytes += collected.bytes
        self.done.remaining = collected.remaining
        self.done.unknown = collected.unknown
        self.done.exports = collected.exports
        # crash-point: erase.sandbox.after
        probe("erase.sandbox.after")

    async def _forget(self) -> None:
        """Erase the live files of the threads."""
        threads = list(self._through)
        for piece in await asyncio.to_thread(self._sandbox.sampled, self._tenant, threads):
            self._needles.add_text(piece)
        there = await asyncio.to_thread(self._sandbox.threads, self._tenant)
        for thread, through in self._through.items():
            # crash-point: erase.sandbox.before
            self._engine.services.probe("erase.sandbox.before")
            gone = await asyncio.to_thread(self._sandbox.forget, self._tenant, thread, through)
            self.done.bytes += gone.bytes
            self.done.threads += folder_name(thread) in there
            if gone.is_used:
                self._used.add(thread)

    async def _exported(self) -> ExportCollection | None:
        """Begin with what is exported; where that can't be, it is named as left."""
        try:
            return await self._sandbox.export_collection(self._tenant)
        except (SnapshotNotDurable, SnapshotBroken, KeyMissing, SealBroken) as error:
            self._leave(error)
            return None

    def _leave(self, error: PerdureError) -> None:
        self.left.append(
            f"exported snapshots of sandboxes: {error}; when that is mended: perdure sandbox "
            f"collect {self._sandbox.root} --export URL --export-keys KEYS"
        )

    async def preview(self) -> LayersCollected:
        """Return what would go; `bytes` with the live files."""
        exported = await self._exported()
        is_here = await asyncio.to_thread(self._sandbox.has_tenant, self._tenant)
        if not is_here and exported is None:
            return LayersCollected(is_dry=True)
        found = await self._collected(exported, is_dry=True)
        if is_here:
            live = await asyncio.to_thread(self._sandbox.live, self._tenant, list(self._through))
            found.bytes += live.bytes
        return found

    def _is_erased(self, row: RunRow) -> bool:
        return row.ordinal <= self._through.get(row.thread, 0)

    async def _collected(
        self, exported: ExportCollection | None, *, is_dry: bool = False
    ) -> LayersCollected:
        about = frozenset(map(folder_name, self._through))
        done = LayersCollected(is_dry=is_dry)
        if await asyncio.to_thread(self._sandbox.has_tenant, self._tenant):
            async with begun(self._sandbox, self._tenant) as collection:
                named = await self._named()
                done = await asyncio.to_thread(
                    lambda: collection.finish(
                        named.snapshots, named.threads, about=about, is_dry=is_dry
                    )
                )
        if exported is not None:
            done.exports = await collect_exported(
                exported, await self._named(), through=self._through, is_dry=is_dry
            )
        return done

    async def _named(self) -> Named:
        return await Named.read(self._engine.store, self._tenant, is_left_out=self._is_erased)

    async def search(self, pieces: list[bytes]) -> None:
        """Look for pieces of the files, and of what journals held, in the folder."""
        if not await asyncio.to_thread(self._sandbox.has_tenant, self._tenant):
            return
        wanted = list(dict.fromkeys([*self._needles.pieces, *pieces]))
        found, elsewhere, count = await asyncio.to_thread(
            self._sandbox.searched,
            self._tenant,
            [thread for thread in self._through if thread not in self._used],
            wanted,
        )
        self.done.searched = len(wanted)
        self.done.found = len(found)
        self.done.elsewhere = len(elsewhere)
        self.done.searched_bytes = count


async def preview_files(runtime: Runtime, sandbox: Kept, preview: ErasurePreview) -> None:
    """Add to a preview what would go of the files of sandboxes, and what would stay."""
    tenant = TenantId(preview.tenant)
    through = {}
    for name in preview.all_threads:
        row = await runtime.engine.store.read_thread(tenant, ThreadId(name))
        through[name] = row.last_ordinal if row is not None else 0
    found = await SandboxErasing(runtime, sandbox, tenant, through).preview()
    preview.layers, preview.sandbox_bytes = found.layers, found.bytes
    preview.remains += [_remaining(name) for name in found.remaining]
    preview.exported = 0 if found.exports is None else found.exports.manifests
    preview.remains += _remaining_exports(found.exports)


def _remaining(layer: str) -> Remaining:
    why = (
        "a layer of files that one of the threads took, and that files or history of another "
        "thread, or of a run that began later, stand on: it goes with the first collection after "
        "that needs it no more"
    )
    return Remaining("sandbox_layer", layer, why)


def _remaining_exports(done: ExportsCollected | None) -> list[Remaining]:
    why = (
        "an exported layer that one of the threads took, and that exports of another thread, or "
        "of a run that began later, stand on: it goes with the first collection after that needs "
        "it no more"
    )
    return [Remaining("sandbox_export", name, why) for name in done.remaining] if done else []


NO_PLACE = (
    "exports of the threads' sandboxes, if there are any, as no place was named: --sandbox-export "
    "URL, or afterwards: perdure sandbox collect FOLDER --export URL"
)


def files_left(done: SandboxErased, *, snapshots: int) -> list[Remaining]:
    """Return what an erasure left of the files of sandboxes; `snapshots`: that journals named."""
    found = [_remaining(name) for name in done.remaining]
    found += _remaining_exports(done.exports)
    if snapshots and done.exports is None:
        found.append(Remaining("sandbox_export", "", NO_PLACE))
    if snapshots and not (done.threads or done.layers or done.remaining):
        why = (
            "journals name snapshots of files, and this folder had none of these threads: "
            "they were removed before, or are in another folder. Look where workers keep them: "
            "perdure sandbox list FOLDER, then perdure sandbox collect FOLDER"
        )
        found.append(Remaining("sandbox", done.folder, why))
    if done.unknown:
        why = (
            f"{done.unknown} layers in this folder that nothing needs, and of which it is not "
            "known who took them: by an older Perdure, by hand, or for another store"
        )
        found.append(Remaining("sandbox", done.folder, why))
    return found
