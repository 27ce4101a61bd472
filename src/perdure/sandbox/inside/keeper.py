"""Process 1 of a tree of which images are taken: a program that waits, and needs no file.

A program of the sandbox, or one that loads libraries of it, would be what a command makes of them.
So it is one of ours, static and of a few instructions, on a mount that nobody inside can change.
"""

import os
import platform
import struct

from . import syscalls as sys_

PATH = "/dev/.keeper"
_HEADERS_BYTES = 64 + 56
_AT = 0x400000
_X86 = (62, bytes.fromhex("b822000000 0f05 ebf7"))
"""ELF's number of the machine; `pause` in a loop."""
_ARM = (
    183,
    struct.pack(
        "<7I", 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800928, 0xD4000001, 0x17FFFFFA
    ),
)
"""The same by `ppoll` of nothing, as there is no `pause`."""


def program() -> bytes:
    """Return the file that is executed."""
    machine, code = _ARM if platform.machine() == "aarch64" else _X86
    size = _HEADERS_BYTES + len(code)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start = _AT + _HEADERS_BYTES
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _AT, _AT, size, size, 0x10000)
    return head + segment + code


def show(root: str, staging: str) -> None:
    """Put the program into a root, read-only.

    Args:
        root: with its /dev, which is in memory and root's.
        staging: of root, in memory, that the sandbox does not see.
    """
    source = f"{staging}/keeper"
    for path, content in ((source, program()), (f"{root}{PATH}", b"")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o555), "wb") as file:
            file.write(content)
    os.chmod(source, 0o555)  # noqa: S103  # to be executed by the sandbox's user
    mount = sys_.open_tree(source)
    plain = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
    sys_.set_mount(mount, plain | sys_.MOUNT_ATTR_RDONLY)
    sys_.attach(mount, f"{root}{PATH}")
    os.close(mount)
