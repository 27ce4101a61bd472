"""Rows that are named otherwise, or kept by repositories, and where a URL is built."""

import pytest

from perdure.contracts.code.facts import Medium, Role

ROWS = """
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase):
    pass
class Message(Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[str]
    role: Mapped[str]
    content: Mapped[str]
class Person(Base):
    __tablename__ = "people"
    name: Mapped[str]
"""
SETTINGS = """
from pydantic_settings import BaseSettings
class Settings(BaseSettings):
    user: str = "a"
    host: str
    @property
    def address(self):
        return f"postgresql+asyncpg://{quote(self.user)}@{self.host}/x"
    def url(self):
        if self.host.startswith("/"):
            return "postgresql://" + self.host
        return str(self.address)
settings = Settings()
"""
APP = """
from fastapi import FastAPI
from sqlalchemy import create_engine, select
from settings import settings
from rows import Message as Row
app = FastAPI()
engine = create_engine(settings.url())
def add(db, conversation_id, role, content):
    db.add(Row(conversation_id=conversation_id, role=role, content=content))
    db.commit()
def load(db, conversation_id):
    return db.scalars(select(Row).where(Row.conversation_id == conversation_id))
@app.post("/chat")
def chat(conversation_id: str, text: str):
    history = [{"role": row.role, "content": row.content} for row in load(db, conversation_id)]
    answer = model.invoke([*history, {"role": "user", "content": text}])
    add(db, conversation_id, "assistant", answer)
    return answer
"""
REPOSITORY = """
from fastapi import FastAPI
from sqlalchemy import create_engine, select
from settings import settings
from rows import Message, Person
app = FastAPI()
engine = create_engine(settings.url())
class Repository:
    def __init__(self, model, db):
        self.model = model
        self.db = db
    def create(self, **columns):
        self.db.add(self.model(**columns))
    def listed(self):
        return self.db.scalars(select(self.model))
class Messages(Repository[Message]):
    def __init__(self, db):
        super().__init__(Message, db)
    def of(self, conversation_id):
        return self.db.scalars(select(self.model).filter_by(conversation_id=conversation_id))
class People(Repository[Person]):
    def __init__(self, db):
        super().__init__(Person, db)
@app.post("/chat")
def chat(conversation_id: str, text: str):
    rows = READ
    history = [{"role": row.role, "content": row.content} for row in rows]
    answer = model.invoke([*history, {"role": "user", "content": text}])
    Messages(db).create(conversation_id=conversation_id, role="user", content=text)
    return answer
"""


def histories(read, app, settings=SETTINGS):
    files = {"app.py": app, "rows.py": ROWS, "settings.py": settings}
    return [one for one in read(files).sites if one.role is Role.HISTORY]


def test_rows_by_another_name_are_in_the_database_whose_url_begins_so(read):
    (site,) = histories(read, APP)
    assert (site.medium, site.is_served, site.survives_process) == (Medium.POSTGRES, True, True)
    assert any("Row(conversation_id" in _line(APP, one) for one in site.evidence)


def _line(text, evidence):
    lines = text.splitlines()
    inside = evidence.file == "app.py" and evidence.line <= len(lines)
    return lines[evidence.line - 1] if inside else ""


@pytest.mark.parametrize(
    "other",
    [
        SETTINGS.replace('"postgresql://" + self.host', '"sqlite:///" + self.host'),
        SETTINGS.replace('"postgresql://" + self.host', "self.host"),
        SETTINGS.replace("return str(self.address)", "return known(self.address)"),
    ],
    ids=["either way", "as it is told", "by what is not known"],
)
def test_a_url_that_may_begin_otherwise_names_no_database(read, other):
    assert not histories(read, APP, other)


REPLACED = SETTINGS.replace(
    """        if self.host.startswith("/"):
            return "postgresql://" + self.host
""",
    """        if self.whole_url:
            return self.whole_url
""",
).replace("    host: str\n", "    host: str\n    whole_url: str | None = None\n")


@pytest.mark.parametrize(
    ("environment", "media"),
    [({}, [Medium.POSTGRES]), ({"WHOLE_URL": "mysql://x"}, [Medium.NETWORK])],
)
def test_a_url_that_a_setting_replaces_is_built_where_that_is_not_set(read, environment, media):
    files = {"app.py": APP, "rows.py": ROWS, "settings.py": REPLACED}
    found = read(files, environment=environment).sites
    assert [one.medium for one in found if one.role is Role.HISTORY] == media


def test_rows_of_a_repository_are_those_of_its_class(read):
    (site,) = histories(read, REPOSITORY.replace("READ", "Messages(db).of(conversation_id)"))
    assert (site.medium, site.class_name) == (Medium.POSTGRES, "its own Message")


def test_what_a_base_of_repositories_reads_may_be_anything(read):
    assert not histories(read, REPOSITORY.replace("READ", "People(db).listed()"))


def test_what_a_base_of_repositories_writes_is_of_those_that_call_it(read):
    app = REPOSITORY.replace("READ", "Messages(db).of(conversation_id)")
    assert histories(read, app)
    people = 'Messages(db).create(conversation_id=conversation_id, role="user", content=text)'
    assert not histories(read, app.replace(people, "People(db).create(name=text)"))


def test_rows_of_an_inbox_are_no_conversation(read):
    assert not histories(read, APP.replace("Row", "Mail"))


OTHER = (
    APP.replace(
        "engine = create_engine(settings.url())",
        """
engine = create_engine(settings.url())
Local = sessionmaker(MADE)
""",
    ).replace("import create_engine", "import orm, create_engine")
    + """
from sqlalchemy.orm import sessionmaker
import company_db
other = company_db.engine("sqlite://")
"""
)


@pytest.mark.parametrize(("made", "media"), [("engine", [Medium.POSTGRES]), ("other", [])])
def test_sessions_with_an_engine_of_another_library_name_no_database(read, made, media):
    found = histories(read, OTHER.replace("MADE", made))
    assert [one.medium for one in found] == media


@pytest.mark.parametrize(
    ("old", "new", "media"),
    [
        ("postgres://", "postgresql://", [Medium.POSTGRES]),
        ("postgresql+asyncpg://a@", "sqlite:///", []),
        ("postgresql+asyncpg://", "sqlite:///", [Medium.FILE]),
    ],
)
def test_a_url_in_which_something_is_replaced_begins_as_that_does(read, old, new, media):
    settings = SETTINGS.replace("str(self.address)", f"self.address.replace({old!r}, {new!r})")
    settings = settings.replace(
        """        if self.host.startswith("/"):
            return "postgresql://" + self.host
""",
        "",
    )
    assert [one.medium for one in histories(read, APP, settings)] == media


TALK = """
from fastapi import FastAPI
from pydantic_ai import Agent
from rows import store
app = FastAPI()
agent = Agent("openai:gpt-4o")
@app.post("/chat")
async def chat(session_id: str, text: str):
    history = await store.of(session_id)
    result = await agent.run(text, message_history=history)
    await store.add(session_id, result.new_messages())
    return result.output
"""
SERVICE = """
from supabase import create_client
client = create_client("https://x.example", "k")
class Store:
    async def of(self, session_id):
        return client.table("messages").select("*").eq("session_id", session_id).execute().data
    async def add(self, session_id, messages):
        rows = [{"session_id": session_id, "role": "user", "content": one} for one in messages]
        client.table("messages").insert(rows).execute()
store = Store()
"""
COLLECTION = """
from motor.motor_asyncio import AsyncIOMotorClient
class Store:
    def __init__(self):
        self.client = AsyncIOMotorClient("mongodb://mongo:27017")
        self.kept = self.client["app"]["messages"]
    async def of(self, session_id):
        return await self.kept.find({"session_id": session_id}).to_list(None)
    async def add(self, session_id, messages):
        await self.kept.insert_many([{"session_id": session_id, "said": one} for one in messages])
store = Store()
"""
LISTS = """
import asyncpg
class Store:
    async def open(self):
        self.pool = await asyncpg.create_pool("postgresql://db/x")
    async def of(self, session_id):
        return await self.pool.fetch("SELECT message_list FROM messages WHERE session = $1")
    async def add(self, session_id, messages):
        await self.pool.execute("INSERT INTO messages (session, message_list) VALUES ($1, $2)")
store = Store()
"""
STORES = {
    "a hosted service": (SERVICE, [Medium.NETWORK]),
    "rows in a list of their own": (
        SERVICE.replace(
            '        client.table("messages").insert',
            '        rows = [rows]\n        client.table("messages").insert',
        ),
        [Medium.NETWORK],
    ),
    "rows of something else": (SERVICE.replace('"role": "user", "content"', '"size"'), []),
    "a table of no service": (SERVICE.replace("supabase", "spreadsheets"), []),
    "a collection by an attribute": (COLLECTION, [Medium.MONGO]),
    "a collection in memory": (
        COLLECTION.replace(
            "import AsyncIO",
            "import AsyncIOMotorClient as Other\nfrom mongomock_motor import AsyncIO",
        ),
        [],
    ),
    "a collection of something else": (COLLECTION.replace('"messages"', '"orders"'), []),
    "lists of messages": (LISTS, [Medium.POSTGRES]),
    "lists of something else": (LISTS.replace("message_list", "size"), []),
}


@pytest.mark.parametrize("way", STORES)
def test_stores_of_messages_are_where_they_put_them(read, way):
    text, media = STORES[way]
    found = read({"app.py": TALK, "rows.py": text}).sites
    assert [one.medium for one in found if one.role is Role.HISTORY] == media
    assert all(one.survives_process for one in found)


@pytest.mark.parametrize("url", ["http://rest:3000", ""])
def test_rows_of_a_hosted_service_are_where_its_client_is_told(read, url):
    text = SERVICE.replace('"https://x.example"', f'"{url}"' if url else "told()")
    (site,) = (one for one in read({"app.py": TALK, "rows.py": text}).sites)
    assert (site.location.value if site.location else "") == url
