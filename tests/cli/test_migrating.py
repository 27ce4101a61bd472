"""`migrate`: what becomes of older runs, tried and done."""

import signal
import sqlite3
from dataclasses import dataclass

import pytest

from perdure import END, START, Graph, Runtime
from tests.cli.conftest import end

V1 = """
from dataclasses import dataclass
from perdure import END, START, Graph

@dataclass
class Bill:
    amount: int = 0

graph = Graph(Bill, name="bills", version=1)

@graph.node
async def review(state, ctx):
    await ctx.ask(f"Pay {state.amount}?", schema=bool)

graph.edge(START, review)
graph.edge(review, END)
"""

V3 = """
from dataclasses import dataclass
from perdure import END, START, Graph

@dataclass
class Bill:
    cents: int = 0

graph = Graph(Bill, name="bills", version=3)

@graph.node
async def review(state, ctx):
    await ctx.ask(f"Pay {state.cents}?", schema=bool)

graph.edge(START, review)
graph.edge(review, END)

graph.migration(1, 2, fields={"amount": "euros"})

@graph.migration(2, 3)
def to_cents(state):
    euros = state.pop("euros")
    if euros == 13:
        raise ValueError("unlucky")
    return {"cents": euros * 100}
"""


@pytest.fixture
def bills(cli):
    """Return the command line, with three runs of v1 that wait: of 7, 13 and 8."""
    (cli.folder / "v1.py").write_text(V1)
    (cli.folder / "v3.py").write_text(V3)
    cli.ids = {}
    for amount in (7, 13, 8):
        thread = f"t{amount}"
        done = cli(
            "run", "v1.py:graph", "--input", f'{{"amount": {amount}}}', "--thread", thread, "--json"
        )
        assert done.code == 13, done.err
        cli.ids[amount] = done.json["run"]["id"]
    return cli


def contents(folder):
    with sqlite3.connect(folder / "perdure.db") as database:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in database.execute(sql)]
        return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}


def test_dry_run_tries_and_writes_nothing(bills):
    before = contents(bills.folder)
    done = bills("migrate", "v3.py:graph", "--dry-run", "--json")
    assert done.code == 15
    body = done.json
    assert (body["graph"], body["version"], body["is_dry_run"]) == ("bills", 3, True)
    assert [each["fate"] for each in body["runs"]] == ["migrates", "parks", "migrates"]
    assert body["runs"][0]["path"] == [1, 2, 3]
    assert "migration 2 -> 3 raised ValueError: unlucky" in body["runs"][1]["reason"]
    assert contents(bills.folder) == before
    assert before["perdure_runs"], "the comparison looks at something"
    shown = bills("migrate", "v3.py:graph", "--dry-run")
    assert shown.code == 15
    assert "bills v3: 2 migrates, 1 parks" in shown.out
    assert f"perdure show {bills.ids[13]}" in shown.out


def test_what_can_be_moved_is_moved_and_the_rest_left_alone(bills):
    done = bills("migrate", "v3.py:graph")
    assert done.code == 15
    assert "bills v3: 2 migrated, 1 parks" in done.out
    assert done.err.count("moved run") == 2
    shown = bills("show", bills.ids[7], "--json").json
    assert (shown["run"]["version"], shown["run"]["status"]) == (3, "waiting")
    assert shown["state"] == {"cents": 700}
    assert bills("show", bills.ids[13], "--json").json["run"]["version"] == 1
    [ask] = [a for a in bills("approve", "--json").json["asks"] if a["run"] == bills.ids[7]]
    assert bills("approve", ask["id"], "--yes", "--by", "ada").code == 0
    worker = bills.start("worker", "v3.py:graph")
    assert bills.until(bills.ids[7], "waiting", "succeeded")["run"]["version"] == 3
    end(worker)
    again = bills("migrate", "v3.py:graph", "--json")
    assert again.json["counts"]["migrated"] == 0


def test_threads_are_tried_for_their_next_run(bills):
    worker = bills.start("worker", "v1.py:graph")
    for ask in bills("approve", "--json").json["asks"]:
        bills("approve", ask["id"], "--yes", "--by", "ada")
    for run_id in bills.ids.values():
        bills.until(run_id, "succeeded")
    end(worker)
    done = bills("migrate", "v3.py:graph", "--dry-run", "--threads", "--json")
    assert done.code == 15
    assert done.json["runs"] == []
    found = {each["thread"]: each["fate"] for each in done.json["threads"]}
    assert found == {"t7": "migrates", "t13": "parks", "t8": "migrates"}
    assert bills("migrate", "v3.py:graph", "--dry-run").code == 0


def test_a_held_run_is_left_to_its_worker(cli):
    (cli.folder / "v1.py").write_text(
        V1.replace("await ctx.ask(", "import asyncio; await asyncio.sleep(60); await ctx.ask(")
    )
    (cli.folder / "v3.py").write_text(V3)
    run_id = cli("start", "v1.py:graph", "--input", '{"amount": 1}').out.strip()
    worker = cli.start("worker", "v1.py:graph")
    cli.until(run_id, "running")
    done = cli("migrate", "v3.py:graph", "--json")
    assert (done.code, done.json["runs"][0]["fate"]) == (0, "held")
    end(worker, signal.SIGKILL)


def test_no_store_no_graph(cli):
    (cli.folder / "v3.py").write_text(V3)
    assert cli("migrate", "v3.py:graph").code == 30
    assert cli("migrate", "v4.py:graph").code == 2
    (cli.folder / "v5.py").write_text(V3.replace("migration(1, 2,", "migration(2, 2,"))
    cli("start", "v3.py:graph")
    done = cli("migrate", "v5.py:graph")
    assert done.code == 2
    assert "migration 2 -> 2: it leads back to where it begins (a cycle)" in done.err


def test_a_run_of_a_newer_version_is_left_alone(bills):
    assert bills("migrate", "v3.py:graph").code == 15
    done = bills("migrate", "v1.py:graph", "--json")
    assert done.code == 15
    newer = [each for each in done.json["runs"] if each["version"] == 3]
    assert {each["fate"] for each in newer} == {"parks"}
    assert "newer than v1; it is left alone" in newer[0]["reason"]


async def many(folder, count):
    """Store runs of v1 that have not begun; return their ids."""

    @dataclass
    class Bill:
        amount: int = 0

    graph = Graph(Bill, name="bills", version=1)
    graph.node(name="review")(lambda _state: None)
    graph.edge(START, "review")
    graph.edge("review", END)
    async with Runtime.open(f"sqlite:///{folder}/perdure.db", [graph], worker=False) as runtime:
        runs = [await runtime.start(graph, {"amount": 1}) for _ in range(count)]
    return [run.id for run in runs]


async def test_ctrl_c_leaves_each_run_as_it_was_or_moved(cli):
    count = 400
    ids = await many(cli.folder, count)
    (cli.folder / "v3.py").write_text(V3)
    process = cli.start("migrate", "v3.py:graph")
    assert "moved run" in process.stderr.readline()
    code, err = end(process, signal.SIGINT)
    assert code == 130
    moved = err.count("moved run") + 1
    assert "stopped: what was moved stays moved" in err
    assert 0 < moved < count
    async with Runtime.open(f"sqlite:///{cli.folder}/perdure.db", worker=False) as runtime:
        rows = [await runtime.read_row(run_id) for run_id in ids]
    assert [row.version for row in rows].count(3) == moved
    assert {row.status.value for row in rows} == {"pending"}, "none is left held"
    again = cli("migrate", "v3.py:graph", "--json")
    assert (again.code, again.json["counts"]["migrated"]) == (0, count - moved)
