"""A server."""

import os
import time
import uuid

import httpx
from fastapi import BackgroundTasks, FastAPI, HTTPException
from pydantic import BaseModel

OUTSIDE_URL = os.environ["OUTSIDE_URL"]

app = FastAPI()
steps_done: dict[str, int] = {}
steps_asked: dict[str, int] = {}


class Work(BaseModel):
    """A run as a client asks for it."""

    thread: str
    operation: str
    steps: int = 3
    step_s: float = 0.0
    payload_bytes: int = 0


def execute(run: str, work: Work) -> None:
    payload = b"x" * work.payload_bytes  # what a run holds in memory while it lasts
    for number in range(1, work.steps + 1):
        time.sleep(work.step_s)
        operation = f"{work.operation}:{number}"
        answer = httpx.post(
            f"{OUTSIDE_URL}/effects",
            json={"operation": operation},
            headers={"Idempotency-Key": operation},
            timeout=600,
        )
        answer.raise_for_status()
        steps_done[run] = number
    print(f"{run} ended, it held {len(payload)} bytes", flush=True)


@app.get("/ready")
def ready() -> dict:
    return {"ready": True}


@app.post("/runs")
def start(work: Work, background: BackgroundTasks) -> dict:
    run = str(uuid.uuid4())
    steps_asked[run], steps_done[run] = work.steps, 0
    background.add_task(execute, run, work)
    return {"id": run, "state": "running"}


@app.get("/runs/{run}")
def progress(run: str) -> dict:
    if run not in steps_asked:
        raise HTTPException(404)
    is_done = steps_done[run] == steps_asked[run]
    return {
        "id": run,
        "state": "succeeded" if is_done else "running",
        "steps_done": steps_done[run],
    }
