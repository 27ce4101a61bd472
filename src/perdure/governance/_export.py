"""Export a run, a thread, or all of a store as a file that can be checked elsewhere.

The file is written under another name and gets its own when it is complete and on disk, so that a
file with that name is a whole export.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perdure.codec import decode_record, split_frame
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
    Unsigned,
    Writer,
    signed_bytes,
)
from perdure.governance._keys import SigningKey, fingerprint
from perdure.governance._page_check import PageNeeds
from perdure.governance._verify import (
    found_run,
    frames_of,
    is_same,
    pages_of,
    rows_of,
    threads_of,
)
from perdure.governance.limits import ROWS_MAX, SETTLE_TRIES
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import AskRow, EffectRow, ExportRow, FrameRow, RunRow
from perdure.store.api import Store


@dataclass(slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        signed_by: fingerprint of the key; "": it is not signed.
    """

    path: Path
    threads: int = 0
    runs: int = 0
    frames: int = 0
    bytes: int = 0
    signed_by: str = ""


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

    Nothing is verified on the way: what a store holds is exported as it is. Durability: the file
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
            await exporting.run_alone(await found_run(exporting.store, run_id))
        else:
            async for owner, line in threads_of(exporting.store, thread=thread, tenant=tenant):
                await exporting.thread(owner, line)
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

    @property
    def signed_by(self) -> str:
        """Fingerprint of the key that signed it."""
        return self._done.signed_by

    async def thread(self, tenant: TenantId, thread: ThreadId) -> None:
        """Write a thread with all its runs."""
        self.tenant, self.only_thread = tenant, thread
        self._pages = PageNeeds()
        row = await self.store.read_thread(tenant, thread)
        self.writer.block(ThreadOf(tenant, thread, True, row))  # noqa: FBT003  # is_whole
        self._done.threads += 1
        for run in await self.store.read_thread_runs(tenant, thread, from_ordinal=1):
            await self._run(run)

    async def run_alone(self, row: RunRow) -> None:
        """Write one run."""
        self.tenant, self.only_thread = row.tenant, row.thread
        thread = await self.store.read_thread(row.tenant, row.thread)
        self.writer.block(ThreadOf(row.tenant, row.thread, False, thread))  # noqa: FBT003  # is_whole
        self._done.threads += 1
        await self._run(row)

    async def _run(self, row: RunRow) -> None:
        self.writer.block(RunBegins(row.run_id, row.ordinal))
        last_seq, last_hash = 0, b""
        effects: list[EffectRow] = []
        asks: list[AskRow] = []
        is_settled = False
        for _try in range(SETTLE_TRIES):
            async for frame in frames_of(self.store, row.run_id, last_seq + 1):
                await self._frame(row, frame)
                last_seq, last_hash = frame.first_seq + frame.count - 1, frame.hash
            effects, asks = await rows_of(self.store, row.run_id)
            again = await self.store.read_run(RunId(row.run_id))
            if again is None:
                msg = f"run {row.run_id!r} went away while it was exported"
                raise StoreCorrupt(msg, run_id=row.run_id)
            is_settled, row = is_same(row, again), again
            if is_settled:
                break
        self._rows(row, effects, asks, is_settled=is_settled)
        self.writer.block(RunEnds(row.run_id, last_seq, last_hash))
        self._done.runs += 1
        self._done.bytes = self.writer.size
        self._on_progress(self._done)

    async def _frame(self, row: RunRow, frame: FrameRow) -> None:
        """Write a frame, and the pages that it refers to and that the file has not yet."""
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
                self._pages.look_at(decode_record(encoded))
        async for name, body in pages_of(self.store, row.tenant, self._pages):
            self.writer.block(PageOf(name, body))
            self._pages.take(name, body)
        self._pages.drop()

    def _rows(
        self, row: RunRow, effects: list[EffectRow], asks: list[AskRow], *, is_settled: bool
    ) -> None:
        has_all_rows = max(len(effects), len(asks)) < ROWS_MAX
        self.writer.block(RunOf(row, is_settled, has_all_rows))
        for effect in effects:
            self.writer.block(EffectOf(effect))
        for ask in asks:
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
