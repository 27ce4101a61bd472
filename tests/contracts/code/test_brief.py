"""Savers and stores that go with a request, and tests of what a request brings."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

BUILD = """
from langgraph.graph import StateGraph
def build(checkpointer=None, store=None):
    builder = StateGraph(dict)
    builder.add_node("a", print)
    return builder.compile(checkpointer=checkpointer, store=store)
"""
APP = """
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.memory import InMemoryStore
from graph import build
app = FastAPI()
saver = PostgresSaver("postgresql://db/x")
@app.post("/run")
async def run(order: str, thread_id: str):
    order = await load(order)
    if order is None:
        return None
    graph = build(checkpointer=saver)
    return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
"""
EVALUATE = """
@app.post("/evaluate")
async def evaluate(case: str):
    graph = build(checkpointer=InMemorySaver())
    return await graph.ainvoke({"case": case})
"""
KEPT = {
    "returned": """
        def evaluator():
            graph = build(checkpointer=InMemorySaver())
            return graph
        @app.post("/evaluate")
        async def evaluate(case: str):
            return await evaluator().ainvoke({"case": case})
        """,
    "put away": """
        graphs = {}
        @app.post("/evaluate")
        async def evaluate(case: str):
            graph = build(checkpointer=InMemorySaver())
            graphs[case] = graph
        """,
    "handed on": """
        @app.post("/evaluate")
        async def evaluate(case: str):
            graph = build(checkpointer=InMemorySaver())
            registry.add(graph)
        """,
    "made at a start": """
        graph = build(checkpointer=InMemorySaver())
        @app.post("/evaluate")
        async def evaluate(case: str):
            return await graph.ainvoke({"case": case})
        """,
}


def media(facts, role=Role.SAVER):
    return {
        (one.medium, one.chosen.value)
        for one in facts.sites
        if one.role is role and one.medium is not Medium.NONE and one.is_served is not False
    }


def test_a_saver_of_one_request_says_nothing_beside_one_that_is_kept(read):
    facts = read({"graph.py": BUILD, "app.py": APP + EVALUATE})
    assert media(facts) == {(Medium.POSTGRES, True)}


@pytest.mark.parametrize("way", KEPT)
def test_a_saver_that_outlives_the_request_counts(read, way):
    facts = read({"graph.py": BUILD, "app.py": APP + dedent(KEPT[way])})
    assert (Medium.MEMORY, True) in media(facts)


def test_a_saver_of_one_request_counts_where_there_is_no_other(read):
    alone = APP.replace("build(checkpointer=saver)", "build(checkpointer=InMemorySaver())")
    assert media(read({"graph.py": BUILD, "app.py": alone})) >= {(Medium.MEMORY, True)}


def test_a_test_of_what_a_request_brings_leaves_no_question_about_the_saver(read):
    assert media(read({"graph.py": BUILD, "app.py": APP})) == {(Medium.POSTGRES, True)}


OBJECT = """
class Manager:
    def __init__(self, thread_id):
        self.thread_id = thread_id
        self.store = InMemoryStore()
    @classmethod
    async def work(cls, thread_id):
        manager = cls(thread_id)
        return await manager.go()
    async def go(self):
        graph = build(checkpointer=saver, store=self.store)
        return await graph.ainvoke({}, {"configurable": {"thread_id": self.thread_id}})
@app.post("/work")
async def work(thread_id: str):
    return await Manager.work(thread_id)
"""


def test_whether_a_store_of_an_object_of_one_request_is_served_is_open(read):
    facts = read({"graph.py": BUILD, "app.py": APP + OBJECT})
    (store,) = [one for one in facts.sites if one.role is Role.STORE]
    assert (store.medium, store.is_served) == (Medium.MEMORY, None)
    kept = OBJECT.replace("manager = cls(thread_id)", "manager = made[thread_id] = cls(thread_id)")
    facts = read({"graph.py": BUILD, "app.py": APP + kept})
    (store,) = [one for one in facts.sites if one.role is Role.STORE]
    assert (store.medium, store.is_served) == (Medium.MEMORY, True)


RETRIES = """
from langgraph.checkpoint.postgres import PostgresSaver
from graph import build
def make():
    for attempt in range(3):
        try:
            saver = PostgresSaver("postgresql://db/x")
            saver.setup()
            return saver
        except Exception:
            pause(attempt)
    return None
app = build(checkpointer=make())
"""


def test_what_follows_a_loop_that_only_tries_comes_after_a_failure(read):
    facts = read({"graph.py": BUILD, "app.py": RETRIES})
    assert [(one.cause, one.becomes, one.when.value) for one in facts.degrades] == [
        ("failed", Medium.NONE, True)
    ]
    assert media(facts) == {(Medium.POSTGRES, True)}


def test_a_step_that_is_added_in_a_loop_is_several(read):
    built = BUILD.replace(
        'builder.add_node("a", print)', "for name in names:\n        builder.add_node(name, print)"
    )
    assert read({"graph.py": built, "app.py": APP}).has_steps


def test_a_saver_that_nobody_enters_is_told_so(read):
    text = APP.replace(
        'PostgresSaver("postgresql://db/x")', 'PostgresSaver.from_conn_string("postgresql://db/x")'
    )
    facts = read({"graph.py": BUILD, "app.py": text})
    assert [one.is_entered for one in facts.sites if one.medium is Medium.POSTGRES] == [False]


WORK = """
from langgraph.graph import StateGraph
def make():
    builder = StateGraph(dict)
    builder.add_node("a", print)
    builder.add_node("b", print)
    return builder.compile(SAVER)
_workflow = make()
async def generate(order):
    return await _workflow.ainvoke({"order": order})
"""
BEGINS = """
from fastapi import BackgroundTasks
from work import generate
@app.post("/generate")
async def begin(order: str, tasks: BackgroundTasks):
    tasks.add_task(generate, order)
"""
WAITS = """
from work import generate
@app.post("/generate")
async def begin(order: str):
    return await generate(order)
"""


@pytest.mark.parametrize(
    ("saver", "begins", "is_bare"),
    [("", BEGINS, True), ("checkpointer=saver", BEGINS, False), ("", WAITS, False)],
    ids=["bare", "saved", "within the request"],
)
def test_a_bare_graph_that_nobody_waits_for_is_found_beside_others(read, saver, begins, is_bare):
    files = {"graph.py": BUILD, "work.py": WORK.replace("SAVER", saver), "app.py": APP + begins}
    found = read(files).bare_run
    assert bool(found) is is_bare
    if is_bare:
        assert [(one.file, one.line) for one in found if one.file == "work.py"] == [
            ("work.py", 7),
            ("work.py", 10),
        ]
