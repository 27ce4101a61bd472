"""State types: their channels, checks, defaults, reading of inputs and building of states.

Size: every kind of state type goes through the same list of cases.
"""

import collections
import dataclasses
import enum
import operator
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import GraphInvalid, UpdateInvalid
from perdure.graph import START, Graph, add, append, collect_types, merge, replace
from perdure.graph._checks import Mismatch, compile_check
from perdure.model import WriteOp


@dataclass
class Data:
    order_id: str
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    facts: Annotated[dict[str, int], merge] = field(default_factory=dict)
    refund_id: str | None = None


class Struct(msgspec.Struct):
    order_id: str
    notes: Annotated[list[str], append] = []
    total: Annotated[int, add] = 0
    facts: Annotated[dict[str, int], merge] = {}
    refund_id: str | None = None


class Model(pydantic.BaseModel):
    order_id: str
    notes: Annotated[list[str], append] = []
    total: Annotated[int, add] = 0
    facts: Annotated[dict[str, int], merge] = pydantic.Field(default_factory=dict)
    refund_id: str | None = None


class Typed(TypedDict):
    order_id: str
    notes: Annotated[list[str], append]
    total: Annotated[int, add]
    facts: Annotated[dict[str, int], merge]
    refund_id: str | None


ALL = pytest.mark.parametrize("state_type", [Data, Struct, Model, Typed])
OBJECTS = pytest.mark.parametrize("state_type", [Data, Struct, Model])


def plan_of(state_type: Any) -> Any:
    graph: Graph[Any] = Graph(state_type, name="g")
    graph.node(lambda state: None, name="n")
    graph.edge(START, "n")
    return graph.compile()


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(UpdateInvalid) as caught:
        call(*args)
    assert str(caught.value).startswith("graph 'g'")
    return str(caught.value)


def read(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


# -------------------------------------------------------------------------------- every state type


@ALL
def test_channels(state_type):
    channels = plan_of(state_type).channels
    assert list(channels) == ["order_id", "notes", "total", "facts", "refund_id"]
    assert {name: channel.op for name, channel in channels.items()} == {
        "order_id": WriteOp.REPLACE,
        "notes": WriteOp.APPEND,
        "total": WriteOp.FOLD,
        "facts": WriteOp.FOLD,
        "refund_id": WriteOp.REPLACE,
    }
    assert channels["total"].reduce(2, 3) == 5
    assert channels["facts"].reduce({"a": 1, "b": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert channels["notes"].reduce is None
    assert channels["order_id"].default is None
    assert not channels["order_id"].is_optional
    assert channels["notes"].annotation == list[str]
    defaults = {name: channel.default() for name, channel in channels.items() if channel.default}
    assert defaults == {"notes": [], "total": 0, "facts": {}, "refund_id": None}
    assert channels["notes"].default() is not channels["notes"].default()


@ALL
def test_states_are_built_with_defaults(state_type):
    build = plan_of(state_type).build_state
    values = {"order_id": "o", "notes": ["n"]}
    state = build(values)
    assert type(state) is (dict if state_type is Typed else state_type)
    assert read(state, "notes") is values["notes"]
    assert read(state, "refund_id") is None
    assert read(state, "facts") == {}
    assert read(build(values), "facts") is not read(state, "facts")
    assert values == {"order_id": "o", "notes": ["n"]}


@ALL
def test_a_mapping_gives_its_items(state_type):
    read_input = plan_of(state_type).read_input
    given = {"order_id": "o", "notes": ["n"]}
    assert read_input(given, True) == given
    assert read_input({"notes": ["n"]}, False) == {"notes": ["n"]}
    assert read_input(collections.ChainMap({"order_id": "o"}), True) == {"order_id": "o"}
    assert read_input(None, False) == {}


@OBJECTS
def test_an_object_gives_all_its_fields_first_and_then_what_is_not_default(state_type):
    read_input = plan_of(state_type).read_input
    state = state_type(order_id="o", notes=["n"])
    assert read_input(state, True) == {
        "order_id": "o",
        "notes": ["n"],
        "total": 0,
        "facts": {},
        "refund_id": None,
    }
    assert read_input(state, False) == {"order_id": "o", "notes": ["n"]}


@ALL
def test_inputs_that_do_not_fit_are_refused(state_type):
    read_input = plan_of(state_type).read_input
    text = refusal(read_input, {"order_id": "o", "note": ["n"]}, False)
    assert "the unknown field 'note'; the state has 'facts', 'notes', 'order_id'" in text
    assert text.endswith("Did you mean 'notes'?")
    assert "unknown fields 'a', 'b'" in refusal(read_input, {"b": 1, "a": 1}, True)
    assert "lacks the required field 'order_id'" in refusal(read_input, {}, True)
    assert "lacks the required field 'order_id'" in refusal(read_input, None, True)
    text = refusal(read_input, 5, True)
    assert f"must be a {state_type.__name__}, a mapping of its fields, or None; got int" in text
    text = refusal(read_input, {"order_id": "o", "notes": "n"}, True)
    assert "field 'notes': append needs a list of new items, got str" in text
    assert "unknown field '5'" in refusal(read_input, {5: 1}, False)


@ALL
def test_checks_name_graph_field_and_types(state_type):
    channels = plan_of(state_type).channels
    for name, good in {
        "order_id": "o",
        "notes": ["n"],
        "total": 3,
        "facts": {"a": 1},
        "refund_id": None,
    }.items():
        assert channels[name].check(good) is good
    text = refusal(channels["order_id"].check, 7)
    assert text.startswith("graph 'g', field 'order_id': expected str, got int")
    assert "7" not in text
    assert "expected list[str], got int" in refusal(channels["notes"].check, ["n", 5])
    assert "[1]" in refusal(channels["notes"].check, ["n", 5])
    for not_list in ("n", ("n",), None):
        assert "Wrap it: {'notes': [item]}" in refusal(channels["notes"].check, not_list)
    assert "expected dict[str, int], got str" in refusal(channels["facts"].check, {"a": "x"})
    assert "['a']" in refusal(channels["facts"].check, {"a": "x"})
    assert "got float" in refusal(channels["total"].check, 1.5)
    assert "got int" in refusal(channels["refund_id"].check, 5)


@ALL
@given(
    values=st.fixed_dictionaries(
        {"order_id": st.text()},
        optional={
            "notes": st.lists(st.text()),
            "total": st.integers(),
            "facts": st.dictionaries(st.text(), st.integers()),
            "refund_id": st.none() | st.text(),
        },
    )
)
def test_what_is_read_builds_the_state_that_was_given(state_type, values):
    plan = plan_of(state_type)
    state = plan.build_state(plan.read_input(values, True))
    if state_type is not Typed:
        assert state == state_type(**values)
        again = plan.read_input(state, True)
        assert plan.build_state(again) == state
        changed = plan.read_input(state, False)
        assert plan.build_state(changed) == state
    assert all(read(state, name) == value for name, value in values.items())


# ---------------------------------------------------------------------------------------- reducers


@given(st.lists(st.integers()), st.lists(st.integers()), st.lists(st.integers()))
def test_append_is_associative_and_changes_nothing(a, b, c):
    before = ([*a], [*b])
    assert append(append(a, b), c) == append(a, append(b, c)) == a + b + c
    assert (a, b) == before


@given(*[st.dictionaries(st.text(max_size=2), st.integers())] * 3)
def test_merge_is_associative_and_the_new_one_wins(a, b, c):
    before = ({**a}, {**b})
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert all(merge(a, b)[name] == value for name, value in b.items())
    assert (a, b) == before


@given(st.integers(), st.integers())
def test_add_and_replace(old, new):
    assert add(old, new) == old + new
    assert replace(old, new) == new


def test_reducers_of_other_origin():
    @dataclass
    class State:
        listed: Annotated[list[int], operator.add] = field(default_factory=list)
        tags: Annotated[set[str], lambda old, new: old | {new}] = field(default_factory=set)
        last: Annotated[int, replace] = 0
        top: Annotated[int, max, "the largest so far"] = 0
        bare: Annotated[list, append] = field(default_factory=list)
        anything: Annotated[Any, append] = field(default_factory=list)
        many: Annotated[Sequence[int], append] = field(default_factory=list)

    channels = plan_of(State).channels
    assert [channels[name].op for name in ("listed", "tags", "last", "top")] == ["a", "f", "r", "f"]
    assert channels["tags"].reduce({"a"}, "b") == {"a", "b"}
    assert channels["tags"].check is None
    assert channels["top"].reduce(2, 1) == 2
    assert channels["last"].reduce is None
    for name in ("bare", "anything", "many"):
        assert channels[name].check([1]) == [1]
        refusal(channels[name].check, 1)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Annotated[list, "append"], "'append' is not a reducer; name a function of (old, new)"),
        (Annotated[list, 5], "5 is not a reducer"),
        (Annotated[list, None], "None is not a reducer"),
        (Annotated[int, append], "append needs a list, and it is int"),
        (Annotated[list[int] | None, append], "append needs a list, and it is list[int] | None"),
        (Annotated[list, append, add], "has the reducers append and add; keep one"),
        (Annotated[int, lambda old: old], "the reducer <lambda> must take (old, new)"),
    ],
)
def test_reducers_that_can_not_work_are_refused(annotation, text):
    state_type = dataclasses.make_dataclass("State", [("items", annotation)])
    with pytest.raises(GraphInvalid) as caught:
        plan_of(state_type)
    assert str(caught.value).startswith("graph 'g', state: field 'items': ")
    assert text in str(caught.value)


def test_append_begins_with_a_list():
    @dataclass
    class State:
        notes: Annotated[list[str], append] = None  # type: ignore[assignment] # what is tested

    with pytest.raises(GraphInvalid, match="append needs a list to begin with"):
        plan_of(State)


# -------------------------------------------------------------------------- dataclasses and structs


def test_computed_fields_and_class_variables_are_no_channels():
    @dataclass
    class State:
        given: int
        doubled: int = field(init=False)

        def __post_init__(self):
            self.doubled = self.given * 2

    plan = plan_of(State)
    assert list(plan.channels) == ["given"]
    assert plan.build_state({"given": 2}).doubled == 4


def test_init_variables_are_refused():
    @dataclass
    class State:
        given: dataclasses.InitVar[int]

    with pytest.raises(GraphInvalid, match="an InitVar is not stored; make it a field"):
        plan_of(State)


def test_frozen_slotted_and_keyword_only_dataclasses_work():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class State:
        a: int
        b: int = 2

    assert plan_of(State).build_state({"a": 1}) == State(a=1)


def test_a_default_that_differs_each_time_is_stored_once():
    @dataclass
    class State:
        id: str = field(default_factory=lambda: str(uuid.uuid4()))
        notes: list[str] = field(default_factory=list)

    class Other(msgspec.Struct):
        id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))

    class Third(pydantic.BaseModel):
        id: str = pydantic.Field(default_factory=lambda: str(uuid.uuid4()))

    for state_type in (State, Other, Third):
        read_input = plan_of(state_type).read_input
        assert list(read_input({}, True)) == ["id"]
        assert read_input({"id": "a"}, True) == {"id": "a"}
        assert read_input({}, False) == {}


def test_values_that_do_not_compare_are_not_default():
    class Odd:
        def __eq__(self, other):
            raise ValueError

        __hash__ = None

    @dataclass
    class State:
        odd: Any = field(default_factory=Odd)

    assert list(plan_of(State).read_input(State(), False)) == ["odd"]


def test_true_is_not_the_default_one():
    @dataclass
    class State:
        count: Any = 1

    assert plan_of(State).read_input(State(True), False) == {"count": True}
    assert plan_of(State).read_input(State(1), False) == {}


# -------------------------------------------------------------------------------------- TypedDict


def test_typed_dict_keys_that_are_not_required_may_be_absent():
    class State(TypedDict, total=False):
        must: Required[int]
        may: int
        tags: Annotated[set[str], operator.or_]
        maybe: Optional[int]  # noqa: UP045 - the old spelling is tested

    plan = plan_of(State)
    assert plan.channels["may"].is_optional
    assert plan.channels["may"].default is None
    assert not plan.channels["must"].is_optional
    assert plan.read_input({"must": 1}, True) == {"must": 1}
    assert plan.build_state({"must": 1}) == {"must": 1, "tags": set(), "maybe": None}
    assert "'must'" in refusal(plan.read_input, {}, True)


def test_typed_dict_not_required_within_annotated():
    class State(TypedDict):
        a: NotRequired[int]
        b: Annotated[NotRequired[list[int]], append]
        c: NotRequired[Annotated[int, add]]
        d: Annotated[Any, max]

    channels = plan_of(State).channels
    assert [channel.op for channel in channels.values()] == ["r", "a", "f", "f"]
    assert channels["a"].is_optional
    assert channels["a"].annotation is int
    assert channels["b"].default() == []
    assert channels["c"].default() == 0
    assert channels["d"].default is None


# ---------------------------------------------------------------------------------------- pydantic


class Address(pydantic.BaseModel):
    city: str


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    count: int = pydantic.Field(default=1, gt=0)
    name: Annotated[str, pydantic.StringConstraints(max_length=3)] = "a"
    link: pydantic.HttpUrl | None = None
    home: Address | None = None
    others: list[Address] = []
    odd: "Odd | None" = None


class Odd:
    """A class that pydantic does not know."""


def test_pydantic_fields_are_checked_by_pydantic_and_never_converted():
    channels = plan_of(Strict).channels
    assert channels["count"].check(3) == 3
    assert "got int (Input should be greater than 0)" in refusal(channels["count"].check, 0)
    assert "got str" in refusal(channels["count"].check, "3")
    assert "at most 3 characters" in refusal(channels["name"].check, "abcd")
    assert "abcd" not in refusal(channels["name"].check, "abcd")
    link = pydantic.HttpUrl("https://example.com/")
    assert channels["link"].check(link) is link
    odd = Odd()
    assert channels["odd"].check(odd) is odd
    refusal(channels["odd"].check, 5)


def test_pydantic_models_are_built_from_mappings():
    channels = plan_of(Strict).channels
    assert channels["home"].check({"city": "Rome"}) == Address(city="Rome")
    assert channels["others"].check([{"city": "Rome"}]) == [Address(city="Rome")]
    refusal(channels["home"].check, {"town": "Rome"})
    text = refusal(channels["others"].check, [{"city": 5}])
    assert "field 'others'" in text
    assert "[0]" in text


def test_pydantic_defaults_made_from_other_fields_are_refused():
    class State(pydantic.BaseModel):
        a: int
        b: int = pydantic.Field(default_factory=lambda data: data["a"])

    with pytest.raises(GraphInvalid, match="field 'b': its default is made from other fields"):
        plan_of(State)


def test_pydantic_is_not_imported_for_other_states():
    code = (
        "import sys, dataclasses, perdure.graph as g\n"
        "S = dataclasses.make_dataclass('S', [('a', int)])\n"
        "graph = g.Graph(S, name='g'); graph.node(lambda state: None, name='n')\n"
        "graph.edge(g.START, 'n'); graph.compile().channels['a'].check(1)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -------------------------------------------------------------------------------- other state types


Item = TypeVar("Item")


@dataclass
class Generic_(Generic[Item]):  # noqa: N801 - only the shape matters
    item: Item


@pytest.mark.parametrize("state_type", [int, dict, "Data", None, Generic_[int], Data("o")])
def test_other_state_types_are_refused(state_type):
    with pytest.raises(GraphInvalid, match="is not supported; use a dataclass"):
        plan_of(state_type)


def test_local_classes_named_as_text_are_found():
    @dataclass
    class Local:
        number: int

    @dataclass
    class State:
        local: "Local | None" = None

    class Model_(pydantic.BaseModel):  # noqa: N801 - as above
        local: "Local | None" = None

    for state_type in (State, Model_):
        check = plan_of(state_type).channels["local"].check
        assert check({"number": 1}) == Local(1)


def test_annotations_that_name_nothing_are_reported():
    @dataclass
    class State:
        item: "Nowhere"  # noqa: F821 - what is tested

    class Model_(pydantic.BaseModel):  # noqa: N801 - as above
        item: "Nowhere"  # noqa: F821 - as above

    for state_type in (State, Model_):
        with pytest.raises(GraphInvalid, match=r"graph 'g', state: .*define that class at module"):
            plan_of(state_type)


# ------------------------------------------------------------------------------------------ checks


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Named:
    name: str


class Tree(TypedDict):
    name: str
    children: NotRequired["list[Tree]"]


class Speaks(Protocol):
    def speak(self) -> None: ...


UserId = NewType("UserId", int)
T = TypeVar("T")


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [1, True], ["1", 1.0, None]),
        (float, [1.0, 1], ["1"]),
        (None, [None], [0]),
        (str | None, ["a", None], [1]),
        (int | str, [1, "a"], [None, 1.5]),
        (Literal["a", 1], ["a", 1], ["b", True]),
        (list, [[], [1]], [()]),
        (list[Any], [[1, "a"]], [()]),
        (list[str], [["a"]], [["a", 1], ("a",), "a"]),
        (list[list[int]], [[[1]]], [[[1], ["a"]], [1]]),
        (list[float], [[1.0, 1]], [["a"]]),
        (set[int], [{1}], [{"a"}, [1]]),
        (frozenset[Color], [frozenset({Color.RED})], [frozenset({"red"})]),
        (dict[str, int], [{"a": 1}, {}], [{"a": "b"}, {1: 1}, []]),
        (dict[str, Any], [{"a": object}], [{1: 1}]),
        (dict, [{1: 2}], [[]]),
        (Mapping[str, int], [{"a": 1}], [{"a": "b"}]),
        (Sequence[int], [[1], (1,)], [["a"], 5]),
        (tuple, [(), (1, "a")], [[]]),
        (tuple[int, str], [(1, "a")], [(1,), (1, 2), [1, "a"]]),
        (tuple[int, ...], [(), (1, 2)], [("a",)]),
        (tuple[Any, ...], [("a", 1)], [[]]),
        (Color, [Color.RED], ["red"]),
        (UserId, [1], ["a"]),
        (uuid.UUID, [uuid.UUID(int=1)], [str(uuid.UUID(int=1))]),
        (Annotated[int, msgspec.Meta(gt=0)], [1], [0, "1"]),
        (list[Annotated[int, msgspec.Meta(gt=0)]], [[1]], [[0]]),
        (Tree, [{"name": "a"}, {"name": "a", "children": [{"name": "b"}]}], [{}, [], {"name": 1}]),
        (Tree, [], [{"name": "a", "children": [{"name": 1}]}]),
        (type, [int], [1]),
    ],
)
def test_checks_accept_the_value_itself_or_refuse(annotation, good, bad):
    check = compile_check(annotation)
    for value in good:
        assert check(value) is value
    for value in bad:
        with pytest.raises(Mismatch):
            check(value)


@pytest.mark.parametrize(
    "annotation",
    [Any, object, T, Speaks, int | Any, "Text", collections.abc.Callable[[int], int], Any | None],
)
def test_what_says_nothing_is_not_checked(annotation):
    assert compile_check(annotation) is None


def test_pydantic_marker_classes_outside_of_models_are_not_checked():
    assert compile_check(pydantic.EmailStr) is None


def test_mappings_become_the_declared_class_wherever_it_stands():
    point = Point(1, 2)
    for annotation, given_, expected in [
        (Point, {"x": 1, "y": 2}, point),
        (Point | None, {"x": 1, "y": 2}, point),
        (list[Point], [{"x": 1, "y": 2}, point], [point, point]),
        (dict[str, Point], {"a": {"x": 1, "y": 2}, "b": point}, {"a": point, "b": point}),
        (tuple[Point, int], ({"x": 1, "y": 2}, 1), (point, 1)),
        (Address, {"city": "Rome"}, Address(city="Rome")),
        (Point | Named, {"name": "a"}, Named("a")),
        (Generic_[Point], {"item": {"x": 1, "y": 2}}, Generic_(point)),
    ]:
        assert compile_check(annotation)(given_) == expected


def test_items_in_order_are_kept_when_nothing_is_built():
    points = [Point(1), Point(2)]
    assert compile_check(list[Point])(points) is points


def test_a_mapping_that_fits_several_classes_is_refused():
    @dataclass
    class Other:
        x: int

    with pytest.raises(Mismatch, match="fits several of them"):
        compile_check(Point | Other)({"x": 1})


def test_a_mapping_that_does_not_fit_says_why():
    with pytest.raises(Mismatch, match=r"does not fit .*missing required field `x`"):
        compile_check(Point)({"y": 1})
    with pytest.raises(Mismatch, match=r"does not fit \(city: Input should be") as caught:
        compile_check(Address)({"city": 12345})
    assert "12345" not in str(caught.value)


@dataclass
class DataRow:
    cents: int
    note: str = None  # as many write it: a default is a default
    tags: list[str] = field(default_factory=list)
    inner: "DataRow | None" = None


class StructRow(msgspec.Struct):
    cents: int
    note: str = None
    tags: list[str] = []
    inner: "StructRow | None" = None


class ModelRow(pydantic.BaseModel):
    cents: int
    note: str = None
    tags: list[str] = []
    inner: "ModelRow | None" = None
    shouted: str = ""

    @pydantic.field_validator("shouted", mode="after")
    @classmethod
    def _length(cls, value: str) -> int:
        return len(value)  # of another type than it says: its own business


class DictRow(TypedDict):
    cents: int
    row: DataRow


ROWS = [DataRow, StructRow, ModelRow]


def made(cls, **fields):
    return cls.model_construct(**fields) if cls is ModelRow else cls(**fields)


@pytest.mark.parametrize("cls", ROWS)
def test_fields_of_objects_are_checked_at_any_depth(cls):
    check = compile_check(dict[str, list[cls]])
    good = [made(cls, cents=1), made(cls, cents=2, tags=["a"], inner=made(cls, cents=3))]
    value = {"rows": good}
    assert check(value) is value
    wrong = [
        ({"cents": 100.5}, ".cents", "float"),
        ({"cents": 1, "tags": ["a", 5]}, ".tags[1]", "int"),
        ({"cents": 1, "inner": made(cls, cents="1")}, ".inner.cents", "str"),
        ({"cents": 1, "inner": {"cents": 1}}, ".inner", "dict"),
    ]
    for fields, path, got in wrong:
        with pytest.raises(Mismatch) as caught:
            check({"rows": [good[0], made(cls, **fields)]})
        assert (caught.value.path, caught.value.got) == (f"['rows'][1]{path}", got)
        assert caught.value.is_inside
    with pytest.raises(Mismatch) as caught:
        check({"rows": ["text"]})
    assert not caught.value.is_inside


def test_fields_that_a_validator_makes_are_its_own_business():
    row = ModelRow(cents=1, shouted="ah")
    assert compile_check(ModelRow)(row) is row


def test_objects_inside_a_typed_dict_are_checked():
    with pytest.raises(Mismatch) as caught:
        compile_check(DictRow)({"cents": 1, "row": DataRow(100.5)})
    assert caught.value.path == "['row'].cents"


def test_an_object_that_holds_itself_is_left_to_the_codec():
    class State(TypedDict):
        row: DataRow

    plan = Graph(State, name="rounds")
    plan.node(lambda state: None, name="only")
    plan.edge(START, "only")
    row = DataRow(1)
    row.inner = row
    assert plan.compile().channels["row"].check(row) is row


# ------------------------------------------------------------------------------------------- types


def test_types_are_found_through_generics_and_fields():
    @dataclass
    class Inner:
        color: Color
        tree: Tree

    @dataclass
    class Outer:
        inner: dict[str, list[Inner | None]]
        again: "Outer | None" = None
        choice: Literal[Color.RED] = Color.RED

    assert collect_types([Outer]) == (Outer,)  # names itself only here: not resolved
    assert set(collect_types([Outer], {"Outer": Outer})) == {Outer, Inner, Color}
    assert set(collect_types([Address, list[Struct], Generic_[Point]])) == {
        Address,
        Struct,
        Generic_,
        Point,
    }
    assert collect_types([int, Any, None, "text", Literal[Color.RED]]) == (Color,)
