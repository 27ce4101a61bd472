"""What of sandboxes is kept: the part of a backend that retention and erasure use.

Nothing here executes anything, or needs the host to be able to: who prunes may have fewer rights
than who works, as long as the files are within reach.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import structs

from perdure.clock import Probe
from perdure.sandbox._blob_collecting import BlobCollection
from perdure.sandbox._collecting import LayerCollection, LayersCollected, alone, folders_in
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._forgetting import (
    IMPORTING,
    KEPT,
    Forgotten,
    forget,
    forget_cut_off,
)
from perdure.sandbox._layers import is_layer
from perdure.sandbox._made import read
from perdure.sandbox._measure import Usage, measure
from perdure.sandbox._names import folder_name
from perdure.sandbox._search import sample, search
from perdure.sandbox.export import ExportCollection
from perdure.sandbox.limits import SEARCH_BYTES_MAX

SHARED = ("layers", "blobs", "manifests")
"""Folders of a tenant with snapshots, which several threads may stand on."""


class Collection(Protocol):
    """A collection under way: what is there was listed; journals are read, then it is finished."""

    def finish(
        self,
        named: Iterable[str],
        threads: set[str],
        *,
        about: frozenset[str] = frozenset(),
        is_dry: bool = False,
    ) -> LayersCollected:
        """Remove what is not needed; see `LayerCollection.finish`."""
        ...


class Kept(Protocol):
    """A backend whose snapshots can be collected, and whose threads can be erased."""

    @property
    def root(self) -> Path:
        """The folder of the backend."""
        ...

    def has_tenant(self, tenant: str) -> bool:
        """Return whether a tenant has sandboxes here."""
        ...

    def collection(self, tenant: str) -> AbstractContextManager[Collection]:
        """Begin a collection of a tenant that has sandboxes."""
        ...

    async def export_collection(self, tenant: str) -> ExportCollection | None:
        """Begin a collection of what a tenant exported; None: it exported nothing."""
        ...

    def threads(self, tenant: str) -> set[str]:
        """Return the folders of threads that have something here."""
        ...

    def live(self, tenant: str, threads: Iterable[str]) -> Usage:
        """Return the room that the live files of threads take."""
        ...

    def forget(self, tenant: str, thread: str, through: int) -> Forgotten:
        """Remove the live files of a thread for good."""
        ...

    def sampled(self, tenant: str, threads: Iterable[str]) -> list[bytes]:
        """Return the beginnings of some files of threads."""
        ...

    def searched(
        self, tenant: str, threads: Iterable[str], pieces: Sequence[bytes]
    ) -> tuple[set[bytes], set[bytes], int]:
        """Return which pieces are where they must not be, which in others' files; bytes read."""
        ...


class _Keeping(ABC):
    """What both backends have in common."""

    def __init__(self, root: Path, probe: Probe) -> None:
        self.root = root
        self.probe = probe

    @abstractmethod
    def folder(self, tenant: str) -> Path:
        """Return a tenant's folder."""

    def has_tenant(self, tenant: str) -> bool:
        """Return whether a tenant has sandboxes here."""
        return (self.folder(tenant) / "threads").is_dir()

    async def export_collection(self, tenant: str) -> ExportCollection | None:
        """Begin a collection of what a tenant exported; None: it exported nothing.

        Raises:
            KeyMissing, SealBroken: the keys are not those of the exports that are there.
            SnapshotNotDurable: the place can't serve, or is not the one that was exported to.
        """
        del tenant
        return None

    def threads(self, tenant: str) -> set[str]:
        """Return the folders of threads that have something here, not only a lock and a fence."""
        found = set()
        for folder in folders_in(self.folder(tenant) / "threads"):
            if any(path.name not in KEPT for path in folder.iterdir()):
                found.add(folder.name)
        return found

    def live(self, tenant: str, threads: Iterable[str]) -> Usage:
        """Return the room that the live files of threads take."""
        folder = self.folder(tenant) / "threads"
        return measure([folder / folder_name(thread) for thread in threads])

    def forget(self, tenant: str, thread: str, through: int) -> Forgotten:
        """Remove the live files of a thread for good; see `forget`."""
        return forget(self.folder(tenant) / "threads" / folder_name(thread), through)

    @abstractmethod
    def taken_by(self, tenant: str, threads: Iterable[str]) -> list[Path]:
        """Return the folders of what threads took, as far as that is written down."""

    def sampled(self, tenant: str, threads: Iterable[str]) -> list[bytes]:
        """Return the beginnings of some files of threads."""
        names = [folder_name(thread) for thread in threads]
        live = [self.folder(tenant) / "threads" / name for name in names]
        return sample([*live, *self.taken_by(tenant, names)])

    def searched(
        self, tenant: str, threads: Iterable[str], pieces: Sequence[bytes]
    ) -> tuple[set[bytes], set[bytes], int]:
        """Return which pieces are where they must not be, which in others' files; bytes read.

        All of the tenant's folder is looked at. Where they must not be: in folders of the threads,
        in what is being removed, imported or exported. What is in snapshots, or in folders of other
        threads, somebody needs: it counts as another's.
        """
        folder = self.folder(tenant)
        mine = [folder / "threads" / folder_name(thread) for thread in threads]
        # Whatever else is in the tenant's folder is on its way, in or out: nothing stays there.
        mine += [path for path in folders_in(folder) if path.name not in {"threads", *SHARED}]
        found, count = search(mine, pieces, bytes_max=SEARCH_BYTES_MAX)
        taken = {*mine}
        others = [path for path in folders_in(folder / "threads") if path not in taken]
        others += [folder / name for name in SHARED]
        left = [piece for piece in pieces if piece not in found]
        elsewhere, more = search(others, left, bytes_max=max(1, SEARCH_BYTES_MAX - count))
        return found, elsewhere, count + more


class LayersKept(_Keeping):
    """Those of `IsolatedSandboxes`."""

    def folder(self, tenant: str) -> Path:
        """Return a tenant's folder."""
        return self.root / "tenants" / folder_name(tenant)

    def has_tenant(self, tenant: str) -> bool:
        """Return whether a tenant has sandboxes here, or an import of one was begun."""
        return super().has_tenant(tenant) or (self.folder(tenant) / IMPORTING).is_dir()

    def forget(self, tenant: str, thread: str, through: int) -> Forgotten:
        """Remove the live files of a thread for good, and what imports left that were cut off."""
        freed = forget_cut_off(self.folder(tenant))
        done = super().forget(tenant, thread, through)
        return structs.replace(done, bytes=done.bytes + freed)

    @contextmanager
    def collection(self, tenant: str) -> Iterator[Collection]:
        """Begin a collection of a tenant that has sandboxes."""
        folder = self.folder(tenant)
        with alone(folder):
            with disk_errors("collect the layers of", folder):
                begun = LayerCollection(self.root, folder, self.probe)
            yield begun

    def taken_by(self, tenant: str, threads: Iterable[str]) -> list[Path]:
        """Return the folders of what threads took, as far as that is written down."""
        names = {*threads}
        found = []
        for path in folders_in(self.folder(tenant) / "layers"):
            try:
                if is_layer(path.name) and read(path / "layer.json").thread in names:
                    found.append(path)
            except (OSError, ValueError):
                continue
        return found


class DirectoriesKept(_Keeping):
    """Those of `DirectorySandboxes`."""

    def folder(self, tenant: str) -> Path:
        """Return a tenant's folder."""
        return self.root / folder_name(tenant)

    @contextmanager
    def collection(self, tenant: str) -> Iterator[Collection]:
        """Begin a collection of a tenant that has sandboxes."""
        folder = self.folder(tenant)
        with alone(folder):
            with disk_errors("collect the snapshots of", folder):
                begun = BlobCollection(folder, self.probe)
            yield begun

    def taken_by(self, tenant: str, threads: Iterable[str]) -> list[Path]:
        """Return nothing: a snapshot does not say who took it."""
        del tenant, threads
        return []
