"""A scan for secrets: what a user puts anywhere is in no byte of a store, in no obvious form."""

import base64
import sqlite3
import sys
import zlib
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
    RunFailed,
    Runtime,
    append,
    effect,
)
from perdure.errors import StartKeyReused
from tests.sealing.conftest import local_keys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MARK = "MARKER"


def secret(place):
    """Return a text that is only ever put there."""
    return f"{MARK}-{place}-kQ7zW"


@dataclass
class State:
    text: str = ""
    large: str = ""
    notes: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="keyed")
async def charge(what, *, idempotency_key):
    assert idempotency_key
    return f"{secret('effect-result')} {what}"


@effect(kind="once")
async def refused(what):
    raise Rejected(secret("refusal"))


@effect(kind="once")
async def lost(what):
    raise OSError(secret("uncertain-failure"))


def graphs():
    asking = Graph(State, name="asking")

    @asking.node
    async def act(state: State, ctx: Context) -> dict:
        key = f"{secret('business-key')} {state.text}"
        notes = [await ctx.call(charge, secret("effect-argument"), key=key)]
        await ctx.emit({"chunk": secret("chunk")})
        try:
            await ctx.call(refused, secret("refused-argument"))
        except Exception as error:  # noqa: BLE001  # whatever it is, its text is noted
            notes.append(str(error))
        answer = await ctx.ask(
            secret("question"), schema={"type": "string", "title": secret("schema")}
        )
        notes += [answer.value, answer.by]
        notes.append(str(await ctx.receive("topic")))
        return {"notes": [*notes, secret("update")], "large": state.large + secret("large-end")}

    asking.edge(START, act)
    asking.edge(act, END)

    failing = Graph(State, name="failing")

    @failing.node
    async def fail(state: State, ctx: Context) -> dict:
        raise RuntimeError(secret("failure"))

    failing.edge(START, fail)
    failing.edge(fail, END)

    parking = Graph(State, name="parking")

    @parking.node
    async def park(state: State, ctx: Context) -> dict:
        return {"notes": [str(await ctx.call(lost, secret("lost-argument")))]}

    parking.edge(START, park)
    parking.edge(park, END)
    return asking, failing, parking


def large():
    """Return a text of several pages whose parts are not alike."""
    return " ".join(f"{secret('large')}-{number * 7919}" for number in range(8_000))


async def put_secrets_everywhere(runtime):
    """Put a secret into every place that takes one; leave some where they are not yet consumed."""
    run = await runtime.start(
        "asking",
        {"text": secret("state"), "large": large()},
        thread="t-1",
        key=secret("start-key"),
    )
    with pytest.raises(StartKeyReused, match=secret("start-key")):
        await runtime.start("asking", {"text": "other"}, thread="t-1", key=secret("start-key"))
    [ask] = await asked(runtime, run.id)
    assert ask.question == secret("question")
    await runtime.answer(ask.id, secret("answer"), by=secret("answerer"))
    await run.signal("topic", secret("signal"), by=secret("sender"))
    state = await run.result(timeout=20)
    assert secret("answer") in state.notes
    assert state.large == large() + secret("large-end")

    waiting = await runtime.start("asking", {"text": secret("waiting-state")}, thread="t-2")
    await asked(runtime, waiting.id)
    await waiting.signal("unread", secret("unread-signal"), by=secret("unread-sender"))

    failed = await runtime.start("failing", {"text": secret("failed-state")})
    with pytest.raises(RunFailed, match=secret("failure")):
        await failed.result(timeout=20)

    parked = await runtime.start("parking", {})
    await uncertain(runtime, parked)
    fork = await runtime.fork("t-1", at=1, update={"text": secret("fork-update")})
    await asked(runtime, fork.id)
    await runtime.schedule(
        "nightly", "asking", {"text": secret("schedule-input")}, cron="0 3 * * *"
    )
    return run, failed


async def asked(runtime, run_id):
    mark = runtime.engine.store.change_mark()
    while not (found := await runtime.asks(run_id=run_id)):
        await runtime.engine.store.wait_for_change(5.0, since=mark)
        mark = runtime.engine.store.change_mark()
    return found


async def uncertain(runtime, run):
    mark = runtime.engine.store.change_mark()
    while not (found := await runtime.effects("uncertain", run_id=run.id)):
        await runtime.engine.store.wait_for_change(5.0, since=mark)
        mark = runtime.engine.store.change_mark()
    await runtime.resolve(
        found[0].id, happened=True, result=secret("decided-result"), by=secret("decider")
    )
    await run.result(timeout=20)


def forms(blob):
    """Yield what is in bytes: as they are, and of whatever looks packed or encoded, unpacked."""
    yield blob
    for head in (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"):
        at = blob.find(head)
        while at != -1:
            with suppress(zlib.error):
                yield zlib.decompressobj().decompress(blob[at:], 1_000_000)
            at = blob.find(head, at + 1)
    at = blob.find(b"\x28\xb5\x2f\xfd")
    while at != -1:
        yield unpacked(blob[at:])
        at = blob.find(b"\x28\xb5\x2f\xfd", at + 1)


def unpacked(blob):
    try:
        return zstd.ZstdDecompressor().decompress(blob, max_length=1_000_000)
    except (zstd.ZstdError, EOFError):
        return b""


def encodings():
    """Return the mark in every form in which it would be seen: base64 at each of three offsets."""
    mark = MARK.encode()
    found = [mark, mark.hex().encode(), mark.decode().encode("utf-16-le")]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + mark)
        found.append(encoded[(0, 2, 3)[shift] : -4])
    return found


def found_in(blob):
    """Return the forms of the mark that are in bytes, with what is around the first one."""
    return [
        (mark, form[max(0, form.find(mark) - 60) : form.find(mark) + 60])
        for form in forms(blob)
        for mark in encodings()
        if mark in form
    ]


def test_the_scan_finds_what_is_there():
    text = f"{secret('x')} and more of it ".encode() * 40
    for blob in (
        text,
        b"123" + zlib.compress(text),
        b"12" + zstd.compress(text),
        *(base64.b64encode(b"\0" * shift + text) for shift in range(3)),
        text.hex().encode(),
    ):
        assert found_in(b"before" + blob + b"after")
    assert not found_in(b"nothing here")


async def test_no_byte_of_sqlite_files_holds_a_secret(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), keys=local_keys(1)) as runtime:
        run, failed = await put_secrets_everywhere(runtime)
        scanned = scan_files(tmp_path)  # with the log still beside the file
    assert scanned >= 2
    assert scan_files(tmp_path)
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        await check_all_readable(runtime, run, failed)


async def test_the_same_without_keys_is_found(tmp_path):
    """What the scan is worth: in a plain store it finds what it looks for."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs()) as runtime:
        await put_secrets_everywhere(runtime)
        blob = b"".join(
            path.read_bytes() for path in sorted(tmp_path.glob("store.db*")) if path.is_file()
        )
    for place in ("state", "effect-argument", "question", "answer", "start-key", "business-key"):
        assert any(secret(place).encode() in form for form in forms(blob)), place
    assert any(b"kQ7zW" in form and b"MARKER-large" in form for form in forms(blob))


def scan_files(folder: Path):
    """Scan every file of a store; return how many there were."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in paths:
        assert found_in(path.read_bytes()) == [], path
    return len(paths)


async def check_all_readable(runtime, run, failed):
    """Who has the keys reads everything as it was."""
    row = await runtime.read_row(run.id)
    assert row.start_key == secret("start-key")
    assert secret("failure") in (await runtime.read_row(failed.id)).failure.message
    entries = {entry.name: entry for entry in await runtime.effects(None, run_id=run.id)}
    key = f"{secret('business-key')} {secret('state')}"
    assert entries["charge"].business_key == entries["charge"].key == key
    assert entries["charge"].args == [secret("effect-argument")]
    [schedule] = await runtime.schedules()
    assert schedule.name == "nightly"
    [ask] = await runtime.asks(open=False, run_id=run.id)
    assert (ask.value, ask.answered_by) == (secret("answer"), secret("answerer"))
    assert (await runtime.state("t-1")).large == large() + secret("large-end")
    events = [str(event) for event in await runtime.events(run.id)]
    assert any(secret("chunk") in event for event in events)


async def test_no_row_of_postgresql_holds_a_secret(postgres, schema):
    url = postgres.url(schema)
    async with Runtime.open(url, graphs(), keys=local_keys(1)) as runtime:
        run, failed = await put_secrets_everywhere(runtime)
    tables = postgres.query(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
    )
    assert len(tables) > 10
    for (name,) in tables:
        for row in postgres.query(f'SELECT * FROM "{schema}"."{name}"'):
            for value in row:
                blob = bytes(value) if isinstance(value, bytes) else str(value).encode()
                assert found_in(blob) == [], (name, row)
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(1)) as runtime:
        await check_all_readable(runtime, run, failed)


async def test_equal_pages_of_two_tenants_are_not_alike(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), keys=local_keys(1), worker=False) as runtime:
        for tenant, thread in (("a", "t1"), ("a", "t2"), ("b", "t1")):
            await runtime.start("asking", {"large": large()}, tenant=tenant, thread=thread)
    async with Runtime.open(f"sqlite:///{tmp_path}/plain.db", graphs(), worker=False) as runtime:
        await runtime.start("asking", {"large": large()}, tenant="a", thread="t1")
    names = {tenant: pages_of(tmp_path / "store.db", tenant) for tenant in ("a", "b")}
    plain = pages_of(tmp_path / "plain.db", "a")
    assert len(names["a"]) == len(names["b"]) == len(plain) > 10  # shared within a tenant
    assert not set(names["a"]) & set(names["b"])
    assert not set(names["a"]) & set(plain)
    bodies = [*names["a"].values(), *names["b"].values()]
    assert len(set(bodies)) == len(bodies)


def pages_of(path, tenant):
    db = sqlite3.connect(path)
    try:
        return dict(db.execute("SELECT hash, body FROM perdure_pages WHERE tenant = ?", (tenant,)))
    finally:
        db.close()
