"""A Python that waits in a tree, started in advance, to become the next program of an agent.

Theory: an interpreter takes longer to start than most programs of agents to run. So process 1
starts the sandbox's own `/usr/bin/python3`, over the layers that the tree stands on, in the same
namespaces, control group and filter as any command. It imports what it was told to, and waits; it
is used once, so nothing of one program gets into the next one, hash seeds neither. A command that
is no Python ends it before it begins, so that none ever sees it.

It must not execute anything that a sandbox wrote, as a tree in advance holds no lock. The worker
looks that no layer has anything where this interpreter, its library and the loader are looked for;
`-S` keeps it from `site`, so from packages and their start-up files, and the folder that it begins
in is taken off its path, until the program is there. Then it does what `python3 -` does.
"""

import os
import signal
import socket
from typing import Any

from . import commands

PYTHON = "/usr/bin/python3"
NAME = "python3"
PACKET_BYTES_MAX = 4096
READY = b"ready"

PROGRAM = r"""
import sys
sys.path[:] = [each for each in sys.path if each]
import _socket, os, site


def wait(warm):
    for name in warm:
        try:
            __import__(name)
        except Exception:  # the program that imports it will be told
            pass
    channel = _socket.socket(fileno=3)
    channel.send(b"ready")
    folder, handed, _flags, _address = channel.recvmsg(4096, 64)
    if not folder:
        os._exit(0)
    fds = [
        int.from_bytes(each[at : at + 4], sys.byteorder)
        for _level, _kind, each in handed
        for at in range(0, len(each), 4)
    ]
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    channel.detach()
    os.closerange(3, 1 << 20)
    try:
        os.chdir(folder)
    except OSError as error:
        os.write(2, f"python3: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def run():
    sys.dont_write_bytecode = False
    sys.argv[:] = ["-"]
    site.main()
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__file__, main.__cached__, main.__annotations__ = "<stdin>", None, {}
    main.__builtins__ = sys.modules["builtins"]
    code = sys.stdin.buffer.read()
    try:
        exec(compile(code, "<stdin>", "exec", dont_inherit=True), main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
"""
"""What it executes: sent to it, so that its command line is short."""

_BEGIN = "import posix;exec(posix.read(3,16384))"


class Template:
    """The one of a tree, if it has one."""

    def __init__(self, spec: dict[str, Any] | None, filter_: bytes) -> None:
        """Start it.

        Args:
            spec: `env` (that of commands without variables of their own), `warm` (what it
                imports); None: there is to be none.
            filter_: for seccomp.
        """
        self.pid = 0
        self.session = 0
        self._channel: socket.socket | None = None
        if spec is not None and _found(spec["env"].get("PATH", "")) == PYTHON:
            self._env: dict[str, str] = spec["env"]
            self._start(spec["warm"], filter_)

    def _start(self, warm: list[str], filter_: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"{PROGRAM}\nwait({warm!r})\nrun()\n"
        ours.send(program.encode())
        pid = os.fork()
        if pid == 0:
            argv = [NAME, "-S", "-B", "-c", _BEGIN]
            commands.be_program(theirs.detach(), filter_, PYTHON, argv, self._env)
        theirs.close()
        self._channel, self.pid, self.session = ours, pid, pid

    def take(self, spec: dict[str, Any], streams: list[int]) -> int:
        """Have it be a program; return its pid. 0: it can't, and is no more.

        Args:
            spec: of the command.
            streams: standard input, with the program, output and errors.
        """
        channel, pid = self._channel, self.pid
        cwd = os.fsencode(spec["cwd"])
        is_fit = spec["act"] == "python" and spec["env"] == getattr(self, "_env", None)
        if channel is None or not is_fit or not 0 < len(cwd) < PACKET_BYTES_MAX:
            self.end()
            if pid:
                os.waitpid(pid, 0)  # no command finds a process that is just ending
            return 0
        try:
            # One that is beginning still is sooner there than one that begins now.
            if channel.recv(len(READY)) != READY:
                self.end()
                return 0
            socket.send_fds(channel, [cwd], streams)
        except OSError:  # it has ended
            self.end()
            return 0
        channel.close()
        self._channel, self.pid, self.session = None, 0, 0
        return pid

    def end(self) -> None:
        """Kill it. Idempotent; whoever reaps finds it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        pid, self.pid = self.pid, 0
        if pid:
            os.kill(pid, signal.SIGKILL)

    def ended(self, pid: int) -> bool:
        """Take in that a process was reaped; return whether it was this one."""
        if pid != self.pid or not pid:
            return False
        self.pid = 0
        self.end()
        return True


def _found(path: str) -> str:
    """Return what `python3` is in this root; empty: nothing."""
    for folder in path.split(":"):
        there = f"{folder}/{NAME}"
        if os.path.lexists(there):
            return there
    return ""
