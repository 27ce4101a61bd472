"""Drives a held run's graph, super-step by super-step, subgraphs included.

A step with one node runs inline in the host: a node that does nothing outside costs no task and no
wait. The nodes of a wider step run as tasks of their own; each outcome is recorded as it comes.

Size: one recursion (steps, nodes, subgraphs) over one state; cut in two, it would hand all of that
about.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from perdure.core import fold
from perdure.core.merge import merge
from perdure.core.plan import END, START, Goto, GraphPlan, NodePlan, Send
from perdure.core.retry import backoff_s
from perdure.engine.acts import failure_of
from perdure.engine.checks import check_assigned, check_awaited, check_fits, mutated
from perdure.engine.context import Context
from perdure.engine.limits import (
    CANCEL_GRACE_S,
    COPY_RUNS_MAX,
    SNAPSHOT_BYTES_MIN,
    STATE_BYTES_SHARE,
    WHOLE_COPY_SHARE,
    YIELD_STEPS,
)
from perdure.engine.loading import Loaded, at_channel
from perdure.engine.marks import Mark
from perdure.engine.os_threads import call_in_os_thread, without_exit
from perdure.engine.paging import Filed, Pagers, is_whole
from perdure.engine.phases import Passing, check_ahead, encoded_of, goes_by, is_phase
from perdure.engine.ports import BACK, WAITING, Drained, GaveUp, HeldRun
from perdure.engine.starting import folded_defaults
from perdure.errors import (
    DecodeFailed,
    GraphInvalid,
    NodeTimedOut,
    ReplayDiverged,
    StepLimitReached,
    UpdateInvalid,
)
from perdure.model import ThreadBased, Wait, WaitKind, WriteOp
from perdure.model import records as rec


class GraphDriver:
    """Takes one held run through its graph.

    Attributes:
        lets_pass: whether steps may go by without records of their own, where the graph says so.
    """

    lets_pass = True

    def __init__(self, run: HeldRun, loaded: Loaded) -> None:
        """Drive a run that was loaded."""
        self._run = run
        self.engine = run.engine
        self._steps = 0
        self._durable_seq = 0
        self._journal_bytes = loaded.journal_bytes
        self._whole_bytes = loaded.whole_bytes
        self._state_bytes = sum(len(raw) for raw, _hashes in loaded.stored.values())
        self._stored = loaded.stored
        self._mark = loaded.mark
        self._pagers = Pagers(loaded.stored)
        self._passing = Passing()

    async def drive(self) -> None:
        """Take the graph from where its journal stands to its end.

        Raises:
            GaveUp: a node failed for the last time.
            Drained: the worker drains and a boundary was reached.
            PerdureError: the graph does not fit the run (unknown node, step limit, clashing
                updates).
        """
        root = self._run.state.root
        is_replaced = self._run.state.is_input_whole
        row, checkpoint = self._run.row, self._run.state.checkpoint
        cells = {} if is_replaced else root.cells
        root.values = self.engine.decode_cells(cells, row, checkpoint)
        self._whole_bytes += sum(
            len(memoryview(cell.pieces[0]))
            for name, cell in root.cells.items()
            if ("", name) in self._stored and self._grows(name)
        )
        check_fits(self._run.plan, root.values, is_started=root.is_started)
        root.cells = {}
        if not root.is_started:
            self._begin(root, self._run.plan)
        await self._drive_scope(root, self._run.plan)

    def _begin(self, root: fold.Scope, plan: GraphPlan) -> None:
        """Take the input in: step 0."""
        started = self._run.state.started
        if started is None or root.values is None:
            msg = f"run {self._run.row.run_id!r} has no start record"
            raise GraphInvalid(msg)
        given = {name: (op, self._value(name, raw)) for name, (op, raw) in started.input.items()}
        before = {} if fold.is_rollback(started) else root.values
        values, folded = merge(plan, before, [("input", given)])
        filed = Filed(self._pagers, root.path)
        encoded = self._encode_fields(plan, values, folded, filed)
        encoded.update(folded_defaults(self.engine, plan, values))
        root.values = values
        specs = started.next if started.next is not None else self._first_of(plan, values)
        size = sum(len(memoryview(raw)) for _op, raw in started.input.values())
        self._whole_bytes = max(self._whole_bytes, size)
        self._run.record(
            rec.StepCommitted(
                self._run.now_us(),
                "",
                0,
                self._run.state.checkpoint + 1,
                encoded,
                specs,
                self._run.state.snapshot,
            ),
            *filed.changes(),
        )

    async def _drive_scope(self, scope: fold.Scope, plan: GraphPlan) -> None:
        while scope.tasks:
            check_ahead(self._run.row.run_id, scope)
            if scope.step > plan.step_limit:
                msg = (
                    f"graph {plan.name!r} took {plan.step_limit} steps and wants more; does a loop "
                    "never end? Raise Graph(step_limit=...) if it is meant."
                )
                raise StepLimitReached(msg, run_id=self._run.row.run_id, step_limit=plan.step_limit)
            pending = [task for task in scope.tasks.values() if task.outcome is None]
            if len(pending) == 1:
                await self._run_task(scope, plan, pending[0])
            elif pending:
                await self._run_tasks(scope, plan, pending)
            await self._commit_step(scope, plan)
            self._count_step()
            if (
                (self._steps + 1) % YIELD_STEPS == 0
                or self._run.is_draining
                or self._run.journal.is_behind
            ):
                await self._breathe(scope)

    def _count_step(self) -> None:
        """Count the steps since the run last waited for a commit: then everybody had their turn.

        A turn more would flush the end of this step without the intent that follows it.
        """
        durable = self._run.journal.durable_seq
        self._steps = self._steps + 1 if durable == self._durable_seq else 0
        self._durable_seq = durable

    async def _breathe(self, scope: fold.Scope) -> None:
        """Let others have a turn: stop if the worker drains, wait for commits far behind."""
        if self._run.is_draining and not scope.path:
            raise Drained
        await self._run.keep_up()
        await self.engine.services.clock.sleep(0)

    async def _run_tasks(
        self, scope: fold.Scope, plan: GraphPlan, pending: list[fold.Task]
    ) -> None:
        """Run the nodes of a step at once; each outcome is kept as it comes."""
        running = {
            asyncio.create_task(
                without_exit(self._run_task, scope, plan, task), name=f"perdure-{task.path}"
            )
            for task in pending
        }
        try:
            _done, still = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            if still:
                await self._let_end(still)
        finally:
            for task in running:
                task.cancel()
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _let_end(self, still: "set[asyncio.Task[None]]") -> None:
        """One node gave up: give effects in flight in the others a moment to end."""
        ringing = asyncio.ensure_future(self.engine.services.clock.sleep(CANCEL_GRACE_S))
        try:
            await asyncio.wait({ringing, *still}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ringing.cancel()

    # -- one node ----------------------------------------------------------------------------------

    async def _run_task(self, scope: fold.Scope, plan: GraphPlan, task: fold.Task) -> None:
        node = plan.nodes.get(task.spec.node)
        if node is None:
            msg = (
                f"graph {plan.name!r} v{plan.version} has no node {task.spec.node!r} any more, "
                f"where run {self._run.row.run_id!r} stands; run it with the version that it was "
                "started with"
            )
            raise ReplayDiverged(msg, node=task.spec.node)
        while True:
            if self._run.sandbox_use.is_spoilt:
                self._run.stop(BACK)
                raise asyncio.CancelledError
            context = Context(self._run, task)
            self._run.waits.contexts.add(context)
            try:
                if task.retry_at_us is not None:
                    await self._wait_for_retry(context, task)
                if task.attempt > 1 or task.calls:
                    self._run.record(rec.NodeStarted(self._run.now_us(), task.path, task.attempt))
                if await self._attempt(scope, plan, node, task, context):
                    return
            finally:
                self._run.waits.contexts.discard(context)
                if self._run.stop_reason != WAITING:
                    self._run.sandbox_use.abandon(context)
                self._run.touch()

    async def _wait_for_retry(self, context: Context, task: fold.Task) -> None:
        note = f"attempt {task.attempt} of node {task.spec.node}"
        wait = Wait(
            kind=WaitKind.TIMER,
            subject=task.path,
            node=task.path,
            due_us=task.retry_at_us,
            note=note,
        )
        await self._run.wait(context, wait)

    async def _attempt(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        node: NodePlan,
        task: fold.Task,
        context: Context,
    ) -> bool:
        """Run the node once; return whether it is done (else it is to be tried again)."""
        started_us = self._run.now_us()
        try:
            if node.subgraph is not None:
                live, goto = await self._run_subgraph(scope, node.subgraph, task), None
            else:
                returned = await self._call_node(scope, plan, node, task, context)
                check_awaited(task.path, context)
                live, goto = self._read_update(plan, node, returned)
            place = f"graph {plan.name!r}, node {node.name!r}, field "
            finish = self._prepared(scope, plan, task, place, live)
        except GaveUp:
            raise
        except asyncio.CancelledError as error:
            if self._run.stop_reason is not None or self._run.is_failing:
                raise
            self._node_failed(node, task, RuntimeError(f"the node cancelled itself ({error!r})"))
            return False
        except (
            SystemExit
        ) as error:  # a tool's sys.exit() must not end the worker and its other runs
            exited = RuntimeError(f"the node called sys.exit({error.code!r})")
            self._node_failed(node, task, exited)
            return False
        except Exception as error:  # noqa: BLE001  # the supervisor of nodes: recorded, retried or given up
            self._node_failed(node, task, error)
            return False
        if self._run.stop_reason is not None:
            # The node swallowed its cancellation; it will be executed again.
            raise asyncio.CancelledError
        await self._run.sandbox_use.leave(context, defers=self._goes_by(plan, scope))
        # crash-point: node.finish.before
        self.engine.services.probe("node.finish.before")
        task.live_writes = live
        finish(started_us, goto)
        return True

    def _prepared(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        task: fold.Task,
        place: str,
        live: Mapping[str, tuple[str, Any]],
    ) -> Callable[[int, list[rec.TaskSpec] | None], None]:
        """Encode a node's update; return what records the node's end, given its beginning."""
        if self._goes_by(plan, scope):
            encoded = encoded_of(self.engine.codec, place, live)

            def pass_by(started_us: int, goto: list[rec.TaskSpec] | None) -> None:
                record = rec.NodeFinished(
                    self._run.now_us(), task.path, started_us, {}, task.attempt, goto
                )
                fold.apply_unrecorded(self._run.state, record)
                self._passing.end(record, encoded)

            return pass_by
        filed = Filed(self._pagers, scope.path)
        writes = self._encode_live(place, live, filed)

        def record_it(started_us: int, goto: list[rec.TaskSpec] | None) -> None:
            record = rec.NodeFinished(
                self._run.now_us(), task.path, started_us, writes, task.attempt, goto
            )
            self._run.record(record, *filed.changes())

        return record_it

    def _goes_by(self, plan: GraphPlan, scope: fold.Scope) -> bool:
        """Return whether the step under way has no records of its own."""
        return self.lets_pass and goes_by(plan, scope)

    async def _call_node(
        self, scope: fold.Scope, plan: GraphPlan, node: NodePlan, task: fold.Task, context: Context
    ) -> Any:
        values = scope.values or {}
        argument = self._argument(task) if task.spec.is_sent else plan.build_state(values)
        sizes = [
            (name, value, len(value)) for name, value in values.items() if type(value) in _SIZED
        ]
        call = node.call
        if call is None:
            msg = f"node {node.name!r} has nothing to call"
            raise GraphInvalid(msg)
        args = (argument, context) if node.takes_context else (argument,)
        if not node.is_async:
            returned = await self._in_os_thread(call, args, context, node)
        elif node.timeout_s is None:
            returned = await call(*args)
        else:
            returned = await self._within(without_exit(call, *args), node, context)
        for name, value, size in sizes:
            if len(value) != size:
                raise mutated(task.path, name, f"it had {size} items, now {len(value)}")
        if not task.spec.is_sent:
            check_assigned(task.path, argument, values)
        return returned

    async def _in_os_thread(
        self, call: Callable[..., Any], args: tuple[Any, ...], context: Context, node: NodePlan
    ) -> Any:
        context.active += 1
        try:
            working = call_in_os_thread(call, *args)
            if node.timeout_s is not None:
                return await self._within(working, node, context)
            return await working
        finally:
            context.active -= 1

    async def _within(self, working: Awaitable[Any], node: NodePlan, context: Context) -> Any:
        """Await a node attempt within its timeout, on the engine's clock.

        Time spent waiting does not count.
        """
        work = asyncio.ensure_future(working)
        left_s = node.timeout_s or 0.0
        clock = self.engine.services.clock
        try:
            while True:
                before_s = clock.monotonic_s()
                was_waiting = context.waiting > 0
                ringing = asyncio.ensure_future(clock.sleep(min(left_s, 1.0)))
                await asyncio.wait({work, ringing}, return_when=asyncio.FIRST_COMPLETED)
                ringing.cancel()
                if work.done():
                    return work.result()
                left_s -= 0.0 if was_waiting else clock.monotonic_s() - before_s
                if left_s <= 0:
                    msg = f"node {node.name!r} took longer than timeout_s={node.timeout_s}"
                    raise NodeTimedOut(msg, node=node.name, timeout_s=node.timeout_s)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def _node_failed(self, node: NodePlan, task: fold.Task, error: Exception) -> None:
        """Record a failed attempt; raise GaveUp if it was the last."""
        if self._run.stop_reason is not None:
            raise asyncio.CancelledError from error
        failure = failure_of(error, task.path)
        delay_s = None
        if node.retry is not None and isinstance(error, node.retry.on):
            delay_s = backoff_s(node.retry, task.attempt, self.engine.services.rng)
        retry_at_us = None if delay_s is None else self._run.now_us() + round(delay_s * 1_000_000)
        self._run.record(
            rec.NodeFailed(self._run.now_us(), task.path, task.attempt, failure, retry_at_us)
        )
        if retry_at_us is None:
            self._run.is_failing = True
            raise GaveUp(failure) from error

    def _read_update(
        self, plan: GraphPlan, node: NodePlan, returned: Any
    ) -> tuple[dict[str, tuple[str, Any]], list[rec.TaskSpec] | None]:
        """Return a node's update (field -> op, value) and where it chose to go."""
        goto = None
        if isinstance(returned, Goto):
            goto = self._specs(plan.resolve(returned.node, node.name))
            returned = returned.update
        if returned is None:
            return {}, goto
        if not isinstance(returned, Mapping):
            msg = (
                f"graph {plan.name!r}, node {node.name!r} returned {type(returned).__name__}; "
                "return a dict of the changed fields, None, or Goto(node, update)"
            )
            raise UpdateInvalid(msg, graph=plan.name, node=node.name)
        live: dict[str, tuple[str, Any]] = {}
        for name, value in returned.items():
            channel = plan.channels.get(name)
            if channel is None:
                known = ", ".join(plan.channels)
                msg = (
                    f"graph {plan.name!r}, node {node.name!r} returned field {name!r}; the state "
                    f"has: {known}"
                )
                raise UpdateInvalid(msg, graph=plan.name, node=node.name, field=str(name))
            live[name] = (
                channel.op.value,
                value if channel.check is None else channel.check(value),
            )
        return live, goto

    def _encode_live(
        self, place: str, live: Mapping[str, tuple[str, Any]], filed: Filed
    ) -> dict[str, tuple[str, Raw]]:
        encode = self.engine.codec.encode
        return {
            name: (op, filed.put(name, encode(value, name, place), is_whole=is_whole(op)))
            for name, (op, value) in live.items()
        }

    # -- the end of a step -------------------------------------------------------------------------

    async def _commit_step(self, scope: fold.Scope, plan: GraphPlan) -> None:
        tasks = list(scope.tasks.values())
        updates = [(task.path, self._live_writes(task)) for task in tasks]
        values, folded = merge(plan, scope.values or {}, updates)
        specs = await self._next_specs(plan, tasks, values)
        filed = Filed(self._pagers, scope.path)
        goes = self._goes_by(plan, scope)
        if not specs:
            check_ahead(self._run.row.run_id, scope, is_end=True)
        encoded: dict[str, Raw] = {}
        if goes:
            self._passing.commit(self._folded_fields(plan, values, folded))
        elif folded:
            encoded = self._encode_fields(plan, values, folded, filed)
        if scope.path:
            scope.writes += [(key, op, v) for _path, w in updates for key, (op, v) in w.items()]
        # crash-point: step.commit.before
        self.engine.services.probe("step.commit.before")
        scope.values = values
        if goes and not (is_phase(plan, scope, specs) or self._passing.is_long):
            fold.apply_unrecorded(self._run.state, self._committed(scope, specs, {}))
            return
        if goes:
            await self._run.sandbox_use.settle()
        merged, passed = self._passing.take(filed)
        record = self._committed(scope, specs, encoded)
        if not scope.path:
            record = replace(
                record,
                checkpoint=self._run.state.checkpoint + 1,
                merged=merged,
                passed=passed,
            )
        self._run.record(record, *filed.changes())
        if not scope.path and self._is_copy_due():
            self._write_whole(scope, plan, specs)

    def _committed(
        self, scope: fold.Scope, specs: list[rec.TaskSpec], folded: dict[str, Raw]
    ) -> rec.StepCommitted:
        return rec.StepCommitted(
            self._run.now_us(),
            scope.path,
            scope.step,
            self._run.state.checkpoint,
            folded,
            specs,
            self._run.state.snapshot,
        )

    def _folded_fields(
        self, plan: GraphPlan, values: Mapping[str, Any], names: set[str]
    ) -> dict[str, bytes]:
        place = f"graph {plan.name!r}, field "
        encode = self.engine.codec.encode
        return {name: encode(values[name], name, place) for name in sorted(names)}

    async def checkpoint(self) -> None:
        """Write the steps that went by since the last checkpoint: the run is to be let go.

        Not where the files of the sandbox are other ones: the steps will be executed again. No
        whole copy: acts of the step under way may be recorded before it.
        """
        root = self._run.state.root
        if self._passing.is_empty or root.values is None:
            return
        if not await self._run.sandbox_use.settle():
            return
        filed = Filed(self._pagers, root.path)
        merged, passed = self._passing.take(filed)
        record = rec.StepCommitted(
            self._run.now_us(),
            "",
            root.step - 1,
            self._run.state.checkpoint + 1,
            {},
            [task.spec for task in root.tasks.values()],
            self._run.state.snapshot,
            merged=merged,
            passed=passed,
        )
        self._run.record(record, *filed.changes())

    def _is_copy_due(self) -> bool:
        """Return whether enough was written since the last whole copy for another one."""
        last = self._mark.ordinal if self._mark is not None else 0
        if self._run.row.ordinal - last >= COPY_RUNS_MAX:
            return True
        return self._run.journal.total_bytes + self._journal_bytes > max(
            SNAPSHOT_BYTES_MIN,
            WHOLE_COPY_SHARE * self._whole_bytes,
            self._state_bytes // STATE_BYTES_SHARE,
        )

    def _write_whole(self, scope: fold.Scope, plan: GraphPlan, specs: list[rec.TaskSpec]) -> None:
        """Write the thread's whole state, so that loading starts where the last copy was made.

        Not here: of a field that grows, all that it holds would be written a second time.
        """
        values = scope.values or {}
        here = Mark(
            self._run.row.ordinal,
            self._run.journal.added_seq + 1,
            scope.step - 1,
            self._run.state.checkpoint,
            specs,
            self._run.state.snapshot,
            {name: len(value) for name, value in values.items() if self._grows(name)},
        )
        since = self._mark or here
        held = {
            name: value[: since.lengths.get(name, 0)] if self._grows(name) else value
            for name, value in values.items()
        }
        filed = Filed(self._pagers, scope.path)
        whole = self._encode_fields(plan, held, set(held), filed)
        record = rec.StateCopied(
            self._run.now_us(),
            since.step,
            since.checkpoint,
            {name: (WriteOp.REPLACE.value, raw) for name, raw in whole.items()},
            since.next,
            since.snapshot,
            since.ordinal,
            since.seq,
            here.checkpoint,
            here.lengths,
        )
        before = self._run.journal.total_bytes
        self._run.record(
            record, *filed.changes(), ThreadBased(seq=here.seq, made_at=here.checkpoint)
        )
        self._mark = here
        self._state_bytes = filed.size
        in_pages = sum(size for name, size in filed.sizes.items() if self._grows(name))
        self._whole_bytes = self._run.journal.total_bytes - before + in_pages
        self._journal_bytes = -self._run.journal.total_bytes

    def _grows(self, name: str) -> bool:
        """Return whether a field is appended to: a whole copy writes again what was appended."""
        channel = self._run.plan.channels.get(name)
        return channel is not None and channel.op is WriteOp.APPEND

    def _live_writes(self, task: fold.Task) -> dict[str, tuple[str, Any]]:
        if task.live_writes is not None:
            return task.live_writes
        if task.outcome is None:
            msg = f"run {self._run.row.run_id!r}: step ended without an outcome of {task.path!r}"
            raise GraphInvalid(msg)
        writes = task.outcome.writes.items()
        return {name: (op, self._value(name, raw)) for name, (op, raw) in writes}

    def _value(self, channel: str, encoded: Raw) -> Any:
        """Return a value of a field; an error says of which."""
        try:
            return self.engine.codec.decode(encoded)
        except DecodeFailed as error:
            row, checkpoint = self._run.row, self._run.state.checkpoint
            raise at_channel(error, row, checkpoint, channel) from error

    def _argument(self, task: fold.Task) -> Any:
        """Return the argument that a fan-out sent to a node."""
        return self.engine.decode_in(
            task.spec.argument, self._run.row, f"argument of node {task.path!r}", node=task.path
        )

    def _encode_fields(
        self, plan: GraphPlan, values: Mapping[str, Any], names: set[str], filed: Filed
    ) -> dict[str, Raw]:
        encode = self.engine.codec.encode
        place = f"graph {plan.name!r}, field "
        return {
            name: filed.put(name, encode(values[name], name, place), is_whole=True)
            for name in sorted(names)
        }

    async def _next_specs(
        self, plan: GraphPlan, tasks: list[fold.Task], values: Mapping[str, Any]
    ) -> list[rec.TaskSpec]:
        specs: list[rec.TaskSpec] = []
        targets: list[str | Send] = []
        for task in tasks:
            if task.outcome is not None and task.outcome.goto is not None:
                specs += task.outcome.goto
                continue
            targets += plan.edges.get(task.spec.node, ())
            for branch in plan.branches.get(task.spec.node, ()):
                routed = branch.route(plan.build_state(values))
                targets += await routed if branch.is_async else routed
        if not specs and len(targets) == 1 and type(targets[0]) is str:
            return [] if targets[0] == END else [rec.TaskSpec(targets[0])]
        return self._numbered([*specs, *self._specs(targets)])

    def _specs(self, targets: "list[str | Send] | tuple[str | Send, ...]") -> list[rec.TaskSpec]:
        """Return what to run next.

        A node named twice runs once, each Send is an execution of its own.
        """
        specs: list[rec.TaskSpec] = []
        for target in targets:
            if isinstance(target, Send):
                place = f"argument of Send({target.node!r})"
                argument = Raw(self.engine.codec.encode(target.argument, place))
                specs.append(rec.TaskSpec(target.node, 1, argument))
            elif target != END:
                specs.append(rec.TaskSpec(target))
        return self._numbered(specs)

    @staticmethod
    def _numbered(specs: list[rec.TaskSpec]) -> list[rec.TaskSpec]:
        numbered: list[rec.TaskSpec] = []
        counts: dict[str, int] = {}
        plain: set[str] = set()
        for spec in specs:
            if not spec.is_sent:
                if spec.node not in plain:
                    plain.add(spec.node)
                    numbered.append(spec)
                continue
            counts[spec.node] = counts.get(spec.node, 0) + 1
            numbered.append(rec.TaskSpec(spec.node, counts[spec.node], spec.argument))
        return numbered

    # -- subgraphs ---------------------------------------------------------------------------------

    async def _run_subgraph(
        self, outer: fold.Scope, plan: GraphPlan, task: fold.Task
    ) -> dict[str, tuple[str, Any]]:
        """Run a graph as a node: shared fields go in, what its nodes wrote to them comes out."""
        given = self._subgraph_input(outer, plan, task)
        scope = self._run.state.scopes.get(task.path)
        if scope is None or not scope.is_started:
            values = dict(given)
            encoded = folded_defaults(self.engine, plan, values)
            self._run.record(
                rec.StepCommitted(
                    self._run.now_us(),
                    task.path,
                    0,
                    0,
                    encoded,
                    self._first_of(plan, values),
                    version=plan.version,
                )
            )
            scope = self._run.state.scopes[task.path]
            scope.values = values
            scope.writes = []
        elif scope.values is None:
            self._restore_scope(scope, given)
        await self._drive_scope(scope, plan)
        return self._subgraph_update(outer, scope)

    def _first_of(self, plan: GraphPlan, values: Mapping[str, Any]) -> list[rec.TaskSpec]:
        """Return the tasks of step 1; conditional edges from START are decided on the input."""
        targets: list[str | Send] = list(plan.edges.get(START, ()))
        for branch in plan.branches.get(START, ()):
            if branch.is_async:
                msg = f"graph {plan.name!r}: the router at START must be a plain function"
                raise GraphInvalid(msg, graph=plan.name)
            targets += branch.route(plan.build_state(values))
        return self._specs(targets)

    def _subgraph_input(
        self, outer: fold.Scope, plan: GraphPlan, task: fold.Task
    ) -> dict[str, Any]:
        if task.spec.is_sent:
            given = self._argument(task)
            return plan.read_input(given, True)  # noqa: FBT003  # the plan's form: is_first
        values = outer.values or {}
        return {name: values[name] for name in plan.channels if name in values}

    def _restore_scope(self, scope: fold.Scope, given: Mapping[str, Any]) -> None:
        """Turn the loaded pieces of an inner scope into live values, on top of what was given."""
        values = dict(given)
        for name, cell in scope.cells.items():
            value = fold.decode_cell(cell, partial(self._value, name))
            appends = cell.op == WriteOp.APPEND and name in given
            values[name] = [*given[name], *value] if appends else value
        scope.values = values
        scope.cells = {}
        scope.writes = [(name, op, self._value(name, raw)) for name, op, raw in scope.writes]

    def _subgraph_update(self, outer: fold.Scope, scope: fold.Scope) -> dict[str, tuple[str, Any]]:
        """Return what the subgraph's nodes wrote to fields that the outer graph has, in order."""
        update: dict[str, tuple[str, Any]] = {}
        outer_plan = self._plan_of_scope(outer)
        for name, op, value in scope.writes:
            channel = outer_plan.channels.get(name)
            if channel is None:
                continue
            if channel.op is WriteOp.REPLACE:
                update[name] = (WriteOp.REPLACE.value, (scope.values or {})[name])
            elif channel.op is WriteOp.APPEND:
                before = update.get(name, ("", []))[1]
                update[name] = (WriteOp.APPEND.value, [*before, *value])
            else:
                before = update.get(name, ("", []))[1]
                items = value if op == WriteOp.FOLD_MANY else [value]
                update[name] = (WriteOp.FOLD_MANY.value, [*before, *items])
        return update

    def _plan_of_scope(self, scope: fold.Scope) -> GraphPlan:
        plan = self._run.plan
        path = ""
        for part in scope.path.split("/") if scope.path else []:
            path = f"{path}/{part}" if path else part
            name = self._run.state.task(path).spec.node
            inner = plan.nodes[name].subgraph
            if inner is None:
                msg = f"node {name!r} of graph {plan.name!r} is no subgraph any more"
                raise GraphInvalid(msg)
            plan = inner
        return plan


_SIZED = frozenset({list, dict, set})
