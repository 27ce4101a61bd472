"""What a base is, as a digest: whether the layers of one host fit on another one.

A layer says what was changed, so it means something only on top of what it was made over. Compared
is what a sandbox sees of a base: the name, kind, permissions and size of everything in the host's
`/usr` (and `/bin`, `/lib` where they are folders), where links point to, and the content of the
small tree that stands for the rest. Not the content of `/usr`: reading it would take minutes, and
two versions of a package never have the same sizes everywhere. Not times, nor what Python
compiled, nor what is in folders that not everybody may look into.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from perdure.errors import UsageError
from perdure.sandbox.limits import BASE_ENTRIES_MAX

VERSION = 1
"""Of what is compared."""

_PASSED_OVER = frozenset({"__pycache__"})
_OPEN = 0o005
_CONTENT_BYTES_MAX = 8 << 20


class Base:
    """The base of a backend's sandboxes."""

    def __init__(self, parts: Sequence[tuple[str, str]], shown: Sequence[str]) -> None:
        """Name it.

        Args:
            parts: (where in the sandbox, folder of the host), the small tree first.
            shown: where in the sandbox something else of the host is shown.
        """
        self._parts = parts
        self._shown = sorted(shown)
        self._stamp: Any = None
        self._digest = b""

    def digest(self) -> bytes:
        """Return its digest: a second for a large `/usr`, and nothing while that is as it was."""
        stamp = self._look()
        if stamp != self._stamp or not self._digest:
            self._digest = self._read()
            self._stamp = stamp
        return self._digest

    def _look(self) -> Any:
        """Return what changes whenever a package is installed or removed."""
        found = []
        for path in (
            *(folder for _at, folder in self._parts),
            *(
                f"/usr/{name}"
                for name in ("bin", "lib", "local", "local/bin", "local/lib", "share")
            ),
            "/var/lib/dpkg/status",
            "/lib/apk/db/installed",
            "/var/lib/rpm",
        ):
            try:
                status = Path(path).stat()
            except OSError:
                continue
            found.append((path, status.st_mtime_ns, status.st_ino))
        return tuple(found)

    def _read(self) -> bytes:
        digest = sha256(f"perdure base {VERSION}".encode())
        for shown in self._shown:
            digest.update(f"shown\0{shown}\0".encode("utf-8", "surrogateescape"))
        count = 0
        for number, (at, folder) in enumerate(self._parts):
            digest.update(f"part\0{at}\0".encode("utf-8", "surrogateescape"))
            for line in _told(folder, with_content=number == 0):
                digest.update(line)
                count += 1
                if count > BASE_ENTRIES_MAX:
                    msg = (
                        f"the base {folder} has more than {BASE_ENTRIES_MAX} files: it can't be "
                        "told from others, and nothing was exported"
                    )
                    raise UsageError(msg, path=folder)
        return digest.digest()


def _told(top: str, *, with_content: bool) -> Iterator[bytes]:
    """Yield a line for everything in a folder of the host, always in the same order."""
    pending = [(top, "")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        for entry in listed:
            if entry.name in _PASSED_OVER:
                continue
            status = entry.stat(follow_symlinks=False)
            name = f"{prefix}/{entry.name}"
            said: bytes = b""
            if stat.S_ISDIR(status.st_mode):
                # As any user sees it, so that root's digest and another worker's are one.
                if status.st_mode & _OPEN == _OPEN:
                    pending.append((entry.path, name))
            elif stat.S_ISLNK(status.st_mode):
                said = os.fsencode(Path(entry.path).readlink())
            elif stat.S_ISREG(status.st_mode):
                said = str(status.st_size).encode()
                if with_content and status.st_size <= _CONTENT_BYTES_MAX:
                    said += sha256(Path(entry.path).read_bytes()).digest()
            yield b"%b\0%o\0%b\n" % (os.fsencode(name), status.st_mode, said)
