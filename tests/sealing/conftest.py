"""Keys for tests of encryption."""

import base64

import pytest

from perdure.clock import system_services
from perdure.sealing import LocalKeys
from tests.engine import conftest as of_engine


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

clock = of_engine.clock
open_runtime = of_engine.open_runtime
open_workers = of_engine.open_workers
url = of_engine.url


@pytest.fixture
def terms(spelled, monkeypatch):
    """Return what every runtime of a test is opened with: keys."""
    monkeypatch.setenv("KEYS_OF_TEST", spelled)
    return {"keys": "env:KEYS_OF_TEST"}
