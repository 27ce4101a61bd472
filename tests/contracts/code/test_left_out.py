"""Places of databases that no file of a project says, and what code does without them."""

import pytest

from perdure.contracts.code.facts import Medium
from perdure.contracts.evidence import Confidence

FILES = {
    "saver.py": """
import os
from langgraph.checkpoint.mongodb import MongoDBSaver

def make():
    uri = os.getenv("THREADS_URI")
    if not uri:
        print("nothing is kept")
        return None
    try:
        return MongoDBSaver.from_conn_string(uri)
    except Exception as error:
        print(error)
        return None
""",
    "graph.py": """
from langgraph.graph import StateGraph
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)

def compiled(saver=None):
    if saver:
        return builder.compile(checkpointer=saver)
    return builder.compile()
""",
    "app.py": """
from fastapi import FastAPI
from graph import compiled
from saver import make

app = FastAPI()

@app.post("/")
def say(text):
    saver = make()
    config = {"configurable": {"thread_id": "1"}}
    if saver:
        with saver as entered:
            return compiled(entered).invoke(text, config)
    return compiled().invoke(text, config)
""",
}


def failing(facts):
    return [
        (one.becomes, one.when.value, one.when.confidence)
        for one in facts.degrades
        if one.cause == "failed"
    ]


def test_a_place_that_no_file_says_is_asked_for_where_nothing_is_kept_without_it(read):
    facts = read(FILES)
    assert failing(facts) == [(Medium.NONE, True, Confidence.INFERRED)]
    durable = [one for one in facts.sites if one.medium is Medium.MONGO]
    assert [one.chosen.value for one in durable] == [None]
    assert durable[0].chosen.question == "the value of THREADS_URI"


def test_a_place_that_the_deployment_says_decides_it(read):
    facts = read(FILES, environment={"THREADS_URI": "mongodb://db/x"})
    assert [one.chosen.value for one in facts.sites if one.medium is Medium.MONGO] == [True]
    assert [(becomes, when) for becomes, when, _ in failing(facts)] == [(Medium.NONE, True)]


@pytest.mark.parametrize("name", ["USE_MONGO", "MODE"])
def test_a_switch_that_nobody_sets_is_off(read, name):
    files = {path: text.replace("THREADS_URI", name) for path, text in FILES.items()}
    facts = read(files)
    assert [one.chosen.value for one in facts.sites if one.medium is Medium.MONGO] == [False]
    assert [(becomes, when) for becomes, when, _ in failing(facts)] == [(Medium.NONE, False)]


def test_a_place_that_the_template_leaves_empty_is_not_set(read):
    facts = read(FILES, declared={"THREADS_URI": ""})
    assert [one.chosen.value for one in facts.sites if one.medium is Medium.MONGO] == [False]


def test_memory_without_a_place_is_what_the_code_says(read):
    memory = FILES["saver.py"].replace("        return None", "        return MemorySaver()", 1)
    memory = f"from langgraph.checkpoint.memory import MemorySaver\n{memory}"
    facts = read({**FILES, "saver.py": memory})
    taken = [one for one in facts.sites if one.chosen.value is True and one.is_served]
    assert [one.medium for one in taken] == [Medium.MEMORY]
