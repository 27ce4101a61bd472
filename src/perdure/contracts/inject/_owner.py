"""Whose an object of an engine is, and whether whoever made it can still remove it.

A trial that was killed leaves containers, networks and volumes. The next one removes them, but only
those whose maker is known to be gone: on this host, in this namespace of processes.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from stat import S_ISDIR

from perdure.contracts.inject.engines import BINDS, ContainerEngine
from perdure.contracts.inject.engines._host import stat

LABEL = "perdure.inject.owner"
TRIAL = "perdure.inject.trial"


def _place() -> str:
    """Name this host and this namespace of processes."""
    machine = Path("/etc/machine-id")
    parts = [
        str(Path("/proc/self/ns/pid").readlink()),
        os.uname().nodename,
        machine.read_text(encoding="ascii").strip() if machine.exists() else "",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def myself() -> str:
    """Return the label of what this process makes."""
    found = stat(os.getpid())
    return f"{_place()}-{os.getpid()}-{found[1] if found else 0}"


def is_left(owner: str) -> bool:
    """Whether the maker was of this place and is gone."""
    place, _, rest = owner.partition("-")
    pid, _, started = rest.partition("-")
    if place != _place() or not pid.isdecimal():
        return False
    found = stat(int(pid))
    return found is None or str(found[1]) != started


async def clean_up(engine: ContainerEngine) -> int:
    """Remove what killed makers left; return how many objects that were."""
    found = await engine.labelled(LABEL)
    left = [handle for handle, owner in found.items() if is_left(owner)]
    order = ("process", "container", "network", "volume", "image")
    left.sort(key=lambda handle: next((i for i, k in enumerate(order) if handle.startswith(k)), 0))
    for handle in left:
        await engine.discard(handle)
    return len(left) + _remove_copies()


def _remove_copies() -> int:
    """Remove copies of bind mounts that killed trials of this user left; return how many."""
    count = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{BINDS}*"):
        owner = folder.name.removeprefix(BINDS).rpartition(".")[0]
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_left(owner):
                shutil.rmtree(folder, ignore_errors=True)
                count += 1
    return count
