"""Sessions and histories of frameworks that a project wrote itself."""

import pytest

from perdure.contracts.code.facts import Medium, Role

AGENTS = """
from agents import Agent, Runner
from agents.memory.session import SessionABC
from fastapi import FastAPI
app = FastAPI()
agent = Agent(name="x")
STORE = {}
class Own(BASE):
    def __init__(self, session_id):
        self.session_id = session_id
        self.items = []
    async def get_items(self, limit=None):
        return list(HELD)
    async def add_items(self, items):
        WRITES
    async def pop_item(self):
        return HELD.pop()
    async def clear_session(self):
        HELD.clear()
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = MADE
    return await Runner.run(agent, text, session=session)
"""
CHAINS = """
from fastapi import FastAPI
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from pydantic import BaseModel, Field
import psycopg
app = FastAPI()
store = {}
class Own(BaseChatMessageHistory, BaseModel):
    messages: list[BaseMessage] = Field(default_factory=list)
    def add_messages(self, messages):
        WRITES
    def clear(self):
        self.messages = []
def history_of(session_id):
    if session_id not in store:
        store[session_id] = Own()
    return store[session_id]
chain = RunnableWithMessageHistory(model, history_of)
@app.post("/chat")
def chat(session_id: str, text: str):
    return chain.invoke(text, {"configurable": {"session_id": session_id}})
"""
OF_MODULE = "STORE.setdefault(self.session_id, []).extend(items)"
ROWS = """rows = [(self.session_id, json.dumps(one)) for one in items]
        async with await psycopg.AsyncConnection.connect("postgresql://db/x") as db:
            await db.executemany("INSERT INTO items VALUES (%s, %s)", rows)"""
KEPT = """
sessions = {}
def session_of(session_id):
    if session_id not in sessions:
        sessions[session_id] = Own(session_id)
    return sessions[session_id]
"""


def agents(writes, *, base="SessionABC", made="Own(session_id)", held="self.items", more=""):
    text = AGENTS.replace("BASE", base).replace("WRITES", writes).replace("MADE", made)
    return "import json\nimport psycopg\n" + text.replace("HELD", held) + more


WAYS = {
    "a dict of the module": (Medium.MEMORY, True, agents(OF_MODULE)),
    "by its methods alone": (Medium.MEMORY, True, agents(OF_MODULE, base="Kept").replace(
        "class Own", "class Kept:\n    pass\nclass Own")),
    "objects in a dict": (
        Medium.MEMORY, True, agents("self.items.extend(items)", made="session_of(session_id)",
                                    more=KEPT)),
    "rows": (Medium.POSTGRES, True, agents(ROWS)),
    "something unknown": (Medium.UNKNOWN, True, agents("await self.items.push(items)")),
    "a chain": (Medium.MEMORY, True, CHAINS.replace("WRITES", "self.messages.extend(messages)")),
    "a chain with rows": (Medium.POSTGRES, True, CHAINS.replace(
        "WRITES", 'psycopg.connect("postgresql://db/x").execute("INSERT ...", messages)')),
}  # fmt: skip


def histories(facts):
    return [one for one in facts.sites if one.role is Role.HISTORY]


@pytest.mark.parametrize("way", WAYS)
def test_sessions_of_a_project_are_where_they_write(read, way):
    medium, is_served, text = WAYS[way]
    (site,) = histories(read({"app.py": text}))
    assert (site.medium, site.is_served, site.class_name) == (medium, is_served, "Own")


def test_a_list_of_a_session_that_each_request_makes_is_none(read):
    assert not histories(read({"app.py": agents("self.items.extend(items)")}))


def test_a_list_of_a_session_that_a_function_makes_is_a_question(read):
    made = "\ndef make(session_id):\n    return Own(session_id)\n"
    text = agents("self.items.extend(items)", made="make(session_id)", more=made)
    assert [one.is_served for one in histories(read({"app.py": text}))] in ([None], [])


def test_a_basket_of_things_is_no_session(read):
    text = agents(OF_MODULE, base="object").replace("clear_session", "clear")
    assert not histories(read({"app.py": text}))


DRAINS = """
OUT = []
def drain():
    while OUT:
        psycopg.connect("postgresql://db/x").execute("INSERT INTO items VALUES (%s)", OUT.pop(0))
"""
TWICE = {
    "a function of another library": (
        "persist(self.session_id, items)",
        "from firm import persist",
    ),
    "one that a library made": ("write(items)", "import firm\nwrite = firm.partial('items')"),
    "rows of another module": ("firm.rows[self.session_id] = items", "import firm"),
    "a queue beside it": ("OUT.append((self.session_id, items))", DRAINS),
}


@pytest.mark.parametrize("way", TWICE)
def test_where_a_session_also_hands_its_items_on_is_a_question(read, way):
    also, more = TWICE[way]
    text = agents(f"{OF_MODULE}\n        {also}", more=f"\n{more}\n")
    (site,) = histories(read({"app.py": text}))
    assert site.medium is Medium.UNKNOWN


def test_a_dict_that_another_function_writes_to_a_store_is_a_question(read):
    saves = "\ndef save():\n    psycopg.connect('postgresql://db/x').execute('INSERT', STORE)\n"
    route = "\n@app.get('/all')\ndef listed():\n    return list(STORE)\n"
    (site,) = histories(read({"app.py": agents(OF_MODULE, more=route + saves + "save()\n")}))
    assert site.medium is Medium.UNKNOWN
    (site,) = histories(read({"app.py": agents(OF_MODULE, more=route)}))
    assert site.medium is Medium.MEMORY


def test_what_runs_are_given_as_something_else_is_no_session(read):
    text = agents(OF_MODULE, base="object")
    assert histories(read({"app.py": text}))
    assert not histories(read({"app.py": text.replace("session=session", "context=session")}))


BESIDE = {
    "a number": 'httpx.post("https://metrics.example", json=len(items))',
    "a line of a log": 'open("/var/log/turns", "a").write(str(len(items)))',
}


@pytest.mark.parametrize("way", BESIDE)
def test_what_a_session_writes_and_never_reads_again_is_no_place_of_it(read, way):
    text = "import httpx\n" + agents(f"{OF_MODULE}\n        {BESIDE[way]}", held="STORE")
    (site,) = histories(read({"app.py": text}))
    assert site.medium is Medium.UNKNOWN


def test_a_session_that_reads_what_it_writes_beside_a_dict_is_there(read):
    loads = """        if self.session_id not in STORE:
            found = psycopg.connect("postgresql://db/x").execute("SELECT item FROM items")
            STORE[self.session_id] = list(found)
        return list(STORE"""
    text = agents(f"{OF_MODULE}\n        {ROWS}", held="STORE[self.session_id]")
    (site,) = histories(read({"app.py": text.replace("        return list(STORE", loads)}))
    assert site.medium is Medium.POSTGRES


def test_what_python_itself_gives_keeps_nothing(read):
    text = agents("STORE.setdefault(self.session_id, []).extend(list(sorted(items)))")
    (site,) = histories(read({"app.py": text}))
    assert site.medium is Medium.MEMORY
