"""What runs no Python of the project: said once, and never asked of somebody who can't know."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.report import as_json, as_markdown, as_text
from tests.contracts.projects import COMPOSE, DOCKERFILE, MEMORY, project

NODE = 'FROM node:22-slim\nWORKDIR /app\nCOPY . .\nCMD ["node", "server.js"]\n'

MIGRATE = COMPOSE + '  migrate:\n    build: .\n    command: ["alembic", "upgrade", "head"]\n'


def findings(folder, service):
    return {f.contract: f for r in check(folder).roots for f in r.findings if f.service == service}


def test_a_server_in_another_language_is_one_line_and_one_question(tmp_path):
    folder = project(tmp_path, Dockerfile=NODE, app_dot_py=None, server_dot_js="serve()\n")
    found = findings(folder, "api")
    for contract in (Contract.S1, Contract.S2, Contract.C2, Contract.R6):
        assert found[contract].verdict is Verdict.UNDECIDED
        assert found[contract].is_beyond_files
    assert found[Contract.R2].answer == "--assume sigterm=reaches, or sigterm=lost"
    text = " ".join(as_text(check(folder)).split())
    assert text.count("what node runs is not Python, and only Python is read") == 1
    assert "ignore[S1]" not in text


@pytest.mark.parametrize("contract", [Contract.S1, Contract.S2, Contract.C2, Contract.R6])
def test_what_ends_by_itself_serves_nobody(tmp_path, contract):
    folder = project(tmp_path, compose_dot_yaml=MIGRATE)
    found = findings(folder, "migrate")[contract]
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert found.question is None


def test_a_front_end_that_nothing_deploys_is_not_asked_about_beside_an_agent(tmp_path):
    folder = project(tmp_path, web__Dockerfile=NODE, web__server_dot_js="serve()\n")
    assert [root.root for root in check(folder).roots] == ["compose.yaml"]
    alone = project(
        tmp_path / "alone", web__Dockerfile=NODE, Dockerfile=None, compose_dot_yaml=None
    )
    assert [root.root for root in check(alone).roots] == ["web/Dockerfile"]


BESIDE = COMPOSE + (
    "  web:\n    build: web\n  idle:\n    build: web\n    scale: 0\n"
    "  tool:\n    build: web\n    profiles: [dev]\n  db:\n    image: postgres:17\n"
)


def test_what_is_built_and_not_judged_is_named(tmp_path):
    folder = project(
        tmp_path, compose_dot_yaml=BESIDE, web__Dockerfile=NODE, web__server_dot_js="serve()\n"
    )
    report = check(folder)
    [root] = report.roots
    assert (root.beside, {each.service for each in root.findings}) == (("web",), {"api"})
    assert as_json(report)["roots"][0]["beside"] == ["web"]
    said = "Not judged, as no Python of the project runs there: "
    assert f"(Compose). {said}web." in " ".join(as_text(report).split())
    assert f"{said}`web`." in as_markdown(report)


KEPT_ALIVE = COMPOSE + '  shell:\n    build: .\n    command: ["tail", "-f", "/dev/null"]\n'
NOTEBOOK = COMPOSE + "  notebook:\n    build: .\n    command: jupyter lab --ip 0.0.0.0\n"


def test_a_container_that_is_only_kept_alive_is_no_service(tmp_path):
    folder = project(tmp_path, compose_dot_yaml=KEPT_ALIVE)
    assert findings(folder, "shell") == {}
    assert Contract.R4 in findings(folder, "api")


TOOLS = ["jupyter lab --ip 0.0.0.0", "mlflow server --host 0.0.0.0", "supercronic /etc/crontab"]


@pytest.mark.parametrize("command", TOOLS)
def test_a_tool_beside_an_agent_is_not_judged(tmp_path, command):
    folder = project(tmp_path, compose_dot_yaml=NOTEBOOK.replace(TOOLS[0], command))
    assert findings(folder, "notebook") == {}
    assert findings(folder, "api")[Contract.R4].verdict is Verdict.VIOLATED


def test_a_notebook_alone_is_a_tool_of_people(tmp_path):
    text = COMPOSE + "    command: jupyter lab --ip 0.0.0.0\n"
    found = findings(project(tmp_path, compose_dot_yaml=text), "api")[Contract.R4]
    assert found.verdict is Verdict.NOT_APPLICABLE


def test_a_compiled_program_beside_an_agent_is_not_asked_about(tmp_path):
    gateway = (
        "FROM golang:1.24 AS build\nRUN go build -o /gateway\n"
        'FROM scratch\nCOPY --from=build /gateway /gateway\nENTRYPOINT ["/gateway"]\n'
    )
    folder = project(tmp_path, gateway__Dockerfile=gateway)
    assert [root.root for root in check(folder).roots] == ["compose.yaml"]


def test_the_agent_beside_them_is_judged_as_before(tmp_path):
    folder = project(tmp_path, Dockerfile=DOCKERFILE, app_dot_py=MEMORY)
    assert findings(folder, "api")[Contract.S1].verdict is Verdict.VIOLATED


def test_what_a_service_runs_is_asked_of_its_code_and_not_of_signals(tmp_path):
    command = COMPOSE + '    command: ["/usr/bin/something", "--serve"]\n'
    found = findings(project(tmp_path, compose_dot_yaml=command), "api")
    asked = "Which code of this project does '/usr/bin/something --serve' run?"
    assert found[Contract.S1].question == asked
    assert "SIGTERM" in found[Contract.R2].question


FOREIGN = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: other}
spec:
  template:
    spec:
      containers:
        - {name: other, image: "ghcr.io/somebody/something-else:2"}
"""


def test_a_deployment_of_images_that_nothing_builds_is_named(tmp_path):
    folder = project(tmp_path, k8s__other_dot_yaml=FOREIGN)
    [unread] = check(folder).unread
    assert unread.file == "k8s/other.yaml"
    assert "nothing here builds its images (ghcr.io/somebody/something-else:2)" in unread.reason


POD = """\
apiVersion: apps/v1
kind: {kind}
metadata: {{name: api}}
spec:
  updateStrategy: {{rollingUpdate: {{maxUnavailable: 1}}}}
  template:
    spec:
      containers:
        - {{name: api, image: "api:1", ports: [{{containerPort: 80}}]}}
"""


def test_a_pod_on_each_node_is_replaced_while_others_go_on(tmp_path):
    given = {"compose_dot_yaml": None, "app_dot_py": MEMORY}
    each = project(tmp_path / "a", k8s__a_dot_yaml=POD.format(kind="DaemonSet"), **given)
    assert findings(each, "api")[Contract.R5].verdict is Verdict.NOT_APPLICABLE
    one = project(tmp_path / "b", k8s__a_dot_yaml=POD.format(kind="StatefulSet"), **given)
    assert findings(one, "api")[Contract.R5].verdict is Verdict.VIOLATED
    assert "api in k8s/\n" in as_text(check(one))


def test_python_of_an_image_that_is_known_without_it_is_judged(tmp_path):
    alpine = (
        "FROM alpine:3.20\nRUN apk add python3\nWORKDIR /app\nCOPY . .\n"
        'CMD ["/venv/bin/uvicorn", "app:app"]\n'
    )
    two = COMPOSE + "  other:\n    build: {dockerfile: other.Dockerfile}\n"
    given = {"Dockerfile": alpine, "other_dot_Dockerfile": DOCKERFILE}
    folder = project(tmp_path, compose_dot_yaml=two, **given)
    assert findings(folder, "api")[Contract.R2].verdict is Verdict.HELD


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("ghcr.io/${OWNER}/api:latest", "OWNER"),
        ("ghcr.io/acme/api:${TAG:-latest}", None),
        ("postgres:${PG_VERSION}", None),
    ],
)
def test_an_image_that_only_variables_name_is_not_left_out_in_silence(tmp_path, image, named):
    where = project(
        tmp_path,
        compose_dot_yaml="services:\n  api:\n    build: .\n",
        prod__compose_dot_yaml=f"services:\n  api:\n    image: {image}\n    restart: always\n",
        Dockerfile="FROM python:3.12-slim\nCMD uvicorn main:app\n",
        worker__Dockerfile="FROM python:3.12-slim\nCMD uvicorn main:app\n",
        main_dot_py="from fastapi import FastAPI\napp = FastAPI()\n",
    )
    reasons = [one for one in check(where).unread if "is not judged, as no file says" in one.reason]
    assert [(one.file, one.line) for one in reasons] == ([("prod/compose.yaml", 3)] * bool(named))
    if named is not None:
        assert f"--assume {named}=VALUE" in reasons[0].reason
