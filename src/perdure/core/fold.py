"""The state of a run as the fold of its journal.

Theory: a `RunState` is what a holder must know to go on. Loading folds the journal from the
thread's newest snapshot record on; a running holder applies each record that it writes to the same
object by the same functions. So what is in memory is at every moment what the next holder would
load, which is what makes a takeover safe.

Values of the state are kept as `Cell`s while loading (encoded pieces, decoded once at the end, only
where needed) and as live values while running.

Invariant: a task's writes enter the state at the commit of its step, never before; a step that
was not committed leaves nothing but the outcomes and calls of its tasks.

Size: the state and what every kind of record does to it, which is one table.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Raw, Struct, field, structs

from perdure.core.identity import node_of, scope_of, step_of, task_path
from perdure.core.machines import EFFECT_TABLE, EffectEvent, advance
from perdure.errors import InvariantBroken
from perdure.model import EffectKind, EffectState, Failure, RunStatus, WriteOp
from perdure.model import records as rec

INTERRUPTED = "(interrupted)"
"""Failure type of an effect attempt that was cut off by the end of its worker. No class has it."""

UNKNOWN = "(unknown)"
"""Failure type of a lookup that could not tell."""

INPUT_STEP = 0
"""The step that takes the input in; nodes run from step 1 on."""


class Cell(Struct):
    """A channel's value as encoded: one piece, or the pieces of a list that was appended to."""

    op: str
    pieces: list[Raw]


class Call(Struct):
    """One durable act of a node execution (effect, sleep, ask, receive, child, note).

    Attributes:
        state: for effects a state of the ledger; for waits "open", "done" or "lapsed".
        result: encoded result, once there is one.
        attempt: newest attempt of an effect.
        node_attempt: attempt of the node in which a failure was final.
        made_in: attempt of the node that first did it.
        is_asked: whether this execution of the node has asked for it (replay bookkeeping, not
            stored).
        interruptions: attempts that were cut off by the end of a worker; they use up no try.
        unknowns: lookups of the newest attempt that could not tell.
        is_tentative: result of a contained effect that no sandbox snapshot holds yet.
    """

    call_id: str
    kind: str
    name: str
    state: str
    result: Raw | None = None
    attempt: int = 1
    node_attempt: int = 1
    made_in: int = 1
    due_us: int | None = None
    failure: Failure | None = None
    started: Any = None
    ended: Any = None
    is_asked: bool = False
    is_tentative: bool = False
    interruptions: int = 0
    unknowns: int = 0


class Task(Struct):
    """One node execution of the step under way."""

    path: str
    spec: rec.TaskSpec
    attempt: int = 1
    retry_at_us: int | None = None
    failure: Failure | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    outcome: rec.NodeFinished | None = None
    live_writes: dict[str, tuple[str, Any]] | None = None


class Scope(Struct):
    """A graph under way: the run's own ("") or a subgraph's (path of its task).

    `version`: of the subgraph; 0: its journal does not tell. `ahead`: executions of steps after the
    one under way, of which acts are recorded: of a graph that checkpoints at phases, what a holder
    did since the last one. They are taken up when their step comes again.
    """

    path: str
    step: int = INPUT_STEP
    tasks: dict[str, Task] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)
    values: dict[str, Any] | None = None
    writes: list[tuple[str, str, Any]] = field(default_factory=list)
    is_started: bool = False
    version: int = 0
    ahead: dict[str, Task] = field(default_factory=dict)

    @property
    def all_tasks(self) -> list[Task]:
        """Every execution of which something may be recorded, those ahead too."""
        return [*self.tasks.values(), *self.ahead.values()]

    def begin_ahead(self, path: str) -> None:
        """Take in that an execution of a later step does something."""
        if not self.path and path not in self.tasks and step_of(path) > self.step:
            self.ahead.setdefault(path, Task(path, rec.TaskSpec(node_of(path))))


class RunState(Struct):
    """All that a holder must know of a run.

    `is_input_whole`: the run has not begun, and its input is its whole state, whatever its thread
    holds: both were brought to another version of the graph.
    """

    run_id: str
    started: rec.RunStarted | None = None
    scopes: dict[str, Scope] = field(default_factory=lambda: {"": Scope("")})
    checkpoint: int = 0
    last_seq: int = 0
    status: str = RunStatus.PENDING.value
    snapshot: str | None = None
    step_snapshot: str | None = None
    cancel: rec.CancelRequested | None = None
    ended: rec.RunEnded | None = None
    is_input_whole: bool = False
    is_anchored: bool = False

    @property
    def root(self) -> Scope:
        """The scope of the run's own graph."""
        return self.scopes[""]

    def task(self, path: str) -> Task:
        """Return the task at a path.

        Raises:
            InvariantBroken: the journal speaks of a task that no step planned.
        """
        scope = self.scopes.get(scope_of(path))
        task = scope.tasks.get(path) if scope is not None else None
        if task is None and scope is not None:
            task = scope.ahead.get(path)
        if task is None:
            msg = (
                f"run {self.run_id!r}: a record about node execution {path!r}, which is not under "
                "way; does a task that a node created outlive it? Await it in the node"
            )
            raise InvariantBroken(msg, run_id=self.run_id, task=path)
        return task


def _acting(state: RunState, path: str) -> Task:
    """Return the task at a path, of which this may be the first that is recorded."""
    scope = state.scopes.get(scope_of(path))
    if scope is not None:
        scope.begin_ahead(path)
    return state.task(path)


def apply(state: RunState, record: rec.Record) -> None:
    """Apply one record to the state.

    Calls of unknown meaning do not exist: every kind is in `_APPLY`.
    """
    state.last_seq += 1
    _APPLY[type(record)](state, record)


def apply_unrecorded(state: RunState, record: rec.Record) -> None:
    """Apply what the journal does not get: a step that goes by, and the end of its node."""
    _APPLY[type(record)](state, record)


def apply_all(state: RunState, records: Iterable[rec.Record]) -> None:
    """Apply records in order."""
    for record in records:
        apply(state, record)


def settle_sandbox(state: RunState) -> None:
    """Forget the results of contained effects that no snapshot holds.

    Their files are gone, so they run again.
    """
    for scope in state.scopes.values():
        for task in scope.all_tasks:
            _forget_tentative(task)


def _forget_tentative(task: Task) -> None:
    lost = [key for key, call in task.calls.items() if call.is_tentative]
    for key in lost:
        del task.calls[key]


def _run_started(state: RunState, record: rec.RunStarted) -> None:
    state.started = record
    # A fork goes on with the files of its origin; a rollback also where that had none.
    if record.snapshot is not None or record.rollback is not None:
        state.snapshot = record.snapshot


def is_rollback(started: rec.RunStarted | None) -> bool:
    """Return whether a run's input replaces the whole state of its thread."""
    return started is not None and started.rollback is not None


def _nothing(_state: RunState, _record: Any) -> None:
    """Facts for the audit trail that a holder need not know."""


def _lease_taken(state: RunState, record: rec.LeaseTaken) -> None:
    state.is_anchored = state.is_anchored or record.ordinal > 0
    settle_sandbox(state)  # as this holder did when it loaded, so that every later load agrees


def _node_started(state: RunState, record: rec.NodeStarted) -> None:
    task = state.task(record.task)
    task.attempt = record.attempt
    task.retry_at_us = None
    task.failure = None


def _node_finished(state: RunState, record: rec.NodeFinished) -> None:
    state.task(record.task).outcome = record


def _node_failed(state: RunState, record: rec.NodeFailed) -> None:
    task = _acting(state, record.task)
    task.failure = record.failure
    task.retry_at_us = record.retry_at_us
    task.attempt = record.attempt if record.retry_at_us is None else record.attempt + 1
    _forget_tentative(task)  # its files go with it: the next execution finds the newest snapshot


def plan_tasks(scope: Scope, step: int, specs: Iterable[rec.TaskSpec]) -> None:
    """Replace the scope's tasks by those of the next step; what is known of them stays."""
    scope.step = step
    tasks = {}
    for spec in specs:
        path = task_path(scope.path, step, spec.node, spec.index)
        task = scope.tasks.get(path) or scope.ahead.pop(path, None)
        if task is None:
            task = Task(path, spec)
        task.spec = spec
        tasks[path] = task
    scope.tasks = tasks


def _step_committed(state: RunState, record: rec.StepCommitted) -> None:
    scope = state.scopes.get(record.scope)
    if scope is None:
        scope = state.scopes[record.scope] = Scope(record.scope)
    if scope.values is None:
        _commit_cells(state, scope, record)
    scope.is_started = True
    scope.version = record.version or scope.version
    if record.scope == "":
        state.is_input_whole = False
        state.checkpoint = record.checkpoint
        if record.step == INPUT_STEP and is_rollback(state.started):
            state.snapshot = state.step_snapshot = record.snapshot
        _take_snapshot(state, record.snapshot)
    _drop_inner_scopes(state, scope)
    plan_tasks(scope, record.step + 1, record.next)
    if record.passed:
        passed = {each.task for each in record.passed}
        scope.ahead = {path: task for path, task in scope.ahead.items() if path not in passed}


def _take_snapshot(state: RunState, snapshot: str | None) -> None:
    """Note the sandbox snapshot that a committed step names; None: it had no sandbox yet."""
    if snapshot is not None:
        state.snapshot = state.step_snapshot = snapshot


def _drop_inner_scopes(state: RunState, scope: Scope) -> None:
    if len(state.scopes) == 1:
        return
    gone = [
        path
        for path in state.scopes
        if path and scope_of(path) == scope.path and path in scope.tasks
    ]
    for path in gone:
        for inner in [p for p in state.scopes if p == path or p.startswith(path + "/")]:
            del state.scopes[inner]


def _commit_cells(state: RunState, scope: Scope, record: rec.StepCommitted) -> None:
    if record.step == INPUT_STEP and record.scope == "":
        if state.started is None:
            msg = f"run {state.run_id!r}: a step before the start record"
            raise InvariantBroken(msg, run_id=state.run_id)
        if is_rollback(state.started) or state.is_input_whole:
            scope.cells = {}
        _write_cells(scope.cells, state.started.input)
    _write_cells(scope.cells, record.merged)
    for task in scope.tasks.values():
        if task.outcome is not None:
            _write_cells(scope.cells, task.outcome.writes)
            if scope.path:
                scope.writes += [(key, op, raw) for key, (op, raw) in task.outcome.writes.items()]
    for name, raw in record.folded.items():
        scope.cells[name] = Cell(WriteOp.REPLACE, [raw])


def _write_cells(cells: dict[str, Cell], writes: dict[str, tuple[str, Raw]]) -> None:
    for name, (op, raw) in writes.items():
        if op == WriteOp.REPLACE:
            cells[name] = Cell(op, [raw])
        elif op == WriteOp.APPEND:
            cell = cells.get(name)
            if cell is None:
                cells[name] = Cell(op, [raw])
            else:
                cell.op = op
                cell.pieces.append(raw)


def decode_cell(cell: Cell, decode: Callable[[Raw], Any]) -> Any:
    """Return the live value of a cell."""
    if len(cell.pieces) == 1:
        return decode(cell.pieces[0])
    joined: list[Any] = []
    for piece in cell.pieces:
        joined.extend(decode(piece))
    return joined


def start_at(state: RunState, record: rec.StateSnapshot | rec.StateCopied) -> None:
    """Begin with the state of a whole copy, as it was at the place that loading starts at."""
    root = state.root
    if root.values is None:
        root.cells = {name: Cell(op, [raw]) for name, (op, raw) in record.values.items()}
    if root.step != record.step + 1 or state.checkpoint != record.checkpoint:
        state.checkpoint = record.checkpoint
        plan_tasks(root, record.step + 1, record.next)
    root.is_started = True
    _take_snapshot(state, record.snapshot)


def _call_of(state: RunState, task: str, identity: str) -> Call:
    call = state.task(task).calls.get(identity)
    if call is None:
        msg = (
            f"run {state.run_id!r}: the journal ends {identity!r} of task {task!r}, which never "
            "began there"
        )
        raise InvariantBroken(msg, run_id=state.run_id, task=task)
    return call


def _effect_intended(state: RunState, record: rec.EffectIntended) -> None:
    calls = _acting(state, record.task).calls
    call = calls.get(record.effect_id)
    if call is None:
        calls[record.effect_id] = Call(
            record.effect_id,
            record.kind,
            record.name,
            EffectState.INTENDED,
            started=record,
            made_in=state.task(record.task).attempt,
        )
        return
    call.state = advance(
        EFFECT_TABLE, EffectState(call.state), EffectEvent.RESEND, record.effect_id
    )
    call.attempt = record.attempt
    call.started = record
    call.due_us = None
    call.unknowns = 0


def _effect_confirmed(state: RunState, record: rec.EffectConfirmed) -> None:
    calls = _acting(state, record.task).calls
    call = calls.get(record.effect_id)
    if call is None:
        call = calls[record.effect_id] = Call(
            record.effect_id, record.kind, record.name, EffectState.CONFIRMED, started=record
        )
    elif call.state != EffectState.FAILED:
        call.state = advance(
            EFFECT_TABLE, EffectState(call.state), EffectEvent.CONFIRM, record.effect_id
        )
    else:  # only kinds that keep no intent get from a failed attempt straight to success
        call.state = EffectState.CONFIRMED
    call.result = record.result
    call.attempt = record.attempt
    call.is_tentative = record.kind == EffectKind.CONTAINED


def _effect_failed(state: RunState, record: rec.EffectFailed) -> None:
    task = _acting(state, record.task)
    call = task.calls.get(record.effect_id)
    if call is None:
        call = task.calls[record.effect_id] = Call(
            record.effect_id, record.kind, record.name, EffectState.FAILED, started=record
        )
    elif call.state != EffectState.FAILED:
        call.state = advance(
            EFFECT_TABLE, EffectState(call.state), EffectEvent.REFUSE, record.effect_id
        )
    call.attempt = record.attempt
    call.node_attempt = task.attempt
    call.failure = record.failure
    call.due_us = record.retry_at_us


def _effect_uncertain(state: RunState, record: rec.EffectUncertain) -> None:
    call = _call_of(state, record.task, record.effect_id)
    call.state = advance(EFFECT_TABLE, EffectState(call.state), EffectEvent.LOSE, record.effect_id)
    call.attempt = record.attempt
    call.failure = record.failure
    call.due_us = record.retry_at_us
    call.interruptions += record.failure.type == INTERRUPTED
    call.unknowns += record.failure.type == UNKNOWN


def _opened(kind: str, id_field: str) -> Callable[[RunState, Any], None]:
    def opened(state: RunState, record: Any) -> None:
        identity = getattr(record, id_field)
        due_us = getattr(record, "due_us", None) or getattr(record, "expires_at_us", None)
        _acting(state, record.task).calls[identity] = Call(
            identity, kind, kind, "open", due_us=due_us, started=record
        )

    return opened


def _closed(id_field: str, value_field: str, new_state: str) -> Callable[[RunState, Any], None]:
    def closed(state: RunState, record: Any) -> None:
        call = _call_of(state, record.task, getattr(record, id_field))
        call.state = new_state
        call.ended = record
        if value_field:
            call.result = getattr(record, value_field)

    return closed


def _noted(state: RunState, record: rec.Noted) -> None:
    _acting(state, record.task).calls[record.call_id] = Call(
        record.call_id, "note", "note", "done", result=record.value, started=record
    )


def _sandbox_taken(state: RunState, record: rec.SandboxTaken) -> None:
    state.snapshot = record.snapshot
    for scope in state.scopes.values():
        for task in scope.all_tasks:
            for call in task.calls.values():
                call.is_tentative = False


def _cancel_requested(state: RunState, record: rec.CancelRequested) -> None:
    state.cancel = record


def _version_moved(state: RunState, record: rec.VersionMoved) -> None:
    for path, moved in record.scopes.items():
        scope = state.scopes.get(path)
        if scope is None:
            msg = f"run {state.run_id!r}: a move of the graph at {path!r}, which is not under way"
            raise InvariantBroken(msg, run_id=state.run_id, task=path)
        _rename_nodes(state, scope, moved.nodes)
        if moved.cells is not None:
            scope.cells = {name: Cell(op, [raw]) for name, (op, raw) in moved.cells.items()}
        if moved.writes is not None:
            scope.writes = list(moved.writes)
        scope.version = moved.version or scope.version
    for path, writes in record.outcomes.items():
        task = state.task(path)
        if task.outcome is not None:
            task.outcome = structs.replace(task.outcome, writes=writes)
    if record.input is not None and state.started is not None:
        nodes = record.scopes[""].nodes if "" in record.scopes else {}
        first = state.started.next
        specs = None if first is None else [renamed(spec, nodes) for spec in first]
        state.started = structs.replace(state.started, input=record.input, next=specs)
        state.is_input_whole = True


def renamed(spec: rec.TaskSpec, nodes: dict[str, str]) -> rec.TaskSpec:
    """Return what is to run, with the name that its node has now."""
    name = nodes.get(spec.node)
    return spec if name is None else structs.replace(spec, node=name)


def is_fresh(state: RunState, task: Task) -> bool:
    """Return whether nothing has been recorded of a node execution."""
    return (
        task.attempt == 1
        and not task.calls
        and task.outcome is None
        and task.failure is None
        and task.path not in state.scopes
    )


def _rename_nodes(state: RunState, scope: Scope, nodes: dict[str, str]) -> None:
    """Let the node executions under way go on as nodes of other names.

    One of which something is recorded keeps its path: the identities of its acts, and with them
    the keys that the outside knows, are made of it.
    """
    kept = {path for path, task in scope.tasks.items() if not is_fresh(state, task)}
    tasks = {}
    for path, task in scope.tasks.items():
        task.spec = renamed(task.spec, nodes)
        if path not in kept:
            new = task_path(scope.path, scope.step, task.spec.node, task.spec.index)
            task.path = path if new in kept else new
        if task.outcome is not None and task.outcome.goto is not None:
            goto = [renamed(spec, nodes) for spec in task.outcome.goto]
            task.outcome = structs.replace(task.outcome, goto=goto)
        tasks[task.path] = task
    scope.tasks = tasks


def _ended(state: RunState, record: rec.RunEnded) -> None:
    state.ended = record
    state.status = record.status


_APPLY: dict[type, Callable[[RunState, Any], None]] = {
    rec.RunStarted: _run_started,
    rec.LeaseTaken: _lease_taken,
    rec.NodeStarted: _node_started,
    rec.NodeFinished: _node_finished,
    rec.NodeFailed: _node_failed,
    rec.StepCommitted: _step_committed,
    rec.EffectIntended: _effect_intended,
    rec.EffectConfirmed: _effect_confirmed,
    rec.EffectFailed: _effect_failed,
    rec.EffectUncertain: _effect_uncertain,
    rec.CompensationStarted: _nothing,
    rec.CompensationEnded: _nothing,
    rec.TimerSet: _opened("timer", "call_id"),
    rec.TimerFired: _closed("call_id", "", "done"),
    rec.Asked: _opened("ask", "ask_id"),
    rec.AskAnswered: _closed("ask_id", "value", "done"),
    rec.AskLapsed: _closed("ask_id", "", "lapsed"),
    rec.ReceiveStarted: _opened("receive", "call_id"),
    rec.SignalConsumed: _closed("call_id", "value", "done"),
    rec.ReceiveLapsed: _closed("call_id", "", "lapsed"),
    rec.Spawned: _opened("child", "call_id"),
    rec.ChildEnded: _closed("call_id", "result", "done"),
    rec.Noted: _noted,
    rec.Emitted: _nothing,
    rec.Released: _nothing,
    rec.CancelRequested: _cancel_requested,
    rec.RunEnded: _ended,
    rec.StateSnapshot: start_at,
    rec.StateCopied: _nothing,  # of fields that grow it holds what they were at an earlier place
    rec.SandboxTaken: _sandbox_taken,
    rec.RetryRequested: _nothing,
    rec.VersionMoved: _version_moved,
}
