"""Names at a place of objects that are given up: whoever exports counts on none of them any more.

Theory: a collection removes objects while others export, and an object that is there may be one
that a collection has chosen already. So it publishes first what it is going to remove, as an object
of its own, and looks again which manifests there are; only then it removes, and nothing that one of
those names. Whoever exports reads those lists before, and again when the manifest is there: what is
on them is put once more, under a name that never was. So each export is seen by the collection, or
sees its list; no clock and no lock is in between, and one who was stopped in the middle and goes on
after days removes only what nobody counts on.

A list is never changed. It stays for a week after all of its names are gone.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from perdure.clock import Services
from perdure.errors import NotFound, SnapshotBroken
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._sealer import Sealer, encode
from perdure.sandbox.limits import (
    CONDEMNED_BYTES_MAX,
    CONDEMNED_NAMES_MAX,
    OBJECTS_LISTED_MAX,
    UNIQUE_BYTES,
)

FORMAT = 1
"""Version of a list."""


class _List(Struct, frozen=True, array_like=True):
    """What a collection gave up."""

    format: int
    at_us: int
    names: tuple[str, ...]


_decode: Callable[[bytes], _List] = msgspec.msgpack.Decoder(_List).decode


class Condemned:
    """The lists of a tenant, as they were when they were last looked at."""

    def __init__(self, objects: ObjectStore, sealer: Sealer, services: Services) -> None:
        """Know of none yet."""
        self._objects = objects
        self._sealer = sealer
        self._services = services
        self._lists: dict[str, _List] = {}
        self._names: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def refresh(self) -> None:
        """Look which lists there are.

        Raises:
            SnapshotBroken: one can't be read: nobody knows what is being removed.
            SnapshotNotDurable: the place can't serve.
        """
        there: dict[str, _List] = {}
        after = ""
        prefix = f"{self._sealer.folder}/condemned/"
        while names := self._objects.list(prefix, after=after):
            for name in names:
                found = self._lists.get(name) or self._read(name)
                if found is not None:
                    there[name] = found
            after = names[-1]
            if len(names) < OBJECTS_LISTED_MAX:
                break
        if there.keys() != self._lists.keys():
            self._names = frozenset(name for each in there.values() for name in each.names)
            self._lists = there

    def _read(self, name: str) -> _List | None:
        try:
            stored = self._objects.get(name, bytes_max=CONDEMNED_BYTES_MAX)
        except NotFound:
            return None  # it was removed just now: it was empty long ago
        try:
            plain = self._sealer.unseal(stored, ("condemned", name), bytes_max=CONDEMNED_BYTES_MAX)
            found = _decode(plain)
        except SnapshotBroken as error:
            place = f"{name} of {self._objects.place}"
            raise error.located(place) from error
        except msgspec.MsgspecError as error:
            msg = f"the list {name!r} of {self._objects.place} can't be read; nothing was changed"
            raise SnapshotBroken(msg, object=name) from error
        if found.format != FORMAT:
            msg = f"the list {name!r} of {self._objects.place} is of a form that is unknown here"
            raise SnapshotBroken(msg, object=name)
        return found

    def publish(self, names: Iterable[str]) -> None:
        """Give names up. Durability: all who export hear of it when this returns."""
        ordered = sorted(names)
        for at in range(0, len(ordered), CONDEMNED_NAMES_MAX):
            part = tuple(ordered[at : at + CONDEMNED_NAMES_MAX])
            made = _List(FORMAT, self._services.clock.now_us(), part)
            unique = self._services.entropy(UNIQUE_BYTES).hex()
            name = f"{self._sealer.folder}/condemned/{unique}"
            sealed = self._sealer.seal(encode(made), ("condemned", name), free=CONDEMNED_BYTES_MAX)
            self._objects.put(name, sealed)
        self.refresh()

    def drop(self, there: Iterable[str], *, older_than_us: int) -> None:
        """Remove the lists of which no name is there any more, and that are old."""
        present = frozenset(there)
        for name, each in self._lists.items():
            if each.at_us < older_than_us and present.isdisjoint(each.names):
                self._objects.delete(name)

    def free(self, name: str) -> tuple[str, bool]:
        """Return the name of an object that may be counted on, and whether it is there.

        Args:
            name: that it has unless that is given up; then that with an ending.
        """
        if name not in self._names:
            return name, self._objects.has(name)
        for other in self._objects.list(f"{name}."):
            if other not in self._names:
                return other, True
        return self.another(name), False

    def another(self, name: str) -> str:
        """Return a name that no object ever had, for what is called so."""
        return f"{name}.{self._services.entropy(UNIQUE_BYTES).hex()}"
