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
    is_simple = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in kept)
    names = tuple(each.name for each in kept)
    least = sum(each.default is each.empty for each in kept)
    most = len(kept)

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        count = len(args)
        if is_simple and count + len(kwargs) <= most:
            if not kwargs and count >= least:
                return args, {}
            # All that is left, by position, when it is exactly the next parameters.
            following = names[count : count + len(kwargs)]
            if kwargs.keys() == set(following) and count + len(kwargs) >= least:
                return (*args, *(kwargs[each] for each in following)), {}
        return _bind_by_signature(name, bare, args, kwargs)

    return bind


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
