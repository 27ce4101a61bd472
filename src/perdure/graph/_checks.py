"""Checks of values against annotations: compiled once, run on every update.

Invariant: a check gives back the very object it was given, or refuses it. The one exception is a
mapping where a dataclass, Struct or pydantic model is declared: that is built from the mapping.
What an annotation does not say plainly (protocols, type variables, classes with rules of their own)
is not checked.
"""

import collections.abc
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec

from perdure.graph.limits import TYPES_CACHED_MAX

Check = Callable[[Any], Any]
"""(value) -> the same value or what was built from a mapping; raises Mismatch."""

_NO_DEFAULT: Any = object()
_WIDER: dict[type, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}
_UNCHECKED: tuple[Any, ...] = (object, collections.abc.Callable)
_SCALARS = frozenset({str, int, float, bool, bytes, bytearray, complex})
_MAPPINGS: dict[Any, type] = {
    dict: dict,
    collections.abc.Mapping: collections.abc.Mapping,
    collections.abc.MutableMapping: collections.abc.MutableMapping,
}
_SETS: dict[Any, type] = {
    set: set,
    frozenset: frozenset,
    collections.abc.Set: collections.abc.Set,
    collections.abc.MutableSet: collections.abc.MutableSet,
}
_SEQUENCES: dict[Any, type] = {
    list: list,
    collections.abc.Sequence: collections.abc.Sequence,
    collections.abc.MutableSequence: collections.abc.MutableSequence,
}


class Mismatch(Exception):
    """A value is not of the declared type.

    Attributes:
        got: what it is instead.
        path: where inside the value, like `[2]['name']` or `[2].name`.
        is_inside: whether it is in a field of an object.
    """

    def __init__(self, got: str, path: str = "", *, is_inside: bool = False) -> None:
        """Carry all to whoever knows the field."""
        super().__init__(got, path)
        self.got = got
        self.path = path
        self.is_inside = is_inside

    def within(self, key: object) -> "Mismatch":
        """Return the same mismatch as seen from the container."""
        return Mismatch(self.got, f"[{key!r}]{self.path}", is_inside=self.is_inside)


def got_text(value: Any) -> str:
    """Return what a value is, without the value: it may be a secret."""
    return "None" if value is None else type(value).__qualname__.rpartition("<locals>.")[2]


def is_pydantic_model(cls: Any) -> bool:
    """Return whether this is a pydantic model class, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def is_record(cls: Any) -> bool:
    """Return whether a mapping can be turned into this class."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic_model(cls)
    )


def compile_check(annotation: Any) -> Check | None:
    """Return the check of an annotation, or None: everything is accepted."""
    if annotation in (Any, object):
        return None
    if annotation is None or annotation is type(None):
        return _check_none
    if hasattr(annotation, "__supertype__"):
        return compile_check(annotation.__supertype__)
    if hasattr(annotation, "__value__") and not isinstance(annotation, type):
        return _alias(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _annotated(annotation, arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is None and typing.is_typeddict(annotation):
        return _typed_dict(annotation)
    return _container(origin or annotation, arguments) or _class(annotation, origin)


def _check_none(value: Any) -> Any:
    if value is not None:
        raise Mismatch(got_text(value))
    return value


def _class(annotation: Any, origin: Any) -> Check | None:
    cls = origin or annotation
    if not isinstance(cls, type) or cls in _UNCHECKED:
        return None
    if getattr(cls, "_is_protocol", False):
        return None
    if is_record(cls):
        return _record(annotation, cls)
    if hasattr(cls, "__get_pydantic_core_schema__"):
        return (
            None  # pydantic's marker classes (EmailStr, HttpUrl) are not the class of their values
        )
    return _instance(cls)


def _instance(cls: type) -> Check:
    accepted = _WIDER.get(cls, (cls,))

    def check(value: Any) -> Any:
        if type(value) is cls or isinstance(value, accepted):
            return value
        raise Mismatch(got_text(value))

    return check


def _record(annotation: Any, cls: type) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, cls):
            _check_fields(value)
            return value
        if not isinstance(value, Mapping):
            raise Mismatch(got_text(value))
        return build_record(annotation, cls, value)

    return check


def _check_fields(value: Any) -> None:
    """Refuse an object with a field that is not of its annotation, unless it is its default.

    Classes do not check what they are made of; what is stored must come back as it went in.
    """
    cls: Any = type(value)
    for name, plain, check, default in _field_checks(cls):
        old = getattr(value, name, default)
        if type(old) in plain or old is default:
            continue
        try:
            new = check(old)
        except Mismatch as mismatch:
            raise Mismatch(mismatch.got, f".{name}{mismatch.path}", is_inside=True) from None
        if new is not old:  # built from a mapping: the object itself stays as it is
            raise Mismatch(got_text(old), f".{name}", is_inside=True)


@functools.lru_cache(maxsize=TYPES_CACHED_MAX)
def _field_checks(cls: Any) -> tuple[tuple[str, frozenset[type], Check, Any], ...]:
    """Return the fields of a class that have a check, with classes that fit and their defaults."""
    # As of a TypedDict: compiled when the first object comes, as the class may name itself.
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
        return ()
    checks = {name: compile_check(hint) for name, hint in hints.items()}
    return tuple(
        (name, _plain_classes(hints[name]), check, default)
        for name, default in _defaults_of(cls)
        if (check := checks.get(name)) is not None
    )


def _plain_classes(annotation: Any) -> frozenset[type]:
    """Return classes whose own objects all fit an annotation: no check need be called for them."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return frozenset().union(*map(_plain_classes, typing.get_args(annotation)))
    is_plain = annotation in _SCALARS or annotation is type(None)
    return frozenset({annotation}) if is_plain else frozenset()


def _defaults_of(cls: Any) -> list[tuple[str, Any]]:
    """Return the names of a class's fields and their defaults; `_NO_DEFAULT`: none that is kept."""
    if is_pydantic_model(cls):
        return _pydantic_defaults(cls)
    if issubclass(cls, msgspec.Struct):
        of_struct = msgspec.structs.fields(cls)
        return [(each.name, _NO_DEFAULT if each.required else each.default) for each in of_struct]
    return [
        (each.name, _NO_DEFAULT if each.default is dataclasses.MISSING else each.default)
        for each in dataclasses.fields(cls)
    ]


def _pydantic_defaults(cls: Any) -> list[tuple[str, Any]]:
    """Return the same of a model, without fields that its validators may make something else of."""
    if cls.model_config.get("use_enum_values"):
        return []
    validated = {
        name
        for decorator in cls.__pydantic_decorators__.field_validators.values()
        for name in decorator.info.fields
    }
    return [
        (name, _NO_DEFAULT if info.is_required() else info.default)
        for name, info in cls.model_fields.items()
        if not validated & {name, "*"}
        and not any(hasattr(each, "__get_pydantic_core_schema__") for each in info.metadata)
    ]


def build_record(annotation: Any, cls: Any, value: Mapping[Any, Any]) -> Any:
    """Return the class's object made from the mapping, or raise Mismatch with the reason."""
    try:
        if is_pydantic_model(cls):
            return annotation.model_validate(value)
        return msgspec.convert(value, annotation)
    except (TypeError, ValueError) as error:
        msg = f"a mapping that does not fit ({_reason(error)})"
        raise Mismatch(msg) from None


def _reason(error: Any) -> str:
    """Return why, without the values that pydantic puts into its text."""
    if not hasattr(error, "errors"):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _literal(choices: tuple[Any, ...]) -> Check:
    def check(value: Any) -> Any:
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return value
        msg = f"another {got_text(value)}"
        raise Mismatch(msg)

    return check


def _annotated(annotation: Any, arguments: tuple[Any, ...]) -> Check | None:
    inner = compile_check(arguments[0])
    if not any(isinstance(each, msgspec.Meta) for each in arguments[1:]):
        return inner

    def check(value: Any) -> Any:
        found = value if inner is None else inner(value)
        try:
            msgspec.convert(found, annotation)
        except msgspec.ValidationError as error:
            msg = f"{got_text(value)} out of bounds ({error})"
            raise Mismatch(msg) from error
        return found

    return check


def _union(members: tuple[Any, ...]) -> Check | None:
    checks = [compile_check(member) for member in members]
    if None in checks:
        return None
    given = [check for check in checks if check is not None and check is not _check_none]
    takes_none = len(given) < len(checks)
    if len(given) == 1:
        return _optional(given[0]) if takes_none else given[0]

    def check(value: Any) -> Any:
        if value is None and takes_none:
            return value
        built = []
        for each in given:
            try:
                found = each(value)
            except Mismatch:
                continue
            if found is value:
                return value
            built.append(found)
        if len(built) == 1:
            return built[0]
        fits = f"{got_text(value)} that fits several of them" if built else got_text(value)
        raise Mismatch(fits)

    return check


def _optional(inner: Check) -> Check:
    def check(value: Any) -> Any:
        return value if value is None else inner(value)

    return check


def _container(origin: Any, arguments: tuple[Any, ...]) -> Check | None:
    if origin is tuple:
        return _tuple(arguments)
    if origin in _MAPPINGS:
        key, item = arguments or (Any, Any)
        return _mapping(_MAPPINGS[origin], compile_check(key), compile_check(item))
    outer = _SEQUENCES.get(origin) or _SETS.get(origin)
    if outer is None:
        return None
    inner = arguments[0] if arguments else Any
    item = compile_check(inner)
    if item is None:
        return _instance(outer)
    if inner in _SCALARS:
        return _scalars(outer, inner)
    return _sequence(outer, item) if origin in _SEQUENCES else _set(outer, item)


def _scalars(outer: Any, scalar: type) -> Check:
    """Return the check of a list or set of one builtin class; no call per item."""
    accepted = _WIDER.get(scalar, (scalar,))

    def check(value: Any) -> Any:
        if not isinstance(value, outer):
            raise Mismatch(got_text(value))
        for index, item in enumerate(value):
            if type(item) is not scalar and not isinstance(item, accepted):
                raise Mismatch(got_text(item), f"[{index}]")
        return value

    return check


def _sequence(outer: Any, item: Check) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, outer):
            raise Mismatch(got_text(value))
        changed: list[Any] | None = None
        for index, old in enumerate(value):
            new = _item(item, old, index)
            if new is not old:
                changed = list(value) if changed is None else changed
                changed[index] = new
        return value if changed is None else changed

    return check


def _set(outer: Any, item: Check) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, outer):
            raise Mismatch(got_text(value))
        for each in value:
            item(each)
        return value

    return check


def _mapping(outer: Any, key: Check | None, item: Check | None) -> Check:
    if key is None and item is None:
        return _instance(outer)

    def check(value: Any) -> Any:
        if not isinstance(value, outer):
            raise Mismatch(got_text(value))
        changed: dict[Any, Any] = {}
        for name, old in value.items():
            if key is not None:
                _item(key, name, name)
            new = old if item is None else _item(item, old, name)
            if new is not old:
                changed[name] = new
        return {**value, **changed} if changed else value

    return check


def _tuple(arguments: tuple[Any, ...]) -> Check:
    if not arguments:
        return _instance(tuple)
    is_open = arguments[-1] is Ellipsis
    checks = [compile_check(each) for each in arguments if each is not Ellipsis]

    def check(value: Any) -> Any:
        if not isinstance(value, tuple):
            raise Mismatch(got_text(value))
        if not is_open and len(value) != len(checks):
            msg = f"tuple of {len(value)}"
            raise Mismatch(msg)
        changed = False
        found = []
        for index, old in enumerate(value):
            each = checks[0 if is_open else index]
            found.append(old if each is None else _item(each, old, index))
            changed = changed or found[-1] is not old
        return tuple(found) if changed else value

    return check


@functools.lru_cache(maxsize=TYPES_CACHED_MAX)
def _typed_dict_checks(cls: Any) -> dict[str, Check | None]:
    try:
        return {name: compile_check(hint) for name, hint in typing.get_type_hints(cls).items()}
    except NameError:
        return {}


def _typed_dict(cls: Any) -> Check:
    # The fields are compiled when the first value comes: the class may name itself in them.
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(got_text(value))
        checks = _typed_dict_checks(cls)
        missing = (cls.__required_keys__ & checks.keys()) - value.keys()
        if missing:
            msg = f"dict without {min(missing)!r}"
            raise Mismatch(msg)
        changed: dict[Any, Any] = {}
        for name, old in value.items():
            each = checks.get(name)
            new = old if each is None else _item(each, old, name)
            if new is not old:
                changed[name] = new
        return {**value, **changed} if changed else value

    return check


@functools.lru_cache(maxsize=TYPES_CACHED_MAX)
def _alias_check(alias: Any) -> Check | None:
    return compile_check(alias.__value__)


def _alias(alias: Any) -> Check:
    # As above: `type Json = dict[str, Json] | str` names itself.
    def check(value: Any) -> Any:
        inner = _alias_check(alias)
        return value if inner is None else inner(value)

    return check


def _item(check: Check, value: Any, key: object) -> Any:
    try:
        return check(value)
    except Mismatch as mismatch:
        raise mismatch.within(key) from None
