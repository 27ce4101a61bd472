"""The memory store keeps every rule, and is shared by name."""

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from perdure.clock import system_services
from perdure.errors import SettingInvalid, UsageError
from perdure.ids import RunId
from perdure.store.api import Store
from perdure.store.memory import MemoryStore
from perdure.testing import _store_kit as kit
from perdure.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    capabilities = frozenset()

    @pytest.fixture
    def make_store(self) -> Callable[[], Store]:
        store = MemoryStore("memory://", system_services())
        return lambda: store

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        assert isinstance(store, MemoryStore)
        frames = store._tables.frames
        frames[run_id] = tuple(f for f in frames[run_id] if f.first_seq != first_seq)

    async def put_body(self, store: Store, run_id: str, first_seq: int, body: bytes) -> None:
        frames = store._tables.frames
        frames[run_id] = tuple(
            msgspec.structs.replace(f, body=body) if f.first_seq == first_seq else f
            for f in frames[run_id]
        )


async def test_named_stores_are_shared_and_private_ones_are_not():
    first, second = [MemoryStore("memory://shared-test", system_services()) for _ in range(2)]
    private = MemoryStore("memory://", system_services())
    for store in (first, second, private):
        await store.open()
    await second.wait_for_change(0.01)
    row = await kit.started(first, "a")
    assert await second.wait_for_change(5.0)
    assert await second.read_run(row.run_id) == row
    assert await private.read_run(row.run_id) is None


async def test_transactions_are_refused():
    store = MemoryStore("memory://", system_services())
    await store.open()
    with pytest.raises(UsageError):
        await store.transact(None, run_id=RunId("r_a"), token=1)


async def test_failed_operation_leaves_nothing(monkeypatch):
    def dies(name: str) -> None:
        if name == "store.append.during":
            raise RuntimeError(name)

    services = system_services()
    store = MemoryStore("memory://", dataclasses.replace(services, probe=dies))
    await store.open()
    row = await kit.taken(store, "a")
    with pytest.raises(RuntimeError):
        await store.append([kit.appended_to(row, kit.ended())])
    assert await store.read_run(row.run_id) == row
    assert len(await store.read_frames(row.run_id)) == 1


def test_url_with_more_than_a_name_is_refused():
    with pytest.raises(SettingInvalid):
        MemoryStore("memory://name/path", system_services())
