"""What people and programs see of a store: checkpoints, asks, ledger entries, differences."""

import datetime as dt
from typing import Any

from msgspec import Struct, structs

from perdure.codec import describe
from perdure.core import fold
from perdure.engine.edge import INT_MAX, is_text
from perdure.engine.environment import Environment
from perdure.engine.living import living_runs
from perdure.engine.loading import decode_cells, load_checkpoint, read_kept, resumed
from perdure.engine.patch import patch
from perdure.engine.points import checkpoint_at
from perdure.engine.waits import as_datetime
from perdure.errors import DecodeFailed, NotFound, UsageError
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import AskRow, AskState, EffectKind, EffectRow, EffectState, Failure, RunRow
from perdure.model import records as rec


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A place that a thread can be resumed, read or forked at.

    Attributes:
        id: monotonic in the thread.
        parent: the checkpoint before, in this thread or (for a fork) in `parent_thread`.
        seq: journal record of the run that is this checkpoint.
        next: nodes of the next step; empty: the graph had ended.
        changed: fields that the step changed.
        versions: field -> id of the checkpoint that wrote its present value.
        snapshot: sandbox snapshot that belongs to it.
        codec: format of the stored values.
        rolled_back_to: checkpoint whose state it has again; None: it is no rollback.
    """

    id: int
    parent: int | None
    parent_thread: str | None
    thread: str
    run_id: str
    seq: int
    step: int
    at: dt.datetime
    next: tuple[str, ...]
    changed: tuple[str, ...]
    versions: dict[str, int]
    graph: str
    graph_version: int
    snapshot: str | None
    codec: int = 1
    rolled_back_to: int | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """A question to a person."""

    id: str
    run_id: str
    thread: str
    node: str
    question: str
    schema: dict[str, Any] | None
    state: AskState
    asked_at: dt.datetime
    expires_at: dt.datetime | None
    value: Any = None
    answered_by: str | None = None
    answered_at: dt.datetime | None = None


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """An effect, as the ledger has it. `args`, `kwargs`, `result`: JSON-like."""

    id: str
    run_id: str
    thread: str
    node: str
    name: str
    kind: EffectKind
    state: EffectState
    args: list[Any]
    kwargs: dict[str, Any]
    key: str
    business_key: str | None
    attempt: int
    result: Any
    failure: Failure | None
    intended_at: dt.datetime
    changed_at: dt.datetime
    decision: str | None
    decided_by: str | None


def _maybe(at_us: int | None) -> dt.datetime | None:
    return None if at_us is None else as_datetime(at_us)


def _shown(encoded: bytes, place: str) -> Any:
    """Return a stored value as JSON-like data; an error says of what."""
    try:
        return describe(encoded)
    except DecodeFailed as error:
        raise error.located(place, place=place) from error


def ask_of(row: AskRow) -> Ask:
    """Return a row as an Ask."""
    return Ask(
        id=row.ask_id,
        run_id=row.run_id,
        thread=row.thread,
        node=row.node,
        question=row.question,
        schema=row.schema,
        state=row.state,
        asked_at=as_datetime(row.asked_at_us),
        expires_at=_maybe(row.expires_at_us),
        value=None if row.value_wire is None else _shown(row.value_wire, f"answer to {row.ask_id}"),
        answered_by=row.answered_by,
        answered_at=_maybe(row.answered_at_us),
    )


def entry_of(row: EffectRow) -> LedgerEntry:
    """Return a row as a LedgerEntry."""
    place = f"effect {row.effect_id} of run {row.run_id!r}"
    args, kwargs = _shown(row.request_wire, place) if row.request_wire else ([], {})
    return LedgerEntry(
        id=row.effect_id,
        run_id=row.run_id,
        thread=row.thread,
        node=row.node,
        name=row.name,
        kind=row.kind,
        state=row.state,
        args=args,
        kwargs=kwargs,
        key=row.key,
        business_key=row.business_key,
        attempt=row.attempt,
        result=None if row.result_wire is None else _shown(row.result_wire, place),
        failure=row.failure,
        intended_at=as_datetime(row.intended_at_us),
        changed_at=as_datetime(row.changed_at_us),
        decision=row.decision,
        decided_by=row.decided_by,
    )


async def history(engine: Environment, tenant: TenantId, thread: ThreadId) -> list[Checkpoint]:
    """Return the thread's checkpoints, newest first; those that were pruned are left out."""
    runs = await living_runs(engine.store, tenant, thread)
    found: list[Checkpoint] = []
    versions: dict[str, int] = {}
    for run in runs:
        started: rec.RunStarted | None = None
        version = run.version
        state = fold.RunState(run.run_id)
        state.checkpoint = run.base_checkpoint
        for seq, _frame, record in await read_kept(engine.store, run.run_id):
            going = resumed(state, seq, record)
            if going is None:
                continue
            state = going
            if isinstance(record, rec.RunStarted):
                started, version = record, record.version
            if isinstance(record, rec.VersionMoved):
                version = record.to_version
            if isinstance(record, rec.StepCommitted) and record.scope == "" and started:
                changed = _changed(state, started, record)
                versions = {**versions, **dict.fromkeys(changed, record.checkpoint)}
                checkpoint = _checkpoint(
                    found, started, record, seq=seq, changed=changed, versions=versions
                )
                found.append(structs.replace(checkpoint, graph_version=version))
            fold.apply(state, record)
    return found[::-1]


def _changed(
    state: fold.RunState, started: rec.RunStarted, record: rec.StepCommitted
) -> tuple[str, ...]:
    names = set(record.folded) | set(record.merged)
    if record.step == fold.INPUT_STEP:
        names |= set(started.input)
    for task in state.root.tasks.values():
        if task.outcome is not None:
            names |= set(task.outcome.writes)
    return tuple(sorted(names))


def _checkpoint(
    found: list[Checkpoint],
    started: rec.RunStarted,
    record: rec.StepCommitted,
    *,
    seq: int,
    changed: tuple[str, ...],
    versions: dict[str, int],
) -> Checkpoint:
    is_fork = not found and started.origin_thread is not None
    return Checkpoint(
        id=record.checkpoint,
        parent=started.origin_checkpoint if is_fork else (found[-1].id if found else None),
        parent_thread=started.origin_thread if is_fork else started.thread,
        thread=started.thread,
        run_id=started.run_id,
        seq=seq,
        step=record.step,
        at=as_datetime(record.at_us),
        next=tuple(spec.node for spec in record.next),
        changed=changed,
        versions=versions,
        graph=started.graph,
        graph_version=started.version,
        snapshot=record.snapshot,
        rolled_back_to=started.rollback.checkpoint if started.rollback is not None else None,
    )


def is_pair(at: Any) -> bool:
    """Return whether it is a pair (thread, checkpoint id, tag or None)."""
    if not isinstance(at, tuple) or len(at) != 2:  # noqa: PLR2004  # a pair
        return False
    thread, checkpoint = at
    is_id = type(checkpoint) is int and abs(checkpoint) <= INT_MAX
    return is_text(thread) and (checkpoint is None or is_id or is_text(checkpoint))


async def _plain_state(engine: Environment, tenant: TenantId, at: Any) -> dict[str, Any]:
    """Return the state at a Checkpoint, a (thread, id or tag) pair, or a run's newest, plain."""
    thread: str
    checkpoint: int | None
    if isinstance(at, Checkpoint):
        thread, checkpoint = at.thread, at.id
    elif is_pair(at):
        thread, named = at
        checkpoint = await checkpoint_at(engine, tenant, ThreadId(thread), named)
    elif is_text(at):
        row = await engine.store.read_run(RunId(at))
        if row is None:
            msg = f"no run {at!r}"
            raise NotFound(msg, run_id=at)
        thread, checkpoint = row.thread, row.checkpoint
    else:
        msg = (
            f"diff: {at!r} is no Checkpoint, (thread, checkpoint id or tag) or run id; for plain "
            "checkpoint "
            f"ids say whose they are: diff(3, 5, thread='t')"
        )
        raise UsageError(msg)
    found = await load_checkpoint(engine.store, tenant, ThreadId(thread), checkpoint)
    return plain_values(found.cells, found.run, found.checkpoint)


def plain_values(cells: dict[str, fold.Cell], row: RunRow, checkpoint: int) -> dict[str, Any]:
    """Return a state as JSON-like data, without the user's types; see `decode_cells`."""
    return decode_cells(cells, describe, row, checkpoint)


async def plain_state(engine: Environment, row: RunRow) -> dict[str, Any]:
    """Return the state that a run stands at, as JSON-like data; empty if it committed nothing."""
    checkpoint = row.checkpoint if row.checkpoint > row.base_checkpoint else None
    if checkpoint is None:
        return {}
    found = await load_checkpoint(engine.store, row.tenant, row.thread, checkpoint)
    return plain_values(found.cells, found.run, found.checkpoint)


async def diff(engine: Environment, tenant: TenantId, a: Any, b: Any) -> list[dict[str, Any]]:
    """Return JSON Patch operations that turn the state at `a` into the state at `b`."""
    before, after = await _plain_state(engine, tenant, a), await _plain_state(engine, tenant, b)
    return patch(before, after)
