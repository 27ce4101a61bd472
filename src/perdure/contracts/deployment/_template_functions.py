"""What functions of charts' templates return; what they don't know stays open."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.contracts import limits

OPEN = "open-value-of"
"""Begins a word that stands for what a chart leaves open."""

Spend = Callable[[int], None]


class Open(Struct, frozen=True):
    """A value that nobody can say without the cluster, or that is not read here."""

    name: str


def text_of(value: Any) -> str:
    """Return a value as a template puts it out."""
    if isinstance(value, Open):
        name = re.sub(r"[^\w.\-]+", "-", value.name[:_NAME_MAX]).strip("-.").removeprefix("Values.")
        return f"{OPEN}-{name}"[:80]
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return f"{OPEN}-list" if isinstance(value, list) else f"{OPEN}-map"
    return str(value)[: limits.YAML_BYTES_MAX]


_NAME_MAX = 400
"""Characters of a name that are looked at."""


def truth_of(value: Any) -> bool | None:
    """Return whether a template takes a value for true; `None`: it is open."""
    return None if isinstance(value, Open) else bool(value)


def yaml_of(value: Any, spend: Spend) -> str:
    """Return a value as YAML in block style."""
    if isinstance(value, (dict, list)) and value:
        return "\n".join(_lines(value, spend, 0))
    spend(_weight(value))
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (str, Open)):
        return json.dumps(text_of(value))
    return text_of(value)


def _lines(value: Any, spend: Spend, depth: int) -> list[str]:
    if depth > limits.YAML_DEPTH_MAX or not isinstance(value, (dict, list)) or not value:
        spend(1 + _weight(value))
        return [_scalar(value)]
    found: list[str] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            lines = _lines(inner, spend, depth + 1)
            spend(1 + len(lines) + _weight(key))
            name = key if re.fullmatch(r"[A-Za-z_][\w./\-]*", str(key)) else json.dumps(str(key))
            if isinstance(inner, (dict, list)) and inner:
                found += [f"{name}:", *(f"  {line}" for line in lines)]
            else:
                found.append(f"{name}: {lines[0]}")
        return found
    for inner in value:
        lines = _lines(inner, spend, depth + 1)
        spend(1 + len(lines))
        found += [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return found


def looked_up(value: Any, path: Sequence[str], name: str) -> Any:
    """Return what is at a path of keys in a value; `None`: nothing is."""
    for key in path:
        if isinstance(value, Open):
            return Open(name)
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def called(name: str, arguments: list[Any], spend: Spend) -> Any:
    """Return what a function makes of its arguments; `Open`: it is not known here.

    What it reads and what it makes are charged by their length.
    """
    spend(sum(_weight(each) for each in arguments))
    if name == "has" and arguments and isinstance(arguments[-1], list):
        spend(len(arguments[-1]) * _weight(arguments[0]))
    made = _made(name, arguments, spend)
    spend(_weight(made))
    is_too_large = isinstance(made, int) and not _INTEGER_MIN <= made <= _INTEGER_MAX
    return Open(name) if is_too_large else made


def _weight(value: Any) -> int:
    """Return what reading or making a value counts for; names and short lists are free."""
    if isinstance(value, str):
        return len(value) // 20
    return len(value) // 4 if isinstance(value, (list, dict)) else 0


def _made(name: str, arguments: list[Any], spend: Spend) -> Any:
    made = _TOLERANT.get(name)
    if made is not None:
        return _tried(made, arguments, name)
    if name in _BLOCKS and arguments and not isinstance(arguments[-1], Open):
        if name in {"indent", "nindent"}:
            return _indented(name, arguments, spend)
        return yaml_of(arguments[-1], spend)
    open_one = next((each for each in arguments if isinstance(each, Open)), None)
    if open_one is not None:
        return open_one
    strict = _STRICT.get(name)
    return _tried(strict, arguments, name) if strict is not None else Open(name)


_BLOCKS = frozenset({"toYaml", "toJson", "toPrettyJson", "indent", "nindent"})
"""Functions that make lines of their own."""


def _tried(function: Callable[..., Any], arguments: list[Any], name: str) -> Any:
    try:
        return function(*arguments)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError):
        return Open(name)


def _indented(name: str, arguments: list[Any], spend: Spend) -> Any:
    width, text = arguments[0], text_of(arguments[-1])
    if not isinstance(width, int) or not 0 <= width <= _INDENT_MAX:
        return Open(name)
    spend(len(text) + width * text.count("\n"))
    padded = "\n".join(" " * width + line for line in text.split("\n"))
    return f"\n{padded}" if name == "nindent" else padded


_INDENT_MAX = 80
"""Spaces of an indent."""


def _default(value: Any, *given: Any) -> Any:
    chosen = given[0] if given else None
    return chosen if isinstance(chosen, Open) or chosen else value


def _coalesce(*values: Any) -> Any:
    return next((each for each in values if isinstance(each, Open) or each), None)


def _and(*values: Any) -> Any:
    if any(truth_of(each) is False for each in values):
        return False
    return next((each for each in values if isinstance(each, Open)), values[-1])


def _or(*values: Any) -> Any:
    sure = next((each for each in values if truth_of(each)), None)
    if sure is not None:
        return sure
    return next((each for each in values if isinstance(each, Open)), values[-1])


def _ternary(yes: Any, no: Any, asked: Any) -> Any:
    return asked if isinstance(asked, Open) else (yes if asked else no)


def _printf(form: str, *values: Any) -> str:
    left = list(values)

    def filled(found: re.Match[str]) -> str:
        if found.group() == "%%":
            return "%"
        value = left.pop(0) if left else ""
        return json.dumps(_short(value)) if found.group().endswith("q") else _short(value)

    return re.sub(r"%[-+\d.]{0,6}[a-zA-Z]|%%", filled, form[: limits.TEXT_MAX], count=_JOINED_MAX)


def _quoted(*values: Any) -> Any:
    if values == (None,):
        return Open("quote")  # what no file says
    return " ".join(json.dumps(_short(each)) for each in values[:_JOINED_MAX])


def _short(value: Any) -> str:
    return text_of(value)[: limits.TEXT_MAX]


_NEW_MAX = 40
"""Characters that another text may be replaced or joined by."""

_JOINED_MAX = 64
"""Values that are put together to one text."""


_TOLERANT: Mapping[str, Callable[..., Any]] = {
    "(": lambda value: value,
    "default": _default,
    "coalesce": _coalesce,
    "and": _and,
    "or": _or,
    "ternary": _ternary,
    "printf": _printf,
    "print": lambda *values: "".join(_short(each) for each in values[:_JOINED_MAX]),
    "quote": _quoted,
    "squote": _quoted,
    "toString": text_of,
    "list": lambda *values: list(values),
    "required": lambda _message, value: value,
    "lookup": lambda *_: {},
    "fail": lambda *_: "",
    "tuple": lambda *values: list(values),
}
"""Functions that know what to do with what is open."""


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (dict, list)) or isinstance(other, (dict, list)):
        return one is other
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other or text_of(one) == text_of(other)


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    text = text_of(value)
    if len(text) > limits.NUMBER_CHARACTERS_MAX:
        raise ValueError(text[:80])
    return float(text) if "." in text else _whole(text or 0)


_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1
"""Whole numbers of Go's templates have 64 bits."""


def _whole(value: Any) -> int:
    """Return a whole number; one that has no place in 64 bits is not known."""
    number = int(value)
    if not _INTEGER_MIN <= number <= _INTEGER_MAX:
        raise OverflowError
    return number


def _wrapped(number: Any) -> Any:
    """Return what is left of a whole number in 64 bits, as in Go."""
    if isinstance(number, float):
        return number
    return (number - _INTEGER_MIN) % 2**64 + _INTEGER_MIN


def _trimmed(signs: Any, text: Any) -> str:
    if len(signs) > _NEW_MAX:
        raise ValueError(signs[:_NEW_MAX])
    return text_of(text).strip(signs)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, Mapping):
            value = value.get(key)
        else:
            return None
    return value


def _dict(*words: Any) -> dict[str, Any]:
    return {text_of(key): value for key, value in zip(words[::2], words[1::2], strict=False)}


def _merged(*parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            found.setdefault(key, value)
    return found


_KINDS: Mapping[str, tuple[type, ...]] = {
    "map": (dict,), "slice": (list,), "string": (str,), "bool": (bool,), "int": (int,),
    "int64": (int,), "float64": (int, float), "invalid": (type(None),),
}  # fmt: skip


_STRICT: Mapping[str, Callable[..., Any]] = {
    "not": lambda value: not value,
    "empty": lambda value: not value,
    "eq": lambda one, *others: any(_same(one, each) for each in others),
    "ne": lambda one, other: not _same(one, other),
    "lt": lambda one, other: _number(one) < _number(other),
    "le": lambda one, other: _number(one) <= _number(other),
    "gt": lambda one, other: _number(one) > _number(other),
    "ge": lambda one, other: _number(one) >= _number(other),
    "int": lambda value: _whole(_number(value)),
    "int64": lambda value: _whole(_number(value)),
    "float64": lambda value: float(_number(value)),
    "atoi": lambda text: _whole(_number(text_of(text))),
    "trunc": lambda count, text: text_of(text)[:count],
    "trim": lambda text: text_of(text).strip(),
    "trimAll": _trimmed,
    "trimSuffix": lambda end, text: text_of(text).removesuffix(end),
    "trimPrefix": lambda begin, text: text_of(text).removeprefix(begin),
    "replace": lambda old, new, text: _short(text).replace(old, new[:_NEW_MAX])[: limits.TEXT_MAX],
    "lower": lambda text: text_of(text).lower(),
    "upper": lambda text: text_of(text).upper(),
    "title": lambda text: text_of(text).title(),
    "kebabcase": lambda text: text_of(text).replace("_", "-").lower(),
    "contains": lambda part, text: part in text_of(text),
    "hasPrefix": lambda begin, text: text_of(text).startswith(begin),
    "hasSuffix": lambda end, text: text_of(text).endswith(end),
    "splitList": lambda sign, text: text_of(text).split(sign),
    "join": lambda sign, values: sign[:_NEW_MAX].join(_short(v) for v in values[:_JOINED_MAX]),
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
    "len": len,
    "index": _index,
    "get": lambda value, key: value.get(key, ""),
    "hasKey": lambda value, key: key in value.keys(),  # noqa: SIM118  # of no list, and no text
    "keys": sorted,
    "has": lambda one, values: any(_same(one, each) for each in values),
    "dict": _dict,
    "merge": _merged,
    "deepCopy": lambda value: value,
    "concat": lambda *parts: [each for part in parts for each in part][: limits.SOURCES_MAX],
    "append": lambda values, one: [*values, one],
    "uniq": lambda values: values,
    "kindIs": lambda kind, value: isinstance(value, _KINDS[kind]),
    "add": lambda *values: _wrapped(sum(_number(each) for each in values)),
    "add1": lambda value: _wrapped(_number(value) + 1),
    "sub": lambda one, other: _wrapped(_number(one) - _number(other)),
    "mul": lambda one, other: _wrapped(_number(one) * _number(other)),
    "div": lambda one, other: _wrapped(_number(one) // _number(other)),
    "max": lambda *values: max(_number(each) for each in values),
    "min": lambda *values: min(_number(each) for each in values),
    "until": lambda count: list(range(min(int(count), limits.SOURCES_MAX))),
    "sha256sum": lambda _text: "sum",
    "b64enc": lambda text: Open(f"b64enc {text_of(text)[:20]}"),
}
"""Functions that know nothing of what is open."""
