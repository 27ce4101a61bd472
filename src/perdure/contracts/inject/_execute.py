"""Runs commands of engines: argv lists, no shell, bounded in time and output.

A command has our own environment and no other: that of a project would say which program is found,
what is loaded into it and which engine it talks to.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from perdure.contracts.inject import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command came to. `exit_code` is `None` if it took too long and was ended."""

    exit_code: int | None
    output: str
    errors: str


def program(name: str) -> str:
    """Return where a program is by our own PATH, without its relative parts.

    The folder that we work in may be a project's, with a `docker` of its own.

    Raises:
        OSError: there is no such program.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(
        name, path=os.pathsep.join(each for each in folders if Path(each).is_absolute()) or "/bin"
    )
    if found is None or not Path(found).is_absolute():
        msg = f"there is no program {name}"
        raise FileNotFoundError(errno.ENOENT, msg)
    return found


@dataclass(slots=True, kw_only=True)
class Piped:
    """A pipe of ours for what a program says.

    Not one of asyncio's own: it counts a program as ended only when every child of it, too, has let
    go of those, which a child need never do.
    """

    reader: asyncio.StreamReader
    writable: int
    _transport: asyncio.ReadTransport

    def let_go(self) -> None:
        """Close the end that the program has by now."""
        os.close(self.writable)

    def close(self) -> None:
        """Read no more."""
        self._transport.close()


async def piped(limit: int = 65_536) -> Piped:
    """Make a pipe; `limit`: bytes of its longest line."""
    readable, writable = os.pipe()
    reader = asyncio.StreamReader(limit=limit)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", buffering=0)
        )
    except BaseException:
        os.close(writable)
        raise
    return Piped(reader=reader, writable=writable, _transport=transport)


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a program that leads a group of its own, with its group, unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def execute(
    argv: tuple[str, ...], *, timeout_s: float = limits.COMMAND_S, content: bytes = b""
) -> Done:
    """Run a command to its end, in a process group of its own, and return what it printed.

    Its input is a file in memory with `content`, which it may open as `/dev/stdin`.
    Cancel-safe: the command is ended with the caller.

    Raises:
        OSError: there is no such program, or the system does not take its words.
    """
    given = held(content)
    pipes: list[Piped] = []
    process = None
    try:
        try:
            pipes.append(await piped())
            pipes.append(await piped())
            output, errors = pipes
            process = await asyncio.create_subprocess_exec(
                program(argv[0]),
                *argv[1:],
                stdin=given,
                stdout=output.writable,
                stderr=errors.writable,
                start_new_session=True,
            )
        except ValueError as error:  # a NUL, or no UTF-8
            raise OSError(errno.EINVAL, str(error)) from error
        finally:
            os.close(given)
            for each in pipes:
                each.let_go()
        async with asyncio.timeout(timeout_s):
            said = await asyncio.gather(_bounded(output.reader), _bounded(errors.reader))
            code: int | None = await process.wait()
    except TimeoutError:
        code, said = None, (b"", f"no answer within {timeout_s:g} s".encode())
    finally:
        if process is not None:
            await end(process)
        for each in pipes:
            each.close()
    return Done(
        exit_code=code,
        output=said[0].decode("utf-8", errors="replace"),
        errors=said[1].decode("utf-8", errors="replace"),
    )


def held(content: bytes) -> int:
    """Return a descriptor of a file in memory, at its beginning."""
    memory = os.memfd_create("input", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(memory, 0, os.SEEK_SET)
    except BaseException:
        os.close(memory)
        raise
    return memory


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """Read all, and keep the newest."""
    kept = bytearray()
    while part := await stream.read(65_536):
        kept += part
        if len(kept) > 2 * limits.LOG_BYTES_MAX:
            del kept[: -limits.LOG_BYTES_MAX]
    return bytes(kept[-limits.LOG_BYTES_MAX :])
