"""What a check says of code that it can't read, or in which it saw nothing."""

import sys

import pytest

from perdure.contracts.check import check
from perdure.contracts.code._modules import needed_python
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.deployment.reading import SLIM, project

COMPOSE = "services:\n  api:\n    build: .\n    restart: always\n"
START = SLIM + 'CMD ["uvicorn", "main:app"]\n'
APP = "from fastapi import FastAPI\nimport other\napp = FastAPI()\n"


def found(folder, **files):
    texts = {f"{name}.py": text for name, text in files.items()}
    project(folder, {"compose.yaml": COMPOSE, "Dockerfile": START, **texts})
    report = check(folder)
    return {each.contract: each for each in report.roots[0].findings}, report.unread


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("type ModelT = (int | str)", (3, 12)),
        ("type Pair[T] = tuple[T, T]", (3, 12)),
        ("def first[T](items: list[T]) -> T: ...", (3, 12)),
        ("class Box[T]:", (3, 12)),
        ("x = f'{a['b']}'", (3, 12)),
        ("x = t'{a}'", (3, 14)),
        ("except ValueError, TypeError:", (3, 14)),
        ("x = [*one for one in several]", (3, 15)),
        ("print 'two'", None),
        ("type = = 3", None),
        ("x = (", None),
    ],
)
def test_syntax_of_a_newer_python_is_known(monkeypatch, line, expected):
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    needed = needed_python(f"\n{line}\n", 2)
    assert (needed[0] if needed is not None else None) == expected
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    assert needed_python(f"\n{line}\n", 2) is None


IS_NEW = pytest.mark.skipif(sys.version_info >= (3, 15), reason="this Python reads all of it")
UNPACKED = "x = [*one for one in several]"


@IS_NEW
def test_a_file_in_a_newer_python_leaves_what_was_not_seen_open(tmp_path):
    findings, unread = found(tmp_path, main=APP, other=f"import main\n{UNPACKED}\n")
    newer = "written for Python 3.15 or newer (unpacking in a comprehension)"
    (one,) = unread
    assert (one.file, one.line) == ("other.py", 2)
    assert newer in one.reason
    assert f"runs on {sys.version_info[0]}.{sys.version_info[1]}" in one.reason
    for contract in (Contract.S0, Contract.S1, Contract.S4, Contract.C2):
        assert findings[contract].verdict is Verdict.UNDECIDED
        assert newer in findings[contract].question
    assert findings[Contract.R4].verdict is Verdict.HELD
    assert findings[Contract.R4].confidence is Confidence.PROVED


@IS_NEW
def test_code_in_a_newer_python_leaves_open_only_what_its_words_could_matter_to(tmp_path):
    text = f"def migrate():\n    {UNPACKED}\ndef other():\n    return 1\n"
    findings, (one,) = found(tmp_path, main=APP, other=text)
    assert one.reason.startswith("what is around this line is written for Python 3.15")
    assert findings[Contract.S4].verdict is Verdict.UNDECIDED
    for contract in (Contract.S0, Contract.S1, Contract.S3, Contract.C1):
        assert findings[contract].verdict is Verdict.NOT_APPLICABLE


def test_what_is_no_python_is_said_to_be_none(tmp_path):
    _, (one,) = found(tmp_path, main=APP, other="print 'two'\n")
    assert one.reason.startswith("it is not Python: ")


STREAM = """
from fastapi.responses import StreamingResponse
@app.get("/answer")
async def answer():
    return StreamingResponse(tokens(), media_type={kind!r}{headers})
"""


@pytest.mark.parametrize(
    ("kind", "headers", "expected"),
    [
        ("text/plain", "", Verdict.UNDECIDED),
        ("text/event-stream", "", Verdict.UNDECIDED),
        ("application/x-ndjson", "", Verdict.UNDECIDED),
        ("application/pdf", "", Verdict.NOT_APPLICABLE),
        ("text/plain", ", headers={'Content-Disposition': 'x'}", Verdict.NOT_APPLICABLE),
    ],
)
def test_every_response_that_streams_is_asked_about(tmp_path, kind, headers, expected):
    findings, _ = found(tmp_path, main=APP + STREAM.format(kind=kind, headers=headers), other="")
    assert findings[Contract.C2].verdict is expected


def test_what_was_not_seen_is_told_with_the_code_it_was_not_seen_in(tmp_path):
    findings, _ = found(tmp_path, main=APP, other="")
    for contract in (Contract.R6, Contract.C2):
        one = findings[contract]
        assert (one.verdict, one.confidence) == (Verdict.NOT_APPLICABLE, Confidence.INFERRED)
        assert "in the code that this service starts" in one.summary
        assert one.evidence


def test_code_that_is_not_found_is_no_reason_for_not_applicable(tmp_path):
    project(tmp_path, {"compose.yaml": COMPOSE, "Dockerfile": START})
    findings = {each.contract: each for each in check(tmp_path).roots[0].findings}
    for contract in (Contract.R6, Contract.C2):
        assert findings[contract].verdict is Verdict.UNDECIDED
        assert findings[contract].question


def test_steps_whose_effects_were_not_seen_are_a_question(tmp_path):
    graph = """
from langgraph.graph import StateGraph
graph = StateGraph(dict)
graph.add_node("a", lambda s: s)
graph.add_node("b", lambda s: s)
graph.add_edge("a", "b")
graph.set_entry_point("a")
agent = graph.compile()
@app.post("/run")
async def run(body: dict):
    return await agent.ainvoke(body)
"""
    findings, _ = found(tmp_path, main=APP + graph, other="")
    assert findings[Contract.R6].verdict is Verdict.UNDECIDED
    assert findings[Contract.R6].evidence
