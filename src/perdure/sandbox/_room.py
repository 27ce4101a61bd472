"""How much room a sandbox may take, and what is said when it takes more."""

from pathlib import Path

from msgspec import Struct

from perdure.errors import SandboxFull, SettingInvalid
from perdure.sandbox._measure import Usage
from perdure.sandbox.limits import (
    FAR_BYTES,
    FAR_FILES,
    MEASURED_DEPTH_MAX,
    SANDBOX_BYTES_MAX,
    SANDBOX_FILES_MAX,
)


class Room(Struct, frozen=True, kw_only=True):
    """Room of a sandbox: of the layers that it stands on and of what changed since, together.

    Attributes:
        bytes_max: on the disk.
        files_max: files, folders, links and marks of what was removed.
    """

    bytes_max: int = SANDBOX_BYTES_MAX
    files_max: int = SANDBOX_FILES_MAX

    def holds(self, usage: Usage) -> bool:
        """Return whether so much fits."""
        is_small = usage.bytes <= self.bytes_max and usage.entries <= self.files_max
        return is_small and not usage.is_deep

    def is_far_over(self, left: Usage, changed: Usage) -> bool:
        """Return whether what changed is far above what is left: by as much as there is in all."""
        is_large = changed.bytes > left.bytes + max(self.bytes_max, FAR_BYTES)
        return is_large or changed.entries > left.entries + max(self.files_max, FAR_FILES)

    def left(self, usage: Usage) -> Usage:
        """Return what is left where so much is taken; not below 0."""
        return Usage(bytes=self.bytes_max, entries=self.files_max).minus(usage)


def checked_room(bytes_max: int, files_max: int) -> Room:
    """Return the room of a backend's sandboxes.

    Raises:
        SettingInvalid: it is none.
    """
    if bytes_max < 1 or files_max < 1:
        msg = f"bytes_max={bytes_max}, files_max={files_max}: from 1; nothing was made"
        raise SettingInvalid(msg, bytes_max=bytes_max, files_max=files_max)
    return Room(bytes_max=bytes_max, files_max=files_max)


def full(
    thread: Path, below: Usage, changed: Usage, room: Room, *, is_far: bool = False
) -> SandboxFull:
    """Return the error of a sandbox that takes too much room.

    `is_far`: no command is executed in it either, not even one that removes something.
    """
    usage = below + changed
    if usage.is_deep:
        what = f"has folders deeper than {MEASURED_DEPTH_MAX}"
        remedy = "Remove them in it (rm -rf), or go back: sandbox.restore(snapshot)"
    else:
        what, remedy = _told(usage, changed, room)
    if is_far:
        remedy = "Go back: sandbox.restore(snapshot); a node does, when it is executed again"
    undone = "no command was executed" if is_far else "no snapshot was taken"
    msg = f"the sandbox {thread.name} {what}; {undone}, its files are as they were. {remedy}"
    return SandboxFull(
        msg,
        path=str(thread),
        bytes=usage.bytes,
        bytes_max=room.bytes_max,
        files=usage.entries,
        files_max=room.files_max,
    )


def _told(usage: Usage, changed: Usage, room: Room) -> tuple[str, str]:
    """Return what is too much, bytes or files or both, and what helps."""
    parts, finds, settings = [], [], []
    if usage.bytes > room.bytes_max:
        parts.append(
            f"takes {usage.bytes} bytes, of them {changed.bytes} since the last snapshot; it may "
            f"take {room.bytes_max}"
        )
        finds.append("du -xh / | sort -h")
        settings.append(f"bytes_max={2 * room.bytes_max}")
    if usage.entries > room.files_max:
        parts.append(
            f"has {usage.entries} files and folders, of them {changed.entries} since the last "
            f"snapshot; it may have {room.files_max}"
        )
        finds.append("du -x --inodes / | sort -n")
        settings.append(f"files_max={2 * room.files_max}")
    remedy = (
        f"Remove something in it ({'; '.join(finds)}), go back (sandbox.restore(snapshot)), or "
        f"open it with more: IsolatedSandboxes(..., {', '.join(settings)})"
    )
    return " and ".join(parts), remedy
