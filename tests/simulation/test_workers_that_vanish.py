"""The unchanged engine, many workers that vanish at random points, on virtual time.

A worker vanishes by losing its store: from a random call on, every call of it hangs, before or
after it took effect, and its effects stop. Nothing is released or signed off; the others go on when
the leases end. At the end: every run has ended as if undisturbed, every keyed, looked-up and
decided effect was done once, journals verify.

A failing seed is run again by: SIM_SEED=<seed> pytest tests/simulation -k one_seed
"""

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from perdure import (
    START,
    Absent,
    Context,
    Found,
    Graph,
    NeedsDecision,
    Retry,
    Runtime,
    Send,
    WorkerSettings,
    add,
    append,
    effect,
)
from perdure.engine.loading import read_records
from perdure.store import make_store
from perdure.testing import virtual_services

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
RUNS = 3
SETTINGS = WorkerSettings(lease_ttl_s=9, heartbeat_s=3)


class VanishingStore:
    """A store that from a chosen call on never answers: the worker behind it is gone."""

    def __init__(self, store, rng, lifetime):
        self._store = store
        self._rng = rng
        self._left = lifetime
        self.is_gone = False

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found) or name in {"open", "close"}:
            return found

        async def call(*args, **kwargs):
            await self._hang_if_gone()
            if name in {"append", "start", "claim", "answer", "post", "decide", "expire"}:
                self._left -= 1
            vanishes = self._left <= 0
            if vanishes and self._rng.random() < 0.5:
                await self._hang()
            result = await found(*args, **kwargs)
            if vanishes:
                await self._hang()
            await self._hang_if_gone()
            return result

        return call

    async def _hang(self):
        self.is_gone = True
        await asyncio.get_running_loop().create_future()

    async def _hang_if_gone(self):
        if self.is_gone:
            await self._hang()


@dataclass
class State:
    turns: Annotated[int, add] = 0
    log: Annotated[list[str], append] = field(default_factory=list)


class World:
    """The outside: counts what is really done, and the workers that live in it."""

    def __init__(self, seed):
        self.rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
        self.services = virtual_services(seed)
        self.done = Counter()
        self.workers = []
        self.url = f"memory://vanish-{seed}-{id(self)}"

    async def act(self, key):
        """Do something once per key; the answer may get lost, and so may the worker."""
        await self.services.clock.sleep(self.rng.random())
        self.done[key] += 1
        if self.rng.random() < 0.1:
            raise ConnectionError("the answer got lost")
        await self.services.clock.sleep(self.rng.random())
        return f"did {key[-4:]}"

    def graph(self):  # noqa: C901  # many small nodes and effects, one after the other
        world = self

        @effect(kind="keyed", retry=Retry(max_attempts=9, base_s=0.1, cap_s=1))
        async def keyed(n: int, *, idempotency_key: str) -> str:
            if world.done[idempotency_key]:
                return "deduplicated"
            await world.act(idempotency_key)
            return "deduplicated"

        async def reconcile(request, key):
            await world.services.clock.sleep(3)  # the other side answers when it knows
            return Found("found") if world.done[key] else Absent()

        @effect(kind="lookup", reconcile=reconcile, retry=Retry(max_attempts=50))
        async def looked_up(n: int, *, idempotency_key: str) -> str:
            await world.act(idempotency_key)
            return "found"

        @effect(kind="once")
        async def once(run: str, n: int) -> str:
            await world.act(f"once-{run}-{n}")
            return "once"

        @effect(kind="pure")
        async def pure(n: int) -> int:
            await world.services.clock.sleep(world.rng.random())
            return n * n

        child = Graph(State, name="child")

        @child.node
        async def child_node(state: State, ctx: Context) -> dict:
            await ctx.sleep(2)
            return {"log": [await ctx.call(keyed, 1000)]}

        child.edge(START, child_node)
        graph = Graph(State, name="sim")

        @graph.node
        async def turn(state: State, ctx: Context) -> dict:
            square = await ctx.call(pure, state.turns)
            first = await ctx.call(keyed, square)
            await ctx.sleep(1.5)
            return {"turns": 1, "log": [f"{square} {first}"]}

        @graph.node
        async def fan(item: int, ctx: Context) -> dict:
            return {"log": [f"{item} {await ctx.call(looked_up, item)}"]}

        @graph.node
        async def ask(state: State, ctx: Context) -> dict:
            answer = await ctx.ask("Go on?", schema=bool)
            signal = await ctx.receive("early")
            spawned = await ctx.spawn(child, {})
            result = await spawned.result()
            done = await ctx.call(once, ctx.run_id, 1)
            return {"log": [f"{answer.value} {signal} {result.log} {done}"]}

        graph.edge(START, turn)
        graph.branch(turn, lambda s: turn if s.turns < 3 else [Send(fan, n) for n in range(3)])
        graph.edge(fan, ask)
        return graph, child

    async def worker(self, lifetime):
        graph, child = self.graph()
        store = VanishingStore(make_store(self.url, self.services), self.rng, lifetime)
        runtime = Runtime.open(store, [graph, child], services=self.services, worker=SETTINGS)
        await runtime.__aenter__()
        self.workers.append((runtime, store))
        return runtime

    async def keep_workers(self):
        """Replace workers that vanished, until enough have; the last ones live."""
        vanished = 0
        while True:
            await self.services.clock.sleep(1)
            alive = [pair for pair in self.workers if not pair[1].is_gone]
            vanished = len(self.workers) - len(alive)
            if len(alive) < 2:
                await self.worker(10**9 if vanished > 6 else self.rng.randint(3, 60))

    async def person(self, runtime):
        """Answer asks, and decide uncertain effects by looking at what really happened."""
        while True:
            await self.services.clock.sleep(2)
            for ask in await runtime.asks():
                await runtime.answer(ask.id, True, by="person")
            for entry in await runtime.effects("uncertain"):
                if entry.kind == "once" and entry.decision is None:
                    happened = bool(self.done[f"once-{entry.args[0]}-{entry.args[1]}"])
                    await runtime.resolve(entry.id, happened=happened, result="once", by="person")


async def final(run):
    """Return the result, waiting on while the person decides."""
    while True:
        try:
            return await run.result(timeout=3600)
        except NeedsDecision:
            await run._runtime.engine.services.clock.sleep(1)


async def simulate(seed):
    world = World(seed)
    clock = world.services.clock
    graph, child = world.graph()
    async with clock.autojump():
        desk = Runtime.open(world.url, [graph, child], services=world.services, worker=False)
        await desk.__aenter__()
        runs = [await desk.start(graph, {}, thread=f"t{n}") for n in range(RUNS)]
        for run in runs:
            await run.signal("early", 7)
        helpers = [
            asyncio.create_task(world.keep_workers()),
            asyncio.create_task(world.person(desk)),
        ]
        results = [await final(run) for run in runs]
        for helper in helpers:
            helper.cancel()
        await check(world, desk, results)
        for runtime, store in world.workers:
            if not store.is_gone:
                await runtime.close(window_s=0)
            for _row, execution, _task in runtime.worker._held.values():
                execution.lost()
        await desk.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def check(world, desk, results):
    expected = ["0 deduplicated", "1 deduplicated", "4 deduplicated"]
    expected += [f"{n} found" for n in range(3)]
    expected += ["True 7 ['deduplicated'] once"]
    for result in results:
        assert (result.turns, result.log) == (3, expected)
    doubled = {key: n for key, n in world.done.items() if n > 1}
    assert not doubled
    assert len(world.done) == RUNS * (3 + 3 + 1 + 1)
    assert not await desk.effects("uncertain")
    assert not await desk.effects("intended")
    for row in await desk.runs(limit=100):
        assert row.status == "succeeded", row
        records = await read_records(desk.engine.store, row.run_id)
        assert [seq for seq, _frame, _record in records] == list(range(1, len(records) + 1))


@pytest.mark.parametrize("block", range(4))
@pytest.mark.timeout(120)
async def test_nothing_is_lost_or_doubled(block):
    for seed in range(block, SEEDS, 4):
        try:
            await simulate(seed)
        except BaseException as error:
            error.add_note(f"replay: SIM_SEED={seed} pytest tests/simulation -k one_seed")
            raise


@pytest.mark.skipif("SIM_SEED" not in os.environ, reason="replays one seed: set SIM_SEED")
async def test_one_seed():
    await simulate(int(os.environ["SIM_SEED"]))
