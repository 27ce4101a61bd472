"""What a durable saver leaves behind whose failure is only logged."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium

HEAD = """
import os
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import StateGraph
app = FastAPI()
"""
TAIL = """
@app.post("/run")
async def run(thread_id: str):
    graph = StateGraph(dict).compile(checkpointer=saver_of())
    return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
"""
BODIES = {
    "a later statement": (
        """
        _saver = None
        def saver_of():
            global _saver
            for attempt in range(3):
                try:
                    _saver = PostgresSaver(os.environ["DB"])
                    _saver.setup()
                    return _saver
                except Exception as error:
                    log(error)
                    break
            _saver = InMemorySaver()
            return _saver
        """,
        (Medium.MEMORY, True),
    ),
    "another function": (
        """
        _saver = None
        @app.on_event("startup")
        async def begin():
            global _saver
            try:
                _saver = PostgresSaver(os.environ["DB"])
            except Exception as error:
                log(error)
        def saver_of():
            global _saver
            if _saver is None:
                _saver = InMemorySaver()
            return _saver
        """,
        (Medium.MEMORY, True),
    ),
    "nothing that was seen": (
        """
        _saver = None
        @app.on_event("startup")
        async def begin():
            global _saver
            try:
                _saver = PostgresSaver(os.environ["DB"])
            except Exception as error:
                log(error)
        def saver_of():
            return _saver
        """,
        (Medium.NONE, None),
    ),
    "a refusal": (
        """
        _saver = None
        @app.on_event("startup")
        async def begin():
            global _saver
            try:
                _saver = PostgresSaver(os.environ["DB"])
            except Exception as error:
                log(error)
        def saver_of():
            if _saver is None:
                raise RuntimeError("not ready")
            return _saver
        """,
        None,
    ),
    "a loop that only success ends": (
        """
        def saver_of():
            while True:
                try:
                    saver = PostgresSaver(os.environ["DB"])
                    return saver
                except Exception:
                    saver = None
        """,
        None,
    ),
    "attempts that end without one": (
        """
        def saver_of():
            for attempt in range(3):
                try:
                    saver = PostgresSaver(os.environ["DB"])
                    break
                except Exception:
                    saver = None
            return saver
        """,
        (Medium.NONE, True),
    ),
    "attempts, and an end without one": (
        """
        def saver_of():
            for attempt in range(3):
                try:
                    saver = PostgresSaver(os.environ["DB"])
                    return saver
                except Exception:
                    saver = None
            if saver is None:
                raise SystemExit("no database")
        """,
        None,
    ),
    "the same once more": (
        """
        def saver_of():
            try:
                return PostgresSaver(os.environ["DB"])
            except Exception:
                saver = None
            saver = PostgresSaver(os.environ["DB"])
            return saver
        """,
        None,
    ),
    "another one in the handler": (
        """
        def saver_of():
            try:
                saver = PostgresSaver(os.environ["DB"])
            except Exception:
                saver = InMemorySaver()
                saver = PostgresSaver(os.environ["OTHER"])
            return saver
        """,
        None,
    ),
    "another one, if one is set": (
        """
        def saver_of():
            try:
                saver = PostgresSaver(os.environ["DB"])
            except Exception:
                saver = InMemorySaver()
                if is_asked():
                    saver = PostgresSaver(os.environ["OTHER"])
            return saver
        """,
        (Medium.MEMORY, True),
    ),
    "an error outside of development": (
        """
        def saver_of():
            try:
                saver = PostgresSaver(os.environ["DB"])
            except Exception:
                saver = InMemorySaver()
                if os.environ.get("DEV") != "1":
                    raise
            return saver
        """,
        (Medium.MEMORY, False),
    ),
    "no error in production": (
        """
        def saver_of():
            try:
                saver = PostgresSaver(os.environ["DB"])
            except Exception:
                saver = InMemorySaver()
                if os.environ.get("DEV") == "1":
                    raise
            return saver
        """,
        (Medium.MEMORY, True),
    ),
    "attempts that end in an error": (
        """
        def saver_of():
            for attempt in range(3):
                try:
                    return PostgresSaver(os.environ["DB"])
                except Exception as error:
                    log(error)
            raise RuntimeError("no database")
        """,
        None,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_follows_a_failure_that_is_only_logged(read, name):
    body, expected = BODIES[name]
    found = read({"app.py": HEAD + dedent(body) + TAIL}).degrades
    said = [(one.becomes, one.when.value) for one in found if one.cause == "failed"]
    assert said[:1] == ([expected] if expected else [])


STARTS = """
from contextlib import asynccontextmanager
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
async def make():
    return AsyncPostgresSaver.from_conn_string(os.environ["DB"])
@asynccontextmanager
async def lifespan(app):
    try:
        entered = await make()
        app.state.checkpointer = await entered.__aenter__()
    except Exception as error:
        log(error)
        app.state.checkpointer = None
    yield
app = FastAPI(lifespan=lifespan)
"""


@pytest.mark.parametrize(
    ("bare", "expected"),
    [
        ("return StateGraph(dict).compile()", True),
        ("raise RuntimeError('not ready')", False),
    ],
)
def test_a_start_that_goes_on_without_its_saver(read, bare, expected):
    served = f"""
def graph_of(checkpointer=None):
    if checkpointer is None:
        {bare}
    return StateGraph(dict).compile(checkpointer=checkpointer)
@app.post("/run")
async def run(thread_id: str):
    graph = graph_of(app.state.checkpointer)
    return await graph.ainvoke({{}}, {{"configurable": {{"thread_id": thread_id}}}})
"""
    found = read({"app.py": HEAD + STARTS + served}).degrades
    assert any(one.when.value is True and one.cause == "failed" for one in found) is expected


def test_a_failure_that_comes_before_either_saver_is_none_of_it(read):
    """A lookup that fails is taken for "not seen yet", whatever keeps the threads."""
    body = dedent(
        """
        saver = None
        if os.environ["STAGE"] == "production":
            saver = PostgresSaver(os.environ["DB"])
        else:
            saver = InMemorySaver()
        def is_duplicate(key):
            try:
                return bool(cache.exists(key))
            except ConnectionError as error:
                log(error)
                return False
        @app.post("/run")
        async def run(thread_id: str):
            if is_duplicate(thread_id):
                return None
            graph = StateGraph(dict).compile(checkpointer=saver)
            return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
        """
    )
    for stage in ("production", "test"):
        environment = {"STAGE": stage, "DB": "postgresql://db/a"}
        assert not read({"app.py": HEAD + body}, environment=environment).degrades
