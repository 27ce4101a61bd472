"""Any value that can be stored comes back exactly; digests depend on values and types alone."""

import datetime as dt
import json
import math
import pathlib
from dataclasses import dataclass
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import TypeRegistry, ValueCodec, describe
from perdure.errors import DecodeFailed


@dataclass(frozen=True)
class Leaf:
    value: Any


class Word(Enum):
    A = "a"
    B = "b"


registry = TypeRegistry()
registry.add(Leaf)
registry.add(Word)
codec = ValueCodec(registry)

zones = st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"]).map(ZoneInfo)
offsets = st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone)
texts = st.text(st.characters(), max_size=20)  # lone surrogates included
times = st.times() | st.times(timezones=zones) | st.times(timezones=offsets)
moments = st.datetimes(timezones=st.none() | zones | offsets)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False)
    | st.dates()
    | times
    | moments
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from(Word)
    | texts.filter(lambda text: "\0" not in text).map(pathlib.PurePosixPath)
)
hashables = st.recursive(
    scalars,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | inner.map(Leaf),
    max_leaves=5,
)
values = st.recursive(
    hashables | st.binary(max_size=9).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.sets(hashables, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
        | inner.map(Leaf)
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """The value with its types beside it, so that equality looks at both."""
    kind = type(value)
    if kind in {list, tuple}:
        return kind, tuple(map(typed, value))
    if kind in {set, frozenset}:
        return kind, frozenset(map(typed, value))
    if kind is dict:
        return kind, frozenset((typed(key), typed(item)) for key, item in value.items())
    if kind is Leaf:
        return kind, typed(value.value)
    if kind in {float, complex}:
        return kind, repr(value)
    if kind in {dt.datetime, dt.time}:
        return kind, value.isoformat(), value.fold, str(value.tzinfo)
    return kind, bytes(value) if kind is bytearray else value, str(value)


def reordered(value: Any) -> Any:
    """An equal value whose maps and sets were filled the other way round."""
    kind = type(value)
    if kind in {list, tuple, set, frozenset}:
        items = [reordered(item) for item in value]
        return kind(items if kind in {list, tuple} else items[::-1])
    if kind is dict:
        return {reordered(key): reordered(item) for key, item in reversed(value.items())}
    return Leaf(reordered(value.value)) if kind is Leaf else value


@given(values)
def test_what_comes_back_is_the_same(value):
    encoded = codec.encode(value)
    back = codec.decode(encoded)
    assert typed(back) == typed(value)
    assert codec.encode(back) == encoded or typed(back) == typed(value)
    assert codec.canonical(back) == codec.canonical(value)


@given(values)
def test_order_never_counts_in_digests(value):
    assert codec.canonical(reordered(value)) == codec.canonical(value)


@given(values, values)
def test_digests_differ_where_values_do(a, b):
    assert (codec.canonical(a) == codec.canonical(b)) == (typed(a) == typed(b))


@given(values)
def test_every_encoding_can_be_shown_without_types(value):
    json.dumps(describe(codec.encode(value)), allow_nan=False).encode()


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_decode_or_fail_as_decode_failed(noise, wrap):
    encoded = b"\xc7" + bytes([len(noise), 1]) + noise if wrap else noise
    for read in (codec.decode, describe):
        try:
            read(encoded)
        except DecodeFailed:
            continue


@given(values, st.data())
def test_damage_decodes_or_fails_as_decode_failed(value, data):
    damaged = bytearray(codec.encode(value))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for encoded in (bytes(damaged), cut):
        for read in (codec.decode, describe):
            try:
                read(encoded)
            except DecodeFailed:
                continue


@given(st.floats(), st.booleans())
def test_numbers_of_other_types_have_other_digests(number, is_true):
    whole = int(number) if math.isfinite(number) else 0
    alike = [whole, float(whole) if abs(whole) < 2**53 else 0.5, str(whole), is_true]
    assert len({codec.canonical(each) for each in alike}) == len(alike)
