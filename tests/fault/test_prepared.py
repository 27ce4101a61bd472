"""Appends that are sent at once, past the lane's task, and what can come between."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager

import psycopg
import pytest

from perdure.clock import system_services
from perdure.errors import CommitUncertain
from perdure.model import Appended, Fenced
from perdure.store.postgres import PostgresStore
from perdure.testing import _store_kit as kit

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]

SEVERAL_SOCKETS_FULL = 12_000_000


@pytest.fixture
async def store(postgres, schema):
    store = PostgresStore(postgres.url(schema, application_name=schema), system_services())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def row(store):
    """A run whose first append was made, so that the next one is sent at once."""
    row = await kit.written(store, await kit.taken(store, "a"))
    assert store._now_open().writes._only._sender is not None
    return row


@asynccontextmanager
async def locked(postgres, schema, run_id):
    """Hold the lock of a run's row, so that appends to it wait in the server."""
    async with await psycopg.AsyncConnection.connect(postgres.dsn()) as connection:
        name = psycopg.sql.Identifier(schema, "runs")
        query = psycopg.sql.SQL("SELECT 1 FROM {} WHERE run_id = %s FOR UPDATE").format(name)
        await connection.execute(query, [run_id])
        yield
        await connection.rollback()


async def under_way(store):
    lane = store._now_open().writes._only
    async with asyncio.timeout(5):
        while not lane._is_ahead:  # noqa: ASYNC110  # a flag, no event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # until it waits in the server


def end_appends(postgres, schema):
    found = postgres.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = %s AND wait_event_type = 'Lock'",
        schema,
    )
    assert found == [(True,)]


async def test_append_larger_than_what_a_socket_takes(store, row):
    item = kit.appended_to(row, body=b"\x01" + bytes(SEVERAL_SOCKETS_FULL))
    assert await store.append([item]) == [Appended()]
    frames = await store.read_frames(row.run_id, from_seq=item.first_seq)
    assert frames[-1].body == item.body


async def test_refusal_is_read(store, row):
    stale = kit.appended_to(row)
    await store.append([stale])
    [outcome] = await store.append([kit.appended_to(row)])
    assert isinstance(outcome, Appended)  # the same append again
    [outcome] = await store.append([kit.appended_to(row, hash=b"3" * 32)])
    assert isinstance(outcome, Fenced)
    assert outcome.last_seq == stale.first_seq


async def test_session_that_ends_leaves_the_append_uncertain(store, row, postgres, schema):
    item = kit.appended_to(row)
    async with locked(postgres, schema, row.run_id):
        first = asyncio.create_task(store.append([item]))
        await under_way(store)
        second = asyncio.create_task(store.append([item]))  # waits for its turn
        await asyncio.sleep(0)
        end_appends(postgres, schema)
        with pytest.raises(CommitUncertain):
            await first
    assert await second == [Appended()]
    assert (await store.read_run(row.run_id)).last_seq == item.first_seq
    assert await store.append([item]) == [Appended()]


async def test_whoever_stops_waiting_does_not_stop_the_append(store, row, postgres, schema):
    item = kit.appended_to(row)
    async with locked(postgres, schema, row.run_id):
        writing = asyncio.create_task(store.append([item]))
        await under_way(store)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    async with asyncio.timeout(5):
        while (await store.read_run(row.run_id)).last_seq < item.first_seq:  # noqa: ASYNC110  # the server tells
            await asyncio.sleep(0.01)
    assert await store.append([item]) == [Appended()]


async def test_close_waits_for_what_was_sent_at_once(store, row, postgres, schema):
    item = kit.appended_to(row)
    async with locked(postgres, schema, row.run_id):
        writing = asyncio.create_task(store.append([item]))
        await under_way(store)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
    assert await writing == [Appended()]
    await closing


async def test_nobody_slips_in_between_an_answer_and_whose_turn_it_is(store):
    """Whoever wakes in the same turn of the loop as the answer found the connection free."""
    rows = [await kit.taken(store, f"x{number}") for number in range(4)]
    await kit.written(store, rows[3])
    loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
    ours.setblocking(False)
    ready = loop.create_future()

    def wake() -> None:
        ours.recv(9)
        loop.remove_reader(ours)
        ready.set_result(None)

    loop.add_reader(ours, wake)

    async def once_woken():
        await ready
        return await store.append([kit.appended_to(rows[2])])

    tasks = [asyncio.create_task(once_woken())]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(store.append([kit.appended_to(row)])) for row in rows[:2]]
    for _ in range(3):
        await asyncio.sleep(0)
    theirs.send(b"x")
    time.sleep(0.1)  # noqa: ASYNC251  # until both the answer and the wake-up are there
    async with asyncio.timeout(10):
        assert await asyncio.gather(*tasks) == [[Appended()]] * 3
    ours.close()
    theirs.close()
