"""Fixes on real files: only the lines that need it change, and the check holds afterwards."""

import os
import stat

import pytest

from perdure.contracts.check import Settings, check, examined, opened
from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.fix import Change, apply, difference, plan
from perdure.contracts.fix._applying import edited
from perdure.contracts.report import Edit
from perdure.errors import FixRefused
from tests.contracts.projects import COMPOSE, DOCKERFILE, project


def only(*contracts):
    return Settings(only=tuple(Contract(each) for each in contracts))


def mended(folder, contract):
    """Fix one contract; return the difference and the verdicts after it."""
    settings = only(contract)
    planned = plan(opened(folder), settings)
    apply(folder, planned.changes)
    return difference(planned.changes), {
        each.service.name: each.finding.verdict for each in examined(opened(folder), settings)
    }


def added(text):
    return [line[1:] for line in text.splitlines() if line[:1] == "+" and line[:3] != "+++"]


def removed(text):
    return [line[1:] for line in text.splitlines() if line[:1] == "-" and line[:3] != "---"]


@pytest.mark.parametrize(
    ("compose", "lines", "gone"),
    [
        (COMPOSE, ["    restart: unless-stopped"], []),
        (
            'services:\n  api:\n    build: .\n    restart: "no"  # why not\n',
            ["    restart: unless-stopped  # why not"],
            ['    restart: "no"  # why not'],
        ),
        (
            "services:\n  api:\n    restart: no\n    build: .\n",
            ["    restart: unless-stopped"],
            ["    restart: no"],
        ),
        (
            "services:\n    api:\n        build:\n            context: .\n",
            ["        restart: unless-stopped"],
            [],
        ),
        (
            "services:\n  api:\n    build:\n      context: .\n    # ports\n\n    ports: [80]\n",
            ["    restart: unless-stopped"],
            [],
        ),
    ],
)
def test_restart_is_set_by_one_line(tmp_path, compose, lines, gone):
    text, verdicts = mended(project(tmp_path, compose_dot_yaml=compose), "R4")
    assert (added(text), removed(text)) == (lines, gone)
    assert verdicts == {"api": Verdict.HELD}


def test_all_other_bytes_stay(tmp_path):
    compose = (
        "# head\r\nservices:\r\n  api:\r\n    build:   .   # odd\r\n"
        "    environment: {A: 'x',   B: \"y\"}\r\n\r\n# tail, no line end"
    )
    folder = project(tmp_path, compose_dot_yaml=None)
    path = folder / "compose.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + compose.encode())
    mended(folder, "R4")
    wanted = compose.replace(
        "    build:   .   # odd\r\n", "    build:   .   # odd\r\n    restart: unless-stopped\r\n"
    )
    assert path.read_bytes() == b"\xef\xbb\xbf" + wanted.encode()


@pytest.mark.parametrize(
    "compose",
    [
        "services: {api: {build: .}}\n",
        "x-a: &a\n  build: .\nservices:\n  api: *a\n",
        "services:\n  api:\n    <<: &a {build: .}\n",
    ],
)
def test_what_is_not_a_block_in_the_open_is_left_to_people(tmp_path, compose):
    folder = project(tmp_path, compose_dot_yaml=compose)
    planned = plan(opened(folder), only("R4"))
    assert planned.changes == ()
    assert [each.judged.finding.contract for each in planned.refused] == [Contract.R4]


def test_grace_is_set_so_that_the_drain_fits(tmp_path):
    docker = DOCKERFILE.replace(
        '"uvicorn", "app:app", "--host", "0.0.0.0"', '"gunicorn", "app:app"'
    )
    text, verdicts = mended(project(tmp_path, Dockerfile=docker), "R1")
    assert added(text) == ["    stop_grace_period: 40s"]
    assert verdicts == {"api": Verdict.HELD}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("CMD uvicorn app:app --port 80", 'CMD ["uvicorn", "app:app", "--port", "80"]'),
        ("CMD uvicorn app:app --port $PORT", "CMD exec uvicorn app:app --port $PORT"),
        ("CMD uvicorn app:app --port ${PORT:-80}", "CMD exec uvicorn app:app --port ${PORT:-80}"),
        ("CMD cd src && uvicorn app:app", "CMD cd src && exec uvicorn app:app"),
        ('CMD sh -c "uvicorn app:app --port $PORT"', "CMD exec uvicorn app:app --port $PORT"),
        (
            'CMD ["sh", "-c", "cd /app && A=1 uvicorn app:app"]',
            'CMD ["sh", "-c", "cd /app && A=1 exec uvicorn app:app"]',
        ),
    ],
)
def test_the_server_takes_the_place_of_its_shell(tmp_path, command, wanted):
    docker = [*DOCKERFILE.splitlines()[:-1], command]
    text, verdicts = mended(project(tmp_path, Dockerfile="\n".join(docker) + "\n"), "R2")
    assert (removed(text), added(text)) == ([command], [wanted])
    assert verdicts == {"api": Verdict.HELD}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            '    command: sh -c "cd src && P=. uvicorn app:app"',
            '    command: sh -c "cd src && P=. exec uvicorn app:app"',
        ),
        (
            '      sh -c "sleep 5 && uvicorn app:app --port 80"',
            '      sh -c "sleep 5 && exec uvicorn app:app --port 80"',
        ),
        (
            '    command: ["sh", "-c", "uvicorn app:app"]',
            '    command: ["sh", "-c", "exec uvicorn app:app"]',
        ),
    ],
)
def test_a_command_of_compose_gets_exec(tmp_path, given, wanted):
    head = "" if "command:" in given else "    command: >\n"
    compose = f"services:\n  api:\n    build: .\n{head}{given}\n"
    text, verdicts = mended(project(tmp_path, compose_dot_yaml=compose), "R2")
    assert (removed(text), added(text)) == ([given], [wanted])
    assert verdicts == {"api": Verdict.HELD}


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: api
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers:
        - name: api
          image: registry.example.com/api:1
          command: ["gunicorn", "--graceful-timeout", "60", "app:app"]
          ports:
            - containerPort: 8000
"""


@pytest.mark.parametrize(
    ("contract", "wanted"),
    [
        ("R1", ["      terminationGracePeriodSeconds: 70"]),
        (
            "R5",
            [
                "          readinessProbe:",
                "            tcpSocket:",
                "              port: 8000",
                "            periodSeconds: 5",
            ],
        ),
    ],
)
def test_a_manifest_gets_what_it_lacks(tmp_path, contract, wanted):
    folder = project(tmp_path, compose_dot_yaml=None, k8s__deployment_dot_yaml=DEPLOYMENT)
    text, verdicts = mended(folder, contract)
    assert (added(text), removed(text)) == (wanted, [])
    assert Verdict.HELD in verdicts.values()
    assert Verdict.VIOLATED not in verdicts.values()


def test_a_script_of_the_image_gets_exec(tmp_path):
    docker = [*DOCKERFILE.splitlines()[:-1], 'CMD ["./start.sh"]']
    script = "#!/bin/sh\nset -e\necho begins\nuvicorn app:app --host 0.0.0.0\n"
    folder = project(tmp_path, Dockerfile="\n".join(docker) + "\n", start_dot_sh=script)
    text, verdicts = mended(folder, "R2")
    assert added(text) == ["exec uvicorn app:app --host 0.0.0.0"]
    assert verdicts == {"api": Verdict.HELD}


@pytest.mark.parametrize(
    "command",
    [
        "CMD uvicorn app:app & python other.py",
        "CMD uvicorn app:app | tee log",
        "CMD uvicorn app:app && echo done",
    ],
)
def test_a_command_that_needs_its_shell_is_left_to_people(tmp_path, command):
    docker = [*DOCKERFILE.splitlines()[:-1], command]
    planned = plan(opened(project(tmp_path, Dockerfile="\n".join(docker) + "\n")), only("R2"))
    assert planned.changes == ()


MIGRATES = 'CMD ["sh", "-c", "alembic upgrade head && exec uvicorn app:app"]'
DATABASE = "  db:\n    image: postgres:16\n"
HEALTHY = "    condition: service_healthy"


@pytest.mark.parametrize(
    ("depends", "lines"),
    [
        ("", ["    depends_on:", "      db:", "        condition: service_healthy"]),
        (
            "    depends_on:\n      - cache\n      - db\n",
            [
                "      cache:",
                "        condition: service_started",
                "      db:",
                "        condition: service_healthy",
            ],
        ),
        (
            "    depends_on: [db]\n",
            ["    depends_on:", "      db:", "        condition: service_healthy"],
        ),
        (
            "    depends_on:\n      db:\n        condition: service_started\n",
            ["        condition: service_healthy"],
        ),
    ],
)
def test_a_service_waits_for_its_database(tmp_path, depends, lines):
    compose = f"services:\n  api:\n    build: .\n{depends}{DATABASE}  cache:\n    image: redis:7\n"
    docker = [*DOCKERFILE.splitlines()[:-1], MIGRATES]
    folder = project(tmp_path, compose_dot_yaml=compose, Dockerfile="\n".join(docker) + "\n")
    text, verdicts = mended(folder, "S4")
    check_lines = [
        "    healthcheck:",
        '      test: ["CMD-SHELL", "pg_isready -h 127.0.0.1 -U $${POSTGRES_USER:-postgres}"]',
        "      interval: 5s",
        "      timeout: 5s",
        "      retries: 20",
    ]
    assert added(text) == [*lines, *check_lines]
    assert verdicts == {"api": Verdict.HELD}


def test_a_plan_says_what_each_edit_mended_and_writes_nothing(tmp_path):
    folder = project(tmp_path)
    before = (folder / "compose.yaml").read_bytes()
    planned = plan(opened(folder), only("R4"))
    assert [(m.judged.finding.contract, m.verdict) for m in planned.mended] == [
        (Contract.R4, Verdict.HELD)
    ]
    assert (folder / "compose.yaml").read_bytes() == before


def test_one_difference_for_several_contracts(tmp_path):
    docker = [*DOCKERFILE.splitlines()[:-1], "CMD gunicorn app:app"]
    folder = project(tmp_path, Dockerfile="\n".join(docker) + "\n")
    planned = plan(opened(folder), only("R1", "R2", "R4"))
    apply(folder, planned.changes)
    assert {m.judged.finding.contract.value for m in planned.mended} == {"R1", "R2", "R4"}
    [root] = check(folder, only("R1", "R2", "R4")).roots
    assert {f.contract.value: f.verdict for f in root.findings} == dict.fromkeys(
        ("R1", "R2", "R4"), Verdict.HELD
    )


CHANGE = Change(file="a/b.yaml", before="x: 1\n", after="x: 2\n")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "project" / "a" / "b.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("x: 1\n")
    return path


def test_a_file_is_replaced_at_once_with_its_permissions(file, tmp_path):
    file.chmod(0o640)
    assert apply(tmp_path / "project", [CHANGE]) == ("a/b.yaml",)
    assert file.read_text() == "x: 2\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [each.name for each in file.parent.iterdir()] == ["b.yaml"]


def test_a_file_that_was_changed_meanwhile_stays(file, tmp_path):
    file.write_text("x: 3\n")
    with pytest.raises(FixRefused, match="changed meanwhile"):
        apply(tmp_path / "project", [CHANGE])
    assert file.read_text() == "x: 3\n"


def test_a_link_is_never_written_through(file, tmp_path):
    outside = tmp_path / "outside.yaml"
    outside.write_text("x: 1\n")
    file.unlink()
    file.symlink_to(outside)
    with pytest.raises(FixRefused):
        apply(tmp_path / "project", [CHANGE])
    assert outside.read_text() == "x: 1\n"


def test_a_folder_that_is_a_link_is_never_written_through(file, tmp_path):
    file.parent.rename(tmp_path / "elsewhere")
    (tmp_path / "project" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FixRefused):
        apply(tmp_path / "project", [CHANGE])
    assert (tmp_path / "elsewhere" / "b.yaml").read_text() == "x: 1\n"


def test_a_pipe_is_refused_and_not_waited_for(file, tmp_path):
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(FixRefused, match="no regular file"):
        apply(tmp_path / "project", [CHANGE])


def test_what_was_written_before_a_refusal_is_named(file, tmp_path):
    gone = Change(file="a/gone.yaml", before="", after="y")
    with pytest.raises(FixRefused, match=r"written before: \['a/b.yaml'\]") as caught:
        apply(tmp_path / "project", [CHANGE, gone])
    assert caught.value.fields["written"] == ["a/b.yaml"]


@pytest.mark.parametrize(
    ("text", "edits", "wanted"),
    [
        ("a\nb\n", [(2, 0, ("x",))], "a\nx\nb\n"),
        ("a\nb\n", [(3, 0, ("x",))], "a\nb\nx\n"),
        ("a\nb", [(3, 0, ("x",))], "a\nb\nx\n"),
        ("a\nb\nc\n", [(1, 1, ()), (3, 1, ("y", "z"))], "b\ny\nz\n"),
        ("a\x0cb\u2028c\nd\n", [(2, 1, ("x",))], "a\x0cb\u2028c\nx\n"),
    ],
)
def test_edits_count_lines_as_yaml_does(text, edits, wanted):
    made = [Edit(file="f", line=line, removed=n, lines=lines) for line, n, lines in edits]
    assert edited(text, made) == wanted
