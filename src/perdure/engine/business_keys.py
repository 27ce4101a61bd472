"""What a run gets for a business key that an effect has already: the first outcome, once it is one.

| the other effect | this run |
|---|---|
| confirmed | gets its result, as a record of its own |
| failed, no try to come | is told that it did not happen, as a record of its own |
| failed, a try to come; intended; uncertain | waits: nobody knows yet |
| compensating | waits: it is being countered |
| compensated | is told that it was done and countered, as a record of its own; nothing is sent |
| compensation failed | waits: a person has to see what stands |

A try is to come while the run of the other effect has not ended and its journal says when. A node
that is tried again later may send it after all; what was told before stays told.
"""

from typing import Any

from perdure.core import fold
from perdure.engine.acts import Act, wait_until
from perdure.engine.limits import FRAMES_READ
from perdure.engine.loading import read_records
from perdure.errors import EffectKeyReused, HistoryPruned, RecordErased
from perdure.model import EffectRow, EffectState, Failure
from perdure.model import records as rec

LOOK_AGAIN_US = 1_000_000
"""How often a run looks whether the outcome is known, in microseconds: others write it."""

NOT_DONE = "NotHappened"
COUNTERED = "Compensated"
"""Types of the failures that are recorded: of effects whose outcome is another run's."""


async def by_business_key(act: Act) -> tuple[bool, Any]:
    """Return (True, the first result); (False, None): nobody has the key, so that it may be sent.

    Raises:
        EffectFailed: the other one did not happen, or was countered; recorded.
        EffectKeyReused: the other one has other arguments; nothing was sent.
    """
    store, tenant = act.run.engine.store, act.run.row.tenant
    while True:
        first = await store.read_effect_by_key(tenant, act.business_key or "")
        if first is None or first.effect_id == act.effect_id:
            return False, None
        _check_same(act, first)
        state = first.state
        if state == EffectState.CONFIRMED:
            encoded = first.result_wire or b"\xc0"
            value = act.decoded(encoded)
            act.adopt(encoded, first.effect_id)
            return True, value
        due_us = act.run.now_us() + LOOK_AGAIN_US
        if state == EffectState.FAILED:
            retry_us = await _next_try_us(act, first)
            if retry_us is None:
                _told(act, first, NOT_DONE, f"it did not happen in run {first.run_id}")
            due_us = max(due_us, retry_us or 0)
        elif state == EffectState.COMPENSATED:
            what = f"run {first.run_id} did it, and countered it since; use another key to do it"
            _told(act, first, COUNTERED, what)
        await wait_until(act, due_us, _note(first))


def _check_same(act: Act, first: EffectRow) -> None:
    if first.args_digest == act.digest and first.name == act.effect.name:
        return
    msg = (
        f"business key {act.business_key!r} was used by effect {first.name!r} of run "
        f"{first.run_id!r} with other arguments; nothing was sent. Use another key, or the "
        "same arguments."
    )
    raise EffectKeyReused(msg, key=act.business_key, run_id=first.run_id, effect_id=first.effect_id)


def _note(first: EffectRow) -> str:
    whose = f"effect {first.effect_id} of run {first.run_id} with the same business key"
    if first.state == EffectState.COMPENSATION_FAILED:
        return f"{whose}, whose compensation failed: see perdure show {first.run_id}"
    return whose


def _told(act: Act, first: EffectRow, kind: str, what: str) -> None:
    """Record that the act is not done by this run, and raise it.

    Raises:
        EffectFailed: always.
    """
    node = act.context.task.path
    message = f"business key {act.business_key!r}: {what}"
    act.decline(Failure(type=kind, message=message, node=node), first.effect_id)
    raise act.failed()


async def _next_try_us(act: Act, first: EffectRow) -> int | None:
    """Return when a failed effect of another run is tried again; None: it is not."""
    store = act.run.engine.store
    row = await store.read_run(first.run_id)
    if row is None or row.status.is_final:
        return None
    due_us: int | None = None
    seq = 1
    while True:
        try:
            found = await read_records(store, first.run_id, seq, limit=FRAMES_READ)
        except (HistoryPruned, RecordErased):
            return None
        for at, _frame, record in found:
            seq = at + 1
            if isinstance(record, rec.EffectFailed) and record.effect_id == first.effect_id:
                due_us = record.retry_at_us
        if not found:
            return due_us


def is_others(call: fold.Call) -> bool:
    """Return whether a failed call is what another run's effect came to: this run sent nothing."""
    return call.state == EffectState.FAILED and call.attempt == 0
