"""The next commands for a run: what `show`, `run` and errors tell people to type."""

import datetime as dt

from perdure.engine import Runtime
from perdure.engine.outlook import (
    Outlook,
    Standing,
    approve_command,
    command,
    is_due,
    moved_graphs,
    resolve_commands,
    served_graphs,
    worker_command,
)
from perdure.engine.versions import ways_out
from perdure.engine.views import Ask
from perdure.engine.waits import as_datetime
from perdure.model import RunRow, WaitKind


def is_answerable(ask: Ask, now: dt.datetime) -> bool:
    """Return whether an open ask still takes an answer: it has not expired."""
    return ask.expires_at is None or ask.expires_at > now


async def lacks_worker(runtime: Runtime, row: RunRow) -> bool:
    """Return whether a run could go on now, and no live worker executes its graph version."""
    if not is_due(runtime.engine, row):
        return False
    served = await served_graphs(runtime.engine) | await moved_graphs(runtime.engine)
    return (row.graph, row.version) not in served


async def next_commands(runtime: Runtime, row: RunRow, outlook: Outlook) -> list[str]:
    """Return the commands that get a run further; none for one that moves by itself."""
    commands: list[str] = []
    if await lacks_worker(runtime, row):
        commands.append(worker_command(row.graph, row.version))
    for run_id in dict.fromkeys([row.run_id, *(blocker.run_id for blocker in outlook.blockers)]):
        is_over = run_id == row.run_id and row.status.is_final
        commands += await _of_run(runtime, run_id, is_over=is_over)
    for blocker in outlook.blockers:
        if blocker.wait is not None and blocker.wait.kind is WaitKind.SIGNAL:
            commands.append(
                command("signal", blocker.run_id, blocker.wait.subject, "--value", "JSON")
            )
        if blocker.wait is None and not await runtime.effects("uncertain", run_id=blocker.run_id):
            commands += await _of_parked(runtime, blocker.run_id)
    if outlook.standing is Standing.FINAL and row.status.value == "failed":
        commands.append(command("show", row.run_id))
    return list(dict.fromkeys(commands))


async def _of_parked(runtime: Runtime, run_id: str) -> tuple[str, ...]:
    row = await runtime.read_row(run_id)
    return await ways_out(runtime.engine, row)


async def _of_run(runtime: Runtime, run_id: str, *, is_over: bool) -> list[str]:
    now = as_datetime(runtime.engine.now_us())
    asks = [ask for ask in await runtime.asks(run_id=run_id) if is_answerable(ask, now)]
    effects = await runtime.effects("uncertain", run_id=run_id)
    commands = [approve_command(ask.id, ask.schema) for ask in asks]
    for effect in effects:
        if effect.decision is None:
            over = "  # the run has ended: recorded, nothing is sent" if is_over else ""
            commands += [each + over for each in resolve_commands(effect.id)]
    return commands
