"""Schedules: fired once, by whoever lives, on the clock's terms."""

import datetime as dt

import pytest

from perdure import Runtime
from perdure.engine.cron import last_due, next_due
from perdure.engine.limits import SCHEDULE_MISSED_MAX
from perdure.engine.schedules import fire_due
from perdure.errors import NotFound, SettingInvalid, UpdateInvalid
from tests.engine.one_node import State, one_node

HOUR, DAY = 3600.0, 86400.0
SLOW = {"lease_ttl_s": 900.0, "heartbeat_s": 300.0}
"""Workers that look seldom, so that a day has few events."""


async def nothing(_ctx):
    return "done"


GRAPH = one_node(nothing, "nightly")


async def keys(runtime):
    """Return the due times that became runs, oldest first."""
    rows = await runtime.runs(limit=1000)
    return sorted(row.start_key.removeprefix("schedule:s:") for row in rows)


async def test_several_workers_fire_each_due_time_once(clock, open_workers):
    async with clock.autojump():
        workers = await open_workers(3, GRAPH, **SLOW)
        shown = await workers[0].schedule("s", GRAPH, cron="0 * * * *")
        assert shown.next_at == dt.datetime(2030, 1, 1, 1, tzinfo=dt.UTC)
        await clock.sleep(5.5 * HOUR)
        found = await keys(workers[1])
        assert found == [f"2030-01-01T0{hour}:00:00Z" for hour in (1, 2, 3, 4, 5)]
        assert len(await workers[0].runs(status="succeeded")) == 5
        [row] = await workers[2].runs(limit=1)
        assert row.created_at_us == clock._start_us + 5 * 3_600_000_000, "at the due time itself"
        [shown] = await workers[2].schedules()
        assert shown.fired_run == row.run_id
        assert shown.next_at == dt.datetime(2030, 1, 1, 6, tzinfo=dt.UTC)


async def test_worker_sleeps_until_the_next_due_time(clock, open_workers):
    async with clock.autojump():
        [runtime] = await open_workers(1, GRAPH, heartbeat_s=5.0)
        looks = []
        store, find = runtime.engine.store, runtime.engine.store.find_schedules

        async def counted(**query):
            looks.append(clock.monotonic_s())
            return await find(**query)

        store.find_schedules = counted
        await runtime.schedule("s", GRAPH, cron="*/10 * * * *")
        await clock.sleep(HOUR + 10)
        assert len(looks) < 2 * (3600 / 5 + 20), "twice a heartbeat, and at each due time"
        assert len(await keys(runtime)) == 6


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("one", ["2030-01-01T10:00:00Z"]),
        ("skip", []),
        ("all", [f"2030-01-01T{hour:02}:00:00Z" for hour in range(1, 11)]),
    ],
)
async def test_missed_due_times(clock, open_workers, missed, expected):
    [asking] = await open_workers(1, GRAPH, worker=False)
    await asking.schedule("s", GRAPH, cron="0 * * * *", missed=missed)
    clock.jump_wall(10 * HOUR + 600)  # nobody lived meanwhile, or the clock was set
    async with clock.autojump():
        await open_workers(2, GRAPH, **SLOW)
        await clock.sleep(10)
        assert await keys(asking) == expected
        await clock.sleep(HOUR + 10)
        assert await keys(asking) == [*expected, "2030-01-01T11:00:00Z"]


async def test_all_that_was_missed_is_bounded(clock, open_workers):
    [asking] = await open_workers(1, GRAPH, worker=False)
    await asking.schedule("s", GRAPH, cron="* * * * *", missed="all")
    clock.jump_wall(400 * DAY)
    async with clock.autojump():
        await open_workers(1, GRAPH, **SLOW)
        await clock.sleep(10)
        found = await keys(asking)
        assert len(found) == SCHEDULE_MISSED_MAX
        assert (found[0], found[-1]) == ("2031-02-04T22:21:00Z", "2031-02-05T00:00:00Z")


async def test_wall_clock_that_jumps_back_fires_nothing_again(clock, open_workers):
    async with clock.autojump():
        workers = await open_workers(2, GRAPH, **SLOW)
        await workers[0].schedule("s", GRAPH, cron="0 * * * *")
        await clock.sleep(2 * HOUR + 60)
        clock.jump_wall(-2 * HOUR)
        await clock.sleep(2 * HOUR)
        assert len(await keys(workers[0])) == 2
        await clock.sleep(HOUR + 10)
        assert len(await keys(workers[0])) == 3


async def test_crash_between_the_start_and_the_row_repeats_nothing(clock, open_workers):
    [asking] = await open_workers(1, GRAPH, worker=False)
    await asking.schedule("s", GRAPH, cron="0 * * * *")
    clock.jump_wall(HOUR)
    store, put = asking.engine.store, asking.engine.store.put_schedule

    async def dies(*_args, **_kwargs):
        raise OSError

    store.put_schedule = dies
    with pytest.raises(OSError):  # noqa: PT011  # the test's own
        await fire_due(asking.engine, poke=lambda: None)
    store.put_schedule = put
    assert len(await keys(asking)) == 1
    await fire_due(asking.engine, poke=lambda: None)
    assert len(await keys(asking)) == 1
    [shown] = await asking.schedules()
    assert shown.next_at == dt.datetime(2030, 1, 1, 2, tzinfo=dt.UTC)


async def test_paused_resumed_replaced_removed(clock, open_workers):
    async with clock.autojump():
        workers = await open_workers(2, GRAPH, **SLOW)
        await workers[0].schedule("s", GRAPH, cron="0 * * * *")
        paused = await workers[1].pause_schedule("s")
        assert (paused.is_paused, paused.next_at) == (True, None)
        await clock.sleep(3 * HOUR)
        assert await keys(workers[0]) == []
        resumed = await workers[0].resume_schedule("s")
        assert resumed.next_at == dt.datetime(2030, 1, 1, 4, tzinfo=dt.UTC)
        await clock.sleep(HOUR + 10)
        assert len(await keys(workers[0])) == 1
        await workers[1].schedule("s", GRAPH, {"results": ["x"]}, cron="30 * * * *")
        await clock.sleep(HOUR + 10)
        assert [key[11:16] for key in await keys(workers[0])] == ["04:00", "04:30"]
        await workers[0].unschedule("s")
        await clock.sleep(HOUR + 10)
        assert len(await keys(workers[0])) == 2
        for gone in (workers[0].unschedule, workers[0].pause_schedule, workers[0].resume_schedule):
            with pytest.raises(NotFound):
                await gone("s")


async def test_added_again_it_goes_on(clock, open_workers):
    async with clock.autojump():
        [asking] = await open_workers(1, GRAPH, worker=False)
        await asking.schedule("s", GRAPH, cron="0 * * * *")
        clock.jump_wall(HOUR + 60)
        again = await asking.schedule("s", GRAPH, {"results": ["x"]}, cron="0 * * * *")
        assert again.next_at == dt.datetime(2030, 1, 1, 1, tzinfo=dt.UTC), "due, not forgotten"
        other = await asking.schedule("s", GRAPH, cron="30 * * * *")
        assert other.next_at == dt.datetime(2030, 1, 1, 1, 30, tzinfo=dt.UTC)
        await asking.pause_schedule("s")
        paused = await asking.schedule("s", GRAPH, cron="0 * * * *")
        assert (paused.is_paused, paused.next_at) == (True, None)


async def test_runs_have_what_the_schedule_says(clock, open_workers):
    async with clock.autojump():
        [runtime] = await open_workers(1, GRAPH, **SLOW)
        await runtime.schedule(
            "s",
            GRAPH,
            State(results=["begun"]),
            cron="0 * * * *",
            tenant="t",
            thread="line",
            priority=7,
            on_busy="reject",
        )
        await clock.sleep(2.5 * HOUR)
        rows = await runtime.runs(tenant="t", thread="line")
        assert [(row.priority, row.ordinal, row.status) for row in rows] == [
            (7, 2, "succeeded"),
            (7, 1, "succeeded"),
        ]
        state = await runtime.state("line", tenant="t")
        assert state.results == ["begun", "done", "begun", "done"]


async def test_newest_version_that_lives_is_started(clock, open_workers):
    async with clock.autojump():
        [first] = await open_workers(1, GRAPH, **SLOW)
        await first.schedule("s", GRAPH, cron="0 * * * *")
        await first.close()
        [second] = await open_workers(1, one_node(nothing, "nightly", version=2), **SLOW)
        await clock.sleep(HOUR + 10)
        [row] = await second.runs()
        assert (row.version, row.status) == (2, "succeeded")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "61 * * * *"},
        {"cron": "nonsense"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 * * * *", "timezone": "Europe/Atlantis"},
        {"cron": "0 * * * *", "timezone": "../../etc/passwd"},
        {"cron": "0 * * * *", "missed": "some"},
        {"cron": "0 * * * *", "on_busy": "wait"},
        {"cron": "0 * * * *", "tenant": ""},
    ],
)
async def test_what_can_not_be_is_refused(open_workers, wrong):
    [runtime] = await open_workers(1, worker=False)
    with pytest.raises(SettingInvalid):
        await runtime.schedule("s", GRAPH, **wrong)
    with pytest.raises(UpdateInvalid):
        await runtime.schedule("s", GRAPH, {"unknown": 1}, cron="0 * * * *")
    assert await runtime.schedules() == []


# -- days on which clocks are changed --------------------------------------------------------------


def at(text):
    """Return a UTC time in microseconds."""
    return int(dt.datetime.fromisoformat(text + "+00:00").timestamp()) * 1_000_000


def times(cron, timezone, first, last):
    """Return the due times in between, in UTC, found one after the other."""
    found, at_us = [], at(first)
    while (at_us := next_due(cron, timezone, at_us)) <= at(last):
        found.append(dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC).strftime("%dT%H:%M"))
    return found


def test_time_that_the_change_skips_is_due_right_after():
    # 2026-03-29 in Berlin: 02:00 becomes 03:00, which is 01:00 UTC.
    found = times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-30T12:00")
    assert found == ["29T01:00", "30T00:30"]


def test_time_that_comes_twice_is_due_once():
    # 2026-10-25 in Berlin: 03:00 becomes 02:00, so 02:30 is 00:30 and 01:30 UTC.
    found = times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-26T12:00")
    assert found == ["25T00:30", "26T01:30"]


def test_every_hour_is_every_hour_that_passes():
    found = times("30 * * * *", "Europe/Berlin", "2026-10-24T23:45", "2026-10-25T03:45")
    assert found == ["25T00:30", "25T01:30", "25T02:30", "25T03:30"]
    found = times("30 * * * *", "Europe/Berlin", "2026-03-28T23:45", "2026-03-29T02:45")
    assert found == ["29T00:30", "29T01:30", "29T02:30"]


@pytest.mark.parametrize("timezone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "30 * * * *", "*/15 1,2 * * *", "0 0 * * 0"])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-25"])
def test_what_was_missed_is_what_would_have_been_fired(timezone, cron, day):
    first = at(f"{day}T00:00") - round(DAY) * 1_000_000
    last = first + 3 * round(DAY) * 1_000_000
    expected, at_us = [], first - 1
    while (at_us := next_due(cron, timezone, at_us)) <= last:
        expected.append(at_us)
    for number in (1, 3, 1000):
        found = last_due(cron, timezone, first_us=first, now_us=last, count=number)
        assert found == expected[-number:]


async def test_schedule_over_a_change_of_clocks(clock, open_workers):
    clock.jump_wall((at("2026-10-24T12:00") - clock.now_us()) / 1_000_000)
    async with clock.autojump():
        workers = await open_workers(2, GRAPH, **SLOW)
        await workers[0].schedule("s", GRAPH, cron="30 2 * * *", timezone="Europe/Berlin")
        await clock.sleep(2 * DAY)
        assert await keys(workers[0]) == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]


def test_import_of_perdure_does_not_load_cron(tmp_path):
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = "import perdure, sys; print('cronsim' in sys.modules)"
    run = [sys.executable, "-c", code]
    found = subprocess.run(
        run, check=True, capture_output=True, text=True, cwd=tmp_path
    )  # our own code
    assert found.stdout.strip() == "False"
    assert Runtime.schedule.__doc__
