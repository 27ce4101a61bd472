"""Durable waits: sleep, ask, receive, children. What is waited for is in the journal first.

While every node of a run waits, the run is released: no worker, no lease, no memory. What ends the
wait makes the run claimable in the same transaction; the next holder executes the node again and
finds the recorded outcome.
"""

import datetime as dt
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import fold
from perdure.core.identity import ask_id
from perdure.core.plan import GraphPlan
from perdure.engine import _answers, starting
from perdure.engine.older_states import result_at
from perdure.engine.ports import Answer, NodePort
from perdure.errors import (
    AskExpired,
    ChildFailed,
    DecodeFailed,
    ReceiveTimedOut,
    SettingInvalid,
    UsageError,
)
from perdure.model import (
    AskPut,
    AskRow,
    AskState,
    Mail,
    MailKind,
    MailTaken,
    RunSpawned,
    Wait,
    WaitKind,
)
from perdure.model import records as rec

MISSING: Any = msgspec.UNSET
"""Stands for: no default given."""

_US = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def as_datetime(at_us: int) -> dt.datetime:
    """Return microseconds since the epoch as an aware datetime (UTC)."""
    return _EPOCH + dt.timedelta(microseconds=at_us)


def seconds(duration: dt.timedelta | float, place: str) -> float:
    """Return a duration in seconds.

    Raises:
        SettingInvalid: negative, not a number, or longer than a century.
    """
    value = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{place}: {duration!r} must be a timedelta or a number of seconds"
        raise SettingInvalid(msg)
    if not 0 <= value <= 100 * 366 * 86400:
        msg = f"{place}: {duration!r} must be between 0 seconds and 100 years"
        raise SettingInvalid(msg)
    return float(value)


async def sleep(context: NodePort, duration: dt.timedelta | float) -> None:
    """Sleep until the recorded due time."""
    run, task = context.run, context.task
    length_s = seconds(duration, "ctx.sleep")
    identity = context.identify("timer", "sleep", str(round(length_s * _US)))
    call = context.find(identity)
    if call is None:
        now_us = run.now_us()
        run.record(rec.TimerSet(now_us, task.path, identity, now_us + round(length_s * _US)))
        call = task.calls[identity]
    if call.state == "open":
        wait = Wait(
            kind=WaitKind.TIMER, subject=identity, node=task.path, due_us=call.due_us, note="sleep"
        )
        await run.wait(context, wait)
        run.record(rec.TimerFired(run.now_us(), task.path, identity))


async def receive(context: NodePort, topic: str, timeout: dt.timedelta | float | None) -> Any:  # noqa: ASYNC109  # see Context.receive
    """Take the oldest unread signal of the topic, or wait for one."""
    run, task = context.run, context.task
    identity = context.identify("receive", topic, "")
    call = context.find(identity)
    if call is None:
        now_us = run.now_us()
        due_us = None if timeout is None else now_us + round(seconds(timeout, "ctx.receive") * _US)
        run.record(rec.ReceiveStarted(now_us, task.path, identity, topic, due_us))
        call = task.calls[identity]
    if call.state == "open":
        await _receive_open(context, call, topic)
    if call.state == "lapsed":
        msg = f"run {context.run_id!r}, node {task.path!r}: no signal {topic!r} came in time"
        raise ReceiveTimedOut(msg, run_id=context.run_id, topic=topic)
    place = f"signal {topic!r} to node {task.path!r}"
    return run.engine.decode_in(call.result or rec.NIL, run.row, place, topic=topic)


async def _receive_open(context: NodePort, call: fold.Call, topic: str) -> None:
    run, task = context.run, context.task
    wait = Wait(kind=WaitKind.SIGNAL, subject=topic, node=task.path, due_us=call.due_us)
    mail = await run.wait_for_mail(context, wait, MailKind.SIGNAL)
    if mail is None:
        run.record(rec.ReceiveLapsed(run.now_us(), task.path, call.call_id))
        return
    record = rec.SignalConsumed(
        run.now_us(),
        task.path,
        call.call_id,
        topic,
        Raw(mail.body_wire),
        mail.sender,
        mail.at_us,
    )
    run.record(record, MailTaken(mail_ids=(mail.mail_id,)))


async def ask(
    context: NodePort,
    question: str,
    *,
    schema: Any,
    expires_in: dt.timedelta | float | None,
    default: Any,
) -> Answer:
    """Open the ask once and wait for its one answer."""
    run, task = context.run, context.task
    if not question:
        msg = f"ctx.ask: the question must be a non-empty text, not {question!r}"
        raise UsageError(msg)
    json_schema = _answers.schema_of(schema)
    digest = context.digest([question, json_schema], "ctx.ask")
    identity = ask_id(context.identify("ask", "ask", digest))
    call = context.find(identity)
    if call is None:
        _open_ask(context, identity, question, json_schema, expires_in)
        call = task.calls[identity]
    if call.state == "open":
        await _ask_open(context, call, default)
    if call.state == "lapsed":
        msg = f"run {context.run_id!r}: nobody answered {question!r} in time"
        raise AskExpired(msg, run_id=context.run_id, ask_id=identity, question=question)
    ended: rec.AskAnswered = call.ended
    place = f"answer to ask {identity!r}"
    plain = run.engine.decode_in(ended.value, run.row, place, ask_id=identity)
    value = plain if ended.via == "default" else _answers.convert(plain, schema, identity)
    return Answer(value=value, by=ended.by, at=as_datetime(ended.answered_at_us))


def _open_ask(
    context: NodePort,
    identity: str,
    question: str,
    json_schema: dict[str, Any] | None,
    expires_in: dt.timedelta | float | None,
) -> None:
    run, task = context.run, context.task
    now_us = run.now_us()
    expires = None if expires_in is None else now_us + round(seconds(expires_in, "ctx.ask") * _US)
    row = AskRow(
        ask_id=identity,  # type: ignore[arg-type]  # made by core.identity.ask_id
        run_id=run.row.run_id,
        tenant=run.row.tenant,
        thread=run.row.thread,
        node=task.path,
        question=question,
        schema=json_schema,
        asked_at_us=now_us,
        expires_at_us=expires,
    )
    run.record(rec.Asked(now_us, task.path, identity, question, expires), AskPut(row=row))


async def _ask_open(context: NodePort, call: fold.Call, default: Any) -> None:
    run, task = context.run, context.task
    asked: rec.Asked = call.started
    wait = Wait(
        kind=WaitKind.ASK,
        subject=call.call_id,
        node=task.path,
        due_us=call.due_us,
        note=asked.question[:200],
    )
    mail = await run.wait_for_mail(context, wait, MailKind.ANSWER)
    if mail is None:
        mail = await _expire(context, call)
    if mail is not None:
        answered = rec.AskAnswered(
            run.now_us(), task.path, call.call_id, Raw(mail.body_wire), mail.sender, mail.at_us
        )
        run.record(answered, MailTaken(mail_ids=(mail.mail_id,)))
        return
    now_us = run.now_us()
    if default is MISSING:
        run.record(rec.AskLapsed(now_us, task.path, call.call_id))
        return
    value = Raw(run.engine.codec.encode(default, "ctx.ask(default=)"))
    run.record(
        rec.AskAnswered(now_us, task.path, call.call_id, value, "default", now_us, "default")
    )


async def _expire(context: NodePort, call: fold.Call) -> Mail | None:
    """Close the ask, unless an answer came in time after all: then return its message."""
    run = context.run
    await run.barrier()  # the ask must exist before it can be closed
    row = await run.engine.store.expire(call.call_id, at_us=max(run.now_us(), call.due_us or 0))  # type: ignore[arg-type]  # an ask's call id is its ask id
    # crash-point: ask.expire.after
    run.engine.services.probe("ask.expire.after")
    if row.state != AskState.ANSWERED:
        return None
    return await run.find_mail(MailKind.ANSWER, call.call_id)


async def spawn(context: NodePort, graph: Any, given: Any, thread: str | None) -> fold.Call:
    """Create the child in the same commit as the record of it."""
    run, task = context.run, context.task
    plan = run.engine.plan_of(graph)
    identity, call = _spawned(context, plan, given, thread)
    if call is None:
        new = starting.new_run(
            run.engine,
            plan,
            given,
            tenant=run.row.tenant,
            thread=thread,
            parent=(run.row.run_id, identity),
        )
        now_us = run.now_us()
        run.record(
            rec.Spawned(now_us, task.path, identity, new.run_id, plan.name), RunSpawned(run=new)
        )
        call = task.calls[identity]
        run.engine.poke()
    return call


def _spawned(
    context: NodePort, plan: GraphPlan, given: Any, thread: str | None
) -> tuple[str, fold.Call | None]:
    """Return the identity of a spawn, and its record.

    The child's graph may have had an older version when this node spawned it: the run was moved
    since then, and it is that child still.
    """
    found: list[tuple[str, fold.Call | None]] = []
    for version in (plan.version, *sorted(plan.migrations, reverse=True)):
        digest = context.digest([plan.name, version, thread, given], "ctx.spawn")
        identity = context.identify("child", plan.name, digest)
        found.append((identity, context.find(identity)))
    return next((each for each in found if each[1] is not None), found[0])


async def child_result(context: NodePort, call: fold.Call) -> Any:
    """Wait until the child has ended; its state is copied into the parent's journal."""
    run, task = context.run, context.task
    if call.state == "open":
        wait = Wait(kind=WaitKind.CHILD, subject=call.started.child, node=task.path)
        mail = await run.wait_for_mail(context, wait, MailKind.CHILD)
        if mail is not None:
            record = await _child_ended(context, call)
            run.record(record, MailTaken(mail_ids=(mail.mail_id,)))
    ended: rec.ChildEnded = call.ended
    if ended.status != "succeeded":
        reason = ended.failure.message if ended.failure else ended.status
        msg = f"child run {ended.child!r} ended as {ended.status}: {reason}"
        raise ChildFailed(msg, run_id=context.run_id, child=ended.child, status=ended.status)
    try:
        return result_at(run.engine, call.started.graph, ended.version, ended.result)
    except DecodeFailed as error:
        place = f"run {context.run_id!r}, result of child run {ended.child!r}"
        raise error.located(place, run_id=context.run_id, child=ended.child) from error


async def _child_ended(context: NodePort, call: fold.Call) -> rec.ChildEnded:
    run, task = context.run, context.task
    child = call.started.child
    values, row = await run.engine.values_of(child)
    encoded = Raw(run.engine.codec.encode(values, f"result of child {child!r}"))
    status = row.status.value
    return rec.ChildEnded(
        run.now_us(), task.path, call.call_id, child, status, encoded, row.failure, row.version
    )
