"""Load a run, or a thread's state: the fold of the journal from the newest whole copy on.

Every frame's chain hash is checked on the way: what was read is what was written, or
`StoreCorrupt`.

Size: every way to read a journal: its frames, its records, a run, a thread, a checkpoint.
"""

import datetime as dt
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from perdure.codec import (
    NO_HASH,
    decode_record,
    digests_of,
    is_erased,
    is_hash_right,
    record_digests,
    split_frame,
)
from perdure.core import fold
from perdure.engine.limits import FORK_CHAIN_MAX, FRAMES_READ
from perdure.engine.living import first_living, no_thread
from perdure.engine.marks import Counted, Mark, Start
from perdure.engine.paging import Field, inline_cells, inline_state
from perdure.errors import (
    DecodeFailed,
    HistoryPruned,
    InvariantBroken,
    LeaseLost,
    NotFound,
    RecordErased,
    StoreCorrupt,
)
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import FrameRow, RunRow, RunStatus, ThreadRow
from perdure.model import records as rec
from perdure.store.api import Store


class Line(Struct):
    """A thread's committed state: cells, the sandbox snapshot that goes with it.

    `size`: bytes of journal read since the newest whole copy, which is of `whole` bytes and was
    made at `mark`. `graph` and `version`: which graph version the newest of it was committed by.
    `tip`: id, last seq and last hash of the thread's newest run.
    """

    cells: dict[str, fold.Cell]
    snapshot: str | None
    size: int
    whole: int = 0
    mark: Mark | None = None
    graph: str = ""
    version: int = 0
    tip: tuple[str, int, str] | None = None


class At(Struct, frozen=True, kw_only=True):
    """A thread at one of its checkpoints.

    Attributes:
        cells: the state.
        run: the run that wrote the checkpoint.
        checkpoint: its id.
        next: what was to run next.
        snapshot: sandbox snapshot that goes with it.
        version: graph version whose state it is; the run may have moved on to another.
        place: where in the thread's journal the state is; None: it is not as stored there.
        origins: how many origins, one inheriting from the other, were read for it.
        thread: the thread's row as it was before the state was read.
    """

    cells: dict[str, fold.Cell]
    run: RunRow
    checkpoint: int
    next: list[rec.TaskSpec]
    snapshot: str | None
    version: int
    place: rec.StatePlace | None = None
    origins: int = 0
    thread: ThreadRow | None = None

    @property
    def subject(self) -> str | None:
        """Whom the thread is about."""
        return None if self.thread is None else self.thread.subject

    @property
    def erased(self) -> int:
        """Up to which ordinal the thread's runs had been erased when the state was read."""
        return 0 if self.thread is None else self.thread.erased


class Inherited(Struct, frozen=True):
    """The state that a fork begins with, and how many origins were read for it."""

    cells: dict[str, fold.Cell]
    origins: int

    @property
    def size(self) -> int:
        """Bytes of it, large fields as references."""
        return sum(len(memoryview(raw)) for cell in self.cells.values() for raw in cell.pieces)


class Loaded(Struct):
    """A run as its next holder finds it.

    `journal_bytes`: journal read since the whole copy of `whole_bytes` that loading started at.
    `mark`: where that copy was made.
    `stored`: of each field in pages its encoding, and the hashes of its pages.
    `line`: graph and version of the thread's state that it was loaded on; ("", 0): there was none.
    `tip`: id, last seq and last hash of the thread's run before; None: it was not read.
    """

    state: fold.RunState
    prev_hash: bytes
    journal_bytes: int
    whole_bytes: int = 0
    stored: Mapping[Field, tuple[bytes, frozenset[bytes]]] = {}
    mark: Mark | None = None
    line: tuple[str, int] = ("", 0)
    tip: tuple[str, int, str] | None = None

    def anchor(self, row: RunRow) -> tuple[Any, ...]:
        """Return the fields of `LeaseTaken` that pin what stands before the run on its thread."""
        if self.state.is_anchored:
            return ()
        if row.ordinal == 1:
            return (1,)
        return () if self.tip is None else (row.ordinal, *self.tip)


def check_frame(frame: FrameRow, previous: FrameRow | None) -> list[bytes]:
    """Return a frame's encoded records, after proving that they are what was written.

    Raises:
        StoreCorrupt: the count, the seq or the hash is wrong; names run and seq.
        DecodeFailed: it can't be read (`RecordErased`: on purpose); names run and seq.
    """
    try:
        records = split_frame(frame.body)
    except DecodeFailed as error:
        raise _located(error, frame, frame.first_seq) from error
    _check_hash(frame, previous, record_digests(records))
    return records


def _check_hash(frame: FrameRow, previous: FrameRow | None, digests: list[bytes]) -> None:
    is_linked = previous is None or (
        frame.prev_hash == previous.hash and frame.first_seq == previous.first_seq + previous.count
    )
    if previous is None and frame.first_seq == 1:
        is_linked = frame.prev_hash == NO_HASH
    if len(digests) != frame.count or not is_hash_right(frame, digests) or not is_linked:
        msg = (
            f"run {frame.run_id!r}: the journal at seq {frame.first_seq} is not what was written "
            "(hash chain broken); nothing was changed. Restore the store from a backup; 'perdure "
            "audit verify' lists the damage."
        )
        raise StoreCorrupt(msg, run_id=frame.run_id, seq=frame.first_seq)


def _located(error: DecodeFailed, frame: FrameRow, seq: int) -> DecodeFailed:
    """Return the error with where in which journal it arose."""
    return error.located(f"run {frame.run_id!r}, seq {seq}", run_id=frame.run_id, seq=seq)


def record_at(frame: FrameRow, seq: int, encoded: bytes) -> rec.Record:
    """Return the record at a seq of a frame.

    Raises:
        DecodeFailed: it can't be read; names run and seq.
    """
    try:
        return decode_record(encoded)
    except DecodeFailed as error:
        raise _located(error, frame, seq) from error


async def read_records(
    store: Store, run_id: str, from_seq: int = 1, *, limit: int | None = None
) -> list[tuple[int, FrameRow, rec.Record]]:
    """Return (seq, frame, record) of a run from a seq on, verified; `limit`: frames at most.

    Raises:
        HistoryPruned: records of it were pruned.
    """
    frames = await store.read_frames(run_id, from_seq=from_seq, limit=limit)  # type: ignore[arg-type]  # ids are strings here
    found = []
    previous: FrameRow | None = None
    for frame in frames:
        try:
            records = check_frame(frame, previous)
        except RecordErased as error:
            raise HistoryPruned(str(error), run_id=run_id, seq=frame.first_seq) from error
        found += _records_of(frame, records, from_seq)
        previous = frame
    return found


def _records_of(
    frame: FrameRow, records: Sequence[bytes], from_seq: int
) -> list[tuple[int, FrameRow, rec.Record]]:
    return [
        (seq, frame, record_at(frame, seq, encoded))
        for seq, encoded in enumerate(records, frame.first_seq)
        if seq >= from_seq
    ]


async def read_kept(
    store: Store, run_id: str, from_seq: int = 1
) -> list[tuple[int, FrameRow, rec.Record]]:
    """Return (seq, frame, record) of what is left of a run from a seq on, verified.

    Where records were pruned, their seqs are missing.
    """
    found = []
    previous: FrameRow | None = None
    for frame in await store.read_frames(run_id, from_seq=from_seq):  # type: ignore[arg-type]  # ids are strings here
        if is_erased(frame.body):
            _check_hash(frame, previous, digests_of(frame.body))
        else:
            found += _records_of(frame, check_frame(frame, previous), from_seq)
        previous = frame
    return found


def resumed(state: fold.RunState, seq: int, record: rec.Record) -> fold.RunState | None:
    """Return the state to apply a record to: a fresh one after a gap; None: leave the record out.

    After a gap records are left out up to one that needs nothing of what came before.
    """
    if seq == state.last_seq + 1:
        return state
    return after_gap(state, seq) if is_resumable(record) else None


def is_resumable(record: rec.Record) -> bool:
    """Return whether folding can go on here after a gap: what came before is not needed."""
    return isinstance(record, rec.StepCommitted) and record.scope == ""


def after_gap(state: fold.RunState, seq: int) -> fold.RunState:
    """Return the state to go on with at a record that `is_resumable`."""
    fresh = fold.RunState(state.run_id)
    fresh.started = state.started
    fresh.checkpoint = state.checkpoint
    fresh.last_seq = seq - 1
    return fresh


async def _find_start(store: Store, tenant: TenantId, thread: ThreadId) -> Start:
    """Return where folding a thread starts: at its newest whole copy, or at its beginning."""
    row = await store.read_thread(tenant, thread)
    if row is None or not row.base_seq:
        return Start(first_living(row), 0)
    return await _start_of(store, tenant, thread, row.base_ordinal, row.base_seq)


async def find_start_at(store: Store, tenant: TenantId, thread: ThreadId, checkpoint: int) -> Start:
    """Return where folding a thread up to a checkpoint starts: at the newest copy that it can use.

    Threads of before there was an index of copies start at their beginning.
    """
    copies = await store.find_copies(tenant, thread, upto=checkpoint, limit=1)
    if not copies:
        return Start(first_living(await store.read_thread(tenant, thread)), 0)
    return await _start_of(store, tenant, thread, copies[0].ordinal, copies[0].seq)


async def _start_of(
    store: Store, tenant: TenantId, thread: ThreadId, ordinal: int, seq: int
) -> Start:
    """Return where folding starts with the copy that stands there.

    Raises:
        StoreCorrupt: there is none.
    """
    [base, *_later] = await store.read_thread_runs(tenant, thread, from_ordinal=ordinal)
    return await _start_at(store, base, seq)


async def _start_at(store: Store, base: RunRow, at_seq: int) -> Start:
    """Return where folding starts by the whole copy that is a record of a run."""
    [(seq, _frame, record), *_more] = await read_records(store, base.run_id, at_seq, limit=1)
    if isinstance(record, rec.StateCopied):
        return Start(record.since_ordinal, record.since_seq, record, base.ordinal, seq)
    if isinstance(record, rec.StateSnapshot):
        return Start(base.ordinal, seq, record, base.ordinal, seq)
    msg = (
        f"run {base.run_id!r}: record {seq} is to be a copy of its thread's state, and "
        "it is none; nothing was changed. Restore the store from a backup."
    )
    raise StoreCorrupt(msg, run_id=base.run_id, seq=seq)


async def _load_line(
    store: Store, tenant: TenantId, thread: ThreadId, start: Start, before_ordinal: int
) -> Line:
    """Return the thread's newest committed state before a run."""
    line = Line({}, None, 0, tip=await _tip_before(store, tenant, thread, start))
    if start.ordinal >= before_ordinal:
        return line
    for run in await store.read_thread_runs(tenant, thread, from_ordinal=start.ordinal):
        if run.ordinal >= before_ordinal:
            break
        loaded = await _fold_frames(store, run, line, start)
        has_committed = loaded.state.root.is_started
        line = Line(
            loaded.state.root.cells if has_committed or run.ordinal > 1 else {},
            loaded.state.step_snapshot,
            loaded.journal_bytes,
            loaded.whole_bytes,
            loaded.mark,
            run.graph if has_committed else line.graph,
            run.version if has_committed else line.version,
            (run.run_id, loaded.state.last_seq, loaded.prev_hash.hex()),
        )
    return line


async def _tip_before(
    store: Store, tenant: TenantId, thread: ThreadId, start: Start
) -> tuple[str, int, str] | None:
    """Return where the journal of an erased run ends that the start stands on: hashes are left."""
    if start.ordinal == 1 or start.record is not None:
        return None
    [before, *_later] = await store.read_thread_runs(tenant, thread, from_ordinal=start.ordinal - 1)
    [last] = await store.read_frames(before.run_id, from_seq=before.last_seq)
    return before.run_id, before.last_seq, last.hash.hex()


async def load_thread_line(store: Store, tenant: TenantId, thread: ThreadId) -> Line:
    """Return the thread's newest committed state, large fields too."""
    start = await _find_start(store, tenant, thread)
    line = await _load_line(store, tenant, thread, start, _EVER)
    await inline_cells(store, tenant, f"thread {thread!r}", line.cells)
    return line


_EVER = 1 << 62
"""Above every ordinal of a thread's runs."""


async def _fold_frames(store: Store, run: RunRow, line: Line, start: Start) -> Loaded:
    """Fold one run of a thread on what came before it."""
    state = fold.RunState(run.run_id)
    state.root.cells = line.cells
    state.snapshot = state.step_snapshot = line.snapshot
    state.checkpoint = run.base_checkpoint
    after = start.seq if run.ordinal == start.ordinal else 0
    counted = Counted(line.size, line.whole, line.mark)
    if after:
        first = await store.read_frames(run.run_id, from_seq=1, limit=1)
        state.started = _started_of(first)
        state.last_seq = after
    if run.ordinal == start.ordinal and start.record is not None:
        fold.start_at(state, start.record)
        counted.begin(start, state)
    previous: FrameRow | None = None
    for frame in await store.read_frames(run.run_id, from_seq=max(after, 1)):
        counted.size += len(frame.body)
        for offset, encoded in enumerate(check_frame(frame, previous)):
            seq = frame.first_seq + offset
            if seq <= after:
                continue
            record = record_at(frame, seq, encoded)
            fold.apply(state, record)
            if isinstance(record, rec.RunStarted) and record.inherits:
                inherited = await load_inherited(store, record)
                state.root.cells = inherited.cells
                counted.whole = inherited.size
            if isinstance(record, rec.StateCopied):
                counted.passed(record, state, run.ordinal, seq, len(encoded))
        previous = frame
    return Loaded(
        state,
        previous.hash if previous else NO_HASH,
        counted.size,
        counted.whole,
        mark=counted.mark,
    )


def _started_of(frames: Sequence[FrameRow]) -> rec.RunStarted:
    record = record_at(frames[0], 1, check_frame(frames[0], None)[0])
    if not isinstance(record, rec.RunStarted):
        msg = f"run {frames[0].run_id!r}: the journal does not begin with a start record"
        raise InvariantBroken(msg, run_id=frames[0].run_id)
    return record


# -- what a fork inherits --------------------------------------------------------------------------


async def load_inherited(store: Store, started: rec.RunStarted, origins: int = 0) -> Inherited:
    """Return the state that a fork begins with, large fields as references.

    Args:
        store: where both threads are.
        started: start record of the fork.
        origins: how many origins were read already, each for the one before.

    Raises:
        StoreCorrupt, DecodeFailed: the origin is gone, erased or damaged; names the fork, its
            origin and the checkpoint.
    """
    origin = ThreadId(started.origin_thread or "")
    where = {
        "tenant": started.tenant,
        "thread": started.thread,
        "run_id": started.run_id,
        "origin_thread": origin,
        "origin_checkpoint": started.origin_checkpoint,
    }
    place = (
        f"thread {started.thread!r} was forked from checkpoint {started.origin_checkpoint} of "
        f"thread {origin!r} and needs its state"
    )
    try:
        state_at = _checked_place(started, origins)
        return await _read_place(store, TenantId(started.tenant), origin, state_at, origins + 1)
    except (DecodeFailed, StoreCorrupt) as error:
        raise error.located(place, **where) from error


def _checked_place(started: rec.RunStarted, origins: int) -> rec.StatePlace:
    if started.state_at is None or origins > FORK_CHAIN_MAX:
        where_to = "nowhere" if started.state_at is None else "through too many origins"
        msg = f"its start record leads {where_to}; nothing was changed. Restore from a backup"
        raise StoreCorrupt(msg)
    return started.state_at


async def read_place(store: Store, found: At) -> None:
    """Read the state of a checkpoint once more, as a fork of it will.

    Raises:
        HistoryPruned: a part of it was pruned.
        StoreCorrupt, DecodeFailed: a part of it is missing or damaged.
    """
    if found.place is not None:
        run = found.run
        try:
            await _read_place(store, run.tenant, run.thread, found.place, 0)
        except HistoryPruned:
            raise
        except RecordErased as error:
            raise HistoryPruned(str(error), thread=run.thread) from error


async def _read_place(
    store: Store, tenant: TenantId, thread: ThreadId, place: rec.StatePlace, origins: int
) -> Inherited:
    """Return a thread's state at a place of its journal: it is read no further than that."""
    first = place.copy_ordinal or first_living(await store.read_thread(tenant, thread))
    runs = await store.read_thread_runs(tenant, thread, from_ordinal=first)
    needed = [run for run in runs if run.ordinal <= place.ordinal]
    if not needed or [run.ordinal for run in needed] != [*range(first, place.ordinal + 1)]:
        raise _gone(thread)
    start = Start(first, 0)
    if place.copy_seq:
        start = await _start_at(store, needed[0], place.copy_seq)
        runs = await store.read_thread_runs(tenant, thread, from_ordinal=start.ordinal)
        needed = [run for run in runs if run.ordinal <= place.ordinal]
    held = Inherited({}, origins)
    for run in needed:
        upto = place.seq if run.ordinal == place.ordinal else None
        held = await _fold_upto(store, run, held, start, upto=upto, origins=origins)
    return held


def _gone(thread: str) -> StoreCorrupt:
    msg = (
        f"thread {thread!r} has not all of its journal any more; nothing was changed. Restore the "
        "store from a backup; 'perdure tree' shows what was forked from where"
    )
    return StoreCorrupt(msg)


async def _fold_upto(
    store: Store, run: RunRow, before: Inherited, start: Start, *, upto: int | None, origins: int
) -> Inherited:
    """Return the state after a record of a run (None: its last one), by the state before it."""
    state = fold.RunState(run.run_id)
    state.root.cells = before.cells
    state.checkpoint = run.base_checkpoint
    found = before.origins
    after = start.seq if run.ordinal == start.ordinal else 0
    state.last_seq = after
    if run.ordinal == start.ordinal and start.record is not None:
        fold.start_at(state, start.record)
    async for record in _records_upto(store, run.run_id, after, upto):
        fold.apply(state, record)
        if isinstance(record, rec.RunStarted) and record.inherits:
            inherited = await load_inherited(store, record, origins)
            state.root.cells, found = inherited.cells, inherited.origins
    if upto is not None and state.last_seq < upto:
        raise _gone(run.thread)
    has_state = state.root.is_started or run.ordinal > 1
    return Inherited(state.root.cells if has_state else {}, found)


async def _records_upto(
    store: Store, run_id: RunId, after: int, upto: int | None
) -> AsyncIterator[rec.Record]:
    """Yield the records of a run from after one of them up to another, verified."""
    previous: FrameRow | None = None
    last = after
    while upto is None or last < upto:
        frames = await store.read_frames(run_id, from_seq=last + 1, limit=FRAMES_READ)
        for frame in frames:
            if upto is not None and frame.first_seq > upto:
                return  # what stands behind it may have been pruned, and is nothing of it
            for seq, encoded in enumerate(check_frame(frame, previous), frame.first_seq):
                if after < seq and (upto is None or seq <= upto):
                    yield record_at(frame, seq, encoded)
            previous = frame
            last = frame.first_seq + frame.count - 1
        if len(frames) < FRAMES_READ:
            return


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
    start = await _find_start(store, row.tenant, row.thread)
    line = await _load_line(store, row.tenant, row.thread, start, row.ordinal)
    loaded = await _fold_frames(store, row, line, start)
    loaded.line = (line.graph, line.version)
    loaded.tip = line.tip
    fold.settle_sandbox(loaded.state)
    try:
        loaded.stored = await inline_state(store, row.tenant, loaded.state)
    except StoreCorrupt as error:
        where = {"tenant": row.tenant, "thread": row.thread, "run_id": row.run_id}
        raise error.located(**where, checkpoint=loaded.state.checkpoint) from error
    if loaded.state.last_seq != row.last_seq:
        await _check_held(store, row)
        msg = (
            f"run {row.run_id!r}: its journal ends at seq {loaded.state.last_seq}, its row says "
            f"{row.last_seq}; nothing was changed. Restore the store from a backup."
        )
        raise StoreCorrupt(msg, run_id=row.run_id)
    return loaded


def decode_cells(
    cells: dict[str, fold.Cell], decode: Callable[[Raw], Any], row: RunRow, checkpoint: int
) -> dict[str, Any]:
    """Return the live values of cells.

    Args:
        cells: the state.
        decode: reads one encoded value.
        row: the run whose state it is, for the error.
        checkpoint: the checkpoint that it is of, for the error.

    Raises:
        DecodeFailed, TypeUnknown: names thread, run, checkpoint and channel.
    """
    values = {}
    for name, cell in cells.items():
        try:
            values[name] = fold.decode_cell(cell, decode)
        except DecodeFailed as error:
            raise at_channel(error, row, checkpoint, name) from error
    return values


def at_channel(error: DecodeFailed, row: RunRow, checkpoint: int, channel: str) -> DecodeFailed:
    """Return the error with which value could not be read."""
    return error.located(
        f"thread {row.thread!r}, checkpoint {checkpoint} (run {row.run_id!r}), field {channel!r}",
        tenant=row.tenant,
        thread=row.thread,
        run_id=row.run_id,
        checkpoint=checkpoint,
        channel=channel,
    )


async def load_checkpoint(
    store: Store, tenant: TenantId, thread: ThreadId, checkpoint: int | None
) -> At:
    """Return the thread's state at a checkpoint (None: the newest).

    Where a run was moved to another graph version at it: as the state is after that.

    Raises:
        NotFound: no such thread, or no such checkpoint; names what there is.
        HistoryPruned: the checkpoint was pruned.
    """
    try:
        return await _inlined(store, await _find_checkpoint(store, tenant, thread, checkpoint))
    except (StoreCorrupt, HistoryPruned):
        # Once more: what is missing may have been pruned just then, which this says.
        return await _inlined(store, await _find_checkpoint(store, tenant, thread, checkpoint))


async def _find_checkpoint(
    store: Store, tenant: TenantId, thread: ThreadId, checkpoint: int | None
) -> At:
    """Return the thread's state at a checkpoint, with references to pages."""
    of_thread = await store.read_thread(tenant, thread)
    first = first_living(of_thread)
    runs = await store.read_thread_runs(tenant, thread, from_ordinal=first)
    if not runs:
        raise no_thread(tenant, thread, of_thread)
    start = await _find_start(store, tenant, thread)
    if checkpoint is not None and checkpoint < start.made_at:
        start = await find_start_at(store, tenant, thread, checkpoint)
    search = _Search(checkpoint, start)
    for row in runs:
        if row.ordinal >= start.ordinal and await search.look(store, row, start):
            return replace(search.of(), thread=of_thread)
        if search.is_broken and checkpoint is None:
            await read_records(store, row.run_id)  # of the newest state nothing is ever pruned
        if search.is_broken and checkpoint is not None and checkpoint > 0:
            raise await _pruned(store, tenant, thread, checkpoint)
    found, newest = search.found, search.newest
    if found is None or checkpoint is not None:
        msg = (
            f"thread {thread!r} has no checkpoint {checkpoint}; it has 1 to {newest}: "
            f"'perdure history {thread}' lists them"
        )
        raise NotFound(msg, thread=thread, checkpoint=checkpoint, newest=newest)
    return replace(found, thread=of_thread)


async def _pruned(
    store: Store, tenant: TenantId, thread: ThreadId, checkpoint: int
) -> HistoryPruned:
    row = await store.read_thread(tenant, thread)
    at_us = row.pruned_at_us if row is not None else 0
    at = dt.datetime.fromtimestamp(at_us // 1_000_000, dt.UTC).isoformat()
    when = f" (the thread was pruned last at {at})" if at_us else ""
    msg = (
        f"thread {thread!r}: checkpoint {checkpoint} was pruned{when}; nothing was changed. "
        f"'perdure history {thread}' lists the checkpoints that are kept"
    )
    return HistoryPruned(msg, tenant=tenant, thread=thread, checkpoint=checkpoint, pruned_at=at)


async def _inlined(store: Store, at: At) -> At:
    place = f"thread {at.run.thread!r}, checkpoint {at.checkpoint}"
    try:
        await inline_cells(store, at.run.tenant, place, at.cells)
    except StoreCorrupt as error:
        row = at.run
        raise error.located(
            tenant=row.tenant,
            thread=row.thread,
            run_id=row.run_id,
            checkpoint=at.checkpoint,
        ) from error
    return at


class _Search:
    """Looks for a checkpoint of a thread, run by run."""

    def __init__(self, checkpoint: int | None, start: Start) -> None:
        """Look for this one; None: the newest."""
        self._checkpoint = checkpoint
        self._cells: dict[str, fold.Cell] = {}
        self._copy = start.made_ordinal, start.made_seq
        self._origins = 0
        self.found: At | None = None
        self.newest = 0
        self.is_broken = False

    async def look(self, store: Store, row: RunRow, start: Start) -> bool:
        """Fold a run; return whether the checkpoint was found, so that no more need be read.

        Where records are missing before it is, `is_broken` is set, and nothing more can be found.
        """
        state = fold.RunState(row.run_id)
        state.root.cells = self._cells
        state.checkpoint = row.base_checkpoint
        after = start.seq if row.ordinal == start.ordinal else 0
        records = await read_kept(store, row.run_id, after + 1)
        version = _first_version(row, records)
        state.last_seq = after
        if after and start.record is not None:
            fold.start_at(state, start.record)
            # Before the place that the copy was made at, it is no state that ever was.
            if start.made_at == state.checkpoint:
                self._reached(state, row, start.record, (after, version))
        for seq, _frame, record in records:
            if seq != state.last_seq + 1:
                break
            fold.apply(state, record)
            version = record.to_version if isinstance(record, rec.VersionMoved) else version
            if isinstance(record, rec.RunStarted) and record.inherits:
                inherited = await load_inherited(store, record)
                state.root.cells, self._origins = inherited.cells, inherited.origins
            if isinstance(record, rec.StateCopied | rec.StateSnapshot):
                self._copy, self._origins = (row.ordinal, seq), 0
                self._copied(record)
            if _is_checkpoint(record):
                self._reached(state, row, record, (seq, version))
        self._cells = state.root.cells if state.root.is_started or row.ordinal > 1 else {}
        self.is_broken = state.last_seq < row.last_seq
        return self.found is not None and self._checkpoint is not None

    def _copied(self, record: rec.StateCopied | rec.StateSnapshot) -> None:
        """Let what was found be read by a copy that was made at that very checkpoint."""
        found = self.found
        if found is None or found.place is None or not isinstance(record, rec.StateCopied):
            return
        if found.checkpoint == record.made_at:
            place = rec.StatePlace(found.place.ordinal, found.place.seq, *self._copy)
            self.found = replace(found, place=place, origins=0)

    def _reached(self, state: fold.RunState, row: RunRow, record: Any, at: tuple[int, int]) -> None:
        """Note a checkpoint that was reached, if it is the wanted one; `at`: seq and version."""
        self.newest = state.checkpoint
        if self._checkpoint is None or self.newest == self._checkpoint:
            seq, version = at
            place = rec.StatePlace(row.ordinal, seq, *self._copy)
            cells = {
                name: fold.Cell(cell.op, list(cell.pieces))
                for name, cell in state.root.cells.items()
            }
            self.found = At(
                cells=cells,
                run=row,
                checkpoint=record.checkpoint,
                next=record.next,
                snapshot=record.snapshot,
                version=version,
                place=place,
                origins=self._origins,
            )

    def of(self) -> At:
        """Return what was found."""
        if self.found is None:
            msg = f"checkpoint {self._checkpoint} was found and is not there"
            raise InvariantBroken(msg)
        return self.found


def _is_checkpoint(record: rec.Record) -> bool:
    is_step = isinstance(record, rec.StepCommitted) and record.scope == ""
    return is_step or isinstance(record, rec.StateSnapshot)


def _first_version(row: RunRow, records: Sequence[tuple[int, FrameRow, rec.Record]]) -> int:
    """Return the graph version of the state that the records begin with."""
    moves = (each for _seq, _frame, each in records if isinstance(each, rec.VersionMoved))
    return next((move.from_version for move in moves), row.version)
