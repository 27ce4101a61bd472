"""The probe for applications that offer a few small HTTP endpoints (docs/injection.md)."""

import asyncio
import http.client

from perdure.contracts.inject import _answers, _http, limits
from perdure.contracts.inject._said import read_log
from perdure.contracts.inject.probes import (
    Ability,
    Interrupt,
    ProbeFailed,
    Run,
    RunState,
    Said,
    Stream,
    StreamEvent,
    Target,
    Thread,
    Work,
)


class HttpProbe:
    """Asks `GET /ready`, `POST /runs`, `GET /threads/ID` and so on.

    An endpoint that the application does not have answers 404, which reads as "there is none":
    leave the ability out instead.
    """

    def __init__(
        self,
        abilities: frozenset[Ability] = frozenset(Ability),
        *,
        timeout_s: float = limits.ANSWER_S,
    ) -> None:
        """Make one for an application with these abilities."""
        self.abilities = abilities
        self.timeout_s = timeout_s

    async def ready(self, target: Target) -> bool:
        """Return whether `GET /ready` answers 200."""
        status, _ = await self._ask(target, "/ready")
        return status == _http.OK

    def said(self, log: str) -> Said:
        """Read the known lines of servers, and those of the line protocol."""
        return read_log(log)

    async def start(self, target: Target, work: Work) -> Run:
        """`POST /runs` with the fields of the work."""
        body = {"thread": work.thread, **work.fields()}
        return as_run(await self._answer(target, "/runs", "POST", body))

    async def run(self, target: Target, run_id: str, thread: str) -> Run:
        """`GET /runs/ID?thread=THREAD`; 404: unknown."""
        path = f"/runs/{_http.quoted(run_id)}?thread={_http.quoted(thread)}"
        status, answer = await self._ask(target, path)
        if status == _http.NOT_FOUND:
            return Run(id=run_id, state=RunState.UNKNOWN)
        return as_run(_answers.fields(status, answer, path))

    async def thread(self, target: Target, thread: str) -> Thread | None:
        """`GET /threads/ID`; 404: there is none."""
        path = f"/threads/{_http.quoted(thread)}"
        status, answer = await self._ask(target, path)
        return (
            None if status == _http.NOT_FOUND else as_thread(_answers.fields(status, answer, path))
        )

    async def resume(self, target: Target, thread: str, interrupt: Interrupt) -> Run:
        """`POST /threads/ID/resume` with `{"interrupt": ID, "value": true}`."""
        path = f"/threads/{_http.quoted(thread)}/resume"
        body = {"interrupt": interrupt.id, "value": True}
        return as_run(await self._answer(target, path, "POST", body))

    async def remember(self, target: Target, key: str, value: str) -> None:
        """`PUT /memory/KEY` with `{"value": VALUE}`."""
        await self._answer(target, f"/memory/{_http.quoted(key)}", "PUT", {"value": value})

    async def recall(self, target: Target, key: str) -> str | None:
        """`GET /memory/KEY`; 404: there is none."""
        path = f"/memory/{_http.quoted(key)}"
        status, answer = await self._ask(target, path)
        return (
            None
            if status == _http.NOT_FOUND
            else _answers.text(_answers.fields(status, answer, path), "value")
        )

    async def acquire(self, target: Target, resource: str) -> bool:
        """`POST /resources/NAME`, which answers `{"held": BOOL}`."""
        answer = await self._answer(target, f"/resources/{_http.quoted(resource)}", "POST", {})
        return answer.get("held") is True

    async def stream(
        self, target: Target, run_id: str, thread: str, *, after: str | None, count: int
    ) -> Stream:
        """`GET /runs/ID/events?thread=THREAD`, server-sent events; the last one is named `end`."""
        path = f"/runs/{_http.quoted(run_id)}/events?thread={_http.quoted(thread)}"
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        return await asyncio.to_thread(
            read_stream, _answers.url_of(target) + path, headers, count, limits.STREAM_S
        )

    async def _ask(
        self, target: Target, path: str, method: str = "GET", body: object = None
    ) -> tuple[int, object]:
        return await _http.ask(
            _answers.url_of(target) + path, method, body, timeout_s=self.timeout_s
        )

    async def _answer(
        self, target: Target, path: str, method: str, body: object
    ) -> dict[str, object]:
        status, answer = await self._ask(target, path, method, body)
        return _answers.fields(status, answer, f"{method} {path}")


def read_stream(url: str, headers: dict[str, str], count: int, timeout_s: float) -> Stream:
    """Read server-sent events until `count` came, or one named `end`, or it is cut; blocking.

    `timeout_s` is the longest silence. What came before a cut is kept.
    """
    events: list[StreamEvent] = []

    def read(response: http.client.HTTPResponse) -> None:
        if response.status != _http.OK:
            msg = f"GET {url}: status {response.status}"
            raise ProbeFailed(msg)
        fields: dict[str, str] = {}
        for raw in response:
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            if not line and fields:
                events.append(_event(fields))
                fields = {}
                if len(events) >= count or events[-1].is_last:
                    return
            elif line and not line.startswith(":"):
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")

    try:
        _http.exchange(url, "GET", None, timeout_s=timeout_s, headers=headers, read=read)
    except ProbeFailed:
        if not events:
            raise
    is_whole = len(events) >= count or (bool(events) and events[-1].is_last)
    return Stream(events=tuple(events), is_cut=not is_whole)


def _event(fields: dict[str, str]) -> StreamEvent:
    name = fields.get("event", "message")
    return StreamEvent(
        id=fields.get("id") or None,
        name=name,
        text=fields.get("data", "")[: limits.LINE_CHARACTERS_MAX],
        is_last=name == "end",
    )


def as_run(answer: dict[str, object]) -> Run:
    """Return an answer as a run."""
    state = _answers.text(answer, "state")
    if state not in {each.value for each in RunState}:
        msg = f"a run in no known state: {state[:80]!r}"
        raise ProbeFailed(msg)
    done = answer.get("steps_done")
    return Run(
        id=_answers.text(answer, "id"),
        state=RunState(state),
        steps_done=done if isinstance(done, int) else None,
    )


def as_thread(answer: dict[str, object]) -> Thread:
    """Return an answer as a thread."""
    interrupts = answer.get("interrupts")
    listed = interrupts if isinstance(interrupts, list) else []
    return Thread(
        id=_answers.text(answer, "id"),
        checkpoint=_answers.text(answer, "checkpoint"),
        steps=_answers.count(answer, "steps"),
        digest=_answers.text(answer, "digest"),
        interrupts=tuple(
            Interrupt(id=_answers.text(each, "id"), value=str(each.get("value", "")))
            for each in listed
            if isinstance(each, dict)
        ),
    )
