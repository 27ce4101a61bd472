"""Runs that no request waits for are what R3 is about."""

from textwrap import dedent

import pytest

from perdure.contracts.check import check
from perdure.contracts.deployment.facts import Root
from perdure.contracts.findings import Contract, RootKind, Verdict
from perdure.contracts.rules import _progress
from tests.contracts.code.conftest import service_of
from tests.contracts.projects import project

ROOT = Root(root="compose.yaml", kind=RootKind.COMPOSE, services=(), files=())

HEAD = """
import asyncio
from fastapi import BackgroundTasks, FastAPI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
graph = builder.compile({saver})
app = FastAPI()
async def work(given):
    return await graph.ainvoke(given)
"""
WAYS = {
    "request": """
        @app.post("/")
        async def post(given: dict):
            return await work(given)
        """,
    "awaited": """
        @app.post("/")
        async def post(given: dict):
            task = asyncio.create_task(work(given))
            return await task
        """,
    "background": """
        @app.post("/")
        async def post(given: dict, background: BackgroundTasks):
            background.add_task(work, given)
        """,
    "task": """
        class Runs:
            def begin(self, given):
                self.tasks.add(asyncio.create_task(self.one(given)))
            async def one(self, given):
                await work(given)
        @app.post("/")
        async def post(given: dict):
            Runs().begin(given)
        """,
    "alone": """
        kept = set()
        @app.post("/")
        async def post(given: dict):
            task = asyncio.create_task(work(given))
            kept.add(task)
            task.add_done_callback(kept.discard)
        """,
    "queue": """
        from celery import Celery
        queue = Celery()
        @queue.task
        def later(given):
            asyncio.run(work(given))
        @app.post("/")
        async def post(given: dict):
            later.delay(given)
        """,
    "program": "asyncio.run(work({}))",
    "command": """
        import typer
        tool = typer.Typer()
        @tool.command()
        def analyse():
            asyncio.run(work({}))
        """,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("saver", ["", "checkpointer=MemorySaver()"])
def test_only_runs_that_outlive_their_request_lose_more_than_it(read, way, saver):
    starts = {
        "command": ("python", "-m", "app", "analyse"),
        "queue": ("celery", "-A", "app.queue", "worker"),
    }
    argv = starts.get(way, ())
    code = read({"app.py": HEAD.format(saver=saver) + dedent(WAYS[way])}, *argv)
    found = _progress.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    outlives = way not in {"request", "awaited"}
    if saver and way in {"program", "command"}:
        outlives = False  # somebody may wait for its end
    assert found.verdict is (Verdict.VIOLATED if outlives else Verdict.UNDECIDED)


OPEN = {
    "gathered": """
        @app.post("/")
        async def post(given: dict):
            several = [asyncio.create_task(work(one)) for one in given]
            return await asyncio.gather(*several)
        """,
    "grouped": """
        @app.post("/")
        async def post(given: dict):
            async with asyncio.TaskGroup() as group:
                group.create_task(work(given))
        """,
    "told": """
        async def tell(queue, given):
            await queue.put(await work(given))
        @app.post("/")
        async def post(given: dict):
            queue = asyncio.Queue()
            asyncio.create_task(tell(queue, given))
            return await queue.get()
        """,
    "writes": """
        async def steps(given):
            async for step in graph.astream(given):
                await database.commit(step)
        @app.post("/")
        async def post(given: dict, background: BackgroundTasks):
            background.add_task(steps, given)
        """,
}


@pytest.mark.parametrize("way", OPEN)
def test_a_run_that_somebody_may_wait_for_is_a_question(read, way):
    text = HEAD.format(saver="checkpointer=MemorySaver()") + dedent(OPEN[way])
    found = _progress.judge(service_of(("uvicorn", "app:app")), read({"app.py": text}), ROOT)
    assert found.verdict is Verdict.UNDECIDED


CHOSEN = """
import os
saver = MemorySaver() if os.environ["STAGE"] == "dev" else {other}
again = builder.compile(checkpointer=saver)
"""


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ("MemorySaver()", Verdict.VIOLATED),
        ("elsewhere()", Verdict.VIOLATED),
        ('PostgresSaver.from_conn_string("postgresql://db/a")', Verdict.UNDECIDED),
    ],
)
def test_whichever_saver_is_used_is_the_same_where_none_keeps_anything(read, other, verdict):
    import_ = "from langgraph.checkpoint.postgres import PostgresSaver\n"
    head = HEAD.format(saver="checkpointer=MemorySaver()")
    text = import_ + head + CHOSEN.format(other=other) + dedent(WAYS["background"])
    code = read({"app.py": text})
    assert _progress.judge(service_of(("uvicorn", "app:app")), code, ROOT).verdict is verdict


@pytest.mark.parametrize(
    ("run", "verdict"), [("graph", Verdict.VIOLATED), ("other_graph", Verdict.UNDECIDED)]
)
def test_it_counts_which_graph_is_run_where_another_ones_saver_is_unknown(read, run, verdict):
    text = HEAD.format(saver="checkpointer=MemorySaver()") + dedent(WAYS["background"])
    text = text.replace("await graph", f"await {run}")
    text += "other_graph = builder.compile(checkpointer=elsewhere())\n"
    found = _progress.judge(service_of(("uvicorn", "app:app")), read({"app.py": text}), ROOT)
    assert found.verdict is verdict


ENDS = """
from langgraph.graph import StateGraph
graph = StateGraph(dict).compile()
graph.invoke({}, durability="exit")
"""


def test_steps_are_saved_at_the_end_only_where_all_runs_say_so(read):
    assert read({"app.py": ENDS}).durability.value == "exit"
    assert read({"app.py": ENDS + "graph.invoke({})\n"}).durability is None


WAITING = """
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
from langgraph.types import Command, interrupt

def propose(state): return {"plan": "buy"}
def approve(state): return {"is_approved": interrupt(state["plan"])}

builder = StateGraph(dict)
builder.add_node("propose", propose)
builder.add_node("approve", approve)
graph = builder.compile(checkpointer=InMemorySaver())
app = FastAPI()

@app.post("/runs/{id}")
def begin(id: str):
    return graph.invoke({}, {"configurable": {"thread_id": id}})

@app.post("/runs/{id}/answer")
def answer(id: str, said: str):
    return graph.invoke(Command(resume=said), {"configurable": {"thread_id": id}})
"""


ASKED = Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("", "", Verdict.VIOLATED),
        ('interrupt(state["plan"])', "True", ASKED),
        ("=InMemorySaver()", '=SqliteSaver("/data/t.db")', Verdict.HELD),
        ("app = ", 'other = builder.compile(checkpointer=SqliteSaver("/t"))\napp = ', ASKED),
        ("said: str):\n    return", "said: str):\n    graph.invoke({}, config)\n    return", ASKED),
        ("Command(resume=said)", "said", ASKED),
    ],
)
def test_what_waits_for_a_person_goes_on_in_another_request(tmp_path, before, after, verdict):
    app = WAITING.replace(before, after) if before else WAITING
    found = check(project(tmp_path, app_dot_py=app))
    [one] = [f for root in found.roots for f in root.findings if f.contract is Contract.R3]
    assert one.verdict is verdict
    if verdict is Verdict.VIOLATED:
        assert {step.line for step in one.evidence} >= {9, 14}


PLAIN = WAITING.replace('interrupt(state["plan"])', "True")


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [('["approve"]', Verdict.VIOLATED), ("[]", ASKED), ("None", ASKED), ("()", ASKED)],
)
def test_a_run_pauses_only_before_steps_that_are_named(tmp_path, steps, verdict):
    app = PLAIN.replace("=InMemorySaver()", f"=InMemorySaver(), interrupt_before={steps}")
    found = check(project(tmp_path, app_dot_py=app))
    [one] = [f for root in found.roots for f in root.findings if f.contract is Contract.R3]
    assert one.verdict is verdict


HELD_IN = """
class Held:
    def __init__(self):
        self._saver = SqliteSaver("/data/t.db")
    @property
    def saver(self):
        return self._saver
    @saver.setter
    def saver(self, saver):
        self._saver = saver
held = Held()
"""


@pytest.mark.parametrize(
    ("after", "verdict"), [("", Verdict.HELD), ("held.saver = InMemorySaver()\n", ASKED)]
)
def test_a_property_that_is_set_anew_may_have_the_weaker_saver(tmp_path, after, verdict):
    app = WAITING.replace("=InMemorySaver()", "=held.saver")
    app = app.replace("\nbuilder =", f"\n{HELD_IN}{after}builder =", 1)
    found = check(project(tmp_path, app_dot_py=app))
    [one] = [f for root in found.roots for f in root.findings if f.contract is Contract.R3]
    assert one.verdict is verdict
