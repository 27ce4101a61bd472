"""Which user types may be stored, under which name, and how they are taken apart and built.

Theory: data never names a module to import. A stored object carries the name that its class was
registered under; a process that has not registered the class can't build it and says so
(`TypeUnknown`). Classes are registered by annotation (state fields, effect results, ask schemas) or
by `register_type`.
"""

from contextlib import suppress
from enum import Enum, Flag
from typing import Any

from perdure.codec._forms import Form, kind_of
from perdure.errors import DecodeFailed, GraphInvalid, TypeUnknown

_explicit: dict[type, str] = {}


def register_type(cls: type, *, name: str | None = None) -> type:
    """Allow values of `cls` to be stored in this process, under `name`.

    The default name is the qualified one.

    Use it for types that no annotation names, or to keep the stored name when a class is renamed.
    Works as a decorator. Returns `cls`.

    Raises:
        GraphInvalid: it is no dataclass, pydantic model, msgspec.Struct, NamedTuple or Enum.
    """
    if not TypeRegistry.can_hold(cls):
        msg = (
            f"{cls!r} can't be registered: use a dataclass, pydantic model, msgspec.Struct, "
            "NamedTuple or Enum"
        )
        raise GraphInvalid(msg)
    _explicit[cls] = name or default_name(cls)
    return cls


def default_name(cls: type) -> str:
    """Return the name that a class is stored under unless told otherwise."""
    return cls.__qualname__.replace("<locals>.", "")


class TypeRegistry:
    """The types that one runtime knows."""

    def __init__(self) -> None:
        """Start with the types given to `register_type`."""
        self._names: dict[type, str] = {}
        self._classes: dict[str, type] = {}
        self._forms: dict[type, Form] = {}

    @staticmethod
    def can_hold(kind: type) -> bool:
        """Return whether instances of `kind` can be taken apart and built again."""
        return issubclass(kind, Enum) or kind_of(kind) is not None

    def add(self, cls: type) -> None:
        """Register a class; one that can't be held is ignored, so annotations may name anything.

        Raises:
            GraphInvalid: another class of another module has the same name.
        """
        if cls in self._names or not self.can_hold(cls):
            return
        name = _explicit.get(cls) or default_name(cls)
        other = self._classes.get(name)
        if (
            other is not None
            and other.__module__ != cls.__module__
            and "__main__"
            not in {
                other.__module__,
                cls.__module__,
            }
        ):
            msg = (
                f"two classes would be stored as {name!r}: {other.__module__}.{other.__qualname__} "
                f"and {cls.__module__}.{cls.__qualname__}; name one with "
                "perdure.register_type(cls, name=...)"
            )
            raise GraphInvalid(msg)
        self._names[cls] = name
        self._classes[name] = cls

    def name_of(self, cls: type) -> str | None:
        """Return the stored name of a registered class, or None."""
        name = self._names.get(cls)
        if name is None and cls in _explicit:
            self.add(cls)
            name = self._names.get(cls)
        return name

    def form_of(self, cls: type) -> Form:
        """Return how a registered class that is no Enum is taken apart and built."""
        form = self._forms.get(cls)
        if form is None:
            make = kind_of(cls)
            if make is None:
                msg = f"stored as an object, but {cls.__qualname__!r} is an Enum"
                raise DecodeFailed(msg, type=cls.__qualname__)
            form = self._forms[cls] = make(cls)
        return form

    def build(self, name: str, fields: dict[str, Any], beside: Any = None) -> Any:
        """Return the object that was stored under the name.

        Raises:
            TypeUnknown: no class is registered under the name.
            DecodeFailed: the class does not take these fields any more.
        """
        return self.form_of(self._class(name)).build(fields, beside)

    def member(self, name: str, member: str) -> Any:
        """Return a member of a registered Enum."""
        cls = self._class(name)
        if not issubclass(cls, Enum) or member not in cls.__members__:
            msg = f"stored member {name}.{member} does not exist any more"
            raise DecodeFailed(msg, type=name)
        return cls[member]

    def flags(self, name: str, bits: int) -> Any:
        """Return a combination of members of a registered Flag."""
        cls = self._class(name)
        if issubclass(cls, Flag) and type(bits) is int:
            with suppress(ValueError):
                found = cls(bits)
                if found.value == bits:  # some versions of Python drop bits that have no name
                    return found
        msg = f"stored flags {name}({bits!r}) do not exist any more"
        raise DecodeFailed(msg, type=name)

    def _class(self, name: str) -> type:
        cls = self._classes.get(name)
        if cls is None:
            for candidate, explicit in _explicit.items():
                if explicit == name:
                    self.add(candidate)
                    return candidate
            msg = (
                f"a stored value is of type {name!r}, which this process has not registered; "
                "import the module that defines it and annotate with it, or call "
                f"perdure.register_type(cls, name={name!r})"
            )
            raise TypeUnknown(msg, type=name)
        return cls
