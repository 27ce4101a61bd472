"""A store that refuses one run again and again: let go less often each time, then parked."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from perdure import END, START, Context, Graph, effect
from perdure.engine.limits import CLAIMS_MAX
from perdure.errors import NeedsDecision, StoreError, StoreUnavailable
from perdure.model import EffectPut

calls: list[str] = []


@dataclass
class State:
    done: str = ""


@effect(kind="keyed")
async def act(*, idempotency_key: str) -> str:
    calls.append(idempotency_key)
    return "done"


graph = Graph(State, name="acting")


@graph.node
async def node(state: State, ctx: Context) -> dict[str, Any]:
    return {"done": await ctx.call(act)}


graph.edge(START, node)
graph.edge(node, END)


def refusing(store, error, times):
    """Let the store refuse appends of effects so many times; return who asked in vain, and when."""
    real, refused = store.append, []

    async def append(batch):
        has_effect = any(isinstance(c, EffectPut) for item in batch for c in item.changes)
        if has_effect and len(refused) < times:
            refused.append(store._services.clock.monotonic_s())
            raise error("the statement failed; nothing was written")
        return await real(batch)

    store.append = append
    return refused


async def test_run_that_the_store_refuses_is_left_to_a_person(clock, open_workers):
    calls.clear()
    [runtime] = await open_workers(1, graph)
    refused = refusing(runtime.engine.store, StoreError, 1000)
    run = await runtime.start(graph, State())
    async with clock.autojump():
        with pytest.raises(NeedsDecision, match=f"{CLAIMS_MAX + 1} times.*the statement failed"):
            await run.result()
    assert len(refused) == CLAIMS_MAX
    pauses = [after - before for before, after in pairwise(refused)]
    assert all(after > 1.5 * before for before, after in pairwise(pauses))
    assert calls == []
    # Mended, it goes on.
    runtime.engine.store.append = type(runtime.engine.store).append.__get__(runtime.engine.store)
    async with clock.autojump():
        await runtime.retry(run.id, by="ada")
        assert (await run.result()).done == "done"
    assert len(calls) == 1


async def test_an_outage_counts_for_nothing(clock, open_workers):
    calls.clear()
    [runtime] = await open_workers(1, graph)
    refused = refusing(runtime.engine.store, StoreUnavailable, CLAIMS_MAX + 3)
    async with clock.autojump():
        run = await runtime.start(graph, State())
        assert (await run.result()).done == "done"
    assert len(refused) == CLAIMS_MAX + 3
    assert len(calls) == 1
