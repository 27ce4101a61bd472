"""How much room a sandbox may take, and what is said when it takes more."""

from pathlib import Path

from msgspec import Struct

from perdure.errors import SandboxFull, SettingInvalid
from perdure.sandbox._measure import Usage
from perdure.sandbox.limits import MEASURED_DEPTH_MAX, SANDBOX_BYTES_MAX, SANDBOX_FILES_MAX


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

    def left(self, usage: Usage) -> Usage:
        """Return what is left where so much is taken; not below 0."""
        return Usage(
            bytes=max(0, self.bytes_max - usage.bytes),
            entries=max(0, self.files_max - usage.entries),
        )


def checked_room(bytes_max: int, files_max: int) -> Room:
    """Return the room of a backend's sandboxes.

    Raises:
        SettingInvalid: it is none.
    """
    if bytes_max < 1 or files_max < 1:
        msg = f"bytes_max={bytes_max}, files_max={files_max}: from 1; nothing was made"
        raise SettingInvalid(msg, bytes_max=bytes_max, files_max=files_max)
    return Room(bytes_max=bytes_max, files_max=files_max)


def full(thread: Path, below: Usage, changed: Usage, room: Room) -> SandboxFull:
    """Return the error of a sandbox of which no snapshot is taken, as it takes too much room."""
    usage = below + changed
    if usage.is_deep:
        what = f"has folders deeper than {MEASURED_DEPTH_MAX}"
        remedy = "Remove them in it (rm -rf), or go back: sandbox.restore(snapshot)"
    else:
        what = (
            f"takes {usage.bytes} bytes in {usage.entries} files, of them {changed.bytes} and "
            f"{changed.entries} since the last snapshot; it may take {room.bytes_max} in "
            f"{room.files_max}"
        )
        remedy = (
            "Remove something in it (du -xh / | sort -h), go back (sandbox.restore(snapshot)), or "
            f"open it with more: IsolatedSandboxes(..., bytes_max={2 * room.bytes_max}, "
            f"files_max={2 * room.files_max})"
        )
    msg = (
        f"the sandbox {thread.name} {what}; no snapshot was taken, its files are as they were. "
        f"{remedy}"
    )
    return SandboxFull(
        msg,
        path=str(thread),
        bytes=usage.bytes,
        bytes_max=room.bytes_max,
        files=usage.entries,
        files_max=room.files_max,
    )
