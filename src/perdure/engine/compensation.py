"""Compensation: counter the confirmed effects of a run, newest first, each as an effect of its own.

A compensation that is an `@effect(kind="keyed")` is resent under its key after a crash. Of any
other one that was interrupted nobody knows whether it happened: it ends as `compensation_failed`,
visible, for a person.
"""

from typing import Any, Protocol

from msgspec import structs

from perdure.core.machines import EFFECT_TABLE, EffectEvent, advance
from perdure.core.retry import backoff_s
from perdure.engine.acts import awaited, failure_of
from perdure.engine.environment import Environment
from perdure.errors import NotFound
from perdure.graph import Effect, Request, as_effect, effect_named
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


_OPEN = (EffectState.CONFIRMED, EffectState.COMPENSATING)


async def compensate(run: CompensatingRun) -> None:
    """Counter every confirmed effect of the run that declares how, newest first.

    Goes on after a failure.
    """
    await run.barrier()
    rows = await run.engine.store.find_effects(
        EffectQuery(run_id=run.row.run_id, states=_OPEN, limit=1000)
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
    codec = run.engine.codec
    args, kwargs = codec.decode(row.request_wire)
    result = codec.decode(row.result_wire or b"\xc0")
    request = Request(args=tuple(args), kwargs=kwargs)
    extra = {"idempotency_key": _key(row)} if counter.takes_key else {}
    attempt = 0
    while True:
        attempt += 1
        try:
            await awaited(counter.function, request, result, **extra)
        except Exception as error:  # noqa: BLE001  # its failure is a state of the ledger
            retry = counter.effective_retry
            delay_s = backoff_s(retry, attempt, run.engine.services.rng)
            if delay_s is None or not isinstance(error, retry.on):
                return failure_of(error)
            await run.engine.services.clock.sleep(delay_s)
        else:
            return None


async def _end(run: CompensatingRun, row: EffectRow, failure: Failure | None) -> None:
    event = EffectEvent.COMPENSATED if failure is None else EffectEvent.COMPENSATION_FAILED
    state = advance(EFFECT_TABLE, row.state, event, row.effect_id)
    ended = structs.replace(row, state=state, failure=failure, changed_at_us=run.now_us())
    run.record(
        rec.CompensationEnded(run.now_us(), row.effect_id, row.name, failure), EffectPut(row=ended)
    )
    await run.barrier()
