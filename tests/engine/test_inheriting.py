"""Forks begin with their origin's state by reference: same bytes for every length, and no copy."""

from dataclasses import dataclass, field
from hashlib import sha512
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, RunStatus, Runtime, append
from perdure.codec import erase_frame
from perdure.engine.limits import FORK_CHAIN_MAX
from perdure.errors import RecordErased, StoreCorrupt
from perdure.governance._forked import Forks
from perdure.ids import RunId, TenantId, ThreadId
from tests.beside import beside
from tests.engine.bills import new, old, until
from tests.engine.polled import answered
from tests.engine.polled import reached as resting

TENANT = TenantId("default")


@dataclass
class Talk:
    log: Annotated[list[str], append] = field(default_factory=list)
    left: int = 0
    name: str = ""
    large: dict[str, str] = field(default_factory=dict)


talk = Graph(Talk, name="talk", step_limit=10_000)


@talk.node
async def say(state: Talk) -> dict[str, Any]:
    return {"log": [f"{state.name}{state.left}-" + "x" * 100], "left": state.left - 1}


talk.edge(START, say)
talk.branch(say, lambda state: "say" if state.left > 0 else END, targets=["say", END])


async def start_record(runtime, run_id):
    events = (await runtime.get(run_id)).events()
    return (await anext(events)).body


async def bytes_of(runtime, run_id) -> int:
    frames = await runtime.engine.store.read_frames(RunId(run_id))
    return sum(len(frame.body) for frame in frames)


async def talked(runtime, left: int, thread: str = "t"):
    run = await runtime.start(talk, {"left": left, "name": "a"}, thread=thread)
    return await run.result(timeout=20)


async def test_a_fork_of_a_long_talk_has_as_many_bytes_as_one_of_a_short_one(open_runtime):
    runtime = await open_runtime(talk)
    await talked(runtime, 3, "short")
    await talked(runtime, 600, "longer")
    short = await runtime.fork("short", update={"name": "b"}, to="f-1")
    longer = await runtime.fork("longer", update={"name": "b"}, to="f-2")
    body = await start_record(runtime, longer.id)
    assert (body["inherits"], list(body["input"])) == (True, ["name"])
    assert [len((await run.result(timeout=20)).log) for run in (short, longer)] == [3, 600]
    sizes = [await bytes_of(runtime, run.id) for run in (short, longer)]
    assert sizes[1] < sizes[0] + 20


async def erased(url: str, thread: str, *, only_rows: bool = False) -> None:
    """Erase what a thread's records hold, or the rows themselves, behind the store's back."""
    db = beside(url.removeprefix("sqlite:///"))
    runs = "SELECT run_no FROM perdure_runs WHERE thread = ?"
    if only_rows:
        db.execute(f"DELETE FROM perdure_frames WHERE run_no IN ({runs})", (thread,))
        db.execute("DELETE FROM perdure_runs WHERE thread = ?", (thread,))
    found = f"SELECT frame_no, body FROM perdure_frames WHERE run_no IN ({runs})"
    for number, body in db.execute(found, (thread,)).fetchall():
        changed = (erase_frame(body), number)
        db.execute("UPDATE perdure_frames SET body = ? WHERE frame_no = ?", changed)
    db.close()


@pytest.fixture
def file_url(tmp_path):
    return f"sqlite:///{tmp_path}/inheriting.db"


async def test_a_fork_with_a_whole_copy_of_its_own_needs_its_origin_no_more(file_url):
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        await talked(runtime, 100)
        fork = await runtime.fork("t", at=50, update={"left": 500, "name": "b"}, to="f")
        result = await fork.result(timeout=20)
        assert (len(result.log), result.log[48][:3], result.log[49][:5]) == (549, "a52", "b500-")
        kinds = [event.kind async for event in fork.events()]
        assert "state_snapshot" in kinds
        young = await runtime.fork("t", at=60, update={"left": 1}, to="young")
        await young.result(timeout=20)
    await erased(file_url, "t")
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        assert await runtime.state("f") == result
        after = await runtime.start(talk, {"left": 1}, thread="f")
        assert len((await after.result(timeout=20)).log) == 550
        with pytest.raises(RecordErased, match="'f' was forked from checkpoint 50 of thread 't'"):
            await runtime.state("f", at=1)
        with pytest.raises(RecordErased) as caught:
            await runtime.state("young")
        named = {key: caught.value.fields[key] for key in ("thread", "origin_thread")}
        assert named == {"thread": "young", "origin_thread": "t"}
        assert caught.value.fields["origin_checkpoint"] == 60


async def test_an_origin_that_is_gone_is_named_with_its_fork(file_url):
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        await talked(runtime, 4)
        await (await runtime.fork("t", at=2, to="f")).result(timeout=20)
    await erased(file_url, "t", only_rows=True)
    async with Runtime.open(file_url, graphs=[talk], worker=False) as runtime:
        for asked in (runtime.state("f"), runtime.fork("f", to="g")):
            with pytest.raises(
                StoreCorrupt, match=r"checkpoint 2 of thread 't'.*not all of its"
            ) as at:
                await asked
            assert at.value.fields["origin_checkpoint"] == 2
        assert len(await runtime.history("f")) == 5 - 1


async def test_a_chain_of_forks_is_cut_by_one_that_holds_its_state(open_runtime):
    runtime = await open_runtime(talk)
    await talked(runtime, 3)
    inherits = []
    for number in range(FORK_CHAIN_MAX + 3):
        thread = f"f{number - 1}" if number else "t"
        fork = await runtime.fork(thread, update={"name": str(number), "left": 1}, to=f"f{number}")
        await fork.result(timeout=20)
        inherits.append((await start_record(runtime, fork.id))["inherits"])
    assert inherits == [True] * FORK_CHAIN_MAX + [False, True, True]
    state = await runtime.state(f"f{FORK_CHAIN_MAX + 2}")
    assert (len(state.log), state.name) == (3, "10")


async def test_forks_at_a_checkpoint_that_its_run_stands_at_keep_its_state(open_runtime):
    graph = Graph(Talk, name="asking")

    @graph.node
    async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"log": [str((await ctx.ask("Yes?", schema=bool)).value)]}

    graph.edge(START, ask)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {"name": "a", "log": ["first"]}, thread="t")
    await resting(run)
    fork = await runtime.fork("t", to="f")
    await answered(runtime, run, value=True)
    await run.result(timeout=20)
    await answered(runtime, fork, value=False)
    assert (await fork.result(timeout=20)).log == ["first", "False"]


async def test_a_fork_that_was_cancelled_before_it_began_leaves_an_empty_thread(file_url):
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        await talked(runtime, 3)
    async with Runtime.open(file_url, graphs=[talk], worker=False) as runtime:
        fork = await runtime.fork("t", to="f")
        await fork.cancel()
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        run = await runtime.start(talk, {"left": 1, "name": "c"}, thread="f")
        result = await run.result(timeout=20)
        assert [text[:3] for text in result.log] == ["c1-"]
        assert await runtime.state("f") == result


async def test_the_points_that_forks_need_are_told(open_runtime):
    runtime = await open_runtime(talk)
    await talked(runtime, 5)
    for at, to in ((2, "f1"), (4, "f2"), (4, "f3")):
        await (await runtime.fork("t", at=at, to=to)).result(timeout=20)
    await (await runtime.fork("f1", at=1, to="f4")).result(timeout=20)
    await runtime.rollback("t", at=3, by="ada")
    forks = Forks(runtime, TENANT)
    await forks.look()
    assert [forks.of(ThreadId(name)) for name in ("t", "f1", "f2")] == [{2, 4}, {1}, set()]
    assert len(forks.places(ThreadId("t"))) == 2  # two of the forks are from one place
    assert len(forks.places(ThreadId("f1"))) == 1


async def test_a_fork_is_read_by_the_copy_that_was_made_at_its_checkpoint(
    open_runtime, monkeypatch
):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    runtime = await open_runtime(talk)
    run = await runtime.start(talk, {"left": 6, "name": "a"}, thread="t")
    await run.result(timeout=20)
    seqs = {event.seq: event.kind for event in await runtime.events(run.id)}
    for at in range(2, 8):
        fork = await runtime.fork("t", at=at, to=f"f{at}", update={"left": 0})
        await fork.result(timeout=20)
        place = (await start_record(runtime, fork.id))["state_at"]
        assert place["copy_seq"] - place["seq"] in {0, 1}
        assert seqs[place["copy_seq"]] == "state_snapshot"
        assert (await runtime.state(f"f{at}", at=1)).log == (await runtime.state("t", at=at)).log


async def test_a_fork_from_before_a_rollback_and_after_it(open_runtime):
    runtime = await open_runtime(talk)
    await talked(runtime, 5)
    back = await runtime.rollback("t", at=3, by="ada")
    before = await runtime.fork("t", at=5, update={"left": 0}, to="f1")
    after = await runtime.fork("t", at=back.new_checkpoint, to="f2")
    assert len((await before.result(timeout=20)).log) == 5
    assert (await after.result(timeout=20)).log == (await runtime.state("t")).log


async def test_only_so_much_of_an_origin_is_read_as_is_needed(open_runtime):
    runtime = await open_runtime(talk)
    for _ in range(120):
        await talked(runtime, 1)
    fork = await runtime.fork("t", at=200, to="f", update={"left": 0})
    await fork.result(timeout=20)
    body = await start_record(runtime, fork.id)
    assert body["state_at"]["copy_seq"] > 0
    store, read = runtime.engine.store, set()
    inner = store.read_frames

    async def counted(run_id, **options):
        read.add(run_id)
        return await inner(run_id, **options)

    store.read_frames = counted
    before = await runtime.state("t", at=200)
    read.clear()
    assert (await runtime.state("f", at=1)).log == before.log
    assert len(read) < 60


async def test_replay_and_comparison_of_forks_know_what_they_inherit(open_runtime):
    runtime = await open_runtime(talk)
    await talked(runtime, 5)
    fork = await runtime.fork("t", at=3, update={"name": "b"}, to="f")
    result = await fork.result(timeout=20)
    assert (await runtime.replay(fork.id)).divergences == ()
    found = await runtime.compare("t", "f")
    assert found.parted.checkpoint == 3
    assert {each["path"].split("/")[1] for each in found.patch} == {"name", "log"}
    [*_later, first] = await runtime.history("f")
    assert (first.parent, first.parent_thread, first.changed) == (3, "t", ("name",))
    assert (await runtime.state("f", at=1)).log == result.log[:2]


async def test_what_the_origin_has_in_pages_is_not_written_again(file_url):
    async with Runtime.open(file_url, graphs=[talk]) as runtime:
        large = {f"k{number}": sha512(b"%d" % number).hexdigest() * 9 for number in range(200)}
        await (await runtime.start(talk, {"large": large}, thread="t")).result(timeout=20)
        db = beside(file_url.removeprefix("sqlite:///"))
        counting = "SELECT count(*) FROM perdure_pages"
        before = db.execute(counting).get
        fork = await runtime.fork("t", update={"name": "b"}, to="f")
        assert (await fork.result(timeout=20)).large == large
        assert db.execute(counting).get == before
        again = await runtime.start(talk, {"large": {**large, "k1": "new"}}, thread="f")
        await again.result(timeout=20)
        assert db.execute(counting).get - before < 5
        db.close()


async def test_a_fork_inherits_what_was_before_its_origin_was_moved(clock, open_workers):
    async with clock.autojump():
        [worker] = await open_workers(1, old())
        run = await worker.start("bills", {"amount": 7}, thread="t")
        await until(clock, run, RunStatus.WAITING)
        fork = await worker.fork("t", update={"amount": 9}, to="f")
        await until(clock, fork, RunStatus.WAITING)
        await worker.close()
        [idle] = await open_workers(1, old(), worker=False)
        late = await idle.fork("t", update={"amount": 11}, to="late")
        [runtime] = await open_workers(1, new())
        run, fork, late = [await runtime.get(each.id) for each in (run, fork, late)]
        await until(clock, late, RunStatus.WAITING)
        for ask in await runtime.asks():
            await runtime.answer(ask.id, True, by="ada")
        assert (await run.result()).cents == 700
        assert [(await each.result()).cents for each in (fork, late)] == [900, 1100]
        assert (await fork.row()).version == (await late.row()).version == 2
        first = await runtime.state("f", at=1)
        assert (first.cents, first.notes) == (900, ["begun"])
        assert (await runtime.state("late")).notes[0] == "begun"
        for thread, inherits in (("f", True), ("t", False)):  # moved there; of the older version
            other = await runtime.fork(thread, at=1, to=f"of-{thread}")
            body = (await runtime.events(other.id))[0].body
            assert (body["inherits"], body["version"]) == (inherits, 2)
            await until(clock, other, RunStatus.WAITING)
            assert (await runtime.state(f"of-{thread}")).currency == "EUR"
