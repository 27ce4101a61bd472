"""Savers that are made once, behind a lock and after other kinds were tried."""

from textwrap import dedent

import pytest

HEAD = """
import asyncio
import os
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.redis.aio import AsyncRedisSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
app = FastAPI()
lock = asyncio.Lock()
_saver = None
"""
ONCE = """
async def saver_of(url=None):
    global _saver
    if _saver is not None:
        return _saver
    async with lock:
        if _saver is not None:
            return _saver
        kind = os.environ.get("KIND", "memory").lower()
        if kind == "postgres":
            url = url or os.environ.get("DB")
            if url:
                for attempt in range(3):
                    try:
                        saver = AsyncPostgresSaver(url)
                        await saver.setup()
                        _saver = saver
                        return saver
                    except Exception as error:
                        if attempt < 2:
                            continue
                        raise
        if kind == "redis":
            saver = AsyncRedisSaver.from_conn_info(url=os.environ["REDIS"])
            _saver = saver
            return saver
        if kind in ("sqlite",):
            saver = AsyncSqliteSaver("threads.db")
            _saver = saver
            return saver
        saver = InMemorySaver()
        _saver = saver
        return saver
"""
TAIL = """
@app.post("/run")
async def run(thread_id: str):
    graph = StateGraph(dict).compile(checkpointer=await saver_of())
    return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
"""


def chosen(found):
    """Return what is made here, whether or not it is sure."""
    return {site.class_name for site in found.sites if site.chosen.value is not False}


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("postgres", "AsyncPostgresSaver"),
        ("redis", "AsyncRedisSaver"),
        ("sqlite", "AsyncSqliteSaver"),
        ("other", "InMemorySaver"),
    ],
)
def test_a_setting_chooses_which_is_made_once(read, kind, made):
    environment = {"KIND": kind, "DB": "postgresql://db/a", "REDIS": "redis://cache"}
    found = read({"app.py": HEAD + ONCE + TAIL}, environment=environment)
    assert chosen(found) == {made}


CONTAINER = """
import os
from dataclasses import dataclass
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph

@dataclass
class Container:
    checkpointer: object = None

class Agent:
    def __init__(self, checkpointer=None):
        self._saver = checkpointer or InMemorySaver()
        self.graph = StateGraph(dict).compile(checkpointer=self._saver)

class Factory:
    def saver(self):
        if os.environ["KIND"] == "memory":
            return None, None
        saver = PostgresSaver(os.environ["DB"])
        return saver, saver.close

    def build(self):
        container = Container()
        (container.checkpointer, close) = self.saver()
        return self.agent(checkpointer=container.checkpointer)

    def agent(self, checkpointer):
        return Agent(checkpointer=checkpointer)

app = FastAPI()
agent = Factory().build()
@app.post("/run")
def run(thread_id: str):
    return agent.graph.invoke({}, {"configurable": {"thread_id": thread_id}})
"""


@pytest.mark.parametrize(("kind", "made"), [("pg", "PostgresSaver"), ("memory", "InMemorySaver")])
def test_what_is_put_into_an_object_from_outside_is_more_than_its_default(read, kind, made):
    environment = {"KIND": kind, "DB": "postgresql://db/a"}
    assert chosen(read({"app.py": CONTAINER}, environment=environment)) == {made}


def test_what_a_parameter_is_given_under_a_condition_that_is_met_replaces_its_default(read):
    body = dedent(
        """
        async def saver_of(url=None):
            if os.environ["KIND"] == "postgres":
                url = os.environ.get("DB")
                if url:
                    return AsyncPostgresSaver(url)
            return InMemorySaver()
        """
    )
    environment = {"KIND": "postgres", "DB": "postgresql://db/a"}
    found = read({"app.py": HEAD + body + TAIL}, environment=environment)
    assert chosen(found) == {"AsyncPostgresSaver"}
    other = read(
        {"app.py": HEAD + body + TAIL}, environment={"KIND": "none", "DB": "postgresql://db"}
    )
    assert chosen(other) == {"InMemorySaver"}


IN_A_DICT = """
import os
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
app = FastAPI()
_state = {"saver": None, "other": None}

def saver():
    if _state["saver"] is None:
        _state["saver"] = InMemorySaver()
    return _state["saver"]

def other():
    if _state["other"] is None:
        _state["other"] = SqliteSaver("threads.db")
    return _state["other"]

@app.post("/run")
def run(thread_id: str):
    graph = StateGraph(dict).compile(checkpointer=ASKED())
    return graph.invoke({}, {"configurable": {"thread_id": thread_id}})
"""


@pytest.mark.parametrize(("asked", "made"), [("saver", "InMemorySaver"), ("other", "SqliteSaver")])
def test_a_dict_of_the_module_holds_what_is_made_once(read, asked, made):
    found = read({"app.py": IN_A_DICT.replace("ASKED", asked)})
    assert {site.class_name for site in found.sites if site.is_served} == {made}
    assert chosen(found) == {made}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("app = FastAPI()", "app = FastAPI()\nimport company\ncompany.fill(_state)"),
        ("app = FastAPI()", "app = FastAPI()\nimport company\n_state.update(company.savers())"),
        ("app = FastAPI()", "app = FastAPI()\nimport company\n_state[company.KEY] = 1"),
        ("def other", "def again():\n    _state['saver'] = SqliteSaver('a.db')\n\ndef other"),
        ('_state["saver"] = InMemorySaver()', '_state = {}\n        _state["saver"] = 1'),
    ],
)
def test_a_dict_that_may_hold_something_else_says_nothing(read, before, after):
    app = IN_A_DICT.replace("ASKED", "saver") + "\napp.get('/')(again)" * ("again" in after)
    found = read({"app.py": app.replace(before, after)})
    sure = [site for site in found.sites if site.is_served and site.chosen.value]
    assert not [site for site in sure if site.class_name == "InMemorySaver"]
