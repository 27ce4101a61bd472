"""What becomes of the files of a sandbox: taken, restored, compared. For who has its gate.

Files of a tree in which something is alive are copied while it is stopped, and it goes on: what it
changes afterwards is still what changed since the layers that it stands on, so that the thread goes
on standing on them, and not on the copy. If nothing is alive, the folder of changes is renamed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from perdure.errors import SandboxUnstoppable, UsageError
from perdure.model.sandbox import Changes
from perdure.sandbox._changes import changes_of
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._ground import Ground
from perdure.sandbox._layers import BASE, part_name, taken_by
from perdure.sandbox._live import Live
from perdure.sandbox._lock import Lock, next_generation, raise_generation
from perdure.sandbox._made import Generation
from perdure.sandbox._prepared import Builder, Prepared
from perdure.sandbox._processes import Process
from perdure.sandbox._trees import Tree


class Keeper(Builder, Protocol):
    """What the files of a sandbox need of its backend."""

    parts: list[tuple[str, str]]


class States:
    """The files of one sandbox, and the tree over them."""

    def __init__(self, backend: Keeper, ground: Ground, next_: Prepared, live: Live) -> None:
        """Use what the ground names."""
        self._backend = backend
        self._ground = ground
        self._folder = ground.folder
        self._layers = ground.layers
        self._next = next_
        self._live = live

    # -- taking ------------------------------------------------------------------------------------

    async def take(self) -> str:
        """Keep the files as they are now; return the snapshot's id."""
        tree = self._live.tree
        if tree is not None:
            lock = await self._backend.lend(tree)
            if lock is not None:
                try:
                    return await self._take_live(tree, lock)
                finally:
                    lock.close()
            await self._live.end()
        if self._layers.is_changed(self._folder):
            await self._next.drop()  # it stands on what is frozen now
        return await asyncio.to_thread(self._take, None)

    async def _take_live(self, tree: Tree, lock: Lock) -> str:
        scratch = str(tree.spec["scratch"])
        await asyncio.to_thread(self._ground.make_ready, scratch)

        def keep(alive: tuple[Process, ...]) -> str:
            is_changed = self._layers.is_changed(self._folder)
            if not alive:
                return "" if is_changed else self._layers.head(self._folder)
            if not is_changed and self.processes(self._layers.head(self._folder)) == alive:
                return self._layers.head(self._folder)
            services = self._backend.services
            name = services.ids.new("l", services.clock.now_us())
            return self._layers.keep(
                self._folder,
                name,
                alive,
                services.probe,
                generation=next_generation(self._folder, self._ground.fence),
            )

        with disk_errors("take a snapshot of", self._folder):
            try:
                taken = await self._live.stopped(tree, keep)
            except (SandboxUnstoppable, UsageError):
                # It can't be done with them: they end, and that is said.
                await asyncio.to_thread(self._live.look, tree)
                taken = ""
            if not taken:
                known = self._live.known
                await self._live.end()
                self._live.lose(known)
                return await asyncio.to_thread(self._take, lock)
        self._live.taken = taken
        return taken

    def _take(self, lock: Lock | None) -> str:
        services = self._backend.services
        with self._using("take a snapshot of", lock):
            if not self._layers.is_changed(self._folder):
                return self._layers.head(self._folder)
            name = services.ids.new("l", services.clock.now_us())
            generation = next_generation(self._folder, self._ground.fence)
            return self._layers.freeze(self._folder, name, services.probe, generation=generation)

    # -- going back --------------------------------------------------------------------------------

    async def restore(self, snapshot: str | None) -> None:
        """Make the files what they were at the snapshot (None: the base's)."""
        tree = self._live.tree
        lock = None if tree is None else await self._backend.lend(tree)
        try:
            if tree is not None:
                await asyncio.to_thread(self._layers.chain, snapshot or BASE)
                await self._live.end()
            elif not self._is_nothing_to_do(snapshot, None):
                await self._next.drop()
            await asyncio.to_thread(self._restore, snapshot, lock)
        finally:
            if lock is not None:
                lock.close()
        self._live.restored(self.processes(snapshot or BASE))

    async def resume(self, snapshot: str | None) -> None:
        """Go on from a snapshot: where its processes are alive still, with them."""
        if self._live.tree is None or self._live.taken != snapshot:
            await self.restore(snapshot)

    def processes(self, snapshot: str) -> tuple[Process, ...]:
        """Return what was alive when a snapshot was taken."""
        layer = self._layers.layer(snapshot)
        return () if layer is None else layer.processes

    def begin(self) -> None:
        """Note what was alive in the snapshot that the files of a sandbox just opened stand on."""
        self._live.restored(self.processes(self._layers.head(self._folder)))

    def _differs(self, snapshot: str | None) -> bool:
        return self._layers.head(self._folder) != (snapshot or BASE)

    def _restore(self, snapshot: str | None, lock: Lock | None) -> None:
        wanted = snapshot or BASE
        with self._using("restore", lock), self._layers.kept():
            self._layers.chain(wanted)
            if self._is_nothing_to_do(snapshot, lock):
                return
            self._layers.drop_top(self._folder)
            # crash-point: sandbox.rollback.dropped
            self._backend.services.probe("sandbox.rollback.dropped")
            if self._layers.head(self._folder) != wanted:
                self._layers.stand(self._folder, wanted)
            self._layers.end_use(self._folder)
            layer = self._layers.layer(wanted)
            if layer is not None and layer.thread == self._folder.name:
                raise_generation(self._folder, layer.generation)

    def _is_nothing_to_do(self, snapshot: str | None, lock: Lock | None) -> bool:
        """Return whether the files are of a snapshot: what waits for a command stays then."""
        is_other = self._layers.is_changed(self._folder) or self._differs(snapshot)
        return lock is None and not is_other and not taken_by(self._folder)

    # -- from other hosts --------------------------------------------------------------------------

    async def announce(self, snapshot: str) -> None:
        """Say that a layer comes which nothing here needs yet: so it is not collected."""
        await self._locked(lambda: self._layers.announce(self._folder, snapshot))

    async def note_generation(self, generation: Generation) -> None:
        """Note which layer of the thread is the newest that was here."""
        await self._locked(lambda: raise_generation(self._folder, generation))

    async def _locked(self, act: Callable[[], None]) -> None:
        """Do something on the disk, by the lock of the tree that is alive if there is one."""
        tree = self._live.tree
        lock = None if tree is None else await self._backend.lend(tree)

        def do_it() -> None:
            """Hold the lock meanwhile."""
            with self._using("use", lock):
                act()

        try:
            await asyncio.to_thread(do_it)
        finally:
            if lock is not None:
                lock.close()

    # -- looking -----------------------------------------------------------------------------------

    async def changes(self, since: str | None) -> Changes:
        """Return what changed since a snapshot that the files stand on."""
        tree = self._live.tree
        lock = None if tree is None else await self._backend.lend(tree)
        try:
            return await asyncio.to_thread(self._changes, since, lock)
        finally:
            if lock is not None:
                lock.close()

    def _changes(self, since: str | None, lock: Lock | None) -> Changes:
        with self._using("look at", lock, mounts=True):
            chain = self._layers.chain(self._layers.head(self._folder), is_whole=True)
            since = since or self._layers.head(self._folder)
            if since != BASE and since not in chain:
                msg = (
                    f"the files don't stand on snapshot {since!r}, or what is below it was "
                    "collected; nothing was looked at"
                )
                raise UsageError(msg, snapshot=since)
            count = len(chain) if since == BASE else chain.index(since)
            top = self._layers.top(self._folder)
            parts = []
            for at, base in self._backend.parts:
                folders = [self._layers.folder(name, at) for name in chain]
                uppers = [str(top / part_name(at)), *folders[:count]]
                parts.append((at, uppers, [*folders[count:], base]))
            return changes_of(parts)

    @contextlib.contextmanager
    def _using(self, act: str, lent: Lock | None, *, mounts: bool = False) -> Iterator[None]:
        """Hold the lock for a while, with all made ready but what waits or is alive.

        Args:
            act: for the error.
            lent: what the tree has, which is held already.
            mounts: see `Ground.hold`.
        """
        tree = self._live.tree
        scratch = self._next.scratch if tree is None else str(tree.spec["scratch"])
        with disk_errors(act, self._folder):
            if lent is not None:
                self._ground.make_ready(scratch, mounts=mounts)
                yield
                return
            lock = self._ground.hold(scratch, mounts=mounts)
            try:
                yield
            finally:
                lock.close()
