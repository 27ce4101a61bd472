"""Which place it is: an object with a random id, made at a tenant's first export.

Theory: a path or a URL does not tell whether what answers there is what was exported to: a disk may
not be mounted. So the id is remembered on the host with what was exported. Where it is missing,
nothing is written; where it is another one, nothing is known to be there.
"""

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotBroken, SnapshotNotDurable
from perdure.sandbox._disk import locked, make_folder, put_file
from perdure.sandbox.export._exporting import Notes
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.limits import IDENTITY_BYTES


def identity_of(objects: ObjectStore, folder: str) -> str:
    """Return the id of a place, as a tenant has it; empty: it has none.

    Raises:
        SnapshotBroken: it is damaged.
        SnapshotNotDurable: the place can't serve.
    """
    try:
        found = objects.get(f"{folder}/place", bytes_max=IDENTITY_BYTES)
    except NotFound:
        return ""
    if len(found) != IDENTITY_BYTES:
        msg = f"the object {folder}/place of {objects.place} is damaged; nothing was changed"
        raise SnapshotBroken(msg, place=objects.place)
    return found.hex()


def recognise(
    objects: ObjectStore, folder: str, notes: Notes, services: Services, *, makes: bool
) -> str:
    """Return the id of a place, and remember it; empty: it has none, and none is to be made.

    Args:
        objects: the place.
        folder: of the tenant, there.
        notes: what the host remembers of it.
        services: chance.
        makes: give it an id where nothing was exported before.

    Raises:
        SnapshotNotDurable: it has none, and had one; or it can't serve. Nothing was made.
    """
    found = identity_of(objects, folder)
    if not found:
        is_missed = notes.identity or (
            notes.are_any() and not objects.list(f"{folder}/", limit=1)  # notes of before ids
        )
        if is_missed:
            raise missing(objects)
        if not makes:
            return ""
        objects.put(f"{folder}/place", services.entropy(IDENTITY_BYTES))
        found = identity_of(objects, folder)
    if found != notes.identity:
        path = notes.identity_path
        staging = path.parent / "exporting"
        make_folder(staging)
        with locked(path.parent / "exporting.lock"):
            put_file(path, found.encode("ascii"), staging=staging, fsync=True)
    return found


def missing(objects: ObjectStore) -> SnapshotNotDurable:
    """Return the error of a place that is not what was exported to."""
    msg = (
        f"{objects.place} is not the place that was exported to: nothing that this host put there "
        "is in it. Is it mounted? Nothing was written. If it is gone for good, export to another "
        "URL: everything goes there"
    )
    return SnapshotNotDurable(msg, place=objects.place)
