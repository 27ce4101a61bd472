"""Drains, migrations, fallbacks, leases, handlers and hints."""

from textwrap import dedent

import pytest

from perdure.contracts.code import _migrations
from perdure.contracts.code.facts import Medium


def app(text: str) -> dict[str, str]:
    return {"app.py": dedent(text)}


def test_a_drain_is_read_through_its_setting(read):
    files = {
        "settings.py": "from pydantic_settings import BaseSettings\n"
        "class Settings(BaseSettings):\n    DRAIN_S: float = 45.0\nsettings = Settings()\n",
        "app.py": dedent(
            """
            import asyncio
            from settings import settings
            async def stop(tasks):
                await asyncio.wait(tasks, timeout=settings.DRAIN_S)
            async def lifespan(app):
                yield
                await stop([])
            app = FastAPI(lifespan=lifespan)
            """
        ),
    }
    (drain,) = read(files).drains
    assert drain.seconds.value == 45.0
    assert ("settings.py", 3) in {(step.file, step.line) for step in drain.seconds.evidence}
    (other,) = read(files, environment={"DRAIN_S": "7"}).drains
    assert other.seconds.value == 7


def test_a_wait_of_a_request_is_no_drain(read):
    files = app(
        """
        import asyncio
        async def answer(task):
            return await asyncio.wait_for(task, timeout=300)
        app = answer
        """
    )
    assert not read(files).drains


def test_uvicorn_without_a_limit_waits_for_ever_and_handles_the_signal(read):
    facts = read({"run.py": "import uvicorn\nuvicorn.run('run:app')\n"}, "python", "run.py")
    (drain,) = facts.drains
    assert drain.seconds.value is None
    assert drain.seconds.question is None
    assert facts.handlers


MIGRATION = """
from contextlib import asynccontextmanager
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
{decorator}
async def prepare():
    saver = AsyncPostgresSaver(pool)
    await saver.setup()
@asynccontextmanager
async def lifespan(app):
    {at_start}
    yield
app = lifespan
@app.get("/")
async def route():
    await prepare()
"""


@pytest.mark.parametrize(
    ("decorator", "at_start", "is_lazy", "retries"),
    [("", "await prepare()", False, False), ("", "pass", True, False),
     ("@retry(stop=3)", "await prepare()", False, True)],
)  # fmt: skip
def test_migrations_at_start_and_with_the_first_request(
    read, decorator, at_start, is_lazy, retries
):
    text = MIGRATION.format(decorator=decorator, at_start=at_start)
    (migration,) = read({"app.py": text}).migrations
    assert migration.medium is Medium.POSTGRES
    assert (migration.is_lazy, bool(migration.retries)) == (is_lazy, retries)


FALLBACK = """
import os
from langgraph.checkpoint.memory import MemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph
builder = StateGraph(dict)
def make():
{body}
app = builder.compile(checkpointer=make())
"""


TRIES = "    try:\n        return PostgresSaver(pool)\n    except Exception:\n"
UNSET = """
    url = os.getenv("URL")
    if not url:
        return MemorySaver()
    return PostgresSaver(url)
"""
CHOSEN = """
    if os.getenv("KIND", "pg") == "memory":
        return MemorySaver()
    return PostgresSaver(pool)
"""


@pytest.mark.parametrize(
    ("body", "cause", "becomes"),
    [
        (TRIES + "        return MemorySaver()", "failed", Medium.MEMORY),
        (TRIES + "        log()\n    return None", "failed", Medium.NONE),
        (UNSET, "unset", Medium.MEMORY),
        (TRIES + "        raise", None, None),
        (CHOSEN, None, None),
    ],
    ids=["memory", "none", "unset", "raises", "chosen"],
)
def test_fallbacks_are_told_by_their_cause(read, body, cause, becomes):
    found = [
        (one.cause, one.becomes) for one in read({"app.py": FALLBACK.format(body=body)}).degrades
    ]
    assert found == ([(cause, becomes)] if cause else [])


def test_a_context_manager_that_nobody_enters_and_a_name_that_is_not_there(read):
    files = app(
        """
        from langgraph.checkpoint.postgres import PostgresCheckpointer
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import StateGraph
        graph = StateGraph(dict).compile(checkpointer=SqliteSaver.from_conn_string("a.db"))
        """
    )
    found = {(one.cause, one.evidence[-1].line) for one in read(files).degrades}
    assert found == {("misuse", 2), ("misuse", 5)}


def test_an_entered_saver_is_used_as_it_should_be(read):
    files = app(
        """
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import StateGraph
        with SqliteSaver.from_conn_string("a.db") as saver:
            graph = StateGraph(dict).compile(checkpointer=saver)
        """
    )
    assert not read(files).degrades


@pytest.mark.parametrize(
    ("call", "expires"),
    [("redis_client.lock('a')", False), ("redis_client.lock('a', timeout=30)", True),
     ("redis_client.set('a', '1', nx=True)", False),
     ("redis_client.set('a', '1', nx=True, ex=30)", True),
     ("cursor.execute('select pg_advisory_lock(1)')", True)],
)  # fmt: skip
def test_leases_end_by_themselves_or_do_not(read, call, expires):
    facts = read({"app.py": f"import redis\nredis_client = redis.Redis()\n{call}\n"})
    assert [lease.expires for lease in facts.leases] == [expires]


def test_a_lock_of_a_file_ends_with_the_process(read):
    begun = "import fcntl\nhandle = open('a.lock')\n"
    taken = read({"app.py": f"{begun}fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"})
    assert [(one.what, one.expires) for one in taken.leases] == [("a lock of a file", True)]
    assert not read({"app.py": f"{begun}fcntl.flock(handle, fcntl.LOCK_UN)\n"}).leases


def test_streams_without_ids_are_hinted_at(read):
    text = (
        "from fastapi.responses import StreamingResponse\n"
        "def app():\n    return StreamingResponse(events(), media_type='text/event-stream')\n"
    )
    assert [hint.contract for hint in read({"app.py": text}).hints] == ["C2"]
    resumable = text + "def more(request):\n    return request.headers['Last-Event-ID']\n"
    assert not read({"app.py": resumable}).hints


def test_a_module_that_a_request_imports_migrates_with_the_request(read):
    files = {
        "tables.py": "from langgraph.checkpoint.postgres import PostgresSaver\n"
        "saver = PostgresSaver(pool)\nsaver.setup()\n",
        "app.py": "@app.get('/')\ndef route():\n    import tables\n",
    }
    (migration,) = read(files).migrations
    assert migration.is_lazy


def test_a_context_manager_that_is_entered_by_hand_is_no_misuse(read):
    files = app(
        """
        from langgraph.checkpoint.redis import RedisSaver
        from langgraph.graph import StateGraph
        context = RedisSaver.from_conn_string("redis://cache")
        graph = StateGraph(dict).compile(checkpointer=context.__enter__())
        """
    )
    assert not read(files).degrades


def test_a_saver_that_is_taken_when_it_is_there_is_no_fallback(read):
    files = app(
        """
        from langgraph.graph import StateGraph
        from langgraph.checkpoint.memory import MemorySaver

        def durable():
            try:
                from langgraph.checkpoint.sqlite import SqliteSaver
                import sqlite3
            except ImportError:
                return None
            return SqliteSaver(sqlite3.connect("a.db"))

        def build(saver):
            if saver:
                return StateGraph(dict).compile(checkpointer=saver)
            raise SystemExit

        def start():
            return build(MemorySaver())

        def reload():
            return build(durable())

        app = start()
        reload()
        """
    )
    assert not read(files).degrades


CLIENT = """
import httpx
import streamlit as st
if "thread_id" not in st.session_state:
    st.session_state.thread_id = "a"
def ask(text):
    return httpx.post("http://agent/chat", json={"thread_id": st.session_state.thread_id})
ask("hello")
"""
OWN = """
from langgraph.graph import StateGraph
graph = StateGraph(dict).compile()
graph.invoke({}, {"configurable": {"thread_id": "a"}})
"""


def test_threads_that_are_only_passed_on_are_the_other_services(read):
    assert not read({"ui.py": CLIENT}, "streamlit", "run", "ui.py").uses_threads
    assert read({"ui.py": CLIENT + OWN}, "streamlit", "run", "ui.py").uses_threads
    alone = CLIENT.replace("import httpx\nimport streamlit as st", "from other import st, httpx")
    runs = 'ask({"configurable": {"thread_id": st.session_state.thread_id}})\n'
    assert read({"ui.py": alone + runs}, "streamlit", "run", "ui.py").uses_threads


MAIL = """
from langgraph.graph import StateGraph
graph = StateGraph(dict).compile()
def parsed(mail):
    return {"thread_id": mail["threadId"], "text": mail["snippet"]}
def answer(mail):
    return graph.invoke(parsed(mail)CONFIG)
answer({})
"""


@pytest.mark.parametrize(
    ("config", "uses"),
    [
        ("", False),
        (', {"configurable": {"thread_id": "a"}}', True),
        (', RunnableConfig(configurable={"thread_id": "a"})', True),
    ],
)
def test_threads_of_mail_are_none_of_a_graph(read, config, uses):
    found = read({"app.py": MAIL.replace("CONFIG", config)}, "python", "app.py")
    assert bool(found.uses_threads) is uses


TWO_AT_A_START = """
import os
from fastapi import FastAPI
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph
from qdrant_client import QdrantClient
app = FastAPI()
QdrantClient(os.environ["QDRANT"]).create_collection("memories")
def made():
    saver = PostgresSaver(os.environ["DB"])
    saver.setup()
    return saver
graph = StateGraph(dict).compile(checkpointer=made())
"""


def test_what_one_migration_costs_to_follow_hides_no_other(read, monkeypatch):
    def followed(flow, scope, call):
        del scope, call
        flow.left = -1.0
        return True

    monkeypatch.setattr(_migrations, "_may_run", followed)
    found = read({"app.py": TWO_AT_A_START}, environment={"DB": "postgresql://db", "QDRANT": "q"})
    assert {one.evidence[-1].line for one in found.migrations} == {8, 11}


ALIKE = """
from fastapi import FastAPI
from qdrant_client import QdrantClient
class Memories:
    def initialize(self):
        QdrantClient("q").create_collection("memories")
class Cache:
    def initialize(self): ...
class Queue:
    def initialize(self): ...
memories, others = Memories(), [Cache(), Queue()]
store = Memories()
app = FastAPI()
@app.on_event("startup")
async def begin():
    {call}
@app.post("/")
def post():
    Memories().initialize()
"""


@pytest.mark.parametrize(
    ("call", "is_lazy"), [("store.initialize()", False), ("others[0].initialize()", True)]
)
def test_a_method_of_a_modules_object_is_the_one_of_its_class(read, call, is_lazy):
    [made] = read(app(ALIKE.format(call=call))).migrations
    assert made.is_lazy is is_lazy
