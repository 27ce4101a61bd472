"""Whether a run that is moved will park when its nodes under way are executed again.

Theory: a replay's driver over the state as the move leaves it. Each execution under way gets what
is recorded of it, up to where it waits or asks for more. What it then asks for that no record has
is held against the rule by which a worker parks (`outside.unasked`): an outside effect that was not
asked for before, while recorded ones are not asked for again. Nothing is written, sent or taken.
"""

from perdure.codec import NO_HASH
from perdure.core import fold
from perdure.core.plan import GraphPlan, NodePlan
from perdure.engine.divergence import act_words, call_words, shortened
from perdure.engine.environment import Environment
from perdure.engine.loading import Loaded
from perdure.engine.migrations import Move
from perdure.engine.outside import unasked
from perdure.engine.played import Played, ReplayContext, Stands
from perdure.engine.replay import ReplayDriver
from perdure.engine.tape import Tape, TapedAttempt
from perdure.errors import PerdureError, ReplayDiverged
from perdure.model import RunRow
from perdure.model import records as rec


async def rehearse(
    engine: Environment, row: RunRow, plan: GraphPlan, loaded: Loaded, move: Move
) -> str:
    """Return why a run would park after a move; empty: nothing says that it would.

    `loaded` is used up: its state becomes that after the move.
    """
    state = loaded.state
    if move.snapshot is None:
        return ""  # it has not begun
    fold.apply_all(state, [move.moved, move.snapshot])
    run = Played(engine, row, plan, state, _tape_of(row, state, engine.now_us()))
    driver = _Rehearsal(run, Loaded(state, NO_HASH, 0))
    try:
        await driver.drive()
    except Stands:
        pass
    except ReplayDiverged as error:
        return str(error)
    except PerdureError:
        return ""  # it fails, as it would when it is executed: that is no decision
    return "; ".join(
        [each for found in driver.problems for each in await _first_of(engine, row, found)]
    )


async def _first_of(
    engine: Environment, row: RunRow, problems: list[tuple[str | None, str]]
) -> list[str]:
    """Return the first problem of an execution that is one; [] if there is none.

    An effect whose business key another one has already is not sent, and parks nothing.
    """
    for key, problem in problems:
        if key is None or await engine.store.read_effect_by_key(row.tenant, key) is None:
            return [problem]
    return []


def _tape_of(row: RunRow, state: fold.RunState, now_us: int) -> Tape:
    """Return a tape that ends where the run stands, with the executions under way alone."""
    tape = Tape(row=row, cells={}, last_us=now_us)
    for scope in state.scopes.values():
        if scope.path:  # so that the driver looks into the subgraph
            begun = rec.StepCommitted(now_us, scope.path, fold.INPUT_STEP, 0, {}, [])
            tape.steps[scope.path, fold.INPUT_STEP] = begun
        for task in scope.tasks.values():
            if task.outcome is None:
                calls = dict.fromkeys(task.calls)
                attempt = TapedAttempt(task.attempt, task.calls, calls, None)
                tape.attempts[task.path] = [attempt]
    return tape


class _Rehearsal(ReplayDriver):
    """Executes what is under way, and notes what would be held back."""

    def __init__(self, run: Played, loaded: Loaded) -> None:
        super().__init__(run, loaded)
        self.problems: list[list[tuple[str | None, str]]] = []

    def _compare(
        self,
        node: NodePlan,
        _attempt: TapedAttempt,
        context: ReplayContext,
        _got: rec.NodeFinished | rec.NodeFailed | None,
    ) -> None:
        """Hold what the execution asks for against what it did before."""
        found: list[tuple[str | None, str]] = []
        for name, request, key in context.wanted_outside:
            missing = unasked(context.task, name)
            if missing:
                recorded = shortened(", ".join(call_words(call) for call in missing))
                problem = (
                    f"node {node.name!r} ({context.task.path}) is executed again and would send "
                    f"{act_words('effect', name, request)}, while {recorded}, recorded before the "
                    "move, is not asked for again: nothing would be sent, and the run would park "
                    "(ReplayDiverged). Let the new node compute the arguments of before"
                )
                found.append((key, problem))
        self.problems.append(found)
