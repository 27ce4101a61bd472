"""Export a run, a thread, or all of a store as a file that can be checked elsewhere.

The file is written under another name and gets its own when it is complete and on disk, so that a
file with that name is a whole export.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from perdure.codec import NO_HASH, decode_record, split_frame
from perdure.engine import Runtime
from perdure.errors import DecodeFailed, StoreCorrupt, UsageError
from perdure.governance._file import (
    AskOf,
    EffectOf,
    FrameOf,
    Head,
    PageOf,
    RunBegins,
    RunEnds,
    RunOf,
    Signature,
    ThreadOf,
    UnreadableOf,
    Unsigned,
    Writer,
    signed_bytes,
)
from perdure.governance._keys import SigningKey, fingerprint
from perdure.governance._page_check import PageNeeds
from perdure.governance._rows import Unreadable, misfit, run_row, runs_of
from perdure.governance._run_check import WRONG_COLUMNS, is_well_formed
from perdure.governance._verify import (
    frames_of,
    is_same,
    no_run,
    pages_of,
    threads_of,
)
from perdure.governance.limits import ROWS_MAX, SETTLE_TRIES
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import AskRow, EffectRow, ExportRow, FrameRow, RunRow
from perdure.model import records as rec
from perdure.store.api import AskQuery, EffectQuery, Store


@dataclass(slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        signed_by: fingerprint of the key; "": it is not signed.
        unreadable: rows and frames that the store could not read; the file says which.
    """

    path: Path
    threads: int = 0
    runs: int = 0
    frames: int = 0
    bytes: int = 0
    signed_by: str = ""
    unreadable: int = 0


async def export(
    runtime: Runtime,
    to: Path,
    *,
    thread: str | None = None,
    run_id: str | None = None,
    tenant: str | None = None,
    key: SigningKey | None = None,
    on_progress: Callable[[Exported], None] = lambda _done: None,
) -> Exported:
    """Write an export: a run, a thread, or all (of a tenant).

    Nothing is verified on the way: what a store holds is exported as it is, and what it can't read
    is marked in the file. Durability: the file
    is on disk when this returns.

    Args:
        runtime: an open one; no worker or graph is needed.
        to: the file; it must not exist.
        thread: only this thread.
        run_id: only this run.
        tenant: as for `verify`.
        key: what signs it; None: nobody.
        on_progress: called after every run.

    Raises:
        NotFound: no such run or thread; nothing was written.
        UsageError: the file exists, or can't be written.
        StoreError: the store can't be read; nothing is left.
    """
    output = _Output(to)
    try:
        scope = Head(
            made_at_us=runtime.engine.now_us(),
            perdure=perdure_version(),
            tenant=tenant or "",
            thread=thread or "",
            run_id=run_id or "",
        )
        exporting = _Exporting(runtime.engine.store, Writer(output.file), output.done, on_progress)
        exporting.writer.block(scope)
        if run_id is not None:
            await exporting.run_alone(run_id)
        else:
            lost: dict[str, Unreadable] = {}
            store = exporting.store
            async for owner, line in threads_of(store, thread=thread, tenant=tenant, lost=lost):
                await exporting.thread(owner, line)
            for each in lost.values():
                await exporting.lost_run(each)
        exporting.close(key)
        # Before the file is there: who erases must know of every one that may exist.
        await exporting.store.note_export(_noted(scope, exporting))
        await asyncio.to_thread(output.keep)
    except BaseException:
        output.drop()
        raise
    return output.done


def _noted(scope: Head, exporting: "_Exporting") -> ExportRow:
    return ExportRow(
        export_id=exporting.digest.hex(),
        tenant=exporting.tenant if scope.thread or scope.run_id else scope.tenant,
        thread=exporting.only_thread if scope.thread or scope.run_id else "",
        run_id=scope.run_id,
        made_at_us=scope.made_at_us,
        signed_by=exporting.signed_by,
    )


def perdure_version() -> str:
    """Return which Perdure writes the file."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # slow to import

    try:
        return version("perdure")
    except PackageNotFoundError:
        return ""


class _Output:
    """The file while it is written."""

    def __init__(self, to: Path) -> None:
        """Open it under another name.

        Raises:
            UsageError: it exists, or can't be written.
        """
        self.done = Exported(path=to)
        self._part = to.with_name(f"{to.name}.part")
        if to.exists():
            msg = (
                f"{str(to)!r} exists, and an export is evidence; nothing was written. Name another"
            )
            raise UsageError(msg, path=str(to))
        try:
            self.file: BinaryIO = self._part.open("wb")
        except OSError as error:
            msg = f"{str(to)!r} can't be written: {error.strerror}"
            raise UsageError(msg, path=str(to)) from error

    def keep(self) -> None:
        """Make it durable, under its own name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        try:
            os.link(self._part, self.done.path)  # unlike a rename, it replaces nothing
        except FileExistsError as error:
            msg = (
                f"{str(self.done.path)!r} was made by somebody else meanwhile; nothing was written"
            )
            raise UsageError(msg, path=str(self.done.path)) from error
        self._part.unlink()
        folder = os.open(self.done.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._part.unlink()


_NONE = (0, NO_HASH)
"""Where a journal begins: the seq and the hash before its first frame."""


@dataclass(slots=True)
class _Ledger:
    """The effects and asks of a run, and what of them can't be read."""

    effects: list[EffectRow] = field(default_factory=list)
    asks: list[AskRow] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether there are no more rows than these."""
        return not self.wrong and max(len(self.effects), len(self.asks)) < ROWS_MAX


async def _ledger_of(store: Store, run_id: RunId) -> _Ledger:
    """Return what can be read of the rows of a run's effects and asks."""
    found = _Ledger()
    try:
        found.effects = await store.find_effects(EffectQuery(run_id=run_id, limit=ROWS_MAX))
    except StoreCorrupt as error:
        found.wrong.append(str(error))
    try:
        found.asks = await store.find_asks(AskQuery(run_id=run_id, limit=ROWS_MAX))
    except StoreCorrupt as error:
        found.wrong.append(str(error))
    wrong = [(f"the row of effect {row.effect_id!r}", misfit(row)) for row in found.effects]
    wrong += [(f"the row of ask {row.ask_id!r}", misfit(row)) for row in found.asks]
    found.wrong += [f"{whose}: {what}" for whose, what in wrong if what]
    found.effects = [row for row in found.effects if not misfit(row)]
    found.asks = [row for row in found.asks if not misfit(row)]
    return found


class _Exporting:
    """One export under way."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        done: Exported,
        on_progress: Callable[[Exported], None],
    ) -> None:
        """Write blocks of what the store holds."""
        self.store = store
        self.writer = writer
        self.digest = b""
        self.tenant = ""
        self.only_thread = ""
        self._done = done
        self._on_progress = on_progress
        self._pages = PageNeeds()
        self._told: set[object] = set()

    @property
    def signed_by(self) -> str:
        """Fingerprint of the key that signed it."""
        return self._done.signed_by

    async def thread(self, tenant: TenantId, thread: ThreadId) -> None:
        """Write a thread with all its runs."""
        self.tenant, self.only_thread = tenant, thread
        self._pages = PageNeeds()
        await self._thread_row(tenant, thread, is_whole=True)
        runs = [run async for run in runs_of(self.store, tenant=tenant, thread=thread)]
        placed = [
            (run.ordinal if isinstance(run, RunRow) else place, run)
            for place, run in enumerate(runs[::-1], 1)
        ]
        for ordinal, run in sorted(placed, key=itemgetter(0)):
            if isinstance(run, RunRow):
                await self._run(run)
            else:
                await self._lost(run, tenant, ordinal)

    async def _thread_row(self, tenant: TenantId, thread: ThreadId, *, is_whole: bool) -> None:
        """Write the beginning of a thread, and that its row can't be read."""
        row, wrong = None, ""
        try:
            row = await self.store.read_thread(tenant, thread)
            wrong = "" if row is None else misfit(row)
        except StoreCorrupt as error:
            wrong = str(error)
        self.writer.block(ThreadOf(tenant, thread, is_whole, None if wrong else row))
        if wrong:
            self._unreadable("thread", wrong)
        self._done.threads += 1

    async def run_alone(self, run_id: str) -> None:
        """Write one run.

        Raises:
            NotFound: there is none.
        """
        row = await run_row(self.store, run_id)
        if row is None:
            raise no_run(run_id)
        if not isinstance(row, RunRow):
            await self.lost_run(row)
            return
        self.tenant, self.only_thread = row.tenant, row.thread
        await self._thread_row(row.tenant, row.thread, is_whole=False)
        await self._run(row)

    async def lost_run(self, lost: Unreadable) -> None:
        """Write a run of a thread that nobody knows, as its row can't be read; once."""
        if lost.run_id not in self._told:
            self._pages = PageNeeds()
            self.writer.block(ThreadOf("", "", False))  # noqa: FBT003  # is_whole
            self._done.threads += 1
            await self._lost(lost, TenantId(""), 0)

    async def _lost(self, lost: Unreadable, tenant: TenantId, ordinal: int) -> None:
        """Write the journal of a run whose row can't be read."""
        self._told.add(lost.run_id)
        self.writer.block(RunBegins(lost.run_id, ordinal))
        tip = await self._frames(lost.run_id, tenant, _NONE)
        self._unreadable("run", lost.what)
        self._end_run(lost.run_id, tip)

    def _unreadable(self, of: str, what: str) -> None:
        self.writer.block(UnreadableOf(of, what))
        self._done.unreadable += 1

    async def _run(self, row: RunRow) -> None:
        self.writer.block(RunBegins(row.run_id, row.ordinal))
        tip, is_settled = _NONE, False
        ledger = _Ledger()
        for _try in range(SETTLE_TRIES):
            tip = await self._frames(row.run_id, row.tenant, tip)
            ledger = await _ledger_of(self.store, row.run_id)
            again = await run_row(self.store, row.run_id)
            if again is None:
                msg = f"run {row.run_id!r} went away while it was exported"
                raise StoreCorrupt(msg, run_id=row.run_id)
            if not isinstance(again, RunRow):  # what there is of it is written all the same
                ledger.wrong.append(again.what)
                is_settled = False
                break
            is_settled, row = is_same(row, again), again
            if is_settled:
                break
        self._rows(row, ledger, is_settled=is_settled)
        self._end_run(row.run_id, tip)

    def _end_run(self, run_id: str, tip: tuple[int, bytes]) -> None:
        self.writer.block(RunEnds(run_id, *tip))
        self._done.runs += 1
        self._done.bytes = self.writer.size
        self._on_progress(self._done)

    async def _frames(
        self, run_id: str, tenant: TenantId, tip: tuple[int, bytes]
    ) -> tuple[int, bytes]:
        """Write the frames behind a tip (seq, hash); return where they end."""
        last_seq, last_hash = tip
        try:
            async for frame in frames_of(self.store, run_id, last_seq + 1):
                if is_well_formed(frame):
                    tenant = await self._frame(tenant, frame)
                    last_seq, last_hash = frame.first_seq + frame.count - 1, frame.hash
                else:
                    self._bad_frame(run_id, f"the frame after seq {last_seq} {WRONG_COLUMNS}")
        except StoreCorrupt as error:
            self._bad_frame(run_id, str(error))
        return last_seq, last_hash

    def _bad_frame(self, run_id: str, what: str) -> None:
        if (run_id, what) not in self._told:  # it is met again with every look
            self._told.add((run_id, what))
            self._unreadable("frame", what)

    async def _frame(self, tenant: TenantId, frame: FrameRow) -> TenantId:
        """Write a frame, and the pages that it refers to and that the file has not yet.

        Returns:
            Whose it is, which its first record says where its row does not.
        """
        self._done.frames += 1
        self.writer.block(
            FrameOf(
                frame.first_seq,
                frame.count,
                frame.token,
                frame.at_us,
                frame.prev_hash,
                frame.hash,
                frame.body,
            )
        )
        # What can't be read is exported as it is; the check says so.
        with suppress(DecodeFailed):
            for encoded in split_frame(frame.body):
                record = decode_record(encoded)
                if isinstance(record, rec.RunStarted):
                    tenant = tenant or TenantId(record.tenant)
                self._pages.look_at(record)
        async for name, body in pages_of(self.store, tenant, self._pages):
            self.writer.block(PageOf(name, body))
            self._pages.take(name, body)
        self._pages.drop()
        return tenant

    def _rows(self, row: RunRow, ledger: "_Ledger", *, is_settled: bool) -> None:
        self.writer.block(RunOf(row, is_settled, ledger.is_whole))
        for what in ledger.wrong:
            self._unreadable("row", what)
        for effect in ledger.effects:
            self.writer.block(EffectOf(effect))
        for ask in ledger.asks:
            self.writer.block(AskOf(ask))

    def close(self, key: SigningKey | None) -> None:
        """Write the end and the signature."""
        digest = self.digest = self.writer.end()
        if key is None:
            self.writer.block(Unsigned())
        else:
            signature = key.sign(signed_bytes(digest))
            self.writer.block(Signature("ed25519", key.public_key, signature))
            self._done.signed_by = fingerprint(key.public_key)
        self._done.bytes = self.writer.size
