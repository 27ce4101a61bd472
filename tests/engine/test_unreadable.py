"""What can't be read back is an error that names thread, checkpoint or seq, and channel."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest

from perdure import END, START, Context, Graph, NeedsDecision, Runtime, Send, append, effect
from perdure.codec import (
    chain_hash,
    decode_record,
    encode_frame,
    encode_record,
    erase_frame,
    split_frame,
)
from perdure.errors import DecodeFailed, PerdureError, RecordErased, StoreCorrupt, TypeUnknown
from perdure.model import records as rec
from tests.beside import beside


@dataclass
class Part:
    name: str = ""


@dataclass
class Typed:
    label: str = ""
    part: Part | None = None
    parts: Annotated[list[Part], append] = field(default_factory=list)


@dataclass
class Untyped:
    """The same fields in a process that does not know `Part`."""

    label: str = ""
    part: Any = None
    parts: Annotated[list[Any], append] = field(default_factory=list)


@effect(kind="keyed")
async def make(*, idempotency_key: str) -> Part:
    return Part("made")


@effect(kind="keyed", name="make")
async def make_untyped(*, idempotency_key: str) -> Any:
    raise AssertionError("it was recorded")


def flow(state_type, call):
    graph = Graph(state_type, name="flow")

    @graph.node
    async def first(state, ctx: Context) -> dict:
        made = await ctx.call(call)
        await ctx.receive("go")
        return {"label": str(made)}

    @graph.node
    async def last(state) -> dict:
        return {"label": "done"}

    graph.edge(START, first)
    graph.edge(first, last)
    graph.edge(last, END)
    return graph


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


async def written(url, given):
    """Write a thread by a process that knows all types; it waits in its first node."""
    async with Runtime.open(url, graphs=[flow(Typed, make)]) as runtime:
        run = await runtime.start("flow", given, thread="t")
        await run_waits(run)
        return run.id


async def run_waits(run):
    async for event in run.events():
        if event.kind == "released":
            return


async def test_a_state_of_an_unknown_type(url):
    run_id = await written(url, {"part": Part("a")})
    async with Runtime.open(url, graphs=[flow(Untyped, make_untyped)], worker=False) as runtime:
        for asked in (runtime.state("t"), runtime.state("t", at=1)):
            with pytest.raises(TypeUnknown, match="thread 't', checkpoint 1") as caught:
                await asked
            found = caught.value.fields
            assert (found["thread"], found["checkpoint"], found["channel"]) == ("t", 1, "part")
            assert (found["run_id"], found["type"]) == (run_id, "Part")
        assert [c.changed for c in await runtime.history("t")] == [("label", "part", "parts")]
    async with Runtime.open(url, worker=False) as runtime:
        assert (await runtime.state("t"))["part"] == {"$type": "Part", "name": "a"}


async def test_an_element_of_a_list_that_was_appended_to(url):
    await written(url, {"parts": [Part("a")]})
    async with Runtime.open(url, graphs=[flow(Untyped, make_untyped)], worker=False) as runtime:
        with pytest.raises(TypeUnknown) as caught:
            await runtime.state("t")
    assert caught.value.fields["channel"] == "parts"


async def test_a_run_whose_state_is_of_an_unknown_type_is_parked(url):
    run_id = await written(url, {"part": Part("a")})
    async with Runtime.open(url, graphs=[flow(Untyped, make_untyped)]) as runtime:
        run = await runtime.get(run_id)
        await run.signal("go")
        with pytest.raises(NeedsDecision, match=r"thread 't', checkpoint 1 .*field 'part'"):
            await run.result(timeout=10)
        assert (await run.row()).failure.type == "TypeUnknown"
    async with Runtime.open(url, graphs=[flow(Typed, make)]) as runtime:
        await runtime.retry(run_id, by="ada")
        assert (await (await runtime.get(run_id)).result(timeout=10)).part == Part("a")


async def test_a_result_of_an_effect_of_an_unknown_type_parks_the_run(url):
    run_id = await written(url, {})
    async with Runtime.open(url, graphs=[flow(Untyped, make_untyped)]) as runtime:
        run = await runtime.get(run_id)
        await run.signal("go")
        with pytest.raises(PerdureError, match="result of effect 'make'"):
            await run.result(timeout=10)


async def test_a_result_of_an_unknown_type(url):
    async with Runtime.open(url, graphs=[flow(Typed, make)]) as runtime:
        run = await runtime.start("flow", {"part": Part("a")}, thread="t")
        await run.signal("go")
        await run.result(timeout=10)
    async with Runtime.open(url, graphs=[flow(Untyped, make_untyped)], worker=False) as runtime:
        with pytest.raises(TypeUnknown, match="field 'part'") as caught:
            await (await runtime.get(run.id)).result(timeout=10)
    assert caught.value.fields["checkpoint"] == 3


async def test_an_argument_of_a_fan_out_of_an_unknown_type(url):
    def fanned(part_type, given):
        graph = Graph(Untyped, name="fanned")

        @graph.node
        async def work(part: part_type, ctx: Context) -> dict:
            await ctx.receive("go")
            return {"label": str(part)}

        def route(state):
            return [Send("work", given)]

        graph.branch(START, route, targets=["work"])
        graph.edge("work", END)
        return graph

    async with Runtime.open(url, graphs=[fanned(Part, Part("a")), flow(Typed, make)]) as runtime:
        run = await runtime.start("fanned", {})
        await run_waits(run)
    async with Runtime.open(url, graphs=[fanned(Any, 1)]) as runtime:
        await runtime.signal(run.id, "go")
        with pytest.raises(PerdureError, match="argument of node '1:work#1'"):
            await (await runtime.get(run.id)).result(timeout=10)


# -- damaged journals ------------------------------------------------------------------------------


UNKNOWN = b"\x91\xcd\x03\xe7"
"""A record of the kind 999."""


def rewrite(url, run_id, change):
    """Change the body of every frame, with all hashes made anew."""
    db = beside(url.removeprefix("sqlite:///"))
    [(number,)] = db.execute("SELECT run_no FROM perdure_runs WHERE run_id = ?", (run_id,))
    prev = bytes(32)
    frames = db.execute(
        "SELECT first_seq, token, at_us, body FROM perdure_frames WHERE run_no = ? "
        "ORDER BY first_seq",
        (number,),
    ).fetchall()
    for seq, token, at_us, body in frames:
        records = [change(seq + n, each) for n, each in enumerate(split_frame(body))]
        made = chain_hash(prev, run_id, seq, token, records, at_us=at_us)
        db.execute(
            "UPDATE perdure_frames SET body = ?, prev_hash = ?, hash = ? "
            "WHERE run_no = ? AND first_seq = ?",
            (encode_frame(records), prev, made, number, seq),
        )
        prev = made
    db.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda runtime, _run_id: runtime.state("t"),
        lambda runtime, _run_id: runtime.history("t"),
        lambda runtime, _run_id: runtime.diff(1, 1, thread="t"),
        lambda runtime, run_id: runtime.events(run_id),
    ],
    ids=["state", "history", "diff", "events"],
)
async def test_a_record_that_no_version_wrote(url, ask):
    run_id = await written(url, {})
    rewrite(url, run_id, lambda seq, body: UNKNOWN if seq == 3 else body)
    async with Runtime.open(url, graphs=[flow(Typed, make)], worker=False) as runtime:
        with pytest.raises(DecodeFailed, match="seq 3") as caught:
            await ask(runtime, run_id)
    assert (caught.value.fields["run_id"], caught.value.fields["seq"]) == (run_id, 3)


async def test_a_run_with_a_record_that_no_version_wrote_is_parked(url):
    run_id = await written(url, {})
    rewrite(url, run_id, lambda seq, body: UNKNOWN if seq == 3 else body)
    async with Runtime.open(url, graphs=[flow(Typed, make)]) as runtime:
        await runtime.signal(run_id, "go")
        with pytest.raises(NeedsDecision, match=f"run '{run_id}', seq 3"):
            await (await runtime.get(run_id)).result(timeout=10)


async def test_a_value_that_can_not_be_decoded_names_its_field(url):
    run_id = await written(url, {"part": Part("a")})

    def change(_seq, encoded):
        record = decode_record(encoded)
        if not isinstance(record, rec.RunStarted):
            return encoded
        broken = {"part": ("r", msgspec.Raw(b"\xc7\x01\x09x"))}
        return encode_record(msgspec.structs.replace(record, input=broken))

    rewrite(url, run_id, change)
    async with Runtime.open(url, graphs=[flow(Typed, make)], worker=False) as runtime:
        with pytest.raises(DecodeFailed, match="extension type 9 is unknown") as caught:
            await runtime.state("t")
    assert (caught.value.fields["channel"], caught.value.fields["thread"]) == ("part", "t")


async def test_erased_records_are_said_to_be_erased(url):
    run_id = await written(url, {})
    db = beside(url.removeprefix("sqlite:///"))
    [(number, seq, body)] = db.execute(
        "SELECT run_no, first_seq, body FROM perdure_frames WHERE first_seq = 2"
    ).fetchall()
    db.execute(
        "UPDATE perdure_frames SET body = ? WHERE run_no = ? AND first_seq = ?",
        (erase_frame(body), number, seq),
    )
    db.close()
    async with Runtime.open(url, graphs=[flow(Typed, make)], worker=False) as runtime:
        for asked in (runtime.state("t"), runtime.events(run_id)):
            with pytest.raises(RecordErased, match="erased on purpose") as caught:
                await asked
            assert (caught.value.fields["run_id"], caught.value.fields["seq"]) == (run_id, 2)
        await runtime.history("t")  # which says what is left


async def test_a_missing_page_is_named_by_its_place(url):
    run_id = await written(url, {"label": "".join(map(str, range(9000)))})
    db = beside(url.removeprefix("sqlite:///"))
    db.execute("DELETE FROM perdure_pages")
    db.close()
    async with Runtime.open(url, graphs=[flow(Typed, make)], worker=False) as runtime:
        with pytest.raises(StoreCorrupt, match="field 'label'") as caught:
            await runtime.state("t")
        found = caught.value.fields
        assert (found["thread"], found["run_id"], found["checkpoint"]) == ("t", run_id, 1)
        with pytest.raises(StoreCorrupt) as caught:
            await runtime.events(run_id)
        assert (caught.value.fields["run_id"], caught.value.fields["seq"]) == (run_id, 1)


def test_a_located_error_keeps_its_class_notes_and_first_fields():
    error = TypeUnknown("of type 'X'", type="X", seq=3).note("more")
    found = error.located("run 'r'", seq=9, run_id="r")
    assert type(found) is TypeUnknown
    assert str(found) == "run 'r': of type 'X'"
    assert found.fields == {"type": "X", "seq": 3, "run_id": "r"}
    assert found.__notes__ == ["more"]
    assert dataclasses.is_dataclass(Part)
