"""What a project keeps of conversations and paused runs in dicts of its own."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

HEAD = """
import asyncio
from fastapi import FastAPI
app = FastAPI()
"""
KEPT = {
    "module": """
        sessions: dict[str, list] = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            history = sessions.setdefault(session_id, [])
            history.append({"role": "user", "content": text})
            answer = await client.chat.completions.create(messages=history)
            return answer
        """,
    "functions": """
        from collections import defaultdict
        _conversations = defaultdict(list)
        def load(conversation_id):
            return _conversations[conversation_id]
        def keep(conversation_id, message):
            _conversations[conversation_id].append(message)
        @app.websocket("/ws")
        async def ws(socket, conversation_id):
            messages = [*load(conversation_id), {"role": "user", "content": "x"}]
            keep(conversation_id, await model.ainvoke(messages))
        """,
}
SERVED = """
    class Chat:
        def __init__(self):
            self.sessions: dict[str, list] = {}
            self.counts = {}
        async def ask(self, session_id, text):
            history = self.sessions.setdefault(session_id, [])
            history.append({"role": "user", "content": text})
            self.sessions[session_id] = await model.ainvoke(history)
            return self.sessions[session_id]
    @app.post("/chat")
    async def ask(session_id: str, text: str):
        chat = MADE
        return await chat.ask(session_id, text)
    """
SAVER = """
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.graph import StateGraph
    graph = StateGraph(dict).compile(checkpointer=PostgresSaver("postgresql://db/x"))
    @app.post("/run")
    async def run(thread_id: str):
        return await graph.ainvoke({}, {"configurable": {"thread_id": thread_id}})
    """
NOT_KEPT = {
    "a cache of results": """
        results = {}
        @app.post("/chat")
        async def chat(query: str):
            results[query] = await model.ainvoke([{"role": "user", "content": query}])
            return results[query]
        """,
    "counts of users": """
        counts = {}
        @app.post("/chat")
        async def chat(user_id: str):
            counts[user_id] = counts.get(user_id, 0) + 1
            return counts[user_id]
        """,
    "also stored": """
        import json
        sessions = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            known = sessions.get(session_id, [])
            sessions[session_id] = [*known, {"role": "user", "content": text}]
            json.dump(sessions, open("/data/sessions.json", "w"))
        """,
    "no requests": """
        sessions = {}
        def chat(session_id, text):
            sessions[session_id] = [{"role": "user", "content": text}]
        chat("a", "b")
        """,
}
PAUSED = """
    from openai import AsyncOpenAI
    pending_approvals = {}
    async def run(call):
        event = asyncio.Event()
        pending_approvals[call.id] = {"event": event, "answer": None}
        await event.wait()
    @app.post("/chat")
    async def chat(call):
        asyncio.create_task(run(call))
    @app.post("/approve/{id}")
    async def approve(id: str):
        pending_approvals[id]["event"].set()
    """


@pytest.mark.parametrize("way", KEPT)
def test_conversations_in_a_dict_are_lost_with_the_process(read, way):
    (site,) = read({"app.py": HEAD + dedent(KEPT[way])}).sites
    assert (site.role, site.medium, site.is_served) == (Role.HISTORY, Medium.MEMORY, True)
    assert next(one for one in site.evidence if one.note.startswith("makes ")).line in {6, 7}


@pytest.mark.parametrize("way", NOT_KEPT)
def test_other_dicts_say_nothing(read, way):
    assert not read({"app.py": HEAD + dedent(NOT_KEPT[way])}).sites


def test_runs_that_wait_on_an_event_of_a_dict_are_lost_with_the_process(read):
    (site,) = read({"app.py": HEAD + dedent(PAUSED)}).sites
    assert (site.role, site.medium, site.is_served) == (Role.PAUSED, Medium.MEMORY, True)


@pytest.mark.parametrize(
    ("more", "medium"),
    [((), Medium.UNKNOWN), (("--session_service_uri", "postgresql://u:p@db/x"), Medium.POSTGRES),
     (("--session_service_uri=sqlite:////data/a.db",), Medium.FILE)],
)  # fmt: skip
def test_the_server_of_adk_keeps_sessions_where_it_is_told(read, more, medium):
    facts = read({"agents/a/agent.py": "root_agent = 1\n"}, "adk", "api_server", *more, "agents")
    (site,) = facts.sites
    assert site.medium is medium
    assert "u:p@" not in repr(facts)


@pytest.mark.parametrize("saver", ["", SAVER], ids=["alone", "beside a saver"])
def test_conversations_of_an_object_that_is_made_once_are_lost(read, saver):
    once = dedent(SERVED).replace("MADE", "served") + "served = Chat()\n" + dedent(saver)
    found = [one for one in read({"app.py": HEAD + once}).sites if one.role is Role.HISTORY]
    assert [(one.medium, one.is_served) for one in found] == [(Medium.MEMORY, True)]


def test_conversations_of_an_object_of_each_request_say_nothing(read):
    assert not read({"app.py": HEAD + dedent(SERVED).replace("MADE", "Chat()")}).sites


def test_whether_a_thread_keeps_the_same_conversation_is_open(read):
    named = (
        dedent(SERVED)
        .replace("MADE", "served")
        .replace(
            "ainvoke(history)", "ainvoke(history, {'configurable': {'thread_id': session_id}})"
        )
    )
    sites = read({"app.py": HEAD + named + "served = Chat()\n" + dedent(SAVER)}).sites
    assert [one.is_served for one in sites if one.role is Role.HISTORY] == [None]
