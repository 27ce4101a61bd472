"""A graph of one node that repeats itself; each step acts once on the outside world."""

import hashlib
import json
import operator
import os
import time
from typing import Annotated, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

OUTSIDE_URL = os.environ["OUTSIDE_URL"]


class Work(BaseModel):
    """A run as a client asks for it."""

    thread: str
    operation: str
    steps: int = 3
    step_s: float = 0.0
    asks: bool = False


class State(TypedDict):
    """What is kept of a thread."""

    operation: str
    steps: int
    step_s: float
    asks: bool
    done: Annotated[list[int], operator.add]


def step(state: State) -> dict:
    number = len(state["done"]) + 1
    if state["asks"] and number == state["steps"]:
        interrupt(f"do step {number}?")
    time.sleep(state["step_s"])
    operation = f"{state['operation']}:{number}"
    key = operation
    answer = httpx.post(
        f"{OUTSIDE_URL}/effects",
        json={"operation": operation},
        headers={"Idempotency-Key": key},
        timeout=600,
    )
    answer.raise_for_status()
    return {"done": [number]}


def follow(state: State) -> str:
    return "step" if len(state["done"]) < state["steps"] else END


builder = StateGraph(State)
builder.add_node(step)
builder.add_edge(START, "step")
builder.add_conditional_edges("step", follow, ["step", END])


def beginning(work: Work) -> dict:
    return {**work.model_dump(exclude={"thread"}), "done": []}


def outline(thread: str, snapshot) -> dict:
    """Say of a stored thread what a client needs to compare it."""
    stored = json.dumps(snapshot.values, sort_keys=True)
    return {
        "id": thread,
        "checkpoint": snapshot.config["configurable"]["checkpoint_id"],
        "steps": len(snapshot.values["done"]),
        "digest": hashlib.sha256(stored.encode()).hexdigest(),
        "interrupts": [{"id": each.id, "value": str(each.value)} for each in snapshot.interrupts],
    }


def progress(thread: str, snapshot) -> dict:
    """Say of a run how far it is."""
    state = "running" if is_unfinished(snapshot) else "succeeded"
    return {
        "id": thread,
        "state": "interrupted" if snapshot.interrupts else state,
        "steps_done": len(snapshot.values["done"]),
    }


def is_unfinished(snapshot) -> bool:
    """Return whether steps are missing; `snapshot.next` is empty between two of them, too."""
    return len(snapshot.values["done"]) < snapshot.values["steps"]
