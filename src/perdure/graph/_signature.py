"""What a function takes and gives: read once, when it is declared."""

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.plan import Goto
from perdure.graph.limits import FRAMES_SEARCHED_MAX

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SignatureProblem(Exception):
    """A function that can't be called as its place needs; the text says what it must take."""


def bare(function: Any) -> Any:
    """Return the function under partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def default_name(function: Any) -> str:
    """Return the name that a function gives to what it is used for."""
    inner = bare(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return str(name)


def is_async_callable(function: Any) -> bool:
    """Return whether calling it gives an awaitable."""
    inner = bare(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - the method itself is wanted
    )


def is_generator_callable(function: Any) -> bool:
    """Return whether calling it gives a generator, which is never what is meant."""
    inner = bare(function)
    call = getattr(inner, "__call__", None)  # noqa: B004 - as above
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (inner, call)
    )


def is_context(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is the context, told by its name or annotation.

    By name only: the class lives in a room above this one.
    """
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    is_class = text.strip("'\"").rpartition(".")[2].partition("[")[0] == "Context"
    return parameter.name == "ctx" or (is_class and parameter.name != "state")


def caller_names() -> dict[str, Any]:
    """Return the local names of the calling functions, the nearest winning.

    For annotations written as text inside functions, whose module does not know them.
    """
    names: dict[str, Any] = {}
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller's names
    room = __name__.rpartition(".")[0]
    for _ in range(FRAMES_SEARCHED_MAX):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith(room):
            continue
        if frame.f_locals is not frame.f_globals:
            names = {**frame.f_locals, **names}
    return names


def is_resolved(cls: Any) -> bool:
    """Return whether the annotations of a class can be resolved by its module alone."""
    try:
        typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return False
    return True


def hints_of(function: Any, namespace: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the resolved annotations of a function, or nothing where they can't be resolved."""
    inner = bare(function)
    if not hasattr(inner, "__annotations__") and hasattr(inner, "__call__"):  # noqa: B004 - as above
        inner = inner.__call__
    local = dict(namespace) if namespace else None
    try:
        return typing.get_type_hints(inner, localns=local, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature, or raise SignatureProblem."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        msg = "its signature can't be read; wrap it in a function of (state) or (state, ctx)"
        raise SignatureProblem(msg) from error


def adapt(function: Callable[..., Any], first: str) -> tuple[Callable[..., Any], bool]:
    """Return the function as one of (first) or (first, ctx), and whether it takes the context.

    Args:
        function: takes (), (first), (first, ctx) or (ctx); the context may be keyword-only.
        first: what the first argument is called in messages.

    Raises:
        SignatureProblem: it takes anything else.
    """
    parameters = list(signature_of(function).parameters.values())
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    if not positional and any(each.kind is each.VAR_POSITIONAL for each in parameters):
        msg = f"it takes *args; use functools.wraps in its decorator, or take ({first}, ctx)"
        raise SignatureProblem(msg)
    needed = [each for each in positional if each.default is each.empty or is_context(each)]
    keyword = [
        each
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and (each.default is each.empty or is_context(each))
    ]
    if len(keyword) > 1 or any(not is_context(each) for each in keyword):
        names = ", ".join(each.name for each in keyword if not is_context(each))
        msg = f"it needs the keyword {names}; bind it with functools.partial"
        raise SignatureProblem(msg)
    if keyword and len(needed) > 1:
        raise _too_many(positional, first)
    if keyword:
        return _with_keyword(function, keyword[0].name, takes_first=bool(positional)), True
    return _with_positional(function, positional, needed, first)


def _with_keyword(
    function: Callable[..., Any], name: str, *, takes_first: bool
) -> Callable[..., Any]:
    if takes_first:
        return lambda first, ctx: function(first, **{name: ctx})
    return lambda first, ctx: function(**{name: ctx})  # noqa: ARG005 - the plan's form


def _with_positional(
    function: Callable[..., Any],
    positional: list[inspect.Parameter],
    needed: list[inspect.Parameter],
    first: str,
) -> tuple[Callable[..., Any], bool]:
    if not positional:
        return (lambda _first: function()), False
    if is_context(positional[0]) and len(needed) == 1:
        return (lambda _first, ctx: function(ctx)), True
    if len(positional) == 1 or (len(needed) <= 1 and not is_context(positional[1])):
        return function, False
    if len(needed) == 2 and needed[1] is positional[1]:  # noqa: PLR2004 - the two that a node takes
        return function, True
    if len(needed) == 1 and is_context(positional[1]):
        return function, True
    raise _too_many(positional, first)


def _too_many(positional: list[inspect.Parameter], first: str) -> SignatureProblem:
    names = ", ".join(each.name for each in positional)
    return SignatureProblem(f"it takes ({names}); take ({first}), ({first}, ctx) or nothing")


def goes_anywhere(function: Any) -> bool:
    """Return whether a function speaks of `Goto`, so that it may go where no edge goes."""
    inner = inspect.unwrap(bare(function))
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__code__"):
        inner = getattr(getattr(inner, "__call__", None), "__func__", None)  # noqa: B004 - as above
    waiting = [inner.__code__] if hasattr(inner, "__code__") else []
    known = getattr(inner, "__globals__", {})
    while waiting:
        code = waiting.pop()
        names = (*code.co_names, *code.co_freevars)
        if any(name == "Goto" or known.get(name) is Goto for name in names):
            return True
        waiting.extend(each for each in code.co_consts if inspect.iscode(each))
    return False
