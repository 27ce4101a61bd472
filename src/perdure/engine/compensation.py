"""Compensation: counter the confirmed effects of a run, newest first, each as an effect of its own.

A compensation that is an `@effect(kind="keyed")` is resent under its key after a crash. Of any
other one that was interrupted nobody knows whether it happened: it ends as `compensation_failed`,
visible, for a person.
"""

from contextlib import nullcontext
from typing import Any, Protocol

from msgspec import structs

from perdure.core.machines import EFFECT_TABLE, EffectEvent, advance
from perdure.core.retry import backoff_s
from perdure.engine.acts import awaited, failure_of, timed
from perdure.engine.environment import Environment
from perdure.engine.limits import LOOKUP_GRACE_S, ROWS_MAX
from perdure.errors import NotFound, Rejected
from perdure.graph import Absent, Effect, Found, Request, Unknown, as_effect, effect_named
from perdure.model import Change, EffectKind, EffectPut, EffectRow, EffectState, Failure, RunRow
from perdure.model import records as rec
from perdure.store.api import EffectQuery


class CompensatingRun(Protocol):
    """What compensation needs of a held run."""

    row: RunRow
    engine: Environment

    def now_us(self) -> int:
        """Return the time."""

    def record(self, record: rec.Record, *changes: Change) -> None:
        """Record a fact with its changes."""

    async def barrier(self) -> None:
        """Return when everything recorded is durable."""

    async def check_lease(self) -> None:
        """Refuse to go on when the lease is not safe any more (CancelledError)."""


_OPEN = (EffectState.CONFIRMED, EffectState.COMPENSATING)


async def compensate(run: CompensatingRun) -> None:
    """Counter every confirmed effect of the run that declares how, newest first.

    Goes on after a failure.
    """
    await run.barrier()
    rows = await run.engine.store.find_effects(
        EffectQuery(run_id=run.row.run_id, states=_OPEN, limit=ROWS_MAX)
    )
    rows.sort(key=lambda row: (row.intended_at_us, row.effect_id), reverse=True)
    for row in rows:
        declared = effect_named(row.name)
        if declared is None:
            await _unknown(run, row)
        elif declared.compensate is not None:
            await _one(run, row, declared.compensate)


async def _unknown(run: CompensatingRun, row: EffectRow) -> None:
    msg = f"effect {row.name!r} is not imported in this worker, so nobody knows how to counter it"
    await _end(run, _start(run, row), failure_of(NotFound(msg)))


def _start(run: CompensatingRun, row: EffectRow) -> EffectRow:
    state = advance(EFFECT_TABLE, row.state, EffectEvent.COMPENSATE, row.effect_id)
    started = structs.replace(row, state=state, changed_at_us=run.now_us())
    record = rec.CompensationStarted(run.now_us(), row.effect_id, row.name, _key(row))
    run.record(record, EffectPut(row=started))
    return started


def _key(row: EffectRow) -> str:
    return f"c_{row.effect_id}"


async def _one(run: CompensatingRun, row: EffectRow, function: Any) -> None:
    counter = as_effect(function)
    if row.state is EffectState.COMPENSATING and counter.kind is not EffectKind.KEYED:
        reason = "the worker stopped while it was under way; nobody knows whether it happened"
        await _end(run, row, Failure(type="Interrupted", message=reason))
        return
    started = _start(run, row)
    # crash-point: compensate.intended
    run.engine.services.probe("compensate.intended")
    await run.barrier()
    failure = await _dispatch(run, row, counter)
    # crash-point: compensate.dispatched
    run.engine.services.probe("compensate.dispatched")
    await _end(run, started, failure)


async def _dispatch(
    run: CompensatingRun, row: EffectRow, counter: Effect[Any, Any]
) -> Failure | None:
    """Call the compensation within its limits; return why it did not happen, or None."""
    request, result = _request_of(run, row)
    extra = {"idempotency_key": _key(row)} if counter.takes_key else {}
    clock, retry = run.engine.services.clock, counter.effective_retry
    gate = run.engine.gate(counter) or nullcontext()
    attempt = 0
    while True:
        attempt += 1
        await run.barrier()  # also where a holder that was replaced finds out
        await run.check_lease()
        try:
            async with gate:
                await timed(
                    counter, clock, lambda: awaited(counter.function, request, result, **extra)
                )
        except Exception as error:  # noqa: BLE001  # its failure is a state of the ledger
            found, delay_s = await _after(run, row, counter, error, attempt)
            if found:
                return None
            if delay_s is None or not isinstance(error, retry.on):
                return failure_of(error)
            await clock.sleep(delay_s)
        else:
            return None


def _request_of(run: CompensatingRun, row: EffectRow) -> tuple[Request, Any]:
    place = f"request of effect {row.name!r} ({row.effect_id})"
    args, kwargs = run.engine.decode_in(
        row.request_wire, run.row, place, effect=row.name, effect_id=row.effect_id
    )
    result = run.engine.decode_in(
        row.result_wire or b"\xc0", run.row, f"result of effect {row.name!r} ({row.effect_id})"
    )
    return Request(args=tuple(args), kwargs=kwargs), result


async def _after(
    run: CompensatingRun,
    row: EffectRow,
    counter: Effect[Any, Any],
    error: Exception,
    attempt: int,
) -> tuple[bool, float | None]:
    """Return whether a failed try did happen after all, and when to try again (None: never)."""
    delay_s = backoff_s(counter.effective_retry, attempt, run.engine.services.rng)
    if isinstance(error, (Rejected, *counter.rejects)) or counter.kind is not EffectKind.LOOKUP:
        return False, delay_s
    await run.engine.services.clock.sleep(LOOKUP_GRACE_S)
    request = Request(args=_request_of(run, row), kwargs={})
    try:
        found = await awaited(counter.reconcile, request, _key(row))
    except Exception as unknown:  # noqa: BLE001  # not knowing is an answer
        found = Unknown(f"reconcile raised {unknown!r}")
    # What nobody can tell is not sent again: it stays a failure that a person sees.
    return isinstance(found, Found), delay_s if isinstance(found, Absent) else None


async def _end(run: CompensatingRun, row: EffectRow, failure: Failure | None) -> None:
    event = EffectEvent.COMPENSATED if failure is None else EffectEvent.COMPENSATION_FAILED
    state = advance(EFFECT_TABLE, row.state, event, row.effect_id)
    ended = structs.replace(row, state=state, failure=failure, changed_at_us=run.now_us())
    run.record(
        rec.CompensationEnded(run.now_us(), row.effect_id, row.name, failure), EffectPut(row=ended)
    )
    await run.barrier()
