"""Recompute a run from its journal, and say where today's code does something else than it says.

Theory: the engine's own driver takes the graph through its steps over a run that is only played:
what a node asks for comes from the tape, and what the driver would record is compared with it.
Nothing is dispatched, no file is touched, nothing is written, no lease is taken: the replay's store
refuses every call. Each execution gets what it was given then, also after a divergence: the
recorded outcome is what later nodes see, so that one changed node is one divergence and not a
different run.

A node that asks for something that is not recorded can't go on; where its record ends, too, that is
no divergence: the replay has come to where the run stands.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from perdure.codec import NO_HASH
from perdure.core import fold
from perdure.core.plan import GraphPlan, NodePlan
from perdure.engine.acts import failure_of
from perdure.engine.divergence import (
    DivergenceKind,
    Replay,
    asked_with,
    call_words,
    is_same,
    is_same_way,
    is_same_write,
    names,
    shortened,
    shown,
    specs_of,
    subject_of,
    update_of,
)
from perdure.engine.driver import GraphDriver
from perdure.engine.environment import Environment
from perdure.engine.limits import UNWIND_TURNS
from perdure.engine.loading import Loaded, load_checkpoint
from perdure.engine.os_threads import without_exit
from perdure.engine.paging import Filed
from perdure.engine.played import Played, ReplayContext, Stands
from perdure.engine.ports import WAITING, GaveUp
from perdure.engine.tape import Tape, TapedAttempt, read_tape
from perdure.engine.tape_fields import refit, renamed_keys
from perdure.errors import DecodeFailed, InvariantBroken, ReplayDiverged
from perdure.model import Failure, RunRow, WriteOp
from perdure.model import records as rec


async def replay(engine: Environment, row: RunRow, plan: GraphPlan) -> Replay:
    """Recompute a run with a graph; see `Runtime.replay`."""
    tape = await read_tape(engine.store, row, plan.version)
    if tape.started is None:
        msg = f"run {row.run_id!r}: the journal does not begin with a start record"
        raise InvariantBroken(msg, run_id=row.run_id)
    renamed = refit(tape, plan)
    state = _state_of(tape, tape.started)
    run = Played(engine, row, plan, state, tape)
    for before, after in renamed.items():
        _tell_renamed(run, before, after)
    await _play(run, ReplayDriver(run, Loaded(state, NO_HASH, 0)))
    if not tape.is_cut:
        await _compare_state(engine, run, renamed)
    report = run.report
    return Replay(
        run_id=row.run_id,
        thread=row.thread,
        graph=plan.name,
        version=plan.version,
        recorded_version=row.version,
        status=row.status.value,
        steps=report.steps,
        nodes=report.nodes,
        served=dict(sorted(report.served.items())),
        standing=() if tape.ended is not None else tuple(report.standing),
        divergences=tuple(report.divergences),
        part=tape.part,
    )


def _state_of(tape: Tape, started: rec.RunStarted) -> fold.RunState:
    """Return the run where its tape begins."""
    if tape.state is not None:
        return tape.state
    state = fold.RunState(tape.row.run_id)
    state.root.cells, state.checkpoint = tape.cells, tape.row.base_checkpoint
    fold.apply(state, started)
    return state


def _tell_renamed(run: Played, before: str, after: str | None) -> None:
    known = ", ".join(run.plan.channels)
    now = f"it is called `{after}` now" if after is not None else f"the state has: {known}"
    run.report.add(
        DivergenceKind.STATE,
        "",
        0,
        subject=before,
        expected=before,
        got=after,
        message=f"code changed: the state has no field `{before}`, which is recorded; {now}",
    )


async def _play(run: Played, driver: "ReplayDriver") -> None:
    """Drive the graph to where the record ends, and compare what ends it before."""
    try:
        await driver.drive()
    except Stands:
        return
    except (DecodeFailed, InvariantBroken):
        raise
    except ReplayDiverged as error:
        got = failure_of(error)
        run.report.add(DivergenceKind.STATE, "", 0, got=got, message=f"code changed: {error}")
    except Exception as error:  # noqa: BLE001  # the supervisor of the graph: compared with how the run ended
        step = run.state.root.step
        run.compare_step_error(str(step), error, was_committed=("", step) in run.tape.steps)


async def _compare_state(
    engine: Environment, run: Played, renamed: Mapping[str, str | None]
) -> None:
    """Compare the state that the replay has come to with the one that is stored."""
    row, at, values = run.row, run.state.checkpoint, run.state.root.values
    is_stored = ("", run.state.root.step - 1) in run.tape.steps  # else steps went by since
    if at == row.base_checkpoint or values is None or not is_stored:
        return
    stored = (await load_checkpoint(engine.store, row.tenant, row.thread, at)).cells
    codec = engine.codec
    found = engine.decode_cells(renamed_keys(stored, renamed), row, at)
    for name, value in sorted(found.items()):  # what is not stored has its default
        expected = Raw(codec.encode(value))
        got = Raw(codec.encode(values[name])) if name in values else None
        if not is_same(codec, expected, got):
            run.report.add(
                DivergenceKind.STATE,
                "",
                0,
                subject=name,
                expected=expected,
                got=got,
                message=(
                    f"code changed: the updates merge to {name}={shown(got)} at checkpoint {at}, "
                    f"stored {shown(expected)}"
                ),
            )


class ReplayDriver(GraphDriver):
    """Takes a played run through its graph: executions one after the other, as recorded.

    Every step is taken as one with records of its own; those that the run has are compared.
    """

    lets_pass = False

    def __init__(self, run: Played, loaded: Loaded) -> None:
        """Drive a played run."""
        super().__init__(run, loaded)
        self._played = run
        self._tape = run.tape
        self._report = run.report

    async def _drive_scope(self, scope: fold.Scope, plan: GraphPlan) -> None:
        self._adopt(scope, scope.step - 1)
        await super()._drive_scope(scope, plan)

    async def _run_tasks(
        self, scope: fold.Scope, plan: GraphPlan, pending: list[fold.Task]
    ) -> None:
        stands = False
        for task in pending:
            try:
                await self._run_task(scope, plan, task)
            except Stands:
                stands = True
        if stands:
            raise Stands

    async def _run_task(self, scope: fold.Scope, plan: GraphPlan, task: fold.Task) -> None:
        node = plan.nodes.get(task.spec.node)
        if node is None:
            known = ", ".join(plan.nodes)
            message = f"code changed: the graph has no node `{task.spec.node}` (it has: {known})"
            self._report.add(DivergenceKind.NODE, task.path, 1, message=message)
        attempts = self._tape.attempts_of(task.path)
        if node is not None and not any(self._is_worth_it(node, task, each) for each in attempts):
            self._played.compare_no_error(str(scope.step))  # the run ended before it
        for attempt in attempts:
            got = None
            if node is not None and self._is_worth_it(node, task, attempt):
                got = await self._execute(scope, plan, node, task, attempt)
            if isinstance(attempt.outcome, rec.NodeFinished):
                self._take_outcome(task, attempt.outcome, got)
                return
        raise Stands

    def _take_outcome(
        self,
        task: fold.Task,
        recorded: rec.NodeFinished,
        got: rec.NodeFinished | rec.NodeFailed | None,
    ) -> None:
        """Go on with the recorded outcome; of one that went by, with what it came to now."""
        if not self._tape.went_by(task.path):
            task.outcome, task.live_writes = recorded, None
        elif isinstance(got, rec.NodeFinished):
            task.outcome = got
        else:
            raise Stands

    def _is_worth_it(self, node: NodePlan, task: fold.Task, attempt: TapedAttempt) -> bool:
        """Return whether an attempt can be compared: it ended, or something of it is recorded."""
        if attempt.outcome is not None or attempt.touched:
            return True
        return node.subgraph is not None and (task.path, fold.INPUT_STEP) in self._tape.steps

    async def _execute(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        node: NodePlan,
        task: fold.Task,
        attempt: TapedAttempt,
    ) -> rec.NodeFinished | rec.NodeFailed | None:
        """Execute an attempt and compare it with its record; return how it ended now."""
        run, ended = self._played, attempt.outcome
        task.attempt, task.calls, task.outcome = attempt.number, attempt.calls, None
        run.at_us = run.tape.last_us if ended is None else getattr(ended, "started_us", ended.at_us)
        run.outcome = None
        self._report.nodes += 1
        context = ReplayContext(run, task)
        working = asyncio.create_task(
            without_exit(self._attempt_quietly, scope, plan, node, task, context)
        )
        if node.subgraph is not None:
            await working  # what stands in it is seen there
        elif not await context.until_still(working):
            await self._unwind(working)
        run.is_failing = False
        got = run.taken_outcome(task.path)
        if node.subgraph is None or ended is not None:
            self._compare(node, attempt, context, got)
        if ended is None:
            self._report.standing += [f"{task.path}: {each}" for each in context.stands_on]
        return got

    async def _attempt_quietly(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        node: NodePlan,
        task: fold.Task,
        context: ReplayContext,
    ) -> None:
        """Execute an attempt; that it failed, or that a subgraph stands, is no error here."""
        try:
            await self._attempt(scope, plan, node, task, context)
        except (GaveUp, Stands):
            return

    async def _unwind(self, working: "asyncio.Task[None]") -> None:
        """Stop an execution that stands, however often it swallows its cancellation."""
        run = self._played
        run.stop_reason = WAITING
        for _turn in range(UNWIND_TURNS):
            working.cancel()
            await run.engine.services.clock.sleep(0)
            if working.done():
                await asyncio.gather(working, return_exceptions=True)
                break
        run.stop_reason = run.outcome = None

    # -- comparing ---------------------------------------------------------------------------------

    def _compare(
        self,
        node: NodePlan,
        attempt: TapedAttempt,
        context: ReplayContext,
        got: rec.NodeFinished | rec.NodeFailed | None,
    ) -> None:
        ended = attempt.outcome
        if ended is None:
            self._compare_standing(context, attempt, got)
            return
        context.report_wanted()
        if got is None:
            if not context.has_wanted:
                self._compare_unended(node, ended, context)
        elif isinstance(ended, rec.NodeFailed):
            self._compare_failure(ended, got, context)
        elif isinstance(got, rec.NodeFailed):
            self._outcome(context, update_of(ended), got.failure, "fails with", "it finished")
        else:
            self._compare_asked(context, attempt)
            if not self._tape.went_by(context.task.path):
                self._compare_update(ended, got, context)

    def _outcome(
        self, context: ReplayContext, expected: Any, got: Any, does: str, recorded: str
    ) -> None:
        text = f"{got.type}: {got.message}" if isinstance(got, Failure) else str(got)
        message = (
            f"code changed: node `{context.task.path}` {does} {shortened(text)}, recorded: "
            f"{shortened(recorded)}"
        )
        self._report.add(
            DivergenceKind.OUTCOME,
            context.task.path,
            context.attempt,
            expected=expected,
            got=got,
            message=message,
        )

    def _compare_failure(
        self, ended: rec.NodeFailed, got: rec.NodeFinished | rec.NodeFailed, context: ReplayContext
    ) -> None:
        was = f"it failed with {ended.failure.type}: {ended.failure.message}"
        if isinstance(got, rec.NodeFinished):
            self._outcome(context, ended.failure, update_of(got), "finishes with", was)
        elif got.failure.type != ended.failure.type:
            self._outcome(context, ended.failure, got.failure, "fails with", was)
        elif (got.retry_at_us is None) != (ended.retry_at_us is None):
            does = "is not tried again after" if got.retry_at_us is None else "is tried again after"
            tried = "it was not" if ended.retry_at_us is None else "it was"
            self._outcome(context, ended.failure, got.failure, does, tried)

    def _compare_unended(
        self,
        node: NodePlan,
        ended: rec.NodeFinished | rec.NodeFailed,
        context: ReplayContext,
    ) -> None:
        """Compare an execution that stands, or a subgraph that does, with a recorded end."""
        if isinstance(ended, rec.NodeFailed) and node.subgraph is None:
            return  # cut off from outside while it waited: a timeout, the end of the run
        expected = update_of(ended) if isinstance(ended, rec.NodeFinished) else ended.failure
        on = ", ".join(context.stands_on) or "a step that is not recorded"
        self._outcome(context, expected, on, "waits for", "it ended")

    def _compare_standing(
        self,
        context: ReplayContext,
        attempt: TapedAttempt,
        got: rec.NodeFinished | rec.NodeFailed | None,
    ) -> None:
        """Compare where an execution has come to that has no recorded end."""
        missing = context.missing(attempt)
        if context.has_wanted and (missing or self._tape.is_still):
            context.report_wanted()
        elif got is not None and self._tape.is_still:
            is_failed = isinstance(got, rec.NodeFailed)
            ends = got.failure if isinstance(got, rec.NodeFailed) else update_of(got)
            does = "fails with" if is_failed else "finishes with"
            self._outcome(context, None, ends, does, "it waits")
        else:
            self._compare_asked(context, attempt)

    def _compare_asked(self, context: ReplayContext, attempt: TapedAttempt) -> None:
        for call in context.missing(attempt):
            node = context.task.path
            what = call_words(call)
            self._report.add(
                DivergenceKind.NOT_ASKED,
                node,
                attempt.number,
                subject=subject_of(call),
                expected=asked_with(call),
                message=f"code changed: node `{node}` does not ask for {what}, which is recorded",
            )

    def _compare_update(
        self, ended: rec.NodeFinished, got: rec.NodeFinished, context: ReplayContext
    ) -> None:
        for name in sorted({*ended.writes, *got.writes}):
            expected, now = ended.writes.get(name), got.writes.get(name)
            if not is_same_write(self.engine.codec, expected, now):
                self._update(context, name, expected, now)
        if not is_same_way(self.engine.codec, ended.goto, got.goto):
            node = context.task.path
            expected_goto, goto = specs_of(ended.goto), specs_of(got.goto)
            message = (
                f"code changed: node `{node}` goes to {names(goto, 'its edges')}, recorded "
                f"{names(expected_goto, 'its edges')}"
            )
            self._report.add(
                DivergenceKind.NEXT,
                node,
                context.attempt,
                expected=expected_goto,
                got=goto,
                message=message,
            )

    def _update(
        self,
        context: ReplayContext,
        name: str,
        expected: tuple[str, Raw] | None,
        now: tuple[str, Raw] | None,
    ) -> None:
        node = context.task.path
        writes = f"no longer writes {name}" if now is None else f"now writes {name}={shown(now[1])}"
        was = shown(None if expected is None else expected[1])
        if expected is not None and now is not None and expected[0] != now[0]:
            writes += " by another reducer"
        self._report.add(
            DivergenceKind.UPDATE,
            node,
            context.attempt,
            subject=name,
            expected=None if expected is None else expected[1],
            got=None if now is None else now[1],
            message=f"code changed: node `{node}` {writes}, recorded {was}",
        )

    # -- encoding: as a whole, to be compared; nothing goes into pages -----------------------------

    def _encode_live(
        self, place: str, live: Mapping[str, tuple[str, Any]], _filed: Filed
    ) -> dict[str, tuple[str, Raw]]:
        encode = self.engine.codec.encode
        return {name: (op, Raw(encode(value, name, place))) for name, (op, value) in live.items()}

    def _encode_fields(
        self, plan: GraphPlan, values: Mapping[str, Any], names: set[str], _filed: Filed
    ) -> dict[str, Raw]:
        encode = self.engine.codec.encode
        place = f"graph {plan.name!r}, field "
        return {name: Raw(encode(values[name], name, place)) for name in sorted(names)}

    # -- steps -------------------------------------------------------------------------------------

    async def _commit_step(self, scope: fold.Scope, plan: GraphPlan) -> None:
        step = scope.step
        recorded = self._tape.steps.get((scope.path, step))
        if recorded is None and scope.path:
            await super()._commit_step(scope, plan)  # its error is that of the subgraph's node
            return
        before = dict(scope.values or {})
        try:
            await super()._commit_step(scope, plan)
        except Stands:
            self._played.compare_no_error(str(step))
            raise
        except (DecodeFailed, InvariantBroken):
            raise
        except Exception as error:
            is_committed = recorded is not None
            self._played.compare_step_error(str(step), error, was_committed=is_committed)
            if recorded is None:
                raise Stands from error
            scope.values = self._as_recorded(scope, before)
            self._report.steps += 1
            fold.apply(self._played.state, recorded)
        self._adopt(scope, step)

    def _adopt(self, scope: fold.Scope, step: int) -> None:
        """Give a scope the merged values of a recorded step: what later nodes saw."""
        recorded = self._tape.steps.get((scope.path, step))
        if recorded is not None and scope.values is not None:
            decode = self.engine.codec.decode
            scope.values.update({name: decode(raw) for name, raw in recorded.folded.items()})
            self._adopt_merged(scope.values, recorded)

    def _adopt_merged(self, values: dict[str, Any], recorded: rec.StepCommitted) -> None:
        """Compare what the steps of a phase wrote with what they come to now; take that of then."""
        codec = self.engine.codec
        for name, (op, raw) in sorted(recorded.merged.items()):
            was, value = codec.decode(raw), values.get(name)
            before: list[Any] = []
            if op == WriteOp.APPEND and isinstance(value, list):
                before = value[: max(len(value) - len(was), 0)]
            now = value[len(before) :] if isinstance(value, list) else value
            got = Raw(codec.encode(now))
            if not is_same(codec, raw, got):
                self._played.report_merged(str(recorded.step), name, raw, got)
            values[name] = [*before, *was] if before else was

    def _as_recorded(self, scope: fold.Scope, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values after a step whose merge fails now: what was written then."""
        decode = self.engine.codec.decode
        values = dict(before)
        for task in scope.tasks.values():
            writes = task.outcome.writes if task.outcome is not None else {}
            for name, (op, raw) in writes.items():
                value = decode(raw)
                is_more = op == WriteOp.APPEND and name in values
                values[name] = [*values[name], *value] if is_more else value
        return values
