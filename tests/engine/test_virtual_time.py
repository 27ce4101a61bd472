"""The unchanged engine on virtual time: waits of years, leases that end, workers that vanish."""

import datetime as dt
import itertools
from functools import partial

import pytest

from perdure import (
    AskExpired,
    ReceiveTimedOut,
    Retry,
    Runtime,
    WorkerSettings,
    effect,
)
from perdure.testing import virtual_services
from tests.engine.one_node import one_node as one_node_of

pytestmark = pytest.mark.timeout(90)  # much work, where others work too

one_node = partial(one_node_of, name="virtual")


async def test_a_sleep_of_years_takes_no_time():
    services = virtual_services(1)

    async def body(ctx):
        before = ctx.now()
        await ctx.sleep(dt.timedelta(days=3 * 365))
        await ctx.sleep(0.05)
        return (services.clock.now_us() / 1e6 - before.timestamp()) / 86400

    async with (
        services.clock.autojump(),
        Runtime.open(
            "memory://",
            graphs=[one_node(body)],
            services=services,
            worker=WorkerSettings(heartbeat_s=86400, lease_ttl_s=3 * 86400),
        ) as runtime,
    ):
        run = await runtime.start("virtual", {})
        result = await run.result()
        assert 3 * 365 <= float(result.results[0]) < 3 * 365 + 0.001


async def test_an_ask_expires_after_its_month():
    services = virtual_services(2)

    async def body(ctx):
        try:
            await ctx.ask("Still there?", expires_in=dt.timedelta(days=30))
        except AskExpired:
            return "expired"

    async with (
        services.clock.autojump(),
        Runtime.open(
            "memory://",
            graphs=[one_node(body)],
            services=services,
            worker=WorkerSettings(heartbeat_s=600, lease_ttl_s=1800),
        ) as runtime,
    ):
        assert (await (await runtime.start("virtual", {})).result()).results == ["expired"]


async def test_backoff_counts_attempts_and_never_exceeds_its_cap():
    services = virtual_services(3)
    times = []

    @effect(kind="keyed", retry=Retry(max_attempts=12, base_s=1, cap_s=3600))
    async def flaky(*, idempotency_key: str) -> str:
        times.append(services.clock.monotonic_s())
        if len(times) < 12:
            raise ConnectionError
        return "ok"

    async with (
        services.clock.autojump(),
        Runtime.open(
            "memory://", graphs=[one_node(lambda ctx: ctx.call(flaky))], services=services
        ) as runtime,
    ):
        assert (await (await runtime.start("virtual", {})).result()).results == ["ok"]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap <= min(3600, 2.0**n) + 1.1 for n, gap in enumerate(gaps))
    assert sum(gaps) > 100


async def test_a_vanished_worker_is_replaced_when_its_lease_ends(tmp_path):
    services = virtual_services(4)
    sent = []

    @effect(kind="keyed")
    async def send(*, idempotency_key: str) -> str:
        sent.append(services.clock.monotonic_s())
        if len(sent) == 1:
            await services.clock.sleep(10_000)
        return "sent"

    graph = one_node(lambda ctx: ctx.call(send))
    async with services.clock.autojump():
        # Of this test alone: what a vanished worker leaves is there for the next of the same name.
        url = f"memory://{tmp_path.name}"
        first = Runtime.open(url, graphs=[graph], services=services)
        await first.__aenter__()
        run = await first.start(graph, {})
        while not sent:
            await services.clock.sleep(0.01)
        # As if the machine were gone: nothing is written, released or signed off.
        for loop in first.worker._loops:
            loop.cancel()
        for _row, execution, _task in first.worker._held.values():
            execution.lost()
        async with Runtime.open(url, graphs=[graph], services=services) as second:
            result = await (await second.get(run.id)).result()
            assert result.results == ["sent"]
        assert len(sent) == 2
        assert 10 <= sent[1] - sent[0] <= 17


async def test_a_replay_takes_the_recorded_times_and_no_time_of_its_own():
    services = virtual_services(7)
    calls = []

    @effect(kind="pure", retry=Retry(max_attempts=3, base_s=3600, cap_s=7200))
    async def flaky():
        calls.append(services.clock.monotonic_s())
        if len(calls) < 3:
            raise ConnectionError
        return "third"

    async def body(ctx):
        begun = ctx.now()
        await ctx.sleep(dt.timedelta(weeks=6))
        try:
            await ctx.receive("never", timeout=dt.timedelta(days=30))
        except ReceiveTimedOut:
            return f"{await ctx.call(flaky)} after {(ctx.now() - begun).days} days"

    async with Runtime.open(
        "memory://",
        graphs=[one_node(body)],
        services=services,
        worker=WorkerSettings(heartbeat_s=86400, lease_ttl_s=3 * 86400),
    ) as runtime:
        run = await runtime.start("virtual", {})
        async with services.clock.autojump():
            assert (await run.result()).results == ["third after 72 days"]
        before_s = services.clock.monotonic_s()
        found = await runtime.replay(run.id)
        assert [each.message for each in found.divergences] == []
        assert found.served == {"effects": 1, "signals": 1, "timers": 1, "times": 2}
        assert (services.clock.monotonic_s(), len(calls)) == (before_s, 3)
