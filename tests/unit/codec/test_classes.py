"""Instances of users' classes: which can be stored, what comes back, what a changed class does."""

import collections
import dataclasses
import enum
import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import pydantic
import pytest

from perdure.codec import TypeRegistry, ValueCodec, describe, register_type
from perdure.codec import _registry as registry_module
from perdure.errors import DecodeFailed, GraphInvalid, TypeUnknown, ValueUnserializable


@dataclass
class Line:
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    lines: list[Line] = field(default_factory=list)
    total: int = field(init=False, default=0)
    limit: ClassVar[int] = 5


@dataclass
class Counted:
    """Its `__post_init__` would change the fields each time, and computes what is no field."""

    items: list[int]
    size: int = field(init=False)

    def __post_init__(self):
        self.items = [*self.items, len(self.items)]
        self.size = len(self.items)
        self.index = dict(enumerate(self.items))


@dataclass(frozen=True)
class Hashed:
    salt: dataclasses.InitVar[str]
    digest: str = ""
    rounds: int = 3

    def __post_init__(self, salt):
        object.__setattr__(self, "digest", f"{salt}:{self.digest}")


@dataclass
class OwnInit:
    first: int
    second: list[int] = field(default_factory=list)
    unset: int = field(init=False)

    def __init__(self, both):
        self.first, self.second = both, [both]


@dataclass(init=False)
class Anything:
    first: int = 1

    def __init__(self, *_args, **fields):
        self.first = fields.get("first", 0)


@dataclass(eq=False)
class Fault(Exception):
    code: int


class Pair(NamedTuple):
    left: Any
    right: Any = 0


class Span(NamedTuple):
    low: int
    high: int


class Careful(Span):
    __slots__ = ()

    def __new__(cls, low):
        return super().__new__(cls, low, low + 1)


class Point(msgspec.Struct, frozen=True):
    x: int
    y: "list[int]" = msgspec.field(default_factory=list)
    up: "Point | None" = None


class Eager(msgspec.Struct, kw_only=True, frozen=True):
    names: list[str] = []
    seen: int

    def __post_init__(self):
        msgspec.structs.force_setattr(self, "seen", self.seen + 1)


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(default=7, alias="years")
    tags: list[str] = pydantic.Field(default_factory=list)
    _cache: dict = pydantic.PrivateAttr(default_factory=dict)
    _later: int = pydantic.PrivateAttr()

    @functools.cached_property
    def loud(self):
        return self.name.upper()

    @pydantic.field_validator("name")
    @classmethod
    def strict(cls, value):
        if value != value.strip():
            msg = "spaces"
            raise ValueError(msg)
        return value


class Open(pydantic.BaseModel, extra="allow", frozen=True):
    known: int = 1


class Boxed(pydantic.RootModel[list[int]]):
    pass


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  # an alias
    BLUE = (1, object())


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Mask(enum.IntFlag, boundary=enum.KEEP):
    A = 1


class Odd(enum.Enum):
    A = dataclasses.field()


CLASSES = [
    *(Line, Order, Counted, Hashed, OwnInit, Anything, Fault, Pair, Careful, Point, Eager),
    *(Person, Open, Boxed, Colour, Level, Word, Right, Mask, Odd),
]


@pytest.fixture
def codec():
    registry = TypeRegistry()
    for cls in CLASSES:
        registry.add(cls)
        registry.add(cls)
    registry.add(int)
    return ValueCodec(registry)


@pytest.fixture
def explicit(monkeypatch):
    monkeypatch.setattr(registry_module, "_explicit", {})


def changed(order):
    object.__setattr__(order, "total", 40)
    return order


@pytest.mark.parametrize(
    "value",
    [
        Line("a"),
        changed(Order("o-1", [Line("a", 2), Line("b")])),
        Counted([1]),
        Hashed("salt", "d"),
        Anything(first=9),
        Pair((1, 2)),
        Pair([Line("a")], {Word.A: Level.LOW}),
        Careful(4),
        Point(1, [2], Point(3)),
        Eager(seen=1),
        Person(name="ann", years=8),
        Person(name="ann"),
        Open(known=2, more=[Line("x")], **{"not an identifier": 1}),
        Open(),
        Boxed([1, 2]),
        Colour.RED,
        Colour.CRIMSON,
        Colour.BLUE,
        Level.LOW,
        Word.A,
        Odd.A,
        Right.READ,
        Right.READ | Right.WRITE,
        Right(0),
        Mask(65),
        {Word.A: {Level.LOW, Right.READ}, Order("x").order_id: None},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_back_is_the_same(codec, value):
    encoded = codec.encode({"k": value})
    back = codec.decode(encoded)["k"]
    assert back == value
    assert type(back) is type(value)
    assert codec.encode({"k": back}) == encoded
    assert codec.canonical(back) == codec.canonical(value)
    describe(encoded)


def test_fields_come_back_whatever_the_constructor_does(codec):
    back = codec.decode(codec.encode(Counted([1, 2])))
    assert (back.items, back.size) == ([1, 2, 2], 3)
    assert back.index  # what is no field is computed anew
    assert codec.decode(codec.encode(Hashed("s", "d"))).digest == "s:d"
    assert not hasattr(codec.decode(codec.encode(OwnInit(1))), "unset")
    assert codec.decode(codec.encode(Fault(7))).code == 7


def test_a_pydantic_model_keeps_which_fields_were_set(codec):
    person = Person(name="ann")
    assert person.loud == "ANN"
    back = codec.decode(codec.encode(person))
    assert back.model_fields_set == {"name"}
    assert back.model_dump(exclude_unset=True) == {"name": "ann"}
    assert back._cache == {}
    full = codec.decode(codec.encode(Person(name="ann", years=1, tags=[])))
    assert full.model_fields_set == {"name", "age", "tags"}
    assert codec.canonical(person) == codec.canonical(Person(name="ann", years=7))


def test_no_validator_runs_on_load(codec):
    person = Person.model_construct(name=" spaces ")
    assert codec.decode(codec.encode(person)).name == " spaces "


def test_what_utf8_has_no_form_for_is_refused_where_nothing_else_is_left(codec):
    odd = Open.model_construct(**{"\ud800": 1})
    with pytest.raises(ValueUnserializable, match=r"^x can't be stored: .*surrogates"):
        codec.encode([odd], "x")


class Late(pydantic.BaseModel):
    a: int


@dataclass
class Plain:
    a: int


def test_unregistered_is_refused_with_place_type_and_what_to_do(codec):
    for value in (Plain(1), Late(a=1)):
        kind = type(value).__name__
        with pytest.raises(ValueUnserializable, match=rf"x\['k'\] is a .*{kind}.*register_type"):
            codec.encode({"k": value}, "x")


@dataclass
class Listing(list):
    a: int = 1


@pytest.mark.parametrize("cls", [Listing, int, object, type("Enumless", (), {})])
def test_what_has_no_form_cant_be_registered(codec, explicit, cls):
    assert not TypeRegistry.can_hold(cls)
    with pytest.raises(GraphInvalid, match="can't be registered"):
        register_type(cls)
    codec._registry.add(cls)
    assert codec._registry.name_of(cls) is None


def test_unknown_types_are_named_and_not_built(codec):
    encoded = codec.encode([Line("a")])
    with pytest.raises(TypeUnknown, match=r"'Line'.*register_type") as caught:
        ValueCodec(TypeRegistry()).decode(encoded)
    assert caught.value.fields["type"] == "Line"
    assert describe(encoded) == [{"$type": "Line", "text": "a", "count": 1}]
    assert describe(codec.encode([Word.A, Mask(3)])) == ["Word.A", "Mask(3)"]


def test_explicit_names(codec, explicit):
    assert register_type(Plain, name="plain-v1") is Plain
    encoded = ValueCodec(TypeRegistry()).encode(Plain(1))
    assert describe(encoded) == {"$type": "plain-v1", "a": 1}
    assert ValueCodec(TypeRegistry()).decode(encoded) == Plain(1)
    register_type(Late)
    encoded = codec.encode([Late(a=1), Late(a=2)])
    assert describe(encoded)[0]["$type"] == "Late"
    with pytest.raises(TypeUnknown):
        codec.decode(codec.encode(Line("a")).replace(b"Line", b"Lime"))


def test_two_classes_of_one_name_are_refused(codec):
    twin = type("Line", (Line,), {"__module__": "elsewhere"})
    with pytest.raises(GraphInvalid, match=r"'Line'.*elsewhere.Line.*name="):
        codec._registry.add(twin)
    script = type("Line", (Line,), {"__module__": "__main__"})
    codec._registry.add(script)  # a script and the module that it is are one


def evolved(name, *, base, **changes):
    """Read what `base` wrote with another class of the same stored name."""
    writer, reader = TypeRegistry(), TypeRegistry()
    writer.add(type(base))
    cls = changes.pop("cls")
    cls.__qualname__ = type(base).__qualname__
    cls.__module__ = type(base).__module__
    reader.add(cls)
    return ValueCodec(reader).decode(ValueCodec(writer).encode(base))


def dataclass_with(*names, **options):
    fields = [(n, Any) if n.isupper() else (n, Any, field(default=5)) for n in names]
    return dataclasses.make_dataclass("New", fields, kw_only=True, **options)


@pytest.mark.parametrize(
    ("base", "grown", "shrunk", "demanding"),
    [
        (
            Line("a", 2),
            dataclass_with("text", "count", "new"),
            dataclass_with("text"),
            dataclass_with("text", "count", "NEW"),
        ),
        (
            Hashed("s", "d"),
            type(
                "G",
                (dataclass_with("digest", "rounds", "new"),),
                {"__init__": lambda self, x: None},
            ),
            dataclass_with("digest", init=False),
            type(
                "D",
                (dataclass_with("digest", "rounds", "NEW"),),
                {"__init__": lambda self, x: None},
            ),
        ),
        (
            Pair(1, 2),
            collections.namedtuple("G", "left right new", defaults=[5]),  # noqa: PYI024  # as below
            collections.namedtuple("S", "left"),  # noqa: PYI024  # as below
            collections.namedtuple("D", "left right NEW"),  # noqa: PYI024  # users have them too
        ),
        (
            Point(1),
            msgspec.defstruct("G", ["x", "y", "up", ("new", Any, 5)]),
            msgspec.defstruct("S", ["x"]),
            msgspec.defstruct("D", ["x", "y", "up", "NEW"]),
        ),
        (
            Open(known=2),
            pydantic.create_model("G", known=(int, 1), new=(int, 5)),
            pydantic.create_model("S"),
            pydantic.create_model("D", known=(int, 1), NEW=(int, ...)),
        ),
    ],
    ids=["dataclass", "bare dataclass", "namedtuple", "struct", "pydantic"],
)
def test_a_class_that_changed(base, grown, shrunk, demanding):
    assert evolved("grown", base=base, cls=grown).new == 5
    with pytest.raises(DecodeFailed, match=r"fields that its class does not have any more: \w+"):
        evolved("shrunk", base=base, cls=shrunk)
    with pytest.raises(DecodeFailed, match=r"no field 'NEW'\. Give new fields a default"):
        evolved("demanding", base=base, cls=demanding)


def test_extra_fields_survive_only_where_they_are_allowed():
    value = Open(known=2, more=3)
    back = evolved("same", base=value, cls=pydantic.create_model("G", __base__=Open))
    assert back.model_extra == {"more": 3}
    with pytest.raises(DecodeFailed, match="more"):
        evolved("strict", base=value, cls=pydantic.create_model("S", known=(int, 1)))


def test_members_that_are_gone_and_kinds_that_changed():
    gone = enum.Enum("Gone", ["NEVER"])
    with pytest.raises(DecodeFailed, match=r"Word.A does not exist any more"):
        evolved("gone", base=Word.A, cls=gone)
    with pytest.raises(DecodeFailed, match="Enum"):
        evolved("object to enum", base=Line("a"), cls=enum.Enum("Other", ["NEVER"]))
    with pytest.raises(DecodeFailed, match="does not exist any more"):
        evolved("enum to object", base=Word.A, cls=dataclass_with("text"))
    with pytest.raises(DecodeFailed, match="do not exist any more"):
        evolved("flags to enum", base=Right.READ, cls=enum.Enum("Other2", ["NEVER"]))
    with pytest.raises(DecodeFailed, match="do not exist any more"):
        evolved("fewer flags", base=Right.WRITE, cls=enum.Flag("Fewer", ["NEVER"]))


def test_a_constructor_that_refuses_is_a_decode_failure():
    strict = dataclass_with("text", "count")
    strict.__init__ = _refuse
    with pytest.raises(DecodeFailed, match="RuntimeError: no more"):
        evolved("strict", base=Line("a"), cls=strict)


def _refuse(_self, text, count):
    msg = "no more"
    raise RuntimeError(msg)
