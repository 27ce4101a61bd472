"""Where exported snapshots are: a place of objects by name, which a host shares with others.

Theory: an object is written once and never changed, so that whoever finds one has all of it, and
two who write the same at the same time do no harm. Nothing here knows what the bytes mean: they are
sealed and named by those above, and whatever is read is checked there.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from perdure.clock import Services, system_services
from perdure.errors import NotFound, SettingInvalid, SnapshotBroken, SnapshotNotDurable
from perdure.sandbox.export._names import checked_name
from perdure.sandbox.limits import OBJECTS_LISTED_MAX

_STAGING = ".staging"
"""Folder of what is being written; no object's name begins with a full stop."""


@runtime_checkable
class ObjectStore(Protocol):
    """A place of objects. Its methods are called from OS threads, several at once.

    Names have letters, digits, `_`, `-`, `.` and `/` between parts, no part begins with `.`, and
    are at most 512 characters long. Every method raises `SnapshotNotDurable` where the place can't
    serve; nothing was changed then, or all of it.
    """

    @property
    def place(self) -> str:
        """Return where it is, for people: no secret."""
        ...

    def put(self, name: str, content: bytes) -> bool:
        """Make an object unless there is one of this name; return whether it was made.

        Durability: the object, whoever made it, when this returns. Atomicity: whole or not at all,
            also for those who look meanwhile. Idempotent: yes, by the name.
        """
        ...

    def get(self, name: str, *, bytes_max: int) -> bytes:
        """Return an object's bytes.

        Raises:
            NotFound: there is none.
            SnapshotBroken: it has more than bytes_max; no more than that was read.
        """
        ...

    def has(self, name: str) -> bool:
        """Return whether there is such an object.

        Durability: an object that is there is durable when this returns.
        """
        ...

    def list(self, prefix: str, *, after: str = "", limit: int = OBJECTS_LISTED_MAX) -> list[str]:
        """Return names that begin with a prefix, in order.

        Args:
            prefix: empty: all.
            after: only names above this one.
            limit: how many at most.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an object. Durability: it is gone when this returns. Idempotent: yes."""
        ...


class FolderObjects:
    """Objects as files of a folder: of a disk that outlives the host, or that others mount, too."""

    def __init__(self, folder: str | Path, *, services: Services | None = None) -> None:
        """Use a folder, which is made when something is put there; `services`: for names."""
        self._folder = Path(folder).absolute()
        self._services = services or system_services()
        self._is_ready = False

    def __repr__(self) -> str:
        return f"FolderObjects({str(self._folder)!r})"

    @property
    def place(self) -> str:
        """Return the folder as a URL."""
        return self._folder.as_uri()

    def put(self, name: str, content: bytes) -> bool:
        """Make an object unless there is one; see `ObjectStore.put`."""
        path = self._path(name)
        with self._serving("write to"):
            if path.is_file():
                _sync(path.parent)
                return False
            self._make_ready()
            made = _make_folders(path.parent)
            is_new = self._write(path, content)
            # The name, and those of the folders on the way: also where another one made it.
            for folder in (path.parent, *made):
                _sync(folder)
            return is_new

    def _write(self, path: Path, content: bytes) -> bool:
        while True:
            unique = self._services.ids.new("o", self._services.clock.now_us())
            staged = self._folder / _STAGING / unique
            try:
                with open(staged, "xb", opener=_for_owner) as file:
                    # Held while it is written: so others know it from what the dead left.
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                    if staged.exists():
                        os.link(staged, path)
                        return True
                # It was taken for something left, before it was locked.
            except FileExistsError:
                return False
            finally:
                staged.unlink(missing_ok=True)

    def get(self, name: str, *, bytes_max: int) -> bytes:
        """Return an object's bytes; see `ObjectStore.get`."""
        path = self._path(name)
        with self._serving("read from", name):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISDIR(status.st_mode):
                    raise FileNotFoundError(errno.ENOENT, "it is a folder")
                if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
                    msg = (
                        f"the object {name!r} of {self.place} has {status.st_size} bytes, "
                        f"{bytes_max} at most were put there; it was not read"
                    )
                    raise SnapshotBroken(msg, place=self.place, object=name)
                return _read_all(descriptor, status.st_size)
            finally:
                os.close(descriptor)

    def has(self, name: str) -> bool:
        """Return whether there is such an object; see `ObjectStore.has`."""
        path = self._path(name)
        with self._serving("read from"):
            if not path.is_file():
                return False
            _sync(path.parent)
            return True

    def list(self, prefix: str, *, after: str = "", limit: int = OBJECTS_LISTED_MAX) -> list[str]:
        """Return names that begin with a prefix; see `ObjectStore.list`."""
        folder, _, _rest = prefix.rpartition("/")
        if folder:
            checked_name(folder)
        with self._serving("read from"):
            found = (name for name in self._names(folder) if name.startswith(prefix))
            return sorted(name for name in found if name > after)[:limit]

    def _names(self, folder: str) -> Iterator[str]:
        pending = [folder]
        while pending:
            current = pending.pop()
            with suppress(FileNotFoundError), os.scandir(self._folder / current) as entries:
                for entry in entries:
                    name = f"{current}/{entry.name}" if current else entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                    else:
                        yield name

    def delete(self, name: str) -> None:
        """Remove an object; see `ObjectStore.delete`."""
        path = self._path(name)
        with self._serving("remove from"):
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync(path.parent)

    def _path(self, name: str) -> Path:
        return self._folder / checked_name(name)

    def _make_ready(self) -> None:
        """Make the folder of what is being written, and remove there what the dead left."""
        staging = self._folder / _STAGING
        if self._is_ready and staging.is_dir():
            return
        _make_folders(staging)
        for path in list(staging.iterdir()):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)
        self._is_ready = True

    def _serving(self, act: str, name: str = "") -> "_Serving":
        return _Serving(self.place, act, name)


class _Serving:
    """Raises what the operating system says as Perdure's errors."""

    def __init__(self, place: str, act: str, name: str) -> None:
        self._place, self._act, self._name = place, act, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        if self._name and error.errno in (errno.ENOENT, errno.ENOTDIR):
            msg = f"no object {self._name!r} in {self._place}"
            raise NotFound(msg, place=self._place, object=self._name) from error
        msg = (
            f"can't {self._act} {self._place}: {error.strerror}; what was there is as it was. Look "
            "at its disk and its owner, and try again"
        )
        raise SnapshotNotDurable(msg, place=self._place) from error


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read_all(descriptor: int, length: int) -> bytes:
    content = bytearray()
    while len(content) < length and (more := os.read(descriptor, length - len(content))):
        content += more
    return bytes(content)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder with those above; return those whose names are new in them."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return [each.parent for each in missing]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _of_folder(url: str, services: Services) -> ObjectStore:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path == "/":
        msg = f"{url!r} names no folder: write file:///path; nothing was changed"
        raise SettingInvalid(msg)
    return FolderObjects(path, services=services)


def _of_bucket(url: str, services: Services) -> ObjectStore:
    try:
        from perdure.sandbox.export import _s3  # noqa: PLC0415  # the driver of an extra
    except ImportError as error:
        msg = (
            f"{error.name} is missing, which buckets are reached by; nothing was changed: "
            "pip install 'perdure[s3]'"
        )
        raise SettingInvalid(msg) from error
    return _s3.of_url(url, services)


_BUILT_IN: dict[str, Callable[[str, Services], ObjectStore]] = {
    "file": _of_folder,
    "s3": _of_bucket,
}


def make_objects(url: str | ObjectStore, services: Services) -> ObjectStore:
    """Return the place that a URL names: `file:///path`, `s3://bucket/prefix`, or a plug-in's.

    A plug-in is a function `(url, services) -> ObjectStore` in the entry point group
    `perdure.objects`, under its scheme.

    Raises:
        SettingInvalid: there is no such scheme, or the URL names no place.
    """
    if not isinstance(url, str):
        return url
    scheme = url.partition(":")[0]
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](url, services)
    from importlib.metadata import entry_points  # noqa: PLC0415  # costs start-up time

    plug_ins = {point.name: point for point in entry_points(group="perdure.objects")}
    if scheme in plug_ins:
        made: Any = plug_ins[scheme].load()(url, services)
        return made  # type: ignore[no-any-return]  # a plug-in's word
    known = ", ".join(f"{name}:" for name in sorted([*_BUILT_IN, *plug_ins]))
    msg = f"no place for exports is known by the scheme of {url!r} (known: {known})"
    raise SettingInvalid(msg, known=known)
