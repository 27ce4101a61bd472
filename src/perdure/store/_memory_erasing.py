"""What erases in a memory store; see `perdure.store.erasing_api`."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import (
    ErasureBegun,
    ErasureRow,
    ExportRow,
    FrameRow,
    NewRun,
    RunRow,
    RunSpawned,
    ThreadRow,
)
from perdure.store import _erasing_rules as rules
from perdure.store._memory_tables import Tables


def refused_start(tables: Tables, run: NewRun) -> Exception | None:
    """Return why a start is refused that an erasure, or the thread's subject, speaks against."""
    origin = None if run.origin is None else tables.threads.get((run.tenant, run.origin))
    keys = newest_keys(tables, run.tenant, run.thread)
    return rules.refused_start(
        run,
        tables.threads.get((run.tenant, run.thread)),
        origin=origin,
        newest_key=tables.keys[keys[-1]].key_id if keys else None,
    )


def newest_keys(tables: Tables, tenant: TenantId, thread: str) -> list[tuple[TenantId, str, int]]:
    """Return what the data keys of a thread are stored by, the newest last."""
    scope = (tenant, rules.thread_scope(thread))
    return sorted(key for key in tables.keys if key[:2] == scope)


def inherited(tables: Tables, parent: RunRow, change: RunSpawned) -> NewRun:
    """Return a child run that is about whom its parent's thread is about."""
    if change.run.subject is not None:
        return change.run
    return replace(change.run, subject=tables.threads[parent.tenant, parent.thread].subject)


class MemoryErasing:
    """The part of a memory store that erases."""

    _tables: Tables

    def _write(self, name: str) -> AbstractAsyncContextManager[Tables]:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    async def begin_erasure(self, erasure: ErasureRow) -> ErasureBegun:
        """Write down what is erased; see `ErasingStore.begin_erasure`."""
        async with self._write("begin_erasure") as tables:
            known = tables.erasures.get(erasure.erasure_id)
            if known is not None:
                return ErasureBegun(row=known)
            keys = [(erasure.tenant, ThreadId(each.thread)) for each in erasure.threads]
            threads = [tables.threads[key] for key in dict.fromkeys(keys) if key in tables.threads]
            begun = rules.begun(
                erasure,
                threads,
                (run.run_id for row in threads for run in _unfinished(tables, row)),
                (row for row in tables.erasures.values() if _is_open(row, erasure.tenant)),
            )
            if begun.row is not None:
                tables.put(tables.erasures, erasure.erasure_id, begun.row)
                for row in threads:
                    tables.put(tables.threads, (row.tenant, row.thread), rules.emptied(row))
                    _forget(tables, row)
            return begun

    async def erase_run(
        self, run_id: RunId, bodies: Sequence[tuple[int, bytes]], *, is_last: bool
    ) -> None:
        """Erase frames of a run, and at last the rest of it; see `ErasingStore.erase_run`."""
        async with self._write("erase_run") as tables:
            row = tables.runs.get(run_id)
            thread = None if row is None else tables.threads[row.tenant, row.thread]
            rules.check_erasable(run_id, (row.ordinal, thread.erased) if row and thread else None)
            given = dict(bodies)
            frames = tables.frames.get(run_id, ())
            tables.put(tables.frames, run_id, tuple(_erased(each, given) for each in frames))
            if is_last and row is not None:
                _erase_rows(tables, row)

    async def drop_keys(self, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
        """Remove all data keys of threads but the newest; see `ErasingStore.drop_keys`."""
        async with self._write("drop_keys") as tables:
            old = [key for name in set(threads) for key in newest_keys(tables, tenant, name)[:-1]]
            for key in old:
                tables.drop(tables.keys, key)
            return len(old)

    async def end_erasure(self, erasure_id: str, *, at_us: int) -> None:
        """Write down that an erasure was done; see `ErasingStore.end_erasure`."""
        async with self._write("end_erasure") as tables:
            row = tables.erasures.get(erasure_id)
            if row is None:
                raise rules.no_erasure(erasure_id)
            if row.ended_at_us is None:
                tables.put(tables.erasures, erasure_id, replace(row, ended_at_us=at_us))

    async def find_erasures(
        self, tenant: TenantId | None = None, *, open_only: bool = False
    ) -> list[ErasureRow]:
        """Return erasures, oldest first; see `ErasingStore.find_erasures`."""
        self._check_open()
        found = [
            row
            for row in self._tables.erasures.values()
            if tenant in {None, row.tenant} and not (open_only and row.ended_at_us is not None)
        ]
        return sorted(found, key=lambda row: (row.begun_at_us, row.erasure_id))

    async def find_threads(
        self, tenant: TenantId, subject: str, *, after: str = "", limit: int = 1000
    ) -> list[ThreadRow]:
        """Return the threads that are about a subject, by name."""
        self._check_open()
        found = [
            row
            for row in self._tables.threads.values()
            if (row.tenant, row.subject) == (tenant, subject) and row.thread > after
        ]
        return sorted(found, key=lambda row: row.thread)[:limit]

    async def note_export(self, export: ExportRow) -> None:
        """Write down that an export was made; see `ErasingStore.note_export`."""
        async with self._write("note_export") as tables:
            if export.export_id not in tables.exports:
                tables.put(tables.exports, export.export_id, export)

    async def find_exports(self, tenant: TenantId, thread: ThreadId) -> list[ExportRow]:
        """Return exports that may hold the thread, oldest first."""
        self._check_open()
        found = [row for row in self._tables.exports.values() if rules.holds(row, tenant, thread)]
        return sorted(found, key=lambda row: (row.made_at_us, row.export_id))

    async def scrub(self) -> list[str]:
        """Return nothing: what was removed from memory is in no file."""
        self._check_open()
        return []

    async def count_bytes(self, needles: Sequence[bytes]) -> list[int]:
        """Return how often byte strings stand in the rows; see `ErasingStore.count_bytes`."""
        self._check_open()
        kept = [repr(table).encode() for table in self._tables.all_rows()]
        shown = [repr(needle)[2:-1].encode() for needle in needles]
        return [sum(each.count(needle) for each in kept) for needle in shown]


def _is_open(row: ErasureRow, tenant: TenantId) -> bool:
    return row.tenant == tenant and row.ended_at_us is None


def _unfinished(tables: Tables, thread: ThreadRow) -> list[RunRow]:
    keys = [(thread.tenant, thread.thread, n) for n in range(1, thread.last_ordinal + 1)]
    rows = [tables.runs[tables.run_at[key]] for key in keys]
    return [row for row in rows if not row.status.is_final]


def _forget(tables: Tables, thread: ThreadRow) -> None:
    """Remove the tags and the index of copies of a thread."""
    place = (thread.tenant, thread.thread)
    for table in (tables.copies, tables.tags):
        for key in [each for each in table if each[:2] == place]:
            tables.drop(table, key)


def _erased(frame: FrameRow, bodies: dict[int, bytes]) -> FrameRow:
    return replace(frame, body=bodies.get(frame.first_seq, frame.body))


def _erase_rows(tables: Tables, row: RunRow) -> None:
    for effect in [each for each in tables.effects.values() if each.run_id == row.run_id]:
        tables.drop(tables.effects, effect.effect_id)
        tables.drop(tables.effect_keys, (effect.tenant, effect.business_key))
    for ask_id in tables.asks_of.get(row.run_id, ()):
        tables.drop(tables.asks, ask_id)
    tables.drop(tables.asks_of, row.run_id)
    tables.drop(tables.mail, row.run_id)
    for key in [each for each in tables.posts if each[0] == row.run_id]:
        tables.drop(tables.posts, key)
    if row.start_key is not None:
        tables.drop(tables.start_keys, (row.tenant, row.start_key))
    tables.put_run(replace(row, start_key=None, input_digest="", waits=(), failure=None))
