"""The launcher: one process that forks sandboxes for a worker, and is asked over a socket.

A worker has OS threads and an event loop, so that a fork of it would be no safe place to run code
in, and it holds connections and keys. The launcher has one OS thread, an empty environment and no
descriptors but its socket. When the socket ends, because the worker closed it or died, the launcher
kills every sandbox and ends; when the launcher dies, the kernel kills them.

A request is one packet of JSON with descriptors:

    {"id": 1, "tree": true}     build a tree: of a file with its spec, and of the sandbox's lock
    {"id": 1, "spare": true}    have the first process of a tree: of a file with its `cgroups`
    {"id": 1, "claim": true}    build its tree with that, as above
    {"id": 1, "kill": true}     kill it
    {"id": 1, "dump": folder}   take images of its processes, which ends them: see `keeping`

The spec of a tree: `parts`, the root first: `at` (where),
`layers` (topmost first), `base`, `upper`, `work`; `options` of the overlays; `binds` ([source,
target], read-only); `staging` (an empty folder that a root can be built in);
`note` (a file that is to name the first process: pid and start); `cgroups` (files to
write a pid to); `rlimits`; `landlock`; `port` (of a listening socket on its loopback; 0: none);
`range` ([first id, how many]: the ids that the sandbox's ids from 0 on are; of one: rootless);
`is_staying` (whether it goes on after a command, with the lock that the first one brought). Of a
tree of which images are taken: `criu` (the program), `images` (a folder to bring it back from;
empty: it is new), `up` (what `first` remembered of services).

All that is told of a tree has its number: `{"tree": 1, "pid": 12}`, with a socket of its loopback
`{"tree": 1, "listening": true}`, with one at which it takes orders, see `first`, `{"tree": 1,
"ready": true}`, or `{"tree": 1, "failed": "..."}`; `{"tree": 1, "keeper": 13}`, and of its images
`{"tree": 1, "dumped": true}`, or false. The last is `{"tree": 1, "is_over": true}`: no process of
it is alive.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from . import images, seccomp, tree
from . import syscalls as sys_

PACKET_BYTES_MAX = 1 << 17
DESCRIPTORS_MAX = 2
END_ROUNDS = 2_000
END_STEP_S = 0.002
"""How often, and after what pause, what is left of a tree is killed and reaped: 4 s in all."""


class Tree:
    """A tree of processes.

    Attributes:
        opener: pid of its opener.
        mapped: where its first process waits to be let go.
        claim: what a spare is to be told when its first process is known: descriptors.
        pid: of its first process, once it is known.
        keeper: of process 1 where that is not the first, once it is known.
    """

    def __init__(self, name: int, spec: dict[str, Any], opener: int, mapped: int) -> None:
        """Belong to the request of this number; a spare's spec has neither ids nor a note yet."""
        self.name = name
        self.is_rootless = spec["is_rootless"] if "is_rootless" in spec else spec["range"][1] == 1
        self.note = spec.get("note", "")
        self.groups = spec["cgroups"]
        self.claim: list[int] = []
        self.criu = spec.get("criu", "")
        self.keeper = 0
        self.opener = opener
        self.mapped = mapped
        self.pid = 0
        self.is_killed = False

    def write_note(self) -> None:
        """Name the first process where others of the sandbox look for it."""
        _put(self.note, f"{self.pid} {_started_at(self.pid)}")

    def let_go(self) -> None:
        """Close the end that its first process waits at. Idempotent."""
        while self.claim:
            os.close(self.claim.pop())
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
    """Builds trees and tells of them, until none is alive."""

    def __init__(self, channel: socket.socket) -> None:
        """Serve the worker at the other end of the socket."""
        self._channel = channel
        self._filter = seccomp.program()
        self._trees: dict[int, Tree] = {}
        self._userns: dict[int, int] = {}
        self._home: int | None = None
        self._dumps: dict[int, tuple[int, Tree]] = {}
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Serve until the socket ends."""
        while True:
            for fd, _event in self._poll.poll():
                if fd in self._dumps:
                    self._dumped(fd)
                elif fd != self._channel.fileno():
                    self._heard(fd)
                elif not self._asked():
                    return

    def end_all(self) -> None:
        """Kill every tree; return when none is alive."""
        for each in self._trees.values():
            each.kill()
            each.let_go()
            if each.criu:
                self._end_rest(each)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    # -- requests ----------------------------------------------------------------------------------

    def _asked(self) -> bool:
        try:
            packet, descriptors, _flags, _address = socket.recv_fds(
                self._channel, PACKET_BYTES_MAX, DESCRIPTORS_MAX
            )
        except ConnectionError:
            return False  # the worker was killed
        if not packet:
            return False  # the worker closed it, or died
        try:
            request = json.loads(packet)
            if "tree" in request or "spare" in request:
                told, *lock = descriptors
                self._build(request["id"], _spec_in(told), lock)
            else:
                for each in [*self._trees.values()]:
                    if each.name == request["id"]:
                        self._told(each, request, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _told(self, each: Tree, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            if "dump" in request:
                self._dump(each, request["dump"])
            elif "claim" in request:
                self._claim(each, descriptors)
            else:
                each.kill()
        except Exception as error:  # noqa: BLE001  # of one tree: the others go on
            self._gave_up(each, error)

    def _gave_up(self, each: Tree, error: Exception) -> None:
        """End one tree, which could not be served: a full disk, or no descriptor left."""
        self._tell(each.name, failed=f"{type(error).__name__}: {error}")
        each.kill()
        if not each.pid:
            each.let_go()  # the first process, wherever it is, ends when it hears this

    def _claim(self, each: Tree, descriptors: list[int]) -> None:
        """Tell a spare what it is the first process of, as soon as it is known itself."""
        spec = _spec_in(descriptors[0])
        each.note = spec["note"]
        userns = self._mapping(spec["range"])
        for fd in [*descriptors, *([userns] if userns else [])]:
            each.claim.append(os.dup(fd))
        if each.pid:
            self._tell_spare(each)

    def _tell_spare(self, each: Tree) -> None:
        each.write_note()
        [heard] = [fd for fd, other in self._trees.items() if other is each]
        channel = socket.socket(fileno=heard)
        try:
            with contextlib.suppress(ConnectionError):  # it ended: that is heard next
                socket.send_fds(channel, [b"{}"], each.claim)
        finally:
            channel.detach()
            while each.claim:
                os.close(each.claim.pop())

    def _dump(self, each: Tree, folder: str) -> None:
        pid = os.fork()
        if pid == 0:
            images.be_dump(each.criu, each.keeper, folder, self._at_home(folder))
        ended = os.pidfd_open(pid)
        self._dumps[ended] = pid, each
        self._poll.register(ended, select.POLLIN)

    def _dumped(self, ended: int) -> None:
        pid, each = self._dumps.pop(ended)
        self._poll.unregister(ended)
        os.close(ended)
        _pid, status = os.waitpid(pid, 0)
        self._tell(each.name, dumped=status == 0)

    def _at_home(self, path: str) -> int:
        """Return the mount namespace for CRIU, if this path is to be seen in it; else -1."""
        if self._home is None:
            self._home = images.home()
        return -1 if path.startswith("/run/") else self._home

    def _build(self, name: int, spec: dict[str, Any], lock: list[int]) -> None:
        """Fork what becomes a tree; without a lock: a spare."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        heard, report = ours.detach(), theirs.detach()
        mapped, tell = os.pipe()
        try:
            userns = self._mapping(spec["range"]) if lock else 0
            opener = os.fork()
        except OSError as error:
            self._tell(name, failed=str(error))
            self._tell(name, is_over=True)
            for fd in (heard, report, mapped, tell):
                os.close(fd)
            return
        if opener == 0:
            if not lock:
                tree.open_spare(spec, [report, mapped], self._filter)
            home = self._at_home(spec["staging"]) if spec.get("images") else -1
            tree.open_tree(spec, [report, mapped, *lock], userns, self._filter, home)
        os.close(report)
        os.close(mapped)
        self._trees[heard] = Tree(name, spec, opener, tell)
        self._poll.register(heard, select.POLLIN)

    def _mapping(self, ids: list[int]) -> int:
        """Return the user namespace of a range of ids; 0: each tree makes its own."""
        first, count = ids
        if count == 1:
            return 0
        if first not in self._userns:
            self._userns[first] = _new_userns(first, count)
        return self._userns[first]

    # -- what trees say ----------------------------------------------------------------------------

    def _heard(self, fd: int) -> None:
        each = self._trees[fd]
        packet, handed = _received(fd)
        try:
            if packet:
                self._said(each, json.loads(packet), handed)
                return
        except Exception as error:  # noqa: BLE001  # of one tree: the others go on
            self._gave_up(each, error)
            return
        finally:
            for descriptor in handed:
                os.close(descriptor)
        self._poll.unregister(fd)
        os.close(fd)
        each.let_go()
        del self._trees[fd]
        # Its end is the end of all its processes: only then its groups and folders are free.
        if each.criu:
            self._end_rest(each)
        for pid in filter(None, (each.opener, each.pid)):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._tell(each.name, is_over=True)

    def _end_rest(self, each: Tree) -> None:
        """End what a steward had started: also what CRIU was about to bring back.

        Its children were born in the tree, and are this process's now: the keeper's end waits until
        they are reaped.
        """
        own = f"/proc/self/task/{os.getpid()}/children"
        for pid, dumped in self._dumps.values():
            # What it traces can't be reaped by anybody else. One that ends a tree by itself is left
            # to its end: it is still writing.
            if dumped is each and each.is_killed:
                os.kill(pid, signal.SIGKILL)
        for _ in range(END_ROUNDS):
            left = {each.pid, each.keeper} - {0}
            for group in each.groups:
                with contextlib.suppress(OSError), open(group) as file:
                    left |= {int(pid) for pid in file.read().split()}
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            awaited = {other.opener for other in self._trees.values()} | {
                pid for pid, _tree in self._dumps.values()
            }
            awaited |= {other.pid for other in self._trees.values() if other is not each}
            with open(own) as file:
                adopted = {int(pid) for pid in file.read().split()} - awaited
            for pid in adopted:
                os.waitpid(pid, os.WNOHANG)
            if not left & adopted and not any(os.path.exists(f"/proc/{pid}") for pid in left):
                return
            select.select([], [], [], END_STEP_S)

    def _said(self, each: Tree, message: dict[str, Any], handed: list[int]) -> None:
        if "keeper" in message:
            each.keeper = message["keeper"]
        if "pid" not in message:
            note = json.dumps({"tree": each.name, **message}).encode()
            socket.send_fds(self._channel, [note], handed)
            return
        each.pid = message["pid"]
        # The first process is to die with its parent, and its parent is to be this process.
        os.waitpid(each.opener, 0)
        each.opener = 0
        if each.is_rootless:
            _write_maps(each.pid, 0, 1)
        if each.note and not each.claim:
            each.write_note()
        self._tell(each.name, pid=each.pid)
        if each.is_killed:
            each.kill()
        else:
            os.write(each.mapped, b"m")
            if each.claim:
                self._tell_spare(each)

    def _tell(self, name: int, **message: Any) -> None:
        self._channel.send(json.dumps({"tree": name, **message}).encode())


def _spec_in(descriptor: int) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return spec


def _received(fd: int) -> tuple[bytes, list[int]]:
    """Return what a tree says, and the descriptor that may come with it."""
    channel = socket.socket(fileno=fd)
    try:
        packet, handed, _flags, _address = socket.recv_fds(channel, PACKET_BYTES_MAX, 1)
    except ConnectionError:
        return b"", []
    else:
        return packet, handed
    finally:
        channel.detach()


def _hold_userns(first: int, says: int, launcher: int) -> NoReturn:
    """Make a user namespace of nobody's ids yet, and be there until somebody has hold of it."""
    # Who waits for the launcher's end must not wait for this process's, too.
    os.dup2(says, 3)
    os.closerange(4, 1 << 20)
    # What the kernel counts for each user is counted for the tenant then, and not for root.
    os.setgroups([])
    os.setresgid(first, first, first)
    os.setresuid(first, first, first)
    sys_.unshare(sys_.CLONE_NEWUSER)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of rights takes it back
    if os.getppid() == launcher:
        os.write(3, b"r")
        signal.pause()
    os._exit(1)


def _new_userns(first: int, count: int) -> int:
    """Return a descriptor of a user namespace in which ids from 0 on are those from `first` on."""
    ready, says = os.pipe()
    launcher = os.getpid()
    holder = os.fork()
    if holder == 0:
        _hold_userns(first, says, launcher)
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
        with contextlib.suppress(ConnectionError):  # the worker was killed
            launcher.serve()
    finally:
        launcher.end_all()
