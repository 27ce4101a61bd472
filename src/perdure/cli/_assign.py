"""`--set path=value`: places in a typed state, and the fields that change with them."""

import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from perdure.cli._input import parse_json
from perdure.errors import UpdateInvalid, UsageError

Step = str | int

_STEP = re.compile(r'\.?([A-Za-z_]\w*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')
_HOW = 'a path is like notes[0], order.items[2].price or prices["a b"]'


def parse_assignment(text: str) -> tuple[list[Step], Any]:
    """Return the path and the value of `path=JSON`.

    Raises:
        UsageError: it has no `=`, or one of the two can't be read.
    """
    path, mark, value = _split(text)
    if not mark:
        msg = f"--set {text!r}: write path=JSON; {_HOW}"
        raise UsageError(msg, option="--set")
    return parse_path(path), parse_json(value, f"--set {path}=")


def _split(text: str) -> tuple[str, str, str]:
    """Cut at the first `=` that is not inside of a quoted key."""
    at = 0
    while found := _STEP.match(text, at):
        at = found.end()
    return (text[:at], "=", text[at + 1 :]) if text[at : at + 1] == "=" else text.partition("=")


def parse_path(text: str) -> list[Step]:
    """Return the steps of a path: names and keys as text, places in lists as numbers.

    Raises:
        UsageError: it is no path.
    """
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (not steps and (found[1] is None or text[0] == ".")):
            msg = f"--set: {text!r} is no path (from {text[at:]!r} on); {_HOW}"
            raise UsageError(msg, option="--set", path=text)
        name, index, key = found.groups()
        steps.append(name or (int(index) if index else json.loads(key)))
        at = found.end()
    if not steps:
        msg = f"--set: a path is missing; {_HOW}"
        raise UsageError(msg, option="--set")
    return steps


def assigned(
    values: Mapping[str, Any], assignments: list[tuple[list[Step], Any]], fields: list[str]
) -> dict[str, Any]:
    """Return the fields that change, as plain JSON with the assignments made.

    Args:
        values: the state, by field.
        assignments: (path, JSON) in order.
        fields: names of the fields that the state may have.

    Raises:
        UpdateInvalid: a path leads nowhere; says what there is.
    """
    changed: dict[str, Any] = {}
    for (first, *rest), value in assignments:
        if first not in fields:
            msg = f"--set: the state has no field {first!r}; it has: {', '.join(fields)}"
            raise UpdateInvalid(msg, field=str(first))
        name = str(first)
        if not rest:
            changed[name] = value
            continue
        if name not in values:
            msg = f"--set: field {name!r} has no value yet; set all of it: --set '{name}=JSON'"
            raise UpdateInvalid(msg, field=name)
        if name not in changed:
            changed[name] = _as_json(values[name], name)
        _put(changed[name], values[name], rest, value, name)
    return changed


def _put(plain: Any, typed: Any, path: list[Step], value: Any, place: str) -> None:
    """Set a place inside of a plain value; `typed`: the same value as the state has it."""
    for number, step in enumerate(path):
        is_last = number == len(path) - 1
        _check_step(plain, typed, step, place, may_add=is_last)
        place = f"{place}[{step}]" if isinstance(step, int) else f"{place}.{step}"
        if is_last:
            plain[step] = value
            return
        plain, typed = plain[step], _inner(typed, step)


def _check_step(plain: Any, typed: Any, step: Step, place: str, *, may_add: bool) -> None:
    """Refuse a step that leads nowhere. Only a map takes new keys: an object's fields are fixed."""
    if isinstance(plain, dict) and isinstance(step, str):
        if step in plain or (may_add and isinstance(typed, Mapping)):
            return
        there = f"it has: {', '.join(map(str, plain)) or 'nothing'}"
        msg = f"--set: {place} has no {step!r}; {there}"
    elif isinstance(plain, list) and isinstance(step, int) and not isinstance(typed, AbstractSet):
        if step < len(plain):
            return
        msg = f"--set: {place} has no item {step}; it has {len(plain)}: set all of it to add one"
    else:
        msg = f"--set: {place} is a {type(typed).__name__} and has no {step!r} to be set"
    raise UpdateInvalid(msg, field=place)


def _inner(typed: Any, step: Step) -> Any:
    """Return the typed value inside; what can't be followed is not known."""
    if isinstance(typed, Mapping):
        return next((item for key, item in typed.items() if str(key) == step), None)
    if isinstance(step, int):
        return typed[step] if isinstance(typed, list | tuple) else None
    return getattr(typed, step, None)


def _as_json(value: Any, name: str) -> Any:
    def dumped(inner: Any) -> Any:
        """Return a model of pydantic as JSON."""
        dump = getattr(inner, "model_dump", None)
        if not callable(dump):
            raise _no_json(name, f"{type(inner).__name__} has no form in JSON")
        return dump(mode="json")

    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=dumped)
    except TypeError as error:
        raise _no_json(name, str(error)) from error


def _no_json(name: str, why: str) -> UpdateInvalid:
    msg = f"--set: field {name!r} can't be written as JSON ({why}); set all of it"
    return UpdateInvalid(msg, field=name)
