"""S4 where a start makes collections of a vector database or indices of a search engine."""

import pytest

from perdure.contracts.check import check
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.projects import project

V, H, U, NA = (Verdict.VIOLATED, Verdict.HELD, Verdict.UNDECIDED, Verdict.NOT_APPLICABLE)
COMPOSE = """\
services:
  api:
    build: .
    depends_on:{waits}
    environment:
      STORE_URL: http://store:6333
  store:
    image: {image}
    healthcheck:
      test: curl -f http://localhost:6333/readyz
"""
SHORT = " [store]"
HEALTHY = "\n      store: {condition: service_healthy}"
APP = """\
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI
{imports}

class Store:
    def __init__(self):
        self.client = {client}(os.environ["STORE_URL"])

    def ensure(self):
        if not self.has():
            self.client.{makes}("documents")

{start}
"""
BEGINS = """
@asynccontextmanager
async def lifespan(app):
    Store().ensure()
    yield

app = FastAPI(lifespan=lifespan)
"""
PASSES_OVER = BEGINS.replace(
    "    Store().ensure()\n",
    "    try:\n        Store().ensure()\n    except Exception as error:\n        print(error)\n",
)
LETS_THROUGH = PASSES_OVER.replace("Exception as error", "ValueError as error")
TRIES = BEGINS.replace(
    "    Store().ensure()\n",
    "    for attempt in range(30):\n        try:\n            Store().ensure()\n"
    "            break\n        except Exception:\n            time.sleep(1)\n",
)
LATER = """
app = FastAPI()

@app.post("/")
def post():
    Store().ensure()
"""
QDRANT = ("qdrant/qdrant:v1.15", "from qdrant_client import QdrantClient", "QdrantClient")


def judged(folder, start, *, made=(*QDRANT, "create_collection"), waits=SHORT):
    image, imports, client, makes = made
    where = project(
        folder,
        compose_dot_yaml=COMPOSE.format(image=image, waits=waits),
        app_dot_py=APP.format(imports=imports, client=client, makes=makes, start=start),
    )
    (root,) = check(where).roots
    return next(f for f in root.findings if f.contract is Contract.S4 and f.service == "api")


@pytest.mark.parametrize(
    "made",
    [
        (*QDRANT, "create_collection"),
        (*QDRANT, "recreate_collection"),
        (
            "milvusdb/milvus:v2.6",
            "from pymilvus import MilvusClient",
            "MilvusClient",
            "create_collection",
        ),
        ("chromadb/chroma:1", "import chromadb", "chromadb.HttpClient", "get_or_create_collection"),
        (
            "semitechnologies/weaviate:1",
            "import weaviate",
            "weaviate.connect",
            "collections.create",
        ),
        (
            "elasticsearch:9.1.0",
            "from elasticsearch import Elasticsearch",
            "Elasticsearch",
            "indices.create",
        ),
        (
            "neo4j:5",
            "from graphiti_core import Graphiti",
            "Graphiti",
            "build_indices_and_constraints",
        ),
        (
            "opensearchproject/opensearch:3",
            "from opensearchpy import OpenSearch",
            "OpenSearch",
            "indices.create",
        ),
    ],
)
def test_a_collection_made_at_the_start_needs_its_server(tmp_path, made):
    found = judged(tmp_path / "a", BEGINS, made=made)
    assert found.verdict is V
    assert any((e.file, e.line) == ("app.py", 12) for e in found.evidence)
    assert judged(tmp_path / "b", BEGINS, made=made, waits=HEALTHY).verdict is H


@pytest.mark.parametrize(
    ("start", "expected"),
    [(TRIES, H), (LATER, NA), (PASSES_OVER, U), (LETS_THROUGH, V)],
)
def test_what_tries_again_or_goes_on_is_not_violated(tmp_path, start, expected):
    assert judged(tmp_path, start).verdict is expected


def test_a_collection_of_another_server_needs_none_of_this_deployment(tmp_path):
    made = ("mongo:8", "from pymongo import MongoClient", "MongoClient", "create_collection")
    assert judged(tmp_path / "a", BEGINS, made=made).verdict is NA
    made = ("postgres:18", *QDRANT[1:], "create_collection")
    assert judged(tmp_path / "b", BEGINS, made=made).verdict is NA


CONTRACTED = """\
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from fastapi import FastAPI
from sqlmodel import SQLModel, create_engine

class Tables(ABC):
    @abstractmethod
    def make(self): ...

class RealTables(Tables):
    def make(self):
        SQLModel.metadata.create_all(create_engine("postgresql://u:p@store/x"))

@asynccontextmanager
async def lifespan(app):
    parts["tables"]().make()
    yield

parts = {"tables": RealTables}
app = FastAPI(lifespan=lifespan)
"""


def test_a_method_is_found_behind_the_class_that_only_declares_it(tmp_path):
    compose = COMPOSE.format(image="postgres:18", waits=SHORT)
    where = project(tmp_path, compose_dot_yaml=compose, app_dot_py=CONTRACTED)
    (root,) = check(where).roots
    found = next(f for f in root.findings if f.contract is Contract.S4 and f.service == "api")
    assert found.verdict is V
