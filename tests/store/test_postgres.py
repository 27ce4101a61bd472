"""The PostgreSQL store keeps every rule."""

from collections.abc import Callable, Iterator

import pytest

from perdure.clock import system_services
from perdure.ids import RunId
from perdure.store.api import CROSS_PROCESS, DURABLE, LIVENESS, REMOTE, TRANSACTION, Store
from perdure.store.postgres import PostgresStore
from perdure.testing.conformance import StoreConformance


@pytest.fixture(autouse=True)
def _no_orders(postgres) -> Iterator[None]:
    yield
    postgres.query("DROP TABLE IF EXISTS orders")


REACHING = (
    "UPDATE SCHEMA.runs SET token = 9",
    'DELETE FROM "SCHEMA".frames',
    "SELECT * FROM  SCHEMA . runs",
    "SELECT reach()",
    "/* ; */ -- x\n ; COMMIT",
    "ROLLBACK",
    "savepoint x",
    "SET LOCAL perdure.guard = off",
    "SELECT set_config('perdure.guard', 'off', true)",
)


class TestPostgresStore(StoreConformance):
    capabilities = frozenset({TRANSACTION, LIVENESS, CROSS_PROCESS, DURABLE, REMOTE})

    placeholder = "%s"

    @pytest.fixture(autouse=True)
    def reaching_for(self, postgres, schema):
        postgres.query(
            "CREATE OR REPLACE FUNCTION reach() RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
            + "UPDATE SCHEMA.runs SET token = 9; END $$".replace("SCHEMA", schema)
        )
        self.reaching = [text.replace("SCHEMA", schema) for text in REACHING]

    @pytest.fixture
    def make_store(self, postgres, schema) -> Callable[[], Store]:
        return lambda: PostgresStore(postgres.url(schema), system_services())

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        assert isinstance(store, PostgresStore)
        sql = "DELETE FROM @.frames WHERE run_id = %s AND first_seq = %s"
        await store._call("lose", sql, (run_id, first_seq))
