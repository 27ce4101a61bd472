"""Workers as processes: health, drain, limits over several of them, schedules, versions."""

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest

from perdure import Runtime
from perdure.cli._targets import load_target
from perdure.engine import versions
from tests.cli.conftest import FLOWS, end

pytestmark = pytest.mark.timeout(90)

VERSIONED = """
from dataclasses import dataclass, field
from typing import Annotated
from perdure import END, START, Graph, append

@dataclass
class State:
    notes: Annotated[list[str], append] = field(default_factory=list)

graph = Graph(State, name="letters", version={version})

@graph.node(name={node!r})
async def node(state, ctx):
    await ctx.receive("go")
    return {{"notes": ["v{version}"]}}

graph.edge(START, node)
graph.edge(node, END)
"""

HELD = """
import asyncio, os, time
from pathlib import Path

async def held(name):
    path = Path(os.environ["HELD"])
    with path.open("a") as file:
        file.write(f"+ {time.monotonic()}\\n")
    await asyncio.sleep(0.15)
    with path.open("a") as file:
        file.write(f"- {time.monotonic()}\\n")

async def stubborn(_given):
    Path(os.environ["HELD"]).touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue

async def blocking(seconds):
    Path(os.environ["HELD"]).touch()
    time.sleep(seconds)
"""


@pytest.fixture
def held(cli):
    """Return the path of a file of graphs, and of what they write while they are executed."""
    file = cli.folder / "held.py"
    file.write_text(HELD)
    cli.environment["HELD"] = str(cli.folder / "held.log")
    return file, cli.folder / "held.log"


def start_worker(cli, *arguments, **environment):
    """Start a worker of any targets; return it and the port of its health server, if it has one."""
    process = cli.start("worker", *arguments, **environment)
    port = None
    if "--health" in arguments or "PERDURE_HEALTH" in environment:
        line = process.stderr.readline()
        while "health: http://" not in line:
            assert line, process.communicate()
            line = process.stderr.readline()
        port = int(line.partition("health: http://")[2].split("/")[0].rpartition(":")[2])
    assert process.stdout.readline().startswith("ready: worker w_")
    return process, port


def ask(port, path="/readyz"):
    """Return status and body of a health request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(check, timeout_s=15.0):
    """Wait until a check gives something true; return it."""
    ends_at = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    return found


# -- health and drain ------------------------------------------------------------------------------


def test_health_says_what_the_worker_does(cli):
    worker, port = start_worker(cli, f"{FLOWS}:charges", "--health", "0", CHARGE_S="300")
    for path in ("/livez", "/readyz"):
        status, body = ask(port, path)
        assert (status, body["status"], body["reasons"]) == (200, "ok", [])
    assert body["worker"].startswith("w_")
    assert (body["held"], body["concurrency"], body["is_draining"]) == (0, 256, False)
    assert body["graphs"] == [{"graph": "charges", "version": 3}]
    assert 0 <= body["heartbeat_age_s"] < 6
    cli.run_id("charges", {"order_id": "o"})
    cli.charged()
    assert ask(port)[1]["held"] == 1
    assert ask(port, "/")[0] == 404
    end(worker, signal.SIGKILL)


def test_first_signal_ends_readiness_not_life(cli):
    worker, port = start_worker(
        cli,
        f"{FLOWS}:charges",
        CHARGE_S="300",
        PERDURE_DRAIN_WINDOW="2",
        PERDURE_HEALTH="127.0.0.1:0",
    )
    cli.run_id("charges", {"order_id": "o"})
    cli.charged()
    worker.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    _status, body = until(lambda: (found := ask(port))[0] == 503 and found)
    assert (body["reasons"], body["is_draining"], body["held"]) == (["the worker drains"], True, 1)
    assert time.monotonic() - sent < 1
    assert ask(port, "/livez")[0] == 200
    [row] = cli("ps", "--workers", "--json").json["workers"]
    assert (row["state"], row["is_draining"], row["held"]) == ("draining", True, 1)
    later = cli.run_id("charges", {"order_id": "later"})
    _out, err = worker.communicate(timeout=20)
    assert worker.returncode == 0, err
    assert 2 <= time.monotonic() - sent < 2 + 3, "the window and a small margin"
    assert cli("show", later, "--json").json["run"]["token"] == 0, "nothing was claimed any more"


def test_node_that_swallows_its_end_holds_up_no_exit(cli, held):
    file, log = held
    cli("start", f"{file}:stubborn", "--input", "1")
    worker, _port = start_worker(cli, f"{file}:stubborn", "--drain-window", "1", "--quiet")
    until(log.exists)
    sent = time.monotonic()
    code, err = end(worker)
    assert (code, "left behind" in err) == (0, True)
    assert time.monotonic() - sent < 1 + 4 + 5 + 2, "window, margin, close, and a slow machine"


def test_blocked_event_loop_is_not_alive(cli, held):
    file, log = held
    worker, port = start_worker(cli, f"{file}:blocking", "--health", "0", "--quiet")
    cli("start", f"{file}:blocking", "--input", "12")
    until(log.exists)
    assert ask(port, "/livez")[0] == 200
    _status, body = until(lambda: (found := ask(port, "/livez"))[0] == 503 and found)
    assert "the event loop has not turned for" in body["reasons"][0]
    assert ask(port, "/readyz")[0] == 503
    until(lambda: ask(port, "/livez")[0] == 200)
    end(worker)


def test_health_server_answers_no_nonsense(cli):
    worker, port = start_worker(cli, f"{FLOWS}:hello", "--health", f"127.0.0.1:{0}")

    def say(data):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as talk:
            talk.sendall(data)
            talk.shutdown(socket.SHUT_WR)
            try:
                return talk.recv(65536).split(b"\r\n")[0]
            except ConnectionResetError:
                return b""

    assert say(b"POST /readyz HTTP/1.1\r\n\r\n") == b"HTTP/1.1 405 Method Not Allowed"
    assert say(b"nonsense\r\n\r\n") == b"HTTP/1.1 400 Bad Request"
    assert say(b"GET /readyz?x=1 HTTP/1.0\r\nHost: x\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert say(b"HEAD /livez HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert say(b"GET /livez HTTP/1.1\r\n" + b"x: " + b"y" * 100_000) == b""
    assert say(b"") == b""
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(30)
        ]
        assert silent[-1].recv(10) == b"", "more at once than it bears are closed"
        assert silent[0].recv(10) == b"", "who says nothing is closed after a while"
    assert ask(port)[0] == 200
    assert end(worker)[0] == 0


def test_health_address_that_is_taken_or_none_is_refused(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("worker", f"{FLOWS}:hello", "--health", str(port))
        assert (done.code, "PD106" in done.err) == (2, True)
    done = cli("worker", f"{FLOWS}:hello", "--health", "nowhere")
    assert (done.code, "write HOST:PORT" in done.err) == (2, True)


def test_versions_are_printed(inside):
    done = inside("worker", f"{FLOWS}:charges", f"{FLOWS}:hello", "--versions")
    assert [line.split()[:3] for line in done.out.splitlines()[1:]] == [
        ["charges", "v3", "take_money"],
        ["hello", "v1", "call"],
    ]


def test_workers_are_listed_with_what_they_hold(cli):
    first, _port = start_worker(cli, f"{FLOWS}:charges", "--concurrency", "2", CHARGE_S="300")
    start_worker(cli, f"{FLOWS}:hello", PERDURE_CONCURRENCY="7")
    for n in range(3):
        cli.run_id("charges", {"order_id": f"o-{n}"})
    rows = until(
        lambda: (r := cli("ps", "--workers", "--json").json["workers"])[0]["held"] == 2 and r
    )
    assert [(row["state"], row["held"], row["concurrency"]) for row in rows] == [
        ("live", 2, 2),
        ("live", 0, 7),
    ]
    text = cli("ps", "--workers").out
    assert "2 of 2" in text
    assert "charges v3" in text
    end(first, signal.SIGKILL)
    assert len(cli("ps", "--workers", "--json").json["workers"]) == 1, "dead, not silent"


async def start_many(path, function, count):
    """Store so many runs of a function."""
    async with Runtime.open(f"sqlite:///{path}", [function], worker=False) as runtime:
        for number in range(count):
            await runtime.start(function, str(number))


# -- limits ----------------------------------------------------------------------------------------


def test_limit_holds_over_processes(cli, held):
    file, log = held
    assert cli("limit", "set", "--graph", "held", "--concurrency", "3").code == 0
    asyncio.run(start_many(cli.folder / "perdure.db", load_target(f"{file}:held"), 12))
    for _ in range(3):
        start_worker(cli, f"{file}:held", "--quiet")
    until(lambda: log.exists() and log.read_text().count("-") == 12, timeout_s=40)
    marks = sorted((float(at), kind) for kind, at in map(str.split, log.read_text().splitlines()))
    now = most = 0
    for _at, kind in marks:
        now += 1 if kind == "+" else -1
        most = max(most, now)
    assert most == 3
    assert len(marks) == 24


def test_run_that_is_kept_back_says_so(cli):
    cli("limit", "set", "--graph", "charges", "--concurrency", "1")
    assert cli("limit", "list").out.split()[5:9] == ["charges", "(all)", "0", "1"]
    cli.run_id("charges", {"order_id": "o"})
    cli.worker("charges", CHARGE_S="300")
    cli.charged()
    kept = cli.run_id("charges", {"order_id": "p"})
    assert "pending, limit of graph 'charges': 1 of 1 running" in cli("ps").out
    text = cli("show", kept).out
    assert "kept back by the limit of graph 'charges': 1 of 1 running" in text
    found = cli("show", kept, "--json").json["outlook"]
    assert (found["standing"], found["kept"].startswith("kept back")) == ("moving", True)
    assert cli("limit", "remove", "--graph", "charges").code == 0
    cli.until(kept, "running")
    done = cli("limit", "remove", "--graph", "charges")
    assert (done.code, "PD200" in done.err) == (4, True)


# -- schedules -------------------------------------------------------------------------------------


def test_processes_fire_a_schedule_once(cli):
    done = cli("schedule", "add", "s", f"{FLOWS}:hello", "--input", '"a"', "--cron", "* * * * * *")
    assert (done.code, done.out.startswith("schedule s: next at ")) == (0, True)
    workers = [cli.worker("hello", "--quiet") for _ in range(3)]
    time.sleep(6)
    cli("schedule", "pause", "s")
    [shown] = cli("schedule", "list", "--json").json["schedules"]
    assert (shown["is_paused"], shown["next_at"]) == (True, None)
    runs = until(
        lambda: (
            (r := cli("ps", "--all", "--json").json["runs"])
            and all(row["status"] == "succeeded" for row in r)
            and r
        )
    )
    keys = Counter(row["key"] for row in runs)
    assert set(keys.values()) == {1}
    assert len(keys) >= 4
    for worker in workers:
        assert end(worker)[0] == 0
    assert cli("schedule", "resume", "s").code == 0
    assert cli("schedule", "remove", "s").code == 0
    assert cli("schedule", "remove", "s").code == 4
    assert "no schedules" in cli("schedule", "list").out


def test_schedule_that_can_not_be_is_refused(cli):
    done = cli("schedule", "add", "s", f"{FLOWS}:hello", "--input", '"a"', "--cron", "99 * * * *")
    assert (done.code, "bad minute" in done.err) == (2, True)


# -- versions --------------------------------------------------------------------------------------


@pytest.fixture
def letters(cli):
    """Return a function that writes a version of a graph, and its target."""

    def write(version, node="first"):
        file = cli.folder / f"letters_{version}_{node}.py"
        file.write_text(VERSIONED.format(version=version, node=node))
        return f"{file}:graph"

    return write


def test_run_is_moved_to_another_version(cli, letters):
    run_id = cli("start", letters(1)).out.strip()
    old, _port = start_worker(cli, letters(1))
    cli.until(run_id, "waiting")
    end(old)
    done = cli("resolve", run_id, "--to-version", "2", "--by", "ada")
    assert (done.code, "no live worker executes letters v2" in done.err) == (2, True)
    wrong, _port = start_worker(cli, letters(2, "other"))
    done = cli("resolve", run_id, "--to-version", "2", "--by", "ada", "--json")
    assert (done.code, done.json["error"]["class"]) == (12, "VersionMismatch")
    assert "node 'first' is under way and does not exist there" in done.json["error"]["message"]
    end(wrong)
    start_worker(cli, letters(2))
    done = cli("resolve", run_id, "--to-version", "2", "--by", "ada")
    assert (done.code, done.out) == (0, f"run {run_id} goes on with v2\n")
    cli("signal", run_id, "go")
    shown = cli.until(run_id, "succeeded")
    assert (shown["run"]["version"], shown["state"]["notes"]) == (2, ["v2"])
    assert "moved from v1 to v2 by ada" in cli("show", run_id).out


async def park(path, run_id):
    """Park a due run as a worker of version 2 does after its grace."""
    async with Runtime.open(f"sqlite:///{path}", worker=False) as runtime:
        row = await runtime.read_row(run_id)
        assert await versions._park(runtime.engine, row, versions.mismatch_of(row, [2]))


def test_parked_version_says_the_ways_out_and_is_taken_up_again(cli, letters):
    run_id = cli("start", letters(1)).out.strip()
    old, _port = start_worker(cli, letters(1))
    cli.until(run_id, "waiting")
    end(old)
    cli("signal", run_id, "go")
    asyncio.run(park(cli.folder / "perdure.db", run_id))
    start_worker(cli, letters(2))
    shown = cli("show", run_id, "--json").json
    assert (shown["run"]["status"], shown["outlook"]["standing"]) == ("needs_decision", "parked")
    ways = [
        "perdure worker FILE:GRAPH  # letters v1",
        f"perdure resolve {run_id} --to-version 2 --by NAME",
        f"perdure cancel {run_id}",
    ]
    assert shown["next"] == ways
    assert "needs_decision: VersionMismatch" in cli("ps").out
    [finding] = [
        each for each in cli("doctor", "--json").json["findings"] if each["code"] == "run_parked"
    ]
    assert finding["next"] == ways
    refused = cli("resolve", run_id, "--retry", "--by", "ada", "--json")
    assert (refused.code, refused.json["next"]) == (12, ways)
    start_worker(cli, letters(1))
    assert cli.until(run_id, "succeeded")["state"]["notes"] == ["v1"]
    text = cli("show", run_id).out
    assert "retry asked for by worker w_" in text
    assert "which executes v1" in text
