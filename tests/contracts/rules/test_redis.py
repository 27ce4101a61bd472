"""Savers in Redis: what its image must have, and what its command lets it keep."""

import pytest

from perdure.contracts.check import Settings, check
from perdure.contracts.findings import Contract, Finding, Verdict
from tests.contracts.projects import project

APP = """import os
from fastapi import FastAPI
from langgraph.checkpoint.redis import RedisSaver
from langgraph.graph import StateGraph

app = FastAPI()
saver = RedisSaver(os.environ["REDIS_URL"])
saver.setup()
graph = StateGraph(dict).compile(checkpointer=saver)


@app.post("/ask")
def ask(text: str, thread: str):
    return graph.invoke({"text": text}, {"configurable": {"thread_id": thread}})
"""
OWN = """import os
import redis
from langgraph.checkpoint.base import BaseCheckpointSaver


class RedisSaver(BaseCheckpointSaver):
    def __init__(self, url):
        self.client = redis.Redis.from_url(url)

    def setup(self):
        self.client.ping()

    def put(self, config, checkpoint, metadata, new_versions):
        self.client.set(config["configurable"]["thread_id"], checkpoint)
"""


def compose(image: str, command: str = "") -> str:
    """Return a deployment with a Redis on a volume."""
    return f"""services:
  api:
    build: .
    environment: {{REDIS_URL: "redis://redis:6379"}}
    deploy: {{replicas: 2}}
  redis:
    image: {image}
    volumes: [data:/data]
{command}
volumes: {{data: {{}}}}
"""


def found(tmp_path, text: str, app: str = APP, **files: str) -> dict[Contract, Finding]:
    """Return the findings of S1 to S3."""
    folder = project(tmp_path, app_dot_py=app, compose_dot_yaml=text, **files)
    report = check(folder, Settings(only=(Contract.S1, Contract.S2, Contract.S3)))
    return {one.contract: one for one in report.roots[0].findings if one.service == "api"}


@pytest.mark.parametrize(
    "image",
    [
        "redis:7",
        "redis:7-alpine",
        "redis:6.2",
        "docker.io/redis:7.4",
        "redis:7@sha256:abcd",
        "redis@sha256:abcd",
        "public.ecr.aws/docker/library/redis:7",
        "valkey/valkey:8",
    ],
)
def test_a_saver_in_a_redis_without_modules_holds_nothing(tmp_path, image):
    for one in found(tmp_path, compose(image)).values():
        assert one.verdict is Verdict.UNDECIDED
        assert "RediSearch" in (one.question or "")
        assert [(each.file, each.line) for each in one.evidence][-1] == ("compose.yaml", 7)


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("redis:8", ""),
        ("redis", ""),
        ("redis:8@sha256:abcd", ""),
        ("public.ecr.aws/docker/library/redis:8", ""),
        ("valkey/valkey-bundle:8", ""),
        ("redis/redis-stack-server:7.4.0-v0", ""),
        ("redis:7", "    command: redis-server --loadmodule /opt/redisearch.so"),
    ],
)
def test_what_may_have_the_modules_is_judged_as_before(tmp_path, image, command):
    assert {one.verdict for one in found(tmp_path, compose(image, command)).values()} == {
        Verdict.HELD
    }


def test_a_saver_of_the_project_needs_no_modules(tmp_path):
    app = APP.replace("langgraph.checkpoint.redis", "keeping")
    files = found(tmp_path, compose("redis:7"), app, keeping_dot_py=OWN)
    assert {one.verdict for one in files.values()} == {Verdict.HELD}


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ('redis-server --save "" --appendonly no', Verdict.VIOLATED),
        ('redis-server --save ""', Verdict.VIOLATED),
        ('["--save", "", "--appendonly", "no"]', Verdict.VIOLATED),
        ('["--save", "", "--appendonly", "yes"]', Verdict.HELD),
        ('redis-server --save "" --appendonly yes', Verdict.HELD),
        ("redis-server --appendonly no", Verdict.HELD),
        ('redis-server /etc/redis.conf --save ""', Verdict.HELD),
    ],
)
def test_a_volume_keeps_what_redis_writes(tmp_path, command, verdict):
    findings = found(tmp_path, compose("redis:8", f"    command: {command}"))
    assert findings[Contract.S2].verdict is verdict
    assert findings[Contract.S1].verdict is Verdict.HELD
    if verdict is Verdict.VIOLATED:
        assert ("compose.yaml", 9) in {
            (one.file, one.line) for one in findings[Contract.S2].evidence
        }
        assert "--appendonly yes" in (findings[Contract.S2].repair or "")


FALLEN = APP.replace(
    'saver = RedisSaver(os.environ["REDIS_URL"])\nsaver.setup()\n',
    """
def made():
    try:
        saver = RedisSaver(os.environ["REDIS_URL"])
        saver.setup()
        return saver
    except Exception:
        return InMemorySaver()


saver = made()
""",
).replace("import os\n", "import os\nfrom langgraph.checkpoint.memory import InMemorySaver\n")

SETTING_UP = "        saver.setup()\n"
NESTED = FALLEN.replace(
    SETTING_UP,
    "        try:\n            saver.setup()\n        except Exception:\n            pass\n",
)
ASKED = FALLEN.replace(SETTING_UP, '        if os.environ.get("NEW"):\n            saver.setup()\n')
OTHER = FALLEN.replace(SETTING_UP, "        tracing.setup()\n")
NARROW = FALLEN.replace("except Exception", "except redis.exceptions.ConnectionError")
BEFORE = FALLEN.replace("    except Exc", "    except ValueError:\n        raise\n    except Exc")
MISSING = FALLEN.replace("    except Exc", "    except ImportError:\n        raise\n    except Exc")
DEFAULT = FALLEN.replace('environ["REDIS_URL"]', 'environ.get("URL", "redis://redis:6379")')
THERE = ASKED.replace('os.environ.get("NEW")', 'hasattr(saver, "setup")')
LATER = FALLEN.replace("        saver.setup()\n", "")
LOADING = "  loading: {image: redis:7, command: redis-cli -h redis module load /search.so}\n"
RAISED = FALLEN.replace("return InMemorySaver()", "raise")


@pytest.mark.parametrize(
    ("app", "image", "command", "verdict"),
    [
        (FALLEN, "redis:7", "", Verdict.VIOLATED),
        (FALLEN, "valkey/valkey:8", "", Verdict.VIOLATED),
        (FALLEN, "redis:8", "", Verdict.HELD),
        (FALLEN, "redis@sha256:abcd", "", Verdict.UNDECIDED),
        (FALLEN, "redis:7", "    command: [redis-server, /etc/redis.conf]", Verdict.UNDECIDED),
        (FALLEN, "redis:7", "    command: redis-server --save 60 1", Verdict.VIOLATED),
        (FALLEN, "redis:7", "    command: [--appendonly, 'yes']", Verdict.VIOLATED),
        (FALLEN, "redis:7", "    command: [redis-server, /etc/settings]", Verdict.UNDECIDED),
        (FALLEN, "redis:7", "    command: redis-server --include /s", Verdict.UNDECIDED),
        (FALLEN, "redis:7", "    command: sh -c 'redis-server - < /s'", Verdict.UNDECIDED),
        (FALLEN, "redis:7", "    entrypoint: /start.sh", Verdict.UNDECIDED),
        (FALLEN, "redis:7", LOADING, Verdict.UNDECIDED),
        (FALLEN, "valkey/valkey", "", Verdict.UNDECIDED),
        (MISSING, "redis:7", "", Verdict.VIOLATED),
        (BEFORE, "redis:7", "", Verdict.UNDECIDED),
        (NARROW, "redis:7", "", Verdict.UNDECIDED),
        (NESTED, "redis:7", "", Verdict.UNDECIDED),
        (ASKED, "redis:7", "", Verdict.UNDECIDED),
        (OTHER, "redis:7", "", Verdict.UNDECIDED),
        (DEFAULT, "redis:7", "", Verdict.UNDECIDED),
        (LATER, "redis:7", "", Verdict.UNDECIDED),
        (THERE, "redis:7", "", Verdict.VIOLATED),
        (RAISED, "redis:7", "", Verdict.UNDECIDED),
    ],
)
def test_a_saver_that_surely_fails_leaves_what_its_handler_makes(
    tmp_path, app, image, command, verdict
):
    said = found(tmp_path, compose(image, command), app)
    assert {one.verdict for one in said.values()} == {verdict}
    if verdict is Verdict.VIOLATED:
        assert "InMemorySaver" in said[Contract.S1].summary
        told = [(each.file, each.line) for each in said[Contract.S1].evidence]
        assert told[0] == ("compose.yaml", 7)
        assert ("app.py", app[: app.index("return InMemorySaver")].count("\n") + 1) in told


@pytest.mark.parametrize("said", ['"${REDIS_URL:-redis://redis:6379}"', '"${REDIS_URL}"'])
def test_a_redis_that_may_be_another_one_is_not_sure_to_refuse(tmp_path, said):
    text = compose("redis:7").replace('"redis://redis:6379"', said)
    assert {one.verdict for one in found(tmp_path, text, FALLEN).values()} == {Verdict.UNDECIDED}


STEPS = APP.replace(
    "graph = StateGraph(dict)",
    'steps = StateGraph(dict)\nsteps.add_node("a", ask)\nsteps.add_node("b", ask)\ngraph = steps',
)
UNENTERED = STEPS.replace("RedisSaver(os", "RedisSaver.from_conn_string(os").replace(
    "saver.setup()\n", ""
)


@pytest.mark.parametrize(
    ("app", "image", "verdict"),
    [
        (STEPS, "redis:8", Verdict.HELD),
        (STEPS, "redis:7", Verdict.UNDECIDED),
        (UNENTERED, "redis:8", Verdict.UNDECIDED),
    ],
)
def test_steps_are_saved_by_a_saver_that_can_work(tmp_path, app, image, verdict):
    folder = project(tmp_path, app_dot_py=app, compose_dot_yaml=compose(image))
    report = check(folder, Settings(only=(Contract.R3, Contract.S3)))
    said = {one.contract: one.verdict for one in report.roots[0].findings if one.service == "api"}
    assert said == {Contract.R3: verdict, Contract.S3: verdict}
