"""Graphs that are made while modules are imported, and savers that are made after that."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

SERVICE = """
import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

class Keeping:
    def __init__(self):
        self.saver = None

    async def begin(self):
        self.saver = AsyncSqliteSaver(await aiosqlite.connect("/data/threads.db"))

keeping = Keeping()
"""
GRAPHS = """
from langgraph.graph import StateGraph
from keeping import keeping

class Chat:
    def __init__(self):
        builder = StateGraph(dict)
        builder.add_node("a", print)
        builder.add_node("b", print)
        self.graph = builder.compile(
            checkpointer=keeping.saver,
        )

    def answer(self, text):
        return self.graph.invoke(text, {"configurable": {"thread_id": "1"}})
"""
SERVED = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from graphs import Chat
from keeping import keeping

chat = Chat()

@asynccontextmanager
async def lifespan(app):
    await keeping.begin()
    yield

app = FastAPI(lifespan=lifespan)

@app.post("/")
def say(text):
    return chat.answer(text)
"""
FILES = {"keeping.py": SERVICE, "graphs.py": GRAPHS, "app.py": SERVED}


def savers(facts):
    return [
        (site.medium, site.is_served, site.chosen.value, site.is_too_early)
        for site in facts.sites
        if site.role is Role.SAVER
    ]


def test_a_graph_that_is_made_at_import_has_no_saver_that_is_made_later(read):
    facts = read(FILES)
    assert savers(facts) == [
        (Medium.NONE, True, True, True),
        (Medium.FILE, False, True, False),
    ]
    lines = [(step.file, step.line) for step in facts.sites[0].evidence]
    assert lines[-2:] == [("keeping.py", 10), ("graphs.py", 11)]


def test_that_breaks_what_threads_and_steps_are_promised(tmp_path):
    files = {name.replace(".", "_dot_"): text for name, text in FILES.items()}
    report = check(project(tmp_path, **files))
    said = {one.contract: one.verdict for root in report.roots for one in root.findings}
    assert {said[one] for one in (Contract.S1, Contract.S2, Contract.R3)} == {Verdict.VIOLATED}
    assert said[Contract.S0] is Verdict.NOT_APPLICABLE


GLOBAL = """
from fastapi import FastAPI
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph

saver = None

def current():
    return saver

graph = StateGraph(dict).compile(checkpointer=current())
app = FastAPI()

@app.on_event("startup")
def begin():
    global saver
    saver = PostgresSaver(open_pool())
"""


def test_a_variable_that_the_start_sets_is_none_before(read):
    assert savers(read({"app.py": GLOBAL}))[0] == (Medium.NONE, True, True, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("chat = Chat()", "import asyncio\nasyncio.run(keeping.begin())\nchat = Chat()"),
        ("    yield", "    app.state.chat = Chat()\n    yield"),
    ],
    ids=["begun at import", "made by the start"],
)
def test_a_graph_that_is_made_after_its_saver_has_it(read, before, after):
    served = SERVED.replace(before, after, 1)
    if "state" in after:
        served = served.replace("\nchat = Chat()\n", "\n").replace(
            "chat.answer", "state.chat.answer"
        )
    facts = read({**FILES, "app.py": served})
    assert savers(facts) == [(Medium.FILE, True, True, False)]


def test_a_graph_that_is_given_its_saver_afterwards_has_it(read):
    served = SERVED.replace("    yield", "    chat.graph.checkpointer = keeping.saver\n    yield")
    assert (Medium.FILE, True, True, False) in savers(read({**FILES, "app.py": served}))


def test_a_graph_that_may_be_made_again_is_a_question(read):
    served = SERVED + "\n\ndef renew():\n    global chat\n    chat = Chat()\n\nhook = renew\n"
    facts = read({**FILES, "app.py": served})
    assert savers(facts) == [(Medium.FILE, True, None, False)]
    assert "keeping.py:10" in (facts.sites[0].chosen.question or "")
