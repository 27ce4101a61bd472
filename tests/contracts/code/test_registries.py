"""Agents that are found by searching, and savers that reach them through objects."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

BASE = """
from langgraph.checkpoint.memory import InMemorySaver

class Agent:
    def __init__(self):
        self.saver = None

    async def _get_saver(self):
        if self.saver is not None:
            return self.saver
        saver = InMemorySaver()
        self.saver = saver
        return self.saver
"""
ONE = """
from langchain.agents import create_agent
from pkg.base import Agent

class Chat(Agent):
    async def graph(self):
        return create_agent("model", checkpointer=await self._get_saver())
"""
SERVE = """
from pkg import registry
async def app(request):
    thread = {"thread_id": request.id}
    agent = registry.agents[request.name]
    graph = await agent.graph()
    return await graph.ainvoke({}, thread)
"""
FILES = {
    "pkg/__init__.py": "",
    "pkg/base.py": BASE,
    "pkg/agents/__init__.py": "",
    "pkg/agents/chat/__init__.py": "from .graph import Chat\n",
    "pkg/agents/chat/graph.py": ONE,
    "app.py": SERVE,
}


REGISTRIES = {
    "folders": """
        import importlib, inspect
        from pathlib import Path
        from pkg.base import Agent
        agents = {}
        for item in (Path(__file__).parent / "agents").iterdir():
            name = f"pkg.agents.{item.name}"
            module = importlib.import_module(name)
            for _, one in inspect.getmembers(module):
                if inspect.isclass(one) and issubclass(one, Agent):
                    agents[item.name] = one()
        """,
    "pkgutil": """
        import importlib, pkgutil
        from pkg import agents as package
        from pkg.base import Agent
        for found in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{found.name}")
        agents = {one.__name__: one() for one in Agent.__subclasses__()}
        """,
    "walk": """
        import pkgutil
        from importlib import import_module
        import pkg.agents
        from pkg.base import Agent
        def every(of):
            for found in pkgutil.walk_packages(pkg.agents.__path__, "pkg.agents."):
                import_module(found.name)
            return of.__subclasses__()
        agents = {one.__name__: one() for one in every(Agent)}
        """,
    "entries": """
        from importlib import import_module
        NAMES = {"chat": "pkg.agents.chat.graph:Chat"}
        agents = {}
        for name, entry in NAMES.items():
            module, _, attribute = entry.partition(":")
            agents[name] = getattr(import_module(module), attribute)()
        """,
    "relative": """
        from importlib import import_module
        def load(name):
            module = import_module(f".agents.{name}", package="pkg")
            return module.Chat()
        agents = {"chat": load("chat")}
        """,
}


@pytest.mark.parametrize("way", REGISTRIES)
def test_agents_of_a_registry_are_served(read, way):
    facts = read({**FILES, "pkg/registry.py": dedent(REGISTRIES[way])})
    found = [site for site in facts.sites if site.role is Role.SAVER]
    assert [(site.medium, site.is_served, site.chosen.value) for site in found] == [
        (Medium.MEMORY, True, True)
    ]
    assert ("pkg/base.py", 11) in {(step.file, step.line) for step in found[0].evidence}


@pytest.mark.parametrize("how", ["@register('chat')\n", "", "subclass"])
def test_classes_that_register_themselves_are_served(read, how):
    base = BASE
    if how == "subclass":
        base += "\n    def __init_subclass__(cls):\n        known.append(cls)\nknown = []\n"
    one = ONE.replace("class Chat", ("" if how == "subclass" else how) + "class Chat")
    registry = """
        from pkg.base import Agent
        agents = {}
        def register(name):
            def keep(cls):
                agents[name] = cls()
                return cls
            return keep
        """
    one = "from pkg.registry import register\n" + one
    serve = "import pkg.agents.chat.graph\n" + SERVE.lstrip()
    facts = read(
        {
            **FILES,
            "pkg/base.py": base,
            "pkg/agents/chat/graph.py": one,
            "pkg/registry.py": dedent(registry),
            "app.py": serve,
        }
    )
    served = [site for site in facts.sites if site.role is Role.SAVER and site.is_served]
    assert [site.medium for site in served] == ([Medium.MEMORY] if how else [])


HEAD = """
from contextlib import AsyncExitStack, asynccontextmanager
from fastapi import Depends, FastAPI, Request
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import StateGraph
builder = StateGraph(dict)
"""

HANDED = {
    "state": """
        @asynccontextmanager
        async def lifespan(app):
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as saver:
                app.state.checkpointer = saver
                yield
        app = FastAPI(lifespan=lifespan)
        @app.post("/")
        async def chat(request: Request):
            graph = builder.compile(checkpointer=request.app.state.checkpointer)
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
    "state by another name": """
        @asynccontextmanager
        async def lifespan(app):
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as saver:
                app.state.cp = saver
                yield
        app = FastAPI(lifespan=lifespan)
        @app.post("/")
        async def chat(request: Request):
            graph = builder.compile(checkpointer=request.app.state.cp)
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
    "depends": """
        async def saver():
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as made:
                yield made
        app = FastAPI()
        @app.post("/")
        async def chat(cp=Depends(saver)):
            return await builder.compile(checkpointer=cp).ainvoke({}, {"thread_id": "1"})
        """,
    "annotated depends": """
        from typing import Annotated
        async def saver():
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as made:
                yield made
        Saver = Annotated[object, Depends(saver)]
        app = FastAPI()
        @app.post("/")
        async def chat(cp: Saver):
            return await builder.compile(checkpointer=cp).ainvoke({}, {"thread_id": "1"})
        """,
    "singleton": """
        class Savers:
            _one = None
            cp = None
            @classmethod
            def get(cls):
                if cls._one is None:
                    cls._one = cls()
                return cls._one
            async def start(self):
                self.context = AsyncSqliteSaver.from_conn_string("/data/a.db")
                self.cp = await self.context.__aenter__()
        app = FastAPI()
        @app.on_event("startup")
        async def startup():
            await Savers.get().start()
        @app.post("/")
        async def chat():
            graph = builder.compile(checkpointer=Savers.get().cp)
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
    "stack": """
        class Server:
            async def start(self):
                self.stack = AsyncExitStack()
                context = AsyncSqliteSaver.from_conn_string("/data/a.db")
                saver = await self.stack.enter_async_context(context)
                self.graph = builder.compile(checkpointer=saver)
        server = Server()
        @asynccontextmanager
        async def lifespan(app):
            await server.start()
            yield
        app = FastAPI(lifespan=lifespan)
        """,
    "yielded state": """
        @asynccontextmanager
        async def lifespan(app):
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as saver:
                yield {"cp": saver}
        app = FastAPI(lifespan=lifespan)
        @app.post("/")
        async def chat(request: Request):
            graph = builder.compile(checkpointer=request.state.cp)
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
    "module attribute": """
        import holder
        @asynccontextmanager
        async def lifespan(app):
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as saver:
                holder.cp = saver
                yield
        app = FastAPI(lifespan=lifespan)
        @app.post("/")
        async def chat():
            graph = builder.compile(checkpointer=holder.cp)
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
    "factory in a table": """
        def sqlite():
            return AsyncSqliteSaver.from_conn_string("/data/a.db")
        KINDS = {"sqlite": sqlite}
        @asynccontextmanager
        async def lifespan(app):
            async with KINDS["sqlite"]() as saver:
                app.state.graph = builder.compile(checkpointer=saver)
                yield
        app = FastAPI(lifespan=lifespan)
        """,
    "container": """
        class Container:
            def __init__(self):
                self._made = {}
            def register(self, name, value):
                self._made[name] = value
            def resolve(self, name):
                return self._made[name]
        container = Container()
        @asynccontextmanager
        async def lifespan(app):
            async with AsyncSqliteSaver.from_conn_string("/data/a.db") as saver:
                container.register("saver", saver)
                yield
        app = FastAPI(lifespan=lifespan)
        @app.post("/")
        async def chat():
            graph = builder.compile(checkpointer=container.resolve("saver"))
            return await graph.ainvoke({}, {"thread_id": "1"})
        """,
}


@pytest.mark.parametrize("way", HANDED)
def test_a_saver_reaches_its_graph(read, way):
    facts = read({"app.py": HEAD + dedent(HANDED[way]), "holder.py": "cp = None\n"})
    found = [site for site in facts.sites if site.role is Role.SAVER and site.is_served]
    assert [(site.medium, site.chosen.value) for site in found] == [(Medium.FILE, True)]
    assert found[0].location.value == "/data/a.db"


GUARDED = """
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import StateGraph
class Keeper:
    def __init__(self):
        self._is_ready = False
        self._saver = None
    async def setup(self):
        self._saver = AsyncPostgresSaver(pool)
        self._is_ready = True
    {decorator}
    def saver(self):
        if {test}:
            raise RuntimeError("not set up")
        return self._saver
keeper = Keeper()
async def app():
    await keeper.setup()
    return StateGraph(dict).compile(checkpointer=keeper.saver{call})
"""


@pytest.mark.parametrize(
    "test",
    ["not self._saver", "self._saver is None", "not self._is_ready or self._saver is None"],
)
@pytest.mark.parametrize(("decorator", "call"), [("", "()"), ("@property", "")])
def test_a_saver_behind_a_check_that_raises_is_the_saver(read, test, decorator, call):
    text = GUARDED.format(test=test, decorator=decorator, call=call)
    found = [site for site in read({"app.py": text}).sites if site.is_served]
    assert [(site.medium, site.chosen.value) for site in found if site.chosen.value] == [
        (Medium.POSTGRES, True)
    ]


BUILT = """
from langchain.agents import create_agent
def build(config, checkpointer=None):
    return create_agent("model", checkpointer=checkpointer)
"""
BY_NAME = """
import importlib
from langgraph.checkpoint.sqlite import SqliteSaver
MODULES = {"chat": "pkg.kinds.chat", "other": "pkg.kinds.other"}
def load(name, saver):
    module = importlib.import_module(MODULES[name])
    return module.build({}, checkpointer=saver)
app = load("chat", SqliteSaver(conn))
"""


def test_functions_of_modules_that_are_imported_by_computed_names(read):
    files = {
        "pkg/__init__.py": "",
        "pkg/kinds/__init__.py": "",
        "pkg/kinds/chat.py": BUILT,
        "pkg/kinds/other.py": BUILT,
        "app.py": BY_NAME,
    }
    found = [site for site in read(files).sites if site.is_served]
    assert {(site.medium, site.chosen.value) for site in found} == {(Medium.FILE, True)}


@pytest.mark.parametrize(
    "line", ["from . import chat", "from pkg.v1 import chat", "from .chat import chat"]
)
def test_a_module_that_its_own_package_imports_is_read(read, line):
    """Its name in the package is the module, not something that hides it."""
    files = {
        "app.py": "from pkg.v1 import chat\napp = FastAPI()\napp.include_router(chat.router)\n",
        "pkg/__init__.py": "",
        "pkg/v1/__init__.py": f"{line}\n",
        "pkg/v1/chat.py": dedent(
            """
            from langgraph.checkpoint.memory import InMemorySaver
            graph = StateGraph(dict).compile(checkpointer=InMemorySaver())
            chat = graph
            """
        ),
    }
    assert [site.medium for site in read(files).sites] == [Medium.MEMORY]


def test_a_module_that_something_else_hides_is_not_read(read):
    files = {
        "app.py": "from pkg import chat\napp = FastAPI()\n",
        "other.py": "chat = 1\n",
        "pkg/__init__.py": "from other import chat\n",
        "pkg/chat.py": "from langgraph.checkpoint.memory import InMemorySaver\n"
        "graph = StateGraph(dict).compile(checkpointer=InMemorySaver())\n",
    }
    assert not read(files).sites
