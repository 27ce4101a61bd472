"""What is kept of an encrypted store is what would be kept of a plain one."""

import pytest

from perdure import Runtime
from perdure.errors import HistoryPruned
from perdure.governance import prune, verify
from tests.fault.kept import graph, states_of
from tests.governance.test_prune import paying
from tests.sealing.conftest import local_keys

LINE = [[number] for number in range(9)]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}[request.param]


@pytest.fixture(autouse=True)
def many_copies(monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)


async def test_an_encrypted_store_is_pruned(url):
    async with Runtime.open(url, [graph, paying], keys=local_keys(1)) as runtime:
        for todo in LINE:
            await (await runtime.start(graph, {"todo": todo}, thread="t")).result(timeout=20)
        for _ in range(5):
            await (await runtime.start(paying, thread="p")).result(timeout=20)
        await runtime.tag("t", 2, "a secret name", by="ada")
        assert (await runtime.tags("t"))[0].name == "a secret name"
        stored = await runtime.engine.store.inner.find_tags("default", "t")
        assert "secret" not in str(stored)
        assert "ada" not in str(stored)
        done = await prune(runtime, keep=1)
        assert done.collected.pages > 0
        assert sum(each.effects for each in done.threads) > 0
        states = states_of(LINE)
        assert await runtime.state("t", at=2) == states[1]
        assert await runtime.state("t") == states[-1]
        with pytest.raises(HistoryPruned):
            await runtime.state("t", at=7)
        assert {each.result is None for each in await runtime.effects(state=None)} == {True, False}
        assert (await verify(runtime)).findings == []
        assert (await prune(runtime, keep=1)).bytes == 0
        assert await runtime.untag("t", "a secret name")
        assert not await runtime.untag("t", "a secret name")
        await prune(runtime, keep=1)
        assert await runtime.state("t") == states[-1]
