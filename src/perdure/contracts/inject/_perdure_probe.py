"""The probe for Perdure itself: its workers over HTTP, everything else by its command line."""

import hashlib
import json

from perdure.contracts.inject import _answers, _http, limits
from perdure.contracts.inject._execute import execute
from perdure.contracts.inject._said import read_log
from perdure.contracts.inject.probes import (
    Ability,
    Interrupt,
    ProbeFailed,
    Run,
    RunState,
    Said,
    Stream,
    Target,
    Thread,
    Work,
)

NO_SUCH = 4
"""The exit code for a run, thread or question that there is not."""
STATES = {
    "succeeded": RunState.SUCCEEDED,
    "failed": RunState.FAILED,
    "cancelled": RunState.FAILED,
}
"""What has ended; the other ones go on, or wait."""
WHO = "trial"
PROGRAM = ("perdure",)


class PerdureProbe:
    """Starts runs of one graph, and reads runs and threads, inside of an instance.

    The instance is a worker (`perdure worker app.py:graph --health 0.0.0.0:8000`), and `port` is
    that of its health; its environment says where the store is (`PERDURE_STORE`). A run's input
    has the fields of `Work` but for the thread, which is Perdure's own.
    """

    abilities = frozenset([Ability.RUN, Ability.THREAD, Ability.RESUME])

    def __init__(
        self,
        graph: str,
        *,
        program: tuple[str, ...] = PROGRAM,
        timeout_s: float = limits.COMMAND_S,
    ) -> None:
        """Make one for `graph` (`app.py:graph`); `program` starts Perdure inside an instance."""
        self.graph = graph
        self.program = program
        self.timeout_s = timeout_s

    async def ready(self, target: Target) -> bool:
        """Return whether the worker's `/readyz` answers 200."""
        status, _ = await _http.ask(f"{_answers.url_of(target)}/readyz", timeout_s=limits.ANSWER_S)
        return status == _http.OK

    def said(self, log: str) -> Said:
        """Read the worker's own lines."""
        return read_log(log)

    async def start(self, target: Target, work: Work) -> Run:
        """`perdure start`, with the operation as start key: asked again, it is the same run."""
        said = await self._call(
            target,
            *("start", self.graph, "--input", json.dumps(work.fields())),
            *("--thread", work.thread, "--key", work.operation),
        )
        return _run(_table(said, "run"))

    async def run(self, target: Target, run_id: str, thread: str) -> Run:
        """`perdure show`."""
        code, said = await self._ask(target, "show", run_id)
        if code == NO_SUCH:
            return Run(id=run_id, state=RunState.UNKNOWN)
        return _run(_table(_good(code, said, f"show {run_id} of {thread}"), "run"))

    async def thread(self, target: Target, thread: str) -> Thread | None:
        """`perdure history`, and `perdure show` of the thread's newest run."""
        code, said = await self._ask(target, "history", thread)
        if code == NO_SUCH:
            return None
        told = _good(code, said, f"history {thread}").get("runs")
        runs = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
        if not runs:
            return None
        newest = await self._call(target, "show", _answers.text(_table(runs[-1], "run"), "id"))
        run, state = _table(newest, "run"), json.dumps(newest.get("state"), sort_keys=True)
        return Thread(
            id=thread,
            checkpoint=str(run.get("checkpoint")),
            steps=sum(_steps(each) for each in runs),
            digest=hashlib.sha256(state.encode()).hexdigest(),
            interrupts=_questions(run),
        )

    async def resume(self, target: Target, thread: str, interrupt: Interrupt) -> Run:
        """`perdure approve ASK --yes`."""
        await self._call(target, "approve", interrupt.id, "--yes", "--by", WHO)
        said = await self._call(target, "ps", "--all", "--thread", thread, "--limit", "1")
        runs = said.get("runs")
        if not isinstance(runs, list) or not runs or not isinstance(runs[0], dict):
            msg = f"thread {thread!r} has no run"
            raise ProbeFailed(msg)
        return _run(runs[0])

    async def remember(self, target: Target, key: str, value: str) -> None:
        """Refuse: there are no memories across threads yet."""
        raise _unable(target, f"keep {key!r} ({len(value)} characters)")

    async def recall(self, target: Target, key: str) -> str | None:
        """Refuse, as `remember`."""
        raise _unable(target, f"recall {key!r}")

    async def stream(
        self, target: Target, run_id: str, thread: str, *, after: str | None, count: int
    ) -> Stream:
        """Refuse: a worker offers no streams."""
        raise _unable(target, f"stream {count} events of {run_id!r}, {thread!r}, after {after!r}")

    async def acquire(self, target: Target, resource: str) -> bool:
        """Refuse: the graph decides what it holds."""
        raise _unable(target, f"acquire {resource!r}")

    async def _call(self, target: Target, *words: str) -> dict[str, object]:
        code, said = await self._ask(target, *words)
        return _good(code, said, " ".join(words[:2]))

    async def _ask(self, target: Target, *words: str) -> tuple[int | None, dict[str, object]]:
        argv = (*target.enter, *self.program, *words, "--json")
        try:
            done = await execute(argv, timeout_s=self.timeout_s)
        except OSError as error:
            msg = f"{argv[0]} can't be started: {error.strerror}"
            raise ProbeFailed(msg) from error
        try:
            said = json.loads(done.output)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            msg = f"perdure {words[0]}: exit {done.exit_code}, {done.errors.strip()[-200:]!r}"
            raise ProbeFailed(msg)
        return done.exit_code, said


def _run(run: dict[str, object]) -> Run:
    status = _answers.text(run, "status")
    waits = RunState.INTERRUPTED if _questions(run) else RunState.RUNNING
    return Run(id=_answers.text(run, "id"), state=STATES.get(status, waits))


def _questions(run: dict[str, object]) -> tuple[Interrupt, ...]:
    waits = run.get("waits")
    return tuple(
        Interrupt(id=_answers.text(each, "subject"), value=str(each.get("note", "")))
        for each in (waits if isinstance(waits, list) else ())
        if isinstance(each, dict) and each.get("kind") == "approval"
    )


def _steps(told: dict[str, object]) -> int:
    steps = told.get("steps")
    listed = steps if isinstance(steps, list) else []
    return sum(1 for each in listed if isinstance(each, dict) and each.get("nodes"))


def _good(code: int | None, said: dict[str, object], what: str) -> dict[str, object]:
    if code != 0:
        msg = f"perdure {what}: exit {code}, {str(said.get('error'))[:200]}"
        raise ProbeFailed(msg)
    return said


def _table(said: dict[str, object], name: str) -> dict[str, object]:
    value = said.get(name)
    if not isinstance(value, dict):
        msg = f"an answer without {name!r}: {str(said)[:200]!r}"
        raise ProbeFailed(msg)
    return value


def _unable(target: Target, what: str) -> ProbeFailed:
    return ProbeFailed(f"Perdure's worker {target.name} can't {what}")
