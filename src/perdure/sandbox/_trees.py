"""A tree of processes as the worker knows it, from the request to build it until none is alive."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from perdure.sandbox._cgroups import Group
from perdure.sandbox._lock import Lock
from perdure.sandbox._network import WayOut
from perdure.sandbox._processes import below
from perdure.sandbox._reading import Reading
from perdure.sandbox.limits import OPEN_READINGS_MAX

PACKET_BYTES_MAX = 1 << 17

ENDED_BEFORE = "its first process was ended, not by us, before it could start a command"


def packet_of(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return what a launcher or a first process sent, and a descriptor that came with it.

    Empty: it is gone. None: there is nothing yet.
    """
    try:
        packet, handed, _flags, _address = socket.recv_fds(channel, PACKET_BYTES_MAX, 1)
    except BlockingIOError:
        return None
    except OSError:
        return b"", []
    return packet, handed


class Tree:
    """A tree of processes in namespaces of its own; process 1 builds its root and starts commands.

    Attributes:
        number: of the request to build it.
        spec: what it was built of, see `inside.launcher`: `parts` (what is mounted where),
            `staging` (the folder that its root was built in), `cgroups`, `rlimits`.
        group: of control groups, with its limits.
        pid: of process 1 or its steward, as the host sees it; 0: it is not known yet.
        keeper: of process 1 where a steward starts commands, see `inside.keeping`; else 0.
        dumped: done with whether its images were taken, once that was asked for.
        remembered: done when it has said which services are up.
        failed: why it could not be built; empty: it could, or nothing is known yet.
        memory_kills: how many processes of it the kernel had killed for its memory by its end.
        died: why nothing is known of its end; empty: it is known.
        is_spare: whether its first process waited for it, see `Launcher.begin_spare`.
        was_unready: whether it ended, unasked, before anything could be executed in it.
        was_unheard: whether nobody in it heard of a command, as it had ended.
        has_lock: whether a command brought it the lock of the sandbox.
        ready: done when its root is built and its rights are given up, or it is over.
        over: done when no process of it is alive.
        answers: number of a command -> what was told of it.
        readings: of what commands left open; what is printed there is thrown away.
        way_out: answers at its socket; None: it has none.
    """

    def __init__(
        self, number: int, spec: dict[str, Any], group: Group, way_out: WayOut | None
    ) -> None:
        """Be asked for; for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.number = number
        self.spec = spec
        self.group = group
        self.pid = 0
        self.keeper = 0
        self.dumped: asyncio.Future[bool] = self._loop.create_future()
        self.remembered: asyncio.Future[None] = self._loop.create_future()
        self.failed = ""
        self.died = ""
        self.memory_kills = 0
        self.is_killed = False
        self.is_spare = False
        self.was_unready = False
        self.was_unheard = False
        self.has_lock = False
        self._asked: dict[str, Any] = {}
        self._is_unread = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.lent: asyncio.Future[Lock] = self._loop.create_future()
        self.answers: dict[int, Answer] = {}
        self.readings: list[Reading] = []
        self.way_out = way_out
        self._channel: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether commands can be started in it, as far as is known."""
        return not (self.over.done() or self.is_killed or self.failed or self._loop.is_closed())

    @property
    def never_began(self) -> bool:
        """Whether the command may have another tree: somebody killed this one before it began."""
        return self.was_unheard or (self.is_spare and self.was_unready)

    def pids(self) -> list[int]:
        """Return what executes in it beside its first process, as the host sees it."""
        if self.group.folders:
            return [pid for pid in self.group.pids() if pid != self.pid]
        return below(self.pid) if self.pid else []

    def told(self, message: dict[str, Any], handed: list[int]) -> None:
        """Take in what the launcher tells of it; descriptors are handed over."""
        if "pid" in message:
            self.pid = message["pid"]
        elif "keeper" in message:
            self.keeper = message["keeper"]
        elif "dumped" in message and not self.dumped.done():
            self.dumped.set_result(message["dumped"])
        elif "listening" in message and handed:
            self._listening = socket.socket(fileno=handed.pop())
        elif "ready" in message and handed:
            self._channel = socket.socket(fileno=handed.pop())
            self._channel.setblocking(False)  # noqa: FBT003  # the standard library's signature
            self._loop.add_reader(self._channel, self._answered)
            _done(self.ready)
        elif "failed" in message:
            self.failed = message["failed"]
        elif "is_over" in message:
            self.end("")
        for fd in handed:
            os.close(fd)

    def order(self, request: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Tell process 1 to do something; return False if nobody hears it."""
        if self._channel is None:
            return False
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
        except OSError:
            return False
        self._asked = request
        return True

    def _answered(self) -> None:
        channel = self._channel
        if channel is None:
            return
        if channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET:
            self._is_unread = True
        received = packet_of(channel)
        if received is None:
            return
        packet, handed = received
        if not packet:
            self._loop.remove_reader(channel)  # what is left is told by the launcher
            return
        message = json.loads(packet)
        if "lent" in message and handed and not self.lent.done():
            self.lent.set_result(Lock(handed.pop()))
        elif "remembered" in message:
            _done(self.remembered)
        elif message.get("id") in self.answers:
            self.answers[message["id"]].told(message)
        for fd in handed:
            os.close(fd)

    def end(self, why: str) -> None:
        """Note that no process of it is alive; `why`: empty, or why nothing is known of its end."""
        if self.over.done():
            return
        self.died = why
        if not (why or self.failed or self.is_killed or self.ready.done()):
            self.was_unready = True
            self.failed = ENDED_BEFORE
        self.memory_kills = self.group.memory_kills()
        self.group.remove()
        for reading in self.readings:
            reading.close()
        if self._listening is not None and (self._serving is None or self._loop.is_closed()):
            self._listening.close()
        if self._loop.is_closed():
            self._hang_up()
            return  # nobody waits
        self._answered()  # what it said last
        self._hang_up()
        if self._is_unread and isinstance(self._asked.get("do"), int) and not self.is_killed:
            # Forks of a steward have its end of the channel for a moment: it takes a command that
            # nobody will read. The kernel tells of what was left unread, and this was sent last.
            self.has_lock &= not self._asked["is_locked"]
            self.was_deaf()
        if self.way_out is not None:
            self.way_out.shut()
        for future in (self.ready, self.remembered, self.over):
            _done(future)
        self.lent.cancel()
        for answer in self.answers.values():
            _done(answer.given)

    def was_deaf(self) -> None:
        """Note that nobody in it heard of a command: nothing of that was executed."""
        if not (self.failed or self.died):
            self.was_unheard = True
            self.failed = ENDED_BEFORE

    def _hang_up(self) -> None:
        if self._channel is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._channel)
            self._channel.close()
            self._channel = None

    def keep_open(self, reading: Reading) -> None:
        """Read on what a command's processes print after its end; the oldest are closed."""
        self.readings = [each for each in self.readings if not each.ended.done()]
        self.readings.append(reading)
        while len(self.readings) > OPEN_READINGS_MAX:
            self.readings.pop(0).close()

    def serve(self) -> None:
        """Have the way out answer, if there is one, from the first command on."""
        if self.over.done() or self.way_out is None or self._listening is None:
            return
        if self._serving is None:
            self._serving = asyncio.ensure_future(self.way_out.serve(self._listening))


class Answer:
    """What was told of a command. `given`: done when it has ended."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.said: dict[str, Any] = {}

    def told(self, message: dict[str, Any]) -> None:
        """Take in what its tree says."""
        self.said |= message
        if {"code", "refused", "no_folder"} & message.keys():
            self.close()

    def close(self) -> None:
        """Wait for nothing more. Idempotent."""
        _done(self.given)


def _done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
