"""A runtime on each store, for tests of the engine; several that share one, on virtual time."""

from itertools import count

import pytest

from perdure import Runtime, WorkerSettings
from perdure.testing.clock import VirtualClock, virtual_services

_numbers = count()


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """Return the URL of a fresh store of each kind."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def terms():
    """Return what every runtime of a test is opened with beside its own options: here nothing."""
    return {}


@pytest.fixture
async def open_runtime(url, terms):
    """Return a function that opens a runtime with the given graphs; all are closed at the end."""
    opened = []

    async def open_one(*graphs, **options):
        given = {**terms, **options}
        runtime = Runtime.open(given.pop("url", url), graphs=graphs, **given)
        await runtime.__aenter__()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        await runtime.close(window_s=1.0)


@pytest.fixture
def clock():
    """Return a clock that stands still until the test moves it."""
    return VirtualClock()


@pytest.fixture
async def open_workers(clock, terms):
    """Return a function that opens runtimes with a worker each that share one store in memory."""
    opened = []
    url = f"memory://workers-{next(_numbers)}"

    async def open_many(number, *graphs, worker=True, **settings):
        for lane in range(len(opened), len(opened) + number):
            runtime = Runtime.open(
                url,
                graphs,
                worker=WorkerSettings(**settings) if worker else False,
                services=virtual_services(lane, clock=clock, lane=lane),
                **terms,
            )
            await runtime.__aenter__()
            opened.append(runtime)
        return opened[-number:]

    yield open_many
    for runtime in opened:
        await runtime.close(window_s=0.0)
