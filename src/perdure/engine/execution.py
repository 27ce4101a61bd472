"""One held run: from its claim to the next release, step by step.

Theory: a supervisor (`run`) loads the run, drives its graph in a task of its own (the host), and concludes: finished,
failed, cancelled, waiting, parked, drained, or lost. Whatever stops the host early says why in `_stop` and
cancels it; nothing else unwinds a node, so user code can't swallow it as an ordinary exception.

A step with one node runs inline in the host: a node that does nothing outside costs no task and no wait.

Invariants: state changes only by records (`record`: applied and queued together); nothing is concluded as durable
without a barrier; after the lease is lost nothing is written or dispatched.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Raw, structs

from perdure.core import fold
from perdure.core.merge import merge
from perdure.core.plan import END, START, Goto, GraphPlan, NodePlan, Send
from perdure.core.retry import backoff_s
from perdure.engine import compensation
from perdure.engine.context import Context
from perdure.engine.effects import failure_of
from perdure.engine.environment import Environment
from perdure.engine.limits import (
    CANCEL_GRACE_S,
    CLAIMS_MAX,
    LINGER_S,
    RECANCEL_S,
    SETTLE_TURNS,
    SNAPSHOT_BYTES_MIN,
    YIELD_STEPS,
)
from perdure.engine.loading import Loaded
from perdure.engine.ports import NodePort
from perdure.engine.queue import RunJournal
from perdure.engine.starting import folded_defaults
from perdure.errors import (
    GraphInvalid,
    LeaseLost,
    NodeTimedOut,
    PerdureError,
    StateMutated,
    StepLimitReached,
    StoreError,
    UpdateInvalid,
    UsageError,
)
from perdure.model import (
    Append,
    Appended,
    Change,
    EffectKind,
    EffectPut,
    EffectState,
    Failure,
    Mail,
    MailKind,
    MailPosted,
    MailTaken,
    RunProgressed,
    RunReleased,
    RunRow,
    RunStatus,
    ThreadBased,
    Wait,
    WaitKind,
    WriteOp,
)
from perdure.model import RunEnded as RunEndedChange
from perdure.model import records as rec
from perdure.store.api import RunQuery, Transaction

WAITING, PARKED, DRAINED, CANCELLED, LOST = "waiting", "parked", "drained", "cancelled", "lost"


class _GaveUp(Exception):  # private, caught in `run`
    """A node failed for the last time: the run fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Drained(BaseException):
    """The run reached a boundary while its worker drains."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One open wait that is kept in memory."""

    wait: Wait
    kind: MailKind | None
    future: "asyncio.Future[Mail | None]"


class Execution:
    """A run that this worker holds."""

    def __init__(self, engine: Environment, row: RunRow, plan: GraphPlan) -> None:
        """Belong to a claimed run."""
        self.engine = engine
        self.row = row
        self.plan = plan
        self.now_us = engine.services.clock.now_us
        self.journal: RunJournal
        self.state: fold.RunState
        self.is_draining = False
        self.accepts_mail = False
        self._is_failing = False
        self._stop_reason: str | None = None
        self._stop_failure: Failure | None = None
        self._host: asyncio.Task[None] | None = None
        self._contexts: set[Context] = set()
        self._waitings: list[_Waiting] = []
        self._mail: list[Mail] = []
        self._mail_seen = 0
        self._mail_counted = 0
        self._generation = 0
        self._settling: asyncio.Task[None] | None = None
        self._steps = 0
        self._journal_bytes = 0
        self._whole_bytes = 0
        self._has_progressed = row.claims <= 1
        self._sandbox: Any = None
        self._sandbox_owner: NodePort | None = None
        self._sandbox_gate = asyncio.Lock()

    # -- the supervisor --------------------------------------------------------------------------------------------

    async def run(self, loaded: Loaded) -> None:
        """Take the run as far as it goes now; returns when this worker holds it no more."""
        self.state = loaded.state
        self._journal_bytes = loaded.journal_bytes
        self.journal = RunJournal(self.engine.queue, self.row, loaded.prev_hash)
        try:
            self.record(
                rec.LeaseTaken(
                    self.now_us(), self.engine.worker_id, self.row.token, self.row.claims
                )
            )
            if self.row.token > 1 or self.row.claims > 1:
                await self.take_mail()
            self.accepts_mail = True
            if self._stop_reason is None and self.row.claims > CLAIMS_MAX:
                self._park_exhausted()
            await self._supervise()
        except (LeaseLost, StoreError) as error:
            self._stop_reason = LOST
            self.engine.on_lost(self.row, error)

    async def _supervise(self) -> None:
        failure: Failure | None = self._given_up()
        if self._stop_reason is None and failure is None:
            self._host = asyncio.create_task(self._drive(), name=f"perdure-{self.row.run_id}")
            failure = await self._host_failure(self._host)
        if self._stop_reason == LOST:
            return
        if self._stop_reason == CANCELLED:
            await self._conclude_cancelled()
        elif failure is not None:
            await self._conclude_failed(failure)
        elif self._stop_reason is None:
            await self._conclude(RunStatus.SUCCEEDED, None)
        else:
            await self._release()

    async def _host_failure(self, host: "asyncio.Task[None]") -> Failure | None:
        """Wait for the host; return why the run fails, or None (ended, or stopped)."""
        try:
            await asyncio.wait({host})
        except asyncio.CancelledError:
            # The worker is torn down without a drain: as in a crash, nothing is written.
            self._stop_reason = LOST
            host.cancel()
            await asyncio.gather(host, return_exceptions=True)
            raise
        finally:
            if self._settling is not None:
                self._settling.cancel()
        if host.cancelled() or self._stop_reason == LOST:
            return None
        error = host.exception()
        if error is None:
            return None
        if isinstance(error, _Drained):
            self._stop_reason = DRAINED
            return None
        if isinstance(error, _GaveUp):
            return error.failure
        if isinstance(error, LeaseLost | StoreError):
            raise error
        return failure_of(error)

    def _given_up(self) -> Failure | None:
        """Return the failure of a node that gave up before the last holder could conclude."""
        for scope in self.state.scopes.values():
            for task in scope.tasks.values():
                is_final = task.failure is not None and task.retry_at_us is None
                if is_final and task.outcome is None:
                    return task.failure
        return None

    def _park_exhausted(self) -> None:
        message = (
            f"claimed {self.row.claims} times without finishing a step; its code may kill the worker. "
            f"Look at 'perdure show {self.row.run_id}', then: perdure resolve {self.row.run_id} --retry"
        )
        self._stop_failure = Failure(type="AttemptsExhausted", message=message)
        self._stop(PARKED)

    # -- records -----------------------------------------------------------------------------------------------------

    def record(self, record: rec.Record, *changes: Change) -> None:
        """Apply a record and queue it with its changes."""
        self.journal.add(record, *changes)
        fold.apply(self.state, record)

    async def barrier(self) -> None:
        """Return when everything recorded is durable; a lost lease stops the run instead."""
        try:
            await self.journal.barrier()
        except PerdureError as error:
            self.lose(error)
            raise asyncio.CancelledError from error

    async def keep_up(self) -> None:
        """Wait while too much is uncommitted."""
        if self.journal.is_behind:
            await self.barrier()

    def lose(self, error: PerdureError) -> None:
        """Stop everything: the run is somebody else's, or the store refuses it."""
        self.engine.on_lost(self.row, error)
        self._stop(LOST)

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        if self._stop_reason is None:
            # What comes from now on finds nobody who waits for it: the release must not count it.
            self._mail_counted = self._mail_seen
        if self._stop_reason is None or reason == LOST:
            self._stop_reason = reason
        self._cancel_host()

    def _cancel_host(self) -> None:
        """Cancel the node, again and again if it swallows its cancellation."""
        if self._host is not None and not self._host.done():
            self._host.cancel()
            asyncio.get_running_loop().call_later(RECANCEL_S, self._cancel_host)

    def park(self, error: Exception) -> None:
        """Stop and leave the run to a person."""
        self._stop_failure = failure_of(error)
        self._stop(PARKED)
        raise asyncio.CancelledError

    def lost(self) -> None:
        """The lease is somebody else's: stop, write nothing."""
        self._stop(LOST)

    def stop_now(self) -> None:
        """The drain window is over: stop where it stands; effects in flight stay intended."""
        self._stop(DRAINED)

    def check_dispatch(self) -> None:
        """Refuse to dispatch when the run is being stopped or its lease is not safe."""
        if self._stop_reason is None and self.journal.error is None and self.engine.is_lease_safe():
            return
        if self._stop_reason is None:
            msg = f"run {self.row.run_id!r}: the lease could not be renewed in time; nothing was dispatched"
            self.lose(LeaseLost(msg, run_id=self.row.run_id))
        raise asyncio.CancelledError

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Something moved; look whether the whole run waits now."""
        self._generation += 1
        if self._waitings and self._settling is None and self._is_still():
            self._settling = asyncio.create_task(self._settle())

    def _is_still(self) -> bool:
        if self._is_failing:
            return False  # it ends; what else waits in it will not keep it
        if any(waiting.future.done() for waiting in self._waitings):
            return False  # a wait is over, its node has not had its turn yet
        return bool(self._contexts) and all(
            context.waiting > 0 and context.active == 0 and context.held == 0
            for context in self._contexts
        )

    async def _settle(self) -> None:
        """Release the run when everything stays still for some turns of the loop."""
        try:
            turns = 0
            generation = self._generation
            while turns < SETTLE_TURNS:
                await self.engine.services.clock.sleep(0)
                turns += 1
                if not self._is_still():
                    return
                if generation != self._generation:
                    generation, turns = self._generation, 0
        finally:
            self._settling = None
        if self._waitings:
            self._stop(WAITING)

    async def wait(self, context: NodePort, wait: Wait) -> None:
        """Return when the wait is due."""
        if wait.due_us is None or wait.due_us > self.now_us():
            await self._hold(context, wait, None)

    async def wait_for_mail(self, context: NodePort, wait: Wait, kind: MailKind) -> Mail | None:
        """Return the message, or None when the wait is due first."""
        for mail in self._mail:
            if mail.kind is kind and mail.subject == wait.subject:
                self._mail.remove(mail)
                return mail
        if wait.due_us is not None and wait.due_us <= self.now_us():
            return None
        return await self._hold(context, wait, kind)

    async def _hold(self, context: NodePort, wait: Wait, kind: MailKind | None) -> Mail | None:
        if self._stop_reason is not None:
            raise asyncio.CancelledError
        waiting = _Waiting(wait, kind, asyncio.get_running_loop().create_future())
        left_s = None if wait.due_us is None else (wait.due_us - self.now_us()) / 1_000_000
        lingers = left_s is not None and left_s <= LINGER_S
        context.active += lingers
        context.waiting += not lingers
        self._waitings.append(waiting)
        alarm = None if left_s is None else asyncio.create_task(self._ring(left_s, waiting))
        self.touch()
        try:
            return await waiting.future
        finally:
            if self._stop_reason != WAITING:
                self._waitings.remove(waiting)
            context.active -= lingers
            context.waiting -= not lingers
            if alarm is not None:
                alarm.cancel()
            self._generation += 1

    async def _ring(self, left_s: float, waiting: _Waiting) -> None:
        await self.engine.services.clock.sleep(max(left_s, 0.0))
        if not waiting.future.done():
            waiting.future.set_result(None)

    # -- mail --------------------------------------------------------------------------------------------------------------

    async def take_mail(self) -> None:
        """Read new messages and hand them to who waits for them."""
        for mail in await self.engine.store.read_mail(self.row.run_id, after=self._mail_seen):
            self.deliver(mail)

    def deliver(self, mail: Mail) -> None:
        """Take one message in. Idempotent by its id."""
        if mail.mail_id <= self._mail_seen:
            return
        self._mail_seen = mail.mail_id
        taken = MailTaken(mail_ids=(mail.mail_id,))
        if mail.kind is MailKind.CANCEL:
            compensate = bool(self.engine.codec.decode(mail.body_wire))
            self.record(rec.CancelRequested(self.now_us(), mail.sender, compensate), taken)
            self._stop(CANCELLED)
        elif mail.kind is MailKind.RETRY:
            self.record(rec.RetryRequested(self.now_us(), mail.sender), taken)
        else:
            self._hand_over(mail)

    def _hand_over(self, mail: Mail) -> None:
        for waiting in self._waitings:
            fits = waiting.kind is mail.kind and waiting.wait.subject == mail.subject
            if fits and not waiting.future.done():
                waiting.future.set_result(mail)
                return
        self._mail.append(mail)

    async def find_mail(self, kind: MailKind, subject: str) -> Mail | None:
        """Read the mail again and return the first such message, or None."""
        await self.take_mail()
        for mail in self._mail:
            if mail.kind is kind and mail.subject == subject:
                self._mail.remove(mail)
                return mail
        return None

    # -- driving the graph ----------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        root = self.state.root
        root.values = self.engine.decode_cells(root.cells)
        root.cells = {}
        if not root.is_started:
            self._begin(root, self.plan)
        await self._drive_scope(root, self.plan)

    def _begin(self, root: fold.Scope, plan: GraphPlan) -> None:
        """Take the input in: step 0."""
        started = self.state.started
        if started is None or root.values is None:
            msg = f"run {self.row.run_id!r} has no start record"
            raise GraphInvalid(msg)
        decode = self.engine.codec.decode
        given = {name: (op, decode(raw)) for name, (op, raw) in started.input.items()}
        values, folded = merge(plan, root.values, [("input", given)])
        encoded = self._encode_fields(plan, values, folded)
        encoded.update(folded_defaults(self.engine, plan, values))
        root.values = values
        specs = started.next if started.next is not None else self._first_of(plan, values)
        self._whole_bytes = sum(len(memoryview(raw)) for _op, raw in started.input.values())
        self.record(
            rec.StepCommitted(self.now_us(), "", 0, self.state.checkpoint + 1, encoded, specs)
        )

    async def _drive_scope(self, scope: fold.Scope, plan: GraphPlan) -> None:
        while scope.tasks:
            if scope.step > plan.step_limit:
                msg = (
                    f"graph {plan.name!r} took {plan.step_limit} steps and wants more; does a loop never end? "
                    f"Raise Graph(step_limit=...) if it is meant."
                )
                raise StepLimitReached(msg, run_id=self.row.run_id, step_limit=plan.step_limit)
            pending = [task for task in scope.tasks.values() if task.outcome is None]
            if len(pending) == 1:
                await self._run_task(scope, plan, pending[0])
            elif pending:
                await self._run_tasks(scope, plan, pending)
            await self._commit_step(scope, plan)
            self._steps += 1
            if self._steps % YIELD_STEPS == 0 or self.is_draining or self.journal.is_behind:
                await self._breathe()

    async def _breathe(self) -> None:
        """Let others have a turn; stop here if the worker drains; wait for commits that are far behind."""
        if self.is_draining:
            raise _Drained
        await self.keep_up()
        await self.engine.services.clock.sleep(0)

    async def _run_tasks(
        self, scope: fold.Scope, plan: GraphPlan, pending: list[fold.Task]
    ) -> None:
        """Run the nodes of a step at once; each outcome is kept as it comes."""
        running = {
            asyncio.create_task(self._run_task(scope, plan, task), name=f"perdure-{task.path}")
            for task in pending
        }
        try:
            done, still = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
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

    # -- one node ----------------------------------------------------------------------------------------------------------------

    async def _run_task(self, scope: fold.Scope, plan: GraphPlan, task: fold.Task) -> None:
        node = plan.nodes.get(task.spec.node)
        if node is None:
            msg = (
                f"graph {plan.name!r} v{plan.version} has no node {task.spec.node!r} any more, where run "
                f"{self.row.run_id!r} stands; run it with the version that it was started with"
            )
            raise GraphInvalid(msg, node=task.spec.node)
        while True:
            context = Context(self, task)
            self._contexts.add(context)
            try:
                if task.retry_at_us is not None:
                    await self._wait_for_retry(context, task)
                if task.attempt > 1 or task.calls:
                    self.record(rec.NodeStarted(self.now_us(), task.path, task.attempt))
                if await self._attempt(scope, plan, node, task, context):
                    return
            finally:
                self._contexts.discard(context)
                if self._waitings:
                    self.touch()

    async def _wait_for_retry(self, context: Context, task: fold.Task) -> None:
        note = f"attempt {task.attempt} of node {task.spec.node}"
        wait = Wait(
            kind=WaitKind.TIMER,
            subject=task.path,
            node=task.path,
            due_us=task.retry_at_us,
            note=note,
        )
        await self.wait(context, wait)

    async def _attempt(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        node: NodePlan,
        task: fold.Task,
        context: Context,
    ) -> bool:
        """Run the node once; return whether it is done (else it is to be tried again)."""
        started_us = self.now_us()
        try:
            if node.subgraph is not None:
                live, goto = await self._run_subgraph(scope, node.subgraph, task), None
            else:
                returned = await self._call_node(scope, plan, node, task, context)
                live, goto = self._read_update(plan, node, returned)
            writes = self._encode_live(f"graph {plan.name!r}, node {node.name!r}, field ", live)
        except _GaveUp:
            raise
        except Exception as error:  # noqa: BLE001  # the supervisor of nodes: recorded, retried or given up
            self._node_failed(node, task, error)
            return False
        if self._stop_reason is not None:
            raise asyncio.CancelledError  # the node swallowed its cancellation; it will be executed again
        if self._sandbox_owner is context:
            await self._leave_sandbox(task)
        # crash-point: node.finish.before
        self.engine.services.probe("node.finish.before")
        task.live_writes = live
        self.record(
            rec.NodeFinished(self.now_us(), task.path, started_us, writes, task.attempt, goto)
        )
        return True

    async def _call_node(
        self, scope: fold.Scope, plan: GraphPlan, node: NodePlan, task: fold.Task, context: Context
    ) -> Any:
        values = scope.values or {}
        if task.spec.is_sent:
            argument = self.engine.codec.decode(task.spec.argument)
        else:
            argument = plan.build_state(values)
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
            returned = await self._within(call(*args), node, context)
        for name, value, size in sizes:
            if len(value) != size:
                raise _mutated(task.path, name, size, len(value))
        return returned

    async def _in_os_thread(
        self, call: Callable[..., Any], args: tuple[Any, ...], context: Context, node: NodePlan
    ) -> Any:
        context.active += 1
        try:
            working = asyncio.to_thread(call, *args)
            if node.timeout_s is not None:
                return await self._within(working, node, context)
            returned = await working
            return await returned if hasattr(returned, "__await__") else returned
        finally:
            context.active -= 1

    async def _within(self, working: Awaitable[Any], node: NodePlan, context: Context) -> Any:
        """Await a node attempt within its timeout, on the engine's clock; time spent waiting does not count."""
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
        """Record a failed attempt; raise _GaveUp if it was the last."""
        if self._stop_reason is not None:
            raise asyncio.CancelledError from error
        failure = failure_of(error, task.path)
        delay_s = None
        if node.retry is not None and isinstance(error, node.retry.on):
            delay_s = backoff_s(node.retry, task.attempt, self.engine.services.rng)
        retry_at_us = None if delay_s is None else self.now_us() + round(delay_s * 1_000_000)
        self.record(rec.NodeFailed(self.now_us(), task.path, task.attempt, failure, retry_at_us))
        if retry_at_us is None:
            self._is_failing = True
            raise _GaveUp(failure) from error

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
                f"graph {plan.name!r}, node {node.name!r} returned {type(returned).__name__}; return a dict of the "
                f"changed fields, None, or Goto(node, update)"
            )
            raise UpdateInvalid(msg, graph=plan.name, node=node.name)
        live: dict[str, tuple[str, Any]] = {}
        for name, value in returned.items():
            channel = plan.channels.get(name)
            if channel is None:
                known = ", ".join(plan.channels)
                msg = f"graph {plan.name!r}, node {node.name!r} returned field {name!r}; the state has: {known}"
                raise UpdateInvalid(msg, graph=plan.name, node=node.name, field=str(name))
            live[name] = (
                channel.op.value,
                value if channel.check is None else channel.check(value),
            )
        return live, goto

    def _encode_live(
        self, place: str, live: Mapping[str, tuple[str, Any]]
    ) -> dict[str, tuple[str, Raw]]:
        encode = self.engine.codec.encode
        return {name: (op, Raw(encode(value, name, place))) for name, (op, value) in live.items()}

    # -- the end of a step -------------------------------------------------------------------------------------------------------

    async def _commit_step(self, scope: fold.Scope, plan: GraphPlan) -> None:
        tasks = list(scope.tasks.values())
        updates = [(task.path, self._live_writes(task)) for task in tasks]
        values, folded = merge(plan, scope.values or {}, updates)
        specs = await self._next_specs(plan, tasks, values)
        encoded = self._encode_fields(plan, values, folded) if folded else {}
        if scope.path:
            scope.writes += [(key, op, v) for _path, w in updates for key, (op, v) in w.items()]
        # crash-point: step.commit.before
        self.engine.services.probe("step.commit.before")
        changes: tuple[Change, ...] = ()
        if not self._has_progressed:
            self._has_progressed = True
            changes = (RunProgressed(lease_until_us=self.engine.lease_until_us()),)
        checkpoint = self.state.checkpoint if scope.path else self.state.checkpoint + 1
        scope.values = values
        self.record(
            rec.StepCommitted(
                self.now_us(),
                scope.path,
                scope.step,
                checkpoint,
                encoded,
                specs,
                self.state.snapshot,
            ),
            *changes,
        )
        if not scope.path and self.journal.total_bytes + self._journal_bytes > max(
            SNAPSHOT_BYTES_MIN, 2 * self._whole_bytes
        ):
            self._write_whole(scope, plan, specs)

    def _write_whole(self, scope: fold.Scope, plan: GraphPlan, specs: list[rec.TaskSpec]) -> None:
        """Write the thread's whole state, so that loading starts here."""
        whole = self._encode_fields(plan, scope.values or {}, set(scope.values or {}))
        record = rec.StateSnapshot(
            self.now_us(),
            scope.step - 1,
            self.state.checkpoint,
            {name: (WriteOp.REPLACE.value, raw) for name, raw in whole.items()},
            specs,
            self.state.snapshot,
        )
        before = self.journal.total_bytes
        self.record(record, ThreadBased(seq=self.journal.added_seq + 1))
        self._whole_bytes = self.journal.total_bytes - before
        self._journal_bytes = -self.journal.total_bytes

    def _live_writes(self, task: fold.Task) -> dict[str, tuple[str, Any]]:
        if task.live_writes is not None:
            return task.live_writes
        if task.outcome is None:
            msg = f"run {self.row.run_id!r}: step ended without an outcome of {task.path!r}"
            raise GraphInvalid(msg)
        decode = self.engine.codec.decode
        return {name: (op, decode(raw)) for name, (op, raw) in task.outcome.writes.items()}

    def _encode_fields(
        self, plan: GraphPlan, values: Mapping[str, Any], names: set[str]
    ) -> dict[str, Raw]:
        encode = self.engine.codec.encode
        place = f"graph {plan.name!r}, field "
        return {name: Raw(encode(values[name], name, place)) for name in sorted(names)}

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
        """Return what to run next: a node named twice runs once, each Send is an execution of its own."""
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

    # -- subgraphs -----------------------------------------------------------------------------------------------------------------

    async def _run_subgraph(
        self, outer: fold.Scope, plan: GraphPlan, task: fold.Task
    ) -> dict[str, tuple[str, Any]]:
        """Run a graph as a node: shared fields go in, what its nodes wrote to them comes out."""
        given = self._subgraph_input(outer, plan, task)
        scope = self.state.scopes.get(task.path)
        if scope is None or not scope.is_started:
            values = dict(given)
            encoded = folded_defaults(self.engine, plan, values)
            self.record(
                rec.StepCommitted(
                    self.now_us(), task.path, 0, 0, encoded, self._first_of(plan, values)
                )
            )
            scope = self.state.scopes[task.path]
            scope.values = values
            scope.writes = []
        elif scope.values is None:
            self._restore_scope(scope, given)
        await self._drive_scope(scope, plan)
        return self._subgraph_update(outer, plan, scope)

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
            return plan.read_input(self.engine.codec.decode(task.spec.argument), True)
        values = outer.values or {}
        return {name: values[name] for name in plan.channels if name in values}

    def _restore_scope(self, scope: fold.Scope, given: Mapping[str, Any]) -> None:
        """Turn the loaded pieces of an inner scope into live values, on top of what was given."""
        decode = self.engine.codec.decode
        values = dict(given)
        for name, cell in scope.cells.items():
            value = fold.decode_cell(cell, decode)
            appends = cell.op == WriteOp.APPEND and name in given
            values[name] = [*given[name], *value] if appends else value
        scope.values = values
        scope.cells = {}
        scope.writes = [(name, op, decode(raw)) for name, op, raw in scope.writes]

    def _subgraph_update(
        self, outer: fold.Scope, plan: GraphPlan, scope: fold.Scope
    ) -> dict[str, tuple[str, Any]]:
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
        plan = self.plan
        for part in scope.path.split("/") if scope.path else []:
            name = part.partition(":")[2].partition("#")[0]
            inner = plan.nodes[name].subgraph
            if inner is None:
                msg = f"node {name!r} of graph {plan.name!r} is no subgraph any more"
                raise GraphInvalid(msg)
            plan = inner
        return plan

    # -- transactions and the sandbox ------------------------------------------------------------------------------------------------

    async def transact(
        self, body: Callable[[Transaction], Awaitable[tuple[rec.Record, Change]]]
    ) -> None:
        """Run body in a transaction of the store; its record is committed with it."""
        journal = self.journal
        await journal.acquire()
        prepared: list[tuple[Append, rec.Record]] = []

        async def inner(transaction: Transaction) -> Append:
            record, change = await body(transaction)
            append = journal.prepare(record, change)
            prepared.append((append, record))
            return append

        try:
            outcome = await self.engine.store.transact(
                inner, run_id=self.row.run_id, token=self.row.token
            )
        except BaseException:
            journal.release(None)
            raise
        append, record = prepared[0]
        if not isinstance(outcome, Appended):
            journal.release(None)
            journal.commit(append, outcome)
            raise asyncio.CancelledError
        fold.apply(self.state, record)
        journal.release(append)

    def sandbox(self) -> Any:
        """Return the thread's sandbox."""
        if self._sandbox is None:
            backend = self.engine.sandbox_backend
            if backend is None:
                msg = (
                    "this runtime has no sandbox: open it with Runtime.open(..., sandbox=DirectorySandboxes(path)) "
                    "to use ctx.sandbox and effects of kind 'contained'"
                )
                raise UsageError(msg, run_id=self.row.run_id)
            self._sandbox = backend.open(self.row.tenant, self.row.thread)
        return self._sandbox

    async def enter_sandbox(self, context: NodePort) -> None:
        """Give the sandbox to one node execution at a time, as it was at the newest snapshot."""
        if self._sandbox_owner is context:
            return
        context.active += 1
        try:
            await self._sandbox_gate.acquire()
        finally:
            context.active -= 1
        self._sandbox_owner = context
        # Whatever is there that no snapshot holds was left by an execution that did not end.
        await self.sandbox().restore(self.state.snapshot)

    async def _leave_sandbox(self, task: fold.Task) -> None:
        """Take a snapshot of what the node left, so that its results stay valid, and let others in."""
        snapshot = await self.sandbox().take()
        self.record(rec.SandboxTaken(self.now_us(), task.path, snapshot))
        self._sandbox_owner = None
        self._sandbox_gate.release()

    # -- conclusions -----------------------------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        """Let go of an unfinished run: it waits, is parked, or goes back to whoever claims it next."""
        if self._sandbox_owner is not None and self._stop_reason == WAITING:
            await self._leave_sandbox(self._sandbox_owner.task)
        waits = tuple(waiting.wait for waiting in self._waitings)
        status, ready_at_us, failure = self._release_terms(waits)
        reason = "needs_decision" if status is RunStatus.NEEDS_DECISION else self._stop_reason or ""
        # crash-point: run.release.before
        self.engine.services.probe("run.release.before")
        self.record(
            rec.Released(self.now_us(), reason, waits, failure),
            RunReleased(
                status=status,
                waits=waits,
                ready_at_us=ready_at_us,
                failure=failure,
                checkpoint=self.state.checkpoint,
                mail_seen=self._mail_counted,
            ),
        )
        await self.journal.barrier()
        self.engine.on_released(self.row, status, failure)

    def _release_terms(
        self, waits: tuple[Wait, ...]
    ) -> tuple[RunStatus, int | None, Failure | None]:
        if self._stop_reason == DRAINED:
            return RunStatus.PENDING, self.now_us(), None
        if self._stop_reason == PARKED:
            return RunStatus.NEEDS_DECISION, None, self._stop_failure
        decisions = [wait for wait in waits if wait.kind is WaitKind.DECISION]
        if decisions:
            failure = Failure(
                type="UncertainEffect", message=decisions[0].note, node=decisions[0].node
            )
            return RunStatus.NEEDS_DECISION, None, failure
        due = [wait.due_us for wait in waits if wait.due_us is not None]
        return RunStatus.WAITING, min(due) if due else None, None

    async def _conclude_failed(self, failure: Failure) -> None:
        await self._mark_uncertain("the run failed while it was under way")
        if self.plan.compensates_on_failure:
            await compensation.compensate(self)
        await self._conclude(RunStatus.FAILED, failure)

    async def _conclude_cancelled(self) -> None:
        await self._mark_uncertain("the run was cancelled while it was under way")
        if self.state.cancel is not None and self.state.cancel.compensate:
            await compensation.compensate(self)
        by = self.state.cancel.by if self.state.cancel is not None else ""
        children = await self._unfinished_children()
        await self._conclude(
            RunStatus.CANCELLED, Failure(type="Cancelled", message=f"cancelled by {by}"), children
        )

    async def _unfinished_children(self) -> list[MailPosted]:
        rows = await self.engine.store.find_runs(RunQuery(parent=self.row.run_id, limit=1000))
        body = self.engine.codec.encode(bool(self.state.cancel and self.state.cancel.compensate))
        return [
            MailPosted(
                mail=Mail(
                    run_id=row.run_id,
                    kind=MailKind.CANCEL,
                    body_wire=body,
                    sender=self.row.run_id,
                    at_us=self.now_us(),
                )
            )
            for row in rows
            if not row.status.is_final
        ]

    async def _mark_uncertain(self, reason: str) -> None:
        """List the outside effects whose outcome nobody will wait for."""
        for scope in list(self.state.scopes.values()):
            for task in scope.tasks.values():
                for call in list(task.calls.values()):
                    if call.state == EffectState.INTENDED and call.kind in _OUTSIDE_KINDS:
                        await self._lose_effect(task, call, reason)

    async def _lose_effect(self, task: fold.Task, call: fold.Call, reason: str) -> None:
        failure = Failure(type="Interrupted", message=reason, node=task.path)
        await self.journal.barrier()
        row = await self.engine.store.read_effect(call.call_id)  # type: ignore[arg-type]  # an effect's call id is its id
        changes: tuple[Change, ...] = ()
        if row is not None:
            lost = structs.replace(
                row, state=EffectState.UNCERTAIN, failure=failure, changed_at_us=self.now_us()
            )
            changes = (EffectPut(row=lost),)
        record = rec.EffectUncertain(
            self.now_us(), task.path, call.call_id, call.name, call.attempt, failure
        )
        self.record(record, *changes)

    async def _conclude(
        self, status: RunStatus, failure: Failure | None, also: list[MailPosted] | None = None
    ) -> None:
        now_us = self.now_us()
        mail = None
        if self.row.parent is not None:
            mail = Mail(
                run_id=self.row.parent,
                kind=MailKind.CHILD,
                subject=self.row.run_id,
                sender=self.row.run_id,
                at_us=now_us,
            )
        # crash-point: run.end.before
        self.engine.services.probe("run.end.before")
        self.record(
            rec.RunEnded(now_us, status.value, self.state.checkpoint, failure),
            *(also or ()),
            RunEndedChange(
                status=status,
                at_us=now_us,
                failure=failure,
                checkpoint=self.state.checkpoint,
                mail_to_parent=mail,
            ),
        )
        await self.journal.barrier()
        # crash-point: run.end.after
        self.engine.services.probe("run.end.after")
        self.engine.on_ended(self.row, status, failure, self.state.root.values)


_SIZED = frozenset({list, dict, set})
_OUTSIDE_KINDS = frozenset(kind.value for kind in EffectKind if kind.is_outside)


def _mutated(path: str, name: str, before: int, after: int) -> StateMutated:
    msg = (
        f"node {path!r} changed state field {name!r} in place (it had {before} items, now {after}); return it as an update "
        f"instead, e.g. return {{{name!r}: ...}}. Nothing of the node was recorded as its update."
    )
    return StateMutated(msg, node=path, field=name)
