"""Builtin and standard library values: exact round trips, refusals that name the place, digests."""

import datetime as dt
import functools
import json
import math
import pathlib
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from perdure.codec import TypeRegistry, ValueCodec, describe
from perdure.codec.limits import DEPTH_MAX
from perdure.errors import ValueUnserializable

codec = ValueCodec(TypeRegistry())
BERLIN = ZoneInfo("Europe/Berlin")
TWICE = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)  # this hour happens twice
MINUS_ZERO = Decimal("-0.00")

VALUES = [
    *(None, True, False),
    *(0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1),
    *(2**64, -(2**63) - 1, 2**4000, -(2**20000), 10**5000),
    *(0.0, -0.0, 1.5, 5e-324, math.inf, -math.inf, math.nan),
    *("", "text", "\0", "é€😀", "\ud800", "a\udfffb", "\ud83d\ude00", "x" * 70_000),
    *(b"", b"\0\xff", b"x" * 70_000, bytearray(), bytearray(b"\0\xff")),
    *([], [1, [2, [3]]], (), (1, (2, [3])), [()], ([],)),
    *(set(), {1, "1", 1.5, None, b"1", (1, 2)}, frozenset(), frozenset({frozenset({1}), 2})),
    *({}, {"a": 1}, {"b": {"c": []}}, {"": None}),
    *({1: "a"}, {1.5: 1, "1.5": 2, None: 3, (1, 2): 4, b"k": 5}, {2**70: 2**70}, {"\ud800": 1}),
    *(Decimal(0), MINUS_ZERO, Decimal("1E+999999"), Decimal("NaN"), Decimal("sNaN7")),
    *(Decimal("-Infinity"), Decimal("1.10")),
    *(dt.date.min, dt.date.max, dt.date(2026, 2, 28)),
    *(dt.datetime.min, dt.datetime.max, dt.datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001, DTZ901  # naive ones are values too
    *(dt.datetime(2026, 1, 2, fold=1), TWICE, TWICE.replace(fold=1)),  # noqa: DTZ001  # as above
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    dt.time(1, tzinfo=dt.timezone(-dt.timedelta(microseconds=1))),
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=-30))),
    dt.datetime(1900, 1, 2, tzinfo=dt.timezone(dt.timedelta(seconds=3208, microseconds=7))),
    *(dt.time.min, dt.time.max, dt.time(1, 2, fold=1), dt.time(1, 2, tzinfo=dt.UTC)),
    *(dt.time(1, 2, 3, 4, tzinfo=BERLIN), dt.time(1, 2, tzinfo=BERLIN, fold=1)),
    *(dt.timedelta.min, dt.timedelta.max, dt.timedelta(0), dt.timedelta(-1, 1, 1)),
    *(uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)),
    *(pathlib.Path(), pathlib.Path("/a/ü"), pathlib.Path("no-utf8-\udcff")),
    *(
        pathlib.PurePosixPath("a/b"),
        pathlib.PureWindowsPath("C:\\a"),
        pathlib.PurePosixPath("\udc80"),
    ),
    *(complex(1, -0.0), complex(math.nan, math.inf)),
]


def same(a, b):
    """Equality that also looks at types, the sign of zero, nan, fold and zone."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, set | frozenset):
        return {(type(item), item) for item in a} == {(type(item), item) for item in b}
    if isinstance(a, float | complex | Decimal):
        return repr(a) == repr(b)
    if isinstance(a, dt.datetime | dt.time):
        return a == b and a.fold == b.fold and repr(a) == repr(b)
    return a == b


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, lambda v: [v], lambda v: {"k": (v,)}, lambda v: {1: v}],
    ids=["alone", "list", "tuple", "map"],
)
def test_what_comes_back_is_the_same(value, wrap):
    encoded = codec.encode(wrap(value))
    assert same(codec.decode(encoded), wrap(value))
    json.dumps(describe(encoded), allow_nan=False).encode()
    assert codec.canonical(wrap(value)) == codec.canonical(wrap(value))


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, _when):
        return dt.timedelta(hours=1)


class Folder(type(pathlib.Path())):
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Text("a"), r"Text.*convert it with str\("),
        (Number(1), r"Number.*convert it with int\("),
        (OrderedDict(a=1), r"OrderedDict.*convert it with dict\("),
        (defaultdict(list), r"defaultdict.*convert it with dict\("),
        (deque([1]), "deque.*use builtin types"),
        (object(), "builtins.object.*use builtin types"),
        (int, "builtins.type"),
        (len, "builtin_function"),
        (functools.partial(len), "functools.partial"),
        (iter([]), "list_iterator"),
        (memoryview(b"a"), "memoryview"),
        (ValueError("x"), "ValueError"),
        (dt.datetime(2026, 1, 1, tzinfo=Zone()), r"time zone is a .*Zone; use zoneinfo.ZoneInfo"),
        (dt.time(1, tzinfo=Zone()), "time zone"),
        (Folder("a"), "Folder"),
        (range(3), "range"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_change_is_refused_by_its_place(value, why):
    with pytest.raises(ValueUnserializable, match=why) as caught:
        codec.encode({"a": [0, (value,)]}, "notes", "graph 'g', field ")
    assert "graph 'g', field notes['a'][1][0]" in str(caught.value)
    assert "Nothing was written" in str(caught.value)
    with pytest.raises(ValueUnserializable, match=why):
        codec.canonical({"a": value})


def test_a_zone_without_a_key_is_refused(tmp_path):
    folder = next(path for path in map(pathlib.Path, zoneinfo.TZPATH) if path.is_dir())
    with (folder / "UTC").open("rb") as file:
        nameless = ZoneInfo.from_file(file)
    with pytest.raises(ValueUnserializable, match="ZoneInfo"):
        codec.encode(dt.datetime(2026, 1, 1, tzinfo=nameless))


def test_a_place_is_shown_without_asking_code_of_users():
    with pytest.raises(ValueUnserializable, match=r"value\[<tuple>\]\[<int>\]\[b'k'\] is a"):
        codec.encode({(1,): {10**5000: {b"k": object()}}})


def test_a_bad_key_is_named():
    with pytest.raises(ValueUnserializable, match=r"value\[a key\]"):
        codec.encode({Text("a"): 1})


@pytest.mark.parametrize("make", [list, tuple, dict])
def test_too_deep_is_refused_with_a_short_place(make):
    def nest(value):
        return {"k": value} if make is dict else make([0, value])

    value = None
    for _ in range(DEPTH_MAX + 1):
        value = nest(value)
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(ValueUnserializable, match=r"deeper than.*levels") as caught:
        codec.encode(nest(value))
    assert len(str(caught.value)) < 400
    assert f"({DEPTH_MAX - 7} levels)" in str(caught.value)


def test_a_value_that_contains_itself_is_refused():
    cyclic = []
    cyclic += [cyclic, cyclic]
    with pytest.raises(ValueUnserializable, match="contains itself"):
        codec.encode({"k" * 1000: cyclic})
    with pytest.raises(ValueUnserializable) as caught:
        codec.encode({"k" * 1000: object()})
    assert len(str(caught.value)) < 300


def test_little_stack_is_a_refusal_too():
    value = []
    for _ in range(DEPTH_MAX - 10):
        value = [value]

    def descend(depth):
        return descend(depth + 1) if depth < 100_000 else None

    def encode_at_the_bottom():
        try:
            return encode_at_the_bottom()
        except RecursionError:
            return codec.encode(value)

    with pytest.raises((ValueUnserializable, RecursionError)):
        encode_at_the_bottom()


def test_a_value_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr("perdure.codec._values.VALUE_BYTES_MAX", 100)
    with pytest.raises(ValueUnserializable, match=r"field notes takes 10\d bytes"):
        codec.encode("x" * 100, "notes", "field ")


def test_order_does_not_count_in_digests():
    def value(order):
        mapping = dict.fromkeys(order, 1)
        mixed = dict.fromkeys([*order, 1, None, (1, 2)], mapping)
        return [mapping, (mapping,), mixed, {frozenset(order)}, {"d": (mixed,)}]

    forth, back = value("abcdefgh"), value("hgfedcba")
    assert forth == back
    assert codec.canonical(forth) == codec.canonical(back)
    assert codec.encode(forth) != codec.encode(back)


def test_types_count_in_digests():
    alike = [1, 1.0, True, "1", b"1", Decimal(1), (1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}]
    assert len({codec.canonical(value) for value in alike}) == len(alike)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**70, 2**70),
        (-(2**70), -(2**70)),
        (1 << 5000, hex(1 << 5000)),
        ((1, b"\0"), [1, {"$bytes": "AA=="}]),
        (bytearray(b"\0"), {"$bytes": "AA=="}),
        ({"a": math.nan, "b": -math.inf}, {"a": "nan", "b": "-inf"}),
        ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ("\ud800!", "\\ud800!"),
        ({1}, [1]),
        (Decimal("1.10"), "1.10"),
        (TWICE, "2026-10-25T02:30:00+02:00"),
        (dt.time(1, 2, tzinfo=BERLIN), "01:02:00"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.timedelta(days=1, seconds=1), "1 day, 0:00:01"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.Path("/a"), "/a"),
        (pathlib.Path("\udcff"), "\\udcff"),
        (pathlib.PureWindowsPath("C:/a"), "C:\\a"),
        (1 + 2j, "(1+2j)"),
    ],
    ids=ascii,
)
def test_what_people_see(value, shown):
    assert describe(codec.encode(value)) == shown
