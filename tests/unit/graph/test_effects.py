"""Declaring effects, and the one form of their arguments."""

import enum
import functools
import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import GraphInvalid, UsageError
from perdure.graph import (
    RETRY_NONE,
    RETRY_RESENDABLE,
    Absent,
    Effect,
    EffectKind,
    Found,
    Limit,
    Request,
    Retry,
    Unknown,
    as_effect,
    effect,
)


@dataclass
class Quote:
    amount: int


class Mood(enum.Enum):
    GOOD = 1


async def plain(order_id: str, amount: int = 0) -> Quote:
    return Quote(amount)


async def keyed(order_id: str, *, idempotency_key: str) -> str:
    return idempotency_key


# ----------------------------------------------------------------------------------- declaration


def test_bare_is_once():
    declared = effect(plain)
    assert isinstance(declared, Effect)
    assert declared.kind is EffectKind.ONCE
    assert declared.name == "plain"
    assert declared.function is plain
    assert declared.is_async
    assert declared.result_type is Quote
    assert declared.types == (Quote,)
    assert declared.effective_retry == RETRY_NONE
    assert (declared.retry, declared.timeout_s, declared.limit, declared.rejects) == (
        None,
        None,
        None,
        (),
    )
    takes = (declared.takes_key, declared.takes_transaction, declared.takes_sandbox)
    assert not any(takes)
    assert repr(declared) == "Effect('plain', kind='once')"
    assert declared.__name__ == "plain"
    assert declared.__wrapped__ is plain


def test_all_options_are_kept():
    undo = effect(plain)

    @effect(
        kind="lookup",
        retry=Retry(max_attempts=2),
        timeout_s=1.5,
        reconcile=lambda request, key: Absent(),
        compensate=undo,
        limit=Limit(3, group="api.example.com"),
        name="refund.v2",
        rejects=(KeyError, ValueError),
    )
    def refund(mood: Mood, *, idempotency_key: str, transaction: Any, sandbox: Any) -> "Quote": ...

    assert refund.kind is EffectKind.LOOKUP
    assert refund.name == "refund.v2"
    assert refund.retry == refund.effective_retry == Retry(max_attempts=2)
    assert refund.timeout_s == 1.5
    assert refund.reconcile(None, "k") == Absent()
    assert refund.compensate is undo
    assert refund.limit == Limit(concurrency=3, group="api.example.com")
    assert refund.rejects == (KeyError, ValueError)
    assert refund.takes_key
    assert refund.takes_transaction
    assert refund.takes_sandbox
    assert not refund.is_async
    assert set(refund.types) == {Quote, Mood}


def test_short_forms():
    declared = effect(limit=2, rejects=KeyError)(plain)
    assert declared.limit == Limit(2)
    assert declared.rejects == (KeyError,)


def test_the_name_leaves_out_where_a_local_function_stood():
    @effect
    async def local(): ...

    assert local.name == "test_the_name_leaves_out_where_a_local_function_stood.local"
    assert effect(functools.partial(plain, amount=3)).name == "plain"


async def test_calling_runs_the_plain_function():
    assert await effect(plain)("o", 5) == Quote(5)
    assert await effect(kind="keyed")(keyed)("o", idempotency_key="k") == "k"


@pytest.mark.parametrize("kind", list(EffectKind))
def test_default_retries_follow_the_kind(kind):
    async def act(*, idempotency_key, transaction): ...

    declared = effect(kind=kind, reconcile=print)(act)
    is_resendable = kind in {"pure", "keyed", "lookup"}
    assert declared.effective_retry is (RETRY_RESENDABLE if is_resendable else RETRY_NONE)
    assert RETRY_RESENDABLE.max_attempts == 4
    assert RETRY_NONE.max_attempts == 1


def _generator():
    yield 1


def _key_first(idempotency_key, order): ...


def _key_before_star(order, idempotency_key, *more): ...


def _key_only_position(idempotency_key, /): ...


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (plain, {"kind": "lookup"}, "kind 'lookup' needs reconcile="),
        (plain, {"kind": "keyed"}, "kind 'keyed' needs a parameter idempotency_key"),
        (plain, {"kind": "transaction"}, "kind 'transaction' needs a parameter transaction"),
        (plain, {"retry": Retry(max_attempts=2)}, "on kind 'once' would send blindly again"),
        (
            plain,
            {"kind": "twice"},
            "unknown kind 'twice'; the kinds are pure, keyed, lookup, once, transaction, contained",
        ),
        (plain, {"retry": 3}, "retry=3 is not a Retry"),
        (plain, {"timeout_s": 0}, "timeout_s=0 must be seconds above 0"),
        (plain, {"timeout_s": True}, "timeout_s=True must be seconds above 0"),
        (plain, {"reconcile": 1}, "reconcile=1 is not a function"),
        (plain, {"compensate": "undo"}, "compensate='undo' is not a function"),
        (plain, {"limit": 0}, "must be a whole number from 1"),
        (plain, {"limit": True}, "must be a whole number from 1"),
        (plain, {"limit": "many"}, "limit='many' must be a whole number from 1"),
        (plain, {"rejects": ("KeyError",)}, "rejects: 'KeyError' is not an exception class"),
        (plain, {"name": "a/b"}, "effect 'a/b': can't be a name"),
        (lambda: 1, {}, "give one with name="),
        (7, {"name": "seven"}, "it is not a function"),
        (Quote, {}, "it is not a function"),
        (_generator, {}, "it is a generator"),
        (_key_first, {}, "the parameter idempotency_key must be keyword-only"),
        (_key_before_star, {}, "the parameter idempotency_key must be keyword-only"),
        (_key_only_position, {}, "the parameter idempotency_key must be keyword-only"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(function, options, text):
    with pytest.raises(GraphInvalid) as caught:
        effect(**options)(function)
    assert text in str(caught.value)
    assert str(caught.value).startswith("effect ")


def test_problems_of_an_effect_come_together():
    with pytest.raises(GraphInvalid) as caught:
        effect(kind="keyed", timeout_s=-1, limit=0)(plain)
    assert len(caught.value.fields["problems"]) == 3
    assert caught.value.fields["effect"] == "plain"


def test_once_may_say_that_it_is_not_retried():
    assert effect(retry=Retry(max_attempts=1))(plain).effective_retry.max_attempts == 1


def test_as_effect():
    declared = effect(plain)
    assert as_effect(declared) is declared
    wrapped = as_effect(plain)
    assert wrapped.kind is EffectKind.ONCE
    assert as_effect(plain) is wrapped

    @functools.wraps(plain)
    async def around(*args, **kwargs): ...

    assert as_effect(around).function is around
    assert as_effect(Limit(1).__eq__).kind is EffectKind.ONCE
    with pytest.raises(GraphInvalid, match="it is not a function"):
        as_effect([])
    with pytest.raises(GraphInvalid, match="can't be a name"):
        as_effect(lambda: None)


def test_an_annotation_that_can_not_be_resolved_is_any():
    async def act() -> "Nowhere": ...  # noqa: F821 - what is tested

    assert effect(act).result_type is Any


def test_what_reconcile_gives_and_gets():
    assert Found("r").result == "r"
    assert Found() == Found(None)
    assert Absent() == Absent()
    assert Unknown("busy").reason == "busy"
    request = Request((1,), {"b": 2})
    assert (request.args, request.kwargs) == ((1,), {"b": 2})


# --------------------------------------------------------------------------------------- binding


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, 2), {}, ((1, 2), {})),
        ((1,), {"b": 2}, ((1, 2), {})),
        ((), {"b": 2, "a": 1}, ((1, 2), {})),
        ((1,), {}, ((1,), {})),
        ((1,), {"c": 3}, ((1,), {"c": 3})),
        ((1,), {"d": 4, "c": 3}, ((1,), {"c": 3, "d": 4})),
        ((1, 2, 3), {"d": 4}, ((1, 2, 3), {"d": 4})),
    ],
)
def test_bind_gives_one_form(args, kwargs, expected):
    @effect(kind="keyed")
    def act(a, b=0, c=0, *, d=0, idempotency_key): ...

    bound = act.bind(args, kwargs)
    assert bound == expected
    assert list(bound[1]) == list(expected[1])


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'a'; it takes (a, b=0, *, d)"),
        ((1, 2, 3), {"d": 1}, "too many positional arguments"),
        ((1,), {"d": 1, "e": 1}, "unexpected keyword argument 'e'"),
        ((1,), {"a": 1, "d": 1}, "multiple values for argument 'a'"),
        ((1,), {}, "missing a required"),
        ((1,), {"d": 1, "idempotency_key": "k"}, "idempotency_key is filled in by the runtime"),
        ((1,), {"d": 1, "sandbox": None}, "sandbox is filled in by the runtime"),
        ((1,), {"transaction": None}, "transaction is filled in by the runtime"),
    ],
)
def test_bind_refuses_what_can_not_be_called(args, kwargs, text):
    @effect(kind="keyed", name="act")
    def act(a: int, b: int = 0, *, d: int, idempotency_key: str): ...

    with pytest.raises(UsageError) as caught:
        act.bind(args, kwargs)
    assert text in str(caught.value)
    assert str(caught.value).startswith("effect 'act': ")


def test_bind_sorts_what_only_kwargs_catch():
    @effect
    def act(a, /, *more, b=0, **rest): ...

    assert act.bind((1, 2, 3), {"z": 1, "y": 2, "b": 3}) == ((1, 2, 3), {"b": 3, "y": 2, "z": 1})
    assert list(act.bind((1,), {"z": 1, "y": 2, "b": 3})[1]) == ["b", "y", "z"]


def _shape(a, b=1, c=2, *, d=3, e): ...


@given(
    st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from("abcdef"), st.integers())
)
def test_bind_agrees_with_inspect(args, kwargs):
    declared = effect(name="shape")(_shape)
    try:
        expected = inspect.signature(_shape).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(UsageError):
            declared.bind(tuple(args), kwargs)
        return
    assert declared.bind(tuple(args), kwargs) == (expected.args, expected.kwargs)


def test_a_transaction_is_an_async_function():
    with pytest.raises(GraphInvalid, match="needs an async function"):

        @effect(kind="transaction")
        def plain(*, transaction):
            transaction.execute("INSERT ...")
