"""Opens the probe that a project names."""

import asyncio
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from perdure.contracts.inject import limits
from perdure.contracts.inject._execute import Piped, end, piped
from perdure.contracts.inject._http_probe import HttpProbe, as_run, as_thread
from perdure.contracts.inject._langgraph_probe import LangGraphProbe
from perdure.contracts.inject._perdure_probe import PROGRAM, PerdureProbe
from perdure.contracts.inject._said import read_log
from perdure.contracts.inject.probes import (
    Ability,
    Interrupt,
    Probe,
    ProbeFailed,
    Run,
    Said,
    Stream,
    StreamEvent,
    Target,
    Thread,
    Work,
)
from perdure.contracts.inject.settings import Settings
from perdure.errors import TrialImpossible


def open_probe(settings: Settings, folder: Path) -> Probe:
    """Return the probe that the settings name; nothing is asked yet.

    Raises:
        TrialImpossible: a program or a graph is wanted, and none is named.
    """
    abilities = settings.abilities
    if settings.probe == "program":
        if not settings.command:
            msg = 'probe = "program" needs command = ["..."] in perdure.inject.toml'
            raise TrialImpossible(msg)
        return ProgramProbe(settings.command, folder, abilities or frozenset(Ability))
    if settings.probe == "langgraph":
        return LangGraphProbe()
    if settings.probe == "perdure":
        if not settings.command:
            msg = 'probe = "perdure" needs command = ["app.py:graph"] in perdure.inject.toml'
            raise TrialImpossible(msg)
        graph, *program = settings.command
        return PerdureProbe(graph, program=tuple(program) or PROGRAM)
    return HttpProbe(abilities) if abilities is not None else HttpProbe()


@dataclass(slots=True)
class ProgramProbe:
    """A program of the project's own: one JSON object a line in, one a line out.

    It is started with the first question and kept; one that ends, or says nothing in time, is
    started again with the next question. `{"error": TEXT}` is an answer that is none.
    """

    command: tuple[str, ...]
    folder: Path
    abilities: frozenset[Ability]
    _process: asyncio.subprocess.Process | None = None
    _said: Piped | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ready(self, target: Target) -> bool:
        """`{"ask": "ready"}`: `{"ready": BOOL}`."""
        return (await self._ask("ready", target)).get("ready") is True

    def said(self, log: str) -> Said:
        """Read the known lines of servers, and those of the line protocol."""
        return read_log(log)

    async def start(self, target: Target, work: Work) -> Run:
        """`{"ask": "start", "work": {...}}`: a run."""
        return as_run(await self._ask("start", target, work=asdict(work)))

    async def run(self, target: Target, run_id: str, thread: str) -> Run:
        """`{"ask": "run", "run": ID, "thread": ID}`: a run."""
        return as_run(await self._ask("run", target, run=run_id, thread=thread))

    async def thread(self, target: Target, thread: str) -> Thread | None:
        """`{"ask": "thread", "thread": ID}`: a thread, or `{}`."""
        answer = await self._ask("thread", target, thread=thread)
        return as_thread(answer) if answer else None

    async def resume(self, target: Target, thread: str, interrupt: Interrupt) -> Run:
        """`{"ask": "resume", "thread": ID, "interrupt": ID}`: a run."""
        return as_run(await self._ask("resume", target, thread=thread, interrupt=interrupt.id))

    async def remember(self, target: Target, key: str, value: str) -> None:
        """`{"ask": "remember", "key": KEY, "value": VALUE}`: `{}`."""
        await self._ask("remember", target, key=key, value=value)

    async def recall(self, target: Target, key: str) -> str | None:
        """`{"ask": "recall", "key": KEY}`: `{"value": VALUE}`, or `{}`."""
        value = (await self._ask("recall", target, key=key)).get("value")
        return value if isinstance(value, str) else None

    async def acquire(self, target: Target, resource: str) -> bool:
        """`{"ask": "acquire", "resource": NAME}`: `{"held": BOOL}`."""
        return (await self._ask("acquire", target, resource=resource)).get("held") is True

    async def stream(
        self, target: Target, run_id: str, thread: str, *, after: str | None, count: int
    ) -> Stream:
        """`{"ask": "stream", "run", "thread", "after", "count"}`: `{"events": [...], "is_cut"}`."""
        answer = await self._ask(
            "stream", target, timeout_s=limits.STREAM_S,
            run=run_id, thread=thread, after=after, count=count,
        )  # fmt: skip
        listed = answer.get("events")
        return Stream(
            events=tuple(
                StreamEvent(
                    id=None if each.get("id") is None else str(each["id"]),
                    name=str(each.get("name", "message")),
                    text=str(each.get("text", ""))[: limits.LINE_CHARACTERS_MAX],
                    is_last=each.get("is_last") is True,
                )
                for each in (listed if isinstance(listed, list) else [])[: limits.EVENTS_MAX]
                if isinstance(each, dict)
            ),
            is_cut=answer.get("is_cut") is True,
        )

    async def _ask(
        self, what: str, target: Target, *, timeout_s: float = limits.ANSWER_S, **fields: object
    ) -> dict[str, object]:
        asked = {"ask": what, "target": asdict(target), **fields}
        async with self._lock:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._exchange(json.dumps(asked).encode() + b"\n")
            except BaseException as error:
                await self.close()  # its answer may still come, and is none to the next question
                if isinstance(error, TimeoutError | OSError | ValueError | RecursionError):
                    _failed(what, type(error).__name__, error)
                raise
        if not isinstance(answer, dict) or "error" in answer:
            _failed(what, str(answer)[:200])
        return answer

    async def _exchange(self, line: bytes) -> object:
        if self._process is None or self._process.returncode is not None or self._said is None:
            await self.close()
            self._said = await piped(limits.ANSWER_BYTES_MAX)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command, cwd=self.folder, start_new_session=True,
                    stdin=asyncio.subprocess.PIPE, stdout=self._said.writable,
                )  # fmt: skip
            finally:
                self._said.let_go()
        if self._process.stdin is None:
            return None
        self._process.stdin.write(line)
        await self._process.stdin.drain()
        return json.loads(await self._said.reader.readline())

    async def close(self) -> None:
        """End the program with its group, and wait for nothing that it started."""
        process, said = self._process, self._said
        self._process = self._said = None
        if said is not None:
            said.close()
        if process is not None:
            if process.stdin is not None and not process.stdin.transport.is_closing():
                process.stdin.transport.abort()
            await end(process)


def _failed(what: str, why: str, cause: Exception | None = None) -> NoReturn:
    msg = f"the probe's answer to {what}: {why}"
    raise ProbeFailed(msg) from cause
