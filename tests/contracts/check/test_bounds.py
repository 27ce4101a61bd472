"""Files whose reading would take for ever, or all memory: the work stays near what they have."""

import time

import pytest

from perdure.contracts import limits
from perdure.contracts.check import Settings, check
from perdure.contracts.files import Project, TooMuchError
from perdure.contracts.findings import Contract
from perdure.contracts.fix import plan
from perdure.contracts.numbers import decimal, whole
from tests.contracts.memory import memory_within
from tests.contracts.projects import DOCKERFILE

LONG = 200_000
"""Characters: a reader whose work grows by the square takes minutes for these, or hours."""

CPU_S_MAX = 60
"""Of the processor, not of the clock, for what takes a second or two."""

MEMORY_MB_MAX = 600
"""What a check may take beside what is in use before it; a bomb takes many times as much."""

NINES = "9" * 5_000
PYTHON = 'FROM python:3.12\nCOPY . /app\nWORKDIR /app\nCMD ["python", "app.py"]\n'
APP = "services:\n  api:\n    build: .\n"
POD = (
    "apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: {spec: {"
    "initContainers: [{name: i, command: [sh, -c, '%s']}], containers: [{name: a, image: b}]}}}\n"
)


def chart(template, values=""):
    return {"Chart.yaml": "name: x\n", "values.yaml": values, "templates/a.yaml": template}


GRAPH = (
    "from langgraph.graph import StateGraph\n"
    "from langgraph.checkpoint.memory import InMemorySaver\n"
)

TEXTS = {
    "entries of a dict": {
        "Dockerfile": PYTHON,
        "app.py": GRAPH
        + 'kept = {"saver": None}\n'
        + 'kept["saver"] = kept["saver"] or InMemorySaver()\n' * 12_000,
    },
    "loops that may be executed": {
        "Dockerfile": PYTHON,
        "app.py": "from work import f\nf()\n",
        "work.py": GRAPH
        + "import time\ndef f():\n"
        + "    if x.y(z):\n        while True:\n            time.sleep(1)\n" * 16_000,
    },
    "quotes in a chart that nothing closes": chart(
        "kind: Deployment\n{{ .a " + '\\"' * 60_000 + " }}\n"
    ),
    "comments before newer Python": {
        "Dockerfile": PYTHON,
        "app.py": "#\n" * LONG + "x = [*a for a in b]\n",
    },
    "stars before newer Python": {
        "Dockerfile": PYTHON,
        "app.py": "x = " + "[*a" * (LONG // 3) + "\n",
    },
    "newlines in YAML": {"other.yaml": "services:\n" + "\n" * LONG},
    "newlines in a manifest": {"other.yaml": "apiVersion: v1\nx-kind:\n" + "\n" * LONG},
    "newlines in code": {"Dockerfile": PYTHON, "app.py": "import subprocess\n" + "\n" * LONG},
    "spaces in a directive": {"Dockerfile": "# escape=a" + " " * LONG + "b\n" + DOCKERFILE},
    "spaces in a join": {"Dockerfile": DOCKERFILE + "RUN a\\" + " " * LONG + "b\n"},
    "spaces in a sample": {".env.example": "A=a" + " " * LONG + "b\n", "compose.yaml": APP},
    "spaces in a setting": {
        "compose.yaml": APP + "    environment:\n      A: 'a" + " " * LONG + "b'\n"
    },
    "colons of a mount": {"compose.yaml": APP + "    volumes: ['" + "a:" * 100_000 + "']\n"},
    "a name of a Dockerfile": {
        "compose.yaml": APP + f"    image: x\n  b:\n    build: {{dockerfile: {'a' * LONG}/b}}\n"
    },
    "echoes": {"Dockerfile": (DOCKERFILE + "RUN " + "echo 'x " * 2_400 + "\n") * 10},
    "spaces after cat": {
        "Dockerfile": DOCKERFILE + ("RUN " + "cat" * 20 + " " * 19_000 + "<<E\nE\n") * 20
    },
    "pings": {"Dockerfile": DOCKERFILE, "d.yaml": POD % ("redis-cli mongosh " * 12_000)},
    "waits": {"Dockerfile": DOCKERFILE, "d.yaml": POD % ("pg_isready nc -nc wait-for" * 7_000)},
    "build commands": {
        "Dockerfile": DOCKERFILE,
        "compose.yaml": "services: {a: {image: x/y}}\n",
        "README.md": "".join(f"docker build -t a{i} .\n" for i in range(60_000)),
    },
    "names in code": {
        "Dockerfile": PYTHON,
        "app.py": f"from langgraph import PG{'PG' * LONG}\ndef {'recover' * 28_000}(): pass\n"
        f"x = PG{'PG' * LONG}()\n",
    },
    "savers in a text": {
        "Dockerfile": PYTHON,
        "app.py": "x = 1\n",
        "other.py": "MemorySaver " * 80_000 + "\n",
    },
    "kinds in a manifest": {
        "compose.yaml": APP,
        "x.yaml": "apiVersion: v1\n# kind:\n" + "\n" * LONG,
    },
    "branches of a function": {
        "Dockerfile": PYTHON,
        "app.py": "import os\nfrom langgraph.checkpoint.memory import MemorySaver\ndef make():\n"
        + "".join(f" if os.environ.get('A{i}'):\n  c = MemorySaver()\n" for i in range(2_500))
        + "make()\n",
    },
    "ignores": {"Dockerfile": DOCKERFILE + "RUN # " + "perdure: ignore[" * 25_000 + "\n"},
    "negations": chart("kind: Deployment\n{{ if " + "not " * 50_000 + ".Values.a }}\n{{ end }}\n"),
}
"""Each has a text of about `LONG` characters that a reader would go over again and again."""

BOMBS = {
    "merges": {
        "compose.yaml": "x: &b\n"
        + "".join(f"  k{i}: 1\n" for i in range(3_000))
        + "y:\n"
        + "- <<: *b\n" * 3_000
        + APP
    },
    "a shared environment": {
        "compose.yaml": "x: &e\n"
        + "".join(f"  K{i}: a\n" for i in range(3_000))
        + "services:\n"
        + "".join(f"  s{i}: {{image: x, environment: *e}}\n" for i in range(250))
    },
    "a shared file of variables": {
        "a.env": "".join(f"K{i}=a\n" for i in range(20_000)),
        "compose.yaml": "services:\n"
        + "".join(f"  s{i}: {{image: x, env_file: a.env}}\n" for i in range(250)),
    },
    "a shared Dockerfile": {
        "Dockerfile": "FROM python:3.12\n" + "ENV A=b\n" * 3_900 + "CMD uvicorn a:b\n",
        "compose.yaml": "services:\n" + "".join(f"  s{i}: {{build: .}}\n" for i in range(300)),
    },
    "a shared ConfigMap": {
        "d.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n"
        + "".join(f"  K{i}: a\n" for i in range(1_500))
        + "".join(
            f"---\napiVersion: v1\nkind: Deployment\nmetadata: {{name: a{i}}}\nspec: {{template: "
            "{spec: {containers: [{name: a, image: b, envFrom: [{configMapRef: {name: m}}]}]}}}\n"
            for i in range(200)
        )
    },
    "extended services": {
        "compose.yaml": "services:\n  a:\n    image: x\n    environment:\n"
        + "".join(f"      K{i}: a\n" for i in range(3_000))
        + "".join(f"  s{i}: {{extends: a, environment: {{A: b}}}}\n" for i in range(250))
    },
    "a large value of a chart": chart(
        "kind: Deployment\n" + "x: {{.Values.a}}\n" * 10_000, "a: " + "x" * 250_000 + "\n"
    ),
}
"""Small files that become large ones."""


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if "Dockerfile" not in files:
        (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder


def checked(folder, files):
    written(folder, files)
    begin = time.process_time()
    with memory_within(MEMORY_MB_MAX):
        report = check(folder)
    assert time.process_time() - begin < CPU_S_MAX
    return report


@pytest.mark.timeout(300)  # a machine with much else to do
@pytest.mark.parametrize("files", TEXTS.values(), ids=TEXTS.keys())
def test_no_reader_goes_over_a_long_text_again_and_again(tmp_path, files):
    checked(tmp_path, files)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("files", BOMBS.values(), ids=BOMBS.keys())
def test_what_files_become_counts_against_one_budget(tmp_path, files):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "Dockerfile").write_text(DOCKERFILE)
    report = checked(tmp_path, files)
    said = f"the project has more than {limits.EXPANDED_MAX:,} values"
    assert [one.reason for one in report.unread if said in one.reason]
    assert "other/Dockerfile" in {root.root for root in report.roots}


def test_the_budget_is_the_projects_not_that_of_each_file(tmp_path):
    files = Project(tmp_path)
    for _ in range(3):
        files.spend(limits.EXPANDED_MAX // 3)
    with pytest.raises(TooMuchError):
        files.spend(1)


def test_the_yaml_of_a_project_is_parsed_to_one_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "YAML_TOTAL_MAX", 1_000)
    padding = "# x\n" * 150
    files = {f"d{i}/compose.yaml": APP + padding for i in range(4)} | {"compose.yaml": APP}
    report = check(written(tmp_path, files))
    assert len([one for one in report.unread if "characters of YAML" in one.reason]) == 3
    assert {root.root for root in report.roots} >= {"compose.yaml"}


def test_a_line_of_a_fix_is_not_gone_over_again_and_again(tmp_path):
    start = "CMD cd /x && uvicorn a:app" + " " * LONG + "--port 80\n"
    compose = APP + "    command: sh -c 'cd /x && uvicorn a:app" + " " * LONG + "--port 80'\n"
    files = {"Dockerfile": "FROM python:3.12\n" + start, "b/compose.yaml": compose}
    begin = time.process_time()
    plan(Project(written(tmp_path, files)), Settings())
    assert time.process_time() - begin < CPU_S_MAX


NUMBERS = {
    "restart": {"compose.yaml": APP + f"    restart: 'on-failure:{NINES}'\n"},
    "scale": {"compose.yaml": APP + "    scale: ²\n"},
    "attempts": {
        "compose.yaml": APP + "    deploy: {restart_policy: {condition: on-failure, "
        f"max_attempts: '{NINES}'}}}}\n"
    },
    "workers": {"Dockerfile": f'FROM python:3.12\nCMD ["gunicorn", "-w", "{NINES}", "a:b"]\n'},
    "workers in another script": {
        "Dockerfile": 'FROM python:3.12\nCMD ["gunicorn", "-w", "²", "a:b"]\n'
    },
    "workers joined": {"Dockerfile": 'FROM python:3.12\nCMD ["gunicorn", "-w²", "a:b"]\n'},
    "a stage": {"Dockerfile": f"FROM python:3.12\nCOPY --from={NINES} /a /b\n"},
    "a stage in another script": {"Dockerfile": "FROM python:3.12\nCOPY --from=² /a /b\n"},
    "arguments": {
        "Dockerfile": 'FROM python:3.12\nCOPY a.sh /\nCMD ["sh", "/a.sh"]\n',
        "a.sh": f"if [ $# -gt {NINES} ]; then exec python a.py; fi\n",
    },
    "code": {
        "Dockerfile": PYTHON,
        "app.py": "import uvicorn\nN = 0x" + "f" * 20_000 + "\n"
        "uvicorn.run('a:b', workers=N, timeout_graceful_shutdown=N)\n",
    },
    "infinite": {
        "Dockerfile": 'FROM python:3.12\nCMD ["uvicorn", "a:b", '
        '"--timeout-graceful-shutdown", "inf"]\n'
    },
    "none at all": {
        "Dockerfile": 'FROM python:3.12\nCMD ["uvicorn", "a:b", '
        '"--timeout-graceful-shutdown", "nan"]\n'
    },
    "jobs": {
        "compose.yaml": APP + "    image: langchain/langgraph-api\n    mem_limit: 1g\n"
        f"    environment: {{N_JOBS_PER_WORKER: '{NINES}'}}\n"
    },
}


@pytest.mark.parametrize("files", NUMBERS.values(), ids=NUMBERS.keys())
def test_no_number_ends_a_rule_or_a_service(tmp_path, files):
    report = check(written(tmp_path, files))
    assert not [one for one in report.unread if "the check failed" in one.reason]
    (root,) = report.roots
    assert {each.contract for each in root.findings} == set(Contract)


def test_gunicorns_configuration_has_no_number_that_is_too_long(tmp_path):
    lines = 'FROM python:3.12\nCOPY . /\nCMD ["gunicorn", "a:b"]\n'
    files = {"Dockerfile": lines, "gunicorn.conf.py": f"workers = {NINES}\n"}
    report = check(written(tmp_path, files))
    assert not [one for one in report.unread if "the check failed" in one.reason]


def test_numbers_are_plain_and_bounded():
    assert [whole(text) for text in ("4", " 12 ", "²", "1_0", "-1", "", None, NINES)] == [
        4, 12, None, None, None, None, None, None,
    ]  # fmt: skip
    assert [decimal(text) for text in ("1.5", "inf", "nan", "1e400", "x", NINES)] == [
        1.5, None, None, None, None, None,
    ]  # fmt: skip
