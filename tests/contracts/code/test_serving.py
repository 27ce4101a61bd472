"""Starts that swallow the failure of a durable saver, and what they serve with."""

import pytest

from perdure.contracts.code.facts import Medium

KEEPING = """
import sqlite3
from langgraph.checkpoint.sqlite import SqliteSaver

class Keeping:
    def __init__(self):
        self.saver = None

    def begin(self):
        self.saver = SqliteSaver(sqlite3.connect("/data/threads.db"))

keeping = Keeping()
"""
APP = """
from contextlib import asynccontextmanager
from sqlite3 import OperationalError
from fastapi import FastAPI
from langgraph.graph import StateGraph
from keeping import keeping

def graph():
    return StateGraph(dict).compile(checkpointer=keeping.saver)

@asynccontextmanager
async def lifespan(app):
    try:
        keeping.begin()
    except OperationalError as error:
        print(error)
    yield

app = FastAPI(lifespan=lifespan)

@app.post("/")
def say(text):
    return graph().invoke(text, {"configurable": {"thread_id": "1"}})
"""


def told(facts):
    return [
        (one.becomes, one.when.value, one.cause, one.evidence[-2].line, one.evidence[-1].line)
        for one in facts.degrades
    ]


def test_a_start_that_prints_the_failure_serves_with_none(read):
    facts = read({"app.py": APP, "keeping.py": KEEPING})
    assert told(facts) == [(Medium.NONE, True, "failed", 15, 9)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        print(error)", "        print(error)\n        raise"),
        ("        print(error)", "        print(error)\n        return"),
        ("OperationalError as error", "KeyError as error"),
        ("        print(error)\n    yield", "        print(error)\n    else:\n        yield"),
        (
            "    return StateGraph",
            "    if keeping.saver is None:\n        raise RuntimeError\n    return StateGraph",
        ),
        ("        keeping.begin()", "        keeping.begin()\n        app.state.graph = graph()"),
    ],
    ids=["raises", "never yields", "another error", "yields without", "refuses", "no graph either"],
)
def test_a_failure_that_ends_what_needs_the_saver_is_none(read, before, after):
    text = APP.replace(before, after, 1)
    if "state.graph" in after:
        text = text.replace("return graph()", "return app.state.graph")
    facts = read({"app.py": text, "keeping.py": KEEPING})
    assert [one for one in told(facts) if one[1]] == []


HANDED = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import StateGraph

graphs = {
    "a": StateGraph(dict).compile(),
}

@asynccontextmanager
async def lifespan(app):
    try:
        async with AsyncPostgresSaver.from_conn_string("postgresql://db/x") as saver:
            for one in graphs.values():
                one.checkpointer = saver
            yield
    except Exception as error:
        print(error)
        yield

app = FastAPI(lifespan=lifespan)

@app.post("/")
def say(text):
    return graphs["a"].invoke(text, {"configurable": {"thread_id": "1"}})
"""


def test_graphs_that_are_given_a_saver_in_a_try_keep_what_they_were_made_with(read):
    assert told(read({"app.py": HANDED}))[-1] == (Medium.NONE, True, "failed", 19, 9)
    weaker = HANDED.replace("compile()", "compile(checkpointer=MemorySaver())")
    assert told(read({"app.py": weaker}))[-1] == (Medium.MEMORY, True, "failed", 19, 9)
    ended = HANDED.replace("        print(error)\n        yield", "        raise")
    assert [one for one in told(read({"app.py": ended})) if one[1]] == []


HOLDER = """
    global keeping
    try:
        made = Keeping()
        made.begin()
        keeping = made
    except Exception as error:
        print(error)
    yield
"""


def test_a_failure_before_anybody_has_what_keeps_the_saver_is_a_question(read):
    text = APP.replace(
        "from keeping import keeping", "from keeping import Keeping\n\nkeeping = None"
    )
    at = text.index("    try:\n"), text.index("app = FastAPI")
    facts = read({"app.py": text[: at[0]] + HOLDER + "\n" + text[at[1] :], "keeping.py": KEEPING})
    assert [one for one in told(facts) if one[1]] == []


AGAIN = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph

@asynccontextmanager
async def lifespan(app):
    try:
        tools = connect()
        async with AsyncPostgresSaver.from_conn_string("postgresql://db/a") as saver:
            app.state.saver = saver
            yield
    except Exception as error:
        print("without tools", error)
        async with SECOND as saver:
            app.state.saver = saver
            yield

app = FastAPI(lifespan=lifespan)

@app.post("/run")
async def run(thread_id: str):
    graph = StateGraph(dict).compile(checkpointer=app.state.saver)
    return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
"""


@pytest.mark.parametrize(
    ("second", "becomes"),
    [
        ('AsyncPostgresSaver.from_conn_string("postgresql://db/a")', []),
        ('AsyncSqliteSaver.from_conn_string("threads.db")', [Medium.FILE]),
    ],
)
def test_who_tries_the_same_again_falls_back_to_nothing_less(read, second, becomes):
    found = read({"app.py": AGAIN.replace("SECOND", second)})
    assert [one.becomes for one in found.degrades] == becomes
