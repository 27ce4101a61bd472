"""The files of a project as a check may see them: beneath one folder, bounded, never executed."""

import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.findings import Unread

LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".next", ".terraform", "site-packages",
    }
)  # fmt: skip
"""Folders that hold what others wrote or tools made."""

_INSTALLED = ".dist-info"
"""How a folder's name ends that an installer puts beside each package."""

_OF_TESTS = regex(r"(^|/)tests?/|(^|/)(test_[^/]*|conftest)\.py$")
"""Files of which no service reads a setting."""


class TooMuchError(Exception):
    """A file is larger, deeper, or becomes more than is read; says which."""


class Project:
    """The readable text files beneath a folder.

    Paths are relative, with `/`. What can't be read is remembered in `unread` and is `None` to the
    caller, so that one bad file costs its own facts only. Links that lead out of the folder, loops
    of links, files that are no regular files and files over the limit are never opened.
    """

    def __init__(self, folder: Path) -> None:
        """Look at `folder`, which must exist; nothing is read yet."""
        self.folder = folder.resolve()
        self._unread: dict[str, Unread] = {}
        self._texts: dict[str, str | None] = {}
        self._left = limits.EXPANDED_MAX
        self._yaml_left = limits.YAML_TOTAL_MAX

    @property
    def unread(self) -> tuple[Unread, ...]:
        """What was asked for and could not be read, by path."""
        return tuple(self._unread[path] for path in sorted(self._unread))

    def not_read(self, path: str, reason: str, line: int | None = None) -> None:
        """Remember that `path` could not be understood, and why, for the report."""
        self._unread.setdefault(path, Unread(file=path, line=line, reason=reason))

    def spend(self, amount: int) -> None:
        """Count values or characters that the files become, beyond what is written in them.

        One account for the whole project, so that many small bombs cost no more than one.

        Raises:
            TooMuchError: there are more than are read.
        """
        self._left -= amount
        if self._left < 0:
            msg = f"with what it repeats, the project has more than {limits.EXPANDED_MAX:,} values"
            raise TooMuchError(msg)

    def spend_yaml(self, characters: int) -> None:
        """Count the characters of a YAML text that is about to be parsed.

        Raises:
            TooMuchError: with it, there are more than are parsed.
        """
        if characters > self._yaml_left:
            msg = f"the project has more than {limits.YAML_TOTAL_MAX:,} characters of YAML"
            raise TooMuchError(msg)
        self._yaml_left -= characters

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All paths, sorted; links to files are listed, links to folders not followed."""
        return tuple(sorted(self._walk()))

    @cached_property
    def names(self) -> frozenset[str]:
        """The same paths, to ask whether one is there."""
        return frozenset(self.paths)

    @cached_property
    def folders(self) -> frozenset[str]:
        """The folders that files lie in, at any depth, without the checked one itself."""
        found: set[str] = set()
        for path in self.paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in found:
                found.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(found)

    def _walk(self) -> Iterable[str]:
        count = 0
        for here, folders, files in os.walk(self.folder, followlinks=False):
            depth = len(Path(here).relative_to(self.folder).parts)
            if depth >= limits.DEPTH_MAX:
                self.not_read(self._relative(Path(here)), "its folders are too deep to go on")
                folders.clear()
            why = _why_of_others(folders, files) if depth else ""
            if why:
                self.not_read(self._relative(Path(here)), why)
                folders.clear()
                continue
            folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
            for name in files:
                count += 1
                if count > limits.FILES_MAX:
                    self.not_read(".", f"only the first {limits.FILES_MAX:,} files were looked at")
                    return
                yield self._relative(Path(here) / name)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def has(self, path: str) -> bool:
        """Whether there is a regular file at `path`, beneath the folder."""
        return self._file(path) is not None

    def read(self, path: str) -> str | None:
        """Return the text of a file, or `None` (missing, or remembered in `unread`)."""
        if path not in self._texts:
            self._texts[path] = self._read(path)
        return self._texts[path]

    def glance(self, path: str) -> str:
        """Return a text that is looked at in passing: not remembered, nor missed if it can't be."""
        if path in self._texts:
            return self._texts[path] or ""
        found = self._file(path)
        if found is None:
            return ""
        try:
            with found.open("rb") as file:
                return file.read(limits.FILE_BYTES_MAX).decode("utf-8", errors="replace")
        except OSError:
            return ""

    def mentions(self, name: str) -> bool:
        """Whether any file that was read has the name of a setting, or of a field that it sets.

        A word in a text is none: in small letters it has to be declared or set. Classes of settings
        put a prefix before the names of their fields, so that what follows the first word is looked
        for, too.
        """
        rest = name.partition("_")[2]
        names = [name, *([rest] if "_" in rest else [])]
        word = "|".join(re.escape(each) for each in names)
        words = re.compile(
            rf"(?<!\w)({word})(?!\w)|(?<=\.)(?i:{word})(?!\w)"
            rf"|(?m:^[ \t]*)(?i:{word})(?!\w)[\"']?[ \t]*[:=]"
        )
        return any(
            words.search(text)
            for path, text in self._texts.items()
            if text is not None and not _OF_TESTS.search(path)
        )

    def _file(self, path: str) -> Path | None:
        try:
            found = (self.folder / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        return found if found.is_relative_to(self.folder) and found.is_file() else None

    def _read(self, path: str) -> str | None:
        found = self._file(path)
        if found is None:
            if os.path.lexists(self.folder / path) and not (self.folder / path).is_dir():
                self.not_read(path, "it is a link that leads nowhere, or out of the folder")
            return None
        try:
            with found.open("rb") as file:
                content = file.read(limits.FILE_BYTES_MAX + 1)
        except OSError as error:
            self.not_read(path, f"it can't be opened: {error.strerror}")
            return None
        if len(content) > limits.FILE_BYTES_MAX:
            self.not_read(path, f"it has more than {limits.FILE_BYTES_MAX:,} bytes")
            return None
        if b"\0" in content[:8192]:
            self.not_read(path, "it is not text")
            return None
        return content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def _why_of_others(folders: list[str], files: list[str]) -> str:
    """Return why a folder of any name is nothing of the project's; empty: it may be."""
    if "pyvenv.cfg" in files:
        return "it is an environment of Python (pyvenv.cfg); nothing below it is read"
    installed = next((name for name in sorted(folders) if name.endswith(_INSTALLED)), None)
    if installed is not None:
        return f"packages were installed to it ({installed[:80]}); nothing below it is read"
    return ""
