"""A faithful copy of an upper folder while processes still have files of it open.

A layer that is renamed into its place would be written to by open descriptors and by working
folders of before; a copy is not. What is copied was made by code that nobody vetted: the walk goes
by descriptors, follows no link, and is bounded in depth. Kept are owners, modes, times, attributes
(among them the overlay's marks), hard links, holes, and marks of what was removed. Where the file
system can share blocks, it does.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.errors import UsageError
from perdure.sandbox.limits import DEPTH_MAX

_FICLONE = 0x40049409
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = _READ | os.O_DIRECTORY
_THROUGH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(source: Path, target: Path) -> None:
    """Make target, which is not there yet, what source is.

    Args:
        source: nobody writes to it meanwhile.
        target: on the same file system.

    Raises:
        UsageError: folders are deeper than can be copied; target is in between.
        OSError: the disk cannot serve; target is in between.

    Durability: none; sync the file system.
    """
    target.mkdir(mode=0o700)
    one, other = os.open(source, _FOLDER), os.open(target, _FOLDER)
    try:
        _Copy(other).folder(one, other, 0)
        _look_like(one, other, os.fstat(one))
    finally:
        os.close(one)
        os.close(other)


class _Copy:
    """One copy. Knows which files it has made, so that other names of them become links."""

    def __init__(self, top: int) -> None:
        """Begin with none; `top`: descriptor of the folder that all is made below."""
        self._top = top
        self._made: dict[tuple[int, int], tuple[str, ...]] = {}
        self._path: list[str] = []

    def folder(self, source: int, target: int, depth: int) -> None:
        """Make an empty folder what another one is."""
        if depth > DEPTH_MAX:
            msg = f"folders of the sandbox are deeper than {DEPTH_MAX}: they can't be copied"
            raise UsageError(msg)
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            self._path.append(name)
            self._entry(source, target, name, depth)
            self._path.pop()

    def _entry(self, source: int, target: int, name: str, depth: int) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=target)
            other = os.open(name, _FOLDER, dir_fd=target)
            try:
                with _opened(source, name, status) as one:
                    self.folder(one, other, depth + 1)
                    _look_like(one, other, status)
            finally:
                os.close(other)
            return
        key = status.st_dev, status.st_ino
        if status.st_nlink > 1 and self._linked(key, target, name):
            return
        if kind == stat.S_IFREG:
            _file(source, target, name, status)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            _own(target, name, status)
        else:  # pipes, sockets, and the mark of what was removed: a device of number 0
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
            _own(target, name, status)
            if kind != stat.S_IFCHR:
                os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
        if status.st_nlink > 1:
            self._made[key] = tuple(self._path)

    def _linked(self, key: tuple[int, int], target: int, name: str) -> bool:
        """Make another name of a file that was made; return False if it was not yet."""
        made = self._made.get(key)
        if made is None:
            return False
        # Below folders that this copy made, of which none is a link.
        *folders, last = made
        here = os.dup(self._top)
        try:
            for each in folders:  # one by one: the whole path may be longer than the system takes
                below = os.open(each, _THROUGH, dir_fd=here)
                os.close(here)
                here = below
            os.link(last, name, src_dir_fd=here, dst_dir_fd=target, follow_symlinks=False)
        finally:
            os.close(here)
        return True


def _file(source: int, target: int, name: str, status: os.stat_result) -> None:
    other = os.open(name, _NEW, 0o600, dir_fd=target)
    try:
        with _opened(source, name, status) as one:
            _content(one, other, status.st_size)
            _look_like(one, other, status)
    finally:
        os.close(other)


@contextmanager
def _opened(folder: int, name: str, status: os.stat_result) -> Iterator[int]:
    """Open a file or folder for reading, also one that its owner, this user, closed to itself."""
    flags = _FOLDER if stat.S_ISDIR(status.st_mode) else _READ
    mode = stat.S_IMODE(status.st_mode)
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    path = Path("/proc/self/fd", str(held))
    is_closed = mode & 0o500 != 0o500 and os.geteuid() != 0  # noqa: PLR2004  # read and enter
    if is_closed:
        path.chmod(mode | 0o500)
    try:
        found = os.open(name, flags, dir_fd=folder)
        try:
            yield found
        finally:
            os.close(found)
    finally:
        if is_closed:
            path.chmod(mode)
        os.close(held)


def _content(one: int, other: int, size: int) -> None:
    """Copy what a file holds: by sharing blocks, or piece by piece, leaving holes."""
    try:
        fcntl.ioctl(other, _FICLONE, one)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV}:
            raise
    else:
        return
    os.ftruncate(other, size)
    at = 0
    while at < size:
        try:
            begin = os.lseek(one, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        at = os.lseek(one, begin, os.SEEK_HOLE)
        while begin < at:
            count = os.copy_file_range(one, other, at - begin, begin, begin)
            if not count:
                return
            begin += count


def _own(folder: int, name: str, status: os.stat_result) -> None:
    os.chown(name, status.st_uid, status.st_gid, dir_fd=folder, follow_symlinks=False)
    times = status.st_atime_ns, status.st_mtime_ns
    os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)


def _look_like(source: int, target: int, status: os.stat_result) -> None:
    """Give a file or folder the owner, attributes, mode and times of another one."""
    os.fchown(target, status.st_uid, status.st_gid)
    for name in os.listxattr(source):
        with suppress(PermissionError):  # kept by the system for itself
            os.setxattr(target, name, os.getxattr(source, name))
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
