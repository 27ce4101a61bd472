"""What the trees of a sandbox stand on: its folder, its layers, and the lock of both.

Each tree has a scratch folder of its own, `work/<id>`, and whoever holds the lock removes all but
its own. So a scratch folder that is still there says that nobody else has used the sandbox since
the tree was asked for: no tree is used without.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.clock import Services
from perdure.sandbox._disk import clear_staging, disk_errors, remove_folder
from perdure.sandbox._layers import Layers, part_name
from perdure.sandbox._lock import Fence, Lock, hold
from perdure.sandbox._measure import Usage
from perdure.sandbox._watch import Watch

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

    def watch(self) -> Watch:
        """Begin to look at how much room a command takes that is about to begin."""
        folder, layers = self.folder, self.layers
        clock = self._services.clock
        return Watch(folder, self.left, lambda stop: layers.usage_of_top(folder, stop), clock)

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
        """Remove what earlier uses left behind, but for one tree's scratch; for a holder.

        `mounts`: note what is going to be used, unless such a tree has it noted.
        """
        clear_staging(self.folder / "staging")
        work = self.folder / "work"
        work.mkdir(mode=0o700, exist_ok=True)
        for path in work.iterdir():
            if path.name == scratch:
                continue
            if path.is_dir() and not path.is_symlink():
                remove_folder(path, self.folder / "staging")
            else:
                path.unlink()
        self.layers.top(self.folder)
        if mounts and not scratch:
            self.left = self.layers.left(self.folder)
            self.layers.begin_use(self.folder)

    def stand(self) -> Stand:
        """Return what a tree would stand on; for a holder."""
        top = self.layers.top(self.folder)
        seen = [(top / name).stat() for name in self.layers.part_names]
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


def _let_go(holding: "asyncio.Future[Lock]") -> None:
    if not holding.cancelled() and holding.exception() is None:
        holding.result().close()
