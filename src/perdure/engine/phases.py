"""Steps between two checkpoints of a graph that has them at phases: what goes by unrecorded.

Theory: in such a graph a step with one node of the graph's own goes by without records of its own.
What it changed is gathered here and written with the next checkpoint, later values in place of
earlier ones. What its node did durably (effects, waits, times) is journaled as always, under the
path of the execution: whoever takes the run over executes the nodes since the last checkpoint
again, finds their acts by identity, and repeats none.

Invariant: only committed steps are in what a checkpoint writes; a node that has ended counts from
the commit of its step.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from perdure.codec import ValueCodec
from perdure.core import fold
from perdure.core.identity import step_of
from perdure.core.plan import Checkpoints, GraphPlan
from perdure.engine.limits import PHASE_STEPS_MAX
from perdure.engine.paging import Filed, is_whole
from perdure.errors import ReplayDiverged
from perdure.model import EffectKind, EffectState, WriteOp
from perdure.model import records as rec

Encoded = dict[str, tuple[str, bytes]]
"""Field -> (op, encoded value)."""

_OUTSIDE = {kind.value for kind in EffectKind if kind.is_outside}


class Passing:
    """What the steps since the last checkpoint changed, and the executions in them."""

    def __init__(self) -> None:
        """Begin right after a checkpoint."""
        self._writes: dict[str, tuple[str, list[bytes]]] = {}
        self._passed: list[rec.Passed] = []
        self._ended: tuple[rec.Passed, Encoded] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was committed since the last checkpoint."""
        return not self._passed

    @property
    def is_long(self) -> bool:
        """Whether as many steps went by as may."""
        return len(self._passed) >= PHASE_STEPS_MAX

    def end(self, record: rec.NodeFinished, encoded: Encoded) -> None:
        """Note that the step's node has ended."""
        passed = rec.Passed(record.task, record.started_us, record.at_us, record.attempt)
        self._ended = passed, encoded

    def commit(self, folded: Mapping[str, bytes]) -> None:
        """Take in the step whose node has ended; `folded`: its merged fields."""
        if self._ended is None:
            return
        passed, encoded = self._ended
        self._ended = None
        self._passed.append(passed)
        for name, (op, value) in encoded.items():
            if op == WriteOp.APPEND:
                self._writes.setdefault(name, (op, []))[1].append(value)
            elif op == WriteOp.REPLACE:
                self._writes[name] = op, [value]
        for name, value in folded.items():
            self._writes[name] = WriteOp.REPLACE.value, [value]

    def take(self, filed: Filed) -> tuple[dict[str, tuple[str, Raw]], list[rec.Passed]]:
        """Return the fields and executions for a checkpoint, and begin anew."""
        merged = {
            name: (op, filed.put(name, _joined(pieces), is_whole=is_whole(op)))
            for name, (op, pieces) in self._writes.items()
        }
        passed, self._writes, self._passed = self._passed, {}, []
        return merged, passed


def _joined(pieces: list[bytes]) -> bytes:
    """Return the pieces of a list as one."""
    if len(pieces) == 1:
        return pieces[0]
    items = [item for piece in pieces for item in msgspec.msgpack.decode(piece, type=list[Raw])]
    return msgspec.msgpack.encode(items)


def goes_by(plan: GraphPlan, scope: fold.Scope) -> bool:
    """Return whether the step under way is one that may go by without a checkpoint."""
    if plan.checkpoints is not Checkpoints.PHASES or scope.path or len(scope.tasks) != 1:
        return False
    [task] = scope.tasks.values()
    return _is_plain(plan, task.spec)


def _is_plain(plan: GraphPlan, spec: rec.TaskSpec) -> bool:
    node = plan.nodes.get(spec.node)
    return not spec.is_sent and node is not None and node.subgraph is None


def is_phase(plan: GraphPlan, scope: fold.Scope, specs: list[rec.TaskSpec]) -> bool:
    """Return whether a step that may go by ends a phase all the same.

    It does where its node says so, at the end, and before a step that may not go by.
    """
    if len(specs) != 1 or not _is_plain(plan, specs[0]):
        return True
    return any(plan.nodes[task.spec.node].is_phase for task in scope.tasks.values())


def encoded_of(codec: ValueCodec, place: str, live: Mapping[str, tuple[str, object]]) -> Encoded:
    """Return an update, encoded: what can't be stored is the node's fault, now and not later."""
    return {name: (op, codec.encode(value, name, place)) for name, (op, value) in live.items()}


def check_ahead(run_id: str, scope: fold.Scope, *, is_end: bool = False) -> None:
    """Refuse to go another way than a holder before, who did something outside on its way.

    Args:
        run_id: of the run, for the error.
        scope: the run's own graph, before its next step.
        is_end: nothing comes after the step under way.

    Raises:
        ReplayDiverged: the run is parked; nothing was sent.
    """
    for path, task in list(scope.ahead.items()):
        if step_of(path) > scope.step and not is_end:
            continue
        lost = [
            call.name
            for call in task.calls.values()
            if call.kind in _OUTSIDE and call.state != EffectState.FAILED
        ]
        if lost:
            msg = (
                f"the run went another way than before: node {path!r} had sent "
                f"{', '.join(lost[:3])} since the last checkpoint, and now step {scope.step} runs "
                f"{', '.join(scope.tasks)}; nothing was sent. Routers and nodes must give the same "
                "again (ctx.now, ctx.random, ctx.call for what varies). Then: perdure resolve "
                f"{run_id} --retry --by NAME, or perdure cancel {run_id}"
            )
            raise ReplayDiverged(msg, run_id=run_id, node=path)
        del scope.ahead[path]
