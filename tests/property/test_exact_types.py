"""Instances of every kind of class, and the odd numbers, come back exactly.

Cases: 500 for classes, 300 for bits of floats, 300 for decimals, 200 for enums, flags and paths.
"""

import decimal
import pathlib
import struct
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import TypeRegistry, ValueCodec
from tests.property.test_codec import typed, values

pytestmark = pytest.mark.timeout(90)  # much work, where others work too


@dataclass
class Plain:
    a: Any
    b: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    a: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
    a: Any
    b: Any = None


class Packed(msgspec.Struct, frozen=True):
    a: Any
    b: Any = None


class Tagged(msgspec.Struct, array_like=True, tag="t"):
    a: Any


class Pair(NamedTuple):
    a: Any
    b: Any = 0


class Typed(TypedDict, total=False):
    a: Any


class Colour(Enum):
    RED = (1, 2)
    BLUE = "b"


class Number(IntEnum):
    ONE = 1
    TWO = 2


class Text(StrEnum):
    A = "a"


class Bits(Flag):
    X = 1
    Y = 2
    Z = 4


CLASSES = (Plain, Slotted, Model, Packed, Tagged, Pair, Colour, Number, Text, Bits)
registry = TypeRegistry()
for each in CLASSES:
    registry.add(each)
codec = ValueCodec(registry)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
made = st.recursive(
    values.filter(lambda value: "Leaf" not in repr(value) and "Word" not in repr(value)),
    lambda inner: st.one_of(
        st.builds(Plain, inner, st.lists(inner, max_size=2)),
        st.builds(Slotted, a=inner),
        st.builds(Model, a=inner, b=inner, extra=inner),
        st.builds(Model, a=inner),
        st.builds(Packed, inner, inner),
        st.builds(Tagged, inner),
        st.builds(Pair, inner, inner),
        st.fixed_dictionaries({"a": inner}).map(lambda given: Typed(**given)),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=6,
)


def exact(value: Any) -> Any:
    """The value with its types beside it, fields taken apart."""
    kind = type(value)
    if kind in {Plain, Slotted, Packed, Tagged, Pair}:
        names = getattr(value, "_fields", None) or getattr(
            value, "__struct_fields__", getattr(value, "__dataclass_fields__", ())
        )
        return kind, tuple(exact(getattr(value, name)) for name in names)
    if kind is Model:
        extra = value.__pydantic_extra__
        return (
            kind,
            exact(value.a),
            exact(value.b),
            tuple((name, exact(extra[name])) for name in extra),
            frozenset(value.model_fields_set),
        )
    if kind in {list, tuple}:
        return kind, tuple(map(exact, value))
    if kind is dict:
        return kind, tuple((typed(key), exact(item)) for key, item in value.items())
    return typed(value)


@settings(max_examples=500)
@given(made)
def test_instances_of_classes_come_back(value):
    encoded = codec.encode(value)
    back = codec.decode(encoded)
    assert exact(back) == exact(value)
    assert codec.canonical(back) == codec.canonical(value)


@settings(max_examples=300)
@given(st.integers(0, 2**64 - 1))
def test_every_bit_of_a_float_comes_back(bits):
    [value] = struct.unpack("<d", bits.to_bytes(8, "little"))
    back = codec.decode(codec.encode([value, complex(value, -value)]))
    assert struct.pack("<d", back[0]) == struct.pack("<d", value)
    assert repr(back[1]) == repr(complex(value, -value))


@settings(max_examples=300)
@given(st.decimals(allow_nan=True) | st.sampled_from(["sNaN1", "-NaN7", "-0E+9", "Infinity"]))
def test_every_decimal_comes_back(value):
    value = decimal.Decimal(value)
    back = codec.decode(codec.encode(value))
    assert type(back) is decimal.Decimal
    assert back.as_tuple() == value.as_tuple()


@settings(max_examples=200)
@given(
    st.sampled_from([*Colour, *Number, *Text])
    | st.integers(0, 7).map(Bits)
    | texts.filter(lambda text: "\0" not in text).map(pathlib.Path)
)
def test_members_and_paths_come_back(value):
    back = codec.decode(codec.encode({"a": value}))["a"]
    assert type(back) is type(value)
    assert back == value
    if isinstance(value, Enum):
        assert back is value
