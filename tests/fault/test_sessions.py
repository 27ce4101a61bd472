"""Sessions of PostgreSQL that end, or don't, behind the back of a store."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from perdure import END, START, Context, Graph, Runtime, WorkerSettings, effect
from perdure.clock import system_services
from perdure.errors import CommitUncertain
from perdure.model import LimitRow
from perdure.store.postgres import PostgresStore, _lanes
from perdure.store.postgres._news import LOCK_KEY
from perdure.testing import _store_kit as kit
from tests.fault.proxy import Proxy

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]

SOON_S = 5.0
SETTINGS = WorkerSettings(lease_ttl_s=1.0, heartbeat_s=0.25, drain_window_s=2.0)


@pytest.fixture
def url(postgres, schema):
    return postgres.url(schema, application_name=schema)


@pytest.fixture
async def stores(url):
    both = [PostgresStore(url, system_services()) for _ in range(2)]
    for store in both:
        await store.open()
    yield both
    for store in both:
        await store.close()


@pytest.fixture
def rows(postgres):
    yield postgres.query
    postgres.query("DROP TABLE IF EXISTS booked, pair")


async def until(is_true, timeout_s: float = SOON_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await is_true():  # noqa: ASYNC110  # the server tells, no event
            await asyncio.sleep(0.01)


HOLDERS = """
SELECT a.pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.application_name = %s
"""


def end_news(rows, schema):
    """End the session that holds the locks of a store's workers."""
    return [rows("SELECT pg_terminate_backend(%s)", pid) for (pid,) in rows(HOLDERS, schema)]


# -- workers ---------------------------------------------------------------------------------------


async def test_worker_that_was_taken_for_dead_is_known_again(stores, rows, schema):
    alive, other = stores
    await alive.register_worker(kit.worker(kit.WORKER))
    await other._drop_workers([kit.WORKER])
    assert await other.find_workers() == []
    assert end_news(rows, schema)
    await until(other.find_workers)
    [row] = await other.find_workers()
    assert row.worker_id == kit.WORKER
    assert row.graphs == kit.worker(kit.WORKER).graphs
    assert await other.release_dead() == []
    # It is dead when its session has ended for good.
    await alive.close()
    released: list[str] = []
    async with asyncio.timeout(SOON_S):
        while not released:  # the server lets go of the lock a moment later, and looks are rare
            released += await other.release_dead()
            await asyncio.sleep(0.01)
    assert released == [kit.WORKER]


async def test_worker_that_has_its_lock_again_is_not_dropped(stores):
    alive, other = stores
    await alive.register_worker(kit.worker(kit.WORKER))
    assert await other._drop_dead([kit.WORKER], is_proven=False) == []  # suspected a moment ago
    assert len(await other.find_workers()) == 1


async def test_old_session_of_a_worker_is_ended_by_the_new_one(stores, rows, schema, url, postgres):
    """A server that did not notice a broken network keeps the old session, and its lock."""
    alive, other = stores
    await alive.register_worker(kit.worker(kit.WORKER))
    key = LOCK_KEY.format(schema="%s::text", worker="%s::text")
    async with await psycopg.AsyncConnection.connect(postgres.dsn(), autocommit=True) as old:
        waiting = asyncio.create_task(
            old.execute(f"SELECT pg_advisory_lock({key})", (schema, kit.WORKER))
        )
        await asyncio.sleep(0.2)
        assert end_news(rows, schema)
        await asyncio.wait({waiting})

        async def has_lock():
            return rows(HOLDERS, schema)

        await until(has_lock, 3.0)
        assert await other.release_dead() == []


# -- transactions ----------------------------------------------------------------------------------


@dataclass
class Booking:
    label: str = ""
    other: str = ""
    done: str = ""


cut = Graph(Booking, name="cut")
crossed = Graph(Booking, name="crossed")
slow = Graph(Booking, name="slow")
tried: list[str] = []


@effect(kind="transaction")
async def cut_once(label: str, *, transaction: Any) -> str:
    await transaction.execute("INSERT INTO booked VALUES (%s)", (label,))
    tried.append(label)
    if tried.count(label) == 1:
        await transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    return label


@effect(kind="transaction")
async def cross(first: str, second: str, *, transaction: Any) -> str:
    sql = "UPDATE pair SET count = count + 1 WHERE label = %s"
    await transaction.execute(sql, (first,))
    await asyncio.sleep(0.3)
    await transaction.execute(sql, (second,))
    return first


@effect(kind="transaction")
async def take_long(label: str, *, transaction: Any) -> str:
    tried.append(label)
    await transaction.execute("SELECT pg_sleep(1.7)")
    return label


@effect(kind="pure")
async def look_around(_label: str) -> str:
    await asyncio.sleep(0.1)
    return "seen"


@cut.node
async def cut_node(state: Booking, ctx: Context) -> dict[str, Any]:
    return {"done": await ctx.call(cut_once, state.label)}


@crossed.node
async def cross_node(state: Booking, ctx: Context) -> dict[str, Any]:
    return {"done": await ctx.call(cross, state.label, state.other)}


@slow.node
async def slow_node(state: Booking, ctx: Context) -> dict[str, Any]:
    await ctx.call(take_long, state.label)
    return {"done": await ctx.call(look_around, state.label)}


for _graph, _node in ((cut, cut_node), (crossed, cross_node), (slow, slow_node)):
    _graph.edge(START, _node)
    _graph.edge(_node, END)
GRAPHS = [cut, crossed, slow]


async def test_transaction_whose_session_ends_is_done_again(url, rows, schema):
    rows("CREATE TABLE booked (label text)")
    async with Runtime.open(url, graphs=GRAPHS, worker=SETTINGS) as runtime:
        run = await runtime.start(cut, {"label": schema})
        assert (await run.result(timeout=20)).done == schema
        [row] = await runtime.effects(None)
        assert (row.state, row.attempt) == ("confirmed", 1)
    assert rows("SELECT label FROM booked") == [(schema,)]
    assert tried.count(schema) == 2


async def test_transactions_in_each_others_way_both_happen(url, rows, record_property):
    rows("CREATE TABLE pair (label text, count int)")
    rows("INSERT INTO pair VALUES ('a', 0), ('b', 0)")
    async with Runtime.open(url, graphs=GRAPHS, worker=SETTINGS) as runtime:
        runs = [
            await runtime.start(crossed, {"label": one, "other": two})
            for one, two in (("a", "b"), ("b", "a"))
        ]
        assert [(await run.result(timeout=20)).done for run in runs] == ["a", "b"]
    assert rows("SELECT label, count FROM pair ORDER BY 1") == [("a", 2), ("b", 2)]


async def test_transaction_longer_than_the_lease_keeps_it(url, schema):
    async with (
        Runtime.open(url, graphs=GRAPHS, worker=SETTINGS) as runtime,
        Runtime.open(url, graphs=GRAPHS, worker=SETTINGS),
    ):
        runs = [await runtime.start(slow, {"label": f"{schema}-{n}"}) for n in range(4)]
        for run in runs:
            assert (await run.result(timeout=20)).done == "seen"
            assert (await run.row()).token == 1  # nobody took it over
    assert len([label for label in tried if label.startswith(schema)]) == 4


# -- claims ----------------------------------------------------------------------------------------


async def test_claim_that_falls_silent_does_not_hold_up_the_others(stores):
    silent, other = stores
    await other.set_limit(LimitRow(concurrency=3))
    await kit.started(other, "a")

    async def hang(connection):
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('perdure.limits.' || %s::text, 0))"
        await connection.execute(lock, (silent._options.schema,))
        await asyncio.sleep(30)  # as a process that was stopped there

    hanging = silent._now_open().calls.work("claim", hang)
    await asyncio.sleep(0.2)
    begun_s = time.monotonic()
    async with asyncio.timeout(15):
        assert len(await kit.claimed(other, now_us=kit.FAR)) == 1
    assert time.monotonic() - begun_s < 10
    assert not hanging.done()


# -- connections that say nothing ------------------------------------------------------------------


async def test_connection_that_says_nothing_is_given_up(postgres, schema, monkeypatch):
    """A middle box that holds a connection open and forwards nothing: keepalives are answered."""
    monkeypatch.setattr(_lanes, "ANSWER_S_MAX", 1.0)
    async with Proxy(postgres.port) as proxy:
        url = postgres.url(
            schema, over_tcp=True, port=str(proxy.port), sslmode="disable", gssencmode="disable"
        )
        store = PostgresStore(url, system_services())
        await store.open()
        row = await kit.written(store, await kit.taken(store, "a"))
        proxy.stall()
        async with asyncio.timeout(5):
            with pytest.raises(CommitUncertain):
                await store.append([kit.appended_to(row)])
        proxy.cut()
        proxy.resume()
        await kit.written(store, row)
        await store.close()
