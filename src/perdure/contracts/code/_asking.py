"""Whether a call of something that is not the project's puts what it is given before a model.

A name such as `run` or `stream` says so only where what it is called on comes from a library of
models or agents.
"""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._meanings import External, Parameter, Variable
from perdure.contracts.code._objects import own_values
from perdure.contracts.code._program import Program
from perdure.contracts.code._said import AGENTS
from perdure.contracts.code._scopes import Call, Scope

_ASKS = regex(
    r"^(a?invoke|a?stream|astream_events|a?run|run_sync|run_stream|run_streamed|a?generate|a?chat"
    r"|a?complete|a?completion|a?predict|generate_content\w{0,20}|send_message\w{0,20}"
    r"|chat_completion\w{0,20})$"
)
_MAKES = regex(r"(completions|responses|messages)\.(create|parse|stream)$")
_GIVEN_AS = {"messages", "input"}


def asks_model(program: Program, scope: Scope, call: Call) -> bool:
    """Return whether a call surely asks a model, by what it is called on or given."""
    func = call.node.func
    makes = isinstance(func, ast.Attribute) and bool(_MAKES.search(ast.unparse(func)))
    if makes and any(one.arg in _GIVEN_AS for one in call.node.keywords):
        return True
    return (makes or bool(_ASKS.match(call.name))) and _is_of_agents(program, scope, func, 0)


def _is_of_agents(program: Program, scope: Scope, node: ast.expr | None, depth: int) -> bool:
    """Whether an object, or what it was made by, is of a library of models or agents."""
    if node is None or depth > limits.FIELDS_DEEP_MAX:
        return False
    meaning = program.meaning(scope, node)
    if isinstance(meaning, External):
        return meaning.name.startswith(AGENTS)
    match node:
        case ast.Await(value=inner) | ast.Subscript(value=inner):
            within = [inner]
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            within = [left, right]
        case ast.Attribute(value=inner) if not _is_own(node):
            within = [inner]
        case ast.Call(func=func) if not isinstance(program.meaning(scope, func), Scope):
            within = [func]
        case _:
            within = []
    made = [*((scope, one) for one in within), *_made(program, scope, node)]
    return any(
        _is_of_agents(program, where, one, depth + 1) for where, one in made[: limits.LEAVES_MAX]
    )


def _made(program: Program, scope: Scope, node: ast.expr) -> list[tuple[Scope, ast.expr | None]]:
    """Return what a name, an attribute of its object or a function of the project stands for."""
    if isinstance(node, ast.Attribute) and _is_own(node):
        return own_values(program, scope, node.attr)
    match program.meaning(scope, node.func if isinstance(node, ast.Call) else node):
        case Scope(kind="function") as called if isinstance(node, ast.Call):
            return [(called, one.value) for one in called.results]
        case Variable(scope=where, name=name):
            return [(where, one.value) for one in where.assigns.get(name, ())]
        case Parameter(scope=where, name=name):
            given = [one.annotation for one in where.parameters if one.arg == name]
            return [(where.parent or where, one) for one in given]
    return []


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"
