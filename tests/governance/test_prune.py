"""What is wanted stays readable, what went is said to be pruned, and the audit holds."""

import datetime as dt
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Graph, Runtime, append, effect
from perdure.engine import loading
from perdure.engine.limits import FORK_CHAIN_MAX
from perdure.errors import HistoryPruned, NotFound, SettingInvalid, UsageError
from perdure.governance import _prune, erase, prune, verify
from perdure.governance._keeping import BEGINNING, Copy, Point, Present, needed
from perdure.governance._keeping import END as EVER
from perdure.governance._staying import Why, staying
from tests.beside import beside
from tests.fault.kept import graph, states_of

LINE = [[1, 2, 3], [4, 5], [6, 7, 8]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}[request.param]


@pytest.fixture(autouse=True)
def many_copies(monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)


async def ran(runtime, line, thread="t"):
    found = []
    for todo in line:
        run = await runtime.start(graph, {"todo": todo}, thread=thread)
        await run.result(timeout=20)
        found.append(run.id)
    return found


async def readable(runtime, thread="t", line=LINE):
    found = set()
    for checkpoint, state in enumerate(states_of(line), 1):
        try:
            assert await runtime.state(thread, at=checkpoint) == state
        except HistoryPruned:
            continue
        found.add(checkpoint)
    return found


async def test_it_says_why_a_checkpoint_stays_that_the_rule_does_not_keep(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        newest = len(states_of(LINE))
        await runtime.tag("t", 2, "early", by="ada")
        fork = await runtime.fork("t", at=6, to="elsewhere")
        await fork.result(timeout=20)
        plan = await prune(runtime, keep=1, threads=["t"], dry_run=True)
        done = await prune(runtime, keep=1, threads=["t"])
        assert plan.threads == done.threads
        [thread] = done.threads
        left = await readable(runtime)
        told = {
            checkpoint: (stay.why, stay.of)
            for stay in thread.stays
            for checkpoint in range(stay.first, stay.last + 1)
        }
        assert told.keys() == left - {newest}
        assert told[2] == (Why.TAG, "early")
        assert told[6] == (Why.FORK, "")
        assert {why for why, _of in told.values()} <= {Why.TAG, Why.FORK, Why.NEEDED}
        for checkpoint, (why, of) in told.items():
            assert why is not Why.NEEDED or not of or int(of) > checkpoint
        aged = await prune(runtime, older_than=dt.timedelta(0), threads=["t"], dry_run=True)
        assert aged.threads[0].stays[-1].why is Why.NEWEST


def test_reasons_of_neighbours_are_one_entry():
    points = [Point(number, 0, (1, number)) for number in range(1, 10)]
    copies = [Copy(4, (1, 4), (1, 4))]
    direct = {3: (Why.TAG, "x")}
    found = staying(points, copies, left={1, 2, 3, 5, 6, 9}, kept={3, 8}, direct=direct)
    assert [str(each) for each in found] == [
        "1-2 (to read 3)",
        "3 (tag x)",
        "5-6 (to read 8)",
        "9 (stored with what stays)",
    ]


async def test_what_is_wanted_stays(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        newest = len(states_of(LINE))
        await runtime.tag("t", 2, "early", by="ada")
        plan = await prune(runtime, keep=2, dry_run=True)
        assert await readable(runtime) == set(range(1, newest + 1))
        done = await prune(runtime, keep=2)
        assert plan.threads == done.threads
        left = await readable(runtime)
        assert {2, newest - 1, newest} <= left
        assert len(left) < newest
        [thread] = done.threads
        assert (thread.checkpoints, thread.lost) == (newest, newest - len(left))
        assert (thread.kept, thread.note) == (3, "")
        again = await prune(runtime, keep=2)
        assert (again.bytes, again.threads[0].lost) == (0, 0)
        report = await verify(runtime)
        assert (report.findings, report.erased > 0) == ([], True)
        assert await runtime.untag("t", "early")
        await prune(runtime, keep=2)
        assert 2 not in await readable(runtime)
        assert [tag.name for tag in await runtime.tags("t")] == []


async def test_a_reader_that_is_overtaken_says_so(url, monkeypatch):
    """The checkpoint is pruned after its references were read, and before their pages."""
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        inlined = loading._inlined
        overtaken = []

        async def late(store, at):
            if not overtaken:
                overtaken.append(at.checkpoint)
                await prune(runtime, keep=1)
            return await inlined(store, at)

        monkeypatch.setattr(loading, "_inlined", late)
        with pytest.raises(HistoryPruned):
            await runtime.state("t", at=3)
        assert overtaken == [3]


async def test_young_ones_stay(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        done = await prune(runtime, older_than=dt.timedelta(hours=1))
        assert (done.threads[0].frames, done.threads[0].lost) == (0, 0)
        await prune(runtime, older_than=dt.timedelta(0))
        newest = len(states_of(LINE))
        assert newest in await readable(runtime)
        assert 1 not in await readable(runtime)


async def test_what_was_pruned_is_said_to_be(url):
    async with Runtime.open(url, [graph]) as runtime:
        first, *_others = await ran(runtime, LINE)
        newest = len(states_of(LINE))
        await prune(runtime, keep=1)
        asked = [
            lambda: runtime.state("t", at=1),
            lambda: runtime.diff(("t", 1), ("t", newest)),
            lambda: runtime.fork("t", at=1),
            lambda: runtime.rollback("t", at=1, by="ada"),
            lambda: runtime.moment(("t", 1)),
            lambda: runtime.replay(first),
            lambda: runtime.events(first),
            lambda: runtime.tag("t", 1, "late"),
        ]
        for ask in asked:
            with pytest.raises(HistoryPruned, match="pruned"):
                await ask()
        with pytest.raises(HistoryPruned, match="pruned last at 20"):
            await runtime.state("t", at=1)
        with pytest.raises(NotFound):
            await runtime.state("t", at=newest + 1)
        with pytest.raises(NotFound):
            await runtime.state("t", at=0)
        history = await runtime.history("t")
        assert history[0].id == newest
        tree = await runtime.tree("t")
        assert len(tree.runs) == len(LINE)
        assert await runtime.tags("t") == []
        line = [*LINE, [9]]
        await ran(runtime, [[9]])
        assert await runtime.state("t") == states_of(line)[-1]


@pytest.mark.parametrize(
    ("at", "step", "goes"), [(1, 1, False), (2, 9, True), (1, 9, False), (2, 2, True)]
)
async def test_forks_that_refer_to_their_origin_outlive_its_history(url, at, step, goes):
    """Forked at some checkpoints, by whatever copy was newest then; then what nobody needs goes."""
    async with Runtime.open(url, [graph]) as runtime:
        states, forks = states_of(LINE), {}
        known = 0
        for todo in LINE:
            await ran(runtime, [todo])
            for checkpoint in range(known + at, len(todo) + known + 1, step):
                name = f"f{checkpoint}"
                run = await runtime.fork("t", at=checkpoint, to=name)
                forks[name] = checkpoint, await run.result(timeout=20)
            known = (await runtime.history("t"))[0].id
        first = await prune(runtime, keep=1, threads=["t"])
        again = await prune(runtime, keep=1, threads=["t"])
        gone = [sum(each.frames for each in done.threads) for done in (first, again)]
        assert gone == [gone[0], 0]
        assert (gone[0] > 0) is goes
        for name, (checkpoint, result) in forks.items():
            assert await runtime.state(name) == result
            assert await runtime.state("t", at=checkpoint) == states[checkpoint - 1]
        assert (await verify(runtime)).findings == []
        for name in forks:
            for row in await runtime.runs(thread=name):
                replay = await runtime.replay(row.run_id)
                assert not replay.divergences, replay


async def test_a_fork_that_is_started_while_its_origin_is_pruned(url, monkeypatch):
    """Between prune's look at the forks and its first erasure: the erasure is decided anew."""
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        store = runtime.engine.store
        erase, forked = store.erase, []

        async def late(erasure):
            if not forked:
                forked.append(await runtime.fork("t", at=2, to="f"))
            return await erase(erasure)

        monkeypatch.setattr(store, "erase", late)
        await prune(runtime, keep=1)
        state = await forked[0].result(timeout=20)
        await prune(runtime, keep=1)
        assert await runtime.state("f") == state
        assert await runtime.state("t", at=2) == states_of(LINE)[1]
        assert (await verify(runtime)).findings == []
        assert await runtime.tags("t") == []


async def test_a_fork_that_was_erased_keeps_nothing_of_its_origin(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        await (await runtime.fork("t", at=2, to="f")).result(timeout=20)
        store = runtime.engine.store
        assert len(await store.find_tags("default", "t")) == 1
        await prune(runtime, keep=1, threads=["t"])
        assert 2 in await readable(runtime)
        await erase(runtime, thread="f", by="ada")
        await prune(runtime, keep=1, threads=["t"])
        assert await store.find_tags("default", "t") == []
        assert 2 not in await readable(runtime)


async def test_a_long_chain_of_forks_is_forked_on(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        thread, expected = "t", states_of(LINE)[1]
        for n in range(FORK_CHAIN_MAX + 3):
            run = await runtime.fork(thread, at=2 if thread == "t" else 1, to=f"f{n}")
            await run.result(timeout=20)
            thread = f"f{n}"
            assert await runtime.state(thread, at=1) == expected


async def test_a_fork_of_what_is_pruned_meanwhile_is_not_started(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        put_tag = runtime.engine.store.put_tag

        async def late(row):
            await prune(runtime, keep=1)
            await put_tag(row)

        runtime.engine.store.put_tag = late
        with pytest.raises(HistoryPruned):
            await runtime.fork("t", at=2, to="f")
        assert await runtime.runs(thread="f") == []
        assert await runtime.engine.store.find_tags("default", "t") == []
        with pytest.raises(UsageError, match="are Perdure's"):
            await runtime.tag("t", 3, "fork:x", by="ada")


async def test_forks_keep_what_they_were_forked_from(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        await (await runtime.fork("t", at=2, to="f")).result(timeout=20)
        await prune(runtime, keep=1)
        assert 2 in await readable(runtime)
        assert await runtime.state("f") == states_of([[1, 2, 3]])[-1]
        tree = await runtime.tree("f")
        assert tree.origin.checkpoint == 2


@dataclass
class Waiting:
    notes: Annotated[list[str], append] = field(default_factory=list)
    large: str = ""


waiting = Graph(Waiting, name="kept-waiting")


@waiting.node
async def wait(state: Waiting, ctx: Any) -> dict[str, Any]:
    """Wait for a word."""
    return {"notes": [await ctx.receive("go")], "large": "x" * 20_000}


waiting.edge(START, wait)
waiting.edge(wait, END)


async def test_runs_under_way_lose_nothing(url):
    async with Runtime.open(url, [waiting]) as runtime:
        for word in "abc":
            run = await runtime.start(waiting, thread="t")
            await run.signal("go", word)
            await run.result(timeout=20)
        run = await runtime.start(waiting, thread="t")
        await runtime.start(waiting, thread="t")
        base = (await run.row()).base_checkpoint
        await prune(runtime, keep=1)
        assert (await runtime.state("t", at=base)).notes == ["a", "b", "c"]
        await run.signal("go", "d")
        assert (await run.result(timeout=20)).notes == ["a", "b", "c", "d"]
        assert (await verify(runtime)).findings == []


@effect(kind="once")
async def pay(amount: int) -> str:
    """Return a receipt."""
    return f"paid {amount} " + "r" * 100


paying = Graph(Waiting, name="kept-paying")


@paying.node
async def settle(state: Waiting, ctx: Any) -> dict[str, Any]:
    """Pay, by a business key and without."""
    number = len(state.notes)
    await ctx.call(pay, number)
    return {"notes": [await ctx.call(pay, 1000 + number, key=f"order-{number}")]}


paying.edge(START, settle)
paying.edge(settle, END)


async def test_effects_of_pruned_runs_are_emptied(url):
    async with Runtime.open(url, [paying]) as runtime:
        for _ in range(6):
            await (await runtime.start(paying, thread="t")).result(timeout=20)
        before = {each.id: each for each in await runtime.effects(state=None)}
        done = await prune(runtime, keep=1)
        assert done.threads[0].effects > 0
        emptied = 0
        for each in await runtime.effects(state=None):
            if each.business_key is not None:
                assert each == before[each.id], "its promise outlasts its run"
            elif each.result is None:
                emptied += 1
                assert (each.args, each.key, each.state) == ([], before[each.id].key, "confirmed")
        assert emptied == done.threads[0].effects
        assert (await verify(runtime)).findings == []


stepping = Graph(Waiting, name="kept-stepping")


@stepping.node
async def step(state: Waiting, ctx: Any) -> dict[str, Any]:
    """Pay in the middle of a run: the intent goes with the step before it."""
    return {"notes": [await ctx.call(pay, len(state.notes))]}


stepping.edge(START, step)
stepping.branch(step, lambda state: step if len(state.notes) % 8 else END, targets=[step, END])


async def test_an_effect_whose_outcome_was_pruned_is_no_damage_and_a_changed_one_is(tmp_path):
    path = tmp_path / "s.db"
    async with Runtime.open(f"sqlite:///{path}", [stepping]) as runtime:
        for _ in range(3):
            await (await runtime.start(stepping, thread="t")).result(timeout=20)
        for checkpoint in (3, 5, 12):
            await runtime.tag("t", checkpoint, f"at-{checkpoint}", by="ada")
        done = await prune(runtime, keep=1)
        assert done.threads[0].frames > 0
        assert (await verify(runtime)).findings == []
        # Ids of effects are hashes: the newest is the one with the newest result.
        [newest] = [e for e in await runtime.effects(state=None) if "paid 23 " in str(e.result)]
        with beside(path) as db:
            db.execute(
                "UPDATE perdure_effects SET result_wire = x'01' WHERE effect_id = ?", (newest.id,)
            )
        [finding] = (await verify(runtime)).findings
        assert finding.code == "effect_differs"
        assert "result" in finding.what


async def test_a_tag_that_comes_between_is_kept(url, monkeypatch):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        plan = _prune._Prune._plan
        tagged = []

        async def meanwhile(work, tenant, thread, done):
            found = await plan(work, tenant, thread, done)
            if not tagged:
                tagged.append(3)
                await runtime.tag("t", 3, "just now")
            return found

        monkeypatch.setattr(_prune._Prune, "_plan", meanwhile)
        await prune(runtime, keep=1)
        assert await runtime.state("t", at=3) == states_of(LINE)[2]


async def test_a_store_of_before_the_index_is_pruned(tmp_path):
    """Its copies are not in the index: checkpoints are read from the beginning, or the newest."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
    db = beside(f"{tmp_path}/s.db")
    db.execute("DELETE FROM perdure_copies")
    db.close()
    async with Runtime.open(url, [graph]) as runtime:
        newest = len(states_of(LINE))
        assert await readable(runtime) == set(range(1, newest + 1))
        await runtime.tag("t", 2, "early")
        await prune(runtime, keep=1)
        assert {1, 2, newest} <= await readable(runtime)
        await runtime.untag("t", "early")
        await prune(runtime, keep=1)
        assert newest in await readable(runtime)
        assert 2 not in await readable(runtime)
        line = [*LINE, [9, 9, 9]]
        await ran(runtime, line[-1:])  # with copies of its own
        assert newest in await readable(runtime, line=line)
        assert (await verify(runtime)).findings == []


async def test_it_must_be_said_what_to_keep():
    async with Runtime.open("memory://", [graph], worker=False) as runtime:
        with pytest.raises(UsageError):
            await prune(runtime)
        with pytest.raises(SettingInvalid):
            await prune(runtime, keep=0)
        with pytest.raises(SettingInvalid):
            await prune(runtime, older_than=dt.timedelta(days=-1))
        with pytest.raises(NotFound):
            await prune(runtime, keep=1, threads=["nobody"])
        assert (await prune(runtime, keep=1)).threads == []


def test_stretches_are_what_checkpoints_need():
    points = [Point(n, n, (1, n * 10)) for n in range(1, 10)]
    copies = [Copy(3, (1, 31), (1, 31)), Copy(6, (1, 61), (1, 31)), Copy(8, (1, 81), (1, 61))]
    kept = needed(points, copies, copies[-1], {4})
    assert [n for n in range(1, 100) if kept.touch((1, n), (1, n))] == [
        *range(31, 41),
        *range(61, 100),
    ]
    assert kept.touch((7, 1), (7, 5)), "all that comes"
    assert kept.touch((1, 1), (1, 31))
    assert not kept.touch((1, 1), (1, 30))
    assert not kept.touch((1, 41), (1, 60))
    assert needed(points, copies, BEGINNING, set()).touch((1, 1), (1, 1))
    present = Present()
    present.add(1, 31, 40, is_last=False)
    present.add(1, 61, 99, is_last=True)
    present.add(2, 1, 9, is_last=False)
    assert present.readable(points, copies) == {3, 4, 8, 9}
    assert present.hold((1, 61), (2, 9))
    assert not present.hold((1, 61), (2, 10))
    assert not present.hold((1, 40), (1, 61))
    assert EVER > (1, 1)
