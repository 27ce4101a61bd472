"""Landlock: a second wall inside the mount namespace, where the kernel has it.

Everything under the sandbox's root may be done but for making device nodes; signals and abstract
unix sockets don't reach past the sandbox. Landlock is lost when a process is restored from an
image, so nothing may rest on it alone.
"""

import os
import struct

from . import syscalls

_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_FILE_RIGHTS = (13, 14, 15, 15, 16)
"""Number of file rights that versions 1 to 5 know; later ones know as many as 5."""
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_SCOPES = 0b11
"""Abstract unix sockets and signals, from version 6 on."""
_SCOPES_SINCE = 6


def version() -> int:
    """Return the version of the kernel's Landlock; 0: it has none, or it is off."""
    try:
        return syscalls.syscall(syscalls.LANDLOCK_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(known: int) -> None:
    """Put the calling process, and all that it will start, under the rules.

    Args:
        known: what `version` said.
    """
    if known < 1:
        return
    rights = (1 << _FILE_RIGHTS[min(known, len(_FILE_RIGHTS)) - 1]) - 1
    scopes = _SCOPES if known >= _SCOPES_SINCE else 0
    attributes = struct.pack("3Q", rights, 0, scopes)
    size = 24 if known >= _SCOPES_SINCE else (16 if known >= 4 else 8)  # noqa: PLR2004  # by version
    ruleset = syscalls.syscall(syscalls.LANDLOCK_CREATE_RULESET, attributes, size, 0)
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    allowed = rights & ~_MAKE_CHAR & ~_MAKE_BLOCK
    rule = struct.pack("=Qi", allowed, root)
    syscalls.syscall(syscalls.LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    syscalls.syscall(syscalls.LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(root)
    os.close(ruleset)
