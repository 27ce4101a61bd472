"""Remove the layers that nothing needs any more, while others work.

Theory: mark and sweep, as for pages. What is there is listed first (`begin`), then whoever knows
the journals reads which snapshots they name, then everything of the list goes that no root stands
on. Roots are

- what journals name;
- the head of each thread, as it was at the beginning and as it is at the end, and what it announced
  (`taken`): a snapshot that was taken and whose record is still on its way is one that its thread
  stands on, or is about to, or was copied to;
- what mounts stand on (`standing`), also where a snapshot would be read without it by now;
- every layer that is not in the list: it was taken since.

A layer that is kept as one needs none of those below it. The choice and the renaming out of the way
are done behind the gate, in milliseconds; the bytes go afterwards.

Why that is enough: a snapshot that is in the list and gets a name in a journal later was one that
somebody stood on at the beginning, or that another record named then; forks and rollbacks pin the
checkpoint that they read first. Snapshots that somebody keeps in a variable only are not protected,
unless their thread is none of the store's.

Crashes: a layer is renamed out of `layers` before anything in it is touched, those that stand on
others first. So whatever has a name is whole, at any instant; what is in `going` is removed by the
next collection.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from perdure.clock import Probe
from perdure.errors import StoreCorrupt
from perdure.sandbox._disk import acquire, clear_staging, disk_errors, read_note, sync_names
from perdure.sandbox._forgetting import collect_cut_off
from perdure.sandbox._layers import SQUASHED, is_id, is_layer, taken_by
from perdure.sandbox._made import Layer, read
from perdure.sandbox._measure import measure
from perdure.sandbox._standing import gate, standing_of
from perdure.sandbox._untold import UNTOLD, give_second_name, untold
from perdure.sandbox.export._collecting import ExportsCollected

GOING = "going"
"""Folder of what is being removed."""


class LayersCollected(Struct, kw_only=True):
    """What a collection of snapshots did, or would do (`is_dry`).

    Attributes:
        layers: removed layers (of `DirectorySandboxes`: snapshots).
        bytes: that this made free.
        kept: layers that are needed.
        remaining: layers that threads which are erased took, and that others need.
        unknown: layers that nothing known needs, and that stay, as a thread took them (or may have)
            that is none of the store's: it was used by hand, or by another store.
        is_dry: whether they were counted only.
        exports: what became of what is exported; None: nothing is.
    """

    layers: int = 0
    bytes: int = 0
    kept: int = 0
    remaining: list[str] = []
    unknown: int = 0
    is_dry: bool = False
    exports: ExportsCollected | None = None

    def add(self, other: "LayersCollected") -> None:
        """Add what was done for another tenant."""
        self.layers += other.layers
        self.bytes += other.bytes
        self.kept += other.kept
        self.unknown += other.unknown
        self.remaining = self.remaining + other.remaining
        self.add_exported(other.exports)

    def add_exported(self, other: ExportsCollected | None) -> None:
        """Add what became of what another tenant exported."""
        if other is not None:
            self.exports = self.exports or ExportsCollected(is_dry=self.is_dry)
            self.exports.add(other)


def folders_in(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, without those that are links; none if it is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one who collects of a tenant.

    Raises:
        StoreLocked: somebody else does.
    """
    with disk_errors("collect the snapshots of", folder):
        descriptor = acquire(folder / "collecting.lock")
    try:
        yield
    finally:
        os.close(descriptor)


class LayerCollection:
    """A collection of a tenant's layers, under way; for the holder of `alone`."""

    def __init__(self, root: Path, folder: Path, probe: Probe) -> None:
        """List what is there.

        Args:
            root: of the backend.
            folder: the tenant's.
            probe: called at each crash point.
        """
        self._root = root
        self._folder = folder
        self._probe = probe
        self._cut_short = clear_staging(folder / GOING)
        with gate(folder, is_shared=True):
            self._listed = self._present()
            self._heads = self._heads_now()  # after the list: see `freeze`

    def _present(self) -> set[str]:
        names = (path.name for path in folders_in(self._folder / "layers"))
        return {name for name in names if is_layer(name)}

    def _name_told(self, named: set[str]) -> None:
        """Give layers that somebody was told of the name that they lost with the power."""
        for name in named & {each.removeprefix(UNTOLD) for each in self._present()}:
            give_second_name(name, self._folder / "layers")

    def _threads(self) -> list[Path]:
        return [*folders_in(self._folder / "threads")]

    def _heads_now(self) -> list[tuple[str, str]]:
        """Return (thread, layer) of what threads stand on, or are about to."""
        found = []
        for thread in self._threads():
            # In this order: what is not announced any more is the head, or below it.
            found += [(thread.name, name) for name in taken_by(thread)]
            with suppress(FileNotFoundError):
                found.append((thread.name, read_note(f"{thread}/head")))
        return found

    def finish(
        self,
        named: Iterable[str],
        threads: set[str],
        *,
        about: frozenset[str] = frozenset(),
        is_dry: bool = False,
    ) -> LayersCollected:
        """Remove what is not needed.

        Args:
            named: snapshots that journals name, read after this was begun.
            threads: folders of the threads whose journals were read.
            about: of them, those that are erased: what of theirs stays is listed.
            is_dry: count only, as if nothing of `about` were there any more.

        Raises:
            StoreCorrupt: a layer that is needed can't be read, so that nobody knows what it stands
                on; nothing was removed.
            StoreError: the disk cannot serve.

        Durability: what is removed is gone when this returns; killed before, the next collection
            goes on.
        """
        with disk_errors("collect the layers of", self._folder):
            with gate(self._folder, is_shared=is_dry):
                roots = {*named}
                if not is_dry:
                    self._name_told(roots)
                present = self._present()
                needed = self._needed(present, roots, about if is_dry else frozenset())
                garbage = (present & self._listed) - needed
                mine = self._taken_by(garbage, threads)
                done = LayersCollected(
                    layers=len(mine),
                    kept=len(present & needed),
                    unknown=len(garbage) - len(mine),
                    remaining=self._of(about, present - {*mine}),
                    is_dry=is_dry,
                )
                if is_dry:
                    tops = [self._folder / "layers" / name for name in mine]
                    done.bytes = measure(tops, is_alone=True).bytes
                    return done
                self._hide(mine)
            # crash-point: sandbox.collect.hidden
            self._probe("sandbox.collect.hidden")
            done.bytes = self._cut_short + clear_staging(self._folder / GOING)
            done.bytes += collect_cut_off(self._folder)
            (self._folder / GOING).rmdir()
            return done

    # -- what is needed ----------------------------------------------------------------------------

    def _needed(self, present: set[str], named: set[str], left_out: frozenset[str]) -> set[str]:
        """Return the layers that roots stand on; threads that are left out need nothing."""
        heads = [*self._heads, *self._heads_now()]
        roots = named | {head for thread, head in heads if thread not in left_out}
        # What is being taken is not looked into, as it may get its second name meanwhile: what it
        # stands on is what its thread stands on.
        needed = {name for name in present - self._listed if not is_id(name)}
        needed |= {untold(root) for root in roots} & present
        for root in roots | (present - self._listed - needed):
            current = root
            while current in present and current not in needed:
                needed.add(current)
                if (self._folder / "layers" / current / SQUASHED).is_dir():
                    break
                current = self._read(current).parent
        for thread in self._threads():
            if thread.name not in left_out:
                needed |= standing_of(self._root, thread)
        return needed

    def _read(self, name: str) -> Layer:
        path = self._folder / "layers" / name
        try:
            return read(path / "layer.json")
        except (OSError, ValueError) as error:
            msg = (
                f"layer {path}, which is needed, can't be read: {error}; nothing was removed. "
                "Bring it back from a backup."
            )
            raise StoreCorrupt(msg, path=str(path)) from error

    def _taken_by(self, garbage: set[str], threads: set[str]) -> list[str]:
        """Return those that some threads took, those that stand on others first."""
        strangers = {path.name for path in self._threads()} - threads
        parents: dict[str, str] = {}
        for name in garbage:
            taker = ""
            parents[name] = ""
            with suppress(StoreCorrupt):
                layer = self._read(name)
                taker, parents[name] = layer.thread, layer.parent
            # Of a format that doesn't say who took it: only if all threads here are known.
            if taker not in threads and (taker or strangers):
                del parents[name]
        return _topmost_first(parents)

    def _of(self, threads: frozenset[str], present: set[str]) -> list[str]:
        """Return the layers that some threads took, of those that stay."""
        found = []
        for name in sorted(present) if threads else ():
            with suppress(StoreCorrupt):
                if self._read(name).thread in threads:
                    found.append(name)
        return found

    # -- removing ----------------------------------------------------------------------------------

    def _hide(self, names: list[str]) -> None:
        layers, going = self._folder / "layers", self._folder / GOING
        going.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            (layers / name).rename(going / name)
            # crash-point: sandbox.collect.renamed
            self._probe("sandbox.collect.renamed")
        if names:
            sync_names([layers, going], self._folder)


def _topmost_first(parents: dict[str, str]) -> list[str]:
    """Return layers by how many of them they stand on, most first."""
    depths: dict[str, int] = {}
    for name in parents:
        path = []
        current = name
        while current in parents and current not in depths:
            path.append(current)
            if len(path) > len(parents):
                break  # they stand on each other: damage
            current = parents[current]
        depth = depths.get(current, 0)
        for each in reversed(path):
            depth += 1
            depths[each] = depth
    return sorted(parents, key=lambda name: -depths[name])
