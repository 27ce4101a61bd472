"""One super-step's end: how the updates of its nodes become the new state, and what runs next."""

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.core.plan import GraphPlan
from perdure.errors import UpdateConflict
from perdure.model import WriteOp

Writes = Mapping[str, tuple[str, Any]]
"""One task's update: field -> (op, live value)."""


def merge(
    plan: GraphPlan, values: Mapping[str, Any], updates: Iterable[tuple[str, Writes]]
) -> tuple[dict[str, Any], set[str]]:
    """Return the new values and the names of the fields that were folded by a function.

    Args:
        plan: the graph, for its reducers.
        values: the state before the step; not changed.
        updates: (task path, writes) in the order of the step's tasks.

    Raises:
        UpdateConflict: two tasks replaced one field; names both.
    """
    merged = dict(values)
    writers: dict[str, str] = {}
    folded: set[str] = set()
    for task, writes in updates:
        for name, (op, value) in writes.items():
            if op == WriteOp.REPLACE:
                _claim(plan, writers, name, task)
                merged[name] = value
            elif op == WriteOp.APPEND:
                merged[name] = [*merged[name], *value] if name in merged else list(value)
            else:
                items = value if op == WriteOp.FOLD_MANY else [value]
                for item in items:
                    merged[name] = _fold(plan, merged, name, item)
                    folded.add(name)
    return merged, folded


def _claim(plan: GraphPlan, writers: dict[str, str], name: str, task: str) -> None:
    first = writers.setdefault(name, task)
    if first != task:
        msg = (
            f"graph {plan.name!r}: nodes {first!r} and {task!r} both set field {name!r} in one "
            "step; give the field a reducer (Annotated[..., append | add | merge | your function]) "
            "or let one of them write it. The step was not committed."
        )
        raise UpdateConflict(msg, field=name, nodes=[first, task])


def _fold(plan: GraphPlan, merged: Mapping[str, Any], name: str, item: Any) -> Any:
    reduce = plan.channels[name].reduce
    return item if name not in merged or reduce is None else reduce(merged[name], item)
