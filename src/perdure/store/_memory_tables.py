"""The rows of a memory store, and how to undo what an operation did to them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    AskRow,
    CopyRow,
    EffectRow,
    ErasureRow,
    ExportRow,
    FrameRow,
    KeyRow,
    LimitRow,
    Mail,
    QuotaRow,
    RunRow,
    ScheduleRow,
    TagRow,
    ThreadRow,
    WorkerRow,
)

_ABSENT: Any = object()

Listener = tuple[asyncio.AbstractEventLoop, Callable[[], None]]
"""The event loop of a store object, and what to call in it after a write."""


class Tables:
    """Dictionaries of frozen rows; every change goes through `put` and `drop`."""

    def __init__(self) -> None:
        """Start empty."""
        self.runs: dict[RunId, RunRow] = {}
        self.threads: dict[tuple[TenantId, ThreadId], ThreadRow] = {}
        self.run_at: dict[tuple[TenantId, ThreadId, int], RunId] = {}
        self.start_keys: dict[tuple[TenantId, str], RunId] = {}
        self.due: dict[RunId, int] = {}
        self.numbers: dict[RunId, int] = {}
        self.frames: dict[RunId, tuple[FrameRow, ...]] = {}
        self.mail: dict[RunId, tuple[Mail, ...]] = {}
        self.posts: dict[tuple[RunId, str], int] = {}
        self.pages: dict[tuple[TenantId, bytes], bytes] = {}
        self.marked: dict[tuple[TenantId, bytes], bool] = {}
        self.collections: dict[TenantId, tuple[int, bool]] = {}
        self.copies: dict[tuple[TenantId, ThreadId, int], CopyRow] = {}
        self.tags: dict[tuple[TenantId, ThreadId, str], TagRow] = {}
        self.quotas: dict[TenantId, QuotaRow] = {}
        self.keys: dict[tuple[TenantId, str, int], KeyRow] = {}
        self.effects: dict[EffectId, EffectRow] = {}
        self.effect_keys: dict[tuple[TenantId, str], EffectId] = {}
        self.asks: dict[AskId, AskRow] = {}
        self.asks_of: dict[RunId, tuple[AskId, ...]] = {}
        self.workers: dict[WorkerId, WorkerRow] = {}
        self.limits: dict[tuple[TenantId, str], LimitRow] = {}
        self.buckets: dict[tuple[TenantId, str], int] = {}
        self.schedules: dict[tuple[TenantId, str], ScheduleRow] = {}
        self.erasures: dict[str, ErasureRow] = {}
        self.exports: dict[str, ExportRow] = {}
        self.last_mail_id = 0
        self.writes = 0
        self.lock = RLock()
        self.listeners: WeakKeyDictionary[Any, Listener] = WeakKeyDictionary()
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Any, Any], key: Any, row: Any) -> None:
        """Set a row."""
        self._undo.append((table, key, table.get(key, _ABSENT)))
        table[key] = row
        self.writes += 1

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        """Remove a row, if it is there."""
        if key in table:
            self._undo.append((table, key, table.pop(key)))
            self.writes += 1

    def put_run(self, row: RunRow) -> None:
        """Set a run's row, and when it is due."""
        self.put(self.runs, row.run_id, row)
        if row.ready_at_us is None:
            self.drop(self.due, row.run_id)
        else:
            self.put(self.due, row.run_id, row.ready_at_us)

    def all_rows(self) -> list[dict[Any, Any]]:
        """Return every table."""
        return [table for table in vars(self).values() if type(table) is dict]

    def next_mail_id(self) -> int:
        """Return an id that was never given before, also not by an operation that was undone."""
        self.last_mail_id += 1
        return self.last_mail_id

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock; undo everything if the block raises."""
        with self.lock:
            self._undo.clear()
            try:
                yield
            except BaseException:
                self._roll_back()
                raise

    def tell_others(self, writer: object) -> None:
        """Call the listeners of all store objects but the one that wrote, each in its own loop."""
        for store, (loop, heard) in list(self.listeners.items()):
            if store is not writer and not loop.is_closed():
                loop.call_soon_threadsafe(heard)

    def _roll_back(self) -> None:
        while self._undo:
            table, key, row = self._undo.pop()
            if row is _ABSENT:
                table.pop(key, None)
            else:
                table[key] = row
