"""How many processes a worker of Celery has: what S3 makes of its pool."""

import pytest

from perdure.contracts.check import Settings, check
from perdure.contracts.findings import Contract, Finding, Verdict
from tests.contracts.projects import project

APP = """from celery import Celery
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph

queue = Celery("work", broker="redis://queue")
graph = StateGraph(dict).compile(checkpointer=MemorySaver())


@queue.task
def answer(text, thread):
    return graph.invoke({"text": text}, {"configurable": {"thread_id": thread}})
"""


def found(
    tmp_path, command: str, assume: dict[str, str] | None = None, *, app: str = APP
) -> Finding:
    """Return what S3 says of a worker that is started so."""
    text = f"services:\n  worker:\n    build: .\n    command: celery -A app {command}\n"
    folder = project(tmp_path, app_dot_py=app, compose_dot_yaml=text)
    report = check(folder, Settings(only=(Contract.S3,), assume=assume or {}))
    [one] = [each for each in report.roots[0].findings if each.service == "worker"]
    return one


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("worker -l info", Verdict.UNDECIDED),
        ("worker --pool=prefork", Verdict.UNDECIDED),
        ("worker --autoscale=8,2", Verdict.UNDECIDED),
        ("worker -c 4", Verdict.VIOLATED),
        ("worker --concurrency=4", Verdict.VIOLATED),
        ("worker -c 1", Verdict.NOT_APPLICABLE),
        ("worker -P solo", Verdict.NOT_APPLICABLE),
        ("worker -Psolo", Verdict.NOT_APPLICABLE),
        ("worker --pool=threads -c 8", Verdict.NOT_APPLICABLE),
        ("worker --pool gevent", Verdict.NOT_APPLICABLE),
        ("beat", Verdict.NOT_APPLICABLE),
    ],
)
def test_a_worker_has_as_many_processes_as_its_pool(tmp_path, command, verdict):
    one = found(tmp_path, command)
    assert one.verdict is verdict
    if verdict is Verdict.UNDECIDED:
        assert "one a CPU" in (one.question or "")
        assert [(step.file, step.line) for step in one.evidence] == [("compose.yaml", 4)]


@pytest.mark.parametrize(
    ("number", "verdict"), [("4", Verdict.VIOLATED), ("1", Verdict.NOT_APPLICABLE)]
)
def test_how_many_it_has_can_be_told(tmp_path, number, verdict):
    one = found(tmp_path, "worker", {"workers": number})
    assert one.verdict is verdict
    assert one.assumptions or verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("saver", "verdict"),
    [
        ("", Verdict.NOT_APPLICABLE),
        ('checkpointer=PostgresSaver("postgresql://db/a")', Verdict.HELD),
    ],
)
def test_their_number_is_not_asked_where_it_decides_nothing(tmp_path, saver, verdict):
    app = APP.replace("checkpointer=MemorySaver()", saver).replace("thread", "id")
    app = app.replace("id_id", "thread_id") if saver else app.replace("id_id", "user")
    app = app.replace("memory import MemorySaver", "postgres import PostgresSaver")
    assert found(tmp_path, "worker", app=app).verdict is verdict
