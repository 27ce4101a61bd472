"""Outside effects: intent, dispatch, result; and what becomes of those whose outcome nobody knows.

The state in the ledger says the next move. Crash points lie between every two durable writes; the
fault tests kill the process at each.
"""

import asyncio
from typing import Any

import msgspec

from perdure.core import fold
from perdure.core.retry import Retry
from perdure.engine.acts import (
    INTERRUPTED,
    Act,
    awaited,
    bounded,
    dispatch,
    failure_of,
    retry_after_of,
    retry_due,
    wait_until,
    wait_until_due,
)
from perdure.engine.business_keys import by_business_key, is_others
from perdure.engine.limits import (
    DIVERGENCE_GRACE_S,
    ERROR_CHARS_MAX,
    LOOKUP_GRACE_S,
    RECONCILE_ATTEMPTS_MAX,
    RECONCILE_BASE_S,
    RECONCILE_CAP_S,
)
from perdure.errors import Rejected, ReplayDiverged
from perdure.graph import Absent, Effect, Found, Request, Unknown
from perdure.model import (
    EffectKind,
    EffectState,
    Failure,
    MailKind,
    Wait,
    WaitKind,
)

_RECONCILE = Retry(
    max_attempts=RECONCILE_ATTEMPTS_MAX, base_s=RECONCILE_BASE_S, cap_s=RECONCILE_CAP_S
)


async def outside(act: Act) -> Any:
    """Bring an outside effect to its end: the state in the ledger says the next move."""
    while True:
        state = act.call.state if act.call is not None else None
        if state == EffectState.CONFIRMED:
            return act.result()
        if act.effect_id in act.run.engine.in_flight:
            await _outlast(act)
            continue
        if state is None or (act.call is not None and is_others(act.call)):
            done, value = await _first(act)
        elif state == EffectState.FAILED:
            await wait_until_due(act)
            done, value = await _send(act)
        elif state == EffectState.UNCERTAIN:
            done, value = await _uncertain(act)
        else:
            # `_send` leaves no intent behind: this one is of a holder that ended before its result.
            await _outlast_holder(act)
            _recover(act)
            continue
        if done:
            return value


async def _first(act: Act) -> tuple[bool, Any]:
    """Send for the first time, unless the business key was used before."""
    if act.business_key is None:
        await _hold_divergence(act)
        return await _send(act)
    gate = act.run.engine.key_gate(act.run.row.tenant, act.business_key)
    act.context.active += 1
    try:
        await gate.acquire()
    finally:
        act.context.active -= 1
    try:
        done, value = await by_business_key(act)
        if done:
            return True, value
        await _hold_divergence(act)
        return await _send(act)
    finally:
        gate.release()


async def _outlast(act: Act) -> None:
    """Wait for a call of this effect that still runs in an OS thread, and record how it ended.

    Whoever gave up waiting for it (a timeout, a drain) could not stop it: until it ends, looking it
    up would say "absent", and sending it again would do it twice.
    """
    working = act.run.engine.in_flight[act.effect_id]
    act.context.active += 1
    try:
        await asyncio.wait({working})
    finally:
        act.context.active -= 1
        act.run.touch()
    if act.call is None:
        return
    if act.call.state == EffectState.INTENDED:
        _recover(act)
    error = working.exception()
    if error is None:
        act.confirm(working.result())
    elif isinstance(error, Exception):
        _classify(act, error)
        _raise_if_final(act, error)


def _raise_if_final(act: Act, error: Exception) -> None:
    if act.call is not None and act.call.state == EffectState.FAILED and act.call.due_us is None:
        raise act.failed() from error


async def _outlast_holder(act: Act) -> None:
    """Wait until the holder before us can't send any more, if it was only believed dead.

    One that lives (its session was cut) trusts its lease and sends what it has intended: a person
    who says until then that it did not happen, or a lookup that says "absent", would be wrong. What
    the other side drops when it comes twice need not wait.
    """
    doubted_until_us = act.run.row.doubted_until_us
    if act.kind is not EffectKind.KEYED and doubted_until_us > act.run.now_us():
        note = f"the worker before may still send effect {act.effect.name}"
        await wait_until(act, doubted_until_us, note)


def _recover(act: Act) -> None:
    """An intent without a result: the holder before us died (or lost its lease) in between."""
    failure = Failure(
        type=INTERRUPTED,
        message="the worker stopped between the intent and the result",
        node=act.context.task.path,
    )
    if act.kind is EffectKind.ONCE:
        act.lose(failure, None)
    else:
        act.lose(failure, _lookup_at(act))


def _lookup_at(act: Act) -> int:
    """Return when to look up or resend: a request on its way may still arrive at a lookup."""
    grace_s = LOOKUP_GRACE_S if act.kind is EffectKind.LOOKUP else 0.0
    return act.run.now_us() + round(grace_s * 1_000_000)


async def _uncertain(act: Act) -> tuple[bool, Any]:
    """Resend, look up, or wait for a person."""
    call_state = act.call
    if call_state is None or call_state.due_us is None:
        return await _decision(act)
    if act.kind is EffectKind.LOOKUP:
        await _grace(act)
    await wait_until_due(act)
    if act.kind is EffectKind.KEYED:
        return await _send(act)
    return await _reconcile(act)


async def _grace(act: Act) -> None:
    """Sit out the pause before a lookup here: letting the run go for it would cost more."""
    due_us = act.call.due_us if act.call is not None else None
    left_s = 0.0 if due_us is None else (due_us - act.run.now_us()) / 1_000_000
    if not 0 < left_s <= LOOKUP_GRACE_S:
        return
    act.context.active += 1
    try:
        await act.run.engine.services.clock.sleep(left_s)
    finally:
        act.context.active -= 1
        act.run.touch()


async def _reconcile(act: Act) -> tuple[bool, Any]:
    """Ask the other side what became of it (kind lookup)."""
    request = Request(args=act.args, kwargs=act.kwargs)
    node = act.context.task.path
    act.context.active += 1
    try:
        found = await bounded(act, lambda: awaited(act.effect.reconcile, request, act.key))
    except Exception as error:  # noqa: BLE001  # not knowing is an answer; the reason is kept
        found = Unknown(f"reconcile raised {type(error).__name__}: {error}")
    finally:
        act.context.active -= 1
        act.run.touch()
    if isinstance(found, Found):
        return True, act.confirm(found.result, via="reconcile")
    if isinstance(found, Absent):
        return _absent(act)
    if not isinstance(found, Unknown):
        reason = f"reconcile returned {found!r}; it must return Found(result), Absent() or Unknown"
        act.lose(Failure(type="TypeError", message=reason[:ERROR_CHARS_MAX], node=node), None)
        return False, None
    failure = Failure(type=fold.UNKNOWN, message=str(found.reason)[:ERROR_CHARS_MAX], node=node)
    act.lose(failure, act.due_us(None, act.effect.retry or _RECONCILE, act.lookups + 1))
    return False, None


def _absent(act: Act) -> tuple[bool, Any]:
    """It did not happen: it is sent again while its `retry` has tries left."""
    failure = act.call.failure if act.call is not None else None
    if failure is None:
        failure = Failure(type="Absent", message="it did not happen", node=act.context.task.path)
    if act.was_interrupted:  # the worker's fault, not the other side's: no try is used up
        act.refuse(failure, act.run.now_us(), via="reconcile")
        return False, None
    is_retryable = act.last_error is None or isinstance(act.last_error, act.retry.on)
    act.refuse(failure, act.due_us(None) if is_retryable else None, via="reconcile")
    if act.call is not None and act.call.due_us is None:
        raise act.failed()
    return False, None


def _question(act: Act) -> str:
    """Return what a person is asked about an effect whose outcome nobody knows."""
    failure = act.call.failure if act.call is not None else None
    reason = f" ({failure.type}: {failure.message[:300]})" if failure is not None else ""
    return f"effect {act.effect.name}: did it happen?{reason}"


async def _decision(act: Act) -> tuple[bool, Any]:
    """Wait until a person has said whether it happened; the run is parked meanwhile."""
    wait = Wait(
        kind=WaitKind.DECISION,
        subject=act.effect_id,
        node=act.context.task.path,
        note=_question(act),
    )
    mail = await act.run.wait_for_mail(act.context, wait, MailKind.DECISION)
    if mail is None:
        return False, None
    happened, encoded = act.run.engine.codec.decode(mail.body_wire)
    taken = (mail.mail_id,)
    if not happened:
        failure = Failure(type="NotHappened", message=f"{mail.sender} said that it did not happen")
        act.refuse(failure, act.run.now_us(), via="decision", by=mail.sender, taken=taken)
        return False, None
    try:
        value = fitted(act.effect, act.run.engine.codec.decode(encoded))
    except msgspec.ValidationError as error:
        reason = (
            f"{mail.sender} said that it happened, with a result that the effect can't have "
            f"({error}); say it again with one that fits --result"
        )
        unfit = Failure(type="DecisionUnfit", message=reason, node=act.context.task.path)
        act.lose(unfit, None, taken=taken)
        return False, None
    return True, act.confirm(value, via="decision", by=mail.sender, taken=taken)


def fitted(effect: Effect[Any, Any], value: Any) -> Any:
    """Return a result that a person gave as JSON in the type that the effect declares.

    Raises:
        msgspec.ValidationError: it does not fit.
    """
    declared = effect.result_type
    # Any is a class too, but one that isinstance refuses.
    if declared in {Any, None, type(None)}:
        return value
    if isinstance(declared, type) and isinstance(value, declared):
        return value
    try:
        return msgspec.convert(value, declared)
    except msgspec.ValidationError:
        raise
    except TypeError:
        return value  # a type that msgspec does not know: taken as it is


async def _send(act: Act) -> tuple[bool, Any]:
    """Record the intent, dispatch, record what became of it.

    The limit comes first: what queues for its turn was not sent, and a crash must not make it
    uncertain.
    """
    async with act.turn():
        act.intend()
        return await _attempt(act)


async def _attempt(act: Act) -> tuple[bool, Any]:
    run = act.run
    # crash-point: effect.intend.queued
    run.engine.services.probe("effect.intend.queued")
    await run.settle_sandbox()
    await run.barrier()
    # crash-point: effect.dispatch.before
    run.engine.services.probe("effect.dispatch.before")
    await run.check_dispatch()
    try:
        value = await dispatch(act)
    except asyncio.CancelledError:
        if run.is_running:  # the node's own code gave up waiting: nobody knows what became of it
            reason = "the node stopped waiting for it while it was under way"
            act.lose(Failure(type="Cancelled", message=reason, node=act.context.task.path), None)
        raise
    except Exception as error:  # noqa: BLE001  # the supervisor of effects: classified and recorded
        _classify(act, error)
        _raise_if_final(act, error)
        return False, None
    # crash-point: effect.dispatch.after
    run.engine.services.probe("effect.dispatch.after")
    return True, act.confirm(value)


def _classify(act: Act, error: Exception) -> None:
    """Record an attempt that raised: known not to have happened, or uncertain."""
    act.last_error = error
    failure = failure_of(error, act.context.task.path)
    if isinstance(error, (Rejected, *act.effect.rejects)):
        act.refuse(failure, retry_due(act, error, attempt=act.attempt))
        return
    if act.kind is EffectKind.KEYED and isinstance(error, act.retry.on):
        act.lose(failure, act.due_us(retry_after_of(error)))
    elif act.kind is EffectKind.LOOKUP:
        act.lose(failure, _lookup_at(act))
    else:
        act.lose(failure, None)


def unasked(task: fold.Task, name: str) -> list[fold.Call]:
    """Return recorded outside effects that an execution should ask for before a new one.

    `name`: of the new one.
    """
    return [
        call
        for call in task.calls.values()
        if not call.is_asked
        and call.kind in _OUTSIDE
        and call.state != EffectState.FAILED
        # Another attempt of the node may take another way; the same attempt may not.
        and (call.name == name or call.made_in == task.attempt)
    ]


async def _hold_divergence(act: Act) -> None:
    """Hold a new outside effect back while recorded ones of the same name were not asked for again.

    With several awaits under way the recorded ones may just come later; when everything else in the
    node is still and they have not come, the node asks for something else than its record says.
    """
    context = act.context

    def missing() -> list[str]:
        return [call.call_id for call in unasked(context.task, act.effect.name)]

    if not missing():
        return
    context.held += 1
    try:
        clock = act.run.engine.services.clock
        while missing():
            before = (len(missing()), context.active)
            await clock.sleep(DIVERGENCE_GRACE_S)
            if (len(missing()), context.active) == before and context.active <= context.held:
                _diverge(act, missing())
    finally:
        context.held -= 1


_OUTSIDE = {kind.value for kind in EffectKind if kind.is_outside}


def _diverge(act: Act, missing: list[str]) -> None:
    path, name = act.context.task.path, act.effect.name
    msg = (
        f"node {path!r} is about to send effect {name!r} as it did not before, while "
        f"{len(missing)} recorded effect(s) ({', '.join(missing[:3])}) were not asked for "
        "again; nothing was sent. The code before the call must give the same arguments on every "
        "execution: use ctx.now(), ctx.random(), ctx.call for what varies. If it was changed, "
        "run what it was started with (a changed graph gets a new version=). Then: "
        f"perdure resolve {act.run.row.run_id} --retry --by NAME, or "
        f"perdure cancel {act.run.row.run_id}"
    )
    act.run.park(ReplayDiverged(msg, run_id=act.run.row.run_id, node=path, effect=name))
