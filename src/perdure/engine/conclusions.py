"""How the holding of a run ends.

The run succeeded, failed or was cancelled; or it is released: to wait, to a person, to another
worker.
"""

import asyncio

from msgspec import structs

from perdure.core import fold
from perdure.core.machines import RUN_TABLE, RunEvent, advance
from perdure.engine import compensation
from perdure.engine.limits import OUTLAST_S, ROWS_MAX
from perdure.engine.ports import BACK, DRAINED, PARKED, WAITING, HeldRun
from perdure.model import (
    Change,
    EffectKind,
    EffectPut,
    EffectState,
    Failure,
    Mail,
    MailKind,
    MailPosted,
    RunReleased,
    RunStatus,
    Wait,
    WaitKind,
)
from perdure.model import RunEnded as RunEndedChange
from perdure.model import records as rec
from perdure.store.api import RunQuery

_OUTSIDE_KINDS = frozenset(kind.value for kind in EffectKind if kind.is_outside)


async def release(run: HeldRun) -> None:
    """Let go of an unfinished run: it waits, is parked, or goes back to whoever claims it next."""
    if run.stop_reason == WAITING:
        await run.sandbox_use.leave_waiting()
    if run.stop_reason == DRAINED:
        await _outlast_calls(run)
    waits = tuple(waiting.wait for waiting in run.waits.open)
    event, ready_at_us, failure = _release_terms(run, waits)
    status = advance(RUN_TABLE, RunStatus.RUNNING, event, run.row.run_id)
    reason = "needs_decision" if status is RunStatus.NEEDS_DECISION else run.stop_reason or ""
    # crash-point: run.release.before
    run.engine.services.probe("run.release.before")
    run.record(
        rec.Released(run.now_us(), reason, waits, failure),
        RunReleased(
            status=status,
            waits=waits,
            ready_at_us=ready_at_us,
            failure=failure,
            checkpoint=run.state.checkpoint,
            mail_seen=run.waits.mail_counted,
        ),
    )
    await run.journal.barrier()
    run.engine.on_released(run.row, status, failure)


async def _outlast_calls(run: HeldRun) -> None:
    """Wait a while for effects that still run in OS threads: the next holder must not meet them."""
    calls = [
        call for scope in run.state.scopes.values() for t in scope.all_tasks for call in t.calls
    ]
    working = [run.engine.in_flight[call] for call in calls if call in run.engine.in_flight]
    if working:
        await asyncio.wait(working, timeout=OUTLAST_S)


def _release_terms(
    run: HeldRun, waits: tuple[Wait, ...]
) -> tuple[RunEvent, int | None, Failure | None]:
    if run.stop_reason in {DRAINED, BACK}:
        return RunEvent.RELEASE, run.now_us(), None
    if run.stop_reason == PARKED:
        return RunEvent.PARK, None, run.stop_failure
    decisions = [wait for wait in waits if wait.kind is WaitKind.DECISION]
    if decisions:
        failure = Failure(
            type="UncertainEffect", message=_advice(decisions[0]), node=decisions[0].node
        )
        return RunEvent.PARK, None, failure
    due = [wait.due_us for wait in waits if wait.due_us is not None]
    return RunEvent.WAIT, min(due) if due else None, None


def _advice(wait: Wait) -> str:
    """Return what to do about an effect whose outcome nobody knows."""
    return (
        f"{wait.note} Say so: perdure resolve {wait.subject} --happened --result JSON --by NAME, "
        "or --not-happened (it is sent again). Where such an error means that it did not happen, "
        "let the effect raise perdure.Rejected"
    )


async def conclude_failed(run: HeldRun, failure: Failure) -> None:
    """End the run as failed.

    What was in flight is uncertain, what is to be countered is countered.
    """
    await _mark_uncertain(run, "the run failed while it was under way")
    if run.plan.compensates_on_failure:
        await compensation.compensate(run)
    await conclude(run, RunEvent.FAIL, failure)


async def conclude_cancelled(run: HeldRun) -> None:
    """End the run as cancelled, its unfinished children with it."""
    await _mark_uncertain(run, "the run was cancelled while it was under way")
    if run.state.cancel is not None and run.state.cancel.compensate:
        await compensation.compensate(run)
    by = run.state.cancel.by if run.state.cancel is not None else ""
    children = await _unfinished_children(run)
    await conclude(
        run,
        RunEvent.CANCEL,
        Failure(type="Cancelled", message=f"by {by}" if by else "nobody said who"),
        children,
    )


async def _unfinished_children(run: HeldRun) -> list[MailPosted]:
    unfinished = tuple(status for status in RunStatus if not status.is_final)
    query = RunQuery(parent=run.row.run_id, statuses=unfinished, limit=ROWS_MAX)
    rows = await run.engine.store.find_runs(query)
    body = run.engine.codec.encode(bool(run.state.cancel and run.state.cancel.compensate))
    return [
        MailPosted(
            mail=Mail(
                run_id=row.run_id,
                kind=MailKind.CANCEL,
                body_wire=body,
                sender=run.row.run_id,
                at_us=run.now_us(),
            )
        )
        for row in rows
    ]


async def _mark_uncertain(run: HeldRun, reason: str) -> None:
    """List the outside effects whose outcome nobody will wait for."""
    for scope in list(run.state.scopes.values()):
        for task in scope.all_tasks:
            for call in list(task.calls.values()):
                if call.state == EffectState.INTENDED and call.kind in _OUTSIDE_KINDS:
                    await _lose_effect(run, task, call, reason)


async def _lose_effect(run: HeldRun, task: fold.Task, call: fold.Call, reason: str) -> None:
    failure = Failure(type="Interrupted", message=reason, node=task.path)
    await run.journal.barrier()
    row = await run.engine.store.read_effect(call.call_id)  # type: ignore[arg-type]  # an effect's call id is its id
    changes: tuple[Change, ...] = ()
    if row is not None:
        lost = structs.replace(
            row, state=EffectState.UNCERTAIN, failure=failure, changed_at_us=run.now_us()
        )
        changes = (EffectPut(row=lost),)
    record = rec.EffectUncertain(
        run.now_us(), task.path, call.call_id, call.name, call.attempt, failure
    )
    run.record(record, *changes)


async def conclude(
    run: HeldRun, event: RunEvent, failure: Failure | None, also: list[MailPosted] | None = None
) -> None:
    """End the run with a final status, durable when this returns.

    `also`: messages posted in the same commit.
    """
    status = advance(RUN_TABLE, RunStatus.RUNNING, event, run.row.run_id)
    now_us = run.now_us()
    mail = None
    if run.row.parent is not None:
        mail = Mail(
            run_id=run.row.parent,
            kind=MailKind.CHILD,
            subject=run.row.run_id,
            sender=run.row.run_id,
            at_us=now_us,
        )
    # crash-point: run.end.before
    run.engine.services.probe("run.end.before")
    run.record(
        rec.RunEnded(now_us, status.value, run.state.checkpoint, failure),
        *(also or ()),
        RunEndedChange(
            status=status,
            at_us=now_us,
            failure=failure,
            checkpoint=run.state.checkpoint,
            mail_to_parent=mail,
        ),
    )
    await run.journal.barrier()
    # crash-point: run.end.after
    run.engine.services.probe("run.end.after")
    run.engine.on_ended(run.row, status, failure, run.state.root.values)
