"""Children of runs that another process spawned."""

from dataclasses import dataclass

from perdure import START, Context, Graph
from tests.engine.polled import asked


@dataclass
class State:
    note: str = ""


def build():
    kid = Graph(State, name="kid-of-another-process")

    @kid.node
    async def asks(state: State, ctx: Context) -> dict:
        return {"note": (await ctx.ask("And now?")).value}

    kid.edge(START, asks)
    parent = Graph(State, name="parent-of-another-process")

    @parent.node
    async def spawns(state: State, ctx: Context) -> dict:
        child = await ctx.spawn(kid, {})
        return {"note": (await child.result()).note}

    parent.edge(START, spawns)
    return parent, kid


async def test_a_child_goes_on_where_only_its_parent_was_given(open_runtime, tmp_path):
    url = f"sqlite:///{tmp_path}/kids.db"
    parent, _kid = build()
    first = await open_runtime(parent, url=url)
    run = await first.start(parent, {})
    question = await asked(first)
    await first.close()
    parent, kid = build()
    second = await open_runtime(parent, url=url)
    await second.answer(question.id, "go on", by="ann")
    assert (await (await second.get(run.id)).result(timeout=10)).note == "go on"
    assert kid.name in {name for name, _version in second.engine.graphs()}
