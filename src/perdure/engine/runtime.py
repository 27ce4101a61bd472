"""The runtime: open a store, start runs, ask about them, decide for them. What users hold.

Size: the public face in one place; each method hands on to the module that does the work.
"""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from perdure.clock import Services, system_services
from perdure.codec import decode_record, split_frame
from perdure.core import fold
from perdure.core.fold import RunState
from perdure.engine import _answers, branches, tagging, views
from perdure.engine.acts import decision_error
from perdure.engine.edge import check_limit, checked
from perdure.engine.environment import Environment
from perdure.engine.events import Event, follow, read_events
from perdure.engine.loading import Loaded, load_checkpoint
from perdure.engine.older_states import state_at
from perdure.engine.orders import Orders
from perdure.engine.paging import inline_state
from perdure.engine.points import checkpoint_at
from perdure.engine.starting import (
    DEFAULT_TENANT,
    checked_name,
    new_run,
    result_of,
)
from perdure.engine.travels import Travels, undecoded
from perdure.engine.waits import seconds
from perdure.engine.worker import Worker, WorkerSettings
from perdure.errors import (
    AlreadyAnswered,
    AlreadyDecided,
    NotFound,
    ResultTimedOut,
    RunCancelled,
    RunFailed,
    SettingInvalid,
    TypeUnknown,
    UsageError,
)
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId
from perdure.model import (
    AskState,
    EffectState,
    Failure,
    Mail,
    MailKind,
    NewRun,
    OnBusy,
    RunRow,
    RunStatus,
    Started,
    WorkerRow,
)
from perdure.sealing import KeyProvider, make_keys
from perdure.store import make_store
from perdure.store.api import AskQuery, EffectQuery, RunQuery, Store


class Run:
    """A run, from outside."""

    def __init__(self, runtime: "Runtime", run_id: str, thread: str) -> None:
        """Belong to a runtime."""
        self._runtime = runtime
        self.id = run_id
        self.thread = thread

    def __repr__(self) -> str:
        return f"Run({self.id!r}, thread={self.thread!r})"

    async def status(self) -> RunStatus:
        """Return its status now.

        Raises:
            NotFound: no such run.
        """
        return (await self.row()).status

    async def row(self) -> RunRow:
        """Return its row: status, holder, waits, failure, times."""
        return await self._runtime.read_row(self.id)

    @checked
    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109  # of the public API
        """Wait until it has ended; return its final state (of a function: what it returned).

        Args:
            timeout: seconds; None: for ever.

        Raises:
            RunFailed: it failed; carries type and message of the error.
            RunCancelled: it was cancelled; `fields["uncertain"]` lists effects whose outcome is not
                known.
            NeedsDecision: it is parked until somebody decides; awaiting again goes on.
            ResultTimedOut: it had not ended in time; it goes on.
        """
        return await self._runtime.wait_for_result(self.id, timeout)

    @checked
    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield its events above seq `after`, as they become durable, until it has ended."""
        async for event in follow(self._runtime.engine, self.id, after):
            yield event

    async def signal(self, topic: str, value: Any = None, *, by: str = "") -> None:
        """Send it a signal; kept until a node receives it. Durable when this returns.

        Raises:
            NotFound, RunFinal: no such run, or it has ended.
        """
        await self._runtime.signal(self.id, topic, value, by=by)

    async def cancel(self, compensate: bool = False, *, by: str = "") -> None:  # noqa: FBT001, FBT002  # of the public API
        """Ask it to cancel. Durable when this returns; effects in flight become uncertain.

        Raises:
            NotFound, RunFinal: no such run, or it has ended.
        """
        await self._runtime.cancel(self.id, compensate=compensate, by=by)


class Runtime(Orders, Travels):
    """An open store, the graphs that this process knows, and (unless told otherwise) a worker."""

    def __init__(self, engine: Environment, worker: Worker | None) -> None:
        """Use `Runtime.open`."""
        self.engine = engine
        self.worker = worker
        self._is_open = False
        self._is_entered = False

    @classmethod
    @checked
    def open(
        cls,
        url: str | Store,
        graphs: Iterable[Any] = (),
        *,
        worker: bool | WorkerSettings = True,
        sandbox: Any = None,
        keys: str | KeyProvider | None = None,
        services: Services | None = None,
    ) -> Self:
        """Return a runtime to be entered with `async with`.

        Args:
            url: `sqlite:///file.db`, `postgresql://user@host/database`, `memory://`, or an unopened
                store.
            graphs: graphs and plain async functions that this process can run.
            worker: whether this process executes runs; or how (`WorkerSettings`).
            sandbox: backend for `ctx.sandbox` and effects of kind contained; closed with the
                runtime.
            keys: what the store is encrypted with: `env:NAME`, `file:PATH`, or a `KeyProvider`;
                None: it is not encrypted. A new store is encrypted from its first row on.
            services: clock, chance and ids; for tests.

        Raises:
            GraphInvalid: a graph is not valid.
            SettingInvalid: the URL names no store, or `keys` no keys.
        """
        services = services or system_services()
        store = _store_of(url, services)
        provider = None if keys is None else make_keys(keys, services)
        engine = Environment(store, services, sandbox=sandbox, keys=provider)
        engine.register(graphs)
        settings = worker if isinstance(worker, WorkerSettings) else WorkerSettings()
        return cls(engine, Worker(engine, settings) if worker else None)

    async def __aenter__(self) -> Self:
        """Open the store and start the worker.

        Raises:
            UsageError: it was entered before.
            StoreSealed, StorePlain, KeyMissing, SealBroken: the store and the keys do not fit.
        """
        if self._is_entered:
            msg = "a Runtime is entered once; open another one with Runtime.open(...)"
            raise UsageError(msg)
        await self.engine.open_store()
        self._is_entered = True  # a store that could not be opened may be tried again
        self._is_open = True
        self.engine.queue.start()
        self.engine.on_ended = self._on_ended
        self.engine.on_released = self._on_released
        if self.worker is not None:
            try:
                await self.worker.start()
            except BaseException:
                await self.close(window_s=0.0)
                raise
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Drain the worker, commit what is queued, close the store."""
        await self.close()

    @checked
    async def close(self, *, window_s: float | None = None) -> None:
        """Drain within the window (default: the worker's setting) and close. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.worker is not None:
                await self.worker.drain(window_s)
        finally:
            self.engine.hurry()
            await self.engine.lookout.close()
            await self.engine.capacity.close()
            await self.engine.queue.close()
            await self.engine.store.close()
            if self.engine.sandbox_backend is not None:
                await _settled(self.engine.sandbox_backend)
                self.engine.sandbox_backend.close()

    # -- starting ----------------------------------------------------------------------------------

    @checked
    async def start(
        self,
        graph: Any,
        input: Any = None,  # noqa: A002  # of the public API
        *,
        thread: str | None = None,
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        priority: int = 0,
        delay: dt.timedelta | float | None = None,
        on_busy: OnBusy | str = OnBusy.QUEUE,
        subject: str | None = None,
    ) -> Run:
        """Start a run; it is durable when this returns.

        Args:
            graph: a Graph, a plain async function, or the name of a known graph.
            input: fields (a dict) or a state object; for a function its argument.
            thread: the line of state to go on with; None: a new one.
            key: unique per tenant; the same key with the same input gives the first run.
            tenant: whose run it is.
            priority: higher is claimed first.
            delay: timedelta or seconds before it may run.
            on_busy: "queue" behind an unfinished run of the thread, "reject", or "cancel" that one.
            subject: whom the thread is about, for erasure: a name for a person, as a thread id is
                one for a conversation. The first one that a thread is told stays; its forks and
                children are about the same.

        Raises:
            UpdateInvalid, ValueUnserializable: the input does not fit, names the field; nothing was
                written.
            StartKeyReused: the key was used with another input.
            ThreadBusy: on_busy="reject" and the thread has an unfinished run.
            QuotaExceeded, StoreFull: there is no room for another run; nothing was written.
            Conflict: the thread is about another subject; nothing was written.
        """
        leased_s = self.engine.services.clock.monotonic_s()
        new = await self._prepare(
            graph,
            input,
            thread=thread,
            key=key,
            tenant=tenant,
            priority=priority,
            delay=delay,
            on_busy=on_busy,
            subject=subject,
        )
        started = await self._start(new, leased_s)
        return Run(self, started.row.run_id, started.row.thread)

    async def _prepare(
        self,
        graph: Any,
        given: Any,
        *,
        thread: str | None,
        key: str | None,
        tenant: str,
        priority: int,
        delay: dt.timedelta | float | None,
        on_busy: OnBusy | str,
        subject: str | None,
    ) -> NewRun:
        engine = self.engine
        plan = engine.plan_of(graph)
        is_first = thread is None or await self._is_new(tenant, thread)
        return new_run(
            engine,
            plan,
            given,
            tenant=tenant,
            thread=thread,
            start_key=None if key is None else checked_name(key, "key"),
            on_busy=_on_busy(on_busy),
            priority=priority,
            delay_s=0.0 if delay is None else seconds(delay, "delay"),
            is_first=is_first,
            take=self.worker is not None and self.worker.has_room,
            subject=subject,
        )

    async def _is_new(self, tenant: str, thread: str) -> bool:
        row = await self.engine.store.read_thread(TenantId(tenant), ThreadId(thread))
        return row is None or not row.graph  # of the newest checkpoint: there is none

    async def _start(self, new: NewRun, leased_s: float) -> Started:
        await self.engine.capacity.check(new.tenant)
        # Whoever stops waiting does not stop the start: a run that was taken must be executed.
        starting = asyncio.ensure_future(self._submit(new, leased_s))
        return await asyncio.shield(starting)

    async def _submit(self, new: NewRun, leased_s: float) -> Started:
        started = await self.engine.starts.submit(new)
        if started.taken and self.worker is not None:
            # One that was known already (an answer was lost) may have mail by now: it is loaded.
            loaded = await self._fresh(new, started.row) if started.created else None
            self.worker.execute_fresh(started.row, loaded, leased_s=leased_s)
        elif started.created:
            self.engine.poke()
        return started

    async def _fresh(self, new: NewRun, row: RunRow) -> Loaded | None:
        """Return the new run's state without reading it back, if it is the first of its thread."""
        if row.ordinal != 1:
            return None
        state = RunState(row.run_id)
        fold.apply(state, decode_record(split_frame(new.first_body)[0]))
        if state.started is not None and state.started.inherits:
            return None
        stored = await inline_state(self.engine.store, row.tenant, state)
        return Loaded(state, new.first_hash, len(new.first_body), stored=stored)

    # -- reading -----------------------------------------------------------------------------------

    @checked
    async def read_row(self, run_id: str) -> RunRow:
        """Return a run's row.

        Raises:
            NotFound: no such run.
        """
        row = await self.engine.store.read_run(RunId(run_id))
        if row is None:
            msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
            raise NotFound(msg, run_id=run_id)
        return row

    @checked
    async def get(self, run_id: str) -> Run:
        """Return a run by its id.

        Raises:
            NotFound: no such run.
        """
        row = await self.read_row(run_id)
        return Run(self, row.run_id, row.thread)

    @checked
    async def runs(
        self,
        *,
        status: RunStatus | str | Iterable[RunStatus | str] | None = None,
        thread: str | None = None,
        graph: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[RunRow]:
        """Return rows of runs, newest first; `before`: a run id, for the next page.

        Raises:
            SettingInvalid: a status that there is not, or a limit below 1.
        """
        check_limit("runs", limit)
        statuses = _statuses(status)
        query = RunQuery(
            tenant=TenantId(tenant) if tenant else None,
            thread=ThreadId(thread) if thread else None,
            graph=graph,
            statuses=statuses,
            before=RunId(before) if before else None,
            limit=limit,
        )
        return await self.engine.store.find_runs(query)

    @checked
    async def events(self, run_id: str, *, after: int = 0) -> list[Event]:
        """Return the durable events of a run above seq `after`."""
        await self.read_row(run_id)
        return await read_events(self.engine, run_id, after)

    @checked
    async def state(
        self, thread: str, at: int | str | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> Any:
        """Return the thread's state at a checkpoint, by id or tag (None: the newest).

        Where its graph is not known here: a dict of plain data, as for JSON. Of an older version
        of a graph that has migrations from it: as they make of it.

        Raises:
            NotFound: no such thread or checkpoint; says which there are.
            MigrationFailed: a migration of it failed.
            TypeUnknown: a class of it is not registered here; names field and checkpoint.
                `runtime.moment` shows it without its classes.
        """
        whose, of_thread = TenantId(tenant), ThreadId(thread)
        checkpoint = await checkpoint_at(self.engine, whose, of_thread, at)
        found = await load_checkpoint(self.engine.store, whose, of_thread, checkpoint)
        try:
            plan, values, _specs = state_at(self.engine, found, is_read_only=True)
        except TypeUnknown as error:
            shown = f"perdure show {thread} --at {found.checkpoint}"
            raise undecoded(error, "or look at it with", shown) from error
        except NotFound:
            return views.plain_values(found.cells, found.run, found.checkpoint)
        return plan.build_state(values)

    @checked
    async def fork(
        self,
        thread: str,
        *,
        at: int | str | None = None,
        update: Mapping[str, Any] | None = None,
        to: str | None = None,
        rerun: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> Run:
        """Start a run on a new thread from a checkpoint of this one; nothing before it is repeated.

        What the run of the checkpoint did after it, the fork does again: `preview_fork` lists the
        effects. A run that goes on there meanwhile is left alone.

        Args:
            thread: where from.
            at: checkpoint id, or the name of a tag; None: the newest.
            update: fields to replace first; needs the graph to be known here.
            to: name of the new thread; None: the new run's id.
            rerun: reuse nothing of the run that wrote the checkpoint: begin where that run began,
                with the input that it had.
            tenant: whose.

        Raises:
            NotFound: no such thread or checkpoint, or (with `update`) an unknown graph.
            UpdateInvalid: the update does not fit the state.
            MigrationFailed: the checkpoint is of an older version, and can't be brought to this.
            Conflict: the thread `to` exists; nothing was written.
            QuotaExceeded, StoreFull: there is no room for another run; nothing was written.
        """
        engine, whose, of_thread = self.engine, TenantId(tenant), ThreadId(thread)
        checkpoint = await checkpoint_at(engine, whose, of_thread, at)
        found = await branches.fork_point(engine, whose, of_thread, checkpoint, rerun=rerun)
        if to is not None:
            await branches.check_new_thread(engine, whose, to)
        new = branches.new_fork(engine, whose, of_thread, found, update=update or {}, to=to)
        # What it inherits is in its origin's journal only, and so is what names its files.
        is_needed = branches.does_inherit(found) or found.snapshot is not None
        async with tagging.pinned(engine, found, new.run_id, is_needed=is_needed):
            started = await self._start(new, engine.services.clock.monotonic_s())
        return Run(self, started.row.run_id, started.row.thread)

    async def workers(self) -> list[WorkerRow]:
        """Return the workers that the store knows, oldest first."""
        return await self.engine.store.find_workers()

    # -- people ------------------------------------------------------------------------------------

    @checked
    async def asks(
        self,
        open: bool = True,  # noqa: A002, FBT001, FBT002  # of the public API
        *,
        run_id: str | None = None,
        tenant: str | None = None,
    ) -> list[views.Ask]:
        """Return questions to people, oldest first; `open`: only those without an answer."""
        query = AskQuery(
            tenant=TenantId(tenant) if tenant else None,
            run_id=RunId(run_id) if run_id else None,
            states=(AskState.OPEN,) if open else (),
            limit=100_000,
        )
        return [views.ask_of(row) for row in await self.engine.store.find_asks(query)]

    @checked
    async def answer(self, ask_id: str, value: Any, *, by: str) -> None:
        """Answer an ask, once. The answer and the wake-up of the run are durable when this returns.

        Raises:
            NotFound: no such ask.
            UsageError: the value does not fit the ask's schema; the ask stays open.
            AlreadyAnswered: it has its answer, or has expired; carries who, when and what.
        """
        if not by:
            msg = "answer(by=...): say who answers; it is recorded"
            raise UsageError(msg)
        row = await self.engine.store.read_ask(AskId(ask_id))
        if row is None:
            msg = f"no ask {ask_id!r}; 'perdure approve' lists the open ones"
            raise NotFound(msg, ask_id=ask_id)
        plain = _answers.to_plain(value)
        if row.state is AskState.OPEN:
            _answers.check(plain, row.schema, ask_id)
        encoded = self.engine.codec.encode(plain, "answer")
        answered = await self.engine.store.answer(
            AskId(ask_id), value_wire=encoded, by=by, at_us=self.engine.now_us()
        )
        if not answered.accepted:
            raise _already_answered(views.ask_of(answered.row))
        self.engine.poke()

    @checked
    async def signal(self, run_id: str, topic: str, value: Any = None, *, by: str = "") -> None:
        """Send a run a signal; see `Run.signal`."""
        body = self.engine.codec.encode(value, "signal value")
        await self._post(run_id, MailKind.SIGNAL, checked_name(topic, "topic"), body, by)

    @checked
    async def cancel(self, run_id: str, *, compensate: bool = False, by: str = "") -> None:
        """Ask a run to cancel; see `Run.cancel`."""
        await self._post(run_id, MailKind.CANCEL, "", self.engine.codec.encode(compensate), by)

    @checked
    async def retry(self, run_id: str, *, by: str) -> None:
        """Let a parked run go on (after a fix): it executes its unfinished nodes again.

        Raises:
            NotFound, RunFinal: no such run, or it has ended.
            UsageError: it is not parked.
        """
        row = await self.read_row(run_id)
        if row.status is not RunStatus.NEEDS_DECISION and not row.status.is_final:
            msg = f"run {run_id!r} is {row.status.value}, not parked; nothing was done"
            raise UsageError(msg, run_id=run_id)
        await self._post(run_id, MailKind.RETRY, "", self.engine.codec.encode(None), by)

    async def _post(self, run_id: str, kind: MailKind, subject: str, body: bytes, by: str) -> None:
        now_us = self.engine.now_us()
        mail = Mail(
            run_id=RunId(run_id),
            kind=kind,
            subject=subject,
            body_wire=body,
            sender=by,
            at_us=now_us,
            post_id=self.engine.services.ids.new("p", now_us),
        )
        await self.engine.store.post(mail)
        self.engine.poke()

    @checked
    async def effects(
        self,
        state: EffectState | str | None = EffectState.UNCERTAIN,
        *,
        run_id: str | None = None,
        tenant: str | None = None,
        limit: int = 1000,
    ) -> list[views.LedgerEntry]:
        """Return effects of the ledger, newest change first; `state=None`: in any state.

        Raises:
            SettingInvalid: a state that there is not, or a limit below 1.
        """
        check_limit("effects", limit)
        query = EffectQuery(
            tenant=TenantId(tenant) if tenant else None,
            run_id=RunId(run_id) if run_id else None,
            states=(_effect_state(state),) if state is not None else (),
            limit=limit,
        )
        return [views.entry_of(row) for row in await self.engine.store.find_effects(query)]

    @checked
    async def resolve(self, effect_id: str, *, happened: bool, result: Any = None, by: str) -> None:
        """Decide an uncertain effect: it happened (with this result), or not (it is sent again).

        Raises:
            NotFound: no such effect.
            AlreadyDecided: it is not uncertain any more; carries its state and who decided.
        """
        encoded = self.engine.codec.encode(result, "result") if happened else None
        decided = await self.engine.store.decide(
            EffectId(effect_id),
            happened=happened,
            result_wire=encoded,
            by=by,
            at_us=self.engine.now_us(),
        )
        if not decided.accepted:
            row = decided.row
            said = f", decided as {row.decision} by {row.decided_by!r}" if row.decision else ""
            msg = f"effect {effect_id!r} is {row.state.value}{said}; nothing was changed"
            raise AlreadyDecided(msg, effect_id=effect_id, state=row.state.value, by=row.decided_by)
        self.engine.poke()

    # -- the end of a run --------------------------------------------------------------------------

    @checked
    async def wait_for_result(self, run_id: str, timeout_s: float | None) -> Any:
        """Return a run's result; see `Run.result`."""
        if timeout_s is None:
            return await self._result(run_id)
        working = asyncio.ensure_future(self._result(run_id))
        ringing = asyncio.ensure_future(self.engine.services.clock.sleep(timeout_s))
        try:
            await asyncio.wait({working, ringing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            working.cancel()
            ringing.cancel()
            await asyncio.gather(working, ringing, return_exceptions=True)
        msg = f"run {run_id!r} had not ended after {timeout_s} s; it goes on"
        raise ResultTimedOut(msg, run_id=run_id, timeout_s=timeout_s)

    def _held_row(self, run_id: str) -> RunRow | None:
        """Return the row of a run that this process executes, and will tell the end of.

        None of one that is ending: that may have been told before anybody listened, and the worker
        may be busy yet with what the run had.
        """
        if self.worker is None or self.worker.is_ending(run_id):
            return None
        return self.worker.held_row(run_id)

    async def _result(self, run_id: str) -> Any:
        """Look at the row, then wait for news of it."""
        while True:
            waiter = self.engine.lookout.add(run_id)  # before the look, so that no news is missed
            try:
                mark = self.engine.store.change_mark()
                row = self._held_row(run_id) or await self.read_row(run_id)
                # A parked run that was decided is only waiting for a worker to take it up again.
                is_parked = row.status is RunStatus.NEEDS_DECISION and row.ready_at_us is None
                if row.status.is_final or is_parked:
                    return await self._outcome(row)
                told = await self.engine.lookout.wait(waiter, mark)
            finally:
                self.engine.lookout.drop(run_id, waiter)
            is_known = (row.graph, row.version) in self.engine.graphs()  # else it moved meanwhile
            is_told = told is not None and told[0] is RunStatus.SUCCEEDED
            if is_known and is_told and told is not None and told[1] is not None:
                return result_of(self.engine.plan_named(row.graph, row.version), told[1])

    async def _outcome(self, row: RunRow) -> Any:
        failure = row.failure
        reason = f"{failure.type}: {failure.message}" if failure is not None else ""
        if row.status is RunStatus.NEEDS_DECISION:
            raise decision_error(row.run_id, reason)
        if row.status is RunStatus.FAILED:
            raise _run_failed(row, failure, reason)
        if row.status is RunStatus.CANCELLED:
            raise await self._run_cancelled(row, reason)
        values, row = await self.engine.values_of(row.run_id)
        try:
            plan = self.engine.plan_named(row.graph, row.version)
        except NotFound:
            return values
        return result_of(plan, values)

    async def _run_cancelled(self, row: RunRow, reason: str) -> RunCancelled:
        uncertain = [e.id for e in await self.effects("uncertain", run_id=row.run_id)]
        failed = [e.id for e in await self.effects("compensation_failed", run_id=row.run_id)]
        msg = f"run {row.run_id!r} was cancelled: {reason}"
        if uncertain:
            msg += f"; of {len(uncertain)} effects nobody knows whether they happened"
        if failed:
            msg += f"; {len(failed)} compensations failed"
        if uncertain or failed:
            msg += f": 'perdure show {row.run_id}'"
        return RunCancelled(msg, run_id=row.run_id, uncertain=uncertain, compensation_failed=failed)

    def _on_ended(
        self, row: RunRow, status: RunStatus, _failure: Failure | None, values: Any
    ) -> None:
        self.engine.lookout.tell(row.run_id, (status, values))

    def _on_released(self, row: RunRow, status: RunStatus, _failure: Failure | None) -> None:
        if status is RunStatus.NEEDS_DECISION:
            self.engine.lookout.tell(row.run_id, (status, None))


def _store_of(url: str | Store, services: Services) -> Store:
    if isinstance(url, str):
        return make_store(url, services)
    if not hasattr(url, "capabilities"):
        msg = f"Runtime.open(url={url!r}): must be the URL of a store, or an unopened store"
        raise SettingInvalid(msg)
    return url


def _run_failed(row: RunRow, failure: Failure | None, reason: str) -> RunFailed:
    node = failure.node if failure is not None else ""
    where = f" in node {node!r}" if node else ""
    if failure is not None and failure.trace:
        where += f" ({failure.trace.partition(' <- ')[0]})"
    msg = (
        f"run {row.run_id!r} failed{where}: {reason}. 'perdure show {row.run_id}' has the timeline."
    )
    kind = failure.type if failure is not None else ""
    return RunFailed(msg, run_id=row.run_id, node=node, type=kind, reason=reason)


def _already_answered(ask: views.Ask) -> AlreadyAnswered:
    if ask.state is AskState.ANSWERED:
        at = ask.answered_at.isoformat() if ask.answered_at else ""
        msg = (
            f"ask {ask.id!r} was answered by {ask.answered_by!r} at {at} with {ask.value!r}; that "
            "answer stands"
        )
    else:
        msg = f"ask {ask.id!r} is {ask.state.value} and takes no answer any more"
    return AlreadyAnswered(
        msg, ask_id=ask.id, state=ask.state.value, by=ask.answered_by, value=ask.value
    )


async def _settled(sandboxes: Any) -> None:
    """Let a backend that exports snapshots end what it began."""
    settle = getattr(sandboxes, "settle", None)
    if settle is not None:
        await settle()


def _on_busy(value: OnBusy | str) -> OnBusy:
    try:
        return OnBusy(value)
    except ValueError as error:
        msg = f"on_busy={value!r}: must be 'queue', 'reject' or 'cancel'"
        raise SettingInvalid(msg) from error


def _effect_state(value: EffectState | str) -> EffectState:
    try:
        return EffectState(value)
    except ValueError as error:
        msg = f"effects(state={value!r}): must be one of {', '.join(EffectState)}"
        raise SettingInvalid(msg) from error


def _statuses(given: RunStatus | str | Iterable[RunStatus | str] | None) -> tuple[RunStatus, ...]:
    if given is None:
        return ()
    several = [given] if isinstance(given, str) else list(given)
    try:
        return tuple(RunStatus(each) for each in several)
    except ValueError as error:
        msg = f"runs(status={given!r}): must be of {', '.join(RunStatus)}"
        raise SettingInvalid(msg) from error
