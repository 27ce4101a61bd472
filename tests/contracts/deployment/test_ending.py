"""What ends by itself: what is started says so, or who waits for it, or names; and verdicts."""

import pytest

from perdure.contracts.check import Settings, check, opened
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.fix import plan
from tests.contracts.deployment.reading import SLIM, project, service, services

DOCKERFILE = SLIM + 'CMD ["uvicorn", "app:app"]\n'
FILES = {
    "Dockerfile": DOCKERFILE,
    "app.py": "import fastapi\napp = fastapi.FastAPI()\n",
    "tests/ask.py": "import requests\nprint(requests.get('http://api:8000').text)\n",
    "scripts/seed.py": "print('rows')\n",
    "scripts/seed_always.py": "import time\nwhile True:\n    time.sleep(1)\n",
    "worker.py": "import time\nwhile True:\n    time.sleep(1)\n",
}


def one(folder, lines, name="job", **more):
    text = f"services:\n  {name}:\n    build: .\n" + "".join(f"    {line}\n" for line in lines)
    return services(folder, {**FILES, **more, "compose.yaml": text})[name]


@pytest.mark.parametrize(
    "command",
    [
        'sh -c "pip install requests && python tests/ask.py"',
        "python scripts/seed.py",
        "sh -c 'alembic upgrade head'",
        "sh -c 'alembic upgrade head && python -m app.seed'",
        "uv run pytest -q",
        "python manage.py migrate",
        '["bash", "-c", "ruff check . && pytest"]',
    ],
)
def test_the_program_that_is_started_ends(tmp_path, command):
    found = one(tmp_path, [f"command: {command}", "restart: unless-stopped"])
    assert found.is_one_shot
    assert found.ends[0].file == "compose.yaml"
    assert found.ends[0].note


@pytest.mark.parametrize(
    "command",
    [
        "uvicorn app:app",
        "python worker.py",
        "python scripts/seed_always.py",
        "sh -c 'alembic upgrade head && exec uvicorn app:app'",
        "python -m app",
    ],
)
def test_what_may_go_on_is_no_job(tmp_path, command):
    assert not one(tmp_path, [f"command: {command}"]).is_one_shot


@pytest.mark.parametrize(
    ("name", "lines", "is_one_shot"),
    [
        ("smoke-test", [], True),
        ("db-init", [], True),
        ("job", ['profiles: ["tools"]'], True),
        ("job", ['profiles: ["migrate", "full"]'], True),
        ("job", ['profiles: ["gpu"]'], False),
        ("job", ['profiles: ["batch"]'], True),
        ("job", [], False),
        ("test-agent", [], False),
        ("contest", [], False),
        ("smoke-test", ["restart: always"], False),
        ("smoke-test", ['ports: ["80:80"]'], False),
        ("job", ['profiles: ["tools"]', "restart: always"], False),
    ],
)
def test_names_count_for_what_publishes_nothing_and_is_not_restarted(
    tmp_path, name, lines, is_one_shot
):
    found = one(tmp_path, ["command: python -m app.main", *lines], name)
    assert found.is_one_shot is is_one_shot


@pytest.mark.parametrize(
    ("lines", "may_end", "verdict"),
    [
        (["command: python work.py", "profiles: [gpu]"], True, Verdict.UNDECIDED),
        (["command: python work.py"], True, Verdict.VIOLATED),
        (["command: python worker.py", "profiles: [gpu]"], False, Verdict.VIOLATED),
        (["command: python -m worker"], False, Verdict.VIOLATED),
        (["command: python work.py", "ports: ['80:80']"], False, Verdict.VIOLATED),
        (["profiles: [gpu]"], False, Verdict.VIOLATED),
    ],
)
def test_what_may_be_a_job_gets_no_restart_policy(tmp_path, lines, may_end, verdict):
    found = one(tmp_path, lines, "enrich", **{"work.py": "print('rows')\n"})
    assert not found.is_one_shot
    assert bool(found.may_end) is may_end
    [root] = check(tmp_path, Settings()).roots
    assert [f.verdict for f in root.findings if f.contract is Contract.R4] == [verdict]
    changes = plan(opened(tmp_path), Settings(only=(Contract.R4,))).changes
    assert bool(changes) is not may_end


def test_a_server_is_no_job_whatever_its_profile_is(tmp_path):
    assert not one(tmp_path, ['profiles: ["tools"]'], "setup").is_one_shot


def test_no_contract_of_a_server_applies_to_a_job(tmp_path):
    text = """\
services:
  api:
    build: .
    restart: always
  smoke-test:
    build: .
    command: sh -c "pip install requests && python tests/ask.py"
    restart: "no"
"""
    folder = project(tmp_path, {**FILES, "compose.yaml": text}).folder
    [root] = check(folder, Settings()).roots
    found = {f.contract: f for f in root.findings if f.service == "smoke-test"}
    for contract in (Contract.R1, Contract.R2, Contract.R4, Contract.R5):
        assert found[contract].verdict is Verdict.NOT_APPLICABLE
        assert (found[contract].evidence[0].file, found[contract].evidence[0].line) == (
            "compose.yaml",
            7,
        )


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {annotations}
spec:
  restartPolicy: Never
  containers:
    - name: c
      image: app:1
      command: {command}
"""


@pytest.mark.parametrize(
    ("name", "annotations", "command", "is_one_shot"),
    [
        ("probe", '{"helm.sh/hook": test}', '["python", "-m", "x"]', True),
        ("migrate", "{}", '["python", "-m", "x"]', True),
        ("api", "{}", '["pytest"]', True),
        ("api", "{}", '["uvicorn", "app:app"]', False),
    ],
)
def test_a_pod_for_one_time(tmp_path, name, annotations, command, is_one_shot):
    text = POD.format(name=name, annotations=annotations, command=command)
    found = service(tmp_path, {"Dockerfile": DOCKERFILE, "pod.yaml": text})
    assert found.is_one_shot is is_one_shot


def test_servers_of_profiles_for_developers_are_not_judged_beside_others(tmp_path):
    text = (
        "services:\n  api: {build: ., restart: always}\n"
        "  api-dev: {build: ., command: uvicorn app:app --reload, profiles: [dev]}\n"
    )
    folder = project(tmp_path, {**FILES, "compose.yaml": text}).folder
    [root] = check(folder).roots
    assert {finding.service for finding in root.findings} == {"api"}


def test_what_only_profiles_start_is_judged_where_nothing_else_is(tmp_path):
    text = "services:\n  api: {build: ., profiles: [dev]}\n"
    folder = project(tmp_path, {**FILES, "compose.yaml": text}).folder
    [root] = check(folder).roots
    assert {finding.service for finding in root.findings} == {"api"}


SCHEMAS = """\
services:
  web:
    build: .
    restart: unless-stopped
  schemas:
    build: .
    command: {command}
    restart: "no"
{more}"""


@pytest.mark.parametrize(
    ("command", "more", "is_open"),
    [
        ("python manage.py sync_schemas", "", True),
        ("python bot.py", "", True),
        ("python manage.py db_worker", "", False),
        ("python manage.py runserver", "", False),
        ("python worker.py", "", False),
        ("uvicorn app:app", "", False),
        ("python manage.py sync_schemas", '    ports: ["80:80"]\n', False),
        ("python manage.py sync_schemas", "  other:\n    build: .\n", True),
    ],
)
def test_what_alone_is_written_not_to_be_restarted_may_be_a_job(tmp_path, command, more, is_open):
    text = SCHEMAS.format(command=command, more=more)
    client = "import discord\ndiscord.Client().run('x')\n"
    files = {**FILES, "manage.py": "import django\n", "bot.py": client, "compose.yaml": text}
    own = services(tmp_path, files)["schemas"]
    assert not own.is_one_shot
    [found] = [
        f
        for root in check(tmp_path).roots
        for f in root.findings
        if f.service == "schemas" and f.contract is Contract.R4
    ]
    assert found.verdict is (Verdict.UNDECIDED if is_open else Verdict.VIOLATED)


def test_a_file_that_restarts_nothing_says_nothing_of_one_service(tmp_path):
    text = SCHEMAS.format(command="python manage.py sync_schemas", more="")
    files = {**FILES, "compose.yaml": text.replace("unless-stopped", '"no"')}
    assert not services(tmp_path, files)["schemas"].is_one_shot
