"""R3 where code keeps its steps itself, and where one of two graphs has no saver."""

import pytest

from perdure.contracts.deployment.facts import Root
from perdure.contracts.findings import RootKind, Verdict
from perdure.contracts.rules import _progress
from tests.contracts.code.conftest import service_of

V, U, H = Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.HELD
ROOT = Root(root="compose.yaml", kind=RootKind.COMPOSE, services=(), files=())

WORKER = """
from langgraph.graph import StateGraph
from rows import Rows
rows = Rows()
def first(state):
    {keeps}
    return state
builder = StateGraph(dict)
builder.add_node("first", first)
builder.add_node("second", first)
graph = builder.compile()
def work(job):
    state = {{"job": job}}
    {takes_up}
    graph.invoke(state)
while True:
    work(rows.next())
"""


@pytest.mark.parametrize(
    ("keeps", "takes_up", "expected"),
    [
        ("rows.save_graph_state(state)", "state['resume_from_step'] = rows.step_of(job)", U),
        ("rows.checkpoint(state)", "state = rows.load_checkpoint(job) or state", U),
        ("rows.save_step('first', state)", "if 'first' in job.completed_steps: return", U),
        ("rows.save_graph_state(state)", "pass", V),
        ("pass", "state['resume_from_step'] = 1", V),
        ("pass", "pass", V),
    ],
)
def test_steps_that_code_keeps_and_takes_up_are_a_question(read, keeps, takes_up, expected):
    text = WORKER.format(keeps=keeps, takes_up=takes_up)
    code = read({"app.py": text, "rows.py": "class Rows: ..."}, "python", "app.py")
    assert _progress.judge(service_of(("python", "app.py")), code, ROOT).verdict is expected


REVIEW = """
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
import sqlite3
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
graph = builder.compile(checkpointer=SqliteSaver(sqlite3.connect("/data/x.db")))
def review(given):
    return graph.invoke(given, {"configurable": {"thread_id": "1"}})
"""
RESEARCH = """
from langgraph.prebuilt import create_react_agent
from langchain_core.tools import tool
graph = create_react_agent("x", [])
{decorator}
async def research(given):
    return await graph.ainvoke(given, {config})
"""
APP = """
import asyncio
from fastapi import FastAPI
from review import review
from research import research
app = FastAPI()
@app.post("/review")
async def post(given: dict):
    return review(given)
@app.post("/research")
async def run(given: dict):
    {begins}
"""
OWN = '{"configurable": {"thread_id": "2"}}'


@pytest.mark.parametrize(
    ("begins", "config", "decorator", "expected"),
    [
        ("asyncio.create_task(research(given))", OWN, "", V),
        ("hand_over(research, given)", OWN, "", U),
        ("hand_over(research, given)", OWN, "@tool", H),
        ("hand_over(research, given)", "{}", "", H),
    ],
)
def test_a_graph_without_a_saver_is_not_held_by_that_of_another(
    read, begins, config, decorator, expected
):
    files = {
        "review.py": REVIEW,
        "research.py": RESEARCH.format(config=config, decorator=decorator),
        "app.py": APP.format(begins=begins),
    }
    code = read(files)
    assert _progress.judge(service_of(("uvicorn", "app:app")), code, ROOT).verdict is expected


STREAMED = """
from celery import Celery
from keeping import note, say
from langgraph.graph import StateGraph
queue = Celery("x", broker="redis://redis:6379")
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
graph = builder.compile()
@queue.task
def later(id, text):
    for step in graph.stream({{"x": text}}):
        {does}
"""
KEEPING = """
import psycopg
def note(id, step):
    with psycopg.connect("postgresql://db/x") as db:
        db.execute("UPDATE runs SET step = %s WHERE id = %s", [str(step), id])
def say(id, step):
    print(id, step)
"""


@pytest.mark.parametrize(
    ("does", "expected"), [("note(id, step)", U), ("say(id, step)", V), ("note(id, 1)", V)]
)
def test_steps_that_are_written_as_they_come_are_a_question(read, does, expected):
    argv = ("celery", "-A", "app", "worker")
    code = read({"app.py": STREAMED.format(does=does), "keeping.py": KEEPING}, *argv)
    assert _progress.judge(service_of(argv), code, ROOT).verdict is expected
