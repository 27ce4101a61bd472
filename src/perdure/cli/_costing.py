"""`history --cost`: what each checkpoint of a thread costs, for people."""

from collections.abc import Iterable

from perdure.cli._output import say, table
from perdure.cli._text import duration, plural, size_text
from perdure.engine.costs import CheckpointCost

HEADERS = (
    "checkpoint",
    "ran",
    "journal",
    "copies",
    "pages",
    "sandbox",
    "took",
    "nodes took",
    "again",
    "tokens",
)


def print_costs(thread: str, costs: list[CheckpointCost]) -> None:
    """Print a row for each checkpoint, the sums, and what `again` means."""
    table(HEADERS, [_cells(cost) for cost in costs], empty=f"thread {thread} has no checkpoint")
    if not costs:
        return
    stored = sum(cost.stored_bytes for cost in costs)
    tokens = _tokens(
        sum(cost.input_tokens for cost in costs), sum(cost.output_tokens for cost in costs)
    )
    parts = [
        plural(len(costs), "checkpoint"),
        f"{size_text(stored)} stored",
        f"nodes took {duration(sum(cost.node_ms for cost in costs) / 1000)}",
    ]
    say("; ".join([*parts, f"tokens {tokens}"] if tokens else parts))
    say("again: what a fork or rerun from before the step would do once more")


def _cells(cost: CheckpointCost) -> tuple[str, ...]:
    return (
        "under way" if cost.checkpoint is None else str(cost.checkpoint),
        ", ".join(_counted(cost.nodes)) or "input",
        size_text(cost.journal_bytes),
        size_text(cost.copy_bytes) if cost.copy_bytes else "",
        f"{size_text(cost.page_bytes)} ({cost.pages})" if cost.pages else "",
        _sandbox(cost),
        duration(cost.elapsed_ms / 1000),
        duration(cost.node_ms / 1000) if cost.nodes else "",
        ", ".join(_again(cost)),
        _tokens(cost.input_tokens, cost.output_tokens),
    )


def _sandbox(cost: CheckpointCost) -> str:
    size = f" ({size_text(cost.sandbox_bytes)})" if cost.sandbox_bytes else ""
    return f"{cost.sandbox}{size}"


def _again(cost: CheckpointCost) -> list[str]:
    found = _counted(cost.again)
    found += [plural(cost.repeated, "call")] if cost.repeated else []
    return found + ([f"{cost.children} children"] if cost.children else [])


def _counted(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]


def _tokens(given: int, made: int) -> str:
    return f"{given} in, {made} out" if given or made else ""
