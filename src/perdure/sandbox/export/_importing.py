"""Import of a snapshot: what another host exported becomes layers of this one.

Theory: the manifests are read from the newest down to a layer that is here, or the base; each is
named with its digest by the one above. All of them are checked before anything is written. Then
they are written from below, each into a folder of its own. When all are whole and synced they get
their names, at once, those below first: a kill anywhere leaves some layers more, each of which is a
snapshot, or folders that the next import throws away.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotBroken, UsageError
from perdure.sandbox._disk import clear_staging, locked, make_folder
from perdure.sandbox._layers import SQUASHED, Layers, part_name
from perdure.sandbox._made import FORMAT, Generation, Layer
from perdure.sandbox.export._base import Base
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._exporting import (
    WHOLE,
    Note,
    Notes,
    thread_name,
)
from perdure.sandbox.export._manifest import (
    Manifest,
    decode_manifest,
    digest_of,
)
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._pieces import Pieces, Tally
from perdure.sandbox.export._reading import Driver
from perdure.sandbox.export._sealer import Sealer
from perdure.sandbox.export._writing import Writing
from perdure.sandbox.limits import HISTORY_MAX, MANIFEST_BYTES_MAX, OBJECTS_LISTED_MAX

_NAME = re.compile(
    r"[^/]+/snapshots/(?P<layer>l_[0-9a-z]+)/(?P<form>whole|delta)\."
    r"(?P<thread>[0-9a-f]{32})\.(?P<generation>[0-9a-f]{1,16}-[0-9a-f]{1,16}-[0-9a-f]{1,16})"
    r"(?:\.[0-9a-f]{16})?"
)
"""The ending: of one that was put again, as the first was given up, see `_condemned`."""


class Found(Struct, frozen=True, kw_only=True):
    """A manifest's object, by its name alone: not proved yet.

    Attributes:
        object: its name.
        layer: the snapshot.
        is_whole: it stands on nothing.
        thread: what stands for the thread.
        generation: of the thread.
    """

    object: str
    layer: str
    is_whole: bool
    thread: str
    generation: Generation


def parse_name(name: str) -> Found | None:
    """Return what the name of a manifest's object says; None: it is no such name."""
    said = _NAME.fullmatch(name)
    if said is None:
        return None
    ordinal, token, number = (int(each, 16) for each in said["generation"].split("-"))
    return Found(
        object=name,
        layer=said["layer"],
        is_whole=said["form"] == WHOLE,
        thread=said["thread"],
        generation=(ordinal, token, number),
    )


class Catalogue:
    """The manifests of a tenant at a place."""

    def __init__(
        self, objects: ObjectStore, sealer: Sealer, condemned: Condemned | None = None
    ) -> None:
        """Belong to a tenant and a place; `condemned`: what is taken only if there is no other."""
        self._objects = objects
        self._sealer = sealer
        self._condemned = condemned

    def all(self, layer: str = "") -> list[Found]:
        """Return what is there, of a layer or of all."""
        prefix = f"{self._sealer.folder}/snapshots/{layer + '/' if layer else ''}"
        found: list[Found] = []
        after = ""
        while names := self._objects.list(prefix, after=after):
            found += [each for name in names if (each := parse_name(name)) is not None]
            after = names[-1]
            if len(names) < OBJECTS_LISTED_MAX:
                break
        return found

    def of(self, layer: str) -> Found:
        """Return the manifest of a layer: that which stands on nothing, if there is one.

        Raises:
            NotFound: it is not there.
        """
        found = self.all(layer)
        if not found:
            msg = f"snapshot {layer!r} is not in {self._objects.place}, for this tenant"
            raise NotFound(msg, snapshot=layer, place=self._objects.place)
        given_up = self._condemned or ()
        return min(found, key=lambda each: (each.object in given_up, not each.is_whole))

    def newest(self, thread: str) -> Found | None:
        """Return what claims to be a thread's newest; None: nothing of it is there."""
        name = thread_name(self._sealer, thread)
        found = [each for each in self.all() if each.thread == name]
        return max(found, key=lambda each: each.generation, default=None)

    def read(self, found: Found) -> tuple[Manifest, bytes]:
        """Return a manifest that was proved to be what was exported under its name; its digest.

        Raises:
            SnapshotBroken: it is not.
            NotFound: it is gone.
        """
        stored = self._objects.get(found.object, bytes_max=MANIFEST_BYTES_MAX)
        try:
            plain = self._sealer.unseal(
                stored, ("snapshot", found.object), bytes_max=MANIFEST_BYTES_MAX
            )
            manifest = decode_manifest(plain)
        except SnapshotBroken as error:
            place = f"{found.object} of {self._objects.place}"
            raise error.located(place) from error
        said = (manifest.tenant, manifest.layer, manifest.is_whole, manifest.generation)
        named = (self._sealer.folder, found.layer, found.is_whole, found.generation)
        if said != named:
            msg = f"{found.object} says of itself what its name does not; nothing was restored"
            raise SnapshotBroken(msg, object=found.object)
        return manifest, digest_of(plain)


class Importing:
    """Imports layers of a tenant from a place."""

    def __init__(
        self,
        objects: ObjectStore,
        sealer: Sealer,
        layers: Layers,
        *,
        base: Base,
        driver: Driver,
        services: Services,
        go_on: Callable[[], None],
        condemned: Condemned,
    ) -> None:
        """Belong to a tenant; see `Exporting`."""
        self._objects = objects
        self._condemned = condemned
        self._catalogue = Catalogue(objects, sealer, condemned)
        self._layers = layers
        self._base = base
        self._driver = driver
        self._services = services
        self._pieces = Pieces(objects, sealer, go_on=go_on)
        self._notes = Notes(layers, objects.place)

    @property
    def tally(self) -> Tally:
        """What was fetched."""
        return self._pieces.tally

    def fetch(self, snapshot: str, *, is_any_base: bool = False) -> Layer:
        """Make a snapshot be here, with all that it stands on; return what it says of itself.

        Args:
            snapshot: its id.
            is_any_base: take it though it was made over another base.

        Raises:
            NotFound: it is not at that place.
            SnapshotBroken: it, or what it stands on, is not what was exported.
            UsageError: it was made over another base, or has what can't be written here.
            SnapshotNotDurable: the place can't serve.

        Durability: the snapshot, on this host, when this returns. In each case of an error nothing
            of it has a name here.
        """
        make_folder(self._layers.tenant)
        with locked(self._layers.tenant / "importing.lock"):
            if self._layers.has(snapshot):
                return self._layers.read(snapshot)
            self._condemned.refresh()
            chain = self._chain(self._catalogue.of(snapshot), is_any_base=is_any_base)
            staging = self._layers.tenant / "importing"
            clear_staging(staging)
            staged = []
            try:
                for found, digest in reversed(chain):
                    manifest = self._again(found, digest)
                    staged.append((self._write(manifest), _said(manifest)))
                self._layers.adopt(staged, self._services.probe)
            except BaseException:
                with suppress(OSError):
                    clear_staging(staging)
                raise
            for found, digest in chain:
                element = f"{found.layer}/{SQUASHED}" if found.is_whole else found.layer
                self._notes.write(element, Note(found.object, digest))
        return self._layers.read(snapshot)

    def _again(self, found: Found, digest: bytes) -> Manifest:
        """Return a manifest that was read before: it is read twice, as all at once may be large."""
        manifest, now = self._catalogue.read(found)
        if now != digest:
            raise _changed(found)
        return manifest

    def _chain(self, found: Found, *, is_any_base: bool) -> list[tuple[Found, bytes]]:
        """Return the manifests that are to be written, topmost first, all of them checked."""
        chain: list[tuple[Found, bytes]] = []
        expected: bytes | None = None
        while True:
            manifest, digest = self._catalogue.read(found)
            if expected is None and not is_any_base:
                self._check_base(manifest)
            if expected is not None and digest != expected:
                raise _changed(found)
            self._check_parts(manifest)
            Writing(manifest, self._driver, self._pieces)  # refuses what can't be written here
            chain.append((found, digest))
            if not manifest.parent or self._layers.has(manifest.parent):
                return chain
            below = parse_name(manifest.parent_object)
            if below is None or below.layer != manifest.parent or len(chain) >= HISTORY_MAX:
                msg = f"{found.object} stands on what is no snapshot; nothing was restored"
                raise SnapshotBroken(msg, object=found.object)
            found, expected = below, manifest.parent_digest

    def _check_base(self, manifest: Manifest) -> None:
        here = self._base.digest()
        if manifest.base != here:
            msg = (
                f"snapshot {manifest.layer!r} was made over the base {manifest.base.hex()[:16]}, "
                f"the one of this host is {here.hex()[:16]}; nothing was restored. Use a host with "
                "the same /usr: docs/sandbox-export.md says what is compared"
            )
            raise UsageError(msg, snapshot=manifest.layer)

    def _check_parts(self, manifest: Manifest) -> None:
        known = set(self._layers.parts)
        for part in manifest.parts:
            if part.at not in known and len(part.entries) > 1:
                msg = (
                    f"snapshot {manifest.layer!r} has changes below /{part.at}, which is no part "
                    "of the base of this host; nothing was restored"
                )
                raise UsageError(msg, snapshot=manifest.layer)

    def _write(self, manifest: Manifest) -> Path:
        """Write a layer; return its folder, which has no name among the layers yet."""
        staged = self._layers.tenant / "importing" / manifest.layer
        staged.mkdir(mode=0o755)
        writing = Writing(manifest, self._driver, self._pieces)
        parts = {part.at: part for part in manifest.parts}
        for at in self._layers.parts:
            folder = staged / part_name(at)
            folder.mkdir(mode=0o755)
            os.chown(folder, *self._owner())
            if at in parts:
                writing.part(parts[at], str(folder))
        return staged

    def _owner(self) -> tuple[int, int]:
        if self._driver.name == "ns":
            return self._driver.first, self._driver.first
        return os.geteuid(), os.getegid()


def _said(manifest: Manifest) -> Layer:
    """Return what a layer said of itself on its host."""
    return Layer(
        format=FORMAT,
        parent=manifest.parent,
        parts=(),
        base="",
        thread=manifest.thread,
        at_us=manifest.at_us,
        changes=manifest.changes,
        made=manifest.made,
        generation=manifest.generation,
        processes=manifest.processes,
    )


def files_in(manifest: Manifest) -> int:
    """Return how many names a layer has, without the folders of its parts."""
    return sum(len(part.entries) - 1 for part in manifest.parts)


def _changed(found: Found) -> SnapshotBroken:
    msg = (
        f"{found.object} is not the manifest that the snapshot above it was exported with; nothing "
        "was restored"
    )
    return SnapshotBroken(msg, object=found.object)
