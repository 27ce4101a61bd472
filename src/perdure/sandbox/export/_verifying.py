"""Is what is exported whole? Everything is read, nothing is written, no sandbox is needed."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from perdure.clock import Services
from perdure.errors import KeyMissing, NotFound, SealBroken, SnapshotBroken
from perdure.sandbox.export._exporting import Note
from perdure.sandbox.export._importing import Catalogue, Found, files_in
from perdure.sandbox.export._manifest import Manifest
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._pieces import Pieces
from perdure.sandbox.export._sealer import KeyProvider, PlainSealer, Sealer, load_sealer


class Verified(Struct, frozen=True, kw_only=True):
    """What became of looking at one exported layer.

    Attributes:
        snapshot: its id; empty: a whole tenant could not be read.
        tenant: name of the tenant's folder.
        thread: name of the folder of that which took it; empty: not known.
        generation: of the thread.
        is_whole: it stands on no other.
        parent: what it stands on; empty: the base.
        files: names that it has.
        bytes: of its pieces.
        driver, kernel: what it was made with.
        problem: what is wrong; empty: nothing.
    """

    snapshot: str
    tenant: str
    thread: str = ""
    generation: tuple[int, int, int] = (0, 0, 0)
    is_whole: bool = False
    parent: str = ""
    files: int = 0
    bytes: int = 0
    driver: str = ""
    kernel: str = ""
    problem: str = ""


def tenants_of(objects: ObjectStore) -> Iterator[str]:
    """Yield the folders of the tenants that exported to a place."""
    after = ""
    while names := objects.list("", after=after, limit=1):
        folder = names[0].partition("/")[0]
        yield folder
        after = f"{folder}0"  # the character after `/`: above every name in it


async def verify(
    objects: ObjectStore, keys: KeyProvider | None, services: Services, *, folder: str
) -> list[Verified]:
    """Read every layer that a tenant exported, with all its pieces.

    Args:
        objects: the place.
        keys: that it is encrypted with; None: it is not.
        services: clock and chance.
        folder: of the tenant, there.

    Raises:
        SnapshotNotDurable: the place can't serve.
    """
    sealer: Sealer = PlainSealer(folder)
    if keys is not None:
        try:
            sealer = await load_sealer(objects, folder, keys, services, makes=False, adds=False)
        except (KeyMissing, NotFound, SealBroken, SnapshotBroken) as error:
            return [Verified(snapshot="", tenant=folder, problem=str(error))]
    catalogue = Catalogue(objects, sealer)
    pieces = Pieces(objects, sealer)
    known: dict[bytes, str] = {}
    there: dict[str, Note] = {}
    results = [_verified(catalogue, pieces, found, known, there) for found in catalogue.all()]
    return [_above(each, manifest, there) for each, manifest in results]


def _verified(
    catalogue: Catalogue,
    pieces: Pieces,
    found: Found,
    known: dict[bytes, str],
    there: dict[str, Note],
) -> tuple[Verified, Manifest | None]:
    try:
        manifest, digest = catalogue.read(found)
    except (SnapshotBroken, NotFound, KeyMissing) as error:
        return _of(found, None, str(error)), None
    there[found.object] = Note(found.object, digest)
    problem = ""
    for piece, length in dict(manifest.pieces).items():
        if piece not in known:
            try:
                pieces.get(piece, length)
                known[piece] = ""
            except SnapshotBroken as error:
                known[piece] = str(error)
        problem = problem or known[piece]
    return _of(found, manifest, problem), manifest


def _of(found: Found, manifest: Manifest | None, problem: str) -> Verified:
    tenant = found.object.partition("/")[0]
    if manifest is None:
        return Verified(snapshot=found.layer, tenant=tenant, problem=problem)
    return Verified(
        snapshot=found.layer,
        tenant=tenant,
        thread=manifest.thread,
        generation=manifest.generation,
        is_whole=manifest.is_whole,
        parent=manifest.parent,
        files=files_in(manifest),
        bytes=sum(length for _, length in manifest.pieces) + len(manifest.inline),
        driver=manifest.made.driver,
        kernel=manifest.made.kernel,
        problem=problem,
    )


def _above(each: Verified, manifest: Manifest | None, there: dict[str, Note]) -> Verified:
    """Return what is known of a layer, with what is wrong below it."""
    if manifest is None or each.problem or not manifest.parent:
        return each
    below = there.get(manifest.parent_object)
    if below is not None and below.digest == manifest.parent_digest:
        return each
    what = "is missing or broken" if below is None else "is another one than it was exported over"
    return msgspec.structs.replace(
        each, problem=f"the snapshot that it stands on, {each.parent}, {what}"
    )
