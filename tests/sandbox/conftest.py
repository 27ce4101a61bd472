"""Real sandboxes of this host. Where it can make none, everything here is skipped, and says so."""

import asyncio
import functools
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandbox, IsolatedSandboxes, Ran
from perdure.sandbox.export import _base
from tests.sandbox.trees import KEY

TOLD = _base._told  # what the host's files are, looked at once


@pytest.fixture(scope="session")
def is_able(tmp_path_factory) -> str:
    """Return the driver that works here, or skip."""
    backend = IsolatedSandboxes(tmp_path_factory.mktemp("able"))

    async def ask() -> str:
        return (await backend.capabilities()).driver

    try:
        return asyncio.run(ask())
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()


@pytest.fixture(autouse=True)
def removed(tmp_path) -> Iterator[None]:
    """Remove what a test leaves: its trees may be deeper than what pytest can remove."""
    yield
    subprocess.run(["/bin/rm", "-rf", "--", str(tmp_path)], check=False)


@pytest.fixture
def backend(is_able, tmp_path) -> Iterator[IsolatedSandboxes]:
    backend = IsolatedSandboxes(tmp_path / "sandboxes")
    yield backend
    backend.close()


@pytest.fixture
def sandbox(backend) -> IsolatedSandbox:
    return backend.open("acme", "t-1")


@pytest.fixture
def shell(sandbox) -> Callable[..., Ran]:
    """Run a command in a sandbox of its own, from code that is not asynchronous."""

    def run(command, **kwargs) -> Ran:
        return asyncio.run(sandbox.run(command, **kwargs))

    return run


@pytest.fixture
def is_root() -> bool:
    return os.geteuid() == 0


@pytest.fixture
def hosts(is_able, tmp_path, monkeypatch) -> Iterator[Callable[..., IsolatedSandboxes]]:
    """Make backends of several hosts, by name, that export to one place with one key."""
    monkeypatch.setenv("EXPORT_KEY", KEY)
    monkeypatch.setattr(_base, "_told", _told_once)
    made: dict[str, IsolatedSandboxes] = {}

    def host(name: str, **settings) -> IsolatedSandboxes:
        if name not in made:
            place = {"export": (tmp_path / "objects").as_uri(), "keys": "env:EXPORT_KEY"}
            made[name] = IsolatedSandboxes(tmp_path / name, **{**place, **settings})
        return made[name]

    yield host
    for backend in made.values():
        backend.close()


@functools.cache
def _told_of_host(folder: str) -> list[bytes]:
    return list(TOLD(folder, with_content=False))


def _told_once(folder: str, *, with_content: bool):
    """Look at the host's own files once for all tests: they are large, and nobody changes them."""
    return TOLD(folder, with_content=True) if with_content else _told_of_host(folder)
