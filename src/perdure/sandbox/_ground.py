"""What the trees of a sandbox stand on: its folder, its layers, and the lock of both.

Each tree has a scratch folder of its own, `work/<id>`, and whoever holds the lock removes all but
its own. So a scratch folder that is still there says that nobody else has used the sandbox since
the tree was asked for: no tree is used without.

What is not needed any more is set aside, `aside/<n>`, and removed when nobody waits: removing the
folders of one mount takes a disk milliseconds, renaming them takes it microseconds.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.clock import Services
from perdure.sandbox._disk import ASIDE, disk_errors, set_aside, sweep
from perdure.sandbox._layers import Layers, part_name
from perdure.sandbox._lock import Fence, Lock, hold
from perdure.sandbox._measure import Usage
from perdure.sandbox._nameless import Nameless
from perdure.sandbox._trees import Tree
from perdure.sandbox._watch import RUNNING, Pace, Seen, Watch, fits, free_room
from perdure.sandbox.limits import ASIDE_MAX

Stand = tuple[str, tuple[tuple[int, int], ...]]
"""What a tree was built on: the head, and (device, inode) of the folders of changes."""


class Ground:
    """The folder of one sandbox, as its holder uses it."""

    def __init__(
        self,
        folder: Path,
        layers: Layers,
        services: Services,
        *,
        ids: tuple[int, int],
        fence: Fence | None,
    ) -> None:
        """Use the folder."""
        self.folder = folder
        self.layers = layers
        self._services = services
        self._ids = ids
        self.fence = fence
        self.left = Usage()
        """Room for what changes, as of when the lock was taken to build a tree."""
        self._watch: Watch | None = None
        self._stand: Stand | None = None

    async def watch(self, tree: Tree, *, pace: Pace = RUNNING) -> Watch:
        """Begin to look at how much room is taken by what executes in a tree, or is about to.

        What is taken now is walked only where it is not known to fit.

        Raises:
            SandboxFull: it is over its room by as much again: nothing may be executed any more, so
                that commands that are too short to be looked at don't fill the disk step by step.
        """

        def look(most: Usage | None) -> Seen:
            """Look without a name first: what loses it meanwhile is not counted twice."""
            free = free_room(self.folder)
            nameless = Nameless(None if most is None else most.bytes)
            nameless.look(tree.pids())
            stop = None if most is None else most.minus(nameless.usage)
            usage = nameless.usage + self.layers.usage_of_top(self.folder, stop)
            return Seen(usage, free, nameless.usage, nameless.is_hiding)

        with disk_errors("use", self.folder):
            before = self._before(tree)
            if before is None:
                before = await asyncio.to_thread(look, None)
            self._stand = self.stand()
        if pace is RUNNING:
            self.layers.check_far(self.folder, self.left, before.usage)
        clock = self._services.clock
        self._watch = Watch(self.folder, self.left, look, clock, before=before, pace=pace)
        return self._watch

    def _before(self, tree: Tree) -> Seen | None:
        """Return what is known to be taken before something executes; None: nothing is."""
        free = free_room(self.folder)
        if not (tree.has_lock or self.layers.is_changed(self.folder)):
            return Seen(Usage(), free)
        seen = None if self._watch is None else self._watch.seen
        if seen is None or self._stand != self.stand() or seen.is_hiding:
            return None
        return seen if fits(seen, free, self.left) else None

    async def held(self, scratch: str = "") -> Lock:
        """Return the lock, with all made ready but this scratch folder.

        Cancelled, it is let go of as soon as it is there.
        """
        holding = asyncio.ensure_future(asyncio.to_thread(self.hold, scratch))
        try:
            return await asyncio.shield(holding)
        except asyncio.CancelledError:
            holding.add_done_callback(_let_go)
            raise

    def hold(self, scratch: str = "", *, mounts: bool = True) -> Lock:
        """Return the lock of this sandbox, with all made ready but this scratch folder.

        `mounts`: the files are going to be mounted or read.

        Raises: as `_lock.hold`.
        """
        with disk_errors("use", self.folder):
            lock = hold(self.folder, self.fence)
            try:
                self.make_ready(scratch, mounts=mounts)
            except BaseException:
                lock.close()
                raise
            return lock

    def make_ready(self, scratch: str = "", *, mounts: bool = True) -> None:
        """Set aside what earlier uses left behind, but for one tree's scratch; for a holder.

        `mounts`: note what is going to be used, unless such a tree has it noted.
        """
        for name in ("staging", "work"):
            folder = self.folder / name
            for left in _names_in(folder):
                if left != scratch:
                    set_aside(folder / left, self._aside)
        if self._count_aside() > ASIDE_MAX:
            self.sweep()
        self.layers.top(self.folder)
        if mounts and not scratch:
            self.left = self.layers.left(self.folder)
            self.layers.begin_use(self.folder)

    def sweep(self, *, is_waited_for: bool = False) -> None:
        """Remove what was set aside. Needs no lock of the sandbox: nobody looks at it any more."""
        with disk_errors("clean up", self.folder):
            sweep(self._aside, is_waited_for=is_waited_for)

    @property
    def _aside(self) -> Path:
        return self.folder / ASIDE

    def _count_aside(self) -> int:
        try:
            return len(os.listdir(self._aside))  # noqa: PTH208  # for each use
        except FileNotFoundError:
            return 0

    def folders(self, ats: Sequence[str]) -> dict[str, list[str]]:
        """Return the folders of what a tree would stand on, by part; for a holder."""
        chain = self.layers.chain(self.layers.head(self.folder))
        top = self.layers.top(self.folder)
        return {
            at: [str(top / part_name(at)), *(self.layers.folder(name, at) for name in chain)]
            for at in ats
        }

    def stand(self) -> Stand:
        """Return what a tree would stand on; for a holder."""
        top = self.layers.top(self.folder)
        seen = [os.stat(f"{top}/{name}") for name in self.layers.part_names]  # noqa: PTH116
        inodes = tuple((each.st_dev, each.st_ino) for each in seen)
        return self.layers.head(self.folder), inodes

    def spec(
        self, parts: Sequence[tuple[str, str]], shown: Sequence[tuple[str, str]]
    ) -> tuple[str, dict[str, Any]]:
        """Return the scratch of a new tree, and where its root comes from; for a holder."""
        chain = self.layers.chain(self.layers.head(self.folder))
        top = self.layers.top(self.folder)
        scratch = self._services.ids.new("w", self._services.clock.now_us())
        work = self.folder / "work" / scratch
        work.mkdir(mode=0o700)
        described = []
        for at, base in parts:
            (work / part_name(at)).mkdir(mode=0o700)
            described.append(
                {
                    "at": at,
                    "base": base,
                    "layers": [self.layers.folder(name, at) for name in chain],
                    "upper": str(top / part_name(at)),
                    "work": str(work / part_name(at)),
                }
            )
        (work / "mount").mkdir(mode=0o700)
        return scratch, {
            "parts": described,
            "binds": [[source, target] for target, source in shown],
            "staging": str(work / "mount"),
            "note": str(self.folder / "turn"),
            "range": list(self._ids),
        }

    def is_standing(self, scratch: str, stand: Stand) -> bool:
        """Return whether nobody has used the sandbox since a tree was built; for a holder."""
        return (self.folder / "work" / scratch / "mount").is_dir() and self.stand() == stand


def _names_in(folder: Path) -> list[str]:
    """Return what is in a folder, made if need be."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # for each use
    except FileNotFoundError:
        folder.mkdir(mode=0o700)
        return []


def _let_go(holding: "asyncio.Future[Lock]") -> None:
    if not holding.cancelled() and holding.exception() is None:
        holding.result().close()
