"""From the shape of a state type to the channels and the input reader of a plan."""

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.plan import Channel
from perdure.errors import UpdateInvalid
from perdure.graph import reducers
from perdure.graph._checks import Check, Mismatch, compile_check, got_text
from perdure.graph._state import Field, StateShape
from perdure.graph._text import did_you_mean, names_text, type_text
from perdure.model import WriteOp

_PLAIN = frozenset({str, int, float, bool, bytes, list, dict, set, tuple})
# Reducers whose new value is of the field's own type. Any other reducer may take what it likes
# (one item for a set, say), so only itself can check it.
_SAME_TYPE: tuple[Any, ...] = (operator.add, operator.or_, reducers.merge)


def make_channels(graph: str, shape: StateShape) -> dict[str, Channel]:
    """Return the channels of a state, in declaration order."""
    return {
        field.name: _channel(graph, field, is_pydantic=shape.is_pydantic) for field in shape.fields
    }


def _channel(graph: str, field: Field, *, is_pydantic: bool) -> Channel:
    reducer = field.reducer
    if reducer is None or reducer is reducers.replace:
        op = WriteOp.REPLACE
    elif reducer is reducers.append:
        op = WriteOp.APPEND
    else:
        op = WriteOp.FOLD
    is_checked = op is not WriteOp.FOLD or reducer in _SAME_TYPE
    check = field_check(graph, field, op, is_pydantic=is_pydantic) if is_checked else None
    return Channel(
        name=field.name,
        op=op,
        reduce=reducer if op is WriteOp.FOLD else None,
        annotation=field.annotation,
        default=field.default,
        is_optional=field.is_optional,
        check=check,
    )


def field_check(
    graph: str, field: Field, op: WriteOp, *, is_pydantic: bool = False
) -> Check | None:
    """Return the check of one field, raising UpdateInvalid; None: everything is accepted."""
    annotation = field.annotation
    inner = pydantic_check(annotation) if is_pydantic else compile_check(annotation)
    is_append = op is WriteOp.APPEND
    if inner is None and not is_append:
        return None
    plain = annotation if annotation in _PLAIN else None

    def check(value: Any) -> Any:
        if type(value) is plain:
            return value
        if is_append and not isinstance(value, list):
            raise _no_list(graph, field, value)
        if inner is None:
            return value
        try:
            return inner(value)
        except Mismatch as mismatch:
            raise _refusal(graph, field, mismatch) from None
        except RecursionError:
            return value  # too deep to be stored: the codec says so, and where

    return check


def _no_list(graph: str, field: Field, value: Any) -> UpdateInvalid:
    return UpdateInvalid(
        f"graph {graph!r}, field {field.name!r}: append needs a list of new items, got "
        f"{got_text(value)}; nothing was written. Wrap it: {{{field.name!r}: [item]}}",
        graph=graph,
        field=field.name,
        expected="list",
        got=got_text(value),
    )


def _refusal(graph: str, field: Field, mismatch: Mismatch) -> UpdateInvalid:
    expected = type_text(field.annotation)
    place = f" at {mismatch.path}" if mismatch.path else ""
    return UpdateInvalid(
        f"graph {graph!r}, field {field.name!r}: expected {expected}, got {mismatch.got}{place}; "
        "nothing was written. Return a value of that type, or change the annotation",
        graph=graph,
        field=field.name,
        expected=expected,
        got=mismatch.got,
        is_inside=mismatch.is_inside,
    )


def pydantic_check(annotation: Any) -> Check | None:
    """Return the check by the annotation's classes and then by pydantic's rules, strict.

    What pydantic's validators would make of the value is dropped: a value enters as it is or not.
    """
    inner = compile_check(annotation)
    adapter = None if annotation in _PLAIN else _type_adapter(annotation)
    if adapter is None:
        return inner
    validate = adapter.validate_python
    error_class: Any = sys.modules["pydantic"].ValidationError

    def check(value: Any) -> Any:
        found = value if inner is None else inner(value)
        try:
            validate(found, strict=True)
        except error_class as error:
            raise _pydantic_mismatch(error) from None
        return found

    return check


def _pydantic_mismatch(error: Any) -> Mismatch:
    # Only the class of the input is told: its value may be a secret. For the same reason the error
    # itself is not chained.
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part!r}]" for part in first["loc"])
    return Mismatch(f"{got_text(first['input'])} ({first['msg']})", path)


def _type_adapter(annotation: Any) -> Any:
    pydantic: Any = sys.modules["pydantic"]
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    for options in ({}, {"config": config}):
        try:
            return pydantic.TypeAdapter(annotation, **options)
        except (pydantic.PydanticUserError, pydantic.PydanticSchemaGenerationError, NameError):
            continue
    return None


def make_read_input(
    graph: str, state_type: Any, shape: StateShape, channels: Mapping[str, Channel]
) -> Callable[[Any, bool], dict[str, Any]]:
    """Return the plan's `read_input`; see `GraphPlan`."""
    fields = {field.name: field for field in shape.fields}
    unstable = [
        (field.name, field.default)
        for field in shape.fields
        if field.default is not None and not field.is_default_stable
    ]
    required = [
        field.name for field in shape.fields if field.default is None and not field.is_optional
    ]

    def complete(values: dict[str, Any]) -> None:
        missing = [name for name in required if name not in values]
        if missing:
            raise _missing_fields(graph, missing)
        for name, default in unstable:
            if name not in values:
                values[name] = default()

    def read_input(given: Any, is_first: bool) -> dict[str, Any]:  # noqa: FBT001 - the plan's form
        values = _given_values(graph, state_type, shape, given, is_first=is_first)
        unknown = [name for name in values if name not in fields]
        if unknown:
            raise _unknown_fields(graph, unknown, fields)
        if is_first:
            complete(values)
        for name, value in values.items():
            check = channels[name].check
            if check is not None:
                values[name] = check(value)
        return values

    return read_input


def _given_values(
    graph: str, state_type: Any, shape: StateShape, given: Any, *, is_first: bool
) -> dict[str, Any]:
    # The values of a TypedDict are mappings; it has no instances to ask for.
    if shape.read is getattr and isinstance(given, state_type):
        return _read_object(given, shape, is_first=is_first)
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise _wrong_input(graph, state_type, given)


def _read_object(given: Any, shape: StateShape, *, is_first: bool) -> dict[str, Any]:
    values = {field.name: shape.read(given, field.name) for field in shape.fields}
    if is_first:
        return values
    return {
        field.name: values[field.name]
        for field in shape.fields
        if not _is_default(field, values[field.name])
    }


def _is_default(field: Field, value: Any) -> bool:
    if field.default is None:
        return False
    default = field.default()
    try:
        return value is default or (type(value) is type(default) and bool(value == default))
    except (TypeError, ValueError):
        return False  # arrays and the like do not say whether they are equal


def _wrong_input(graph: str, state_type: Any, given: Any) -> UpdateInvalid:
    expected = type_text(state_type)
    return UpdateInvalid(
        f"graph {graph!r}: the input must be a {expected}, a mapping of its fields, or None; got "
        f"{got_text(given)}",
        graph=graph,
        expected=expected,
        got=got_text(given),
    )


def _unknown_fields(graph: str, unknown: list[Any], fields: Mapping[str, Field]) -> UpdateInvalid:
    hint = did_you_mean(str(unknown[0]), fields) if len(unknown) == 1 else ""
    noun = "field" if len(unknown) == 1 else "fields"
    return UpdateInvalid(
        f"graph {graph!r}: the input has the unknown {noun} {names_text(map(str, unknown))}; the "
        f"state has {names_text(fields)}.{hint}",
        graph=graph,
        unknown=[str(name) for name in unknown],
    )


def _missing_fields(graph: str, missing: list[str]) -> UpdateInvalid:
    noun = "field" if len(missing) == 1 else "fields"
    return UpdateInvalid(
        f"graph {graph!r}: the input lacks the required {noun} {names_text(missing)}; give "
        "them, or declare defaults",
        graph=graph,
        missing=missing,
    )
