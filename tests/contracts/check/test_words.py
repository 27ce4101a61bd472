"""What a person says with `--assume`: it settles the question that asked for it, or is told to."""

import re

import pytest

from perdure.contracts._answers import answerable
from perdure.contracts._exec_form import advice
from perdure.contracts.check import Settings, check
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.errors import CheckImpossible
from tests.contracts import making
from tests.contracts.deployment.reading import SLIM, project

V, H, U, NA = (
    Verdict.VIOLATED,
    Verdict.HELD,
    Verdict.UNDECIDED,
    Verdict.NOT_APPLICABLE,
)

CODE = """\
import os
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph

kind = os.environ["SAVER_KIND"]
saver = SqliteSaver("data/threads.db") if kind == "sqlite" else InMemorySaver()
builder = StateGraph(dict)
builder.add_node("a", lambda state: state)
graph = builder.compile(checkpointer=saver)
app = FastAPI()


@app.post("/run/{thread}")
def run(thread: str):
    return graph.invoke({}, {"configurable": {"thread_id": thread}})
"""

DOCKERFILE = SLIM + 'CMD ["uvicorn", "app:app"]\n'
COMPOSE = "services:\n  api:\n    build: .\n    environment: [SAVER_KIND]\n"


def findings(folder, files, **assume):
    report = check(project(folder, files).folder, Settings(assume=assume))
    return report, {f.contract: f for root in report.roots for f in root.findings}


SQLITE = CODE.replace('os.environ["SAVER_KIND"]', '"sqlite"')
BARE = {"Dockerfile": DOCKERFILE, "app.py": SQLITE}
IN_MEMORY = {**BARE, "app.py": CODE.replace('os.environ["SAVER_KIND"]', '"memory"')}
STEP = 'builder.add_node("a", lambda state: state)\n'
IN_STEPS = {**BARE, "app.py": IN_MEMORY["app.py"].replace(STEP, STEP + STEP.replace('"a"', '"b"'))}
COMPOSED = {"Dockerfile": DOCKERFILE, "app.py": CODE, "compose.yaml": COMPOSE}
NPM = {**BARE, "Dockerfile": SLIM + 'CMD ["supervisord"]\n'}
GUNICORN = {**BARE, "Dockerfile": SLIM + 'CMD ["gunicorn", "app:app"]\n'}


@pytest.mark.parametrize(
    ("files", "contract", "assume", "verdict"),
    [
        (COMPOSED, Contract.S1, {"SAVER_KIND": "sqlite"}, H),
        (COMPOSED, Contract.S1, {"SAVER_KIND": "memory"}, V),
        (COMPOSED, Contract.R1, {"drain": "5s"}, H),
        (COMPOSED, Contract.R1, {"drain": "20s"}, V),
        (BARE, Contract.R4, {"restart": "always"}, H),
        (BARE, Contract.R4, {"restart": "no"}, V),
        (BARE, Contract.S2, {"volumes": "/app/data"}, H),
        (BARE, Contract.S3, {"replicas": "1"}, NA),
        (IN_MEMORY, Contract.S3, {"replicas": "2"}, V),
        (GUNICORN, Contract.R1, {"stop_grace_period": "60s"}, H),
        (GUNICORN, Contract.R1, {"stop_grace_period": "5s"}, V),
        (NPM, Contract.R2, {"sigterm": "reaches"}, H),
        (NPM, Contract.R2, {"sigterm": "lost"}, V),
        (IN_STEPS, Contract.R3, {"R3": "held"}, H),
        (IN_STEPS, Contract.R3, {"R3": "violated"}, V),
    ],
)
def test_the_answer_that_a_question_names_settles_it(tmp_path, files, contract, assume, verdict):
    _, before = findings(tmp_path, files)
    [(key, value)] = assume.items()
    assert before[contract].verdict is U
    assert (
        f"--assume {key}=" in before[contract].answer or f"{key}={value}" in before[contract].answer
    )
    report, after = findings(tmp_path, files, **assume)
    assert after[contract].verdict is verdict
    assert f"{key}={value}" in after[contract].assumptions
    assert report.unused == ()


def test_a_word_about_one_service_is_for_that_one(tmp_path):
    report, found = findings(tmp_path, BARE, **{"image.restart": "always"})
    assert found[Contract.R4].verdict is H
    assert report.unused == ()


def test_a_word_about_a_service_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path):
    with pytest.raises(CheckImpossible, match=r"no service 'other' here; there are image \("):
        findings(tmp_path, BARE, **{"other.restart": "always"})


@pytest.mark.parametrize(
    ("assume", "said"),
    [
        ({"SAVER_KINT": "sqlite"}, "SAVER_KINT=sqlite: nothing that was read has a setting"),
        ({"restart": "always"}, "restart=always: no open question needs it"),
        ({"replicas": "many"}, "replicas=many: replicas takes a number"),
        ({"sigterm": "perhaps"}, "sigterm=perhaps: sigterm takes reaches or lost"),
        ({"R4": "held"}, "R4=held: no open question needs it"),
        ({"api.R1": "yes"}, "api.R1=yes: R1 takes held, violated or not_applicable"),
    ],
)
def test_what_is_assumed_in_vain_is_told(tmp_path, assume, said):
    report, _ = findings(tmp_path, COMPOSED, **assume)
    [unused] = report.unused
    assert unused.startswith(said)


HANDLED = {
    **BARE,
    "Dockerfile": SLIM + 'CMD ["python", "main.py"]\n',
    "main.py": "import uvicorn\nfrom app import app\n\nuvicorn.run(app)\n",
}


def test_no_word_replaces_what_a_file_says_of_sigterm(tmp_path):
    report, found = findings(tmp_path, HANDLED, sigterm="lost")
    assert found[Contract.R2].verdict is H
    assert found[Contract.R2].assumptions == ()
    assert report.unused == ("sigterm=lost: no open question needs it, as the files say it",)


@pytest.mark.parametrize("key", ["NOPE", "FOO"])
def test_a_word_in_a_text_or_a_test_is_no_setting(tmp_path, key):
    files = {
        **COMPOSED,
        "app.py": f"# a {key.lower()} is none\n{CODE}",
        "tests/test_app.py": f"import app\nassert app.kind != '{key}'\n",
    }
    report, _ = findings(tmp_path, files, **{key: "1"})
    assert report.unused == (f"{key}=1: nothing that was read has a setting of that name",)


@pytest.mark.parametrize("line", ["foo: str = ''", "x = settings.foo", "x = 'FOO'"])
def test_a_field_or_a_name_in_capitals_may_be_a_setting(tmp_path, line):
    report, _ = findings(tmp_path, {**COMPOSED, "app.py": f"{CODE}\n{line}\n"}, FOO="1")
    assert report.unused == ()


@pytest.mark.parametrize(
    ("asked", "question"),
    [
        ("whether 'url' holds at app.py:3", "Is 'url' true at app.py:3?"),
        ("the value of 'url'", "What is the value of 'url'?"),
    ],
)
def test_a_fact_that_is_only_named_is_asked_for(asked, question):
    own = making.service()
    finding = Finding(contract=Contract.S1, service="api", verdict=U, question=asked)
    assert answerable(finding, own, making.root(own)).question == question


def test_an_answer_that_is_copied_is_taken(tmp_path):
    for number, files in enumerate((COMPOSED, GUNICORN)):
        _, found = findings(tmp_path / str(number), files)
        given = re.search(r"--assume (\w+)=(\w+)", found[Contract.R1].answer)
        report, _ = findings(tmp_path / str(number), files, **{given[1]: given[2]})
        assert report.unused == ()


def test_every_question_is_one_and_has_an_answer(tmp_path):
    for number, files in enumerate((BARE, COMPOSED, NPM, GUNICORN)):
        report, _ = findings(tmp_path / str(number), files)
        for root in report.roots:
            for found in root.findings:
                if found.verdict is U:
                    assert re.match(r"[A-Z].*[?.]$", found.question), found.question
                    assert found.answer


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sh", "-c", "uvicorn a:b"), '["uvicorn", "a:b"]'),
        (("sh", "-c", "cd x && uvicorn a:b"), '["sh", "-c", "cd x && exec uvicorn a:b"]'),
        (("sh", "-c", "a 2>&1 & uvicorn a:b"), '["sh", "-c", "a 2>&1 & exec uvicorn a:b"]'),
        (("sh", "-c", "X=1 uvicorn $APP"), '["sh", "-c", "X=1 exec uvicorn $APP"]'),
        (("sh", "-c", 'sh -c "uvicorn a:b"'), '["uvicorn", "a:b"]'),
        (("sh", "-c", 'sh -c "uvicorn $APP"'), '["sh", "-c", "exec uvicorn $APP"]'),
        (("sh", "-c", "exec sh -c 'uvicorn $APP'"), '["sh", "-c", "exec uvicorn $APP"]'),
        (("sh", "-c", 'cd x && sh -c "uvicorn $A"'), '["sh", "-c", "cd x && exec uvicorn $A"]'),
    ],
)
def test_advice_is_the_line_to_write(argv, said):
    assert said in advice(argv)


@pytest.mark.parametrize("argv", [("uvicorn",), ("sh", "-c", "a | b"), ("sh", "-c", 'a "b; c'), ()])
def test_no_advice_where_it_can_not_be_told(argv):
    assert advice(argv) is None


FROM_FILE = COMPOSE.replace("environment: [SAVER_KIND]", "env_file: .env")


def test_what_is_said_counts_before_what_a_sample_declares(tmp_path):
    files = {**COMPOSED, "compose.yaml": FROM_FILE, ".env.example": "SAVER_KIND=memory\n"}
    _, before = findings(tmp_path, files)
    assert before[Contract.S1].verdict is V
    report, after = findings(tmp_path, files, SAVER_KIND="sqlite")
    assert (after[Contract.S1].verdict, after[Contract.S1].assumptions) == (
        H,
        ("SAVER_KIND=sqlite",),
    )
    assert report.unused == ()


def test_what_is_deployed_is_not_replaced_by_what_is_said(tmp_path):
    files = {
        **COMPOSED,
        "compose.yaml": COMPOSE.replace("[SAVER_KIND]", "[SAVER_KIND=memory]"),
        ".env.example": "SAVER_KIND=sqlite\n",
    }
    _, found = findings(tmp_path, files, SAVER_KIND="sqlite")
    assert found[Contract.S1].verdict is V


NETWORKED = {
    **BARE,
    "app.py": SQLITE.replace("sqlite import SqliteSaver", "postgres import PostgresSaver").replace(
        'SqliteSaver("data/threads.db")', 'PostgresSaver("postgresql://db.example.com/a")'
    ),
}
STATELESS = {**BARE, "app.py": "from fastapi import FastAPI\napp = FastAPI()\n"}


@pytest.mark.parametrize(("files", "verdict"), [(NETWORKED, H), (STATELESS, NA), (IN_MEMORY, U)])
def test_how_many_run_is_asked_only_where_it_matters(tmp_path, files, verdict):
    _, found = findings(tmp_path, files)
    assert found[Contract.S3].verdict is verdict
