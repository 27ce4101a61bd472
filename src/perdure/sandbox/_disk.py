"""Durable files: what is written here is all there after a crash, or not there."""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event

from perdure.errors import PerdureError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from perdure.sandbox.limits import LOCK_STEP_S, LOCK_WAIT_S, NOTE_BYTES_MAX

BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the file system's block is."""

_libc = ctypes.CDLL(None, use_errno=True)

ASIDE = "aside"
"""Folder of a sandbox's: what is going to be removed, see `set_aside`."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what names this start of the host: writes without fsync may not outlive it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def sync_names(folders: Iterable[Path], top: Path) -> None:
    """Make the names in these folders durable, and the folders' own, up to the folder top."""
    pending = set(folders)
    pending |= {parent for folder in pending for parent in folder.parents if top in parent.parents}
    for folder in sorted(pending | {top, top.parent}, reverse=True):
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Return a descriptor of a file that is locked, made if need be.

    It belongs to whom its folder belongs to: root may look after the sandboxes of somebody else.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    if os.geteuid() == 0:
        owner = path.parent.lstat()
        if owner.st_uid:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def sync_file_system(folder: Path) -> None:
    """Make everything on the folder's file system durable: the kernel has it in its caches."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and what is above it. Durable once `sync_names` returned."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def read_note(path: str | Path) -> str:
    """Return what a short file says, in ASCII: a tenth of what `Path.read_text` takes.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is longer than `NOTE_BYTES_MAX`, or something else than text.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, NOTE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > NOTE_BYTES_MAX:
        msg = f"{path} has more than {NOTE_BYTES_MAX} bytes"
        raise ValueError(msg)
    return content.decode("ascii")


def put_note(path: str | Path, content: str) -> None:
    """Write a short file whole, beside itself first: for who is the only one to write it."""
    fresh = f"{path}.new"
    with open(fresh, "wb", buffering=0) as file:  # noqa: PTH123  # several for each snapshot
        _write_all(file.fileno(), content.encode("ascii"))
    os.replace(fresh, path)  # noqa: PTH105  # as above


def read_link_note(path: str | Path) -> str:
    """Return what a link says, or a short file; raises as `read_note`."""
    try:
        return os.readlink(path)  # noqa: PTH115  # several for each snapshot
    except FileNotFoundError:
        raise
    except OSError:  # a file, of before
        return read_note(path)


def put_link_note(path: str | Path, content: str) -> None:
    """Write some bytes whole, as where a link leads that nobody follows.

    Such a link has no blocks of its own: replacing a file by another has the new one written out,
    and frees the blocks of the old one, which takes ten times what all else of this does.
    """
    fresh = f"{path}.new"
    try:
        os.symlink(content, fresh)  # noqa: PTH211  # as above
    except FileExistsError:  # of a process that was killed
        os.unlink(fresh)  # noqa: PTH108  # as above
        os.symlink(content, fresh)  # noqa: PTH211  # as above
    os.replace(fresh, path)  # noqa: PTH105  # as above


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def put_file(path: Path, content: bytes, *, staging: Path, fsync: bool) -> None:
    """Write a whole file: afterwards and after a kill the old content is there or the new one.

    Args:
        path: the file.
        content: all of it.
        staging: a folder on the same file system that nobody else uses now.
        fsync: make the content durable before the name is there.
    """
    temporary = f"{staging}/{path.name}"
    with open(temporary, "wb", buffering=0) as file:  # noqa: PTH123  # several for each snapshot
        _write_all(file.fileno(), content)
        if fsync:
            os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105  # as above


def clear_staging(staging: Path) -> int:
    """Empty the staging folder of what a killed process left there; make it if need be.

    Returns:
        Bytes that this made free.
    """
    staging.mkdir(mode=0o700, exist_ok=True)
    with os.scandir(staging) as entries:
        left = list(entries)
    freed = 0
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            freed += remove_folder(Path(entry.path), staging)
        else:
            freed += _unlink(entry)
    return freed


def remove_folder(folder: Path, staging: Path) -> int:
    """Remove a folder of any depth, also where its paths are longer than the system takes.

    Returns:
        Bytes that this made free: of a file that has another name somewhere else, none.
    """
    unique = count()
    pending = [folder]
    freed = 0
    while pending:
        current = pending.pop()
        current.chmod(0o700)
        with os.scandir(current) as entries:
            inside = list(entries)
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                Path(entry.path).chmod(0o700)  # one that can't be written to can't be moved
                short = _free_name(staging, unique)
                Path(entry.path).rename(short)
                pending.append(short)
            else:
                freed += _unlink(entry)
        freed += current.lstat().st_blocks * BLOCK_BYTES
        current.rmdir()
    return freed


def set_aside(path: Path, aside: Path) -> None:
    """Move a file or folder to where `sweep` removes it: one renaming, whatever it holds.

    For a holder of the sandbox's lock; a removal may be under way, which uses other names.
    """
    if not os.path.isdir(aside):  # noqa: PTH112  # for each use, and each snapshot dropped
        aside.mkdir(mode=0o700, exist_ok=True)
    path.rename(_free_name(aside, count(), "aside"))


def sweep(aside: Path, *, is_waited_for: bool = False) -> int:
    """Remove what was set aside; nothing if somebody else is removing it.

    Args:
        aside: the folder.
        is_waited_for: not to return before all is removed that is there now.

    Returns:
        Bytes that this made free.

    Raises:
        StoreLocked: somebody else was removing it for `LOCK_WAIT_S`.
    """
    try:
        removing = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        if _try_lock(removing) or (is_waited_for and _wait_for_lock(removing, None)):
            return clear_staging(aside)
        if is_waited_for:
            raise busy(aside)
        return 0
    finally:
        os.close(removing)


def _unlink(entry: os.DirEntry[str]) -> int:
    """Remove a file; return how many bytes that makes free."""
    status = entry.stat(follow_symlinks=False)
    Path(entry.path).unlink()
    return status.st_blocks * BLOCK_BYTES if status.st_nlink == 1 else 0


def _free_name(staging: Path, unique: Iterator[int], name: str = "removed") -> Path:
    paths = (f"{staging}/{name}-{n}" for n in unique)
    return next(Path(path) for path in paths if not os.path.lexists(path))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file: one thread of one process at a time.

    Raises:
        StoreLocked: somebody else held it for LOCK_WAIT_S.
    """
    descriptor = acquire(path)
    try:
        yield
    finally:
        os.close(descriptor)  # which lets go of the lock


def acquire(path: Path, on_wait: Callable[[], None] | None = None) -> int:
    """Return a descriptor that holds the lock file.

    Args:
        path: the lock file.
        on_wait: called between tries while somebody else holds it.

    Raises:
        StoreLocked: somebody else held it for LOCK_WAIT_S.
    """
    descriptor = open_lock(path)
    try:
        is_held = _wait_for_lock(descriptor, on_wait)
    except BaseException:
        os.close(descriptor)
        raise
    if not is_held:
        os.close(descriptor)
        raise busy(path)
    return descriptor


def acquire_now(path: Path) -> int:
    """Return a descriptor that holds the lock file; -1: somebody else holds it now."""
    descriptor = open_lock(path)
    try:
        is_held = _try_lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if not is_held:
        os.close(descriptor)
        return -1
    return descriptor


def _wait_for_lock(descriptor: int, on_wait: Callable[[], None] | None) -> bool:
    never = Event()
    waited_s = 0.0
    while not _try_lock(descriptor):
        if waited_s >= LOCK_WAIT_S:
            return False
        if on_wait is not None:
            on_wait()
        never.wait(LOCK_STEP_S)
        waited_s += LOCK_STEP_S
    return True


def busy(path: Path) -> StoreLocked:
    """Return the error of a lock file that somebody else has held for too long."""
    msg = (
        f"another process has been at work on the sandbox {path.parent} for {LOCK_WAIT_S:g} s; "
        f"nothing was changed. See who: fuser -v {path}"
    )
    return StoreLocked(msg, path=str(path.parent))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def disk_errors(act: str, path: Path) -> Iterator[None]:
    """Raise what the operating system says as Perdure's errors."""
    try:
        yield
    except PerdureError:
        raise
    except OSError as error:
        raise _mapped(error, act, path) from error


def _mapped(error: OSError, act: str, path: Path) -> PerdureError:
    text = f"cannot {act} the sandbox {path}: {error}. The snapshots taken so far are as they were."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{text} Make room and try again: df -h {path}", path=str(path))
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreReadOnly(f"{text} Look at: ls -ld {error.filename or path}", path=str(path))
    return StoreUnavailable(text, path=str(path))
