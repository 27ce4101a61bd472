"""What is alive in a tree, told from outside of it while it is stopped.

All that is read here was made by code that nobody vetted: it is bounded, and nothing follows from
it but words.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.sandbox.limits import (
    LINE_BYTES_MAX,
    PROCESSES_TOLD_MAX,
    SOCKETS_MAX,
    TABLE_BYTES_MAX,
)

_LISTENING = "0A"


class Process(Struct, frozen=True, kw_only=True):
    """A process that was alive in a sandbox.

    Attributes:
        pid: in the sandbox.
        line: its command line, cut.
        ports: at which it listened, TCP.
        is_service: whether it belongs to a service, which is started again.
    """

    pid: int
    line: str
    ports: tuple[int, ...] = ()
    is_service: bool = False

    def told(self) -> str:
        """Return it in words."""
        ports = ", ".join(map(str, self.ports))
        return f"{self.line} (pid {self.pid}{f', listened at {ports}' if ports else ''})"


def processes_of(pids: Iterable[int], services: Iterable[int]) -> tuple[Process, ...]:
    """Return what these processes are, by their number in the sandbox.

    Args:
        pids: as the host sees them; stopped.
        services: those of them that belong to services.
    """
    of_services = {*services}
    found = []
    for pid in [*pids][:PROCESSES_TOLD_MAX]:
        inner = inner_pid(pid)
        if inner:
            found.append(
                Process(
                    pid=inner,
                    line=_line(pid),
                    ports=_ports(pid),
                    is_service=pid in of_services,
                )
            )
    return tuple(sorted(found, key=lambda each: each.pid))


def as_fields(processes: Iterable[Process]) -> list[dict[str, Any]]:
    """Return processes as layer.json has them."""
    return [
        {"pid": p.pid, "line": p.line, "ports": list(p.ports), "is_service": p.is_service}
        for p in processes
    ]


def from_fields(fields: Iterable[dict[str, Any]]) -> tuple[Process, ...]:
    """Return what `as_fields` made fields of."""
    return tuple(
        Process(
            pid=int(each["pid"]),
            line=str(each["line"]),
            ports=tuple(map(int, each["ports"])),
            is_service=bool(each["is_service"]),
        )
        for each in fields
    )


def below(pid: int) -> list[int]:
    """Return what a process started and what that started, as the host sees it."""
    found = [pid]
    for each in found:
        for path in Path("/proc", str(each), "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text(encoding="ascii").split())
    return found[1:]


def in_session(session: int) -> list[tuple[int, str]]:
    """Return (pid, command line) of what is alive in a session of the host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, own = (
                path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            )
            if int(own) == session and state not in "ZX":
                pid = int(path.parent.name)
                found.append((pid, _line(pid)))
    return sorted(found)


def has_ended(pid: int) -> bool:
    """Return whether a process executes nothing any more."""
    return not inner_pid(pid)


def inner_pid(pid: int) -> int:
    """Return the number of a process in its own namespace; 0: it is gone, or has ended."""
    with contextlib.suppress(OSError, ValueError):
        status = Path("/proc", str(pid), "status").read_text(encoding="utf-8", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if fields["State"].split()[0] not in "ZX":
            return int(fields["NSpid"].split()[-1])
    return 0


def _line(pid: int) -> str:
    try:
        with Path("/proc", str(pid), "cmdline").open("rb") as file:
            raw = file.read(LINE_BYTES_MAX)
    except OSError:
        return ""
    return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def _ports(pid: int) -> tuple[int, ...]:
    """Return the TCP ports that a process listens at."""
    own = set()
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder)[:SOCKETS_MAX]:  # noqa: PTH208  # names are all that is wanted
            with contextlib.suppress(OSError):
                own.add(os.readlink(f"{folder}/{name}"))  # noqa: PTH115  # no path, a name
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with Path("/proc", str(pid), "net", table).open("rb") as file:
                lines = file.read(TABLE_BYTES_MAX).decode("ascii", "replace").splitlines()[1:]
            rows = [line.split() for line in lines]
            found |= {
                int(row[1].rpartition(":")[2], 16)
                for row in rows
                if len(row) > 9 and row[3] == _LISTENING and f"socket:[{row[9]}]" in own  # noqa: PLR2004
            }
    return tuple(sorted(found))
