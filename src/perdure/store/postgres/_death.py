"""Proof that a worker of this machine is dead: its process is not there any more.

A session that ended is no proof: the network may have cut it. Where a process can be looked at (the
same boot, the same namespace of process ids), a look at it proves the death at once.
"""

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def this_machine() -> str:
    """Return what names the boot and the namespace of this process; empty: it can't be named."""
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        return f"{boot_id}/{_NAMESPACE.readlink()}"
    except OSError:
        return ""


def is_gone(machine: str, pid: int) -> bool:
    """Return whether a process is proven dead; False: it lives, or nobody can tell from here."""
    if not machine or machine != this_machine():
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in {"Z", "X"}  # dead, and not waited for yet
