"""A tree that stays between commands, with whatever they left running.

What a command is: its process and all that comes of it, in a group of its own, until that process
ends. A command that is killed (its deadline, a flood, cancelled) is killed with its whole group;
what an earlier one left is not touched. A command that ends leaves alive what it started.

The tree has the lock of the sandbox for as long as it lives: its files change under whoever would
use them otherwise. A newer holder of the run ends it, see `_lock`.

What is known of processes is known from outside of the tree: from its control groups, and while
they are stopped. What ends without having been asked to is said, by the next command and by
`lost`.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from perdure.errors import InvariantBroken, SandboxUnstoppable
from perdure.sandbox._cells import SERVICES, Cell
from perdure.sandbox._launching import Ended
from perdure.sandbox._prepared import Builder
from perdure.sandbox._processes import Process, has_ended, processes_of
from perdure.sandbox._trees import Tree

T = TypeVar("T")


class Live:
    """The tree of one sandbox, if there is one.

    Attributes:
        known: what was alive in it when it was looked at last.
        taken: the snapshot that was taken last, if no command was started since; else empty.
        lost: what was alive and is no more, since the last restore.
        untold: of that, what no command has told yet, and why it is no more.
    """

    def __init__(self, builder: Builder) -> None:
        """Have none."""
        self._builder = builder
        self._tree: Tree | None = None
        self.known: tuple[Process, ...] = ()
        self._count = 0
        self.taken = ""
        self.lost: tuple[Process, ...] = ()
        self.untold: tuple[tuple[Process, str], ...] = ()

    @property
    def tree(self) -> Tree | None:
        """The tree that is there; None: there is none, or it has ended."""
        if self._tree is not None and not self._tree.is_alive:
            self._tree = None
            self.taken = ""
            self.lose(self.known)
        return self._tree

    def lose(self, processes: tuple[Process, ...], why: str = "") -> None:
        """Note what is alive no more; services come back by themselves."""
        gone = tuple(each for each in processes if not each.is_service)
        self.lost += gone
        self.untold += tuple((each, why) for each in gone)
        self.known = ()

    def restored(self, processes: tuple[Process, ...]) -> None:
        """Note what was alive in the snapshot that the files are of now."""
        self.lost, self.untold = (), ()
        self.taken = ""
        self.known = ()
        self.lose(processes)

    def tell(self) -> tuple[str, ...]:
        """Return in words what was lost and was not told yet."""
        untold, self.untold = self.untold, ()
        return tuple(
            f"{each.told()} is not running any more{f': {why}' if why else ''}"
            for each, why in untold
        )

    # -- the tree ----------------------------------------------------------------------------------

    def enter(self, tree: Tree) -> None:
        """Go on in a tree from now on; its first command is to bring it the lock."""
        self._tree = tree

    async def end(self) -> bool:
        """Kill the tree, if there is one; return whether there was."""
        tree, self._tree = self.tree, None
        self.taken = ""
        if tree is not None:
            await self._builder.end(tree)
        return tree is not None

    @contextlib.contextmanager
    def command(self, tree: Tree) -> Iterator[tuple[tuple[int, ...], Callable[[], None]]]:
        """Have groups for a command and for services: descriptors to hand over, and its kill."""
        cell = cell_of(tree)
        self._count += 1
        cell.tidy()
        child = cell.child(f"c{self._count}")
        opened: list[int] = []
        try:
            for folder in (child, cell.folder / SERVICES):
                entrance = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
                opened.append(entrance)  # one by one: what was opened is closed
            self.taken = ""
            yield tuple(opened), lambda: cell.kill(child)
        finally:
            for fd in opened:
                os.close(fd)
            cell.tidy()

    def ended(self, tree: Tree, ended: Ended) -> None:
        """Note what a command left alive."""
        if tree.is_alive:
            self.known = tuple(Process(pid=pid, line=line) for pid, line in ended.left)

    # -- snapshots ---------------------------------------------------------------------------------

    def look(self, tree: Tree) -> None:
        """Note what is alive in the tree now."""
        cell = cell_of(tree)
        self.known = processes_of(cell.pids(), cell.pids(cell.folder / SERVICES))

    async def stopped(self, tree: Tree, act: Callable[[tuple[Process, ...]], T]) -> T:
        """Do something in an OS thread while no process of the tree but its first executes.

        Args:
            tree: this one.
            act: gets what is alive.

        Raises:
            SandboxUnstoppable: a process can't be stopped, or is in no group; all go on.
        """
        cell = cell_of(tree)

        def stop_and_act() -> T:
            """Stop, act and let go on the same OS thread."""
            with cell.frozen():
                self.look(tree)
                _check_all_are_in(tree, cell.pids())
                return act(self.known)

        return await _to_the_end(stop_and_act)


async def _to_the_end(act: Callable[[], T]) -> T:
    """Do something in an OS thread; return, or be cancelled, when it is done."""
    doing = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.gather(doing, return_exceptions=True)
        raise


def cell_of(tree: Tree) -> Cell:
    """Return the cell of a tree that stays."""
    cell = tree.group.cell
    # invariant: a tree that stays is built with one.
    if cell is None:
        msg = f"the tree of process {tree.pid} stays, and has no group that can be stopped"
        raise InvariantBroken(msg)
    return cell


def _check_all_are_in(tree: Tree, pids: list[int]) -> None:
    """Refuse to go on while a process that is not stopped could write to the files."""
    for folder in tree.group.folders:
        listed = (folder / "cgroup.procs").read_text(encoding="ascii").split()
        others = {*map(int, listed)} - {*pids, tree.pid}
        running = [pid for pid in others if not has_ended(pid)]
        if len(running) > 1:  # one is the fork of the first process that will be the next command
            msg = f"processes {running} of the sandbox are in no group that can be stopped"
            raise SandboxUnstoppable(msg)
