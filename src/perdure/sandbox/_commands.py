"""The sandbox of one thread: commands over its files, and what becomes of the files."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from perdure.clock import Services
from perdure.errors import NotFound, UsageError
from perdure.model.sandbox import Changes, Ran, ServiceState
from perdure.sandbox._changes import changes_of
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._exported import Exported
from perdure.sandbox._launching import Ended
from perdure.sandbox._layers import BASE, clear, part_name
from perdure.sandbox._lock import (
    Fence,
    Lock,
    held,
    hold,
    next_generation,
    raise_generation,
)
from perdure.sandbox._measure import Usage
from perdure.sandbox._story import Snapshot, snapshot_of
from perdure.sandbox._turns import (
    HOME,
    Limits,
    as_ran,
    check,
    text_of,
)
from perdure.sandbox._watch import Watch
from perdure.sandbox.export import Exports, Tenant
from perdure.sandbox.inside.services import MANIFEST, MANIFEST_BYTES_MAX, SERVICES_MAX
from perdure.sandbox.limits import (
    NAME_CHARACTERS_MAX,
    OUTPUT_BYTES_MAX,
    READY_S,
)


class Backend(Protocol):
    """What a sandbox needs of those that it is one of."""

    limits: Limits
    services: Services
    parts: list[tuple[str, str]]
    exports: Exports | None
    durable: bool

    async def turn(
        self,
        sandbox: "IsolatedSandbox",
        *,
        act: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        given: bytes,
        limits: Limits,
        lock: Lock,
    ) -> tuple[Ended, bool]:
        """Execute a turn; return how it ended, and whether it ran out of memory.

        The lock is handed to the turn: it is free again when the turn has ended.
        """
        ...


class IsolatedSandbox(Exported):
    """The files of one thread, and commands that run over them, one at a time."""

    _backend: Backend

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        tenant: Tenant,
        *,
        fence: Fence | None,
    ) -> None:
        """Use the folder."""
        self._fence = fence
        self._backend = backend
        self._folder = folder
        self._tenant = tenant
        self._layers = tenant.layers
        self._ids = tenant.driver.first, tenant.driver.count
        self._gate = asyncio.Lock()
        self._left = Usage()

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
        """Run a command to its end; whatever it leaves running is killed and named.

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
        return as_ran(ended, is_out)

    async def read(self, path: str, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
        """Return a file's content.

        Raises:
            NotFound: there is no such file, or it can't be read; says why.
            UsageError: it is longer than bytes_max.
        """
        limits = Limits(output_bytes=bytes_max)
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
        return state or ServiceState(name=name, reason="its settings can't be taken")

    async def stop_service(self, name: str) -> bool:
        """Have a service up no more; return whether there was one."""
        before = await self.services()
        kept = [each for each in before if each["name"] != name]
        if len(kept) < len(before):
            await self._put_services(kept)
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
            since: a snapshot; None: the newest that was taken or restored.

        Raises:
            UsageError: the files don't stand on that snapshot: restore it, or ask another thread's.
        """
        async with self._gate:
            return await asyncio.to_thread(self._changes, since)

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
        with disk_errors("look at", self._folder):
            name = snapshot or self._layers.head(self._folder)
            return None if name == BASE else snapshot_of(self._layers, name)

    def _changes(self, since: str | None) -> Changes:
        with disk_errors("look at", self._folder), held(self._folder, self._fence):
            chain = self._layers.chain(self._layers.head(self._folder), is_whole=True)
            since = since or self._layers.head(self._folder)
            if since != BASE and since not in chain:
                msg = (
                    f"the files don't stand on snapshot {since!r}, or what is below it was "
                    "collected; nothing was looked at"
                )
                raise UsageError(msg, snapshot=since)
            count = len(chain) if since == BASE else chain.index(since)
            self._make_ready()
            top = self._layers.top(self._folder)
            parts = []
            for at, base in self._backend.parts:
                folders = [self._layers.folder(name, at) for name in chain]
                uppers = [str(top / part_name(at)), *folders[:count]]
                parts.append((at, uppers, [*folders[count:], base]))
            return changes_of(parts)

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
        async with self._gate:
            lock = await self._held()
            try:
                return await self._backend.turn(
                    self,
                    act=act,
                    argv=argv,
                    env=env,
                    cwd=cwd,
                    given=given,
                    limits=limits,
                    lock=lock,
                )
            finally:
                lock.close()

    async def _held(self) -> Lock:
        """Return the lock; cancelled, it is let go of as soon as it is there."""
        holding = asyncio.ensure_future(asyncio.to_thread(self._hold))
        try:
            return await asyncio.shield(holding)
        except asyncio.CancelledError:
            holding.add_done_callback(_let_go)
            raise

    def _hold(self) -> Lock:
        """Return the lock of this sandbox, with all made ready."""
        with disk_errors("use", self._folder):
            lock = hold(self._folder, self._fence)
            try:
                self._make_ready()
            except BaseException:
                lock.close()
                raise
            return lock

    def _make_ready(self) -> None:
        clear(self._folder)
        self._layers.top(self._folder)
        self._left = self._layers.left(self._folder)
        self._layers.begin_use(self._folder)

    def watch(self) -> Watch:
        """Begin to look at how much room the turn takes that is about to begin."""
        folder, layers = self._folder, self._layers
        clock = self._backend.services.clock
        return Watch(folder, self._left, lambda stop: layers.usage_of_top(folder, stop), clock)

    def spec(self, parts: Sequence[tuple[str, str]], shown: Sequence[tuple[str, str]]) -> Any:
        """Return where the root of a turn comes from; for a holder of the lock."""
        chain = self._layers.chain(self._layers.head(self._folder))
        top = self._layers.top(self._folder)
        work = self._folder / "work"
        described = []
        for at, base in parts:
            scratch = work / part_name(at)
            scratch.mkdir(mode=0o700)
            described.append(
                {
                    "at": at,
                    "base": base,
                    "layers": [self._layers.folder(name, at) for name in chain],
                    "upper": str(top / part_name(at)),
                    "work": str(scratch),
                }
            )
        root = work / "mount"
        root.mkdir(mode=0o700)
        return {
            "parts": described,
            "binds": [[source, target] for target, source in shown],
            "staging": str(root),
            "note": str(self._folder / "turn"),
            "range": list(self._ids),
        }

    # -- what the engine does ----------------------------------------------------------------------

    async def take(self) -> str:
        """Keep the files as they are now; return the snapshot's id.

        Where nothing changed since the last snapshot it is that one.

        Raises:
            UsageError: it stands on too many layers; no snapshot was taken.
            SandboxFull: it takes more room than it may; no snapshot was taken.
            StoreError: the disk cannot serve; no snapshot was taken.
            SnapshotNotDurable: of a backend that is to be durable: it is on this host only.

        Durability: the whole snapshot is on disk when this returns; of a backend that is to be
            durable, it outlives the host. Cancel-safe: yes; it may be taken still.
        """
        async with self._gate:
            snapshot = await asyncio.to_thread(self._take)
        if self._backend.durable:
            await self.make_durable(snapshot)
        else:
            self._offer(snapshot)
        return snapshot

    def _take(self) -> str:
        services = self._backend.services
        with disk_errors("take a snapshot of", self._folder), held(self._folder, self._fence):
            clear(self._folder)
            if not self._layers.is_changed(self._folder):
                return self._layers.head(self._folder)
            name = services.ids.new("l", services.clock.now_us())
            generation = next_generation(self._folder, self._fence)
            return self._layers.freeze(self._folder, name, services.probe, generation=generation)

    async def restore(self, snapshot: str | None) -> None:
        """Make the files what they were at the snapshot (None: the base's).

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
        async with self._gate:
            if snapshot is not None:
                await self._fetch(snapshot)
            await asyncio.to_thread(self._restore, snapshot)
        self._offer(snapshot or BASE)

    def _restore(self, snapshot: str | None) -> None:
        wanted = snapshot or BASE
        with disk_errors("restore", self._folder), held(self._folder, self._fence):
            clear(self._folder)
            with self._layers.kept():
                self._layers.chain(wanted)
                self._layers.drop_top(self._folder)
                # crash-point: sandbox.rollback.dropped
                self._backend.services.probe("sandbox.rollback.dropped")
                if self._layers.head(self._folder) != wanted:
                    self._layers.stand(self._folder, wanted)
                self._layers.end_use(self._folder)
            if wanted != BASE and (layer := self._layers.read(wanted)).thread == self._folder.name:
                raise_generation(self._folder, layer.generation)


def _let_go(holding: "asyncio.Future[Lock]") -> None:
    if not holding.cancelled() and holding.exception() is None:
        holding.result().close()
