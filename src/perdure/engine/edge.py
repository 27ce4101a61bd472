"""The edge of the public API: arguments of a wrong type are refused before anything is done.

Theory: what a method takes is written once, in its annotations; `checked` reads them at the first
call. It looks at types, and at what no store can hold (integers beyond 64 bits, texts that are no
Unicode or hold NUL). What else a value must be is said where it is used. `Any` and protocols are
left to whoever reads them: they say what they take themselves.
"""

import datetime as dt
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union, cast

from perdure.errors import SettingInvalid

F = TypeVar("F", bound=Callable[..., Any])

INT_MAX = 2**63 - 1
"""Largest integer that every store can hold."""

SHOWN_CHARS_MAX = 80
"""Longest value in a message."""

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    dt.timedelta: "a timedelta",
    type(None): "None",
}


_ANYTHING: tuple[Any, ...] = (Any, object)


def checked(function: F) -> F:
    """Return a public method that refuses arguments whose types are not those of its annotations.

    Raises (the method does):
        SettingInvalid: names the method, the argument and what it must be; nothing was done.
    """
    checks: list[tuple[str, tuple[Any, ...]]] = []

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse the first argument that does not fit; those that are missing are Python's."""
        if not checks:
            checks.extend(_checks_of(function))
        for (name, kinds), value in zip(checks, args, strict=False):
            _check(function, name, kinds, value)
        if kwargs:
            for name, kinds in checks:
                if name in kwargs:
                    _check(function, name, kinds, kwargs[name])

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            look(args, kwargs)
            return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            look(args, kwargs)
            return function(*args, **kwargs)

    return cast("F", call)


def check_limit(method: str, limit: int) -> None:
    """Refuse a limit that lets nothing through, or that some store would take for none.

    Raises:
        SettingInvalid: it is below 1.
    """
    if limit < 1:
        msg = f"{method}(limit={limit}): must be at least 1"
        raise SettingInvalid(msg, argument="limit")


def _checks_of(function: Callable[..., Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the parameters in their order, with the types that each takes; none: any."""
    hints = typing.get_type_hints(function)
    names = inspect.signature(function).parameters
    return [(name, _kinds(hints.get(name, Any))) for name in names]


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the classes that an annotation allows; empty: it can't be told from a class."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        several = [_kinds(each) for each in typing.get_args(hint)]
        return () if () in several else tuple(kind for each in several for kind in each)
    hint = typing.get_origin(hint) or hint
    is_protocol = getattr(hint, "_is_protocol", False) and not issubclass(hint, Iterable)
    is_class = isinstance(hint, type) and hint not in _ANYTHING and not is_protocol
    return (hint,) if is_class else ()


def _check(function: Callable[..., Any], name: str, kinds: tuple[Any, ...], value: Any) -> None:
    if kinds and not _fits(value, kinds):
        raise _refusal(function, name, kinds, value)


def _fits(value: Any, kinds: tuple[Any, ...]) -> bool:
    kind = type(value)
    if kind is str:
        return str in kinds and is_text(value)
    if kind is int:
        return float in kinds or (int in kinds and -INT_MAX <= value <= INT_MAX)
    return kind in kinds or any(_is_of(value, each) for each in kinds)


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value counts as of a type: a bool is no number."""
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, str | bytes) and kind in {Iterable, Mapping}:
        return False
    return isinstance(value, kind)


def is_text(value: Any) -> bool:
    """Return whether a value is a text that every store can hold."""
    return isinstance(value, str) and (value.isprintable() or _is_storable(value))


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _refusal(
    function: Callable[..., Any], name: str, kinds: tuple[Any, ...], value: Any
) -> SettingInvalid:
    words = dict.fromkeys(_words(kind) for kind in kinds)
    must = " or ".join(words)
    if type(value) is int and int in kinds:
        must += " of at most 64 bits"
    elif type(value) is str and str in kinds:
        must += " that is Unicode and holds no NUL"
    shown = ascii(value)
    if len(shown) > SHOWN_CHARS_MAX:
        shown = f"{shown[:SHOWN_CHARS_MAX]}..."
    got = type(value).__name__
    msg = f"{function.__name__}({name}={shown}): must be {must}, not {got}; nothing was done"
    return SettingInvalid(msg, argument=name, got=got)


def _words(kind: Any) -> str:
    return _WORDS.get(kind) or f"a {kind.__name__}"
