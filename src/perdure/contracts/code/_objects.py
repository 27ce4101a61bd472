"""What makes the object, or compiles the graph, that an expression is: as far as names tell."""

import ast

from perdure.contracts.code import _catalog, limits
from perdure.contracts.code._index import index_of
from perdure.contracts.code._meanings import External, Parameter, Variable
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Scope, last_name

Maker = Scope | External | None


def made_by(program: Program, scope: Scope, node: ast.expr, depth: int = 0) -> Maker:
    """Return the class of the project, or what of a library, makes an object; `None`: not told."""
    if depth > limits.DYNAMIC_DEPTH_MAX:
        return None
    match node:
        case ast.Await(value=inner):
            return made_by(program, scope, inner, depth + 1)
        case ast.BinOp(op=ast.BitOr()):
            return External("operator.or_")  # `prompt | model`
        case ast.Call(func=func):
            meaning = program.meaning(scope, func)
            if isinstance(meaning, Scope) and meaning.kind == "class":
                return meaning
            return meaning if isinstance(meaning, External) else None
        case ast.Attribute(value=ast.Name(id="self")):
            return _of_all(program, own_values(program, scope, node.attr), depth)
        case ast.Name():
            known = program.resolve(scope, node.id)
            if isinstance(known, Variable):
                assigns = known.scope.assigns.get(known.name, ())
                return _of_all(program, [(known.scope, one.value) for one in assigns], depth)
            if isinstance(known, Parameter):
                return _annotated(program, known)
    return None


def own_values(
    program: Program, scope: Scope, name: str, owner: Scope | None = None
) -> list[tuple[Scope, ast.expr | None]]:
    """Return what is assigned to an attribute of the objects of a class: of that around a scope."""
    around = owner if owner is not None else program.class_around(scope)
    family = program.family(around) if around is not None else []
    return [
        (where, one.value)
        for where in program.assigning(name)
        if program.class_around(where) in family
        for one in where.attributes
        if isinstance(one.target, ast.Attribute) and one.target.attr == name
    ]


def _of_all(program: Program, values: list[tuple[Scope, ast.expr | None]], depth: int) -> Maker:
    """Return what makes all of several values, besides `None`."""
    given = [
        (scope, value)
        for scope, value in values
        if value is None or not (isinstance(value, ast.Constant) and value.value is None)
    ]
    found = [
        made_by(program, scope, value, depth + 1) if value is not None else None
        for scope, value in given
    ]
    first = found[0] if found else None
    return first if all(one == first for one in found) else None


def _annotated(program: Program, known: Parameter) -> Maker:
    for one in known.scope.parameters:
        if one.arg == known.name and isinstance(one.annotation, ast.Name | ast.Attribute):
            meaning = program.meaning(known.scope.parent or known.scope, one.annotation)
            return meaning if isinstance(meaning, Scope) and meaning.kind == "class" else None
    return None


def is_no_graph(program: Program, scope: Scope, node: ast.expr) -> bool:
    """Whether an object is surely no graph: of a class, or of another library, that is known."""
    maker = made_by(program, scope, node)
    if isinstance(maker, External):
        is_made = maker.name.rpartition(".")[2] in _catalog.GRAPH_MAKERS
        return not is_made and not maker.name.startswith(("langgraph", "deepagents"))
    return isinstance(maker, Scope) and not _has_foreign_base(program, maker)


def _has_foreign_base(program: Program, owner: Scope) -> bool:
    """Whether a class, or one that it derives from, has a base that the project does not define."""
    return any(
        len(getattr(one.node, "bases", ())) > len(program.bases(one))
        for one in (owner, *program.bases(owner))
    )


# ---------------------------------------------------------------------------------- graphs


def compiled(program: Program, scope: Scope, node: ast.expr, depth: int = 0) -> ast.Call | None:
    """Return the one call that compiles the graph an expression is; `None`: not to be told."""
    if depth > limits.FLOW_DEPTH_MAX:
        return None
    match node:
        case ast.Await(value=inner) | ast.Call(func=ast.Attribute(attr="with_config", value=inner)):
            return compiled(program, scope, inner, depth + 1)
        case ast.Call() if last_name(node.func) in _catalog.GRAPH_MAKERS:
            return node
        case ast.Call():
            meaning = program.meaning(scope, node.func)
            if isinstance(meaning, Scope) and meaning.kind == "function":
                return _one(program, [(meaning, one.value) for one in meaning.results], depth)
        case ast.Attribute(value=ast.Name(id="self")):
            return _one(program, own_values(program, scope, node.attr), depth)
        case ast.Name() | ast.Attribute():
            return _of_name(program, scope, node, depth)
    return None


def _of_name(
    program: Program, scope: Scope, node: ast.Name | ast.Attribute, depth: int
) -> ast.Call | None:
    known = program.meaning(scope, node)
    if isinstance(known, Variable):
        return _one(program, _values(known), depth)
    owner = made_by(program, scope, node.value) if isinstance(node, ast.Attribute) else None
    if isinstance(owner, Scope) and isinstance(node, ast.Attribute):
        return _one(program, own_values(program, scope, node.attr, owner), depth)
    return None


def _values(known: Variable) -> list[tuple[Scope, ast.expr | None]]:
    found = [(known.scope, one.value) for one in known.scope.assigns.get(known.name, ())]
    if known.scope.kind == "module":
        for where in index_of(known.scope).sharing.get(known.name, ()):
            found.extend((where, one.value) for one in where.assigns.get(known.name, ()))
    return found


def _one(
    program: Program, values: list[tuple[Scope, ast.expr | None]], depth: int
) -> ast.Call | None:
    """Return what all of several values are, besides `None`; `None` where they differ."""
    given = [
        (scope, value)
        for scope, value in values
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None)
    ]
    calls = [compiled(program, scope, value, depth + 1) for scope, value in given]
    first = calls[0] if calls else None
    return first if all(one is first for one in calls) else None
