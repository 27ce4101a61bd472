"""The root that a sandbox sees: overlays over base and layers, with its own /proc and /dev.

The base may have several parts, each an overlay of its own, as the kernel refuses a lower folder
that lies below another one: layers may be kept anywhere but below a part of the base.

Called in a new mount namespace, before any right is given up. What is mounted is named by the
worker, never by what runs inside; no path here leads through a folder that a sandbox could have
changed, but for the overlay itself, whose links are never followed: mounts go to descriptors and to
folders that the mask, the topmost layer of ours, holds.
"""

import os
import stat
from typing import Any

from . import keeper
from . import syscalls as sys_

NODES = ("null", "zero", "full", "random", "urandom", "tty")
"""Devices that every program may use."""

LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}

HIDDEN = (
    "cmdline", "config.gz", "diskstats", "interrupts", "iomem", "ioports", "kallsyms", "kcore",
    "key-users", "keys", "kmsg", "kpagecount", "kpageflags", "latency_stats", "modules",
    "partitions", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list", "vmallocinfo",
)  # fmt: skip
"""Files of /proc that tell of the host or act on it."""
CLOSED = ("acpi", "bus", "driver", "fs", "irq", "scsi", "sys", "tty")
"""Folders of /proc that are read-only; of no use to write to without rights over the host."""

_PLAIN = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
_RAW = sys_.MS_NOSUID | sys_.MS_NODEV


class Replaced(Exception):
    """What ran in the sandbox took away a folder that its root needs."""


def enter(spec: dict[str, Any], userns: int) -> None:
    """Build the root that the spec asks for and make it the root of this process.

    Args:
        spec: see `launcher`.
        userns: user namespace by whose map the base is shown; 0: as it is.
    """
    root = build(spec, userns)
    _processes(root, spec["range"][0] if userns else -1)
    os.chdir(root)
    sys_.pivot_root(".", ".")
    sys_.detach(".")
    os.chdir("/")


def build(spec: dict[str, Any], userns: int) -> str:
    """Return where the root that the spec asks for was built, all of it but for /proc."""
    sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
    staging = spec["staging"]
    owner = spec["range"][0] if userns else -1
    sys_.mount("tmpfs", staging, "tmpfs", _RAW, "mode=0700,size=1m")
    root = f"{staging}/root"
    os.mkdir(root, 0o700)
    for number, part in enumerate(spec["parts"]):
        base = _base(part["base"], f"{staging}/base{number}", userns)
        _part(part, base, _inside(root, part["at"], owner), spec["options"])
    for source, target in spec["binds"]:
        _bind(source, _inside(root, target.strip("/"), owner, is_file=True), userns)
    _devices(root, owner)
    if "criu" in spec:
        keeper.show(root, staging)
    return root


def _part(part: dict[str, Any], base: str, target: str, options: dict[str, str]) -> None:
    lowers = [*part["layers"], base]
    overlay = sys_.mount_overlay(lowers, part["upper"], part["work"], options)
    sys_.set_mount(overlay, _PLAIN)
    sys_.attach(overlay, target)
    os.close(overlay)


def _base(path: str, target: str, userns: int) -> str:
    """Return where a copy of a mount shows a read-only part of the base, ids mapped."""
    if not userns:
        return path
    os.mkdir(target, 0o700)
    _bind(path, target, userns, is_recursive=False)
    return target


def _bind(source: str, target: str, userns: int, *, is_recursive: bool = True) -> None:
    mount = sys_.open_tree(source, is_recursive=is_recursive)
    mapped = sys_.MOUNT_ATTR_IDMAP if userns else 0
    attributes = _PLAIN | sys_.MOUNT_ATTR_RDONLY
    sys_.set_mount(mount, attributes, is_recursive=is_recursive)
    if mapped:
        sys_.set_mount(mount, mapped, userns)
    sys_.attach(mount, target)
    os.close(mount)


def _inside(root: str, target: str, owner: int, *, is_file: bool = False) -> str:
    """Return a path under root, of which no part is a link; missing folders are made.

    Args:
        root: of the sandbox.
        target: below it.
        owner: whom folders that are made belong to; -1: whoever this is.
        is_file: whether it may be a file.

    Raises:
        Replaced: a part is a link: nothing is mounted through it.
    """
    path = root
    for part in filter(None, target.split("/")):
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            os.mkdir(path, 0o755)
            os.chmod(path, 0o1777 if path.endswith("/run/shm") else 0o755)
            os.chown(path, owner, owner)
            continue
        is_shown_file = is_file and stat.S_ISREG(mode) and path.endswith(f"/{target}")
        if not stat.S_ISDIR(mode) and not is_shown_file:
            msg = f"/{target} is no folder any more in this sandbox"
            raise Replaced(msg)
    return path


def _devices(root: str, owner: int) -> None:
    dev = _inside(root, "dev", owner)
    sys_.mount("tmpfs", dev, "tmpfs", sys_.MS_NOSUID | sys_.MS_NOEXEC, "mode=0755,size=64k")
    for name in NODES:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        mount = sys_.open_tree(f"/dev/{name}")
        sys_.set_mount(mount, sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NOEXEC)
        sys_.attach(mount, f"{dev}/{name}")
        os.close(mount)
    for name, target in LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/pts", 0o755)
    options = "newinstance,ptmxmode=0666,mode=0620"
    sys_.mount("devpts", f"{dev}/pts", "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, options)
    # Shared memory is checkpointed too: a turn that writes only there changed something.
    os.mkdir(f"{dev}/shm", 0o1777)
    shared = sys_.open_tree(_inside(root, "run/shm", owner))
    sys_.set_mount(shared, _PLAIN)
    sys_.attach(shared, f"{dev}/shm")
    os.close(shared)


def _processes(root: str, owner: int) -> None:
    proc = _inside(root, "proc", owner)
    sys_.mount("proc", proc, "proc", _RAW | sys_.MS_NOEXEC)
    for name in HIDDEN:
        if os.path.exists(f"{proc}/{name}"):
            _cover(f"{root}/dev/null", f"{proc}/{name}")
    for name in CLOSED:
        if os.path.isdir(f"{proc}/{name}"):
            _cover(f"{proc}/{name}", f"{proc}/{name}")


def _cover(source: str, target: str) -> None:
    mount = sys_.open_tree(source)
    sys_.set_mount(mount, _PLAIN | sys_.MOUNT_ATTR_NOEXEC | sys_.MOUNT_ATTR_RDONLY)
    sys_.attach(mount, target)
    os.close(mount)
