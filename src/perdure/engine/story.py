"""What a run did, step by step: the nodes of each step, its effects, and what people decided.

Theory: the records of a run, folded as a holder folds them, with what the fold forgets kept aside:
the executions of each committed step, those inside subgraphs under the node that is the subgraph.
`history`, `compare`, forks and rollbacks all look at this one story.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct, field, structs

from perdure.codec import describe
from perdure.core import fold
from perdure.core.identity import node_of
from perdure.engine.environment import Environment
from perdure.engine.loading import read_kept, resumed
from perdure.engine.paging import VALUES, inline_record
from perdure.engine.waits import as_datetime
from perdure.model import EffectState, Failure, RunRow
from perdure.model import records as rec


class NodeRun(Struct, frozen=True, kw_only=True):
    """One node execution.

    Attributes:
        path: of the execution: step and node, inside a subgraph behind its node's path.
        index: which of a fan-out, from 1; 0: none.
        attempts: how often it was tried.
        changed: fields that it wrote.
        failure: why its newest attempt failed; None: it did not.
        is_finished: whether it has its outcome.
        steps: of the subgraph that it is.
    """

    path: str
    node: str
    index: int
    attempts: int
    changed: tuple[str, ...]
    failure: Failure | None
    is_finished: bool
    steps: tuple["StepRun", ...] = ()


class StepRun(Struct, frozen=True, kw_only=True):
    """One committed step.

    Attributes:
        checkpoint: its id in the thread; None inside a subgraph.
        step: number in the run (or subgraph); 0 took the input in and ran nothing.
        at: when it was committed; None: it is under way (inside a subgraph).
        next: nodes of the next step; empty: the graph had ended.
        changed: fields that the step changed.
    """

    checkpoint: int | None
    thread: str
    run_id: str
    seq: int
    step: int
    at: dt.datetime | None
    nodes: tuple[NodeRun, ...]
    next: tuple[str, ...]
    changed: tuple[str, ...]


class EffectSeen(Struct, frozen=True, kw_only=True):
    """An effect as the journal has it.

    Attributes:
        args: JSON-like; None where the journal does not keep the request (kinds pure, contained
            and transaction).
        state: its newest state of the ledger.
        via: how its outcome was found: call, reconcile, decision or key.
        by: who decided, or whose result it is.
        seq: of its first record.
    """

    id: str
    run_id: str
    node: str
    name: str
    kind: str
    state: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    key: str | None
    business_key: str | None
    result: Any
    failure: Failure | None
    via: str
    by: str
    attempt: int
    seq: int

    @property
    def is_outside(self) -> bool:
        """Whether others can see it: it is no mere reading or computing."""
        return self.kind not in {"pure", "contained"}


class Decision(Struct, frozen=True, kw_only=True):
    """What a person decided, or did not.

    Attributes:
        kind: "answer", "default" (nobody answered in time), "expired" (the same, without a
            default), "happened" or "not_happened" (of an uncertain effect).
        id: of the ask or the effect.
        about: the question, or the effect's name.
        value: the answer, or the effect's result.
    """

    kind: str
    id: str
    run_id: str
    node: str
    about: str
    value: Any
    by: str
    at: dt.datetime
    seq: int


class Rolled(Struct, frozen=True, kw_only=True):
    """That a run put its thread back to a checkpoint, and who wanted it."""

    checkpoint: int
    by: str
    reason: str


class Story(Struct, kw_only=True):
    """What `tell` returns.

    Attributes:
        steps: committed ones, oldest first.
        effects: by id, in the order of their first records.
        children: (run id, graph) of child runs that were spawned.
        under_way: executions of the step that was not committed.
    """

    row: RunRow
    started: rec.RunStarted | None = None
    rolled: Rolled | None = None
    steps: list[StepRun] = field(default_factory=list)
    effects: dict[str, EffectSeen] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    children: list[tuple[str, str]] = field(default_factory=list)
    under_way: tuple[NodeRun, ...] = ()
    last_seq: int = 0


async def tell(
    engine: Environment, row: RunRow, *, after: int | None = None, upto: int | None = None
) -> Story:
    """Return the story of a run, from after one of its checkpoints up to another.

    Args:
        engine: whose store it is in.
        row: the run.
        after: checkpoint id; None: from its start.
        upto: checkpoint id; None: to the newest record.

    What was pruned is left out.

    Raises:
        StoreCorrupt, DecodeFailed: the journal is not what was written.
    """
    teller = _Teller(row)
    for seq, _frame, record in await read_kept(engine.store, row.run_id):
        told = record
        if type(record) in VALUES:
            place = f"run {row.run_id!r}, seq {seq}"
            told = await inline_record(engine.store, row.tenant, place, record)
        checkpoint = teller.take(seq, told)
        if checkpoint is None:
            continue
        if checkpoint == after:
            teller.forget()
        if checkpoint == upto:
            break
    else:
        teller.story.under_way = teller.nodes_of("")
    return teller.story


class _Teller:
    """Builds a story record by record."""

    def __init__(self, row: RunRow) -> None:
        self.story = Story(row=row)
        self._state = fold.RunState(row.run_id)
        self._state.checkpoint = row.base_checkpoint
        self._inner: dict[str, list[StepRun]] = {}

    def forget(self) -> None:
        """Tell only what comes from here on."""
        self.story = Story(
            row=self.story.row, started=self.story.started, last_seq=self.story.last_seq
        )

    def take(self, seq: int, record: rec.Record) -> int | None:
        """Take one record in; return the id of the checkpoint that it is, or None."""
        going = resumed(self._state, seq, record)
        if going is None:
            return None
        self._state = going
        self.story.last_seq = seq
        tell = _TELL.get(type(record))
        if tell is not None:
            tell(self, seq, record)
        fold.apply(self._state, record)
        is_checkpoint = isinstance(record, rec.StepCommitted) and record.scope == ""
        return self._state.checkpoint if is_checkpoint else None

    def started(self, _seq: int, record: rec.RunStarted) -> None:
        self.story.started = record
        if record.rollback is not None:
            self.story.rolled = Rolled(
                checkpoint=record.rollback.checkpoint,
                by=record.rollback.by,
                reason=record.rollback.reason,
            )

    def committed(self, seq: int, record: rec.StepCommitted) -> None:
        nodes = self.nodes_of(record.scope) if record.step != fold.INPUT_STEP else ()
        if record.passed:
            nodes = tuple(_passed_by(each) for each in record.passed)
        started = self.story.started
        changed = (
            set(record.folded)
            | set(record.merged)
            | {name for node in nodes for name in node.changed}
        )
        if record.step == fold.INPUT_STEP and record.scope == "" and started is not None:
            changed |= set(started.input)
        step = StepRun(
            checkpoint=None if record.scope else record.checkpoint,
            thread=self.story.row.thread,
            run_id=self.story.row.run_id,
            seq=seq,
            step=record.step,
            at=as_datetime(record.at_us),
            nodes=nodes,
            next=tuple(spec.node for spec in record.next),
            changed=tuple(sorted(changed)),
        )
        if record.scope == "":
            self.story.steps.append(step)
            self._inner.clear()
        elif record.step != fold.INPUT_STEP:
            self._inner.setdefault(record.scope, []).append(step)

    def nodes_of(self, scope: str) -> tuple[NodeRun, ...]:
        """Return the executions of the scope's step under way."""
        found = self._state.scopes.get(scope)
        return tuple(self._node(task) for task in found.all_tasks) if found else ()

    def _node(self, task: fold.Task) -> NodeRun:
        steps = self._inner.get(task.path, [])
        return NodeRun(
            path=task.path,
            node=task.spec.node,
            index=task.spec.index,
            attempts=task.attempt,
            changed=tuple(sorted(task.outcome.writes)) if task.outcome is not None else (),
            failure=task.failure if task.outcome is None else None,
            is_finished=task.outcome is not None,
            steps=(*steps, *self._open_step(task)),
        )

    def _open_step(self, task: fold.Task) -> tuple[StepRun, ...]:
        """Return the step under way of the subgraph that an unfinished task is."""
        scope = self._state.scopes.get(task.path)
        if scope is None or task.outcome is not None or not scope.tasks:
            return ()
        return (
            StepRun(
                checkpoint=None,
                thread=self.story.row.thread,
                run_id=self.story.row.run_id,
                seq=self.story.last_seq,
                step=scope.step,
                at=None,
                nodes=self.nodes_of(task.path),
                next=(),
                changed=(),
            ),
        )

    # -- effects -----------------------------------------------------------------------------------

    def intended(self, seq: int, record: rec.EffectIntended) -> None:
        args, kwargs = describe(record.request)
        self._put(seq, record, EffectState.INTENDED, record.kind)
        self._change(
            record.effect_id,
            args=args,
            kwargs=kwargs,
            key=record.key,
            business_key=record.business_key,
        )

    def confirmed(self, seq: int, record: rec.EffectConfirmed) -> None:
        self._put(seq, record, EffectState.CONFIRMED, record.kind)
        result = describe(record.result)
        self._change(record.effect_id, result=result, failure=None, via=record.via, by=record.by)
        if record.via == "decision":
            self._decided(seq, record, "happened", result)

    def failed(self, seq: int, record: rec.EffectFailed) -> None:
        self._put(seq, record, EffectState.FAILED, record.kind)
        self._change(record.effect_id, failure=record.failure, via=record.via, by=record.by)
        if record.via == "decision":
            self._decided(seq, record, "not_happened", None)

    def lost(self, seq: int, record: rec.EffectUncertain) -> None:
        self._put(seq, record, EffectState.UNCERTAIN, "")
        self._change(record.effect_id, failure=record.failure)

    def countering(self, _seq: int, record: rec.CompensationStarted) -> None:
        self._change(record.effect_id, state=EffectState.COMPENSATING.value)

    def countered(self, _seq: int, record: rec.CompensationEnded) -> None:
        is_done = record.failure is None
        state = EffectState.COMPENSATED if is_done else EffectState.COMPENSATION_FAILED
        self._change(record.effect_id, state=state.value, failure=record.failure)

    def _put(self, seq: int, record: Any, state: EffectState, kind: str) -> None:
        """Note an effect's newest state, and the effect itself where it is new here."""
        if record.effect_id not in self.story.effects:
            self.story.effects[record.effect_id] = EffectSeen(
                id=record.effect_id,
                run_id=self.story.row.run_id,
                node=record.task,
                name=record.name,
                kind=kind,
                state=state.value,
                args=None,
                kwargs=None,
                key=None,
                business_key=None,
                result=None,
                failure=None,
                via="call",
                by="",
                attempt=record.attempt,
                seq=seq,
            )
        self._change(record.effect_id, state=state.value, attempt=record.attempt)

    def _change(self, effect_id: str, **changes: Any) -> None:
        found = self.story.effects.get(effect_id)
        if found is not None:
            self.story.effects[effect_id] = structs.replace(found, **changes)

    # -- people and children -----------------------------------------------------------------------

    def _decided(self, seq: int, record: Any, kind: str, value: Any) -> None:
        self.story.decisions.append(
            Decision(
                kind=kind,
                id=record.effect_id,
                run_id=self.story.row.run_id,
                node=record.task,
                about=record.name,
                value=value,
                by=record.by,
                at=as_datetime(record.at_us),
                seq=seq,
            )
        )

    def answered(self, seq: int, record: rec.AskAnswered) -> None:
        kind = "default" if record.via == "default" else "answer"
        self._asked(seq, record, kind, describe(record.value), record.by)

    def lapsed(self, seq: int, record: rec.AskLapsed) -> None:
        self._asked(seq, record, "expired", None, "")

    def _asked(self, seq: int, record: Any, kind: str, value: Any, by: str) -> None:
        call = self._state.task(record.task).calls.get(record.ask_id)
        self.story.decisions.append(
            Decision(
                kind=kind,
                id=record.ask_id,
                run_id=self.story.row.run_id,
                node=record.task,
                about=call.started.question if call is not None else "",
                value=value,
                by=by,
                at=as_datetime(record.at_us),
                seq=seq,
            )
        )

    def spawned(self, _seq: int, record: rec.Spawned) -> None:
        self.story.children.append((record.child, record.graph))


_TELL: dict[type, Any] = {
    rec.RunStarted: _Teller.started,
    rec.StepCommitted: _Teller.committed,
    rec.EffectIntended: _Teller.intended,
    rec.EffectConfirmed: _Teller.confirmed,
    rec.EffectFailed: _Teller.failed,
    rec.EffectUncertain: _Teller.lost,
    rec.CompensationStarted: _Teller.countering,
    rec.CompensationEnded: _Teller.countered,
    rec.AskAnswered: _Teller.answered,
    rec.AskLapsed: _Teller.lapsed,
    rec.Spawned: _Teller.spawned,
}


def _passed_by(passed: rec.Passed) -> NodeRun:
    """Return an execution of a step that went by: what it changed is told by its checkpoint."""
    return NodeRun(
        path=passed.task,
        node=node_of(passed.task),
        index=0,
        attempts=passed.attempt,
        changed=(),
        failure=None,
        is_finished=True,
        steps=(),
    )


def node_name(path: str) -> str:
    """Return the name of the node at a path, with those of the subgraphs around it."""
    parts = path.split("/")
    return "/".join(part.partition(":")[2].partition("#")[0] or part for part in parts)


def flat(steps: Iterable[StepRun]) -> list[NodeRun]:
    """Return every node execution of steps, those inside subgraphs behind their node."""
    found: list[NodeRun] = []
    for step in steps:
        for node in step.nodes:
            found += [node, *flat(node.steps)]
    return found


def as_json(value: Any) -> Any:
    """Return parts of a story as JSON-like data."""
    if isinstance(value, Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return describe(value) if isinstance(value, Raw) else value
