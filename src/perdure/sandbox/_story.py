"""What a snapshot is, for people."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import NotFound, PerdureError
from perdure.sandbox._collecting import folders_in
from perdure.sandbox._disk import disk_errors
from perdure.sandbox._layers import BASE, SQUASHED, Layers
from perdure.sandbox._made import Made
from perdure.sandbox._measure import measure
from perdure.sandbox._names import folder_name


class Snapshot(Struct, frozen=True, kw_only=True):
    """What is known of a snapshot.

    Attributes:
        id: of it.
        format: of its layer.json; of format 1 nothing below `base` is known.
        parent: what it stands on; empty: the base.
        base: what names the base.
        thread: folder of the thread that took it; empty: not known.
        at: when; None: not known.
        changes: what it holds: "files", or as whoever took it said; empty: not known.
        bytes, entries: room that its own changes take; measured, where it was not written down.
        layers: how many layers a command over it stands on.
        is_squashed: whether it is kept as one layer, too, so that those below are not needed.
        made: what it was made with: driver, kernel, filter, Landlock, Perdure.
    """

    id: str
    format: int
    parent: str
    base: str
    thread: str
    at: dt.datetime | None
    changes: str
    bytes: int
    entries: int
    layers: int
    is_squashed: bool
    made: Made


def snapshot_of(layers: Layers, name: str) -> Snapshot:
    """Return what is known of a layer.

    Raises:
        NotFound: there is none of this name.
        StoreCorrupt: it, or one that it stands on, can't be read.
    """
    layer = layers.read(name)
    usage = layers.usage([name])
    chain = layers.chain(name, is_any=True)
    return Snapshot(
        id=name,
        format=layer.format,
        parent=layer.parent,
        base=layer.base,
        thread=layer.thread,
        at=layer.at,
        changes=layer.changes,
        bytes=usage.bytes,
        entries=usage.entries,
        layers=len(chain),
        is_squashed=chain[0].endswith(SQUASHED),
        made=layer.made,
    )


class ThreadFiles(Struct, frozen=True, kw_only=True):
    """What a folder of sandboxes has of a thread.

    Attributes:
        tenant, thread: names of their folders: the beginning of a name, and a digest of all of it.
        head: the snapshot that it stands on; empty: the base.
        at: when that was taken; None: not known, or the base.
        layers: how many layers a command stands on.
        bytes, entries: room that those take; hard links between layers count for each.
        live_bytes, live_entries: room that what changed since takes.
        image_bytes: of images of processes that its snapshots have.
        damage: why it can't be used; empty: it can.
    """

    tenant: str
    thread: str
    head: str = ""
    at: dt.datetime | None = None
    layers: int = 0
    bytes: int = 0
    entries: int = 0
    live_bytes: int = 0
    live_entries: int = 0
    image_bytes: int = 0
    damage: str = ""


def _layers_of(tenant: Path) -> Layers:
    """Return a tenant's layers, to look at only."""
    return Layers(tenant, base="", parts=(), owner=0)


def check_root(root: Path) -> None:
    """Refuse a folder that no sandboxes are kept in: nothing there is no proof that all is gone.

    Raises:
        NotFound: it has none; nothing was made there.
    """
    _tenants(root)


def _tenants(root: Path) -> Path:
    """Return the folder of the tenants.

    Raises:
        NotFound: there is none.
    """
    tenants = root.absolute() / "tenants"
    if not tenants.is_dir():
        msg = f"{root} has no sandboxes; nothing was made there. Name the folder of --sandbox"
        raise NotFound(msg, path=str(root))
    return tenants


def check_thread(root: Path, tenant: str, thread: str) -> Path:
    """Return the folder of a thread's sandbox, of a folder of `IsolatedSandboxes`.

    Raises:
        NotFound: it has none; nothing was made there.
    """
    folder = _tenants(root) / folder_name(tenant) / "threads" / folder_name(thread)
    if not folder.is_dir():
        msg = (
            f"{root} has no sandbox of thread {thread!r} of tenant {tenant!r}; 'perdure sandbox "
            f"list {root}' lists what it has"
        )
        raise NotFound(msg, path=str(root), thread=thread, tenant=tenant)
    return folder


def threads_in(root: Path) -> Iterator[ThreadFiles]:
    """Yield what a folder of `IsolatedSandboxes` has, by tenant and thread.

    Raises:
        NotFound: it is none.
    """
    for tenant in sorted(folders_in(_tenants(root))):
        layers = _layers_of(tenant)
        for thread in sorted(folders_in(tenant / "threads")):
            with disk_errors("look at", thread):
                found = _thread(tenant, thread, layers)
            if found.head or (thread / "top").is_dir():  # else it was erased, or never used
                yield found


def _thread(tenant: Path, thread: Path, layers: Layers) -> ThreadFiles:
    live = measure([thread / "top"])
    found = ThreadFiles(
        tenant=tenant.name,
        thread=thread.name,
        live_bytes=live.bytes,
        live_entries=live.entries,
    )
    head = layers.head(thread)
    if head == BASE:
        return found
    try:
        chain = layers.chain(head, is_any=True)
        usage, at = layers.usage(chain), layers.read(head).at
    except PerdureError as error:
        return replace(found, head=head, damage=str(error))
    names = layers.chain(head, is_whole=True, is_any=True)
    images = measure([layers.images(name.partition("/")[0]) for name in names])
    return replace(
        found,
        head=head,
        at=at,
        layers=len(chain),
        bytes=usage.bytes,
        entries=usage.entries,
        image_bytes=images.bytes,
    )


def history_of(root: Path, tenant: str, thread: str) -> tuple[ThreadFiles, list[Snapshot]]:
    """Return what a folder has of a thread, and the snapshots that it stands on, newest first.

    Raises:
        NotFound: the folder has no sandbox of this thread.
        StoreCorrupt: a layer that it stands on can't be read.
    """
    folder = check_thread(root, tenant, thread)
    of_tenant = folder.parent.parent
    layers = _layers_of(of_tenant)
    with disk_errors("look at", folder):
        found = _thread(of_tenant, folder, layers)
        names = layers.chain(found.head or None, is_whole=True, is_any=True)
        return found, [snapshot_of(layers, name.partition("/")[0]) for name in names]
