"""Plain processes of this host instead of containers, for where no engine can run.

A container is a copy of the project's folder, a log file and a supervisor of ours that starts the
command again as the restart policy says. What it can show: restarts, stops and kills. What it
can't: images, mounts, memory limits, and process 1, whose unhandled signals the kernel ignores in a
container and obeys here. A verdict therefore stands on what the application itself says, never on
how fast it ended.

Each command has a program of ours beside it (`_supervisor`) that is the parent of all orphans below
it, so that none gets away. All processes carry their container's id in their environment, too: so
they are found by a later start after we were killed.
"""

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from perdure.clock import Clock
from perdure.contracts.inject import limits
from perdure.contracts.inject._execute import execute, held, piped
from perdure.contracts.inject.engines import _allowed, _copies, _host
from perdure.contracts.inject.engines._api import (
    BuildSpec,
    ContainerSpec,
    ContainerState,
    Executed,
    Feature,
    HostProcess,
)
from perdure.errors import EngineFailed, TrialImpossible

LABELS = "labels.json"
MARK = "PERDURE_INJECT_CONTAINER"
SUPERVISES = "PERDURE_INJECT_SUPERVISES"
"""Marks the program that is the parent of a container's orphans."""

BESIDE = "PERDURE_INJECT_BESIDE"
"""Marks the program that is the parent of what is executed beside the application."""

ENTERED = "PERDURE_INJECT_ENTERED"
"""What is executed beside the application: not of it, and gone with it."""

NOT_FOUND = 127
"""Exit code of a command that isn't there, as shells count."""

SUPERVISOR = Path(__file__).with_name("_supervisor.py")
READ_BYTES = 65_536
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV")


class _Log:
    """The newest that a container's processes wrote: through a pipe, so that no disk gets full."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._readable, self.writable = os.pipe()
        os.set_blocking(self._readable, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._readable, self._read)

    def _read(self) -> bool:
        try:
            part = os.read(self._readable, READ_BYTES)
        except BlockingIOError:
            return False
        self._kept += part
        if len(self._kept) > 2 * limits.LOG_BYTES_MAX:
            del self._kept[: -limits.LOG_BYTES_MAX]
        return bool(part)

    def text(self) -> str:
        """Return what was written until now, but of a flood what came in a moment."""
        for _ in range(limits.LOG_BYTES_MAX // READ_BYTES):
            if not self._read():
                break
        return self._kept[-limits.LOG_BYTES_MAX :].decode("utf-8", errors="replace")

    def close(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._readable)
        os.close(self._readable)
        os.close(self.writable)


@dataclass(slots=True)
class _Container:
    spec: ContainerSpec
    folder: Path
    held_port: socket.socket | None
    log: _Log
    process: asyncio.subprocess.Process | None = None
    """The supervisor; it ends when the command and all below it have ended."""
    first: int = 0
    """The command's id."""
    control: int | None = None
    """Where signals for the command are written."""
    watcher: asyncio.Task[None] | None = None
    is_wanted: bool = False
    exit_code: int | None = None
    restarts: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with `is_wanted` false, so that nobody waits for a restart that does not come."""

    def let_go_of_control(self) -> None:
        """Send no more signals."""
        if self.control is not None:
            os.close(self.control)
            self.control = None


class ProcessEngine:
    """Runs each container as a process of this user."""

    name = "process"
    features: frozenset[Feature] = frozenset()

    def __init__(self, clock: Clock, parent: Path | None = None) -> None:
        """Put copies below `parent`, else where temporary files go."""
        self._clock = clock
        self._parent = parent or Path(tempfile.gettempdir())
        self._containers: dict[str, _Container] = {}

    async def open(self) -> str:
        """Nothing to look for."""
        return "plain processes of this host"

    async def build(self, spec: BuildSpec) -> str:
        """There are no images; the folder is what is run."""
        return spec.context

    async def make_network(self, name: str, subnet: str, labels: Mapping[str, str]) -> None:
        """All share the host's."""

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """There are none."""

    async def make(self, spec: ContainerSpec) -> str:
        """Copy the project, put the files in, and keep the port for it."""
        _allowed.variables(spec.environment)
        if not spec.argv:
            _failed(f"it is not known which command starts {spec.name}")
        folder = Path(tempfile.mkdtemp(prefix=_copies.PREFIX, dir=self._parent))
        (folder / LABELS).write_text(json.dumps(dict(spec.labels)), encoding="utf-8")
        try:
            await asyncio.to_thread(_copies.fill, folder / "project", spec)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):  # shutil.Error is one
                _failed(f"the project can't be copied: {str(error)[:400]}", error)
            raise
        self._containers[folder.name] = _Container(
            spec=spec,
            folder=folder,
            held_port=_copies.hold_port(spec.port) if spec.port else None,
            log=_Log(),
        )
        return folder.name

    async def start(self, container: str) -> None:
        """Start the command, and the supervisor."""
        found = self._found(container)
        await self._put_away(found)
        found.is_wanted = True
        found.unwanted.clear()
        if found.process is not None and found.process.returncode is None:
            return
        await self._spawn(container, found)
        found.watcher = asyncio.create_task(self._watch(container, found))

    async def _put_away(self, found: _Container) -> None:
        """Wait for the supervisor of what has ended: it kills all that has the container's mark."""
        while found.watcher is not None and not found.watcher.done():
            if found.process is not None and found.process.returncode is None:
                return
            _let_go(found)
            await self._clock.sleep(limits.POLL_S)

    async def _spawn(self, container: str, found: _Container) -> None:
        """Start the supervisor, and wait until it has started the command.

        Raises:
            TrialImpossible: there is no such program, or it may not be executed.
            EngineFailed: the supervisor can't be started, or the folder is gone.
        """
        project = found.folder / "project"
        argv = [
            str(project) + word.removeprefix("{project}") if word.startswith("{project}") else word
            for word in found.spec.argv
        ]
        folder = project / (found.spec.workdir or ".")
        environment = {**_inherited(), **found.spec.environment, MARK: container}
        wanted = {"argv": argv, "folder": str(folder), "environment": environment}
        found.ended.clear()
        said = await self._supervised(container, found, json.dumps(wanted).encode())
        if isinstance(said.get("pid"), int):
            found.first = int(str(said["pid"]))
            return
        if found.process is not None:
            await found.process.wait()
        number = int(str(said.get("errno") or errno.EIO))
        if number in (errno.ENOENT, errno.EACCES) and folder.is_dir():
            _not_there(argv[0], environment)
        _failed(f"{argv[0]} can't be started: {os.strerror(number)}")

    @staticmethod
    async def _supervised(container: str, found: _Container, wanted: bytes) -> dict[str, object]:
        """Start the supervisor, and return what it says of the command."""
        report, content = await piped(), held(wanted)
        readable, writable = os.pipe()
        found.let_go_of_control()
        found.control = writable
        try:
            found.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SUPERVISOR), str(content), str(report.writable)),
                env={**_inherited(), SUPERVISES: container},
                stdin=readable,
                stdout=found.log.writable,
                stderr=found.log.writable,
                pass_fds=(content, report.writable),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            report.close()
            _failed(f"its supervisor can't be started: {error}", error)
        finally:
            os.close(readable)
            os.close(content)
            report.let_go()
        try:
            line = await report.reader.readline()
        finally:
            report.close()
        return json.loads(line) if line else {}

    async def _watch(self, container: str, found: _Container) -> None:
        """Wait for ends, take what is left of the container, and start again by the policy."""
        while found.process is not None:
            code = await found.process.wait()
            found.exit_code = code if code >= 0 else 128 - code
            while self._kill_all(container):
                await self._clock.sleep(limits.POLL_S)
            if not _starts_again(found):
                found.is_wanted = False
            if self._is_over(found):
                return
            delay = min(limits.RESTART_S * 2**found.restarts, limits.RESTART_S_MAX)
            found.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await found.unwanted.wait()
            if self._is_over(found):
                return
            try:
                await self._spawn(container, found)
            except (EngineFailed, TrialImpossible):  # it has removed its program, or its folder
                found.is_wanted, found.exit_code = False, NOT_FOUND
                found.ended.set()
                return

    @staticmethod
    def _is_over(found: _Container) -> bool:
        """Whether nobody wants it any more; who waits for that is told."""
        if not found.is_wanted:
            found.ended.set()
        return not found.is_wanted

    @staticmethod
    def _marked(container: str, *, names: tuple[str, ...] = (MARK,)) -> list[int]:
        marks = {f"{name}={container}".encode() for name in names}
        return [
            pid
            for pid in _host.all_pids()
            if pid != os.getpid() and marks & set(_host.read(pid, "environ").split(b"\0"))
            if _host.stat(pid)
        ]

    def _members(self, container: str, *, names: tuple[str, ...] = (MARK,)) -> set[int]:
        """Return what has a mark, and all below a supervisor, whatever became of its mark."""
        supervisors = set(self._marked(container, names=(SUPERVISES,)))
        below = {
            pid for each in supervisors for pid in _host.descendants(each) if pid != each
        }  # whoever marks itself as a supervisor, too
        return {*self._marked(container, names=names), *below} - (supervisors - below)

    def _kill_all(self, container: str) -> bool:
        """Kill it with what is executed beside it; the supervisor ends by itself then."""
        inside = f"{self._parent.resolve() / container}/"
        members = self._members(container, names=(MARK, ENTERED))
        guards = set(self._marked(container, names=(BESIDE,))) - members
        beside = {pid for each in guards for pid in _host.descendants(each)}
        pids = (members | beside | set(_host.working_in(inside))) - guards
        killed = [_host.kill(pid, None) for pid in pids]
        return any(killed)

    async def stop(self, container: str, grace_s: float) -> None:
        """Send the stop signal to the command alone, as an engine does to process 1."""
        found = self._found(container)
        _let_go(found)
        if found.process is None or found.watcher is None:
            return
        if found.control is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(found.control, bytes([_signal(found.spec.stop_signal)]))
        try:
            async with asyncio.timeout(grace_s):
                await found.ended.wait()
        except TimeoutError:
            self._kill_all(container)
            await found.ended.wait()

    async def kill(self, container: str, processes: tuple[HostProcess, ...]) -> None:
        """Kill those that still are what they were."""
        members = self._members(container)
        for process in processes:
            if process.pid in members:
                _host.kill(process.pid, process.started)

    async def remove(self, container: str) -> None:
        """Kill all of it, and remove the copy."""
        found = self._containers.pop(container, None)
        if found is None:
            return
        _let_go(found)
        try:
            self._kill_all(container)
            if found.watcher is not None:
                await found.watcher
            while self._kill_all(container):
                await self._clock.sleep(limits.POLL_S)
        finally:
            found.log.close()
            found.let_go_of_control()
            if found.held_port is not None:
                found.held_port.close()
            await asyncio.to_thread(shutil.rmtree, found.folder, ignore_errors=True)

    async def state(self, container: str) -> ContainerState:
        """Return what the supervisor knows."""
        found = self._found(container)
        running = found.process is not None and found.process.returncode is None
        return ContainerState(
            is_running=running,
            exit_code=None if running else found.exit_code,
            restarts=found.restarts,
            port=found.spec.port,
        )

    async def log(self, container: str) -> str:
        """Return the end of what was written."""
        return self._found(container).log.text()

    async def execute(
        self, container: str, argv: tuple[str, ...], *, timeout_s: float = limits.COMMAND_S
    ) -> Executed:
        """Run it in the copy, with the container's environment."""
        try:
            done = await execute((*self.enter(container), *argv), timeout_s=timeout_s)
        except OSError as error:
            _failed(f"{argv[0]} can't be started: {error.strerror}", error)
        code = 124 if done.exit_code is None else done.exit_code
        return Executed(exit_code=code, output=done.output + done.errors)

    def enter(self, container: str) -> tuple[str, ...]:
        """Return a program of ours that has the folder and the application's variables.

        It is the parent of all orphans of what it executes, and ends when none is left.
        """
        found = self._found(container)
        folder = found.folder / "project" / (found.spec.workdir or ".")
        environment = {**_inherited(), **found.spec.environment, ENTERED: container}
        variables = tuple(f"{name}={value}" for name, value in environment.items())
        guard = (sys.executable, "-I", "-S", str(SUPERVISOR), "beside", str(folder))
        marked = ("env", "-i", f"{BESIDE}={container}")
        return (*marked, *guard, str(len(variables)), *variables)

    async def processes(self, container: str) -> tuple[HostProcess, ...]:
        """Return the command and all that it started, also what has left it."""
        found = self._found(container)
        if found.process is None or found.process.returncode is not None:
            return ()
        return _host.tree(found.first, self._members(container), found.spec.port)

    async def ran_out_of_memory(self, container: str) -> bool:
        """Nothing limits it, so it never did."""
        self._found(container)
        return False

    async def labelled(self, name: str) -> Mapping[str, str]:
        """Look at the folders that containers leave, ours alone."""
        found = {}
        for folder in self._parent.glob(f"{_copies.PREFIX}*"):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                if folder.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                labels = json.loads(_copies.beginning(folder / LABELS))
                if isinstance(labels, dict) and name in labels:
                    found[folder.name] = str(labels[name])
        return found

    async def discard(self, handle: str) -> None:
        """Kill what carries the mark, and remove the folder."""
        if not re.fullmatch(rf"{_copies.PREFIX}\w+", handle):
            return
        while self._kill_all(handle):
            await self._clock.sleep(limits.POLL_S)
        for supervisor in self._marked(handle, names=(SUPERVISES, BESIDE)):
            _host.kill(supervisor, None)
        await asyncio.to_thread(shutil.rmtree, self._parent / handle, ignore_errors=True)

    def _found(self, container: str) -> _Container:
        found = self._containers.get(container)
        return found if found is not None else _failed(f"there is no container {container}")


def _inherited() -> dict[str, str]:
    """Return what an application gets of our own environment: nothing that is secret."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def _let_go(found: _Container) -> None:
    found.is_wanted = False
    found.unwanted.set()


def _starts_again(found: _Container) -> bool:
    policy, _, most = found.spec.restart.partition(":")
    if policy == "on-failure":
        within = not most.isdecimal() or found.restarts < int(most)
        return found.exit_code != 0 and within
    return policy in ("always", "unless-stopped", "controller", "swarm_any")


def _signal(name: str | None) -> signal.Signals:
    if name is None:
        return signal.SIGTERM
    known = name if name.startswith("SIG") else f"SIG{name}"
    if name.isdecimal():
        return next((each for each in signal.Signals if str(each.value) == name), signal.SIGTERM)
    return signal.Signals[known] if known in signal.Signals.__members__ else signal.SIGTERM


def _not_there(program: str, environment: Mapping[str, str]) -> NoReturn:
    """Say which program is missing, where it was looked for, and what to do."""
    looked = (
        "it is no file that may be executed"
        if "/" in program
        else f"there is none on PATH, which is {environment.get('PATH', os.defpath)}"
    )
    msg = (
        f"{program!r} can't be started: {looked}. Install it or activate its environment, name "
        "another command as [process] argv in perdure.inject.toml ({project}/... is a path of the "
        "project), or use --engine docker"
    )
    raise TrialImpossible(msg, program=program)


def _failed(why: str, cause: Exception | None = None) -> NoReturn:
    msg = f"it can't be run as a process: {why}"
    raise EngineFailed(msg, engine="process") from cause
