"""The seam for images of processes: what a snapshot may keep beside the files.

Without it what is in the memory of processes is lost at a restore, and named. Whoever implements it
gets a tree whose processes are stopped (all but its first), and a folder of the layer that is being
made; and at a restore a tree that was built and has executed nothing yet.
"""

from pathlib import Path
from typing import Protocol

from perdure.sandbox._trees import Tree


class Images(Protocol):
    """Keeps the memory of processes."""

    def dump(self, tree: Tree, folder: Path) -> str:
        """Write images of a tree's processes into a folder that is not there yet.

        Called in an OS thread while the processes are stopped.

        Returns:
            Why that can't be done; empty: it was. Then the folder is a part of the snapshot.
        """
        ...

    def restore(self, tree: Tree, folder: Path) -> str:
        """Bring the processes of images back in a tree.

        Called in an OS thread, before the first command in the tree.

        Returns:
            Why that can't be done; empty: they are alive.
        """
        ...
