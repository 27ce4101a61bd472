"""Processes of a sandbox live on: between commands, in snapshots, in forks; or are named.

Size: one tier, and all that may be done to its images.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from perdure import START, Context, Graph, Runtime, effect
from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from perdure.sandbox import limits as room_limits
from tests import warm
from tests.engine.one_node import State
from tests.sandbox.attacks import ATTACKS, PRELUDE
from tests.sandbox.kept import ask, criu, kept_sandboxes, start_counter
from tests.sandbox.long import LONG, alive

pytestmark = pytest.mark.timeout(300)

TREE = """
import fcntl, os, socket, threading
listening = socket.create_server(("127.0.0.1", 9000))
there, here = os.pipe()
lock = open("/workspace/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
unnamed = open(os.memfd_create("any"), "w+b")
unnamed.write(b"of a file without a name")
unnamed.flush()
ticks = [0]
def tick():
    while True:
        threading.Event().wait(0.01)
        ticks[0] += 1
if os.fork() == 0:
    own = socket.create_connection(("127.0.0.1", 9000))
    while asked := own.recv(100):
        own.sendall(b"child: " + asked)
        os.write(here, b"piped")
    os._exit(0)
threading.Thread(target=tick, daemon=True).start()
established, _ = listening.accept()
control = socket.socket(socket.AF_UNIX)
control.bind("/tmp/control")
control.listen()
while True:
    one, _ = control.accept()
    before = ticks[0]
    while ticks[0] == before:
        pass
    established.sendall(one.recv(100))
    answered, piped = established.recv(100), os.read(there, 5)
    unnamed.seek(0)
    one.sendall(b"|".join([answered, piped, unnamed.read()]))
    one.close()
"""
CALL = """
import socket, time
for _ in range(200):
    try:
        own = socket.socket(socket.AF_UNIX)
        own.connect("/tmp/control")
        break
    except OSError:
        time.sleep(0.05)
own.sendall(b"hello")
print(own.recv(1000).decode())
"""


@pytest.fixture
def backend(is_able, tmp_path):
    backend = kept_sandboxes(tmp_path / "sandboxes")
    yield backend
    backend.close()


@pytest.fixture
def sandbox(backend):
    return backend.open("acme", "t")


async def test_a_server_with_state_survives_snapshots_restores_and_a_fork(backend, sandbox):
    assert await start_counter(sandbox) == "1 of 0"
    assert await ask(sandbox) == "2 of 0"
    snapshot = await sandbox.take()
    assert await ask(sandbox) == "3 of 0"
    assert await ask(sandbox) == "4 of 0"
    later = await sandbox.take()
    fork = backend.open("acme", "fork")
    await fork.restore(snapshot)
    assert await ask(fork) == "3 of 0"
    assert await ask(sandbox) == "5 of 0", "the fork disturbs nobody"
    await sandbox.restore(snapshot)
    ran = await sandbox.run("cat /workspace/counter.py > /dev/null")
    assert ran.lost == ()
    assert await ask(sandbox) == "3 of 0"
    await sandbox.restore(later)
    assert await ask(sandbox) == "5 of 0"
    await sandbox.restore(None)
    ran = await sandbox.run("ls /workspace")
    assert (ran.output, ran.left, ran.lost) == ("", (), ())


@effect(kind="contained")
async def begin(*, sandbox) -> str:
    return await start_counter(sandbox)


@effect(kind="contained")
async def look(*, sandbox) -> str:
    return await ask(sandbox)


async def test_nodes_of_a_run_and_of_its_fork_find_the_processes_of_before(backend, tmp_path):
    graph = Graph(State, name="kept")
    before = START
    for number, act in enumerate((begin, look, look)):

        @graph.node(name=f"n{number}")
        async def node(state: State, ctx: Context, act=act) -> dict:
            return {"results": [await ctx.call(act)]}

        graph.edge(before, f"n{number}")
        before = f"n{number}"
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=backend) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        wanted = ["1 of 0", "2 of 0", "3 of 0"]
        assert (await run.result(timeout=90)).results == wanted
        fork = await runtime.fork("t", at=2)
        assert (await fork.result(timeout=90)).results == wanted, "not 4: it is as of then"


async def test_another_worker_of_this_host_brings_it_back(backend, sandbox):
    await start_counter(sandbox)
    snapshot = await sandbox.take()
    backend.close()
    other = kept_sandboxes(backend.root)
    try:
        again = other.open("acme", "t")
        await again.restore(snapshot)
        assert await ask(again) == "2 of 0"
    finally:
        other.close()


async def test_what_begins_after_a_way_back_is_kept_too(sandbox):
    for number in range(1, 4):
        await sandbox.run(f"sleep 700{number} &")
        await sandbox.take()
    ran = await sandbox.run("pgrep -c -f 'sleep [7]00'")
    assert (ran.output, ran.lost) == ("3\n", ())


async def test_os_threads_connections_pipes_locks_and_nameless_files_go_on(sandbox):
    await sandbox.write("/workspace/tree.py", TREE.encode())
    await sandbox.run("/usr/bin/python3 -I /workspace/tree.py > /dev/null 2> /workspace/errors &")
    wanted = "child: hello|piped|of a file without a name"
    for _ in range(3):
        ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", CALL])
        assert ran.output.strip() == wanted, (ran, await sandbox.run("cat /workspace/errors"))
        assert ran.lost == ()
        await sandbox.take()


async def test_a_service_keeps_its_memory_and_is_not_started_twice(sandbox):
    counter = "exec /usr/bin/python3 -I /workspace/counter.py 0"
    await start_counter(sandbox)
    await sandbox.run("pkill -f counter[.]py; rm -f /workspace/nohup.out")
    state = await sandbox.start_service("counter", counter, port=8000)
    assert state.is_up, state
    assert await ask(sandbox) == "1 of 0"
    await sandbox.take()
    assert await ask(sandbox) == "2 of 0"
    ran = await sandbox.run("pgrep -c -f counter[.]py")
    assert ran.output == "1\n"
    assert [each.is_up for each in ran.services] == [True]
    assert await sandbox.stop_service("counter")
    await sandbox.run("true")
    assert (await sandbox.run("pgrep -c -f counter[.]py")).output == "0\n"


async def test_a_deadline_ends_the_command_and_nothing_else(sandbox):
    await start_counter(sandbox)
    ran = await sandbox.run("setsid sleep 600 & wait", limits=Limits(deadline_s=1))
    assert (ran.killed_by, ran.code) == ("deadline", 137)
    assert await ask(sandbox) == "2 of 0"
    assert (await sandbox.run("pgrep -f 'sleep [6]00'")).output == ""


async def test_what_nothing_lives_in_costs_a_snapshot_nothing(sandbox):
    await sandbox.run("echo 1 > /workspace/n")
    first = await sandbox.take()
    await sandbox.run("cat /workspace/n")
    assert await sandbox.take() == first
    await start_counter(sandbox)
    second = await sandbox.take()
    await sandbox.run("pkill -f counter[.]py")
    third = await sandbox.take()
    assert len({first, second, third}) == 3, "the third has nothing alive"
    await sandbox.restore(third)
    assert (await sandbox.run("true")).left == ()


async def test_what_can_not_be_kept_is_named_with_the_reason(sandbox):
    code = (
        "import os, time; f = open('/workspace/big', 'wb'); f.write(bytes(80 << 20)); f.flush();"
        "os.unlink('/workspace/big'); open('/workspace/up', 'w'); time.sleep(LONG)"
    ).replace("LONG", LONG)
    await sandbox.run(f'/usr/bin/python3 -c "{code}" & until [ -e /workspace/up ]; do :; done')
    snapshot = await sandbox.take()
    ran = await sandbox.run("ls /workspace")
    assert ran.output == "up\n"
    (line,) = ran.lost
    assert LONG in line
    assert "no name any more" in line
    assert (await sandbox.run("true")).lost == (), "it is said once"
    await sandbox.restore(snapshot)
    assert LONG in (await sandbox.run("true")).lost[0], "who goes back is told, too"
    assert [each.line for each in sandbox.lost()]


async def test_the_newest_images_only_are_kept(sandbox, monkeypatch):
    await start_counter(sandbox)
    snapshots = []
    for number in range(room_limits.IMAGES_KEPT + 2):
        await sandbox.run(f"echo {number} > /workspace/n")
        snapshots.append(await sandbox.take())
    await sandbox.restore(snapshots[0])
    ran = await sandbox.run("cat /workspace/n")
    assert ran.output == "0\n"
    assert "newest" in ran.lost[0]
    await sandbox.restore(snapshots[-1])
    assert await ask(sandbox) == "2 of 0"


# -- attacks ---------------------------------------------------------------------------------------


def folder_of(backend: IsolatedSandboxes, snapshot: str) -> Path:
    (found,) = backend.root.glob(f"tenants/*/layers/{snapshot}/images")
    return found


async def refused(sandbox, snapshot: str) -> str:
    """Return why the counter of a snapshot is not brought back; its files are."""
    await sandbox.restore(snapshot)
    ran = await sandbox.run("ls /workspace; pgrep -f counter[.]py")
    assert ran.output == "counter.py\n"
    (line,) = ran.lost
    return line


@pytest.mark.parametrize("name", ["pages-1.img", "core-1.img", "seal.json", "outside.json"])
async def test_images_that_were_changed_are_refused(backend, sandbox, name):
    await start_counter(sandbox)
    snapshot = await sandbox.take()
    path = folder_of(backend, snapshot) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    line = await refused(sandbox, snapshot)
    assert "changed" in line or "no seal" in line


async def test_a_file_more_or_less_is_refused(backend, sandbox):
    await start_counter(sandbox)
    snapshot = await sandbox.take()
    (folder_of(backend, snapshot) / "core-77.img").write_bytes(b"")
    assert "core-77.img was changed" in await refused(sandbox, snapshot)


async def test_images_of_another_snapshot_or_tenant_are_refused(backend, sandbox):
    await start_counter(sandbox)
    older = await sandbox.take()
    await sandbox.run("true")
    newer = await sandbox.take()
    shutil.rmtree(folder_of(backend, newer))
    shutil.copytree(
        folder_of(backend, older), folder_of(backend, older).parents[1] / newer / "images"
    )
    assert "for snapshot" in await refused(sandbox, newer)


async def test_images_of_another_host_are_refused(backend, sandbox):
    await start_counter(sandbox)
    snapshot = await sandbox.take()
    path = folder_of(backend, snapshot) / "seal.json"
    seal = json.loads(path.read_bytes())
    seal["said"]["boot"] = "another"
    path.write_text(json.dumps(seal))
    assert "another host" in await refused(sandbox, snapshot)


async def test_what_was_brought_back_has_no_more_rights_than_before(sandbox):
    await sandbox.run(f"sleep {LONG} &")
    before = rights(LONG)
    await sandbox.take()
    await sandbox.run("true")
    assert rights(LONG) == before
    assert before["CapBnd"] == before["CapEff"] == "0" * 16
    assert (before["NoNewPrivs"], before["Seccomp"]) == ("1", "2")
    assert int(before["Uid"].split()[0]) >= room_limits.RANGE_FIRST


def rights(mark: str) -> dict[str, str]:
    """Return what /proc says of the rights of the one process with this command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() != f"sleep\0{mark}\0".encode():
                continue
            lines = (path.parent / "status").read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        names = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters")
        return {name: fields[name] for name in (*names, *(n for n in fields if n[:3] == "Cap"))}
    msg = f"no sleep {mark}"
    raise AssertionError(msg)


@pytest.fixture(scope="module")
def brought_back(is_able, tmp_path_factory):
    """Return a function that runs a command in a tree that was brought back."""
    backend = kept_sandboxes(tmp_path_factory.mktemp("kept"))

    async def attack(code: str):
        sandbox = backend.open("acme", "t")
        await sandbox.restore(None)
        await sandbox.run(f"sleep {LONG} &")
        await sandbox.take()
        ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", code])
        await sandbox.close()
        return ran

    yield lambda code: asyncio.run(attack(code))
    backend.close()


OF_PROCESS_1 = ("escape_by_a_descriptor_of_the_first_process", "environment_of_the_first_process")
"""Process 1 is no process of ours here, but one of the sandbox: see below."""
OTHERS = [attack for attack in ATTACKS if attack.name not in OF_PROCESS_1]


@pytest.mark.parametrize("attack", OTHERS, ids=[f"{a.number}_{a.name}" for a in OTHERS])
def test_it_is_stopped_in_a_tree_that_was_brought_back(brought_back, attack):
    ran = brought_back(PRELUDE + attack.code)
    assert ran.lost == ()
    assert "THROUGH" not in ran.output, ran
    assert "stopped" in ran.output or ran.code not in {0, 1}, ran


async def test_the_steward_is_not_to_be_seen(sandbox):
    ran = await sandbox.run(
        "ls /proc | grep -E '^[0-9]+$' | sort -n | head -1; cat /proc/1/cmdline"
    )
    assert ran.output == "1\n/dev/.keeper\0"


NAMELESS = """
import os, sys, time
os.makedirs("/workspace/d/sub")
if sys.argv[2] == "file":
    held = os.open("/workspace/d/pwned", os.O_RDWR | os.O_CREAT, 0o777)
    os.unlink("/workspace/d/pwned")
else:
    os.chdir("/workspace/d/sub")
os.rmdir("/workspace/d/sub")
os.rmdir("/workspace/d")
os.symlink(sys.argv[1], "/workspace/d")
time.sleep(LONG)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("is_found", [True, False], ids=["refused", "closed"])
async def test_a_nameless_file_leads_to_nothing_of_the_host(
    is_able, tmp_path, monkeypatch, kind, is_found
):
    if not is_found:  # images of before: they are taken as they were, and the way back is closed
        text = (Path(room_limits.__file__).parent / "inside" / "images.py").read_text()
        package = tmp_path / "code"
        shutil.copytree(Path(room_limits.__file__).parent / "inside", package / "inside")
        text = text.replace("            _check_names(each)\n", "            pass\n")
        (package / "inside" / "images.py").write_text(text)
        monkeypatch.setattr("perdure.sandbox._launching.__file__", str(package / "x.py"))
        monkeypatch.setattr("perdure.sandbox._criu.NAMELESS", ("none-such",))
    host = tmp_path / "host"
    host.mkdir()
    before = host.stat().st_mtime_ns
    backend = kept_sandboxes(tmp_path / "sandboxes")
    try:
        sandbox = backend.open("acme", "t")
        await sandbox.write("/workspace/p.py", NAMELESS.replace("LONG", LONG).encode())
        await sandbox.run(
            f"/usr/bin/python3 -I /workspace/p.py {host} {kind} & "
            "until [ -L /workspace/d ]; do :; done"
        )
        await sandbox.take()
        ran = await sandbox.run("true")
        assert is_found == any("no name any more" in line for line in ran.lost)
        assert host.stat().st_mtime_ns == before, "not even for a moment"
        assert list(host.iterdir()) == []
    finally:
        backend.close()


async def test_what_lived_is_named_where_files_were_changed_since(backend, sandbox):
    await sandbox.run(f"sleep {LONG} &")
    await sandbox.take()
    await sandbox.run("echo b > /workspace/f")
    backend.close()
    other = kept_sandboxes(backend.root)
    try:
        ran = await other.open("acme", "t").run("true")
        assert "files were changed since" in ran.lost[0]
    finally:
        other.close()


async def test_process_1_is_no_program_that_a_command_can_change(sandbox):
    await sandbox.run("rm -f /usr/bin/sleep; : > /dev/.keeper")
    await sandbox.take()
    ran = await sandbox.run("cat /proc/1/cmdline")
    assert ran.output == "/dev/.keeper\0"


# -- kills -----------------------------------------------------------------------------------------

WORKER = textwrap.dedent("""
    import asyncio, sys
    from perdure.sandbox import IsolatedSandboxes

    async def main():
        backend = IsolatedSandboxes(sys.argv[1], criu=sys.argv[2])
        sandbox = backend.open("t", "1")
        await sandbox.run("sleep LONG & sleep LONG & echo begun > /workspace/n")
        print("ready", flush=True)
        while True:
            snapshot = await sandbox.take()
            await sandbox.restore(snapshot)
            ran = await sandbox.run("cat /workspace/n")
            assert not ran.lost, ran.lost

    asyncio.run(main())
""")


@pytest.mark.fault
def test_a_killed_worker_leaves_nothing_alive(is_able, tmp_path):
    chance = random.Random(5)  # noqa: S311  # not for secrets
    for _ in range(12):
        command = [sys.executable, "-c", WORKER.replace("LONG", LONG), str(tmp_path / "s"), criu()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        worker = warm.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert worker.stdout.readline() == b"ready\n"
        try:
            worker.wait(timeout=chance.uniform(0.05, 1.5))
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        worker.stdout.close()
        until = time.monotonic() + 60
        while left := [*alive(), *keepers(tmp_path)]:
            assert time.monotonic() < until, left
            time.sleep(0.02)  # a look takes a while itself, and keeps them from ending


def keepers(folder: Path) -> list[str]:
    """Return processes that CRIU works on or has in hand for sandboxes below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(folder) in line and "criu" in line:
            found.append(line[:80])
    return found


# -- settings --------------------------------------------------------------------------------------


def test_a_program_that_is_no_criu_is_refused(is_root, tmp_path):
    if not is_root:
        pytest.skip("NOT TESTED: who is no root is refused before")
    with pytest.raises(UsageError, match="no CRIU"):
        IsolatedSandboxes(tmp_path, criu="/bin/true")
    with pytest.raises(UsageError, match="make criu"):
        IsolatedSandboxes(tmp_path, criu=tmp_path / "none")


async def test_what_there_is_is_told(backend):
    found = await backend.capabilities()
    assert found.criu.startswith(("4.", "5."))
    assert found.landlock == 0, "it would be lost on the way back"
