"""Real sandboxes of this host. Where it can make none, everything here is skipped, and says so."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandbox, IsolatedSandboxes, Ran


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
