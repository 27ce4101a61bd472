"""What a run's journal says of each node execution, so that the run can be recomputed from it.

Theory: a node is executed several times in its life: again after each wait and crash, and anew with
each attempt. What counts for a replay is an attempt: it saw the results that its task had when it
ended, and ended as recorded. So the tape keeps, for each attempt, the task's calls as they were
then, and which of them the attempt itself had to do with.

Code of one version can recompute what that version did. So of a run that was moved the tape holds
the part that belongs to the version asked for: from the last move on, or what comes before a move.
"""

import copy
from typing import Any

from msgspec import Struct, field, structs

from perdure.core import fold
from perdure.core.identity import step_of
from perdure.engine.loading import load_checkpoint, load_inherited, read_records
from perdure.engine.paging import VALUES, inline_cells, inline_record
from perdure.model import RunRow, RunStatus
from perdure.model import records as rec
from perdure.store.api import Store


class TapedAttempt(Struct):
    """One attempt of a node execution.

    Attributes:
        calls: the task's calls as they were when it ended.
        touched: ids of those that it had to do with, in the order of their first records.
        outcome: how it ended; None: it has not, or was cut off.
        is_begun: False: it waits for its time.
    """

    number: int
    calls: dict[str, fold.Call]
    touched: dict[str, None]
    outcome: rec.NodeFinished | rec.NodeFailed | None
    is_begun: bool = True


class Tape(Struct, kw_only=True):
    """A run's journal, sorted for a replay.

    Attributes:
        cells: the thread's state before the run.
        attempts: of each node execution, by its path.
        steps: committed steps by scope and number.
        passed: executions that went by without a record of their own, by path.
        ahead: the newest step of which an act is recorded, past the step under way; 0: none.
        ended: how the run ended; None: it has not.
        is_still: it was released while all its executions waited: what they had asked for is all
            recorded.
        last_us: time of the newest record.
        state: the run where the tape begins, if that is at a move to another version.
        part: which part of the run it holds, in words; empty: all.
        is_cut: whether the run went on after it, with another version.
    """

    row: RunRow
    cells: dict[str, fold.Cell]
    started: rec.RunStarted | None = None
    attempts: dict[str, list[TapedAttempt]] = field(default_factory=dict)
    steps: dict[tuple[str, int], rec.StepCommitted] = field(default_factory=dict)
    passed: dict[str, rec.Passed] = field(default_factory=dict)
    ahead: int = 0
    ended: rec.RunEnded | None = None
    is_still: bool = False
    last_us: int = 0
    state: fold.RunState | None = None
    part: str = ""
    is_cut: bool = False

    def attempts_of(self, path: str) -> list[TapedAttempt]:
        """Return the attempts of a node execution.

        One that went by since the last checkpoint has ended, though nothing says how.
        """
        found = self.attempts.get(path, [])
        if not found and self.went_by(path):
            ended = rec.NodeFinished(self.last_us, path, self.last_us, {})
            found = [TapedAttempt(1, {}, {}, ended)]
        return found

    def went_by(self, path: str) -> bool:
        """Return whether a node execution has ended without a record of its own."""
        return path in self.passed or ("/" not in path and step_of(path) < self.ahead)

    @property
    def step_failure(self) -> str | None:
        """Type of the error that ended the run between nodes (a router, a merge), or None."""
        ended = self.ended
        if ended is None or ended.status != RunStatus.FAILED or ended.failure is None:
            return None
        return None if ended.failure.node else ended.failure.type


async def read_tape(store: Store, row: RunRow, version: int) -> Tape:
    """Return the tape of a run, of the part that a graph version did; else of the last part.

    Nothing is written and no lease is taken.

    Raises:
        StoreCorrupt, DecodeFailed: the journal is not what was written.
    """
    cells: dict[str, fold.Cell] = {}
    if row.base_checkpoint:
        before = await load_checkpoint(store, row.tenant, row.thread, row.base_checkpoint)
        cells = before.cells
    place = f"run {row.run_id!r}"
    records = await read_records(store, row.run_id)
    for _seq, _frame, record in records[:1]:
        if isinstance(record, rec.RunStarted) and record.inherits:
            cells = (await load_inherited(store, record)).cells
            await inline_cells(store, row.tenant, place, cells)
    recorder = _Recorder(Tape(row=row, cells=cells), version)
    for _seq, _frame, record in records:
        if type(record) in _WITH_FIELDS or type(record) in VALUES:
            recorder.take(await inline_record(store, row.tenant, place, record))
        else:
            recorder.take(record)
    return recorder.finish()


class _Recorder:
    """Folds the records, and keeps what the fold forgets."""

    def __init__(self, tape: Tape, version: int) -> None:
        self._tape = tape
        self._state = fold.RunState(tape.row.run_id)
        self._state.checkpoint = tape.row.base_checkpoint
        self._state.root.cells = copy.deepcopy(tape.cells)
        self._touched: dict[str, dict[str, None]] = {}
        self._wanted = version
        self._version = 0
        self._is_moved = False

    def take(self, record: rec.Record) -> None:
        self._look_at_version(record)
        if not self._tape.is_cut:
            self._take(record)

    def _look_at_version(self, record: rec.Record) -> None:
        """Begin anew behind a move, or end the tape before it."""
        if self._is_moved and not isinstance(record, rec.VersionMoved | rec.StateSnapshot):
            self._begin_anew()
        if isinstance(record, rec.VersionMoved):
            is_last = self._version == self._wanted and self._wanted != self._tape.row.version
            if is_last and not self._tape.is_cut:
                self._cut(record)
            self._version, self._is_moved = record.to_version, True

    def _take(self, record: rec.Record) -> None:
        tape = self._tape
        tape.last_us = record.at_us
        if isinstance(record, rec.NodeFailed):
            self._end(record.task, record.attempt, record)  # before the fold forgets its calls
        if isinstance(record, rec.StepCommitted):
            self._pass(record)
        fold.apply(self._state, record)
        if isinstance(record, rec.NodeFinished):
            self._end(record.task, record.attempt, record)
        elif isinstance(record, rec.StepCommitted):
            tape.steps[record.scope, record.step] = record
        elif isinstance(record, rec.RunStarted):
            tape.started, self._version = record, record.version
        elif isinstance(record, rec.RunEnded):
            tape.ended = record
        elif type(record) in _IDS:
            touched = self._touched.setdefault(_field(record, "task"), {})
            touched[_field(record, _IDS[type(record)])] = None
        tape.is_still = isinstance(record, rec.Released) and bool(record.waits)

    def _begin_anew(self) -> None:
        """Forget what another version did: the run begins where it was moved."""
        self._is_moved = False
        tape, state = self._tape, self._state
        if tape.is_cut:
            return
        tape.state, tape.started = copy.deepcopy(state), state.started
        tape.attempts = {}
        tape.steps = {place: each for place, each in tape.steps.items() if _is_inside(state, place)}
        where = f"checkpoint {state.checkpoint}" if state.root.is_started else "its beginning"
        tape.part = f"from {where} on, where it was moved to v{self._version}"

    def _cut(self, record: rec.VersionMoved) -> None:
        """End the tape here: another version goes on."""
        self._tape.is_cut = True
        upto = f"up to checkpoint {self._state.checkpoint}, where it was moved to"
        self._tape.part = f"{upto} v{record.to_version}"

    def _pass(self, record: rec.StepCommitted) -> None:
        """Take in the executions that went by before a checkpoint."""
        for each in record.passed:
            self._tape.passed[each.task] = each
            self._state.root.begin_ahead(each.task)
            ended = rec.NodeFinished(each.ended_us, each.task, each.started_us, {}, each.attempt)
            self._end(each.task, each.attempt, ended)

    def finish(self) -> Tape:
        """Return the tape, with the attempts that have not ended."""
        self._tape.ahead = max(map(step_of, self._state.root.ahead), default=0)
        for scope in self._state.scopes.values():
            for task in scope.all_tasks:
                if task.outcome is None and self._tape.went_by(task.path):
                    ended = rec.NodeFinished(
                        self._tape.last_us, task.path, self._tape.last_us, {}, task.attempt
                    )
                    self._end(task.path, task.attempt, ended)
                elif task.outcome is None and not self._has_given_up(task):
                    is_begun = task.retry_at_us is None
                    self._end(task.path, task.attempt, None, is_begun=is_begun)
        return self._tape

    def _has_given_up(self, task: fold.Task) -> bool:
        return task.failure is not None and task.retry_at_us is None

    def _end(
        self,
        path: str,
        number: int,
        outcome: rec.NodeFinished | rec.NodeFailed | None,
        *,
        is_begun: bool = True,
    ) -> None:
        calls = self._state.task(path).calls
        attempt = TapedAttempt(
            number=number,
            calls={key: _unasked(call) for key, call in calls.items()},
            touched=self._touched.pop(path, {}),
            outcome=outcome,
            is_begun=is_begun,
        )
        self._tape.attempts.setdefault(path, []).append(attempt)


def _is_inside(state: fold.RunState, place: tuple[str, int]) -> bool:
    """Return whether a committed step is the beginning of a subgraph that is under way."""
    scope, step = place
    return step == fold.INPUT_STEP and scope != "" and scope in state.scopes


def _unasked(call: fold.Call) -> fold.Call:
    return structs.replace(copy.copy(call), is_asked=False)


def _field(record: rec.Record, name: str) -> Any:
    return getattr(record, name)


_WITH_FIELDS = frozenset({rec.RunStarted, rec.NodeFinished, rec.StepCommitted})
"""Records whose fields are compared, so that large ones are read from their pages."""

_IDS: dict[type, str] = {
    rec.EffectIntended: "effect_id",
    rec.EffectConfirmed: "effect_id",
    rec.EffectFailed: "effect_id",
    rec.EffectUncertain: "effect_id",
    rec.TimerSet: "call_id",
    rec.TimerFired: "call_id",
    rec.Asked: "ask_id",
    rec.AskAnswered: "ask_id",
    rec.AskLapsed: "ask_id",
    rec.ReceiveStarted: "call_id",
    rec.SignalConsumed: "call_id",
    rec.ReceiveLapsed: "call_id",
    rec.Spawned: "call_id",
    rec.ChildEnded: "call_id",
    rec.Noted: "call_id",
}
"""Which field names the call that a record is about."""
