"""The sandbox of one thread: commands over its files, and what becomes of the files."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from perdure.errors import NotFound, UsageError
from perdure.model.sandbox import Changes, Ran, ServiceState
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._exported import Exported
from perdure.sandbox._ground import Ground
from perdure.sandbox._launching import Ended, Order
from perdure.sandbox._layers import BASE
from perdure.sandbox._live import Live
from perdure.sandbox._lock import Lock
from perdure.sandbox._prepared import Prepared, bounds_of
from perdure.sandbox._processes import Process
from perdure.sandbox._resting import Resting
from perdure.sandbox._states import Keeper, States
from perdure.sandbox._story import Snapshot, snapshot_of
from perdure.sandbox._trees import Tree
from perdure.sandbox._turns import (
    HOME,
    Limits,
    as_ran,
    check,
    text_of,
)
from perdure.sandbox.export import Exports, Tenant
from perdure.sandbox.inside.services import MANIFEST, MANIFEST_BYTES_MAX, SERVICES_MAX
from perdure.sandbox.limits import (
    NAME_CHARACTERS_MAX,
    OUTPUT_BYTES_MAX,
    READY_S,
)


class Backend(Keeper, Protocol):
    """What a sandbox needs of those that it is one of."""

    limits: Limits
    is_live: bool
    exports: Exports | None
    durable: bool

    async def execute(self, tree: Tree, order: Order, lock: Lock | None) -> Ended:
        """Execute a command in a tree; the lock is handed over."""
        ...

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a command."""
        ...


class IsolatedSandbox(Exported):
    """The files of one thread, and commands that run over them, one at a time."""

    _backend: Backend

    def __init__(self, backend: Backend, ground: Ground, tenant: Tenant) -> None:
        """Use what the ground names, a folder of the tenant's."""
        self._backend = backend
        self._ground = ground
        self._tenant = tenant
        self._gate = asyncio.Lock()
        self._limits = backend.limits
        self._next = Prepared(backend, ground, self._gate, is_staying=backend.is_live)
        self._live = Live(backend)
        self._states = States(backend, ground, self._next, self._live)
        self._resting = Resting(ground, self._gate, self._end_for)
        self._is_new = True

    async def close(self) -> None:
        """End what is alive in it or waits; the files stay as they are. Idempotent."""
        async with self._gate:
            self._next.stop()
            self._resting.stop()
            await self._next.drop()
            known = self._live.known
            if await self._live.end():
                self._live.lose(known)
            await asyncio.to_thread(self._ground.sweep, is_waited_for=True)

    # -- what agents do ----------------------------------------------------------------------------

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        given: bytes = b"",
        limits: Limits | None = None,
    ) -> Ran:
        """Run a command to its end; whatever it leaves running is named, and killed but if live.

        Args:
            command: a line for the shell, or a program and its arguments.
            env: variables beside those that every command has.
            cwd: folder in the sandbox.
            given: standard input, at most `GIVEN_BYTES_MAX`.
            limits: instead of the backend's.

        Raises:
            UsageError: the sandbox can't be built here, or an argument can't be taken; nothing was
                executed.
            StoreLocked: another process has been using this sandbox; nothing was executed.
            LeaseLost: a newer holder of the run uses it; nothing was executed.

        Cancel-safe: yes; the command is killed. What it changed stays until `restore`.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        limits = limits or self._backend.limits
        ended, is_out = await self._turn("run", argv, env or {}, cwd, given, limits)
        return as_ran(ended, is_out_of_memory=is_out, lost=self._live.tell())

    async def python(
        self,
        code: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        limits: Limits | None = None,
    ) -> Ran:
        """Run a program by the sandbox's `python3`, as `python3 -` does, to its end.

        It begins sooner than by `run` from the second one on: between two, a Python waits in the
        next tree. Where the sandbox has changed what `python3` is, or with `env`, it is started as
        by `run`.

        Args:
            code: the program; it has no other standard input.
            env: variables beside those that every command has.
            cwd: folder in the sandbox.
            limits: instead of the backend's.

        Raises: as `run`. Cancel-safe: as `run`.
        """
        given = code.encode("utf-8", "surrogateescape")
        limits = limits or self._backend.limits
        ended, is_out = await self._turn("python", ["python3", "-"], env or {}, cwd, given, limits)
        return as_ran(ended, is_out_of_memory=is_out, lost=self._live.tell())

    async def read(self, path: str, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
        """Return a file's content.

        Raises:
            NotFound: there is no such file, or it can't be read; says why.
            UsageError: it is longer than bytes_max.
        """
        limits = structs.replace(self._backend.limits, output_bytes=bytes_max)
        ended, _ = await self._turn("read", [path], {}, HOME, b"", limits)
        if ended.code != 0:
            raise NotFound(text_of(ended.errors).strip() or f"{path}: can't be read", path=path)
        if ended.output_bytes > bytes_max:
            msg = f"{path} has {ended.output_bytes} bytes, more than {bytes_max}: read a part of it"
            raise UsageError(msg, path=path)
        return ended.output

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Make a file have this content; folders that are missing are made.

        Raises:
            UsageError: it can't be written; says why. What was there stays.
        """
        argv = [path, f"{mode:o}"]
        limits = self._backend.limits
        ended, _ = await self._turn("write", argv, {}, HOME, content, limits)
        if ended.code != 0:
            raise UsageError(
                text_of(ended.errors).strip() or f"{path}: can't be written", path=path
            )

    # -- services ----------------------------------------------------------------------------------

    async def start_service(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        ready_s: float = READY_S,
    ) -> ServiceState:
        """Have something up during every later command, and see that it can be.

        It is started anew for each command, and killed after it: what it has in memory is lost
        then, what it wrote is kept. The list of services goes with the files: into snapshots, forks
        and rollbacks.

        Args:
            name: a word; one that is there is replaced.
            command: a line for the shell, or a program and its arguments; it stays in the
                foreground.
            port: it is up when something answers there; 0: when it has not ended at once.
            env: variables beside those that every command has.
            cwd: folder in the sandbox.
            ready_s: seconds that it may take, at every command.

        Returns:
            Whether it is up; if not, it is not kept, and `reason` has the end of its log.

        Raises:
            UsageError: the name or the command can't be taken; nothing was changed.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        check(argv, env or {}, b"")
        if not (name.isascii() and name.isidentifier() and len(name) <= NAME_CHARACTERS_MAX):
            msg = f"{name!r} is no name of a service: letters, digits and _, at most 64"
            raise UsageError(msg)
        before = await self.services()
        one = {
            "name": name,
            "argv": argv,
            "env": dict(env or {}),
            "cwd": cwd,
            "port": port,
            "ready_s": ready_s,
        }
        kept = [each for each in before if each["name"] != name]
        if len(kept) >= SERVICES_MAX:
            msg = f"a sandbox has {SERVICES_MAX} services at most; nothing was changed"
            raise UsageError(msg)
        await self._put_services([*kept, one])
        ran = await self.run(["/bin/true"])
        state = next((each for each in ran.services if each.name == name), None)
        if state is None or not state.is_up:
            await self._put_services(before)
        why = f"the command that tried it was killed: {ran.killed_by}" if ran.killed_by else ""
        return state or ServiceState(name=name, reason=why or "its settings can't be taken")

    async def stop_service(self, name: str) -> bool:
        """Have a service up no more; return whether there was one."""
        before = await self.services()
        kept = [each for each in before if each["name"] != name]
        if len(kept) < len(before):
            await self._put_services(kept)
            if self._backend.is_live:
                await self._turn("run", ["/bin/true"], {}, HOME, b"", self._backend.limits)
        return len(kept) < len(before)

    async def services(self) -> list[dict[str, Any]]:
        """Return the services as they are kept: name, argv, env, cwd, port, ready_s."""
        try:
            raw = await self.read(MANIFEST, bytes_max=MANIFEST_BYTES_MAX)
            found = json.loads(raw)
        except (NotFound, ValueError, RecursionError):
            return []
        known = (
            [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        )
        return [each for each in known if isinstance(each.get("name"), str)]

    async def _put_services(self, kept: list[dict[str, Any]]) -> None:
        await self.write(MANIFEST, json.dumps(kept).encode("ascii"))

    async def changes(self, since: str | None = None) -> Changes:
        """Return what changed since a snapshot that the files stand on.

        Args:
            since: a snapshot; None: the newest that was taken or restored. In a live sandbox, in
                which something has been alive since, that is the one that its tree was built on.

        Raises:
            UsageError: the files don't stand on that snapshot: restore it, or ask another thread's.
        """
        async with self._gate:
            return await self._states.changes(since)

    async def snapshot(self, snapshot: str | None = None) -> Snapshot | None:
        """Return when a snapshot was taken, what it stands on, and what it was made with.

        Args:
            snapshot: its id; None: the newest that was taken or restored.

        Returns:
            None: nothing was taken yet: the files stand on the base.

        Raises:
            NotFound: there is no such snapshot.
            StoreCorrupt: it can't be read.
        """
        return await asyncio.to_thread(self._snapshot, snapshot)

    def _snapshot(self, snapshot: str | None) -> Snapshot | None:
        with disk_errors("look at", self._ground.folder):
            name = snapshot or self._ground.layers.head(self._ground.folder)
            return None if name == BASE else snapshot_of(self._ground.layers, name)

    def lost(self) -> tuple[Process, ...]:
        """Return what was alive, in the snapshot that was restored or later, and is not any more.

        Services are not among it: they are started again.
        """
        return self._live.lost

    async def _turn(  # noqa: PLR0917  # what a turn is
        self,
        act: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        given: bytes,
        limits: Limits,
    ) -> tuple[Ended, bool]:
        """Execute a command; return how it ended, and whether it ran out of memory."""
        check(argv, env, given)
        if self._backend.is_live and bounds_of(limits) != bounds_of(self._backend.limits):
            msg = (
                "a live sandbox has the limits of its backend for memory, processes, cores and "
                "files; of one command, only deadline_s and output_bytes. Nothing was executed"
            )
            raise UsageError(msg)
        variables = self._backend.variables(env)
        order = Order(
            spec={"act": act, "argv": list(argv), "env": variables, "cwd": cwd},
            given=given,
            keep_bytes=limits.output_bytes,
            deadline_s=limits.deadline_s,
        )
        async with self._gate:
            self._next.stop()
            if self._is_new:
                self._states.begin()
                self._is_new = False
            if self._backend.is_live:
                return await self._in_live_tree(order, limits)
            return await self._in_new_tree(act, order, limits)

    async def _in_new_tree(
        self, act: str, order: Order, limits: Limits, *, is_again: bool = False
    ) -> tuple[Ended, bool]:
        tree, lock = await self._tree_and_lock(limits)
        try:
            ended = await self._executed(tree, order, lock)
        except UsageError:
            if is_again or not tree.never_began:
                raise
        else:
            return ended, tree.memory_kills > 0
        finally:  # also where nothing could be executed: another command will come
            lock.close()
            self._limits = limits
            self._next.note(is_python=act == "python")
            self._next.soon(limits)
        # Somebody killed it, or the spare that it was built of, and nothing was executed.
        return await self._in_new_tree(act, order, limits, is_again=True)

    async def _tree_and_lock(self, limits: Limits) -> tuple[Tree, Lock]:
        """Return a tree that has executed nothing, and the lock that it is to have."""
        claimed = self._next.claimed(limits)
        if claimed is not None:
            return claimed
        await self._next.drop()
        lock = await self._ground.held()
        try:
            tree = await self._backend.build(
                self._ground, limits, lock, is_staying=self._backend.is_live
            )
        except BaseException:
            lock.close()
            raise
        return tree, lock

    async def _executed(self, tree: Tree, order: Order, lock: Lock | None) -> Ended:
        """Execute a command, and look meanwhile at how much room it takes."""
        self._resting.stop()
        try:
            watch = await self._ground.watch(tree)
        except BaseException:
            if order.is_last:
                await self._backend.end(tree)
            raise
        try:
            order = structs.replace(order, full=watch.full)
            return await self._backend.execute(tree, order, lock)
        finally:
            watch.end()
            if not order.is_last:
                self._resting.begin(tree)

    async def _in_live_tree(
        self, order: Order, limits: Limits, *, is_again: bool = False
    ) -> tuple[Ended, bool]:
        tree, lock = self._live.tree, None
        if tree is None:
            tree, lock = await self._tree_and_lock(limits)
            self._live.enter(tree)
        try:
            kills = tree.group.memory_kills()
            with self._live.command(tree) as (groups, stop):
                alive = structs.replace(order, is_last=False, groups=groups, stop=stop)
                ended = await self._executed(tree, alive, lock)
            self._live.ended(tree, ended)
            return ended, max(tree.group.memory_kills(), tree.memory_kills) > kills
        except UsageError:
            if is_again or not tree.never_began:
                raise
        finally:
            if lock is not None:
                lock.close()
            if not tree.has_lock:
                await self._live.end()  # it was never begun
        return await self._in_live_tree(order, limits, is_again=True)

    async def _end_for(self, tree: Tree, why: str) -> None:
        """End a tree that goes on between commands, for a reason; for who has the gate."""
        if self._live.tree is tree:
            await asyncio.to_thread(self._live.look, tree)
            known = self._live.known
            await self._live.end()
            self._live.lose(known, why)

    # -- what the engine does ----------------------------------------------------------------------

    async def take(self) -> str:
        """Keep the files as they are now; return the snapshot's id.

        Where nothing changed since the last snapshot it is that one. What is alive in a live
        sandbox is stopped meanwhile, and noted in the snapshot; where that can't be done it is
        ended, and `lost` names it.

        Raises:
            UsageError: it stands on too many layers; no snapshot was taken.
            SandboxFull: it takes more room than it may; no snapshot was taken.
            StoreError: the disk cannot serve; no snapshot was taken.
            SnapshotNotDurable: of a backend that is to be durable: it is on this host only.

        Durability: the whole snapshot is on disk when this returns; of a backend that is to be
            durable, it outlives the host. Cancel-safe: yes; it may be taken still.
        """
        async with self._gate:
            self._next.stop()
            taken = await self._states.take()
            self._prepare()
        return await self._outlived(taken)

    async def _outlived(self, taken: str) -> str:
        """Return a snapshot when it is as durable as the backend is to be."""
        if self._backend.durable:
            await self.make_durable(taken)
        else:
            self._offer(taken)
        return taken

    async def restore(self, snapshot: str | None) -> None:
        """Make the files what they were at the snapshot (None: the base's).

        Whatever is alive is ended. Of what was alive when the snapshot was taken, services are
        started again with the next command, and the rest is named by it and by `lost`.

        One that is not on this host is fetched from where snapshots are exported to.

        Raises:
            NotFound: there is no such snapshot; the files are as they were.
            SnapshotBroken: what was exported is not what was put there; the same.
            StoreCorrupt: a layer that it stands on is missing; the files are as they were.
            UsageError: it was made on another base, or by another driver; the files are as they
                were.
            StoreError: the disk cannot serve.

        Durability: none needed: it can be done again. Idempotent: yes. Cancel-safe: yes.
        """
        await self._go_back(snapshot, self._states.restore)

    async def resume(self, snapshot: str | None) -> None:
        """Go on from a snapshot.

        As `restore`, but that a live sandbox of which this is the newest snapshot, and in which no
        command was begun since, goes on as it is, with what is alive in it.
        """
        await self._go_back(snapshot, self._states.resume)

    async def _go_back(
        self, snapshot: str | None, act: Callable[[str | None], Awaitable[None]]
    ) -> None:
        async with self._gate:
            self._next.stop()
            if snapshot is not None:
                await self._fetch(snapshot)
            await act(snapshot)
            self._is_new = False
            self._prepare()
        self._offer(snapshot or BASE)

    def _prepare(self) -> None:
        if self._live.tree is None:
            self._next.soon(self._limits)
