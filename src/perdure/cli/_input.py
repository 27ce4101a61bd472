"""JSON from the command line, and from there to the types that a graph's state declares."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from perdure.codec.limits import DEPTH_MAX
from perdure.core.plan import GraphPlan
from perdure.errors import UpdateInvalid, UsageError


def parse_json(text: str, option: str) -> Any:
    """Return the value of an option: JSON, or `@file` with JSON in it (`@-`: stdin).

    Raises:
        UsageError: the file can't be read, or it is no JSON; says where.
    """
    source = text
    if text.startswith("@"):
        source = _read(text[1:], option)
    try:
        return json.loads(source, parse_constant=_refuse)
    except RecursionError as error:
        msg = f"{option}: the JSON is nested too deeply; Perdure stores {DEPTH_MAX} levels"
        raise UsageError(msg, option=option) from error
    except ValueError as error:
        hint = "" if text.startswith("@") else f"; a text needs quotes: {option} '\"...\"'"
        msg = f"{option}: {text!r} is no JSON: {error}{hint}"
        raise UsageError(msg, option=option) from error


def _refuse(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _read(name: str, option: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{option}: the file {name!r} can't be read: {error}"
        raise UsageError(msg, option=option, file=name) from error


def typed_input(plan: GraphPlan, given: Any) -> Any:
    """Return plain JSON as the input that a graph takes: each field as the type that it declares.

    Raises:
        UpdateInvalid: it is no object, or a field does not fit its type; names graph and field.
    """
    if given is None:
        return None
    if plan.is_function:
        return _typed(plan, "input", given)
    if not isinstance(given, dict):
        fields = ", ".join(plan.channels)
        msg = f"graph {plan.name!r}: the input must be a JSON object with some of: {fields}"
        raise UpdateInvalid(msg, graph=plan.name)
    return {name: _typed(plan, name, value) for name, value in given.items()}


def _typed(plan: GraphPlan, name: str, value: Any) -> Any:
    channel = plan.channels.get(name)
    if channel is None:
        return value  # the graph refuses it, and names the fields that there are
    try:
        return _converted(value, channel.annotation)
    except TypeError:
        return value  # not a type that msgspec knows (pydantic): the graph checks it itself
    except msgspec.ValidationError as error:
        msg = f"graph {plan.name!r}, field {name!r}: {error}; nothing was started"
        raise UpdateInvalid(msg, graph=plan.name, field=name) from error


def _converted(value: Any, annotation: Any) -> Any:
    try:
        return msgspec.convert(value, annotation)  # "7" for `str | int` stays text
    except msgspec.ValidationError:
        return msgspec.convert(value, annotation, strict=False)  # "7" for `int` becomes a number
