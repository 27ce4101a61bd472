"""What layer.json says: what a layer stands on, who took it, and what it was made with.

Format 1 has `parent`, `parts` and `base`; format 2 has the rest, of which `processes` and
`has_images` only where something was alive. Both are read. A layer is made by
one driver and read by the same one: with `ns` a file's owner is an id of the tenant's range and a
folder that replaces another has `trusted.overlay.opaque`, with `userns` every file is the worker's
and it is `user.overlay.opaque`: read as the other they would be other files.
"""

import datetime as dt
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.errors import UsageError
from perdure.sandbox._measure import Usage
from perdure.sandbox._processes import Process, as_fields, from_fields
from perdure.sandbox.inside import landlock, seccomp
from perdure.sandbox.limits import LAYER_BYTES_MAX

FORMAT = 2
"""Version of layer.json that is written."""

FORMATS = (1, 2)
"""Those that are read."""

FILES = "files"
"""What changed in a layer, where nothing else is known: files, and no process was kept."""


KEPT = "files and processes"
"""What changed in a layer that has images of processes."""

ALIVE = "files, something was alive"
"""What changed in a layer that was copied from a tree that went on."""
Generation = tuple[int, int, int]
"""(ordinal of the run, fencing token, number of the layer under that holder)."""


class Made(Struct, frozen=True, kw_only=True):
    """What sandboxes are made with here.

    Attributes:
        driver: `ns` or `userns`; empty: not known (format 1).
        kernel: its release.
        filter: SHA-256 of the filter of system calls, the first 16 hexadecimal digits.
        landlock: version of the kernel's Landlock; 0: none.
        perdure: version.
    """

    driver: str = ""
    kernel: str = ""
    filter: str = ""
    landlock: int = 0
    perdure: str = ""


@functools.cache
def made_here(driver: str) -> Made:
    """Return what a driver makes sandboxes with on this host."""
    return Made(
        driver=driver,
        kernel=os.uname().release,
        filter=hashlib.sha256(seccomp.program()).hexdigest()[:16],
        landlock=landlock.version(),
        perdure=_version(),
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # slow to import

    try:
        return version("perdure")
    except PackageNotFoundError:
        return ""


class Layer(Struct, frozen=True, kw_only=True):
    """A layer as layer.json says it.

    Attributes:
        format: of layer.json.
        parent: id of what it stands on; empty: the base.
        parts: where the parts of the base are.
        base: what names the base.
        thread: folder of the thread that took it; empty: not known (format 1).
        at_us: when it was taken; 0: not known.
        changes: what it holds: "files", or as whoever took it said.
        usage: of what it changed; None: not known.
        made: what it was made with.
        processes: what was alive when it was made.
        has_images: whether it has images of them, or had, until they were too old.
        generation: rises with each layer of a thread, from host to host; zeros: not known.
        why_none: why it has none, where they were to be taken.
    """

    format: int
    parent: str
    parts: tuple[str, ...]
    base: str
    thread: str = ""
    at_us: int = 0
    changes: str = ""
    usage: Usage | None = None
    made: Made = Made()
    processes: tuple[Process, ...] = ()
    has_images: bool = False
    generation: Generation = (0, 0, 0)
    why_none: str = ""

    @property
    def at(self) -> dt.datetime | None:
        """When it was taken."""
        if not self.at_us:
            return None
        return dt.datetime.fromtimestamp(self.at_us / 1_000_000, tz=dt.UTC)


def encode(layer: Layer) -> bytes:
    """Return the content of layer.json."""
    said: dict[str, Any] = {
        "format": layer.format,
        "parent": layer.parent,
        "parts": list(layer.parts),
        "base": layer.base,
    }
    if layer.format > 1:
        usage = layer.usage or Usage()
        said |= {
            "thread": layer.thread,
            "at_us": layer.at_us,
            "changes": layer.changes,
            "generation": list(layer.generation),
            "bytes": usage.bytes,
            "entries": usage.entries,
            "made": {name: getattr(layer.made, name) for name in Made.__struct_fields__},
        }
    if layer.processes:
        said |= {"processes": as_fields(layer.processes), "has_images": layer.has_images}
    if layer.why_none:
        said["why_none"] = layer.why_none
    return json.dumps(said).encode("ascii")


def read(path: Path) -> Layer:
    """Return what a layer.json says.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it can't be read; says why.
    """
    with path.open("rb") as file:
        content = file.read(LAYER_BYTES_MAX + 1)
    if len(content) > LAYER_BYTES_MAX:
        msg = f"layer.json has more than {LAYER_BYTES_MAX} bytes"
        raise ValueError(msg)
    try:
        return _decode(json.loads(content))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _decode(said: Any) -> Layer:
    number = said["format"]
    if number not in FORMATS:
        shown = ", ".join(map(str, FORMATS))
        msg = f"it has format {number}; this Perdure reads {shown}"
        raise ValueError(msg)
    first = {
        "format": number,
        "parent": _text(said, "parent"),
        "parts": tuple(map(str, said["parts"])),
        "base": _text(said, "base"),
    }
    if number == 1:
        return Layer(**first)
    made = said["made"]
    ordinal, token, count = said.get("generation", (0, 0, 0))
    return Layer(
        **first,
        thread=_text(said, "thread"),
        at_us=int(said["at_us"]),
        changes=_text(said, "changes"),
        generation=(int(ordinal), int(token), int(count)),
        usage=Usage(bytes=int(said["bytes"]), entries=int(said["entries"])),
        made=Made(
            driver=_text(made, "driver"),
            kernel=_text(made, "kernel"),
            filter=_text(made, "filter"),
            landlock=int(made["landlock"]),
            perdure=_text(made, "perdure"),
        ),
        processes=from_fields(said.get("processes", [])),
        has_images=bool(said.get("has_images", False)),
        why_none=str(said.get("why_none", "")),
    )


def _text(said: Mapping[str, Any], name: str) -> str:
    found = said[name]
    if not isinstance(found, str):
        msg = f"{name} is no text"
        raise TypeError(msg)
    return found


def check_fits(layer: Layer, snapshot: str | None, *, base: str, driver: str) -> None:
    """Refuse a layer that these sandboxes would misread.

    Raises:
        UsageError: it was made on another base, or by another driver.
    """
    if layer.base != base:
        msg = (
            f"snapshot {snapshot!r} was made on base {layer.base!r}, these sandboxes stand "
            f"on {base!r}; nothing was changed. Open them with the base of before."
        )
        raise UsageError(msg, snapshot=snapshot)
    if driver and layer.made.driver not in {"", driver}:
        who = {"ns": "by root", "userns": "by a user without rights"}
        mine, theirs = who.get(driver, driver), who.get(layer.made.driver, layer.made.driver)
        msg = (
            f"snapshot {snapshot!r} was made by driver {layer.made.driver!r} ({theirs}), these "
            f"sandboxes are opened by {driver!r} ({mine}): owners and marks of its files would be "
            "misread; nothing was changed. Run the worker as the user of before."
        )
        raise UsageError(msg, snapshot=snapshot, driver=layer.made.driver)
