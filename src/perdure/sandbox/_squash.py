"""Many layers as one: what a chain of changes comes to, so that no chain grows for ever.

The merged layer holds the same files by other names (hard links): frozen layers are never written
to, so that sharing their inodes is safe, and only folders are made. The rules are those by which an
overlay merges: a mark for what was removed hides it, a folder that replaces another hides what was
in that one, everything else takes the place of what has its name below.
"""

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perdure.errors import UsageError
from perdure.sandbox._changes import OPAQUE, hides_below
from perdure.sandbox.limits import DEPTH_MAX

Copies = dict[tuple[int, int], Path]
"""The newest copy of a file by (device, inode) of that."""


def squash(layers: Sequence[Path], target: Path) -> None:
    """Make target, which is not there yet, hold what layers come to.

    Args:
        layers: folders of one part, lowest first; nobody writes to them.
        target: on the same file system.

    Raises:
        UsageError: folders are deeper than can be merged; target is in between.
        OSError: the disk cannot serve; target is in between.

    Durability: none; sync the file system.
    """
    target.mkdir(mode=0o755)
    for layer in layers:
        _add(layer, target, 0, {})
        _look_like(layer, target)


def _add(source: Path, target: Path, depth: int, copies: Copies) -> None:
    """Put what a folder of a layer holds over what the merged folder has.

    `copies`: of this layer's files that have as many names as the file system allows.
    """
    if depth > DEPTH_MAX:
        msg = f"{source} is deeper than {DEPTH_MAX} folders; the layers stay as they are"
        raise UsageError(msg, path=str(source))
    with os.scandir(source) as entries:
        found = list(entries)
    for entry in found:
        place = target / entry.name
        if not entry.is_dir(follow_symlinks=False):
            _remove(place)
            _link(Path(entry.path), place, copies)
            continue
        # A folder over a mark of the layer below needs none of its own there; here it does.
        is_covering = _is_there(place) and not _is_folder(place)
        if is_covering or hides_below(entry.path) or not _is_folder(place):
            _remove(place)
            place.mkdir(mode=0o700)
        if is_covering:
            os.setxattr(place, OPAQUE[0 if os.geteuid() == 0 else 1], b"y")
        _add(Path(entry.path), place, depth + 1, copies)
        _look_like(Path(entry.path), place)


def _link(source: Path, target: Path, copies: Copies) -> None:
    """Give a file another name; where it has too many, give one to a copy of it."""
    status = source.lstat()
    key = status.st_dev, status.st_ino
    try:
        os.link(copies.get(key, source), target, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        _copy(source, target, status)
        copies[key] = target


def _copy(source: Path, target: Path, status: os.stat_result) -> None:
    """Make a file that is like another one: also a link, a pipe, a socket, a mark of a removal."""
    if stat.S_ISREG(status.st_mode):
        shutil.copy2(source, target, follow_symlinks=False)
    elif stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
    else:
        os.mknod(target, status.st_mode, status.st_rdev)
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        target.chmod(stat.S_IMODE(status.st_mode))
    times = status.st_atime_ns, status.st_mtime_ns
    os.utime(target, ns=times, follow_symlinks=False)


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _look_like(source: Path, target: Path) -> None:
    """Give a folder the owner, mode, attributes and times of another one."""
    status = source.lstat()
    os.chown(target, status.st_uid, status.st_gid)
    for name in os.listxattr(source, follow_symlinks=False):
        with suppress(PermissionError):  # kept by the system for itself
            os.setxattr(target, name, os.getxattr(source, name))
    target.chmod(stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
