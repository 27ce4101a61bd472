"""Effects: functions that act on the outside world, with what they declare about it.

The kind says what the runtime may do when it doesn't know whether a call went through; see
`EffectKind`. What a kind needs (a key parameter, a `reconcile`) is checked when it is declared:
after a crash it would be too late.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from msgspec import Struct

from perdure.core.retry import Retry
from perdure.errors import GraphInvalid
from perdure.graph._binding import FILLED_IN, Bound, make_bind
from perdure.graph._signature import (
    SignatureProblem,
    bare,
    hints_of,
    is_async_callable,
    is_generator_callable,
    signature_of,
)
from perdure.graph._text import NAME_RULE, is_duration, is_name
from perdure.graph._types import collect_types
from perdure.model import EffectKind

P = ParamSpec("P")
R = TypeVar("R")

RETRY_RESENDABLE = Retry(max_attempts=4, base_s=0.2, cap_s=20.0)
"""Used where none is declared and a second call does no harm: pure, keyed and lookup effects."""

RETRY_NONE = Retry(max_attempts=1)
"""Used where none is declared and a second call could act twice, or is the node's to make."""

_RESENDABLE = frozenset({EffectKind.PURE, EffectKind.KEYED, EffectKind.LOOKUP})


class Found(Struct, frozen=True):
    """What `reconcile` returns when the act did happen.

    Attributes:
        result: what the effect would have returned.
    """

    result: Any = None


class Absent(Struct, frozen=True):
    """What `reconcile` returns when the act did not happen, and will not: it can be sent again."""


class Unknown(Struct, frozen=True):
    """What `reconcile` returns when it can't tell yet: it is asked again later, then a person.

    Attributes:
        reason: shown to the person.
    """

    reason: str = ""


class Request(Struct, frozen=True):
    """The call that `reconcile` is asked about.

    Attributes:
        args: positional arguments in canonical form.
        kwargs: the arguments given by name.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Limit(Struct, frozen=True):
    """How many calls run at once in a worker.

    Attributes:
        concurrency: at least 1.
        group: effects of the same group share the limit, as those of one host do; None: this
            effect alone.
    """

    concurrency: int
    group: str | None = None


_BY_NAME: "weakref.WeakValueDictionary[str, Effect[Any, Any]]" = weakref.WeakValueDictionary()


def effect_named(name: str) -> "Effect[Any, Any] | None":
    """Return the newest effect declared in this process under a name, or None.

    For work on the ledger (compensation), where only the stored name is at hand.
    """
    return _BY_NAME.get(name)


class Effect(Generic[P, R]):
    """A function and what it declares. Calling it runs the function, without any record.

    Attributes:
        name: stable part of the identity of its calls; by default the function's qualified name.
        kind: what the runtime may do when the outcome of a call is not known.
        function: the user's function.
        is_async: whether calling it gives an awaitable; a plain one runs in an OS thread.
        retry: as declared, None: by kind; see `effective_retry`.
        timeout_s: longest duration of one attempt in seconds, None: no limit.
        reconcile: (request, key) -> Found, Absent or Unknown; plain or async.
        compensate: function or effect that counters a confirmed call.
        limit: how many calls run at once in a worker, None: no limit.
        rejects: exception classes that mean: known not to have happened.
        takes_key, takes_transaction, takes_sandbox: which parameters the runtime fills in.
        result_type: the return annotation, Any where there is none.
        types: classes in the annotations, for the codec to register.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        kind: EffectKind | str = EffectKind.ONCE,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        reconcile: Callable[..., Any] | None = None,
        compensate: Any = None,
        limit: int | Limit | None = None,
        name: str | None = None,
        rejects: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        """Keep the declaration.

        Raises:
            GraphInvalid: with one line for each thing that does not fit.
        """
        self.function = function
        self.name = name if name is not None else _default_name(function)
        self.is_async = is_async_callable(function)
        self.retry = retry
        self.timeout_s = timeout_s
        self.reconcile = reconcile
        self.compensate = compensate
        self.limit = Limit(limit) if isinstance(limit, int) else limit
        self.rejects = rejects if isinstance(rejects, tuple) else (rejects,)
        self.kind, signature = _check(self, kind)
        parameters = signature.parameters
        self.takes_key = "idempotency_key" in parameters
        self.takes_transaction = "transaction" in parameters
        self.takes_sandbox = "sandbox" in parameters
        hints = hints_of(function)
        self.result_type: Any = hints.get("return", Any)
        kept = [hint for parameter, hint in hints.items() if parameter not in FILLED_IN]
        self.types: tuple[type, ...] = collect_types(kept)
        self._bind = make_bind(self.name, signature)
        functools.update_wrapper(self, bare(function), updated=())
        _BY_NAME[self.name] = self

    @property
    def effective_retry(self) -> Retry:
        """The retry declared, else the default of the kind."""
        if self.retry is not None:
            return self.retry
        return RETRY_RESENDABLE if self.kind in _RESENDABLE else RETRY_NONE

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function: nothing is recorded. In a node use `ctx.call`."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Effect({self.name!r}, kind={self.kind.value!r})"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        """Return the arguments in canonical form, the same however the call was written.

        Defaults are not filled in; what the runtime fills in is left out.

        Raises:
            UsageError: the function can't be called so; nothing was recorded.
        """
        return self._bind(args, kwargs)


@overload
def effect(function: Callable[P, R], /) -> Effect[P, R]: ...


@overload
def effect(
    *,
    kind: EffectKind | str = EffectKind.ONCE,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    reconcile: Callable[..., Any] | None = None,
    compensate: Any = None,
    limit: int | Limit | None = None,
    name: str | None = None,
    rejects: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> Callable[[Callable[P, R]], Effect[P, R]]: ...


def effect(function: Any = None, /, **options: Any) -> Any:
    """Declare an effect, as `@effect` (kind once) or `@effect(kind=..., ...)`.

    Args:
        function: async or plain; parameters called `idempotency_key`, `transaction` and `sandbox`
            are filled in by the runtime.
        options: `kind`, `retry`, `timeout_s`, `reconcile`, `compensate`, `limit`, `name` and
            `rejects`; see `Effect`.

    Returns:
        An `Effect`, or a decorator that makes one.

    Raises:
        GraphInvalid: the kind lacks what it needs, or an option is out of range.
    """
    if function is not None:
        return Effect(function, **options)
    return functools.partial(_declare, options)


def _declare(options: dict[str, Any], function: Callable[P, R]) -> Effect[P, R]:
    return Effect(function, **options)


_KEPT_AS = "__perdure_effect__"


def as_effect(function: Any) -> Effect[Any, Any]:
    """Return an effect as it is, and a plain function as one of kind `once`.

    Raises:
        GraphInvalid: neither, or a function without a stable name.
    """
    if isinstance(function, Effect):
        return function
    known = getattr(function, _KEPT_AS, None)
    # functools.wraps copies attributes, so the one found may be that of the wrapped function.
    if isinstance(known, Effect) and known.function is function:
        return known
    made: Effect[Any, Any] = Effect(function)
    if inspect.isfunction(function):
        # Kept on the function and not in a table, so that both go together.
        setattr(function, _KEPT_AS, made)
    return made


def _default_name(function: Any) -> str:
    inner = bare(function)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return str(name).replace("<locals>.", "")


def _check(declared: Any, kind: EffectKind | str) -> tuple[EffectKind, inspect.Signature]:
    """Return the kind and the signature, or raise with all that is wrong."""
    problems: list[str] = []
    if not callable(declared.function) or inspect.isclass(declared.function):
        problems.append("it is not a function; decorate an async or plain function")
    elif is_generator_callable(declared.function):
        problems.append("it is a generator; return the whole result")
    if not is_name(declared.name):
        problems.append(f"can't be a name; {NAME_RULE}; give one with name=")
    found = _kind(kind, problems)
    signature = inspect.Signature()
    try:
        signature = signature_of(declared.function)
    except SignatureProblem:
        problems.append("its signature can't be read; wrap it in a function")
    _check_needs(declared, found, signature, problems)
    _check_options(declared, found, problems)
    _check_filled_in(signature, problems)
    if problems:
        lines = [f"effect {declared.name!r}: {line}" for line in problems]
        raise GraphInvalid("\n".join(lines), effect=declared.name, problems=lines)
    return found, signature


def _kind(kind: EffectKind | str, problems: list[str]) -> EffectKind:
    try:
        return EffectKind(kind)
    except ValueError:
        kinds = ", ".join(each.value for each in EffectKind)
        problems.append(f"unknown kind {kind!r}; the kinds are {kinds}")
        return EffectKind.PURE  # asks for nothing more, so no line follows from this one


def _check_needs(
    declared: Any,
    kind: EffectKind,
    signature: inspect.Signature,
    problems: list[str],
) -> None:
    parameters = signature.parameters
    if kind is EffectKind.LOOKUP and declared.reconcile is None:
        problems.append(
            "kind 'lookup' needs reconcile=, a function (request, key) -> Found(result), Absent() "
            "or Unknown(reason)"
        )
    if kind is EffectKind.KEYED and "idempotency_key" not in parameters:
        problems.append(
            "kind 'keyed' needs a parameter idempotency_key; add `*, idempotency_key: str` and "
            "send it along, or declare kind 'lookup' or 'once'"
        )
    if kind is EffectKind.TRANSACTION and "transaction" not in parameters:
        problems.append(
            "kind 'transaction' needs a parameter transaction; add `*, transaction` and write "
            "through it"
        )
    if kind is EffectKind.TRANSACTION and not is_async_callable(declared.function):
        problems.append(
            "kind 'transaction' needs an async function: `await transaction.execute(...)`; what a "
            "plain one writes would never be sent"
        )
    retries = declared.retry
    if kind is EffectKind.ONCE and isinstance(retries, Retry) and retries.max_attempts != 1:
        problems.append(
            f"retry=Retry(max_attempts={retries.max_attempts}) on kind 'once' would send blindly "
            "again; declare kind 'keyed' (with an idempotency_key) or 'lookup' (with reconcile=), "
            "or max_attempts=1"
        )


def _check_options(declared: Any, kind: EffectKind, problems: list[str]) -> None:
    if declared.retry is not None and not isinstance(declared.retry, Retry):
        problems.append(f"retry={declared.retry!r} is not a Retry; write Retry(max_attempts=3)")
    if declared.timeout_s is not None and not is_duration(declared.timeout_s):
        problems.append(f"timeout_s={declared.timeout_s!r} must be seconds above 0, or None")
    for option in ("reconcile", "compensate"):
        given = getattr(declared, option)
        if given is not None and not callable(given):
            problems.append(f"{option}={given!r} is not a function; give a function or an effect")
        elif given is not None and not _takes(given, _CALLED_WITH[option]):
            wanted = ", ".join(_CALLED_WITH[option])
            problems.append(f"{option}= must take ({wanted}); see the guide")
    if declared.compensate is not None and kind is EffectKind.PURE:
        problems.append("kind 'pure' leaves nothing outside that compensate= could counter")
    _check_limit(declared.limit, problems)
    problems.extend(
        f"rejects: {each!r} is not an exception class; name classes"
        for each in declared.rejects
        if not (isinstance(each, type) and issubclass(each, BaseException))
    )


_CALLED_WITH = {"reconcile": ("request", "key"), "compensate": ("request", "result")}


def _takes(function: Any, names: tuple[str, ...]) -> bool:
    """Return whether a function can be called with these, by position."""
    called = function.function if isinstance(function, Effect) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return True  # can't be read: found out when it is called
    filled = {name: None for name in FILLED_IN if name in signature.parameters}
    try:
        signature.bind(*names, **filled)
    except TypeError:
        return False
    return True


def _check_limit(limit: Any, problems: list[str]) -> None:
    if limit is None:
        return
    concurrency: Any = limit.concurrency if isinstance(limit, Limit) else None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        problems.append(f"limit={limit!r} must be a whole number from 1, or Limit(number, group)")


def _check_filled_in(signature: inspect.Signature, problems: list[str]) -> None:
    """Refuse a filled-in parameter whose place would shift the user's positional arguments."""
    others_by_position = False
    for each in reversed(list(signature.parameters.values())):
        by_position = each.kind in (
            each.POSITIONAL_ONLY,
            each.POSITIONAL_OR_KEYWORD,
            each.VAR_POSITIONAL,
        )
        if each.name not in FILLED_IN:
            others_by_position = others_by_position or by_position
        elif each.kind is not each.KEYWORD_ONLY and (
            others_by_position or each.kind is not each.POSITIONAL_OR_KEYWORD
        ):
            problems.append(
                f"the parameter {each.name} must be keyword-only, because the runtime fills it in; "
                f"put it behind a `*`"
            )
