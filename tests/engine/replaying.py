"""What tests of replays share: effects that count their calls, and a replay that must be clean."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import (
    END,
    START,
    Graph,
    RunFailed,
    add,
    append,
    effect,
)
from perdure.errors import NeedsDecision


@dataclass
class Log:
    lines: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    last: str = ""
    topics: list[str] = field(default_factory=list)


CALLS: list[Any] = []


@effect(kind="once")
async def charge(order: str, cents: int) -> str:
    CALLS.append(("charge", order, cents))
    return f"charged {order} {cents}"


@effect(kind="once")
async def lost() -> str:
    CALLS.append("lost")
    raise ConnectionError("reset")


@effect(kind="pure")
async def quote(order: str) -> int:
    CALLS.append(("quote", order))
    return 40


def one(function, name="one", **options):
    """Return a graph whose only node is `assess`."""
    graph = Graph(Log, name=name, **options)
    graph.node(name="assess")(function)
    graph.edge(START, "assess")
    graph.edge("assess", END)
    return graph


async def ended(run):
    """Wait until a run has ended, or rests."""
    try:
        return await run.result(timeout=10)
    except (RunFailed, NeedsDecision) as error:
        return error


async def journal_of(runtime, run):
    return [event.seq for event in await runtime.events(run.id)], await run.row()


async def check_clean(runtime, run, graph=None):
    """Replay a run and check that it is clean, that nothing was done, and nothing written."""
    before, calls = await journal_of(runtime, run), list(CALLS)
    found = await runtime.replay(run.id, graph)
    assert [each.message for each in found.divergences] == []
    assert found.is_clean
    assert await journal_of(runtime, run) == before
    assert calls == CALLS
    return found
