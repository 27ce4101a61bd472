"""Answers that are really lost on a real network: nothing is written twice, nothing is lost."""

import asyncio
import contextlib

import pytest

from perdure.clock import system_services
from perdure.engine.patient_store import PatientStore
from perdure.errors import CommitUncertain, StoreUnavailable
from perdure.ids import AskId, EffectId
from perdure.model import AskPut, EffectPut, EffectState, LimitRow
from perdure.store.api import AskQuery, EffectQuery, RunQuery
from perdure.store.postgres import PostgresStore
from perdure.testing import _store_kit as kit
from tests.fault.proxy import ACTIONS, Proxy, Rule

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]


class Place:
    """A store behind a proxy, and one that reaches the same server directly."""

    def __init__(self, proxy: Proxy, near: PostgresStore, far: PatientStore) -> None:
        self.proxy = proxy
        self.near = near
        self.far = far


@pytest.fixture
async def place(postgres, schema):
    async with Proxy(postgres.port) as proxy, contextlib.AsyncExitStack() as stack:
        stores = []
        for port in (postgres.port, proxy.port):
            url = postgres.url(
                schema, over_tcp=True, port=str(port), sslmode="disable", gssencmode="disable"
            )
            store = PostgresStore(url, system_services())
            await store.open()
            stack.push_async_callback(store.close)
            stores.append(store)
        services = system_services()
        yield Place(proxy, stores[0], PatientStore(stores[1], services))


async def start(place):
    row = await kit.started(place.far, "new")
    again = await place.near.find_runs(RunQuery())
    assert [row.run_id for row in again].count("r_new") == 1
    assert len(await place.near.read_frames(row.run_id)) == 1


async def append(place):
    row = await kit.taken(place.near, "a")
    await kit.written(place.far, row, EffectPut(row=kit.effect_of(row, "x")))
    frames = await place.near.read_frames(row.run_id)
    assert [frame.first_seq for frame in frames] == [1, 2]
    assert len(await place.near.find_effects(EffectQuery())) == 1


async def post(place):
    row = await kit.taken(place.near, "a")
    mail = kit.signal_to(row.run_id, post_id="p1")
    await place.far.post(mail)
    assert len(await place.near.read_mail(row.run_id)) == 1


async def answer(place):
    row = await kit.taken(place.near, "a")
    await kit.written(place.near, row, AskPut(row=kit.ask_of(row, "x")))
    answered = await place.far.answer(AskId("a_x"), value_wire=b"\xc3", by="ann", at_us=kit.T0)
    assert answered.accepted
    assert len(await place.near.read_mail(row.run_id)) == 1
    assert [ask.answered_by for ask in await place.near.find_asks(AskQuery())] == ["ann"]


async def decide(place):
    row = await kit.taken(place.near, "a")
    effect = kit.effect_of(row, "x", state=EffectState.UNCERTAIN)
    await kit.written(place.near, row, EffectPut(row=effect))
    decided = await place.far.decide(
        EffectId("e_x"), happened=True, result_wire=None, by="ann", at_us=kit.T0
    )
    assert decided.accepted
    assert len(await place.near.read_mail(row.run_id)) == 1


async def claim(place):
    for name in "abc":
        await kit.started(place.near, name)
    claimed = []
    for time in range(4):  # what was lost on its way was not taken
        with contextlib.suppress(StoreUnavailable):
            claimed += await kit.claimed(place.far, lease_until_us=kit.FAR + time)
    rows = await place.near.find_runs(RunQuery())
    assert {row.run_id: row.token for row in rows} == {f"r_{name}": 1 for name in "abc"}
    assert sorted(row.run_id for row in claimed) == ["r_a", "r_b", "r_c"]


async def renew(place):
    row = await kit.taken(place.near, "a")
    held = [(row.run_id, row.token)]
    worker_id = row.holder
    for _time in range(10):
        with contextlib.suppress(CommitUncertain, StoreUnavailable):
            lost = await place.far.renew(worker_id, held, now_us=kit.T0, lease_until_us=kit.FAR)
            break
    assert lost == set()
    assert (await place.near.read_run(row.run_id)).ready_at_us == kit.FAR


async def limit(place):
    await place.far.set_limit(LimitRow(concurrency=3))
    assert [each.concurrency for each in (await place.near.read_limits()).limits] == [3]


async def register(place):
    await place.far.register_worker(kit.worker(kit.WORKER))
    assert [row.worker_id for row in await place.near.find_workers()] == [kit.WORKER]
    assert await place.near.release_dead() == []


async def read(place):
    row = await kit.taken(place.near, "a")
    assert await place.far.read_run(row.run_id) == row


CALLS = {
    "commit_frames(": append,
    ".start(": start,
    ".post(": post,
    ".answer(": answer,
    ".decide(": decide,
    ".claim(": claim,
    ".renew(": renew,
    "INTO": limit,
    "workers": register,
    "SELECT": read,
}


@pytest.mark.parametrize(("action", "times"), [*((each, 1) for each in ACTIONS), ("lose", 3)])
@pytest.mark.parametrize("text", CALLS, ids=lambda text: CALLS[text].__name__)
async def test_call_is_done_once(place, text, action, times):
    await place.far.read_limits()  # a connection that is open already
    rule = Rule(text, action, times)
    place.proxy.rules.append(rule)
    async with asyncio.timeout(20):
        await CALLS[text](place)
    assert rule.times < times


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("text", ["INSERT INTO booked", "commit_frames(", "COMMIT"])
async def test_transaction_is_committed_once_or_not_at_all(place, text, action, postgres):
    postgres.query("CREATE TABLE IF NOT EXISTS booked (label text)")
    row = await kit.taken(place.near, "a")
    place.proxy.rules.append(Rule(text, action))

    async def body(transaction):
        await transaction.execute("INSERT INTO booked VALUES (%s)", (action,))
        return kit.appended_to(row)

    try:
        outcome = None
        with contextlib.suppress(StoreUnavailable):
            outcome = await place.far.transact(body, run_id=row.run_id, token=row.token)
        booked = postgres.query("SELECT label FROM booked")
        frames = await place.near.read_frames(row.run_id)
        assert len(booked) == len(frames) - 1
        # What is known is what is true: never an error for what was committed.
        assert len(booked) == (outcome is not None)
        assert (outcome is not None) == (action == "delay" or (text, action) == ("COMMIT", "lose"))
    finally:
        postgres.query("DROP TABLE booked")
