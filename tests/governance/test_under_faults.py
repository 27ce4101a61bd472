"""What crashes, takeovers and outages leave behind is never called damage; nor is PostgreSQL's."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from perdure import Runtime
from perdure.governance import check, export, verify
from perdure.testing.simulator import Simulation
from perdure.testing.simulator._seeds import undisturbed
from tests.governance.conftest import ended, graph
from tests.governance.test_verify import codes

SEEDS = int(os.environ.get("AUDIT_SEEDS", "12"))


async def audited(seed):
    simulation = Simulation(seed)
    await simulation.run()
    await simulation.truth.open()
    runtime = SimpleNamespace(engine=SimpleNamespace(store=simulation.truth))
    return await verify(runtime)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", range(3))
def test_no_seed_of_the_simulator_is_called_damaged(block):
    undisturbed()
    anchored = effects = 0
    for seed in range(block, SEEDS, 3):
        report = asyncio.run(audited(seed))
        assert report.findings == [], f"seed {seed}"
        assert (report.unsettled, report.untimed, report.unanchored) == (0, 0, 0)
        anchored += report.anchored
        effects += report.effects
    assert anchored
    assert effects


@pytest.mark.timeout(60)
async def test_on_postgresql(postgres, schema, tmp_path):
    url = postgres.url(schema)
    async with Runtime.open(url, graphs=[graph]) as runtime:
        ids = [await ended(runtime, thread="t", order_id=f"o{n}") for n in range(3)]
        ids.append(await ended(runtime, thread="t", order_id="refused"))
        await ended(runtime, thread="u", order_id="a", amount=150)
        report = await verify(runtime)
        assert report.findings == []
        assert (report.runs, report.anchored, report.asks) == (5, 3, 1)
        await export(runtime, tmp_path / "old")
        assert check(tmp_path / "old").report.findings == []
        frames = f"{schema}.frames"
        postgres.query(f"UPDATE {frames} SET at_us = at_us + 1 WHERE run_id = '{ids[0]}'")
        postgres.query(f"DELETE FROM {frames} WHERE run_id = '{ids[1]}' AND first_seq = 2")
        postgres.query(f"UPDATE {schema}.effects SET state = 'confirmed' WHERE run_id = '{ids[3]}'")
        report = await verify(runtime)
        assert codes(report) == ["effect_differs", "frame_changed", "records_missing"]
        await export(runtime, tmp_path / "new")
        found = check(tmp_path / "new", since=tmp_path / "old")
        assert "history_changed" in codes(found.report)
        assert found.grown == 3
