"""Stores in memory that stand in for a durable one, and objects that hold their conversation."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium, Role

STORES = """
import logging
import redis
from fastapi import FastAPI
app = FastAPI()
class InMemory:
    def __init__(self):
        self._kept = {}
    def messages(self, session_id):
        return self._kept.get(session_id, [])
    def add(self, session_id, message):
        self._kept.setdefault(session_id, []).append(message)
class InRedis:
    def __init__(self, url):
        self._redis = redis.from_url(url)
        self._redis.ping()
    def messages(self, session_id):
        return [loads(one) for one in self._redis.lrange(f"messages:{session_id}", 0, -1)]
    def add(self, session_id, message):
        self._redis.rpush(f"messages:{session_id}", dumps(message))
_store = None
def store():
    global _store
    if _store is None:
        try:
            _store = InRedis("redis://cache:6379/0")
        except CAUGHT as error:
            HANDLED
    return _store
@app.post("/chat")
def chat(session_id: str, text: str):
    messages = [*store().messages(session_id), {"role": "user", "content": text}]
    answer = client.chat.completions.create(messages=messages)
    store().add(session_id, {"role": "assistant", "content": answer})
    return answer
"""
GOES_ON = 'logging.warning("no Redis: %s", error)\n            _store = InMemory()'


def read_store(read, caught, handled):
    facts = read({"app.py": STORES.replace("CAUGHT", caught).replace("HANDLED", handled)})
    failed = [one for one in facts.degrades if one.cause == "failed" and one.when.value]
    media = {
        one.medium for one in facts.sites if one.role is Role.HISTORY and one.is_served is not False
        and one.chosen.value is not False
    }  # fmt: skip
    return [one.becomes for one in failed], media


def test_a_store_in_memory_that_is_made_when_redis_is_not_there_is_a_silent_change(read):
    degrades, media = read_store(read, "Exception", GOES_ON)
    assert (degrades, media) == ([Medium.MEMORY], {Medium.REDIS})


@pytest.mark.parametrize(
    ("caught", "handled"),
    [("Exception", "raise RuntimeError('no Redis') from error"), ("ImportError", GOES_ON)],
)
def test_an_end_of_the_start_and_a_library_that_is_not_there_are_none(read, caught, handled):
    degrades, media = read_store(read, caught, handled)
    assert not degrades
    assert Medium.REDIS in media


HELD = {
    "a memory of a class": """
        class Chats:
            _memories: dict = {}
            @classmethod
            def of(cls, session_id):
                if session_id not in cls._memories:
                    cls._memories[session_id] = ChatMemoryBuffer.from_defaults(token_limit=3000)
                return cls._memories[session_id]
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            return await index.as_chat_engine(memory=Chats.of(session_id)).achat(text)
        """,
    "an engine with its memory": """
        engines = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            if session_id not in engines:
                memory = ChatMemoryBuffer.from_defaults(token_limit=3000)
                engines[session_id] = index.as_chat_engine(chat_mode="context", memory=memory)
            return await engines[session_id].achat(text)
        """,
    "an agent with its history": """
        class Assistant:
            def __init__(self):
                self.history = []
            async def ask(self, text):
                self.history.append(text)
                return await complete(self)
        assistants = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            assistant = assistants.setdefault(session_id, Assistant())
            return await assistant.ask(text)
        """,
}
OPEN = {
    "a memory with a store of its own": """
        store = PostgresChatStore.from_uri("postgresql://db/x")
        engines = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            if session_id not in engines:
                memory = ChatMemoryBuffer.from_defaults(token_limit=3000, chat_store=store)
                engines[session_id] = index.as_chat_engine(chat_mode="context", memory=memory)
            return await engines[session_id].achat(text)
        """,
    "an agent that is filled": """
        class Assistant:
            def __init__(self, session_id):
                self.history = load_messages(session_id)
            async def ask(self, text):
                self.history.append(text)
                return await complete(self)
        assistants = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            assistant = assistants.setdefault(session_id, Assistant(session_id))
            return await assistant.ask(text)
        """,
    "read through": """
        histories = {}
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            if session_id not in histories:
                histories[session_id] = await repository.messages(session_id)
            histories[session_id].append({"role": "user", "content": text})
            return await model.ainvoke(histories[session_id])
        """,
    "a store that asks another one first": """
        class Store:
            def __init__(self, backend=None):
                self._kept = {}
                self._backend = backend
            def messages(self, session_id):
                if self._backend:
                    return self._backend.read(session_id)
                return self._kept.get(session_id, [])
            def add(self, session_id, message):
                self._kept.setdefault(session_id, []).append(message)
        store = Store(backend=Files("/data"))
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            messages = [*store.messages(session_id), {"role": "user", "content": text}]
            store.add(session_id, await model.ainvoke(messages))
        """,
}
FREE = {
    "objects that note what went wrong": """
        class Importer:
            def __init__(self):
                self.messages = []
            def run(self, rows):
                for row in rows:
                    self.messages.append("bad row")
                return self.messages
        importers = {}
        @app.post("/imports/{session_id}")
        async def imports(session_id: str, rows: list):
            importers[session_id] = Importer()
            return importers[session_id].run(rows)
        """,
    "a store whose methods are all replaced": """
        class Store:
            def __init__(self):
                self._kept = {}
            def messages(self, session_id):
                return self._kept.get(session_id, [])
            def add(self, session_id, message):
                self._kept.setdefault(session_id, []).append(message)
        class Far(Store):
            def messages(self, session_id):
                return far.select(session_id)
            def add(self, session_id, message):
                far.put(session_id, message)
        store = Far()
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            messages = [*store.messages(session_id), {"role": "user", "content": text}]
            store.add(session_id, await model.ainvoke(messages))
        """,
    "an engine without a memory": """
        engines = {}
        @app.post("/ask")
        async def ask(session_id: str, text: str):
            if session_id not in engines:
                engines[session_id] = index.as_query_engine(top_k=3)
            return await engines[session_id].run(text)
        """,
    "a memory of each request": """
        @app.post("/chat")
        async def chat(session_id: str, text: str):
            memory = ChatMemoryBuffer.from_defaults(token_limit=3000)
            return await index.as_chat_engine(memory=memory).achat(text)
        """,
}
HEAD = """
from fastapi import FastAPI
from llama_index.core.memory import ChatMemoryBuffer
app = FastAPI()
"""


@pytest.mark.parametrize("way", HELD)
def test_objects_that_hold_their_conversation_are_lost_with_the_process(read, way):
    found = read({"app.py": HEAD + dedent(HELD[way])}).sites
    assert [(one.role, one.medium, one.is_served) for one in found] == [
        (Role.HISTORY, Medium.MEMORY, True)
    ]


@pytest.mark.parametrize("way", OPEN)
def test_a_conversation_that_may_be_kept_elsewhere_is_a_question(read, way):
    found = read({"app.py": HEAD + dedent(OPEN[way])}).sites
    assert [(one.role, one.medium, one.is_served) for one in found] == [
        (Role.HISTORY, Medium.MEMORY, None)
    ]


def test_a_store_in_memory_that_a_memory_is_given_is_one(read):
    text = OPEN["a memory with a store of its own"].replace(
        'PostgresChatStore.from_uri("postgresql://db/x")', "SimpleChatStore()"
    )
    assert [one.is_served for one in read({"app.py": HEAD + dedent(text)}).sites] == [True]


def test_a_store_whose_methods_are_replaced_elsewhere_counts(read):
    text = FREE["a store whose methods are all replaced"].replace(
        "store = Far()", "store = Store()"
    )
    assert [one.is_served for one in read({"app.py": HEAD + dedent(text)}).sites] == [True]


@pytest.mark.parametrize("way", FREE)
def test_objects_without_a_conversation_say_nothing(read, way):
    assert not read({"app.py": HEAD + dedent(FREE[way])}).sites
