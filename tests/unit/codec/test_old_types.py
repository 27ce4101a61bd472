"""Reading what older code stored, for migrations only."""

import enum
from dataclasses import dataclass

import pytest

from perdure.codec import OldTypes, TypeRegistry, ValueCodec, unbuilt_types
from perdure.errors import TypeUnknown, ValueUnserializable


@dataclass(frozen=True)
class Line:
    item: str
    price: int = 1


class Colour(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1


def codec_of(*classes):
    registry = TypeRegistry()
    for cls in classes:
        registry.add(cls)
    return registry, ValueCodec(registry)


def test_what_is_gone_is_a_dict_with_its_type():
    _registry, old = codec_of(Line, Colour, Right)
    value = {"lines": [Line("a")], "set": {Line("b")}, "colour": Colour.RED, "right": Right.READ}
    encoded = old.encode(value)
    registry, new = codec_of()
    with pytest.raises(TypeUnknown):
        new.decode(encoded)
    found = ValueCodec(OldTypes(registry)).decode(encoded)
    assert found["lines"] == [{"$type": "Line", "item": "a", "price": 1}]
    assert [dict(each) for each in found["set"]] == [{"$type": "Line", "item": "b", "price": 1}]
    assert found["colour"] == {"$type": "Colour", "name": "RED"}
    assert found["right"] == {"$type": "Right", "value": 1}
    assert unbuilt_types(found) == {"Line", "Colour", "Right"}
    with pytest.raises(ValueUnserializable):
        new.encode(found)
    assert new.decode(new.encode({**found["lines"][0]})) == {
        "$type": "Line",
        "item": "a",
        "price": 1,
    }


def test_what_takes_other_fields_now_is_a_dict_too():
    _registry, old = codec_of(Line)
    encoded = old.encode([Line("a", 2)])

    @dataclass
    class Changed:
        item: str

    Changed.__qualname__ = "Line"
    registry, _new = codec_of(Changed)
    assert ValueCodec(OldTypes(registry)).decode(encoded) == [
        {"$type": "Line", "item": "a", "price": 2}
    ]


def test_what_is_there_is_built():
    registry, codec = codec_of(Line, Colour)
    found = ValueCodec(OldTypes(registry)).decode(codec.encode([Line("a"), Colour.RED]))
    assert found == [Line("a"), Colour.RED]
    assert unbuilt_types(found) == set()
