"""Limits of memory, processes and processor time, by control groups; version 2 if in charge.

A group is made for each turn and removed after it. A host where this process may make none has
these limits not at all; `found` says so, and so does what a sandbox tells of itself.
"""

import contextlib
import os
from pathlib import Path

from msgspec import Struct

from perdure.clock import IdSource
from perdure.sandbox._cells import Cell
from perdure.sandbox._disk import read_note

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "perdure-"
"""Names of groups begin with it and with the process that made them."""
PERIOD_US = 100_000
"""Period over which processor time is counted: the kernel's default."""


class Group(Struct, frozen=True):
    """The folders of a tree's group: one, or one in each hierarchy of version 1.

    Attributes:
        folders: with limits.
        cell: where processes can be frozen, of a tree that stays.
    """

    folders: tuple[Path, ...]
    cell: Cell | None = None

    @property
    def entrances(self) -> list[str]:
        """Files that a process writes its id to, to be in the group with all that it starts."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def memory_kills(self) -> int:
        """Return how many processes of it the kernel killed for its memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    words = read_note(f"{folder}/{name}").split()
                    counts = dict(zip(words[::2], words[1::2], strict=False))
                    return int(counts.get("oom_kill", 0))
        return 0

    def pids(self) -> list[int]:
        """Return the processes in it, as the host sees them; of no folder: none."""
        found: list[int] = []
        for folder, _folders, _files in os.walk(self.folders[0]) if self.folders else ():
            with contextlib.suppress(OSError):
                found += map(int, Path(folder, "cgroup.procs").read_text(encoding="ascii").split())
        return found

    def remove(self) -> None:
        """Remove the group; its processes have ended."""
        if self.cell is not None:
            self.cell.remove()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


class Cgroups:
    """Makes groups below those that this process is in."""

    def __init__(self, ids: IdSource) -> None:
        """Make groups with names from ids; remove what a killed process left."""
        self._ids = ids
        self.version, self._parents = _found()
        self._cells = _found_cells()
        self._files: dict[Path, list[str]] = {}
        for parent in self._parents:
            _remove_left(parent)
        if self._cells is not None:
            _remove_cells(*self._cells)

    @property
    def can_freeze(self) -> bool:
        """Whether the processes of a tree can be stopped together."""
        return self._cells is not None

    def make(
        self, *, memory_bytes: int, processes: int, cores: float, is_staying: bool = False
    ) -> Group:
        """Return a new group with these limits; without a folder, where none can be made.

        `is_staying`: with a cell; one that runs out of memory loses one process then, not all.
        """
        name = self._ids.new(f"{PREFIX}{os.getpid()}", 0)
        folders = []
        for parent in self._parents:
            folder = parent / name
            folder.mkdir()
            folders.append(folder)
            quota = max(1000, int(cores * PERIOD_US))
            settings = {
                "memory.max": memory_bytes,
                "memory.limit_in_bytes": memory_bytes,
                "memory.oom.group": int(not is_staying),
                "memory.swap.max": 0,
                "pids.max": processes,
                "cpu.max": f"{quota} {PERIOD_US}",
                "cpu.cfs_quota_us": quota,
            }
            if parent not in self._files:
                self._files[parent] = [file for file in settings if (folder / file).exists()]
            for file in self._files[parent]:
                _put(f"{folder}/{file}", str(settings[file]))
        cell = None
        if is_staying and self._cells is not None:
            version, parent = self._cells
            cell = Cell(parent / name / "live", version)
            cell.make()
        return Group(tuple(folders), cell)


def _put(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)


def _found() -> tuple[int, list[Path]]:
    """Return the version (0: none) and the folders to make groups in."""
    own = _memberships()
    if "" in own and (MOUNT / "cgroup.controllers").exists():
        parent = MOUNT / own[""]
        # Version 2 limits only below a group that has no processes itself: one beside ours.
        parent = parent.parent if parent != MOUNT else parent
        with contextlib.suppress(OSError):
            given = (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
            if {"memory", "pids"} <= {*given} and os.access(parent, os.W_OK):
                return 2, [parent]
    found: list[Path] = []
    for kind in ("memory", "pids", "cpu"):
        folder = MOUNT / kind / own.get(kind, "none")
        if folder.is_dir() and os.access(folder, os.W_OK):
            found.append(folder)
    return (1 if found else 0), found


def _found_cells() -> tuple[int, Path] | None:
    """Return the version, and the folder to make groups in whose processes can be stopped."""
    own = _memberships()
    for mount in (MOUNT, MOUNT / "unified"):
        if "" in own and (mount / "cgroup.controllers").exists():
            parent = mount / own[""]
            parent = parent.parent if parent != mount else parent
            if os.access(parent, os.W_OK):
                return 2, parent
    folder = MOUNT / "freezer" / own.get("freezer", "none")
    return (1, folder) if folder.is_dir() and os.access(folder, os.W_OK) else None


def _remove_cells(version: int, parent: Path) -> None:
    """Let go, and remove, what is left of trees whose worker is gone."""
    for folder in parent.glob(f"{PREFIX}*/live"):
        pid = folder.parent.name.removeprefix(PREFIX).partition("_")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            Cell(folder, version).remove()


def _remove_left(parent: Path) -> None:
    """Remove the empty groups of processes that are gone."""
    for folder in parent.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("_")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _memberships() -> dict[str, str]:
    """Return the group of this process by controller; "": of version 2."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _number, kinds, path = line.split(":", 2)
            found.update(dict.fromkeys(kinds.split(","), path.strip("/")))
    return found
