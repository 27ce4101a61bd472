"""Who is alive in a tree, as its first process or its steward sees them."""

import os
import select

LINE_BYTES = 200
"""How much of a command line is read."""
SETTLE_ROUNDS = 500
SETTLE_STEP_S = 0.002
"""How often, and after what pause, it is looked whether a fork has become another program: 1 s in
all, on a host that is busy."""
FORK_TICKS_MAX = 3
"""Ticks of the processor, of 10 ms, in which a fork becomes another program if it is going to."""

_FORKED = 0x40
"""PF_FORKNOEXEC: it is a fork that has not become another program."""
_FLAGS, _USER_TICKS, _SYSTEM_TICKS = 6, 11, 12
"""Fields of /proc/PID/stat after the name."""


class Processes:
    """The processes of a tree, by a /proc that was opened before the root was entered."""

    def __init__(self, proc: int, keeper: int = 0) -> None:
        """Look by this descriptor; `keeper`: who is above all others; 0: this process is."""
        self._proc = proc
        self.keeper = keeper

    def alive(self) -> list[int]:
        """Return all but the first process and the keeper."""
        if self.keeper:
            return self.below(self.keeper)
        return [int(n) for n in os.listdir(self._proc) if n.isdecimal() and n != "1"]

    def below(self, pid: int) -> list[int]:
        """Return what a process started, and what that started."""
        found = [pid]
        for each in found:
            for task in self._tasks(each):
                found += map(int, self._read(f"{each}/task/{task}/children").split())
        return found[1:]

    def is_there(self, pid: int) -> bool:
        """Return whether a process has not ended."""
        status = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return bool(status) and status[0] not in {"Z", "X"}

    def settle(self, pids: list[int]) -> None:
        """Return when these processes are what they are going to be, or after a while.

        A fork is about to become another program, or goes on as what it is: that one waits for
        something before long, or has used more of the processor than it takes to become another.
        """
        for _ in range(SETTLE_ROUNDS):
            pids = [pid for pid in pids if self._is_beginning(pid)]
            if not pids:
                return
            select.select([], [], [], SETTLE_STEP_S)

    def _is_beginning(self, pid: int) -> bool:
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        if not fields or fields[0] not in {"R", "D"}:
            return False
        is_fork = int(fields[_FLAGS]) & _FORKED and not self._has_worked(fields)
        return bool(is_fork) or not self._read(f"{pid}/cmdline", 1)

    def _has_worked(self, fields: list[str]) -> bool:
        return int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]) >= FORK_TICKS_MAX

    def inner(self, pid: int) -> int:
        """Return the number that a process has in the sandbox; 0: it is gone."""
        for line in self._read(f"{pid}/status").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return 0

    def command_line(self, pid: int) -> str:
        """Return what a process says it is; empty: it is gone, or has ended."""
        line = self._read(f"{pid}/cmdline", LINE_BYTES).rstrip("\0").replace("\0", " ")
        if line:
            return line
        # It took its name away, or is just becoming another program.
        begin, _, rest = self._read(f"{pid}/stat", LINE_BYTES).rpartition(")")
        state, name = rest[1:2], begin.partition("(")[2]
        return "" if state in {"", "Z", "X"} else f"[{name}]"

    def _tasks(self, pid: int) -> list[str]:
        try:
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return []
        try:
            return os.listdir(folder)
        except OSError:
            return []
        finally:
            os.close(folder)

    def _read(self, path: str, count: int = 1 << 16) -> str:
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return ""
        try:
            return os.read(source, count).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(source)


def session_of(pid: int) -> int:
    """Return the session of a process; 0: it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
