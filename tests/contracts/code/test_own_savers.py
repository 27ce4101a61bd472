"""Savers that a project writes itself: where they keep things is what their writes say."""

from textwrap import dedent

import pytest

from perdure.contracts.code.facts import Medium
from tests.contracts.code.test_sites import only

SERVED = """
import os
from fastapi import FastAPI
from langgraph.graph import StateGraph
from kept import Kept, engine_url
graph = StateGraph(dict).compile(checkpointer=Kept({given}))
app = FastAPI()
def ask(): graph.invoke({{}}, {{"configurable": {{"thread_id": "1"}}}})
"""


def served(read, text, given="", **more):
    files = {
        "app.py": SERVED.format(given=given),
        "kept.py": "engine_url = ''\n" + dedent(text),
        "tables.py": TABLES,
        "clients.py": CLIENTS,
    }
    return only(read(files, "uvicorn", "app:app", **more))


TABLES = """
import os
from sqlalchemy import Column, String, create_engine
from sqlalchemy.orm import declarative_base, sessionmaker
engine = create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True)
make_session = sessionmaker(bind=engine)
class Row(declarative_base()):
    __tablename__ = "rows"
    thread = Column(String, primary_key=True)
def get_db():
    db = make_session()
    try:
        yield db
    finally:
        db.close()
"""

CLIENTS = """
import redis.asyncio as redis
class Client:
    def __init__(self): self.connection = redis.from_url("redis://cache:6379/0")
    async def set_kept(self, key, value): await self.connection.set(key, value)
async def get_client(): return Client()
"""

ROWS = """
    from collections import OrderedDict
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from tables import Row, get_db
    class Kept(BaseCheckpointSaver):
        def __init__(self, factory=None):
            self.factory = factory or get_db
            self._cache = OrderedDict()
        def put(self, config, checkpoint, metadata, versions):
            self._cache[config["thread"]] = checkpoint
            return self._write(config, checkpoint)
        def _write(self, config, checkpoint):
            db = next(self.factory())
            db.add(Row(thread=config["thread"]))
            db.commit()
            return config
"""


@pytest.mark.parametrize(
    ("url", "medium"),
    [
        ("postgresql+psycopg://u:p@db:5432/x", Medium.POSTGRES),
        ("mysql+pymysql://u:p@db:3306/x", Medium.NETWORK),
        ("sqlite:///./data/x.db", Medium.FILE),
    ],
)
def test_rows_of_sqlalchemy_are_where_the_engine_is(read, url, medium):
    site = served(read, ROWS, environment={"DATABASE_URL": url})
    assert site.medium is medium
    assert site.location is not None
    assert site.location.value == url.replace(":p@", ":***@")


def test_rows_of_an_engine_whose_address_nobody_gives_are_a_question(read):
    assert served(read, ROWS).medium is Medium.UNKNOWN


PICKLED = """
    import pickle
    from pathlib import Path
    from langgraph.checkpoint.memory import InMemorySaver
    class Kept(InMemorySaver):
        def __init__(self, path):
            super().__init__()
            self.path = Path(path)
        def put(self, config, checkpoint, metadata, versions):
            found = super().put(config, checkpoint, metadata, versions)
            self._dump()
            return found
        def _dump(self):
            beside = self.path.with_suffix(".tmp")
            with beside.open("wb") as file:
                pickle.dump(dict(self.storage), file)
            beside.replace(self.path)
"""


def test_a_saver_in_memory_that_writes_a_file_at_each_put_is_a_file(read):
    site = served(read, PICKLED, given="os.environ.get('KEPT', 'data/kept.pkl')")
    assert (site.medium, site.survives_process) == (Medium.FILE, True)
    assert site.location is not None
    assert site.location.value == "data/kept.pkl"


def test_a_saver_in_memory_that_only_reads_a_file_stays_in_memory(read):
    text = PICKLED.replace("self._dump()", "pass").replace('open("wb")', 'open("rb")')
    assert served(read, text, given="'x'").medium is Medium.MEMORY


@pytest.mark.parametrize(
    ("text", "medium"),
    [
        (
            """
            from langgraph.checkpoint.base import BaseCheckpointSaver
            class Kept(BaseCheckpointSaver):
                def __init__(self): self.rows = {}
                def put(self, config, checkpoint, metadata, versions):
                    self.rows[config["thread"]] = checkpoint
            """,
            Medium.MEMORY,
        ),
        (
            """
            from langgraph.checkpoint.base import BaseCheckpointSaver
            class Kept(BaseCheckpointSaver):
                async def _client(self):
                    from clients import get_client
                    return await get_client()
                async def aput(self, config, checkpoint, metadata, versions):
                    client = await self._client()
                    await client.set_kept(config["thread"], checkpoint)
            """,
            Medium.REDIS,
        ),
        (
            """
            import asyncpg
            from langgraph.checkpoint.base import BaseCheckpointSaver
            class Kept(BaseCheckpointSaver):
                async def aput(self, config, checkpoint, metadata, versions):
                    connection = await asyncpg.connect("postgresql://db/x")
                    await connection.execute("INSERT INTO kept VALUES ($1)", checkpoint)
            """,
            Medium.POSTGRES,
        ),
        (
            """
            import boto3
            from langgraph.checkpoint.base import BaseCheckpointSaver
            class Kept(BaseCheckpointSaver):
                def put(self, config, checkpoint, metadata, versions):
                    boto3.client("s3").put_object(Bucket="b", Key="k", Body=checkpoint)
            """,
            Medium.NETWORK,
        ),
        (
            """
            import json
            from langgraph.checkpoint.base import BaseCheckpointSaver
            class Kept(BaseCheckpointSaver):
                def put(self, config, checkpoint, metadata, versions):
                    with open("kept.json", "w") as file:
                        json.dump(checkpoint, file)
            """,
            Medium.FILE,
        ),
    ],
)  # fmt: skip
def test_what_the_writes_call_says_where(read, text, medium):
    assert served(read, text).medium is medium
