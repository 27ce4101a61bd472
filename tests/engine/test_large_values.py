"""Large requests, results, answers, signals and chunks are in pages, and read as they were."""

import random
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, Run, Runtime, append, effect
from perdure.codec import decode_record, ref_of, split_frame
from perdure.engine.paging import VALUES
from perdure.errors import StoreCorrupt
from perdure.governance import verify
from perdure.ids import RunId
from tests.beside import beside
from tests.engine.polled import reached as resting


@dataclass
class Talk:
    messages: Annotated[list[str], append] = field(default_factory=list)
    left: int = 3
    page: str = ""


def text_of(seed: int, length: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()  # noqa: S311  # no secret


CALLS: list[int] = []


@effect(kind="keyed")
async def complete(messages: list[str], *, idempotency_key: str) -> dict[str, Any]:
    CALLS.append(len(messages))
    return {"text": text_of(len(messages), 1000), "usage": {"input_tokens": len(messages)}}


@effect(kind="pure")
async def fetch(number: int) -> str:
    CALLS.append(number)
    return text_of(number, 60_000)


@effect(kind="transaction")
async def save(number: int, transaction: Any) -> str:
    return text_of(number, 40_000)


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@pytest.fixture
def file_url(tmp_path):
    return f"sqlite:///{tmp_path}/values.db"


chat = Graph(Talk, name="chat", step_limit=1000)


@chat.node
async def turn(state: Talk, ctx: Context) -> dict[str, Any]:
    reply = await ctx.call(complete, state.messages)
    return {"messages": [reply["text"]], "left": state.left - 1}


chat.edge(START, turn)
chat.branch(turn, lambda state: "turn" if state.left > 0 else END, targets=["turn", END])


async def until(run: Run, kind: str) -> None:
    async for event in run.events():
        if event.kind == kind:
            return


async def records_of(runtime, run_id: str) -> list[Any]:
    frames = await runtime.engine.store.read_frames(RunId(run_id))
    return [decode_record(each) for frame in frames for each in split_frame(frame.body)]


def values_of(records: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in records:
        if type(record) in VALUES:
            found.setdefault(type(record).__name__, []).append(
                getattr(record, VALUES[type(record)])
            )
    return found


async def test_a_conversation_that_is_sent_with_every_call_is_not_written_with_every_call(file_url):
    given = [text_of(number, 1000) for number in range(200)]
    async with Runtime.open(file_url, graphs=[chat]) as runtime:
        run = await runtime.start(chat, {"messages": given, "left": 20}, thread="t")
        result = await run.result(timeout=30)
        assert len(result.messages) == 220
        requests = values_of(await records_of(runtime, run.id))["EffectIntended"]
        assert all(ref_of(raw) is not None for raw in requests)
        [first, *_others] = [
            event for event in await runtime.events(run.id) if "intended" in event.kind
        ]
        assert first.body["request"] == [[given], {}]
        [entry, *_more] = await runtime.effects(state="confirmed", run_id=run.id)
        assert len(entry.args[0]) >= 200
        assert (await runtime.replay(run.id)).divergences == ()
        assert (await verify(runtime)).findings == []
    db = beside(file_url.removeprefix("sqlite:///"))
    sizes = [
        db.execute(f"SELECT sum(length(body)) FROM perdure_{table}").get
        for table in ("frames", "pages")
    ]
    db.close()
    assert sum(sizes) < 3 * 220_000  # the state once, the requests once, some pages of their ends


async def test_a_result_that_ends_up_in_the_state_shares_its_pages(file_url):
    graph = Graph(Talk, name="fetching")

    @graph.node
    async def get(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"page": await ctx.call(fetch, 7)}

    graph.edge(START, get)
    async with Runtime.open(file_url, graphs=[graph]) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        assert (await run.result(timeout=20)).page == text_of(7, 60_000)
        records = await records_of(runtime, run.id)
        [raw] = values_of(records)["EffectConfirmed"]
        written = [r.writes["page"][1] for r in records if type(r).__name__ == "NodeFinished"]
        assert [ref_of(raw)] == [ref_of(each) for each in written]
        assert (await runtime.costs("t"))[1].page_bytes < 35_000


asking = Graph(Talk, name="asking")


@asking.node
async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
    page = await ctx.call(fetch, 1)
    saved = await ctx.call(save, 2)
    await ctx.emit({"chunk": text_of(3, 30_000)})
    answer = await ctx.ask("What?", schema=str)
    signal = await ctx.receive("more")
    return {"messages": [page, saved, answer.value, signal]}


asking.edge(START, ask)


async def test_all_kinds_of_values_survive_a_restart(file_url):
    async with Runtime.open(file_url, graphs=[asking]) as runtime:
        run = await runtime.start(asking, {}, thread="t")
        await resting(run)
    async with Runtime.open(file_url, graphs=[asking]) as runtime:
        run = await runtime.get(run.id)
        [question] = await runtime.asks()
        await runtime.answer(question.id, text_of(4, 30_000), by="ada")
        await until(run, "receive_started")
        await resting(run)
    async with Runtime.open(file_url, graphs=[asking]) as runtime:
        run = await runtime.get(run.id)
        await run.signal("more", text_of(5, 30_000))
        result = await run.result(timeout=20)
        expected = [
            text_of(1, 60_000),
            *(text_of(n, s) for n, s in ((2, 40_000), (4, 30_000), (5, 30_000))),
        ]
        assert result.messages == expected
        assert CALLS == [1], "what was recorded is not called again"
        values = values_of(await records_of(runtime, run.id))
        assert {name: len(raws) for name, raws in values.items()} == {
            "EffectConfirmed": 2,
            "Emitted": 3,
            "AskAnswered": 1,
            "SignalConsumed": 1,
        }
        assert all(ref_of(raw) is not None for raws in values.values() for raw in raws)
        bodies = {event.kind: event.body for event in await runtime.events(run.id)}
        assert bodies["emitted"]["chunk"] == {"chunk": text_of(3, 30_000)}
        assert bodies["answered"]["value"] == text_of(4, 30_000)
        moment = await runtime.moment("t")
        assert [decision.value for decision in moment.decisions] == [text_of(4, 30_000)]
        assert (await runtime.replay(run.id)).divergences == ()
        assert (await verify(runtime)).findings == []


async def test_a_child_hands_a_large_result_over(open_runtime):
    child = Graph(Talk, name="child")

    @child.node
    async def write(state: Talk) -> dict[str, Any]:
        return {"page": text_of(9, 50_000)}

    child.edge(START, write)
    parent = Graph(Talk, name="parent")

    @parent.node
    async def delegate(state: Talk, ctx: Context) -> dict[str, Any]:
        spawned = await ctx.spawn(child, {})
        return {"page": (await spawned.result()).page}

    parent.edge(START, delegate)
    runtime = await open_runtime(parent, child)
    run = await runtime.start(parent, {}, thread="t")
    assert (await run.result(timeout=20)).page == text_of(9, 50_000)
    values = values_of(await records_of(runtime, run.id))
    assert [ref_of(raw) is not None for raw in values["ChildEnded"]] == [True]


async def test_a_missing_page_of_a_result_is_named(file_url):
    async with Runtime.open(file_url, graphs=[asking]) as runtime:
        run = await runtime.start(asking, {}, thread="t")
        await resting(run)
    db = beside(file_url.removeprefix("sqlite:///"))
    db.execute("DELETE FROM perdure_pages")
    db.close()
    async with Runtime.open(file_url, graphs=[asking], worker=False) as runtime:
        with pytest.raises(
            StoreCorrupt, match=rf"run '{run.id}', seq \d+, result: page .* missing"
        ):
            await runtime.events(run.id)
        assert {found.code for found in (await verify(runtime)).findings} == {"page_missing"}


async def test_a_row_that_differs_from_a_result_in_pages_is_found(file_url):
    async with Runtime.open(file_url, graphs=[chat]) as runtime:
        given = [text_of(number, 1000) for number in range(40)]
        run = await runtime.start(chat, {"messages": given, "left": 1}, thread="t")
        await run.result(timeout=20)
    db = beside(file_url.removeprefix("sqlite:///"))
    [(wire,)] = db.execute("SELECT request_wire FROM perdure_effects").fetchall()
    changed = wire[:-1] + bytes([wire[-1] ^ 1])
    db.execute("UPDATE perdure_effects SET request_wire = ?", (changed,))
    db.close()
    async with Runtime.open(file_url, graphs=[chat], worker=False) as runtime:
        [found] = (await verify(runtime)).findings
        assert (found.code, "request" in found.what) == ("effect_differs", True)
