"""A tape whose fields are called otherwise than those of the graph: fitted before it is played.

A state type that lacks a recorded field can be given to no node. So what is recorded of the field
goes under its new name, where there is no doubt which that is, or is left out; the replay says so
once, and not once for each node.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from msgspec import structs

from perdure.core import fold
from perdure.core.identity import scope_of
from perdure.core.plan import GraphPlan
from perdure.engine.tape import Tape
from perdure.model import records as rec

Value = TypeVar("Value")


def refit(tape: Tape, plan: GraphPlan) -> dict[str, str | None]:
    """Rename the tape's fields in place; return what became of those that the graph lacks.

    Returns:
        The new name of each; None: it is left out.
    """
    ops = _ops_of(tape)
    gone = [name for name in ops if name not in plan.channels]
    if not gone:
        return {}
    renamed: dict[str, str | None] = dict.fromkeys(gone)
    if len(gone) == 1:
        op = ops[gone[0]]
        new = [n for n, channel in plan.channels.items() if n not in ops and channel.op == op]
        renamed[gone[0]] = new[0] if len(new) == 1 else None
    _rename(tape, renamed)
    return renamed


def renamed_keys(
    values: Mapping[str, Value], renamed: Mapping[str, str | None]
) -> dict[str, Value]:
    """Return values by their names in the graph, without those that it has no place for."""
    pairs = [(renamed.get(name, name), value) for name, value in values.items()]
    return {name: value for name, value in pairs if name is not None}


def _ops_of(tape: Tape) -> dict[str, str]:
    """Return the fields that are recorded of the run's own graph, with how each is written."""
    ops: dict[str, str] = {}
    for step in _root_steps(tape).values():
        ops.update(dict.fromkeys(step.folded, "replace"))
    cells = tape.cells if tape.state is None else tape.state.root.cells
    ops.update({name: cell.op for name, cell in cells.items()})
    inputs = [tape.started.input] if tape.started is not None else []
    for writes in [*inputs, *(each.writes for each in _outcomes(tape))]:
        ops.update({name: op for name, (op, _raw) in writes.items()})
    return ops


def _root_steps(tape: Tape) -> dict[tuple[str, int], rec.StepCommitted]:
    return {place: step for place, step in tape.steps.items() if not place[0]}


def _outcomes(tape: Tape) -> Iterator[rec.NodeFinished]:
    for path, attempts in tape.attempts.items():
        for attempt in attempts:
            if not scope_of(path) and isinstance(attempt.outcome, rec.NodeFinished):
                yield attempt.outcome


def _rename(tape: Tape, renamed: Mapping[str, str | None]) -> None:
    tape.cells = renamed_keys(tape.cells, renamed)
    if tape.started is not None:
        tape.started = structs.replace(
            tape.started, input=renamed_keys(tape.started.input, renamed)
        )
    for path, attempts in tape.attempts.items():
        for attempt in attempts:
            if not scope_of(path) and isinstance(attempt.outcome, rec.NodeFinished):
                attempt.outcome = _renamed_outcome(attempt.outcome, renamed)
    for place, step in _root_steps(tape).items():
        tape.steps[place] = structs.replace(step, folded=renamed_keys(step.folded, renamed))
    if tape.state is not None:
        _rename_state(tape, tape.state, renamed)


def _rename_state(tape: Tape, state: fold.RunState, renamed: Mapping[str, str | None]) -> None:
    state.started = tape.started
    state.root.cells = renamed_keys(state.root.cells, renamed)
    for task in state.root.tasks.values():
        if task.outcome is not None:
            task.outcome = _renamed_outcome(task.outcome, renamed)


def _renamed_outcome(
    outcome: rec.NodeFinished, renamed: Mapping[str, str | None]
) -> rec.NodeFinished:
    return structs.replace(outcome, writes=renamed_keys(outcome.writes, renamed))
