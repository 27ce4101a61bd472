"""Copies of projects that are run as processes, and ports that are kept for them."""

import os
import shutil
import socket
import stat
from pathlib import Path
from typing import NoReturn

from perdure.contracts.files import LEFT_OUT
from perdure.contracts.inject import limits
from perdure.contracts.inject.engines._api import ContainerSpec
from perdure.errors import EngineFailed

PREFIX = "perdure-inject-"
"""How folders with copies begin."""

TRIALS = ".perdure-trials"
"""Where the command line keeps transcripts."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return int(port)


def hold_port(port: int) -> socket.socket | None:
    """Keep a port from being handed out to others; who binds it by number still may."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return None
    return held


def fill(project: Path, spec: ContainerSpec) -> None:
    """Copy the project's regular files and links, without what others wrote, within a bound."""
    project.mkdir()
    if spec.folder is not None:
        left = [limits.COPY_BYTES_MAX]

        def copied(source: str, target: str) -> str:
            size = Path(source).stat(follow_symlinks=False).st_size
            left[0] -= size
            if left[0] < 0:
                _failed(f"the project has more than {limits.COPY_BYTES_MAX:,} bytes")
            return str(shutil.copy2(source, target, follow_symlinks=False))

        shutil.copytree(
            spec.folder, project, symlinks=True, ignore=_left_out, copy_function=copied,
            dirs_exist_ok=True,
        )  # fmt: skip
    for path, text in spec.files.items():
        at = project / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.unlink(missing_ok=True)  # it may be a link of the project's
        at.write_text(text, encoding="utf-8")


def _left_out(folder: str, names: list[str]) -> set[str]:
    out = set()
    for name in names:
        mode = (Path(folder) / name).stat(follow_symlinks=False).st_mode
        known = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        if name in LEFT_OUT or name == TRIALS or name.startswith(PREFIX) or not known:
            out.add(name)
    return out


def beginning(path: Path) -> bytes:
    """Read the beginning of a file that an application may have put there: no link, no pipe."""
    held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            return b""
        return os.read(held, limits.SETTINGS_BYTES_MAX)
    finally:
        os.close(held)


def _failed(why: str) -> NoReturn:
    msg = f"it can't be run as a process: {why}"
    raise EngineFailed(msg, engine="process")
