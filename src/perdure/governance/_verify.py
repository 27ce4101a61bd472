"""Verify what a store holds: every hash, every row, every run of every thread.

Theory: a store may be written to meanwhile. A run's rows are compared only if nothing was written
to it since its journal was read; else it is read on, and after some tries left uncompared. Threads
are found by their newest run, so that no list of them has to be kept.
"""

from collections.abc import AsyncIterator, Callable
from operator import itemgetter

from perdure.engine import Runtime
from perdure.errors import NotFound, StoreCorrupt
from perdure.governance._page_check import PageNeeds
from perdure.governance._report import Finding, Report
from perdure.governance._rows import Unreadable, misfit, run_row, runs_of
from perdure.governance._run_check import RunCheck
from perdure.governance._thread_check import ThreadCheck
from perdure.governance.limits import FRAMES_PAGE, PAGES_READ, ROWS_MAX, SETTLE_TRIES
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import AskRow, EffectRow, FrameRow, RunRow, ThreadRow
from perdure.store.api import AskQuery, EffectQuery, Store

DEFAULT_TENANT = TenantId("default")


async def verify(
    runtime: Runtime,
    *,
    thread: str | None = None,
    run_id: str | None = None,
    tenant: str | None = None,
    on_progress: Callable[[Report], None] = lambda _report: None,
) -> Report:
    """Return what is not as it was written, in a thread, a run, of a tenant, or in the whole store.

    Nothing is changed. What workers write meanwhile does not count as damage.

    Args:
        runtime: an open one; no worker or graph is needed.
        thread: only this thread.
        run_id: only this run, and the end of the run that it stands on.
        tenant: whose thread it is (default: "default"); without `thread`, only this tenant's.
        on_progress: called with the report so far after every run.

    Raises:
        NotFound: no such run or thread.
        StoreError: the store can't be read.
    """
    audit = _Audit(runtime.engine.store, on_progress)
    if run_id is not None:
        await audit.one_run(run_id)
        return audit.report
    lost: dict[str, Unreadable] = {}
    async for owner, line in threads_of(audit.store, thread=thread, tenant=tenant, lost=lost):
        await audit.thread(owner, line)
    for each in lost.values():
        await audit.lost_run(each)
    return audit.report


def no_run(run_id: str) -> NotFound:
    """Return the error that there is no such run."""
    return NotFound(f"no run {run_id!r}; 'perdure ps --all' lists the runs", run_id=run_id)


async def threads_of(
    store: Store,
    *,
    thread: str | None,
    tenant: str | None,
    lost: dict[str, Unreadable] | None = None,
) -> AsyncIterator[tuple[TenantId, ThreadId]]:
    """Yield (tenant, thread) of one thread, or of all (of a tenant).

    Args:
        store: an open one.
        thread: only this one.
        tenant: whose.
        lost: takes the runs whose rows can't be read, of all threads; None: one of them is an
            error.

    Raises:
        NotFound: the thread that was asked for has neither a row nor a run.
        StoreCorrupt: a row can't be read, and nobody takes it.
    """
    if thread is None:
        async for row in _newest_of_threads(store, tenant, lost):
            yield row.tenant, row.thread
        return
    owner, line = TenantId(tenant) if tenant else DEFAULT_TENANT, ThreadId(thread)
    if await store.read_thread(owner, line) is None:
        async for _run in runs_of(store, tenant=owner, thread=line):
            break
        else:
            msg = f"no thread {thread!r} for tenant {owner!r}; 'perdure ps --all' lists the runs"
            raise NotFound(msg, thread=thread, tenant=owner)
    yield owner, line


async def _newest_of_threads(
    store: Store, tenant: str | None, lost: dict[str, Unreadable] | None
) -> AsyncIterator[RunRow]:
    """Yield the readable run of every thread that has the greatest id of all of it, newest first.

    Runs that are started meanwhile come too late for this audit.
    """
    above: RunId | None = None
    async for row in runs_of(store, tenant=TenantId(tenant) if tenant else None):
        if above is None and row.run_id:
            above = RunId(f"{row.run_id}0")
        if isinstance(row, Unreadable):
            if lost is None:
                raise StoreCorrupt(row.what, run_id=row.run_id)
            lost[row.run_id] = row
        elif await _newest_readable(store, row, above) == row.run_id:
            yield row


async def _newest_readable(store: Store, row: RunRow, above: RunId | None) -> RunId | None:
    of_thread = runs_of(store, tenant=row.tenant, thread=row.thread, before=above, at_once=1)
    async for run in of_thread:
        if isinstance(run, RunRow):
            return run.run_id
    return None


async def frames_of(store: Store, run_id: str, from_seq: int) -> AsyncIterator[FrameRow]:
    """Yield a run's stored frames from a seq on, as they are."""
    while True:
        frames = await store.scan_frames(RunId(run_id), from_seq=from_seq, limit=FRAMES_PAGE)
        for frame in frames:
            yield frame
        if len(frames) < FRAMES_PAGE or type(frames[-1].first_seq) is not int:
            return
        from_seq = frames[-1].first_seq + 1


async def pages_of(
    store: Store, tenant: TenantId, needs: PageNeeds
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield (name, body) of the pages that are wanted, and of those that they lead to.

    Whoever iterates takes each one in before the next; what the store lacks stays wanted.
    """
    lacking: dict[bytes, int] = {}
    while needs.wanted:
        names = list(needs.wanted)[:PAGES_READ]
        bodies = await store.read_pages(tenant, names)
        for name in names:
            if name in bodies:
                yield name, bodies[name]
            else:
                lacking[name] = needs.wanted.pop(name)
    needs.wanted = lacking


async def rows_of(store: Store, run_id: str) -> tuple[list[EffectRow], list[AskRow]]:
    """Return a run's effects and asks, at most `ROWS_MAX` of each."""
    effects = await store.find_effects(EffectQuery(run_id=RunId(run_id), limit=ROWS_MAX))
    asks = await store.find_asks(AskQuery(run_id=RunId(run_id), limit=ROWS_MAX))
    return effects, asks


def is_same(before: RunRow, after: RunRow) -> bool:
    """Return whether nothing was written to a run between two looks at its row."""
    return (before.last_seq, before.token, before.status) == (
        after.last_seq,
        after.token,
        after.status,
    )


class _Audit:
    """One audit of a store."""

    def __init__(self, store: Store, on_progress: Callable[[Report], None]) -> None:
        """Begin an empty report."""
        self.store = store
        self.report = Report()
        self._on_progress = on_progress
        self._told: set[object] = set()

    async def thread(self, tenant: TenantId, thread: ThreadId) -> None:
        """Verify a thread."""
        self.report.threads += 1
        found = len(self.report.findings)
        before = await self._thread_row(tenant, thread)
        runs = [row async for row in runs_of(self.store, tenant=tenant, thread=thread)]
        after = await self._thread_row(tenant, thread)
        check, pages = ThreadCheck(self.report, tenant, thread), PageNeeds()
        for ordinal, run in await self._in_order(tenant, thread, runs[::-1], pages):
            if isinstance(run, RunRow):
                settled, of_run = await self._run(run, pages)
                check.run(settled, of_run)
                check.base(before, settled, of_run)
            else:
                check.unreadable(ordinal, run)
            self._on_progress(self.report)
        late = await self._thread_row(tenant, thread)
        if before is not None or len(self.report.findings) == found:
            check.finish(before, None if after is None else after.last_ordinal, late)

    async def _thread_row(self, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
        """Return the row of a thread; None: there is none, or it can't be read, which is found."""
        try:
            row = await self.store.read_thread(tenant, thread)
            what = "" if row is None else misfit(row)
        except StoreCorrupt as error:
            row, what = None, str(error)
        if not what:
            return row
        if (tenant, thread) not in self._told:
            self._told.add((tenant, thread))
            found = Finding(code="row_unreadable", tenant=tenant, thread=thread, what=what)
            self.report.add(found)
        return None

    async def _in_order(
        self,
        tenant: TenantId,
        thread: ThreadId,
        runs: list[RunRow | Unreadable],
        pages: PageNeeds,
    ) -> list[tuple[int, RunRow | RunCheck]]:
        """Return a thread's runs by ordinal; those without a row have theirs from their lease."""
        found: list[tuple[int, RunRow | RunCheck]] = []
        for place, run in enumerate(runs, 1):
            if isinstance(run, RunRow):
                found.append((run.ordinal, run))
            else:
                of_run = await self._lost(run, tenant, thread, pages)
                anchor = of_run.anchor
                found.append((place if anchor is None else anchor.ordinal, of_run))
        return sorted(found, key=itemgetter(0))

    async def lost_run(self, lost: Unreadable) -> None:
        """Verify the journal of a run whose row can't be read, once."""
        if lost.run_id not in self._told:
            await self._lost(lost, TenantId(""), ThreadId(""), PageNeeds())
            self._on_progress(self.report)

    async def _lost(
        self, lost: Unreadable, tenant: TenantId, thread: ThreadId, pages: PageNeeds
    ) -> RunCheck:
        self._told.add(lost.run_id)
        check = RunCheck(self.report, lost.run_id, tenant, thread, pages)
        try:
            await self._frames(check, pages)
        except StoreCorrupt as error:
            check.find("frame_unreadable", str(error))
        if check.started is not None and not tenant:
            check.tenant, check.thread = check.started.tenant, check.started.thread
        check.find("row_unreadable", lost.what)
        check.finish(is_settled=False, has_all_rows=False)
        return check

    async def one_run(self, run_id: str) -> None:
        """Verify a run, and the one before it as far as it was pinned.

        Raises:
            NotFound: there is none.
        """
        row = await run_row(self.store, run_id)
        if row is None:
            raise no_run(run_id)
        self.report.threads += 1
        if isinstance(row, RunRow):
            await self._readable(row)
        else:
            await self.lost_run(row)

    async def _readable(self, row: RunRow) -> None:
        pages = PageNeeds()
        settled, of_run = await self._run(row, pages)
        anchor, first = of_run.anchor, row.ordinal
        before: RunRow | Unreadable | None = None
        if anchor is not None and anchor.after_run:
            before = await run_row(self.store, anchor.after_run)
            if before is None:
                what = f"run {anchor.after_run!r}, which stood before this one, is missing"
                of_run.find("run_missing", what)
            else:
                first = before.ordinal if isinstance(before, RunRow) else row.ordinal - 1
        check = ThreadCheck(self.report, row.tenant, row.thread, first_ordinal=first)
        if isinstance(before, RunRow):
            check.run(*await self._run(before, pages))
        elif before is not None:
            check.unreadable(first, await self._lost(before, row.tenant, row.thread, pages))
        check.run(settled, of_run)
        check.base(await self._thread_row(row.tenant, row.thread), settled, of_run)
        self._on_progress(self.report)

    async def _frames(
        self, check: RunCheck, pages: PageNeeds, *, row: RunRow | None = None
    ) -> None:
        """Take in the frames from where a check stands on, and their pages."""
        async for frame in frames_of(self.store, check.run_id, check.next_seq):
            check.frame(frame)
            started = check.started
            tenant = check.tenant or ("" if started is None else started.tenant)
            async for name, body in pages_of(self.store, TenantId(tenant), pages):
                check.page(name, body)
            await self._close_pages(row, check, pages)

    async def _close_pages(self, row: RunRow | None, check: RunCheck, pages: PageNeeds) -> None:
        """Report pages that are missing, unless an erasure of the run is under way."""
        if pages.wanted and row is not None:
            thread = await self._thread_row(row.tenant, row.thread)
            if thread is not None and row.ordinal <= thread.erased:
                pages.drop()
        check.close_pages()

    async def _run(self, row: RunRow, pages: PageNeeds) -> tuple[RunRow, RunCheck]:
        """Verify a run's journal and rows; return its row as it was compared."""
        check = RunCheck(self.report, row.run_id, row.tenant, row.thread, pages)
        effects: list[EffectRow] = []
        asks: list[AskRow] = []
        is_settled = False
        for _try in range(SETTLE_TRIES):
            await self._frames(check, pages, row=row)
            try:
                effects, asks = await rows_of(self.store, row.run_id)
                again = await run_row(self.store, row.run_id)
            except StoreCorrupt as error:
                check.find("row_unreadable", str(error))
                break
            if not isinstance(again, RunRow):
                gone = "the run's row went away during the audit"
                code, what = ("run_missing", gone) if again is None else (_BAD_ROW, again.what)
                check.find(code, what)
                break
            is_settled = is_same(row, again)
            row = again
            if is_settled:
                break
        if is_settled:
            check.row(row)
            _compare_ledger(check, effects, asks)
        has_all_rows = max(len(effects), len(asks)) < ROWS_MAX
        check.finish(is_settled=is_settled, has_all_rows=has_all_rows)
        await self._origin(check)
        return row, check

    async def _origin(self, check: RunCheck) -> None:
        """Look whether the origin of a fork still reaches to the state that the fork inherits."""
        started = check.started
        if started is None or started.state_at is None or started.origin_thread is None:
            return
        tenant, origin = TenantId(started.tenant), ThreadId(started.origin_thread)
        at = started.state_at
        try:
            runs = await self.store.read_thread_runs(tenant, origin, from_ordinal=at.ordinal)
        except StoreCorrupt:
            return  # that is found in the origin
        if not runs or runs[0].ordinal != at.ordinal or runs[0].last_seq < at.seq:
            what = (
                f"inherits the state after record {at.seq} of run {at.ordinal} of thread "
                f"{origin!r}, checkpoint {started.origin_checkpoint}; that is missing"
            )
            check.find("origin_missing", what, 1)


_BAD_ROW = "row_unreadable"


def _compare_ledger(check: RunCheck, effects: list[EffectRow], asks: list[AskRow]) -> None:
    """Compare the rows of a run's effects and asks, and name those that can't be compared."""
    for effect in effects:
        wrong = misfit(effect)
        if wrong:
            check.find(_BAD_ROW, f"the row of effect {effect.effect_id!r}: {wrong}")
        check.effect(effect, is_readable=not wrong)
    for ask in asks:
        wrong = misfit(ask)
        if wrong:
            check.find(_BAD_ROW, f"the row of ask {ask.ask_id!r}: {wrong}")
        check.ask(ask, is_readable=not wrong)
