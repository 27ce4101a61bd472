"""Which layers are in use, so that nobody removes one from below a command.

Theory: an overlay goes on reading the layers that it was mounted over, whatever the thread's head
says by then: another thread may have made one layer of many, so that those below it are needed by
no snapshot, but by this mount. So whoever mounts writes down first what over, in `standing` beside
the head; and whoever removes layers keeps what is written there.

Two more things make that safe. The gate: choosing a chain and writing it down are done with a
shared lock of the tenant, removing names is done with the lock alone, for milliseconds. And the
user: a file under the root that a backend holds locked for as long as it lives; what was written
down by one that is gone counts no more, as its mounts went with it. Locks of the kernel on files,
and no process numbers: those of another container would mean nothing here.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from perdure.errors import StoreLocked
from perdure.sandbox._disk import make_folder, open_lock
from perdure.sandbox.limits import GATE_WAIT_S, LOCK_STEP_S, STANDING_BYTES_MAX

STANDING = "standing"
"""Name of the note in a thread's folder."""


class User:
    """A backend, as long as it lives: a locked file."""

    def __init__(self, root: Path, name: str) -> None:
        """Have no file yet."""
        self._folder = root / "users"
        self.name = name
        self._descriptor = -1

    def begin(self) -> None:
        """Be there. Idempotent."""
        if self._descriptor >= 0:
            return
        make_folder(self._folder)
        _remove_gone(self._folder)
        # Under another name until it is locked: one that is not would be taken for left behind.
        fresh = self._folder / f".{self.name}"
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh.rename(self._folder / self.name)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def end(self) -> None:
        """Be there no more. Idempotent."""
        if self._descriptor >= 0:
            with suppress(FileNotFoundError):
                (self._folder / self.name).unlink()
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_gone(folder: Path) -> None:
    """Remove the files of users that ended without a word."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    for name in names:
        if not is_there(folder.parent, name):
            (folder / name).unlink(missing_ok=True)


def is_there(root: Path, name: str) -> bool:
    """Return whether a user is there still."""
    if not name or "/" in name or name.startswith("."):
        return False
    try:
        descriptor = os.open(root / "users" / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def gate(folder: Path, *, is_shared: bool) -> Iterator[None]:
    """Hold the gate of a tenant: shared to use what is there, alone to remove of it.

    Args:
        folder: the tenant's.
        is_shared: whether others may hold it so at the same time.

    Raises:
        StoreLocked: it was held by others for `GATE_WAIT_S`.
    """
    path = folder / "gate"
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    descriptor = open_lock(path)
    try:
        _wait(descriptor, kind, path)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, kind: int, path: Path) -> None:
    never = Event()
    waited_s = 0.0
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited_s >= GATE_WAIT_S:
                msg = (
                    f"the sandboxes of {path.parent} have been looked through by somebody else for "
                    f"{GATE_WAIT_S:g} s; nothing was changed. See who: fuser -v {path}"
                )
                raise StoreLocked(msg, path=str(path)) from None
            never.wait(LOCK_STEP_S)
            waited_s += LOCK_STEP_S
        else:
            return


def note_standing(thread: Path, user: str, layers: Sequence[str]) -> None:
    """Write down what a thread's next mount stands on; for a holder of its lock and the gate."""
    content = json.dumps({"user": user, "layers": list(layers)}).encode("ascii")
    with suppress(FileNotFoundError):
        if (thread / STANDING).read_bytes() == content:
            return
    fresh = thread / f"{STANDING}.new"
    fresh.write_bytes(content)
    fresh.replace(thread / STANDING)


def standing_of(root: Path, thread: Path) -> set[str]:
    """Return the layers that mounts of a thread may stand on; for a holder of the gate."""
    try:
        with (thread / STANDING).open("rb") as file:
            said = json.loads(file.read(STANDING_BYTES_MAX))
        layers = {str(name).partition("/")[0] for name in said["layers"]}
        user = str(said["user"])
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except (ValueError, KeyError, TypeError):
        return set()  # a power failure may have torn it: nothing is mounted then
    return layers if is_there(root, user) else set()
