"""An agent on Perdure itself, for trials: each step acts once on the outside world."""

import asyncio
import json
import os
import urllib.request
from dataclasses import dataclass, field
from typing import Annotated

from perdure import END, START, Context, Graph, append, effect


@dataclass
class State:
    """What a trial asks for, and what is done of it."""

    operation: str = ""
    steps: int = 3
    step_s: float = 0.0
    asks: bool = False
    payload_bytes: int = 0
    done: Annotated[list[int], append] = field(default_factory=list)


graph = Graph(State, name="trial", version=1)


@effect(kind="keyed")
async def act(operation: str, *, idempotency_key: str) -> str:
    def send() -> str:
        asked = urllib.request.Request(  # noqa: S310  # the address is the trial's
            f"{os.environ['EFFECTS_URL']}/effects",
            data=json.dumps({"operation": operation}).encode(),
            headers={"Idempotency-Key": idempotency_key},
        )
        with urllib.request.urlopen(asked, timeout=600) as answer:  # noqa: S310  # as above
            return json.loads(answer.read())["result"]

    return await asyncio.to_thread(send)


@graph.node
async def step(state: State, ctx: Context) -> dict:
    number = len(state.done) + 1
    if state.asks and number == state.steps:
        await ctx.ask(f"do step {number}?", schema=bool)
    await ctx.sleep(state.step_s)
    await ctx.call(act, f"{state.operation}:{number}")
    return {"done": [number]}


def follow(state: State) -> str:
    return "step" if len(state.done) < state.steps else END


graph.edge(START, step)
graph.branch(step, follow, targets=[step, END])
