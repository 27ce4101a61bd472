"""The graph of one node that most tests of the engine run."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import END, START, Context, Graph, append


@dataclass
class State:
    results: Annotated[list[str], append] = field(default_factory=list)


def one_node(function: Any, name: str, state_type: type = State, **options: Any) -> Graph:
    """Return a graph whose node `act` keeps, as text, what `function(ctx)` gives."""
    graph = Graph(state_type, name=name, **options)

    @graph.node
    async def act(state: Any, ctx: Context) -> dict:
        return {"results": [str(await function(ctx))]}

    graph.edge(START, act)
    graph.edge(act, END)
    return graph
