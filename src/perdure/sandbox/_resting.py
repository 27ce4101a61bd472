"""Looks at how much room is taken by what goes on in a tree between its commands.

Nobody waits for it then, so that nobody would hear of an error: what takes too much is ended, and
the next command tells so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from perdure.errors import PerdureError
from perdure.sandbox._ground import Ground
from perdure.sandbox._trees import Tree
from perdure.sandbox._watch import RESTING

TOO_MUCH = "it took more room on the disk than the sandbox may take"


class Resting:
    """The look-out of one sandbox between its commands, if one is there."""

    def __init__(
        self, ground: Ground, gate: asyncio.Lock, end: Callable[[Tree, str], Awaitable[None]]
    ) -> None:
        """Look for nothing yet.

        Args:
            ground: of the sandbox.
            gate: of whoever uses it.
            end: ends a tree, for a reason; called by who has the gate.
        """
        self._ground = ground
        self._gate = gate
        self._end = end
        self._task: asyncio.Task[None] | None = None

    def begin(self, tree: Tree) -> None:
        """Look at a tree, as nothing else does any more; for who has the gate."""
        self.stop()
        if tree.is_alive:
            self._task = asyncio.ensure_future(self._guard(tree))

    def stop(self) -> None:
        """Look no more; for who has the gate. Idempotent."""
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()

    async def _guard(self, tree: Tree) -> None:
        with suppress(PerdureError):  # of a disk: who takes a snapshot hears of it
            watch = await self._ground.watch(tree, pace=RESTING)
            try:
                await asyncio.wait([watch.full, tree.over], return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.end()
            if watch.full.cancelled():
                return
            async with self._gate:
                self._task = None  # it is not to be cancelled by what it does
                await self._end(tree, TOO_MUCH)
