"""One form for the arguments of a call, however they were written."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import UsageError

Bound = tuple[tuple[Any, ...], dict[str, Any]]

FILLED_IN = ("idempotency_key", "transaction", "sandbox")
"""Parameters of an effect that the runtime fills in; no part of what the call means."""


def make_bind(
    name: str, signature: inspect.Signature
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Bound]:
    """Return (args, kwargs) -> canonical (args, kwargs).

    What can be given by position is, as far as no earlier one is left out; the rest is by name, in
    the order declared. Defaults are not filled in: a changed default must not change the identity
    of recorded calls.
    """
    kept = [each for each in signature.parameters.values() if each.name not in FILLED_IN]
    bare = signature.replace(parameters=kept)
    # *args, **kwargs and positional-only parameters are rare, and left to inspect.
    is_usual = all(each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in kept)
    names = tuple(each.name for each in kept if each.kind is each.POSITIONAL_OR_KEYWORD)
    keyword_only = tuple(each.name for each in kept if each.kind is each.KEYWORD_ONLY)
    required = frozenset(each.name for each in kept if each.default is each.empty)
    least = sum(name in required for name in names)
    most = len(names)
    is_by_position = is_usual and required.isdisjoint(keyword_only)

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        if not kwargs and is_by_position and least <= len(args) <= most:
            return args, {}
        if is_usual and len(args) <= most:
            placed, rest = _place(args, kwargs, names, keyword_only)
            is_whole = len(args) + len(kwargs) == len(placed) + len(rest)
            if is_whole and required.issubset((*names[: len(placed)], *rest)):
                return tuple(placed), rest
        return _bind_by_signature(name, bare, args, kwargs)

    return bind


def _place(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: tuple[str, ...],
    keyword_only: tuple[str, ...],
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that have a position, and the rest by name."""
    placed = list(args)
    rest: dict[str, Any] = {}
    for each in names[len(args) :]:
        if each not in kwargs:
            continue
        # After a gap the position is lost, as in BoundArguments.args.
        if names[len(placed)] == each:
            placed.append(kwargs[each])
        else:
            rest[each] = kwargs[each]
    for each in keyword_only:
        if each in kwargs:
            rest[each] = kwargs[each]
    return placed, rest


def _bind_by_signature(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Bound:
    for each in FILLED_IN:
        if each in kwargs:
            msg = f"effect {name!r}: {each} is filled in by the runtime; leave it out of the call"
            raise UsageError(msg, effect=name, parameter=each)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        msg = f"effect {name!r}: {error}; it takes {_parameters_text(signature)}"
        raise UsageError(msg, effect=name) from None
    return bound.args, _with_sorted_extras(signature, bound.kwargs)


def _with_sorted_extras(signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return kwargs with those caught by **kwargs last and in order of their names."""
    extras = sorted(name for name in kwargs if name not in signature.parameters)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    return {**known, **{name: kwargs[name] for name in extras}}


def _parameters_text(signature: inspect.Signature) -> str:
    plain = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))
