"""The base that sandboxes stand on: the host's programs, and nothing else of it.

`/usr` is the host's, read-only below the sandbox's own changes. All else is a small tree made here:
the links into `/usr` that the host has, empty folders, and those files of `/etc` that programs need
to run and that tell nothing about whom the host belongs to. What is not named here is not there.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from perdure.sandbox._disk import clear_staging, make_folder

VERSION = 1
"""Part of the folder's name: a change of what is made here makes a new one."""

FOLDERS = (
    "dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "run/shm", "srv", "sys", "tmp",
    "usr", "workspace", "var", "var/cache", "var/lib", "var/log", "var/tmp",
)  # fmt: skip
OPEN_FOLDERS = ("run/shm", "tmp", "var/tmp")
"""Folders that every user may write to."""
PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on a host of today; where they are folders, they are parts of their own."""
SETTINGS = (
    "alternatives", "bash.bashrc", "ca-certificates", "debian_version", "host.conf", "inputrc",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "login.defs",
    "lsb-release", "mime.types", "nsswitch.conf", "os-release", "pki", "profile", "protocols",
    "python3", "python3.11", "python3.12", "python3.13", "redhat-release", "services", "shells",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
"""What of /etc is copied: no accounts, no keys, no host names, no settings of services."""
WRITTEN = {
    "passwd": "root:x:0:0:root:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
}
"""Files of /etc that are made here."""


def make_skeleton(folder: Path, shown: Mapping[str, str]) -> Path:
    """Return the tree under folder, made if it is not there yet.

    Args:
        folder: where trees are kept.
        shown: path in the sandbox -> what of the host is shown there.

    Durability: none; a tree that is there is whole.
    """
    listed = "\0".join(f"{target}\0{source}" for target, source in sorted(shown.items()))
    digest = hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    tree = folder / f"v{VERSION}-{digest}"
    if not tree.is_dir():
        staging = folder / f".staging-{os.getpid()}"
        make_folder(folder)
        clear_staging(staging)
        _fill(staging / "tree", shown)
        try:
            (staging / "tree").rename(tree)
        except OSError:  # another process was first
            if not tree.is_dir():
                raise
        clear_staging(staging)
        staging.rmdir()
    return tree


def parts_of_host() -> list[tuple[str, str]]:
    """Return (where in the sandbox, folder of the host) of what stands beside the tree."""
    folders = [name for name in PROGRAMS if (Path("/") / name).is_dir()]
    own = [name for name in folders if not (Path("/") / name).is_symlink()]
    return [("usr", "/usr"), *((name, f"/{name}") for name in own)]


def _fill(tree: Path, shown: Mapping[str, str]) -> None:
    tree.mkdir(mode=0o755)
    for name in FOLDERS:
        (tree / name).mkdir(mode=0o755, parents=True, exist_ok=True)
    for target, source in shown.items():
        place = tree / target.strip("/")
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if Path(source).is_dir():
            place.mkdir(mode=0o755, exist_ok=True)
        else:
            place.touch()
    for name in OPEN_FOLDERS:
        (tree / name).chmod(0o1777)
    for name in PROGRAMS:
        host = Path("/") / name
        if host.is_symlink():
            (tree / name).symlink_to(host.readlink())
        elif host.is_dir():
            (tree / name).mkdir(mode=0o755)
    for name in SETTINGS:
        _copy(Path("/etc") / name, tree / "etc" / name)
    for name, content in WRITTEN.items():
        (tree / "etc" / name).write_text(content, encoding="ascii")


def _copy(source: Path, target: Path) -> None:
    """Copy what is there and may be read by everybody."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_unreadable)
    elif source.exists() and source.stat().st_mode & 0o004:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=source.name in {"localtime", "os-release"})


def _unreadable(folder: str, names: list[str]) -> list[str]:
    """Return the names that not everybody may read."""
    found = (Path(folder, name) for name in names)
    return [path.name for path in found if not path.lstat().st_mode & 0o004]
