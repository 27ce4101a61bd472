"""An agent whose worker is killed finds everything again; `make recovery` does it at length."""

import asyncio

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes
from tests.fault import recovery

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


def able(folder):
    backend = IsolatedSandboxes(folder)
    try:
        asyncio.run(backend.capabilities())
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()


def test_all_of_it_is_there_after_each_kill(tmp_path, record_property):
    able(tmp_path / "able")
    folder = tmp_path / "w"
    folder.mkdir()
    found = recovery.compare(folder, count=25, kills=4, seed=11, policies=["chat", "full"])
    record_property("figure", f"recovery: {found}")
    assert found["full"]["equal"] == 25
    assert found["full"]["kills"] >= 3
    assert found["chat"]["equal"] < 25, "else the comparison shows nothing"


def test_all_of_it_is_there_where_processes_live_on(tmp_path, record_property):
    """What is compared is an agent in whose sandbox nothing lives between commands."""
    able(tmp_path / "able")
    folder = tmp_path / "w"
    folder.mkdir()
    found = recovery.compare(folder, count=15, kills=3, seed=12, policies=["live"])
    record_property("figure", f"recovery: {found}")
    assert found["live"]["equal"] == 15
    assert found["live"]["kills"] >= 2


def test_turns_are_the_same_again():
    assert recovery.turns(50, 3) == recovery.turns(50, 3)
    assert len({*recovery.turns(300, 1)}) > 150
