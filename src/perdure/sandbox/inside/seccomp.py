"""Which system calls a sandbox may make: a BPF program, made once and given to the kernel.

Theory: a sandbox needs almost everything that programs use and nothing that administers a machine.
So calls are refused by name (EPERM), and everything newer than what was looked at does not exist
(ENOSYS): a call that a later kernel adds is not let through by an old list. `clone3` does not exist
either, as its flags lie in memory, where a filter can't look; programs fall back to `clone`, whose
flags are looked at. Sockets are of three families: unix, IPv4, IPv6.

The namespaces, not this list, are the walls; this keeps the kernel's less-used code out of reach.
"""

import errno
import struct

from . import syscalls

# name: (x86_64, aarch64); -1: not there.
REFUSED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "vhangup": (153, 58),
    "uselib": (134, -1),
    "personality": (135, 92),
    "modify_ldt": (154, -1),
}
"""Calls that administer the machine, look into other processes, or have had too many holes."""

KNOWN_MAX = 451
"""Calls up to cachestat were looked at; what is newer does not exist."""

FAMILIES = (1, 2, 10)
"""Address families of sockets: unix, IPv4, IPv6."""

NAMESPACES = 0x7E020080
"""Flags of clone that make a namespace: user, pid, net, ipc, uts, cgroup, mount, time."""

_AUDIT_ARCH = 0xC00000B7 if syscalls.IS_ARM else 0xC000003E
_X32_BIT = 0x40000000
_CLONE = 220 if syscalls.IS_ARM else 56
_CLONE3 = 435
_IO_SETUP = 0 if syscalls.IS_ARM else 206
"""What it counts is counted for the whole host."""
_SOCKET = 198 if syscalls.IS_ARM else 41
_SOCKETPAIR = 199 if syscalls.IS_ARM else 53
_IOCTL = 29 if syscalls.IS_ARM else 16
_PRLIMIT = 261 if syscalls.IS_ARM else 302
"""Of the calling process alone: the first process of the sandbox is to keep its limits."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into the input of whoever owns the terminal."""

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_ABOVE = 0x25
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT = 0
_ARCH_AT = 4
_FIRST_AT = 16
_SECOND_AT = 24

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_MODE_FILTER = 1


def _errno(number: int) -> int:
    return 0x00050000 | number


def program() -> bytes:
    """Return the filter for this architecture, as the kernel wants it."""
    made: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        # Also every call of the x32 ABI, whose numbers have a high bit.
        (_JUMP_ABOVE, 0, 1, KNOWN_MAX),
        (_RETURN, 0, 0, _errno(errno.ENOSYS)),
        *_refusal(_CLONE3, errno.ENOSYS),
        *_refusal(_IO_SETUP, errno.ENOSYS),
    ]
    column = 1 if syscalls.IS_ARM else 0
    for numbers in REFUSED.values():
        if numbers[column] >= 0:
            made += _refusal(numbers[column], errno.EPERM)
    made += _unless(_CLONE, _FIRST_AT, [(_JUMP_ANY_BIT, NAMESPACES)], errno.EPERM)
    made += _unless(_IOCTL, _SECOND_AT, [(_JUMP_EQUAL, n) for n in _TERMINAL_INPUT], errno.EPERM)
    made += _only(_PRLIMIT, (0,), errno.EPERM)
    for call in (_SOCKET, _SOCKETPAIR):
        made += _only(call, FAMILIES, errno.EAFNOSUPPORT)
    made.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *each) for each in made)


def _refusal(number: int, error: int) -> list[tuple[int, int, int, int]]:
    return [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _errno(error))]


def _unless(
    number: int, at: int, tests: list[tuple[int, int]], error: int
) -> list[tuple[int, int, int, int]]:
    """Refuse a call whose argument passes one of the tests."""
    inner: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, at)]
    for operation, operand in tests:
        inner += [(operation, 0, 1, operand), (_RETURN, 0, 0, _errno(error))]
    inner.append((_LOAD, 0, 0, _NUMBER_AT))
    return [(_JUMP_EQUAL, 0, len(inner), number), *inner]


def _only(number: int, allowed: tuple[int, ...], error: int) -> list[tuple[int, int, int, int]]:
    """Refuse a call whose first argument is none of these."""
    inner: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _FIRST_AT)]
    for n, operand in enumerate(allowed):
        inner.append((_JUMP_EQUAL, len(allowed) - n, 0, operand))
    inner.append((_RETURN, 0, 0, _errno(error)))
    inner.append((_LOAD, 0, 0, _NUMBER_AT))
    return [(_JUMP_EQUAL, 0, len(inner), number), *inner]


def install(filter_: bytes) -> None:
    """Put the calling process, and all that it will start, under the filter; there is no way back.

    Needs no_new_privs.
    """
    import ctypes  # noqa: PLC0415  # the buffer must live until the call is made

    buffer = ctypes.create_string_buffer(filter_, len(filter_))
    header = struct.pack("HxxxxxxQ", len(filter_) // 8, ctypes.addressof(buffer))
    syscalls.syscall(syscalls.SECCOMP, _MODE_FILTER, 0, header)
