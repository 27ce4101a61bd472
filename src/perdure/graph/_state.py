"""Reading a state type: its fields, their reducers and defaults, and how to build its objects.

A state type is a dataclass, a TypedDict, a msgspec Struct or a pydantic model. A TypedDict can't
name defaults, so there a field with a reducer starts empty, one that can be None starts as None,
and a `NotRequired` one may stay absent; every other field is required in the first input.
"""

import dataclasses
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, Union

import msgspec

from perdure.graph import reducers
from perdure.graph._checks import is_pydantic_model
from perdure.graph._text import type_text

_NOTHING: Any = object()
_REDUCER_NAMES = frozenset({"append", "add", "merge", "replace"})
_STABLE_FACTORIES: frozenset[Any] = frozenset({list, dict, set, tuple, frozenset, str, int, float})
_EMPTY_STARTS: frozenset[Any] = frozenset({list, dict, set, tuple, frozenset, str, int, float})
_NOT_REDUCERS = (bool, int, float, complex, bytes, list, dict, set, tuple, type(None))
_QUALIFIERS: tuple[Any, ...] = (Required, NotRequired, getattr(typing, "ReadOnly", Required))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field as its author declared it.

    Attributes:
        annotation: the declared type, without the reducer; other metadata stays.
        reducer: (old, new) -> merged, None: replaced.
        default: makes the first value; None: there is none.
        is_optional: whether the field may be absent for good.
        is_default_stable: whether `default` gives an equal value each time.
    """

    name: str
    annotation: Any
    reducer: Callable[[Any, Any], Any] | None = None
    default: Callable[[], Any] | None = None
    is_optional: bool = False
    is_default_stable: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """What a state type says.

    Attributes:
        build: (values by field) -> the object; a missing field gets its default.
        read: (state object, field name) -> value.
        is_pydantic: whether pydantic checks the fields.
    """

    fields: tuple[Field, ...]
    build: Callable[[Mapping[str, Any]], Any]
    read: Callable[[Any, str], Any]
    is_pydantic: bool = False


class ShapeProblems(Exception):
    """A state type that can't be used; `lines` say why."""

    def __init__(self, lines: list[str]) -> None:
        """Carry the lines to whoever compiles the graph."""
        super().__init__(lines)
        self.lines = lines


def read_shape(state_type: Any, namespace: Mapping[str, Any]) -> StateShape:
    """Return the shape of a state type.

    Raises:
        ShapeProblems: with one line for each thing that is wrong.
        NameError: an annotation names something that is neither in its module nor in `namespace`.
    """
    if typing.is_typeddict(state_type):
        return _typed_dict_shape(state_type, _hints(state_type, namespace))
    if is_pydantic_model(state_type):
        return _pydantic_shape(state_type, namespace)
    if isinstance(state_type, type) and issubclass(state_type, msgspec.Struct):
        return _struct_shape(state_type, _hints(state_type, namespace))
    if isinstance(state_type, type) and dataclasses.is_dataclass(state_type):
        return _dataclass_shape(state_type, _hints(state_type, namespace))
    line = (
        f"state type {type_text(state_type)} is not supported; "
        "use a dataclass, a TypedDict, a pydantic model or a msgspec.Struct class"
    )
    raise ShapeProblems([line])


def _hints(state_type: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    local = {**namespace, **vars(sys.modules[state_type.__module__])} if namespace else None
    return typing.get_type_hints(state_type, localns=local, include_extras=True)


def _dataclass_shape(cls: type, hints: Mapping[str, Any]) -> StateShape:
    problems: list[str] = []
    fields = []
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            problems.append(f"field {name!r}: an InitVar is not stored; make it a field")
    for found in dataclasses.fields(cls):
        if not found.init:
            continue  # what __post_init__ computes is computed again by each build
        name = found.name
        default: Callable[[], Any] | None = None
        is_stable = True
        if found.default is not dataclasses.MISSING:
            default = _constant(found.default)
        elif found.default_factory is not dataclasses.MISSING:
            default = found.default_factory
            is_stable = default in _STABLE_FACTORIES
        fields.append(
            _field(name, hints[name], problems, default=default, is_default_stable=is_stable)
        )
    return _finish(problems, fields, _constructor(cls), getattr)


def _struct_shape(cls: Any, hints: Mapping[str, Any]) -> StateShape:
    problems: list[str] = []
    fields = []
    names = cls.__struct_fields__
    defaults = cls.__struct_defaults__
    padded = (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + defaults
    for name, given in zip(names, padded, strict=True):
        default: Callable[[], Any] | None = _constant(given)
        is_stable = True
        if given is msgspec.NODEFAULT:
            default = None
        elif type(given).__module__.startswith("msgspec") and hasattr(given, "factory"):
            default = given.factory
            is_stable = default in _STABLE_FACTORIES
        fields.append(
            _field(name, hints[name], problems, default=default, is_default_stable=is_stable)
        )
    return _finish(problems, fields, _constructor(cls), getattr)


def _pydantic_shape(cls: Any, namespace: Mapping[str, Any]) -> StateShape:
    if not cls.__pydantic_complete__:
        cls.model_rebuild(raise_errors=False, _types_namespace=dict(namespace))
    if not cls.__pydantic_complete__:
        msg = f"name in an annotation of {cls.__qualname__} is not defined"
        raise NameError(msg)
    problems: list[str] = []
    fields = []
    for name, info in cls.model_fields.items():
        annotation = info.annotation
        if info.metadata:
            annotation = Annotated[(annotation, *info.metadata)]
        default: Callable[[], Any] | None = None
        if getattr(info, "default_factory_takes_validated_data", False):
            problems.append(
                f"field {name!r}: its default is made from other fields; make it required"
            )
        elif not info.is_required():
            # Copies a mutable default, as a model's own __init__ does.
            default = functools.partial(info.get_default, call_default_factory=True)
        is_stable = info.default_factory is None or info.default_factory in _STABLE_FACTORIES
        fields.append(
            _field(name, annotation, problems, default=default, is_default_stable=is_stable)
        )
    construct = cls.model_construct
    return _finish(problems, fields, lambda values: construct(**values), getattr, is_pydantic=True)


def _typed_dict_shape(cls: Any, hints: Mapping[str, Any]) -> StateShape:
    problems: list[str] = []
    fields = []
    for name, hint in hints.items():
        annotation, is_required = _unqualify(hint, is_required=name in cls.__required_keys__)
        field = _field(name, annotation, problems)
        default = _typed_dict_default(field)
        fields.append(
            dataclasses.replace(
                field, default=default, is_optional=default is None and not is_required
            )
        )
    starts = [(field.name, field.default) for field in fields if field.default is not None]

    def build(values: Mapping[str, Any]) -> dict[str, Any]:
        state = dict(values)
        for name, default in starts:
            if name not in state:
                state[name] = default()
        return state

    return _finish(problems, fields, build, dict.__getitem__)


def _unqualify(hint: Any, *, is_required: bool) -> tuple[Any, bool]:
    """Take `Required`, `NotRequired` and `ReadOnly` off, wherever they stand in `Annotated`."""
    origin = typing.get_origin(hint)
    while origin in _QUALIFIERS:
        is_required = {Required: True, NotRequired: False}.get(origin, is_required)
        hint = typing.get_args(hint)[0]
        origin = typing.get_origin(hint)
    if origin is Annotated:
        inner, is_required = _unqualify(hint.__origin__, is_required=is_required)
        hint = Annotated[(inner, *hint.__metadata__)]
    return hint, is_required


def _typed_dict_default(field: Field) -> Callable[[], Any] | None:
    base = _base(field.annotation)
    if field.reducer is not None and base in _EMPTY_STARTS:
        return typing.cast("Callable[[], Any]", base)
    if typing.get_origin(base) in (Union, types.UnionType) and type(None) in typing.get_args(base):
        return _constant(None)
    return None


def _base(annotation: Any) -> Any:
    """Return the annotation without metadata and type arguments, unions as they are."""
    if typing.get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    origin = typing.get_origin(annotation)
    return annotation if origin in (None, Union, types.UnionType) else origin


def _constructor(cls: Any) -> Callable[[Mapping[str, Any]], Any]:
    def build(values: Mapping[str, Any]) -> Any:
        return cls(**values)

    return build


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _finish(
    problems: list[str],
    fields: list[Field],
    build: Callable[[Mapping[str, Any]], Any],
    read: Callable[[Any, str], Any],
    *,
    is_pydantic: bool = False,
) -> StateShape:
    if problems:
        raise ShapeProblems(problems)
    return StateShape(fields=tuple(fields), build=build, read=read, is_pydantic=is_pydantic)


def _field(
    name: str,
    annotation: Any,
    problems: list[str],
    *,
    default: Callable[[], Any] | None = None,
    is_default_stable: bool = True,
) -> Field:
    """Return the field with its reducer found, adding to `problems` what is wrong with it."""
    reducer = None
    if typing.get_origin(annotation) is Annotated:
        annotation, reducer = _take_reducer(name, annotation, problems)
    if reducer is operator.add and _base(annotation) is list:
        reducer = reducers.append  # the same merge, and only the new items are written
    if reducer is reducers.append:
        _check_append(name, annotation, default, problems)
    return Field(
        name=name,
        annotation=annotation,
        reducer=reducer,
        default=default,
        is_default_stable=is_default_stable,
    )


def _take_reducer(name: str, annotation: Any, problems: list[str]) -> tuple[Any, Any]:
    """Return the annotation without its reducer, and the reducer or None."""
    found = []
    kept = []
    for each in annotation.__metadata__:
        if callable(each) and not isinstance(each, type):
            found.append(operator.add if each is reducers.add else each)
        elif isinstance(each, _NOT_REDUCERS) or (isinstance(each, str) and each in _REDUCER_NAMES):
            problems.append(
                f"field {name!r}: {each!r} is not a reducer; name a function of (old, new), such "
                "as perdure.append, add, merge or replace"
            )
        else:
            kept.append(each)
    if len(found) > 1:
        names = " and ".join(getattr(each, "__name__", repr(each)) for each in found)
        problems.append(f"field {name!r}: has the reducers {names}; keep one")
    problems.extend(
        f"field {name!r}: the reducer {getattr(each, '__name__', repr(each))} must take (old, new)"
        for each in found
        if not _takes_two(each)
    )
    inner = annotation.__origin__
    return (Annotated[(inner, *kept)] if kept else inner), (found[0] if found else None)


def _takes_two(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin that tells no signature
    return True


def _check_append(
    name: str, annotation: Any, default: Callable[[], Any] | None, problems: list[str]
) -> None:
    base = _base(annotation)
    is_list = base in (list, Any) or getattr(base, "__qualname__", "").endswith("Sequence")
    if not is_list:
        problems.append(
            f"field {name!r}: append needs a list, and it is {type_text(annotation)}; declare "
            "list[...] or use another reducer"
        )
    elif default is not None and not isinstance(default(), list):
        problems.append(
            f"field {name!r}: append needs a list to begin with; use "
            "field(default_factory=list) as its default"
        )
