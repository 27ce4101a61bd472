"""A sealed store keeps every rule that the store below it keeps."""

from collections.abc import Callable

import pytest

from perdure.clock import system_services
from perdure.ids import RunId
from perdure.sealing import LocalKeys, sealed
from perdure.store.api import Store
from tests.store import test_memory, test_postgres, test_sqlite


class OverStore:
    """The suite of a store, over that store sealed: its back doors lead below."""

    @pytest.fixture
    def make_store(self, make_plain) -> Callable[[], Store]:
        def make() -> Store:
            services = system_services()
            keys = LocalKeys("test keys", [("k1", bytes([1]) * 32)], services.entropy)
            return sealed(make_plain(), keys, services)

        return make

    @pytest.fixture
    def crash_url(self) -> None:
        """The writer that is killed has no keys."""

    # They are about what lies below: keys by hand, and bytes in plain.
    test_a_start_is_sealed_by_the_newest_key = None
    test_the_store_forgets = None

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        await super().lose_frame(store.inner, run_id, first_seq)

    async def put_body(self, store: Store, run_id: str, first_seq: int, body: bytes) -> None:
        await super().put_body(store.inner, run_id, first_seq, body)


class TestSealedMemoryStore(OverStore, test_memory.TestMemoryStore):
    make_plain = test_memory.TestMemoryStore.make_store


class TestSealedSqliteStore(OverStore, test_sqlite.TestSqliteStore):
    make_plain = test_sqlite.TestSqliteStore.make_store


class TestSealedPostgresStore(OverStore, test_postgres.TestPostgresStore):
    make_plain = test_postgres.TestPostgresStore.make_store
