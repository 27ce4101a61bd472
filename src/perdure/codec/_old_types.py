"""Types for reading what older code stored: what can't be built any more is read as plain data.

For migrations only. Anywhere else a stored object of an unknown class is an error: who can't build
it could do no more than lose it.
"""

from typing import Any

from perdure.codec._forms import Form
from perdure.codec._registry import TypeRegistry
from perdure.errors import DecodeFailed

TYPE_KEY = "$type"
"""Under this key a dict that stands for an object has the name of its type."""


class Unbuilt(dict[str, Any]):
    """A stored object whose class is not there any more, or takes other fields now.

    A dict of its fields, with the name of its type under `$type`; of an Enum with `name`, of a
    Flag with `value`. Being a subclass, it can't be stored by mistake: a plain dict can.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]  # what was in a set can be in one again


class OldTypes(TypeRegistry):
    """The types of a registry, without its errors about objects that can't be built."""

    def __init__(self, known: TypeRegistry) -> None:
        """Know what `known` knows, also what it will be told later."""
        super().__init__()
        self._known = known

    def name_of(self, cls: type) -> str | None:
        """Return the stored name of a registered class, or None."""
        return self._known.name_of(cls)

    def form_of(self, cls: type) -> Form:
        """Return how a registered class is taken apart and built."""
        return self._known.form_of(cls)

    def build(self, name: str, fields: dict[str, Any], beside: Any = None) -> Any:
        """Return the object, or an `Unbuilt` of its fields."""
        try:
            return self._known.build(name, fields, beside)
        except DecodeFailed:
            return Unbuilt({TYPE_KEY: name, **fields})

    def member(self, name: str, member: str) -> Any:
        """Return a member of an Enum, or an `Unbuilt` with its name."""
        try:
            return self._known.member(name, member)
        except DecodeFailed:
            return Unbuilt({TYPE_KEY: name, "name": member})

    def flags(self, name: str, bits: int) -> Any:
        """Return flags, or an `Unbuilt` with their value."""
        try:
            return self._known.flags(name, bits)
        except DecodeFailed:
            return Unbuilt({TYPE_KEY: name, "value": bits})


def unbuilt_types(value: Any) -> set[str]:
    """Return the names of the types of which a value still holds an `Unbuilt`."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Unbuilt):
            found.add(str(each.get(TYPE_KEY)))
        if isinstance(each, dict):
            waiting.extend(each.values())
            waiting.extend(key for key in each if isinstance(key, tuple))
        elif isinstance(each, list | tuple | set | frozenset):
            waiting.extend(each)
    return found
