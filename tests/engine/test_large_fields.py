"""Fields in pages: every version loads as it was, and what did not change is not written again."""

import asyncio
import random
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Raw

from perdure import END, START, Context, Goto, Graph, Runtime, Send, append
from perdure.codec import decode_record, ref_of, split_frame
from perdure.codec._pages import page_of
from perdure.engine.loading import load_checkpoint
from perdure.engine.paging import read_wholes
from perdure.errors import StoreCorrupt
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import records as rec
from perdure.store.sqlite import SqliteStore


def text_of(seed: int, length: int = 1000) -> str:
    return random.Random(seed).randbytes(length // 2).hex()  # noqa: S311  # no secret


def joined(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    return {**one, **other}


@dataclass
class Library:
    books: dict[str, str] = field(default_factory=dict)
    index: Annotated[dict[str, str], joined] = field(default_factory=dict)
    log: Annotated[list[str], append] = field(default_factory=list)
    left: int = 0


def library(**fields: Any) -> Library:
    books = {f"book {number}": text_of(number) for number in range(100)}
    return Library(books=books, index={"k": text_of(7, 40_000)}, **fields)


editing = Graph(Library, name="editing", step_limit=10_000)


@editing.node
async def edit(state: Library) -> dict[str, Any]:
    number = state.left
    return {
        "books": {**state.books, f"book {number % 100}": text_of(1000 + number)},
        "index": {f"i{number % 5}": text_of(2000 + number)},
        "log": [f"edited {number}", text_of(number, 20_000)],
        "left": number - 1,
    }


editing.edge(START, edit)
editing.branch(edit, lambda state: "edit" if state.left > 0 else END, targets=["edit", END])


async def pages_of(store: SqliteStore) -> int:
    return await store._read(
        "count", lambda db: db.execute("SELECT count(*) FROM perdure_pages").get
    )


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/large.db"


async def test_every_version_loads_as_it_was(url, monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)  # some whole copies
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1000)
    expected = [library(left=12)]
    for number in range(12, 0, -1):
        before = expected[-1]
        expected.append(
            Library(
                books={**before.books, f"book {number % 100}": text_of(1000 + number)},
                index={**before.index, f"i{number % 5}": text_of(2000 + number)},
                log=[*before.log, f"edited {number}", text_of(number, 20_000)],
                left=number - 1,
            )
        )
    async with Runtime.open(url, graphs=[editing]) as runtime:
        run = await runtime.start(editing, library(left=12), thread="t")
        assert await run.result() == expected[-1]
        for checkpoint, state in enumerate(expected, 1):
            assert await runtime.state("t", at=checkpoint) == state
        kinds = [event.kind async for event in run.events()]
        assert kinds.count("state_snapshot") >= 2
        finished = [event async for event in run.events() if event.kind == "node_finished"]
        assert finished[0].body["writes"]["books"][1] == expected[1].books
    async with Runtime.open(url, graphs=[editing]) as runtime:
        assert await runtime.state("t") == expected[-1]
        again = await runtime.start(editing, {"left": 1}, thread="t")
        result = await again.result()
        assert result.log == [*expected[-1].log, "edited 1", text_of(1, 20_000)]
        fork = await runtime.fork("t", at=3, update={"left": 2}, to="f")
        forked = await fork.result()
        assert forked.log[: len(expected[2].log)] == expected[2].log
        assert forked.books["book 9"] == expected[2].books["book 9"]


async def test_what_did_not_change_is_not_written_again(url):
    async with Runtime.open(url, graphs=[editing]) as runtime:
        run = await runtime.start(editing, library(left=1), thread="t")
        await run.result()
        store = runtime.engine.store
        few = await pages_of(store)
        # The next run of the thread is loaded: its pagers begin with what is stored.
        await (await runtime.start(editing, {"left": 3}, thread="t")).result()
        assert await pages_of(store) - few < 35
        before = await pages_of(store)
        fork = await runtime.fork("t", to="f")
        assert await pages_of(store) - before <= 8  # of lists that grew out of many pieces
        await fork.cancel()


async def test_records_hold_references(url):
    async with Runtime.open(url, graphs=[editing]) as runtime:
        run = await runtime.start(editing, library(left=1), thread="t")
        await run.result()
        frames = await runtime.engine.store.read_frames(RunId(run.id))
        records = [decode_record(one) for frame in frames for one in split_frame(frame.body)]
        started = next(record for record in records if isinstance(record, rec.RunStarted))
        assert ref_of(started.input["books"][1]) is not None
        finished = next(record for record in records if isinstance(record, rec.NodeFinished))
        assert ref_of(finished.writes["books"][1]) is not None
        assert ref_of(finished.writes["log"][1]) is not None
        assert sum(len(frame.body) for frame in frames) < 30_000


async def test_a_missing_page_is_named(url):
    async with Runtime.open(url, graphs=[editing]) as runtime:
        run = await runtime.start(editing, library(left=1), thread="t")
        await run.result()
        store = runtime.engine.store
        await store._writer.call("damage", lambda db: db.execute("DELETE FROM perdure_pages"))
        with pytest.raises(StoreCorrupt, match=r"thread 't', checkpoint 2, field '\w+'.*missing"):
            await runtime.state("t")
        with pytest.raises(StoreCorrupt):
            await load_checkpoint(store, TenantId("default"), ThreadId("t"), 1)


async def test_a_page_that_was_edited_is_named(url):
    async with Runtime.open(url, graphs=[editing]) as runtime:
        run = await runtime.start(editing, library(left=1), thread="t")
        await run.result()
        store = runtime.engine.store
        sql = "UPDATE perdure_pages SET body = substr(body, 1, length(body) - 1) || x'00'"
        await store._writer.call("damage", lambda db: db.execute(sql))
        with pytest.raises(StoreCorrupt, match="field"):
            await runtime.state("t")


waiting = Graph(Library, name="waiting")


@waiting.node
async def fan(state: Library) -> dict[str, Any]:
    return {"books": {**state.books, "new": text_of(5, 50_000)}}


@waiting.node
async def part(argument: str, ctx: Context) -> dict[str, Any]:
    if argument == "1":
        await ctx.ask("go on?")
    return {"log": [f"{argument} {text_of(int(argument), 30_000)}"]}


@waiting.node
async def last(state: Library) -> Goto:
    return Goto(END, {"index": {"last": text_of(9, 20_000)}})


waiting.edge(START, fan)
waiting.branch(fan, lambda _state: [Send("part", str(n)) for n in range(3)], targets=["part"])
waiting.edge(part, last)


async def test_outcomes_of_a_step_under_way_survive_a_restart(url):
    """Parallel nodes: the large outcomes of those that are done wait in the journal."""
    async with Runtime.open(url, graphs=[waiting]) as runtime:
        run = await runtime.start(waiting, library(), thread="t")
        while not await runtime.asks():  # noqa: ASYNC110  # the store tells
            await asyncio.sleep(0.01)
        run_id = run.id
    async with Runtime.open(url, graphs=[waiting]) as runtime:
        [ask] = await runtime.asks()
        await runtime.answer(ask.id, True, by="ada")
        result = await (await runtime.get(run_id)).result()
    assert result.log == [f"{n} {text_of(n, 30_000)}" for n in range(3)]
    assert result.books["new"] == text_of(5, 50_000)
    assert result.index == {"k": text_of(7, 40_000), "last": text_of(9, 20_000)}


parent = Graph(Library, name="parent")


@parent.node
async def delegate(state: Library, ctx: Context) -> dict[str, Any]:
    child = await ctx.spawn(editing, Library(books=state.books, left=1))
    result = await child.result()
    return {"books": result.books}


parent.edge(START, delegate)
parent.edge(delegate, END)


async def test_a_child_gets_large_input(url):
    async with Runtime.open(url, graphs=[parent, editing]) as runtime:
        run = await runtime.start(parent, library(), thread="t")
        result = await run.result()
    assert result.books == {**library().books, "book 1": text_of(1001)}


def reference(depth: int, length: int, hashes: bytes) -> bytes:
    payload = msgspec.msgpack.encode([depth, length, hashes])
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(2, payload))


async def test_a_reference_whose_lists_repeat_is_refused(url):
    """Few stored bytes that stand for very many: nothing is joined before it was counted."""
    tenant = TenantId("default")
    async with Runtime.open(url, graphs=[editing]) as runtime:
        store = runtime.engine.store
        hashes = page_of(b"x" * 32_000, sha256(b"x" * 32_000).digest()).hash
        pages = [page_of(b"x" * 32_000, hashes)]
        for _level in range(3):
            listed = hashes * 1000
            hashes = sha256(listed).digest()
            pages.append(page_of(listed, hashes))
        await store.put_pages(tenant, pages)
        bomb = reference(3, 200_000_000, hashes)
        with pytest.raises(StoreCorrupt, match="here: its pages"):
            await read_wholes(store, tenant, [("here", Raw(bomb))])
