"""Which user types may be stored, under which name, and how they are taken apart and built.

Theory: data never names a module to import. A stored object carries the name that its class was
registered under; a process that has not registered the class can't build it and says so
(`TypeUnknown`). Classes are registered by annotation (state fields, effect results, ask schemas) or
by `register_type`.
"""

import dataclasses
import sys
from enum import Enum
from typing import Any

import msgspec

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


def _is_pydantic(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


class TypeRegistry:
    """The types that one runtime knows."""

    def __init__(self) -> None:
        """Start with the types given to `register_type`."""
        self._names: dict[type, str] = {}
        self._classes: dict[str, type] = {}

    @staticmethod
    def can_hold(kind: type) -> bool:
        """Return whether instances of `kind` can be taken apart and built again."""
        return (
            dataclasses.is_dataclass(kind)
            or issubclass(kind, msgspec.Struct | Enum)
            or _is_pydantic(kind)
            or _is_named_tuple(kind)
        )

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

    def fields_of(self, value: Any) -> dict[str, Any]:
        """Return the fields of an instance of a registered class."""
        cls = type(value)
        if dataclasses.is_dataclass(cls):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        if isinstance(value, msgspec.Struct):
            return {name: getattr(value, name) for name in cls.__struct_fields__}
        if _is_named_tuple(cls):
            return dict(zip(cls._fields, value, strict=True))
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}

    def build(self, name: str, fields: dict[str, Any]) -> Any:
        """Build an object without running user code where the class allows it.

        Raises:
            TypeUnknown: no class is registered under the name.
            DecodeFailed: the class does not take these fields any more.
        """
        cls = self._class(name)
        try:
            if _is_pydantic(cls):
                return cls.model_construct(**fields)  # type: ignore[attr-defined]  # checked one line above
            if dataclasses.is_dataclass(cls):
                return _build_dataclass(cls, fields)
            return cls(**fields)
        except TypeError as error:
            msg = (
                f"a stored {name!r} does not fit its class any more: {error}. Give new fields a "
                "default."
            )
            raise DecodeFailed(msg, type=name) from error

    def member(self, name: str, member: str) -> Any:
        """Return a member of a registered Enum."""
        cls = self._class(name)
        if not issubclass(cls, Enum) or member not in cls.__members__:
            msg = f"stored member {name}.{member} does not exist any more"
            raise DecodeFailed(msg, type=name)
        return cls[member]

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


def _build_dataclass(cls: Any, fields: dict[str, Any]) -> Any:
    """Build through `__init__`; fields that it does not take (init=False) are set one by one."""
    plain = {field.name for field in dataclasses.fields(cls) if field.init}
    value = cls(**{key: item for key, item in fields.items() if key in plain})
    for key, item in fields.items():
        if key not in plain:
            object.__setattr__(value, key, item)
    return value
