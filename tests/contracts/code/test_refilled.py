"""Sessions in memory, and what is put into them again."""

import pytest

APP = """
from fastapi import FastAPI
from google.adk.agents import Agent
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
app = FastAPI()
sessions = InMemorySessionService()
runner = Runner(agent=Agent(name="a"), app_name="a", session_service=sessions)
@app.post("/run")
async def run(session_id: str, text: str):
    session = await sessions.create_session(app_name="a", user_id="u", session_id=session_id)
    FILL
    return [event async for event in runner.run_async(session_id=session_id, new_message=text)]
"""
BY_SERVICE = """for row in await stored(session_id):
        await sessions.append_event(session=session, event=Event(author="user", content=row))"""
BY_LIST = """for row in await stored(session_id):
        session.events.append(Event(author="user", content=row))"""
NOT_EVENTS = """for row in await stored(session_id):
        rows.append(row)"""


@pytest.mark.parametrize(
    ("fill", "is_served"), [("pass", True), (NOT_EVENTS, True), (BY_SERVICE, None), (BY_LIST, None)]
)
def test_sessions_that_are_filled_again_by_hand_are_a_question(read, fill, is_served):
    found = read({"app.py": APP.replace("FILL", fill)})
    [site] = [one for one in found.sites if one.class_name == "InMemorySessionService"]
    assert site.is_served is is_served
