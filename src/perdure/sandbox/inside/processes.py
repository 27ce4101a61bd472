"""Who is alive in a tree, as its first process or its steward sees them."""

import os

LINE_BYTES = 200
"""How much of a command line is read."""


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
