"""Erase what is no longer wanted of threads, so that what is kept stays readable and provable.

Theory: first it is decided which checkpoints stay (by number, age, tags, forks, unfinished runs),
then which frames those need (`_keeping`), then the bodies of all other frames of runs that have
ended are replaced by their digests. Nothing is rewritten, so that it may be stopped anywhere; a
second time it does what is left. A checkpoint that is not kept may stay readable, where its frames
are needed by one that is.

Invariants: the newest state of a thread, and everything of runs that have not ended, stays; a
thread with a frame that can't be read is left alone; frames are erased only under the tags that
were seen when it was decided.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from perdure.codec import decode_record, erase_frame, is_erased, split_frame
from perdure.engine import Runtime
from perdure.engine.tagging import PIN_MARK
from perdure.errors import DecodeFailed, SettingInvalid, StoreCorrupt, UsageError
from perdure.governance._collect import Collected, Gone, collect
from perdure.governance._forked import Forks, is_stale_pin
from perdure.governance._keeping import (
    BEGINNING,
    END,
    Copy,
    Place,
    Point,
    Present,
    Stretches,
    needed,
)
from perdure.governance._pruned import Pruned, ThreadPruned, Wanted, prune_layers
from perdure.governance._snapshots import FrameId, snapshot_in
from perdure.governance._staying import Stay, Why, staying
from perdure.governance._verify import frames_of, threads_of
from perdure.governance.limits import (
    ERASE_BYTES,
    ERASE_FRAMES,
    PLAN_TRIES,
    ROWS_MAX,
)
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import (
    CopyRow,
    EffectRow,
    EffectState,
    Erased,
    Erasure,
    FrameErasure,
    FrameRow,
    RunRow,
    TagRow,
    ThreadRow,
)
from perdure.model import records as rec
from perdure.sandbox import Kept
from perdure.store.api import EffectQuery, Store

_OPEN = frozenset({
    EffectState.INTENDED,
    EffectState.UNCERTAIN,
    EffectState.COMPENSATING,
    EffectState.COMPENSATION_FAILED,
})  # fmt: skip
"""States of effects that somebody has to see to yet, and needs request and result for."""

Telling = Callable[[Pruned], None]


async def prune(
    runtime: Runtime,
    *,
    keep: int | None = None,
    older_than: dt.timedelta | None = None,
    threads: Sequence[str] = (),
    tenant: str | None = None,
    dry_run: bool = False,
    rewrite: bool | None = None,
    sandbox: Kept | None = None,
    on_progress: Telling = lambda _pruned: None,
) -> Pruned:
    """Erase what is not wanted any more, then the pages that nothing refers to, then free room.

    With a sandbox, the snapshots go that no journal of the tenants names any more.

    Kept of each thread: its newest state, the newest `keep` checkpoints, those that are younger
    than `older_than`, tagged ones, those that were forked, all of unfinished runs, and what those
    need to be read. Runs may be started and executed meanwhile; it may be stopped at any time.

    Args:
        runtime: an open one; no worker or graph is needed.
        keep: how many checkpoints of each thread, from 1.
        older_than: how old a checkpoint must be to go. One of the two must be given.
        threads: only these (of `tenant`, or "default"); empty: all.
        tenant: only this tenant's threads.
        dry_run: say what would go; nothing is changed.
        rewrite: whether SQLite's file is rewritten, which keeps writers out; None: if that is
            quick.
        sandbox: where files of the threads are: `IsolatedSandboxes(folder)`, or of directories.
        on_progress: called after every thread, and while pages are collected.

    Raises:
        UsageError, SettingInvalid: it is not said what to keep; nothing was changed.
        NotFound: no such thread; those before it in the list were pruned.
        StoreCorrupt, DecodeFailed: pages or snapshots could not be collected, as a journal, or a
            layer that is needed, can't be read.

    Durability: each thread's when it is told. Idempotent: yes.
    """
    wanted = _wanted(keep, older_than, runtime.engine.now_us())
    done = Pruned(is_dry=dry_run)
    work = _Prune(runtime, wanted, is_dry=dry_run)
    owners: dict[TenantId, None] = {}
    for name in threads or (None,):
        async for owner, line in threads_of(runtime.engine.store, thread=name, tenant=tenant):
            owners[owner] = None
            done.threads.append(await work.thread(owner, line))
            done.snapshots = len(work.snapshots)
            on_progress(done)
    if dry_run:
        try:
            done.collected = await _collected(runtime, owners, work, lambda: on_progress(done))
        except (DecodeFailed, StoreCorrupt) as error:
            done.problem = str(error)
        await prune_layers(runtime, sandbox, owners, done, lost=work.lost)
        return done
    # crash-point: prune.erased
    runtime.engine.services.probe("prune.erased")
    done.collected = await _collected(runtime, owners, work, lambda: on_progress(done))
    await prune_layers(runtime, sandbox, owners, done)
    # crash-point: prune.collected
    runtime.engine.services.probe("prune.collected")
    done.compacted = await runtime.engine.store.compact(rewrite=rewrite)
    runtime.engine.capacity.forget()
    return done


async def _collected(
    runtime: Runtime, owners: Iterable[TenantId], work: "_Prune", tell: Callable[[], None]
) -> Collected:
    """Remove, or count, the pages of tenants that nothing refers to when the frames are gone."""
    total = Collected(is_dry=work.is_dry)
    for owner in owners:
        found = await collect(
            runtime,
            tenant=owner,
            dry_run=work.is_dry,
            gone=work.gone,
            on_progress=lambda _each: tell(),
        )
        for name in ("tenants", "runs", "pages", "bytes"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
    return total


def _wanted(keep: int | None, older_than: dt.timedelta | None, now_us: int) -> Wanted:
    if keep is None and older_than is None:
        msg = "prune: say what to keep, by number (keep=) or by age (older_than=); nothing was done"
        raise UsageError(msg)
    if keep is not None and keep < 1:
        msg = f"keep={keep}: at least 1, as the newest state always stays; nothing was done"
        raise SettingInvalid(msg, keep=keep)
    if older_than is None:
        return Wanted(keep=keep, since_us=None)
    if older_than < dt.timedelta(0):
        msg = f"older_than={older_than}: not negative; nothing was done"
        raise SettingInvalid(msg)
    return Wanted(keep=keep, since_us=now_us - older_than // dt.timedelta(microseconds=1))


class _Plan:
    """What of one thread stays."""

    def __init__(self, row: ThreadRow, runs: list[RunRow]) -> None:
        self.row = row
        self.runs = runs
        self.points: list[Point] = []
        self.copies: list[Copy] = []
        self.noted: tuple[CopyRow, ...] = ()
        self.readable: set[int] = set()
        self.moves: set[Place] = set()
        self.tags: frozenset[tuple[str, int]] = frozenset()
        self.ruled: set[int] = set()
        self.newest: set[int] = set()
        self.forked: set[int] = set()
        self.wanted: set[int] = set()
        self.stretches = Stretches([])

    def stays(self, run: RunRow, frame: FrameRow) -> bool:
        """Return whether a frame stays."""
        first = (run.ordinal, frame.first_seq)
        last = (run.ordinal, frame.first_seq + frame.count - 1)
        if self.stretches.touch(first, last):
            return True
        # The start of a run, and where it moved to another version, say how to read the rest.
        return self.keeps_of(run) and (frame.first_seq == 1 or first in self.moves)

    def staying(self, left: set[int]) -> list[Stay]:
        """Return why what is left stays, where the rule does not keep it."""
        open_runs = {run.ordinal: run.run_id for run in self.runs if not run.status.is_final}
        why: dict[int, tuple[Why, str]] = {
            point.checkpoint: (Why.RUN, open_runs[point.place[0]])
            for point in self.points
            if point.place[0] in open_runs
        }
        going = [run for run in self.runs if not run.status.is_final]
        why |= {run.base_checkpoint: (Why.RUN, run.run_id) for run in going}
        why |= dict.fromkeys(self.forked, (Why.FORK, ""))
        why |= dict.fromkeys(self.newest, (Why.NEWEST, ""))
        for name, checkpoint in sorted(self.tags, reverse=True):
            pin = name.startswith(PIN_MARK)
            why[checkpoint] = (Why.FORK, "") if pin else (Why.TAG, name)
        return staying(
            self.points, self.copies, left=left - self.ruled, kept=self.wanted, direct=why
        )

    def keeps_of(self, run: RunRow) -> bool:
        """Return whether anything of a run stays."""
        return not run.status.is_final or self.stretches.touch(
            (run.ordinal, 1), (run.ordinal, END[0])
        )


class _Prune:
    """Prunes thread by thread."""

    def __init__(self, runtime: Runtime, wanted: Wanted, *, is_dry: bool) -> None:
        self._runtime = runtime
        self._store: Store = runtime.engine.store
        self._wanted = wanted
        self.is_dry = is_dry
        self.gone = Gone()
        self._forks: dict[TenantId, Forks] = {}
        self.snapshots: set[tuple[TenantId, str]] = set()
        self.lost: dict[TenantId, set[FrameId]] = {}

    async def thread(self, tenant: TenantId, thread: ThreadId) -> ThreadPruned:
        """Prune a thread."""
        done = ThreadPruned(tenant=tenant, thread=thread)
        for _try in range(PLAN_TRIES):
            done = ThreadPruned(tenant=tenant, thread=thread)
            try:
                plan = await self._plan(tenant, thread, done)
            except (DecodeFailed, StoreCorrupt) as error:
                done.note = f"left alone, as it can't be read whole: {error}"
                return done
            if plan is None or await self._erase(plan, done):
                return done
        done.note = "its tags change all the time; what went was not kept by any of them"
        return done

    # -- deciding ----------------------------------------------------------------------------------

    async def _plan(self, tenant: TenantId, thread: ThreadId, done: ThreadPruned) -> _Plan | None:
        row = await self._store.read_thread(tenant, thread)
        if row is None:
            return None
        runs = await self._store.read_thread_runs(tenant, thread, from_ordinal=1)
        plan = _Plan(row, runs)
        # Before the journals: a tag that comes later is one that the erasure does not expect.
        tags = await self._tags(tenant, thread)
        plan.tags = frozenset((tag.name, tag.checkpoint) for tag in tags)
        points: dict[int, Point] = {}
        present = Present()
        for run in runs:
            async for frame in frames_of(self._store, run.run_id, 1):
                if not is_erased(frame.body):
                    _add(present, run, frame)
                    named = _look_at(run, frame, points, plan.moves)
                    self.snapshots.update((tenant, name) for name in named)
        plan.points = [point for _id, point in sorted(points.items())]
        plan.copies, line = await self._copies(plan)
        plan.readable = present.readable(plan.points, plan.copies)
        plan.ruled = self._wanted.of(plan.points)
        plan.forked = await self._forked(tenant, thread)
        plan.newest = {point.checkpoint for point in plan.points[-1:]}
        plan.wanted = plan.ruled | plan.newest | plan.forked | {tag.checkpoint for tag in tags}
        plan.wanted |= {run.base_checkpoint for run in runs if not run.status.is_final}
        inherited = await self._inherited(plan)
        plan.stretches = needed(plan.points, plan.copies, line, plan.wanted, inherited)
        done.checkpoints = len(plan.readable)
        done.kept = len(plan.wanted & plan.readable)
        if line == BEGINNING and done.kept < done.checkpoints:
            done.note = "all of it is needed to read the newest state: it is small, or young"
        return plan

    async def _tags(self, tenant: TenantId, thread: ThreadId) -> list[TagRow]:
        """Return the tags of a thread, without those of forks that need nothing any more."""
        found = await self._store.find_tags(tenant, thread)
        engine = self._runtime.engine
        stale = [tag for tag in found if await is_stale_pin(engine, tag)]
        for tag in stale if not self.is_dry else ():
            await self._store.drop_tag(tenant, thread, tag.name)
        return [tag for tag in found if tag not in stale]

    async def _copies(self, plan: _Plan) -> tuple[list[Copy], Copy]:
        """Return the thread's copies by `made_at`, and the one that its newest state is read by."""
        row = plan.row
        rows = await self._store.find_copies(row.tenant, row.thread)
        copies = {each.made_at: await self._copy(plan, each) for each in reversed(rows)}
        line = BEGINNING
        if row.base_seq:
            base = CopyRow(made_at=0, ordinal=row.base_ordinal, seq=row.base_seq)
            line = await self._copy(plan, base)
            if line.made_at not in copies:  # it is of before there was an index
                copies[line.made_at] = line
                plan.noted = (replace(base, made_at=line.made_at),)
        return [copy for _made_at, copy in sorted(copies.items())], line

    async def _copy(self, plan: _Plan, row: CopyRow) -> Copy:
        """Return a copy with the place that it lets folding start at.

        Raises:
            StoreCorrupt: there is none where it should be.
        """
        run = next(run for run in plan.runs if run.ordinal == row.ordinal)
        frames = await self._store.read_frames(run.run_id, from_seq=row.seq, limit=1)
        record = decode_record(split_frame(frames[0].body)[row.seq - frames[0].first_seq])
        place = (row.ordinal, row.seq)
        if isinstance(record, rec.StateCopied):
            since = (record.since_ordinal, max(record.since_seq, 1))
            return Copy(record.made_at, place, since)
        if isinstance(record, rec.StateSnapshot):
            return Copy(record.checkpoint, place, place)
        msg = f"run {run.run_id!r}: record {row.seq} is said to be a copy of the state, and is none"
        raise StoreCorrupt(msg, run_id=run.run_id, seq=row.seq)

    async def _forked(self, tenant: TenantId, thread: ThreadId) -> set[int]:
        """Return the checkpoints that a thread was forked at, up to now."""
        forks = self._forks.setdefault(tenant, Forks(self._runtime, tenant))
        await forks.look()
        return forks.of(thread)

    async def _inherited(self, plan: _Plan) -> list[tuple[Place, Place]]:
        """Return what forks read of a thread that refer to it: by copies that they name."""
        stretches: list[tuple[Place, Place]] = []
        for place in self._forks[plan.row.tenant].places(plan.row.thread):
            copy = BEGINNING
            if place.copy_seq:
                named = CopyRow(made_at=0, ordinal=place.copy_ordinal, seq=place.copy_seq)
                copy = await self._copy(plan, named)
            end = (place.ordinal, place.seq)
            stretches += [(copy.since, max(copy.since, end)), (copy.place, copy.place)]
        return stretches

    # -- erasing -----------------------------------------------------------------------------------

    async def _erase(self, plan: _Plan, done: ThreadPruned) -> bool:
        """Erase what does not stay; return False if the thread's tags have changed meanwhile."""
        left = Present()
        for run in plan.runs:
            if not run.status.is_final:
                left.add(run.ordinal, 1, END[0], is_last=True)
                continue
            batch = _Batch(plan, run)
            async for frame in frames_of(self._store, run.run_id, 1):
                if is_erased(frame.body):
                    continue
                if plan.stays(run, frame):
                    _add(left, run, frame)
                    continue
                batch.add(frame)
                if batch.is_full and not await self._write(batch, done):
                    return False
            if not plan.keeps_of(run):
                batch.effects = await self._full_effects(run)
            if not await self._write(batch, done):
                return False
        still = left.readable(plan.points, plan.copies)
        done.lost = len(plan.readable - still)
        done.stays = plan.staying(still)
        return True

    async def _write(self, batch: "_Batch", done: ThreadPruned) -> bool:
        """Erase a batch; return False if that is refused."""
        if not batch.frames and not batch.effects:
            return True
        if self.is_dry:
            gone = {(batch.run_id, each.first_seq) for each in batch.frames}
            self.gone.frames |= gone
            self.gone.effects |= {each.effect_id for each in batch.effects}
            self.lost.setdefault(batch.run.tenant, set()).update(gone)
        else:
            outcome = await self._store.erase(batch.erasure(self._runtime.engine.now_us()))
            # crash-point: prune.batch
            self._runtime.engine.services.probe("prune.batch")
            if not isinstance(outcome, Erased):
                return False
        done.frames += len(batch.frames)
        done.records += batch.records
        done.bytes += batch.bytes
        done.effects += len(batch.effects)
        batch.clear()
        return True

    async def _full_effects(self, run: RunRow) -> list[EffectRow]:
        """Return the effects of a run, emptied, that have something, and no key that lasts."""
        query = EffectQuery(run_id=run.run_id, limit=ROWS_MAX)
        return [
            replace(row, request_wire=b"", result_wire=None)
            for row in await self._store.find_effects(query)
            if row.business_key is None
            and row.state not in _OPEN
            and (row.request_wire or row.result_wire is not None)
        ]


class _Batch:
    """What goes of a run in one transaction."""

    def __init__(self, plan: _Plan, run: RunRow) -> None:
        self._plan = plan
        self.run = run
        self.clear()

    @property
    def run_id(self) -> RunId:
        """The run."""
        return self.run.run_id

    def clear(self) -> None:
        """Begin the next one."""
        self.frames: list[FrameErasure] = []
        self.effects: list[EffectRow] = []
        self.records = self.bytes = self._held = 0

    def add(self, frame: FrameRow) -> None:
        """Take a frame in."""
        body = erase_frame(frame.body)
        self.frames.append(FrameErasure(frame.first_seq, frame.hash, body))
        self.records += frame.count
        self.bytes += len(frame.body) - len(body)
        self._held += len(frame.body)

    @property
    def is_full(self) -> bool:
        """Whether it is time to write it."""
        return len(self.frames) >= ERASE_FRAMES or self._held >= ERASE_BYTES

    def erasure(self, at_us: int) -> Erasure:
        """Return it as the store takes it."""
        return Erasure(
            run_id=self.run.run_id,
            tenant=self.run.tenant,
            thread=self.run.thread,
            at_us=at_us,
            frames=tuple(self.frames),
            effects=tuple(self.effects),
            tags=self._plan.tags,
            copies=self._plan.noted,
        )


def _add(present: Present, run: RunRow, frame: FrameRow) -> None:
    last_seq = frame.first_seq + frame.count - 1
    is_last = run.status.is_final and last_seq >= run.last_seq
    present.add(run.ordinal, frame.first_seq, last_seq, is_last=is_last)


def _look_at(
    run: RunRow, frame: FrameRow, points: dict[int, Point], moves: set[Place]
) -> list[str]:
    """Note the checkpoints in a frame, and whether the run moved to another version in it.

    Returns:
        The snapshots of sandboxes that it names.
    """
    named = []
    for seq, encoded in enumerate(split_frame(frame.body), frame.first_seq):
        record = decode_record(encoded)
        snapshot = snapshot_in(record)
        if snapshot is not None:
            named.append(snapshot)
        if isinstance(record, rec.VersionMoved):
            moves.add((run.ordinal, frame.first_seq))
        if isinstance(record, rec.StateSnapshot) or (
            isinstance(record, rec.StepCommitted) and record.scope == ""
        ):
            place = (run.ordinal, seq)
            points[record.checkpoint] = Point(record.checkpoint, record.at_us, place)
    return named
