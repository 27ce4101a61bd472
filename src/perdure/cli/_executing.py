"""`run` and `start`: what begins, and how what executes is told to stop."""

import asyncio
import logging
import shlex
import signal
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._advice import next_commands
from perdure.cli._describe import QUIET, describe_blockers, describe_event
from perdure.cli._input import parse_json, typed_input
from perdure.cli._options import (
    AsJson,
    Input,
    Key,
    SandboxDurable,
    SandboxExport,
    SandboxKeys,
    SandboxRoot,
    StoreUrl,
    Subject,
    Target,
    Tenant,
    Thread,
    await_,
)
from perdure.cli._output import error_json, note, print_json, say
from perdure.cli._sandbox import SandboxTerms
from perdure.cli._store import DEFAULT_URL, check_shared, creating, existing, with_store
from perdure.cli._targets import load_target
from perdure.cli._text import clean, clock_time, pretty_json
from perdure.cli.limits import FOREGROUND_WAIT_S, SIGNAL_ECHO_S
from perdure.engine import Run, Runtime
from perdure.engine.outlook import Outlook, Standing, outlook_of
from perdure.engine.views import plain_state
from perdure.errors import (
    NeedsDecision,
    PerdureError,
    ResultTimedOut,
    RunCancelled,
    RunFailed,
    SandboxMissing,
    entry_of,
)
from perdure.model import OnBusy, RunRow, RunStatus

OTHER_FOLDER = "FOLDER"
"""In a command: the folder of sandboxes that has the run's files, which the one named has not."""


@dataclass(slots=True)
class Interrupts:
    """SIGINT and SIGTERM: the first asks to drain, the second to hurry, the third kills.

    The same signal at once again counts as one: `timeout` signals the process and its group.
    """

    first: asyncio.Event = field(default_factory=asyncio.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 0
    last: tuple[int, float] = (0, 0.0)

    def watch(self) -> None:
        """Begin to listen, in the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came, number)

    def _came(self, number: int) -> None:
        now_s = asyncio.get_running_loop().time()
        is_echo = self.last[0] == number and now_s - self.last[1] < SIGNAL_ECHO_S
        self.last = (number, now_s)
        if is_echo:
            return
        self.number = self.number or number
        if not self.first.is_set():
            self.first.set()
            return
        self.second.set()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


async def drain(runtime: Runtime, interrupts: Interrupts, window_s: float | None = None) -> None:
    """Drain the runtime's worker; a second signal cuts the window short."""

    async def hurry() -> None:
        """Close without a window at the second interrupt."""
        await interrupts.second.wait()
        note("stopping at once; effects in flight stay recorded as intended")
        if runtime.worker is not None:
            runtime.worker.stop_now()

    hurrying = asyncio.create_task(hurry())
    try:
        await runtime.close(window_s=window_s)
    finally:
        hurrying.cancel()


def log_to_stderr(level: int) -> None:
    """Show what the engine logs."""
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s"
    )


# -- run -----------------------------------------------------------------------------------------


def run(
    *,
    target: Target,
    input_: Input = None,
    thread: Thread = None,
    key: Key = None,
    subject: Subject = None,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    sandbox: SandboxRoot = None,
    sandbox_export: SandboxExport = None,
    sandbox_keys: SandboxKeys = None,
    sandbox_durable: SandboxDurable = False,
    as_json: AsJson = False,
) -> None:
    r"""Start a run and execute it here until it ends, or waits for somebody.

    Progress goes to stderr, the result (JSON) to stdout. Timers of up to a minute are waited
    for. Ctrl-C drains: nothing is lost, exit code 130. Meanwhile it executes other runs of the
    graph that are due, too.

    Exit code 0: succeeded; 10: failed; 11: cancelled; 12: parked, needs a decision; 13: waits for
    an answer, a signal or a later time.

    \b
    Examples:
      perdure run refunds.py:graph --input '{"order_id": "o-7"}'
      perdure run shop.refunds:graph --input @order.json --thread customer-12 --key refund-o-7
      perdure run refunds.py:graph --input '{"order_id": "o-7"}' --json
      perdure run agent.py:graph --input '{"task": "..."}' --sandbox ./sandboxes
    """
    log_to_stderr(logging.WARNING)
    given = None if input_ is None else parse_json(input_, "--input")
    terms = SandboxTerms(
        folder=sandbox, export=sandbox_export, keys=sandbox_keys, is_durable=sandbox_durable
    )
    foreground = Foreground(target=target, url=store, as_json=as_json, sandbox=terms)
    options = {"thread": thread, "key": key, "subject": subject, "tenant": tenant}
    raise typer.Exit(await_(foreground.execute(given, options)))


@dataclass(slots=True)
class Foreground:
    """One `perdure run`."""

    target: str
    url: str
    as_json: bool
    sandbox: SandboxTerms
    after: int = 0

    async def execute(self, given: Any, options: dict[str, Any]) -> int:
        """Start the run, follow it, and return the exit code."""
        graph = load_target(self.target)
        interrupts = Interrupts()
        interrupts.watch()
        backend = await self.sandbox.open()
        async with creating(self.url, [graph], worker=True, sandbox=backend) as runtime:
            typed = typed_input(runtime.engine.plan_of(graph), given)
            started = await runtime.start(graph, typed, **options)
            self.progress(f"run {started.id} (thread {started.thread})")
            following = asyncio.create_task(self.follow(runtime, started))
            interrupted = asyncio.create_task(interrupts.first.wait())
            await asyncio.wait({following, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                return await self.leave(runtime, started, interrupts)
            interrupted.cancel()
            return await self.conclude(runtime, started, following.result())

    def progress(self, text: str) -> None:
        """Tell people what happens."""
        if not self.as_json:
            note(text)

    async def follow(self, runtime: Runtime, run: Run) -> Outlook:
        """Show events as they become durable, until the run has ended or waits for somebody."""
        engine = runtime.engine
        while True:
            mark = engine.store.change_mark()
            row = await run.row()
            for event in await runtime.events(run.id, after=self.after):
                self.after = event.seq
                if event.kind not in QUIET:
                    self.progress(f"{clock_time(event.at)}  {describe_event(event)}")
            outlook = await outlook_of(engine, row)
            if not is_moving(outlook, engine.now_us()) and self.after >= row.last_seq:
                return outlook
            await engine.wait_for_news(run.id, mark, self.after)

    async def leave(self, runtime: Runtime, run: Run, interrupts: Interrupts) -> int:
        """Drain after a signal; the run goes on where it stands, in any worker."""
        self.progress("draining (a second signal stops at once)")
        await drain(runtime, interrupts)
        row = await self.read_again(run.id)
        following = [] if row.status.is_final else [self.worker_command()]
        if self.as_json:
            print_json({"run": shapes.run_json(row), "interrupted": True, "next": following})
        elif row.status.is_final:
            note(f"interrupted; run {run.id} {row.status.value} meanwhile")
        else:
            note(f"interrupted; run {run.id} lost nothing. It goes on with:")
            for command in following:
                note(f"  {command}")
        return 128 + interrupts.number

    async def read_again(self, run_id: str) -> RunRow:
        """Return what the drain left of the run; its runtime is closed."""
        async with existing(self.url) as runtime:
            return await runtime.read_row(run_id)

    def worker_command(self, *, is_other_folder: bool = False) -> str:
        """Return the command that executes what this one started.

        `is_other_folder`: the files of the run are not in the folder that was named.
        """
        named = ["--sandbox", OTHER_FOLDER] if is_other_folder else self.sandbox.words()
        words = ["perdure", "worker", self.target, *named]
        return with_store(shlex.join(words), self.url)

    async def worker_command_for(self, runtime: Runtime, row: RunRow, outlook: Outlook) -> str:
        """Return the same, with a word on the graphs of children that this run waits for."""
        others = [await runtime.read_row(blocker.run_id) for blocker in outlook.blockers]
        graphs = sorted({f"{o.graph} v{o.version}" for o in others if o.graph != row.graph})
        also = f"  # and the target of {', '.join(graphs)}" if graphs else ""
        is_other_folder = row.failure is not None and row.failure.type == SandboxMissing.__name__
        return self.worker_command(is_other_folder=is_other_folder) + also

    async def conclude(self, runtime: Runtime, run: Run, outlook: Outlook) -> int:
        """Print how it ended, or what it waits for; return the exit code."""
        row = await run.row()
        error = outcome_error(row.status, run.id, row.failure)
        values = (
            await plain_state(runtime.engine, row) if row.status is RunStatus.SUCCEEDED else None
        )
        plan = runtime.engine.plan_named(row.graph, row.version)
        result = values.get("result") if plan.is_function and values is not None else values
        commands = [with_store(c, self.url) for c in await next_commands(runtime, row, outlook)]
        if outlook.standing in {Standing.BLOCKED, Standing.TIMED, Standing.PARKED}:
            commands.append(await self.worker_command_for(runtime, row, outlook))
        is_waiting = isinstance(error, ResultTimedOut)  # to wait is no error
        if self.as_json:
            print_json(
                {
                    "run": shapes.run_json(row),
                    "outlook": shapes.outlook_json(outlook),
                    "result": result,
                    "error": None if error is None or is_waiting else error_json(error),
                    "next": commands,
                }
            )
        else:
            self.print_end(result, outlook, error, commands)
        return 0 if error is None else entry_of(error).exit_code

    def print_end(
        self, result: Any, outlook: Outlook, error: PerdureError | None, commands: list[str]
    ) -> None:
        """Print the result, or why there is none."""
        if error is None:
            say(pretty_json(result))
            return
        for line in describe_blockers(outlook):
            say(line)
        if outlook.standing is Standing.TIMED and outlook.until is not None:
            say(f"goes on at {outlook.until.isoformat()}")
        if not isinstance(error, ResultTimedOut):  # to wait is no error
            note(f"error {entry_of(error).code}: {error}")
        if commands:
            say("next:")
        for command in commands:
            say(f"  {command}")


def is_moving(outlook: Outlook, now_us: int) -> bool:
    """Return whether the foreground stays: the run moves by itself, or soon will."""
    if outlook.standing is Standing.TIMED and outlook.until is not None:
        return outlook.until.timestamp() * 1_000_000 - now_us <= FOREGROUND_WAIT_S * 1_000_000
    return outlook.standing is Standing.MOVING


def outcome_error(status: RunStatus, run_id: str, failure: Any) -> PerdureError | None:
    """Return the error that stands for a run's outcome; None: it succeeded."""
    reason = f": {failure.type}: {clean(failure.message)}" if failure is not None else ""
    if failure is not None and failure.trace:
        reason += f" (at {clean(failure.trace)})"
    if status is RunStatus.SUCCEEDED:
        return None
    if status is RunStatus.FAILED:
        return RunFailed(f"run {run_id!r} failed{reason}", run_id=run_id)
    if status is RunStatus.CANCELLED:
        return RunCancelled(f"run {run_id!r} was cancelled{reason}", run_id=run_id)
    if status is RunStatus.NEEDS_DECISION:
        return NeedsDecision(f"run {run_id!r} is parked{reason}; nothing is lost", run_id=run_id)
    return ResultTimedOut(f"run {run_id!r} waits; nothing is lost", run_id=run_id)


# -- start ---------------------------------------------------------------------------------------


def start(
    *,
    target: Target,
    input_: Input = None,
    thread: Thread = None,
    key: Key = None,
    subject: Subject = None,
    tenant: Tenant = "default",
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher first.")] = 0,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="SECONDS", help="Not before so many seconds from now."),
    ] = None,
    on_busy: Annotated[
        OnBusy,
        typer.Option(
            "--on-busy", help="On a thread with an unfinished run: queue, reject or cancel."
        ),
    ] = OnBusy.QUEUE,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Store a run for a worker to execute, and print its id. It is durable when the id is printed.

    \b
    Examples:
      perdure start refunds.py:graph --input '{"order_id": "o-7"}' --key refund-o-7
      perdure start refunds.py:graph --input @order.json --delay 3600 --on-busy reject
    """
    given = None if input_ is None else parse_json(input_, "--input")
    options = {
        "thread": thread,
        "key": key,
        "subject": subject,
        "tenant": tenant,
        "priority": priority,
        "delay": delay,
        "on_busy": on_busy,
    }
    row = await_(_start(target, given, store, options))
    if as_json:
        print_json({"run": shapes.run_json(row)})
    else:
        say(row.run_id)


async def _start(target: str, given: Any, url: str, options: dict[str, Any]) -> Any:
    check_shared(url)
    graph = load_target(target)
    async with creating(url, [graph], worker=False) as runtime:
        typed = typed_input(runtime.engine.plan_of(graph), given)
        started = await runtime.start(graph, typed, **options)
        return await started.row()
