"""Starts are refused where there is no room; what is under way goes on."""

import pytest

from perdure import Runtime
from perdure.errors import NotFound, QuotaExceeded, SettingInvalid, StoreFull
from perdure.governance import prune
from tests.fault.kept import graph, states_of


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}[request.param]


async def ran(runtime, todo, **where):
    return await (await runtime.start(graph, {"todo": todo}, **where)).result(timeout=20)


async def test_a_start_beyond_a_quota_is_refused(url, monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, [1, 2, 3, 4, 5], thread="t", tenant="acme")
        taken = (await runtime.engine.store.usage("acme")).total
        await runtime.set_quota(taken, tenant="acme")
        with pytest.raises(QuotaExceeded, match="perdure prune --tenant acme") as caught:
            await runtime.start(graph, {"todo": [1]}, thread="t", tenant="acme")
        assert caught.value.fields["bytes_max"] == taken
        with pytest.raises(QuotaExceeded):
            await runtime.fork("t", tenant="acme")
        assert len(await runtime.runs(tenant="acme")) == 1
        await ran(runtime, [1], tenant="other")
        [quota] = await runtime.quotas()
        assert (quota.tenant, quota.bytes_max, quota.usage.total) == ("acme", taken, taken)
        done = await prune(runtime, keep=1, tenant="acme")
        assert done.bytes > 0
        await ran(runtime, [1], thread="t", tenant="acme")
        await runtime.set_quota(1, tenant="acme")
        await runtime.remove_quota(tenant="acme")
        await ran(runtime, [1], thread="t", tenant="acme")
        with pytest.raises(NotFound):
            await runtime.remove_quota(tenant="acme")


async def test_a_quota_of_all_counts_everybody(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, [1], tenant="acme")
        await runtime.set_quota(100)
        for tenant in ("acme", "other"):
            with pytest.raises(QuotaExceeded, match="the store takes"):
                await runtime.start(graph, {"todo": [1]}, tenant=tenant)
        await runtime.remove_quota()
        await ran(runtime, [1], tenant="other")
        with pytest.raises(SettingInvalid):
            await runtime.set_quota(0)


async def test_what_is_under_way_goes_on(url):
    async with Runtime.open(url, [graph]) as runtime:
        run = await runtime.start(graph, {"todo": [1, 2, 3]}, thread="t")
        await runtime.set_quota(1)
        assert await run.result(timeout=20) == states_of([[1, 2, 3]])[-1]


async def test_a_full_disk_refuses_starts(tmp_path):
    reserve = 1 << 40  # MiB: more than there is
    async with Runtime.open(f"sqlite:///{tmp_path}/s.db?reserve_mb={reserve}", [graph]) as runtime:
        with pytest.raises(StoreFull, match="reserve_mb"):
            await runtime.start(graph, {"todo": [1]})
        assert await runtime.runs() == []


async def test_what_is_taken_is_measured_seldom(monkeypatch):
    """Once a minute: a start does not wait for it."""
    measured = []
    async with Runtime.open("memory://", [graph], worker=False) as runtime:
        store = runtime.engine.store
        usage = store.usage

        async def counted(tenant=None):
            measured.append(tenant)
            return await usage(tenant)

        monkeypatch.setattr(store, "usage", counted)
        await runtime.set_quota(1 << 40, tenant="default")
        for _ in range(20):
            await runtime.start(graph, {"todo": []})
        assert measured == ["default"]
