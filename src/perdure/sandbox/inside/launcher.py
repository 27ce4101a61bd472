"""The launcher: one process that forks sandboxes for a worker, and is asked over a socket.

A worker has OS threads and an event loop, so that a fork of it would be no safe place to run code
in, and it holds connections and keys. The launcher has one OS thread, an empty environment and no
descriptors but its socket. When the socket ends, because the worker closed it or died, the launcher
kills every sandbox and ends; when the launcher dies, the kernel kills them.

A request is one packet of JSON. With one that starts a turn come descriptors: of standard input,
output and errors, of the lock that the turn holds, and of a file with the spec:

    {"id": 1}                     start a turn
    {"id": 1, "kill": true}       kill it

The spec: `act` (run, read, write), `argv`, `env`, `cwd`; `parts`, the root first: `at` (where),
`layers` (topmost first), `base`, `upper`, `work`; `options` of the overlays; `binds` ([source,
target], read-only); `staging` (an empty folder that a root can be built in);
`note` (a file that is to name the first process: pid and start); `cgroups` (files to
write a pid to); `rlimits`; `landlock`; `port` (of a listening socket on its loopback; 0: none);
`range` ([first id, how many]: the ids that the sandbox's ids from 0 on are; of one: rootless).

Answers: `{"id": 1, "pid": 12}`, with a socket `{"id": 1, "listening": true}`, and in the end
`{"id": 1, "code": 0, "left": [[pid, line]]}` (code: as of `waitstatus_to_exitcode`),
`{"id": 1, "killed": true}`, or `{"id": 1, "failed": "..."}`.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from . import seccomp, turn
from . import syscalls as sys_

PACKET_BYTES_MAX = 1 << 17


class Turn:
    """A turn under way.

    Attributes:
        opener: pid of its opener.
        mapped: where its first process waits to be let go.
        pid: of its first process, once it is known.
        unread: the beginning of a report.
        said: its last report.
    """

    def __init__(self, name: int, spec: dict[str, Any], opener: int, mapped: int) -> None:
        """Belong to the request of this number."""
        self.name = name
        self.ids = spec["range"]
        self.note = spec["note"]
        self.opener = opener
        self.mapped = mapped
        self.pid = 0
        self.is_killed = False
        self.is_failed = False
        self.unread = b""
        self.said: dict[str, Any] = {}

    def fail(self, why: str) -> None:
        """Note why it can't go on, and end it."""
        self.is_failed = True
        self.said = {"failed": why}
        self.kill()
        if not self.pid:
            self.let_go()  # the first process, wherever it is, ends when it hears this

    def let_go(self) -> None:
        """Close the end that its first process waits at. Idempotent."""
        if self.mapped >= 0:
            os.close(self.mapped)
            self.mapped = -1

    def kill(self) -> None:
        """Kill it, or let it be killed as soon as its pid is known."""
        self.is_killed = True
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Launcher:
    """Starts turns and tells how they ended."""

    def __init__(self, channel: socket.socket) -> None:
        """Serve the worker at the other end of the socket."""
        self._channel = channel
        self._filter = seccomp.program()
        self._turns: dict[int, Turn] = {}
        self._userns: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Serve until the socket ends."""
        while True:
            for fd, _event in self._poll.poll():
                if fd != self._channel.fileno():
                    self._heard(fd)
                elif not self._asked():
                    return

    def kill_all(self) -> None:
        """Kill every sandbox."""
        for each in self._turns.values():
            each.kill()

    # -- requests ----------------------------------------------------------------------------------

    def _asked(self) -> bool:
        try:
            packet, descriptors, _flags, _address = socket.recv_fds(
                self._channel, PACKET_BYTES_MAX, 5
            )
        except ConnectionError:
            return False  # the worker was killed
        if not packet:
            return False  # the worker closed it, or died
        try:
            request = json.loads(packet)
            if descriptors:
                *streams, told = descriptors
                with open(told, "rb", closefd=False) as file:
                    self._start(request["id"], json.loads(file.read()), streams)
            else:
                self._stop(request["id"])
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _stop(self, name: int) -> None:
        for each in self._turns.values():
            if each.name == name:
                each.kill()

    def _start(self, name: int, spec: dict[str, Any], descriptors: list[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        heard, report = ours.detach(), theirs.detach()
        mapped, tell = os.pipe()
        try:
            userns = self._mapping(spec["range"])
            opener = os.fork()
        except OSError as error:
            self._tell(name, failed=str(error))
            for fd in (heard, report, mapped, tell):
                os.close(fd)
            return
        if opener == 0:
            *streams, lock = descriptors
            turn.open_turn(spec, [*streams, report, mapped, lock], userns, self._filter)
        os.close(report)
        os.close(mapped)
        self._turns[heard] = Turn(name, spec, opener, tell)
        self._poll.register(heard, select.POLLIN)

    def _mapping(self, ids: list[int]) -> int:
        """Return the user namespace of a range of ids; 0: each turn makes its own."""
        first, count = ids
        if count == 1:
            return 0
        if first not in self._userns:
            self._userns[first] = _new_userns(first, count)
        return self._userns[first]

    # -- what turns say ----------------------------------------------------------------------------

    def _heard(self, fd: int) -> None:
        each = self._turns[fd]
        read, handed = _received(fd)
        if handed:
            note = json.dumps({"id": each.name, "listening": True}).encode()
            socket.send_fds(self._channel, [note], handed)
            os.close(handed[0])
        if read:
            try:
                self._read(each, read)
            except Exception as error:  # noqa: BLE001  # of one turn: the others go on
                each.fail(f"{type(error).__name__}: {error}")
            return
        self._poll.unregister(fd)
        os.close(fd)
        each.let_go()
        del self._turns[fd]
        # Its end is the end of all its processes: only then its groups and folders are free.
        for pid in filter(None, (each.opener, each.pid)):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._tell(each.name, **(each.said or {"killed": True}))

    def _read(self, each: Turn, read: bytes) -> None:
        if each.is_failed:
            return
        *lines, each.unread = (each.unread + read).split(b"\n")
        if len(each.unread) > PACKET_BYTES_MAX:
            msg = "a report without end"
            raise ValueError(msg)
        for line in lines:
            self._said(each, json.loads(line))

    def _said(self, each: Turn, message: dict[str, Any]) -> None:
        if "listening" in message:
            return
        if "pid" not in message:
            each.said |= message
            return
        each.pid = message["pid"]
        # The first process is to die with its parent, and its parent is to be this process.
        os.waitpid(each.opener, 0)
        each.opener = 0
        first, count = each.ids
        if count == 1:
            _write_maps(each.pid, first, count)
        _put(each.note, f"{each.pid} {_started_at(each.pid)}")
        self._tell(each.name, pid=each.pid)
        if each.is_killed:
            each.kill()
        else:
            os.write(each.mapped, b"m")

    def _tell(self, name: int, **message: Any) -> None:
        self._channel.send(json.dumps({"id": name, **message}).encode())


def _received(fd: int) -> tuple[bytes, list[int]]:
    """Return what a turn says, and the descriptor that may come with it."""
    channel = socket.socket(fileno=fd)
    try:
        read, handed, _flags, _address = socket.recv_fds(channel, PACKET_BYTES_MAX, 1)
        return read, handed
    finally:
        channel.detach()


def _new_userns(first: int, count: int) -> int:
    """Return a descriptor of a user namespace in which ids from 0 on are those from `first` on."""
    ready, says = os.pipe()
    holder = os.fork()
    if holder == 0:
        # What the kernel counts for each user is counted for the tenant then, and not for root.
        os.setgroups([])
        os.setresgid(first, first, first)
        os.setresuid(first, first, first)
        sys_.unshare(sys_.CLONE_NEWUSER)
        os.write(says, b"r")
        signal.pause()
    os.read(ready, 1)
    try:
        _write_maps(holder, first, count)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(ready)
        os.close(says)


def _write_maps(pid: int, first: int, count: int) -> None:
    if count == 1:
        _put(f"/proc/{pid}/setgroups", "deny")
    _put(f"/proc/{pid}/uid_map", f"0 {first if count > 1 else os.getuid()} {count}")
    _put(f"/proc/{pid}/gid_map", f"0 {first if count > 1 else os.getgid()} {count}")


def _started_at(pid: int) -> str:
    """Return when a process was started, in ticks: with its number it names it for ever."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def _put(path: str, content: str) -> None:
    with open(path, "w") as file:
        file.write(content)


def main() -> None:
    """Serve the worker at the other end of the socket that the command line names."""
    channel = socket.socket(fileno=int(sys.argv[2]))
    channel.set_inheritable(False)
    sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the worker says when
    launcher = Launcher(channel)
    try:
        launcher.serve()
    finally:
        launcher.kill_all()
