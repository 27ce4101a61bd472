"""Render, Fly, Railway and Procfiles: what they say of a service, and what is said of others."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.deployment.facts import Lifetime, Signal
from perdure.contracts.findings import Contract, RootKind, Verdict
from tests.contracts.deployment.reading import SLIM, project, roots
from tests.contracts.projects import MEMORY

DOCKERFILE = SLIM + 'CMD ["gunicorn", "app:app"]\n'

RENDER = """\
services:
  - type: web
    name: api
    runtime: docker
    numInstances: 2
    maxShutdownDelaySeconds: 20
    healthCheckPath: /health
    disk: {name: data, mountPath: /data}
    envVars:
      - {key: MODE, value: fast}
      - {key: DATABASE_URL, fromDatabase: {name: db}}
  - type: worker
    name: jobs
    runtime: python
    startCommand: uvicorn app:app
  - {type: web, name: pages, runtime: static}
  - {type: cron, name: night, runtime: docker}
"""

FLY = """\
app = "agent"
kill_timeout = 10

[env]
MODE = "fast"

[[mounts]]
source = "data"
destination = "/data"
processes = ["web"]

[processes]
web = "uvicorn app:app"
jobs = "gunicorn app:app"
"""

RAILWAY = """\
[build]
builder = "DOCKERFILE"

[deploy]
startCommand = "uvicorn app:app"
restartPolicyType = "NEVER"
numReplicas = 3
drainingSeconds = 7
"""


def of(folder, name, text, **files):
    """Return the services of a platform's file beside a Dockerfile."""
    given = {"Dockerfile": DOCKERFILE, name: text, "app.py": MEMORY, **files}
    root = roots(folder, given)[name]
    assert root.kind is RootKind.PLATFORM
    return {service.name: service for service in root.services}


def test_render(tmp_path):
    found = of(tmp_path, "render.yaml", RENDER)
    assert list(found) == ["api", "jobs"]
    api, jobs = found.values()
    assert api.start.server.program == "gunicorn"
    assert (api.grace_s.value, api.grace_s.evidence[0].line) == (20.0, 6)
    assert (api.replicas.value, api.replicas.evidence[0].line) == (2, 5)
    [mount] = api.mounts
    assert (mount.path, mount.lifetime, mount.is_shared) == ("/data", Lifetime.NAMED, False)
    assert api.environment["MODE"].known.value == "fast"
    assert api.environment["DATABASE_URL"].known.question is not None
    assert api.has_readiness
    assert jobs.start.server.program == "uvicorn"
    assert jobs.start.signal.value is Signal.REACHES
    assert (jobs.grace_s.value, jobs.grace_s.is_default) == (30.0, True)


def test_fly(tmp_path):
    found = of(tmp_path, "fly.toml", FLY)
    assert [each.start.server.program for each in found.values()] == ["uvicorn", "gunicorn"]
    web, jobs = found.values()
    assert [mount.path for mount in web.mounts] == ["/data"]
    assert jobs.mounts == ()
    assert (web.grace_s.value, web.grace_s.evidence[0].line) == (10.0, 2)
    assert (web.stop_signal.value, web.stop_signal.is_default) == ("SIGINT", True)
    assert web.replicas.question == "How many machines of agent run at once (fly scale count)?"
    assert web.environment["MODE"].known.evidence[0].line == 5


IMAGES = {
    "render.yaml": """\
services:
  - type: web
    name: api
    runtime: image
    image: {url: IMAGE}
    dockerCommand: uvicorn app:app
""",
    "fly.toml": 'app = "api"\n[build]\nimage = "IMAGE"\n[processes]\napi = "uvicorn app:app"\n',
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_is_named_is_what_the_project_builds_under_that_name(tmp_path, name):
    text = IMAGES[name].replace("IMAGE", "ghcr.io/me/ours:2")
    told = {"release.sh": "docker build -t ghcr.io/me/ours:2 .\n"}
    [api] = of(tmp_path, name, text, **told).values()
    assert (api.image.dockerfile, api.start.server.program) == ("Dockerfile", "uvicorn")
    assert api.image.taken.file == "release.sh"


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_nothing_builds_is_named_as_not_judged(tmp_path, name):
    text = IMAGES[name].replace("IMAGE", "ghcr.io/them/theirs:2")
    files = {"Dockerfile": DOCKERFILE, name: text, "app.py": MEMORY}
    report = check(project(tmp_path, files).folder)
    assert [root.root for root in report.roots] == ["Dockerfile"]
    [unread] = report.unread
    assert (unread.file, "ghcr.io/them/theirs:2" in unread.reason) == (name, True)


def test_railway(tmp_path):
    [app] = of(tmp_path, "railway.toml", RAILWAY).values()
    assert app.start.server.program == "uvicorn"
    assert (app.restart.value, app.replicas.value, app.grace_s.value) == ("no", 3, 7.0)
    assert app.restart.evidence[0].line == 6


def test_railway_in_json(tmp_path):
    text = '{\n "build": {"dockerfilePath": "Dockerfile"},\n "deploy": {"numReplicas": 2}\n}\n'
    [app] = of(tmp_path, "railway.json", text).values()
    assert (app.start.server.program, app.replicas.value) == ("gunicorn", 2)
    assert app.grace_s.question == "What is drainingSeconds of the service?"


def test_a_procfile_starts_a_server_where_no_dockerfile_is(tmp_path):
    text = "release: alembic upgrade head\nweb: uvicorn app:app --port $PORT\n"
    found = roots(tmp_path, {"Procfile": text, "app.py": MEMORY})["Procfile"]
    [web] = found.services
    assert (web.name, web.place.line) == ("web", 2)
    assert web.start.server.target == "app:app"
    other = {"Procfile": text, "Dockerfile": DOCKERFILE}
    assert list(roots(tmp_path / "other", other)) == ["Dockerfile"]


def test_a_shell_of_the_platform_is_no_violation(tmp_path):
    text = "web: uvicorn app:app & sleep 1; wait\n"
    [web] = roots(tmp_path, {"Procfile": text, "app.py": MEMORY})["Procfile"].services
    assert web.start.signal.value is Signal.UNKNOWN


def verdict(folder, contract):
    [finding] = [f for r in check(folder).roots for f in r.findings if f.contract is contract]
    return finding


@pytest.mark.parametrize(
    ("name", "text", "repair"),
    [
        ("render.yaml", RENDER[: RENDER.index("  - type: worker")], "maxShutdownDelaySeconds: 40"),
        ("fly.toml", 'app = "agent"\nkill_signal = "SIGTERM"\n', "kill_timeout = 40"),
    ],
)
def test_the_time_to_stop_is_that_of_the_platform(tmp_path, name, text, repair):
    files = {"Dockerfile": DOCKERFILE, name: text, "app.py": MEMORY}
    found = verdict(project(tmp_path, files).folder, Contract.R1)
    assert found.verdict is Verdict.VIOLATED
    assert repair in found.repair


def test_what_railway_mounts_is_not_in_its_file(tmp_path):
    code = MEMORY.replace(
        "from langgraph.checkpoint.memory import InMemorySaver",
        "import sqlite3\nfrom langgraph.checkpoint.sqlite import SqliteSaver",
    ).replace("InMemorySaver()", "SqliteSaver(sqlite3.connect('/data/x.db'))")
    files = {"Dockerfile": DOCKERFILE, "railway.toml": RAILWAY, "app.py": code}
    folder = project(tmp_path, files).folder
    assert verdict(folder, Contract.S2).verdict is Verdict.UNDECIDED
    (folder / "railway.toml").unlink()
    (folder / "fly.toml").write_text('app = "agent"\n')
    assert verdict(folder, Contract.S2).verdict is Verdict.VIOLATED


OTHERS = {
    "app.json": '{"formation": {"web": {"quantity": 2}}}',
    "run.yaml": "apiVersion: serving.knative.dev/v1\nkind: Service\n",
    "main.tf": 'resource "google_cloud_run_v2_service" "api" {\n}\n',
    "agent.service": "[Service]\nExecStart=/usr/bin/agent\n",
    "ecs-task.json": '{"containerDefinitions": []}',
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_read_is_named(tmp_path, name):
    folder = project(tmp_path, {"Dockerfile": DOCKERFILE, name: OTHERS[name]}).folder
    [unread] = check(folder).unread
    assert unread.file == name
    assert "which a check can't read yet" in unread.reason


HOSTILE = {
    "fly.toml": "app = " + "[" * 5000,
    "railway.toml": "deploy = 1\nbuild = []\n",
    "railway.json": '{"deploy": {"startCommand": ["a"], "numReplicas": {"x": 1}}}',
    "render.yaml": "services: [1, [], {type: web, envVars: 3, disk: x, runtime: docker}]\n",
    "Procfile": "web: \x00'\"\nweb: ((((\n" + "a" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_none_of_them_costs_nothing_but_itself(tmp_path, name):
    files = {"Dockerfile": DOCKERFILE, name: HOSTILE[name], "app.py": MEMORY}
    report = check(project(tmp_path, files).folder)
    assert report.roots
    assert not [each for each in report.unread if "check failed" in each.reason]


CHOSEN = """\
import os
import sqlite3

from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg_pool import ConnectionPool

builder = StateGraph(MessagesState)
builder.add_node("answer", lambda state: state)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
url = os.getenv("DATABASE_URL")
saver = PostgresSaver(ConnectionPool(url)) if url else InMemorySaver()
graph = builder.compile(checkpointer=saver)
app = FastAPI()


@app.post("/{thread}")
def chat(thread: str, text: str):
    return graph.invoke({"messages": [text]}, {"configurable": {"thread_id": thread}})
"""


def in_file(path):
    """Return the application with SQLite at a path."""
    made = CHOSEN.index("url = ")
    end = CHOSEN.index("graph = builder.compile")
    saver = f"saver = SqliteSaver(sqlite3.connect({path!r}, check_same_thread=False))\n"
    return CHOSEN[:made] + saver + CHOSEN[end:]


def verdicts(folder, files, *contracts):
    """Return the verdicts on the only service of a platform's file."""
    made = project(folder, files).folder
    [root] = [each for each in check(made).roots if each.kind is RootKind.PLATFORM]
    found = {finding.contract: finding for finding in root.findings}
    return [found[each] for each in contracts]


DOCKER = "services:\n  - type: web\n    name: api\n    runtime: docker\n"

GROUP = """\
    envVars:
      - fromGroup: settings
"""

PLATFORMS = {
    "render.yaml": DOCKER,
    "fly.toml": 'app = "agent"\n',
    "railway.json": '{"deploy": {"numReplicas": 1}}\n',
    "Procfile": "web: uvicorn app:app\n",
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_what_a_platform_is_told_elsewhere_is_not_unset(tmp_path, name):
    files = {name: PLATFORMS[name], "app.py": CHOSEN}
    if name != "Procfile":
        files["Dockerfile"] = DOCKERFILE
    for found in verdicts(tmp_path, files, Contract.S1, Contract.S2):
        assert found.verdict is Verdict.UNDECIDED
        assert "DATABASE_URL" in found.question


def test_a_dockerfile_beside_a_platforms_file_is_judged_for_itself(tmp_path):
    files = {"Dockerfile": DOCKERFILE, "fly.toml": PLATFORMS["fly.toml"], "app.py": CHOSEN}
    folder = project(tmp_path, files).folder
    verdict_of = {
        root.kind: next(f for f in root.findings if f.contract is Contract.S1).verdict
        for root in check(folder).roots
    }
    assert verdict_of[RootKind.PLATFORM] is Verdict.UNDECIDED
    (folder / "fly.toml").unlink()
    assert verdict(folder, Contract.S1).verdict is Verdict.VIOLATED


def test_variables_of_a_group_of_render(tmp_path):
    group = (
        "envVarGroups:\n  - name: settings\n    envVars:\n"
        "      - {key: DATABASE_URL, value: 'postgresql://db.example/chat'}\n"
    )
    files = {"Dockerfile": DOCKERFILE, "render.yaml": DOCKER + GROUP + group, "app.py": CHOSEN}
    [kept] = verdicts(tmp_path, files, Contract.S1)
    assert kept.verdict is Verdict.HELD


@pytest.mark.parametrize("name", PLATFORMS)
def test_what_no_volume_holds_is_not_kept_by_a_restart(tmp_path, name):
    files = {name: PLATFORMS[name], "app.py": in_file("/data/chat.db")}
    if name != "Procfile":
        files["Dockerfile"] = DOCKERFILE
    [found] = verdicts(tmp_path, files, Contract.S1)
    lost = Verdict.VIOLATED if name == "render.yaml" else Verdict.UNDECIDED
    assert found.verdict is lost


def test_render_puts_the_project_in_a_folder_of_its_own(tmp_path):
    text = (
        "services:\n  - type: web\n    name: api\n    runtime: python\n"
        "    startCommand: uvicorn app:app\n"
        "    disk: {name: data, mountPath: /opt/render/project/src/data}\n"
    )
    files = {"render.yaml": text, "app.py": in_file("data/chat.db")}
    for found in verdicts(tmp_path, files, Contract.S1, Contract.S2):
        assert found.verdict is Verdict.HELD


def test_gunicorn_does_not_finish_on_the_signal_of_fly(tmp_path):
    files = {"Dockerfile": DOCKERFILE, "fly.toml": PLATFORMS["fly.toml"], "app.py": MEMORY}
    for found in verdicts(tmp_path, files, Contract.R1, Contract.R2):
        assert found.verdict is Verdict.UNDECIDED
        assert "SIGINT" in found.question
    files["fly.toml"] += 'kill_signal = "SIGTERM"\n'
    [found] = verdicts(tmp_path, files, Contract.R2)
    assert found.verdict is Verdict.HELD


def test_the_signal_that_is_sent_is_the_one_that_is_named(tmp_path):
    files = {
        "Dockerfile": SLIM + 'CMD ["uvicorn", "app:app"]\n',
        "fly.toml": PLATFORMS["fly.toml"],
        "app.py": MEMORY,
    }
    [found] = verdicts(tmp_path, files, Contract.R2)
    assert found.verdict is Verdict.HELD
    assert found.summary.startswith("SIGINT gets to uvicorn")


@pytest.mark.parametrize("key", ["cmd", "entrypoint"])
def test_fly_starts_something_else_than_the_image(tmp_path, key):
    text = (
        PLATFORMS["fly.toml"] + f'[experimental]\n{key} = ["sh", "-c", "uvicorn app:app; true"]\n'
    )
    [app] = of(tmp_path, "fly.toml", text).values()
    assert app.start.server.program == "uvicorn"
    assert app.start.signal.value is Signal.LOST


def test_memory_of_a_machine_of_fly(tmp_path):
    text = PLATFORMS["fly.toml"] + '[[vm]]\nmemory = "1gb"\n'
    [app] = of(tmp_path, "fly.toml", text).values()
    assert (app.memory_bytes.value, app.memory_bytes.evidence[0].line) == (2**30, 3)


def test_buildpacks_of_fly_leave_the_dockerfile_alone(tmp_path):
    text = PLATFORMS["fly.toml"] + '[build]\nbuilder = "paketobuildpacks/builder:base"\n'
    files = {"Dockerfile": DOCKERFILE, "fly.toml": text, "app.py": MEMORY}
    assert "fly.toml" not in roots(tmp_path, files)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (
            '{"deploy": {"multiRegionConfig": {"a": {"numReplicas": 2}, "b": {"numReplicas": 1}}}}',
            3,
        ),
        ('{"deploy": {}, "environments": {"production": {"deploy": {"numReplicas": 3}}}}', 3),
        ('{"deploy": {"numReplicas": 0}}', 0),
    ],
)
def test_replicas_of_all_regions_and_environments_of_railway(tmp_path, text, count):
    [app] = of(tmp_path, "railway.json", text).values()
    assert app.replicas.value == count


BOMBS = {
    "fly.toml": 'app = "a"\n[' + " " * 20_000 + '"$"]\nx = 1\n',
    "fly.a.toml": 'app = "a"\n' + "a." * 40_000 + "a = 1\n",
    "fly.c.toml": 'app = "a"\n' + ("a." * 50 + '"\u2028".') * 900 + "a = 1\n",
    "fly.d.toml": 'app = ["""\n\' """, {' + "a." * 40_000 + "a = 1}, '']\n",
    "fly.b.toml": 'app = "a"\nkill_timeout = 0x' + "F" * 6000 + "\n",
    "Procfile": "web: x" + " " * 90_000 + "y\n",
    "app.yaml": "services:" + "\n" * 30_000 + "x: 1\n",
    "app.yml": "services:\n" * 9000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_the_square_of_its_length_is_read_in_one_pass(tmp_path, name):
    """Without a bound, each takes longer than the whole file of tests may."""
    files = {name: BOMBS[name], "app.py": MEMORY}
    if name != "Procfile":
        files["Dockerfile"] = DOCKERFILE
    report = check(project(tmp_path, files).folder)
    assert report.roots
    assert not [each for each in report.unread if "check failed" in each.reason]
