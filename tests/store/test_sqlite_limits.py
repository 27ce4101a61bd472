"""Limits in SQLite: a backlog is looked at by the heads of its lines, with the same outcome."""

import random

import apsw
import pytest

from perdure.clock import system_services
from perdure.core.room import Room
from perdure.model import LimitRow
from perdure.store import _rules as rules
from perdure.store.sqlite import SqliteStore, _orders, _runs
from perdure.store.sqlite._due import DueWithin
from perdure.testing import _store_kit as kit
from tests.beside import beside

GRAPHS = (("g", 1), ("h", 1))


@pytest.mark.parametrize("seed", range(20))
async def test_backlog_gives_the_same_runs(tmp_path, seed):
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    store = SqliteStore(f"sqlite:///{tmp_path}/store.db", system_services())
    await store.open()
    await store.start([
        kit.new_run(
            f"{n:02}",
            graph=rng.choice("gh"),
            tenant=rng.choice("tuv"),
            priority=rng.choice((0, 0, 1)),
            created_at_us=kit.T0 + n,
        )
        for n in range(40)
    ])  # fmt: skip
    await store.claim("w", GRAPHS, now_us=kit.T0 + 500, lease_until_us=kit.FAR, limit=6)
    for tenant, graph in (("*", ""), ("", "g"), ("t", "g"), ("u", "")):
        if rng.random() < 0.7:
            limit = LimitRow(
                tenant=tenant,
                graph=graph,
                concurrency=rng.choice((None, 1, 2, 4)),
                rate=rng.choice((None, 1, 3)),
                period_us=1000,
            )
            await store.set_limit(limit)
    await store.close()
    db = beside(tmp_path / "store.db")
    found = []
    for window in (1, 1000):
        db.execute("SAVEPOINT look")
        due = DueWithin(db, _runs.graphs_json(GRAPHS), now_us=kit.T0 + 500, window=window)
        assert (due._rows is None) is (window == 1)
        found.append(_taken(db, due))
        db.execute("ROLLBACK TO look")
        db.execute("RELEASE look")
    assert found[0] == found[1]


def _taken(db: apsw.Connection, due: DueWithin) -> list[str]:
    """Return which runs a claim of eight would take."""

    def take(candidate: rules.Candidate) -> str:
        # The heads are read from the table each time: there, what was taken is not due any more.
        due.is_taken(candidate.number)
        sql = "UPDATE perdure_runs SET ready_at_us = ? WHERE run_no = ? RETURNING run_id"
        return db.execute(sql, (kit.FAR, candidate.number)).get

    return rules.claim_within(Room(_orders.read_limits(db), kit.T0), due.find, take, 8)
