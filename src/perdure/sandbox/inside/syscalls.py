"""System calls that Python has no function for, by ctypes. Linux on x86_64 and aarch64.

Each raises OSError with the number that the kernel gave. Nothing here keeps state.
"""

import ctypes
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

IS_ARM = platform.machine() == "aarch64"

# Numbers above 400 are the same on both architectures.
PIVOT_ROOT = 41 if IS_ARM else 155
SECCOMP = 277 if IS_ARM else 317
KCMP = 272 if IS_ARM else 312
OPEN_TREE = 428
MOVE_MOUNT = 429
FSOPEN = 430
FSCONFIG = 431
FSMOUNT = 432
MOUNT_SETATTR = 442
OPENAT2 = 437
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_AT_FDCWD = -100
_KCMP_FILES = 2
_BENEATH = 0x02 | 0x04 | 0x08
"""RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH."""
_IN_ROOT = 0x02 | 0x10
"""RESOLVE_NO_MAGICLINKS and RESOLVE_IN_ROOT."""
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 0x1
_MOVE_FROM_EMPTY = 0x4
_FSCONFIG_FLAG = 0
_FSCONFIG_STRING = 1
_FSCONFIG_CREATE = 6
_CAPABILITY_VERSION_3 = 0x20080522


def syscall(number: int, *arguments: object) -> int:
    """Make a system call; return what it returns."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _error()
    return result


def _checked(result: int) -> None:
    if result < 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _path(path: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(path))


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name for new ones."""
    _checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    _checked(_libc.setns(descriptor, kind))


def sethostname(name: str) -> None:
    """Set the host name of the UTS namespace."""
    encoded = name.encode()
    _checked(_libc.sethostname(encoded, len(encoded)))


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    """Set an attribute of the calling process."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero))


def set_capabilities(mask: int) -> None:
    """Make the effective and permitted capabilities exactly these bits, the inheritable none."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _checked(_libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)))


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Return a descriptor of what is at a path below a folder; links are not followed anywhere.

    Raises:
        OSError: it is not there (ENOENT, ENOTDIR), or a part of the path is a link (ELOOP).
    """
    how = struct.pack("3Q", flags | os.O_CLOEXEC, 0, _BENEATH)
    return syscall(OPENAT2, folder, _path(path), how, len(how))


def open_in_root(folder: int, path: str, flags: int) -> int:
    """Return a descriptor of what is at a path where a folder is the root, for links, too.

    Raises:
        OSError: it is not there.
    """
    how = struct.pack("3Q", flags | os.O_CLOEXEC, 0, _IN_ROOT)
    return syscall(OPENAT2, folder, _path(path), how, len(how))


def kcmp_files(one: int, other: int) -> int:
    """Return 0 if two OS threads have the same table of descriptors."""
    return syscall(KCMP, one, other, _KCMP_FILES, 0, 0)


def file_system_kind(path: str) -> int:
    """Return the number that names the kind of file system that a path is on."""
    answer = ctypes.create_string_buffer(512)
    _checked(_libc.statfs(_path(path), answer))
    return int(struct.unpack_from("l", answer)[0])


# -- mounts ----------------------------------------------------------------------------------------


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount the old way: for kinds that need no more than this."""
    _checked(
        _libc.mount(
            _path(source),
            _path(target),
            _path(kind) if kind else None,
            ctypes.c_ulong(flags),
            _path(options) if options else None,
        )
    )


def detach(target: str) -> None:
    """Unmount lazily: what is open stays open."""
    _checked(_libc.umount2(_path(target), MNT_DETACH))


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root, and put the old one at `old`."""
    syscall(PIVOT_ROOT, _path(new), _path(old))


def open_tree(path: str, *, is_recursive: bool = False) -> int:
    """Return a descriptor of a detached copy of a mount."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if is_recursive else 0)
    return syscall(OPEN_TREE, _AT_FDCWD, _path(path), flags)


def set_mount(
    descriptor: int, attributes: int, userns: int = 0, *, is_recursive: bool = False, clear: int = 0
) -> None:
    """Set and clear attributes of a mount, and the user namespace that its ids are mapped by."""
    packed = struct.pack("4Q", attributes, clear, 0, userns)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if is_recursive else 0)
    syscall(MOUNT_SETATTR, descriptor, b"", flags, packed, len(packed))


def attach(descriptor: int, target: str) -> None:
    """Put a detached mount in its place."""
    syscall(MOVE_MOUNT, descriptor, b"", _AT_FDCWD, _path(target), _MOVE_FROM_EMPTY)


def mount_overlay(lowers: list[str], upper: str, work: str, options: dict[str, str]) -> int:
    """Return a descriptor of a detached overlay mount.

    Folders are handed over as descriptors: the kernel takes no paths of more than 255 bytes here,
    and shows what it was given in /proc/mounts, where a sandbox would read the host's paths.

    Args:
        lowers: topmost first; at most 500.
        upper: where writes go; empty: none, it is read-only.
        work: empty folder on the same file system as upper.
        options: more of them; an empty value: a flag.
    """
    opened: list[int] = []

    def by_descriptor(path: str) -> str:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened.append(os.open(path, flags))
        return f"/proc/self/fd/{opened[-1]}"

    context = syscall(FSOPEN, b"overlay", 1)
    try:
        for lower in lowers:
            _configure(context, "lowerdir+", by_descriptor(lower))
        if upper:
            _configure(context, "upperdir", by_descriptor(upper))
            _configure(context, "workdir", by_descriptor(work))
        for key, value in options.items():
            _configure(context, key, value)
        syscall(FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
        return syscall(FSMOUNT, context, 1, 0)
    finally:
        for descriptor in (context, *opened):
            os.close(descriptor)


def _configure(context: int, key: str, value: str) -> None:
    if value:
        syscall(FSCONFIG, context, _FSCONFIG_STRING, _path(key), _path(value), 0)
    else:
        syscall(FSCONFIG, context, _FSCONFIG_FLAG, _path(key), None, 0)
