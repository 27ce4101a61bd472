"""Effects: do what a node asks of the outside once, and find out what became of it when nobody knows.

Theory, by kind (DESIGN section 5). An outside effect (keyed, lookup, once) goes: intent durable -> dispatch -> result. An
exception of the call does not say whether the act happened, unless it is `Rejected` or of a class that the effect `rejects`;
else the effect is *uncertain*, and is resent under the same key (keyed), looked up (lookup) or left to a person
(once). A pure or contained effect leaves nothing outside, so its exception is a plain failure. A transaction
commits together with its record.

Crash points lie between every two durable writes; the fault tests kill the process at each.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw, structs

from perdure.clock import Rng
from perdure.core.identity import effect_id
from perdure.core.retry import Retry, backoff_s
from perdure.engine.limits import (
    DIVERGENCE_GRACE_S,
    ERROR_CHARS_MAX,
    RECONCILE_ATTEMPTS_MAX,
    RECONCILE_BASE_S,
    RECONCILE_CAP_S,
)
from perdure.engine.ports import NodePort
from perdure.errors import (
    EffectFailed,
    EffectKeyReused,
    EffectTimedOut,
    NeedsDecision,
    Rejected,
    ReplayDiverged,
)
from perdure.graph import Absent, Effect, Found, Request, Unknown
from perdure.ids import EffectId
from perdure.model import (
    EffectKind,
    EffectPut,
    EffectRow,
    EffectState,
    Failure,
    MailKind,
    MailTaken,
    Wait,
    WaitKind,
)
from perdure.model import records as rec
from perdure.store.api import Transaction

_RECONCILE = Retry(
    max_attempts=RECONCILE_ATTEMPTS_MAX, base_s=RECONCILE_BASE_S, cap_s=RECONCILE_CAP_S
)


def failure_of(error: BaseException, node: str = "") -> Failure:
    """Return what is stored of an exception: type, shortened text, shortened traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    trace = " <- ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    text = str(error)[:ERROR_CHARS_MAX] or type(error).__name__
    return Failure(type=type(error).__name__, message=text, node=node, trace=trace)


class Act:
    """One effect that a node asks for: its request, its place in the ledger, its next move."""

    def __init__(
        self,
        context: NodePort,
        effect: Effect[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None,
    ) -> None:
        """Bind the arguments and find the identity."""
        self.context = context
        self.run = context.run
        self.effect = effect
        self.kind = effect.kind
        self.args, self.kwargs = effect.bind(args, kwargs)
        place = f"argument of effect {effect.name!r}"
        self.request = [list(self.args), self.kwargs]
        self.digest = context.digest(self.request, place)
        self.business_key = key
        identity = context.identify("effect", effect.name, f"{self.digest}{key or ''}")
        self.effect_id: EffectId = effect_id(identity)
        self.call = context.find(self.effect_id)
        self.is_fresh = (
            False  # whether this process wrote the newest intent: else its outcome is unknown
        )

    @property
    def retry(self) -> Retry:
        """How often to try."""
        return self.effect.effective_retry

    @property
    def key(self) -> str:
        """The idempotency key that the other side sees: the same on every attempt."""
        if self.business_key is None:
            return self.effect_id
        tenant = self.run.row.tenant
        return self.business_key if tenant == "default" else f"{tenant}/{self.business_key}"

    @property
    def attempt(self) -> int:
        """The newest attempt, 0 before the first."""
        return self.call.attempt if self.call is not None else 0

    def result(self) -> Any:
        """Return the recorded result."""
        encoded = self.call.result if self.call is not None else None
        return self.run.engine.codec.decode(encoded or rec.NIL)

    def row(
        self, state: EffectState, *, result: bytes | None = None, failure: Failure | None = None
    ) -> EffectRow:
        """Return the ledger's row in a state."""
        run, now_us = self.run.row, self.run.now_us()
        return EffectRow(
            effect_id=self.effect_id,
            run_id=run.run_id,
            tenant=run.tenant,
            thread=run.thread,
            node=self.context.task.path,
            name=self.effect.name,
            kind=self.kind,
            state=state,
            key=self.key,
            business_key=self.business_key,
            args_digest=self.digest,
            request_wire=self.run.engine.codec.encode(self.request, "effect arguments"),
            result_wire=result,
            attempt=max(self.attempt, 1),
            failure=failure,
            intended_at_us=now_us,
            changed_at_us=now_us,
        )

    # -- facts -----------------------------------------------------------------------------------------------------

    def intend(self) -> None:
        """Record the intent of the next attempt."""
        attempt = self.attempt + 1
        request = Raw(self.run.engine.codec.encode(self.request, "effect arguments"))
        path = self.context.task.path
        record = rec.EffectIntended(
            self.run.now_us(),
            path,
            self.effect_id,
            self.effect.name,
            self.kind.value,
            self.key,
            self.digest,
            request,
            attempt,
            self.business_key,
        )
        row = structs.replace(self.row(EffectState.INTENDED), attempt=attempt)
        self.run.record(record, EffectPut(row=row))
        self.is_fresh = True
        self.refresh()

    def confirm(
        self, value: Any, *, via: str = "call", by: str = "", taken: tuple[int, ...] = ()
    ) -> Any:
        """Record that it happened, with its result; return the result."""
        place = f"result of effect {self.effect.name!r}"
        encoded = self.run.engine.codec.encode(value, place)
        return self.confirm_encoded(value, encoded, via=via, by=by, taken=taken)

    def confirm_encoded(
        self, value: Any, encoded: bytes, *, via: str, by: str = "", taken: tuple[int, ...] = ()
    ) -> Any:
        """Record that it happened, with its encoded result."""
        record = self.confirmation(encoded, via=via, by=by)
        changes: list[Any] = []
        if self.kind.is_outside:
            changes.append(EffectPut(row=self.row(EffectState.CONFIRMED, result=encoded)))
        if taken:
            changes.append(MailTaken(mail_ids=taken))
        self.run.record(record, *changes)
        self.refresh()
        return value

    def confirmation(
        self, encoded: bytes, *, via: str = "call", by: str = ""
    ) -> rec.EffectConfirmed:
        """Return the record that it happened."""
        return rec.EffectConfirmed(
            self.run.now_us(),
            self.context.task.path,
            self.effect_id,
            self.effect.name,
            self.kind.value,
            Raw(encoded),
            max(self.attempt, 1),
            via,
            by,
        )

    def refuse(
        self,
        failure: Failure,
        retry_at_us: int | None,
        *,
        via: str = "call",
        by: str = "",
        taken: tuple[int, ...] = (),
    ) -> None:
        """Record that the newest attempt did not happen."""
        attempt = self.attempt if self.kind.is_outside else self.attempt + 1
        record = rec.EffectFailed(
            self.run.now_us(),
            self.context.task.path,
            self.effect_id,
            self.effect.name,
            self.kind.value,
            failure,
            max(attempt, 1),
            retry_at_us,
            via,
            by,
        )
        changes: list[Any] = []
        if self.kind.is_outside:
            changes.append(EffectPut(row=self.row(EffectState.FAILED, failure=failure)))
        if taken:
            changes.append(MailTaken(mail_ids=taken))
        self.run.record(record, *changes)
        self.refresh()

    def lose(self, failure: Failure, retry_at_us: int | None) -> None:
        """Record that nobody knows whether the newest attempt happened."""
        record = rec.EffectUncertain(
            self.run.now_us(),
            self.context.task.path,
            self.effect_id,
            self.effect.name,
            max(self.attempt, 1),
            failure,
            retry_at_us,
        )
        self.run.record(record, EffectPut(row=self.row(EffectState.UNCERTAIN, failure=failure)))
        self.refresh()

    def due_us(
        self, retry_after_s: float | None, retry: Retry | None = None, attempt: int | None = None
    ) -> int | None:
        """Return when to try again after the newest attempt, or None: no more tries."""
        rng: Rng = self.run.engine.services.rng
        tried = max(self.attempt, 1) if attempt is None else attempt
        delay_s = backoff_s(retry or self.retry, tried, rng, retry_after_s)
        return None if delay_s is None else self.run.now_us() + round(delay_s * 1_000_000)

    def failed(self) -> EffectFailed:
        """Return the error that the node gets for an effect that did not happen."""
        failure = self.call.failure if self.call is not None else None
        reason = f"{failure.type}: {failure.message}" if failure is not None else "did not happen"
        name, path = self.effect.name, self.context.task.path
        msg = f"effect {name!r} of node {path!r} did not happen after {max(self.attempt, 1)} attempt(s): {reason}"
        return EffectFailed(msg, run_id=self.run.row.run_id, effect=name, effect_id=self.effect_id)

    def refresh(self) -> None:
        """Look the recorded call up again, after a record about it."""
        self.call = self.context.task.calls.get(self.effect_id)
        if self.call is not None:
            self.call.is_asked = True


async def call(
    context: NodePort,
    effect: Effect[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: str | None,
) -> Any:
    """Do the effect once; see `Context.call`."""
    context.run.engine.know_effect(effect)
    act = Act(context, effect, args, kwargs, key)
    recorded = act.call
    if recorded is not None:
        if recorded.state == EffectState.CONFIRMED:
            return act.result()
        is_final = recorded.state == EffectState.FAILED and recorded.due_us is None
        if is_final and recorded.node_attempt >= context.task.attempt:
            raise act.failed()
    if act.kind.is_outside:
        return await _outside(act)
    if act.kind is EffectKind.TRANSACTION:
        return await _transaction(act)
    return await _inside(act)


# -- pure and contained --------------------------------------------------------------------------------------------


async def _inside(act: Act) -> Any:
    """Call until it succeeds or the tries are used up; only results and failures are recorded."""
    while True:
        await _wait_until_due(act)
        if act.kind is EffectKind.CONTAINED:
            await act.run.enter_sandbox(act.context)
        try:
            value = await _dispatch(act)
        except (
            Exception
        ) as error:  # the supervisor of effects: recorded, then raised as EffectFailed
            due_us = _retry_due(act, error, attempt=act.attempt + 1)
            act.refuse(failure_of(error, act.context.task.path), due_us)
            if due_us is None:
                raise act.failed() from error
            continue
        return act.confirm(value)


def _retry_due(act: Act, error: Exception, *, attempt: int) -> int | None:
    if isinstance(error, Rejected):
        if error.retry_after_s is None:
            return None
    elif not isinstance(error, act.retry.on) or isinstance(error, act.effect.rejects):
        return None
    return act.due_us(retry_after_of(error), attempt=attempt)


def retry_after_of(error: BaseException) -> float | None:
    """Return the seconds that the other side asked to wait, from `Rejected` or an HTTP `Retry-After` header."""
    given = getattr(error, "retry_after_s", None)
    if given is None:
        headers = getattr(getattr(error, "response", None), "headers", None)
        get = getattr(headers, "get", None)
        given = get("Retry-After") if callable(get) else None
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError):
        return None  # a date form: the backoff alone decides


# -- transaction ---------------------------------------------------------------------------------------------------------


async def _transaction(act: Act) -> Any:
    """Write to the store's own database and record it, in one transaction."""
    while True:
        await _wait_until_due(act)
        try:
            value = await _in_transaction(act)
        except Exception as error:  # rolled back: known not to have happened
            due_us = _retry_due(act, error, attempt=act.attempt + 1)
            act.refuse(failure_of(error, act.context.task.path), due_us)
            if due_us is None:
                raise act.failed() from error
            continue
        act.refresh()
        return value


async def _in_transaction(act: Act) -> Any:
    results: list[Any] = []

    async def body(transaction: Transaction) -> tuple[rec.EffectConfirmed, EffectPut]:
        value = await _run_function(act, {"transaction": transaction})
        encoded = act.run.engine.codec.encode(value, f"result of effect {act.effect.name!r}")
        results.append(value)
        return act.confirmation(encoded), EffectPut(
            row=act.row(EffectState.CONFIRMED, result=encoded)
        )

    act.context.active += 1
    try:
        await act.run.transact(body)
    finally:
        act.context.active -= 1
        act.run.touch()
    return results[0]


# -- outside ---------------------------------------------------------------------------------------------------------------


async def _outside(act: Act) -> Any:
    """Bring an outside effect to its end: the state in the ledger says the next move."""
    while True:
        state = act.call.state if act.call is not None else None
        done, value = False, None
        if state is None:
            done, value = await _first(act)
        elif state == EffectState.CONFIRMED:
            return act.result()
        elif state == EffectState.FAILED:
            await _wait_until_due(act)
            act.intend()
        elif state == EffectState.UNCERTAIN:
            done, value = await _uncertain(act)
        elif act.is_fresh:
            done, value = await _attempt(act)
        else:
            _recover(act)
        if done:
            return value


async def _first(act: Act) -> tuple[bool, Any]:
    """Record the first intent, unless the business key was used before."""
    if act.business_key is not None:
        done, value = await _by_business_key(act)
        if done:
            return True, value
    await _hold_divergence(act)
    act.intend()
    return False, None


async def _by_business_key(act: Act) -> tuple[bool, Any]:
    store, tenant = act.run.engine.store, act.run.row.tenant
    while True:
        first = await store.read_effect_by_key(tenant, act.business_key or "")
        if first is None or first.effect_id == act.effect_id:
            return False, None
        if first.args_digest != act.digest or first.name != act.effect.name:
            msg = (
                f"business key {act.business_key!r} was used by effect {first.name!r} of run {first.run_id!r} with other "
                f"arguments; nothing was sent. Use another key, or the same arguments."
            )
            raise EffectKeyReused(
                msg, key=act.business_key, run_id=first.run_id, effect_id=first.effect_id
            )
        if first.state == EffectState.CONFIRMED:
            encoded = first.result_wire or b"\xc0"
            value = act.run.engine.codec.decode(encoded)
            record = act.confirmation(encoded, via="key", by=first.effect_id)
            act.run.record(record)
            return True, value
        if first.state == EffectState.FAILED:
            msg = f"effect {first.name!r} with business key {act.business_key!r} did not happen in run {first.run_id!r}"
            raise EffectFailed(msg, key=act.business_key, run_id=first.run_id)
        due_us = act.run.now_us() + 1_000_000
        note = f"effect {first.effect_id} of run {first.run_id} with the same business key"
        wait = Wait(
            kind=WaitKind.TIMER,
            subject=act.effect_id,
            node=act.context.task.path,
            due_us=due_us,
            note=note,
        )
        await act.run.wait(act.context, wait)


def _recover(act: Act) -> None:
    """An intent without a result: the holder before us died (or lost its lease) in between."""
    failure = Failure(
        type="Interrupted",
        message="the worker stopped between the intent and the result",
        node=act.context.task.path,
    )
    if act.kind is EffectKind.ONCE:
        act.lose(failure, None)
    else:
        act.lose(failure, act.run.now_us())


async def _uncertain(act: Act) -> tuple[bool, Any]:
    """Resend, look up, or wait for a person."""
    call_state = act.call
    if call_state is None or call_state.due_us is None:
        return await _decision(act)
    await _wait_until_due(act)
    if act.kind is EffectKind.KEYED:
        act.intend()
        return False, None
    return await _reconcile(act)


async def _reconcile(act: Act) -> tuple[bool, Any]:
    """Ask the other side what became of it (kind lookup)."""
    request = Request(args=act.args, kwargs=act.kwargs)
    tries = 0
    while True:
        tries += 1
        try:
            found = await _bounded(act, lambda: _awaited(act.effect.reconcile, request, act.key))
        except Exception as error:  # noqa: BLE001  # not knowing is an answer; the reason is kept
            found = Unknown(f"reconcile raised {type(error).__name__}: {error}")
        if isinstance(found, Found):
            return True, act.confirm(found.result, via="reconcile")
        if isinstance(found, Absent):
            return False, _absent(act)
        reason = found.reason if isinstance(found, Unknown) else f"reconcile returned {found!r}"
        failure = Failure(
            type="Unknown", message=str(reason)[:ERROR_CHARS_MAX], node=act.context.task.path
        )
        due_us = act.due_us(None, _RECONCILE, tries)
        act.lose(failure, due_us)
        if due_us is None:
            return False, None
        await _wait_until_due(act)


def _absent(act: Act) -> None:
    """It did not happen: send it again while there are tries."""
    if act.attempt >= act.retry.max_attempts + 1:
        failure = (
            act.call.failure
            if act.call and act.call.failure
            else Failure(type="Absent", message="it did not happen")
        )
        act.refuse(failure, None, via="reconcile")
        raise act.failed()
    act.intend()


async def _decision(act: Act) -> tuple[bool, Any]:
    """Wait until a person has said whether it happened; the run is parked meanwhile."""
    wait = Wait(
        kind=WaitKind.DECISION,
        subject=act.effect_id,
        node=act.context.task.path,
        note=f"effect {act.effect.name}: did it happen? perdure resolve {act.effect_id} --happened | --not-happened",
    )
    mail = await act.run.wait_for_mail(act.context, wait, MailKind.DECISION)
    if mail is None:
        return False, None
    happened, encoded = act.run.engine.codec.decode(mail.body_wire)
    if happened:
        value = act.run.engine.codec.decode(encoded)
        value = convert_result(act.effect, value)
        return True, act.confirm(value, via="decision", by=mail.sender, taken=(mail.mail_id,))
    failure = Failure(type="NotHappened", message=f"{mail.sender} said that it did not happen")
    act.refuse(failure, act.run.now_us(), via="decision", by=mail.sender, taken=(mail.mail_id,))
    return False, None


def convert_result(effect: Effect[Any, Any], value: Any) -> Any:
    """Return a result that a person typed as JSON in the type that the effect declares."""
    declared = effect.result_type
    is_same = isinstance(declared, type) and isinstance(value, declared)
    if declared in {None, Any} or value is None or is_same:
        return value
    try:
        return msgspec.convert(value, declared)
    except (TypeError, ValueError):
        return value


async def _attempt(act: Act) -> tuple[bool, Any]:
    """Dispatch the intended attempt and record what became of it."""
    run = act.run
    act.is_fresh = False
    # crash-point: effect.intend.queued
    run.engine.services.probe("effect.intend.queued")
    await run.barrier()
    # crash-point: effect.dispatch.before
    run.engine.services.probe("effect.dispatch.before")
    run.check_dispatch()
    try:
        value = await _dispatch(act)
    except Exception as error:  # the supervisor of effects: classified and recorded
        _classify(act, error)
        if (
            act.call is not None
            and act.call.state == EffectState.FAILED
            and act.call.due_us is None
        ):
            raise act.failed() from error
        return False, None
    # crash-point: effect.dispatch.after
    run.engine.services.probe("effect.dispatch.after")
    return True, act.confirm(value)


def _classify(act: Act, error: Exception) -> None:
    """Record an attempt that raised: known not to have happened, or uncertain."""
    failure = failure_of(error, act.context.task.path)
    if isinstance(error, (Rejected, *act.effect.rejects)):
        act.refuse(failure, _retry_due(act, error, attempt=act.attempt))
        return
    if act.kind is EffectKind.KEYED and isinstance(error, act.retry.on):
        act.lose(failure, act.due_us(retry_after_of(error)))
    elif act.kind is EffectKind.LOOKUP:
        act.lose(failure, act.run.now_us())
    else:
        act.lose(failure, None)


async def _hold_divergence(act: Act) -> None:
    """Hold a new outside effect back while recorded ones of the same name were not asked for again.

    With several awaits under way the recorded ones may just come later; when everything else in the node is still and
    they have not come, the node asks for something else than its record says.
    """
    context = act.context

    def missing() -> list[str]:
        return [
            c.call_id
            for c in context.task.calls.values()
            if c.name == act.effect.name and not c.is_asked and c.kind in _OUTSIDE
        ]

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
        f"node {path!r} is about to send effect {name!r} with arguments it did not have before, while {len(missing)} "
        f"recorded {name!r} ({', '.join(missing[:3])}) was not asked for again; nothing was sent. The code before the call "
        f"must give the same arguments on every execution: use ctx.now(), ctx.random(), ctx.call for what varies. "
        f"Then: perdure resolve {act.run.row.run_id} --retry, or perdure cancel {act.run.row.run_id}"
    )
    act.run.park(ReplayDiverged(msg, run_id=act.run.row.run_id, node=path, effect=name))


async def _wait_until_due(act: Act) -> None:
    due_us = act.call.due_us if act.call is not None else None
    if due_us is not None and due_us > act.run.now_us():
        attempt = act.attempt
        note = f"attempt {attempt + 1} of effect {act.effect.name}"
        wait = Wait(
            kind=WaitKind.TIMER,
            subject=act.effect_id,
            node=act.context.task.path,
            due_us=due_us,
            note=note,
        )
        await act.run.wait(act.context, wait)


# -- calling ---------------------------------------------------------------------------------------------------------------


async def _dispatch(act: Act) -> Any:
    """Call the function within the effect's limits."""
    context = act.context
    context.active += 1
    gate = act.run.engine.gate(act.effect)
    try:
        if gate is None:
            return await _bounded(act, lambda: _run_function(act, {}))
        async with gate:
            act.run.check_dispatch()  # the wait for the gate may have been long
            return await _bounded(act, lambda: _run_function(act, {}))
    finally:
        context.active -= 1
        act.run.touch()


async def _run_function(act: Act, extra: dict[str, Any]) -> Any:
    effect = act.effect
    filled = {**act.kwargs, **extra}
    if effect.takes_key:
        filled["idempotency_key"] = act.key
    if effect.takes_sandbox:
        filled["sandbox"] = act.run.sandbox()
    if effect.is_async:
        return await effect.function(*act.args, **filled)
    return await asyncio.to_thread(effect.function, *act.args, **filled)


async def _awaited(function: Callable[..., Any] | None, *args: Any) -> Any:
    if function is None:
        return Unknown("the effect declares no reconcile")
    value = function(*args)
    return await value if hasattr(value, "__await__") else value


async def _bounded(act: Act, start: Callable[[], Awaitable[Any]]) -> Any:
    """Await within the effect's timeout, on the engine's clock."""
    timeout_s = act.effect.timeout_s
    if timeout_s is None:
        return await start()
    working = asyncio.ensure_future(start())
    ringing = asyncio.ensure_future(act.run.engine.services.clock.sleep(timeout_s))
    try:
        await asyncio.wait({working, ringing}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        msg = f"effect {act.effect.name!r} took longer than timeout_s={timeout_s}; it may have happened"
        raise EffectTimedOut(msg, effect=act.effect.name, timeout_s=timeout_s)
    finally:
        ringing.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def decision_error(run_id: str, reason: str) -> NeedsDecision:
    """Return the error that a caller gets for a parked run."""
    msg = f"run {run_id!r} needs a decision: {reason}. Nothing is lost; 'perdure show {run_id}' has the details."
    return NeedsDecision(msg, run_id=run_id, reason=reason)
