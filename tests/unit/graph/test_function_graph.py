"""Plain functions as graphs of one node."""

from dataclasses import dataclass
from typing import Any

import pytest

from perdure.errors import GraphInvalid, UpdateInvalid
from perdure.graph import END, START, FunctionState, effect, function_graph
from perdure.model import WriteOp


@dataclass
class Order:
    id: str
    amount: int = 1


async def only_input(order: Order) -> int:
    return order.amount


async def with_context(order, ctx):
    return order, ctx


async def only_context(ctx):
    return ctx


async def nothing():
    return "done"


async def with_default(count: int = 3):
    return count


def plain(text: str) -> str:
    return text.upper()


def plain_context(text: str, ctx: Any) -> Any:
    return text, ctx


async def test_the_plan_of_a_function():
    plan = function_graph(only_input)
    assert (plan.name, plan.version, plan.is_function) == ("only_input", 1, True)
    assert list(plan.channels) == ["input", "result"]
    assert {channel.op for channel in plan.channels.values()} == {WriteOp.REPLACE}
    ((name, node),) = plan.nodes.items()
    assert plan.edges == {START: (name,), name: (END,)}
    assert node.is_async
    assert plan.types == (Order,)
    assert plan.channels["result"].annotation is int
    state = plan.build_state({"input": Order("a", 4)})
    assert state == FunctionState(Order("a", 4), None)
    assert await node.call(state) == {"result": 4}
    assert plan.build_state({"input": 1, "result": 2}) == FunctionState(1, 2)
    assert plan.resolve(END) == (END,)


async def test_functions_get_what_they_name():
    state = FunctionState("I")
    for function, expected in [(with_context, ("I", "C")), (only_context, "C")]:
        node = function_graph(function).nodes["call"]
        assert node.takes_context
        assert await node.call(state, "C") == {"result": expected}
    node = function_graph(nothing).nodes["call"]
    assert not node.takes_context
    assert await node.call(state) == {"result": "done"}


def test_plain_functions_work_too():
    node = function_graph(plain).nodes["call"]
    assert not node.is_async
    assert node.call(FunctionState("a")) == {"result": "A"}
    node = function_graph(plain_context).nodes["call"]
    assert node.call(FunctionState("a"), "C") == {"result": ("a", "C")}


def test_the_input_is_read_by_the_annotation():
    read = function_graph(only_input).read_input
    assert read({"id": "a"}, True) == {"input": Order("a", 1)}
    order = Order("b")
    assert read(order, False)["input"] is order
    for wrong in ("a", None, {"id": 5}, {}):
        with pytest.raises(
            UpdateInvalid, match="graph 'only_input', field 'input': expected Order"
        ):
            read(wrong, True)


def test_any_input_goes_where_no_type_is_named():
    read = function_graph(with_context).read_input
    assert read([1], True) == {"input": [1]}
    assert read(None, True) == {"input": None}


def test_a_default_stands_for_no_input():
    plan = function_graph(with_default)
    assert plan.read_input(None, True) == {"input": 3}
    assert plan.read_input(5, True) == {"input": 5}
    assert plan.build_state({}) == FunctionState(3, None)


@pytest.mark.parametrize("function", [nothing, only_context])
def test_input_for_a_function_without_one_is_refused(function):
    read = function_graph(function).read_input
    assert read(None, True) == {"input": None}
    with pytest.raises(UpdateInvalid, match="it takes no input"):
        read(1, True)


def test_local_functions_have_a_name():
    async def local(): ...

    assert function_graph(local).name == "test_local_functions_have_a_name.local"


async def _generator():
    yield 1


async def _three(one, two, three): ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_three, "it takes (one, two, three); take (input), (input, ctx) or nothing"),
        (lambda: None, "a lambda has no name to be found by again"),
        (_generator, "a generator can't be run by itself"),
        (effect(nothing), "an effect can't be run by itself"),
    ],
)
def test_functions_that_can_not_be_run_are_refused(function, text):
    with pytest.raises(GraphInvalid) as caught:
        function_graph(function)
    assert text in str(caught.value)
