"""Runtimes for tests of agents, on a store in memory and on SQLite."""

import pytest

from perdure import Runtime
from perdure.testing.clock import VirtualClock, virtual_services


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
async def open_runtime(url):
    opened = []

    async def open_one(*agents, **options):
        graphs = [each.graph for each in agents]
        runtime = Runtime.open(options.pop("url", url), graphs=graphs, **options)
        await runtime.__aenter__()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        await runtime.close(window_s=1.0)


@pytest.fixture
async def on_virtual_time():
    """Return a function that opens a runtime in memory whose clock jumps to what it waits for."""
    opened = []

    async def open_one(*agents, **options):
        clock = VirtualClock()
        runtime = Runtime.open(
            "memory://",
            graphs=[each.graph for each in agents],
            services=virtual_services(1, clock=clock),
            **options,
        )
        await runtime.__aenter__()
        opened.append(runtime)
        return runtime, clock

    yield open_one
    for runtime in opened:
        await runtime.close(window_s=0.0)
