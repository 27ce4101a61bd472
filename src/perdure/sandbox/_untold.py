"""Layers that nobody was told of: their first name, until everything of them is on the disk.

Theory: each wait for the disk takes longer than all else of a snapshot, and a name has to be there
after what it names. So a layer has two names, one after the other: `new-<id>` before everything is
synced, that name with it, and `<id>` afterwards. The second renaming is not waited for. Killed at
any instant a process leaves the layer under one of them, whole. Where the power failed it has

- neither, or the first one and perhaps less than all it should hold: nobody was told of it;
- the first one and everything, if the second one was lost: who was told of it asks for it by its
  id, and gets it, under its second name from then on.

So whoever looks for a layer by its id finds it, and whoever lists layers sees none that may lack
something. What was never told of is removed by the next collection.
"""

import errno
import os
from pathlib import Path

UNTOLD = "new-"
"""What the first name of a layer begins with."""


def untold(name: str) -> str:
    """Return the first name of a layer."""
    return f"{UNTOLD}{name}"


def give_first_name(layer: Path, layers: Path) -> None:
    """Move a layer, with all that describes it, to its first name."""
    os.rename(layer, f"{layers}/{UNTOLD}{layer.name}")  # noqa: PTH104  # of each snapshot


def give_second_name(name: str, layers: Path) -> bool:
    """Give a layer, of which everything is on the disk, its second name.

    Returns:
        Whether it has it now; it may have had it before, as somebody else was quicker.
    """
    try:
        os.rename(f"{layers}/{UNTOLD}{name}", f"{layers}/{name}")  # noqa: PTH104  # as above
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EROFS):
            raise
        return os.path.exists(f"{layers}/{name}/layer.json")  # noqa: PTH110  # as above
    return True
