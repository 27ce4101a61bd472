"""A person's data in every place that takes any, each piece unlike all others; finding it."""

import base64
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from perdure import (
    END,
    START,
    Context,
    Graph,
    Rejected,
    Run,
    RunFailed,
    Runtime,
    Send,
    append,
    effect,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUBJECT = "person-1"
MARK = "CANARY"


def canary(place: str) -> str:
    """Return a text that is only ever put into one place."""
    return f"{MARK}-{place}-kQ7zW-of-the-person"


PLACES = (
    "state", "start-key", "business-key", "effect-argument", "effect-result", "refused-argument",
    "refusal", "lost-argument", "uncertain-failure", "decided-result", "decider", "chunk",
    "question", "schema", "answer", "answerer", "signal", "sender", "update", "item-7", "own-77",
    "large-end", "fan-out", "child-input", "child-result", "failure", "failed-state", "fork-update",
    "rollback-reason", "rollback-by", "waiting-state", "unread-signal", "unread-sender",
    "schedule-input", "tag", "tagger",
)  # fmt: skip


@dataclass
class State:
    text: str = ""
    large: str = ""
    items: list[str] = field(default_factory=list)
    notes: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="keyed")
async def charge(what, *, idempotency_key):
    return f"{canary('effect-result')} {idempotency_key}"


@effect(kind="once")
async def refused(what):
    raise Rejected(canary("refusal"))


@effect(kind="once")
async def lost(what):
    raise OSError(canary("uncertain-failure"))


def graphs():
    child = Graph(State, name="child")

    @child.node
    async def answer(state: State, ctx: Context) -> dict:
        return {"notes": [canary("child-result"), state.text]}

    child.edge(START, answer)
    child.edge(answer, END)

    quiet = Graph(State, name="quiet")

    @quiet.node
    async def rest(state: State) -> dict:
        return {"notes": ["rested"]}

    quiet.edge(START, rest)
    quiet.edge(rest, END)

    asking = Graph(State, name="asking")

    @asking.node
    async def act(state: State, ctx: Context) -> dict:
        key = f"{canary('business-key')} {ctx.run_id}"
        notes = [await ctx.call(charge, canary("effect-argument"), key=key)]
        await ctx.emit({"chunk": canary("chunk")})
        try:
            await ctx.call(refused, canary("refused-argument"))
        except Exception as error:  # noqa: BLE001  # whatever it is, its text is noted
            notes.append(str(error))
        spawned = await ctx.spawn(child, {"text": canary("child-input")})
        notes += (await spawned.result()).notes
        reply = await ctx.ask(
            canary("question"), schema={"type": "string", "title": canary("schema")}
        )
        notes += [reply.value, reply.by, str(await ctx.receive("topic"))]
        return {"notes": [*notes, canary("update")], "large": state.large + canary("large-end")}

    @asking.node
    async def each(item: str) -> dict:
        return {"notes": [item[:6]]}

    def spread(state: State) -> list[Send]:
        return [Send("each", canary("fan-out"))]

    asking.edge(START, act)
    asking.branch(act, spread, targets=["each"])
    asking.edge(each, END)

    failing = Graph(State, name="failing")

    @failing.node
    async def fail(state: State, ctx: Context) -> dict:
        raise RuntimeError(canary("failure"))

    failing.edge(START, fail)
    failing.edge(fail, END)

    parking = Graph(State, name="parking")

    @parking.node
    async def park(state: State, ctx: Context) -> dict:
        return {"notes": [str(await ctx.call(lost, canary("lost-argument")))]}

    parking.edge(START, park)
    parking.edge(park, END)
    return asking, failing, parking, child, quiet


def large(of: str) -> str:
    """Return a text of several pages whose parts are not alike."""
    return " ".join(f"{MARK}-{of}-{number}-kQ7zW-of-the-person" for number in range(3_000))


def whole_state() -> dict:
    items = [canary(f"item-{number}") for number in range(20)]
    return {"text": canary("state"), "large": large("shared") + large("own"), "items": items}


async def asked(runtime, run_id):
    mark = runtime.engine.store.change_mark()
    while not (found := await runtime.asks(run_id=run_id)):
        await runtime.engine.store.wait_for_change(5.0, since=mark)
        mark = runtime.engine.store.change_mark()
    return found


async def uncertain(runtime, run_id):
    mark = runtime.engine.store.change_mark()
    while not (found := await runtime.effects("uncertain", run_id=run_id)):
        await runtime.engine.store.wait_for_change(5.0, since=mark)
        mark = runtime.engine.store.change_mark()
    return found


async def go_through(runtime, run):
    """Answer and signal a run of `asking` until it has ended."""
    [ask] = await asked(runtime, run.id)
    await runtime.answer(ask.id, canary("answer"), by=canary("answerer"))
    await run.signal("topic", canary("signal"), by=canary("sender"))
    await run.result(timeout=30)


async def release(runtime: Runtime) -> tuple[Run, Run]:
    """Put the person's data into every place that takes any; most of it has ended.

    Returns the run of thread t-1, and the one that failed.
    """
    about = {"subject": SUBJECT}
    run = await runtime.start(
        "asking", whole_state(), thread="t-1", key=canary("start-key"), **about
    )
    await go_through(runtime, run)
    await runtime.tag("t-1", 1, canary("tag"), by=canary("tagger"))
    fork = await runtime.fork("t-1", at=1, update={"text": canary("fork-update")}, to="t-1-fork")
    await go_through(runtime, fork)
    await runtime.rollback("t-1", at=1, by=canary("rollback-by"), reason=canary("rollback-reason"))
    failed = await runtime.start("failing", {"text": canary("failed-state")}, thread="t-3", **about)
    with pytest.raises(RunFailed):
        await failed.result(timeout=30)
    parked = await runtime.start("parking", {}, thread="t-4", **about)
    [effect_row] = await uncertain(runtime, parked.id)
    await runtime.resolve(
        effect_row.id, happened=True, result=canary("decided-result"), by=canary("decider")
    )
    await parked.result(timeout=30)
    await runtime.schedule(
        "of-person", "asking", {"text": canary("schedule-input")}, cron="0 3 1 1 *", thread="t-1"
    )
    waiting = await runtime.start(
        "asking", {"text": canary("waiting-state")}, thread="t-2", **about
    )
    await asked(runtime, waiting.id)
    await waiting.signal("unread", canary("unread-signal"), by=canary("unread-sender"))
    return run, failed


OTHERS = "another-person-altogether"


async def release_others(runtime: Runtime) -> str:
    """Put somebody else's data there, part of which is the same; return the id of the run."""
    given = {"text": OTHERS, "large": large("shared")}
    run = await runtime.start("quiet", given, thread="other", subject="person-2")
    await run.result(timeout=30)
    return run.id


MAGIC = b"\x28\xb5\x2f\xfd"
"""What packed pages and frames begin with."""


def found_in(blobs: Iterable[bytes], wanted: list[str]) -> set[str]:
    """Return which texts are in bytes, as they are or in what is packed in them."""
    encoded = {text: text.encode() for text in wanted}
    found: set[str] = set()
    for blob in blobs:
        for form in forms(blob):
            found |= {text for text, needle in encoded.items() if needle in form}
    return found


def forms(blob: bytes) -> Iterator[bytes]:
    """Yield bytes as they are, and unpacked from wherever something packed begins."""
    yield blob
    at = blob.find(MAGIC)
    while at != -1:
        yield unpacked(blob[at : at + 200_000])
        at = blob.find(MAGIC, at + 1)
    for head in (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"):
        at = blob.find(head)
        while at != -1:
            with suppress(zlib.error):
                yield zlib.decompressobj().decompress(blob[at : at + 200_000], 1_000_000)
            at = blob.find(head, at + 1)


def unpacked(blob: bytes) -> bytes:
    try:
        return zstd.ZstdDecompressor().decompress(blob, max_length=1_000_000)
    except (zstd.ZstdError, EOFError):
        return b""


def encodings() -> list[bytes]:
    """Return the mark in every form in which it would be seen: base64 at each of three offsets."""
    mark = MARK.encode()
    found = [mark, mark.hex().encode(), mark.decode().encode("utf-16-le")]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + mark)
        found.append(encoded[(0, 2, 3)[shift] : -4])
    return found


def marks_in(blob: bytes) -> list[tuple[bytes, bytes]]:
    """Return the forms of the mark that are in bytes, with what is around the first one."""
    return [
        (mark, form[max(0, form.find(mark) - 60) : form.find(mark) + 60])
        for form in forms(blob)
        for mark in encodings()
        if mark in form
    ]


def scan_files(folder: Path) -> int:
    """Refuse a mark in any file of a store; return how many files there were."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        assert marks_in(path.read_bytes()) == [], path
    return len(paths)


def scan_rows(postgres, schema: str) -> int:
    """Refuse a mark in any row of a schema; return how many tables there were."""
    tables = postgres.query(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
    )
    for (name,) in tables:
        for row in postgres.query(f'SELECT * FROM "{schema}"."{name}"'):
            for value in row:
                blob = bytes(value) if isinstance(value, bytes) else str(value).encode()
                assert marks_in(blob) == [], (name, row)
    return len(tables)


async def check_readable(runtime: Runtime, run: Run, failed: Run) -> None:
    """Who may read it reads everything that `release` put there as it was."""
    row = await runtime.read_row(run.id)
    assert row.start_key == canary("start-key")
    assert canary("failure") in (await runtime.read_row(failed.id)).failure.message
    entries = {entry.name: entry for entry in await runtime.effects(None, run_id=run.id)}
    key = f"{canary('business-key')} {run.id}"
    assert entries["charge"].business_key == entries["charge"].key == key
    assert entries["charge"].args == [canary("effect-argument")]
    [schedule] = await runtime.schedules()
    assert schedule.name == "of-person"
    [ask] = await runtime.asks(open=False, run_id=run.id)
    assert (ask.value, ask.answered_by) == (canary("answer"), canary("answerer"))
    state = await runtime.state("t-1-fork")
    assert state.text == canary("fork-update")
    assert state.large == whole_state()["large"] + canary("large-end")
    events = [str(event) for event in await runtime.events(run.id)]
    assert any(canary("chunk") in event for event in events)
    [tag] = await runtime.tags("t-1")
    assert (tag.name, tag.by) == (canary("tag"), canary("tagger"))


def blobs_of(folder: Path, *, leaving_out: str = "") -> Iterator[bytes]:
    """Yield the content of every file in a folder, those of one folder in it left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not (leaving_out and leaving_out in path.parts):
            yield path.read_bytes()


def all_canaries() -> list[str]:
    return [canary(place) for place in PLACES]
