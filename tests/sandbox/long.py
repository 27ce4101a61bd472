"""A time to sleep that no other process of tests sleeps: by it a process is known on the host."""

import os

LONG = str(7_000_000 + os.getpid())
"""Seconds. Tests run beside each other, and once more as another user, on one host."""

STARTS = (b"sleep\0", b"/usr/bin/python3\0-c\0import ctypes")
"""How command lines begin that may hold it, other than those of test runners."""


def alive() -> list[str]:
    """Return the command lines of the host that hold it, but for those of test runners."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208  # as cheap as can be: it is asked very often
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
                line = file.read()
        except OSError:
            continue
        if line.startswith(STARTS) and LONG.encode() in line:
            found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found
