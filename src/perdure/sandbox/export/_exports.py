"""The exports of a backend: in the background, one at a time on a host, the urgent ones first.

Whoever took a snapshot offers it and goes on. Who must know that it outlives the host waits for it
(`make_durable`), which makes it urgent: that one is next in this process, and the other processes
of the host let it go first. Nothing is remembered of what was offered: after a kill, whatever is
restored, taken or waited for is offered again, with all that it stands on.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from threading import Event

from msgspec import Struct

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotBroken, SnapshotNotDurable
from perdure.sandbox._disk import disk_errors, make_folder
from perdure.sandbox._layers import BASE, Layers
from perdure.sandbox._made import Generation, Layer
from perdure.sandbox.export._base import Base
from perdure.sandbox.export._collecting import ExportCollection
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._exporting import Exporting, Notes
from perdure.sandbox.export._identity import identity_of, missing, recognise
from perdure.sandbox.export._importing import Catalogue, Importing
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._pieces import Tally
from perdure.sandbox.export._reading import Driver
from perdure.sandbox.export._sealer import KeyProvider, PlainSealer, Sealer, load_sealer
from perdure.sandbox.export._whole import Whole
from perdure.sandbox.limits import EXPORT_LOCK_STEP_S

_log = logging.getLogger("perdure.sandbox")


class Tenant(Struct, frozen=True):
    """Whose layers are exported.

    Attributes:
        folder: name of the tenant's folder, here and at the place of the objects.
        layers: of the tenant.
        driver: of its sandboxes.
        base: that they stand on.
    """

    folder: str
    layers: Layers
    driver: Driver
    base: Base


class Fetched(Struct, frozen=True, kw_only=True):
    """What was imported.

    Attributes:
        snapshot: its id.
        thread: name of the folder of that which took it.
        generation: (ordinal of the run, fencing token, number): rises with each of a thread.
        tally: the pieces that were fetched.
    """

    snapshot: str
    thread: str
    generation: Generation
    tally: Tally


class _Job(Struct):
    """One snapshot that is to be exported."""

    tenant: Tenant
    snapshot: str
    done: "asyncio.Future[Tally]"
    is_urgent: bool = False
    is_checked: bool = False


class Exports:
    """Exports the snapshots of a backend, and imports those of others."""

    def __init__(
        self, root: Path, objects: ObjectStore, keys: KeyProvider | None, services: Services
    ) -> None:
        """Export to a place.

        Args:
            root: the backend's folder.
            objects: the place.
            keys: what wraps the data keys; None: nothing is encrypted.
            services: clock, chance, crash points.
        """
        self._root = root
        self.objects = objects
        self._keys = keys
        self._services = services
        self._sealers: dict[str, Sealer] = {}
        self._condemned: dict[str, Condemned] = {}
        self._identities: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump: asyncio.Task[None] | None = None
        self._gate = asyncio.Lock()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._order: list[tuple[int, int, tuple[str, str]]] = []
        self._unique = count()
        self._stop = Event()

    # -- what is there -----------------------------------------------------------------------------

    def is_durable(self, tenant: Tenant, snapshot: str) -> bool:
        """Return whether a snapshot is exported with all that it stands on, as far as we know."""
        return Notes(tenant.layers, self.objects.place).is_durable(snapshot)

    async def sealer(self, folder: str, *, makes: bool) -> Sealer:
        """Return what seals for a tenant; `makes`: with a new key where there is none.

        Raises:
            NotFound: there is none, and none is to be made.
            KeyMissing, SealBroken: the keys are not those of the exports that are there.
            SnapshotNotDurable: the place can't serve.
        """
        self._here()
        async with self._gate:
            if folder not in self._sealers:
                if self._keys is None:
                    self._sealers[folder] = PlainSealer(folder)
                else:
                    self._sealers[folder] = await load_sealer(
                        self.objects, folder, self._keys, self._services, makes=makes
                    )
                self._condemned[folder] = Condemned(
                    self.objects, self._sealers[folder], self._services
                )
            return self._sealers[folder]

    async def collection(self, tenant: Tenant) -> ExportCollection | None:
        """Begin a collection of what a tenant exported; None: it exported nothing.

        Raises:
            KeyMissing, SealBroken: the keys are not those of the exports that are there.
            SnapshotNotDurable: the place can't serve, or is not the one that was exported to.
        """
        if not await self._recognise(tenant, makes=False):
            return None
        try:
            sealer = await self.sealer(tenant.folder, makes=False)
        except NotFound:
            return None
        return await asyncio.to_thread(ExportCollection, self.objects, sealer, self._services)

    async def _recognise(self, tenant: Tenant, *, makes: bool) -> str:
        """Return the id of the place; see `recognise`."""
        identity = await asyncio.to_thread(
            recognise,
            self.objects,
            tenant.folder,
            Notes(tenant.layers, self.objects.place),
            self._services,
            makes=makes,
        )
        if self._identities.setdefault(tenant.folder, identity) != identity:
            self._identities[tenant.folder] = identity
            self._sealers.pop(tenant.folder, None)  # another place, which may have another key
        return identity

    # -- export ------------------------------------------------------------------------------------

    def offer(self, tenant: Tenant, snapshot: str) -> None:
        """Export a snapshot when nothing more urgent is to be exported."""
        if not self._stop.is_set() and not self.is_durable(tenant, snapshot):
            job = self._add(tenant, snapshot, is_urgent=False)
            # Whoever waits raises it; for who does not, it is in the log.
            job.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def make_durable(
        self, tenant: Tenant, snapshot: str, *, is_checked: bool = False
    ) -> Tally:
        """Return when a snapshot is exported; `is_checked`: see `Exporting.export`.

        Raises:
            NotFound, StoreCorrupt, UsageError, SnapshotNotDurable: see `Exporting.export`.

        Durability: the snapshot outlives this host when this returns. Cancel-safe: yes; it goes on.
        """
        if not is_checked and self.is_durable(tenant, snapshot):
            await self._recognise(tenant, makes=False)
            await self.sealer(tenant.folder, makes=True)
            condemned = self._condemned[tenant.folder]
            if await asyncio.to_thread(self._is_still_durable, tenant, snapshot, condemned):
                return Tally()
        if self._stop.is_set():
            raise _stopped(snapshot)
        job = self._add(tenant, snapshot, is_urgent=True)
        job.is_checked |= is_checked
        return await asyncio.shield(job.done)

    def _is_still_durable(self, tenant: Tenant, snapshot: str, condemned: Condemned) -> bool:
        """Return whether what was noted of a snapshot was not given up since."""
        if snapshot == BASE:
            return True
        note = Notes(tenant.layers, self.objects.place).of(snapshot)
        if note is None or not self.objects.has(note.object):
            return False
        condemned.refresh()
        return note.object not in condemned

    def _here(self) -> None:
        """Begin anew where the event loop is another one; what was offered on the old is gone."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._pump, self._gate = loop, None, asyncio.Lock()
            self._jobs, self._order = {}, []

    def _add(self, tenant: Tenant, snapshot: str, *, is_urgent: bool) -> _Job:
        self._here()
        key = (tenant.folder, snapshot)
        job = self._jobs.get(key)
        if job is None:
            done: asyncio.Future[Tally] = asyncio.get_running_loop().create_future()
            job = self._jobs[key] = _Job(tenant, snapshot, done)
            heappush(self._order, (0 if is_urgent else 1, next(self._unique), key))
        elif is_urgent and not job.is_urgent:
            heappush(self._order, (0, next(self._unique), key))
        job.is_urgent |= is_urgent
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._work(), name="perdure-exports")
        return job

    async def _work(self) -> None:
        while self._order and not self._stop.is_set():
            _, _, key = heappop(self._order)
            job = self._jobs.get(key)
            if job is None or job.done.done():
                continue  # it was in the order twice
            try:
                identity = await self._recognise(job.tenant, makes=True)
                sealer = await self.sealer(job.tenant.folder, makes=True)
                tally = await asyncio.to_thread(self._export, job, sealer, identity)
                job.done.set_result(tally)
            except asyncio.CancelledError:
                job.done.cancel()
                raise
            except Exception as error:  # noqa: BLE001  # as an outcome: re-raised by who waits for it
                job.done.set_exception(error)
                if not self._stop.is_set():
                    _log.warning("snapshot %s is not exported: %s", job.snapshot, error)
            finally:
                del self._jobs[key]
        for job in self._jobs.values():
            if not job.done.done():
                job.done.set_exception(_stopped(job.snapshot))
        self._jobs.clear()

    def _export(self, job: _Job, sealer: Sealer, identity: str) -> Tally:
        def confirm() -> None:
            """See that the place is still the one that it was when the export began."""
            if identity_of(self.objects, job.tenant.folder) != identity:
                raise missing(self.objects)

        condemned = self._condemned[job.tenant.folder]
        with self._turn(job), disk_errors("export", job.tenant.layers.home(job.snapshot)):
            exporting = Exporting(
                self.objects,
                sealer,
                job.tenant.layers,
                base=job.tenant.base,
                driver=job.tenant.driver,
                services=self._services,
                go_on=self._go_on,
                condemned=condemned,
                is_whole=Whole(Catalogue(self.objects, sealer), condemned),
                confirm=confirm,
            )
            exporting.export(job.snapshot, is_checked=job.is_checked)
            return exporting.tally

    def _go_on(self) -> None:
        if self._stop.is_set():
            msg = "the sandboxes were closed; nothing more is exported or imported by them"
            raise SnapshotNotDurable(msg)

    @contextmanager
    def _turn(self, job: _Job) -> Iterator[None]:
        """Be the one who exports on this host; who is not urgent lets those who are go first."""
        make_folder(self._root)
        with (
            _opened(self._root / "export.lock") as lock,
            _opened(self._root / "export.urgent") as up,
        ):
            while True:
                self._go_on()
                if job.is_urgent:
                    fcntl.flock(up, fcntl.LOCK_SH)
                elif not _try(up):  # somebody urgent waits
                    self._stop.wait(EXPORT_LOCK_STEP_S)
                    continue
                else:
                    fcntl.flock(up, fcntl.LOCK_UN)
                if _try(lock):
                    break
                self._stop.wait(EXPORT_LOCK_STEP_S)
            fcntl.flock(up, fcntl.LOCK_UN)
            yield

    # -- import ------------------------------------------------------------------------------------

    async def fetch(
        self, tenant: Tenant, snapshot: str, *, is_any_base: bool = False
    ) -> tuple[Layer, Tally]:
        """Make a snapshot be on this host; see `Importing.fetch`."""
        await self._recognise(tenant, makes=False)
        sealer = await self.sealer(tenant.folder, makes=False)
        importing = Importing(
            self.objects,
            sealer,
            tenant.layers,
            base=tenant.base,
            driver=tenant.driver,
            services=self._services,
            go_on=self._go_on,
            condemned=self._condemned[tenant.folder],
        )

        def fetch() -> Layer:
            """Do it, in an OS thread."""
            with disk_errors("import into", tenant.layers.tenant):
                return importing.fetch(snapshot, is_any_base=is_any_base)

        return await asyncio.to_thread(fetch), importing.tally

    async def newest(self, tenant: Tenant, thread: str, *, at_least: Generation) -> str:
        """Return the newest snapshot of a thread that is exported.

        Args:
            tenant: whose.
            thread: name of its folder.
            at_least: the highest number that was seen of the thread.

        Raises:
            NotFound: nothing of the thread is there.
            SnapshotBroken: it is older than what was seen, or is not what was exported.
        """
        await self._recognise(tenant, makes=False)
        catalogue = Catalogue(self.objects, await self.sealer(tenant.folder, makes=False))
        found = await asyncio.to_thread(catalogue.newest, thread)
        if found is None:
            msg = f"no snapshot of thread {thread!r} is in {self.objects.place}"
            raise NotFound(msg, thread=thread)
        if found.generation < at_least:
            msg = (
                f"the newest snapshot of thread {thread!r} in {self.objects.place} is "
                f"{found.layer!r} (number {found.generation}), and this host has seen a newer one "
                f"(number {at_least}); nothing was imported. Name the one that you want: --snapshot"
            )
            raise SnapshotBroken(msg, thread=thread, snapshot=found.layer)
        return found.layer

    # -- the end -----------------------------------------------------------------------------------

    async def settle(self, window_s: float) -> None:
        """Return when what was offered is exported, or after so many seconds."""
        pump = self._pump
        if pump is not None and self._loop is asyncio.get_running_loop() and not pump.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(pump), window_s)

    def stop(self) -> None:
        """Stop before the next piece. What is not exported stays on this host. Idempotent."""
        self._stop.set()


def _stopped(snapshot: str) -> SnapshotNotDurable:
    msg = f"the sandboxes were closed before snapshot {snapshot!r} was exported; it is on this host"
    return SnapshotNotDurable(msg, snapshot=snapshot)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
