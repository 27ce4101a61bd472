"""Effects: do once what a node asks of the outside, and find out when nobody knows.

Theory, by kind (DESIGN section 5). An outside effect (keyed, lookup, once) goes: intent durable ->
dispatch -> result. An exception of the call does not say whether the act happened, unless it is
`Rejected` or of a class that the effect `rejects`; else the effect is *uncertain*, and is resent
under the same key (keyed), looked up (lookup) or left to a person (once). A pure or contained
effect leaves nothing outside, so its exception is a plain failure. A transaction commits together
with its record.

Crash points lie between every two durable writes; the fault tests kill the process at each.
"""

from typing import Any

from perdure.engine.acts import Act, dispatch, failure_of, retry_due, run_function, wait_until_due
from perdure.engine.outside import outside
from perdure.engine.ports import NodePort
from perdure.graph import Effect
from perdure.model import EffectKind, EffectPut, EffectState
from perdure.model import records as rec
from perdure.store.api import Transaction


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
        return await outside(act)
    if act.kind is EffectKind.TRANSACTION:
        return await _transaction(act)
    return await _inside(act)


async def _inside(act: Act) -> Any:
    """Call until it succeeds or the tries are used up; only results and failures are recorded."""
    while True:
        await wait_until_due(act)
        if act.kind is EffectKind.CONTAINED:
            await act.run.enter_sandbox(act.context)
        try:
            async with act.turn():
                await act.run.check_dispatch()
                value = await dispatch(act)
            # crash-point: effect.inside.after
            act.run.engine.services.probe("effect.inside.after")
        except Exception as error:  # the supervisor of effects: recorded, raised as EffectFailed
            due_us = retry_due(act, error, attempt=act.attempt + 1)
            act.refuse(failure_of(error, act.context.task.path), due_us)
            if due_us is None:
                raise act.failed() from error
            continue
        return act.confirm(value)


async def _transaction(act: Act) -> Any:
    """Write to the store's own database and record it, in one transaction."""
    while True:
        await wait_until_due(act)
        try:
            value = await _in_transaction(act)
        except Exception as error:  # rolled back: known not to have happened
            due_us = retry_due(act, error, attempt=act.attempt + 1)
            act.refuse(failure_of(error, act.context.task.path), due_us)
            if due_us is None:
                raise act.failed() from error
            continue
        act.refresh()
        return value


async def _in_transaction(act: Act) -> Any:
    results: list[Any] = []

    async def body(transaction: Transaction) -> tuple[rec.EffectConfirmed, EffectPut]:
        value = await run_function(act, {"transaction": transaction})
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
