"""The PostgreSQL store keeps every rule."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.ids import RunId
from perdure.store.api import CROSS_PROCESS, DURABLE, LIVENESS, REMOTE, TRANSACTION, Store
from perdure.store.postgres import PostgresStore
from perdure.testing.conformance import StoreConformance
from perdure.testing.postgres import PostgresServer

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
    def reaching_for(self, request, postgres, emptied_schema):
        if not request.function.__qualname__.startswith("TransactionRules."):
            yield
            return
        schema = emptied_schema
        postgres.query(
            "CREATE OR REPLACE FUNCTION reach() RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
            + "UPDATE SCHEMA.runs SET token = 9; END $$".replace("SCHEMA", schema)
        )
        self.reaching = [text.replace("SCHEMA", schema) for text in REACHING]
        yield
        postgres.query("DROP TABLE IF EXISTS orders")

    @pytest.fixture
    def make_store(self, postgres, emptied_schema) -> Callable[[], Store]:
        return lambda: PostgresStore(postgres.url(emptied_schema), system_services())

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        assert isinstance(store, PostgresStore)
        sql = "DELETE FROM @.frames WHERE run_id = %s AND first_seq = %s"
        await store._call("lose", sql, (run_id, first_seq))

    async def put_body(self, store: Store, run_id: str, first_seq: int, body: bytes) -> None:
        sql = "UPDATE @.frames SET body = %s WHERE run_id = %s AND first_seq = %s"
        await store._call("put", sql, (body, run_id, first_seq))

    @pytest.fixture
    def crash_url(self, postgres, emptied_schema) -> str:
        return postgres.url(emptied_schema)


OLDER = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.skipif(
    not OLDER.exists(), reason="PostgreSQL 15 is not installed: apt-get install postgresql-15"
)
class TestOlderPostgresStore(TestPostgresStore):
    """The same on the oldest PostgreSQL that is supported."""

    @pytest.fixture
    def postgres(self, older_postgres):
        return older_postgres


@pytest.fixture(scope="session")
def older_postgres() -> Iterator[PostgresServer]:
    with PostgresServer(programs=OLDER) as server:
        assert server.query("SHOW server_version")[0][0].startswith("15.")
        yield server
