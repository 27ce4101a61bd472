"""Crews of several tasks, in a request and behind it."""

from textwrap import dedent

import pytest

from perdure.contracts.deployment.facts import Root
from perdure.contracts.findings import RootKind, Verdict
from perdure.contracts.rules import _progress
from tests.contracts.code.conftest import service_of

ROOT = Root(root="compose.yaml", kind=RootKind.COMPOSE, services=(), files=())
HEAD = """
import asyncio
from crewai import Crew, Process
from fastapi import BackgroundTasks, FastAPI
app = FastAPI()
def made(agents, tasks):
    return Crew(agents=agents, {tasks}, process=Process.sequential)
async def work(agents, tasks):
    return await asyncio.to_thread(made(agents, tasks).kickoff)
"""
WAYS = {
    "request": """
        @app.post("/")
        async def post(given: dict):
            return await work([], given)
        """,
    "background": """
        @app.post("/")
        async def post(given: dict, background: BackgroundTasks):
            background.add_task(work, [], given)
        """,
    "keeps steps": """
        async def save_step(step): ...
        @app.post("/")
        async def post(given: dict, background: BackgroundTasks):
            last_completed_step = await stored(given)
            await save_step(last_completed_step)
            background.add_task(work, [], given)
        """,
}


SEVERAL = "tasks=[tasks[0], tasks[1]]"


def judged(read, text, *argv):
    code = read({"app.py": text}, *argv)
    return _progress.judge(service_of(argv or ("uvicorn", "app:app")), code, ROOT).verdict


@pytest.mark.parametrize(
    ("way", "tasks", "verdict"),
    [
        ("request", SEVERAL, Verdict.NOT_APPLICABLE),
        ("background", SEVERAL, Verdict.VIOLATED),
        ("background", "tasks=[tasks[0]]", Verdict.NOT_APPLICABLE),
        ("background", "tasks=tasks", Verdict.UNDECIDED),
        ("background", SEVERAL + ", step_callback=None", Verdict.VIOLATED),
        ("background", SEVERAL + ", task_callback=note", Verdict.UNDECIDED),
        ("background", SEVERAL + ", **given", Verdict.UNDECIDED),
        ("keeps steps", SEVERAL, Verdict.UNDECIDED),
    ],
)
def test_a_crew_that_no_request_waits_for_keeps_nothing(read, way, tasks, verdict):
    assert judged(read, HEAD.format(tasks=tasks) + dedent(WAYS[way])) is verdict


@pytest.mark.parametrize(
    "keeps",
    [
        "first = Task(description='a', output_file='a.md')",
        "def watch(crew):\n    crew.task_callback = note\nwatch(made([], []))",
        "@persist\nclass Steps(Flow): ...\nSteps()",
    ],
)
def test_what_crews_write_down_is_a_question(read, keeps):
    text = HEAD.format(tasks=SEVERAL) + dedent(WAYS["background"]) + keeps + "\n"
    assert judged(read, text) is Verdict.UNDECIDED


OTHER = """
def small(agents, tasks):
    return Crew(agents=agents, tasks=[tasks[0]])
class Own:
    def kickoff(self): ...
def note(agents, tasks):
    {run}.kickoff()
@app.post("/")
def post(given: dict, background: BackgroundTasks):
    background.add_task(note, [], given)
@app.post("/now")
def now(given: dict):
    return made([], given).kickoff()
"""


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        ("made(agents, tasks)", Verdict.VIOLATED),
        ("small(agents, tasks)", Verdict.NOT_APPLICABLE),
        ("Own()", Verdict.UNDECIDED),
    ],
)
def test_it_counts_which_crew_is_run(read, run, verdict):
    text = HEAD.format(tasks=SEVERAL) + OTHER.format(run=run)
    assert judged(read, text) is verdict


GROWN = """
def several(agents, given):
    found = []
    for one in given:
        found.append(one)
    LAST
    return Crew(agents=agents, tasks=found)
async def run(crew):
    return await asyncio.to_thread(crew.kickoff)
@app.post("/")
def post(given: dict, background: BackgroundTasks):
    background.add_task(run, several([], given))
"""


@pytest.mark.parametrize(
    ("last", "verdict"),
    [("found.append(given)", Verdict.VIOLATED), ("", Verdict.UNDECIDED)],
)
def test_the_only_crew_there_is_is_the_one_that_is_run(read, last, verdict):
    head = HEAD.split("def made", maxsplit=1)[0]
    assert judged(read, head + GROWN.replace("LAST", last)) is verdict


ARQ = """
from arq.worker import run_worker
async def one(ctx, given):
    return await work([], given)
class WorkerSettings:
    functions = [one]
run_worker(WorkerSettings)
"""
TOOL = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("a")
@server.tool()
def ask(given: dict):
    return made([], given).kickoff()
server.run()
"""


@pytest.mark.parametrize(
    ("program", "verdict"), [(ARQ, Verdict.VIOLATED), (TOOL, Verdict.UNDECIDED)]
)
def test_only_a_worker_surely_has_no_requests_that_wait(read, program, verdict):
    text = HEAD.format(tasks=SEVERAL) + program
    assert judged(read, text, "python", "app.py") is verdict
