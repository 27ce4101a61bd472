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


@pytest.mark.parametrize(
    ("way", "tasks", "verdict"),
    [
        ("request", "tasks=tasks", Verdict.NOT_APPLICABLE),
        ("background", "tasks=tasks", Verdict.VIOLATED),
        ("background", "tasks=[tasks[0]]", Verdict.NOT_APPLICABLE),
        ("background", "tasks=tasks, task_callback=note", Verdict.NOT_APPLICABLE),
        ("keeps steps", "tasks=tasks", Verdict.UNDECIDED),
    ],
)
def test_a_crew_that_no_request_waits_for_keeps_nothing(read, way, tasks, verdict):
    code = read({"app.py": HEAD.format(tasks=tasks) + dedent(WAYS[way])})
    assert _progress.judge(service_of(("uvicorn", "app:app")), code, ROOT).verdict is verdict


def test_a_worker_has_no_requests_that_wait(read):
    work = dedent(
        """
        from arq.worker import run_worker
        async def one(ctx, given):
            return await work([], given)
        class WorkerSettings:
            functions = [one]
        run_worker(WorkerSettings)
        """
    )
    code = read({"app.py": HEAD.format(tasks="tasks=tasks") + work}, "python", "app.py")
    found = _progress.judge(service_of(("python", "app.py")), code, ROOT)
    assert found.verdict is Verdict.VIOLATED
