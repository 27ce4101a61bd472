"""What is taken without an end, and that a start of the service may give back."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

BOXES = """
import docker

class Boxes:
    def __init__(self):
        self.engine = docker.from_env()

    def take(self):
        box = self.engine.containers.run("box", detach=True)
        try:
            return box.exec_run("ls")
        finally:
            box.remove()

    def release_all(self):
        for box in self.engine.containers.list():
            box.remove()
"""
APP = """
import asyncio
from contextlib import asynccontextmanager
from fastapi import FastAPI
from boxes import Boxes

boxes = Boxes()

async def recover():
    Boxes().release_all()

@asynccontextmanager
async def lifespan(app):
    BEFORE
    yield
    AFTER

app = FastAPI(lifespan=lifespan)

@app.post("/run")
def run():
    return boxes.take()
"""


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("pass", "pass", Verdict.VIOLATED),
        ("pass", "await recover()", Verdict.VIOLATED),
        ("boxes.take()", "pass", Verdict.VIOLATED),
        ("await recover()", "pass", Verdict.UNDECIDED),
        ("asyncio.create_task(recover())", "pass", Verdict.UNDECIDED),
        ("Boxes().release_all()", "pass", Verdict.UNDECIDED),
    ],
)
def test_a_start_that_comes_to_what_gives_back_is_asked_about(tmp_path, before, after, verdict):
    app = APP.replace("BEFORE", before).replace("AFTER", after)
    report = check(project(tmp_path, app_dot_py=app, boxes_dot_py=BOXES))
    [found] = [f for root in report.roots for f in root.findings if f.contract is Contract.C1]
    assert found.verdict is verdict
    if verdict is Verdict.UNDECIDED:
        assert ("boxes.py", 17) in {(step.file, step.line) for step in found.evidence}
