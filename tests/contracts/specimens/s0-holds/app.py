"""An agent that does not start without its database."""

import os
from contextlib import ExitStack

from agent import Work, beginning, builder, outline, progress
from fastapi import BackgroundTasks, FastAPI, HTTPException
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.types import Command

resources = ExitStack()
saver = resources.enter_context(PostgresSaver.from_conn_string(os.environ["DATABASE_URL"]))
saver.setup()
graph = builder.compile(checkpointer=saver)
app = FastAPI()


def config(thread: str) -> dict:
    return {"configurable": {"thread_id": thread}}


def stored(thread: str):
    snapshot = graph.get_state(config(thread))
    if not snapshot.values:
        raise HTTPException(404)
    return snapshot


@app.get("/ready")
def ready() -> dict:
    return {"ready": True}


@app.post("/runs")
def start(work: Work, background: BackgroundTasks) -> dict:
    background.add_task(graph.invoke, beginning(work), config(work.thread), durability="sync")
    return {"id": work.thread, "state": "running"}


@app.get("/runs/{run}")
def run(run: str) -> dict:
    return progress(run, stored(run))


@app.get("/threads/{thread}")
def thread(thread: str) -> dict:
    return outline(thread, stored(thread))


@app.post("/threads/{thread}/resume")
def resume(thread: str, background: BackgroundTasks) -> dict:
    background.add_task(graph.invoke, Command(resume=True), config(thread), durability="sync")
    return {"id": thread, "state": "running"}
