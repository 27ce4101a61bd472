"""How instances of a user's class are taken apart into fields and built again.

Rules for building: every stored field gets its stored value, whatever `__init__` or `__post_init__`
made of it; a field that is new in the class gets its default; a stored field that the class does
not have any more, or a new one without a default, is an error: nothing is dropped or made up.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from perdure.errors import DecodeFailed

_ABSENT: Any = object()


class Form(Protocol):
    """The way to take one class apart and to build it."""

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields that have a value."""

    def beside(self, value: Any) -> Any:
        """Return what is stored beside the fields, or None. No part of the value's equality."""

    def build(self, fields: dict[str, Any], beside: Any) -> Any:
        """Return the object.

        Raises:
            DecodeFailed: the class does not take these fields any more.
        """


def kind_of(cls: type) -> Callable[[Any], Form] | None:
    """Return what makes the form of a class; None: its instances can't be stored as objects."""
    if issubclass(cls, Enum):
        return None
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return NamedTupleForm
    if issubclass(cls, _CONTENTS):
        return None
    if dataclasses.is_dataclass(cls):
        return DataclassForm
    if issubclass(cls, msgspec.Struct):
        return StructForm
    return PydanticForm if is_pydantic(cls) else None


_CONTENTS = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset)
"""What has contents beside its fields, which taking it apart would lose."""


def is_pydantic(cls: type) -> bool:
    """Return whether it is a pydantic model; does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _check(cls: type, fields: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(fields).difference(known))
    if unknown:
        msg = (
            f"a stored {cls.__qualname__!r} has fields that its class does not have any more: "
            f"{', '.join(unknown)}. Nothing is dropped; give the class these fields again."
        )
        raise DecodeFailed(msg, type=cls.__qualname__, fields=unknown)


def _missing(cls: type, name: str) -> DecodeFailed:
    msg = (
        f"a stored {cls.__qualname__!r} does not fit its class any more: it has no field {name!r}. "
        "Give new fields a default."
    )
    return DecodeFailed(msg, type=cls.__qualname__, fields=[name])


class DataclassForm:
    """A dataclass. Its generated `__init__` is called where it takes the fields and no more."""

    def __init__(self, cls: Any) -> None:
        """Look at the class once."""
        self._cls = cls
        self._fields = {field.name: field for field in dataclasses.fields(cls)}
        self._init = frozenset(name for name, field in self._fields.items() if field.init)
        self._is_called = _takes(cls, self._init)

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields; one with init=False that was never set has no value."""
        found = {name: getattr(value, name, _ABSENT) for name in self._fields}
        return {name: item for name, item in found.items() if item is not _ABSENT}

    def beside(self, _value: Any) -> None:
        """Return None: there is nothing else."""

    def build(self, fields: dict[str, Any], _beside: Any) -> Any:
        """Build, then set every field that `__init__` left otherwise."""
        _check(self._cls, fields, self._fields)
        for name in self._init:
            if name not in fields and _default(self._fields[name]) is None:
                raise _missing(self._cls, name)
        value = self._called(fields) if self._is_called else self._bare(fields)
        for name, item in fields.items():
            if getattr(value, name, _ABSENT) is not item:
                object.__setattr__(value, name, item)
        return value

    def _called(self, fields: dict[str, Any]) -> Any:
        return self._cls(**{name: item for name, item in fields.items() if name in self._init})

    def _bare(self, fields: dict[str, Any]) -> Any:
        """Build without `__init__`, which takes something else than the fields."""
        value = object.__new__(self._cls)
        for name, field in self._fields.items():
            default = _default(field)
            if name not in fields and default is not None:
                object.__setattr__(value, name, default())
        return value


def _default(field: "dataclasses.Field[Any]") -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None


def _takes(cls: type, names: frozenset[str]) -> bool:
    """Return whether `__init__` can be called with exactly these arguments, by name."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]  # of the class, on purpose
    by_name = {p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    needed = {
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return needed <= names and (takes_any or names <= by_name)


class StructForm:
    """A msgspec.Struct."""

    def __init__(self, cls: type[msgspec.Struct]) -> None:
        """Look at the class once."""
        self._cls = cls
        self._names = cls.__struct_fields__
        defaults = cls.__struct_defaults__
        has_default = zip(reversed(self._names), reversed(defaults), strict=False)
        self._optional = {name for name, default in has_default if default is not msgspec.NODEFAULT}

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields."""
        return {name: getattr(value, name) for name in self._names}

    def beside(self, _value: Any) -> None:
        """Return None: there is nothing else."""

    def build(self, fields: dict[str, Any], _beside: Any) -> Any:
        """Build, then set every field that `__post_init__` left otherwise."""
        _check(self._cls, fields, self._names)
        for name in self._names:
            if name not in fields and name not in self._optional:
                raise _missing(self._cls, name)
        value = self._cls(**fields)
        for name, item in fields.items():
            if getattr(value, name) is not item:
                msgspec.structs.force_setattr(value, name, item)
        return value


class NamedTupleForm:
    """A NamedTuple. Its `__new__` is not called."""

    def __init__(self, cls: Any) -> None:
        """Look at the class once."""
        self._cls = cls
        self._names: tuple[str, ...] = cls._fields
        self._defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields."""
        return dict(zip(self._names, value, strict=True))

    def beside(self, _value: Any) -> None:
        """Return None: there is nothing else."""

    def build(self, fields: dict[str, Any], _beside: Any) -> Any:
        """Build from the fields in their order."""
        _check(self._cls, fields, self._names)
        for name in self._names:
            if name not in fields and name not in self._defaults:
                raise _missing(self._cls, name)
        items = [fields[name] if name in fields else self._defaults[name] for name in self._names]
        return tuple.__new__(self._cls, items)


class PydanticForm:
    """A pydantic model. Validators do not run; private attributes are made anew."""

    def __init__(self, cls: Any) -> None:
        """Keep the class; its fields may still be completed."""
        self._cls = cls

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields and the extra ones (extra="allow")."""
        known = self._cls.model_fields
        found = {name: item for name, item in value.__dict__.items() if name in known}
        return {**found, **(value.__pydantic_extra__ or {})}

    def beside(self, value: Any) -> list[str] | None:
        """Return the names of the fields that were set, unless all were."""
        chosen = value.model_fields_set
        return None if chosen.issuperset(self._cls.model_fields) else sorted(chosen)

    def build(self, fields: dict[str, Any], beside: Any) -> Any:
        """Build as unpickling would."""
        known = self._cls.model_fields
        takes_extra = self._cls.model_config.get("extra") == "allow"
        if not takes_extra:
            _check(self._cls, fields, known)
        inner = {name: fields[name] for name in known if name in fields}
        for name, field in known.items():
            if name in fields:
                continue
            if field.is_required():
                raise _missing(self._cls, name)
            inner[name] = field.get_default(call_default_factory=True, validated_data=inner)
        state = {
            "__dict__": inner,
            "__pydantic_extra__": {k: v for k, v in fields.items() if k not in known}
            if takes_extra
            else None,
            "__pydantic_fields_set__": set(fields) if beside is None else set(beside),
            "__pydantic_private__": self._private(inner),
        }
        value = self._cls.__new__(self._cls)
        sys.modules["pydantic"].BaseModel.__setstate__(value, state)
        return value

    def _private(self, inner: dict[str, Any]) -> dict[str, Any] | None:
        attributes = self._cls.__private_attributes__
        if not attributes:
            return None
        undefined = sys.modules["pydantic_core"].PydanticUndefined
        made = {
            name: attribute.get_default(call_default_factory=True, validated_data=inner)
            for name, attribute in attributes.items()
        }
        return {name: item for name, item in made.items() if item is not undefined}
