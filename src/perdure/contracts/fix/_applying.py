"""Edits on text, the difference they make, and how a file is replaced by another at once."""

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from perdure.contracts._secrets import without_secrets
from perdure.contracts.report import Edit, one_line, quiet
from perdure.errors import FixRefused

_MARK = b"\xef\xbb\xbf"


class Change(Struct, frozen=True, kw_only=True):
    """A file as it was read, and as it is to be."""

    file: str
    before: str
    after: str


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends, as YAML and Dockerfiles count them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits of its lines; all other bytes stay what they are."""
    lines = lines_of(text)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    for edit in sorted(edits, key=lambda each: (each.line, each.removed), reverse=True):
        begin = edit.line - 1
        if begin == len(lines) and lines and not lines[-1].endswith("\n"):
            lines[-1] += end
        lines[begin : begin + edit.removed] = [f"{line}{end}" for line in edit.lines]
    return "".join(lines)


def difference(changes: Iterable[Change]) -> str:
    """Return the unified difference of all changes, for people: without the secrets in it."""
    import difflib  # noqa: PLC0415  # when something is to be changed

    return quiet(
        "".join(
            without_secrets(line)
            if line.endswith("\n")
            else f"{without_secrets(line)}\n\\ No newline at end of file\n"
            for change in changes
            for line in difflib.unified_diff(
                lines_of(change.before),
                lines_of(change.after),
                f"a/{one_line(change.file)}",
                f"b/{one_line(change.file)}",
            )
        )
    )


def apply(folder: Path, changes: Iterable[Change]) -> tuple[str, ...]:
    """Write changed files, each replaced at once by a whole new one; return their names.

    A name that is a link, a file behind a link, or a file that is not what was read is refused: it
    stays as it is, and so do those after it.

    Durability: each file is on disk when this returns. Atomicity: of one file, not of all.

    Raises:
        FixRefused: a file can't be replaced safely; names it, and what was written before it.
    """
    written: list[str] = []
    for change in changes:
        try:
            _replace(folder, change)
        except OSError as error:
            msg = f"{change.file!r} can't be replaced: {error.strerror}; written before: {written}"
            raise FixRefused(msg, file=change.file, written=written) from error
        written.append(change.file)
    return tuple(written)


def _replace(folder: Path, change: Change) -> None:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as held:
        held.callback(os.close, root)
        *above, name = change.file.split("/")
        here = root
        for part in above:
            # No link is followed on the way, so that nothing outside the folder is ever written.
            here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            held.callback(os.close, here)
        mode, mark = _checked(here, name, change)
        _put(here, name, mark + change.after.encode(), mode)


def _checked(folder: int, name: str, change: Change) -> tuple[int, bytes]:
    """Return permissions and byte order mark of the file, which must be the one that was read."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(file, "rb") as opened:  # noqa: PTH123  # of a descriptor
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            msg = f"{change.file!r} is no regular file; it was not changed"
            raise FixRefused(msg, file=change.file)
        content = opened.read()
        if content.removeprefix(_MARK) != change.before.encode():
            msg = f"{change.file!r} was changed meanwhile, or is no UTF-8; it is as it was"
            raise FixRefused(msg, file=change.file)
    return stat.S_IMODE(status.st_mode), _MARK if content.startswith(_MARK) else b""


def _put(folder: int, name: str, content: bytes, mode: int) -> None:
    place = f"/proc/self/fd/{folder}"
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".perdure", dir=place)
    base = Path(temporary).name
    try:
        with open(handle, "wb") as file:  # noqa: PTH123  # of a descriptor
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(base, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(base, dir_fd=folder)
        raise
