"""Services that start the same code: it is followed once, and only where it is the same for all."""

from collections.abc import Callable

import pytest

from perdure.contracts.check import Settings, check
from perdure.contracts.code._program import Program
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

APP = """import os
from fastapi import FastAPI
from langgraph.graph import StateGraph
from kept.keeping import saver

app = FastAPI()
graph = StateGraph(dict)
graph.add_node("a", print)
graph.add_node("b", print)
graph = graph.compile(checkpointer=saver())


@app.post("/ask")
def ask(text: str, thread: str):
    return graph.invoke({"text": text}, {"configurable": {"thread_id": thread}})
"""
MEMORY = """from langgraph.checkpoint.memory import MemorySaver


def saver():
    return MemorySaver()
"""
FILE = """import sqlite3
from langgraph.checkpoint.sqlite import SqliteSaver


def saver():
    return SqliteSaver(sqlite3.connect("/data/threads.db"))
"""
FILES = {"app_dot_py": APP, "kept__keeping_dot_py": MEMORY, "other__keeping_dot_py": FILE}


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that starts were followed from."""
    found: list[str] = []
    enter: Callable[..., None] = Program.enter

    def counted(self: Program, path: str, **more: object) -> None:
        found.append(path)
        enter(self, path, **more)

    monkeypatch.setattr(Program, "enter", counted)
    return found


def s1_of(folder) -> dict[str, Verdict]:
    """Return the verdicts of S1, by service."""
    report = check(folder, Settings(only=(Contract.S1,)))
    return {one.service: one.verdict for root in report.roots for one in root.findings}


def test_what_differs_in_a_mount_only_is_followed_once(tmp_path, entered):
    compose = """services:
  one:
    build: .
    volumes: [notes:/app/notes]
  two:
    build: .
volumes: {notes: {}}
"""
    found = s1_of(project(tmp_path, **FILES, compose_dot_yaml=compose))
    assert found == {"one": Verdict.VIOLATED, "two": Verdict.VIOLATED}
    assert entered == ["app.py"]


def test_a_module_that_another_folder_is_mounted_over_is_another_module(tmp_path, entered):
    compose = """services:
  one:
    build: .
  two:
    build: .
    volumes: ["./other:/app/kept", "data:/data"]
  three:
    build: .
volumes: {data: {}}
"""
    found = s1_of(project(tmp_path, **FILES, compose_dot_yaml=compose))
    assert found == {
        "one": Verdict.VIOLATED,
        "two": Verdict.HELD,
        "three": Verdict.VIOLATED,
    }
    assert entered == ["app.py", "app.py"]


def test_what_the_code_asks_of_the_environment_is_asked_of_each(tmp_path, entered):
    app = APP.replace("checkpointer=saver()", 'checkpointer=saver() if os.getenv("KEEP") else None')
    compose = """services:
  one:
    build: .
    environment: {KEEP: "1"}
    volumes: ["data:/data"]
  two:
    build: .
    environment: {KEEP: ""}
volumes: {data: {}}
"""
    files = {"app_dot_py": app, "kept__keeping_dot_py": FILE, "compose_dot_yaml": compose}
    found = s1_of(project(tmp_path, **files))
    assert found == {"one": Verdict.HELD, "two": Verdict.VIOLATED}
    assert entered == ["app.py"]
