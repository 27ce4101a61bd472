"""Process 1 of a sandbox after its root is built: it starts what it is told to, and reaps.

It hears orders on a socket whose other end the worker has, and from nobody else: no process of
the sandbox can look into it, open its descriptors or trace it. When the worker's end is closed, it
ends. An order is one packet of JSON with descriptors: standard input, output and errors, a file
with the command, then those that its process and services write to to be in groups of their own,
and the lock of the sandbox, if it is to hold it.

    {"do": 7, "is_locked": true}
    {"do": "stop"}              start no command that waits for services: it is not wanted any more
    {"do": "lend"}              have it send a copy of the lock that it holds: `{"lent": true}`
    {"do": "remember"}          write to the descriptor which services are up

It answers `{"id": 7, "services": [[name, why]]}` if there are services, and in the end
`{"id": 7, "code": 0, "left": [[pid, line]]}`, which it knows from the kernel and not from what ran;
or `{"id": 7, "no_folder": why}`, if it can't begin in the folder that it is to begin in; or
`{"id": 7, "refused": why}`, if there is no room for a process; `{"id": 7, "code": null}`, if it
was stopped before it began.

A tree for one command ends with it. One that stays goes on: what a command left running lives
until the tree is killed, and so do services; both in groups of their own. Process 1 is in none that
is ever frozen, so that a kill of it is always a kill of all.
"""

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any

from . import commands, keeping, services, template
from .processes import Processes, session_of
from .reports import LOCK_FD, REPORT_FD, packed, report

LEFT_MAX = 64
"""Processes named that were alive at the end."""
PACKET_BYTES_MAX = 1 << 17
DESCRIPTORS_MAX = 8
STREAMS = 3
LOOKED_UP = (
    "/bin/sh", "/bin/bash", "/bin/true", "/usr/bin/env", "/usr/bin/python3", "/workspace",
    "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/etc/ld.so.cache",
    "/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6",
    "/etc/ld.so.preload", "/etc/perdure/services.json",
)  # fmt: skip
"""What programs begin with; looking only, so that nothing changes by it."""


class First:
    """Starts commands and services, and tells how commands ended."""

    def __init__(
        self,
        spec: dict[str, Any],
        filter_: bytes,
        processes: Processes | None = None,
        printed: int = -1,
    ) -> None:
        """Serve as the spec says, see `launcher`.

        Args:
            spec: of the tree.
            filter_: for seccomp.
            processes: of a tree that this process is the steward of, see `keeping`.
            printed: what is printed there is thrown away; -1: nothing is.
        """
        self._is_staying = spec["is_staying"]
        self._filter = filter_
        self._commands: dict[int, int] = {}
        self._spare = 0
        self._to_spare: socket.socket
        self._printed = printed
        self._python = spec.get("python")
        self._template = template.Template(None, filter_)
        if processes is None:
            proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._processes = Processes(proc)
            self._services = services.Running(self._processes, self._reap, self._is_stopped)
        else:
            self._processes = processes
            self._services = keeping.Adopted(processes, self._reap, self._is_stopped)
            self._services.take_up(spec["up"])
        self._is_over = False
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._channel, self._of_worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve(self) -> None:
        """Serve until the worker or the launcher ends, or the one command has."""
        # It was for the building; the first command brings its own, to the same number.
        os.dup2(0, LOCK_FD, inheritable=False)
        _look_up()
        self._fork_spare()
        report({"ready": True}, self._of_worker.fileno())
        self._of_worker.close()
        with contextlib.suppress(OSError):  # no room for a process: there is none then
            self._template = template.Template(self._python, self._filter)
        poll = select.poll()
        for fd in (self._channel.fileno(), self._woken, REPORT_FD, self._printed):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while not self._is_over:
            for fd, _event in poll.poll():
                if fd in (self._woken, self._printed):
                    with contextlib.suppress(BlockingIOError):
                        if not os.read(fd, PACKET_BYTES_MAX):
                            poll.unregister(fd)  # nobody can print there any more
                elif fd == REPORT_FD or not self._ordered():
                    return
            self._reap()

    def _ordered(self) -> bool:
        packet, descriptors, _flags, _address = socket.recv_fds(
            self._channel, PACKET_BYTES_MAX, DESCRIPTORS_MAX
        )
        if not packet:
            return False
        order = json.loads(packet)
        if isinstance(order["do"], str):
            self._asked_of(order, descriptors)
            return True
        *streams, told = descriptors[: STREAMS + 1]
        groups = descriptors[STREAMS + 1 :]
        if order["is_locked"]:
            os.dup2(groups.pop(), LOCK_FD, inheritable=False)
        try:
            self._start(order["do"], told, streams, groups)
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _asked_of(self, order: dict[str, Any], descriptors: list[int]) -> None:
        if order["do"] == "lend":
            self._tell({"lent": True}, LOCK_FD)
        elif order["do"] == "remember":
            with open(descriptors.pop(), "wb") as file:
                file.write(json.dumps(self._services.remembered()).encode())
            self._tell({"remembered": True})

    def _tell(self, message: dict[str, Any], *descriptors: int) -> None:
        """Tell the worker; one that is gone hears nothing."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._channel, [packed(message)], descriptors)

    def _start(self, number: int, told: int, streams: list[int], groups: list[int]) -> None:
        try:
            self._begin(number, told, streams, groups)
        except OSError as error:  # no room for a process: what is there has them all
            self._tell({"id": number, "refused": str(error)})
            self._is_over = not self._is_staying

    def _begin(self, number: int, told: int, streams: list[int], groups: list[int]) -> None:
        command_groups, service_groups = groups[:1], groups[1:]
        spec = commands.read_spec(told)
        if spec["act"] in ("run", "python"):
            why = _why_no_folder(spec["cwd"])
            if why:
                self._tell({"id": number, "no_folder": why})
                self._is_over = not self._is_staying
                return

            def tell(up: list[list[str]]) -> None:
                self._tell({"id": number, "services": up})

            if not self._services.bring_up(spec["env"], service_groups, self._filter, tell):
                self._tell({"id": number, "code": None, "left": []})
                return
        program = self._template.take(spec, streams)
        if program:
            self._commands[program] = number
            return
        if not self._spare:
            self._fork_spare()
        socket.send_fds(self._to_spare, [b"do"], [*streams, told, *command_groups])
        self._to_spare.close()
        self._commands[self._spare] = number
        self._spare = 0

    def _is_stopped(self, wait_s: float) -> bool:
        """Wait a while; return sooner, True, if the worker wants no command, or is gone."""
        readable, _, _ = select.select([self._channel], [], [], wait_s)
        if not readable:
            return False
        packet = self._channel.recv(PACKET_BYTES_MAX, socket.MSG_PEEK)
        return not packet or json.loads(packet)["do"] == "stop"

    def _fork_spare(self) -> None:
        """Have a process that will be the next command: making it takes longer than most last."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            commands.be_spare(theirs.detach(), self._filter)
        theirs.close()
        self._to_spare, self._spare = ours, pid

    def _reap(self) -> None:
        """Reap whatever ended: also what lost its parent to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._processes.keeper:
                self._is_over = True
                return
            if pid == self._spare:  # somebody in here killed it
                self._to_spare.close()
                self._spare = 0
            number = self._commands.pop(pid, None)
            if number is None:
                if not self._template.ended(pid):
                    self._services.ended(pid)
                continue
            left: list[list[Any]] = []
            # It was executed: whatever happens now, this is how it ended.
            with contextlib.suppress(OSError):
                left = self._left(self._services.sessions | {self._spare, self._template.session})
            self._tell({"id": number, "code": os.waitstatus_to_exitcode(status), "left": left})
            if not self._is_staying:
                self._is_over = True
                return
            with contextlib.suppress(OSError):  # the next command will say that there is no room
                self._fork_spare()

    def _left(self, sessions: set[int]) -> list[list[Any]]:
        """Return [pid, command line] of what is alive beside this process and the services."""
        left: list[list[Any]] = []
        alive = self._processes.alive()
        self._processes.settle([pid for pid in alive[:LEFT_MAX] if session_of(pid) not in sessions])
        for pid in alive:
            line = self._processes.command_line(pid) if len(left) < LEFT_MAX else ""
            if line and session_of(pid) not in sessions:
                left.append([pid, line])
        return left


def _why_no_folder(path: str) -> str:
    """Return why nothing can begin in a folder; empty: it can."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _look_up() -> None:
    """Have the kernel know the way to what most commands begin with: its root is new."""
    for path in LOOKED_UP:
        with contextlib.suppress(OSError):
            os.stat(path)
