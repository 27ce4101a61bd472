"""The audit over PostgreSQL: rows that can't be read there are told of, too, and stop nothing."""

import pytest

from perdure import Runtime
from perdure.governance import verify
from tests.governance.conftest import ended, graph

pytestmark = pytest.mark.timeout(60)


async def test_rows_that_can_not_be_read_stop_nothing(postgres, schema):
    async with Runtime.open(postgres.url(schema), [graph]) as runtime:
        runs = [await ended(runtime, thread="t", order_id=name) for name in ("a", "b", "c")]
        other = await ended(runtime, thread="u", order_id="d")
        assert (await verify(runtime)).findings == []
        for run_id, column in ((runs[1], "failure"), (other, "waits")):
            postgres.query(
                f"UPDATE {schema}.runs SET {column} = 'none'::bytea WHERE run_id = %s",
                run_id,
            )
        postgres.query(f"UPDATE {schema}.threads SET checkpoint = 1 WHERE thread = %s", "t")
        report = await verify(runtime)
        found = {(each.code, each.thread, each.run_id) for each in report.findings}
        assert found == {
            ("row_unreadable", "t", runs[1]),
            ("row_unreadable", "u", other),
            ("thread_differs", "t", ""),
        }
        assert report.runs == 4
        alone = await verify(runtime, run_id=other)
        assert [each.code for each in alone.findings] == ["row_unreadable"]
