"""The graphs of the growth measurement, and a worker of them: `... bench.growth_worker URL NOTES`.

A woken run notes that it began again, so that whoever measures asks the store nothing.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.crash_worker import note
from bench.ours import NOTE, STEPS_MAX
from perdure import END, START, Context, Graph, Runtime

marks: dict[int, tuple[float, float]] = {}
"""When a long run had so many steps left: by the clock and by the CPUs of this process."""

MARK_STEPS = 500


@dataclass
class Waiting:
    """What a waiting run keeps: steps to go before it waits, a note, where it notes its waking."""

    left: int = 0
    note: str = NOTE
    notes: str = ""


def _more(state: Waiting) -> str:
    return "step" if state.left > 0 else "wait"


waiting = Graph(Waiting, name="bench-waiting", step_limit=STEPS_MAX)


@waiting.node(name="step")
async def _step(state: Waiting) -> dict[str, Any]:
    if state.left % MARK_STEPS == 0:
        marks[state.left] = (time.perf_counter(), time.process_time())
    return {"left": state.left - 1}


@waiting.node(name="wait")
async def _wait(state: Waiting, ctx: Context) -> dict[str, Any]:
    await ctx.receive("go")
    if state.notes:
        note(Path(state.notes), "woken", 0)
    return {}


waiting.branch(START, _more, targets=["step", "wait"])
waiting.branch("step", _more, targets=["step", "wait"])
waiting.edge("wait", END)


async def main(url: str, notes: Path) -> None:
    async with Runtime.open(url, graphs=[waiting]):
        note(notes, "ready", 0)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
