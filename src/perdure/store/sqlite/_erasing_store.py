"""The part of a SQLite store that erases: its calls, and what goes through the whole file."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import ErasureBegun, ErasureRow, ExportRow, ThreadRow
from perdure.store.sqlite import _erasing
from perdure.store.sqlite._connect import connect_scrubber
from perdure.store.sqlite._os_thread import ConnectionThread, Writer
from perdure.store.sqlite._session import Operation
from perdure.store.sqlite._url import SqliteOptions
from perdure.store.sqlite.limits import SCAN_BYTES

Result = TypeVar("Result")


def scrub(db: apsw.Connection) -> list[str]:
    """Write the file anew and cut its log; return what may still hold what was removed."""
    db.execute("VACUUM")
    busy, *_pages = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    if busy:
        return ["the write-ahead log: somebody reads the store; erase again when nobody does"]
    return []


def count_in_files(path: Path, needles: Sequence[bytes]) -> list[int]:
    """Return how often byte strings stand in a database file and the files beside it."""
    counts = [0] * len(needles)
    for end_of_name in ("", "-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + end_of_name)
        if beside.exists():
            for index, count in enumerate(_count(beside, needles)):
                counts[index] += count
    return counts


def _count(path: Path, needles: Sequence[bytes]) -> list[int]:
    """Count in pieces that overlap by less than the needle, so that none is counted twice."""
    counts = [0] * len(needles)
    kept = max(map(len, needles), default=1) - 1
    with path.open("rb") as file:
        tail = b""
        while piece := file.read(SCAN_BYTES):
            whole = tail + piece
            for index, needle in enumerate(needles):
                seen = tail[len(tail) - min(len(tail), len(needle) - 1) :]
                counts[index] += (seen + piece).count(needle)
            tail = whole[-kept:] if kept else b""
    return counts


class SqliteErasing:
    """The part of a SQLite store that erases."""

    _options: SqliteOptions

    @property
    def _writer(self) -> Writer:
        raise NotImplementedError

    def _read(self, name: str, operation: Operation[Result]) -> asyncio.Future[Result]:
        raise NotImplementedError

    async def begin_erasure(self, erasure: ErasureRow) -> ErasureBegun:
        """Write down what is erased; see `ErasingStore.begin_erasure`."""
        return await self._writer.call("begin_erasure", lambda db: _erasing.begin(db, erasure))

    async def erase_run(
        self, run_id: RunId, bodies: Sequence[tuple[int, bytes]], *, is_last: bool
    ) -> None:
        """Erase frames of a run, and at last the rest of it; see `ErasingStore.erase_run`."""
        await self._writer.call(
            "erase_run", lambda db: _erasing.erase_run(db, run_id, bodies, is_last=is_last)
        )

    async def drop_keys(self, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
        """Remove all data keys of threads but the newest; see `ErasingStore.drop_keys`."""
        return await self._writer.call(
            "drop_keys", lambda db: _erasing.drop_keys(db, tenant, threads)
        )

    async def end_erasure(self, erasure_id: str, *, at_us: int) -> None:
        """Write down that an erasure was done; see `ErasingStore.end_erasure`."""
        await self._writer.call("end_erasure", lambda db: _erasing.end(db, erasure_id, at_us))

    async def find_erasures(
        self, tenant: TenantId | None = None, *, open_only: bool = False
    ) -> list[ErasureRow]:
        """Return erasures, oldest first; see `ErasingStore.find_erasures`."""
        return await self._read(
            "erasures", lambda db: _erasing.find_erasures(db, tenant, open_only=open_only)
        )

    async def find_threads(
        self, tenant: TenantId, subject: str, *, after: str = "", limit: int = 1000
    ) -> list[ThreadRow]:
        """Return the threads that are about a subject, by name."""
        return await self._read(
            "threads", lambda db: _erasing.find_threads(db, tenant, subject, after, limit)
        )

    async def note_export(self, export: ExportRow) -> None:
        """Write down that an export was made; see `ErasingStore.note_export`."""
        await self._writer.call("note_export", lambda db: _erasing.note_export(db, export))

    async def find_exports(self, tenant: TenantId, thread: ThreadId) -> list[ExportRow]:
        """Return exports that may hold the thread, oldest first."""
        return await self._read("exports", lambda db: _erasing.find_exports(db, tenant, thread))

    async def scrub(self) -> list[str]:
        """Write the file anew, cut its log; see `ErasingStore.scrub`."""
        return await self._on_own_connection("scrub", scrub)

    async def count_bytes(self, needles: Sequence[bytes]) -> list[int]:
        """Return how often byte strings stand in the store's files."""
        path = self._options.path
        return await self._on_own_connection("count", lambda _db: count_in_files(path, needles))

    async def _on_own_connection(
        self, name: str, operation: Callable[[apsw.Connection], Result]
    ) -> Result:
        """Run what takes long in an OS thread of its own, so that nobody else waits for it."""
        options = self._options
        thread = ConnectionThread(
            f"perdure-{name} {options.path.name}", options.path, lambda: connect_scrubber(options)
        )
        await thread.open()
        try:
            return await thread.call(name, operation)
        finally:
            await thread.close()
