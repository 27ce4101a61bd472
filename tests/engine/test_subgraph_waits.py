"""A run that waits inside a subgraph holds nothing, like any other."""

from perdure import END, START, Graph, RunStatus
from tests.engine.one_node import State


async def test_a_run_that_waits_inside_a_subgraph_is_let_go(clock, open_workers):
    inner = Graph(State, name="inner")

    @inner.node
    async def listen(_state, ctx):
        return {"results": [await ctx.receive("go")]}

    inner.edge(START, listen)
    inner.edge(listen, END)
    outer = Graph(State, name="outer")
    outer.node(inner, name="sub")
    outer.edge(START, "sub")
    outer.edge("sub", END)
    async with clock.autojump():
        [runtime] = await open_workers(1, outer)
        run = await runtime.start("outer")
        await clock.sleep(5)
        row = await run.row()
        assert (row.status, row.holder) == (RunStatus.WAITING, None)
        assert row.waits[0].node == "1:sub/1:listen"
        await run.signal("go", "came")
        assert (await run.result()).results == ["came"]
