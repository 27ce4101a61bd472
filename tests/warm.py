"""Starts Python programs as processes that need not import everything first.

Most of what a small program of ours does is to import. So one process, the forker, imports what
they have in common, and each program is a fork of it: a process of its own, with its own pid,
folder, environment and streams, that is killed, waited for and ended like any other.

    process = warm.Popen([sys.executable, "-m", "perdure", "ps"], cwd=folder, env=environment)

is what `subprocess.Popen` would give. What a start costs or imports is not to be tested with it.
With `PERDURE_TEST_COLD=1`, as `make test-all` has it, programs are started in the ordinary way.
"""

import array
import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("agent", "cli", "contracts", "engine", "governance", "sandbox", "sealing", "store")
IMPORTED = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.ciphers.aead",
    "encodings.ascii",
    "perdure.testing._store_kit",
    "perdure.testing.postgres",
    "psycopg",
    "pydantic.main",
    "rich.console",
    "rich.table",
    "rich.traceback",
    "tests.fault.actors",
    "tests.fault.partitions",
    "tests.fault.storm",
    "tests.governance.canaries",
    "typer._adapters",
)
"""What is there before a program begins, with all of `ROOMS`; to import it does nothing else."""
MESSAGE_MAX = 1 << 20
"""Bytes of a command line with its environment."""


class Popen(subprocess.Popen):
    """A program that was forked, as `subprocess.Popen` shows one that was executed."""

    _told: socket.socket | None = None
    """Tells the pid, and once it has ended how; None: it was executed."""

    def _execute_child(self, args, *rest) -> None:
        names = (
            *("executable", "preexec", "close_fds", "pass_fds", "cwd", "env", "info", "flags"),
            *("shell", "in_child", "in_own", "out_own", "out_child", "err_own", "err_child"),
        )
        given = dict(zip(names, rest, strict=False))
        env = dict(os.environ if given["env"] is None else given["env"])
        args = [os.fspath(each) for each in args]
        if not _can_fork(args, env) or given["preexec"] or given["pass_fds"] or given["shell"]:
            super()._execute_child(args, *rest)
            return
        is_session = rest[-2]
        asked = [args[1:], os.fspath(given["cwd"] or Path.cwd()), env, is_session]
        children = [given["in_child"], given["out_child"], given["err_child"]]
        self._told = _ask(
            asked, [own if child == -1 else child for own, child in enumerate(children)]
        )
        self.pid = int(self._told.recv(20))
        self._child_created = True
        for end in children:
            if end != -1 and end not in {given["in_own"], given["out_own"], given["err_own"]}:
                with contextlib.suppress(OSError):  # both streams may be one
                    os.close(end)

    def _try_wait(self, wait_flags):
        if self._told is None:
            return super()._try_wait(wait_flags)
        self._told.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = int(self._told.recv(20))
        except BlockingIOError:
            return 0, 0
        self._told.close()
        return self.pid, status

    def _internal_poll(self, *args, **kwargs):
        if self._told is None:
            return super()._internal_poll(*args, **kwargs)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(args: list[str], *, timeout: float | None = None, **kwargs: Any):
    """Do as `subprocess.run` does, without `input` and `check`."""
    if kwargs.pop("capture_output", False):
        kwargs |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **kwargs) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


class Waited:
    """A program that an event loop waits for, as `asyncio.create_subprocess_exec` gives one."""

    def __init__(self, process: Popen) -> None:
        self.process = process
        self.pid = process.pid
        self.kill = process.kill

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    async def wait(self) -> int:
        """Return how it ended; what it wrote and nobody read is gone."""
        status = await asyncio.to_thread(self.process.wait)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status

    async def communicate(self) -> tuple[Any, Any]:
        """Read all that it writes, and wait for it."""
        return await asyncio.to_thread(self.process.communicate)


async def execute(*args: str, **kwargs: Any) -> Waited:
    """Start a program whose end is awaited."""
    return Waited(await asyncio.to_thread(Popen, args, **kwargs))


def _can_fork(args: list[str], env: dict[str, str]) -> bool:
    """Tell whether a fork of the forker can be the program."""
    if os.environ.get("PERDURE_TEST_COLD") or args[0] != sys.executable or len(args) == 1:
        return False
    if args[1].startswith("-") and args[1] not in {"-m", "-c"}:
        return False
    own, other = (
        {name: each[name] for name in each if name.startswith("PYTHON") and name != "PYTHONPATH"}
        for each in (os.environ, env)
    )
    return own == other


def _ask(asked: list[Any], streams: list[int]) -> socket.socket:
    told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tells:
        numbers = array.array("i", [*streams, tells.fileno()])
        _forker().sendmsg(
            [json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
        )
    return told


@functools.cache
def _forker() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(its.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# -- in the forker ---------------------------------------------------------------------------------


def main(number: int) -> None:
    """Fork whatever is asked for; in a fork, run it."""
    for name in (*_modules(), *IMPORTED):
        with contextlib.suppress(ModuleNotFoundError):  # of an extra
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there for good is neither looked at nor copied by the forks
    asked = _serve(socket.socket(fileno=number))
    if asked is not None:
        _end(_become, *asked)


def _modules() -> Iterator[str]:
    for path in sorted((ROOT / "src" / "perdure").glob("*/**/*.py")):
        room, *names = path.relative_to(ROOT / "src" / "perdure").with_suffix("").parts
        if room in ROOMS and "inside" not in names and names[-1] != "__main__":
            yield ".".join(["perdure", room, *(each for each in names if each != "__init__")])


def _serve(control: socket.socket) -> list[Any] | None:
    """Serve until nobody can ask any more (then None), or return what this fork is to run."""
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data:
                    _tell_end(selector, key)
                    continue
                message, numbers, _, _ = socket.recv_fds(control, MESSAGE_MAX, 4)
                if not message:
                    return None
                *streams, tells = numbers
                pid = os.fork()
                if pid == 0:
                    for own, given in enumerate(streams):
                        os.dup2(given, own)
                    others = [(key.fd, key.data[1]) for key in _running(selector)]
                    for each in (*numbers, *chain(*others)):
                        os.close(each)
                    return json.loads(message)
                os.write(tells, str(pid).encode())
                for each in streams:
                    os.close(each)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tells))


def _running(selector: selectors.BaseSelector) -> list[selectors.SelectorKey]:
    return [key for key in selector.get_map().values() if key.data]


def _tell_end(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, tells = key.data
    _, status = os.waitpid(pid, 0)
    selector.unregister(key.fd)
    os.close(key.fd)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(tells, str(status).encode())
    os.close(tells)


def _end(program: Callable[..., None], *given: Any) -> NoReturn:
    """Run it and end as an interpreter ends, but that what was there before is not taken apart."""
    code: object = 0
    try:
        program(*given)
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  # as an interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    if sys.modules["__main__"].__dict__ is not globals():
        sys.modules["__main__"].__dict__.clear()
    gc.collect()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads, or it was closed
            stream.flush()
    os._exit(0 if code is None else code & 0xFF)


def _become(args: list[str], folder: str, env: dict[str, str], is_session: bool) -> None:
    """Run the program that is named by the arguments of an interpreter."""
    if is_session:
        os.setsid()
    os.chdir(folder)
    base = [each for each in sys.path[1:] if each not in {str(ROOT), str(ROOT / "src")}]
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    named = [
        str(Path(each).resolve()) for each in env.get("PYTHONPATH", "").split(os.pathsep) if each
    ]
    kind, *rest = args
    if kind == "-m":
        sys.path = [folder, *named, *base]
        sys.argv = rest
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path = ["", *named, *base]
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), program.__dict__)  # noqa: S102  # a test's own
    else:
        sys.path = [str(Path(kind).resolve().parent), *named, *base]
        sys.argv = args
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(int(sys.argv[1]))
