"""Forget what a thread has outside of its snapshots, for good: whoever held it brings nothing back.

The thread's folder keeps two empty-handed files: the lock, and a fence above every run that was
erased. So a worker that was stopped while it had the sandbox, and comes back, is told that it was
replaced; a run that begins on the thread later passes the fence, and finds the base.
"""

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from perdure.errors import LeaseLost, StoreLocked
from perdure.sandbox._disk import (
    ASIDE,
    acquire_now,
    clear_staging,
    disk_errors,
    locked,
    make_folder,
    sweep,
)
from perdure.sandbox._lock import hold, seen

KEPT = {"lock", "fence"}
"""What stays of a thread's folder."""


class Forgotten(Struct, frozen=True, kw_only=True):
    """What became of a thread's live files.

    Attributes:
        bytes: that were made free.
        is_used: a run that began later has the sandbox: it has files of its own, and what was there
            before them is gone.
    """

    bytes: int = 0
    is_used: bool = False


def forget(folder: Path, through: int) -> Forgotten:
    """Remove the live files of a thread, and keep those who had it from bringing them back.

    Args:
        folder: the thread's; made, if it is not there: somebody may be about to use it.
        through: ordinal of the newest run that is erased.

    Raises:
        StoreLocked: somebody who is no run has been using it; nothing was changed.
        StoreError: the disk cannot serve; it can be done again.
    """
    with disk_errors("forget", folder):
        make_folder(folder)
        fence = (through + 1, 0)
        if (seen(folder) or (0, 0)) > fence:
            return _forget_left(folder)
        try:
            lock = hold(folder, fence)
        except LeaseLost:
            return _forget_left(folder)
        try:
            return Forgotten(bytes=_remove_all(folder))
        finally:
            lock.close()


IMPORTING, EXPORTING = "importing", "exporting"
"""Folders of a tenant: what is fetched and has no name yet; notes that are being written."""


def forget_cut_off(tenant: Path) -> int:
    """Remove what an import or an export that was cut off left of a tenant's files.

    Returns:
        Bytes that this made free.

    Raises:
        StoreLocked: an import is under way, and goes on; it can be done again.
    """
    if not (tenant / IMPORTING).is_dir():
        return _forget_notes(tenant)
    with disk_errors("forget", tenant), locked(tenant / f"{IMPORTING}.lock"):
        return clear_staging(tenant / IMPORTING) + _forget_notes(tenant)


def collect_cut_off(tenant: Path) -> int:
    """As `forget_cut_off`; while an import is under way, that removes it itself: 0."""
    if not (tenant / IMPORTING).is_dir():
        return 0
    lock = acquire_now(tenant / f"{IMPORTING}.lock")
    if lock < 0:
        return 0
    try:
        return clear_staging(tenant / IMPORTING)
    finally:
        os.close(lock)


def _forget_notes(tenant: Path) -> int:
    """Remove notes of exports; one that is being written now is written by the next export."""
    with suppress(FileNotFoundError):
        for path in (tenant / EXPORTING).iterdir():
            path.unlink(missing_ok=True)
    return 0


def _forget_left(folder: Path) -> Forgotten:
    """Remove what the sandbox of before left to be removed: a newer run has begun with the base."""
    freed = 0
    try:
        lock = hold(folder, None)
    except StoreLocked:  # a command is running: that was set aside before it began
        pass
    else:
        try:
            freed = sum(clear_staging(folder / name) for name in ("staging", "work"))
        finally:
            lock.close()
    return Forgotten(bytes=freed + sweep(folder / ASIDE, is_waited_for=True), is_used=True)


def _remove_all(folder: Path) -> int:
    # First what says where it stands: a kill in between leaves a thread that stands on the base.
    (folder / "head").unlink(missing_ok=True)
    staging = folder / "staging"
    freed = clear_staging(staging)
    for path in sorted(folder.iterdir()):
        if path.name not in KEPT | {"staging"}:
            path.rename(staging / f"erased-{path.name}")
    freed += clear_staging(staging)
    staging.rmdir()
    return freed
