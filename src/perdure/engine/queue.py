"""The commit queue: appends of many runs, flushed by group commit, externally synchronous.

Theory: a holder adds records to its `RunJournal` and goes on; one flusher per store takes what all
journals hold the moment the last commit returns, and commits it together. Whoever is about to let
the outside see something first awaits `RunJournal.barrier()`: it returns when everything added
before it is durable. So a crash can only lose a suffix of work that nobody saw. (Source:
Nightingale et al., "Rethink the Sync", OSDI 2006.)

Invariants: the records of one run reach the store in order and without gaps; after a refused append
the journal is dead (`LeaseLost`) and nothing more of it is sent; one run's refusal never touches
the others of its batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from perdure.clock import Clock
from perdure.codec import chain_hash, encode_frame, encode_record
from perdure.engine.limits import (
    BATCH_RUNS_MAX,
    PENDING_AGE_S_MAX,
    PENDING_BYTES_MAX,
    PENDING_RECORDS_MAX,
    STARTS_MAX,
)
from perdure.errors import Conflict, LeaseLost, PerdureError, StoreError, StoreUnavailable
from perdure.model import Append, Appended, AppendOutcome, Change, Fenced, NewRun, RunRow, Started
from perdure.model.records import Record
from perdure.store.api import Store


class RunJournal:
    """One held run's end of the queue."""

    __slots__ = (
        "_added",
        "_bytes",
        "_changes",
        "_durable",
        "_queue",
        "_records",
        "_waiters",
        "error",
        "in_flight",
        "is_held",
        "next_seq",
        "oldest_s",
        "prev_hash",
        "row",
        "total_bytes",
    )

    def __init__(self, queue: "CommitQueue", row: RunRow, prev_hash: bytes) -> None:
        """Continue the run's journal after `row.last_seq`, whose frame has the hash `prev_hash`."""
        self._queue = queue
        self.row = row
        self.prev_hash = prev_hash
        self.next_seq = row.last_seq + 1
        self.error: PerdureError | None = None
        self.in_flight = False
        self.is_held = False
        self.total_bytes = 0
        self.oldest_s: float | None = None
        self._records: list[bytes] = []
        self._changes: list[Change] = []
        self._bytes = 0
        self._added = row.last_seq
        self._durable = row.last_seq
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def added_seq(self) -> int:
        """Seq of the newest record added."""
        return self._added

    @property
    def durable_seq(self) -> int:
        """Seq of the newest durable record."""
        return self._durable

    def add(self, record: Record, *changes: Change) -> int:
        """Add a record and the changes that belong to it; return its seq. Nothing is durable yet.

        Raises:
            LeaseLost, StoreError: an earlier append failed; nothing was added.
        """
        return self.add_encoded(encode_record(record), changes)

    def add_encoded(self, encoded: bytes, changes: Sequence[Change]) -> int:
        """Add an encoded record and its changes; see `add`."""
        if self.error is not None:
            raise self.error
        self._records.append(encoded)
        self._bytes += len(encoded)
        self.total_bytes += len(encoded)
        if changes:
            self._changes.extend(changes)
        self._added += 1
        if self.oldest_s is None:
            self._queue.mark(self)
        return self._added

    @property
    def is_pending(self) -> bool:
        """Whether something of it waits for its commit, or is on its way."""
        return self.error is None and self._durable < self._added

    @property
    def is_behind(self) -> bool:
        """Whether so much is waiting for its commit that the run should wait too."""
        if self.oldest_s is None:
            return False
        return (
            len(self._records) > PENDING_RECORDS_MAX
            or self._bytes > PENDING_BYTES_MAX
            or self._queue.clock.monotonic_s() - self.oldest_s > PENDING_AGE_S_MAX
        )

    async def barrier(self) -> None:
        """Return when everything added so far is durable.

        Raises:
            LeaseLost: another holder owns the run; nothing added since the last barrier was
                written.
            StoreError: the store refused the commit; the same.
        """
        if self.error is not None:
            raise self.error
        if self._durable >= self._added:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, waiter))
        await waiter

    async def acquire(self) -> None:
        """Return when nothing waits or is in flight, and keep the flusher away until `release`.

        Raises:
            LeaseLost, StoreError: as `barrier`.
        """
        while True:
            await self.barrier()
            if self.oldest_s is None and not self.in_flight and not self.is_held:
                self.is_held = True
                return
            await self._queue.clock.sleep(0)

    def prepare(self, record: Record, *changes: Change) -> Append:
        """Return the append of one record that is committed by other means."""
        encoded = [encode_record(record)]
        self.total_bytes += len(encoded[0])
        return self._append_of(encoded, list(changes))

    def release(self, append: Append | None) -> None:
        """Let the flusher go on; `append`: what was committed meanwhile, None: nothing."""
        self.is_held = False
        if append is not None:
            self.next_seq += append.count
            self.prev_hash = append.hash
            self._durable += append.count
            self._added += append.count
            # Records added meanwhile come after it: their barriers move along.
            self._waiters = deque((seq + append.count, waiter) for seq, waiter in self._waiters)
        if self.oldest_s is not None:
            self._queue.mark(self)

    def take(self) -> Append:
        """Hand everything that waits over to a commit. Called by the flusher only."""
        records, changes = self._records, self._changes
        self._records, self._changes, self._bytes, self.oldest_s = [], [], 0, None
        append = self._append_of(records, changes)
        self.next_seq += len(records)
        self.prev_hash = append.hash
        self.in_flight = True
        return append

    def _append_of(self, records: list[bytes], changes: list[Change]) -> Append:
        token, at_us = self.row.token, self._queue.now_us()
        following = chain_hash(
            self.prev_hash, self.row.run_id, self.next_seq, token, records, at_us=at_us
        )
        return Append(
            run_id=self.row.run_id,
            tenant=self.row.tenant,
            thread=self.row.thread,
            token=token,
            first_seq=self.next_seq,
            at_us=at_us,
            count=len(records),
            body=encode_frame(records),
            prev_hash=self.prev_hash,
            hash=following,
            changes=tuple(changes),
        )

    def commit(self, append: Append, outcome: AppendOutcome | PerdureError) -> None:
        """Take in what became of an append. Called by the flusher only."""
        self.in_flight = False
        if isinstance(outcome, Appended):
            self._durable = append.first_seq + append.count - 1
            while self._waiters and self._waiters[0][0] <= self._durable:
                waiter = self._waiters.popleft()[1]
                if not waiter.done():
                    waiter.set_result(None)
            return
        self.refuse(outcome)

    def refuse(self, outcome: AppendOutcome | PerdureError) -> None:
        """Take in that an append was not written."""
        self.fail(self._error_of(outcome))

    def fail(self, error: PerdureError) -> None:
        """Kill the journal: drop what waits, fail every barrier, refuse more."""
        self.error = error
        self._records, self._changes, self.oldest_s = [], [], None
        while self._waiters:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # whoever waits raises it; nobody waiting is no news
        self._queue.on_dead(self)

    def _error_of(self, outcome: AppendOutcome | PerdureError) -> PerdureError:
        row = self.row
        if isinstance(outcome, PerdureError):
            return outcome
        if isinstance(outcome, Fenced):
            msg = (
                f"run {row.run_id!r} lost its lease to {outcome.holder!r} (token {row.token} "
                f"against {outcome.token}); nothing was written. This worker stops the run; the "
                "other holder goes on with it."
            )
            return LeaseLost(msg, run_id=row.run_id, token=row.token, current=outcome.token)
        msg = (
            f"run {row.run_id!r}: another effect took the business key at the same moment; the run "
            "starts over here"
        )
        return Conflict(msg, run_id=row.run_id)


class CommitQueue:
    """All journals of one store in this process, and the flusher that commits them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Serve the journals of one store; call `start` before the first record is added."""
        self.clock = clock
        self.now_us = store.now_us
        self.on_dead: Callable[[RunJournal], None] = lambda _journal: None
        self._listeners: dict[str, list[asyncio.Future[None]]] = {}
        self._store = store
        self._dirty: deque[RunJournal] = deque()
        self._committing: list[RunJournal] = []
        self._wake: asyncio.Event = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self.commits = 0
        self.frames = 0

    def start(self) -> None:
        """Start the flusher on the running event loop."""
        self._flusher = asyncio.create_task(self._flush_for_ever(), name="perdure-commit-queue")

    async def close(self) -> None:
        """Commit what was added, then stop. Idempotent."""
        if self._flusher is None:
            return
        # Not those that failed or have nothing left: awaiting them would not wait for the flusher.
        while not self._flusher.done() and (left := self._pending()):
            await asyncio.gather(*(self._drained(journal) for journal in left))
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)
        self._flusher = None

    def _pending(self) -> list[RunJournal]:
        return [journal for journal in (*self._committing, *self._dirty) if journal.is_pending]

    @staticmethod
    async def _drained(journal: RunJournal) -> None:
        try:
            await journal.barrier()
        except PerdureError:
            return  # whoever added the records hears of it by their own barrier

    def mark(self, journal: RunJournal) -> None:
        """Note that a journal has something to commit."""
        journal.oldest_s = self.clock.monotonic_s()
        self._dirty.append(journal)
        self._wake.set()

    async def _flush_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                await self._flush_once()

    async def _flush_once(self) -> None:
        journals: list[RunJournal] = []
        while self._dirty and len(journals) < BATCH_RUNS_MAX:
            journal = self._dirty.popleft()
            if journal.error is None and not journal.is_held and journal.oldest_s is not None:
                journals.append(journal)
        if not journals:
            return
        batch = [journal.take() for journal in journals]
        self._committing = journals
        outcomes: Sequence[AppendOutcome | PerdureError]
        try:
            outcomes = await self._store.append(batch)
        except PerdureError as error:
            outcomes = await self._one_by_one(batch, error)
        except Exception as error:  # noqa: BLE001  # the flusher must outlive a fault of one batch
            failed = StoreUnavailable(f"the store failed: {error!r}; nothing was written")
            failed.__cause__ = error
            outcomes = [failed] * len(batch)
        self.commits += 1
        self.frames += len(batch)
        for journal, append, outcome in zip(journals, batch, outcomes, strict=True):
            journal.commit(append, outcome)
        if self._listeners:
            self._tell(batch)

    async def _one_by_one(
        self, batch: Sequence[Append], error: PerdureError
    ) -> Sequence[AppendOutcome | PerdureError]:
        """Commit a refused batch append by append, where one of them may be at fault."""
        if type(error) is not StoreError or len(batch) == 1:
            return [error] * len(batch)
        outcomes: list[AppendOutcome | PerdureError] = []
        for append in batch:
            try:
                outcomes += await self._store.append([append])
            except PerdureError as own:
                outcomes.append(own)
        return outcomes

    def _tell(self, batch: Sequence[Append]) -> None:
        for append in batch:
            for listener in self._listeners.pop(append.run_id, ()):
                if not listener.done():
                    listener.set_result(None)

    def listen(self, run_id: str) -> "asyncio.Future[None]":
        """Return a future that ends with the next commit of this run's records in this process."""
        listener: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.setdefault(run_id, []).append(listener)
        return listener

    def drop_listener(self, run_id: str, listener: "asyncio.Future[None]") -> None:
        """Forget a future of `listen`."""
        others = self._listeners.get(run_id, [])
        if listener in others:
            others.remove(listener)
        if not others:
            self._listeners.pop(run_id, None)


class StartQueue:
    """Starts of many callers, created together.

    One transaction takes all that wait when the last one returns.
    """

    def __init__(self, store: Store) -> None:
        """Serve one store."""
        self._store = store
        self._waiting: list[tuple[NewRun, asyncio.Future[Started]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def submit(self, new: NewRun) -> Started:
        """Create a run; return when it is durable.

        Raises:
            StartKeyReused, ThreadBusy: refused; nothing was written.
            StoreError: nothing was written.
        """
        future: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="perdure-starts")
        return await future

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:STARTS_MAX]
            del self._waiting[:STARTS_MAX]
            outcomes: Sequence[Started | Exception]
            try:
                outcomes = await self._store.start([new for new, _future in batch])
            except Exception as error:  # noqa: BLE001  # handed to every caller of the batch
                outcomes = [error] * len(batch)
            for (_new, future), outcome in zip(batch, outcomes, strict=True):
                _settle(future, outcome)


def _settle(future: "asyncio.Future[Started]", outcome: Started | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
