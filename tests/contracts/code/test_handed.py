"""Savers that graphs are given when they are made already, and savers that stay all the same."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

AGENTS = """
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph

class Agent:
    def __init__(self, graph):
        self.graph = graph

builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
first = Agent(builder.compile(checkpointer=MemorySaver()))
second = Agent(builder.compile())
agents = {"first": first, "second": second}
"""
APP = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from agents import agents

@asynccontextmanager
async def lifespan(app):
    async with AsyncPostgresSaver.from_conn_string("postgresql://db/x") as saver:
        for agent in agents.values():
            if agent.graph.checkpointer is None:
                agent.graph.checkpointer = saver
        yield

app = FastAPI(lifespan=lifespan)

@app.post("/")
def say(name, text):
    return agents[name].graph.invoke(text, {"configurable": {"thread_id": "1"}})
"""
TESTS = [
    "if agent.graph.checkpointer is None:",
    "if saver and not agent.graph.checkpointer:",
    "if not getattr(agent.graph, 'checkpointer', None):",
]


def staying(facts):
    return [
        (site.medium, site.evidence[-1].line)
        for site in facts.sites
        if site.role is Role.SAVER and site.stays and site.chosen.value
    ]


@pytest.mark.parametrize("test", TESTS)
def test_a_saver_for_graphs_without_any_leaves_the_others_what_they_have(read, test):
    facts = read({"agents.py": AGENTS, "app.py": APP.replace(TESTS[0], test)})
    assert staying(facts) == [(Medium.MEMORY, 12)]


@pytest.mark.parametrize("test", ["if True:", "if agent.graph.checkpointer is not None:"])
def test_a_saver_for_all_graphs_replaces_what_they_have(read, test):
    facts = read({"agents.py": AGENTS, "app.py": APP.replace(TESTS[0], test)})
    assert staying(facts) == []


def test_what_stays_in_memory_is_lost_with_it(tmp_path):
    report = check(project(tmp_path, app_dot_py=APP, agents_dot_py=AGENTS))
    said = {one.contract: one for root in report.roots for one in root.findings}
    assert said[Contract.S1].verdict is said[Contract.S2].verdict is Verdict.VIOLATED
    assert ("app.py", 11) in {(step.file, step.line) for step in said[Contract.S1].evidence}
    assert said[Contract.R3].verdict is Verdict.UNDECIDED


LOADING = """
import importlib

PLACES = load_settings()

def load(text):
    where, name = text.split(":")
    return getattr(importlib.import_module(where), name)

def all_of(texts):
    return [load(text) for text in texts]
"""
STARTING = """
import uvicorn
from fastapi import FastAPI
from loading import all_of

app = FastAPI()

@app.post("/")
def say(text):
    graphs = all_of(["chats.deep.talk:graph", "chats.gone:graph"])
    return graphs[0].invoke(text, {"configurable": {"thread_id": "1"}})
"""
TALK = """
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph
graph = StateGraph(dict).compile(checkpointer=MemorySaver())
"""


def test_texts_that_are_taken_apart_for_an_import_lead_to_what_they_name(read):
    files = {"app.py": STARTING, "loading.py": LOADING, "chats/deep/talk.py": TALK}
    assert [(one.medium, one.is_served) for one in read(files).sites] == [(Medium.MEMORY, True)]
    other = LOADING.replace('text.split(":")', "text, None")
    assert read({**files, "loading.py": other}).sites == ()


POOLED = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import StateGraph
from psycopg_pool import AsyncConnectionPool

@asynccontextmanager
async def with_pool(make):
    async with AsyncConnectionPool("postgresql://db/x") as pool:
        yield make(pool)

@asynccontextmanager
async def lifespan(app):
    async with with_pool(lambda pool: AsyncPostgresSaver(conn=pool)) as saver:
        app.state.graph = StateGraph(dict).compile(checkpointer=saver)
        yield

app = FastAPI(lifespan=lifespan)
"""


def test_a_saver_that_a_lambda_makes_gets_to_its_graph(read):
    sites = read({"app.py": POOLED}).sites
    assert [(one.medium, one.is_served, one.chosen.value) for one in sites] == [
        (Medium.POSTGRES, True, True)
    ]
