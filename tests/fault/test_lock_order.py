"""Writes that meet at one row, in either order: each once, nobody stuck, no deadlock to be seen.

A session of the test holds a row until the server says that both writes wait for it: so the order
in which they get it is the one in which they came.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from perdure.clock import system_services
from perdure.ids import ThreadId
from perdure.model import (
    Appended,
    EffectPut,
    KeyTaken,
    MailKind,
    OnBusy,
    RunSpawned,
    RunStatus,
)
from perdure.store.api import RunQuery
from perdure.store.postgres import PostgresStore
from perdure.testing import _store_kit as kit

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]

BOTH = pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])


class Place:
    """Two stores on one schema, and sessions of the test's own."""

    def __init__(self, stores: list[PostgresStore], dsn: str, schema: str) -> None:
        self.one, self.two = stores
        self._dsn = dsn
        self._schema = schema

    async def rows(self, sql: str, *params: Any) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as session:
            cursor = await session.execute(sql.replace("@.", f"{self._schema}.").encode(), params)
            return await cursor.fetchall()

    @contextlib.asynccontextmanager
    async def holding(self, sql: str, *params: Any) -> AsyncIterator[None]:
        """Hold what a statement locks."""
        async with await psycopg.AsyncConnection.connect(self._dsn) as session:
            await session.execute(sql.replace("@.", f"{self._schema}.").encode(), params)
            yield

    async def waiters(self) -> int:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s "
            "AND wait_event_type = 'Lock'"
        )
        return int((await self.rows(sql, self._schema))[0][0])

    async def meet(
        self, lock: str, param: str, writes: list[Callable[[], Awaitable[Any]]], *, is_first: bool
    ) -> list[Any]:
        """Let two writes queue for a row in the order wanted; return what each returned."""
        order = [0, 1] if is_first else [1, 0]
        tasks: dict[int, asyncio.Future[Any]] = {}
        async with self.holding(lock, param):
            for number, which in enumerate(order, 1):
                tasks[which] = asyncio.ensure_future(writes[which]())
                async with asyncio.timeout(5):
                    while await self.waiters() < number:  # noqa: ASYNC110  # the server tells
                        await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            return [await tasks[which] for which in range(2)]


RUN = "SELECT FROM @.runs WHERE run_id = %s FOR UPDATE"
THREAD = "SELECT FROM @.threads WHERE thread = %s FOR UPDATE"


@pytest.fixture
async def place(postgres, schema):
    stores = [
        PostgresStore(postgres.url(schema, application_name=schema), system_services())
        for _ in range(2)
    ]
    for store in stores:
        await store.open()
    yield Place(stores, postgres.dsn(), schema)
    for store in stores:
        await store.close()


def deadlocks(postgres) -> int:
    [(count,)] = postgres.query("SELECT sum(deadlocks) FROM pg_stat_database")
    return int(count)


# -- mail ------------------------------------------------------------------------------------------


@BOTH
async def test_end_of_a_child_and_a_message_to_its_parent(place, is_first):
    parent = await kit.taken(place.one, "parent")
    parent = await kit.written(place.one, parent, kit.waiting())
    child = await kit.taken(place.one, "child", parent=parent.run_id, parent_call="c")
    news = kit.signal_to(parent.run_id, kind=MailKind.CHILD, subject="c")
    end = kit.appended_to(child, kit.ended(mail_to_parent=news))
    [outcomes, row] = await place.meet(
        RUN,
        parent.run_id,
        [
            lambda: place.one.append([end]),
            lambda: place.two.post(kit.signal_to(parent.run_id, post_id="p")),
        ],
        is_first=is_first,
    )
    assert outcomes == [Appended()]
    assert row.run_id == parent.run_id
    kinds = [mail.kind for mail in await place.one.read_mail(parent.run_id)]
    assert sorted(kinds) == sorted([MailKind.CHILD, MailKind.SIGNAL])
    assert (await kit.the_run(place.one, parent.run_id)).ready_at_us == kit.T0 + 20
    assert (await kit.the_run(place.one, child.run_id)).status is RunStatus.SUCCEEDED


@BOTH
async def test_message_and_release_of_its_run(place, is_first):
    row = await kit.taken(place.one, "a")
    [outcomes, _row] = await place.meet(
        RUN,
        row.run_id,
        [
            lambda: place.one.append([kit.appended_to(row, kit.waiting())]),
            lambda: place.two.post(kit.signal_to(row.run_id, post_id="p")),
        ],
        is_first=is_first,
    )
    assert outcomes == [Appended()]
    row = await kit.the_run(place.one, row.run_id)
    assert row.status is RunStatus.WAITING
    assert row.ready_at_us is not None  # in either order it is awake


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_busy", [OnBusy.QUEUE, OnBusy.CANCEL])
@BOTH
async def test_start_on_a_thread_and_the_end_of_its_run(place, is_first, on_busy):
    first = await kit.taken(place.one, "a", thread=ThreadId("t"))
    [outcomes, started] = await place.meet(
        THREAD,
        "t",
        [
            lambda: place.one.append([kit.appended_to(first, kit.ended())]),
            lambda: kit.started(place.two, "b", thread=ThreadId("t"), on_busy=on_busy),
        ],
        is_first=is_first,
    )
    assert outcomes == [Appended()]
    assert (await kit.the_run(place.one, first.run_id)).status is RunStatus.SUCCEEDED
    second = await kit.the_run(place.one, started.run_id)
    assert (second.status, second.waits) == (RunStatus.PENDING, ())
    assert second.ready_at_us is not None
    assert [row.run_id for row in await kit.claimed(place.one)] == [second.run_id]


@BOTH
async def test_spawn_on_a_busy_thread_and_the_end_of_its_run(place, is_first):
    busy = await kit.taken(place.one, "a", thread=ThreadId("t"))
    parent = await kit.taken(place.one, "p")
    child = kit.new_run("child", thread=ThreadId("t"), parent=parent.run_id, parent_call="c")
    outcomes = await place.meet(
        THREAD,
        "t",
        [
            lambda: place.one.append([kit.appended_to(busy, kit.ended())]),
            lambda: place.two.append([kit.appended_to(parent, RunSpawned(run=child))]),
        ],
        is_first=is_first,
    )
    assert outcomes == [[Appended()], [Appended()]]
    row = await kit.the_run(place.one, "r_child")
    assert (row.status, row.waits) == (RunStatus.PENDING, ())
    assert row.ready_at_us is not None


async def test_new_threads_in_opposite_orders(place, postgres):
    """What is new can't be locked in order: the server ends one, which is called again."""
    for number in range(10):
        runs = [
            kit.new_run(f"{number}{side}{each}", thread=ThreadId(f"t{number}{each}"))
            for side in "xy"
            for each in range(4)
        ]
        found = await asyncio.gather(
            place.one.start(runs[:4]), place.two.start(list(reversed(runs[4:])))
        )
        assert all(started.created for part in found for started in part)
    rows = await place.one.find_runs(RunQuery(limit=1000))
    due = [row for row in rows if row.ready_at_us is not None]
    assert (len(rows), len(due)) == (80, 40)


# -- claims ----------------------------------------------------------------------------------------


async def test_claims_at_once_share_the_runs(place):
    for number in range(30):
        await kit.started(place.one, f"{number}")
    claimed: list[str] = []
    while len(claimed) < 30:
        parts = await asyncio.gather(
            *(kit.claimed(store, limit=4) for store in (place.one, place.two) for _ in range(3))
        )
        claimed += [row.run_id for part in parts for row in part]
    assert len(set(claimed)) == 30
    assert {row.token for row in await place.one.find_runs(RunQuery(limit=100))} == {1}


async def test_heartbeat_does_not_keep_what_a_claim_is_taking(place):
    """The claim has the row and is not committed yet: not all is well."""
    row = await kit.taken(place.one, "a")
    sql = (
        "UPDATE @.runs SET token = token + 1, holder = 'w_2', lease_until_us = %s "
        f"WHERE run_id = '{row.run_id}'"
    )
    held = [(row.run_id, row.token)]
    async with place.holding(sql, str(kit.FAR)):
        renewing = asyncio.ensure_future(
            place.one.renew(kit.WORKER, held, now_us=kit.T0 + 5000, lease_until_us=kit.FAR)
        )
        await asyncio.sleep(0.05)
    assert await renewing == {row.run_id}


async def test_heartbeat_waits_for_an_append_and_not_for_a_transaction(place):
    row = await kit.taken(place.one, "a")
    held = [(row.run_id, row.token)]

    async def renew() -> set[Any]:
        until_us = kit.T0 + 9000
        return await place.one.renew(kit.WORKER, held, now_us=kit.T0 + 500, lease_until_us=until_us)

    async with place.holding(RUN, row.run_id):
        renewing = asyncio.ensure_future(renew())
        await asyncio.sleep(0.05)
    assert await renewing == set()
    assert (await kit.the_run(place.one, row.run_id)).ready_at_us == kit.T0 + 9000
    async with place.holding(RUN, row.run_id), asyncio.timeout(2):
        assert await renew() == set()


@BOTH
async def test_drop_of_a_worker_and_its_own_append(place, is_first):
    row = await kit.taken(place.one, "a")
    await place.one.register_worker(kit.worker(kit.WORKER))
    [outcomes, _dropped] = await place.meet(
        RUN,
        row.run_id,
        [
            lambda: place.one.append([kit.appended_to(row)]),
            lambda: place.two._drop_workers([kit.WORKER]),
        ],
        is_first=is_first,
    )
    assert outcomes == [Appended()]
    [taken] = await kit.claimed(place.two, kit.OTHER, now_us=kit.FAR - 1)
    assert (taken.token, taken.last_seq) == (2, 2)


@BOTH
async def test_drop_of_a_worker_and_the_end_of_its_run(place, is_first):
    row = await kit.taken(place.one, "a")
    [outcomes, _dropped] = await place.meet(
        RUN,
        row.run_id,
        [
            lambda: place.one.append([kit.appended_to(row, kit.ended())]),
            lambda: place.two._drop_workers([kit.WORKER]),
        ],
        is_first=is_first,
    )
    assert outcomes == [Appended()]
    assert await kit.claimed(place.two, kit.OTHER, now_us=kit.FAR - 1) == []


# -- business keys ---------------------------------------------------------------------------------


def intended(row: Any, name: str, *keys: str) -> Any:
    effects = [kit.effect_of(row, f"{name}{key}", business_key=key) for key in keys]
    return kit.appended_to(row, *(EffectPut(row=effect) for effect in effects))


async def test_one_business_key_for_two_runs_at_once(place):
    for number in range(15):
        rows = [await kit.taken(place.one, f"{number}{side}") for side in "xy"]
        parts = await asyncio.gather(
            *(
                store.append([intended(row, f"{number}{side}", f"k{number}")])
                for store, row, side in zip((place.one, place.two), rows, "xy", strict=True)
            )
        )
        kinds = sorted(type(outcome).__name__ for [outcome] in parts)
        assert kinds == sorted([Appended.__name__, KeyTaken.__name__])


async def test_two_business_keys_in_opposite_orders(place, postgres):
    before = deadlocks(postgres)
    for number in range(8):
        rows = [await kit.taken(place.one, f"{number}{side}") for side in "xy"]
        keys = (f"k{number}", f"l{number}")
        parts = await asyncio.gather(
            place.one.append([intended(rows[0], f"{number}x", *keys)]),
            place.two.append([intended(rows[1], f"{number}y", *reversed(keys))]),
        )
        assert sorted(type(outcome).__name__ for [outcome] in parts) == ["Appended", "KeyTaken"]
    assert deadlocks(postgres) - before <= 8  # each was met by calling again


@BOTH
async def test_taken_business_key_of_an_effect_that_is_rolled_back(place, is_first, schema):
    """Both wait for a third, which gives up: one of them gets the key."""
    rows = [await kit.taken(place.one, name) for name in ("a", "b", "c")]
    third = (
        "INSERT INTO @.effects (effect_id, run_id, tenant, thread, node, name, kind, state, key, "
        "business_key, args_digest, request_wire, attempt, intended_at_us, changed_at_us) VALUES "
        "('e_third', 'r_c', 'default', 't', '', '', '', '', '', %s, '', '', 0, 0, 0)"
    )
    tasks = []
    async with await psycopg.AsyncConnection.connect(place._dsn) as session:
        await session.execute(third.replace("@.", f"{schema}.").encode(), ("k",))
        pairs = list(zip((place.one, place.two), rows[:2], "xy", strict=True))
        for number, (store, row, side) in enumerate(pairs if is_first else pairs[::-1], 1):
            tasks.append(asyncio.ensure_future(store.append([intended(row, side, "k")])))
            async with asyncio.timeout(5):
                while await place.waiters() < number:  # noqa: ASYNC110  # the server tells
                    await asyncio.sleep(0.01)
        await session.rollback()
    parts = [await task for task in tasks]
    assert sorted(type(outcome).__name__ for [outcome] in parts) == ["Appended", "KeyTaken"]


# -- many at once ----------------------------------------------------------------------------------


async def test_batches_in_each_others_way(place):
    """Appends of many runs, cancelling starts on their threads, posts and heartbeats at once."""
    names = [f"{number:02}" for number in range(12)]
    rows = [await kit.taken(place.one, name) for name in names]

    async def appends() -> None:
        for seq in range(2, 8):
            items = [kit.appended_to(row, first_seq=seq) for row in rows]
            assert await place.one.append(items) == [Appended()] * len(items)

    async def cancels() -> None:
        for turn in range(6):
            runs = [
                kit.new_run(
                    f"{turn}{name}", thread=ThreadId(f"thread_{name}"), on_busy=OnBusy.CANCEL
                )
                for name in reversed(names)
            ]
            assert all(started.created for started in await place.two.start(runs))

    async def posts() -> None:
        for row in reversed(rows):
            await place.two.post(kit.signal_to(row.run_id, post_id=row.run_id))

    async def beats() -> None:
        held = [(row.run_id, row.token) for row in reversed(rows)]
        for _turn in range(10):
            lost = await place.two.renew(
                kit.WORKER, held, now_us=kit.T0, lease_until_us=kit.T0 + 2000
            )
            assert lost == set()

    async with asyncio.timeout(30):
        await asyncio.gather(appends(), cancels(), posts(), beats())
    ends = [kit.appended_to(row, kit.ended(), first_seq=8) for row in rows]
    assert await place.one.append(ends) == [Appended()] * len(ends)
    for name in names:
        mine = await place.one.find_runs(RunQuery(thread=ThreadId(f"thread_{name}")))
        assert len([row for row in mine if row.ready_at_us is not None]) == 1
