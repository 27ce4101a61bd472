"""Conformance: waiting for others, and what only some stores offer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from perdure.errors import PerdureError, UsageError
from perdure.model import (
    Append,
    Appended,
    Fenced,
    RunRow,
    RunStatus,
    Started,
)
from perdure.store.api import (
    CROSS_PROCESS,
    DURABLE,
    LIVENESS,
    TRANSACTION,
    Capability,
    Store,
    Transaction,
)
from perdure.testing._store_kit import (
    FAR,
    OTHER,
    T0,
    WORKER,
    appended_to,
    claimed,
    needs,
    new_run,
    signal_to,
    started,
    taken,
    the_run,
    worker,
    written,
)

MakeStore = Callable[[], Store]
SOON_S = 5.0
"""How long a test waits for what should take milliseconds."""


class WatchRules:
    """A write is never missed by who waits for it."""

    async def test_wait_times_out_without_a_write(self, store: Store) -> None:
        """Nothing written, nothing reported; a read and an empty claim are no writes."""
        await started(store, "a", ready_at_us=T0 + 9000)
        assert await store.wait_for_change(SOON_S)
        await claimed(store)
        await store.find_workers()
        assert not await store.wait_for_change(0.05)

    async def test_write_between_two_waits_is_seen(self, store: Store) -> None:
        """A write while nobody waits is reported by the next call at once."""
        await store.wait_for_change(0.01)
        await started(store, "a")
        assert await store.wait_for_change(SOON_S)
        assert not await store.wait_for_change(0.05)

    async def test_every_waiter_is_woken(self, store: Store) -> None:
        """Several callers wait at once, each in its own task."""
        waits = [asyncio.create_task(store.wait_for_change(SOON_S)) for _ in range(5)]
        await asyncio.sleep(0)
        await started(store, "a")
        assert await asyncio.gather(*waits) == [True] * 5

    async def test_mark_sees_a_write_that_others_have_heard_of(self, store: Store) -> None:
        """With a mark, a caller hears of a write that another caller has already been told of."""
        mark = store.change_mark()
        await started(store, "a")
        assert await store.wait_for_change(SOON_S)
        assert await store.wait_for_change(SOON_S, since=mark)
        assert not await store.wait_for_change(0.05, since=store.change_mark())


class ManyObjectRules:
    """Several objects, and processes, on one store."""

    async def test_what_was_written_survives(self, make_store: MakeStore, store: Store) -> None:
        """DURABLE: after closing and opening again everything is as it was."""
        needs(store, DURABLE)
        row = await written(store, await taken(store, "a"))
        await store.post(signal_to(row.run_id))
        before = await _everything(store, row)
        await store.close()
        async with opened(make_store()) as again:
            assert await _everything(again, row) == before

    async def test_two_objects_see_each_other(self, make_store: MakeStore, store: Store) -> None:
        """CROSS_PROCESS: writes of one are read and heard of by the other, and fence it."""
        needs(store, CROSS_PROCESS)
        async with opened(make_store()) as other:
            await other.wait_for_change(0.1)
            waits = asyncio.create_task(other.wait_for_change(SOON_S))
            old = await taken(store, "a")
            assert await waits
            [new] = await claimed(other, OTHER, now_us=T0 + 1000, lease_until_us=T0 + 2000)
            assert new.token == old.token + 1
            [refused] = await store.append([appended_to(old)])
            assert refused == Fenced(token=2, holder=OTHER, last_seq=1)

    async def test_a_run_is_claimed_once(self, make_store: MakeStore, store: Store) -> None:
        """CROSS_PROCESS: two objects that claim at once never get the same run."""
        needs(store, CROSS_PROCESS)
        await store.start([new_run(f"{i:02}") for i in range(40)])
        async with opened(make_store()) as other:
            each_in_turn = 8 * [(store, WORKER), (other, OTHER)]
            claims = [claimed(each, name, limit=3) for each, name in each_in_turn]
            rows = [row.run_id for part in await asyncio.gather(*claims) for row in part]
        assert len(rows) == len(set(rows)) == 40

    async def test_same_start_key_from_two_objects(
        self, make_store: MakeStore, store: Store
    ) -> None:
        """CROSS_PROCESS: of starts with one key at once, exactly one creates."""
        needs(store, CROSS_PROCESS)
        async with opened(make_store()) as other:
            starts = [
                each.start([new_run(f"{i}", start_key="k", input_digest="d")])
                for i, each in enumerate(4 * [store, other])
            ]
            outcomes = [part[0] for part in await asyncio.gather(*starts)]
        created = [outcome for outcome in outcomes if getattr(outcome, "created", None)]
        assert len(created) == 1
        assert all(isinstance(outcome, Started) for outcome in outcomes)


class _EnoughError(Exception):
    """Ends a body that only looked."""


class TransactionRules:
    """User writes and the journal record commit together, or neither."""

    placeholder = "?"
    """How the store's SQL marks a parameter."""
    reaching: Sequence[str] = (
        "UPDATE perdure_runs SET token = 9",
        "DELETE FROM Perdure_Frames",
        "SELECT * FROM perdure_runs",
        (
            "CREATE TRIGGER t AFTER INSERT ON orders BEGIN DELETE FROM perdure_runs; END; "
            "INSERT INTO orders VALUES ('fires')"
        ),
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
    )
    """Statements that reach for the store's own tables, or for the transaction itself."""

    async def _table(self, store: Store, row: RunRow) -> RunRow:
        async def body(transaction: Transaction) -> Append:
            await transaction.execute("CREATE TABLE orders (name TEXT)")
            return appended_to(row)

        assert await store.transact(body, run_id=row.run_id, token=row.token) == Appended()
        return await the_run(store, row.run_id)

    async def _orders(self, store: Store, row: RunRow) -> list[tuple[object, ...]]:
        seen: list[tuple[object, ...]] = []

        async def body(transaction: Transaction) -> Append:
            seen.extend(await transaction.execute("SELECT name FROM orders"))
            raise _EnoughError

        with pytest.raises(_EnoughError):
            await store.transact(body, run_id=row.run_id, token=row.token)
        return seen

    async def test_transaction_commits_both(self, store: Store) -> None:
        """TRANSACTION: with `Appended`, the user's row and the record are there."""
        needs(store, TRANSACTION)
        row = await self._table(store, await taken(store, "a"))

        async def body(transaction: Transaction) -> Append:
            """Insert one row."""
            insert = f"INSERT INTO orders VALUES ({self.placeholder})"  # noqa: S608  # of a test
            await transaction.execute(insert, ("seven",))
            return appended_to(row)

        assert await store.transact(body, run_id=row.run_id, token=row.token) == Appended()
        row = await the_run(store, row.run_id)
        assert (row.last_seq, await self._orders(store, row)) == (3, [("seven",)])

    async def test_failing_body_rolls_back(self, store: Store) -> None:
        """TRANSACTION: an error of the body, or of a statement, leaves nothing behind."""
        needs(store, TRANSACTION)
        row = await self._table(store, await taken(store, "a"))

        async def body(transaction: Transaction) -> Append:
            """Fail half-way."""
            await transaction.execute("INSERT INTO orders VALUES ('lost')")
            await transaction.execute("INSERT INTO nowhere VALUES (1)")
            return appended_to(row)

        async def swallowing(transaction: Transaction) -> Append:
            """Fail half-way and hide it."""
            with contextlib.suppress(PerdureError):
                await body(transaction)
            return appended_to(row)

        for each in (body, swallowing):
            with pytest.raises(PerdureError):
                await store.transact(each, run_id=row.run_id, token=row.token)
        assert await self._orders(store, row) == []
        assert await the_run(store, row.run_id) == row

    async def test_cancelled_body_rolls_back(self, store: Store) -> None:
        """TRANSACTION: a cancelled body leaves no open transaction: others can write."""
        needs(store, TRANSACTION)
        row = await self._table(store, await taken(store, "a"))
        entered = asyncio.Event()

        async def body(transaction: Transaction) -> Append:
            """Insert, then never end."""
            await transaction.execute("INSERT INTO orders VALUES ('lost')")
            entered.set()
            await asyncio.Event().wait()
            return appended_to(row)

        task = asyncio.create_task(store.transact(body, run_id=row.run_id, token=row.token))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await started(store, "b")
        assert await self._orders(store, row) == []

    async def test_fenced_transaction_writes_nothing(self, store: Store) -> None:
        """TRANSACTION: a stale token never runs the body; a wrong seq rolls the body back."""
        needs(store, TRANSACTION)
        row = await self._table(store, await taken(store, "a"))
        bodies: list[int] = []

        async def body(transaction: Transaction) -> Append:
            """Count the call, and insert."""
            bodies.append(1)
            await transaction.execute("INSERT INTO orders VALUES ('lost')")
            return appended_to(row, first_seq=9)

        assert isinstance(await store.transact(body, run_id=row.run_id, token=9), Fenced)
        assert bodies == []
        assert isinstance(await store.transact(body, run_id=row.run_id, token=row.token), Fenced)
        assert await self._orders(store, row) == []

    async def test_own_tables_are_out_of_reach(self, store: Store) -> None:
        """TRANSACTION: Perdure's tables and the transaction itself cannot be touched."""
        needs(store, TRANSACTION)
        row = await self._table(store, await taken(store, "a"))

        async def reach(sql: str) -> None:
            """Run the statement in a transaction of its own."""

            async def body(transaction: Transaction) -> Append:
                """Insert, then reach for Perdure's own tables."""
                await transaction.execute("INSERT INTO orders VALUES ('lost')")
                await transaction.execute(sql)
                return appended_to(row)

            await store.transact(body, run_id=row.run_id, token=row.token)

        for sql in self.reaching:
            with pytest.raises(UsageError):
                await reach(sql)
            assert await self._orders(store, row) == [], sql
        await written(store, row)


class LivenessRules:
    """The death of a worker is noticed at once, and never by mistake."""

    async def test_living_worker_is_left_alone(self, make_store: MakeStore, store: Store) -> None:
        """LIVENESS: as long as a worker lives, nobody takes its runs before the lease ends."""
        needs(store, LIVENESS)
        async with opened(make_store()) as other:
            await other.register_worker(worker(OTHER))
            await store.register_worker(worker())
            assert await store.release_dead() == []
            assert await other.release_dead() == []
            assert {row.worker_id for row in await store.find_workers()} == {WORKER, OTHER}

    async def test_dead_worker_loses_its_runs(self, make_store: MakeStore, store: Store) -> None:
        """LIVENESS: the runs of a worker that is gone are due at once; one survivor reports it."""
        needs(store, LIVENESS)
        async with opened(make_store()) as other, opened(make_store()) as third:
            await other.register_worker(worker(OTHER))
            row = await taken(other, "a", take_for=OTHER, lease_until_us=2 * FAR)
            await self.die(other)
            reports = await asyncio.gather(store.release_dead(), third.release_dead())
            assert sorted(map(len, reports)) == [0, 1]
            assert await store.find_workers() == []
            [again] = await claimed(store, now_us=FAR, lease_until_us=2 * FAR)
            assert (again.run_id, again.token, again.status) == (row.run_id, 2, RunStatus.RUNNING)

    async def die(self, store: Store) -> None:
        """Let go of what proves the store's workers alive; closing is enough for most."""
        await store.close()


class CapabilityRules:
    """What a store offers is declared, and what it lacks is a listed gap."""

    capabilities: frozenset[Capability]

    async def test_declared_capabilities(self, store: Store) -> None:
        """The store says of itself what the suite was told."""
        assert store.capabilities == self.capabilities

    async def test_open_and_close_are_idempotent(self, store: Store) -> None:
        """Closing twice is no error, and a closed store refuses."""
        await store.close()
        await store.close()
        with pytest.raises(PerdureError):
            await store.start([new_run("a")])


@contextlib.asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """Open the store for the block."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _everything(store: Store, row: RunRow) -> list[object]:
    reads: list[Awaitable[object]] = [
        store.read_run(row.run_id),
        store.read_frames(row.run_id),
        store.read_mail(row.run_id),
        store.read_thread(row.tenant, row.thread),
    ]
    return [await read for read in reads]
