"""Erase everything of threads, or of a subject: preview, doing it, finishing what was interrupted.

Theory: first the store writes down what is erased (`begin_erasure`); from then on nothing of it can
come back, and whoever finds that mark can finish. Then what leads to other things goes after them:
schedules, pages, frames with the rows of their run, data keys; each step can be repeated. Then the
store's files are written anew, a sample of what was erased is looked for in them, and the mark that
it is done is set.

Invariants: nothing is erased before all of it is written down; a run's rows go with its last frames
and not before; a frame keeps the digests of its records, so that the journal still verifies.
"""

from collections.abc import AsyncIterator, Callable

from perdure.codec import erase_frame, erased_blank, is_erased
from perdure.engine import Runtime
from perdure.engine.living import no_thread
from perdure.engine.outlook import command
from perdure.engine.waits import as_datetime
from perdure.errors import Conflict, DecodeFailed, NotFound, StoreCorrupt, ThreadBusy, UsageError
from perdure.governance._erase_ending import end_all
from perdure.governance._erase_pages import Candidates, records_in
from perdure.governance._erase_sandbox import SandboxErasing, files_left, preview_files
from perdure.governance._erase_scope import (
    Asked,
    ErasurePreview,
    Remaining,
    Scope,
    asked_for,
    runs_of,
    threads_about,
)
from perdure.governance._erase_search import Search
from perdure.governance._export import perdure_version
from perdure.governance._keys import SigningKey
from perdure.governance._receipt import Receipt, Verification, signed
from perdure.governance._verify import frames_of, rows_of
from perdure.governance.limits import COLLECT_TRIES, ERASED_THREADS_MAX, FRAMES_ERASED
from perdure.ids import TenantId, ThreadId
from perdure.model import Collection, ErasedThread, ErasureRow, FrameRow, RunRow
from perdure.model import records as rec
from perdure.sandbox import Kept
from perdure.store.api import REMOTE, Store

Telling = Callable[[str], None]

_ALWAYS = (
    Remaining("ids", "", "ids and names of threads, runs, graphs; times, states and digests"),
    Remaining("copies", "", "backups, replicas, logs of workers, and what effects sent to others"),
)


async def preview_erasure(
    runtime: Runtime,
    *,
    thread: str | None = None,
    subject: str | None = None,
    tenant: str | None = None,
    sandbox: Kept | None = None,
) -> ErasurePreview:
    """Return what `erase` with the same arguments would erase, and what it would leave.

    Nothing is changed.

    Raises:
        NotFound: no such thread, or it was erased; no thread is about the subject.
    """
    preview = await _look(runtime, asked_for(thread, subject, tenant))
    if sandbox is not None:
        await preview_files(runtime, sandbox, preview)
    return preview


async def _look(runtime: Runtime, asked: Asked) -> ErasurePreview:
    store = runtime.engine.store
    opened = await store.find_erasures(asked.tenant, open_only=True)
    if asked.thread is not None:
        mine = [row for row in opened if asked.thread in {each.thread for each in row.threads}]
        roots = [] if mine else [await _living_thread(store, asked.tenant, asked.thread)]
    else:
        subject = asked.subject or ""
        mine = [row for row in opened if row.subject == subject]
        roots = await threads_about(store, asked.tenant, subject)
        if not roots and not mine:
            msg = (
                f"no thread of tenant {asked.tenant!r} is about subject {subject!r} (any more); "
                "nothing was erased. 'perdure ps --all' lists the runs with their subjects"
            )
            raise NotFound(msg, subject=subject, tenant=asked.tenant)
    return await Scope(runtime, asked.tenant).look(roots, mine)


async def _living_thread(store: Store, tenant: TenantId, thread: str) -> str:
    row = await store.read_thread(tenant, ThreadId(thread))
    if row is None or row.erased == row.last_ordinal:
        raise no_thread(tenant, ThreadId(thread), row)
    return thread


async def erase(
    runtime: Runtime,
    *,
    thread: str | None = None,
    subject: str | None = None,
    tenant: str | None = None,
    by: str,
    force: bool = False,
    key: SigningKey | None = None,
    sandbox: Kept | None = None,
    on_progress: Telling = lambda _what: None,
) -> Receipt:
    """Erase everything of a thread, or of all threads about a subject, with forks and children.

    Args:
        runtime: an open one; no worker or graph is needed.
        thread: which thread.
        subject: or whose threads.
        tenant: whose (default: "default").
        by: who wants it; recorded.
        force: end what is unfinished, as cancelled; else it is refused.
        key: signs the receipt.
        sandbox: where files of the threads are: `IsolatedSandboxes(folder)`, or of directories.
        on_progress: called with words for people.

    Raises:
        NotFound: no such thread, or it was erased; no thread is about the subject.
        ThreadBusy: runs have not ended; nothing was erased.
        UsageError: neither or both of thread and subject, or no `by`; nothing was erased.
        StoreError: it was interrupted; erase again to finish it.

    Durability: all of it, when it returns; what was begun stays so until somebody finishes it.
    Idempotent: yes, until it has ended. Cancel-safe: yes; erase again to finish.
    """
    if not by:
        msg = "erase(by=...): say who wants it; it is recorded"
        raise UsageError(msg)
    asked = asked_for(thread, subject, tenant)
    on_progress("looking for what is erased")
    preview = await _look(runtime, asked)
    rows = await _open_rows(runtime.engine.store, preview)
    is_resumed = bool(rows)
    while names := _not_begun(preview, rows):
        rows += await _begin(runtime, asked, names, preview, by=by, force=force)
        preview = await _look(runtime, asked)  # again: a fork may have been faster
    erasing = _Erasing(runtime, asked.tenant, rows, on_progress, sandbox)
    await erasing.run()
    return _ended(runtime, asked, preview, erasing, by=by, key=key, is_resumed=is_resumed)


async def _open_rows(store: Store, preview: ErasurePreview) -> list[ErasureRow]:
    opened = await store.find_erasures(TenantId(preview.tenant), open_only=True)
    return [row for row in opened if row.erasure_id in preview.under_way]


def _not_begun(preview: ErasurePreview, rows: list[ErasureRow]) -> list[str]:
    begun = {each.thread for row in rows for each in row.threads}
    return [name for name in preview.all_threads if name not in begun]


async def _begin(
    runtime: Runtime,
    asked: Asked,
    names: list[str],
    preview: ErasurePreview,
    *,
    by: str,
    force: bool,
) -> list[ErasureRow]:
    """Write down that threads are erased."""
    engine = runtime.engine
    busy = [each.run for each in preview.unfinished]
    if busy:
        if not force:
            raise _unfinished(preview)
        await end_all(runtime, busy, by=by)
    begun: list[ErasureRow] = []
    for at in range(0, len(names), ERASED_THREADS_MAX):
        row = ErasureRow(
            erasure_id=engine.services.ids.new("x", engine.now_us()),
            tenant=asked.tenant,
            threads=tuple(map(ErasedThread, names[at : at + ERASED_THREADS_MAX])),
            subject=asked.subject or "",
            by=by,
            begun_at_us=engine.now_us(),
        )
        # crash-point: erase.begin.before
        engine.services.probe("erase.begin.before")
        found = await engine.store.begin_erasure(row)
        # crash-point: erase.begin.after
        engine.services.probe("erase.begin.after")
        if found.row is None:
            raise _refused(found.unfinished, found.other)
        begun.append(found.row)
    return begun


def _unfinished(preview: ErasurePreview) -> ThreadBusy:
    runs = [each.run for each in preview.unfinished]
    named = ", ".join(f"{each.run} ({each.status})" for each in preview.unfinished[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""  # noqa: PLR2004  # those named
    msg = (
        f"runs have not ended: {named}{more}; nothing was erased. Let them end, cancel them, or "
        "end them with the erasure (--force)"
    )
    return ThreadBusy(msg, runs=runs, next=[command("cancel", run) for run in runs])


def _refused(unfinished: tuple[str, ...], other: ErasureRow | None) -> ThreadBusy:
    if other is not None:
        name = other.threads[0].thread
        msg = (
            f"erasure {other.erasure_id!r} of some of these threads is under way; nothing more was "
            "erased. Finish that one first, or wait until it has ended"
        )
        return ThreadBusy(msg, next=[command("erase", "--thread", name)])
    msg = f"run {unfinished[0]!r} was started meanwhile; nothing more was erased. Erase again"
    return ThreadBusy(msg, runs=list(unfinished))


class _Erasing:
    """The erasures that were begun, until they are done."""

    def __init__(
        self,
        runtime: Runtime,
        tenant: TenantId,
        rows: list[ErasureRow],
        tell: Telling,
        sandbox: Kept | None,
    ) -> None:
        """Have erased nothing yet."""
        self.rows = rows
        self.counts: dict[str, int] = {"threads": 0, "runs": 0, "frames": 0, "records": 0}
        self.snapshots = 0
        self.left: list[str] = []
        self.verification = Verification()
        self._engine = runtime.engine
        self._store = runtime.engine.store
        self._tenant = tenant
        self._tell = tell
        self._through = {each.thread: each.through for row in rows for each in row.threads}
        known = [tenant, *self._through]
        self._search = Search(self._engine, rows, known, is_erased=self._is_erased)
        self._pages = Candidates(self._store, tenant)
        self.files: SandboxErasing | None = None
        if sandbox is not None:
            self.files = SandboxErasing(runtime, sandbox, tenant, self._through)

    def _probe(self, name: str) -> None:
        self._engine.services.probe(name)

    def _count(self, kind: str, more: int) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + more

    async def run(self) -> None:
        """Erase all of it, and look whether it is gone."""
        await self._drop_schedules()
        runs = [row async for row in self._runs()]
        for row in runs:
            await self._look_at(row)
        before = await self._store.count_bytes(self._search.needles.pieces)
        if self.files is not None:
            self._tell("erasing files of sandboxes")
            await self.files.run()
            self.left += self.files.left
        await self._drop_pages()
        for number, row in enumerate(runs, 1):
            self._tell(f"{number} of {len(runs)} runs erased")
            await self._erase_run(row)
        # crash-point: erase.keys.before
        self._probe("erase.keys.before")
        threads = [ThreadId(name) for name in self._through]
        self._count("data_keys", await self._store.drop_keys(self._tenant, threads))
        # crash-point: erase.keys.after
        self._probe("erase.keys.after")
        self._tell("writing the store's files anew")
        scrubbed = await self._store.scrub()
        self.left += scrubbed
        self._tell("looking for what was erased")
        self.verification = await self._search.verify(before)
        self.left += [each for each in self._search.left if each not in self.left]
        self._count("threads", len(threads))
        # A server's log and its backups are out of reach; what keeps a file from being cut goes.
        is_blocked = bool(scrubbed) and REMOTE not in self._store.capabilities
        if self.files is not None:
            await self.files.search(self._search.plain.pieces)
        found = self.files.done.found if self.files is not None else 0
        if is_blocked or self.verification.found or found:
            self.left.append("the erasure is under way still: the same command finishes it")
            return
        for erasure in self.rows:
            # crash-point: erase.end.before
            self._probe("erase.end.before")
            await self._store.end_erasure(erasure.erasure_id, at_us=self._engine.now_us())
            # crash-point: erase.end.after
            self._probe("erase.end.after")

    async def _runs(self) -> AsyncIterator[RunRow]:
        for name, through in self._through.items():
            rows = await self._store.read_thread_runs(self._tenant, ThreadId(name), from_ordinal=1)
            for row in rows:
                if row.ordinal <= through:
                    yield row

    async def _drop_schedules(self) -> None:
        """Remove schedules first: they would start runs with what is erased."""
        for schedule in await self._store.find_schedules(tenant=self._tenant):
            if schedule.thread in self._through:
                # crash-point: erase.schedule.before
                self._probe("erase.schedule.before")
                gone = await self._store.drop_schedule(self._tenant, schedule.name)
                self._count("schedules", gone)
                # crash-point: erase.schedule.after
                self._probe("erase.schedule.after")

    async def _look_at(self, row: RunRow) -> None:
        """Take in what a run has in pages, and pieces of what it holds."""
        async for frame in frames_of(self._store, row.run_id, 1):
            if is_erased(frame.body):
                continue
            records = list(records_in(frame))
            self._search.plain.add_frame(frame, records)
            for record in records:
                self.snapshots += _has_snapshot(record)
                for body, content in await self._pages.add(record):
                    self._search.plain.add_stored(body)
                    self._search.plain.add_text(content)
        if self._search.is_sealed:
            await self._search.add_sealed(row.run_id)

    def _is_erased(self, row: RunRow) -> bool:
        return row.tenant == self._tenant and row.ordinal <= self._through.get(row.thread, 0)

    async def _drop_pages(self) -> None:
        """Remove the pages that no other run of the tenant refers to.

        What others put meanwhile is marked by the store, and stays.
        """
        for _try in range(COLLECT_TRIES):
            if not self._pages.depths:
                return
            collection = await self._store.begin_collection(self._tenant)
            await self._keep_pages_of_others()
            if await self._sweep(collection):
                await self._store.end_collection(collection)
                return
        msg = (
            f"pages of tenant {self._tenant!r} are collected by others all the time; the erasure "
            "is under way. Erase again to finish it"
        )
        raise Conflict(msg, tenant=self._tenant)

    async def _sweep(self, collection: Collection) -> bool:
        """Remove pages, those that lead to others last; return False if it was ended by others."""
        for part in self._pages.in_order():
            names = await self._store.page_names(self._tenant, part)
            # crash-point: erase.pages.before
            self._probe("erase.pages.before")
            gone = await self._store.drop_pages(collection, names)
            # crash-point: erase.pages.after
            self._probe("erase.pages.after")
            if gone is None:
                return False
            self._count("pages", gone)
        return True

    async def _keep_pages_of_others(self) -> None:
        """Strike off the pages that others of the tenant refer to."""
        for schedule in await self._store.find_schedules(tenant=self._tenant):
            await self._pages.keep_wire(schedule.input_wire)
        async for row in runs_of(self._store, self._tenant):
            if self._is_erased(row):
                continue
            try:
                await self._pages.keep_run(row)
            except (DecodeFailed, StoreCorrupt) as error:
                # What this run needs is not known: rather too much stays than what is somebody's.
                self._pages.depths.clear()
                self.left.append(
                    f"pages of large values: run {row.run_id} can't be read ({error}), and may "
                    "need them; erase again when that is mended, or collect pages then"
                )
                return

    async def _erase_run(self, row: RunRow) -> None:
        """Erase the frames of a run, and the rest of it with the last of them."""
        effects, asks = await rows_of(self._store, row.run_id)
        before = self.counts["frames"]
        self._count("effects", len(effects))
        self._count("asks", len(asks))
        self._count("messages", len(await self._store.read_mail(row.run_id)))
        self._count("start_keys", row.start_key is not None)
        named = sum(effect.business_key is not None for effect in effects)
        self._count("business_keys", named)
        bodies: list[tuple[int, bytes]] = []
        async for frame in frames_of(self._store, row.run_id, 1):
            if len(bodies) >= FRAMES_ERASED:
                await self._write(row, bodies, is_last=False)
                bodies = []
            # One that was pruned, too: in a sealed store its digests are sealed with the old key.
            bodies.append((frame.first_seq, _erased_body(frame)))
            if not is_erased(frame.body):
                self._count("records", frame.count)
                self._count("frames", 1)
        await self._write(row, bodies, is_last=True)
        self._count("runs", int(self.counts["frames"] > before))

    async def _write(self, row: RunRow, bodies: list[tuple[int, bytes]], *, is_last: bool) -> None:
        # crash-point: erase.run.before
        self._probe("erase.run.before")
        await self._store.erase_run(row.run_id, bodies, is_last=is_last)
        # crash-point: erase.run.after
        self._probe("erase.run.after")


def _has_snapshot(record: rec.Record) -> bool:
    return getattr(record, "snapshot", None) is not None


def _erased_body(frame: FrameRow) -> bytes:
    """Return the body of an erased frame; of a damaged one no digest can be kept."""
    try:
        return erase_frame(frame.body)
    except DecodeFailed:
        return erased_blank(frame.count)


def _ended(
    runtime: Runtime,
    asked: Asked,
    last: ErasurePreview,
    erasing: _Erasing,
    *,
    by: str,
    key: SigningKey | None,
    is_resumed: bool,
) -> Receipt:
    """Return the receipt."""
    now_us = runtime.engine.now_us()
    receipt = Receipt(
        perdure=perdure_version(),
        tenant=asked.tenant,
        asked=asked.as_words(),
        by=by,
        erasures=[row.erasure_id for row in erasing.rows],
        begun_at=as_datetime(min(row.begun_at_us for row in erasing.rows)).isoformat(),
        ended_at=as_datetime(now_us).isoformat(),
        threads=[each.thread for row in erasing.rows for each in row.threads],
        counts=erasing.counts,
        not_undone=last.not_undone,
        exports=last.exports,
        remains=[*_remaining(last, erasing), *_ALWAYS],
        verification=erasing.verification,
        sandbox=None if erasing.files is None else erasing.files.done,
        is_resumed=is_resumed,
    )
    return signed(receipt, key)


NO_FOLDER = (
    "files of the threads' sandboxes, if they have any, as no folder was named: --sandbox FOLDER, "
    "or afterwards: perdure sandbox collect FOLDER"
)


def _remaining(last: ErasurePreview, erasing: _Erasing) -> list[Remaining]:
    found = list(last.remains)
    why = "a file somewhere may hold what was erased"
    found += [Remaining("export", export, why) for export in last.exports]
    if erasing.files is not None:
        found += files_left(erasing.files.done, snapshots=erasing.snapshots)
    elif erasing.snapshots:
        found.append(Remaining("sandbox", "", NO_FOLDER))
    return found + [Remaining("copies", "", what) for what in erasing.left]
