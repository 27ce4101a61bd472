"""A plain function as a graph of one node."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from perdure.core.plan import END, START, Channel, GraphPlan, NodePlan, Send
from perdure.errors import GraphInvalid, UpdateInvalid
from perdure.graph._channels import field_check
from perdure.graph._signature import (
    SignatureProblem,
    adapt,
    bare,
    hints_of,
    is_async_callable,
    is_context,
    is_generator_callable,
    signature_of,
)
from perdure.graph._state import Field
from perdure.graph._targets import Names, make_normalise
from perdure.graph._types import collect_types
from perdure.graph.effects import Effect
from perdure.graph.limits import NAME_LENGTH_MAX
from perdure.model import WriteOp

NODE = "call"
"""Name of the one node of a function's graph."""


class FunctionState(Struct, frozen=True):
    """The state of a function run durably.

    Attributes:
        input: what it was started with.
        result: what it returned.
    """

    input: Any = None
    result: Any = None


def function_graph(function: Callable[..., Any]) -> GraphPlan:
    """Return a plan of one node that calls the function.

    Args:
        function: async or plain; takes (input), (input, ctx), (ctx) or nothing. The context is
            known by its name `ctx` or its annotation. The input is checked against the annotation
            of the first parameter, and built from a mapping where that is a class with fields.

    Raises:
        GraphInvalid: it takes something else, or has no name to be found by again.
    """
    name = _name(function)
    if isinstance(function, Effect) or is_generator_callable(function):
        what = "an effect" if isinstance(function, Effect) else "a generator"
        msg = f"function {name!r}: {what} can't be run by itself; call it in an async function"
        raise GraphInvalid(msg, graph=name)
    try:
        call, takes_context = adapt(function, "input")
        parameters = list(signature_of(function).parameters.values())
    except SignatureProblem as problem:
        msg = f"function {name!r}: {problem}"
        raise GraphInvalid(msg, graph=name) from None
    hints = hints_of(function)
    first = parameters[0] if parameters and not is_context(parameters[0]) else None
    field = _input_field(first, hints)
    is_async = is_async_callable(function)
    node = NodePlan(
        name=NODE,
        call=_node_call(call, is_async=is_async, takes_context=takes_context),
        is_async=is_async,
        takes_context=takes_context,
    )
    return _plan(name, node, field, hints.get("return", Any), takes_input=first is not None)


def _name(function: Any) -> str:
    inner = bare(function)
    qualified = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    name = re.sub(r"[^\w.\-]", "_", qualified.replace("<locals>.", ""))[-NAME_LENGTH_MAX:]
    if "<lambda>" in qualified:
        msg = "a lambda has no name to be found by again; define a function with def"
        raise GraphInvalid(msg, graph=name)
    return name


def _input_field(first: inspect.Parameter | None, hints: Mapping[str, Any]) -> Field:
    default: Callable[[], Any] | None = lambda: None  # noqa: E731 - typed
    if first is not None:
        given = first.default
        default = None if given is first.empty else lambda: given
    annotation = hints.get(first.name, Any) if first is not None else Any
    return Field(name="input", annotation=annotation, default=default)


def _node_call(
    call: Callable[..., Any],
    *,
    is_async: bool,
    takes_context: bool,
) -> Callable[..., Any]:
    """Return a node that gives the function the input, and its result as an update."""
    if is_async and takes_context:

        async def call_async_ctx(state: FunctionState, ctx: Any) -> dict[str, Any]:
            return {"result": await call(state.input, ctx)}

        return call_async_ctx
    if is_async:

        async def call_async(state: FunctionState) -> dict[str, Any]:
            return {"result": await call(state.input)}

        return call_async
    if takes_context:
        return lambda state, ctx: {"result": call(state.input, ctx)}
    return lambda state: {"result": call(state.input)}


def _plan(
    name: str, node: NodePlan, field: Field, result_type: Any, *, takes_input: bool
) -> GraphPlan:
    names = Names()
    names.add(NODE, node.call)
    normalise = make_normalise(name, names, NODE, frozenset({NODE, END}), "Goto")
    check = field_check(name, field, WriteOp.REPLACE)

    def resolve(target: Any, _source: str | None = None, /) -> tuple[str | Send, ...]:
        return normalise(target)

    return GraphPlan(
        name=name,
        version=1,
        state_type=FunctionState,
        channels={
            "input": Channel(
                name="input",
                op=WriteOp.REPLACE,
                annotation=field.annotation,
                default=field.default,
                check=check,
            ),
            "result": Channel(
                name="result",
                op=WriteOp.REPLACE,
                annotation=result_type,
                default=lambda: None,
            ),
        },
        nodes={NODE: node},
        edges={START: (NODE,), NODE: (END,)},
        branches={},
        build_state=_make_build(field),
        read_input=_make_read_input(name, field, check, takes_input=takes_input),
        resolve=resolve,
        is_function=True,
        types=collect_types([field.annotation, result_type]),
    )


def _make_build(field: Field) -> Callable[[Mapping[str, Any]], FunctionState]:
    default = field.default

    def build(values: Mapping[str, Any]) -> FunctionState:
        if "input" in values:
            return FunctionState(values["input"], values.get("result"))
        return FunctionState(default() if default else None, values.get("result"))

    return build


def _make_read_input(
    name: str, field: Field, check: Callable[[Any], Any] | None, *, takes_input: bool
) -> Callable[[Any, bool], dict[str, Any]]:
    def read_input(given: Any, _is_first: bool) -> dict[str, Any]:  # noqa: FBT001 - plan's form
        if not takes_input and given is not None:
            msg = (
                f"function {name!r}: it takes no input; start it with None, or give it a parameter"
            )
            raise UpdateInvalid(msg, graph=name, field="input")
        if given is None and field.default is not None:
            # The default, and not the input of an earlier run on the thread.
            return {"input": field.default()}
        return {"input": given if check is None else check(given)}

    return read_input
