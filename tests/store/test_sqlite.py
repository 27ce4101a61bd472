"""The SQLite store keeps every rule."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.ids import RunId
from perdure.store.api import CROSS_PROCESS, DURABLE, LIVENESS, TRANSACTION, Store
from perdure.store.sqlite import SqliteStore
from perdure.testing.conformance import StoreConformance
from tests.beside import beside


class TestSqliteStore(StoreConformance):
    capabilities = frozenset({TRANSACTION, LIVENESS, CROSS_PROCESS, DURABLE})

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: SqliteStore(f"sqlite:///{tmp_path}/store.db", system_services())

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        assert isinstance(store, SqliteStore)
        db = beside(store._options.path)
        db.execute(
            "DELETE FROM perdure_frames WHERE first_seq = ? "
            "AND run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?)",
            (first_seq, run_id),
        )
        db.close()

    async def put_body(self, store: Store, run_id: str, first_seq: int, body: bytes) -> None:
        db = beside(store._options.path)
        db.execute(
            "UPDATE perdure_frames SET body = ? WHERE first_seq = ? "
            "AND run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?)",
            (body, first_seq, run_id),
        )
        db.close()

    @pytest.fixture
    def crash_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"
