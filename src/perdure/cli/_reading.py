"""`ps`, `show` and `history`: what only looks."""

from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._advice import is_answerable, lacks_worker, next_commands
from perdure.cli._costing import print_costs
from perdure.cli._describe import (
    QUIET,
    describe_blockers,
    describe_event,
    describe_shortly,
    describe_status,
    describe_takeover,
    in_flight_lines,
)
from perdure.cli._moments import named, print_moment, read_moment, show_at
from perdure.cli._options import AnyTenant, AsJson, RunId, StoreUrl, Tenant, await_
from perdure.cli._output import heading, note, print_json, say, table
from perdure.cli._store import DEFAULT_URL, existing, looking, with_store
from perdure.cli._story import tree_lines
from perdure.cli._text import age, clean, clock_time, compact, full_time
from perdure.cli.limits import LIST_LIMIT
from perdure.engine import Runtime
from perdure.engine.costs import CheckpointCost
from perdure.engine.living import subjects_of
from perdure.engine.outlook import (
    Outlook,
    command,
    describe_kept,
    held_runs,
    is_due,
    kept_back,
    outlook_of,
    room_of,
    served_graphs,
    worker_command,
    worker_state,
)
from perdure.engine.timeline import Timeline, timeline_of
from perdure.engine.tree import ThreadTree
from perdure.engine.views import Ask, Checkpoint, LedgerEntry, plain_state
from perdure.engine.waits import as_datetime
from perdure.errors import HistoryPruned, UsageError
from perdure.model import RunRow, RunStatus, WorkerRow

UNFINISHED = tuple(status for status in RunStatus if not status.is_final)


def ps(
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="Runs that have ended, too.")] = False,
    status: Annotated[
        list[RunStatus] | None,
        typer.Option("--status", help="Only in this status; may be repeated."),
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="NAME", help="Only of this graph.")
    ] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="T", help="Only of this thread.")
    ] = None,
    tenant: AnyTenant = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, max=1000, help="At most so many, newest first."
        ),
    ] = LIST_LIMIT,
    workers: Annotated[
        bool, typer.Option("--workers", help="List workers instead of runs.")
    ] = False,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""List runs (unless told otherwise those that have not ended), or workers.

    \b
    Examples:
      perdure ps
      perdure ps --all --graph refunds --limit 20
      perdure ps --status waiting --status needs_decision --json
      perdure ps --workers
    """
    if workers:
        others: dict[str, object] = {
            "--all": every,
            "--status": status,
            "--graph": graph,
            "--thread": thread,
            "--tenant": tenant,
            "--limit": limit != LIST_LIMIT,
        }
        refuse_given("ps --workers lists every worker", others)
        _print_workers(*await_(_read_workers(store)), as_json=as_json)
        return
    statuses = tuple(status or ()) or (() if every else UNFINISHED)
    query = {"status": statuses or None, "thread": thread, "graph": graph, "tenant": tenant}
    rows, lacking, kept, now_us, about = await_(_read_runs(store, {**query, "limit": limit}))
    if as_json:
        listed = [{**shapes.run_json(row), "subject": about.get(row.run_id)} for row in rows]
        print_json({"runs": listed})
        return
    subject = ("subject",) if about else ()
    table(
        ("run", "status", "graph", "thread", "age", "holder", *subject),
        [
            _run_cells(
                row,
                now_us,
                is_served=(row.graph, row.version) not in lacking,
                kept=kept.get(row.run_id, ""),
            )
            + ((about.get(row.run_id, ""),) if about else ())
            for row in rows
        ],
        empty="no runs" if every or status else "no unfinished runs; 'perdure ps --all' lists all",
    )
    for name, version in sorted(lacking):
        say(f"no live worker executes {name} v{version}, and runs of it could go on; start one:")
        say(f"  {with_store(worker_command(name, version), store)}")


def refuse_given(why: str, options: dict[str, object]) -> None:
    """Refuse options that would do nothing here.

    Raises:
        UsageError: one of them was given.
    """
    given = [name for name, value in options.items() if value]
    if given:
        msg = f"{why}; {', '.join(given)} would do nothing here"
        raise UsageError(msg)


def _run_cells(row: RunRow, now_us: int, *, is_served: bool, kept: str) -> tuple[str, ...]:
    is_held = row.status is RunStatus.RUNNING and (row.ready_at_us or 0) > now_us
    return (
        row.run_id,
        describe_shortly(row, now_us, is_served=is_served, kept=kept),
        f"{row.graph} v{row.version}",
        row.thread if str(row.thread) != row.run_id else "(own)",
        age(row.created_at_us, now_us),
        (row.holder or "") if is_held else "",
    )


async def _read_runs(
    url: str, query: dict[str, Any]
) -> tuple[list[RunRow], set[tuple[str, int]], dict[str, str], int, dict[str, str]]:
    """Return the runs, graph versions that lack a worker, what limits keep back, when, subjects."""
    async with looking(url) as runtime:
        engine = runtime.engine
        rows = await runtime.runs(**query)
        served = await served_graphs(engine)
        due = [row for row in rows if is_due(engine, row)]
        room = await room_of(engine)
        found = {row.run_id: kept_back(row, room) for row in due}
        kept: dict[str, str] = {
            run_id: describe_kept(each) for run_id, each in found.items() if each is not None
        }
        lacking = {(row.graph, row.version) for row in due} - served
        return rows, lacking, kept, engine.now_us(), await subjects_of(engine.store, rows)


async def _read_workers(url: str) -> tuple[list[WorkerRow], dict[str, int], dict[str, str], int]:
    """Return the workers, how many runs each holds, their states, and when."""
    async with looking(url) as runtime:
        engine = runtime.engine
        rows = await runtime.workers()
        now_us = engine.now_us()
        held: dict[str, int] = {
            row.worker_id: await held_runs(engine, row.worker_id) for row in rows
        }
        return rows, held, {row.worker_id: worker_state(engine, row) for row in rows}, now_us


def _print_workers(
    rows: list[WorkerRow],
    held: dict[str, int],
    states: dict[str, str],
    now_us: int,
    *,
    as_json: bool,
) -> None:
    if as_json:
        workers = [
            shapes.worker_json(row, held=held[row.worker_id], state=states[row.worker_id])
            for row in rows
        ]
        print_json({"workers": workers})
        return
    table(
        ("worker", "host", "pid", "state", "held", "graphs", "started", "last seen"),
        [
            (
                row.worker_id,
                row.host,
                row.pid,
                _STATE_WORDS.get(states[row.worker_id], states[row.worker_id]),
                f"{held[row.worker_id]} of {row.concurrency or '?'}",
                ", ".join(f"{name} v{version}" for name, version in row.graphs),
                f"{age(row.started_at_us, now_us)} ago",
                f"{age(row.seen_at_us, now_us)} ago",
            )
            for row in rows
        ],
        empty="no workers; start one with: perdure worker FILE:GRAPH",
    )


_STATE_WORDS = {"silent": "silent: dead or cut off"}


# -- show ----------------------------------------------------------------------------------------


def show(
    *,
    run: RunId,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="N", help="Its state at a checkpoint (or tag), and why."),
    ] = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Show one run: its timeline, where a holder was lost, what is open, and what to do next.

    \b
    Examples:
      perdure show RUN_ID
      perdure show RUN_ID --at 3
      perdure show RUN_ID --json
    """
    if at is not None:
        await_(show_at(run, named(at), store, as_json=as_json))
        return
    moment = await_(read_moment(run, None, "default", store)) if "@" in run else None
    if moment is not None:
        print_moment(moment, as_json=as_json)
        return
    await_(_show(run, store, as_json=as_json))


async def _state_of(runtime: Runtime, row: RunRow) -> dict[str, Any] | None:
    """Return the state that a run stands at; None, and a note: it was pruned."""
    try:
        return await plain_state(runtime.engine, row)
    except HistoryPruned as error:
        note(str(error))
        return None


async def _show(run_id: str, url: str, *, as_json: bool) -> None:
    async with looking(url) as runtime:
        row = await runtime.read_row(run_id)
        story = await timeline_of(runtime.engine, run_id)
        asks = await runtime.asks(run_id=run_id)
        effects = await runtime.effects(None, run_id=run_id)
        outlook = await outlook_of(runtime.engine, row)
        advice = await next_commands(runtime, row, outlook)
        commands = [with_store(c, url) for c in advice if c != command("show", run_id)]
        is_served = not await lacks_worker(runtime, row)
        state = await _state_of(runtime, row)
        subject = (await subjects_of(runtime.engine.store, [row])).get(row.run_id)
        now_us = runtime.engine.now_us()
    uncertain = [effect for effect in effects if effect.state.value == "uncertain"]
    if as_json:
        print_json(
            {
                "run": {**shapes.run_json(row), "subject": subject},
                "outlook": shapes.outlook_json(outlook),
                "state": state,
                "events": [event.to_json() for event in story.events],
                "leases": [shapes.lease_json(lease) for lease in story.leases],
                "takeovers": [shapes.takeover_json(takeover) for takeover in story.takeovers],
                "asks": [shapes.ask_json(ask) for ask in asks],
                "effects": [shapes.effect_json(effect) for effect in effects],
                "uncertain": [effect.id for effect in uncertain],
                "next": commands,
            }
        )
        return
    _print_head(row, now_us, is_served=is_served, kept=outlook.kept, subject=subject)
    _print_timeline(story, row, now_us)
    _print_open(row, asks, uncertain, outlook, now_us)
    if state:
        heading("state")
        say(compact(state, 2000))
    if commands:
        heading("next")
        for line in commands:
            say(f"  {line}")


def _print_head(
    row: RunRow, now_us: int, *, is_served: bool, kept: str, subject: str | None
) -> None:
    line = f"thread {clean(row.thread)}  tenant {clean(row.tenant)}"
    say(f"run {row.run_id}  graph {row.graph} v{row.version}  {line}")
    say(f"  {describe_status(row, now_us, is_served=is_served, kept=kept)}")
    if row.failure is not None:
        where = f" in {row.failure.node}" if row.failure.node else ""
        say(f"  reason: {clean(row.failure.type + where)}: {clean(row.failure.message)}")
        if row.failure.trace:
            say(f"  at {clean(row.failure.trace)}")
    ended = f", ended {full_time(as_datetime(row.ended_at_us))}" if row.ended_at_us else ""
    say(f"  started {full_time(as_datetime(row.created_at_us))}{ended} (UTC)")
    if row.holder and row.status is RunStatus.RUNNING and (row.ready_at_us or 0) > now_us:
        until = clock_time(as_datetime(row.ready_at_us)) if row.ready_at_us else "-"
        say(f"  held by {row.holder}, token {row.token}, lease until {until}")
    for name, value in (("key", row.start_key), ("parent", row.parent), ("subject", subject)):
        if value:
            say(f"  {name} {clean(value)}")


def _print_timeline(story: Timeline, row: RunRow, now_us: int) -> None:
    heading("timeline (UTC)")
    takeovers = {takeover.seq: takeover for takeover in story.takeovers}
    rows: list[tuple[object, ...]] = []
    for event in story.events:
        if event.seq in takeovers:
            rows += [("", "", "", f"!! {line}") for line in describe_takeover(takeovers[event.seq])]
        if event.kind not in QUIET:
            rows.append((clock_time(event.at), event.seq, event.token or "", describe_event(event)))
    if (
        row.status is RunStatus.RUNNING
        and row.ready_at_us is not None
        and row.ready_at_us <= now_us
    ):
        lost = f"holder {row.holder} (token {row.token}) died or lost its lease"
        lines = [
            f"{lost}; nobody has taken the run over yet",
            *in_flight_lines(story.nodes, story.effects),
        ]
        rows += [("", "", "", f"!! {line}") for line in lines]
    table(("time", "seq", "token", "what"), rows)


def _print_open(
    row: RunRow,
    asks: list[Ask],
    uncertain: list[LedgerEntry],
    outlook: Outlook,
    now_us: int,
) -> None:
    if asks:
        heading("open asks")
        print_asks(asks, now_us)
    if uncertain:
        heading("uncertain effects")
        table(
            ("effect", "name", "kind", "arguments", "key", "why", "decision"),
            [
                (
                    effect.id,
                    effect.name,
                    effect.kind.value,
                    compact([*effect.args, *([effect.kwargs] if effect.kwargs else [])]),
                    effect.key,
                    effect.failure.message if effect.failure else "",
                    f"{effect.decision} by {effect.decided_by}" if effect.decision else "",
                )
                for effect in uncertain
            ],
        )
    own = f"run {row.run_id} "  # its own waits are in its status
    others = [line for line in describe_blockers(outlook) if not line.startswith(own)]
    if others:
        heading("waits for other runs")
        for line in others:
            say(f"  {line}")


def print_asks(asks: list[Ask], now_us: int) -> None:
    """Print questions to people."""
    now = as_datetime(now_us)
    table(
        ("ask", "run", "question", "asked", "expires"),
        [
            (
                ask.id,
                ask.run_id,
                ask.question,
                full_time(ask.asked_at),
                full_time(ask.expires_at) + ("" if is_answerable(ask, now) else " (expired)"),
            )
            for ask in asks
        ],
        empty="no open asks",
    )


# -- history -------------------------------------------------------------------------------------


def history(
    *,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="N", help="The state at a checkpoint (or tag), and why."),
    ] = None,
    cost: Annotated[
        bool,
        typer.Option("--cost", help="What each checkpoint stored, took, and would do again."),
    ] = False,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Show a thread as a tree: its runs with their steps, its origin and its forks.

    \b
    Examples:
      perdure history customer-12
      perdure history customer-12 --at 3
      perdure history customer-12 --cost
      perdure history customer-12 --json
    """
    if cost:
        refuse_given("history --cost is about all checkpoints of the thread", {"--at": at})
        _show_costs(thread, await_(_read_costs(thread, tenant, store)), as_json=as_json)
        return
    if at is not None or "@" in thread:
        checkpoint = None if at is None else named(at)
        moment = await_(read_moment(thread, checkpoint, tenant, store))
        if moment is not None:
            print_moment(moment, as_json=as_json)
            return
    found, tree = await_(_read_history(thread, tenant, store))
    if as_json:
        checkpoints = [shapes.checkpoint_json(each) for each in found]
        print_json({**shapes.tree_json(tree), "checkpoints": checkpoints})
        return
    for line in tree_lines(tree):
        say(line)
    if not tree.is_complete:
        note("there are so many runs that older forks may be missing here")


def _show_costs(thread: str, costs: list[CheckpointCost], *, as_json: bool) -> None:
    if as_json:
        print_json({"thread": thread, "costs": [shapes.cost_json(cost) for cost in costs]})
        return
    print_costs(thread, costs)


async def _read_costs(thread: str, tenant: str, url: str) -> list[CheckpointCost]:
    async with existing(url) as runtime:
        return await runtime.costs(thread, tenant=tenant)


async def _read_history(thread: str, tenant: str, url: str) -> tuple[list[Checkpoint], ThreadTree]:
    async with existing(url) as runtime:
        found = await runtime.history(thread, tenant=tenant)
        return found, await runtime.tree(thread, tenant=tenant)
