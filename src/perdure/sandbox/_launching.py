"""The worker's end of the launcher: starts it, asks it for turns, reads what they print.

Output is read as it comes and kept up to a limit; what is above is counted and thrown away, so that
a flood neither fills the memory nor stops what prints it, until a second limit at which it is
killed. Deadlines are kept here, outside of what could ignore them.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.errors import StoreUnavailable
from perdure.model.sandbox import Contact
from perdure.sandbox._lock import Lock
from perdure.sandbox._network import WayOut
from perdure.sandbox.limits import (
    FLOOD_BYTES_MAX,
    KILL_AGAIN_S,
    LAUNCHER_STOP_S,
    READ_BYTES,
)

_BOOT = "import sys; sys.path.append(sys.argv[1]); from inside.launcher import main; main()"
_PACKET_BYTES_MAX = 1 << 17


class Ended(Struct, frozen=True, kw_only=True):
    """How a turn ended.

    Attributes:
        code: exit code; negative: the signal that ended the command; None: it was killed.
        output, errors: what it printed, up to the limit.
        output_bytes, errors_bytes: what it printed in all.
        services: (name, why it is not up; empty: it is).
        contacts: what it reached outside, or tried to.
        left: (pid in the sandbox, command line) of what was alive at its end, and was killed.
        cause: why it was killed: deadline, flood, disk; empty: it was not.
    """

    code: int | None
    output: bytes
    errors: bytes
    output_bytes: int
    errors_bytes: int
    left: tuple[tuple[int, str], ...] = ()
    contacts: tuple[Contact, ...] = ()
    services: tuple[tuple[str, str], ...] = ()
    cause: str = ""


class SetUpFailed(Exception):
    """The sandbox could not be built; nothing was executed. For the callers in this room."""


class Launcher:
    """A launcher process, started at the first turn; for one event loop."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ways_out: dict[int, WayOut] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._count = 0

    def close(self) -> None:
        """Kill every turn and the launcher. Idempotent; a later turn starts a new one."""
        channel, process, loop = self._channel, self._process, self._loop
        self._channel = self._process = self._loop = None
        if channel is not None and loop is not None:
            if not loop.is_closed():
                loop.remove_reader(channel)
            channel.close()
        if process is not None:
            try:
                process.wait(LAUNCHER_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._fail_all("the launcher of sandboxes ended")

    def _fail_all(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_result({"died": why})

    def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._channel is not None and self._loop is not loop:
            self.close()  # an event loop of before, which is gone
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            folder = str(Path(__file__).parent)
            command = [sys.executable, "-I", "-S", "-c", _BOOT, folder, str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(  # noqa: S603  # our own code, our own interpreter
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={},
                    cwd="/",
                )
            finally:
                theirs.close()
            ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
            self._channel, self._loop = ours, loop
            loop.add_reader(ours, self._answered)
        return self._channel

    def _answered(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            packet, handed, _flags, _address = socket.recv_fds(channel, _PACKET_BYTES_MAX, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, handed = b"", []
        if not packet:
            self.close()
            return
        answer = json.loads(packet)
        if handed:
            self._listen(answer["id"], socket.socket(fileno=handed[0]))
            return
        waiting = self._answers.get(answer["id"])
        if waiting is not None and "pid" not in answer and not waiting.done():
            waiting.set_result(answer)

    def _listen(self, name: int, listening: socket.socket) -> None:
        way_out = self._ways_out.get(name)
        if way_out is None:
            listening.close()
            return
        task = asyncio.ensure_future(way_out.serve(listening))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    # -- turns -------------------------------------------------------------------------------------

    async def turn(
        self,
        spec: dict[str, Any],
        lock: Lock,
        *,
        given: bytes,
        keep_bytes: int,
        deadline_s: float,
        way_out: WayOut | None = None,
        full: asyncio.Future[None] | None = None,
    ) -> Ended:
        """Execute a turn to its end.

        Args:
            spec: see `inside.launcher`.
            lock: of the sandbox; handed over.
            given: standard input.
            keep_bytes: how much of the output is kept, and as much of the errors.
            deadline_s: seconds after which it is killed.
            way_out: answers at the socket that a turn with a `port` opens.
            full: it is killed when this is done: it takes too much room.

        Raises:
            SetUpFailed: the sandbox could not be built; nothing was executed.
            StoreUnavailable: the launcher can't be started, or it died: says whether the command
                may have been executed.

        Cancel-safe: yes; the turn is killed.
        """
        channel = self._opened()
        self._count += 1
        name = self._count
        answer = asyncio.get_running_loop().create_future()
        self._answers[name] = answer
        if way_out is not None:
            self._ways_out[name] = way_out
        output, errors = _Reading(keep_bytes), _Reading(keep_bytes)
        try:
            await self._send(channel, name, spec, [given, output, errors, lock])
            cause = await self._until_ended(name, answer, [output, errors], deadline_s, full)
            said = answer.result()
            if way_out is not None:
                await way_out.close()
        finally:
            if way_out is not None:
                way_out.shut()
            if not answer.done():
                self._kill(name)
            self._answers.pop(name, None)
            self._ways_out.pop(name, None)
            output.close()
            errors.close()
        if "died" in said:
            msg = f"{said['died']}; the command may have been executed, in part or to its end"
            raise StoreUnavailable(msg)
        if "failed" in said:
            raise SetUpFailed(said["failed"])
        return Ended(
            code=None if cause else said.get("code"),
            output=bytes(output.kept),
            errors=bytes(errors.kept),
            output_bytes=output.count,
            errors_bytes=errors.count,
            left=tuple((pid, line) for pid, line in said.get("left", ())),
            contacts=() if way_out is None else tuple(way_out.contacts),
            services=tuple((name, why) for name, why in said.get("services", ())),
            cause=cause,
        )

    async def _until_ended(
        self,
        name: int,
        answer: asyncio.Future[dict[str, Any]],
        readings: "list[_Reading]",
        deadline_s: float,
        full: asyncio.Future[None] | None,
    ) -> str:
        """Return when a turn ended and all it printed was read; say why it had to be killed."""
        cause = ""
        floods = [each.flooded for each in readings]
        fulls = [] if full is None else [full]
        await _first([answer, *floods, *fulls], deadline_s)
        if not answer.done():
            cause = "flood" if any(each.done() for each in floods) else "deadline"
            cause = "disk" if any(each.done() for each in fulls) else cause
            self._kill(name)
            await _first([answer], LAUNCHER_STOP_S)
        if not answer.done():
            self.close()  # it was stopped, or hangs: all its turns end with it
        await answer
        for each in readings:
            await each.ended
        return cause

    def _opened(self) -> socket.socket:
        try:
            return self._open()
        except OSError as error:
            msg = f"the launcher of sandboxes can't be started: {error}; nothing was executed"
            raise StoreUnavailable(msg) from error

    async def _send(
        self, channel: socket.socket, name: int, spec: dict[str, Any], streams: list[Any]
    ) -> None:
        given, output, errors, lock = streams
        handed: list[int] = []
        try:
            handed.append(_in_memory(given))
            handed += [output.open(), errors.open()]
            # Not in the packet, which would bound the layers and variables of a turn.
            told = _in_memory(json.dumps(spec).encode("utf-8", "surrogateescape"))
            handed.append(told)
            packet = json.dumps({"id": name}).encode()
            sent = [*handed[:3], lock.descriptor, told]
            while not _is_sent(channel, packet, sent):
                await _writable(channel)
        except OSError as error:
            self.close()
            msg = f"the launcher of sandboxes doesn't answer: {error}; nothing was executed"
            raise StoreUnavailable(msg) from error
        finally:
            lock.close()
            for fd in handed:
                os.close(fd)

    def _kill(self, name: int) -> None:
        """Ask for the end of a turn, as soon as there is room for it."""
        channel = self._channel
        packet = json.dumps({"id": name, "kill": True}).encode()
        try:
            if channel is not None and not _is_sent(channel, packet, []):
                asyncio.get_running_loop().call_later(KILL_AGAIN_S, self._kill, name)
        except OSError:
            return  # it has ended, and its turns with it


def _in_memory(content: bytes) -> int:
    """Return a descriptor of a file in memory with this content, at its beginning."""
    source = os.memfd_create("perdure", os.MFD_CLOEXEC)
    try:
        with open(source, "wb", closefd=False) as file:  # it has no path
            file.write(content)
        os.lseek(source, 0, os.SEEK_SET)
    except BaseException:
        os.close(source)
        raise
    return source


def _is_sent(channel: socket.socket, packet: bytes, descriptors: list[int]) -> bool:
    """Send a packet; return False if there is no room for it now."""
    try:
        socket.send_fds(channel, [packet], descriptors)
    except BlockingIOError:
        return False
    return True


async def _writable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    there_is_room = loop.create_future()

    def tell() -> None:
        if not there_is_room.done():
            there_is_room.set_result(None)

    # A copy: several may wait at once, and the loop keeps one of each descriptor.
    copy = os.dup(channel.fileno())
    loop.add_writer(copy, tell)
    try:
        await there_is_room
    finally:
        loop.remove_writer(copy)
        os.close(copy)


async def _first(futures: list[asyncio.Future[Any]], deadline_s: float) -> None:
    await asyncio.wait(futures, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)


class _Reading:
    """Reads one stream to its end, and keeps the beginning."""

    def __init__(self, keep_bytes: int) -> None:
        """Keep this many bytes."""
        loop = asyncio.get_running_loop()
        self._keep_bytes = keep_bytes
        self._fd = -1
        self.kept = bytearray()
        self.count = 0
        self.ended: asyncio.Future[None] = loop.create_future()
        self.flooded: asyncio.Future[None] = loop.create_future()

    def open(self) -> int:
        """Return the end to write to, which the caller closes."""
        self._fd, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)  # the standard library's signature
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return write

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        self.count += len(chunk)
        room = self._keep_bytes - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]
        if self.count > FLOOD_BYTES_MAX and not self.flooded.done():
            self.flooded.set_result(None)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if not self.ended.done():
            self.ended.set_result(None)
