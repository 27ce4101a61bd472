"""What a snapshot is, for people."""

import datetime as dt

from msgspec import Struct

from perdure.sandbox._layers import SQUASHED, Layers
from perdure.sandbox._made import Made


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
