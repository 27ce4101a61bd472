"""What a dry run of a migration foretells, with what other runs have done."""

import pytest

from perdure import END, START, Graph, RunStatus
from perdure.engine.survey import Fate, survey_runs
from tests.engine.bills import SENT, New, deployed, pay, to_cents, until
from tests.engine.test_migrations import paying


@pytest.fixture(autouse=True)
def _nothing_sent():
    SENT.clear()


def paying_extra():
    """Return v2 of `paying`, whose node first does something under a business key."""
    graph = Graph(New, name="bills", version=2)

    @graph.node
    async def pay_it(state, ctx):
        extra = await ctx.call(pay, "extra", key="extra of all")
        receipt = await ctx.call(pay, str(state.cents // 100))
        await ctx.ask("Fine?", schema=bool)
        return {"notes": [extra, receipt, await ctx.call(pay, "tip")]}

    graph.edge(START, "pay_it")
    graph.edge("pay_it", END)
    graph.migration(1, 2)(to_cents)
    return graph


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_dry_run_knows_of_business_keys_of_others(clock, open_workers, is_held):
    """What another run has done under the key is not sent, so nothing is held against it."""
    async with clock.autojump():
        older = paying(1, lambda state: str(state.amount))
        runtime, run = await deployed(clock, open_workers, paying_extra(), older)
        if is_held:
            other = await runtime.start("bills", {"cents": 900}, thread="u")
            await until(clock, other, RunStatus.WAITING)
        plan = runtime.engine.plan_of("bills")
        found = {each.run_id: each async for each in survey_runs(runtime.engine, plan)}
        old_ask = next(ask for ask in await runtime.asks() if ask.run_id == run.id)
        await runtime.answer(old_ask.id, True, by="ada")
        row = await until(clock, run, RunStatus.SUCCEEDED, RunStatus.NEEDS_DECISION)
        told = found[run.id]
        if is_held:
            assert (told.fate, told.reason) == (Fate.MIGRATES, "")
            assert row.status is RunStatus.SUCCEEDED
        else:
            assert (told.fate, row.failure.type) == (Fate.PARKS, "ReplayDiverged")
            assert "would send effect pay with ['extra']" in told.reason
