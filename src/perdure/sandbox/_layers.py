"""Layers: what turns changed, each on top of its parent; a snapshot is a layer with all below it.

Layout under a tenant's folder:

    layers/new-<id>            a layer that nobody was told of, see _untold
    layers/<id>/layer.json     written before the layer has its name; never changed
               images          of processes that were alive, where somebody keeps them
               <part>          the changes to a part of the base: an overlay's upper folder
               squashed/<part> what this layer and all below it come to, where the chain is long
    threads/<thread>/head      id of the layer that the thread stands on; not there: the base
                     taken     ids of layers that were announced, see `announce`
                     taking    an empty file for each layer that the thread is about to stand on
                     standing  what its mounts stand on, see _standing
                     top       changes since then; thrown away by restore, frozen by take
                     work      scratch of the kernel, of one mount
                     staging   half-made and half-removed things; emptied by the next use
                     lock      held by whoever executes, takes or restores

Two children of one layer are a fork: nothing is copied. A layer is renamed into its place whole,
with what it stands on written in it; it has a name that nobody looks for until everything is
synced, see `_untold`: who finds its id has the snapshot. A kill before that leaves a `top`, a
staging folder or a first name that no snapshot is known by; the run's journal names none either,
and the next restore, or collection, throws it away. A head that is older than the newest
layer is no harm: the journal says which snapshot counts, and `restore` is called with it.

Size: what is written of a layer, in which order, and what of it is needed still is one protocol.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from perdure.clock import Probe
from perdure.errors import NotFound, StoreCorrupt, UsageError
from perdure.sandbox._copying import copy_tree
from perdure.sandbox._disk import (
    ASIDE,
    make_folder,
    put_file,
    read_note,
    remove_folder,
    set_aside,
    sync_file_system,
    sync_names,
)
from perdure.sandbox._made import (
    ALIVE,
    FILES,
    FORMAT,
    Generation,
    Layer,
    Made,
    check_fits,
    encode,
    read,
)
from perdure.sandbox._measure import Usage, measure
from perdure.sandbox._processes import Process
from perdure.sandbox._room import Room, full
from perdure.sandbox._squash import squash
from perdure.sandbox._standing import STANDING, gate, note_standing
from perdure.sandbox._untold import UNTOLD, give_first_name, give_second_name
from perdure.sandbox.limits import (
    CHAIN_MAX,
    CHANGES_SHARE,
    HISTORY_MAX,
    IMAGES_KEPT,
    SQUASH_AT,
    TAKEN_MAX,
)

IMAGES = "images"
"""Folder in a layer's: images of processes, see `_images`."""

SQUASHED = "squashed"
"""Folder in a layer's: what it and all below it come to."""

TAKEN = "taken"
"""File in a thread's folder: layers of its that it does not stand on, and which may have no record
yet: one that is imported, and those that it was copied to while it went on."""

TAKING = "taking"
"""Folder in a thread's, with an empty file for each layer that it is about to stand on: a file with
content would have blocks by then, which are to be freed while somebody waits."""

BASE = "base"
"""The snapshot of a thread that changed nothing."""


def part_name(at: str) -> str:
    """Return the folder of a part: one for the root, one for each path."""
    return "root" if not at else at.replace("/", "-")


class Layers:
    """The layers of a tenant."""

    def __init__(  # what a tenant's layers are made of
        self,
        folder: Path,
        *,
        base: str,
        parts: tuple[str, ...],
        owner: int,
        made: Made = Made(),  # noqa: B008  # frozen
        room: Room = Room(),  # noqa: B008  # frozen
        user: str = "",
        now_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """Use the tenant's folder.

        Args:
            folder: the tenant's.
            base: what names the base; a layer of another one can't stand on it.
            parts: where the parts of the base are.
            owner: user and group id that new top folders belong to: root, in the sandbox.
            made: what new layers are made with.
            room: what a sandbox may take.
            user: who mounts them, see `_standing`.
            now_us: what time it is.
        """
        self._folder = folder / "layers"
        self._top = folder
        self._base = base
        self._parts = parts
        self._owner = owner
        self._made = made
        self.room = room
        self._user = user
        self._now_us = now_us
        self.part_names = [part_name(at) for at in parts]
        self._known: dict[str, tuple[tuple[int, int, int], Layer]] = {}
        self._usages: dict[str, Usage] = {}

    # -- reading -----------------------------------------------------------------------------------

    def chain(
        self, snapshot: str | None, *, is_whole: bool = False, is_any: bool = False
    ) -> list[str]:
        """Return the layers that a snapshot stands on, topmost first; of the base: none.

        Args:
            snapshot: its id.
            is_whole: every layer, down to the base; else down to one that was squashed, which
                holds all below it.
            is_any: also what these sandboxes can't be made over.

        Raises:
            NotFound: there is no such snapshot.
            StoreCorrupt: a layer that it stands on is missing or can't be read.
            UsageError: it was made on another base, or by another driver.
        """
        found: list[str] = []
        squashed = 0
        current = "" if snapshot in (None, BASE) else str(snapshot)
        while current:
            try:
                layer = self.read(current, is_first=not found)
            except StoreCorrupt:
                if not squashed or (self._folder / current).exists():
                    raise
                # What is below was collected; the lowest that holds it all is the end.
                lowest = found[squashed - 1]
                return [*found[: squashed - 1], f"{lowest}/{SQUASHED}"]
            if not is_any:
                check_fits(layer, snapshot, base=self._base, driver=self._made.driver)
            is_squashed = os.path.isdir(f"{self._folder}/{current}/{SQUASHED}")  # noqa: PTH112
            if is_squashed and not is_whole:
                return [*found, f"{current}/{SQUASHED}"]
            found.append(current)
            if is_squashed:
                squashed = len(found)
            if len(found) > (HISTORY_MAX if is_whole else CHAIN_MAX):
                raise self._corrupt(current, f"stands on more than {len(found) - 1} layers")
            current = layer.parent
        return found

    def read(self, name: str, *, is_first: bool = True) -> Layer:
        """Return what a layer says of itself.

        Raises:
            NotFound: there is no such snapshot.
            StoreCorrupt: it can't be read; or, if not `is_first`, it is missing.
        """
        if not is_id(name):
            msg = f"{name!r} is no snapshot: ids begin with 'l_'"
            raise NotFound(msg, snapshot=name)
        path = f"{self._folder}/{name}/layer.json"
        try:
            status = os.stat(path)  # noqa: PTH116  # for each layer of each turn: half the time
            seen = status.st_ino, status.st_mtime_ns, status.st_size
            known = self._known.get(name)
            if known is None or known[0] != seen:
                if len(self._known) > 2 * CHAIN_MAX:
                    self._known.clear()
                known = self._known[name] = seen, read(Path(path))
            return known[1]
        except FileNotFoundError as error:
            if give_second_name(name, self._folder):
                return self.read(name, is_first=is_first)
            if is_first:
                msg = f"no snapshot {name!r} under {self._folder}; the live tree was left as it is"
                raise NotFound(msg, snapshot=name) from error
            raise self._corrupt(name, "is missing, and others stand on it") from error
        except ValueError as error:
            raise self._corrupt(name, f"can't be read: {error}") from error

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
            return read_note(f"{thread}/head")
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
                with os.scandir(f"{thread}/top/{part_name(at)}") as entries:
                    if next(entries, None) is not None:
                        return True
            except FileNotFoundError:
                continue
        return False

    def freeze(
        self,
        thread: Path,
        name: str,
        probe: Probe,
        *,
        changes: str = FILES,
        generation: Generation = (0, 0, 0),
        processes: tuple[Process, ...] = (),
        images: Path | None = None,
        why_none: str = "",
    ) -> str:
        """Make a layer of what changed, and the thread stand on it; return its id.

        Args:
            thread: folder of the thread; its lock is held.
            name: of the layer.
            probe: called at each crash point.
            changes: what it is said to hold.
            generation: which one of the thread it is, for other hosts.
            processes: what was alive, and is not any more.
            images: folder with images of that, which becomes the layer's.
            why_none: why there is no such folder, where there was to be one.

        Raises:
            SandboxFull: the sandbox takes more room than it may; nothing was changed.

        Durability: the layer and all that it stands on, when this returns.
        """
        parent = self.head(thread)
        chain = self.chain(parent)
        if chain and len(chain) % SQUASH_AT == 0:
            self._squash(parent, chain, thread / "staging")
            # crash-point: sandbox.freeze.squashed
            probe("sandbox.freeze.squashed")
            chain = self.chain(parent)
        usage = self._measured(thread, parent, chain)
        layer = thread / "staging" / name
        # In one step: a top that lacks a part is no state that ever was.
        (thread / "top").rename(layer)
        # crash-point: sandbox.freeze.begun
        probe("sandbox.freeze.begun")
        said = {"processes": processes, "has_images": images is not None, "why_none": why_none}
        self._describe(
            layer, thread, parent, changes=changes, usage=usage, generation=generation, **said
        )
        if images is not None:
            images.rename(layer / IMAGES)
        self._announce_head(thread, name)
        self._place(layer)
        # crash-point: sandbox.freeze.placed
        probe("sandbox.freeze.placed")
        sync_file_system(self._folder)  # the layer, what describes it, its name, its number
        # crash-point: sandbox.freeze.synced
        probe("sandbox.freeze.synced")
        give_second_name(name, self._folder)
        # crash-point: sandbox.freeze.named
        probe("sandbox.freeze.named")
        self.stand(thread, name)
        self._arrived(thread, name)
        return name

    def keep(
        self,
        thread: Path,
        name: str,
        processes: tuple[Process, ...],
        probe: Probe,
        *,
        generation: Generation = (0, 0, 0),
    ) -> str:
        """Make a layer of a copy of what changed, while processes live on with the files open.

        The thread stands on what it stood on: what it changes is still all that changed since then.

        Args:
            thread: whose changes; nobody writes to them now.
            name: id of the layer.
            processes: what is alive.
            probe: for crash points.
            generation: which one of the thread it is, for other hosts.

        Raises:
            SandboxFull: the sandbox takes more room than it may; nothing was changed.

        Durability: the layer and all that it stands on, when this returns.
        """
        parent = self.head(thread)
        usage = self._measured(thread, parent, self.chain(parent))
        layer = thread / "staging" / name
        layer.mkdir(mode=0o755)
        for at in self._parts:
            copy_tree(thread / "top" / part_name(at), layer / part_name(at))
        # crash-point: sandbox.keep.copied
        probe("sandbox.keep.copied")
        said = {"processes": processes, "generation": generation}
        self._describe(layer, thread, parent, changes=ALIVE, usage=usage, **said)
        self.announce(thread, name)
        self._place(layer)
        # crash-point: sandbox.keep.placed
        probe("sandbox.keep.placed")
        sync_file_system(self._folder)  # the layer, what describes it, its name, its number
        # crash-point: sandbox.keep.synced
        probe("sandbox.keep.synced")
        give_second_name(name, self._folder)
        # crash-point: sandbox.keep.named
        probe("sandbox.keep.named")
        return name

    def _describe(
        self, layer: Path, thread: Path, parent: str, *, changes: str, usage: Usage, **said: Any
    ) -> None:
        described = Layer(
            format=FORMAT,
            parent="" if parent == BASE else parent,
            parts=self._parts,
            base=self._base,
            thread=thread.name,
            at_us=self._now_us(),
            changes=changes,
            usage=usage,
            made=self._made,
            **said,
        )
        (layer / "layer.json").write_bytes(encode(described))  # nobody looks at it yet

    def _place(self, layer: Path) -> None:
        """Put a layer, announced, where layers are, by the name that nobody looks for."""
        try:
            give_first_name(layer, self._folder)
        except FileNotFoundError:
            make_folder(self._folder)
            give_first_name(layer, self._folder)

    def layer(self, snapshot: str) -> Layer | None:
        """Return what a snapshot's layer says; None: the base, which has none.

        Raises: as `read`.
        """
        return None if snapshot == BASE else self.read(snapshot)

    def images(self, snapshot: str) -> Path:
        """Return the folder of a snapshot's images of processes, if it has any."""
        return self._folder / snapshot / IMAGES

    def drop_images(self, snapshot: str, thread: Path) -> None:
        """Remove the images of the snapshots below one, but for the newest; for a holder."""
        for name in self.chain(snapshot, is_whole=True)[IMAGES_KEPT : 2 * IMAGES_KEPT]:
            if self.images(name).is_dir():
                set_aside(self.images(name), thread / ASIDE)

    def announce(self, thread: Path, name: str) -> None:
        """Say that a layer is about to be there which the thread does not stand on yet.

        Before it has its name: nobody may find it and not know whose it is. It is not collected for
        as long as it is said; of very many, the newest.
        """
        names = [*_listed(thread), name][-TAKEN_MAX:]
        content = "\n".join(names).encode("ascii")
        put_file(thread / TAKEN, content, staging=thread / "staging", fsync=False)

    def _announce_head(self, thread: Path, name: str) -> None:
        """As `announce`, of a layer that the thread stands on before anybody hears of it."""
        try:
            _touch(f"{thread}/{TAKING}/{name}")
        except FileNotFoundError:
            (thread / TAKING).mkdir(mode=0o700)
            _touch(f"{thread}/{TAKING}/{name}")

    def _arrived(self, thread: Path, name: str) -> None:
        """Say no more what was announced: the thread stands on it."""
        (thread / TAKING / name).unlink(missing_ok=True)

    # -- for other hosts ---------------------------------------------------------------------------

    def adopt(self, layers: Sequence[tuple[Path, Layer]], probe: Probe) -> None:
        """Make layers of another host some of these.

        Args:
            layers: those that others stand on first: a folder with all parts on the same file
                system, named by its id, written and not synced; and what it says of itself.
            probe: for crash points.

        Raises:
            NotFound: what they stand on is not here any more; nothing was made.

        Durability: the layers, when this returns. Atomicity: each one is there whole, or not at
            all, and never without what it stands on.
        """
        make_folder(self._folder)
        for folder, said in layers:
            own = {"format": FORMAT, "parts": self._parts, "base": self._base}
            usage = measure([folder / part_name(at) for at in self._parts])
            here = msgspec.structs.replace(
                said,
                **own,
                usage=usage,
                made=msgspec.structs.replace(said.made, driver=self._made.driver),
            )
            put_file(folder / "layer.json", encode(here), staging=folder.parent, fsync=True)
        sync_file_system(layers[0][0])
        # crash-point: sandbox.import.synced
        probe("sandbox.import.synced")
        below = layers[0][1].parent
        with self.kept():
            if below and not self.has(below):
                msg = f"snapshot {below!r} was collected while others were imported over it"
                raise NotFound(msg, snapshot=below)
            for folder, _ in layers:
                folder.rename(self._folder / folder.name)
                # crash-point: sandbox.import.named
                probe("sandbox.import.named")
        sync_names([self._folder], self._top)

    def home(self, name: str) -> Path:
        """Return the folder of a layer."""
        return self._folder / name

    def has(self, name: str) -> bool:
        """Return whether there is such a layer."""
        return is_id(name) and (
            (self._folder / name).is_dir() or give_second_name(name, self._folder)
        )

    def names(self) -> list[str]:
        """Return the ids of all layers, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if is_id(path.name))

    @property
    def parts(self) -> tuple[str, ...]:
        """Where the parts of the base are."""
        return self._parts

    @property
    def tenant(self) -> Path:
        """The folder of the tenant."""
        return self._top

    def _squash(self, snapshot: str, chain: list[str], staging: Path) -> bool:
        """Keep what a snapshot's layers come to beside it, as one layer; return whether it is.

        Where that can't be done the chain goes on as it is, as long as the kernel takes it.
        """
        fresh = staging / SQUASHED
        fresh.mkdir(mode=0o755)
        try:
            for at in self._parts:
                layers = [Path(self.folder(name, at)) for name in reversed(chain)]
                squash(layers, fresh / part_name(at))
            sync_file_system(fresh)
        except (OSError, UsageError):
            if len(chain) + SQUASH_AT > CHAIN_MAX:
                raise
            remove_folder(fresh, staging)
            return False
        try:
            fresh.rename(self._folder / snapshot / SQUASHED)
        except OSError:  # another thread that stands on it was quicker
            if not (self._folder / snapshot / SQUASHED).is_dir():
                raise
            remove_folder(fresh, staging)
        sync_names([self._folder / snapshot], self._top)
        return True

    # -- room --------------------------------------------------------------------------------------

    def usage(self, names: list[str]) -> Usage:
        """Return the room that layers of a chain take."""
        total = Usage()
        for name in names:
            if name not in self._usages:
                layer = self.read(name.partition("/")[0])
                known = None if name.endswith(SQUASHED) else layer.usage
                parts = [self._folder / name / part_name(at) for at in layer.parts]
                self._usages[name] = known or measure(parts)
            total += self._usages[name]
        return total

    def usage_of_top(self, thread: Path, stop: Usage | None = None) -> Usage:
        """Return the room that what changed takes; `stop`: no more is asked about."""
        tops = [thread / "top" / part_name(at) for at in self._parts]
        if stop is None:
            return measure(tops)
        return measure(tops, bytes_stop=stop.bytes, entries_stop=stop.entries)

    def left(self, thread: Path) -> Usage:
        """Return the room that is left for what changes; for a holder of the lock.

        Where little is left and layers replaced what others hold, they are kept as one first.
        """
        chain = self.chain(self.head(thread))
        left = self.room.left(self.usage(chain))
        above = self.usage(chain[:-1])
        is_crowded = any(
            room < most // CHANGES_SHARE <= replaced
            for room, most, replaced in (
                (left.bytes, self.room.bytes_max, above.bytes),
                (left.entries, self.room.files_max, above.entries),
            )
        )
        if is_crowded and self._squash(self.head(thread), chain, thread / "staging"):
            return self.room.left(self.usage(self.chain(self.head(thread))))
        return left

    def _measured(self, thread: Path, parent: str, chain: list[str]) -> Usage:
        """Return the room that what changed takes.

        Raises:
            SandboxFull: with what it stands on it is more than it may be.
        """
        changed = self.usage_of_top(thread)
        below = self.usage(chain)
        if self.room.holds(below + changed):
            return changed
        if len(chain) > 1 and self._squash(parent, chain, thread / "staging"):
            below = self.usage(self.chain(parent))
        if not self.room.holds(below + changed):
            raise full(thread, below, changed, self.room)
        return changed

    def check_far(self, thread: Path, left: Usage, changed: Usage) -> None:
        """Refuse a sandbox that is far over its room; `left`: for what changed.

        Raises:
            SandboxFull: it is over it by as much again.
        """
        if self.room.is_far_over(left, changed):
            below = self.usage(self.chain(self.head(thread)))
            raise full(thread, below, changed, self.room, is_far=True)

    # -- being used --------------------------------------------------------------------------------

    def begin_use(self, thread: Path) -> list[str]:
        """Return what a mount of a thread stands on, which nobody removes from now on.

        For a holder of the thread's lock. What was written down before is let go of.
        """
        with self.kept():
            chain = self.chain(self.head(thread))
            note_standing(thread, self._user, chain)
        return chain

    def end_use(self, thread: Path) -> None:
        """Let go of what was written down, and announced, once the thread went to a snapshot.

        Nothing of it may be mounted any more.
        """
        (thread / STANDING).unlink(missing_ok=True)
        (thread / TAKEN).unlink(missing_ok=True)
        for name in _taking(thread):
            (thread / TAKING / name).unlink(missing_ok=True)

    def kept(self) -> AbstractContextManager[None]:
        """Hold the gate: what a head names before it is let go of, nobody removes."""
        return gate(self._top, is_shared=True)

    def stand(self, thread: Path, snapshot: str) -> None:
        """Make a thread stand on a snapshot."""
        content = snapshot.encode("ascii")
        put_file(thread / "head", content, staging=thread / "staging", fsync=False)

    def drop_top(self, thread: Path) -> None:
        """Forget what changed since the head; the bytes go with the next use."""
        top = thread / "top"
        if top.is_dir():
            set_aside(top, thread / ASIDE)


def taken_by(thread: Path) -> list[str]:
    """Return the layers that a thread announced."""
    return [*_taking(thread), *_listed(thread)]


def _taking(thread: Path) -> list[str]:
    try:
        return os.listdir(f"{thread}/{TAKING}")  # noqa: PTH208  # for each use
    except FileNotFoundError:
        return []


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _listed(thread: Path) -> list[str]:
    try:
        return read_note(f"{thread}/{TAKEN}").split()
    except FileNotFoundError:
        return []


def is_layer(name: str) -> bool:
    """Return whether a name is one that a layer has, also before anybody was told of it."""
    return is_id(name.removeprefix(UNTOLD))


def is_id(name: str) -> bool:
    """Return whether a name is one of a layer."""
    return name.startswith("l_") and name[2:].isalnum() and name.isascii()
