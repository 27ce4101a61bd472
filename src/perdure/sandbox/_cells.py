"""Groups of control groups whose processes can be stopped, counted and killed together.

A cell has a child for each command of a tree that stays, and one for its services; the first
process of the tree is in none, so that a kill of it is never held up by a cell that is frozen.
Version 2 stops processes in a state in which a kill still works; of version 1, processes that are
frozen die only when they are let go on, so that whoever finds one left behind lets it go.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from perdure.errors import SandboxUnstoppable
from perdure.sandbox.limits import FREEZE_S, FREEZE_STEP_S, KILL_ROUNDS

SERVICES = "services"
"""The child for services."""


class Cell:
    """A folder of control groups below which the processes of a tree are.

    Attributes:
        folder: in the hierarchy that can freeze.
        version: 1 or 2.
    """

    def __init__(self, folder: Path, version: int) -> None:
        """Use the folder, which `make` makes."""
        self.folder = folder
        self.version = version

    def make(self) -> None:
        """Make the groups that every tree needs."""
        (self.folder / SERVICES).mkdir(parents=True)

    def child(self, name: str) -> Path:
        """Return the group of a command, made now."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    def tidy(self) -> None:
        """Remove the groups of commands of which nothing is alive."""
        for folder in self._children():
            if folder.name != SERVICES:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def remove(self) -> None:
        """Let go on what is frozen, and remove the groups whose processes have ended."""
        with contextlib.suppress(OSError):
            self.thaw()
        for folder in [*self._children(), self.folder, self.folder.parent]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def pids(self, child: Path | None = None) -> list[int]:
        """Return the processes of a child, or of all, as the host sees them."""
        found: list[int] = []
        for folder in [child] if child else [self.folder, *self._children()]:
            with contextlib.suppress(OSError):
                found += map(int, (folder / "cgroup.procs").read_text(encoding="ascii").split())
        return found

    def _children(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [path for path in self.folder.iterdir() if path.is_dir()]
        return []

    # -- stopping ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have no process of it execute anything for a while.

        Raises:
            SandboxUnstoppable: one can't be stopped; all go on.
        """
        try:
            self._freeze(self.folder)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):  # all of it was killed meanwhile
                self.thaw()

    def thaw(self) -> None:
        """Let all go on."""
        self._set(self.folder, is_frozen=False)

    def kill(self, child: Path) -> None:
        """Kill every process of a child, whatever it forks meanwhile."""
        if self.version == 2:  # noqa: PLR2004  # of control groups
            with contextlib.suppress(OSError):
                (child / "cgroup.kill").write_text("1", encoding="ascii")
            return
        for _ in range(KILL_ROUNDS):
            with contextlib.suppress(OSError, SandboxUnstoppable):
                self._freeze(child)
            pids = self.pids(child)
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self._set(child, is_frozen=False)
            if not pids:
                return

    def _freeze(self, folder: Path) -> None:
        self._set(folder, is_frozen=True)
        never = Event()
        waited_s = 0.0
        while not self._is_frozen(folder):
            if waited_s >= FREEZE_S:
                msg = (
                    f"the processes of the sandbox can't be stopped within {FREEZE_S:g} s: one is "
                    f"in the middle of a system call, see {folder}; they go on"
                )
                raise SandboxUnstoppable(msg)
            never.wait(FREEZE_STEP_S)
            waited_s += FREEZE_STEP_S
            if self.version == 1:
                self._set(folder, is_frozen=True)  # also what was forked meanwhile

    def _set(self, folder: Path, *, is_frozen: bool) -> None:
        if self.version == 1:
            state = "FROZEN" if is_frozen else "THAWED"
            (folder / "freezer.state").write_text(state, encoding="ascii")
        else:
            (folder / "cgroup.freeze").write_text(str(int(is_frozen)), encoding="ascii")

    def _is_frozen(self, folder: Path) -> bool:
        if self.version == 1:
            return (folder / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN"
        return "frozen 1" in (folder / "cgroup.events").read_text(encoding="ascii")
