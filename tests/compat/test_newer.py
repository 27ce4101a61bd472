"""What a newer Perdure wrote is refused, and stays byte for byte what it was."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import pytest

from perdure import END, START, Graph, RunStatus, Runtime, append
from perdure.codec import chain_hash, encode_frame
from perdure.engine.moving import take
from perdure.engine.survey import Fate, survey_runs
from perdure.errors import DecodeFailed
from perdure.model import Append, RunReleased

UNKNOWN_TAG = msgspec.msgpack.encode([99, 1, "what a later version says"])


@dataclass
class State:
    notes: Annotated[list[str], append] = field(default_factory=list)


graph = Graph(State, name="compat-newer")


@graph.node
async def wait(_state, ctx):
    return {"notes": [await ctx.receive("go")]}


graph.edge(START, wait)
graph.edge(wait, END)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}[request.param]


def newer_frame(kind):
    """Return the body of a frame as a newer version may write it, and its records."""
    if kind == "record":
        return encode_frame([UNKNOWN_TAG]), [UNKNOWN_TAG]
    return b"\x63" + encode_frame([UNKNOWN_TAG])[1:], [UNKNOWN_TAG]


async def until(run, status):
    for _ in range(500):
        if await run.status() is status:
            return await run.row()
        await asyncio.sleep(0.02)
    raise AssertionError(await run.row())


async def append_newer(runtime, run, kind):
    """Append what this version can't read to the journal of a run that waits."""
    engine = runtime.engine
    row = await take(engine, await run.row(), "w_newer")
    last = (await engine.store.read_frames(run.id))[-1]
    body, records = newer_frame(kind)
    seq = row.last_seq + 1
    item = Append(
        run_id=row.run_id,
        tenant=row.tenant,
        thread=row.thread,
        token=row.token,
        first_seq=seq,
        at_us=engine.now_us(),
        count=1,
        body=body,
        prev_hash=last.hash,
        hash=chain_hash(last.hash, row.run_id, seq, row.token, records),
        changes=(RunReleased(status=RunStatus.WAITING),),
    )
    await engine.store.append([item])


@pytest.mark.parametrize("kind", ["record", "frame"])
async def test_what_can_not_be_read_is_left_as_it_is(url, kind):
    async with Runtime.open(url, [graph]) as runtime:
        run = await runtime.start(graph, thread="t")
        await until(run, RunStatus.WAITING)
        await append_newer(runtime, run, kind)
        store = runtime.engine.store
        before = (
            await run.row(),
            await store.read_frames(run.id),
            await store.read_thread("default", "t"),
        )
        for refused in (runtime.events(run.id), runtime.state("t"), runtime.history("t")):
            with pytest.raises(DecodeFailed, match="newer"):
                await refused
        plan = graph.compile()
        [found] = [each async for each in survey_runs(runtime.engine, plan, moves=True)]
        assert (found.fate, "newer" in found.reason) == (Fate.PARKS, True)
        after = (
            await run.row(),
            await store.read_frames(run.id),
            await store.read_thread("default", "t"),
        )
        assert after == before
        await run.signal("go", "x")  # a worker that has to do with it leaves it to a person
        row = await until(run, RunStatus.NEEDS_DECISION)
        assert row.failure.type == "DecodeFailed"
        assert (await store.read_frames(run.id))[: len(before[1])] == before[1]
