"""What turns changed, for people and models: read off the layers, not off the files.

An overlay's upper folder holds just what was written: a file or folder that is new or was changed,
and a mark for what was removed (a character device 0:0) or replaced as a whole (an attribute). So
the cost is that of the change, and of nothing else. What is there comes from code that nobody
vetted: no link is followed, and names are bytes.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from perdure.errors import UsageError
from perdure.model.sandbox import Change, Changes, Package
from perdure.sandbox.inside import syscalls
from perdure.sandbox.limits import CHANGES_MAX, DEPTH_MAX, NAME_BYTES_MAX, STATUS_BYTES_MAX

OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


class _Seen(Struct, frozen=True):
    """What one layer says of a path."""

    mode: int
    size: int
    is_removed: bool
    is_opaque: bool


def changes_of(parts: Sequence[tuple[str, Sequence[str], Sequence[str]]]) -> Changes:
    """Return what layers changed.

    Args:
        parts: for each part (where, folders of what is asked about, topmost first, folders of what
            was there before, topmost first, with the base).
    """
    found: dict[str, Change] = {}
    packages: dict[tuple[str, str], Package] = {}
    is_cut = False
    for at, uppers, lowers in parts:
        merged: dict[str, _Seen] = {}
        for upper in reversed(uppers):
            is_cut |= not _merge(Path(upper), merged)
        for path, seen in merged.items():
            change = _as_change(at, path, seen, lowers)
            if change is not None:
                found[change.path] = change
                package = _package(uppers, path)
                if package is not None:
                    packages[package.manager, package.name] = package
    ordered = sorted(found.values(), key=lambda change: os.fsencode(change.path))
    return Changes(
        paths=tuple(ordered[:CHANGES_MAX]),
        packages=tuple(packages[key] for key in sorted(packages)),
        is_cut=is_cut or len(ordered) > CHANGES_MAX,
    )


def _merge(upper: Path, merged: dict[str, _Seen]) -> bool:
    """Add what a layer says to what those below it said; return whether that was all of it."""
    for count, (path, seen) in enumerate(_walk(upper)):
        if count >= CHANGES_MAX * 2:
            return False
        if seen.is_removed or seen.is_opaque:
            for below in [name for name in merged if name.startswith(f"{path}/")]:
                del merged[below]
        before = merged.get(path)
        if before is not None and before.is_opaque and stat.S_ISDIR(seen.mode):
            seen = _Seen(seen.mode, seen.size, is_removed=False, is_opaque=True)  # noqa: PLW2901
        merged[path] = seen
    return True


def _walk(upper: Path) -> Iterator[tuple[str, _Seen]]:
    """Yield (path, what is there) of everything in a layer, folders before what is in them."""
    pending = [("", 0)]
    while pending:
        below, depth = pending.pop()
        if depth > DEPTH_MAX:
            msg = f"/{below} is deeper than {DEPTH_MAX} folders: what changed can't be listed"
            raise UsageError(msg, path=below)
        with os.scandir(upper / below) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            path = f"{below}/{entry.name}".lstrip("/")
            seen = _look(entry)
            yield path, seen
            if stat.S_ISDIR(seen.mode):
                pending.append((path, depth + 1))


def _look(entry: os.DirEntry[str]) -> _Seen:
    status = entry.stat(follow_symlinks=False)
    is_removed = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
    is_opaque = stat.S_ISDIR(status.st_mode) and hides_below(entry.path)
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return _Seen(status.st_mode, size, is_removed=is_removed, is_opaque=is_opaque)


def hides_below(path: str, *, is_link: bool = False) -> bool:
    """Return whether a folder hides what is below it; `is_link`: path is one of /proc/self/fd.

    Only by the attribute that this driver's overlays have: the other one any command can set.
    """
    with suppress(OSError):
        own = OPAQUE[0 if os.geteuid() == 0 else 1]
        return os.getxattr(path, own, follow_symlinks=is_link) == b"y"
    return False


def _as_change(at: str, path: str, seen: _Seen, lowers: Sequence[str]) -> Change | None:
    before = _before(path, lowers)
    shown = f"/{at}/{path}" if at else f"/{path}"
    if seen.is_removed:
        return None if before is None else Change(path=shown, kind="removed")
    is_folder = stat.S_ISDIR(seen.mode)
    if before is None:
        kind = "added"
    elif is_folder and seen.is_opaque:
        kind = "replaced"
    else:
        kind = "changed"
    if is_folder and kind == "changed" and stat.S_ISDIR(before or 0) and seen.mode == before:
        return None  # it is there because of what is in it
    return Change(path=shown, kind=kind, is_folder=is_folder, bytes=seen.size)


def _before(path: str, lowers: Sequence[str]) -> int | None:
    """Return the mode of what was at a path before; None: nothing."""
    for lower in lowers:
        seen, is_final = _in_layer(lower, path)
        if is_final:
            return seen
    return None


def _in_layer(lower: str, path: str) -> tuple[int | None, bool]:
    """Return (mode of what a layer has at a path, whether layers below it don't count)."""
    is_covered = False
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        found = _open(lower, "/".join(parts[:count]), os.O_PATH | os.O_NOFOLLOW)
        if found is None:
            return None, is_covered
        try:
            status = os.fstat(found)
            is_folder = stat.S_ISDIR(status.st_mode)
            is_removed = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
            if count == len(parts):
                return (None if is_removed else status.st_mode), True
            if not is_folder:
                return None, True
            is_covered |= hides_below(f"/proc/self/fd/{found}", is_link=True)
        finally:
            os.close(found)
    return None, is_covered


def _open(top: str, path: str, flags: int) -> int | None:
    """Return a descriptor of what is at a path below top; None: nothing, or over a link."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.open_beneath(folder, path, flags)
    except OSError:
        return None
    finally:
        os.close(folder)


# -- packages --------------------------------------------------------------------------------------

_PIP = re.compile(r"(?:site|dist)-packages/([^/]{1,200})-([^/-]{1,100})\.dist-info/METADATA$")
_VERSION = rb"(?m)^Package: %b\n(?:[^\n]+\n){0,40}?Version: ([^\n]{1,100})$"
_APT = re.compile(r"^(?:lib|var/lib)/dpkg/info/([^/:]{1,200})(?::[^/]{1,50})?\.list$")
_NPM = re.compile(r"node_modules/((?:@[^/]{1,100}/)?[^/]{1,200})/package\.json$")


def _package(uppers: Sequence[str], path: str) -> Package | None:
    pip = _PIP.search(path)
    if pip is not None:
        return Package(manager="pip", name=pip[1].replace("_", "-"), version=pip[2])
    npm = _NPM.search(path)
    if npm is not None:
        return Package(manager="npm", name=npm[1], version=_npm_version(uppers, path))
    apt = _APT.search(path)
    if apt is not None:
        status = f"{path.partition('info/')[0]}status"
        return Package(manager="apt", name=apt[1], version=_apt_version(uppers, status, apt[1]))
    return None


def _apt_version(uppers: Sequence[str], status: str, name: str) -> str:
    """Return the version that dpkg's list of packages names; empty: it names none."""
    for upper in uppers:
        source = _open(upper, status, os.O_RDONLY | os.O_NONBLOCK)
        if source is not None:
            with suppress(OSError), open(source, "rb") as file:  # noqa: PTH123  # by descriptor
                found = _VERSION % re.escape(name.encode("utf-8", "surrogateescape"))
                version = re.search(found, file.read(STATUS_BYTES_MAX))
                return "" if version is None else version[1].decode("utf-8", "replace")
            return ""
    return ""


def _npm_version(uppers: Sequence[str], path: str) -> str:
    """Return the version that a package.json names; empty: it names none that can be read."""
    for upper in uppers:
        source = _open(upper, path, os.O_RDONLY | os.O_NONBLOCK)
        if source is not None:
            with (
                suppress(OSError, ValueError, RecursionError, AttributeError),
                open(source, "rb") as file,  # noqa: PTH123  # by descriptor
            ):
                named = json.loads(file.read(NAME_BYTES_MAX)).get("version", "")
                return named if isinstance(named, str) else ""
            return ""
    return ""
