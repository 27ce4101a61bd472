"""What the host says of a process that a sandbox has, or had."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether it has not ended: one that is only not yet waited for has."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[str]:
    """Return the numbers of its children."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
