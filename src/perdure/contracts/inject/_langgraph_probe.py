"""The probe for servers with the LangGraph server API: langgraph-api, `langgraph dev`, Aegra."""

import asyncio
import contextlib
import hashlib
import json
import uuid
from dataclasses import replace
from urllib.parse import urlencode

from perdure.contracts.inject import _answers, _http, limits
from perdure.contracts.inject._http_probe import read_stream
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

NAMESPACE = uuid.UUID("6f0c7a54-0d7f-4a58-9f0e-2f5b0b7f3c11")
"""The server wants UUIDs of threads: each name has its own, always the same."""
FROM_THE_FIRST = "-1"
"""The id before the first event; without one the server sends only what is still to come."""
MEMORIES = "perdure-trial"
STATES = {
    "pending": RunState.RUNNING,
    "running": RunState.RUNNING,
    "success": RunState.SUCCEEDED,
    "interrupted": RunState.INTERRUPTED,
    "error": RunState.FAILED,
    "timeout": RunState.FAILED,
}


class LangGraphProbe:
    """Starts runs of one assistant, and asks for threads as the server stores them.

    A run's input has the fields of `Work` and a message with them, so that both a graph of a
    project's own and one of messages can be written for trials. A thread named `a` is the server's
    thread with the UUID that `thread_id("a")` says.
    """

    abilities = frozenset(
        [Ability.RUN, Ability.THREAD, Ability.RESUME, Ability.MEMORY, Ability.STREAM]
    )

    def __init__(self, assistant: str | None = None, *, timeout_s: float = limits.ANSWER_S) -> None:
        """Make one for `assistant`, an id or the name of a graph; `None`: the server's first."""
        self.assistant = assistant
        self.timeout_s = timeout_s

    async def ready(self, target: Target) -> bool:
        """Return whether `GET /ok` answers 200."""
        status, _ = await self._ask(target, "/ok")
        return status == _http.OK

    def said(self, log: str) -> Said:
        """Read the known lines of servers."""
        return read_log(log)

    async def start(self, target: Target, work: Work) -> Run:
        """`POST /threads/ID/runs`, after the thread was created if it was not there."""
        thread = thread_id(work.thread)
        await self._post(target, "/threads", {"thread_id": thread, "if_exists": "do_nothing"})
        fields = work.fields()
        message = {"role": "user", "content": json.dumps(fields)}
        return await self._run(target, thread, {"input": {**fields, "messages": [message]}})

    async def run(self, target: Target, run_id: str, thread: str) -> Run:
        """`GET /threads/ID/runs/RUN`; a run that ended with a question is interrupted."""
        path = f"/threads/{thread_id(thread)}/runs/{_http.quoted(run_id)}"
        status, answer = await self._ask(target, path)
        if status == _http.NOT_FOUND:
            return Run(id=run_id, state=RunState.UNKNOWN)
        run = _run(_answers.fields(status, answer, path))
        if run.state is not RunState.SUCCEEDED:
            return run
        found = await self.thread(target, thread)
        waits = found is not None and bool(found.interrupts)
        return Run(id=run.id, state=RunState.INTERRUPTED) if waits else run

    async def thread(self, target: Target, thread: str) -> Thread | None:
        """`GET /threads/ID/state`; a thread without a checkpoint is none."""
        path = f"/threads/{thread_id(thread)}/state"
        status, answer = await self._ask(target, path)
        if status == _http.NOT_FOUND:
            return None
        return _thread(thread, _answers.fields(status, answer, path))

    async def resume(self, target: Target, thread: str, interrupt: Interrupt) -> Run:
        """`POST /threads/ID/runs` with the command `{"resume": {INTERRUPT: true}}`."""
        command: dict[str, object] = {"command": {"resume": {interrupt.id: True}}}
        return await self._run(target, thread_id(thread), command)

    async def remember(self, target: Target, key: str, value: str) -> None:
        """`PUT /store/items`."""
        body = {"namespace": [MEMORIES], "key": key, "value": {"value": value}}
        status, answer = await self._ask(target, "/store/items", "PUT", body)
        if not _http.OK <= status < _http.REDIRECT:
            _answers.fail("PUT /store/items", status, answer)

    async def recall(self, target: Target, key: str) -> str | None:
        """`GET /store/items`."""
        path = "/store/items?" + urlencode({"namespace": MEMORIES, "key": key})
        status, answer = await self._ask(target, path)
        if status == _http.NOT_FOUND or answer is None:
            return None
        value = _answers.fields(status, answer, path).get("value")
        return str(value.get("value")) if isinstance(value, dict) else None

    async def stream(
        self, target: Target, run_id: str, thread: str, *, after: str | None, count: int
    ) -> Stream:
        """`GET /threads/ID/runs/RUN/stream`, which a run offers as often as asked.

        The API sends no last event: a connection that ended is whole if the run has ended, too.
        """
        path = f"/threads/{thread_id(thread)}/runs/{_http.quoted(run_id)}/stream"
        headers = {"Accept": "text/event-stream", "Last-Event-ID": after or FROM_THE_FIRST}
        url = _answers.url_of(target) + path
        found = await asyncio.to_thread(read_stream, url, headers, count, limits.STREAM_S)
        if not found.is_cut or not found.events:
            return found
        with contextlib.suppress(ProbeFailed):
            state = (await self.run(target, run_id, thread)).state
            if state not in (RunState.RUNNING, RunState.UNKNOWN):
                last = replace(found.events[-1], is_last=True)
                return Stream(events=(*found.events[:-1], last), is_cut=False)
        return found

    async def acquire(self, target: Target, resource: str) -> bool:
        """Refuse: the API knows no resources."""
        msg = f"the LangGraph server API has no resources ({resource!r} on {target.name})"
        raise ProbeFailed(msg)

    async def _run(self, target: Target, thread: str, more: dict[str, object]) -> Run:
        body = {
            "assistant_id": await self._assistant(target),
            "stream_resumable": True,
            "durability": "sync",
            "multitask_strategy": "enqueue",
            **more,
        }
        return _run(await self._post(target, f"/threads/{thread}/runs", body))

    async def _assistant(self, target: Target) -> str:
        if self.assistant is None:
            status, answer = await self._ask(target, "/assistants/search", "POST", {"limit": 1})
            first = answer[0] if isinstance(answer, list) and answer else None
            if not isinstance(first, dict):
                _answers.fail("POST /assistants/search", status, answer)
            self.assistant = _answers.text(first, "assistant_id")
        return self.assistant

    async def _ask(
        self, target: Target, path: str, method: str = "GET", body: object = None
    ) -> tuple[int, object]:
        return await _http.ask(
            _answers.url_of(target) + path, method, body, timeout_s=self.timeout_s
        )

    async def _post(self, target: Target, path: str, body: object) -> dict[str, object]:
        status, answer = await self._ask(target, path, "POST", body)
        return _answers.fields(status, answer, f"POST {path}")


def thread_id(name: str) -> str:
    """Return the UUID of the thread that a trial calls `name`; a UUID is its own."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(NAMESPACE, name))


def _run(answer: dict[str, object]) -> Run:
    status = _answers.text(answer, "status")
    if status not in STATES:
        msg = f"a run in no known state: {status[:80]!r}"
        raise ProbeFailed(msg)
    return Run(id=_answers.text(answer, "run_id"), state=STATES[status])


def _thread(name: str, state: dict[str, object]) -> Thread | None:
    checkpoint = state.get("checkpoint")
    newest = checkpoint.get("checkpoint_id") if isinstance(checkpoint, dict) else None
    if not isinstance(newest, str):
        return None
    metadata = state.get("metadata")
    step = metadata.get("step") if isinstance(metadata, dict) else None
    values = json.dumps(state.get("values"), sort_keys=True)
    return Thread(
        id=name,
        checkpoint=newest,
        steps=max(0, step) if isinstance(step, int) else 0,
        digest=hashlib.sha256(values.encode()).hexdigest(),
        interrupts=_interrupts(state.get("tasks")),
    )


def _interrupts(tasks: object) -> tuple[Interrupt, ...]:
    listed = [each for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else []
    return tuple(
        Interrupt(id=_answers.text(each, "id"), value=str(each.get("value", "")))
        for task in listed
        for each in task.get("interrupts") or ()
        if isinstance(each, dict)
    )
