"""Arrays and scalars of NumPy come back as they were, or are refused."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perdure.cli._story import edit_line
from perdure.codec import TypeRegistry, ValueCodec, describe
from perdure.engine.patch import edits
from perdure.errors import DecodeFailed, ValueUnserializable

codec = ValueCodec(TypeRegistry())
ROOT = Path(__file__).resolve().parents[3]


def there_and_back(value):
    return codec.decode(codec.encode(value))


def assert_same(value, back):
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.dtype.str == value.dtype.str
    assert repr(back.dtype) == repr(value.dtype)
    assert back.shape == value.shape
    assert back.tobytes() == value.tobytes()
    if isinstance(value, np.ndarray):
        assert back.flags.writeable
        for order in ("c_contiguous", "f_contiguous"):
            if getattr(value.flags, order):
                assert getattr(back.flags, order)


simple_types = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?", min_len=1),
    hnp.unicode_string_dtypes(endianness="?", min_len=1),
)
types = simple_types | hnp.nested_dtypes(simple_types).filter(
    lambda dtype: dtype.itemsize and dtype.subdtype is None
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = types.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@settings(max_examples=400)
@given(arrays, st.sampled_from(["C", "F"]))
def test_arrays_come_back(value, order):
    value = np.array(value, order=order)
    assert_same(value, there_and_back(value))


@settings(max_examples=200)
@given(types.flatmap(lambda dtype: hnp.arrays(dtype, ())))
def test_scalars_come_back(value):
    scalar = value[()]
    back = there_and_back(scalar)
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype
    assert back.tobytes() == scalar.tobytes()


@settings(max_examples=100)
@given(arrays)
def test_digests_do_not_depend_on_order_in_memory(value):
    one, other = np.array(value, order="C"), np.array(value, order="F")
    assert codec.canonical(one) == codec.canonical(other)
    assert codec.canonical(there_and_back(other)) == codec.canonical(value)


@settings(max_examples=100)
@given(arrays)
def test_arrays_can_be_shown_without_numpy(value):
    json.dumps(describe(codec.encode({"a": value})), allow_nan=False)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12, dtype=">i4").reshape(3, 4).T,
        np.asfortranarray(np.ones((2, 3))),
        np.zeros((0, 5)),
        np.zeros(()),
        np.array(np.nan),
        np.array([-0.0, np.inf, np.nan]),
        np.array([np.datetime64("NaT"), np.datetime64("2026-11-29T10:00:00.000001")]),
        np.array(["a", "bcé", "\U0001f600"]),
        np.array([b"a", b"\x00b"]),
        np.arange(10)[::2],
        np.arange(10)[::-1],
        np.broadcast_to(np.float32(2), (3, 3)),
        np.zeros(3, dtype=[("a", "<i4"), ("b", ">f8", (2, 2)), ("c", [("d", "S3")])]),
        np.zeros(2, dtype=np.dtype([("a", "i1"), ("b", "i8")], align=True)),
        np.zeros(
            2,
            dtype=np.dtype(
                {"names": ["x", "y"], "formats": ["i2", "i2"], "offsets": [4, 0], "itemsize": 16}
            ),
        ),
        np.zeros(2, dtype=[(("title", "name"), "i4")]),
        np.zeros(2, dtype="V7"),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}"[:40],
)
def test_arrays_of_all_kinds(value):
    assert_same(np.array(value) if not value.flags.writeable else value, there_and_back(value))


@pytest.mark.parametrize(
    "value",
    [
        np.float64(-0.0), np.float32("nan"), np.float16(1.5), np.int8(-3), np.uint64(2**64 - 1),
        np.bool_(1), np.complex64(1 + 2j), np.datetime64("2026-11-29", "D"),
        np.timedelta64(3, "ms"),
        np.datetime64("NaT"), np.str_("aé\x00"), np.str_(""), np.str_("\ud800"),
        np.bytes_(b"a\x00"),
        np.bytes_(b""), np.void(b"abc"), np.zeros(1, dtype=[("a", "i4"), ("b", "f8")])[0],
    ],
    ids=repr,
)  # fmt: skip
def test_scalars_of_all_kinds(value):
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()
    assert repr(back) == repr(value)


def test_arrays_inside_other_values():
    value = {"a": [np.arange(3), (np.float64(1), 1.0)], "b": {np.int64(3), "x"}}
    back = there_and_back(value)
    assert_same(value["a"][0], back["a"][0])
    assert [type(each) for each in back["a"][1]] == [np.float64, float]
    assert {type(each) for each in back["b"]} == {np.int64, str}


def test_numbers_of_numpy_are_not_those_of_python():
    digests = {codec.canonical(v) for v in (1.0, np.float64(1), np.float32(1), np.array(1.0))}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array([object()]), "objects"),
        (np.array(["a"], dtype=object), "objects"),
        (np.zeros(1, dtype=[("a", "O")]), "objects"),
        (np.zeros(1, dtype=np.longdouble), "not the same on every machine"),
        (np.longdouble(1), "not the same on every machine"),
        (np.zeros(2, dtype=[]), "no bytes"),
        (np.zeros(1, dtype=np.dtype("i4", metadata={"a": 1})), "metadata"),
        (np.array(["a"], dtype=np.dtypes.StringDType()), "objects|not the same"),
    ],
)
def test_what_would_not_come_back_is_refused(value, why):
    with pytest.raises(ValueUnserializable, match=why) as caught:
        codec.encode({"state": [value]}, "field")
    assert "field['state'][0]" in str(caught.value)


@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray, np.recarray])
def test_subclasses_are_refused(kind):
    value = np.zeros((2, 2)).view(kind)
    with pytest.raises(ValueUnserializable):
        codec.encode(value)


def stored(tag, payload):
    inner = msgspec.msgpack.encode([tag, payload])
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(1, inner))


HUGE = 2**40


@pytest.mark.parametrize(
    "payload",
    [
        ["<f8", [HUGE], "C", b""],
        ["<f8", [2**62, 4], "C", b""],
        ["<f8", [0, 2**62], "C", b"x"],
        ["<f8", [-1], "C", b""],
        ["<f8", [1.0], "C", b"\0" * 8],
        ["<f8", [True], "C", b"\0" * 8],
        ["<f8", [1] * 65, "C", b"\0" * 8],
        ["<f8", "x", "C", b"\0" * 8],
        ["<f8", [1], "K", b"\0" * 8],
        ["<f8", [1], "C", "text"],
        ["O", [1], "C", b"\0" * 8],
        ["|O", [1], "C", b"\0" * 8],
        ["O8", [1], "C", b"\0" * 8],
        ["f8,f8", [1], "C", b"\0" * 16],
        ["(1000000000,)f8", [1], "C", b""],
        ["<U0", [HUGE], "C", b""],
        ["|V0", [HUGE], "C", b""],
        ["<U9999999999", [0], "C", b""],
        ["<f3", [1], "C", b"\0" * 3],
        ["float64", [1], "C", b"\0" * 8],
        ["<M8[nope]", [1], "C", b"\0" * 8],
        [["sub", "<f8", [HUGE]], [1], "C", b""],
        [["struct", [], 0, False], [HUGE], "C", b""],
        [["struct", [["a", "<f8", 4]], 8, False], [1], "C", b"\0" * 8],
        [["struct", [["a", "|O", 0]], 8, False], [1], "C", b"\0" * 8],
        [["struct", [["a", "<f8", -8]], 8, False], [1], "C", b"\0" * 8],
        [["struct", [["a", "<f8", 0]], 2**60, False], [1], "C", b"\0" * 8],
        [["struct", [["a", "<f8", 0], ["a", "<f8", 0]], 8, False], [1], "C", b"\0" * 8],
        [None, [1], "C", b""],
        [[], [1], "C", b""],
        ["<f8", [1], "C"],
        [],
    ],
    ids=lambda payload: str(payload)[:40],
)
def test_hostile_arrays_are_refused_before_anything_is_allocated(payload):
    with pytest.raises(DecodeFailed):
        codec.decode(stored("ndarray", payload))


def test_a_type_nested_too_deeply_is_refused():
    described = "<f8"
    for _ in range(60):
        described = ["sub", described, [1]]
    with pytest.raises(DecodeFailed, match="levels"):
        codec.decode(stored("ndarray", [described, [1], "C", b"\0" * 8]))


@pytest.mark.parametrize("payload", [["<f8", b"\0" * 7], ["|O", b"\0" * 8], ["<f8", "x"], ["<f8"]])
def test_hostile_scalars_are_refused(payload):
    with pytest.raises(DecodeFailed):
        codec.decode(stored("npscalar", payload))


@settings(max_examples=200)
@given(arrays, st.data())
def test_damage_decodes_or_fails_as_decode_failed(value, data):
    damaged = bytearray(codec.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for read in (codec.decode, describe):
        try:
            read(bytes(damaged))
        except DecodeFailed:
            continue


def test_what_was_stored_once_is_read_for_ever():
    """Bytes as they were written on 2026-11-29."""
    array = stored("ndarray", ["<i4", [2], "C", b"\x01\0\0\0\x02\0\0\0"])
    assert codec.encode(np.array([1, 2], dtype="<i4")) == array
    assert codec.decode(array).tolist() == [1, 2]
    scalar = stored("npscalar", ["<f8", b"\0\0\0\0\0\0\xf0?"])
    assert codec.encode(np.float64(1)) == scalar
    assert codec.decode(scalar) == 1.0
    assert describe(array)["shape"] == [2]
    assert describe(scalar) == 1.0


PROGRAM = """
import sys
from perdure.codec import TypeRegistry, ValueCodec, describe
codec = ValueCodec(TypeRegistry())
codec.decode(codec.encode({"a": [1, 2.5, "x", (1,), {3}]}))
shown = describe(bytes.fromhex(sys.argv[1]))
assert "numpy" not in sys.modules, shown
print(codec.decode(bytes.fromhex(sys.argv[1])).tolist(), "numpy" in sys.modules)
"""


def test_numpy_is_imported_only_for_an_array():
    encoded = codec.encode(np.arange(3)).hex()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, encoded],
        env={"PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[0, 1, 2] True\n"


def test_without_numpy_it_says_what_is_missing(monkeypatch):
    encoded = codec.encode(np.arange(3))
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(DecodeFailed, match="pip install numpy"):
        codec.decode(encoded)
    assert codec.decode(codec.encode({"a": (1,)})) == {"a": (1,)}


def shown(value):
    return describe(codec.encode({"array": value}))["array"]


@pytest.mark.parametrize("kind", ["f8", "i4", "i2", "u1", "?", "c16", "<U3", "f2"])
def test_differing_elements_are_counted(kind):
    before = np.zeros((3, 4), kind)
    after = before.copy()
    after[0, 1], after[2, 3] = 1, 1
    assert shown(before).differing(shown(after)) == 2
    assert shown(before).differing(shown(before)) == 0
    assert shown(before).count == 12


def test_only_arrays_that_are_alike_are_compared():
    base = shown(np.zeros((2, 2), "f8"))
    others = [
        np.zeros((4,), "f8"),
        np.zeros((2, 2), "i8"),
        np.zeros((2, 2), ">f8"),
        np.asfortranarray(np.zeros((2, 2), "f8")),
    ]
    assert [base.differing(shown(other)) for other in others] == [None] * 4
    assert shown(np.zeros((0,), "f8")).differing(shown(np.zeros((0,), "f8"))) is None


def test_an_array_is_one_edit_that_says_how_many_elements_differ():
    before, after = np.arange(6.0), np.arange(6.0)
    after[3] = -1
    states = [{"rows": [{"scores": shown(each)}], "n": 1} for each in (before, after)]
    [edit] = edits(*states)
    assert (edit.op, edit.path, edit.differing) == ("replace", "/rows/0/scores", 1)
    assert edit.to_json()["value"] == states[1]["rows"][0]["scores"]
    assert "1 of 6 elements differ" in edit_line(edit)
    [other] = edits({"x": shown(before)}, {"x": {"a": 1}})
    assert (other.op, other.path, other.differing) == ("replace", "/x", None)
    assert list(edits(states[0], states[0])) == []
    json.dumps([edit.to_json()])
