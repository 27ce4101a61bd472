"""Stores of conversations behind factories: which object is made, by settings, and how often."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.evidence import Confidence

STORES = """
import redis
class Conversations:
    def __init__(self, most: int = 50):
        self._kept: dict[str, list] = {}
        self._locks: dict[str, object] = {}
        self.most = most
    async def history(self, session_id):
        self._locks.setdefault(session_id, object())
        return self._kept.get(session_id, [])
    async def keep(self, session_id, messages):
        self._kept[session_id] = shortened(messages, self.most)
class RedisConversations:
    def __init__(self, url):
        self._redis = redis.from_url(url)
    async def history(self, session_id):
        return loads(self._redis.get(f"history:{session_id}"))
    async def keep(self, session_id, messages):
        self._redis.set(f"history:{session_id}", dumps(messages))
"""
SETTINGS = """
from pydantic_settings import BaseSettings
class Settings(BaseSettings):
    chat_store: str = "memory"
    redis_url: str = "redis://cache:6379/0"
settings = Settings()
"""
APP = """
from functools import lru_cache
from fastapi import Depends, FastAPI
from settings import settings
from stores import Conversations, RedisConversations
app = FastAPI()
def chosen():
    if settings.chat_store == "redis":
        return RedisConversations(settings.redis_url)
    return Conversations()
KEPT
@app.post("/chat")
async def chat(session_id: str, text: str, store=Depends(conversations)):
    history = await store.history(session_id)
    answer = await agent.run(text, message_history=history)
    await store.keep(session_id, answer.all_messages())
    return answer.output
"""
ONCE = {
    "cached": """
        @lru_cache(maxsize=1)
        def conversations():
            return chosen()
        """,
    "global": """
        _one = None
        def conversations():
            global _one
            if _one is None:
                _one = chosen()
            return _one
        """,
    "at the start": """
        def conversations():
            return app.state.conversations
        @app.on_event("startup")
        async def startup():
            app.state.conversations = chosen()
        """,
}


def histories(read, kept, environment=None, **more):
    files = {
        "app.py": APP.replace("KEPT", dedent(kept)),
        "settings.py": SETTINGS,
        "stores.py": STORES,
    }
    found = read(files, environment=environment, **more).sites
    return [one for one in found if one.role is Role.HISTORY and one.chosen.value is not False]


def test_a_store_that_a_start_makes_is_the_one_that_settings_choose(read):
    (site,) = histories(read, ONCE["at the start"])
    assert (site.class_name, site.medium, site.is_served) == (
        "the dict _kept",
        Medium.MEMORY,
        True,
    )
    assert site.chosen.confidence is Confidence.DECLARED_DEFAULT
    assert any(one.file == "app.py" and "is made" in one.note for one in site.evidence)


@pytest.mark.parametrize("way", ONCE)
def test_the_environment_of_a_deployment_chooses_another_one(read, way):
    (site,) = histories(read, ONCE[way], environment={"CHAT_STORE": "redis"})
    assert (site.medium, site.is_served) == (Medium.REDIS, True)


@pytest.mark.parametrize("way", ["cached", "global"])
@pytest.mark.parametrize("made", ["chosen()", "Conversations()"])
def test_an_object_that_is_kept_by_a_factory_is_made_once(read, way, made):
    (site,) = histories(read, ONCE[way].replace("chosen()", made))
    assert (site.medium, site.is_served) == (Medium.MEMORY, True)


def test_an_object_that_each_request_makes_keeps_nothing(read):
    each = """
        def conversations():
            return Conversations()
        """
    assert all(one.is_served is not True for one in histories(read, each))


def test_a_setting_that_nobody_knows_leaves_open_which_store_it_is(read):
    unknown = SETTINGS.replace("BaseSettings):", "BaseSettings):\n    pass\nclass Other:")
    files = {
        "app.py": APP.replace("KEPT", dedent(ONCE["at the start"])),
        "settings.py": unknown.replace("Settings()", "load(Other)"),
        "stores.py": STORES,
    }
    found = [one for one in read(files).sites if one.role is Role.HISTORY]
    assert {one.medium for one in found} == {Medium.MEMORY, Medium.REDIS}
    assert [one.chosen.value for one in found] == [None, None]
