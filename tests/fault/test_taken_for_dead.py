"""A worker whose session was cut is taken for dead, while it lives and sends.

Its run is taken over before its lease has ended. It hears late that its intent is written, as its
own watch over the lease says nothing of that, and sends. So whoever took the run over waits until
that lease has surely ended before a person is asked, who would say, rightly at that time, that it
did not happen.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import END, START, Context, Graph, Runtime, WorkerSettings, effect
from perdure.ids import WorkerId
from tests.fault import proxy as proxies
from tests.fault.proxy import Proxy, Rule

pytestmark = [pytest.mark.fault, pytest.mark.timeout(60)]

SETTINGS = WorkerSettings(lease_ttl_s=6.0, heartbeat_s=3.0, drain_window_s=2.0, concurrency=1)
sent: list[str] = []


@dataclass
class Bill:
    paid: str = ""


bill = Graph(Bill, name="bill")


@effect
async def pay(label: str) -> str:
    sent.append(label)
    return label


@bill.node
async def settle(_state: Bill, ctx: Context) -> dict[str, Any]:
    return {"paid": await ctx.call(pay, "rent")}


bill.edge(START, settle)
bill.edge(settle, END)


async def first_effect(runtime: Runtime, state: str) -> Any:
    async with asyncio.timeout(10):
        while not (found := await runtime.effects(state)):  # noqa: ASYNC110  # the store tells
            await asyncio.sleep(0.02)
    return found[0]


async def test_late_answer_to_an_intent(postgres, schema, monkeypatch):
    monkeypatch.setattr(proxies, "DELAY_S", 2.0)
    sent.clear()
    direct = postgres.url(schema)
    async with Proxy(postgres.port) as proxy:
        far = postgres.url(
            schema, over_tcp=True, port=str(proxy.port), sslmode="disable", gssencmode="disable"
        )
        async with (
            Runtime.open(direct, graphs=[bill], worker=False) as person,
            Runtime.open(far, graphs=[bill], worker=SETTINGS) as holder,
        ):
            proxy.rules.append(Rule("commit_frames(", "delay", 9))
            run = await person.start(bill, {})
            intended = await first_effect(person, "intended")
            assert sent == []  # its answer is on the way
            worker_id = WorkerId(holder.engine.worker_id)
            await person.engine.store._drop_workers([worker_id], is_proven=False)  # type: ignore[attr-defined]
            async with Runtime.open(direct, graphs=[bill], worker=SETTINGS):
                await first_effect(person, "uncertain")
                await person.resolve(intended.id, happened=bool(sent), by="person")
                await (await person.get(run.id)).result(timeout=20)
                await asyncio.sleep(2.5)
    assert sent == ["rent"]
