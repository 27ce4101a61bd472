"""Remove the snapshots of plain directories that nothing needs, and the files that only they had.

Theory: as for layers (`_collecting`), but a snapshot is named by its content: the same tree that is
taken again is the same snapshot, and may be one that is just being removed. So while a collection
is under way (the folder `collecting` is there) whoever takes a snapshot marks it in that folder;
and looks behind the gate, last of all, whether every file of it is still kept. Names are removed
behind the gate, a few at a time, after a look at the marks.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from perdure.clock import Probe
from perdure.errors import NotFound
from perdure.sandbox._collecting import LayersCollected, folders_in
from perdure.sandbox._disk import BLOCK_BYTES, disk_errors, sync_names
from perdure.sandbox._snapshots import COLLECTING, TAKEN, Snapshots, is_snapshot
from perdure.sandbox._standing import gate
from perdure.sandbox._tree import Kind
from perdure.sandbox.limits import DELETED_AT_ONCE

Name = TypeVar("Name")


class BlobCollection:
    """A collection of a tenant's snapshots, under way; for the holder of `alone`."""

    def __init__(self, folder: Path, probe: Probe) -> None:
        """List what is there.

        Args:
            folder: the tenant's.
            probe: called at each crash point.
        """
        self._folder = folder
        self._probe = probe
        self._snapshots = Snapshots(folder)
        self._marks = folder / COLLECTING
        self._needed: set[str] = set()
        with gate(folder, is_shared=False):
            shutil.rmtree(self._marks, ignore_errors=True)
            self._marks.mkdir(mode=0o700)
            _own_like(self._marks, folder)
            self._listed = {path.name.removesuffix(".json") for path in self._files("manifests")}
            self._taken = self._taken_now()

    def _files(self, kind: str) -> Iterator[Path]:
        for folder in folders_in(self._folder / kind):
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield Path(entry.path)

    def _taken_now(self) -> set[str]:
        found = set()
        for thread in folders_in(self._folder / "threads"):
            with suppress(FileNotFoundError):
                found.add((thread / TAKEN).read_text(encoding="ascii"))
        return found

    def _marked(self) -> set[str]:
        return {path.name for path in self._marks.iterdir() if is_snapshot(path.name)}

    def finish(
        self,
        named: Iterable[str],
        threads: set[str],
        *,
        about: frozenset[str] = frozenset(),
        is_dry: bool = False,
    ) -> LayersCollected:
        """Remove what is not needed; see `LayerCollection.finish`.

        As nothing says who took a snapshot, all threads here must be known; else nothing goes.
        """
        del about
        with disk_errors("collect the snapshots of", self._folder):
            try:
                strangers = {path.name for path in folders_in(self._folder / "threads")} - threads
                self._needed = {*named, *self._taken, *self._taken_now(), *self._marked()}
                garbage = sorted(self._listed - self._needed)
                kept = len(self._listed) - len(garbage)
                done = LayersCollected(kept=kept, is_dry=is_dry)
                if strangers:
                    done.unknown = len(garbage)
                    return done
                if is_dry:
                    done.layers = len(garbage)
                    done.bytes = self._bytes_without({*garbage})
                    return done
                self._remove(garbage, done)
                return done
            finally:
                shutil.rmtree(self._marks, ignore_errors=True)

    def _bytes_without(self, garbage: set[str]) -> int:
        live = self._digests(self._present() - garbage)
        return sum(
            path.lstat().st_blocks * BLOCK_BYTES
            for path in self._files("blobs")
            if _raw(path.name) not in live
        )

    def _present(self) -> set[str]:
        return {path.name.removesuffix(".json") for path in self._files("manifests")}

    def _digests(self, snapshots: Iterable[str]) -> set[bytes]:
        """Return the files of snapshots.

        Raises:
            StoreCorrupt: one can't be read, so that nobody knows which files it has.
        """
        found: set[bytes] = set()
        for snapshot in snapshots:
            if not is_snapshot(snapshot):
                continue
            with suppress(NotFound):
                tree = self._snapshots.tree(snapshot).values()
                found |= {_raw(each.digest) for each in tree if each.kind is Kind.FILE}
        return found

    def _remove(self, garbage: list[str], done: LayersCollected) -> None:
        folders = set()
        for part in _parts(garbage):
            with gate(self._folder, is_shared=False):
                marked = self._marked()
                for name in part:
                    path = self._snapshots.manifest(name)
                    if name not in marked:
                        done.bytes += path.lstat().st_blocks * BLOCK_BYTES
                        path.unlink()
                        done.layers += 1
                        folders.add(path.parent)
            # crash-point: sandbox.collect.manifests
            self._probe("sandbox.collect.manifests")
        if folders:
            sync_names(folders, self._folder)
        self._remove_blobs(done)

    def _remove_blobs(self, done: LayersCollected) -> None:
        known = self._present()
        live = self._digests(known)
        dead = [path for path in self._files("blobs") if _raw(path.name) not in live]
        for part in _parts(dead):
            with gate(self._folder, is_shared=False):
                new = self._marked() - known
                live |= self._digests(new)
                known |= new
                for path in part:
                    if _raw(path.name) not in live:
                        with suppress(FileNotFoundError):
                            done.bytes += path.lstat().st_blocks * BLOCK_BYTES
                            path.unlink()
            # crash-point: sandbox.collect.blobs
            self._probe("sandbox.collect.blobs")


def _raw(digest: str) -> bytes:
    """Return a digest in half the memory; of what is none: its name."""
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return digest.encode("utf-8", "surrogateescape")


def _parts(names: list[Name]) -> Iterator[list[Name]]:
    for at in range(0, len(names), DELETED_AT_ONCE):
        yield names[at : at + DELETED_AT_ONCE]


def _own_like(path: Path, folder: Path) -> None:
    """Let a folder belong to whom another one belongs to."""
    owner = folder.lstat()
    if os.geteuid() == 0 and owner.st_uid:
        os.chown(path, owner.st_uid, owner.st_gid)
