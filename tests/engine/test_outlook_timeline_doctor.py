"""What a run needs, what became of its holders, and the scan that proves that none is stuck."""

import asyncio

import msgspec
import pytest

from perdure import Runtime, effect
from perdure.engine import doctor, timeline
from perdure.engine.doctor import Severity, examine
from perdure.engine.outlook import Standing, approve_command, example_of, outlook_of
from perdure.engine.timeline import timeline_of
from perdure.engine.views import plain_state
from perdure.model import Wait, WaitKind
from perdure.model import records as rec
from tests.beside import beside


async def ask(_given: object, ctx) -> object:
    return (await ctx.ask("Go?", schema=bool)).value


async def listen(_given: object, ctx) -> object:
    return await ctx.receive("go")


async def nap(_given: object, ctx) -> None:
    await ctx.sleep(3600)


async def parent(_given: object, ctx) -> object:
    child = await ctx.spawn(ask)
    return await child.result()


async def two(_given: object, ctx) -> None:
    await asyncio.gather(ctx.receive("a"), ctx.sleep(3600))


async def waiting(runtime, run):
    """Wait until the run is let go, and return its outlook."""
    while True:
        row = await run.row()
        if row.status.value in {"waiting", "needs_decision"}:
            return await outlook_of(runtime.engine, row)
        await runtime.engine.services.clock.sleep(0.01)


@pytest.mark.parametrize(
    ("function", "standing", "kinds"),
    [
        (ask, Standing.BLOCKED, ["approval"]),
        (listen, Standing.BLOCKED, ["signal"]),
        (nap, Standing.TIMED, []),
        (two, Standing.TIMED, ["signal"]),
    ],
)
async def test_outlook_of_waits(open_runtime, function, standing, kinds):
    runtime = await open_runtime(function)
    outlook = await waiting(runtime, await runtime.start(function))
    assert outlook.standing is standing
    assert [blocker.wait.kind.value for blocker in outlook.blockers] == kinds
    assert (outlook.until is not None) == (standing is Standing.TIMED)


async def test_outlook_follows_children_and_the_queue(open_runtime):
    runtime = await open_runtime(parent, ask)
    first = await runtime.start(parent, thread="t")
    outlook = await waiting(runtime, first)
    while outlook.standing is Standing.MOVING:  # the child is on its way to its question
        await runtime.engine.services.clock.sleep(0.01)
        outlook = await outlook_of(runtime.engine, await first.row())
    (blocker,) = outlook.blockers
    assert blocker.run_id != first.id
    assert blocker.wait.kind.value == "approval"
    queued = await runtime.start(parent, thread="t")
    assert (await outlook_of(runtime.engine, await queued.row())).blockers == outlook.blockers


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        (None, True),
        ({}, True),
        ({"type": "string"}, "TEXT"),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, None),
        ({"type": "array", "items": {"type": "number"}}, [0.0]),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {
                    "A": {
                        "type": "object",
                        "properties": {"a": {"$ref": "#/$defs/B"}, "b": {"default": 7}},
                        "required": ["a"],
                    },
                    "B": {"type": "boolean"},
                },
            },
            {"a": True},
        ),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, True),
    ],
)
def test_example_of_a_schema(schema, example):
    assert example_of(schema, schema or {}) == example


def test_approve_command_is_quoted_for_a_shell():
    assert approve_command("a_1", None) == "perdure approve a_1 --yes --by NAME"
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = """perdure approve a_1 --value '{"a": "TEXT"}' --by NAME"""
    assert approve_command("a_1", schema) == wanted


async def test_timeline_of_a_run_that_was_let_go(open_runtime):
    runtime = await open_runtime(listen)
    run = await runtime.start(listen)
    await waiting(runtime, run)
    held = await timeline_of(runtime.engine, run.id)
    assert (held.nodes, held.leases[-1].end) == (("1:call",), "released")
    await run.signal("go", 7)
    assert await run.result(timeout=5) == 7
    story = await timeline_of(runtime.engine, run.id)
    assert [(lease.end, lease.reason) for lease in story.leases] == [
        ("released", "waiting"),
        ("ended", "succeeded"),
    ]
    assert (story.takeovers, story.nodes, story.effects) == ([], (), ())
    assert await plain_state(runtime.engine, await run.row()) == {"input": None, "result": 7}


async def test_timeline_names_a_holder_that_was_lost(open_runtime, monkeypatch):
    runtime = await open_runtime(listen)
    run = await runtime.start(listen)
    await waiting(runtime, run)
    await run.signal("go", 7)
    await run.result(timeout=5)

    whole = await timeline.read_kept(runtime.engine.store, run.id)
    left = [each for each in whole if not isinstance(each[2], rec.Released)]
    torn = [(seq, *each[1:]) for seq, each in enumerate(left, 1)]

    async def without_release(*_arguments):
        return torn

    monkeypatch.setattr(timeline, "read_kept", without_release)
    story = await timeline_of(runtime.engine, run.id)
    (takeover,) = story.takeovers
    assert (takeover.lost_token, takeover.token, takeover.silent_claims) == (1, 2, 0)
    assert takeover.nodes == ("1:call",)
    assert story.leases[0].end == "lost"


async def test_doctor_is_content_with_waiting_runs(open_runtime):
    runtime = await open_runtime(ask, listen, nap, parent, two)
    for function in (ask, listen, nap, two, parent):
        await waiting(runtime, await runtime.start(function, thread=function.__name__))
    await runtime.start(ask, thread="ask")
    report = await examine(runtime.engine)
    assert [finding.code for finding in report.findings] == []
    assert (report.runs, report.workers) == (7, 1)
    assert report.records > 7


async def test_doctor_reports_runs_that_no_worker_executes(url):
    async with Runtime.open(url, [ask], worker=False) as runtime:
        await runtime.start(ask)
        (finding,) = (await examine(runtime.engine)).findings
        assert (finding.code, finding.severity) == ("graph_unserved", Severity.ACTION)


@effect(kind="once")
async def unsure() -> None:
    msg = "connection reset"
    raise ConnectionError(msg)


async def act(_given: object, ctx) -> None:
    await ctx.call(unsure)


async def test_doctor_reports_a_parked_run_and_what_to_do(open_runtime):
    runtime = await open_runtime(act)
    run = await runtime.start(act)
    outlook = await waiting(runtime, run)
    assert (outlook.standing, outlook.blockers[0].run_id) == (Standing.PARKED, run.id)
    report = await examine(runtime.engine)
    (uncertain,) = await runtime.effects("uncertain")
    assert [finding.code for finding in report.findings] == ["run_parked", "effect_uncertain"]
    for finding in report.findings:
        assert f"perdure resolve {uncertain.id} --not-happened --by NAME" in finding.following


def spoil(path, *changes):
    """Write behind the store's back; by its own library, as two in one process break its locks."""
    with beside(path) as db:
        db.set_busy_timeout(5000)
        for change in changes:
            db.execute(*change)
    db.close()


def left_waiting(**wait):
    """Return the change that leaves a run waiting, with nothing that would ever wake it."""
    waits = msgspec.msgpack.encode([Wait(**wait)])
    return "UPDATE perdure_runs SET ready_at_us = NULL, status = ?, waits = ?", ["waiting", waits]


QUEUED = msgspec.msgpack.encode([Wait(kind=WaitKind.THREAD)])
SPOILT = {
    "pending": (("UPDATE perdure_runs SET ready_at_us = NULL",), "run_stuck"),
    "queued": (
        ("UPDATE perdure_runs SET ready_at_us = NULL, waits = ?", [QUEUED]),
        "run_stuck",
    ),
    "running": (
        ("UPDATE perdure_runs SET ready_at_us = NULL, status = 'running'",),
        "run_stuck",
    ),
    "timer": (left_waiting(kind=WaitKind.TIMER, due_us=1), "wake_up_lost"),
    "ask": (left_waiting(kind=WaitKind.ASK, subject="a_1"), "wake_up_lost"),
    "child": (left_waiting(kind=WaitKind.CHILD, subject="r_1"), "wake_up_lost"),
    "journal": (("UPDATE perdure_frames SET hash = zeroblob(32)",), "journal_damaged"),
}


@pytest.mark.parametrize("name", SPOILT)
async def test_doctor_finds_what_no_engine_would_leave(tmp_path, name):
    change, code = SPOILT[name]
    path = tmp_path / "store.db"
    async with Runtime.open(f"sqlite:///{path}", [ask], worker=False) as runtime:
        run = await runtime.start(ask)
        spoil(path, change)
        first = (await examine(runtime.engine)).findings[0]
        assert (first.code, first.severity, first.run_id) == (code, Severity.ERROR, run.id)
        mended = (await examine(runtime.engine, repair=True)).findings[0]
        assert mended.is_repaired is (code == "wake_up_lost")
        if mended.is_repaired:
            codes = [finding.code for finding in (await examine(runtime.engine)).findings]
            assert code not in codes


async def test_doctor_reports_what_is_late(tmp_path):
    path = tmp_path / "store.db"
    async with Runtime.open(f"sqlite:///{path}", [ask, listen]) as runtime:
        await waiting(runtime, await runtime.start(ask))
        spoilt = (
            ("UPDATE perdure_asks SET expires_at_us = 1",),
            ("UPDATE perdure_workers SET seen_at_us = 1",),
        )
        spoil(path, *spoilt)
        codes = [finding.code for finding in (await examine(runtime.engine)).findings]
        assert codes == ["graph_unserved", "ask_expired", "worker_silent"]


async def test_doctor_says_what_it_did_not_look_at(open_runtime, monkeypatch):
    monkeypatch.setattr(doctor, "SCAN_PAGE", 1)
    runtime = await open_runtime(ask)
    for thread in ("t", "u"):
        await waiting(runtime, await runtime.start(ask, thread=thread))
    report = await examine(runtime.engine)
    assert [finding.code for finding in report.findings] == ["scan_truncated"]
    assert report.runs == 2  # runs are read page by page
