"""What /proc of this host says of processes, without trusting anything that they say."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from perdure.contracts.inject import limits
from perdure.contracts.inject.engines._api import HostProcess

PROC = Path("/proc")
LISTEN = "0A"
TCP_FIELDS = 10
"""Columns of /proc/net/tcp up to the inode, as proc(5) counts."""

STAT_FIELDS = 20
"""Fields of /proc/PID/stat after the name, up to the start time."""


def read(pid: int, name: str) -> bytes:
    """Return the beginning of a file of a process, empty if it is gone."""
    try:
        with (PROC / str(pid) / name).open("rb") as file:
            return file.read(limits.PROC_BYTES_MAX)
    except OSError:
        return b""


def stat(pid: int) -> tuple[int, int] | None:
    """Return the parent and the start time (ticks since boot) of a process; `None`: it is gone."""
    fields = read(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < STAT_FIELDS or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[1]), int(fields[STAT_FIELDS - 1])


def argv(pid: int) -> tuple[str, ...]:
    """Return the words a process was started with."""
    words = read(pid, "cmdline").rstrip(b"\0").split(b"\0")
    return tuple(word.decode("utf-8", errors="replace")[:400] for word in words[:40])


def all_pids() -> list[int]:
    """Return the ids of all processes of this host."""
    return [int(entry) for entry in os.listdir(PROC) if entry.isdecimal()]  # noqa: PTH208


def working_in(folder: str) -> list[int]:
    """Return the processes, without ourselves, whose working folder lies below a folder."""
    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and str((PROC / str(pid) / "cwd").readlink()).startswith(folder):
                found.append(pid)
    return found


def tree(first: int, pids: Iterable[int], port: int | None) -> tuple[HostProcess, ...]:
    """Return `pids` as a tree below `first`, parents first."""
    known = {pid: found for pid in pids if (found := stat(pid))}
    parents = {pid: found[0] for pid, found in known.items()}
    sockets = listening(first, port) if port else frozenset()
    return tuple(
        sorted(
            (
                HostProcess(
                    pid=pid,
                    started=known[pid][1],
                    parent=parents[pid],
                    argv=argv(pid),
                    depth=_depth(pid, first, parents),
                    listens=bool(sockets & open_sockets(pid)) if sockets else False,
                )
                for pid in known
            ),
            key=lambda process: (process.depth, process.pid),
        )
    )


def _depth(pid: int, first: int, parents: dict[int, int]) -> int:
    depth = 0
    while pid != first and depth < len(parents):
        pid, depth = parents.get(pid, first), depth + 1
    return depth


def descendants(first: int) -> list[int]:
    """Return a process and everything below it."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        found = stat(pid)
        if found:
            children.setdefault(found[0], []).append(pid)
    reached, waiting = [], [first]
    while waiting:
        pid = waiting.pop()
        reached.append(pid)
        waiting += children.get(pid, [])
    return reached


def listening(pid: int, port: int) -> frozenset[str]:
    """Return the inodes of sockets that listen on `port` in the network of a process."""
    found = set()
    for name in ("net/tcp", "net/tcp6"):
        for line in read(pid, name).decode("ascii", errors="replace").splitlines()[1:]:
            fields = line.split()
            is_listening = len(fields) >= TCP_FIELDS and fields[3] == LISTEN
            if is_listening and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return frozenset(found)


def open_sockets(pid: int) -> frozenset[str]:
    """Return the inodes of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                link = str(descriptor.readlink())
                if link.startswith("socket:["):
                    found.add(link[8:-1])
    return frozenset(found)


def kill(pid: int, start: int | None) -> bool:
    """Send SIGKILL to a process if it is still the one that began at `start`; say whether.

    Through a descriptor of the process, so that its number can't be somebody else's in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = stat(pid)
        if found is None or (start is not None and found[1] != start):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
