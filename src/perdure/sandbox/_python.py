"""Whether a Python may be started in a tree before the tree is used, and what it imports.

A tree in advance executes nothing that a sandbox wrote: it has no lock, and nobody who takes the
lock knows of it. So a Python waits in it (`inside.template`) only where the interpreter, its
library, the loader and what they read come from the base: no layer that the tree stands on, nor
what changed since, has a name where they are looked for. A sandbox with a Python of its own, or
that was given a library of the system, gets a plain start.
"""

import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence

from perdure.errors import UsageError
from perdure.sandbox.limits import WARM_MAX

_WATCHED: dict[str, dict[str, tuple[str, ...]]] = {
    # Part of the base: folder in it -> beginnings of names that nothing may have there.
    "": {
        "": ("usr", "bin", "lib", "pyvenv.cfg", "Lib", "Modules", "python"),
        "etc": ("ld.so", "ssl", "locale", "localtime"),
    },
    "usr": {
        "": ("pyvenv.cfg", "lib32", "lib64", "libx32", "Lib", "Modules", "python", "pybuilddir"),
        # Whatever is new beside the interpreter: it looks for marks of a folder that it was built
        # in (`Modules/Setup.local` moves its library to `/usr/Lib`), and for others than these.
        "bin": ("",),
        "lib": (
            "python3", "x86_64-linux-gnu", "aarch64-linux-gnu", "ld-linux", "ssl", "locale", "libc",
        ),
        "sbin": ("python3",),
        "local": ("pyvenv.cfg",),
        "local/bin": ("python3",),
        "local/sbin": ("python3",),
    },
}  # fmt: skip
"""What a Python of Debian's layout looks at before its first program."""

_FOREIGN = ("PYTHON", "LD_", "GLIBC_", "MALLOC_")
"""Beginnings of variables that decide what a Python executes: it starts plainly with them."""
_UNFIT = frozenset({"antigravity", "site", "sitecustomize", "this", "usercustomize", "idlelib"})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def checked_warm(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a waiting Python is to import.

    Raises:
        UsageError: one is not of the standard library: what a sandbox installed is not imported
            before it is asked for.
    """
    warm = tuple(dict.fromkeys(names))
    unfit = [each for each in warm if each.partition(".")[0] not in sys.stdlib_module_names]
    unfit += [each for each in warm if each.partition(".")[0] in _UNFIT]
    if unfit or len(warm) > WARM_MAX:
        what = f"{unfit[0]!r} is none" if unfit else f"{len(warm)} are more than {WARM_MAX}"
        msg = f"warm= names modules of the standard library, to be imported in advance: {what}"
        raise UsageError(msg)
    return warm


def template_of(
    folders: Mapping[str, Sequence[str]], env: Mapping[str, str], warm: Sequence[str]
) -> dict[str, object] | None:
    """Return what a tree is to be told of a Python that waits; None: there is to be none.

    Args:
        folders: part of the base -> the folders of layers that the tree has there.
        env: of commands without variables of their own.
        warm: what it imports.
    """
    if any(name.startswith(_FOREIGN) for name in env):
        return None
    for at, layers in folders.items():
        if at not in _WATCHED:  # of a host whose programs are not all in /usr
            return None
        if any(_is_touched(layer, _WATCHED[at]) for layer in layers):
            return None
    return {"env": dict(env), "warm": list(warm)}


def _is_touched(layer: str, watched: Mapping[str, tuple[str, ...]]) -> bool:
    top = os.open(layer, _FOLDER)
    try:
        return any(_has(top, inside, begins) for inside, begins in watched.items())
    finally:
        os.close(top)


def _has(top: int, inside: str, begins: tuple[str, ...]) -> bool:
    """Return whether a folder of a layer has such a name; or is anything else than a folder."""
    opened = os.dup(top)
    try:
        for part in filter(None, inside.split("/")):
            try:
                mode = os.stat(part, dir_fd=opened, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return False
            if not stat.S_ISDIR(mode):
                return True  # a link, or a mark that it is gone
            inner = os.open(part, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = inner
        with os.scandir(opened) as entries:
            return any(entry.name.startswith(begins) for entry in entries)
    except OSError:  # it changed just now, or may not be looked into: not ours to judge
        return True
    finally:
        os.close(opened)
