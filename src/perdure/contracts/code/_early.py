"""Graphs that are made before their saver is: what a graph gets while modules are imported.

    service = Service()                  # service.saver is None
    graph = builder.compile(checkpointer=service.saver)
    async def lifespan(app): service.saver = AsyncPostgresSaver(pool)

The graph above has no saver, ever, though one is made.
"""

import ast

from msgspec.structs import replace

from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._order import Order
from perdure.contracts.code._scopes import Scope
from perdure.contracts.code._values import Decision, Kind, Leaf, settled
from perdure.contracts.evidence import Evidence


class Early:
    """Asks what is there while modules are imported."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is asked yet."""
        self.order = Order(Flow(flow.program, flow.environment))  # with a bound of its own
        self.late: set[tuple[str, int, int]] = set()
        """Savers that graphs ask for before they are made."""
        self._flow = Flow(
            flow.program,
            flow.environment,
            left_out=lambda scope: self.order.is_later(scope) is True,
        )

    def judged(self, group: list[Bound], made: Decision) -> list[Bound]:
        """Return what a graph gets, none if it is made before its saver, or else a question.

        Args:
            group: what one graph may get.
            made: whether there is a graph at all.
        """
        savers = [one for one in group if one.leaf.kind is Kind.SITE]
        if not savers:
            return group
        sink, saver = savers[0].sink, savers[0].leaf.value
        is_early = self._is_early(sink.scope, sink.value)
        nothing = self._nothing(sink.scope, sink.value) if is_early is not False else None
        if nothing is None:
            return group
        at = Evidence(
            file=saver.frame.scope.path,
            line=saver.node.lineno,
            note=f"makes the {saver.class_name} only when everything is imported",
        )
        if is_early:
            self.late.update(one.leaf.value.key for one in savers)
            return [Bound(sink=sink, leaf=nothing.after((at,)), chosen=made, is_early=True)]
        question = (
            f"Is the graph of {sink.scope.path}:{sink.line} that is served made when "
            f"{at.file}:{at.line} has made its saver? While modules are imported there is none."
        )
        asked = Decision(is_met=None, question=question)
        return [replace(one, chosen=asked) if one.chosen.is_met else one for one in group]

    def _is_early(self, scope: Scope, value: ast.expr | None) -> bool | None:
        if value is None or isinstance(value, ast.Constant):
            return False
        return self.order.is_at_import(scope)

    def _nothing(self, scope: Scope, value: ast.expr | None) -> Leaf | None:
        """Return the `None` that a value is where imports execute a line of a scope, if it is."""
        found = settled(self._flow.likely(value, self._flow.frame(scope)))
        is_none = [leaf.kind is Kind.CONST and leaf.value is None for leaf in found]
        return found[0] if found and all(is_none) else None
