"""A time to sleep that no other process of tests sleeps: by it a process is known on the host."""

import os
from pathlib import Path

LONG = str(7_000_000 + os.getpid())
"""Seconds. Tests run beside each other, and once more as another user, on one host."""


def alive() -> list[str]:
    """Return the command lines of the host that hold it, but for those of test runners."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if line.startswith(("sleep ", "/usr/bin/python3 -c import ctypes")) and LONG in line:
            found.append(line)
    return found
