"""A deploy under faults: workers of two versions at once, then of the new one; runs are moved."""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from perdure import START, Absent, Context, Found, Graph, Retry, WorkerSettings, add, append, effect
from perdure.codec import decode_record, split_frame
from perdure.model import RunStatus
from perdure.model import records as rec
from perdure.testing.simulator import Faults, Simulation

SEEDS = int(os.environ.get("SIM_SEEDS", "16"))
ORDERS = 4


@dataclass
class Old:
    name: str = ""
    amount: int = 0
    total: Annotated[int, add] = 0
    receipts: Annotated[list[str], append] = field(default_factory=list)


@dataclass
class New:
    name: str = ""
    cents: int = 0
    total: Annotated[int, add] = 0
    receipts: Annotated[list[str], append] = field(default_factory=list)
    currency: str = "?"


def graph_of(version, acts):
    keyed, looked_up = acts
    graph = Graph(Old if version == 1 else New, name="orders", version=version)
    names = ("reserve", "charge", "ship") if version == 1 else ("reserve", "bill", "ship")

    async def reserve(state, ctx: Context):
        return {"receipts": [await ctx.call(keyed, f"reserve {state.name}")], "total": 1}

    async def charge(state, ctx: Context):
        await ctx.call(looked_up, f"hold {state.name}")
        await ctx.receive("paid")
        receipt = await ctx.call(looked_up, f"charge {state.name}")
        return {"receipts": [receipt], "total": 1}

    async def ship(state, ctx: Context):
        await ctx.sleep(3)
        return {"receipts": [await ctx.call(keyed, f"ship {state.name}")], "total": 1}

    before = START
    for name, function in zip(names, (reserve, charge, ship), strict=True):
        graph.node(name=name)(function)
        graph.edge(before, name)
        before = name
    if version == 2:

        @graph.migration(1, 2, nodes={"charge": "bill"})
        def to_cents(state):
            state["cents"] = state.pop("amount", 0) * 100
            return {**state, "currency": "EUR"}

    return graph


class Deploy:
    """Orders of v1 are under way while v1 is replaced by v2."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3)

    def __init__(self):
        self.is_deployed = False
        self.draining = []

    def graphs(self, outside):
        patient = Retry(max_attempts=200, base_s=0.1, cap_s=2.0)

        @effect(kind="keyed", retry=patient, name="deploy.keyed")
        async def keyed(label: str, *, idempotency_key: str) -> str:
            return await outside.act(label, idempotency_key, deduplicates=True)

        async def reconcile(request, _key):
            found = await outside.find(request.args[0])
            return Absent() if found is None else Found(found)

        @effect(kind="lookup", retry=patient, reconcile=reconcile, name="deploy.lookup")
        async def looked_up(label: str, *, idempotency_key: str) -> str:
            return await outside.act(label, idempotency_key)

        acts = (keyed, looked_up)
        return [graph_of(1, acts), graph_of(2, acts)]

    async def play(self, stage):
        older, newer = stage.graphs
        works = [self._order(stage, older, number) for number in range(ORDERS)]
        works.append(self._order(stage, newer, ORDERS, delay_s=8.0))
        results = await stage.together(self._deploy(stage), *works)
        return dict(results[1:])

    async def _deploy(self, stage):
        """New hosts are of v2 from now on; later, those of v1 drain."""
        await stage.pause(6)
        self.is_deployed = True
        for _ in range(100):  # also those that came meanwhile
            for host in stage.workers():
                is_old = ("orders", 1) in host.runtime.engine.graphs()
                if is_old and not host.is_gone and not host.runtime.worker.is_draining:
                    closing = asyncio.ensure_future(host.do(host.runtime.close(window_s=2.0)))
                    closing.add_done_callback(lambda task: task.cancelled() or task.exception())
                    self.draining.append(closing)
                    await stage.pause(4)
            await stage.sleep(1)

    async def _order(self, stage, graph, number, delay_s=0.0):
        await stage.sleep(delay_s)
        await stage.pause(4)
        name = f"o{number}"
        money = {"amount": number} if graph.version == 1 else {"cents": number * 100}
        given = {"name": name, **money}
        thread = f"t{number % 2}"
        run = await stage.insist(lambda: stage.runtime.start(graph, given, thread=thread, key=name))
        await stage.pause(15)
        await stage.insist(lambda: run.signal("paid", by="bank"))
        state = await stage.result(run)
        cents = state.cents if isinstance(state, New) else state.amount * 100
        return name, (state.name, cents, state.receipts.count(f"did ship {name}"))


class DeploySimulation(Simulation):
    """Hosts that come before the deploy have v1, later ones v2; the desk knows both."""

    def graphs_on(self, name):
        if name == "desk":
            return self.graphs
        return self.graphs[1:] if self.scenario.is_deployed else self.graphs[:1]


def played(seed, settings=None):
    simulation = DeploySimulation(seed, scenario=Deploy(), settings=settings)
    return simulation, asyncio.run(simulation.run())


def moves(simulation):
    tables = simulation.truth.tables
    rows = list(tables.runs.values())
    assert {row.status for row in rows} == {RunStatus.SUCCEEDED}
    records = [
        decode_record(encoded)
        for row in rows
        for frame in tables.frames[row.run_id]
        for encoded in split_frame(frame.body)
    ]
    return [record for record in records if isinstance(record, rec.VersionMoved)]


@pytest.mark.timeout(120)
def test_every_rule_holds_while_versions_change():
    expected = played(0, Faults.none())[1].results
    assert expected["o3"] == ("o3", 300, 1)
    moved = 0
    for seed in range(SEEDS):
        simulation, report = played(seed)
        assert report.results == expected, f"seed {seed}"
        found = moves(simulation)
        moved += len(found)
        runs = [record for record in found if record.from_version == 1]
        assert len(found) == len(runs)
    assert moved > SEEDS, "runs are really moved"


def test_same_seed_same_history():
    assert played(5)[1].digest == played(5)[1].digest
