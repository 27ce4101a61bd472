"""A result is there when the run has ended, also while what the run had is still being put away."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import END, START, Context, Graph, Runtime, effect
from perdure.sandbox import DirectorySandboxes

pytestmark = pytest.mark.timeout(60)


class SlowToClose(DirectorySandboxes):
    """Sandboxes that are closed when the test says so."""

    def __init__(self, root):
        super().__init__(root)
        self.may_close = asyncio.Event()
        self.is_closing = asyncio.Event()

    def open(self, tenant, thread, **more):
        sandbox = super().open(tenant, thread, **more)
        close = sandbox.close

        async def close_slowly():
            self.is_closing.set()
            await self.may_close.wait()
            await close()

        sandbox.close = close_slowly
        return sandbox


@dataclass
class Written:
    done: bool = False


graph = Graph(Written, name="writes", version=1)


@effect(kind="contained")
async def put(*, sandbox: Any) -> None:
    (sandbox.path / "f").write_text("x")


@graph.node
async def write(state: Written, ctx: Context) -> dict:
    await ctx.call(put)
    return {"done": True}


graph.edge(START, write)
graph.edge(write, END)


async def test_who_waits_is_told_before_all_is_put_away(tmp_path):
    backend = SlowToClose(tmp_path)
    async with Runtime.open("memory://", graphs=[graph], sandbox=backend) as runtime:
        run = await runtime.start(graph, Written(), thread="t")
        assert (await run.result(timeout=30)).done
        backend.may_close.set()


async def test_who_asks_meanwhile_is_told_too(tmp_path):
    backend = SlowToClose(tmp_path)
    async with Runtime.open("memory://", graphs=[graph], sandbox=backend) as runtime:
        run = await runtime.start(graph, Written(), thread="t")
        await backend.is_closing.wait()
        assert (await run.result(timeout=30)).done
        backend.may_close.set()
