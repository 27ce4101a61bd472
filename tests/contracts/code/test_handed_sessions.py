"""Conversations of a dict that one function takes out, and another one gives to the model."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

HEAD = """
from openai import AsyncOpenAI
from fastapi import FastAPI
app = FastAPI()
client = AsyncOpenAI()
class Session:
    def __init__(self):
        self.messages = []
class Log:
    def __init__(self):
        self.lines = []
sessions = {}
"""
ASKS = """
async def answer(session, text):
    session.messages.append({"role": "user", "content": text})
    given = await client.chat.completions.create(model="m", messages=session.messages)
    session.messages.append({"role": "assistant", "content": given})
    return given
"""
ROUTE = """
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions.setdefault(session_id, Session())
    return await answer(session, text)
"""
WAYS = {
    "by setdefault": ASKS + ROUTE,
    "by brackets": ASKS
    + """
@app.post("/chat")
async def chat(session_id: str, text: str):
    if session_id not in sessions:
        sessions[session_id] = Session()
    return await answer(sessions[session_id], text)
""",
    "as it is made": ASKS
    + """
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions.get(session_id)
    if session is None:
        session = sessions[session_id] = Session()
    return await answer(text=text, session=session)
""",
    "by a function": ASKS
    + """
def get_session(session_id):
    if session_id not in sessions:
        sessions[session_id] = Session()
    return sessions[session_id]
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = get_session(session_id)
    return await answer(session, text)
""",
    "over another one": ASKS
    + """
async def turn(one, text):
    return await answer(one, text.strip())
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions.setdefault(session_id, Session())
    return await turn(session, text)
""",
    "a part of it": """
async def answer(past, text):
    past.append({"role": "user", "content": text})
    return await client.chat.completions.create(model="m", messages=past)
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions.setdefault(session_id, Session())
    return await answer(session.messages, text)
""",
    "a dict without a shape": """
async def answer(state, text):
    state.setdefault("history", []).append({"role": "user", "content": text})
    return await client.responses.create(model="m", input=state["history"])
@app.post("/chat")
async def chat(session_id: str, text: str):
    state = sessions.setdefault(session_id, {})
    return await answer(state, text)
""",
    "a method of an object": """
class Agent:
    async def answer(self, session, text):
        session.messages.append({"role": "user", "content": text})
        return await client.chat.completions.create(model="m", messages=session.messages)
agent = Agent()
@app.post("/chat")
async def chat(session_id: str, text: str):
    return await agent.answer(sessions.setdefault(session_id, Session()), text)
""",
    "its own method": """
class Talk:
    def __init__(self):
        self.messages = []
    async def answer(self, text):
        self.messages.append({"role": "user", "content": text})
        return await client.chat.completions.create(model="m", messages=self.messages)
def talk_of(session_id):
    return sessions.setdefault(session_id, Talk())
@app.post("/chat")
async def chat(session_id: str, text: str):
    talk = talk_of(session_id)
    return await talk.answer(text)
""",
}
SAYS_NOTHING = {
    "another thing is asked": """
async def answer(session, text):
    session.messages.append({"role": "user", "content": text})
    return await client.chat.completions.create(model="m", messages=[
        {"role": "user", "content": text}])
"""
    + ROUTE,
    "no conversation": """
async def answer(session, text):
    session.lines.append(text)
    return await client.chat.completions.create(model="m", messages=[
        {"role": "user", "content": text}])
"""
    + ROUTE.replace("Session()", "Log()"),
    "made for each request": ASKS
    + """
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = Session()
    return await answer(session, text)
""",
    "also stored": ASKS.replace("    return given", "    save_messages(session)\n    return given")
    + ROUTE,
    "begun from what is stored": ASKS
    + """
@app.post("/chat")
async def chat(session_id: str, text: str):
    if session_id not in sessions:
        sessions[session_id] = Session()
        sessions[session_id].messages = load_messages(session_id)
    return await answer(sessions[session_id], text)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_is_handed_to_who_asks_the_model_is_lost_with_the_process(read, way):
    (site,) = read({"app.py": HEAD + dedent(WAYS[way])}).sites
    assert (site.role, site.medium, site.is_served) == (Role.HISTORY, Medium.MEMORY, True)
    assert site.class_name == "the dict sessions"


@pytest.mark.parametrize("way", SAYS_NOTHING)
def test_what_is_handed_elsewhere_says_nothing(read, way):
    sites = read({"app.py": HEAD + dedent(SAYS_NOTHING[way])}).sites
    assert not [one for one in sites if one.is_served]
