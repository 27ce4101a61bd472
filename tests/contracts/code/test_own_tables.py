"""Conversations that a project keeps in a database of its own, and where that is."""

import pytest

from perdure.contracts.code.facts import Medium, Role

HEAD = """
from fastapi import FastAPI
app = FastAPI()
"""
MODEL = """
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
class Base(DeclarativeBase):
    pass
class Message(Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[str]
    role: Mapped[str]
    content: Mapped[str]
engine = create_engine("URL")
def add(db, conversation_id, role, content):
    db.add(Message(conversation_id=conversation_id, role=role, content=content))
    db.commit()
def load(db, conversation_id):
    rows = db.scalars(select(Message).where(Message.conversation_id == conversation_id))
    return [{"role": row.role, "content": row.content} for row in rows]
"""
CHAT = """
@app.post("/chat")
def chat(conversation_id: str, text: str):
    with Session(engine) as db:
        history = load(db, conversation_id)
        answer = model.invoke([*history, {"role": "user", "content": text}])
        add(db, conversation_id, "assistant", answer)
    return answer
"""
QUERIES = """
import sqlite3
DB = "data/chat.db"
def connect():
    return sqlite3.connect(DB)
def keep(session_id, role, content):
    with connect() as db:
        db.execute("INSERT INTO chat_messages (session_id, role, content) VALUES (?, ?, ?)",
                   (session_id, role, content))
def load(session_id):
    with connect() as db:
        return db.execute("SELECT role, content FROM chat_messages WHERE session_id = ?",
                          (session_id,)).fetchall()
@app.post("/chat")
def chat(session_id: str, text: str):
    messages = [{"role": role, "content": content} for role, content in load(session_id)]
    answer = client.chat.completions.create(messages=messages)
    keep(session_id, "assistant", answer)
    return answer
"""
KEYS = """
import json
import redis
client = redis.from_url("redis://cache:6379/0")
@app.post("/chat")
def chat(session_id: str, text: str):
    messages = [json.loads(one) for one in client.lrange(f"chat:{session_id}", 0, -1)]
    answer = model.chat(messages=[*messages, {"role": "user", "content": text}])
    client.rpush(f"chat:{session_id}", json.dumps(answer))
    return answer
"""
DOCUMENTS = """
from pymongo import MongoClient
db = MongoClient("mongodb://mongo/x")["x"]
@app.post("/chat")
def chat(session_id: str, text: str):
    known = db.conversations.find_one({"_id": session_id})
    messages = [*known["messages"], {"role": "user", "content": text}]
    db.conversations.update_one({"_id": session_id}, {"$set": {"messages": messages}})
    return model.chat(messages=messages)
"""
WAYS = {
    "rows of SQLite": (MODEL.replace("URL", "sqlite:///./chat.db") + CHAT, Medium.FILE),
    "rows of PostgreSQL": (MODEL.replace("URL", "postgresql://u:p@db/x") + CHAT, Medium.POSTGRES),
    "queries": (QUERIES, Medium.FILE),
    "keys of Redis": (KEYS, Medium.REDIS),
    "documents": (DOCUMENTS, Medium.MONGO),
}
SAYS_NOTHING = {
    "not read for a model": MODEL.replace("URL", "sqlite:///./chat.db")
    + """
@app.post("/messages")
def post(conversation_id: str, text: str):
    with Session(engine) as db:
        add(db, conversation_id, "user", text)
""",
    "no messages": QUERIES.replace("chat_messages", "visits")
    .replace("role, content", "page, seconds")
    .replace('"role": role, "content": content', '"page": page, "seconds": seconds'),
    "several databases": MODEL.replace("URL", "sqlite:///./chat.db")
    + 'other = create_engine("postgresql://db/x")\n'
    + CHAT,
}


def histories(facts):
    return [one for one in facts.sites if one.role is Role.HISTORY]


@pytest.mark.parametrize("way", WAYS)
def test_conversations_in_a_database_of_its_own_are_kept_there(read, way):
    text, medium = WAYS[way]
    (site,) = histories(read({"app.py": HEAD + text}))
    assert (site.medium, site.is_served, site.survives_process) == (medium, True, True)
    assert site.location is not None
    assert site.location.value
    assert ":p@" not in site.location.value


@pytest.mark.parametrize("way", SAYS_NOTHING)
def test_other_tables_say_nothing(read, way):
    assert not histories(read({"app.py": HEAD + SAYS_NOTHING[way]}))


def test_the_lines_that_write_and_read_are_told(read):
    (site,) = histories(read({"app.py": HEAD + QUERIES}))
    lines = (HEAD + QUERIES).splitlines()
    told = [(lines[one.line - 1], one.note) for one in site.evidence if one.file == "app.py"]
    assert any("INSERT INTO" in text and "keeps a conversation" in note for text, note in told)
    assert any("SELECT role" in text and "reads" in note for text, note in told)
    assert any("in load(session_id)" in text and note == "asks for it" for text, note in told)


QUICK = """
sessions: dict[str, list] = {}
@app.post("/quick")
async def quick(session_id: str, text: str):
    history = sessions.setdefault(session_id, [])
    history.append({"role": "user", "content": text})
    MORE
    return await ask(history)
async def ask(history):
    return await model.ainvoke(history)
"""
COPIES = {
    "written there, too": QUICK.replace("MORE", "keep(session_id, 'user', text)"),
    "written by who calls": QUICK.replace("MORE", "")
    + """
@app.post("/both")
async def both(session_id: str, text: str):
    keep(session_id, "user", text)
    return await quick(session_id, text)
""",
    "written by an object": QUICK.replace("MORE", "await store.remember(session_id, text)")
    + """
class Store:
    async def remember(self, session_id, text):
        return keep(session_id, "user", text)
store = Store()
""",
    "written by a tool of the run": QUICK.replace("MORE", "").replace(
        "model.ainvoke(history)", "agent.ainvoke(history)"
    )
    + "agent = make(tools=[keep])\n",
    "written to what is not known": QUICK.replace("MORE", "await rows.insert(text)"),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_dict_beside_tables_of_messages_may_be_a_copy(read, way):
    found = histories(read({"app.py": HEAD + QUERIES + COPIES[way]}))
    assert (Medium.MEMORY, True) not in {(one.medium, one.is_served) for one in found}
    assert Medium.FILE in {one.medium for one in found}


def test_a_dict_that_no_request_brings_together_with_tables_is_no_copy(read):
    apart = QUICK.replace("MORE", "")
    found = histories(read({"app.py": HEAD + QUERIES + apart}))
    assert {(one.medium, one.is_served) for one in found} == {
        (Medium.FILE, True),
        (Medium.MEMORY, True),
    }


BY_NAME = {
    "by getattr": """
    getattr(store, NAMES[text])(session_id)
""",
    "by a registry": """
    KINDS["turns"](session_id)
""",
    "by who is told": """
    said.send(app, session_id=session_id)
""",
    "by its name": """
    getattr(store, "title", None)(session_id)
""",
}


@pytest.mark.parametrize("way", BY_NAME)
def test_a_dict_beside_tables_is_a_question_where_a_name_is_computed(read, way):
    apart = QUICK.replace("MORE", BY_NAME[way].strip())
    found = histories(read({"app.py": HEAD + QUERIES + apart}))
    (site,) = (one for one in found if one.medium is Medium.MEMORY)
    assert site.is_served is (True if way == "by its name" else None)


@pytest.mark.parametrize(("named", "is_served"), [("names[text]", None), ('"keep"', True)])
def test_a_dict_is_a_question_where_functions_of_a_module_are_called_by_name(
    read, named, is_served
):
    text = f"""
import json
import rows
names = json.loads("{{}}")
def act(text, session_id):
    return getattr(rows, {named})(session_id, text)
"""
    (site,) = histories(
        read(
            {
                "app.py": HEAD + text + QUICK.replace("MORE", "act(text, session_id)"),
                "rows.py": "def keep(session_id, text):\n    company.store(session_id, text)\n",
            }
        )
    )
    assert (site.medium, site.is_served) == (Medium.MEMORY, is_served)


STORE = """
import json
import redis
from settings import settings
_kept: dict[str, str] = {}
class Store:
    def __init__(self, url=None):
        self.url = url
        self.client = None
    def open(self):
        if self.url:
            try:
                self.client = redis.from_url(self.url)
                self.client.ping()
            except Exception:
                log("goes on without")
                self.client = None
    def load(self, session_id):
        key = f"session:{session_id}"
        found = self.client.get(key) if self.client else _kept.get(key)
        return json.loads(found or "[]")
    def save(self, session_id, messages):
        key = f"session:{session_id}"
        if self.client:
            self.client.setex(key, 3600, json.dumps(messages))
        else:
            _kept[key] = json.dumps(messages)
store = Store(settings.redis_url)
store.open()
@app.post("/chat")
def chat(session_id: str, text: str):
    messages = [*store.load(session_id), {"role": "user", "content": text}]
    messages.append(model.invoke(messages))
    store.save(session_id, messages)
"""
URL = """
from pydantic_settings import BaseSettings
class Settings(BaseSettings):
    redis_url: str | None = None
settings = Settings()
"""


@pytest.mark.parametrize(
    ("environment", "medium"),
    [({}, Medium.MEMORY), ({"REDIS_URL": "redis://cache:6379"}, Medium.REDIS)],
)
def test_settings_say_whether_a_dict_stands_in_for_redis(read, environment, medium):
    facts = read({"app.py": HEAD + STORE, "settings.py": URL}, environment=environment)
    taken = [one for one in histories(facts) if one.chosen.value is not False]
    assert [(one.medium, one.chosen.value) for one in taken] == [(medium, True)]
    swallowed = [one.when.value for one in facts.degrades if one.becomes is Medium.MEMORY]
    assert swallowed == ([True] if environment else [])


def test_a_store_that_must_be_there_is_no_degrade(read):
    strict = STORE.replace('log("goes on without")', "raise")
    environment = {"REDIS_URL": "redis://cache:6379"}
    facts = read({"app.py": HEAD + strict, "settings.py": URL}, environment=environment)
    assert not facts.degrades


OBJECT = """
from sqlalchemy import create_engine, text
from settings import settings
class Database:
    def __init__(self):
        self.url = settings.database_url
        if self.url.startswith("postgres://"):
            self.url = self.url.replace("postgres://", "postgresql://", 1)
        self.engine = create_engine(self.url)
    def execute(self, query, values):
        with self.engine.begin() as connection:
            return connection.execute(text(query), values)
db = Database()
@app.post("/chat")
def chat(session_id: str, words: str):
    rows = db.execute("SELECT role, content FROM messages WHERE session_id = :id", session_id)
    answer = model.invoke(f"Before: {format_history(rows)} Now: {words}")
    db.execute("INSERT INTO messages (session_id, role, content) VALUES (:id, :who, :text)", answer)
    return answer
"""
DATABASE = """
from pydantic_settings import BaseSettings
class Settings(BaseSettings):
    database_url: str = "sqlite:///./chat.db"
settings = Settings()
"""


@pytest.mark.parametrize(
    ("environment", "medium"),
    [({}, Medium.FILE), ({"DATABASE_URL": "postgresql://u:p@db/x"}, Medium.POSTGRES)],
)
def test_a_url_that_is_made_of_itself_is_the_one_it_was(read, environment, medium):
    files = {
        "app.py": HEAD + OBJECT.replace("format_history(rows)", "history_text"),
        "settings.py": DATABASE,
    }
    (site,) = histories(read(files, environment=environment))
    assert site.medium is medium


FILES = """
import json
import os
from pathlib import Path
FOLDER = Path(os.getenv("MEMORY_DIR", "/data/chats"))
def path_of(session_id):
    return FOLDER / f"{session_id}.json"
def load(session_id):
    path = path_of(session_id)
    return json.loads(path.read_text()) if path.exists() else []
def save(session_id, messages):
    path_of(session_id).write_text(json.dumps(messages))
@app.post("/chat")
def chat(session_id: str, text: str):
    messages = [*load(session_id), {"role": "user", "content": text}]
    messages.append(model.invoke(messages))
    save(session_id, messages)
"""


def test_a_file_for_each_conversation_is_where_its_folder_is(read):
    (site,) = histories(read({"app.py": HEAD + FILES}))
    assert (site.medium, site.location.value) == (Medium.FILE, "/data/chats")
    (site,) = histories(read({"app.py": HEAD + FILES}, environment={"MEMORY_DIR": "chats"}))
    assert site.location.value == "chats"


def test_a_file_that_is_only_written_is_no_conversation(read):
    exported = FILES.replace("*load(session_id), ", "")
    assert not histories(read({"app.py": HEAD + exported}))


def test_of_several_databases_none_is_taken_for_the_one(read):
    text = HEAD + QUERIES + 'logs = sqlite3.connect("/tmp/logs.db")\n'
    (site,) = [one for one in read({"app.py": text}).sites if one.role is Role.HISTORY]
    assert (site.location.value, site.location.question is not None) == (None, True)


def test_rows_that_are_only_counted_are_no_history(read):
    text = HEAD + QUERIES.replace("SELECT role, content FROM", "SELECT count(*) FROM")
    assert [one for one in read({"app.py": text}).sites if one.role is Role.HISTORY] == []


def test_an_inbox_is_no_conversation(read):
    text = HEAD + QUERIES.replace(
        "messages (session_id, role, content)", "messages (sender, subject, body)"
    )
    assert [one for one in read({"app.py": text}).sites if one.role is Role.HISTORY] == []
