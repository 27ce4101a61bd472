"""The driver's errors as Perdure's, at the edge of the store."""

import shlex
from pathlib import Path

import apsw

from perdure.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)

_MAPPING: tuple[tuple[tuple[type[apsw.Error], ...], type[StoreError], str], ...] = (
    (
        (apsw.FullError,),
        StoreFull,
        (
            "no space is left for {path}; nothing of this write was kept. "
            "Free space (df -h {folder}) and try again"
        ),
    ),
    (
        (apsw.ReadOnlyError, apsw.PermissionsError),
        StoreReadOnly,
        "{path} cannot be written; nothing was written. Look at: ls -ld {path} {folder}",
    ),
    (
        (apsw.NotADBError,),
        StoreForeign,
        (
            "{path} is not a SQLite database; it was left untouched. "
            "Name another file in the store URL"
        ),
    ),
    (
        (apsw.CorruptError,),
        StoreCorrupt,
        "{path} is damaged; nothing was written. Run: perdure doctor --store sqlite:///{path}",
    ),
    (
        (apsw.BusyError, apsw.LockedError),
        StoreLocked,
        "{path} stayed locked by another process; nothing was written. Look at: fuser {path}",
    ),
    (
        (apsw.CantOpenError, apsw.IOError),
        StoreUnavailable,
        (
            "{path} cannot be opened, read or written; nothing was written. "
            "Look at: ls -ld {folder}; dmesg | tail"
        ),
    ),
)


def map_error(error: apsw.Error, path: Path) -> StoreError:
    """Return the Perdure error for a driver error, with the driver's text at its end."""
    if isinstance(error, apsw.CantOpenError | apsw.IOError):
        problem = _place_problem(path)
        if problem is not None:
            return StoreUnavailable(problem, path=str(path), driver=str(error))
    for classes, target, text in _MAPPING:
        if isinstance(error, classes):
            message = f"{text.format(path=path, folder=path.parent)} ({error})"
            return target(message, path=str(path), driver=str(error))
    message = f"{path}: the statement failed; nothing was written ({type(error).__name__}: {error})"
    return StoreError(message, path=str(path), driver=str(error))


def _place_problem(path: Path) -> str | None:
    """Return what is wrong with the place of a database file; None: nothing that is seen."""
    folder = path.parent
    if path.is_dir():
        return f"{path} is a folder; name a file in it in the store URL. Nothing was written"
    if folder.is_dir():
        return None
    if folder.exists():
        return f"{folder} is a file, so {path} can't be in it; nothing was written"
    make = f"mkdir -p {shlex.quote(str(folder))}"
    return f"{path}: folder {folder} does not exist, and nothing was written: {make}"
