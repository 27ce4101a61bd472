"""One effect that a node asks for: its place in the ledger, its facts, how it is called."""

import asyncio
import inspect
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from msgspec import Raw, structs

from perdure.clock import Clock, Rng
from perdure.core import fold
from perdure.core.identity import effect_id
from perdure.core.retry import Retry, backoff_s
from perdure.engine.limits import ERROR_CHARS_MAX
from perdure.engine.os_threads import call_in_os_thread, start_in_os_thread, without_exit
from perdure.engine.ports import NodePort
from perdure.engine.starting import checked_name
from perdure.errors import (
    EffectFailed,
    EffectTimedOut,
    NeedsDecision,
    Rejected,
)
from perdure.graph import Effect, Unknown
from perdure.ids import EffectId
from perdure.model import (
    EffectPut,
    EffectRow,
    EffectState,
    Failure,
    MailTaken,
    Wait,
    WaitKind,
)
from perdure.model import records as rec

INTERRUPTED = fold.INTERRUPTED


_OWN = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120  # pathlib costs start-up time
"""Folder of Perdure's own files, which are no place to look for a user's mistake."""


def _place_of(error: BaseException) -> str:
    """Return where an exception came from, innermost first: `refunds.py:25 in decide`."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    shown = (users or list(frames))[-3:]
    places = [f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in reversed(shown)]  # noqa: PTH119  # pathlib costs start-up time
    return " <- ".join(places)


def failure_of(error: BaseException, node: str = "") -> Failure:
    """Return what is stored of an exception: type, shortened text, shortened traceback."""
    trace = _place_of(error)
    try:
        text = str(error)[:ERROR_CHARS_MAX] or type(error).__name__
    except Exception as broken:  # noqa: BLE001  # a user's __str__; the failure must be recorded all the same
        text = f"(its text can't be read: {type(broken).__name__})"
    # File names that are no UTF-8 get into texts as surrogates, which can't be stored.
    text = text.encode("utf-8", "backslashreplace").decode()
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
        self.business_key = None if key is None else checked_name(key, "key")
        identity = context.identify("effect", effect.name, f"{self.digest}{key or ''}")
        self.effect_id: EffectId = effect_id(identity)
        self.call = context.find(self.effect_id)
        self.last_error: Exception | None = None
        # Whether this process wrote the newest intent: else its outcome is unknown.

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

    @property
    def lookups(self) -> int:
        """How often the newest attempt was looked up without being found or absent."""
        return self.call.unknowns if self.call is not None else 0

    @property
    def was_interrupted(self) -> bool:
        """Whether the newest attempt was cut off by the end of its worker."""
        failure = self.call.failure if self.call is not None else None
        return failure is not None and failure.type == INTERRUPTED

    def result(self) -> Any:
        """Return the recorded result."""
        encoded = self.call.result if self.call is not None else None
        return self.decoded(encoded or rec.NIL)

    def decoded(self, encoded: Any) -> Any:
        """Return a stored result of this effect; an error says of which."""
        place = f"result of effect {self.effect.name!r} ({self.effect_id})"
        return self.run.engine.decode_in(
            encoded, self.run.row, place, effect=self.effect.name, effect_id=self.effect_id
        )

    @cached_property
    def request_wire(self) -> bytes:
        """The arguments as stored, `[args, kwargs]`, encoded once for the record and the ledger."""
        return self.run.engine.codec.encode(self.request, "effect arguments")

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
            request_wire=self.request_wire,
            result_wire=result,
            attempt=max(self.attempt, 1),
            failure=failure,
            intended_at_us=now_us if self.call is None else self.call.started.at_us,
            changed_at_us=now_us,
        )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for this effect's turn within its limit, and keep it for the block."""
        gate = self.run.engine.gate(self.effect)
        if gate is None:
            yield
            return
        self.context.active += 1
        try:
            await gate.acquire()
        finally:
            self.context.active -= 1
        try:
            yield
        finally:
            gate.release()

    # -- facts -------------------------------------------------------------------------------------

    def intend(self) -> None:
        """Record the intent of the next attempt."""
        attempt = self.attempt + 1
        request = Raw(self.request_wire)
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

    def adopt(self, encoded: bytes, first: EffectId) -> None:
        """Record that another run's effect with the same business key has this encoded result."""
        self.run.record(self.confirmation(encoded, via="key", by=first))
        self.refresh()

    def decline(self, failure: Failure, first: EffectId) -> None:
        """Record that another run's effect with the same business key did not come to a result.

        It has no row: nothing was sent, and the key is the other one's.
        """
        path, name, kind = self.context.task.path, self.effect.name, self.kind.value
        now_us = self.run.now_us()
        record = rec.EffectFailed(
            now_us, path, self.effect_id, name, kind, failure, 0, None, "key", first
        )
        self.run.record(record)
        self.refresh()

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

    def lose(
        self, failure: Failure, retry_at_us: int | None, *, taken: tuple[int, ...] = ()
    ) -> None:
        """Record that nobody knows whether the newest attempt happened.

        `taken`: the decision that did not help, so that the question is open again.
        """
        record = rec.EffectUncertain(
            self.run.now_us(),
            self.context.task.path,
            self.effect_id,
            self.effect.name,
            max(self.attempt, 1),
            failure,
            retry_at_us,
        )
        row = self.row(EffectState.UNCERTAIN, failure=failure)
        changes: list[Any] = [EffectPut(row=row, reopens=bool(taken))]
        if taken:
            changes.append(MailTaken(mail_ids=taken))
        self.run.record(record, *changes)
        self.refresh()

    def due_us(
        self, retry_after_s: float | None, retry: Retry | None = None, attempt: int | None = None
    ) -> int | None:
        """Return when to try again after the newest attempt, or None: no more tries."""
        rng: Rng = self.run.engine.services.rng
        cut_off = self.call.interruptions if self.call is not None else 0
        tried = max(self.attempt - cut_off, 1) if attempt is None else attempt
        delay_s = backoff_s(retry or self.retry, tried, rng, retry_after_s)
        return None if delay_s is None else self.run.now_us() + round(delay_s * 1_000_000)

    def failed(self) -> EffectFailed:
        """Return the error that the node gets for an effect that did not happen."""
        failure = self.call.failure if self.call is not None else None
        reason = f"{failure.type}: {failure.message}" if failure is not None else "did not happen"
        name, path = self.effect.name, self.context.task.path
        outcome = "did not happen" if self.kind.is_outside else "failed"
        tries = f"after {self.attempt} attempt(s)" if self.attempt else "and was not sent"
        msg = f"effect {name!r} of node {path!r} {outcome} {tries}: {reason}"
        return EffectFailed(msg, run_id=self.run.row.run_id, effect=name, effect_id=self.effect_id)

    def refresh(self) -> None:
        """Look the recorded call up again, after a record about it."""
        self.call = self.context.task.calls.get(self.effect_id)
        if self.call is not None:
            self.call.is_asked = True


def retry_due(act: Act, error: Exception, *, attempt: int) -> int | None:
    """Return when to try again after an attempt that did not happen, or None: no more."""
    if isinstance(error, Rejected):
        if error.retry_after_s is None:
            return None
    elif not isinstance(error, act.retry.on) or isinstance(error, act.effect.rejects):
        return None
    return act.due_us(retry_after_of(error), attempt=attempt)


def retry_after_of(error: BaseException) -> float | None:
    """Return the seconds to wait that `Rejected` or an HTTP `Retry-After` header asks for."""
    given = getattr(error, "retry_after_s", None)
    if given is None:
        headers = getattr(getattr(error, "response", None), "headers", None)
        get = getattr(headers, "get", None)
        given = get("Retry-After") if callable(get) else None
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError):
        return None  # a date form: the backoff alone decides


async def wait_until_due(act: Act) -> None:
    """Wait durably until the next try is due."""
    due_us = act.call.due_us if act.call is not None else None
    if due_us is not None and due_us > act.run.now_us():
        note = f"attempt {act.attempt + 1} of effect {act.effect.name}"
        await wait_until(act, due_us, note)


async def wait_until(act: Act, due_us: int, note: str) -> None:
    """Wait durably until a time."""
    wait = Wait(
        kind=WaitKind.TIMER,
        subject=act.effect_id,
        node=act.context.task.path,
        due_us=due_us,
        note=note,
    )
    await act.run.wait(act.context, wait)


async def dispatch(act: Act) -> Any:
    """Call the function, within its timeout."""
    act.context.active += 1
    try:
        return await bounded(act, lambda: run_function(act, {}))
    finally:
        act.context.active -= 1
        act.run.touch()


async def run_function(act: Act, extra: dict[str, Any]) -> Any:
    """Call the effect's function with its arguments and what the runtime fills in."""
    effect = act.effect
    filled = {**act.kwargs, **extra}
    if effect.takes_key:
        filled["idempotency_key"] = act.key
    if effect.takes_sandbox:
        filled["sandbox"] = act.run.sandbox()
    if effect.is_async:
        return await without_exit(effect.function, *act.args, **filled)
    working = start_in_os_thread(effect.function, *act.args, **filled)
    if act.kind.is_outside:
        act.run.engine.watch(act.effect_id, working)
    value = await asyncio.shield(working)
    return await value if hasattr(value, "__await__") else value


async def awaited(function: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user's, a plain one in an OS thread; `Unknown` where there is none."""
    if function is None:
        return Unknown("the effect declares no reconcile")
    if inspect.iscoroutinefunction(function):
        return await without_exit(function, *args, **kwargs)
    return await call_in_os_thread(function, *args, **kwargs)


def takes_two(function: Any) -> bool:
    """Return whether a function takes (item, ctx): ordinary code around durable acts."""
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_position = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    return len(by_position) == 2 and by_position[1].name == "ctx"  # noqa: PLR2004  # (item, ctx)


def is_composed(function: Any) -> bool:
    """Return whether a function given to `map` is the node's own code around durable acts."""
    return takes_two(function) or getattr(function, "__name__", "") == "<lambda>"


async def bounded(act: Act, start: Callable[[], Awaitable[Any]]) -> Any:
    """Await within the effect's timeout, on the engine's clock."""
    return await timed(act.effect, act.run.engine.services.clock, start)


async def timed(effect: Effect[Any, Any], clock: Clock, start: Callable[[], Awaitable[Any]]) -> Any:
    """Await within an effect's timeout.

    Raises:
        EffectTimedOut: it took longer; it may have happened.
    """
    timeout_s = effect.timeout_s
    if timeout_s is None:
        return await start()
    working = asyncio.ensure_future(start())
    ringing = asyncio.ensure_future(clock.sleep(timeout_s))
    try:
        await asyncio.wait({working, ringing}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        msg = f"effect {effect.name!r} took longer than timeout_s={timeout_s}; it may have happened"
        raise EffectTimedOut(msg, effect=effect.name, timeout_s=timeout_s)
    finally:
        ringing.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def decision_error(run_id: str, reason: str) -> NeedsDecision:
    """Return the error that a caller gets for a parked run."""
    msg = (
        f"run {run_id!r} needs a decision: {reason}. Nothing is lost; 'perdure show {run_id}' has "
        "the details."
    )
    return NeedsDecision(msg, run_id=run_id, reason=reason)
