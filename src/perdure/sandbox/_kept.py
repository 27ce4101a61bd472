"""A sandbox whose processes live on: between its commands, and in its snapshots.

One process tree stays for all commands. A snapshot takes images of what is alive, which ends it in
the same moment, so that nothing writes to files that are frozen; the next command brings it back,
on whatever then stands on the snapshot: the same sandbox, a fork, or the sandbox of another worker
on this host. What can't be kept or brought back is named in the next answer, with the reason: it is
lost, and never without a word.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import json, structs

from perdure.errors import UsageError
from perdure.model.sandbox import Ran
from perdure.sandbox._commands import Backend, IsolatedSandbox
from perdure.sandbox._criu import Criu, host, key_of_boot, seal, why_unfit
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._ground import Ground
from perdure.sandbox._launching import Ended, Launcher, Order, SetUpFailed
from perdure.sandbox._layers import BASE
from perdure.sandbox._lock import Lock, next_generation
from perdure.sandbox._made import FILES, KEPT, Layer
from perdure.sandbox._processes import Process, inner_pid, processes_of
from perdure.sandbox._trees import Tree
from perdure.sandbox._turns import HOME, Limits, check, refused
from perdure.sandbox.export import Tenant
from perdure.sandbox.inside import images, seccomp

GONE = "everything that ran in the sandbox ended, or was killed"
SERVICES = "services.json"
"""File of the images: which services are up, see `inside.first`."""


class KeptSandbox(IsolatedSandbox):
    """The files and processes of one thread, and commands over them, one at a time."""

    def __init__(
        self,
        backend: Backend,
        ground: Ground,
        tenant: Tenant,
        launcher: Launcher,
        *,
        criu: Criu,
        of: Mapping[str, str],
    ) -> None:
        """Use what the ground names.

        Args:
            backend: whose sandbox it is.
            ground: its folder, layers and lock.
            tenant: whose it is.
            launcher: of the backend.
            criu: takes the images.
            of: what else images are for: they are brought back for the same only.
        """
        super().__init__(backend, ground, tenant)
        self._launcher = launcher
        self._criu = criu
        filter_ = hashlib.sha256(seccomp.program()).hexdigest()
        self._of = {**host(), "criu": criu.version, "filter": filter_, **of}
        self._tree: Tree | None = None
        self._gone: list[tuple[Process, str]] = []
        self._untold: list[str] = []
        self._seen: tuple[Process, ...] = ()
        self._brought: Tree | None = None  # what the images of a snapshot became
        self._answered = ""  # the snapshot whose processes were brought back, or named

    async def close(self) -> None:
        """End what lives; the files stay as they are. Idempotent."""
        async with self._gate:
            await self._end()

    async def _end_for(self, tree: Tree, why: str) -> None:
        """End what goes on between commands, for a reason; for who has the gate."""
        if self._tree is tree:
            self._lose(self._seen, why)
            await self._end()

    # -- commands ----------------------------------------------------------------------------------

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        given: bytes = b"",
        limits: Limits | None = None,
    ) -> Ran:
        """Run a command to its end; what it leaves running goes on, and is named in `left`.

        At the deadline it is ended with all that came of it; what earlier commands left stays.
        Memory, processes and cores are limited for the whole tree, as of the command that began it.
        Otherwise as `IsolatedSandbox.run`.
        """
        ran = await super().run(command, env=env, cwd=cwd, given=given, limits=limits)
        lost, self._untold = self._untold, []
        return structs.replace(ran, lost=tuple(lost))

    def lost(self) -> tuple[Process, ...]:
        """Return what was alive, in the snapshot that was restored or later, and is not any more.

        Services are not among it: they are started again.
        """
        return tuple(each for each, _reason in self._gone)

    async def _turn(  # noqa: PLR0917  # what a turn is
        self,
        act: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        given: bytes,
        limits: Limits,
    ) -> tuple[Ended, bool]:
        check(argv, env, given)
        order = Order(
            spec={
                "act": act,
                "argv": list(argv),
                "env": self._backend.variables(env),
                "cwd": cwd,
            },
            given=given,
            keep_bytes=limits.output_bytes,
            deadline_s=limits.deadline_s,
            is_last=False,
        )
        async with self._gate:
            return await self._in_tree(order, limits)

    async def _in_tree(
        self, order: Order, limits: Limits, *, is_again: bool = False
    ) -> tuple[Ended, bool]:
        tree, lock = await self._standing(limits)
        before = tree.group.memory_kills()
        try:
            with self._live.command(tree) as (groups, stop):
                ordered = structs.replace(order, groups=groups, stop=stop)
                ended = await self._executed(tree, ordered, lock)
        except UsageError:
            if is_again or not tree.never_began:
                raise
        else:
            self._seen = tuple(Process(pid=pid, line=line) for pid, line in ended.left)
            kills = max(tree.memory_kills, tree.group.memory_kills())
            return ended, kills > before
        finally:
            if lock is not None:
                lock.close()
            if not tree.has_lock:  # it was never begun
                if tree is self._brought:
                    self._answered = ""  # it comes back once more, or is told as lost
                await self._end()
        return await self._in_tree(order, limits, is_again=True)

    async def _standing(self, limits: Limits) -> tuple[Tree, Lock | None]:
        """Return the tree, and the lock that it is to have if it was begun or brought back now."""
        if self._tree is not None and self._tree.is_alive:
            return self._tree, None
        if self._tree is not None:
            self._lose(self._seen, GONE)
            await self._end()
        lock = await self._ground.held()
        try:
            self._tree = await self._brought_back(limits, lock) or await self._begun(limits, lock)
        except BaseException:
            lock.close()
            raise
        return self._tree, lock

    async def _brought_back(self, limits: Limits, lock: Lock) -> Tree | None:
        """Return a tree with what lived at the snapshot; None: nothing did, or it is lost."""
        layer = await asyncio.to_thread(self._layer_of_head)
        if layer is None or not layer.processes:
            return None
        head = self._ground.layers.head(self._ground.folder)
        is_answered, self._answered = self._answered == head, head
        if self._ground.layers.is_changed(self._ground.folder):
            if not is_answered:
                self._lose(layer.processes, "files were changed since")
            return None
        reason = layer.why_none or await asyncio.to_thread(self._why_unfit, layer)
        if not reason:
            folder = self._ground.layers.images(self._ground.layers.head(self._ground.folder))
            up = await asyncio.to_thread((folder / SERVICES).read_bytes)
            try:
                self._brought = await self._begin(limits, lock, str(folder), json.decode(up))
            except SetUpFailed as failed:
                reason = str(failed)
            else:
                return self._brought
        self._lose(layer.processes, reason)
        return None

    async def _begun(self, limits: Limits, lock: Lock) -> Tree:
        """Return a new tree."""
        try:
            return await self._begin(limits, lock, "", [])
        except SetUpFailed as failed:
            raise refused(str(failed)) from failed

    async def _begin(self, limits: Limits, lock: Lock, folder: str, up: list[Any]) -> Tree:
        """Begin a tree, or bring it back from a folder."""
        more = {"criu": self._criu.program, "images": folder, "up": up, "landlock": False}
        tree = await self._backend.build(self._ground, limits, lock, is_staying=True, more=more)
        is_begun = False
        try:
            await tree.ready
            if not tree.is_alive:
                raise SetUpFailed(tree.failed or tree.died or "it ended at once")
            is_begun = True
        finally:
            if not is_begun:
                await self._backend.end(tree)
        return tree

    def _lose(self, processes: Sequence[Process], reason: str) -> None:
        """Note what is alive no more; services come back by themselves."""
        for each in processes:
            if not each.is_service:
                self._gone.append((each, reason))
                self._untold.append(f"{each.told()} is not running any more: {reason}")

    async def _end(self) -> None:
        self._resting.stop()
        tree, self._tree = self._tree, None
        self._seen = ()
        if tree is not None:
            await self._backend.end(tree)

    # -- snapshots ---------------------------------------------------------------------------------

    def _layer_of_head(self) -> Layer | None:
        """Return the snapshot that the sandbox stands on."""
        layers = self._ground.layers
        return layers.layer(layers.head(self._ground.folder))

    def _why_unfit(self, layer: Layer) -> str:
        head = self._ground.layers.head(self._ground.folder)
        folder = self._ground.layers.images(head)
        if not layer.has_images:
            return "no images of it were taken"
        if not folder.is_dir():
            return "its images were dropped: only those of the newest snapshots are kept"
        with disk_errors("look at", folder):
            return why_unfit(folder, {**self._of, "snapshot": head}, key_of_boot())

    async def take(self) -> str:
        """Keep files and processes as they are now; return the snapshot's id.

        Where nothing changed since the last snapshot, and nothing lives, it is that one. What lives
        is ended, and brought back by the next command. Raises as `IsolatedSandbox.take`.

        Durability: the files are on disk when this returns. Images of processes are of use until
            the host's next start. Cancel-safe: yes; it may be taken still.
        """
        async with self._gate:
            taken = await (self._states.take() if self._tree is None else self._taken(self._tree))
        return await self._outlived(taken)

    async def _taken(self, tree: Tree) -> str:
        """Keep files and what lives in a tree, which ends it."""
        ids, clock = self._backend.services.ids, self._backend.services.clock
        name = ids.new("l", clock.now_us())
        keeper = tree.keeper if tree.is_alive else 0
        if not keeper:
            self._lose(self._seen, GONE)
        up = await self._launcher.remember(tree) if keeper else b""
        alive = await asyncio.to_thread(_alive, keeper, up)
        folder = self._ground.folder / "images"
        reason = await self._dump(folder, name, up) if alive else ""
        await self._end()
        try:
            return await asyncio.to_thread(self._freeze, name, alive, folder, reason)
        except BaseException as error:
            self._lose(alive, f"no snapshot was taken: {error}")
            raise

    async def _dump(self, folder: Path, name: str, up: bytes) -> str:
        """Take images of what lives; return why that can't be done."""
        tree = self._tree
        if tree is None:
            return "it ended"
        await asyncio.to_thread(self._make_empty, folder)
        if not await self._launcher.dump(tree, str(folder)):
            return await asyncio.to_thread(_why, folder)
        try:
            return await asyncio.to_thread(self._seal, folder, name, up)
        except UsageError as error:
            return str(error)

    def _make_empty(self, folder: Path) -> None:
        with disk_errors("keep processes of", self._ground.folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)

    def _seal(self, folder: Path, name: str, up: bytes) -> str:
        with disk_errors("keep processes of", self._ground.folder):
            (folder / SERVICES).write_bytes(up or b"[]")
            seal(folder, {**self._of, "snapshot": name}, key_of_boot())
        return ""

    def _freeze(self, name: str, alive: tuple[Process, ...], folder: Path, reason: str) -> str:
        ground, layers = self._ground, self._ground.layers
        with disk_errors("take a snapshot of", ground.folder):
            lock = ground.hold()
            try:
                head = layers.head(ground.folder)
                before = layers.layer(head)
                is_same = not layers.is_changed(ground.folder) and not alive
                if is_same and (before is None or not before.processes):
                    return head
                images_ = folder if alive and not reason else None
                probe = self._backend.services.probe
                taken = layers.freeze(
                    ground.folder,
                    name,
                    probe,
                    changes=FILES if images_ is None else KEPT,
                    processes=alive,
                    images=images_,
                    why_none=reason,
                    generation=next_generation(ground.folder, ground.fence),
                )
                layers.drop_images(taken, ground.folder)
                return taken
            finally:
                lock.close()

    async def restore(self, snapshot: str | None) -> None:
        """Make files and processes what they were at the snapshot; as `IsolatedSandbox.restore`.

        What lives is ended at once; what lived at the snapshot is brought back by the next command.
        """
        async with self._gate:
            await self._end()  # first: it has the lock
            if snapshot is not None:
                await self._fetch(snapshot)
            self._gone, self._untold, self._answered = [], [], ""
            await self._states.restore(snapshot)
        self._offer(snapshot or BASE)

    async def resume(self, snapshot: str | None) -> None:
        """Go on from a snapshot; as `restore`."""
        await self.restore(snapshot)


def _alive(keeper: int, up: bytes) -> tuple[Process, ...]:
    """Return what lives below a keeper; 0: it is gone, with all."""
    pids = images.descendants(keeper)[1:] if keeper else []
    roots = {inner for _settings, inner in json.decode(up or b"[]")}
    services = [root for root in pids if inner_pid(root) in roots]
    of_services = {pid for root in services for pid in images.descendants(root)}
    return processes_of(pids, of_services)


def _why(folder: Path) -> str:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return f"CRIU can't take images of it: {images.why(descriptor)}"
    finally:
        os.close(descriptor)
