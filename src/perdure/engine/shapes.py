"""What a graph version looks like to those who do not have its code, and whether a run fits in."""

from collections.abc import Iterable

from perdure.core import fold
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.model import GraphShape


def shape_of(plan: GraphPlan) -> GraphShape:
    """Return what a run that stands in the graph needs of it."""
    return GraphShape(
        plan.name,
        plan.version,
        tuple(sorted(_nodes(plan))),
        tuple(sorted(plan.channels)),
        tuple(sorted(plan.migrations)),
    )


def _nodes(plan: GraphPlan, prefix: str = "") -> Iterable[str]:
    for name, node in plan.nodes.items():
        yield prefix + name
        if node.subgraph is not None:
            yield from _nodes(node.subgraph, f"{prefix}{name}/")


def misfits(shape: GraphShape, state: fold.RunState) -> list[str]:
    """Return why a run can't go on in a graph of this shape; empty: nothing speaks against it.

    Looked at are the node executions of the step under way and the fields that have a value. Edits
    that keep those, and the effects that a node calls, are compatible.
    """
    nodes, fields = set(shape.nodes), set(shape.fields)
    paths = {_place_of(state, path) for scope in state.scopes.values() for path in scope.tasks}
    given = state.started.input if state.started is not None else {}
    stored = set(state.root.cells) | (set() if state.root.is_started else set(given))
    return [
        *(f"node {path!r} is under way and does not exist there" for path in sorted(paths - nodes)),
        *(
            f"field {name!r} has a value and does not exist there"
            for name in sorted(stored - fields)
        ),
    ]


def _place_of(state: fold.RunState, path: str) -> str:
    """Return the names of the nodes on the way to a node execution, as a shape has them."""
    parts = path.split("/")
    paths = ("/".join(parts[: count + 1]) for count in range(len(parts)))
    return "/".join(state.task(each).spec.node for each in paths)


def shapes_of(engine: Environment) -> tuple[GraphShape, ...]:
    """Return the shapes of every graph that this process knows."""
    return tuple(shape_of(engine.plan_named(*graph)) for graph in engine.graphs())
