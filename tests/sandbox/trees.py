"""Frozen layers as they are on the disk of a host, and two hosts that export to one place."""

import os
import stat
from pathlib import Path

KEY = "A" * 43 + "="
"""A key, as `env:` takes it."""


def layer_of(backend, tenant: str, snapshot: str) -> Path:
    [found] = backend.root.glob(f"tenants/{tenant}.*/layers/{snapshot}")
    return found


def told(layer: Path, first: int) -> dict[str, object]:
    """Return everything that is in a layer, as a snapshot keeps it; `first`: the id of root."""
    found: dict[str, object] = {}
    inodes: dict[tuple[int, int], str] = {}
    for part in sorted(path for path in layer.iterdir() if path.is_dir()):
        if part.name == "squashed":
            continue
        for folder, folders, files in os.walk(part):
            for path in [Path(folder), *(Path(folder, name) for name in folders + files)]:
                name = str(path.relative_to(layer))
                if name not in found:
                    found[name] = _one(path, first, inodes, name)
    return found


def _one(path: Path, first: int, inodes: dict[tuple[int, int], str], name: str) -> object:
    seen = path.lstat()
    if stat.S_ISCHR(seen.st_mode) and seen.st_rdev == 0:
        return "removed"
    mode = seen.st_mode & ~0o6000 if stat.S_ISREG(seen.st_mode) else seen.st_mode & ~0o4000
    group = first if os.geteuid() == 0 else os.getegid()
    line = [oct(mode), seen.st_uid - first, seen.st_gid - group, seen.st_mtime_ns]
    own = {each: os.getxattr(path, each, follow_symlinks=False) for each in _attributes(path)}
    line.append({key: own[key] for key in own if not key.startswith(OVERLAY)})
    if stat.S_ISDIR(seen.st_mode):
        opaque = "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"
        line.append(own.get(opaque))
    elif stat.S_ISLNK(seen.st_mode):
        line.append(os.fsencode(path.readlink()))
    elif stat.S_ISREG(seen.st_mode):
        line += [path.read_bytes(), seen.st_size, _holes(path, seen.st_size)]
        line.append(inodes.setdefault((seen.st_dev, seen.st_ino), name))
    return line


OVERLAY = ("trusted.overlay.", "user.overlay.", "security.", "system.")


def _attributes(path: Path) -> list[str]:
    return sorted(os.listxattr(path, follow_symlinks=False))


def _holes(path: Path, size: int) -> list[tuple[int, int]]:
    found, at = [], 0
    with path.open("rb") as file:
        while at < size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            found.append((begin, at))
    return found
