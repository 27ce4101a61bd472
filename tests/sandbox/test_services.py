"""Services are up during every command, wherever the files are restored, and never in between."""

import asyncio
import json

import pytest

from perdure.errors import UsageError
from perdure.sandbox import Limits
from tests.sandbox.long import LONG, alive

pytestmark = pytest.mark.timeout(120)

SERVER = "/usr/bin/python3 -m http.server 8123 --directory /workspace/site"
GET = [
    "/usr/bin/python3",
    "-c",
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/page').read().decode())",
]


async def with_page(sandbox, text):
    await sandbox.write("/workspace/site/page", text.encode())


async def test_it_answers_at_every_command(sandbox):
    await with_page(sandbox, "one")
    state = await sandbox.start_service("web", SERVER, port=8123)
    assert (state.name, state.is_up) == ("web", True)
    for _ in range(2):
        ran = await sandbox.run(GET)
        assert (ran.output, ran.left) == ("one\n", ())
        assert [(each.name, each.is_up) for each in ran.services] == [("web", True)]
    assert "GET /page" in (await sandbox.read("/var/log/services/web.log")).decode()


async def test_it_goes_with_snapshots_forks_and_rollbacks(backend, sandbox):
    before = await sandbox.take()
    await with_page(sandbox, "one")
    await sandbox.start_service("web", SERVER, port=8123)
    taken = await sandbox.take()
    fork = backend.open("acme", "fork")
    await fork.restore(taken)
    await with_page(fork, "two")
    assert (await fork.run(GET)).output == "two\n"
    assert (await sandbox.run(GET)).output == "one\n"
    await sandbox.restore(before)
    assert await sandbox.services() == []
    assert (await sandbox.run(GET)).code == 1
    await sandbox.restore(taken)
    assert (await sandbox.run(GET)).output == "one\n"


async def test_one_that_can_not_start_is_told_with_its_log_and_not_kept(sandbox):
    state = await sandbox.start_service("bad", "sh -c 'echo no such thing; exit 3'", port=8123)
    assert not state.is_up
    assert "ended with code 3: no such thing" in state.reason
    state = await sandbox.start_service("deaf", "sleep 60", port=8123, ready_s=0.3)
    assert "nothing answers at port 8123 after 0.3 s" in state.reason
    assert await sandbox.services() == []


async def test_one_that_fails_later_is_told_at_the_command(sandbox):
    await with_page(sandbox, "one")
    await sandbox.start_service("web", SERVER, port=8123)
    await sandbox.run("rm -rf /workspace/site")
    ran = await sandbox.run("echo works")
    assert ran.output == "works\n"
    [state] = ran.services
    assert state.is_up or "ended with code" in state.reason


async def test_one_is_replaced_and_stopped(sandbox):
    await with_page(sandbox, "one")
    await sandbox.start_service("web", SERVER, port=8123)
    await sandbox.start_service("web", SERVER.replace("8123", "8124"), port=8124)
    assert [each["port"] for each in await sandbox.services()] == [8124]
    assert (await sandbox.run(GET)).code == 1
    assert await sandbox.stop_service("web")
    assert not await sandbox.stop_service("web")
    assert (await sandbox.run("true")).services == ()


async def test_nothing_is_alive_in_between(sandbox):
    assert (await sandbox.start_service("long", f"exec sleep {LONG}")).is_up
    ran = await sandbox.run("sleep 61 & until grep -aq ^sleep /proc/$!/cmdline; do :; done")
    assert ran.left == ("sleep 61",)
    for _ in range(200):
        if not alive():
            break
        await asyncio.sleep(0.01)
    assert alive() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 60_000,
        b"{}",
        b'"x"',
        b"[1, null, {}]",
        b'[{"name": "../../x", "argv": ["true"], "env": {}, "cwd": "/", "port": 0, "ready_s": 1}]',
        b'[{"name": "a", "argv": ["tr\\u0000ue"], "env": {}, "cwd": "/", "port": 0, "ready_s": 1}]',
        b'[{"name": "a", "argv": [], "env": {}, "cwd": "/", "port": 0, "ready_s": 1}]',
        b'[{"name": "a", "argv": ["x"], "env": {"a": 1}, "cwd": "/", "port": 0, "ready_s": 1}]',
        b'[{"name": "a", "argv": ["x"], "env": {}, "cwd": "/", "port": 1e9, "ready_s": 1}]',
        b'[{"name": "a", "argv": ["x"], "env": {}, "cwd": "/", "port": 0, "ready_s": 1e9}]',
        b'[{"name": "a", "argv": ["x"], "env": {}, "cwd": "/", "port": 0, "ready_s": NaN}]',
    ],
)
async def test_a_list_that_somebody_wrote_does_no_harm(sandbox, content):
    await sandbox.write("/etc/perdure/services.json", content)
    ran = await sandbox.run("echo works", limits=Limits(deadline_s=30))
    assert (ran.output, ran.services) == ("works\n", ())
    assert isinstance(await sandbox.services(), list)


async def test_a_list_that_is_no_file_does_no_harm(sandbox):
    await sandbox.run("mkdir -p /etc/perdure; mkfifo /etc/perdure/services.json")
    assert (await sandbox.run("echo works")).output == "works\n"
    await sandbox.run("rm /etc/perdure/services.json; ln -s /dev/zero /etc/perdure/services.json")
    assert (await sandbox.run("echo works")).output == "works\n"


async def test_a_hundred_are_too_many(sandbox):
    one = {"argv": ["/bin/sleep", "60"], "env": {}, "cwd": "/", "port": 0, "ready_s": 1}
    many = [one | {"name": f"s{n}"} for n in range(100)]
    await sandbox.write("/etc/perdure/services.json", json.dumps(many).encode())
    assert len((await sandbox.run("true")).services) == 16
    with pytest.raises(UsageError, match="16 services"):
        await sandbox.start_service("more", "sleep 60")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "x" * 65, "ä"])
async def test_what_is_no_name_is_refused(sandbox, name):
    with pytest.raises(UsageError, match="no name of a service"):
        await sandbox.start_service(name, "sleep 60")
