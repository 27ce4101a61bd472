"""Which saver a served graph gets, on which branch, and where it writes."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.evidence import Confidence

GRAPH = """
from langgraph.graph import StateGraph
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
"""


def app(text: str) -> dict[str, str]:
    return {"app.py": dedent(text)}


def chosen(facts, role=Role.SAVER):
    return [
        site
        for site in facts.sites
        if site.role is role and site.is_served and site.chosen.value is not False
    ]


def only(facts, role=Role.SAVER):
    found = chosen(facts, role)
    assert len(found) == 1, found
    return found[0]


def test_a_saver_in_the_served_module_is_found_with_its_line(read):
    facts = read(
        app(
            """
            from fastapi import FastAPI
            from langgraph.checkpoint.memory import MemorySaver
            from langgraph.graph import StateGraph
            builder = StateGraph(dict)
            graph = builder.compile(checkpointer=MemorySaver())
            app = FastAPI()
            """
        )
    )
    site = only(facts)
    assert (site.medium, site.chosen.value) == (Medium.MEMORY, True)
    assert ("app.py", 6) in {(step.file, step.line) for step in site.evidence}


SETTINGS = """
from pydantic_settings import BaseSettings, SettingsConfigDict
class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="APP_")
    backend: str = "sqlite"
    path: str = "data/threads.db"
settings = Settings()
"""
CHOICE = """
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.postgres import PostgresSaver
from settings import settings
def make():
    if settings.backend == "postgres":
        return PostgresSaver.from_conn_string("postgresql://u:secret@db/x")
    elif settings.backend == "memory":
        return InMemorySaver()
    return SqliteSaver.from_conn_string(settings.path)
"""
SERVED = """
from graph import builder
from saver import make
with make() as saver:
    app = builder.compile(checkpointer=saver)
"""
CHOOSING = {"settings.py": SETTINGS, "saver.py": CHOICE, "graph.py": GRAPH, "app.py": SERVED}


@pytest.mark.parametrize(
    ("more", "medium", "confidence"),
    [
        ({}, Medium.FILE, Confidence.DECLARED_DEFAULT),
        ({"environment": {"APP_BACKEND": "postgres"}}, Medium.POSTGRES, Confidence.PROVED),
        ({"declared": {"APP_BACKEND": "memory"}}, Medium.MEMORY, Confidence.DECLARED_DEFAULT),
        ({"assume": {"APP_BACKEND": "memory"}}, Medium.MEMORY, Confidence.PROVED),
    ],
)
def test_settings_choose_a_branch_by_environment_then_declared_then_code(
    read, more, medium, confidence
):
    site = only(read(CHOOSING, **more))
    assert (site.medium, site.chosen.value) == (medium, True)
    assert site.chosen.confidence is confidence


def test_a_value_that_comes_from_elsewhere_leaves_the_branches_open(read):
    files = app(
        """
        import os
        from langgraph.checkpoint.memory import MemorySaver
        from langgraph.checkpoint.postgres import PostgresSaver
        from graph import builder
        saver = PostgresSaver(open_pool()) if os.environ["BACKEND"] == "pg" else MemorySaver()
        app = builder.compile(checkpointer=saver)
        """
    )
    found = chosen(read({**files, "graph.py": GRAPH}))
    assert {site.medium for site in found} == {Medium.POSTGRES, Medium.MEMORY}
    assert {site.chosen.value for site in found} == {None}
    assert "BACKEND" in (found[0].chosen.question or "")


def test_a_password_is_never_told(read):
    facts = read(CHOOSING, environment={"APP_BACKEND": "postgres"})
    assert "secret" not in repr(facts)
    assert only(facts).location.value == "postgresql://u:***@db/x"


def test_a_file_is_where_the_settings_say(read):
    assert only(read(CHOOSING)).location.value == "data/threads.db"


def test_memory_hides_in_the_name_of_a_database(read):
    files = app(
        """
        import sqlite3
        from langgraph.checkpoint.sqlite import SqliteSaver
        from graph import builder
        app = builder.compile(checkpointer=SqliteSaver(sqlite3.connect(":memory:")))
        """
    )
    assert only(read({**files, "graph.py": GRAPH})).medium is Medium.MEMORY


@pytest.mark.parametrize(
    "text",
    [
        """
        class Keeping(MemorySaver):
            pass
        app = builder.compile(checkpointer=Keeping())
        """,
        """
        def build(checkpointer=MemorySaver()):
            return builder.compile(checkpointer=checkpointer)
        app = build()
        """,
        """
        def build(durable):
            saver = PostgresSaver(pool) if durable else MemorySaver()
            return builder.compile(checkpointer=saver)
        app = build(durable=False)
        """,
        """
        class Service:
            def __init__(self, checkpointer=None):
                self.checkpointer = checkpointer or MemorySaver()
            def graph(self):
                return builder.compile(checkpointer=self.checkpointer)
        app = Service().graph()
        """,
        """
        compiled = builder.compile()
        compiled.checkpointer = MemorySaver()
        app = compiled
        """,
        """
        import os
        match os.getenv("KIND", "memory"):
            case "postgres" | "pg":
                saver = PostgresSaver(pool)
            case _:
                saver = MemorySaver()
        app = builder.compile(checkpointer=saver)
        """,
        """
        _saver = None
        def get():
            global _saver
            if _saver is None:
                _saver = MemorySaver()
            return _saver
        app = builder.compile(checkpointer=get())
        """,
    ],
    ids=["inherited", "default", "parameter", "attribute", "assigned", "match", "cached"],
)
def test_ways_to_volatile_savers(read, text):
    head = (
        "from langgraph.checkpoint.memory import MemorySaver\n"
        "from langgraph.checkpoint.postgres import PostgresSaver\n"
        "from graph import builder\n"
    )
    facts = read({"app.py": head + dedent(text), "graph.py": GRAPH})
    volatile = [site for site in chosen(facts) if site.medium is Medium.MEMORY]
    assert [site.chosen.value for site in volatile] == [True]
    assert not [site for site in chosen(facts) if site.medium is Medium.POSTGRES]


UNDER_MAIN = """
app = 1
if __name__ == '__main__':
    from langgraph.checkpoint.memory import MemorySaver
    MemorySaver()
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("app.py", "# from langgraph.checkpoint.memory import MemorySaver\napp = builder = 1\n"),
        ("cli.py", "from langgraph.checkpoint.memory import MemorySaver\nsaver = MemorySaver()\n"),
        (
            "app.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cli\napp = 1\n",
        ),
        ("app.py", UNDER_MAIN),
        (
            "tests/test_app.py",
            "from langgraph.checkpoint.memory import MemorySaver\nsaver = MemorySaver()\n",
        ),
    ],
    ids=["comment", "cli", "typing", "main", "tests"],
)
def test_what_the_start_never_reaches_is_no_site(read, name, text):
    files = {
        "app.py": "app = 1\n",
        "cli.py": "from langgraph.checkpoint.memory import MemorySaver\nsaver = MemorySaver()\n",
    }
    facts = read({**files, name: text})
    assert facts.entry
    assert not facts.sites
    assert ("cli.py", 2) in {
        (site.evidence[0].file, site.evidence[0].line) for site in facts.unreachable
    }


def test_a_saver_that_is_only_set_up_serves_nobody(read):
    files = app(
        """
        from langgraph.checkpoint.postgres import PostgresSaver
        def lifespan():
            saver = PostgresSaver(pool)
            saver.setup()
        app = FastAPI(lifespan=lifespan)
        """
    )
    sites = read(files).sites
    assert [(site.medium, site.is_served) for site in sites] == [(Medium.POSTGRES, False)]


def test_a_graph_without_a_saver_is_told(read):
    facts = read(
        {"app.py": "from graph import builder\napp = builder.compile()\n", "graph.py": GRAPH}
    )
    (site,) = facts.sites
    assert (site.medium, site.is_served) == (Medium.NONE, None)
    assert facts.has_steps
    named = "from graph import builder\napp = builder.compile()\napp.invoke({}, {'thread_id': 1})\n"
    assert only(read({"app.py": named, "graph.py": GRAPH})).medium is Medium.NONE


def test_a_server_of_graphs_does_not_use_the_codes_saver(read):
    files = {
        "langgraph.json": '{"graphs": {"agent": "./src/agent.py:graph"}}',
        "src/agent.py": "from langgraph.checkpoint.memory import MemorySaver\n"
        "from graph import builder\ngraph = builder.compile(checkpointer=MemorySaver())\n",
        "src/graph.py": GRAPH,
    }
    facts = read(files, "langgraph", "dev")
    served = [site for site in facts.sites if site.is_served]
    assert [(site.class_name, site.medium) for site in served] == [("langgraph dev", Medium.FILE)]
    assert [site.medium for site in facts.sites if not site.is_served] == [Medium.MEMORY]


def test_whether_there_is_a_graph_is_not_which_saver_it_gets(read):
    files = app(
        """
        from langgraph.checkpoint.memory import MemorySaver
        from deepagents import create_deep_agent
        def build(providers):
            if not providers:
                return None
            return create_deep_agent(checkpointer=MemorySaver())
        app = build(load())
        """
    )
    assert (only(read(files)).medium, only(read(files)).chosen.value) == (Medium.MEMORY, True)


def test_one_graph_with_and_one_without_a_saver_stay_open(read):
    files = app(
        """
        from langgraph.checkpoint.memory import MemorySaver
        from graph import builder
        flag = load()
        app = builder.compile(checkpointer=MemorySaver()) if flag else builder.compile()
        """
    )
    found = chosen(read({**files, "graph.py": GRAPH}))
    assert [(site.medium, site.chosen.value) for site in found] == [(Medium.MEMORY, None)]


PAUSES = """
import os
from langgraph.graph import StateGraph
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.types import interrupt

KEEP = os.getenv("KEEP", "") == "yes"

def ask(state):
    return interrupt({"question": "go on?"})

def build():
    builder = StateGraph(dict)
    builder.add_node("ask", ask)
    if KEEP:
        return builder.compile(checkpointer=PostgresSaver("postgresql://db/x"))
    return builder.compile()

app = build()
"""


def test_a_graph_that_pauses_and_whose_saver_is_off_by_its_setting_has_none(read):
    taken = [one for one in read({"app.py": PAUSES}).sites if one.chosen.value is not False]
    assert [(one.medium, one.is_served, one.evidence[-1].line) for one in taken] == [
        (Medium.NONE, True, 17)
    ]
    with_it = read({"app.py": PAUSES}, environment={"KEEP": "yes"}).sites
    assert [one.medium for one in with_it if one.chosen.value is True] == [Medium.POSTGRES]


EITHER_WAY = """
import yaml
from langgraph.graph import StateGraph
from langgraph.checkpoint.memory import MemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

shape = yaml.safe_load(open("/etc/shape.yaml"))["shape"]

def compiled(saver):
    return StateGraph(dict).compile(checkpointer=saver)

def wide(saver):
    return compiled(saver)

def build(saver):
    if shape == "wide":
        return wide(saver)
    return compiled(saver)

app = build(MemorySaver())

def again():
    if shape:
        return build(SqliteSaver("/data/x.db"))

again()
"""


def test_a_saver_that_a_graph_gets_whichever_way_a_test_comes_out_is_chosen(read):
    sites = read({"app.py": EITHER_WAY}).sites
    found = {one.medium: one.chosen.value for one in sites}
    assert found == {Medium.MEMORY: True, Medium.FILE: None}


MANY_LINES = """
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.prebuilt import create_react_agent
    from langgraph.store.memory import InMemoryStore
    saver = InMemorySaver()
    store = InMemoryStore()
    app = create_react_agent(
        model="m",
        tools=[],
        prompt="p",
        store=store,
        name="n",
        checkpointer=saver,
    )
    """


def test_the_line_of_a_graph_is_that_of_the_argument_it_gets(read):
    facts = read(app(MANY_LINES))
    found = {(site.role, site.evidence[-1].line) for site in facts.sites}
    assert found == {(Role.STORE, 11), (Role.SAVER, 13)}


def test_what_an_argument_says_of_runs_is_told_with_its_own_line(read):
    text = """
        import uvicorn
        from graph import builder
        app = builder.compile(checkpointer=None)
        app.invoke(
            {"a": 1},
            {"configurable": {"thread_id": "1"}},
            durability="sync",
        )
        uvicorn.run(
            "app:app",
            port=8000,
            workers=2,
            timeout_graceful_shutdown=5,
        )
        """
    facts = read({**app(text), "graph.py": GRAPH}, "python", "app.py")
    assert [step.line for step in facts.durability.evidence] == [8]
    assert facts.workers.evidence[-1].line == 13
    assert [drain.seconds.evidence[-1].line for drain in facts.drains] == [14]


@pytest.mark.parametrize(
    ("backend", "medium"), [("memory", Medium.MEMORY), (" SQLite", Medium.FILE), ("", Medium.FILE)]
)
def test_a_request_that_is_refused_without_a_key_does_not_hide_the_saver(read, backend, medium):
    files = app(
        """
        from fastapi import FastAPI, HTTPException
        from langgraph.checkpoint.memory import MemorySaver
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.graph import StateGraph
        from pydantic_settings import BaseSettings
        class Settings(BaseSettings):
            openai_api_key: str | None = None
            backend: str = "sqlite"
        settings = Settings()
        async def lifespan(app):
            backend = (settings.backend or "sqlite").strip().lower()
            try:
                if backend == "memory":
                    app.state.checkpointer = MemorySaver()
                    yield
                    return
                async with AsyncSqliteSaver.from_conn_string("threads.db") as saver:
                    app.state.checkpointer = saver
                    yield
            finally:
                pass
        app = FastAPI(lifespan=lifespan)
        def build(saver):
            return StateGraph(dict).compile(checkpointer=saver)
        @app.post("/")
        async def ask(request):
            if not settings.openai_api_key:
                raise HTTPException(503)
            return await build(request.app.state.checkpointer).ainvoke({})
        """
    )
    assert only(read(files, environment={"BACKEND": backend})).medium is medium
