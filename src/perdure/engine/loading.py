"""Load a run, or a thread's state: the fold of the journal from the newest whole copy on.

Every frame's chain hash is checked on the way: what was read is what was written, or
`StoreCorrupt`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from perdure.codec import NO_HASH, chain_hash, decode_record, split_frame
from perdure.core import fold
from perdure.engine.paging import Field, inline_cells, inline_state
from perdure.errors import InvariantBroken, LeaseLost, NotFound, StoreCorrupt
from perdure.ids import TenantId, ThreadId
from perdure.model import FrameRow, RunRow, RunStatus, ThreadRow
from perdure.model import records as rec
from perdure.store.api import Store


class Line(Struct):
    """A thread's committed state: cells, the sandbox snapshot that goes with it, bytes read."""

    cells: dict[str, fold.Cell]
    snapshot: str | None
    size: int
    whole: int = 0


class At(Struct, frozen=True, kw_only=True):
    """A thread at one of its checkpoints.

    Attributes:
        cells: the state.
        run: the run that wrote the checkpoint.
        checkpoint: its id.
        next: what was to run next.
        snapshot: sandbox snapshot that goes with it.
    """

    cells: dict[str, fold.Cell]
    run: RunRow
    checkpoint: int
    next: list[rec.TaskSpec]
    snapshot: str | None


class Loaded(Struct):
    """A run as its next holder finds it.

    `journal_bytes`: journal read since the whole copy of `whole_bytes` that loading started at.
    `stored`: of each field in pages its encoding, and the hashes of its pages.
    """

    state: fold.RunState
    prev_hash: bytes
    journal_bytes: int
    whole_bytes: int = 0
    stored: Mapping[Field, tuple[bytes, frozenset[bytes]]] = {}


def check_frame(frame: FrameRow, previous: FrameRow | None) -> list[bytes]:
    """Return a frame's encoded records, after proving that they are what was written.

    Raises:
        StoreCorrupt: the count, the seq or the hash is wrong; names run and seq.
    """
    records = split_frame(frame.body)
    expected = chain_hash(frame.prev_hash, frame.run_id, frame.first_seq, frame.token, records)
    is_linked = previous is None or (
        frame.prev_hash == previous.hash and frame.first_seq == previous.first_seq + previous.count
    )
    if previous is None and frame.first_seq == 1:
        is_linked = frame.prev_hash == NO_HASH
    if len(records) != frame.count or expected != frame.hash or not is_linked:
        msg = (
            f"run {frame.run_id!r}: the journal at seq {frame.first_seq} is not what was written "
            "(hash chain broken); nothing was changed. Restore the store from a backup; 'perdure "
            "doctor' lists the damage."
        )
        raise StoreCorrupt(msg, run_id=frame.run_id, seq=frame.first_seq)
    return records


async def read_records(
    store: Store, run_id: str, from_seq: int = 1, *, limit: int | None = None
) -> list[tuple[int, FrameRow, rec.Record]]:
    """Return (seq, frame, record) of a run from a seq on, verified; `limit`: frames at most."""
    frames = await store.read_frames(run_id, from_seq=from_seq, limit=limit)  # type: ignore[arg-type]  # ids are strings here
    found = []
    previous: FrameRow | None = None
    for frame in frames:
        for offset, encoded in enumerate(check_frame(frame, previous)):
            if frame.first_seq + offset >= from_seq:
                found.append((frame.first_seq + offset, frame, decode_record(encoded)))
        previous = frame
    return found


async def load_thread_line(
    store: Store, tenant: TenantId, thread: ThreadId, before_ordinal: int
) -> Line:
    """Return the thread's newest committed state before a run."""
    line = Line({}, None, 0)
    row = await store.read_thread(tenant, thread)
    if row is None or before_ordinal <= 1:
        return line
    from_ordinal = max(row.base_ordinal, 1)
    for run in await store.read_thread_runs(tenant, thread, from_ordinal=from_ordinal):
        if run.ordinal >= before_ordinal:
            break
        from_seq = row.base_seq if run.ordinal == row.base_ordinal and row.base_seq else 1
        loaded = await _fold_frames(store, run, line, from_seq)
        line.cells = loaded.state.root.cells
        line.snapshot = loaded.state.step_snapshot
        line.size += loaded.journal_bytes
        line.whole += loaded.whole_bytes
    return line


async def _fold_frames(store: Store, run: RunRow, line: Line, from_seq: int) -> Loaded:
    state = fold.RunState(run.run_id)
    state.root.cells = line.cells
    state.snapshot = state.step_snapshot = line.snapshot
    state.checkpoint = run.base_checkpoint
    frames = await store.read_frames(run.run_id, from_seq=from_seq)
    if from_seq > 1:
        first = await store.read_frames(run.run_id, from_seq=1, limit=1)
        state.started = _started_of(first)
    state.last_seq = from_seq - 1
    size = whole = 0
    previous: FrameRow | None = None
    for frame in frames:
        size += len(frame.body)
        for offset, encoded in enumerate(check_frame(frame, previous)):
            seq = frame.first_seq + offset
            if seq >= from_seq:
                fold.apply(state, decode_record(encoded))
            if seq == from_seq > 1:
                whole = len(encoded)  # the copy that loading starts at
        previous = frame
    return Loaded(state, previous.hash if previous else NO_HASH, size - whole, whole)


def _started_of(frames: Sequence[FrameRow]) -> rec.RunStarted:
    record = decode_record(check_frame(frames[0], None)[0])
    if not isinstance(record, rec.RunStarted):
        msg = f"run {frames[0].run_id!r}: the journal does not begin with a start record"
        raise InvariantBroken(msg, run_id=frames[0].run_id)
    return record


async def _check_held(store: Store, row: RunRow) -> None:
    """Raise LeaseLost if the run is not held under the row's token any more."""
    current = await store.read_run(row.run_id)
    if current is None or current.token != row.token or current.status is not RunStatus.RUNNING:
        msg = f"run {row.run_id!r} was lost before its claim was answered; nothing was written"
        raise LeaseLost(msg, run_id=row.run_id, token=row.token)


async def load_run(store: Store, row: RunRow) -> Loaded:
    """Return the run's state as of its newest durable record.

    Raises:
        StoreCorrupt, DecodeFailed: the journal is damaged, or its last seq is not the row's.
        LeaseLost: the answer of the claim was so late that the run is somebody else's by now.
    """
    thread = await store.read_thread(row.tenant, row.thread)
    from_seq = 1
    if thread is not None and thread.base_ordinal == row.ordinal and thread.base_seq:
        from_seq = thread.base_seq
    line = Line({}, None, 0)
    if from_seq == 1:
        line = await load_thread_line(store, row.tenant, row.thread, row.ordinal)
    loaded = await _fold_frames(store, row, line, from_seq)
    loaded.journal_bytes += line.size
    loaded.whole_bytes += line.whole
    fold.settle_sandbox(loaded.state)
    loaded.stored = await inline_state(store, row.tenant, loaded.state)
    if loaded.state.last_seq != row.last_seq:
        await _check_held(store, row)
        msg = (
            f"run {row.run_id!r}: its journal ends at seq {loaded.state.last_seq}, its row says "
            f"{row.last_seq}; nothing was changed. Restore the store from a backup."
        )
        raise StoreCorrupt(msg, run_id=row.run_id)
    return loaded


def decode_cells(cells: dict[str, fold.Cell], decode: Callable[[Raw], Any]) -> dict[str, Any]:
    """Return the live values of cells."""
    return {name: fold.decode_cell(cell, decode) for name, cell in cells.items()}


async def load_checkpoint(
    store: Store, tenant: TenantId, thread: ThreadId, checkpoint: int | None
) -> At:
    """Return the thread's state at a checkpoint (None: the newest).

    Raises:
        NotFound: no such thread, or no such checkpoint; names what there is.
    """
    runs = await store.read_thread_runs(tenant, thread, from_ordinal=1)
    if not runs:
        msg = (
            f"no thread {thread!r} for tenant {tenant!r}; 'perdure ps --all' lists the runs and "
            "their threads"
        )
        raise NotFound(msg, thread=thread, tenant=tenant)
    found: At | None = None
    newest = 0
    cells: dict[str, fold.Cell] = {}
    for row, from_seq in await _runs_to_fold(store, tenant, thread, runs, checkpoint):
        state = fold.RunState(row.run_id)
        state.root.cells = cells
        state.checkpoint = row.base_checkpoint
        for _seq, _frame, record in await read_records(store, row.run_id, from_seq):
            fold.apply(state, record)
            if not _is_checkpoint(record):
                continue
            newest = state.checkpoint
            if checkpoint is None or newest == checkpoint:
                found = _at(state, row, record)
            if newest == checkpoint and found is not None:
                return await _inlined(store, found)
        cells = state.root.cells
    if found is None or checkpoint is not None:
        msg = (
            f"thread {thread!r} has no checkpoint {checkpoint}; it has 1 to {newest}: "
            f"'perdure history {thread}' lists them"
        )
        raise NotFound(msg, thread=thread, checkpoint=checkpoint, newest=newest)
    return await _inlined(store, found)


async def _inlined(store: Store, at: At) -> At:
    place = f"thread {at.run.thread!r}, checkpoint {at.checkpoint}"
    await inline_cells(store, at.run.tenant, place, at.cells)
    return at


def _is_checkpoint(record: rec.Record) -> bool:
    is_step = isinstance(record, rec.StepCommitted) and record.scope == ""
    return is_step or isinstance(record, rec.StateSnapshot)


def _at(state: fold.RunState, row: RunRow, record: Any) -> At:
    copied = {
        name: fold.Cell(cell.op, list(cell.pieces)) for name, cell in state.root.cells.items()
    }
    return At(
        cells=copied,
        run=row,
        checkpoint=record.checkpoint,
        next=record.next,
        snapshot=record.snapshot,
    )


async def _is_after_base(
    store: Store, row: ThreadRow, runs: list[RunRow], checkpoint: int | None
) -> bool:
    if checkpoint is None:
        return True
    base = next(run for run in runs if run.ordinal == row.base_ordinal)
    [(_seq, _frame, record), *_rest] = await read_records(store, base.run_id, row.base_seq, limit=1)
    return isinstance(record, rec.StateSnapshot) and checkpoint >= record.checkpoint


async def _runs_to_fold(
    store: Store, tenant: TenantId, thread: ThreadId, runs: list[RunRow], checkpoint: int | None
) -> list[tuple[RunRow, int]]:
    """Return (run, first seq) pairs to fold, oldest first.

    They begin at the newest whole copy, or at seq 1 for a checkpoint that is older than that.
    """
    row = await store.read_thread(tenant, thread)
    if row is not None and row.base_seq and await _is_after_base(store, row, runs, checkpoint):
        return [
            (run, row.base_seq if run.ordinal == row.base_ordinal else 1)
            for run in runs
            if run.ordinal >= row.base_ordinal
        ]
    return [(run, 1) for run in runs]
