"""Layers: what turns changed, each on top of its parent; a snapshot is a layer with all below it.

Layout under a tenant's folder:

    layers/<id>/layer.json     written before the layer has its name; never changed
               <part>          the changes to a part of the base: an overlay's upper folder
               squashed/<part> what this layer and all below it come to, where the chain is long
    threads/<thread>/head      id of the layer that the thread stands on; not there: the base
                     top       changes since then; thrown away by restore, frozen by take
                     work      scratch of the kernel, of one mount
                     staging   half-made and half-removed things; emptied by the next use
                     lock      held by whoever executes, takes or restores

Two children of one layer are a fork: nothing is copied. A layer is renamed into its place whole,
with what it stands on written in it and everything synced first: who finds its name has the
snapshot. A kill before that leaves a `top` or a staging folder that no snapshot names; the run's
journal names none either, and the next restore throws it away. A head that is older than the newest
layer is no harm: the journal says which snapshot counts, and `restore` is called with it.
"""

import ctypes
import json
import os
from pathlib import Path

from msgspec import Struct

from perdure.clock import Probe
from perdure.errors import NotFound, StoreCorrupt, UsageError
from perdure.sandbox._disk import (
    clear_staging,
    make_folder,
    put_file,
    remove_folder,
    sync_names,
)
from perdure.sandbox._squash import squash
from perdure.sandbox.limits import CHAIN_MAX, HISTORY_MAX, SQUASH_AT

FORMAT = 1
"""Version of layer.json."""

SQUASHED = "squashed"
"""Folder in a layer's: what it and all below it come to."""

BASE = "base"
"""The snapshot of a thread that changed nothing."""

_libc = ctypes.CDLL(None, use_errno=True)


class Layer(Struct, frozen=True):
    """What layer.json says. `parent`: id; empty: the base."""

    format: int
    parent: str
    parts: tuple[str, ...]
    base: str


def part_name(at: str) -> str:
    """Return the folder of a part: one for the root, one for each path."""
    return "root" if not at else at.replace("/", "-")


class Layers:
    """The layers of a tenant."""

    def __init__(self, folder: Path, *, base: str, parts: tuple[str, ...], owner: int) -> None:
        """Use the tenant's folder.

        Args:
            folder: the tenant's.
            base: what names the base; a layer of another one can't stand on it.
            parts: where the parts of the base are.
            owner: user and group id that new top folders belong to: root, in the sandbox.
        """
        self._folder = folder / "layers"
        self._top = folder
        self._base = base
        self._parts = parts
        self._owner = owner

    # -- reading -----------------------------------------------------------------------------------

    def chain(self, snapshot: str | None, *, is_whole: bool = False) -> list[str]:
        """Return the layers that a snapshot stands on, topmost first; of the base: none.

        Args:
            snapshot: its id.
            is_whole: every layer, down to the base; else down to one that was squashed, which
                holds all below it.

        Raises:
            NotFound: there is no such snapshot.
            StoreCorrupt: a layer that it stands on is missing or can't be read.
            UsageError: it was made on another base.
        """
        found: list[str] = []
        current = "" if snapshot in (None, BASE) else str(snapshot)
        while current:
            layer = self._read(current, is_first=not found)
            if layer.base != self._base:
                msg = (
                    f"snapshot {snapshot!r} was made on base {layer.base!r}, these sandboxes stand "
                    f"on {self._base!r}; nothing was changed. Open them with the base of before."
                )
                raise UsageError(msg, snapshot=snapshot)
            if not is_whole and (self._folder / current / SQUASHED).is_dir():
                return [*found, f"{current}/{SQUASHED}"]
            found.append(current)
            if len(found) > (HISTORY_MAX if is_whole else CHAIN_MAX):
                raise self._corrupt(current, f"stands on more than {len(found) - 1} layers")
            current = layer.parent
        return found

    def _read(self, name: str, *, is_first: bool) -> Layer:
        if not _is_id(name):
            msg = f"{name!r} is no snapshot: ids begin with 'l_'"
            raise NotFound(msg, snapshot=name)
        try:
            content = (self._folder / name / "layer.json").read_bytes()
            fields = json.loads(content)
            layer = Layer(
                fields["format"], fields["parent"], tuple(fields["parts"]), fields["base"]
            )
        except FileNotFoundError as error:
            if is_first:
                msg = f"no snapshot {name!r} under {self._folder}; the live tree was left as it is"
                raise NotFound(msg, snapshot=name) from error
            raise self._corrupt(name, "is missing, and others stand on it") from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._corrupt(name, f"can't be read: {error}") from error
        if layer.format != FORMAT:
            raise self._corrupt(name, f"has format {layer.format}; this Perdure reads {FORMAT}")
        return layer

    def _corrupt(self, name: str, what: str) -> StoreCorrupt:
        path = self._folder / name
        msg = f"layer {path} {what}; nothing was changed. Bring it back from a backup."
        return StoreCorrupt(msg, path=str(path))

    def folder(self, name: str, at: str) -> str:
        """Return the folder of a layer's part."""
        return str(self._folder / name / part_name(at))

    # -- a thread's --------------------------------------------------------------------------------

    def head(self, thread: Path) -> str:
        """Return the snapshot that a thread stands on."""
        try:
            return (thread / "head").read_text(encoding="ascii")
        except FileNotFoundError:
            return BASE

    def top(self, thread: Path) -> Path:
        """Return the folder of what a thread changed since, made if need be, with all parts."""
        top = thread / "top"
        if not top.is_dir():
            fresh = thread / "staging" / "top"
            fresh.mkdir(mode=0o755)
            for at in self._parts:
                part = fresh / part_name(at)
                part.mkdir(mode=0o755)
                os.chown(part, self._owner, self._owner)
            fresh.rename(top)
        return top

    def is_changed(self, thread: Path) -> bool:
        """Return whether anything changed since the head: a few microseconds."""
        for at in self._parts:
            try:
                with os.scandir(thread / "top" / part_name(at)) as entries:
                    if next(entries, None) is not None:
                        return True
            except FileNotFoundError:
                continue
        return False

    def freeze(self, thread: Path, name: str, probe: Probe) -> str:
        """Make a layer of what changed, and the thread stand on it; return its id.

        Durability: the layer and all that it stands on, when this returns.
        """
        parent = self.head(thread)
        chain = self.chain(parent)
        if chain and len(chain) % SQUASH_AT == 0:
            self._squash(parent, chain, thread / "staging")
            # crash-point: sandbox.freeze.squashed
            probe("sandbox.freeze.squashed")
        layer = thread / "staging" / name
        # In one step: a top that lacks a part is no state that ever was.
        (thread / "top").rename(layer)
        # crash-point: sandbox.freeze.begun
        probe("sandbox.freeze.begun")
        said = {
            "format": FORMAT,
            "parent": "" if parent == BASE else parent,
            "parts": list(self._parts),
            "base": self._base,
        }
        content = json.dumps(said).encode("ascii")
        put_file(layer / "layer.json", content, staging=thread / "staging", fsync=True)
        _sync_file_system(layer)
        # crash-point: sandbox.freeze.synced
        probe("sandbox.freeze.synced")
        make_folder(self._folder)
        layer.rename(self._folder / name)
        sync_names([self._folder], self._top)
        # crash-point: sandbox.freeze.named
        probe("sandbox.freeze.named")
        self.stand(thread, name)
        return name

    def _squash(self, snapshot: str, chain: list[str], staging: Path) -> None:
        """Keep what a snapshot's layers come to beside it, as one layer.

        Where that can't be done the chain goes on as it is, as long as the kernel takes it.
        """
        fresh = staging / SQUASHED
        fresh.mkdir(mode=0o755)
        try:
            for at in self._parts:
                layers = [Path(self.folder(name, at)) for name in reversed(chain)]
                squash(layers, fresh / part_name(at))
            _sync_file_system(fresh)
        except (OSError, UsageError):
            if len(chain) + SQUASH_AT > CHAIN_MAX:
                raise
            remove_folder(fresh, staging)
            return
        fresh.rename(self._folder / snapshot / SQUASHED)
        sync_names([self._folder / snapshot], self._top)

    def stand(self, thread: Path, snapshot: str) -> None:
        """Make a thread stand on a snapshot."""
        content = snapshot.encode("ascii")
        put_file(thread / "head", content, staging=thread / "staging", fsync=False)

    def drop_top(self, thread: Path) -> None:
        """Forget what changed since the head; the bytes go with the next use."""
        top = thread / "top"
        if top.is_dir():
            top.rename(thread / "staging" / "dropped")


def clear(thread: Path) -> None:
    """Remove what an earlier use left behind."""
    clear_staging(thread / "staging")
    clear_staging(thread / "work")


def _is_id(name: str) -> bool:
    return name.startswith("l_") and name[2:].isalnum() and name.isascii()


def _sync_file_system(folder: Path) -> None:
    """Make everything on the folder's file system durable: the kernel has it in its caches."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
