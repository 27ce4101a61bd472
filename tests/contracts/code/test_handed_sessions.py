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
    "who is called is of another library": """
import subprocess
async def answer(session, text):
    session.messages.append({"role": "user", "content": text})
    subprocess.run(["tee", "/dev/stderr"], input="".join(session.messages))
"""
    + ROUTE,
    "who is called is nobody that is known": """
async def answer(session, text):
    session.messages.append({"role": "user", "content": text})
    await exporter.stream(session.messages)
"""
    + ROUTE,
    "the last one is given": ASKS.replace("=session.messages)", "=session.messages[-1:])") + ROUTE,
    "the client sends all": """
async def answer(session, messages):
    session.messages = []
    for message in messages:
        session.messages.append(message)
    return await client.chat.completions.create(model="m", messages=session.messages)
"""
    + ROUTE.replace("text)", "messages)").replace("text: str", "messages: list"),
    "the client's cookie": ASKS
    + ROUTE.replace(
        "    return", '    session.messages = list(request.session["messages"])\n    return'
    ).replace("text: str", "text: str, request: Request"),
    "for this request": ASKS
    + """
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions[session_id] = Session()
    try:
        return await answer(session, text)
    finally:
        sessions.pop(session_id, None)
""",
    "for this connection": ASKS
    + """
@app.websocket("/ws/{client_id}")
async def ws(socket: WebSocket, client_id: str):
    session = Session()
    sessions[client_id] = session
    async for text in socket.iter_text():
        await socket.send_text(await answer(session, text))
    del sessions[client_id]
""",
    "by a function, for this request": ASKS
    + """
def drop(session_id):
    sessions.pop(session_id, None)
@app.post("/chat")
async def chat(session_id: str, text: str):
    session = sessions.setdefault(session_id, Session())
    given = await answer(session, text)
    drop(session_id)
    return given
""",
}
FILLED = {
    name: f"""
import archive
def session_of(session_id):
    if session_id not in sessions:
        session = Session()
        for said in {given}:
            session.messages.append({{"role": said["role"], "content": said["content"]}})
        sessions[session_id] = session
    return sessions[session_id]
@app.post("/chat")
async def chat(session_id: str, text: str):
    return await answer(session_of(session_id), text)
"""
    for name, given in (("by its id", "archive.turns(session_id)"), ("the same for all", "BEGIN"))
}


@pytest.mark.parametrize("way", WAYS)
def test_whether_a_session_that_is_handed_to_who_asks_the_model_must_last_is_asked(read, way):
    (site,) = read({"app.py": HEAD + dedent(WAYS[way])}).sites
    assert (site.role, site.medium, site.is_served) == (Role.HISTORY, Medium.MEMORY, None)
    assert site.class_name == "the dict sessions"


@pytest.mark.parametrize("way", SAYS_NOTHING)
def test_what_is_handed_elsewhere_says_nothing(read, way):
    assert not read({"app.py": HEAD + dedent(SAYS_NOTHING[way])}).sites


@pytest.mark.parametrize("way", FILLED)
def test_what_is_filled_for_its_id_in_a_loop_may_be_kept_where_that_comes_from(read, way):
    text = HEAD + ASKS + FILLED[way]
    (site,) = read({"app.py": text, "archive.py": "def turns(session_id):\n    ...\n"}).sites
    assert site.is_served is (None if way == "by its id" else True)
