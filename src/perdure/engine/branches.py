"""Fork a thread at a checkpoint, and roll a thread back to one: what it would mean, and doing it.

Theory: a fork is a run on a new thread that goes on with the nodes that came next; nothing of the
origin after that point is in it, and what was recorded before is in the state. It inherits that
state: its start record says where in the origin's journal it is, and holds the update alone, so a
fork costs as many bytes of a long conversation as of a short one. A rollback is a run on the same
thread that does nothing but to take the whole state of a checkpoint in: history is never rewritten,
checkpoint ids only rise, and the effects since then stay as they happened.

Invariant: values are carried over as they are stored, so that neither needs the user's types; only
an update does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import fold
from perdure.engine.environment import Environment
from perdure.engine.limits import AGAIN_DEPTH_MAX, FORK_CHAIN_MAX, ROWS_MAX
from perdure.engine.loading import At, load_checkpoint
from perdure.engine.moving import take, write_released
from perdure.engine.older_states import state_at
from perdure.engine.outlook import command, resolve_commands
from perdure.engine.starting import checked_name, encode_writes, finish_new_run
from perdure.engine.story import EffectSeen, NodeRun, Story, tell
from perdure.engine.tagging import PIN_MARK, pinned
from perdure.engine.views import plain_values
from perdure.errors import Conflict, ThreadBusy, UsageError
from perdure.ids import EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import NewRun, OnBusy, RunEnded, RunRow, RunStatus, WriteOp
from perdure.model import records as rec
from perdure.store.api import RunQuery

FORK_MARK = "fork:"
"""A fork's `input_digest` begins with it and names the origin: `fork:CHECKPOINT:THREAD`.

A fork has no start key, so that its digest is compared with nothing; and where a thread was forked
is found in the rows of runs, without reading journals.
"""


ROLLBACK_MARK = "rollback:"
"""A rollback's `input_digest` begins with it and names the checkpoint."""


class Running(Struct, frozen=True, kw_only=True):
    """A run of the origin that has not ended, and its executions under way."""

    run_id: str
    status: str
    nodes: tuple[NodeRun, ...]


class ForkPreview(Struct, frozen=True, kw_only=True):
    """What a fork would start with, and what would happen again in it.

    Attributes:
        checkpoint: of `thread`, where it would part.
        run_id: the run that wrote it.
        state: what the fork starts with, JSON-like, the update applied.
        next: nodes that come next; empty: the graph had ended there, nothing would run.
        snapshot: sandbox snapshot that it starts with.
        again: effects that others can see, that happened in the origin after the point, or may
            have, and that the fork would do again if it takes the same way; those of children, too.
        reused: the same, with a business key: the same key with the same arguments gives the first
            result, so they would not be sent again.
        children: (run id, graph) of child runs after the point: they would be started again.
        running: unfinished runs of the origin; they go on as they are.
        is_rerun: whether the point is the beginning of the run.
    """

    thread: str
    checkpoint: int
    run_id: str
    graph: str
    graph_version: int
    state: dict[str, Any]
    next: tuple[str, ...]
    snapshot: str | None
    again: tuple[EffectSeen, ...]
    reused: tuple[EffectSeen, ...]
    children: tuple[tuple[str, str], ...]
    running: tuple[Running, ...]
    is_rerun: bool


class NotUndone(Struct, frozen=True, kw_only=True):
    """An effect since the checkpoint, which a rollback leaves as it happened.

    Attributes:
        commands: what there is to do about it; empty: nothing that Perdure could do.
    """

    effect: EffectSeen
    commands: tuple[str, ...]


class RollbackPreview(Struct, frozen=True, kw_only=True):
    """What a rollback would put back, and what it would leave as it happened.

    Attributes:
        checkpoint: where to.
        newest: the thread's newest checkpoint.
        state: what the thread would have again, JSON-like.
        snapshot: sandbox snapshot that would be restored with it; None: empty files, or none.
        not_undone: effects since then that happened or may have.
        children: (run id, graph) of child runs that were started since then.
    """

    thread: str
    checkpoint: int
    newest: int
    state: dict[str, Any]
    snapshot: str | None
    not_undone: tuple[NotUndone, ...]
    children: tuple[tuple[str, str], ...]


class RolledBack(RollbackPreview, frozen=True, kw_only=True):
    """A rollback that was done.

    Attributes:
        run_id: the run that it is.
        new_checkpoint: the checkpoint that has that state now.
        by: who wanted it; recorded.
        reason: why; recorded.
    """

    run_id: str
    new_checkpoint: int
    by: str
    reason: str


# -- forks -----------------------------------------------------------------------------------------


async def fork_point(
    engine: Environment, tenant: TenantId, thread: ThreadId, at: int | None, *, rerun: bool
) -> At:
    """Return the checkpoint to fork at; `rerun`: the one that the run of `at` began with."""
    found = await load_checkpoint(engine.store, tenant, thread, at)
    if rerun:
        begin = found.run.base_checkpoint + 1
        found = await load_checkpoint(engine.store, tenant, thread, begin)
    return _brought_up(engine, found)


def _brought_up(engine: Environment, found: At) -> At:
    """Return a checkpoint as the version has it that migrations lead to, if its own is gone.

    Raises:
        MigrationFailed: it can't be brought there.
    """
    graph, version = found.run.graph, found.version
    if (graph, version) in engine.graphs() or engine.migrating_plan(graph, version) is None:
        return found
    plan, values, specs = state_at(engine, found)
    place = f"graph {plan.name!r}, field "
    cells = {
        name: fold.Cell(WriteOp.REPLACE, [Raw(engine.codec.encode(value, name, place))])
        for name, value in values.items()
    }
    return structs.replace(found, cells=cells, next=specs, version=plan.version, place=None)


async def preview_fork(
    engine: Environment,
    tenant: TenantId,
    thread: ThreadId,
    found: At,
    *,
    update: Mapping[str, Any],
    is_rerun: bool,
) -> ForkPreview:
    """Return what a fork at a checkpoint would start with and do again.

    Raises:
        UpdateInvalid: the update does not fit the state.
    """
    cells = {**found.cells, **_replaced(engine, found, update)}
    story = await tell(engine, found.run, after=found.checkpoint)
    again, children = await _happened(engine, story)
    return ForkPreview(
        thread=thread,
        checkpoint=found.checkpoint,
        run_id=found.run.run_id,
        graph=found.run.graph,
        graph_version=found.version,
        state=plain_values(cells, found.run, found.checkpoint),
        next=tuple(spec.node for spec in found.next),
        snapshot=found.snapshot,
        again=tuple(effect for effect in again if effect.business_key is None),
        reused=tuple(effect for effect in again if effect.business_key is not None),
        children=children,
        running=await _running(engine, tenant, thread),
        is_rerun=is_rerun,
    )


def fork_origin(row: RunRow) -> tuple[int, str] | None:
    """Return (checkpoint, thread) that a fork's first run says it was forked from; None: no fork.

    A fork of an older Perdure has an empty digest: its first record says it.
    """
    if row.ordinal != 1 or row.start_key is not None or not row.input_digest.startswith(FORK_MARK):
        return None
    checkpoint, _mark, thread = row.input_digest.removeprefix(FORK_MARK).partition(":")
    return int(checkpoint), thread


def does_inherit(found: At) -> bool:
    """Return whether a fork at a checkpoint refers to its state; else it holds it."""
    return found.place is not None and found.origins < FORK_CHAIN_MAX


def new_fork(
    engine: Environment,
    tenant: TenantId,
    thread: ThreadId,
    found: At,
    *,
    update: Mapping[str, Any],
    to: str | None,
) -> NewRun:
    """Return the run that a fork at a checkpoint is.

    Raises:
        UpdateInvalid: the update does not fit the state; nothing was written.
    """
    given = _replaced(engine, found, update)
    inherits = does_inherit(found)
    now_us = engine.now_us()
    run_id = engine.services.ids.new("r", now_us)
    record = rec.RunStarted(
        now_us,
        run_id,
        tenant,
        run_id if to is None else checked_name(to, "to"),
        found.run.graph,
        found.version,
        _whole(given if inherits else {**found.cells, **given}),
        origin_thread=thread,
        origin_checkpoint=found.checkpoint,
        next=found.next,
        snapshot=found.snapshot,
        inherits=inherits,
        state_at=found.place if inherits else None,
        subject=found.subject,
    )
    digest = f"{FORK_MARK}{found.checkpoint}:{thread}"
    origin = (thread, found.erased)
    return finish_new_run(engine, record, digest=digest, on_busy=OnBusy.REJECT, origin=origin)


async def check_new_thread(engine: Environment, tenant: TenantId, to: str) -> None:
    """Refuse to fork into a thread that exists: its state would be mixed with the fork's.

    Raises:
        Conflict: it exists; nothing was written.
    """
    if await engine.store.read_thread(tenant, ThreadId(to)) is not None:
        msg = (
            f"thread {to!r} exists, a fork needs a new one; nothing was started. Name another, or "
            f"none. {command('history', to)!r} shows what it has"
        )
        raise Conflict(msg, thread=to)


def _replaced(engine: Environment, found: At, update: Mapping[str, Any]) -> dict[str, fold.Cell]:
    """Return the cells of an update, checked against the state's type."""
    if not update:
        return {}
    plan = engine.plan_named(found.run.graph, found.version)
    values = plan.read_input(dict(update), False)  # noqa: FBT003  # the plan's form: is_first
    writes = encode_writes(engine, plan, values, "field")
    return {name: fold.Cell(WriteOp.REPLACE, [raw]) for name, (_op, raw) in writes.items()}


def _whole(cells: Mapping[str, fold.Cell]) -> dict[str, tuple[str, Raw]]:
    """Return cells as an input that replaces every field."""
    return {name: (WriteOp.REPLACE.value, _one_piece(cell)) for name, cell in cells.items()}


def _one_piece(cell: fold.Cell) -> Raw:
    """Return a cell's value as one encoded piece: pieces of a list are put behind each other."""
    if len(cell.pieces) == 1:
        return cell.pieces[0]
    items = [
        item for piece in cell.pieces for item in msgspec.msgpack.decode(piece, type=list[Raw])
    ]
    return Raw(msgspec.msgpack.encode(items))


async def _as_it_stands(engine: Environment, effect: EffectSeen) -> EffectSeen:
    """Return an effect with its state of now, where the record of its outcome was pruned."""
    if effect.state != "intended":
        return effect
    row = await engine.store.read_effect(EffectId(effect.id))
    return effect if row is None else structs.replace(effect, state=row.state.value)


async def _happened(
    engine: Environment, story: Story, depth: int = 0
) -> tuple[tuple[EffectSeen, ...], tuple[tuple[str, str], ...]]:
    """Return what others could see of a story: effects that happened or may have, and children.

    Effects of children are among them.
    """
    effects = []
    for told in story.effects.values():
        effect = await _as_it_stands(engine, told)
        if effect.is_outside and effect.state != "failed" and effect.via != "key":
            effects.append(effect)
    children = list(story.children)
    for child, _graph in story.children if depth < AGAIN_DEPTH_MAX else ():
        row = await engine.store.read_run(RunId(child))
        if row is not None:
            inner, grandchildren = await _happened(engine, await tell(engine, row), depth + 1)
            effects += inner
            children += grandchildren
    return tuple(effects), tuple(children)


async def _running(engine: Environment, tenant: TenantId, thread: ThreadId) -> tuple[Running, ...]:
    found = []
    for row in await _unfinished(engine, tenant, thread):
        story = await tell(engine, row)
        nodes = story.under_way
        found.append(Running(run_id=row.run_id, status=row.status.value, nodes=nodes))
    return tuple(found)


async def _unfinished(engine: Environment, tenant: TenantId, thread: ThreadId) -> list[RunRow]:
    statuses = tuple(status for status in RunStatus if not status.is_final)
    query = RunQuery(tenant=tenant, thread=thread, statuses=statuses, limit=ROWS_MAX)
    return (await engine.store.find_runs(query))[::-1]


# -- rollbacks -------------------------------------------------------------------------------------


async def preview_rollback(
    engine: Environment, tenant: TenantId, thread: ThreadId, at: int
) -> tuple[RollbackPreview, At]:
    """Return what a rollback would do, and the checkpoint that it goes back to.

    Raises:
        NotFound: no such thread or checkpoint.
        ThreadBusy: a run of the thread has not ended; says which, and how to end it.
        UsageError: it is the newest checkpoint, so that there is nothing to put back.
    """
    found = await load_checkpoint(engine.store, tenant, thread, at)
    unfinished = await _unfinished(engine, tenant, thread)
    if unfinished:
        raise _busy(thread, unfinished)
    rows = await engine.store.read_thread_runs(tenant, thread, from_ordinal=found.run.ordinal)
    newest = max(row.checkpoint for row in rows)
    if at == newest:
        msg = (
            f"checkpoint {at} is the newest of thread {thread!r}; nothing was changed. "
            f"{command('history', thread)!r} lists the others"
        )
        raise UsageError(msg, thread=thread, checkpoint=at)
    effects: list[EffectSeen] = []
    children: list[tuple[str, str]] = []
    for row in rows:
        after = at if row.run_id == found.run.run_id else None
        happened, spawned = await _happened(engine, await tell(engine, row, after=after))
        effects += happened
        children += spawned
    preview = RollbackPreview(
        thread=thread,
        checkpoint=at,
        newest=newest,
        state=plain_values(found.cells, found.run, found.checkpoint),
        snapshot=found.snapshot,
        not_undone=tuple(_not_undone(e) for e in effects if e.state != "compensated"),
        children=tuple(children),
    )
    return preview, found


def _busy(thread: str, rows: list[RunRow]) -> ThreadBusy:
    ids = [row.run_id for row in rows]
    commands = [command("cancel", run_id) for run_id in ids]
    named = ", ".join(f"{row.run_id} ({row.status.value})" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""  # noqa: PLR2004  # those named
    msg = (
        f"thread {thread!r} has unfinished runs: {named}{more}; nothing was changed. A rollback "
        "needs a thread at rest: let them end, or cancel them"
    )
    shown = [command("show", run_id) for run_id in ids[:1]]
    return ThreadBusy(msg, thread=thread, runs=ids, next=[*shown, *commands])


def _not_undone(effect: EffectSeen) -> NotUndone:
    is_open = effect.state == "uncertain"
    return NotUndone(effect=effect, commands=resolve_commands(effect.id) if is_open else ())


async def roll_back(
    engine: Environment,
    tenant: TenantId,
    thread: ThreadId,
    at: int,
    *,
    by: str,
    reason: str,
) -> RolledBack:
    """Put a thread back to a checkpoint; see `Runtime.rollback`."""
    preview, found = await preview_rollback(engine, tenant, thread, at)
    new = _new_rollback(engine, found, tenant, by=by, reason=reason)
    has_files = found.snapshot is not None
    async with pinned(engine, found, new.run_id, is_needed=has_files):
        checkpoint = await _write_rollback(engine, new, found)
    if has_files:
        await engine.store.drop_tag(tenant, thread, f"{PIN_MARK}{new.run_id}")
    return RolledBack(
        **{name: getattr(preview, name) for name in RollbackPreview.__struct_fields__},
        run_id=new.run_id,
        new_checkpoint=checkpoint,
        by=by,
        reason=reason,
    )


def _new_rollback(
    engine: Environment, found: At, tenant: TenantId, *, by: str, reason: str
) -> NewRun:
    """Return the run that a rollback is."""
    now_us = engine.now_us()
    record = rec.RunStarted(
        now_us,
        engine.services.ids.new("r", now_us),
        tenant,
        found.run.thread,
        found.run.graph,
        found.version,
        _whole(found.cells),
        next=[],
        snapshot=found.snapshot,
        rollback=rec.Rollback(found.checkpoint, by, reason),
    )
    digest = f"{ROLLBACK_MARK}{found.checkpoint}"
    origin = (found.run.thread, found.erased)
    return finish_new_run(engine, record, digest=digest, on_busy=OnBusy.REJECT, origin=origin)


async def _write_rollback(engine: Environment, new: NewRun, found: At) -> int:
    """Start the run that a rollback is and bring it to its end; return its checkpoint.

    Whoever dies in between leaves a run that any worker of its graph ends in the same way: its
    start record has everything.

    Raises:
        ThreadBusy: another run of the thread was started meanwhile; nothing was written.
    """
    holder = WorkerId(engine.services.ids.new("w", engine.now_us()))
    started = await engine.starts.submit(structs.replace(new, take_for=holder))
    row = started.row if started.taken else await take(engine, started.row, holder)
    if row is None:
        return await _await_end(engine, new.run_id)  # a worker was faster
    now_us = engine.now_us()
    checkpoint = row.base_checkpoint + 1
    status = RunStatus.SUCCEEDED
    records: list[rec.Record] = [
        rec.StepCommitted(now_us, "", fold.INPUT_STEP, checkpoint, {}, [], found.snapshot),
        rec.RunEnded(now_us, status.value, checkpoint),
    ]
    change = RunEnded(status=status, at_us=now_us, checkpoint=checkpoint)
    await write_released(engine, row, records, change)
    engine.poke()
    return checkpoint


async def _await_end(engine: Environment, run_id: RunId) -> int:
    """Return the checkpoint that a rollback ended with which a worker has taken."""
    while True:
        mark = engine.store.change_mark()
        row = await engine.store.read_run(run_id)
        if row is None or row.status.is_final:
            return row.checkpoint if row is not None else 0
        await engine.wait_for_news(run_id, mark, row.last_seq)
