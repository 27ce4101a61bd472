"""Commands over a plain directory, for code that is trusted: nothing is isolated.

A command is a process of the worker's user, with the host's files, network and processes in reach.
What this gives beside `subprocess` is the protocol: the files of a thread, a bounded output, a
deadline, an environment without the worker's secrets, one command at a time. What a command leaves
is ended with it as far as it stayed in the command's session; what fled from it goes on. The same
where the worker is killed: nothing ends what it was executing.
"""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.errors import NotFound, SettingInvalid, UsageError
from perdure.model.sandbox import Ran
from perdure.sandbox._directory import DirectorySandbox, DirectorySandboxes
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._launching import Ended
from perdure.sandbox._lock import Fence, Lock, hold
from perdure.sandbox._names import folder_name
from perdure.sandbox._packets import in_memory
from perdure.sandbox._processes import in_session
from perdure.sandbox._reading import Reading
from perdure.sandbox._snapshots import Snapshots
from perdure.sandbox._turns import HOME, Limits, as_ran, check
from perdure.sandbox.inside import syscalls
from perdure.sandbox.inside.processes import Processes
from perdure.sandbox.limits import END_ROUNDS, GIVEN_BYTES_MAX, OUTPUT_BYTES_MAX

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMITED = 'ulimit -c 0; ulimit -d "$1"; ulimit -f "$2"; shift 2; exec "$@"'
"""What the shell does before it becomes the command; KiB of memory, and blocks of a file."""
KIB, BLOCK = 1024, 512


class TrustedSandboxes(DirectorySandboxes):
    """A backend whose sandboxes are directories in which commands are executed WITHOUT isolation.

    The driver `plain`: for code that you would run as yourself, where no namespaces can be made. It
    is never chosen by anything but this name and `trusted=True`.
    """

    def __init__(self, root: str | Path, *, trusted: bool = False) -> None:
        """Keep everything under root, which is made on first use.

        Args:
            root: a folder on a local disk that belongs to this backend alone.
            trusted: that whatever is executed here is trusted with all that this user may do.

        Raises:
            SettingInvalid: it was not said to be; nothing was made.
        """
        if trusted is not True:
            msg = (
                "TrustedSandboxes isolate nothing: commands can read and change whatever this user "
                "can. Say trusted=True if all that is executed is trusted with that; for all else "
                "there is IsolatedSandboxes. Nothing was made"
            )
            raise SettingInvalid(msg)
        super().__init__(root)

    def open(self, tenant: str, thread: str, *, fence: Fence | None = None) -> "TrustedSandbox":
        """Return the sandbox of a thread; a new one has an empty tree; as `DirectorySandboxes`."""
        tenant_folder = self.folder(tenant)
        with disk_errors("open", tenant_folder):
            folder = tenant_folder / "threads" / folder_name(thread)
            return TrustedSandbox(folder, Snapshots(tenant_folder), probe=self.probe, fence=fence)


class TrustedSandbox(DirectorySandbox):
    """The files of one thread, and commands in them, one at a time, that nothing isolates.

    Paths are those of the tree; one that begins with `/workspace` means the tree, too.
    """

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        given: bytes = b"",
        limits: Limits | None = None,
    ) -> Ran:
        """Run a command to its end; what it leaves in its session is named, and killed.

        Args:
            command: a line for the shell, or a program and its arguments.
            env: variables beside PATH, HOME and LANG.
            cwd: folder of the tree.
            given: standard input.
            limits: deadline, output, size of a file, and memory by process; processes and cores are
                not limited here.

        Raises:
            UsageError: an argument can't be taken; nothing was executed.
            StoreLocked, LeaseLost: somebody else uses the sandbox; nothing was executed.

        Cancel-safe: yes; the command is killed. What it changed stays until `restore`.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        check(argv, env or {}, given)
        limits = limits or Limits()
        lock = await self._held()
        try:
            with self._beneath(cwd, os.O_DIRECTORY | os.O_PATH) as folder:
                ended = await self._executed(argv, dict(env or {}), folder, given, limits)
        finally:
            lock.close()
        return as_ran(ended, is_out_of_memory=False, lost=())

    async def read(self, path: str, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
        """Return a file's content; no link is followed.

        Raises:
            NotFound: there is no such file, or it can't be read; says why.
            UsageError: it is longer than bytes_max, or outside of the tree.
        """
        lock = await self._held()
        try:
            return await asyncio.to_thread(self._read, path, bytes_max)
        finally:
            lock.close()

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Make a file have this content; folders that are missing are made; no link is followed.

        Raises:
            UsageError: it can't be written; says why. What was there stays.
        """
        if len(content) > GIVEN_BYTES_MAX:
            msg = f"at most {GIVEN_BYTES_MAX} bytes can be given at once; nothing was written"
            raise UsageError(msg, path=path)
        lock = await self._held()
        try:
            await asyncio.to_thread(self._put, path, content, mode)
        finally:
            lock.close()

    # -- commands ----------------------------------------------------------------------------------

    async def _held(self) -> Lock:
        """Return the lock; cancelled, it is let go of as soon as it is there."""

        def holding() -> Lock:
            """Wait for it on another OS thread."""
            with disk_errors("use", self._folder):
                return hold(self._folder, self._fence)

        waiting = asyncio.ensure_future(asyncio.to_thread(holding))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_let_go)
            raise

    async def _executed(
        self, argv: list[str], env: dict[str, str], folder: int, given: bytes, limits: Limits
    ) -> Ended:
        output, errors = Reading(limits.output_bytes), Reading(limits.output_bytes)
        try:
            # Without waiting: cancelled in between, nobody would know of it.
            process = self._begin(argv, env, folder, in_memory(given), [output, errors], limits)
        except BaseException:
            output.close()
            errors.close()
            raise
        cause, left = "", []
        ending = asyncio.ensure_future(_ended(process.pid))
        try:
            flooded = [output.flooded, errors.flooded]
            waits: list[asyncio.Future[Any]] = [ending, *flooded]
            await asyncio.wait(
                waits, timeout=limits.deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ending.done():
                left = await asyncio.to_thread(_left, process.pid)
            else:
                cause = "flood" if any(each.done() for each in flooded) else "deadline"
        finally:
            ending.cancel()
            _end(process.pid)
            process.wait()
            for each in (output, errors):
                each.catch_up()
                each.close()
        return Ended(
            code=None if cause else process.returncode,
            output=bytes(output.kept),
            errors=bytes(errors.kept),
            output_bytes=output.count,
            errors_bytes=errors.count,
            left=tuple(left),
            cause=cause,
        )

    def _begin(  # noqa: PLR0917  # what a command is
        self,
        argv: list[str],
        env: dict[str, str],
        folder: int,
        given: int,
        readings: list[Reading],
        limits: Limits,
    ) -> "subprocess.Popen[bytes]":
        """Start a command in a session of its own; closes `given`, a descriptor."""
        handed = [given]
        try:
            handed += [each.open() for each in readings]
            amounts = [str(limits.memory_bytes // KIB), str(limits.file_bytes // BLOCK)]
            return subprocess.Popen(  # noqa: S603  # the command, as it was given
                ["/bin/sh", "-c", LIMITED, "sh", *amounts, *argv],
                stdin=handed[0],
                stdout=handed[1],
                stderr=handed[2],
                env={"PATH": PATH, "HOME": str(self.path), "LANG": "C.UTF-8", **env},
                cwd=f"/proc/self/fd/{folder}",
                start_new_session=True,
            )
        finally:
            for fd in handed:
                os.close(fd)

    # -- files -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _beneath(self, path: str, flags: int) -> Iterator[int]:
        """Open what is at a path of the tree, through no link."""
        relative = _relative(path)
        top = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = syscalls.open_beneath(top, relative, flags)
        except OSError as error:
            msg = f"{path!r} can't be used: {error.strerror}; nothing was done"
            raise UsageError(msg, path=path) from error
        finally:
            os.close(top)
        try:
            yield found
        finally:
            os.close(found)

    def _read(self, path: str, bytes_max: int) -> bytes:
        try:
            with self._beneath(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK) as source:
                return _content(source, path, bytes_max)
        except UsageError as error:
            if isinstance(error.__cause__, OSError):
                raise NotFound(str(error), path=path) from error
            raise

    def _put(self, path: str, content: bytes, mode: int) -> None:
        *folders, name = _relative(path).split("/")
        beside = f".{name}.new"
        with contextlib.ExitStack() as opened:
            try:
                folder = opened.enter_context(self._beneath("", os.O_DIRECTORY))
                for part in folders:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                    folder = syscalls.open_beneath(folder, part, os.O_DIRECTORY)
                    opened.callback(os.close, folder)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(beside, flags, mode, dir_fd=folder), "wb") as file:
                    file.write(content)
                    os.fchmod(file.fileno(), mode)
                os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                msg = f"{path}: {error.strerror}; what was there stays"
                raise UsageError(msg, path=path) from error


def _content(source: int, path: str, bytes_max: int) -> bytes:
    found = os.fstat(source)
    if not stat.S_ISREG(found.st_mode):
        msg = f"{path}: it is no file"
        raise NotFound(msg, path=path)
    if found.st_size > bytes_max:
        msg = f"{path} has {found.st_size} bytes, more than {bytes_max}: read a part of it"
        raise UsageError(msg, path=path)
    with open(source, "rb", closefd=False) as file:
        return file.read(bytes_max)


def _relative(path: str) -> str:
    """Return a path below the tree.

    Raises:
        UsageError: it is not.
    """
    if path == HOME or path.startswith(f"{HOME}/"):
        path = path.removeprefix(HOME).lstrip("/")
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        msg = f"{path!r} is not below the sandbox's files ({HOME}); nothing was done"
        raise UsageError(msg, path=path)
    return path or "."


async def _ended(pid: int) -> None:
    """Return when a child of this process has ended; it is not reaped."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    is_over = asyncio.Event()
    loop.add_reader(handle, is_over.set)
    try:
        await is_over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _left(session: int) -> list[tuple[int, str]]:
    """Return what is alive in a session, when it is what it is going to be."""
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        Processes(proc).settle([pid for pid, _line in in_session(session)])
    finally:
        os.close(proc)
    return in_session(session)


def _end(session: int) -> None:
    """Kill what is in a session, whatever it forks meanwhile."""
    with contextlib.suppress(OSError):
        os.killpg(session, signal.SIGKILL)  # at once: nothing of it forks any more
    was_empty = False
    for _ in range(END_ROUNDS):
        found = in_session(session)
        for pid, _line in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if was_empty and not found:
            return  # twice: what was forked while the list was read is in the next one
        was_empty = not found


def _let_go(waiting: "asyncio.Future[Lock]") -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().close()
