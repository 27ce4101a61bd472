"""The next tree of a sandbox, built before anybody asks for it.

Building takes most of the time of a short command, and between two commands of an agent a model
thinks for seconds. A tree that waits executes nothing and has no lock; it stands on what was there
when it was built, so that it is used only by who finds all of that unchanged, and ended before
anything of it is changed by its own sandbox.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from perdure.clock import Services
from perdure.errors import PerdureError
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._ground import Ground, Stand
from perdure.sandbox._lock import Lock, hold_now
from perdure.sandbox._trees import Tree
from perdure.sandbox._turns import Limits
from perdure.sandbox.limits import (
    PREPARE_AFTER_S,
    PREPARED_FREE_BYTES_MIN,
    PREPARED_LOOK_S,
    PREPARED_LOOKS,
    PYTHON_TURNS,
    SWEEP_AFTER_S,
)


class Builder(Protocol):
    """What can build trees, for all sandboxes of a backend."""

    services: Services
    prepared: int
    closings: int
    """How often it was closed: what was wanted before is not wanted any more."""
    wishes: "list[Prepared]"
    """Whose trees are wanted in advance, the newest last: as many as are kept."""
    is_building: bool
    """Whether one is being built in advance: one at a time, beside what is waited for."""

    async def build(
        self,
        ground: Ground,
        limits: Limits,
        lock: Lock,
        *,
        is_staying: bool = False,
        more: Mapping[str, object] | None = None,
    ) -> Tree:
        """Ask for a tree; return when that was sent."""
        ...

    def template(self, ground: Ground) -> Mapping[str, object]:
        """Return what is to be told of a Python that waits in a tree; for a holder of the lock."""
        ...

    async def end(self, tree: Tree) -> None:
        """Kill a tree; return when no process of it is alive."""
        ...

    async def lend(self, tree: Tree) -> Lock | None:
        """Return a copy of the lock that a tree has which stays; None: it is over."""
        ...

    def waits(self, prepared: "Prepared") -> None:
        """Count a tree that waits; the one that has waited longest may be ended for it."""
        ...


class _Next(Struct, frozen=True):
    tree: Tree
    stand: Stand
    bounds: tuple[float, ...]


class Prepared:
    """The next tree of one sandbox, if there is one."""

    def __init__(
        self, builder: Builder, ground: Ground, gate: asyncio.Lock, *, is_staying: bool
    ) -> None:
        """Have none.

        Args:
            builder: builds trees.
            ground: what they stand on.
            gate: of whoever uses the sandbox.
            is_staying: whether trees go on after a command.
        """
        self._is_staying = is_staying
        self._builder = builder
        self._ground = ground
        self._gate = gate
        self._next: _Next | None = None
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._closings = 0
        self._python_turns = 0
        """How many trees more are to have a Python that waits in them."""

    @property
    def scratch(self) -> str:
        """The name of its scratch folder; empty: there is none."""
        return "" if self._next is None else str(self._next.tree.spec["scratch"])

    @property
    def tree(self) -> Tree | None:
        """The tree that waits now; None: there is none."""
        found = self._next
        return None if found is None or not found.tree.is_alive else found.tree

    def claimed(self, limits: Limits) -> tuple[Tree, Lock] | None:
        """Return the tree and the lock, for the caller; None: there is none that can be used.

        Some microseconds of looking, and no waiting: so it is not done in an OS thread.

        Raises:
            LeaseLost: a newer holder has used the sandbox.
        """
        found = self._next
        if found is None or not found.tree.is_alive or found.bounds != bounds_of(limits):
            return None
        with disk_errors("use", self._ground.folder):
            lock = hold_now(self._ground.folder, self._ground.fence)
            if lock is None:
                return None
            is_standing = False
            try:
                is_standing = self._ground.is_standing(found.tree.spec["scratch"], found.stand)
            finally:
                if not is_standing:
                    lock.close()
        if not is_standing:
            return None
        self._next = None
        return found.tree, lock

    def note(self, *, is_python: bool) -> None:
        """Note whether the command just now was a program for Python: the next may be one, too."""
        self._python_turns = PYTHON_TURNS if is_python else max(self._python_turns - 1, 0)

    async def drop(self) -> None:
        """End the tree, for somebody who changes what it stands on, or needs none any more."""
        found, self._next = self._next, None
        if found is not None:
            await self._builder.end(found.tree)

    # -- when --------------------------------------------------------------------------------------

    def soon(self, limits: Limits) -> None:
        """Have a tree built in a moment, and ended when nobody wanted it; for who has the gate.

        And what was set aside is removed, whatever is done meanwhile.
        """
        self.stop()
        if self._builder.prepared:
            self._closings = self._builder.closings
            others = [each for each in self._builder.wishes if each is not self]
            self._builder.wishes = [*others, self][-self._builder.prepared :]
            self._task = asyncio.ensure_future(self._later(limits))
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep())

    def stop(self) -> None:
        """Build none, and let the one that is there be; for who has the gate."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()

    async def _later(self, limits: Limits) -> None:
        clock = self._builder.services.clock
        await clock.sleep(PREPARE_AFTER_S)
        while self._builder.is_building and self._is_wanted():
            await clock.sleep(PREPARE_AFTER_S)
        async with self._gate:
            if self.tree is None and self._is_wanted() and _has_room():
                self._builder.is_building = True
                try:
                    await self._build(limits)
                finally:
                    self._builder.is_building = False
        if self.tree is None:
            return
        for _ in range(PREPARED_LOOKS):
            await clock.sleep(PREPARED_LOOK_S)
            if not _has_room():
                break
        async with self._gate:
            await self.drop()

    def _is_wanted(self) -> bool:
        """Return whether it would be there still when all that others want is built, too."""
        return self._closings == self._builder.closings and self in self._builder.wishes

    async def _sweep(self) -> None:
        await self._builder.services.clock.sleep(SWEEP_AFTER_S)
        with contextlib.suppress(PerdureError):  # who removes it next will say it
            await asyncio.to_thread(self._ground.sweep)

    async def _build(self, limits: Limits) -> None:
        await self.drop()
        try:
            lock = await self._ground.held()
            try:
                if self._closings != self._builder.closings:
                    return
                stand = self._ground.stand()
                more = None
                if self._python_turns and not self._is_staying:
                    more = await asyncio.to_thread(self._builder.template, self._ground)
                tree = await self._builder.build(
                    self._ground, limits, lock, is_staying=self._is_staying, more=more
                )
            finally:
                lock.close()
        except (PerdureError, OSError):
            return  # the next command will say it, if it is still so
        try:
            await tree.ready
            if tree.is_alive:
                self._next = _Next(tree, stand, bounds_of(limits))
                self._builder.waits(self)
        finally:
            if self._next is None:
                await self._builder.end(tree)


def bounds_of(limits: Limits) -> tuple[float, ...]:
    """Return those limits that a tree is built with; the others are a command's."""
    return limits.memory_bytes, limits.processes, limits.cores, limits.file_bytes


def _has_room() -> bool:
    """Return whether the host has memory for a process that only waits."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return True
    found = {words[0]: int(words[1]) for words in (line.split() for line in lines)}
    return found.get("MemAvailable:", PREPARED_FREE_BYTES_MIN) * 1024 >= PREPARED_FREE_BYTES_MIN
