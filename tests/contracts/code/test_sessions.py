"""Sessions of other frameworks, and histories that a chain asks a function for."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

WAYS = {
    "adk in memory": (Medium.MEMORY, None, """
        from google.adk.runners import Runner
        from google.adk.sessions import InMemorySessionService
        service = InMemorySessionService()
        runner = Runner(agent=agent, app_name="x", session_service=service)
        """),
    "adk in a database": (Medium.POSTGRES, "postgresql://db/x", """
        from google.adk.runners import Runner
        from google.adk.sessions import DatabaseSessionService
        runner = Runner(
            agent=agent,
            app_name="x",
            session_service=DatabaseSessionService(db_url="postgresql://db/x"),
        )
        """),
    "agents in memory": (Medium.MEMORY, ":memory:", """
        from agents import Runner, SQLiteSession
        session = SQLiteSession("one")
        answer = Runner.run_sync(agent, "hello", session=session)
        """),
    "agents in a file": (Medium.FILE, "chats.db", """
        from agents import Runner, SQLiteSession
        session = SQLiteSession("one", "chats.db")
        answer = Runner.run_sync(agent, "hello", session=session)
        """),
    "agno": (Medium.FILE, "tmp/agent.db", """
        from agno.agent import Agent
        from agno.db.sqlite import SqliteDb
        agent = Agent(model=model, db=SqliteDb(db_file="tmp/agent.db"))
        """),
    "a chain with a dict": (Medium.MEMORY, None, """
        from langchain_core.chat_history import InMemoryChatMessageHistory
        from langchain_core.runnables.history import RunnableWithMessageHistory
        store = {}
        def history_of(session_id):
            if session_id not in store:
                store[session_id] = InMemoryChatMessageHistory()
            return store[session_id]
        chain = RunnableWithMessageHistory(model, history_of)
        """),
    "a chain with tables": (Medium.FILE, "sqlite:///memory.db", """
        from langchain_community.chat_message_histories import SQLChatMessageHistory
        from langchain_core.runnables.history import RunnableWithMessageHistory
        def history_of(session_id):
            return SQLChatMessageHistory(session_id, connection="sqlite:///memory.db")
        chain = RunnableWithMessageHistory(model, history_of)
        """),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_sessions_of_other_frameworks_are_where_these_are_told(read, way):
    medium, location, text = WAYS[way]
    facts = read({"app.py": "from fastapi import FastAPI\napp = FastAPI()\n" + dedent(text)})
    (site,) = [one for one in facts.sites if one.role is Role.HISTORY]
    assert (site.medium, site.is_served, site.chosen.value) == (medium, True, True)
    assert (site.location.value if site.location is not None else None) == location


def test_a_database_session_of_a_request_is_none_of_them(read):
    text = """
        from agents import Runner
        from sqlalchemy.orm import Session
        from fastapi import FastAPI
        app = FastAPI()
        def load(session: Session):
            return fetch(session=session, db=session)
        """
    facts = read({"app.py": dedent(text)})
    assert not [one for one in facts.sites if one.role is Role.HISTORY]


OF_REQUEST = """
from fastapi import FastAPI
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
app = FastAPI()
@app.post("/chat")
async def chat(text: str):
    service = InMemorySessionService()
    await service.create_session(app_name="x")
    return await ask(service, text)
async def ask(sessions, text):
    runner = Runner(agent=agent, app_name="x", session_service=sessions)
    return await runner.run(text)
"""


def test_sessions_that_each_request_makes_for_itself_are_none(read):
    facts = read({"app.py": OF_REQUEST})
    assert not [one for one in facts.sites if one.role is Role.HISTORY]
    kept = OF_REQUEST.replace("    service =", "    global service\n    service =")
    kept = kept.replace("app = FastAPI()", "app = FastAPI()\nservice = None")
    (site,) = [one for one in read({"app.py": kept}).sites if one.role is Role.HISTORY]
    assert (site.medium, site.is_served) == (Medium.MEMORY, True)
