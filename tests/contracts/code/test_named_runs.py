"""Runs of workers that only the name of a method says to be those of a graph."""

import pytest

from perdure.contracts.findings import Contract, Verdict
from perdure.contracts.rules import RULES
from tests.contracts.making import root, service

GRAPH = """
from langgraph.graph import StateGraph
builder = StateGraph(dict)
builder.add_node("a", print)
builder.add_node("b", print)
graph = builder.compile()
"""
WORKER = """
from celery import Celery
from langchain.agents import AgentExecutor
from graphs import graph
celery_app = Celery("x")
class Pipeline:
    def invoke(self, text):
        return text
class Sums:
    def __init__(self, pipeline):
        self.pipeline = pipeline
    def total(self, text):
        return self.pipeline.invoke(text)
class Kept:
    def __init__(self):
        self.graph = graph
CLASSES
@celery_app.task
def work(text):
    RUN
"""
RUNS = {
    "the graph": (Verdict.VIOLATED, "return graph.invoke({'text': text})", ""),
    "an object's graph": (Verdict.VIOLATED, "return Kept().graph.invoke({'text': text})", ""),
    "a made object's graph": (
        Verdict.VIOLATED, "kept = Kept()\n    return kept.graph.invoke({'text': text})", ""),
    "a parameter of nobody knows what": (
        Verdict.UNDECIDED, "return Sums(load(text)).total(text)", ""),
    "what is looked up": (Verdict.UNDECIDED, "return agents[text].agent.invoke(text)", ""),
    "an object of the project": (
        Verdict.UNDECIDED, "return pipeline.invoke(text)", "pipeline = Pipeline()"),
    "a chain": (Verdict.UNDECIDED, "return workflow.invoke(text)", "workflow = prompt | model"),
    "what a library makes": (
        Verdict.UNDECIDED, "return agent.invoke(text)", "agent = AgentExecutor(tools=[])"),
}  # fmt: skip


@pytest.mark.parametrize("way", RUNS)
def test_a_worker_loses_runs_of_a_graph_that_is_known_to_be_one(read, way):
    verdict, run, classes = RUNS[way]
    text = WORKER.replace("RUN", run).replace("CLASSES", classes)
    argv = ("celery", "-A", "app", "worker")
    facts = read({"app.py": text, "graphs.py": GRAPH}, *argv)
    found = RULES[Contract.R3](service(), facts, root(service()))
    assert found.verdict is verdict
    assert (found.question is not None) is (verdict is Verdict.UNDECIDED)


@pytest.mark.parametrize("way", ["an object of the project", "a chain", "what a library makes"])
def test_what_is_known_to_be_no_graph_is_no_run(read, way):
    _verdict, run, classes = RUNS[way]
    text = WORKER.replace("RUN", run).replace("CLASSES", classes).replace(".pipeline.", ".text.")
    facts = read({"app.py": text, "graphs.py": GRAPH}, "celery", "-A", "app", "worker")
    assert facts.outlives == ()
