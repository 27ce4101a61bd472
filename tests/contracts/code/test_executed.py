"""What settings turn off: swallowed failures and leases that this deployment never comes to."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium
from perdure.contracts.deployment.facts import Root
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import RootKind, Verdict
from perdure.contracts.rules import _degrade, _resources
from tests.contracts.code.conftest import service_of

ROOT = Root(root="compose.yaml", kind=RootKind.COMPOSE, services=(), files=())

POOL = """
import os
from enum import Enum
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import StateGraph
from psycopg_pool import AsyncConnectionPool

class Stage(str, Enum):
    LOCAL = "local"
    LIVE = "live"

def stage():
    match os.getenv("STAGE"{default}).lower():
        case "live" | "prod":
            return Stage.LIVE
        case _:
            return Stage.LOCAL

class Agent:
    def __init__(self):
        self.stage = stage()

    async def pool(self):
        try:
            return AsyncConnectionPool("postgresql://db/x")
        except Exception as error:
            if self.stage == Stage.LIVE:
                return None
            raise error

    async def graph(self):
        builder = StateGraph(dict)
        pool = await self.pool()
        if pool:
            saver = AsyncPostgresSaver(pool)
        else:
            saver = None
        return builder.compile(checkpointer=saver)

agent = Agent()
async def app():
    return await agent.graph()
"""


@pytest.mark.parametrize(
    ("default", "more", "verdict"),
    [
        (', "local"', {}, Verdict.HELD),
        (', "local"', {"environment": {"STAGE": "local"}}, Verdict.HELD),
        (', "local"', {"environment": {"STAGE": "live"}}, Verdict.VIOLATED),
        (', "local"', {"assume": {"STAGE": "prod"}}, Verdict.VIOLATED),
        ("", {"environment": {}}, Verdict.UNDECIDED),
    ],
    ids=["default", "deployed", "live", "assumed", "undeclared"],
)
def test_a_setting_that_guards_the_swallow_decides(read, default, more, verdict):
    text = POOL.replace("{default}", default)
    if not default:
        text = text.replace('os.getenv("STAGE")', 'os.environ["STAGE"]')
    code = read({"app.py": text}, **more)
    found = _degrade.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert found.verdict is verdict
    if verdict is Verdict.VIOLATED:
        lines = {step.line for step in found.evidence}
        assert text.splitlines().index("        except Exception as error:") + 1 in lines
        assert found.assumptions == (("STAGE=prod",) if "assume" in more else ())
    if verdict is Verdict.UNDECIDED:
        assert "STAGE" in (found.question or "")


BACKEND = """
from langgraph.checkpoint.memory import MemorySaver
from langgraph.checkpoint.redis import RedisSaver
from langgraph.graph import StateGraph
from settings import settings

def make():
    if settings.backend == "redis":
        try:
            return RedisSaver.from_conn_string("redis://cache").__enter__()
        except Exception as error:
            log(error)
            return MemorySaver()
    return MemorySaver()

app = StateGraph(dict).compile(checkpointer=make())
"""
SETTINGS = """
from pydantic_settings import BaseSettings
class Settings(BaseSettings):
    backend: str = "memory"
    run_code: bool = False
settings = Settings()
"""


@pytest.mark.parametrize(
    ("environment", "verdict"),
    [({}, Verdict.NOT_APPLICABLE), ({"BACKEND": "redis"}, Verdict.VIOLATED)],
)
def test_a_durable_backend_that_is_not_configured_can_not_fail(read, environment, verdict):
    code = read({"app.py": BACKEND, "settings.py": SETTINGS}, environment=environment)
    found = _degrade.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert found.verdict is verdict
    if verdict is Verdict.VIOLATED:
        assert ("app.py", 11) in {(step.file, step.line) for step in found.evidence}
        assert found.evidence[-1].line == 13


def test_a_graph_that_is_not_made_at_all_is_no_weaker_storage(read):
    text = dedent(
        """
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.graph import StateGraph
        def make():
            try:
                return StateGraph(dict).compile(checkpointer=PostgresSaver(pool))
            except Exception:
                return None
        app = make()
        """
    )
    assert not read({"app.py": text}).degrades


SANDBOX = """
import docker
class Box:
    def __init__(self):
        self.client = docker.from_env()
    def run(self, code):
        made = self.client.containers.run("python", detach=True)
        try:
            return made.logs()
        finally:
            made.remove(force=True)
    def end(self):
        self.client.close()
"""
TOOLS = """
from langchain_core.tools import tool
from box import Box
@tool
def run_python(code):
    return Box().run(code)
"""
TAKING = """
from settings import settings
def tools():
    found = []
    if settings.run_code:
        from tools import run_python
        found.append(run_python)
    return found
app = tools()
"""
FILES = {"box.py": SANDBOX, "tools.py": TOOLS, "app.py": TAKING, "settings.py": SETTINGS}


@pytest.mark.parametrize(
    ("more", "verdict", "confidence"),
    [
        ({}, Verdict.NOT_APPLICABLE, Confidence.DECLARED_DEFAULT),
        ({"environment": {"RUN_CODE": "true"}}, Verdict.VIOLATED, Confidence.PROVED),
        ({"assume": {"RUN_CODE": "true"}}, Verdict.VIOLATED, Confidence.PROVED),
    ],
)
def test_what_is_taken_behind_a_setting_counts_where_it_is_on(read, more, verdict, confidence):
    code = read(FILES, **more)
    found = _resources.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert (found.verdict, found.confidence) == (verdict, confidence)


def test_the_client_that_is_closed_gives_nothing_back_that_it_made(read):
    (lease,) = read(FILES, environment={"RUN_CODE": "true"}).leases
    assert [step.line for step in lease.release] == [11]


def test_a_use_without_a_setting_is_enough(read):
    more = (
        "\ndef always():\n    from tools import run_python\n    return run_python('1')\nalways()\n"
    )
    (lease,) = read({**FILES, "app.py": TAKING + more}).leases
    assert lease.when.value is True


def test_a_provisioner_of_sandboxes_is_asked_over_http(read):
    text = dedent(
        """
        import httpx
        class Provisioner:
            def create(self, name):
                return httpx.post(f"{self.base}/api/sandboxes", json={"id": name})
            def touch(self, name):
                httpx.post(f"{self.base}/api/sandboxes/{name}")
            def delete(self, name):
                httpx.delete(f"{self.base}/api/sandboxes/{name}")
        app = Provisioner().create("a")
        """
    )
    (lease,) = read({"app.py": text}).leases
    assert (lease.what, lease.expires, lease.evidence[-1].line) == ("a sandbox", None, 5)
    assert [step.line for step in lease.release] == [9]


TWICE = """
import os
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
def make():
    saver = None
    if os.getenv("BACKEND", "sqlite") == "postgres":
        try:
            saver = PostgresSaver(pool)
        except Exception:
            saver = None
    if saver is None:
        try:
            saver = SqliteSaver(conn)
        except Exception:
            saver = InMemorySaver()
    return saver
app = StateGraph(dict).compile(checkpointer=make())
"""


def test_of_two_swallows_the_one_that_happens_here_counts(read):
    code = read({"app.py": TWICE})
    found = _degrade.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert found.verdict is Verdict.VIOLATED
    assert found.evidence[-1].line == 18


def test_medium_of_the_weaker_one(read):
    code = read({"app.py": BACKEND, "settings.py": SETTINGS})
    assert {one.becomes for one in code.degrades} == {Medium.MEMORY}


CHAIN = """
import os
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph
{body}
app = StateGraph(dict).compile(checkpointer=make())
"""
NESTED = """
def make():
    if os.getenv("URL"):
        try:
            return PostgresSaver(pool)
        except Exception:
            log()
    return InMemorySaver()
"""
TRIED = """
def postgres():
    try:
        return PostgresSaver(pool)
    except Exception:
        return None
def make():
    if os.getenv("URL"):
        saver = postgres()
        if saver:
            return saver
    return InMemorySaver()
"""


@pytest.mark.parametrize("body", [NESTED, TRIED], ids=["nested", "tried"])
def test_what_comes_after_a_nested_return_is_not_reached(read, body):
    files = {"app.py": CHAIN.format(body=body)}
    durable = read(files, environment={"URL": "postgresql://db"})
    taken = {site.medium for site in durable.sites if site.chosen.value and site.is_served}
    assert taken == {Medium.POSTGRES}
    found = _degrade.judge(service_of(("uvicorn", "app:app")), durable, ROOT)
    assert found.verdict is Verdict.VIOLATED
    volatile = read(files)
    assert {s.medium for s in volatile.sites if s.chosen.value and s.is_served} == {Medium.MEMORY}
    found = _degrade.judge(service_of(("uvicorn", "app:app")), volatile, ROOT)
    assert found.confidence is not Confidence.PROVED


ASKED = """
from contextlib import contextmanager
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.redis import RedisSaver
from langgraph.graph import StateGraph
@contextmanager
def opened(durable=True):
    try:
        saver = RedisSaver.from_conn_string("redis://cache").__enter__()
    except Exception as error:
        if durable:
            raise RuntimeError from error
        yield InMemorySaver()
        return
    yield saver
def app(request):
    with opened(durable=bool(request.id)) as saver:
        return StateGraph(dict).compile(checkpointer=saver)
"""


def test_a_failure_that_is_raised_where_durability_was_asked_for_is_a_question(read):
    code = read({"app.py": ASKED})
    found = _degrade.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert found.verdict is Verdict.UNDECIDED


UNUSED = """
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import StateGraph
from settings import settings
def make():
    url = getattr(settings, "nowhere", None)
    if url:
        try:
            from langgraph.checkpoint.postgres import PostgresSaver
            return PostgresSaver.from_conn_string(url)
        except Exception:
            log()
    return MemorySaver()
app = StateGraph(dict).compile(checkpointer=make())
"""


def test_misuse_on_a_branch_that_is_not_taken_is_no_violation(read):
    code = read({"app.py": UNUSED, "settings.py": SETTINGS})
    found = _degrade.judge(service_of(("uvicorn", "app:app")), code, ROOT)
    assert found.verdict is Verdict.NOT_APPLICABLE
    taken = [site.medium for site in code.sites if site.is_served and site.chosen.value]
    assert taken == [Medium.MEMORY]
