"""Export of a snapshot: its layers, each as a manifest and the pieces that it names.

Theory: what is below is put there first, and the manifest last; so whoever finds a manifest has the
snapshot. A note beside the layer says that its manifest is there; it is written after it. A kill
anywhere leaves pieces that nobody names yet, which the next export finds by their names, or a
manifest without a note, which it finds too.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotNotDurable, StoreCorrupt
from perdure.sandbox._disk import make_folder
from perdure.sandbox._layers import BASE, Layers, part_name
from perdure.sandbox._made import Layer
from perdure.sandbox.export._base import Base
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._manifest import (
    FORMAT,
    Manifest,
    digest_of,
    encode_manifest,
)
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._pieces import Pieces, Tally
from perdure.sandbox.export._reading import Driver, Reading, refused
from perdure.sandbox.export._sealer import Sealer
from perdure.sandbox.limits import EXPORT_TRIES, MANIFEST_BYTES_MAX, PIECE_BYTES

WHOLE, DELTA = "whole", "delta"


class Note(Struct, frozen=True):
    """That a layer is exported: the object of its manifest, and the digest of that."""

    object: str
    digest: bytes


class Notes:
    """Which layers of a tenant are at a place of objects, as far as this host knows."""

    def __init__(self, layers: Layers, place: str) -> None:
        """Belong to a tenant's layers and a place."""
        self._layers = layers
        self._name = f"exported-{sha256(place.encode()).hexdigest()[:16]}"
        self.identity_path = layers.tenant / f"{self._name}.place"
        try:
            self.identity = self.identity_path.read_text("ascii")
        except FileNotFoundError:
            self.identity = ""

    def are_any(self) -> bool:
        """Return whether a layer was ever noted, at whatever place was found under this name."""
        return any(
            (self._layers.home(layer) / self._file(is_whole)).exists()
            for layer in self._layers.names()
            for is_whole in (True, False)
        )

    def find(self, element: str) -> Note | None:
        """Return the note of an element of a chain: a layer, or what one and all below come to."""
        layer, is_whole = split(element)
        found = self._read(layer, is_whole=True)
        return found if is_whole or found is not None else self._read(layer, is_whole=False)

    def _read(self, layer: str, *, is_whole: bool) -> Note | None:
        try:
            said = json.loads((self._layers.home(layer) / self._file(is_whole)).read_bytes())
            if said.get("place", "") != self.identity:
                return None
            return Note(said["object"], bytes.fromhex(said["digest"]))
        except FileNotFoundError:
            return None
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # torn by a power failure: exported once more
            return None

    def write(self, element: str, note: Note) -> None:
        """Note that an element is there. Durability: none; without it, it is looked for again."""
        layer, is_whole = split(element)
        said = {"object": note.object, "digest": note.digest.hex(), "place": self.identity}
        staging = self._layers.tenant / "exporting"
        make_folder(staging)
        path = self._layers.home(layer) / self._file(is_whole)
        # Imports and exports of a tenant may be under way at once, never of the same layer.
        temporary = staging / f"{layer}-{path.name}"
        temporary.write_bytes(json.dumps(said).encode("ascii"))
        with suppress(FileNotFoundError):  # an erasure took it: it is looked for again
            temporary.replace(path)

    def is_durable(self, snapshot: str) -> bool:
        """Return whether a snapshot is exported, with all that it stands on."""
        return snapshot == BASE or self.of(snapshot) is not None

    def of(self, snapshot: str) -> Note | None:
        """Return the note of a snapshot that is here and exported."""
        return self.find(snapshot) if self._layers.has(snapshot) else None

    def _file(self, is_whole: bool) -> str:  # noqa: FBT001  # two callers
        return f"{self._name}.{WHOLE if is_whole else DELTA}.json"


def split(element: str) -> tuple[str, bool]:
    """Return (layer, whether all below it is in it) of an element of a chain."""
    layer, _, rest = element.partition("/")
    return layer, bool(rest)


def object_name(sealer: Sealer, layer: str, form: str, taken: Layer) -> str:
    """Return the name of a manifest's object, which its seal is bound to."""
    thread = thread_name(sealer, taken.thread)
    number = "-".join(f"{each:x}" for each in taken.generation)
    return f"{sealer.folder}/snapshots/{layer}/{form}.{thread}.{number}"


def thread_name(sealer: Sealer, thread: str) -> str:
    """Return what stands for a thread in names."""
    return sealer.name_of(b"thread" + thread.encode("ascii"))[:32]


class Exporting:
    """Exports layers of a tenant to a place."""

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
        is_whole: Callable[[Note], bool],
        confirm: Callable[[], None],
    ) -> None:
        """Belong to a tenant.

        Args:
            objects: the place.
            sealer: of the tenant.
            layers: of the tenant.
            base: that they stand on.
            driver: of the sandboxes here.
            services: clock and crash points.
            go_on: called again and again; raises where work is to stop.
            condemned: what is given up at the place.
            is_whole: returns whether a manifest is there, with all that it stands on.
            confirm: called before something is noted; raises where the place is another one.
        """
        self._objects = objects
        self._sealer = sealer
        self._layers = layers
        self._base = base
        self._driver = driver
        self._services = services
        self._go_on = go_on
        self._condemned = condemned
        self._is_whole = is_whole
        self._confirm = confirm
        self._notes = Notes(layers, objects.place)
        self.tally = Tally()

    def export(self, snapshot: str, *, is_checked: bool = False) -> None:
        """Export a snapshot, with all that it stands on and that is not there yet.

        Args:
            snapshot: its id.
            is_checked: look whether what was noted is there, and export again what is not.

        Raises:
            NotFound, StoreCorrupt: there is no such snapshot, or a layer below it is missing.
            UsageError: it can't be exported; says which file, and why.
            SnapshotNotDurable: the place can't serve.

        Durability: the snapshot, at that place, when this returns. Idempotent: yes.
        """
        for _try in range(EXPORT_TRIES):
            self._condemned.refresh()
            exported, counted_on = self._export_chain(snapshot, is_checked=is_checked)
            self._condemned.refresh()
            if any(name in self._condemned for name in counted_on):
                continue  # a collection has given up some of it since: that is put once more
            for element, note in exported:
                self._confirm()
                self._notes.write(element, note)
                # crash-point: sandbox.export.noted
                self._services.probe("sandbox.export.noted")
            return
        msg = (
            f"snapshot {snapshot!r} is not exported: {EXPORT_TRIES} collections of "
            f"{self._objects.place} came in between; it stays on this host. Try again later"
        )
        raise SnapshotNotDurable(msg, snapshot=snapshot)

    def _export_chain(
        self, snapshot: str, *, is_checked: bool
    ) -> tuple[list[tuple[str, Note]], set[str]]:
        """Return what was exported, those below first, and the objects that this counts on."""
        pending: list[str] = []
        below: Note | None = None
        for element in self._layers.chain(snapshot):
            below = self._notes.find(element)
            if below is not None and self._is_there(below, is_checked=is_checked):
                break
            below = None
            pending.append(element)
        exported: list[tuple[str, Note]] = []
        counted_on: set[str] = {below.object} if below is not None else set()
        for element in reversed(pending):
            below, used = self._export(element, below)
            counted_on |= {below.object, *used}
            exported.append((element, below))
        return exported, counted_on

    def _is_there(self, note: Note, *, is_checked: bool) -> bool:
        """Return whether a manifest that was noted can be stood on."""
        if is_checked:
            return self._is_whole(note)
        # What it stands on is there as long as it is: a collection removes it first.
        return note.object not in self._condemned and self._objects.has(note.object)

    def _export(self, element: str, below: Note | None) -> tuple[Note, set[str]]:
        layer, is_whole = split(element)
        taken = self._layers.read(layer)
        pieces = Pieces(self._objects, self._sealer, go_on=self._go_on, condemned=self._condemned)
        pieces.tally = self.tally
        reading = Reading(self._driver, pieces, self._go_on)
        try:
            parts = tuple(
                reading.part(at, self._layers.folder(element, at))
                for at in self._layers.parts
                if (self._layers.home(element) / part_name(at)).is_dir()
            )
        except FileNotFoundError as error:
            if self._layers.has(layer):
                raise
            msg = f"snapshot {layer!r} was collected while it was exported"
            raise NotFound(msg, snapshot=layer) from error
        inline = reading.packer.end()
        parent = "" if is_whole else taken.parent
        if bool(parent) != (below is not None):
            msg = f"snapshot {layer!r}: what it stands on is not exported; it was left out, too"
            raise StoreCorrupt(msg, snapshot=layer)
        encoded = encode_manifest(
            Manifest(
                format=FORMAT,
                tenant=self._sealer.folder,
                thread=taken.thread,
                layer=layer,
                is_whole=is_whole,
                generation=taken.generation,
                parent=parent,
                parent_object=below.object if below else "",
                parent_digest=below.digest if below else b"",
                base=self._base.digest(),
                made=taken.made,
                at_us=taken.at_us,
                changes=taken.changes,
                exported_us=self._services.clock.now_us(),
                parts=parts,
                packs=tuple(reading.packer.packs),
                inline=inline,
                processes=taken.processes,
            )
        )
        if len(encoded) > MANIFEST_BYTES_MAX - PIECE_BYTES:
            what = f"has a manifest of {len(encoded)} bytes, which is too long"
            raise refused(layer, what)
        # crash-point: sandbox.export.pieces
        self._services.probe("sandbox.export.pieces")
        note = self._put(layer, is_whole, taken, encoded)
        # crash-point: sandbox.export.manifest
        self._services.probe("sandbox.export.manifest")
        return note, pieces.used

    def _put(self, layer: str, is_whole: bool, taken: Layer, encoded: bytes) -> Note:  # noqa: FBT001  # one caller
        """Put a manifest there; where there is one already, it is that one that counts."""
        name = object_name(self._sealer, layer, WHOLE if is_whole else DELTA, taken)
        if name in self._condemned:
            name, _is_there = self._condemned.free(name)
        stored = self._sealer.seal(encoded, ("snapshot", name), free=MANIFEST_BYTES_MAX)
        if not self._objects.put(name, stored):
            there = self._objects.get(name, bytes_max=MANIFEST_BYTES_MAX)
            plain = self._sealer.unseal(there, ("snapshot", name), bytes_max=MANIFEST_BYTES_MAX)
            note = Note(name, digest_of(plain))
            if self._is_whole(note):
                return note
            # Nobody can restore it: what it stands on is gone, and can't be made again as it was.
            self._objects.delete(name)
            if not self._objects.put(name, stored):
                msg = f"another host exports snapshot {layer!r} to {self._objects.place}, too"
                raise SnapshotNotDurable(msg, snapshot=layer)
        self.tally.snapshots += 1
        self.tally.stored_bytes += len(stored)
        return Note(name, digest_of(encoded))
