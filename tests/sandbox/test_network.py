"""What was named can be reached; nothing else can, whatever its name is resolved to."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from perdure.errors import UsageError
from perdure.sandbox import Contact, IsolatedSandboxes, Limits, Network
from perdure.sandbox import _network as room
from tests.sandbox.attacks import PRELUDE
from tests.sandbox.long import LONG, alive

pytestmark = pytest.mark.timeout(120)

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except Exception as error:
    print("failed:", getattr(error, "code", ""), error)
"""
TUNNEL = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), 20)
s.sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
got = b""
while chunk := s.recv(65536):
    got += chunk
    if b"bye" in got:
        break
print(got.decode("latin-1"))
"""


@pytest.fixture
async def server():
    """Serve on the host's loopback; say what was asked."""
    heard: list[bytes] = []

    async def answer(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as serving:
        yield serving.sockets[0].getsockname()[1], heard


@pytest.fixture
def opened(is_able, tmp_path):
    made = []

    def open_with(network):
        made.append(IsolatedSandboxes(tmp_path / f"n{len(made)}", network=network))
        return made[-1].open("acme", "t")

    yield open_with
    for backend in made:
        backend.close()


def python(code, *arguments):
    return ["/usr/bin/python3", "-I", "-c", code, *arguments]


async def test_a_host_that_was_named_is_reached(opened, server):
    port, heard = server
    network = Network(allow=(f"api.test:{port}",), addresses={"api.test": "127.0.0.1"})
    ran = await opened(network).run(python(FETCH, f"http://api.test:{port}/a?b=c"))
    assert ran.output == "hello\n"
    assert heard[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"proxy-connection" not in heard[0].lower()
    [contact] = ran.contacts
    assert (contact.host, contact.port, contact.reason) == ("api.test", port, "")
    assert contact.received > 5


async def test_a_tunnel_carries_both_ways(opened, server):
    port, _heard = server
    network = Network(allow=(f"*.test:{port}",), addresses={"api.test": "127.0.0.1"})
    request = f"CONNECT api.test:{port} HTTP/1.1\\r\\n\\r\\nGET / HTTP/1.1\\r\\n\\r\\n"
    ran = await opened(network).run(python(TUNNEL, request))
    assert "200 Connected" in ran.output
    assert ran.output.endswith("hello\n")


@pytest.mark.parametrize(
    "url",
    ["http://other.test/", "http://api.test:81/", "http://api.test.evil/", "http://127.0.0.2:80/x"],
)
async def test_another_host_is_refused_and_told(opened, server, url):
    network = Network(allow=("api.test:80",), addresses={"api.test": "127.0.0.1"})
    ran = await opened(network).run(python(FETCH, url))
    assert "failed: 403" in ran.output
    assert "not among the hosts" in ran.contacts[0].reason


async def test_a_name_of_the_own_network_is_refused(opened, server):
    port, heard = server
    network = Network(allow=(f"localhost:{port}", f"169.254.169.254:{port}"))
    sandbox = opened(network)
    for host in ("localhost", "169.254.169.254"):
        request = f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\nbye"
        ran = await sandbox.run(python(TUNNEL, request))
        assert "502" in ran.output
        assert "not of the public internet" in ran.contacts[0].reason
    assert heard == []


async def test_there_is_no_other_way_out(opened, server):
    port, _heard = server
    network = Network(allow=("api.test:80",))
    code = PRELUDE + f"attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2))"
    assert "stopped" in (await opened(network).run(python(code))).output
    code = PRELUDE + "attempt(lambda: socket.create_connection(('192.0.2.1', 80), 2))"
    assert "stopped" in (await opened(network).run(python(code))).output


@pytest.mark.parametrize(
    "request_line",
    [
        "",
        "\\r\\n\\r\\n",
        "GET / HTTP/1.1\\r\\n\\r\\n",
        "CONNECT api.test HTTP/1.1\\r\\n\\r\\n",
        "CONNECT [::1 HTTP/1.1\\r\\n\\r\\n",
        "CONNECT api.test:99999999 HTTP/1.1\\r\\n\\r\\n",
        "GET https://api.test/ HTTP/1.1\\r\\n\\r\\n",
        "GET http://api.test:x/ HTTP/1.1\\r\\n\\r\\n",
        "\\xff\\xfe\\x00 \\x00 \\x00\\r\\n\\r\\n",
        "CONNECT api.test:80\\r\\nHost: other HTTP/1.1\\r\\n\\r\\n",
    ],
)
async def test_what_is_no_request_is_answered_and_the_next_one_works(opened, server, request_line):
    port, _heard = server
    network = Network(allow=(f"api.test:{port}",), addresses={"api.test": "127.0.0.1"})
    sandbox = opened(network)
    code = TUNNEL.replace('got = b""', 'got = b""; s.shutdown(socket.SHUT_WR)')
    ran = await sandbox.run(python(code, request_line))
    assert "200" not in ran.output
    assert (await sandbox.run(python(FETCH, f"http://api.test:{port}/"))).output == "hello\n"


async def test_a_head_without_end_is_cut(opened):
    sandbox = opened(Network(allow=("api.test:80",)))
    code = (
        PRELUDE
        + """
s = socket.create_connection(("127.0.0.1", 3128), 20)
def flood():
    for _ in range(100_000):
        s.sendall(b"x" * 1000)
attempt(flood)
"""
    )
    assert "stopped" in (await sandbox.run(python(code))).output


async def test_many_connections_are_bounded(opened, server, monkeypatch):
    monkeypatch.setattr(room, "CONNECTIONS_MAX", 3)
    sandbox = opened(Network(allow=("api.test:80",)))
    code = (
        PRELUDE
        + """
all = [socket.create_connection(("127.0.0.1", 3128), 20) for _ in range(6)]
ended = 0
for s in all[3:]:
    s.settimeout(5)
    ended += s.recv(1) == b""
print(ended)
"""
    )
    assert (await sandbox.run(python(code))).output == "3\n"


async def test_a_tunnel_that_is_open_ends_with_the_command(opened, server):
    port, _heard = server
    network = Network(allow=(f"api.test:{port}",), addresses={"api.test": "127.0.0.1"})
    request = f"CONNECT api.test:{port} HTTP/1.1\\r\\n\\r\\n"
    code = TUNNEL.replace('if b"bye" in got:', "if True:")
    ran = await opened(network).run(python(code, request), limits=Limits(deadline_s=20))
    assert ran.code == 0
    assert ran.contacts == (Contact(host="api.test", port=port),)


@pytest.mark.parametrize("rule", ["", "api.test", "*:80", "a*.test:80", ":80", "api.test:http"])
def test_a_rule_that_names_no_host_is_refused(rule):
    with pytest.raises(UsageError, match="names no host"):
        Network(allow=(rule,))


def test_rules_match_whole_names():
    network = Network(allow=("api.test:443", "*.Example.test:443"))
    assert network.allows("API.test.", 443)
    assert network.allows("a.b.example.test", 443)
    assert not network.allows("example.test", 443)
    assert not network.allows("evilexample.test", 443)
    assert not network.allows("api.test", 80)
    assert not network.allows("xapi.test", 443)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "::1",
        "::ffff:127.0.0.1", "::ffff:0:7f00:1", "::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
        "2001:0:1::", "fec0::1", "fe80::1", "fd00::1", "ff02::1",
    ],
)  # fmt: skip
def test_what_leads_inside_is_not_public(address):
    assert not room._is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "2a00:1450::1"])
def test_what_is_public_is(address):
    assert room._is_public(address)


async def test_the_host_that_is_asked_for_is_the_one_that_was_named(opened, server):
    port, heard = server
    network = Network(allow=(f"api.test:{port}",), addresses={"api.test": "127.0.0.1"})
    request = f"GET http://api.test.:{port}/ HTTP/1.1\\r\\nHost: internal\\r\\nX: y\\r\\n\\r\\n"
    code = TUNNEL.replace('b"bye"', 'b"hello"')
    ran = await opened(network).run(python(code, request))
    assert "hello" in ran.output
    assert b"Host: api.test" in heard[0]
    assert b"internal" not in heard[0]


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_cancelled_commands_leave_no_socket(opened):
    sandbox = opened(Network(allow=("api.test:80",)))
    await sandbox.run("true")
    counts = []
    for _ in range(10):
        task = asyncio.create_task(sandbox.run(f"sleep {LONG}"))
        while not alive():  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sandbox.run("true")
        counts.append(open_files())
    # The next tree is just being made, or not: that is a descriptor more or less, and stays so.
    assert min(counts[-3:]) <= max(counts[:3]), counts
