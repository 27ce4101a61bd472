"""A server that streams the events of a run from where a client left off."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import httpx
from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

OUTSIDE_URL = os.environ["OUTSIDE_URL"]

Path("data").mkdir(exist_ok=True)
database = sqlite3.connect("data/runs.db", check_same_thread=False, isolation_level=None)
database.execute("create table if not exists runs (id primary key, operation, steps, step_s)")
database.execute("create table if not exists events (run, seq, name, primary key (run, seq))")
lock = threading.Lock()


class Work(BaseModel):
    """A run as a client asks for it."""

    thread: str
    operation: str
    steps: int = 3
    step_s: float = 0.0


def query(statement: str, *values: object) -> list[tuple]:
    with lock:
        return database.execute(statement, values).fetchall()


def newest(run: str) -> int:
    return query("select coalesce(max(seq), 0) from events where run = ?", run)[0][0]


def execute(run: str, operation: str, steps: int, step_s: float) -> None:
    for number in range(newest(run) + 1, steps + 1):
        time.sleep(step_s)
        step = f"{operation}:{number}"
        headers = {"Idempotency-Key": step}
        body = {"operation": step}
        httpx.post(f"{OUTSIDE_URL}/effects", json=body, headers=headers, timeout=600)
        name = "end" if number == steps else "step"
        query("insert into events values (?, ?, ?)", run, number, name)


def begin(run: str, operation: str, steps: int, step_s: float) -> None:
    threading.Thread(target=execute, args=(run, operation, steps, step_s), daemon=True).start()


@asynccontextmanager
async def lifespan(_app: FastAPI):
    for run in query("select * from runs"):  # those that ended have nothing left to do
        begin(*run)
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/ready")
def ready() -> dict:
    return {"ready": True}


@app.post("/runs")
def start(work: Work) -> dict:
    run = (work.thread, work.operation, work.steps, work.step_s)
    query("insert into runs values (?, ?, ?, ?)", *run)
    begin(*run)
    return {"id": work.thread, "state": "running"}


@app.get("/runs/{run}")
def progress(run: str) -> dict:
    asked = query("select steps from runs where id = ?", run)
    if not asked:
        raise HTTPException(404)
    state = "succeeded" if newest(run) == asked[0][0] else "running"
    return {"id": run, "state": state, "steps_done": newest(run)}


async def follow(run: str, seen: int) -> AsyncIterator[str]:
    while True:
        for seq, name in query(
            "select seq, name from events where run = ? and seq > ? order by seq", run, seen
        ):
            yield f"id: {seq}\nevent: {name}\ndata: {seq}\n\n"
            seen = seq
            if name == "end":
                return
        await asyncio.sleep(0.05)


@app.get("/runs/{run}/events")
async def events(run: str, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    return StreamingResponse(follow(run, last_event_id), media_type="text/event-stream")
