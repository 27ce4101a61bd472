"""Verify what a store holds: every hash, every row, every run of every thread.

Theory: a store may be written to meanwhile. A run's rows are compared only if nothing was written
to it since its journal was read; else it is read on, and after some tries left uncompared. Threads
are found by their newest run, so that no list of them has to be kept.
"""

from collections.abc import AsyncIterator, Callable

from perdure.engine import Runtime
from perdure.errors import NotFound, StoreCorrupt
from perdure.governance._page_check import PageNeeds
from perdure.governance._report import Finding, Report
from perdure.governance._run_check import RunCheck
from perdure.governance._thread_check import ThreadCheck
from perdure.governance.limits import FRAMES_PAGE, PAGES_READ, ROWS_MAX, RUNS_PAGE, SETTLE_TRIES
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import AskRow, EffectRow, FrameRow, RunRow
from perdure.store.api import AskQuery, EffectQuery, RunQuery, Store

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
        await audit.run(await found_run(audit.store, run_id))
    else:
        async for owner, line in threads_of(audit.store, thread=thread, tenant=tenant):
            await audit.thread(owner, line)
    return audit.report


async def found_run(store: Store, run_id: str) -> RunRow:
    """Return the row of a run.

    Raises:
        NotFound: there is none.
    """
    row = await store.read_run(RunId(run_id))
    if row is None:
        msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
        raise NotFound(msg, run_id=run_id)
    return row


async def threads_of(
    store: Store, *, thread: str | None, tenant: str | None
) -> AsyncIterator[tuple[TenantId, ThreadId]]:
    """Yield (tenant, thread) of one thread, or of all (of a tenant).

    Raises:
        NotFound: the thread that was asked for has neither a row nor a run.
    """
    if thread is None:
        async for row in _newest_of_threads(store, tenant):
            yield row.tenant, row.thread
        return
    owner, line = TenantId(tenant) if tenant else DEFAULT_TENANT, ThreadId(thread)
    query = RunQuery(tenant=owner, thread=line, limit=1)
    if await store.read_thread(owner, line) is None and not await store.find_runs(query):
        msg = f"no thread {thread!r} for tenant {owner!r}; 'perdure ps --all' lists the runs"
        raise NotFound(msg, thread=thread, tenant=owner)
    yield owner, line


async def _newest_of_threads(store: Store, tenant: str | None) -> AsyncIterator[RunRow]:
    """Yield the run of every thread that has the greatest id of all of it, newest first.

    Runs that are started meanwhile come too late for this audit.
    """
    owner = TenantId(tenant) if tenant else None
    before: RunId | None = None
    above: RunId | None = None
    while True:
        rows = await store.find_runs(RunQuery(tenant=owner, before=before, limit=RUNS_PAGE))
        if rows and above is None:
            above = RunId(f"{rows[0].run_id}0")
        for row in rows:
            query = RunQuery(tenant=row.tenant, thread=row.thread, before=above, limit=1)
            if [each.run_id for each in await store.find_runs(query)] == [row.run_id]:
                yield row
        if len(rows) < RUNS_PAGE:
            return
        before = rows[-1].run_id


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

    async def thread(self, tenant: TenantId, thread: ThreadId) -> None:
        """Verify a thread."""
        self.report.threads += 1
        try:
            before = await self.store.read_thread(tenant, thread)
            runs = await self.store.read_thread_runs(tenant, thread, from_ordinal=1)
            after = await self.store.read_thread(tenant, thread)
        except StoreCorrupt as error:
            what = str(error)
            finding = Finding(code="row_unreadable", tenant=tenant, thread=thread, what=what)
            self.report.add(finding)
            return
        check, pages = ThreadCheck(self.report, tenant, thread), PageNeeds()
        for run in runs:
            settled, of_run = await self._run(run, pages)
            check.run(settled, of_run)
            check.base(before, settled, of_run)
            self._on_progress(self.report)
        check.finish(before, None if after is None else after.last_ordinal)

    async def run(self, row: RunRow) -> None:
        """Verify a run, and the one before it as far as it was pinned."""
        self.report.threads += 1
        pages = PageNeeds()
        settled, of_run = await self._run(row, pages)
        anchor, first = of_run.anchor, row.ordinal
        before = None
        if anchor is not None and anchor.after_run:
            before = await self.store.read_run(RunId(anchor.after_run))
            if before is None:
                what = f"run {anchor.after_run!r}, which stood before this one, is missing"
                of_run.find("run_missing", what)
            else:
                first = before.ordinal
        check = ThreadCheck(self.report, row.tenant, row.thread, first_ordinal=first)
        if before is not None:
            check.run(*await self._run(before, pages))
        check.run(settled, of_run)
        check.base(await self.store.read_thread(row.tenant, row.thread), settled, of_run)
        self._on_progress(self.report)

    async def _run(self, row: RunRow, pages: PageNeeds) -> tuple[RunRow, RunCheck]:
        """Verify a run's journal and rows; return its row as it was compared."""
        check = RunCheck(self.report, row.run_id, row.tenant, row.thread, pages)
        effects: list[EffectRow] = []
        asks: list[AskRow] = []
        is_settled = False
        for _try in range(SETTLE_TRIES):
            async for frame in frames_of(self.store, row.run_id, check.next_seq):
                check.frame(frame)
                async for name, body in pages_of(self.store, row.tenant, pages):
                    check.page(name, body)
                check.close_pages()
            try:
                effects, asks = await rows_of(self.store, row.run_id)
                again = await self.store.read_run(row.run_id)
            except StoreCorrupt as error:
                check.find("row_unreadable", str(error))
                break
            if again is None:
                check.find("run_missing", "the run's row went away during the audit")
                break
            is_settled = is_same(row, again)
            row = again
            if is_settled:
                break
        if is_settled:
            check.row(row)
            for effect in effects:
                check.effect(effect)
            for ask in asks:
                check.ask(ask)
        has_all_rows = max(len(effects), len(asks)) < ROWS_MAX
        check.finish(is_settled=is_settled, has_all_rows=has_all_rows)
        return row, check
