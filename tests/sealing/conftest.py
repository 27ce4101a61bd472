"""Keys for tests of encryption."""

import base64
from itertools import count

import pytest

from perdure import Runtime, WorkerSettings
from perdure.clock import system_services
from perdure.sealing import LocalKeys
from perdure.testing.clock import VirtualClock, virtual_services


def local_keys(*numbers: int) -> LocalKeys:
    """Return a provider of keys that are told by their numbers, the newest last."""
    keys = [(f"k{number}", bytes([number]) * 32) for number in numbers or (1,)]
    return LocalKeys("test keys", keys, system_services().entropy)


@pytest.fixture
def keys() -> LocalKeys:
    return local_keys(1)


@pytest.fixture
def spelled() -> str:
    return f"k1:{base64.b64encode(bytes([1]) * 32).decode()}"


# -- the engine on encrypted stores, with the fixtures of its own tests ----------------------------

_numbers = count()


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """Return the URL of a fresh store of each kind."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
async def open_runtime(url, spelled, monkeypatch):
    """Return a function that opens a runtime on an encrypted store; all are closed at the end."""
    monkeypatch.setenv("KEYS_OF_TEST", spelled)
    opened = []

    async def open_one(*graphs, **options):
        given = {"keys": "env:KEYS_OF_TEST"} | options
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
async def open_workers(clock):
    """Return a function that opens runtimes with a worker each that share one encrypted store."""
    opened = []
    url = f"memory://sealed-workers-{next(_numbers)}"

    async def open_many(number, *graphs, worker=True, **settings):
        for lane in range(len(opened), len(opened) + number):
            runtime = Runtime.open(
                url,
                graphs,
                worker=WorkerSettings(**settings) if worker else False,
                keys=local_keys(1),
                services=virtual_services(lane, clock=clock, lane=lane),
            )
            await runtime.__aenter__()
            opened.append(runtime)
        return opened[-number:]

    yield open_many
    for runtime in opened:
        await runtime.close(window_s=0.0)
