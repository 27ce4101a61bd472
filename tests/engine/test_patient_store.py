"""The engine on a remote store: lost answers are repeated, outages are outlasted."""

import asyncio
import contextlib
import inspect

import pytest
from msgspec.structs import replace

from perdure import Context, Runtime, WorkerSettings, effect
from perdure.engine import patient_store
from perdure.engine.limits import OUTAGE_S_MAX
from perdure.engine.loading import load_run
from perdure.engine.patient_store import PatientStore
from perdure.engine.queue import CommitQueue, RunJournal
from perdure.errors import CommitUncertain, LeaseLost, StoreUnavailable
from perdure.model import records as rec
from perdure.store.api import REMOTE, Store
from perdure.store.memory import MemoryStore
from perdure.testing import _store_kit as kit
from perdure.testing import virtual_services

SETTINGS = WorkerSettings(lease_ttl_s=9, heartbeat_s=3)


class Remote(MemoryStore):
    """A memory store as behind a network: answers get lost on request, and it may be away."""

    capabilities = frozenset({REMOTE})

    def __init__(self, services):
        super().__init__("memory://", services)
        self.lose_answer_of = []
        self.is_away = False
        self.calls = []


def remote(name):
    plain = getattr(MemoryStore, name)

    async def call(self, *args, **kwargs):
        self.calls.append(name)
        if self.is_away:
            raise StoreUnavailable("away; nothing was written")
        result = await plain(self, *args, **kwargs)
        if name in self.lose_answer_of:
            self.lose_answer_of.remove(name)
            raise CommitUncertain("the answer was lost")
        return result

    return call


for _name, _member in inspect.getmembers(MemoryStore, inspect.iscoroutinefunction):
    if _name not in {"open", "close", "wait_for_change"} and not _name.startswith("_"):
        setattr(Remote, _name, remote(_name))


@pytest.fixture
def services():
    return virtual_services(1)


@pytest.fixture
def store(services):
    return Remote(services)


@pytest.fixture
def done():
    return []


@pytest.fixture
def act(done, services):
    @effect(kind="once")
    async def send(n: int) -> int:
        done.append(n)
        await services.clock.sleep(0.5)
        return n

    async def act(n: int, ctx: Context) -> int:
        return sum([await ctx.call(send, each) for each in range(n)])

    return act


def test_every_call_of_the_protocol_is_repeated_or_not_on_purpose():
    own = {"claim", "wait_for_change"}
    names = {name for name, _ in inspect.getmembers(Store, callable) if not name.startswith("_")}
    assert names == {*patient_store.REPEATED, *patient_store.PASSED_ON, *own}


def test_a_local_store_is_used_as_it_is(services):
    store = MemoryStore("memory://", services)
    assert patient_store.patient(store, services) is store


@pytest.mark.parametrize("name", ["start", "append", "register_worker", "renew", "read_mail"])
async def test_lost_answer_is_not_noticed(store, services, act, done, name):
    async with services.clock.autojump():
        store.lose_answer_of = [name, name]
        async with Runtime.open(store, [act], services=services, worker=SETTINGS) as runtime:
            run = await runtime.start(act, 12)
            assert await run.result() == 66
            assert (await run.row()).token == 1
            assert services.clock.monotonic_s() < 8
    assert done == list(range(12))


async def test_lost_answer_of_a_claim_is_found_again(store, services, act, done):
    def opened(worker):
        return Runtime.open(store, [act], services=services, worker=worker)

    async with services.clock.autojump(), opened(worker=False) as desk:
        run = await desk.start(act, 2)
        store.lose_answer_of = ["claim"]
        async with opened(worker=SETTINGS) as runtime:
            assert await (await runtime.get(run.id)).result() == 1
            assert (await run.row()).token == 1
    assert done == [0, 1]


@pytest.mark.parametrize("name", ["post", "answer"])
async def test_what_a_person_says_counts_once(store, services, name):
    async def asks(_n: int, ctx: Context) -> list:
        first = await ctx.receive("topic")
        answer = await ctx.ask("Go on?")
        again = None
        with contextlib.suppress(TimeoutError):
            again = await ctx.receive("topic", timeout=1)
        return [first, answer.value, again]

    async with (
        services.clock.autojump(),
        Runtime.open(store, [asks], services=services, worker=SETTINGS) as runtime,
    ):
        run = await runtime.start(asks, 1)
        store.lose_answer_of = [name]
        await run.signal("topic", 7)
        while not (open_asks := await runtime.asks()):
            await services.clock.sleep(0.1)
        await runtime.answer(open_asks[0].id, "yes", by="ann")
        assert await run.result() == [7, "yes", None]


async def test_outage_holds_the_next_effect_back_and_redoes_nothing(store, services, act, done):
    async with (
        services.clock.autojump(),
        Runtime.open(store, [act], services=services, worker=SETTINGS) as runtime,
    ):
        run = await runtime.start(act, 4)
        await services.clock.sleep(0.75)
        store.is_away = True
        await services.clock.sleep(30)
        assert done == [0, 1]
        store.is_away = False
        assert await run.result() == 6
        row = await run.row()
        assert (row.token, row.claims) == (1, 1)
    assert done == [0, 1, 2, 3]


async def test_long_outage_is_an_error_that_says_what_is_known(store, services, act):
    async with services.clock.autojump():
        await store.open()
        patient = PatientStore(store, services)
        store.is_away = True
        with pytest.raises(StoreUnavailable):
            await patient.read_run("r_a")
        assert OUTAGE_S_MAX <= services.clock.monotonic_s() < OUTAGE_S_MAX + 5

        store.is_away, store.lose_answer_of = False, ["find_workers"]
        away = asyncio.get_running_loop().call_soon(setattr, store, "is_away", True)
        with pytest.raises(CommitUncertain):
            await patient.find_workers()
        away.cancel()


async def test_close_does_not_wait_for_the_end_of_an_outage(store, services, act):
    async with services.clock.autojump():
        runtime = Runtime.open(store, [act], services=services, worker=SETTINGS)
        await runtime.__aenter__()
        await runtime.start(act, 4)
        store.is_away = True
        before_s = services.clock.monotonic_s()
        await runtime.close(window_s=1)
        assert services.clock.monotonic_s() - before_s < 2 * SETTINGS.drain_window_s + 10


async def test_claim_that_is_answered_too_late_is_a_lost_lease(store, services, act):
    async with (
        services.clock.autojump(),
        Runtime.open(store, [act], services=services, worker=False) as desk,
    ):
        await desk.start(act, 2)
        claims = []
        for name, now_us in (("w_1", kit.FAR), ("w_2", kit.FAR + 2)):
            until = {"now_us": now_us, "lease_until_us": now_us + 1, "limit": 1}
            claims += await store.claim(name, desk.engine.graphs(), **until)
        [first] = await store.read_frames(claims[0].run_id)
        journal = RunJournal(desk.engine.queue, claims[1], first.hash)
        journal.add(rec.LeaseTaken(kit.T0, "w_2", 2, 2))
        await journal.barrier()
        with pytest.raises(LeaseLost):
            await load_run(store, claims[0])


async def test_late_answer_does_not_replace_what_is_newer(store, services, act, done):
    async with (
        services.clock.autojump(),
        Runtime.open(store, [act], services=services, worker=SETTINGS) as runtime,
    ):
        run = await runtime.start(act, 3)
        row = runtime.worker.held_row(run.id)
        runtime.worker.execute_fresh(replace(row, token=0), None, leased_s=0.0)
        assert runtime.worker.held_row(run.id) is row
        assert await run.result() == 3
    assert done == [0, 1, 2]


async def test_closing_queue_rests_while_a_commit_is_on_its_way(store, services):
    class Slow(Remote):
        async def append(self, batch):
            await services.clock.sleep(5)
            return await super().append(batch)

    slow = Slow(services)
    await slow.open()
    queue = CommitQueue(slow, services.clock)
    queue.start()
    rows = [await kit.taken(slow, name) for name in "ab"]
    journals = [RunJournal(queue, row, b"1" * 32) for row in rows]
    async with services.clock.autojump():
        journals[0].add(rec.LeaseTaken(kit.T0, "w", 1, 1))
        await services.clock.sleep(1)
        journals[1].add(rec.LeaseTaken(kit.T0, "w", 1, 1))
        journals[1].fail(LeaseLost("lost meanwhile"))
        await queue.close()
    assert services.clock.monotonic_s() == 5
