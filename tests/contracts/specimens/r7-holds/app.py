"""An agent that goes on with interrupted runs when it starts."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path

from agent import Work, beginning, builder, is_unfinished, outline, progress
from fastapi import BackgroundTasks, FastAPI, HTTPException
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

Path("data").mkdir(exist_ok=True)
saver = SqliteSaver(sqlite3.connect("data/threads.db", check_same_thread=False))
graph = builder.compile(checkpointer=saver)


@asynccontextmanager
async def lifespan(_app: FastAPI):
    for thread in {each.config["configurable"]["thread_id"] for each in saver.list(None)}:
        snapshot = graph.get_state(config(thread))
        if is_unfinished(snapshot) and not snapshot.interrupts:
            print(f"going on with {thread}", flush=True)
            asyncio.get_running_loop().run_in_executor(None, go_on, thread)
    yield


def go_on(thread: str) -> None:
    graph.invoke(None, config(thread), durability="sync")


app = FastAPI(lifespan=lifespan)


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
