"""An agent on simulated machines and networks: what comes of it is what comes without faults."""

import pytest

from perdure import Retry, WorkerSettings
from perdure.agent import Agent, ScriptedModel, call, tool
from perdure.testing.simulator import play_seed

SEEDS = 12


class Shop:
    """An agent that looks something up, asks a person, and orders twice."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3)

    def graphs(self, outside):
        @tool(kind="pure", retry=Retry(max_attempts=50, base_s=0.1))
        async def price(article: str) -> int:
            """Look a price up."""
            await outside.sleep(0.5)
            return len(article)

        @tool(kind="keyed", retry=Retry(max_attempts=50, base_s=0.1))
        async def order(article: str, *, idempotency_key: str) -> str:
            """Order."""
            await outside.act(article, idempotency_key, deduplicates=True)
            return f"ordered {article}"

        steps = [
            [call("price", article="tea"), call("price", article="cups")],
            [call("order", article="tea"), call("order", article="cups"), call("nothing")],
            call("order", article="milk"),
            "All is ordered.",
        ]
        model = _Slow(steps, outside)
        return [Agent(name="shop", model=model, tools=[price, order]).graph]

    async def play(self, stage):
        await stage.pause(5)
        run = await stage.start(stage.graphs[0], {"prompt": "go"}, key="one", on_worker=True)
        state = await stage.result(run)
        said = [(each.role.value, each.text) for each in state.messages]
        return {"said": said, "answer": state.answer, "turns": state.turns}


class _Slow(ScriptedModel):
    def __init__(self, steps, outside):
        super().__init__(steps)
        self._outside = outside

    async def reply(self, messages, tools, *, on_chunk):
        await self._outside.sleep(1.0)
        return await super().reply(messages, tools, on_chunk=on_chunk)


@pytest.mark.timeout(180)
def test_faults_change_nothing():
    for seed in range(SEEDS):
        results = play_seed(seed, scenario=Shop).results
        assert results["answer"] == "All is ordered."
        assert results["turns"] == 4
        tools = [text for role, text in results["said"] if role == "tool"]
        assert tools[:4] == ["3", "4", "ordered tea", "ordered cups"]
